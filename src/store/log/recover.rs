//! Reads the log after a stop of any kind.
//!
//! All segments are read, and every frame whose checksum holds is taken, wherever it stands: bytes that are no frame are
//! searched for the next one. Then the frames are put in order: those that a younger segment makes void are left out, of
//! two with one position the younger copy counts, and each names the frame before it, so that a hole is seen. A hole
//! that lies wholly in the newest write is a torn write, for its commit had not returned: its rest is dropped. Any
//! other hole is damage and becomes a gap.

use std::collections::BTreeMap;
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

/// Opens the log in `dir`, which exists, and reads what is above the checkpoint. After a clean stop at the checkpoint
/// that can only be frames of failed commits, which nobody waits for any more.
pub(in crate::store) fn recover(
    disk: Arc<dyn Disk>,
    dir: &Path,
    segment_bytes: u32,
    checkpoint: Checkpoint,
    stopped: bool,
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
    if stopped {
        reading = Reading { damaged: reading.damaged, ..Reading::default() };
    }
    let mut replay = chain(&mut reading, checkpoint);
    replay.found = !names.segments.is_empty();
    replay.begins_late = reading.begin.is_some_and(|begin| begin > checkpoint.lsn);
    let older = names.segments.iter().map(|id| Older {
        id: *id,
        last: reading
            .live
            .values()
            .filter(|found| found.segment == *id)
            .map(|found| found.frame.lsn)
            .max()
            .unwrap_or_default(),
        suspect: reading.damaged.contains(id),
    });
    let log = Log {
        active: None,
        older: older.collect(),
        spares: names.spares,
        next_id: names.segments.last().map_or(1, |id| id + 1),
        last: replay.last,
        void_floor: Lsn::ZERO,
        redo: Redo::default(),
        buffer: Vec::new(),
        files,
    };
    replay.frames = reading.live.into_values().map(|found| found.frame).collect();
    Ok((log, replay))
}

/// What lies in the directory.
struct Names {
    segments: Vec<u64>,
    spares: Vec<std::path::PathBuf>,
}

impl Names {
    fn list(files: &Files) -> Result<Self, StoreError> {
        let mut names = Self { segments: Vec::new(), spares: Vec::new() };
        for name in files.disk.list(&files.dir).map_err(StoreError::io("list", &files.dir))? {
            match name.split_once('.') {
                Some((id, "seg")) => names.segments.extend(u64::from_str_radix(id, 16)),
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
