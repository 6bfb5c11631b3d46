//! Reads the log after a stop of any kind.
//!
//! All segments are read, and every frame whose checksum holds is taken, wherever it stands: bytes that are no frame are
//! searched for the next one. Then the frames are put in order: those that a younger segment makes void are left out, of
//! two with one position the younger copy counts, and each names the frame before it, so that a hole is seen. A hole
//! that lies wholly in the newest write is a torn write, for its commit had not returned: its rest is dropped. Any
//! other hole is damage and becomes a gap.
//!
//! What cannot be told from a stop: damage of the newest write, and the newest segment's file removed as a whole.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use tracing::{debug, error, info, warn};

use super::frame::{HEADER_BYTES, Head, Header, VERSION};
use super::{Files, Log, Older, Redo};
use crate::model::{Frame, Lsn, Seq};
use crate::store::disk::Disk;
use crate::store::keyed::Checkpoint;
use crate::store::{Gap, StoreError, codec};

/// Bytes that the search for frames may put through the checksum, as a multiple of the segment: hostile payloads that
/// look like frames cannot stop the start.
const SEARCH_FACTOR: usize = 16;

/// What nobody has written yet, in a piece that is compared at once.
const ZEROS: [u8; 64] = [0; 64];

/// What the log holds above the checkpoint.
#[derive(Debug, Default)]
pub(in crate::store) struct Replay {
    /// In order, each once.
    pub(in crate::store) frames: Vec<Frame>,
    /// Damage.
    pub(in crate::store) gaps: Vec<Gap>,
    /// Frames are missing at the end, and nobody knows how many.
    pub(in crate::store) open_end: bool,
    /// The newest frame, in the log or the checkpoint.
    pub(in crate::store) last: Lsn,
    /// The log begins above the checkpoint: the keyed store lost what it had.
    pub(in crate::store) begins_late: bool,
    /// The highest Seq, in the log or the checkpoint.
    pub(in crate::store) last_seq: Seq,
    /// Bytes of frames of a write that had not returned.
    pub(in crate::store) torn_bytes: usize,
    /// How many of `frames`, counted from the end, came with the newest write.
    pub(in crate::store) newest_write: usize,
    /// The frame before them.
    pub(in crate::store) newest_write_prev: Lsn,
    /// There was a log: at least one segment.
    pub(in crate::store) found: bool,
}

/// Opens the log in `dir`, which exists, and reads what is above the checkpoint. After a clean stop at `until` the log
/// ends there: what lies above can only be frames of failed commits, which nobody waits for any more.
pub(in crate::store) fn recover(
    disk: Arc<dyn Disk>,
    dir: &Path,
    segment_bytes: u32,
    checkpoint: Checkpoint,
    until: Option<Lsn>,
) -> Result<(Log, Replay), StoreError> {
    let files = Files { disk, dir: dir.to_owned(), segment_bytes };
    let names = Names::list(&files)?;
    let mut reading = Reading::default();
    for id in &names.segments {
        let synced = reading.segment(&files, *id)?;
        if names.segments.first() == Some(id) {
            reading.begin = synced;
        }
    }
    if let Some(until) = until {
        reading.end_at(until);
    }
    let lasts = reading.lasts();
    let mut replay = chain(&mut reading, checkpoint);
    replay.found = !names.segments.is_empty();
    // A frame that was written again may stand behind the segment whose header is the oldest one left.
    let reaches_base = reading.live.values().next().is_some_and(|found| found.prev_lsn <= checkpoint.lsn);
    replay.begins_late = !reaches_base && reading.begin.is_some_and(|begin| begin > checkpoint.lsn);
    let older = names.segments.iter().map(|id| Older {
        id: *id,
        last: lasts.get(id).copied().unwrap_or_default(),
        suspect: reading.damaged.contains(id),
    });
    let log = Log {
        active: None,
        older: older.collect(),
        spares: names.spares,
        next_id: names.next_id,
        last: replay.last,
        void_floor: Lsn::ZERO,
        redo: Redo::default(),
        buffer: Vec::new(),
        total: names.segments.len() as u64 * u64::from(segment_bytes),
        files,
    };
    replay.frames = reading.live.into_values().map(|found| found.frame).collect();
    Ok((log, replay))
}

/// True if the log in `dir` goes back to the very first frame, as its oldest header says.
pub(in crate::store) fn reaches_back(disk: &Arc<dyn Disk>, dir: &Path) -> Result<bool, StoreError> {
    let files = Files { disk: Arc::clone(disk), dir: dir.to_owned(), segment_bytes: 0 };
    let oldest = Names::list(&files)?.segments.first().map(|id| files.segment(*id));
    let header = oldest.and_then(|path| files.disk.read_back(&path, 0, HEADER_BYTES).ok());
    Ok(header.and_then(|bytes| Header::decode(&bytes)).is_some_and(|header| header.bases.synced == Lsn::ZERO))
}

/// What lies in the directory.
struct Names {
    segments: Vec<u64>,
    /// Above every id that left bytes behind, also in spares.
    next_id: u64,
    spares: Vec<std::path::PathBuf>,
}

impl Names {
    fn list(files: &Files) -> Result<Self, StoreError> {
        let mut names = Self { segments: Vec::new(), next_id: 1, spares: Vec::new() };
        for name in files.disk.list(&files.dir).map_err(StoreError::io("list", &files.dir))? {
            let id = name.split_once('.').and_then(|(id, _)| u64::from_str_radix(id, 16).ok());
            names.next_id = names.next_id.max(id.map_or(1, |id| id.saturating_add(1)));
            match name.split_once('.') {
                Some((_, "seg")) => names.segments.extend(id),
                Some((_, "spare")) => names.spares.push(files.dir.join(name)),
                Some((_, "new")) => files.discard(&files.dir.join(name)),
                _ => debug!(name, "unknown file beside the log"),
            }
        }
        names.segments.sort_unstable();
        names.spares.sort_unstable();
        Ok(names)
    }
}

struct Found {
    segment: u64,
    base: Lsn,
    prev_lsn: Lsn,
    length: usize,
    frame: Frame,
}

/// All frames so far that are not void.
#[derive(Default)]
struct Reading {
    live: BTreeMap<Lsn, Found>,
    damaged: Vec<u64>,
    /// From the newest header: frames up to and including this one were on disk.
    synced: Lsn,
    /// The frame before the oldest segment, if its header says it.
    begin: Option<Lsn>,
    /// The newest segment is not whole.
    short: bool,
    torn_bytes: usize,
}

impl Reading {
    /// Reads a segment; returns the frame before it, if its header says it.
    fn segment(&mut self, files: &Files, id: u64) -> Result<Option<Lsn>, StoreError> {
        let path = files.segment(id);
        let bytes = match files.disk.read(&path) {
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == ErrorKind::PermissionDenied => {
                return Err(StoreError::io("read log segment", &path)(cause));
            }
            Err(cause) => {
                error!(error = %cause, segment = id, "log segment cannot be read");
                Vec::new()
            }
        };
        let header = Header::decode(&bytes).filter(|header| header.id == id);
        if let Some(found) = header.map(|header| header.version).filter(|version| *version > VERSION) {
            return Err(StoreError::NewerFormat { path, found: found.into(), known: VERSION.into() });
        }
        let bytes_expected = header.map_or(files.segment_bytes, |header| header.segment_bytes);
        self.short = bytes.len() < bytes_expected as usize;
        if let Some(header) = header {
            let void = self.live.split_off(&header.bases.void_above.next());
            debug!(segment = id, frames = void.len(), "frames of older segments are void");
            self.synced = header.bases.synced;
        }
        let scanned = Scan::new(id, &bytes, self.synced).run();
        if self.short || scanned.damaged || (header.is_none() && !scanned.frames.is_empty()) {
            warn!(segment = id, short = self.short, header = header.is_some(), "log segment is damaged");
            self.damaged.push(id);
        }
        self.torn_bytes = scanned.torn_bytes;
        self.live.extend(scanned.frames.into_iter().map(|found| (found.frame.lsn, found)));
        Ok(header.map(|header| header.bases.synced))
    }

    /// The log was stopped at `until`, and reaches that far unless something is lost.
    fn end_at(&mut self, until: Lsn) {
        drop(self.live.split_off(&until.next()));
        (self.synced, self.short, self.torn_bytes) = (until, false, 0);
    }

    /// The newest frame of each segment.
    fn lasts(&self) -> HashMap<u64, Lsn> {
        // In order of position, so that the newest frame of a segment is the one that stays.
        self.live.values().map(|found| (found.segment, found.frame.lsn)).collect()
    }
}

/// The search for frames in one segment.
struct Scan<'a> {
    id: u64,
    bytes: &'a [u8],
    /// Frames of this segment lie above.
    floor: Lsn,
    /// The frame before the next one.
    before: Lsn,
    frames: Vec<Found>,
    damaged: bool,
    torn_bytes: usize,
    budget: usize,
}

impl<'a> Scan<'a> {
    fn new(id: u64, bytes: &'a [u8], before: Lsn) -> Self {
        let budget = bytes.len().saturating_mul(SEARCH_FACTOR);
        Self { id, bytes, floor: Lsn::ZERO, before, frames: Vec::new(), damaged: false, torn_bytes: 0, budget }
    }

    fn run(mut self) -> Self {
        let mut offset = HEADER_BYTES;
        loop {
            if let Some(found) = self.frame(offset) {
                offset += found.length;
                self.floor = found.frame.lsn;
                self.before = found.frame.lsn;
                self.frames.push(found);
            } else if let Some(next) = self.search(offset + 1) {
                warn!(segment = self.id, from = offset, to = next, "bytes in the log that are no frame");
                self.damaged = true;
                offset = next;
            } else {
                self.torn_bytes = self.torn_at(offset);
                return self;
            }
        }
    }

    fn frame(&self, offset: usize) -> Option<Found> {
        let head = Head::peek(self.bytes, offset).filter(|head| head.lsn > self.floor)?;
        if !head.is_proved(self.bytes, self.id, offset) {
            return None;
        }
        let effects = codec::decode_all(self.bytes.get(head.effects(offset))?)?;
        let frame = Frame { lsn: head.lsn, prev_seq: head.prev_seq, effects };
        let (base, prev_lsn, length) = (head.base, head.prev_lsn, head.length);
        Some(Found { segment: self.id, base, prev_lsn, length, frame })
    }

    /// The next offset at which a frame stands. Frames of an earlier life lie below the floor and cost no checksum.
    fn search(&mut self, from: usize) -> Option<usize> {
        let mut next = from;
        while next < self.bytes.len() {
            let offset = next;
            if self.bytes.get(offset..offset + ZEROS.len()) == Some(&ZEROS) {
                // The first three bytes of a length may be zeros.
                next += ZEROS.len() - 3;
                continue;
            }
            next += 1;
            let Some(head) = Head::peek(self.bytes, offset).filter(|head| head.lsn > self.floor) else { continue };
            let Some(budget) = self.budget.checked_sub(head.length) else {
                error!(segment = self.id, offset, "too many bytes that look like frames; the rest is not searched");
                self.damaged = true;
                return None;
            };
            self.budget = budget;
            if self.frame(offset).is_some() {
                return Some(offset);
            }
        }
        None
    }

    /// Bytes of a frame that follows the last one and is not whole.
    fn torn_at(&self, offset: usize) -> usize {
        Head::peek(self.bytes, offset).filter(|head| head.prev_lsn == self.before).map_or(0, |head| head.length)
    }
}

/// Walks the frames above the checkpoint and finds the holes; leaves those that count.
fn chain(reading: &mut Reading, checkpoint: Checkpoint) -> Replay {
    reading.live = reading.live.split_off(&checkpoint.lsn.next());
    let mut replay = Replay { last: checkpoint.lsn, last_seq: checkpoint.seq, ..Replay::default() };
    replay.torn_bytes = reading.torn_bytes;
    let newest_base = reading.live.values().map(|found| found.base).max().unwrap_or_default();
    let mut cut = None;
    for (lsn, found) in &reading.live {
        if found.prev_lsn > replay.last {
            if found.base <= replay.last && found.base == newest_base {
                cut = Some(*lsn);
                break;
            }
            replay.gap(found);
        }
        replay.pass(found);
    }
    if let Some(lsn) = cut {
        let dropped = reading.live.split_off(&lsn);
        replay.torn_bytes += dropped.values().map(|found| found.length).sum::<usize>();
        warn!(frames = dropped.len(), "the newest write of the log is torn; frames behind the tear are dropped");
    }
    if replay.torn_bytes > 0 {
        info!(bytes = replay.torn_bytes, "the log ends in a write that had not returned");
    }
    replay.open_end = reading.short || reading.synced > replay.last;
    replay.last = replay.last.max(reading.synced);
    let newest = reading.live.values().rev().take_while(|found| found.base == newest_base);
    if let Some((count, first)) = newest.enumerate().last() {
        replay.newest_write = count + 1;
        replay.newest_write_prev = first.prev_lsn;
    }
    replay
}

impl Replay {
    /// True if nothing is missing up to this position, and it is the end.
    pub(in crate::store) fn is_whole_at(&self, end: Checkpoint) -> bool {
        let at = Checkpoint { lsn: self.last, seq: self.last_seq };
        at == end && self.gaps.is_empty() && !self.open_end && !self.begins_late
    }

    fn gap(&mut self, found: &Found) {
        let gap = Gap { from: self.last_seq, to: found.frame.prev_seq };
        error!(after = %self.last, before = %found.frame.lsn, from = %gap.from, to = %gap.to, "frames of the log are lost");
        if gap.to > gap.from {
            self.gaps.push(gap);
        }
    }

    fn pass(&mut self, found: &Found) {
        self.last = found.frame.lsn;
        let newest = found.frame.last_seq().unwrap_or_default().max(found.frame.prev_seq);
        self.last_seq = self.last_seq.max(newest);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::super::frame::{self, Bases, HEAD_BYTES, Place};
    use super::*;
    use crate::model::{Effect, Lane};
    use crate::store::sim::SimDisk;

    const SEGMENT_BYTES: usize = 4096;

    /// A frame to put into a segment: its lsn, the one before it, and the one before its write. Its Seq is ten times
    /// its lsn.
    #[derive(Clone, Copy)]
    struct Laid(u64, u64, u64);

    fn segment(id: u64, void_above: u64, synced: u64, frames: &[Laid]) -> Vec<u8> {
        let bases = Bases { void_above: Lsn(void_above), synced: Lsn(synced) };
        let mut bytes = Header { version: VERSION, id, bases, segment_bytes: SEGMENT_BYTES as u32 }.encode();
        for Laid(lsn, prev_lsn, base) in frames {
            let place = Place { segment: id, offset: bytes.len(), prev_lsn: Lsn(*prev_lsn), base: Lsn(*base) };
            let effects = vec![Effect::Forget { lane: Lane::State, to: Seq(*lsn) }];
            let frame = Frame { lsn: Lsn(*lsn), prev_seq: Seq(prev_lsn * 10), effects };
            frame::encode(&mut bytes, &frame, place);
        }
        bytes.resize(SEGMENT_BYTES, 0);
        bytes
    }

    fn read(segments: &[Vec<u8>], checkpoint: u64) -> Replay {
        read_until(segments, checkpoint, None)
    }

    fn read_until(segments: &[Vec<u8>], checkpoint: u64, until: Option<u64>) -> Replay {
        let disk = SimDisk::new(1);
        for (id, bytes) in (1..).zip(segments) {
            disk.create(Path::new(&format!("log/{id:016x}.seg"))).unwrap().pwrite(0, bytes).unwrap();
        }
        let checkpoint = Checkpoint { lsn: Lsn(checkpoint), seq: Seq(checkpoint * 10) };
        recover(Arc::new(disk), Path::new("log"), SEGMENT_BYTES as u32, checkpoint, until.map(Lsn)).unwrap().1
    }

    fn lsns(replay: &Replay) -> Vec<u64> {
        replay.frames.iter().map(|frame| frame.lsn.0).collect()
    }

    #[test]
    fn frames_up_to_the_checkpoint_are_left_out() {
        let log =
            [segment(1, 0, 0, &[Laid(1, 0, 0), Laid(2, 1, 1), Laid(4, 2, 2)]), segment(2, 4, 4, &[Laid(5, 4, 4)])];
        for (checkpoint, expected) in [(0, vec![1, 2, 4, 5]), (2, vec![4, 5]), (4, vec![5]), (5, vec![])] {
            let replay = read(&log, checkpoint);
            assert_eq!(lsns(&replay), expected);
            assert_eq!((replay.last, replay.gaps.len(), replay.open_end), (Lsn(5), 0, false));
        }
    }

    #[test]
    fn frames_written_again_in_a_younger_segment_count_once() {
        let log = [
            segment(1, 0, 0, &[Laid(1, 0, 0), Laid(2, 1, 1), Laid(3, 2, 1)]),
            segment(2, 1, 1, &[Laid(2, 1, 1), Laid(3, 2, 1), Laid(4, 3, 1)]),
        ];
        let replay = read(&log, 0);
        assert_eq!(lsns(&replay), [1, 2, 3, 4]);
        assert_eq!((replay.newest_write, replay.newest_write_prev), (3, Lsn(1)));
    }

    #[test]
    fn frames_above_the_base_of_a_younger_segment_are_void_also_if_it_is_empty() {
        let log = [segment(1, 0, 0, &[Laid(1, 0, 0), Laid(2, 1, 1)]), segment(2, 1, 1, &[])];
        assert_eq!(lsns(&read(&log, 0)), [1]);
    }

    #[test]
    fn a_copy_that_is_torn_leaves_the_first_one_in_force() {
        let second = segment(2, 3, 1, &[Laid(2, 1, 1), Laid(3, 2, 1)]);
        let first = segment(1, 0, 0, &[Laid(1, 0, 0), Laid(2, 1, 1), Laid(3, 2, 1)]);
        for torn in [64, 70, 120, 200] {
            let mut torn_copy = second.clone();
            torn_copy[torn..].fill(0);
            let replay = read(&[first.clone(), torn_copy], 0);
            assert_eq!(lsns(&replay), [1, 2, 3], "torn at {torn}");
            assert_eq!((replay.gaps.len(), replay.open_end), (0, false));
        }
    }

    #[test]
    fn frames_that_were_synced_and_are_gone_are_an_open_end() {
        let log = [segment(1, 0, 0, &[Laid(1, 0, 0)]), segment(2, 5, 5, &[])];
        let replay = read(&log, 0);
        assert!(replay.open_end);
        assert_eq!((lsns(&replay), replay.last), (vec![1], Lsn(5)), "their positions are not used again");
        assert!(!read(&log, 5).open_end, "the checkpoint has them");
    }

    #[test]
    fn a_hole_between_segments_is_a_gap_of_the_seqs_in_it() {
        let log = [segment(1, 0, 0, &[Laid(1, 0, 0)]), segment(2, 7, 7, &[Laid(8, 7, 7)])];
        let replay = read(&log, 0);
        assert_eq!(lsns(&replay), [1, 8]);
        assert_eq!(replay.gaps, [Gap { from: Seq(0), to: Seq(70) }]);
    }

    #[test]
    fn a_log_that_begins_above_the_checkpoint_says_so() {
        let log = [segment(1, 4, 4, &[Laid(5, 4, 4)])];
        assert!(read(&log, 3).begins_late);
        assert!(!read(&log, 4).begins_late);
    }

    #[test]
    fn a_log_whose_first_frames_were_written_again_is_not_late() {
        let log = [segment(1, 2, 2, &[]), segment(2, 2, 0, &[Laid(1, 0, 0), Laid(2, 1, 0)])];
        let replay = read(&log, 0);
        assert_eq!((lsns(&replay), replay.begins_late), (vec![1, 2], false));
    }

    #[test]
    fn after_a_clean_stop_nothing_above_it_counts_and_the_log_reaches_it() {
        let log = [segment(1, 0, 0, &[Laid(1, 0, 0), Laid(2, 1, 1), Laid(3, 2, 2)])];
        let replay = read_until(&log, 2, Some(2));
        assert_eq!((lsns(&replay), replay.last, replay.open_end), (vec![], Lsn(2), false));
        let replay = read_until(&log, 0, Some(2));
        assert_eq!((lsns(&replay), replay.last, replay.open_end), (vec![1, 2], Lsn(2), false));
        let replay = read_until(&log, 0, Some(5));
        assert_eq!((lsns(&replay), replay.last, replay.open_end), (vec![1, 2, 3], Lsn(5), true));
    }

    #[test]
    fn a_damaged_header_costs_no_frame() {
        let mut log = [segment(1, 0, 0, &[Laid(1, 0, 0), Laid(2, 1, 1)])];
        log[0][20] ^= 1;
        assert_eq!(lsns(&read(&log, 0)), [1, 2]);
    }

    #[test]
    fn bytes_of_another_segment_are_no_frames() {
        let old = segment(9, 0, 0, &[Laid(7, 6, 6), Laid(8, 7, 7)]);
        assert!(lsns(&read(&[old], 0)).is_empty(), "a spare that got its name and not yet its header");
        let mut reused = segment(1, 0, 0, &[Laid(1, 0, 0)]);
        let tail = 64 + HEAD_BYTES + 10;
        reused[tail..].copy_from_slice(&segment(9, 0, 0, &[Laid(7, 6, 6), Laid(8, 7, 7)])[tail..]);
        assert_eq!(lsns(&read(&[reused], 0)), [1]);
    }

    #[test]
    fn a_search_looks_at_each_place_behind_long_zeros() {
        for shift in 0..140 {
            let mut bytes = segment(1, 0, 0, &[]);
            let offset = 900 + shift;
            let place = Place { segment: 1, offset, prev_lsn: Lsn(0), base: Lsn(0) };
            // 256 bytes and more: the length begins with a zero byte or not.
            for length in [1, 206, 300] {
                let sink = "x".repeat(length).into();
                let frame = Frame { lsn: Lsn(1), prev_seq: Seq(0), effects: vec![Effect::Release { sink }] };
                let mut written = Vec::new();
                frame::encode(&mut written, &frame, place);
                bytes[offset..offset + written.len()].copy_from_slice(&written);
                let scan = Scan::new(1, &bytes, Lsn::ZERO).run();
                assert_eq!((scan.frames.len(), scan.damaged), (1, true), "length {length} at {offset}");
                bytes[offset..].fill(0);
            }
        }
    }

    #[test]
    fn a_search_ends_when_too_much_looks_like_frames() {
        let mut bytes = vec![0; SEGMENT_BYTES];
        for offset in (64..3000).step_by(40) {
            let head = [1000_u32.to_le_bytes(), [0; 4]].concat();
            bytes[offset..offset + 8].copy_from_slice(&head);
            bytes[offset + 8..offset + 16].copy_from_slice(&9_u64.to_le_bytes());
        }
        let scan = Scan::new(1, &bytes, Lsn::ZERO).run();
        assert!(scan.damaged && scan.frames.is_empty());
        assert!(scan.budget < 1000, "{} left of {}", scan.budget, SEGMENT_BYTES * SEARCH_FACTOR);
    }

    #[test]
    fn foreign_files_and_drafts_in_the_directory_do_not_matter() {
        let disk = SimDisk::new(1);
        for name in ["0000000000000007.new", "README", "zz.seg", "0000000000000003.spare"] {
            disk.create(&Path::new("log").join(name)).unwrap();
        }
        let (log, replay) =
            recover(Arc::new(disk.clone()), Path::new("log"), 4096, Checkpoint::default(), None).unwrap();
        assert!(!replay.found && replay.frames.is_empty());
        assert_eq!((log.spares.len(), log.next_id), (1, 8));
        assert_eq!(disk.files(Path::new("log")).len(), 3, "the draft is removed");
    }
}
