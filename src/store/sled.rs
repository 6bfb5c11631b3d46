//! The only home of sled 0.34.7: [`SledKeyed`], a wrapper that makes it keep its word.
//!
//! - sled's `flush` writes and does not sync: every batch is followed by an `fdatasync` of `db` through a handle of ours.
//! - Leaf pages above a quarter of the segment go to blob files that are never synced. Segments are 4 MiB, and a value
//!   above 47 KiB is split into chunks, so that no page gets there; `blobs/` is checked to be empty.
//! - An error poisons a sled handle: it is dropped, and the next batch opens another.
//! - sled may panic on damage. Then `snap.*` is put aside and the open tried once more; then the directory is put aside as
//!   `sled.corrupt-<n>` (two are kept) and a new store begins, loudly: the log fills it as far as it reaches. What can
//!   be read of a damaged store is carried over.
//! - Damage in the segment that sled writes makes it come up with an older state, without a word. The checkpoint's
//!   position lies in the same batches, and the log begins above it then: the store sees it.
//! - sled cannot be opened on a full disk: 16 MiB lie in `ballast` for that moment.
//!
//! A key on disk is the key and the index of its chunk (u16, big-endian). Its value is a version (1), the number of
//! chunks (u16, little-endian), the chunk, and a CRC-32C of key and value so far.
//!
//! It does not shrink the file: sled reuses free segments, and never returns them.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::sled::{Config, Db, Mode};
use rustix::fs::{FlockOperation, flock};
use tracing::{error, info, warn};

use super::ballast::Ballast;
use super::codec::Reader;
use super::disk::{Disk, RealDisk};
use super::keyed::{Batch, CHECKPOINT, Keyed, KeyedError, Loaded};

/// Bytes of a value in one entry of sled. With its frame it stays below 48 KiB; the leaf limit is about 60 KiB.
const CHUNK_BYTES: usize = 47 << 10;

const CACHE_BYTES: u64 = 8 << 20;
const SEGMENT_BYTES: usize = 4 << 20;
const BALLAST_BYTES: u64 = 4 * SEGMENT_BYTES as u64;
const CORRUPT_KEPT: usize = 2;
const RELEASE_TRIES_MAX: u32 = 500;
const RELEASE_PAUSE: Duration = Duration::from_millis(10);
const VALUE_VERSION: u8 = 1;

/// A keyed store in a directory of its own.
pub struct SledKeyed {
    dir: PathBuf,
    handle: Option<Handle>,
    /// Number of chunks of the keys that have more than one.
    chunks: HashMap<Vec<u8>, u16>,
    /// Checkpoints that the store may come up with: that of the last batch, and that of one which failed.
    checkpoints: Vec<Option<Vec<u8>>>,
}

impl SledKeyed {
    /// The store in `dir`; nothing is touched before [`Keyed::load`].
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), handle: None, chunks: HashMap::new(), checkpoints: Vec::new() }
    }

    /// Opens and reads; what sled cannot read is put aside.
    fn open_any(&mut self) -> Result<(Handle, Scan), SledError> {
        match Handle::open(&self.dir).and_then(|handle| Ok((handle.scan()?, handle))) {
            Ok((scan, handle)) if scan.holes == 0 => Ok((handle, scan)),
            Ok((scan, handle)) => {
                error!(
                    holes = scan.holes,
                    "the keyed store cannot be read in places; what can be read is carried over"
                );
                drop(handle);
                self.start_anew(scan)
            }
            Err(cause) if cause.is_damage() => {
                error!(error = %cause, "the keyed store cannot be opened; it is rebuilt from the log");
                self.start_anew(Scan { holes: 1, ..Scan::default() })
            }
            Err(cause) => Err(cause),
        }
    }

    fn start_anew(&mut self, scan: Scan) -> Result<(Handle, Scan), SledError> {
        quarantine(&self.dir)?;
        let handle = Handle::open(&self.dir)?;
        self.chunks.clear();
        let entries = scan.entries.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
        let batch = self.physical(&handle, &Batch { entries, ..Batch::default() })?;
        handle.apply(batch)?;
        Ok((handle, scan))
    }

    /// The batch as sled's, with chunks, and with the removal of chunks that are no more.
    fn physical(&mut self, handle: &Handle, batch: &Batch) -> Result<::sled::Batch, SledError> {
        let mut out = ::sled::Batch::default();
        for (from, to) in &batch.cleared {
            for key in handle.db.range(from.as_slice()..to.as_slice()).keys() {
                out.remove(key.map_err(SledError::sled("read"))?);
            }
            self.chunks.retain(|key, _| !(from..to).contains(&key));
        }
        for (key, value) in &batch.entries {
            let before = self.chunks.remove(key).unwrap_or(1);
            let now = value.as_ref().map_or(0, |value| put(&mut out, key, value));
            (now..before).for_each(|index| out.remove(chunk_key(key, index)));
            if now > 1 {
                self.chunks.insert(key.clone(), now);
            }
        }
        Ok(out)
    }

    fn try_apply(&mut self, batch: &Batch) -> Result<(), SledError> {
        let handle = match self.handle.take() {
            Some(handle) => handle,
            None => self.reopen()?,
        };
        let physical = self.physical(&handle, batch)?;
        if let Some(checkpoint) = batch.entries.get(CHECKPOINT) {
            self.checkpoints.push(checkpoint.clone());
        }
        handle.apply(physical)?;
        self.checkpoints.drain(..self.checkpoints.len().saturating_sub(1));
        self.handle = Some(handle);
        Ok(())
    }

    /// After an error: the store as it is, for the pending batch holds what it lacks. But only since the last checkpoint:
    /// a store that lost more must not be marked as whole, or nobody will ever know.
    fn reopen(&mut self) -> Result<Handle, SledError> {
        let handle = Handle::open(&self.dir)?;
        let scan = handle.scan()?;
        let found = scan.entries.get(CHECKPOINT).cloned();
        if scan.holes + scan.bad_values > 0 || !self.checkpoints.contains(&found) {
            return Err(SledError::Lost);
        }
        self.chunks = scan.chunks;
        self.checkpoints = vec![found];
        info!("the keyed store is open again");
        Ok(handle)
    }
}

impl Keyed for SledKeyed {
    fn load(&mut self) -> Result<Loaded, KeyedError> {
        self.handle = None;
        let (handle, scan) = self.open_any()?;
        sync_tree(&self.dir).map_err(SledError::io("sync", &self.dir))?;
        self.handle = Some(handle);
        self.chunks = scan.chunks;
        self.checkpoints = vec![scan.entries.get(CHECKPOINT).cloned()];
        Ok(Loaded { entries: scan.entries.into_iter().collect(), damages: scan.holes + scan.bad_values })
    }

    fn apply(&mut self, batch: &Batch) -> Result<(), KeyedError> {
        Ok(self.try_apply(batch)?)
    }
}

/// sled, open, with a handle on its file that can sync.
struct Handle {
    db: Db,
    file: File,
    blobs: PathBuf,
}

impl Handle {
    fn open(dir: &Path) -> Result<Self, SledError> {
        fs::create_dir_all(dir).map_err(SledError::io("create", dir))?;
        drop_snapshots(dir, |name| name.ends_with(".generating"), Fate::Removed)?;
        wait_for_release(&dir.join("db"));
        let mut ballast = Ballast::new(Arc::new(RealDisk), dir.with_file_name("ballast"), BALLAST_BYTES);
        ballast.give_way();
        let mut opened = guarded("open", || Self::config(dir).open());
        if opened.as_ref().is_err_and(SledError::is_damage) {
            warn!("the keyed store does not open; its snapshot is put aside");
            drop_snapshots(dir, |_| true, Fate::Aside)?;
            opened = guarded("open", || Self::config(dir).open());
        }
        ballast.restore();
        let path = dir.join("db");
        let file = File::open(&path).map_err(SledError::io("open", &path))?;
        Ok(Self { db: opened?, file, blobs: dir.join("blobs") })
    }

    fn config(dir: &Path) -> Config {
        Config::new()
            .path(dir)
            .cache_capacity(CACHE_BYTES)
            .segment_size(SEGMENT_BYTES)
            .mode(Mode::LowSpace)
            .flush_every_ms(None)
            .use_compression(false)
    }

    fn apply(&self, batch: ::sled::Batch) -> Result<(), SledError> {
        guarded("write", || {
            self.db.apply_batch(batch)?;
            self.db.flush().map(drop)
        })?;
        self.file.sync_data().map_err(SledError::io("sync", &self.blobs.with_file_name("db")))?;
        let blobs = fs::read_dir(&self.blobs).map_or(0, Iterator::count);
        if blobs > 0 {
            error!(blobs, "sled wrote blob files, which its own flush does not sync");
            sync_tree(&self.blobs).map_err(SledError::io("sync", &self.blobs))?;
        }
        Ok(())
    }

    fn scan(&self) -> Result<Scan, SledError> {
        catch_unwind(AssertUnwindSafe(|| Scan::run(&self.db)))
            .unwrap_or_else(|_panic| Err(SledError::Panic { doing: "read" }))
    }
}

/// All that could be read.
#[derive(Default)]
struct Scan {
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    chunks: HashMap<Vec<u8>, u16>,
    /// Places that sled could not read.
    holes: usize,
    /// Values whose own checksum fails, or that lack a chunk.
    bad_values: usize,
}

impl Scan {
    fn run(db: &Db) -> Result<Self, SledError> {
        let mut scan = Self::default();
        let mut split = BTreeMap::<Vec<u8>, Vec<Vec<u8>>>::new();
        let mut from = Some(Vec::new());
        while let Some(start) = from.take() {
            let mut last = start.clone();
            for item in db.range(start..) {
                let Ok((key, value)) = item else {
                    scan.holes += 1;
                    from = beyond(db, &last);
                    break;
                };
                last = key.to_vec();
                scan.entry(&key, &value, &mut split)?;
            }
        }
        for (key, pieces) in split {
            if scan.chunks.get(&key).is_some_and(|chunks| usize::from(*chunks) == pieces.len()) {
                scan.entries.insert(key, pieces.concat());
            } else {
                scan.bad_values += 1;
            }
        }
        Ok(scan)
    }

    fn entry(
        &mut self,
        key: &[u8],
        value: &[u8],
        split: &mut BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    ) -> Result<(), SledError> {
        let Some((chunks, payload)) = open_value(key, value)? else {
            self.bad_values += 1;
            return Ok(());
        };
        let name = key.split_last_chunk::<2>().map_or(key, |(name, _)| name).to_vec();
        if chunks == 1 {
            self.entries.insert(name, payload.to_vec());
        } else {
            self.chunks.insert(name.clone(), chunks);
            split.entry(name).or_default().push(payload.to_vec());
        }
        Ok(())
    }
}

/// Where a scan goes on that met an error behind `last`: at the nearest start from which sled reads on.
fn beyond(db: &Db, last: &[u8]) -> Option<Vec<u8>> {
    let longer = (1..=last.len()).rev().filter_map(|length| {
        let (byte, head) = last.get(..length)?.split_last()?;
        Some([head, &[byte.checked_add(1)?]].concat())
    });
    let families = [b"c/", b"l/", b"m/", b"s/"].into_iter().map(|start| start.to_vec());
    let mut starts = longer.chain(families.filter(|start| start.as_slice() > last));
    starts.find(|start| matches!(db.range(start.as_slice()..).next(), Some(Ok(_))))
}

/// Adds the chunks of a value to a batch, and returns their number.
fn put(out: &mut ::sled::Batch, key: &[u8], value: &[u8]) -> u16 {
    let pieces: Vec<&[u8]> = if value.is_empty() { vec![value] } else { value.chunks(CHUNK_BYTES).collect() };
    // A value comes out of a log segment of 4 MiB: it has fewer than 100 chunks.
    let count = u16::try_from(pieces.len()).unwrap_or(u16::MAX);
    for (index, piece) in (0..count).zip(pieces) {
        let key = chunk_key(key, index);
        let mut sealed = Vec::with_capacity(piece.len() + 7);
        sealed.push(VALUE_VERSION);
        sealed.extend(count.to_le_bytes());
        sealed.extend(piece);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&key), &sealed);
        sealed.extend(crc.to_le_bytes());
        out.insert(key, sealed);
    }
    count
}

/// Number of chunks and content of an entry; none if its checksum fails.
fn open_value<'a>(key: &[u8], value: &'a [u8]) -> Result<Option<(u16, &'a [u8])>, SledError> {
    let Some((sealed, crc)) = value.split_last_chunk::<4>() else { return Ok(None) };
    if crc32c::crc32c_append(crc32c::crc32c(key), sealed) != u32::from_le_bytes(*crc) {
        return Ok(None);
    }
    let mut reader = Reader(sealed);
    match reader.u8() {
        Some(VALUE_VERSION) => Ok(reader.u16().map(|chunks| (chunks, reader.0))),
        Some(version) => Err(SledError::Newer { version }),
        None => Ok(None),
    }
}

fn chunk_key(key: &[u8], index: u16) -> Vec<u8> {
    [key, &index.to_be_bytes()].concat()
}

/// Threads of a handle that was dropped may hold sled's lock for a moment. Nobody else does: the store has a lock of its
/// own. If it stays, the open says so.
fn wait_for_release(db: &Path) {
    let Ok(file) = File::open(db) else { return };
    for _ in 0..RELEASE_TRIES_MAX {
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return;
        }
        std::thread::sleep(RELEASE_PAUSE);
    }
}

/// Runs a call of sled, which may panic on damage.
fn guarded<T>(doing: &'static str, call: impl FnOnce() -> ::sled::Result<T>) -> Result<T, SledError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(outcome) => outcome.map_err(SledError::sled(doing)),
        Err(_panic) => Err(SledError::Panic { doing }),
    }
}

#[derive(Clone, Copy)]
enum Fate {
    Removed,
    Aside,
}

/// Snapshots speed up an open and hold nothing else: sled does without them.
fn drop_snapshots(dir: &Path, which: impl Fn(&str) -> bool, fate: Fate) -> Result<(), SledError> {
    for name in RealDisk.list(dir).map_err(SledError::io("list", dir))? {
        if name.starts_with("snap.") && which(&name) {
            let path = dir.join(&name);
            let done = match fate {
                Fate::Removed => fs::remove_file(&path),
                Fate::Aside => fs::rename(&path, dir.join(format!("aside-{name}"))),
            };
            done.map_err(SledError::io("put aside", &path))?;
        }
    }
    Ok(())
}

/// Puts the directory aside under the next free number, and removes all but the newest few.
fn quarantine(dir: &Path) -> Result<(), SledError> {
    let parent = dir.parent().unwrap_or(dir);
    let names = RealDisk.list(parent).map_err(SledError::io("list", parent))?;
    let number = |name: &String| name.strip_prefix("sled.corrupt-").and_then(|number| number.parse::<u64>().ok());
    let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    let path = |number: u64| parent.join(format!("sled.corrupt-{number}"));
    let next = numbers.last().map_or(1, |number| number + 1);
    for old in numbers.iter().rev().skip(CORRUPT_KEPT - 1) {
        let old = path(*old);
        fs::remove_dir_all(&old).map_err(SledError::io("remove", &old))?;
    }
    fs::rename(dir, path(next)).map_err(SledError::io("put aside", dir))?;
    error!(path = %path(next).display(), "a damaged keyed store is put aside");
    RealDisk.sync_dir(parent).map_err(SledError::io("sync", parent))
}

/// sled syncs nothing when it creates its files.
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    RealDisk.sync_dir(dir)?;
    dir.parent().map_or(Ok(()), |parent| RealDisk.sync_dir(parent))
}

/// Why sled did not do it.
#[derive(Debug, thiserror::Error)]
enum SledError {
    #[error("cannot {doing} sled")]
    Sled {
        doing: &'static str,
        #[source]
        source: ::sled::Error,
    },
    #[error("sled panicked during {doing}")]
    Panic { doing: &'static str },
    #[error("cannot {doing} {path}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("values have version {version}, this release knows {VALUE_VERSION}; install the release that wrote them")]
    Newer { version: u8 },
    #[error(
        "the keyed store came up without what it had; restart the daemon, which rebuilds it and tells what is lost"
    )]
    Lost,
}

impl SledError {
    fn sled(doing: &'static str) -> impl Fn(::sled::Error) -> Self {
        move |source| Self::Sled { doing, source }
    }

    fn io(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { doing, path: path.clone(), source }
    }

    /// True if the files are damaged; false if the disk, a lock or the rights are in the way.
    fn is_damage(&self) -> bool {
        match self {
            Self::Sled { source: ::sled::Error::Io(source), .. } => {
                matches!(source.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput)
            }
            Self::Panic { .. } | Self::Sled { .. } => true,
            Self::Io { .. } | Self::Newer { .. } | Self::Lost => false,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;

    fn entries(count: usize) -> Batch {
        let entry = |n: usize| (format!("s/key{n:03}").into_bytes(), Some(vec![n as u8; n * 20_000]));
        Batch { entries: (0..count).map(entry).collect(), ..Batch::default() }
    }

    #[test]
    fn a_value_whose_checksum_fails_is_counted_and_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let mut keyed = SledKeyed::new(&dir.path().join("sled"));
        keyed.load().unwrap();
        keyed.apply(&entries(5)).unwrap();
        let db = &keyed.handle.as_ref().unwrap().db;
        let sealed = db.get(chunk_key(b"s/key001", 0)).unwrap().unwrap();
        // The value of another key, and a chunk that is gone.
        db.insert(chunk_key(b"s/key002", 0), sealed).unwrap();
        db.remove(chunk_key(b"s/key004", 1)).unwrap();
        let loaded = keyed.load().unwrap();
        assert_eq!(loaded.damages, 2);
        let names: Vec<_> = loaded.entries.into_iter().map(|(key, _)| key).collect();
        assert_eq!(names, [b"s/key000", b"s/key001", b"s/key003"]);
    }

    #[test]
    fn what_could_be_read_is_carried_over_to_a_new_store() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sled");
        let mut keyed = SledKeyed::new(&path);
        keyed.load().unwrap();
        keyed.apply(&entries(6)).unwrap();
        let before = keyed.load().unwrap();
        let scan = keyed.handle.take().unwrap().scan().unwrap();
        let (handle, _) = keyed.start_anew(scan).unwrap();
        drop(handle);
        assert!(dir.path().join("sled.corrupt-1").is_dir());
        assert_eq!(keyed.load().unwrap(), before);
    }

    #[test]
    fn two_damaged_stores_are_kept_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sled");
        for _ in 0..4 {
            fs::create_dir(&path).unwrap();
            quarantine(&path).unwrap();
        }
        let mut names = RealDisk.list(dir.path()).unwrap();
        names.sort();
        assert_eq!(names, ["sled.corrupt-3", "sled.corrupt-4"]);
    }

    #[test]
    fn a_handle_that_failed_is_replaced_by_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut keyed = SledKeyed::new(&dir.path().join("sled"));
        keyed.load().unwrap();
        keyed.apply(&entries(4)).unwrap();
        keyed.handle = None;
        keyed.apply(&Batch { entries: [(b"s/key003".to_vec(), None)].into(), ..Batch::default() }).unwrap();
        assert_eq!(keyed.load().unwrap().entries.len(), 3, "chunks of the last handle are known");
    }

    #[test]
    fn a_store_that_comes_up_without_its_last_checkpoint_is_not_marked_as_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("sled"), dir.path().join("copy"));
        let checkpoint = |n: u8| {
            let entries = [(CHECKPOINT.to_vec(), Some(vec![n])), (vec![b's', b'/', n], Some(vec![n]))];
            Batch { entries: entries.into(), ..Batch::default() }
        };
        let mut keyed = SledKeyed::new(&path);
        keyed.load().unwrap();
        keyed.apply(&checkpoint(1)).unwrap();
        keyed.handle = None;
        wait_for_release(&path.join("db"));
        fs::create_dir(&copy).unwrap();
        for name in ["db", "conf"] {
            fs::copy(path.join(name), copy.join(name)).unwrap();
        }
        keyed.apply(&checkpoint(2)).unwrap();
        keyed.handle = None;
        wait_for_release(&path.join("db"));
        fs::remove_dir_all(&path).unwrap();
        fs::rename(&copy, &path).unwrap();
        let refusal = keyed.apply(&checkpoint(3)).unwrap_err();
        assert!(refusal.to_string().contains("restart"), "{refusal}");
        assert!(keyed.load().unwrap().entries.iter().any(|(key, value)| key == CHECKPOINT && value == &[1]));
    }

    #[test]
    fn a_full_disk_or_a_lock_is_no_damage() {
        let io = |kind: ErrorKind| SledError::sled("open")(::sled::Error::Io(kind.into()));
        for kind in [ErrorKind::StorageFull, ErrorKind::PermissionDenied, ErrorKind::Other] {
            assert!(!io(kind).is_damage(), "{kind}");
        }
        assert!(io(ErrorKind::UnexpectedEof).is_damage());
        assert!(SledError::Panic { doing: "open" }.is_damage());
    }
}
