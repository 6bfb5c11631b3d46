//! The parties of a history: sinks with their consumers, and watchers.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::{Rng, Seen, list};
use crate::model::{Lane, ObjectKey, Record, Seq};
use crate::queue::testing::{House, record};
use crate::queue::{DeltaFifo, Gap, LaneReader};

/// An upstream, its session and its consumer.
pub(super) struct SimSink {
    pub(super) name: Arc<str>,
    lanes: BTreeMap<Lane, SimLane>,
    pub(super) consumer: Consumer,
    /// State writes of a dead session that will still arrive.
    late: Vec<Record>,
}

struct SimLane {
    reader: LaneReader,
    flight: VecDeque<Flying>,
    arrived: usize,
}

#[derive(Clone)]
enum Flying {
    Record(Record),
    Gap(Gap),
}

#[derive(Default)]
pub(super) struct Consumer {
    pub(super) state: BTreeMap<ObjectKey, Record>,
    of_session: HashMap<ObjectKey, Seq>,
    pub(super) lanes: BTreeMap<Lane, LaneLog>,
}

#[derive(Default)]
pub(super) struct LaneLog {
    high: Seq,
    pub(super) got: BTreeSet<Seq>,
    pub(super) gaps: Vec<(Seq, Seq)>,
}

impl Flying {
    fn record(&self) -> Option<&Record> {
        match self {
            Self::Record(record) => Some(record),
            Self::Gap(_) => None,
        }
    }
}

impl SimLane {
    fn pop(&mut self, records_max: usize, seen: &mut Seen) {
        let records = self.reader.pop(records_max, 2 * record(Lane::State, "a", 1).cost());
        self.flight.extend(self.reader.take_gap().map(Flying::Gap).inspect(|_| seen.note("gap")));
        for record in records {
            let flying = self.flight.iter().filter_map(Flying::record).any(|flying| flying.key == record.key);
            assert!(self.reader.lane() != Lane::State || !flying, "{} is in flight twice", record.key);
            self.flight.push_back(Flying::Record(record));
        }
    }
}

impl SimSink {
    pub(super) fn new(name: &str, house: &House) -> Self {
        let name: Arc<str> = name.into();
        let lane = |lane| {
            house.acker.ack(&name, lane, Seq::ZERO);
            let reader = house.fifo.reader(&name, lane);
            (lane, SimLane { reader, flight: VecDeque::new(), arrived: 0 })
        };
        let lanes = Lane::ALL.map(lane).into();
        let logs = [Lane::Alert, Lane::Event].map(|lane| (lane, LaneLog::default())).into();
        let consumer = Consumer { lanes: logs, ..Consumer::default() };
        Self { name, lanes, consumer, late: Vec::new() }
    }

    /// One step of one lane: pop, let something arrive, or acknowledge. False if no lane has anything to do.
    pub(super) fn pump(&mut self, rng: &mut Rng, seen: &mut Seen) -> bool {
        let first = rng.below(3);
        (0..3).any(|n| self.pump_lane(Lane::ALL[(first + n) % 3], rng, seen))
    }

    fn pump_lane(&mut self, lane: Lane, rng: &mut Rng, seen: &mut Seen) -> bool {
        let Self { lanes, consumer, .. } = self;
        let sim = lanes.get_mut(&lane).unwrap();
        if sim.flight.len() < 4 && rng.below(2) == 0 {
            sim.pop(1 + rng.below(3), seen);
        }
        if sim.arrived < sim.flight.len() && rng.below(3) > 0 {
            consumer.take(lane, &sim.flight[sim.arrived]);
            sim.arrived += 1;
        } else if sim.arrived > 0 {
            let acked = 1 + rng.below(sim.arrived);
            let records = sim.flight.drain(..acked).filter(|flying| flying.record().is_some()).count();
            sim.arrived -= acked;
            sim.reader.ack(records);
        } else if sim.flight.is_empty() {
            sim.pop(3, seen);
            return !sim.flight.is_empty();
        }
        true
    }

    /// The session dies: each thing in flight has arrived, is lost, or (a state) arrives late.
    pub(super) fn die(&mut self, rng: &mut Rng, seen: &mut Seen) {
        seen.note("rewind");
        let late = rng.below(2) == 0;
        for (lane, sim) in &mut self.lanes {
            let in_flight: Vec<_> = sim.flight.iter().cloned().collect();
            lose_flight(*lane, sim, &mut self.consumer, rng);
            let popped: Vec<_> = in_flight.iter().filter_map(Flying::record).map(|record| &record.key).collect();
            let keys = sim.reader.rewind();
            assert!(popped.len() == keys.len() && keys.iter().all(|key| popped.contains(&key)));
            let rest = sim.flight.drain(..).filter_map(|flying| flying.record().cloned());
            self.late.extend(rest.filter(|_| late && *lane == Lane::State));
        }
        self.consumer.of_session.clear();
    }

    /// Late writes of a dead session land; then its keys are sent once more.
    pub(super) fn late(&mut self, seen: &mut Seen) {
        let sim = self.lanes.get_mut(&Lane::State).unwrap();
        for record in self.late.drain(..) {
            let newer = self.consumer.of_session.get(&record.key).is_some_and(|seq| *seq > record.seq);
            seen.note(if newer { "overwrote" } else { "late" });
            self.consumer.upsert(&record);
            sim.reader.resend(vec![record.key]);
        }
    }

    pub(super) fn ack(&self, house: &House) {
        for (lane, sim) in &self.lanes {
            if sim.reader.cursor() > Seq::ZERO {
                house.acker.ack(&self.name, *lane, sim.reader.cursor());
            }
        }
    }

    pub(super) fn restart(&mut self, rng: &mut Rng, house: &House) {
        for (lane, sim) in &mut self.lanes {
            lose_flight(*lane, sim, &mut self.consumer, rng);
            sim.flight.clear();
            if house.fifo.cursors().iter().all(|(sink, of, _)| (sink, of) != (&self.name, lane)) {
                house.acker.ack(&self.name, *lane, Seq::ZERO);
            }
            sim.reader = house.fifo.reader(&self.name, *lane);
        }
        self.consumer.of_session.clear();
        self.late.clear();
    }
}

fn lose_flight(lane: Lane, sim: &mut SimLane, consumer: &mut Consumer, rng: &mut Rng) {
    while sim.arrived < sim.flight.len() && rng.below(2) == 0 {
        consumer.take(lane, &sim.flight[sim.arrived]);
        sim.arrived += 1;
    }
    sim.flight.drain(..sim.arrived);
    sim.arrived = 0;
}

impl Consumer {
    fn take(&mut self, lane: Lane, flying: &Flying) {
        match flying {
            Flying::Record(record) if lane == Lane::State => self.take_state(record),
            Flying::Record(record) => self.lanes.get_mut(&lane).unwrap().take(record.seq),
            Flying::Gap(gap) => self.lanes.get_mut(&lane).unwrap().take_gap(*gap),
        }
    }

    fn take_state(&mut self, record: &Record) {
        let before = self.of_session.insert(record.key.clone(), record.seq).unwrap_or_default();
        assert!(before <= record.seq, "{} went back from {before} to {} within a session", record.key, record.seq);
        self.upsert(record);
    }

    fn upsert(&mut self, record: &Record) {
        if record.is_deleted() {
            self.state.remove(&record.key);
        } else {
            self.state.insert(record.key.clone(), record.clone());
        }
    }
}

impl LaneLog {
    fn take(&mut self, seq: Seq) {
        if seq > self.high {
            self.high = seq;
            self.got.insert(seq);
        }
    }

    fn take_gap(&mut self, gap: Gap) {
        assert!(gap.from <= gap.to);
        if gap.to > self.high {
            self.high = gap.to;
            self.gaps.push((gap.from, gap.to));
        }
    }
}

/// A watcher of the served API.
pub(super) struct Watcher {
    pub(super) lane: Lane,
    at: Option<Seq>,
    pub(super) view: BTreeMap<ObjectKey, Record>,
}

impl Watcher {
    pub(super) fn new(lane: Lane) -> Self {
        Self { lane, at: None, view: BTreeMap::new() }
    }

    pub(super) fn step(&mut self, fifo: &DeltaFifo, max: usize, seen: &mut Seen) {
        let Some(after) = self.at else {
            let snapshot = fifo.list(self.lane, None);
            self.at = Some(snapshot.at);
            self.view = snapshot.records.into_iter().map(|record| (record.key.clone(), record)).collect();
            return;
        };
        let Ok(changes) = fifo.changes(self.lane, after, max) else {
            seen.note("expired");
            self.at = None;
            return;
        };
        seen.note("resumed");
        for record in changes.records {
            if record.is_deleted() {
                self.view.remove(&record.key);
            } else {
                self.view.insert(record.key.clone(), record);
            }
        }
        self.at = Some(changes.at);
        if changes.at == fifo.head() {
            assert_eq!(self.view, list(fifo, self.lane), "a watcher is silently wrong");
        }
    }
}
