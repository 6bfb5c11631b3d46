//! A file system whose every write and flush is logged, and what a power cut would have left of it.
//!
//! ext4 on a loop device on a file that qemu-storage-daemon exports through FUSE; its driver `blklogwrites` logs in the
//! format of Linux's dm-log-writes. A disk may lose or tear anything that was written since its last flush.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::parts::{Process, eventually, run, say};

/// Size of the disk; its files are sparse.
const DISK: &str = "384M";

/// First bytes of the log.
const MAGIC: u64 = 0x006a_7366_7773_6872;

const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

/// Programs that the rig runs, and Debian's packages that have them.
const TOOLS: [(&str, &str); 6] = [
    ("qemu-storage-daemon", "qemu-utils qemu-system-common"),
    ("mke2fs", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mount", "mount"),
    ("umount", "mount"),
    ("fusermount3", "fuse3"),
];

/// Panics with what a user has to do, if the rig cannot work here.
pub(crate) fn require() {
    assert!(
        rustix::process::geteuid().is_root(),
        "the power-cut test mounts file systems: run it as root (tests/run does)"
    );
    let missing: Vec<_> = TOOLS.iter().filter(|(program, _)| !is_there(program)).collect();
    assert!(missing.is_empty(), "not on PATH: {missing:?} (program, package); tests/real/setup.sh power installs them");
    for device in ["/dev/fuse", "/dev/loop-control"] {
        assert!(Path::new(device).exists(), "{device} is missing: load the kernel modules fuse and loop");
    }
}

fn is_there(program: &str) -> bool {
    path().split(':').any(|dir| Path::new(dir).join(program).is_file())
}

/// An ordinary user's PATH has no file system tools.
fn path() -> String {
    std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin"
}

/// Runs a tool to its end; returns its exit code.
fn tool(command: &str) -> i32 {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command has a name");
    let printed = run(Command::new(program).args(words).env("PATH", path()), 60);
    let code = printed.code.unwrap_or(-1);
    let may_fail = ["e2fsck", "umount"].contains(&program);
    assert!(code == 0 || may_fail, "{command}: exit code {code}: {}{}", printed.out, printed.err);
    code
}

/// A mounted file system; unmounted when it goes.
pub(crate) struct Mount(PathBuf);

impl Mount {
    /// Mounts the image at `at`, which is created.
    fn new(image: &Path, at: PathBuf, options: &str) -> Self {
        fs::create_dir_all(&at).expect("the folder is writable");
        tool(&format!("mount -t ext4 -o loop,noatime{options} {} {}", image.display(), at.display()));
        Self(at)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Unmounts it and says whether that worked.
    fn end(&self) -> bool {
        (0..50).any(|_| {
            let is_over = tool(&format!("umount {}", self.0.display())) == 0;
            if !is_over {
                std::thread::sleep(Duration::from_millis(100));
            }
            is_over
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.end() {
            say(&format!("{} is still in use: unmounted lazily", self.0.display()));
            tool(&format!("umount -l {}", self.0.display()));
        }
    }
}

/// The file system that is logged.
pub(crate) struct Rig {
    // In this order they end.
    mount: Mount,
    export: Export,
    home: PathBuf,
}

impl Rig {
    /// A new file system with blocks of so many bytes, mounted.
    pub(crate) fn new(home: &Path, block: u32) -> Self {
        let at = |name: &str| home.join(name).display().to_string();
        for name in ["log.raw", "export"] {
            File::create(home.join(name)).expect("the folder is writable");
        }
        tool(&format!("truncate -s {DISK} {}", at("disk.raw")));
        // Without work for later in the background, which would only fill the log.
        tool(&format!("mke2fs -q -F -t ext4 -b {block} -E lazy_itable_init=0,lazy_journal_init=0 {}", at("disk.raw")));
        copy(&home.join("disk.raw"), &home.join("durable.raw"));
        let export = Export::start(home);
        let mount = Mount::new(&home.join("export"), home.join("mnt"), "");
        Self { mount, export, home: home.to_owned() }
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        self.mount.path()
    }

    /// A meter of the log.
    pub(crate) fn meter(&self) -> Meter {
        Meter(self.home.join("log.raw"))
    }

    /// Unmounts it and reads the log.
    pub(crate) fn finish(self) -> Cuts {
        let Self { mount, export, home } = self;
        drop(mount);
        export.end();
        Cuts::read(home).expect("the log can be read")
    }
}

/// Tells how long the log is.
#[derive(Clone)]
pub(crate) struct Meter(PathBuf);

impl Meter {
    /// Bytes of the log: whatever has been flushed by now lies below.
    pub(crate) fn now(&self) -> u64 {
        fs::metadata(&self.0).expect("the log is there").len()
    }
}

/// qemu-storage-daemon.
struct Export {
    process: Option<Process>,
    file: PathBuf,
}

impl Export {
    fn start(home: &Path) -> Self {
        let at = |name: &str| home.join(name).display().to_string();
        let mut command = Command::new("qemu-storage-daemon");
        command.args(["--pidfile", &at("export.pid")]);
        for device in [
            // The log is what counts; the disk below needs not be waited for.
            format!("driver=file,node-name=disk,cache.no-flush=on,filename={}", at("disk.raw")),
            format!("driver=file,node-name=log,cache.no-flush=on,filename={}", at("log.raw")),
            "driver=blklogwrites,node-name=logged,file=disk,log=log".to_owned(),
        ] {
            command.args(["--blockdev", &device]);
        }
        command.arg("--export").arg(format!("type=fuse,id=e,node-name=logged,mountpoint={},writable=on", at("export")));
        let mut process = Process::logged(command.env("PATH", path()), &home.join("export.log"));
        eventually("qemu-storage-daemon exports the disk", Duration::from_secs(20), || {
            process.assert_runs();
            home.join("export.pid").exists().then_some(())
        });
        Self { process: Some(process), file: home.join("export") }
    }

    fn end(mut self) {
        self.process.take().expect("it runs").terminate(Duration::from_secs(30));
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // Killed, it leaves a mount whose other end is gone.
        if self.process.take().is_some() {
            tool(&format!("umount -l {}", self.file.display()));
        }
    }
}

/// One write or flush.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Where it belongs on the disk.
    to: u64,
    /// Where its data lies in the log.
    from: u64,
    bytes: usize,
    flags: u64,
}

impl Entry {
    fn end(&self) -> u64 {
        self.from + self.bytes as u64
    }
}

/// The log, and the disk as it was at each flush.
pub(crate) struct Cuts {
    home: PathBuf,
    log: File,
    entries: Vec<Entry>,
    /// Entries that are applied to `durable.raw`.
    durable: usize,
}

/// How a cut is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    /// What was flushed is there; of the rest each write by chance, and some of them torn.
    Honest,
    /// The same, but no flush since the cut before was obeyed.
    Lying,
}

impl Cuts {
    fn read(home: PathBuf) -> io::Result<Self> {
        let log = File::open(home.join("log.raw"))?;
        let words = |at: u64| -> io::Result<[u64; 4]> {
            let mut bytes = [0; 32];
            log.read_exact_at(&mut bytes, at)?;
            let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            Ok(std::array::from_fn(|_| words.next().expect("32 bytes are four words")))
        };
        let [magic, _, count, sector] = words(0)?;
        assert_eq!(magic, MAGIC, "log.raw is a log of writes");
        let sector = sector & 0xffff_ffff;
        let (mut entries, mut at) = (Vec::new(), sector);
        for _ in 0..count {
            let [to, sectors, flags, _] = words(at)?;
            assert_eq!(flags & DISCARD, 0, "nobody discards");
            let entry = Entry { to: to * sector, from: at + sector, bytes: (sectors * sector) as usize, flags };
            at = entry.end();
            entries.push(entry);
        }
        Ok(Self { home, log, entries, durable: 0 })
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of flushes.
    pub(crate) fn flushes(&self) -> usize {
        self.entries.iter().filter(|entry| entry.flags & FLUSH != 0).count()
    }

    /// How many entries the log had when it was so long.
    pub(crate) fn entries_at(&self, length: u64) -> usize {
        self.entries.partition_point(|entry| entry.end() <= length)
    }

    /// How long the log was with so many entries.
    pub(crate) fn length_at(&self, entries: usize) -> u64 {
        entries.checked_sub(1).map_or(0, |last| self.entries[last].end())
    }

    /// What the disk may hold after a cut behind so many entries, in a file of this name. Cuts come in order.
    pub(crate) fn play(&mut self, entries: usize, disk: Disk, random: &mut fastrand::Rng, name: &str) -> PathBuf {
        let flushed = self.entries[..entries].iter().rposition(|entry| entry.flags & FLUSH != 0).map_or(0, |f| f + 1);
        if disk == Disk::Honest {
            self.flush(flushed).expect("the durable image can be written");
        }
        let image = self.home.join(name);
        copy(&self.home.join("durable.raw"), &image);
        let file = File::options().write(true).open(&image).expect("it was copied");
        for entry in &self.entries[self.durable..entries] {
            let fate = if entry.flags & FUA != 0 && disk == Disk::Honest { 7 } else { random.u8(0..8) };
            match fate {
                0..4 => Ok(()),
                4..6 => self.apply(entry, &file, |_| true),
                6 => {
                    let piece = *random.choice(&[512, 4096]).expect("there are two");
                    let kept: Vec<_> = (0..=entry.bytes / piece).map(|_| random.bool()).collect();
                    self.apply(entry, &file, |at| kept[at / piece])
                }
                _ => self.apply(entry, &file, |_| true),
            }
            .expect("the image can be written");
        }
        image
    }

    fn flush(&mut self, upto: usize) -> io::Result<()> {
        let file = File::options().write(true).open(self.home.join("durable.raw"))?;
        for entry in self.entries.get(self.durable..upto).unwrap_or_default() {
            self.apply(entry, &file, |_| true)?;
        }
        self.durable = self.durable.max(upto);
        Ok(())
    }

    /// Writes the 512-byte sectors of an entry that are kept.
    fn apply(&self, entry: &Entry, image: &File, kept: impl Fn(usize) -> bool) -> io::Result<()> {
        let mut data = vec![0; entry.bytes];
        self.log.read_exact_at(&mut data, entry.from)?;
        if (0..entry.bytes).step_by(512).all(&kept) {
            return image.write_all_at(&data, entry.to);
        }
        for (n, sector) in data.chunks(512).enumerate().filter(|(n, _)| kept(n * 512)) {
            image.write_all_at(sector, entry.to + n as u64 * 512)?;
        }
        Ok(())
    }

    /// Repairs and mounts the image of a cut; none if the file system is beyond repair.
    pub(crate) fn mount(&self, image: &Path) -> Option<Mount> {
        let code = tool(&format!("e2fsck -fy {}", image.display()));
        // 1: errors were corrected. Without barriers, for this disk needs not survive another cut.
        (code < 4).then(|| Mount::new(image, self.home.join("cut"), ",barrier=0"))
    }
}

/// A new file, also where one is: mount takes a loop device that still has the file, with what it remembers of it.
fn copy(from: &Path, to: &Path) {
    if let Err(error) = fs::remove_file(to) {
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{}: {error}", to.display());
    }
    tool(&format!("cp --sparse=always --reflink=auto {} {}", from.display(), to.display()));
}
