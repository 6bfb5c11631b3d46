//! `Forming`: the batch that gathers while a commit runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Refused;
use super::upkeep::{Acks, Incoming};
use crate::model::{DeltaType, Effect, Frame, Lane, Lsn, Millis, ObjectKey, Record, Seq};

/// What the engine, the sinks and the commit thread share. The lock is held to push and to swap, never during I/O.
#[derive(Debug)]
pub(super) struct Shared {
    forming: Mutex<Forming>,
    /// Wakes the commit thread.
    pub(super) wake: Condvar,
    next_seq: AtomicU64,
    reserved: AtomicU64,
    /// Gateway time at which the commit thread went to the disk; [`IDLE`] while it is not there.
    at_disk_since: AtomicU64,
}

const IDLE: u64 = u64::MAX;

/// Frames, acknowledgements and orders that wait for the commit thread.
///
/// A newer state of a key that waits here replaces the older one and moves into the newer frame; a frame that is
/// emptied so vanishes. Its acknowledgement waits for the whole batch anyway.
#[derive(Debug)]
pub(super) struct Forming {
    frames: BTreeMap<Lsn, Vec<Record>>,
    waiting: HashMap<ObjectKey, Lsn>,
    bytes: usize,
    in_flight: usize,
    bytes_max: usize,
    next_lsn: Lsn,
    /// Acknowledgements of the sinks.
    pub(super) acks: Acks,
    /// The commit thread shall finish.
    pub(super) stop: bool,
}

/// What was taken out of [`Forming`] for one commit.
#[derive(Debug)]
pub(super) struct Batch {
    frames: BTreeMap<Lsn, Vec<Record>>,
    /// Taken along to be dropped outside of the lock: it may be large.
    _waiting: HashMap<ObjectKey, Lsn>,
    /// Position of the frame that carries cursors, trims and forgets.
    pub(super) upkeep_lsn: Lsn,
    /// Acknowledgements of the sinks.
    pub(super) acks: Acks,
}

/// What there is for the commit thread to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Nothing.
    Nothing,
    /// Acknowledgements of the sinks, which may wait for a frame to ride along with.
    Acks,
    /// Frames, for which somebody waits.
    Frames,
    /// So many frames that soon no more are taken.
    Pressing,
}

impl Shared {
    /// Nothing waits; the next frame follows `lsn`.
    pub(super) fn new(lsn: Lsn, next_seq: Seq, reserved: Seq, bytes_max: usize) -> Self {
        Self {
            forming: Mutex::new(Forming {
                frames: BTreeMap::new(),
                waiting: HashMap::new(),
                bytes: 0,
                in_flight: 0,
                bytes_max,
                next_lsn: lsn.next(),
                acks: Acks::default(),
                stop: false,
            }),
            wake: Condvar::new(),
            next_seq: AtomicU64::new(next_seq.0),
            reserved: AtomicU64::new(reserved.0),
            at_disk_since: AtomicU64::new(IDLE),
        }
    }

    /// For a push or a swap; never across I/O.
    pub(super) fn lock(&self) -> MutexGuard<'_, Forming> {
        self.forming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The Seq that the engine gives out next.
    pub(super) fn next_seq(&self) -> Seq {
        Seq(self.next_seq.load(Ordering::Acquire))
    }

    /// The engine has given out everything below.
    pub(super) fn set_next_seq(&self, seq: Seq) {
        self.next_seq.store(seq.0, Ordering::Release);
    }

    /// No Seq from here on may be given out.
    pub(super) fn reserved(&self) -> Seq {
        Seq(self.reserved.load(Ordering::Acquire))
    }

    /// The commit thread goes to the disk at this time, or is back.
    pub(super) fn set_at_disk(&self, since: Option<Millis>) {
        self.at_disk_since.store(since.map_or(IDLE, |since| since.0), Ordering::Release);
    }

    /// How long the commit thread has been waiting for the disk.
    pub(super) fn waits_for_disk(&self, now: Millis) -> Duration {
        match self.at_disk_since.load(Ordering::Acquire) {
            IDLE => Duration::ZERO,
            since => now.since(Millis(since)),
        }
    }

    /// The reserve was raised.
    pub(super) fn set_reserved(&self, seq: Seq) {
        self.reserved.store(seq.0, Ordering::Release);
    }
}

impl Forming {
    /// Takes the records of one message as a frame, all or none. True if the commit thread is to be woken: it is the
    /// first that waits, or from here on they press.
    pub(super) fn push(&mut self, records: Vec<Record>) -> Result<(Lsn, bool), Refused> {
        let replaces = |record: &&Record| record.lane == Lane::State && self.waiting.contains_key(&record.key);
        let growth: usize = records.iter().filter(|record| !replaces(record)).map(Record::cost).sum();
        if growth > self.bytes_max {
            return Err(Refused::TooLarge);
        }
        if growth > 0 && self.bytes + self.in_flight + growth > self.bytes_max {
            return Err(Refused::CommitQueueFull);
        }
        let (lsn, before) = (self.take_lsn(), self.waiting());
        let mut frame = Vec::with_capacity(records.len());
        for mut record in records {
            if record.lane == Lane::State {
                let older = self.displace(&record.key).or_else(|| displace(&mut frame, &record.key));
                if let Some(older) = older {
                    self.bytes -= older.cost();
                    if older.delta == DeltaType::Added && record.delta == DeltaType::Updated {
                        record.delta = DeltaType::Added;
                    }
                }
            }
            self.bytes += record.cost();
            frame.push(record);
        }
        for record in frame.iter().filter(|record| record.lane == Lane::State) {
            self.waiting.insert(record.key.clone(), lsn);
        }
        self.frames.insert(lsn, frame);
        let now = self.waiting();
        Ok((lsn, now != before && now != Waiting::Nothing))
    }

    /// Takes everything; it counts as in flight until [`Forming::landed`].
    pub(super) fn take(&mut self) -> Batch {
        self.in_flight += std::mem::take(&mut self.bytes);
        Batch {
            frames: std::mem::take(&mut self.frames),
            _waiting: std::mem::take(&mut self.waiting),
            upkeep_lsn: self.take_lsn(),
            acks: std::mem::take(&mut self.acks),
        }
    }

    /// What was in flight is on disk.
    pub(super) fn landed(&mut self) {
        self.in_flight = 0;
    }

    /// Bytes that wait for the disk, in flight included.
    pub(super) fn queued_bytes(&self) -> usize {
        self.bytes + self.in_flight
    }

    /// What there is to do.
    pub(super) fn waiting(&self) -> Waiting {
        match (self.frames.is_empty(), self.acks.is_empty()) {
            (false, _) if self.bytes > self.bytes_max / 2 => Waiting::Pressing,
            (false, _) => Waiting::Frames,
            (true, false) => Waiting::Acks,
            (true, true) => Waiting::Nothing,
        }
    }

    fn take_lsn(&mut self) -> Lsn {
        let lsn = self.next_lsn;
        self.next_lsn = lsn.next();
        lsn
    }

    /// Takes a key's waiting state out of its frame.
    fn displace(&mut self, key: &ObjectKey) -> Option<Record> {
        let lsn = self.waiting.remove(key)?;
        let frame = self.frames.get_mut(&lsn)?;
        let older = displace(frame, key);
        if frame.is_empty() {
            self.frames.remove(&lsn);
        }
        older
    }
}

impl Batch {
    /// The frames of the engine, each naming the highest Seq before it; `last_seq` is brought up to the last one.
    pub(super) fn frames(&mut self, last_seq: &mut Seq) -> Vec<Frame> {
        let frames = std::mem::take(&mut self.frames).into_iter();
        let chain = |(lsn, records): (Lsn, Vec<Record>)| {
            let effects = records.into_iter().map(Effect::Record).collect();
            let frame = Frame { lsn, prev_seq: *last_seq, effects };
            *last_seq = frame.last_seq().unwrap_or_default().max(*last_seq);
            frame
        };
        frames.map(chain).collect()
    }

    /// What the batch adds to the record lanes.
    pub(super) fn incoming(&self) -> Incoming {
        let mut incoming = Incoming::default();
        for record in self.frames.values().flatten() {
            match record.lane {
                Lane::Alert => incoming.alert += record.cost() as u64,
                Lane::Event => incoming.event += record.cost() as u64,
                Lane::State => {}
            }
        }
        incoming
    }
}

fn displace(frame: &mut Vec<Record>, key: &ObjectKey) -> Option<Record> {
    let index = frame.iter().position(|record| record.lane == Lane::State && record.key == *key)?;
    Some(frame.remove(index))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::queue::testing::{deleted, record};

    fn forming(records_max: usize) -> Shared {
        Shared::new(Lsn(10), Seq(1), Seq(99), records_max * record(Lane::State, "a", 1).cost())
    }

    fn state(key: &str, seq: u64) -> Record {
        record(Lane::State, key, seq)
    }

    /// The waiting frames: Lsn, Seq before it, Seqs in it.
    fn take(forming: &Shared) -> Vec<(u64, u64, Vec<u64>)> {
        let (mut batch, mut last_seq) = (forming.lock().take(), Seq::ZERO);
        let frames = batch.frames(&mut last_seq);
        let seq = |effect: &Effect| match effect {
            Effect::Record(record) => record.seq.0,
            other => panic!("{other:?}"),
        };
        frames.iter().map(|f| (f.lsn.0, f.prev_seq.0, f.effects.iter().map(seq).collect())).collect()
    }

    #[test]
    fn frames_are_chained_by_the_seq_before_them_when_they_are_taken() {
        let forming = forming(99);
        forming.lock().push(vec![state("a", 1), state("b", 2)]).unwrap();
        forming.lock().push(vec![record(Lane::Event, "a", 5)]).unwrap();
        assert_eq!(take(&forming), [(11, 0, vec![1, 2]), (12, 2, vec![5])]);
        assert_eq!(take(&forming), []);
    }

    #[test]
    fn a_newer_state_replaces_the_waiting_one_and_an_emptied_frame_vanishes() {
        let forming = forming(99);
        forming.lock().push(vec![state("a", 1)]).unwrap();
        forming.lock().push(vec![state("a", 2), record(Lane::Event, "a", 3)]).unwrap();
        forming.lock().push(vec![state("a", 4)]).unwrap();
        assert_eq!(take(&forming), [(12, 0, vec![3]), (13, 3, vec![4])]);
    }

    #[test]
    fn two_changes_of_a_key_in_one_frame_are_one() {
        let forming = forming(99);
        forming.lock().push(vec![deleted("a", 1), state("b", 2), state("a", 3)]).unwrap();
        assert_eq!(take(&forming), [(11, 0, vec![2, 3])]);
        assert_eq!(forming.lock().bytes, 0);
    }

    #[test]
    fn an_added_key_stays_added_and_a_deleted_one_stays_deleted() {
        let forming = forming(99);
        let updated = |key, seq| Record { delta: DeltaType::Updated, ..state(key, seq) };
        forming.lock().push(vec![state("a", 1), state("b", 2)]).unwrap();
        forming.lock().push(vec![updated("a", 3), deleted("b", 4)]).unwrap();
        let deltas: Vec<_> = forming.lock().frames.values().flatten().map(|record| record.delta).collect();
        assert_eq!(deltas, [DeltaType::Added, DeltaType::Deleted]);
    }

    #[test]
    fn a_message_that_never_fits_is_told_so_instead_of_to_try_again() {
        let forming = forming(2);
        let records = ["a", "b", "c"].map(|key| record(Lane::Event, key, 1));
        assert_eq!(forming.lock().push(records.into()).unwrap_err(), Refused::TooLarge);
    }

    #[test]
    fn beyond_the_bound_only_a_state_that_replaces_a_waiting_one_is_taken() {
        let forming = forming(2);
        forming.lock().push(vec![state("a", 1)]).unwrap();
        forming.lock().push(vec![state("b", 2)]).unwrap();
        assert_eq!(forming.lock().push(vec![state("c", 3)]).unwrap_err(), Refused::CommitQueueFull);
        assert_eq!(
            forming.lock().push(vec![state("a", 3), record(Lane::Event, "a", 4)]).unwrap_err(),
            Refused::CommitQueueFull,
            "all or nothing"
        );
        forming.lock().push(vec![state("a", 3)]).unwrap();
        assert_eq!(take(&forming), [(12, 0, vec![2]), (13, 2, vec![3])]);
    }

    #[test]
    fn what_is_in_flight_counts_until_it_has_landed() {
        let forming = forming(2);
        forming.lock().push(vec![state("a", 1), state("b", 2)]).unwrap();
        take(&forming);
        assert!(forming.lock().push(vec![state("a", 3)]).is_err(), "what is in flight is not replaced");
        forming.lock().landed();
        forming.lock().push(vec![state("a", 3)]).unwrap();
        assert_eq!(forming.lock().queued_bytes(), state("a", 3).cost());
    }

    #[test]
    fn a_fault_of_any_length_holds_one_state_a_key() {
        let forming = forming(9);
        for seq in 1..=1000 {
            forming.lock().push(vec![state(["a", "b"][seq as usize % 2], seq)]).unwrap();
        }
        let guard = forming.lock();
        assert_eq!((guard.frames.len(), guard.waiting.len(), guard.bytes), (2, 2, 2 * state("a", 1).cost()));
    }

    #[test]
    fn what_waits_is_told_by_its_urgency() {
        let forming = forming(4);
        assert_eq!(forming.lock().waiting(), Waiting::Nothing);
        forming.lock().acks.ack(&"s".into(), Lane::State, Seq(1));
        assert_eq!(forming.lock().waiting(), Waiting::Acks);
        forming.lock().push(vec![state("a", 1), state("b", 2)]).unwrap();
        assert_eq!(forming.lock().waiting(), Waiting::Frames);
        forming.lock().push(vec![state("c", 3)]).unwrap();
        assert_eq!(forming.lock().waiting(), Waiting::Pressing);
    }

    #[test]
    fn the_bytes_that_a_batch_adds_are_told_by_lane() {
        let forming = forming(9);
        forming.lock().push(vec![state("a", 1), record(Lane::Event, "a", 2), record(Lane::Alert, "a", 3)]).unwrap();
        let cost = state("a", 1).cost() as u64;
        assert_eq!(forming.lock().take().incoming(), Incoming { alert: cost, event: cost });
    }
}
