//! A log in RAM, with errors and power cuts at will, and short ways to records and queues: for tests of this room and
//! of the rooms above.
#![allow(clippy::expect_used, reason = "tests may panic")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::commit::{Ends, Worker};
use super::log::Log;
use super::{Acker, Added, DeltaFifo, Durable, Intake, QueueOptions, Refused};
use crate::model::{Change, DeltaType, Effect, Epoch, Frame, Lane, Lsn, ObjectKey, Record, Seq, Stamp, Uid};
use crate::runtime::clock::ManualClock;
use crate::runtime::metrics::Metrics;
use crate::store::{Recovered, StateImage};

/// Refused by the simulated disk.
#[derive(Debug, thiserror::Error)]
#[error("the simulated disk refuses to {0}")]
pub(crate) struct RamError(&'static str);

/// A log whose disk outlives it: clones share the disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct RamLog {
    disk: Arc<Mutex<Disk>>,
}

/// What is on the simulated disk, and what it will do next.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each makes one operation fail or due, by itself")]
pub(crate) struct Disk {
    pub(crate) frames: Vec<Frame>,
    pub(crate) refuse_commits: bool,
    pub(crate) refuse_checkpoints: bool,
    pub(crate) refuse_reserves: bool,
    /// Frames that the next commit writes before the power goes; the commit fails, and so does all that follows.
    pub(crate) cut_after: Option<usize>,
    pub(crate) commits: u64,
    pub(crate) checkpoints: u64,
    /// One is due from now on.
    pub(crate) snapshot_due: bool,
    /// Steps that the one under way still needs.
    pub(crate) snapshot_steps: u64,
    pub(crate) snapshots: u64,
    /// How many frames the keyed store holds.
    checkpointed: usize,
    log_bytes: u64,
    reserved: Seq,
    /// The next Seq of a clean stop.
    pub(crate) clean: Option<Seq>,
}

impl RamLog {
    pub(crate) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the disk after a stop or a power cut.
    pub(crate) fn open(&self) -> Recovered {
        let recovered = self.peek();
        let mut disk = self.disk();
        (disk.refuse_commits, disk.cut_after, disk.clean) = (false, None, None);
        disk.snapshot_steps = 0;
        recovered
    }

    /// What an open would find now: the image of the last checkpoint and the log behind it. Written anew from the
    /// frames' meaning, so that it checks [`DeltaFifo::recover`].
    pub(crate) fn peek(&self) -> Recovered {
        let disk = self.disk();
        let (old, tail) = disk.frames.split_at(disk.checkpointed);
        let mut image = Image::default();
        old.iter().flat_map(|frame| &frame.effects).for_each(|effect| image.take(effect));
        let tail = tail.iter().flat_map(|frame| frame.effects.clone()).collect();
        let last = disk.frames.iter().filter_map(Frame::last_seq).max().unwrap_or_default();
        let clean = disk.clean;
        Recovered {
            image: image.keyed.into_values().collect(),
            lane_records: image.records,
            cursors: image.cursors.into_iter().map(|((sink, lane), seq)| (sink, lane, seq)).collect(),
            floors: image.floors.into_iter().map(|(lane, (trim, forget))| (lane, trim, forget)).collect(),
            tail,
            epoch: Epoch::new(1, 1),
            next_seq: clean.unwrap_or(disk.reserved).max(last.next()),
            clean: clean.is_some(),
            gaps: Vec::new(),
        }
    }
}

impl Log for RamLog {
    type Error = RamError;

    fn commit(&mut self, frames: &[Frame]) -> Result<u64, RamError> {
        let mut disk = self.disk();
        if let Some(after) = disk.cut_after.take() {
            disk.refuse_commits = true;
            disk.frames.extend(frames.iter().take(after).cloned());
        }
        if disk.refuse_commits {
            return Err(RamError("commit"));
        }
        let cost = |effect: &Effect| if let Effect::Record(record) = effect { record.cost() as u64 } else { 40 };
        let bytes = frames.iter().flat_map(|frame| &frame.effects).map(cost).sum();
        disk.frames.extend_from_slice(frames);
        disk.commits += 1;
        disk.log_bytes += bytes;
        Ok(bytes)
    }

    fn make_room(&mut self, _: &RamError) -> bool {
        false
    }

    fn log_bytes(&self) -> u64 {
        self.disk().log_bytes
    }

    fn checkpoint(&mut self) -> Result<(), RamError> {
        let mut disk = self.disk();
        if disk.refuse_checkpoints || disk.refuse_commits {
            return Err(RamError("checkpoint"));
        }
        disk.checkpointed = disk.frames.len();
        disk.log_bytes = 0;
        disk.checkpoints += 1;
        Ok(())
    }

    fn snapshot_due(&self) -> bool {
        let disk = self.disk();
        disk.snapshot_due && disk.snapshot_steps == 0
    }

    fn begin_snapshot(&mut self, image: StateImage) -> Result<(), RamError> {
        self.checkpoint()?;
        let mut disk = self.disk();
        (disk.snapshot_due, disk.snapshot_steps) = (false, 3);
        let mut expected = Image::default();
        disk.frames.iter().flat_map(|frame| &frame.effects).for_each(|effect| expected.take(effect));
        expected.check(image);
        Ok(())
    }

    fn step_snapshot(&mut self) -> Result<bool, RamError> {
        let mut disk = self.disk();
        if disk.snapshot_steps == 0 {
            return Ok(false);
        }
        if disk.refuse_checkpoints {
            disk.snapshot_steps = 0;
            return Err(RamError("write a snapshot"));
        }
        disk.snapshot_steps -= 1;
        disk.snapshots += u64::from(disk.snapshot_steps == 0);
        Ok(disk.snapshot_steps > 0)
    }

    fn reserve(&mut self, seq: Seq) -> Result<(), RamError> {
        let mut disk = self.disk();
        if disk.refuse_reserves {
            return Err(RamError("reserve"));
        }
        disk.reserved = disk.reserved.max(seq);
        Ok(())
    }

    fn reserved(&self) -> Seq {
        self.disk().reserved
    }

    fn lsn(&self) -> Lsn {
        self.disk().frames.last().map_or(Lsn::ZERO, |frame| frame.lsn)
    }

    fn close(mut self, next_seq: Seq) -> Result<(), RamError> {
        self.checkpoint()?;
        self.disk().clean = Some(next_seq);
        Ok(())
    }
}

/// The keyed store of the simulated disk.
#[derive(Default)]
struct Image {
    keyed: BTreeMap<(Lane, ObjectKey), Record>,
    records: Vec<Record>,
    cursors: BTreeMap<(Arc<str>, Lane), Seq>,
    floors: BTreeMap<Lane, (Seq, Seq)>,
}

impl Image {
    /// The image that the queue hands in is what the frames amount to.
    fn check(self, mut image: StateImage) {
        let by_seq = |mut records: Vec<Record>| {
            records.sort_by_key(|record| (record.seq, record.lane));
            records
        };
        assert_eq!(by_seq(image.newest), by_seq(self.keyed.into_values().collect()));
        assert_eq!(by_seq(image.lane_records), by_seq(self.records));
        image.cursors.sort();
        let cursors: Vec<_> = self.cursors.into_iter().map(|((sink, lane), seq)| (sink, lane, seq)).collect();
        assert_eq!(image.cursors, cursors);
        image.floors.retain(|(_, trimmed, forgotten)| (*trimmed).max(*forgotten) > Seq::ZERO);
        let floors: Vec<_> = self.floors.into_iter().map(|(lane, (trim, forget))| (lane, trim, forget)).collect();
        assert_eq!(image.floors, floors);
    }

    fn take(&mut self, effect: &Effect) {
        match effect {
            Effect::Record(record) => {
                if record.lane != Lane::Event {
                    self.keyed.insert((record.lane, record.key.clone()), record.clone());
                }
                if record.lane != Lane::State {
                    self.records.push(record.clone());
                }
            }
            Effect::Cursor { sink, lane, seq } => drop(self.cursors.insert((sink.clone(), *lane), *seq)),
            Effect::Release { sink } => self.cursors.retain(|(of, _), _| of != sink),
            Effect::Trim { lane, to, .. } => {
                self.records.retain(|record| record.lane != *lane || record.seq > *to);
                let floor = self.floors.entry(*lane).or_default();
                floor.0 = floor.0.max(*to);
            }
            Effect::Forget { lane, to } => {
                self.keyed.retain(|(of, _), record| of != lane || !record.is_deleted() || record.seq > *to);
                let floor = self.floors.entry(*lane).or_default();
                floor.1 = floor.1.max(*to);
            }
        }
    }
}

/// Wide bounds, so that a test narrows the one that it is about.
pub(crate) fn options() -> QueueOptions {
    QueueOptions {
        epoch: Epoch::new(1, 1),
        keys_max: 1000,
        event_bytes_max: 1 << 20,
        alert_bytes_max: 1 << 20,
        commit_queue_bytes_max: 1 << 20,
        commit_window_max: Duration::from_millis(100),
        wear_bytes_per_day: 1 << 40,
        checkpoint_bytes: 1 << 20,
    }
}

/// `default/<name>`.
pub(crate) fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

/// An Added record with a body of 10 bytes, made at as many milliseconds as its Seq.
pub(crate) fn record(lane: Lane, name: &str, seq: u64) -> Record {
    let at = Stamp { unix_ms: seq.cast_signed(), ..Stamp::default() };
    Record {
        lane,
        delta: DeltaType::Added,
        seq: Seq(seq),
        epoch: Epoch::new(1, 1),
        key: key(name),
        uid: Uid::default(),
        created_at: at,
        at,
        body: Bytes::from_static(b"0123456789"),
    }
}

/// A tombstone in lane `state`.
pub(crate) fn deleted(name: &str, seq: u64) -> Record {
    Record { delta: DeltaType::Deleted, body: Bytes::new(), ..record(Lane::State, name, seq) }
}

/// A queue that the effects amount to.
pub(crate) fn fifo(effects: Vec<Effect>) -> DeltaFifo {
    DeltaFifo::recover(&options(), Recovered { tail: effects, ..Recovered::default() })
}

/// Commits the effects to a queue without a log.
pub(crate) fn apply(fifo: &DeltaFifo, effects: Vec<Effect>) {
    fifo.apply(&[Frame { lsn: Lsn(1), prev_seq: Seq::ZERO, effects }]);
}

/// A queue without its thread: the test makes each commit happen.
pub(crate) struct House {
    pub(crate) disk: RamLog,
    pub(crate) fifo: Arc<DeltaFifo>,
    pub(super) worker: Worker<RamLog>,
    pub(crate) intake: Intake,
    pub(crate) acker: Acker,
    pub(crate) durable: watch::Receiver<Durable>,
    pub(crate) durable_lsn: watch::Receiver<Lsn>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<ManualClock>,
}

impl House {
    /// Opens what is on the disk.
    pub(crate) fn open(disk: &RamLog, options: &QueueOptions, clock: &Arc<ManualClock>) -> Self {
        let recovered = disk.open();
        let next_seq = recovered.next_seq;
        let fifo = Arc::new(DeltaFifo::recover(options, recovered));
        let metrics = Arc::new(Metrics::new());
        let (worker, ends) = Worker::new(disk.clone(), next_seq, fifo.clone(), options, metrics.clone(), clock.clone());
        let Ends { intake, acker, durable, durable_lsn } = ends;
        let (disk, clock) = (disk.clone(), clock.clone());
        Self { disk, fifo, worker, intake, acker, durable, durable_lsn, metrics, clock }
    }

    /// A new disk.
    pub(crate) fn new(options: &QueueOptions) -> Self {
        Self::open(&RamLog::default(), options, &Arc::new(ManualClock::at(1)))
    }

    /// Adds one message.
    pub(crate) fn add(&mut self, changes: Vec<Change>) -> Result<Added, Refused> {
        self.intake.add(changes)
    }

    /// Commits what waits. False if the disk refuses.
    pub(crate) fn commit(&mut self) -> bool {
        self.worker.round()
    }

    /// Adds and commits, and returns the Seq.
    pub(crate) fn store(&mut self, changes: Vec<Change>) -> Seq {
        let added = self.add(changes).expect("there is room");
        assert!(self.worker.round());
        added.seq.expect("something changed")
    }

    /// Acknowledges for a sink, and commits.
    pub(crate) fn ack(&mut self, sink: &str, lane: Lane, seq: Seq) {
        self.acker.ack(&sink.into(), lane, seq);
        self.worker.round();
    }
}

/// A new state at a time.
pub(crate) fn put(name: &str, unix_ms: i64) -> Change {
    Change::Put { key: key(name), at: stamp(unix_ms), body: Bytes::from(format!("{{\"at\":{unix_ms}}}")) }
}

/// A deletion at a time.
pub(crate) fn delete(name: &str, unix_ms: i64) -> Change {
    Change::Delete { key: key(name), at: stamp(unix_ms) }
}

/// An event at a time.
pub(crate) fn event(name: &str, unix_ms: i64) -> Change {
    Change::Event { key: key(name), at: stamp(unix_ms), body: Bytes::from_static(b"event") }
}

/// An alert transition at a time.
pub(crate) fn alert(name: &str, unix_ms: i64) -> Change {
    Change::Alert { key: key(name), at: stamp(unix_ms), body: Bytes::from_static(b"alert") }
}

fn stamp(unix_ms: i64) -> Stamp {
    Stamp { unix_ms, ..Stamp::default() }
}
