//! Histories: random messages, disk errors, power cuts, restarts, sinks whose sessions die, watchers. At the end of
//! each, every consumer must agree with the queue. `TIDEGATE_SIM_HISTORIES` asks for more of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::keyed::Keyed;
use super::lane::RecordLane;
use super::testing::{House, RamLog, key, options, record};
use super::{DeltaFifo, QueueOptions, Refused};
use crate::model::{Change, Effect, Lane, Lsn, ObjectKey, Record, Seq};
use crate::runtime::clock::{Clock, ManualClock};

mod parties;

use parties::{SimSink, Watcher};

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const SINKS: [&str; 2] = ["kafka", "kube"];
const STEPS: usize = 250;

#[test]
fn histories_with_power_cuts_end_well() {
    let histories = std::env::var("TIDEGATE_SIM_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    let mut seen = Seen::default();
    for seed in 0..histories {
        let history = std::panic::AssertUnwindSafe(|| World::new(seed).run());
        match std::panic::catch_unwind(history) {
            Ok(of_one) => seen.add(&of_one),
            Err(panic) => {
                let fixed = panic.downcast_ref::<&str>().map(ToString::to_string);
                let lines = panic.downcast_ref::<String>().cloned().or(fixed).unwrap_or_default();
                panic!("history with seed {seed} failed: {lines}");
            }
        }
    }
    seen.check(histories);
}

/// How often the rare things happened; a simulation that never meets them proves nothing.
#[derive(Debug, Default)]
struct Seen {
    counts: BTreeMap<&'static str, u64>,
}

impl Seen {
    fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn add(&mut self, other: &Self) {
        other.counts.iter().for_each(|(what, n)| *self.counts.entry(what).or_default() += n);
    }

    fn check(&self, histories: u64) {
        let rare = [
            "restart",
            "clean",
            "snapshot",
            "torn",
            "fault",
            "rewind",
            "overwrote",
            "gap",
            "expired",
            "resumed",
            "full",
            "keys",
            "forgot",
        ];
        for what in rare {
            let n = self.counts.get(what).copied().unwrap_or(0);
            assert!(histories < 100 || n * 40 >= histories, "{what} was met {n} times only: {self:?}");
        }
    }
}

struct World {
    rng: Rng,
    clock: Arc<ManualClock>,
    disk: RamLog,
    house: House,
    sinks: Vec<SimSink>,
    watchers: Vec<Watcher>,
    /// Live keys as the engine knows them.
    live: BTreeSet<(Lane, ObjectKey)>,
    /// Messages that wait for their acknowledgement.
    unacked: Vec<(Lsn, Vec<Given>)>,
    acked: HashMap<(Lane, ObjectKey), Seq>,
    acked_events: BTreeSet<Seq>,
    /// The body that each Seq was given for.
    asked: HashMap<Seq, Bytes>,
    /// Every record that was ever on disk.
    stored: BTreeMap<Seq, Record>,
    floors: HashMap<Lane, Seq>,
    frames_seen: usize,
    newest_seq: Seq,
    cursors: HashMap<(Arc<str>, Lane), Seq>,
    seen: Seen,
}

impl World {
    fn new(seed: u64) -> Self {
        let (disk, clock) = (RamLog::default(), Arc::new(ManualClock::at(1)));
        let mut house = House::open(&disk, &narrow(), &clock);
        let sinks = SINKS.iter().map(|name| SimSink::new(name, &house)).collect();
        assert!(house.commit());
        let watchers = [Lane::State, Lane::State, Lane::Alert].map(Watcher::new).into();
        let (live, acked, cursors) = (BTreeSet::new(), HashMap::new(), HashMap::new());
        let (unacked, acked_events, stored) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        let (rng, seen) = (Rng(seed), Seen::default());
        Self {
            rng,
            clock,
            disk,
            house,
            sinks,
            watchers,
            live,
            unacked,
            acked,
            acked_events,
            asked: HashMap::new(),
            stored,
            floors: HashMap::new(),
            frames_seen: 0,
            newest_seq: Seq::ZERO,
            cursors,
            seen,
        }
    }

    fn run(mut self) -> Seen {
        for _ in 0..STEPS {
            self.step();
        }
        self.settle();
        self.check_end();
        self.seen
    }

    fn step(&mut self) {
        let sink = self.rng.below(self.sinks.len());
        match self.rng.below(100) {
            0..30 => self.message(),
            30..44 => self.commit(),
            44..46 => self.crash(),
            46..50 => self.clock.advance(Duration::from_secs(self.rng.below(200_000) as u64)),
            50..78 => _ = self.sinks[sink].pump(&mut self.rng, &mut self.seen),
            78..82 => self.sinks[sink].die(&mut self.rng, &mut self.seen),
            82 => self.sinks[sink].late(&mut self.seen),
            83..90 => self.sinks[sink].ack(&self.house),
            _ => {
                let watcher = self.rng.below(self.watchers.len());
                self.watchers[watcher].step(&self.house.fifo, 1 + self.rng.below(3), &mut self.seen);
            }
        }
    }

    // ---- the engine

    fn message(&mut self) {
        let changes: Vec<Change> = (0..=self.rng.below(3)).map(|_| self.change()).collect();
        let mut live = self.live.clone();
        let takes: Vec<Take> = changes.iter().filter_map(|change| take(&mut live, change)).collect();
        match self.house.intake.add(changes) {
            Ok(added) => {
                self.live = live;
                let Some(last) = added.seq else { return assert!(takes.is_empty()) };
                let first = last.0 + 1 - takes.len() as u64;
                assert!(Seq(first) > self.newest_seq, "a Seq was given out twice");
                self.newest_seq = last;
                let mut of_message = Vec::new();
                for (seq, (lane, key, body)) in (first..).map(Seq).zip(takes) {
                    self.asked.insert(seq, body);
                    of_message.push((lane, key, seq));
                }
                self.unacked.push((added.lsn, of_message));
            }
            Err(Refused::CommitQueueFull) => self.seen.note("full"),
            Err(Refused::TooLarge) => panic!("no message is so large"),
            Err(Refused::KeysMax) => self.seen.note("keys"),
        }
    }

    fn change(&mut self) -> Change {
        let (key, at) = (key(KEYS[self.rng.below(KEYS.len())]), self.clock.wall());
        let body = Bytes::from(self.rng.next().to_string());
        match self.rng.below(10) {
            0..5 => Change::Put { key, at, body },
            5..7 => Change::Delete { key, at },
            7 => Change::Alert { key, at, body },
            _ => Change::Event { key, at, body },
        }
    }

    fn commit(&mut self) {
        let fault = self.rng.below(5) == 0;
        let snapshots = {
            let mut disk = self.disk.disk();
            disk.refuse_commits = fault;
            disk.snapshot_due |= self.rng.below(8) == 0;
            disk.snapshots
        };
        let stored = self.house.worker.round();
        self.disk.disk().refuse_commits = false;
        assert!(fault || stored);
        if self.disk.disk().snapshots > snapshots {
            self.seen.note("snapshot");
        }
        if !stored {
            self.seen.note("fault");
        }
        self.after_commit();
    }

    fn after_commit(&mut self) {
        self.scan_disk();
        let durable = *self.house.durable_lsn.borrow();
        let (acked, unacked) = std::mem::take(&mut self.unacked).into_iter().partition(|(lsn, _)| *lsn <= durable);
        self.unacked = unacked;
        for (lane, key, seq) in acked.into_iter().flat_map(|(_, of_message): (Lsn, Vec<_>)| of_message) {
            if lane == Lane::Event {
                self.acked_events.insert(seq);
            }
            self.acked.insert((lane, key), seq);
        }
        for (sink, lane, seq) in self.house.fifo.cursors() {
            let before = self.cursors.insert((sink.clone(), lane), seq).unwrap_or_default();
            assert!(before <= seq, "the cursor of {sink} in lane {lane} went back from {before} to {seq}");
        }
        if self.rng.below(16) == 0 {
            assert_same(&self.house.fifo, &DeltaFifo::recover(&narrow(), self.disk.peek()));
        }
    }

    /// Looks at what is new on disk: no Seq twice, none out of order, each frame naming the one before it.
    fn scan_disk(&mut self) {
        let disk = self.disk.disk();
        for frame in &disk.frames[self.frames_seen..] {
            let last = self.stored.last_key_value().map_or(Seq::ZERO, |(seq, _)| *seq);
            assert_eq!(frame.prev_seq, last, "a hole before {frame:?}");
            for effect in &frame.effects {
                match effect {
                    Effect::Record(record) => {
                        let newest = self.stored.last_key_value().is_none_or(|(seq, _)| *seq < record.seq);
                        assert!(newest, "Seq {} is not above those before it", record.seq);
                        assert_eq!(self.asked.get(&record.seq), Some(&record.body), "another body than asked for");
                        self.stored.insert(record.seq, record.clone());
                    }
                    Effect::Trim { lane, to, lost } => {
                        let floor = self.floors.insert(*lane, *to).unwrap_or_default();
                        let of_lane = self.stored.range(floor.next()..).filter(|(_, record)| record.lane == *lane);
                        let bytes: usize = of_lane.map(|(_, record)| record.cost()).sum();
                        assert!(*lost == 0 || bytes as u64 > narrow().event_bytes_max, "dropped within the bound");
                    }
                    Effect::Forget { .. } => self.seen.note("forgot"),
                    Effect::Cursor { .. } | Effect::Release { .. } => {}
                }
            }
        }
        self.frames_seen = disk.frames.len();
    }

    // ---- power cuts

    fn crash(&mut self) {
        match self.rng.below(4) {
            0 => {
                self.seen.note("clean");
                std::mem::replace(&mut self.house, House::new(&options())).worker.finish();
            }
            1 => {
                self.seen.note("torn");
                self.disk.disk().cut_after = Some(self.rng.below(4));
                self.house.worker.round();
            }
            _ => self.seen.note("restart"),
        }
        self.house = House::open(&self.disk, &narrow(), &self.clock);
        self.scan_disk();
        self.unacked.clear();
        self.check_acked();
        let live = |lane| self.house.fifo.list(lane, None).records.into_iter().map(move |record| (lane, record.key));
        self.live = live(Lane::State).chain(live(Lane::Alert)).collect();
        for sink in &mut self.sinks {
            sink.restart(&mut self.rng, &self.house);
        }
    }

    /// Every effect of an acknowledged message is there, or was forgotten by the rules.
    fn check_acked(&self) {
        self.house.fifo.read(|view| {
            for ((lane, key), seq) in self.acked.iter().filter(|((lane, _), _)| *lane != Lane::Event) {
                let keyed = view.keyed(*lane).unwrap();
                let kept = keyed.get(key).is_some_and(|record| record.seq >= *seq);
                assert!(kept || keyed.floor() >= *seq, "{key} of {seq} was acknowledged and is gone");
            }
            let events = view.records(Lane::Event).unwrap();
            let kept: BTreeSet<Seq> = events.after(Seq::ZERO).map(|record| record.seq).collect();
            let missing = self.acked_events.iter().find(|seq| **seq > events.floor() && !kept.contains(seq));
            assert_eq!(missing, None, "an acknowledged event is gone");
        });
    }

    // ---- the end

    fn settle(&mut self) {
        for _ in 0..8 {
            self.house.worker.round();
            self.after_commit();
            for sink in &mut self.sinks {
                sink.late(&mut self.seen);
                let mut steps = 0;
                while sink.pump(&mut self.rng, &mut self.seen) {
                    steps += 1;
                    assert!(steps < 100_000, "a sink never comes to an end");
                }
                sink.ack(&self.house);
            }
        }
    }

    fn check_end(&mut self) {
        let live: BTreeMap<_, _> = list(&self.house.fifo, Lane::State);
        for sink in &self.sinks {
            assert_eq!(sink.consumer.state, live, "the plain upsert consumer of {} differs", sink.name);
            for lane in [Lane::Alert, Lane::Event] {
                let consumer = &sink.consumer.lanes[&lane];
                for (seq, record) in self.stored.iter().filter(|(_, record)| record.lane == lane) {
                    let in_gap = consumer.gaps.iter().any(|(from, to)| from <= seq && seq <= to);
                    assert!(in_gap || consumer.got.contains(seq), "{}: {record:?} is lost unannounced", sink.name);
                }
            }
            for lane in Lane::ALL {
                assert_eq!(self.house.fifo.lag(sink.name.as_ref(), lane).records, 0, "{} in lane {lane}", sink.name);
            }
        }
        for watcher in &mut self.watchers {
            (0..2).for_each(|_| watcher.step(&self.house.fifo, 99, &mut self.seen));
            assert_eq!(watcher.view, list(&self.house.fifo, watcher.lane));
        }
    }
}

/// SplitMix64: the same history for the same seed, on every machine.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Bounds that a short history reaches.
fn narrow() -> QueueOptions {
    let cost = record(Lane::State, "a", 1).cost();
    QueueOptions {
        keys_max: 5,
        event_bytes_max: 6 * cost as u64,
        alert_bytes_max: 6 * cost as u64,
        commit_queue_bytes_max: 9 * cost,
        checkpoint_bytes: 20 * cost as u64,
        ..options()
    }
}

/// A change that got its Seq.
type Given = (Lane, ObjectKey, Seq);

/// A change that gets a Seq: lane, key, body.
type Take = (Lane, ObjectKey, Bytes);

/// What a change will do to the engine's keys; none if it does nothing.
fn take(live: &mut BTreeSet<(Lane, ObjectKey)>, change: &Change) -> Option<Take> {
    let (lane, key, body) = match change {
        Change::Put { key, body, .. } => (Lane::State, key, body.clone()),
        Change::Alert { key, body, .. } => (Lane::Alert, key, body.clone()),
        Change::Event { key, body, .. } => return Some((Lane::Event, key.clone(), body.clone())),
        Change::Delete { key, .. } => {
            return live.remove(&(Lane::State, key.clone())).then(|| (Lane::State, key.clone(), Bytes::new()));
        }
    };
    live.insert((lane, key.clone()));
    Some((lane, key.clone(), body))
}

fn list(fifo: &DeltaFifo, lane: Lane) -> BTreeMap<ObjectKey, Record> {
    fifo.list(lane, None).records.into_iter().map(|record| (record.key.clone(), record)).collect()
}

/// A replay of the log gives the queue that lived through it.
fn assert_same(lived: &DeltaFifo, replayed: &DeltaFifo) {
    let face = |fifo: &DeltaFifo| {
        let mut cursors = fifo.cursors();
        cursors.sort();
        let lanes = Lane::ALL.map(|lane| {
            fifo.read(|view| {
                let records: Vec<Record> = view.waiting(lane, Seq::ZERO).cloned().collect();
                let floors = (view.keyed(lane).map(Keyed::floor), view.records(lane).map(RecordLane::floor));
                (records, floors, view.keyed(lane).map(|keyed| keyed.graves().count()))
            })
        });
        (fifo.head(), fifo.stats(), cursors, lanes)
    };
    assert_eq!(face(lived), face(replayed));
}
