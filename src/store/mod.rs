//! The store: what is committed here survives a power cut.
//!
//! - The log is the commit point (`log`): one write and one `fdatasync` per commit. [`Store::commit`] returns Ok only when
//!   every frame is on disk, and a frame is there wholly or not at all.
//! - The keyed store (`keyed`, `sled`) follows at checkpoints, in one batch with the position that it leads to. Between them
//!   its changes wait in RAM, bounded by the log bytes since the last one.
//! - A snapshot (`snapshot`) is a second image of the same, written from RAM every 16 segments (64 MiB) of log and at a
//!   stop. A log segment is recycled when a checkpoint and a snapshot hold it. So a keyed store that is damaged, missing,
//!   or comes back with an older state is built anew from the snapshot and the log behind it, and nothing is lost; and
//!   a damaged snapshot is told and written anew while the keyed store is in force.
//! - The identity (`identity`) lies outside: gateway id, epoch, and a reserve of 2^20 Seqs that are never given out twice.
//! - An open never refuses damaged data. What is missing is a [`Gap`] or a new epoch, and is told; a tail that was not
//!   acknowledged is dropped. It refuses a second daemon and a newer format.
//! - On a full disk 16 MiB of ballast (`ballast`) are there to be given up: [`Store::make_room`] and a snapshot, which
//!   frees log, go before any loss. No restart is needed when there is room again.
//! - A failed write changes nothing in RAM: the same frames are committed again, into a new segment.
//!
//! Where it lies: `store/{LOCK, ballast, state.snap, log/, sled/}` and `identity/{a, b}` under the data directory.
//!
//! Not here: retry and back-off (the caller's), the meaning of records and the image for a snapshot (the queue's), copies
//! of lanes outside of the keyed store, and new Seqs for the keys of a new epoch.

mod ballast;
mod codec;
mod disk;
mod identity;
mod keyed;
mod log;
mod opening;
#[cfg(test)]
pub mod sim;
mod sled;
mod snapshot;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::{debug, warn};

use crate::model::{Effect, Epoch, Frame, Lane, Lsn, Record, Seq};
use crate::runtime::clock::Clock;
use ballast::Ballast;
use disk::Lock;
pub use disk::{Disk, DiskFile, RealDisk};
use identity::{CleanMark, Copies, Identity, RESERVE};
pub use keyed::{Batch, Keyed, KeyedError, Loaded};
use keyed::{Checkpoint, Pending};
use log::{Log, Replay};
use opening::{Base, Findings};
pub use sled::SledKeyed;
use snapshot::Snapshots;
pub use snapshot::StateImage;

/// The largest frame that [`Store::commit`] takes, in bytes as [`frame_bytes`] counts them: just below 4 MiB.
pub const FRAME_BYTES_MAX: usize = log::frame_bytes_max(log::SEGMENT_BYTES);

/// Size of the ballast: 16 MiB.
const BALLAST_SEGMENTS: u64 = 4;

/// Bytes that a frame takes in the log.
pub fn frame_bytes(frame: &Frame) -> usize {
    log::frame_bytes(frame)
}

/// Where the store lies.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Holds `store/` and `identity/`.
    pub data_dir: PathBuf,
    /// Name of the gateway; only mixed into the gateway id when the directory is new.
    pub gateway: String,
}

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("cannot {doing} {path}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another process has the store open.
    #[error("{dir} is in use by another daemon; stop that one, or choose another gateway.data_dir")]
    Locked {
        /// The store's directory.
        dir: PathBuf,
    },
    /// A file of a later release.
    #[error(
        "{path} has format {found}, and this release knows up to {known}; install the release that wrote it, or choose another gateway.data_dir"
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// The effects of one message do not fit into a segment. Nothing was written.
    #[error("frame {lsn} has {bytes} bytes, and a log segment takes {max}; lower broker.packet_bytes_max")]
    FrameTooLarge {
        /// The frame.
        lsn: Lsn,
        /// Its size.
        bytes: usize,
        /// The largest size.
        max: usize,
    },
    /// The keyed store refused.
    #[error("cannot {doing} the keyed store")]
    Keyed {
        /// What was being done.
        doing: &'static str,
        /// What it said.
        #[source]
        source: KeyedError,
    },
}

impl StoreError {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }

    fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull)
    }

    fn keyed(doing: &'static str) -> impl FnOnce(KeyedError) -> Self {
        move |source| Self::Keyed { doing, source }
    }
}

/// Lost by damage: records with a Seq above `from`, up to and including `to`. Where nobody knows how far the loss
/// reaches, `to` is the last Seq before this life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The last Seq before it.
    pub from: Seq,
    /// The last Seq in it.
    pub to: Seq,
}

/// What an open found. The state of the queue is: `image`, `lane_records`, `cursors` and `floors` as they are, and then the
/// effects of `tail` in order.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Newest record per key of lanes state and alert, also tombstones, in order of Seq.
    pub image: Vec<Record>,
    /// Records of lanes alert and event that are kept, in order of Seq. An alert record may be in `image`, too: there it
    /// is the key's newest, here it waits for its readers.
    pub lane_records: Vec<Record>,
    /// Each sink's position in a lane: acknowledged up to and including.
    pub cursors: Vec<(Arc<str>, Lane, Seq)>,
    /// Per lane: trimmed up to and including, tombstones forgotten up to and including.
    pub floors: Vec<(Lane, Seq, Seq)>,
    /// What the log holds above the checkpoint.
    pub tail: Vec<Effect>,
    /// The life of the store; higher than last time if data was lost or may be another gateway's.
    pub epoch: Epoch,
    /// First Seq that may be given out.
    pub next_seq: Seq,
    /// A clean stop came before.
    pub clean: bool,
    /// What damage has cost, told again after each unclean stop until the next checkpoint. A new epoch begins with one.
    pub gaps: Vec<Gap>,
}

/// The open store. One owner, one thread at a time.
pub struct Store {
    log: Log,
    keyed: Box<dyn Keyed>,
    pending: Pending,
    copies: Copies,
    identity: Identity,
    /// Newest frame.
    at: Checkpoint,
    checkpoint: Checkpoint,
    /// Where the log's total stood at the checkpoint.
    checkpoint_mark: u64,
    snapshots: Snapshots,
    ballast: Ballast,
    _lock: Option<Lock>,
}

impl Store {
    /// Opens the store under `options.data_dir`, which is created if need be.
    ///
    /// # Errors
    /// Another daemon has it, a newer release wrote it, or the disk refuses to be written. Damage is no error.
    #[expect(clippy::needless_pass_by_value, reason = "whoever opens the real store hands over a clock of its own")]
    pub fn open(options: &StoreOptions, clock: Arc<dyn Clock>) -> Result<(Self, Recovered), StoreError> {
        let dir = options.data_dir.join("store");
        RealDisk.create_dir(&dir).map_err(StoreError::io("create", &dir))?;
        let lock = Lock::take(&dir)?;
        let parts = Parts {
            disk: Arc::new(RealDisk),
            keyed: Box::new(SledKeyed::new(&dir.join("sled"))),
            segment_bytes: log::SEGMENT_BYTES,
            machine: identity::machine(),
        };
        Self::open_locked(options, parts, &*clock, Some(lock))
    }

    /// Opens a store over given parts: for tests.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(options: &StoreOptions, parts: Parts, clock: &dyn Clock) -> Result<(Self, Recovered), StoreError> {
        Self::open_locked(options, parts, clock, None)
    }

    fn open_locked(
        options: &StoreOptions,
        parts: Parts,
        clock: &dyn Clock,
        lock: Option<Lock>,
    ) -> Result<(Self, Recovered), StoreError> {
        let Parts { disk, mut keyed, segment_bytes, machine } = parts;
        let log_dir = options.data_dir.join("store/log");
        let identity_dir = options.data_dir.join("identity");
        for dir in [&log_dir, &identity_dir] {
            disk.create_dir(dir).map_err(StoreError::io("create", dir))?;
        }
        let copies = Copies::at(Arc::clone(&disk), &identity_dir);
        let known = copies.load()?;
        let snapshot_path = options.data_dir.join("store/state.snap");
        let Base { image, snapshot } = Base::read(&mut *keyed, &disk, &log_dir, &snapshot_path)?;
        let mark = known.and_then(|identity| identity.clean).filter(|mark| mark.lsn >= image.checkpoint.lsn);
        let (log, replay) =
            log::recover(Arc::clone(&disk), &log_dir, segment_bytes, image.checkpoint, mark.map(|mark| mark.lsn))?;
        let stopped = mark.is_some_and(|mark| replay.is_whole_at(Checkpoint { lsn: mark.lsn, seq: mark.seq }));
        let findings = Findings::new(known, &image, &replay, stopped, machine);
        let identity = findings.identity(options, clock);
        let at = Checkpoint { lsn: replay.last, seq: replay.last_seq };
        let ballast_bytes = u64::from(segment_bytes) * BALLAST_SEGMENTS;
        let ballast = Ballast::new(Arc::clone(&disk), options.data_dir.join("store/ballast"), ballast_bytes);
        let snapshots = Snapshots::new(disk, snapshot_path, segment_bytes, snapshot, &image, &log);
        let mut store = Self {
            checkpoint_mark: log.total_at(image.checkpoint.lsn),
            log,
            keyed,
            pending: Pending::new(&image),
            copies,
            identity,
            at,
            checkpoint: image.checkpoint,
            snapshots,
            ballast,
            _lock: lock,
        };
        store.resume(&replay, findings.clean)?;
        store.copies.save(&store.identity)?;
        if findings.new_epoch.is_some()
            && let Err(cause) = store.checkpoint()
        {
            warn!(error = %cause, "no checkpoint; the next start will begin one more epoch");
        }
        let next_seq = Seq(identity.reserve.0 - RESERVE);
        // The caller says the rest at info, once for the whole start.
        debug!(lsn = %at.lsn, frames = replay.frames.len(), "the log is read");
        let mut recovered = opening::recovered(image, replay, findings.open_end.then_some(next_seq));
        (recovered.epoch, recovered.next_seq, recovered.clean) = (identity.epoch, next_seq, findings.clean);
        Ok((store, recovered))
    }

    /// Newest frame's position.
    pub fn lsn(&self) -> Lsn {
        self.at.lsn
    }

    /// One write and one fdatasync for all frames, whose positions rise; returns the bytes written to the log.
    ///
    /// # Errors
    /// Nothing of the frames counts as written; the same frames come first in the next commit, which starts a new
    /// segment. [`StoreError::FrameTooLarge`] comes again each time.
    ///
    /// # Panics
    /// If a position does not rise.
    pub fn commit(&mut self, frames: &[Frame]) -> Result<u64, StoreError> {
        let mut newest = self.at;
        for frame in frames {
            assert!(frame.lsn > newest.lsn, "frame {} follows frame {}", frame.lsn, newest.lsn);
            newest = newest.after(frame);
        }
        let written = self.log.commit(frames)?;
        frames.iter().flat_map(|frame| &frame.effects).for_each(|effect| self.pending.apply(effect));
        self.at = newest;
        self.ballast.restore();
        Ok(written)
    }

    /// Log bytes since the last checkpoint: whole segments, but for the newest.
    pub fn log_bytes(&self) -> u64 {
        self.log.total() - self.checkpoint_mark
    }

    /// Brings the keyed store up to the newest commit and recycles log segments that a snapshot holds, too.
    ///
    /// # Errors
    /// Nothing is lost: the log stays, and the next checkpoint holds the same and more.
    pub fn checkpoint(&mut self) -> Result<(), StoreError> {
        if self.at != self.checkpoint {
            self.keyed.apply(self.pending.batch(self.at)).map_err(StoreError::keyed("write"))?;
            self.pending.clear();
            self.checkpoint = self.at;
        }
        self.checkpoint_mark = self.log.total();
        self.recycle();
        Ok(())
    }

    /// After a commit that failed because the disk is full: gives up the ballast, so that the same commit, and then a
    /// snapshot, which frees the log before it, may find room. Once the disk has room again a commit takes it back.
    /// False if the error is another one, or there is nothing to give up.
    pub fn make_room(&mut self, error: &StoreError) -> bool {
        error.is_full() && self.ballast.give_up()
    }

    /// True if a snapshot is due: 64 MiB of log since the last one, 8 MiB on a disk that has no room for the ballast; or
    /// there is none that holds what the log lacks.
    pub fn snapshot_due(&self) -> bool {
        self.snapshots.is_due(self.at.lsn, self.log.total(), !self.ballast.is_there())
    }

    /// Begins a snapshot of `image`, which is what all commits so far amount to; one that is under way is given up. It
    /// holds up commits by no more than a checkpoint; the rest is done by [`Self::step_snapshot`].
    ///
    /// # Errors
    /// As [`Self::checkpoint`], which comes first; no snapshot is under way then, and one is due again 8 MiB later.
    pub fn begin_snapshot(&mut self, image: StateImage) -> Result<(), StoreError> {
        self.snapshots.draft = None;
        if let Err(cause) = self.checkpoint() {
            self.snapshots.postpone(self.log.total());
            return Err(cause);
        }
        if self.at.lsn > self.snapshots.held {
            self.snapshots.begin(self.at, self.log.total(), keyed::entries(image, self.at));
        }
        Ok(())
    }

    /// Does the next bit of the snapshot under way, at most 256 KiB and one record; true while there is more to do.
    ///
    /// # Errors
    /// The snapshot is given up, and due again 8 MiB later; the one before it is in force.
    pub fn step_snapshot(&mut self) -> Result<bool, StoreError> {
        let before = self.snapshots.held;
        let more = self.snapshots.step(self.log.total())?;
        if self.snapshots.held > before {
            self.recycle();
        }
        Ok(more)
    }

    /// Makes sure that Seqs below `seq` may be given out (the identity's reserve).
    ///
    /// # Errors
    /// Seqs from [`Self::reserved`] on must not be given out.
    pub fn reserve(&mut self, seq: Seq) -> Result<(), StoreError> {
        if seq <= self.identity.reserve {
            return Ok(());
        }
        self.save(Identity { reserve: Seq(seq.0.saturating_add(RESERVE)), ..self.identity })
    }

    /// Highest Seq that may be given out is below this.
    pub fn reserved(&self) -> Seq {
        self.identity.reserve
    }

    /// Clean stop: checkpoint (a snapshot is the caller's), then the identity with the position and `next_seq`, the first Seq that was not given out.
    ///
    /// # Errors
    /// The next open will find an unclean stop; nothing is lost.
    pub fn close(mut self, next_seq: Seq) -> Result<(), StoreError> {
        self.checkpoint()?;
        let clean = Some(CleanMark { lsn: self.at.lsn, seq: self.at.seq, next_seq });
        let reserve = self.identity.reserve.max(next_seq);
        self.save(Identity { reserve, clean, ..self.identity })
    }

    fn save(&mut self, identity: Identity) -> Result<(), StoreError> {
        let identity = Identity { generation: self.identity.generation + 1, ..identity };
        // Also after an error: a copy with this number may be there.
        self.identity.generation = identity.generation;
        self.copies.save(&identity)?;
        self.identity = identity;
        Ok(())
    }

    /// Makes the log ready to be written, in a new segment. On a full disk that may wait until there is room, but for the
    /// first segment of a new directory: it takes a failed sync in the life before and a power cut in this one to lose
    /// what readers are shown.
    fn resume(&mut self, replay: &Replay, clean: bool) -> Result<(), StoreError> {
        replay.frames.iter().flat_map(|frame| &frame.effects).for_each(|effect| self.pending.apply(effect));
        let newest = replay.frames.len() - replay.newest_write;
        let newest = if clean { &[] } else { replay.frames.get(newest..).unwrap_or_default() };
        match self.log.resume(newest.to_vec(), replay.newest_write_prev) {
            Ok(()) => self.recycle(),
            Err(cause) if replay.found && cause.is_full() => warn!(error = %cause, "the log cannot be written"),
            Err(cause) => return Err(cause),
        }
        Ok(())
    }

    /// A log segment goes when both images hold it.
    fn recycle(&mut self) {
        self.log.recycle(self.checkpoint.lsn.min(self.snapshots.held));
    }
}

/// What a store is made of.
pub struct Parts {
    /// Where the log and the identity lie.
    pub disk: Arc<dyn Disk>,
    /// The keyed store.
    pub keyed: Box<dyn Keyed>,
    /// Size of a log segment.
    pub segment_bytes: u32,
    /// A number for this machine; see [`Epoch`].
    pub machine: u32,
}

impl Checkpoint {
    fn after(self, frame: &Frame) -> Self {
        Self { lsn: frame.lsn, seq: self.seq.max(frame.prev_seq).max(frame.last_seq().unwrap_or_default()) }
    }
}
