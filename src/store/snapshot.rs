//! `state.snap`: a full image of the keyed store, from which that can be built anew.
//!
//! It is written from RAM to a draft, `state.new`, in slices of 256 KiB that are synced one by one, so that whoever
//! commits between two of them waits for one slice at most. Then the draft is read back in slices, past the page cache
//! where the system allows it, and compared; only then it gets its name, and the directory is synced. So a snapshot that
//! has its name is whole, and until then the one before it is in force.
//!
//! Little-endian:
//!
//! | at | header (64 bytes) | | at | entry, in any number | | at | trailer (14 bytes) |
//! |---|---|---|---|---|---|---|---|
//! | 0 | `TGSNAP` | | 0 | length of the key u16, at most 512 | | 0 | 0xffff u16 |
//! | 6 | version u16 (1) | | 2 | length of the value u32 | | 2 | number of entries u64 |
//! | 8 | lsn u64: all frames up to and including it are in it | | 6 | CRC-32C u32 over its offset in the file u64, bytes 0..6, key and value | | 10 | CRC-32C u32 of the whole file before |
//! | 16 | highest Seq u64 up to there | | 10 | key, value | | | |
//! | 24 | zeros | | | | | | |
//! | 60 | CRC-32C u32 of bytes 0..60 | | | | | | |
//!
//! Keys and values are those of the keyed store, see `keyed`; the order of entries means nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::info;

use super::StoreError;
use super::codec::Reader;
use super::disk::{Disk, DiskFile};
use super::keyed::{Checkpoint, Entry, Image, Loaded};
use super::log::Log;
use crate::model::{Lane, Lsn, Record, Seq};

/// The format that this release reads and writes.
const VERSION: u16 = 1;

/// Segments of log between two snapshots.
const SEGMENTS_BETWEEN: u64 = 16;

/// Slices of a snapshot in a segment's size.
const SLICES_IN_SEGMENT: u32 = 16;

const MAGIC: &[u8; 6] = b"TGSNAP";
const HEADER_BYTES: usize = 64;
const HEADER_CRC_AT: usize = HEADER_BYTES - 4;
const KEY_BYTES_MAX: usize = 512;
const END: u16 = 0xffff;

/// What all commits amount to, for a snapshot. Cheap: records share their bodies with those of the queue.
#[derive(Debug, Clone, Default)]
pub struct StateImage {
    /// Newest record per key of lanes state and alert, also tombstones.
    pub newest: Vec<Record>,
    /// Records of lanes alert and event that are not trimmed.
    pub lane_records: Vec<Record>,
    /// Each sink's position in a lane: acknowledged up to and including.
    pub cursors: Vec<(Arc<str>, Lane, Seq)>,
    /// Per lane: trimmed up to and including, tombstones forgotten up to and including.
    pub floors: Vec<(Lane, Seq, Seq)>,
}

/// The snapshot that holds, and the one under way.
pub(super) struct Snapshots {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// Log bytes between two of them.
    every: u64,
    slice_bytes: usize,
    /// Where the log's total stands when the next one is due.
    due_at: u64,
    /// And where it stands at least, after an error.
    not_before: u64,
    /// Frames up to and including this one are in a snapshot that is whole and durable.
    pub(super) held: Lsn,
    pub(super) draft: Option<Draft>,
}

impl Snapshots {
    /// `held` is the position of the snapshot at `path`, if it is whole. Without one the next is due at once, unless the
    /// log goes back to the beginning.
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        path: PathBuf,
        segment_bytes: u32,
        held: Option<Lsn>,
        base: &Image,
        log: &Log,
    ) -> Self {
        let every = u64::from(segment_bytes) * SEGMENTS_BETWEEN;
        let is_overdue = held.is_none() && base.checkpoint.lsn > Lsn::ZERO;
        let held = held.unwrap_or_default();
        let due_at = if is_overdue { 0 } else { log.total_at(held) + every };
        let slice_bytes = (segment_bytes / SLICES_IN_SEGMENT) as usize;
        Self { disk, path, every, slice_bytes, due_at, not_before: 0, held, draft: None }
    }

    /// True if the next one is due when the newest frame is `at` and the log's total `total`. On a tight disk it is due
    /// after an eighth of the way, so that the log never grows into the last of the space.
    pub(super) fn is_due(&self, at: Lsn, total: u64, is_tight: bool) -> bool {
        let early = if is_tight { self.every / 8 * 7 } else { 0 };
        self.draft.is_none() && at > self.held && total + early >= self.due_at && total >= self.not_before
    }

    /// Begins one of the entries as they are at a position.
    pub(super) fn begin(&mut self, at: Checkpoint, total: u64, entries: impl Iterator<Item = Entry> + Send + 'static) {
        self.due_at = total + self.every;
        self.draft = Some(Draft::new(Arc::clone(&self.disk), &self.path, self.slice_bytes, at, entries));
    }

    /// Does the next bit of work; true while there is more to do.
    pub(super) fn step(&mut self, total: u64) -> Result<bool, StoreError> {
        let Some(draft) = self.draft.as_mut() else { return Ok(false) };
        match draft.step() {
            Ok(None) => return Ok(true),
            Ok(Some(at)) => {
                info!(lsn = %at.lsn, bytes = draft.written.offset, "snapshot written");
                self.held = at.lsn;
                self.draft = None;
            }
            Err(cause) => {
                self.draft = None;
                remove_draft(&*self.disk, &self.path);
                self.postpone(total);
                return Err(cause);
            }
        }
        Ok(false)
    }

    /// After an error.
    pub(super) fn postpone(&mut self, total: u64) {
        self.not_before = total + self.every / 8;
        self.due_at = self.not_before;
    }
}

/// A snapshot that is being written.
pub(super) struct Draft {
    at: Checkpoint,
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// A slice ends with the entry that fills it.
    slice_bytes: usize,
    entries: Box<dyn Iterator<Item = Entry> + Send>,
    written: Written,
    stage: Stage,
}

impl Draft {
    /// A snapshot at `path` of the entries as they are at a position. Nothing is written before [`Self::step`].
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        path: &Path,
        slice_bytes: usize,
        at: Checkpoint,
        entries: impl Iterator<Item = Entry> + Send + 'static,
    ) -> Self {
        let (entries, written) = (Box::new(entries), Written::default());
        Self { at, disk, path: path.to_owned(), slice_bytes, entries, written, stage: Stage::Create }
    }

    /// Does the next bit of work, and returns the position once the snapshot has its name. After an error it must be
    /// dropped; the snapshot before it is in force then, or this one.
    pub(super) fn step(&mut self) -> Result<Option<Checkpoint>, StoreError> {
        let draft = draft(&self.path);
        let doing = |doing| StoreError::io(doing, &draft);
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Create => {
                let file = self.disk.create(&draft).map_err(doing("create"))?;
                self.written.header(self.at);
                Stage::Write(file)
            }
            Stage::Write(mut file) => {
                let more = self.written.fill(&mut self.entries, self.slice_bytes);
                self.written.flush(&mut *file).map_err(doing("write"))?;
                if more { Stage::Write(file) } else { Stage::Compare { offset: 0, crc: 0 } }
            }
            Stage::Compare { offset, crc } => {
                let slice = self.disk.read_back(&draft, offset, self.slice_bytes).map_err(doing("read back"))?;
                let (offset, crc) = (offset + slice.len() as u64, crc32c::crc32c_append(crc, &slice));
                match slice.is_empty() {
                    false => Stage::Compare { offset, crc },
                    true if (offset, crc) == (self.written.offset, self.written.crc) => Stage::Name,
                    true => {
                        let source = io::Error::new(io::ErrorKind::InvalidData, "it is not what was written");
                        return Err(doing("verify")(source));
                    }
                }
            }
            Stage::Name => {
                self.disk.rename(&draft, &self.path).map_err(doing("rename"))?;
                let dir = self.path.parent().unwrap_or(&self.path);
                self.disk.sync_dir(dir).map_err(doing("sync the directory of"))?;
                return Ok(Some(self.at));
            }
            Stage::Done => return Ok(None),
        };
        Ok(None)
    }
}

/// What lies under a snapshot's name.
pub(super) enum Found {
    Nothing,
    /// Not even its header can be read.
    Damaged,
    /// Some of it can be read; `damages` of `loaded` is zero if all of it can.
    Snapshot {
        at: Checkpoint,
        loaded: Loaded,
    },
}

/// Reads the snapshot at `path`; a draft beside it is removed.
pub(super) fn read(disk: &dyn Disk, path: &Path) -> Result<Found, StoreError> {
    remove_draft(disk, path);
    match disk.read(path) {
        Ok(bytes) => decode(&bytes, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(StoreError::io("read", path)(error)),
        Err(_) => Ok(Found::Damaged),
    }
}

/// Removes what a snapshot that was not finished has left; if that fails, the next one writes over it.
pub(super) fn remove_draft(disk: &dyn Disk, path: &Path) {
    drop(disk.remove(&draft(path)));
}

enum Stage {
    Create,
    Write(Box<dyn DiskFile>),
    /// So much was read back, with this checksum.
    Compare {
        offset: u64,
        crc: u32,
    },
    Name,
    Done,
}

/// What was written so far.
#[derive(Default)]
struct Written {
    buffer: Vec<u8>,
    offset: u64,
    crc: u32,
    count: u64,
}

impl Written {
    fn header(&mut self, at: Checkpoint) {
        self.buffer.extend(MAGIC);
        self.buffer.extend(VERSION.to_le_bytes());
        self.buffer.extend(at.lsn.0.to_le_bytes());
        self.buffer.extend(at.seq.0.to_le_bytes());
        self.buffer.resize(HEADER_CRC_AT, 0);
        let crc = crc32c::crc32c(&self.buffer);
        self.buffer.extend(crc.to_le_bytes());
    }

    /// Fills the buffer; false if that was the end.
    fn fill(&mut self, entries: &mut dyn Iterator<Item = Entry>, slice_bytes: usize) -> bool {
        while self.buffer.len() < slice_bytes {
            let Some((key, value)) = entries.next() else {
                self.trailer();
                return false;
            };
            let offset = self.offset + self.buffer.len() as u64;
            encode_entry(&mut self.buffer, offset, &key, &value);
            self.count += 1;
        }
        true
    }

    fn trailer(&mut self) {
        self.buffer.extend(END.to_le_bytes());
        self.buffer.extend(self.count.to_le_bytes());
        let crc = crc32c::crc32c_append(self.crc, &self.buffer);
        self.buffer.extend(crc.to_le_bytes());
    }

    fn flush(&mut self, file: &mut dyn DiskFile) -> io::Result<()> {
        file.pwrite(self.offset, &self.buffer)?;
        file.fdatasync()?;
        self.offset += self.buffer.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, &self.buffer);
        self.buffer.clear();
        Ok(())
    }
}

fn draft(path: &Path) -> PathBuf {
    path.with_extension("new")
}

fn encode_entry(out: &mut Vec<u8>, offset: u64, key: &[u8], value: &[u8]) {
    // Keys have at most 512 bytes, and a value comes out of a log segment of 4 MiB.
    let key_length = u16::try_from(key.len()).unwrap_or(END).to_le_bytes();
    let value_length = u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes();
    let crc = checksum(offset, &[&key_length, &value_length, key, value]);
    out.extend(key_length);
    out.extend(value_length);
    out.extend(crc.to_le_bytes());
    out.extend(key);
    out.extend(value);
}

fn checksum(offset: u64, parts: &[&[u8]]) -> u32 {
    let seed = crc32c::crc32c(&offset.to_le_bytes());
    parts.iter().fold(seed, |crc, part| crc32c::crc32c_append(crc, part))
}

fn decode(bytes: &[u8], path: &Path) -> Result<Found, StoreError> {
    let Some((version, at)) = decode_header(bytes) else { return Ok(Found::Damaged) };
    if version > VERSION {
        return Err(StoreError::NewerFormat { path: path.to_owned(), found: version.into(), known: VERSION.into() });
    }
    let mut loaded = Loaded::default();
    let mut reader = Reader(bytes.get(HEADER_BYTES..).unwrap_or_default());
    loop {
        let offset = bytes.len() - reader.0.len();
        match decode_entry(&mut reader, offset as u64) {
            Some(Piece::Entry(entry)) => loaded.entries.push(entry),
            Some(Piece::Flawed) => loaded.damages += 1,
            Some(Piece::End { count, crc }) => {
                let is_whole = reader.0.is_empty()
                    && count == (loaded.entries.len() + loaded.damages) as u64
                    && crc == crc32c::crc32c(bytes.get(..offset + 10).unwrap_or_default());
                // The checksum of the file also fails for each flaw in it.
                loaded.damages += usize::from(!is_whole && loaded.damages == 0);
                return Ok(Found::Snapshot { at, loaded });
            }
            None => {
                loaded.damages += 1;
                return Ok(Found::Snapshot { at, loaded });
            }
        }
    }
}

fn decode_header(bytes: &[u8]) -> Option<(u16, Checkpoint)> {
    let (body, crc) = bytes.get(..HEADER_BYTES)?.split_at_checked(HEADER_CRC_AT)?;
    if Reader(crc).u32()? != crc32c::crc32c(body) {
        return None;
    }
    let mut reader = Reader(body);
    if reader.array::<6>()? != *MAGIC {
        return None;
    }
    Some((reader.u16()?, Checkpoint { lsn: Lsn(reader.u64()?), seq: Seq(reader.u64()?) }))
}

enum Piece {
    Entry(Entry),
    /// Its checksum fails, and its lengths lead on, perhaps to nonsense.
    Flawed,
    End {
        count: u64,
        crc: u32,
    },
}

/// None if the bytes end or the lengths are nonsense.
fn decode_entry(reader: &mut Reader<'_>, offset: u64) -> Option<Piece> {
    let key_length = reader.u16()?;
    if key_length == END {
        return Some(Piece::End { count: reader.u64()?, crc: reader.u32()? });
    }
    let value_length = reader.u32()?;
    let crc = reader.u32()?;
    if usize::from(key_length) > KEY_BYTES_MAX {
        return None;
    }
    let (key, value) = (reader.take(key_length.into())?, reader.take(usize::try_from(value_length).ok()?)?);
    let expected = checksum(offset, &[&key_length.to_le_bytes(), &value_length.to_le_bytes(), key, value]);
    Some(if crc == expected { Piece::Entry((key.to_vec(), value.to_vec())) } else { Piece::Flawed })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::sim::SimDisk;

    const AT: Checkpoint = Checkpoint { lsn: Lsn(5), seq: Seq(1_793_491_200_000_000) };

    const SLICE: usize = 4 << 10;

    fn path() -> &'static Path {
        Path::new("store/state.snap")
    }

    /// Writes a snapshot, and returns the number of steps that it took.
    fn write(disk: &SimDisk, entries: Vec<Entry>) -> usize {
        let mut draft = Draft::new(Arc::new(disk.clone()), path(), SLICE, AT, entries.into_iter());
        (1..1000).find(|_| draft.step().unwrap() == Some(AT)).unwrap()
    }

    fn entries(count: usize, bytes: usize) -> Vec<Entry> {
        (0..count).map(|n| (format!("s/key{n}").into_bytes(), vec![n as u8; bytes])).collect()
    }

    fn loaded(disk: &SimDisk) -> Loaded {
        match read(disk, path()).unwrap() {
            Found::Snapshot { at, loaded } => {
                assert_eq!(at, AT);
                loaded
            }
            Found::Nothing | Found::Damaged => panic!("no snapshot"),
        }
    }

    #[test]
    fn a_snapshot_is_the_golden_bytes() {
        let disk = SimDisk::new(1);
        let sample = vec![(b"m/format".to_vec(), vec![1, 0]), (b"s/\x02default/hall".to_vec(), b"state".to_vec())];
        write(&disk, sample.clone());
        let bytes = disk.read(path()).unwrap();
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/state-snap-v1.bin");
        if std::env::var_os("TIDEGATE_BLESS").is_some() {
            std::fs::write(golden, &bytes).unwrap();
        }
        assert_eq!(bytes, std::fs::read(golden).unwrap(), "the format of the snapshot has changed: raise its version");
        assert_eq!(loaded(&disk), Loaded { entries: sample, damages: 0 });
    }

    #[test]
    fn a_large_snapshot_is_written_in_slices() {
        let disk = SimDisk::new(1);
        let sample = entries(30, 1500);
        assert!(write(&disk, sample.clone()) > 10);
        assert_eq!(loaded(&disk), Loaded { entries: sample, damages: 0 });
        assert_eq!(disk.files(Path::new("store")), [path()], "the draft is gone");
    }

    #[test]
    fn a_flipped_bit_anywhere_is_counted_and_the_other_entries_stay() {
        let disk = SimDisk::new(1);
        write(&disk, entries(3, 20));
        let bytes = disk.read(path()).unwrap();
        for at in 0..bytes.len() {
            disk.edit(path(), |bytes| bytes[at] ^= 0x10);
            match read(&disk, path()) {
                Ok(Found::Snapshot { loaded, .. }) => assert!(loaded.damages > 0 && at >= HEADER_BYTES, "byte {at}"),
                Ok(Found::Damaged) => assert!(at < HEADER_BYTES, "byte {at}"),
                Ok(Found::Nothing) | Err(_) => panic!("byte {at}"),
            }
            disk.edit(path(), |bytes| bytes[at] ^= 0x10);
        }
        let value_of_the_second = HEADER_BYTES + 36 + 18;
        disk.edit(path(), |bytes| bytes[value_of_the_second] ^= 1);
        let found = loaded(&disk);
        assert_eq!((found.entries.len(), found.damages), (2, 1));
    }

    #[test]
    fn a_snapshot_that_is_cut_short_or_goes_on_is_damaged() {
        let disk = SimDisk::new(1);
        write(&disk, entries(3, 20));
        let bytes = disk.read(path()).unwrap();
        for length in 0..bytes.len() {
            disk.edit(path(), |file| *file = bytes[..length].to_vec());
            let is_seen = match read(&disk, path()).unwrap() {
                Found::Snapshot { loaded, .. } => loaded.damages > 0,
                Found::Damaged => true,
                Found::Nothing => false,
            };
            assert!(is_seen, "cut to {length}");
        }
        disk.edit(path(), |file| *file = [bytes.as_slice(), &[0]].concat());
        assert_eq!(loaded(&disk).damages, 1);
    }

    #[test]
    fn a_newer_format_is_refused_with_the_mend() {
        let disk = SimDisk::new(1);
        write(&disk, Vec::new());
        disk.edit(path(), |bytes| {
            bytes[6] = 2;
            let crc = crc32c::crc32c(&bytes[..60]);
            bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        });
        let refusal = read(&disk, path()).err().expect("it is newer");
        assert!(matches!(refusal, StoreError::NewerFormat { found: 2, known: 1, .. }), "{refusal}");
    }

    #[test]
    fn bytes_that_change_before_they_are_read_back_get_no_name() {
        let disk = SimDisk::new(1);
        write(&disk, entries(1, 10));
        let mut draft = Draft::new(Arc::new(disk.clone()), path(), SLICE, AT, entries(30, 1000).into_iter());
        (0..3).for_each(|_| assert_eq!(draft.step().unwrap(), None));
        disk.edit(&super::draft(path()), |bytes| bytes[70] ^= 1);
        let error = std::iter::repeat_with(|| draft.step()).find_map(Result::err).unwrap();
        assert!(error.to_string().contains("verify"), "{error}");
        assert_eq!(loaded(&disk).entries.len(), 1, "the one before it is in force");
        assert!(disk.remove(&super::draft(path())).is_err(), "the draft is removed at the next open");
    }

    /// A power cut after each step of a second snapshot: the first one or the second is there, whole.
    #[test]
    fn a_power_cut_at_any_step_leaves_one_snapshot_or_the_other() {
        let (mut firsts, mut seconds) = (0, 0);
        for (seed, steps) in (0..30).flat_map(|seed| (0..14).map(move |steps| (seed, steps))) {
            let disk = SimDisk::new(seed);
            write(&disk, entries(1, 10));
            let mut draft = Draft::new(Arc::new(disk.clone()), path(), SLICE, AT, entries(15, 1000).into_iter());
            let named = (0..steps).any(|_| draft.step().unwrap().is_some());
            disk.cut();
            let found = loaded(&disk);
            assert_eq!(found.damages, 0, "seed {seed}, {steps} steps");
            match found.entries.len() {
                1 => firsts += usize::from(!named),
                15 => seconds += 1,
                other => panic!("{other} entries"),
            }
            assert!(!named || found.entries.len() == 15, "seed {seed}, {steps} steps");
        }
        assert!(firsts > 100 && seconds > 50, "{firsts} and {seconds}");
    }

    #[test]
    fn an_error_at_any_step_leaves_one_snapshot_or_the_other() {
        for seed in 0..200 {
            let disk = SimDisk::new(seed);
            write(&disk, entries(1, 10));
            disk.fail(80);
            let mut draft = Draft::new(Arc::new(disk.clone()), path(), SLICE, AT, entries(15, 1000).into_iter());
            let outcome = (0..30).map(|_| draft.step()).find(|step| !matches!(step, Ok(None)));
            disk.fail(0);
            disk.cut();
            let found = loaded(&disk);
            assert_eq!(found.damages, 0, "seed {seed}");
            assert!(!matches!(outcome, Some(Ok(_))) || found.entries.len() == 15, "seed {seed}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_at_all_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let disk = SimDisk::new(1);
            write(&disk, Vec::new());
            disk.edit(path(), |file| {
                file.truncate(HEADER_BYTES);
                file.extend(&bytes);
            });
            if let Ok(Found::Snapshot { loaded, .. }) = read(&disk, path()) {
                prop_assert!(loaded.damages > 0);
            }
        }
    }
}
