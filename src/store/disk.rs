//! The seam to the file system: everything that the log and the identity do with files goes through [`Disk`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FallocateFlags, FlockOperation, fadvise, fallocate, flock, statvfs};

use super::StoreError;

/// The operations on files that the store needs. A name is on disk only after [`Disk::sync_dir`] of its directory,
/// content only after [`DiskFile::fdatasync`].
pub trait Disk: Send + Sync {
    /// Creates a directory and its parents, durably; does nothing if it is there.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Names of the files in a directory, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// The whole content of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// At most `length` bytes of a file from `offset` on, from the medium if the system allows it; none behind the end.
    fn read_back(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// A new file for writing; one that is there is emptied.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// A file of this size whose space is taken, whatever its content; one that is there is replaced.
    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()>;

    /// A file that is there, for writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Gives a file another name in the same directory; replaces what has that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Bytes that an ordinary user may still write on the file system of `path`.
    fn free_space(&self, path: &Path) -> io::Result<u64>;
}

/// A file that is open for writing.
pub trait DiskFile: Send {
    /// Writes all of `bytes` at `offset`.
    fn pwrite(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written durable. After an error nothing is known of it, and a second call proves nothing.
    fn fdatasync(&mut self) -> io::Result<()>;

    /// Length in bytes.
    fn length(&self) -> io::Result<u64>;
}

/// Writes a small file so that a power cut leaves the old or the new content: write, sync, rename, sync directory.
pub(super) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let draft = path.with_extension("new");
    let doing = |doing| StoreError::io(doing, path);
    let mut file = disk.create(&draft).map_err(doing("create"))?;
    file.pwrite(0, bytes).map_err(doing("write"))?;
    file.fdatasync().map_err(doing("sync"))?;
    drop(file);
    disk.rename(&draft, path).map_err(doing("rename"))?;
    disk.sync_dir(path.parent().unwrap_or(path)).map_err(doing("sync the directory of"))
}

/// The file system itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            self.create_dir(parent)?;
        }
        match fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) | Ok(()) => {}
        }
        self.sync_dir(parent.unwrap_or(Path::new(".")))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn read_back(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        // Pages that are clean are dropped, so that the read goes to the medium; if they stay it is a weaker proof.
        fadvise(&file, offset, NonZeroU64::new(length as u64), Advice::DontNeed).unwrap_or_default();
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::with_capacity(length);
        file.take(length as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        Ok(fallocate(File::create(path)?, FallocateFlags::empty(), 0, bytes)?)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(OpenOptions::new().write(true).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        let stat = statvfs(path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn pwrite(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn fdatasync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// The right to a store directory, until it is dropped. The kernel frees it also when the process is killed.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of the store in `dir`, which exists.
    pub(super) fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("LOCK");
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(StoreError::io("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::Locked { dir: PathBuf::from(dir) }),
            Err(error) => Err(StoreError::io("lock", &path)(error.into())),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_on_a_directory_is_refused_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path()).unwrap();
        let refusal = Lock::take(dir.path()).unwrap_err();
        assert!(matches!(&refusal, StoreError::Locked { .. }), "{refusal}");
        assert!(refusal.to_string().contains("gateway.data_dir"), "{refusal}");
        drop(first);
        Lock::take(dir.path()).unwrap();
    }

    #[test]
    fn a_replaced_file_has_the_new_content_and_no_draft_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/a");
        RealDisk.create_dir(path.parent().unwrap()).unwrap();
        replace(&RealDisk, &path, b"old").unwrap();
        replace(&RealDisk, &path, b"new").unwrap();
        assert_eq!(RealDisk.read(&path).unwrap(), b"new");
        assert_eq!(RealDisk.list(path.parent().unwrap()).unwrap(), ["a"]);
        assert_eq!(RealDisk.read_back(&path, 1, 9).unwrap(), b"ew");
        assert_eq!(RealDisk.read_back(&path, 3, 9).unwrap(), b"");
        assert!(RealDisk.free_space(&path).unwrap() > 0);
    }
}
