//! The write-ahead log: what is in it, synced, is committed.
//!
//! A row of segments of equal size (4 MiB), each a file `log/<id>.seg` (16 hex digits), filled with written zeros
//! before it gets its name, so that a commit changes no metadata. A segment that nothing needs any more (see the head of
//! `store`) becomes `<id>.spare` (at most 4) and later the next segment under a new id. Ids rise and are never used
//! twice.
//!
//! A segment is a header and frames without space between them, little-endian:
//!
//! | at | header (64 bytes) | | at | frame |
//! |---|---|---|---|---|
//! | 0 | `TGLOG`, 0 | | 0 | length u32, of the whole frame |
//! | 6 | version u16 (1) | | 4 | CRC-32C u32 over segment id u64, offset u64, length, bytes 8 to the end |
//! | 8 | segment id u64 | | 8 | lsn u64 |
//! | 16 | lsn u64 above which frames of older segments are void | | 16 | lsn of the frame before it u64 |
//! | 24 | lsn u64 up to which frames are known to be on disk | | 24 | base lsn u64: newest frame before this write |
//! | 32 | bytes of the segment u32 | | 32 | highest Seq before it u64 |
//! | 36 | zeros | | | |
//! | 60 | CRC-32C u32 of bytes 0..60 | | 40 | effects, see `codec` |
//!
//! - One commit is one write and one `fdatasync`; a batch that does not fit into the rest of the segment is split
//!   between two frames. A frame never spans segments: one above [`frame_bytes_max`] is refused. The effects of one
//!   message are bounded by the broker's packet size.
//! - After any error the segment is left for good, for a second `fdatasync` proves nothing. The next commit opens a new
//!   one, whose header makes the frames of the failed write void.
//! - The checksum's seed and the header keep bytes of an earlier life from being taken for frames.

mod frame;
mod recover;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use super::StoreError;
use super::disk::{Disk, DiskFile};
use crate::model::{Frame, Lsn};
use frame::{Bases, HEADER_BYTES, Header, Place, VERSION};
pub(super) use recover::{Replay, reaches_back, recover};

/// Size of a segment on a real disk.
pub(super) const SEGMENT_BYTES: u32 = 4 << 20;

/// Segments that are kept for later.
const SPARES_MAX: usize = 4;

/// Zeros are written in pieces of this size.
const ZEROS: usize = 64 << 10;

/// Bytes that a frame takes in a segment.
pub(super) fn frame_bytes(frame: &Frame) -> usize {
    frame::length(frame)
}

/// The largest frame that fits into a segment.
pub(super) const fn frame_bytes_max(segment_bytes: u32) -> usize {
    segment_bytes as usize - HEADER_BYTES
}

/// The writer's end of the log.
pub(super) struct Log {
    files: Files,
    active: Option<Active>,
    /// Segments that are not written any more, oldest first.
    older: Vec<Older>,
    spares: Vec<PathBuf>,
    next_id: u64,
    /// The newest frame that is committed.
    last: Lsn,
    /// Frames up to and including this one are never made void.
    void_floor: Lsn,
    redo: Redo,
    buffer: Vec<u8>,
    /// Bytes of log so far: segments that are not written any more count whole.
    total: u64,
}

impl Log {
    /// Writes frames, whose positions rise, and syncs them; returns the bytes written to disk. After an error none of
    /// them is committed, and the same frames must come first next time.
    pub(super) fn commit(&mut self, frames: &[Frame]) -> Result<u64, StoreError> {
        let max = frame_bytes_max(self.files.segment_bytes);
        for frame in frames {
            let bytes = frame_bytes(frame);
            if bytes > max {
                return Err(StoreError::FrameTooLarge { lsn: frame.lsn, bytes, max });
            }
        }
        self.redo()?;
        self.attempt(frames)
    }

    /// Opens a segment to write to, and writes frames that recovery found once more: the write that brought them may
    /// have failed in the life before, and what can be read of it then need not be on disk. `prev` is the frame before
    /// them. If this fails, they come before the next commit.
    pub(super) fn resume(&mut self, frames: Vec<Frame>, prev: Lsn) -> Result<(), StoreError> {
        self.redo = Redo { frames, prev };
        let synced = if self.redo.frames.is_empty() { self.last } else { prev };
        self.active = Some(self.roll(Bases { void_above: self.last, synced })?.0);
        self.redo()
    }

    /// Bytes of log since the open, and the segments that it found: only differences mean something. Segments that are
    /// not written any more count whole.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Where [`Self::total`] stood, at the latest, when all frames up to and including `lsn` were written; exact to a
    /// segment, and right only before the first write after an open.
    pub(super) fn total_at(&self, lsn: Lsn) -> u64 {
        let above = self.older.iter().filter(|older| older.last > lsn).count() as u64;
        self.total.saturating_sub(above * u64::from(self.files.segment_bytes))
    }

    /// Frames up to and including `upto` are held elsewhere: segments that lie wholly below are recycled, oldest first
    /// and without a gap, for the header of a younger one may be what makes frames of an older one void. One that cannot
    /// be recycled is tried again next time.
    pub(super) fn recycle(&mut self, upto: Lsn) {
        if self.redo.frames.last().is_some_and(|frame| frame.lsn <= upto) {
            self.redo = Redo::default();
        }
        // One segment always stays: a directory without any is a log that was lost.
        let newest = self.older.iter().map(|older| older.id).max().filter(|_| self.active.is_none());
        let is_covered = |older: &Older| older.last <= upto && Some(older.id) != newest;
        let covered = self.older.iter().take_while(|older| is_covered(older)).count();
        let covered: Vec<Older> = self.older.get(..covered).unwrap_or_default().to_vec();
        for older in covered {
            if let Err(error) = self.retire(&older) {
                warn!(%error, segment = older.id, "log segment not recycled");
                break;
            }
            self.older.remove(0);
        }
        if let Err(error) = self.files.disk.sync_dir(&self.files.dir) {
            warn!(%error, "names of recycled log segments not synced");
        }
    }

    fn redo(&mut self) -> Result<(), StoreError> {
        if self.redo.frames.is_empty() {
            return Ok(());
        }
        let redo = std::mem::take(&mut self.redo);
        let last = std::mem::replace(&mut self.last, redo.prev);
        // The first copies count until the second are complete.
        self.void_floor = last;
        let outcome = self.attempt(&redo.frames);
        self.void_floor = Lsn::ZERO;
        self.last = last;
        if outcome.is_err() {
            self.redo = redo;
        }
        outcome.map(drop)
    }

    fn attempt(&mut self, frames: &[Frame]) -> Result<u64, StoreError> {
        let written = self.write(frames);
        if written.is_err() {
            self.abandon(frames.last().map_or(self.last, |frame| frame.lsn));
        }
        written
    }

    fn retire(&mut self, older: &Older) -> io::Result<()> {
        let path = self.files.segment(older.id);
        if older.suspect || self.spares.len() >= SPARES_MAX {
            return self.files.disk.remove(&path);
        }
        let spare = path.with_extension("spare");
        self.files.disk.rename(&path, &spare)?;
        self.spares.push(spare);
        Ok(())
    }

    fn write(&mut self, frames: &[Frame]) -> Result<u64, StoreError> {
        let mut last = self.last;
        let mut rest = frames;
        let mut written = 0;
        while !rest.is_empty() {
            let (mut active, bytes) = match self.active.take() {
                Some(active) => (active, 0),
                None => self.roll(Bases { void_above: last.max(self.void_floor), synced: last })?,
            };
            written += bytes;
            let (now, later) = rest.split_at_checked(self.fill(&active, rest, last)).unwrap_or((rest, &[]));
            if let Some(end) = now.last() {
                let outcome = active.append(&self.buffer, end.lsn);
                self.total += self.buffer.len() as u64;
                let doing = StoreError::io("commit to", &self.files.segment(active.id));
                self.active = Some(active);
                outcome.map_err(doing)?;
                written += self.buffer.len() as u64;
                last = end.lsn;
            } else {
                self.leave(&active, active.last, false);
            }
            rest = later;
        }
        self.last = last;
        Ok(written)
    }

    /// Encodes as many of the frames as fit behind the tail into the buffer, and returns their number.
    fn fill(&mut self, active: &Active, frames: &[Frame], base: Lsn) -> usize {
        self.buffer.clear();
        let mut prev_lsn = base;
        for (count, frame) in frames.iter().enumerate() {
            let start = self.buffer.len();
            let place = Place { segment: active.id, offset: active.tail + start, prev_lsn, base };
            let length = frame::encode(&mut self.buffer, frame, place);
            if place.offset + length > self.files.segment_bytes as usize {
                self.buffer.truncate(start);
                return count;
            }
            prev_lsn = frame.lsn;
        }
        frames.len()
    }

    /// Leaves the segment that failed; nobody knows what it holds up to `attempted`.
    fn abandon(&mut self, attempted: Lsn) {
        if let Some(active) = self.active.take() {
            warn!(segment = active.id, "log segment abandoned after a failed write");
            self.leave(&active, active.last.max(attempted), true);
        }
    }

    fn leave(&mut self, active: &Active, last: Lsn, suspect: bool) {
        self.total += u64::from(self.files.segment_bytes).saturating_sub(active.tail as u64);
        self.older.push(Older { id: active.id, last, suspect });
    }

    /// A new segment whose name and header are on disk, and the bytes that it took. Its id is taken for good, also if
    /// this fails: frames must never be sealed twice for one id.
    fn roll(&mut self, bases: Bases) -> Result<(Active, u64), StoreError> {
        let id = self.next_id;
        self.next_id += 1;
        let path = self.files.segment(id);
        let doing = StoreError::io("open log segment", &path);
        self.files.open(id, bases, &mut self.spares).map_err(doing)
    }
}

/// The directory of the log.
struct Files {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_bytes: u32,
}

impl Files {
    fn segment(&self, id: u64) -> PathBuf {
        self.dir.join(format!("{id:016x}.seg"))
    }

    fn open(&self, id: u64, bases: Bases, spares: &mut Vec<PathBuf>) -> io::Result<(Active, u64)> {
        let path = self.segment(id);
        let (mut file, zeros) = match self.reuse(spares, &path) {
            Some(file) => (file, 0),
            None => (self.preallocate(&path)?, u64::from(self.segment_bytes)),
        };
        self.disk.sync_dir(&self.dir)?;
        let header = Header { version: VERSION, id, bases, segment_bytes: self.segment_bytes }.encode();
        file.pwrite(0, &header)?;
        file.fdatasync()?;
        let active = Active { id, file, tail: HEADER_BYTES, last: Lsn::ZERO };
        Ok((active, zeros + header.len() as u64))
    }

    /// A spare under its new name; one that is not whole is dropped.
    fn reuse(&self, spares: &mut Vec<PathBuf>, path: &Path) -> Option<Box<dyn DiskFile>> {
        while let Some(spare) = spares.pop() {
            match self.take_spare(&spare, path) {
                Ok(file) => return Some(file),
                Err(error) => {
                    warn!(%error, spare = %spare.display(), "spare log segment dropped");
                    self.discard(&spare);
                }
            }
        }
        None
    }

    fn take_spare(&self, spare: &Path, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.open(spare)?;
        if file.length()? != u64::from(self.segment_bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it has another size"));
        }
        self.disk.rename(spare, path)?;
        Ok(file)
    }

    fn preallocate(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let draft = path.with_extension("new");
        let made = self.write_zeros(&draft).and_then(|file| {
            self.disk.rename(&draft, path)?;
            Ok(file)
        });
        if made.is_err() {
            self.discard(&draft);
        }
        made
    }

    fn write_zeros(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut file = self.disk.create(path)?;
        let zeros = vec![0; ZEROS.min(self.segment_bytes as usize)];
        let mut offset = 0;
        while offset < self.segment_bytes as usize {
            let piece = zeros.get(..self.segment_bytes as usize - offset).unwrap_or(&zeros);
            file.pwrite(offset as u64, piece)?;
            offset += piece.len();
        }
        file.fdatasync()?;
        Ok(file)
    }

    /// Removes a file that nobody will read; what stays is tried again at the next open.
    fn discard(&self, path: &Path) {
        if let Err(error) = self.disk.remove(path) {
            warn!(%error, path = %path.display(), "file not removed");
        }
    }
}

/// The segment that is being written.
struct Active {
    id: u64,
    file: Box<dyn DiskFile>,
    /// Where the next frame goes.
    tail: usize,
    /// The newest frame in it.
    last: Lsn,
}

impl Active {
    fn append(&mut self, bytes: &[u8], last: Lsn) -> io::Result<()> {
        self.file.pwrite(self.tail as u64, bytes)?;
        self.file.fdatasync()?;
        self.tail += bytes.len();
        self.last = last;
        Ok(())
    }
}

/// Frames that are to be written once more.
#[derive(Debug, Default)]
struct Redo {
    frames: Vec<Frame>,
    /// The frame before them.
    prev: Lsn,
}

/// A segment that waits to be recycled.
#[derive(Debug, Clone, Copy)]
struct Older {
    id: u64,
    /// The newest frame in it that counts.
    last: Lsn,
    /// It failed or is damaged: it is removed, not used again.
    suspect: bool,
}
