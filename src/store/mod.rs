//! The store: what is committed here survives a power cut.
//!
//! - The log is the commit point (`log`): one write and one `fdatasync` per commit. [`Store::commit`] returns Ok only when
//!   every frame is on disk, and a frame is there wholly or not at all.
//! - The keyed store (`keyed`, `sled`) follows at checkpoints, in one batch with the position that it leads to. Between them
//!   its changes wait in RAM, bounded by the log bytes since the last one.
//! - The identity (`identity`) lies outside: gateway id, epoch, and a reserve of 2^20 Seqs that are never given out twice.
//! - An open never refuses damaged data. What is missing is a [`Gap`] or a new epoch, and is told; a tail that was not
//!   acknowledged is dropped. It refuses a second daemon and a newer format.
//! - A failed write changes nothing in RAM: the same frames are committed again, into a new segment.
//!
//! Where it lies: `store/{LOCK, ballast, log/, sled/}` and `identity/{a, b}` under the data directory.
//!
//! Not here: retry and back-off (the caller's), the meaning of records (the queue's), copies of lanes outside of the keyed
//! store, an image to rebuild it from, and new Seqs for the keys of a new epoch.

mod codec;
mod disk;
mod identity;
mod keyed;
mod log;
#[cfg(test)]
pub mod sim;
mod sled;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::{debug, error, warn};

use crate::model::{Effect, Epoch, Frame, Lane, Lsn, Record, Seq};
use crate::runtime::clock::{Clock, is_plausible};
use disk::Lock;
pub use disk::{Disk, DiskFile, RealDisk};
use identity::{CleanMark, Copies, Identity, RESERVE};
pub use keyed::{Batch, Keyed, KeyedError, Loaded};
use keyed::{Checkpoint, Floor, Image, Pending};
use log::{Log, Replay};
pub use sled::SledKeyed;

/// The largest frame that [`Store::commit`] takes, in bytes as [`frame_bytes`] counts them: just below 4 MiB.
pub const FRAME_BYTES_MAX: usize = log::frame_bytes_max(log::SEGMENT_BYTES);

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
        let image = load(&mut *keyed, &options.data_dir)?;
        let mark = known.and_then(|identity| identity.clean);
        let stopped = mark.is_some_and(|mark| Checkpoint { lsn: mark.lsn, seq: mark.seq } == image.checkpoint);
        let (log, replay) = log::recover(disk, &log_dir, segment_bytes, image.checkpoint, stopped)?;
        let findings = Findings::new(known, &image, &replay, stopped, machine);
        let identity = findings.identity(options, clock);
        let at = Checkpoint { lsn: replay.last, seq: replay.last_seq };
        let pending = Pending::new(&image);
        let mut store = Self { log, keyed, pending, copies, identity, at, checkpoint: image.checkpoint, _lock: lock };
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
        let mut recovered = recovered(image, replay, findings.open_end.then_some(next_seq));
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
        Ok(written)
    }

    /// Log bytes since the last checkpoint: whole segments, but for the newest. They are what a start has to read.
    pub fn log_bytes(&self) -> u64 {
        self.log.bytes()
    }

    /// Brings the keyed store up to the newest commit and recycles log segments.
    ///
    /// # Errors
    /// Nothing is lost: the log stays, and the next checkpoint holds the same and more.
    pub fn checkpoint(&mut self) -> Result<(), StoreError> {
        if self.at != self.checkpoint {
            self.keyed.apply(self.pending.batch(self.at)).map_err(StoreError::keyed("write"))?;
            self.pending.clear();
            self.checkpoint = self.at;
        }
        self.log.recycle(self.checkpoint.lsn);
        Ok(())
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

    /// Clean stop: checkpoint, then the identity with the position and `next_seq`, the first Seq that was not given out.
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
            Ok(()) => self.log.recycle(self.checkpoint.lsn),
            Err(cause) if replay.found && cause.is_full() => warn!(error = %cause, "the log cannot be written"),
            Err(cause) => return Err(cause),
        }
        Ok(())
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

/// Reads the keyed store, and marks one that is new as ours.
fn load(keyed: &mut dyn Keyed, data_dir: &Path) -> Result<Image, StoreError> {
    let loaded = keyed.load().map_err(StoreError::keyed("open"))?;
    let image = Image::read(&loaded);
    match image.format {
        Some(found) if found > keyed::FORMAT => {
            let path = data_dir.join("store/sled");
            Err(StoreError::NewerFormat { path, found: found.into(), known: keyed::FORMAT.into() })
        }
        Some(_) => Ok(image),
        None => {
            keyed.apply(&keyed::format_batch()).map_err(StoreError::keyed("write"))?;
            Ok(image)
        }
    }
}

/// What identity and store say of each other.
struct Findings {
    known: Option<Identity>,
    machine: u32,
    /// Highest Seq in the store.
    last_seq: Seq,
    /// Highest counter of an epoch in the store.
    counter: u32,
    clean: bool,
    /// Why this is a new life, if it is.
    new_epoch: Option<&'static str>,
    /// Frames are missing at the end, and nobody knows how many.
    open_end: bool,
}

impl Findings {
    fn new(known: Option<Identity>, image: &Image, replay: &Replay, stopped: bool, machine: u32) -> Self {
        let is_empty = replay.last == Lsn::ZERO && image.damages == 0;
        let has_mark = known.is_some_and(|identity| identity.clean.is_some());
        let is_rebuilt = image.format.is_none() && !(stopped && is_empty);
        let reaches_back = replay.found && replay.gaps.is_empty() && !replay.open_end;
        let new_epoch = match known {
            None if is_empty => None,
            None => Some("both copies of the identity are lost"),
            Some(identity) if identity.epoch != Epoch::new(identity.epoch.counter(), machine) => {
                Some("this is another machine")
            }
            Some(_) if has_mark && !stopped => Some("the store is not the one that was stopped"),
            Some(identity) if replay.last_seq >= identity.reserve => Some("the identity is older than the store"),
            Some(_) if replay.begins_late => Some("the keyed store lost what it had"),
            Some(_) if is_rebuilt && !reaches_back => Some("the store is lost"),
            Some(_) => None,
        };
        let seen = image.newest.iter().chain(&image.lanes).map(|record| record.epoch.counter()).max();
        Self {
            known,
            machine,
            last_seq: replay.last_seq,
            counter: seen.unwrap_or_default(),
            clean: stopped && new_epoch.is_none(),
            new_epoch,
            open_end: !stopped && (replay.open_end || (known.is_some() && !replay.found)),
        }
    }

    /// The identity of this life: its reserve is [`RESERVE`] above the first Seq that may be given out.
    fn identity(&self, options: &StoreOptions, clock: &dyn Clock) -> Identity {
        let known = self.known;
        let counter = known.map_or(0, |identity| identity.epoch.counter()).max(self.counter);
        let counter = if self.new_epoch.is_some() { counter + 1 } else { counter.max(1) };
        if let Some(reason) = self.new_epoch {
            error!(reason, counter, "a new epoch begins");
        }
        let wall = clock.wall();
        let micros = if is_plausible(wall) { wall.unix_ms.unsigned_abs().saturating_mul(1000) } else { 0 };
        let mark = known.and_then(|identity| identity.clean).filter(|_| self.clean);
        let free = mark.map(|mark| mark.next_seq).or(known.map(|identity| identity.reserve)).unwrap_or_default();
        let next = free.0.max(self.last_seq.0.saturating_add(1)).max(micros);
        Identity {
            generation: known.map_or(1, |identity| identity.generation + 1),
            gateway: known.map_or_else(|| gateway_id(options, clock), |identity| identity.gateway),
            epoch: Epoch::new(counter, self.machine),
            reserve: Seq(next.saturating_add(RESERVE)),
            clean: None,
        }
    }
}

/// A number that two gateways hardly share.
fn gateway_id(options: &StoreOptions, clock: &dyn Clock) -> u64 {
    let ticks = clock.ticks();
    let words = [clock.wall().unix_ms as u64, ticks.as_nanos() as u64, u64::from(std::process::id())];
    let half = |seed: &[u8]| {
        let seed = crc32c::crc32c_append(crc32c::crc32c(seed), options.gateway.as_bytes());
        words.iter().fold(seed, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()))
    };
    u64::from(half(b"high")) << 32 | u64::from(half(b"low"))
}

/// `lost_until` is the first Seq of this life, if the log's end is lost.
fn recovered(image: Image, replay: Replay, lost_until: Option<Seq>) -> Recovered {
    let mut gaps = replay.gaps;
    if image.damages > 0 {
        error!(damages = image.damages, "entries of the keyed store are lost");
        gaps.insert(0, Gap { from: Seq::ZERO, to: image.checkpoint.seq });
    }
    if let Some(next_seq) = lost_until {
        let gap = Gap { from: replay.last_seq, to: Seq(next_seq.0.saturating_sub(1)) };
        error!(from = %gap.from, to = %gap.to, "the end of the log is lost");
        gaps.push(gap);
    }
    gaps.retain(|gap| gap.to > gap.from);
    let floor = |(lane, floor): (Lane, Floor)| (lane, floor.trimmed, floor.forgotten);
    let floors: BTreeMap<Lane, Floor> = image.floors;
    Recovered {
        image: image.newest,
        lane_records: image.lanes,
        cursors: image.cursors,
        floors: floors.into_iter().map(floor).collect(),
        tail: replay.frames.into_iter().flat_map(|frame| frame.effects).collect(),
        gaps,
        ..Recovered::default()
    }
}
