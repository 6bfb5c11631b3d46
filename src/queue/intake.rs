//! `Intake` and `Acker`: the ends that the engine and the sinks hold.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tracing::warn;

use super::DeltaFifo;
use super::forming::{Forming, Shared};
use crate::model::{Change, DeltaType, Epoch, Lane, Lsn, ObjectKey, Record, Seq, Stamp, Uid};
use crate::runtime::metrics::Metrics;

/// A frame must fit into a segment of the log; a record's cost is above its encoded size.
const FRAME_COST_MAX: usize = 3 << 20;

/// The engine's end: gives out Seqs, never waits, never touches the disk. One owner.
#[derive(Debug)]
pub struct Intake {
    shared: Arc<Shared>,
    fifo: Arc<DeltaFifo>,
    metrics: Arc<Metrics>,
    keys_max: usize,
    next_seq: Seq,
    newest: Lsn,
    states: KeyBook,
    alerts: KeyBook,
    reserve_spent: bool,
}

/// What [`Intake::add`] gave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Added {
    /// Durable once the durable position has reached it.
    pub lsn: Lsn,
    /// Highest Seq of the message's changes; none if it changed nothing.
    pub seq: Option<Seq>,
}

/// Why [`Intake::add`] took nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// `store.commit_queue_bytes_max` is reached, or the reserve of Seqs is spent and cannot be raised.
    #[error("the commit queue is full; the disk does not keep up")]
    CommitQueueFull,
    /// The effects of the message never fit: more than 3 MiB of [`Record::cost`], which is a frame of the log, or more
    /// than `store.commit_queue_bytes_max`.
    #[error("the message has more effects than one frame of the log takes; lower broker.packet_bytes_max")]
    TooLarge,
    /// The message names a key that is new, and there is no slot for it.
    #[error("queue.keys_max is reached; raise it or remove devices")]
    KeysMax,
}

impl Intake {
    pub(super) fn new(
        shared: Arc<Shared>,
        fifo: Arc<DeltaFifo>,
        keys_max: usize,
        newest: Lsn,
        metrics: Arc<Metrics>,
    ) -> Self {
        let next_seq = shared.next_seq();
        let (states, alerts) = (KeyBook::restore(&fifo, Lane::State), KeyBook::restore(&fifo, Lane::Alert));
        Self { shared, fifo, metrics, keys_max, next_seq, newest, states, alerts, reserve_spent: false }
    }

    /// Takes all changes of one message as one frame, or none of them. A change that changes nothing (a Delete of an
    /// unknown key) gets no Seq.
    pub fn add(&mut self, changes: Vec<Change>) -> Result<Added, Refused> {
        if changes.is_empty() {
            return Ok(Added { lsn: self.newest, seq: None });
        }
        self.check_reserve(changes.len())?;
        let mut draft = Draft::new(self);
        for change in changes {
            draft.take(change);
        }
        let Draft { records, lives, seq: next_seq, .. } = draft;
        let Some(seq) = records.last().map(|record| record.seq) else {
            return Ok(Added { lsn: self.newest, seq: None });
        };
        if records.iter().map(Record::cost).sum::<usize>() > FRAME_COST_MAX {
            return Err(Refused::TooLarge);
        }
        self.check_keys(&lives)?;
        let lanes: Vec<Lane> = records.iter().map(|record| record.lane).collect();

        let mut forming = self.shared.lock();
        let (lsn, wake) = forming.push(records)?;
        let queued = forming.queued_bytes();
        drop(forming);
        if wake {
            self.shared.wake.notify_one();
        }

        self.newest = lsn;
        self.next_seq = next_seq;
        self.shared.set_next_seq(next_seq);
        for ((lane, key), (life, seq)) in lives {
            self.book_mut(lane).record(key, life, seq);
        }
        for lane in lanes {
            self.metrics.deltas.get_or_create(&lane.into()).inc();
        }
        self.metrics.commit_queue_bytes.set(i64::try_from(queued).unwrap_or(i64::MAX));
        Ok(Added { lsn, seq: Some(seq) })
    }

    /// Newest Lsn given out.
    pub fn lsn(&self) -> Lsn {
        self.newest
    }

    fn check_reserve(&mut self, changes: usize) -> Result<(), Refused> {
        let spent = self.next_seq.0.saturating_add(changes as u64) > self.shared.reserved().0;
        if spent && !self.reserve_spent {
            warn!(next = %self.next_seq, "the reserve of sequence numbers is spent; changes are refused");
        }
        self.reserve_spent = spent;
        if spent { Err(Refused::CommitQueueFull) } else { Ok(()) }
    }

    fn check_keys(&mut self, lives: &Lives) -> Result<(), Refused> {
        for lane in [Lane::State, Lane::Alert] {
            let passed = self.fifo.passed(lane);
            let book = self.book_mut(lane);
            book.bury(passed);
            let new = lives.keys().filter(|(of, key)| *of == lane && !book.has_slot(key)).count();
            if new > 0 && book.slots() + new > self.keys_max {
                return Err(Refused::KeysMax);
            }
        }
        Ok(())
    }

    fn book(&self, lane: Lane) -> &KeyBook {
        if lane == Lane::Alert { &self.alerts } else { &self.states }
    }

    fn book_mut(&mut self, lane: Lane) -> &mut KeyBook {
        if lane == Lane::Alert { &mut self.alerts } else { &mut self.states }
    }
}

/// A sink's end: moves cursors, never waits for the disk.
#[derive(Debug, Clone)]
pub struct Acker {
    shared: Arc<Shared>,
}

impl Acker {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// `sink` has acknowledged `lane` up to and including `seq`. The first one creates the cursor: [`Seq::ZERO`] to
    /// start with all that is kept, [`DeltaFifo::head`] to start now. It is durable within about a second.
    pub fn ack(&self, sink: &Arc<str>, lane: Lane, seq: Seq) {
        self.order(|forming| forming.acks.ack(sink, lane, seq));
    }

    /// Forgets a sink's cursors; nothing is kept for it any more.
    pub fn release(&self, sink: &Arc<str>) {
        self.order(|forming| forming.acks.release(sink));
    }

    fn order(&self, order: impl FnOnce(&mut Forming)) {
        let mut forming = self.shared.lock();
        let first = forming.acks.is_empty();
        order(&mut forming);
        drop(forming);
        if first {
            self.shared.wake.notify_one();
        }
    }
}

/// When an incarnation of a key began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    uid: Uid,
    created_at: Stamp,
}

/// The keys that a message brings to life (or to death: none), and when.
type Lives = HashMap<(Lane, ObjectKey), (Option<Life>, Seq)>;

/// The records of one message, before anything of it is taken.
struct Draft<'a> {
    intake: &'a Intake,
    epoch: Epoch,
    seq: Seq,
    records: Vec<Record>,
    lives: Lives,
}

impl<'a> Draft<'a> {
    fn new(intake: &'a Intake) -> Self {
        let epoch = intake.fifo.epoch();
        Self { intake, epoch, seq: intake.next_seq, records: Vec::new(), lives: HashMap::new() }
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::Put { key, at, body } => self.put(Lane::State, key, at, body),
            Change::Alert { key, at, body } => self.put(Lane::Alert, key, at, body),
            Change::Delete { key, at } => {
                if let Some(life) = self.life(Lane::State, &key) {
                    self.lives.insert((Lane::State, key.clone()), (None, self.seq));
                    self.push(Lane::State, DeltaType::Deleted, key, life, at, bytes::Bytes::new());
                }
            }
            Change::Event { key, at, body } => {
                let life = self.new_life(at);
                self.push(Lane::Event, DeltaType::Added, key, life, at, body);
            }
        }
    }

    fn put(&mut self, lane: Lane, key: ObjectKey, at: Stamp, body: bytes::Bytes) {
        let (delta, life) = match self.life(lane, &key) {
            Some(life) => (DeltaType::Updated, life),
            None => (DeltaType::Added, self.new_life(at)),
        };
        if delta == DeltaType::Added {
            self.lives.insert((lane, key.clone()), (Some(life), self.seq));
        }
        self.push(lane, delta, key, life, at, body);
    }

    fn push(&mut self, lane: Lane, delta: DeltaType, key: ObjectKey, life: Life, at: Stamp, body: bytes::Bytes) {
        let Life { uid, created_at } = life;
        self.records.push(Record { lane, delta, seq: self.seq, epoch: self.epoch, key, uid, created_at, at, body });
        self.seq = self.seq.next();
    }

    fn new_life(&self, at: Stamp) -> Life {
        Life { uid: Uid { epoch: self.epoch, seq: self.seq }, created_at: at }
    }

    fn life(&self, lane: Lane, key: &ObjectKey) -> Option<Life> {
        if !self.lives.is_empty()
            && let Some((life, _)) = self.lives.get(&(lane, key.clone()))
        {
            return *life;
        }
        self.intake.book(lane).live.get(key).copied()
    }
}

/// Live keys, and deleted ones whose tombstone some cursor still needs; both hold a slot of `keys_max`.
#[derive(Debug, Default)]
struct KeyBook {
    live: HashMap<ObjectKey, Life>,
    graves: HashMap<ObjectKey, Seq>,
    graves_by_seq: BTreeMap<Seq, ObjectKey>,
}

impl KeyBook {
    fn restore(fifo: &DeltaFifo, lane: Lane) -> Self {
        fifo.read(|view| {
            let mut book = Self::default();
            let Some(keyed) = view.keyed(lane) else { return book };
            for record in keyed.live() {
                book.live.insert(record.key.clone(), Life { uid: record.uid, created_at: record.created_at });
            }
            keyed.graves().for_each(|record| book.dig(record.key.clone(), record.seq));
            book
        })
    }

    fn has_slot(&self, key: &ObjectKey) -> bool {
        self.live.contains_key(key) || self.graves.contains_key(key)
    }

    fn slots(&self) -> usize {
        self.live.len() + self.graves.len()
    }

    /// Frees the slots of the tombstones that every cursor has passed.
    fn bury(&mut self, passed: Seq) {
        while let Some((_, key)) = self.pop_grave(passed) {
            self.graves.remove(&key);
        }
    }

    fn pop_grave(&mut self, passed: Seq) -> Option<(Seq, ObjectKey)> {
        let first = self.graves_by_seq.first_entry().filter(|first| *first.key() <= passed)?;
        Some(first.remove_entry())
    }

    fn record(&mut self, key: ObjectKey, life: Option<Life>, seq: Seq) {
        if let Some(grave) = self.graves.remove(&key) {
            self.graves_by_seq.remove(&grave);
        }
        if let Some(life) = life {
            self.live.insert(key, life);
        } else {
            self.live.remove(&key);
            self.dig(key, seq);
        }
    }

    fn dig(&mut self, key: ObjectKey, seq: Seq) {
        self.graves_by_seq.insert(seq, key.clone());
        self.graves.insert(key, seq);
    }
}
