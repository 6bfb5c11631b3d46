//! The ends together: intake, commits, faults, bounds, and the real thread.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::sync::Arc;
use std::time::Duration;

use super::commit::Worker;
use super::testing::{House, RamError, RamLog, alert, delete, event, key, options, put, record};
use super::*;
use crate::model::{Change, DeltaType, Effect, Lane, Lsn, Record, Seq, Stamp};
use crate::runtime::clock::{Clock, ManualClock, SystemClock};
use crate::runtime::metrics::{Metrics, Reason, SinkLane};

fn newest(house: &House, lane: Lane, name: &str) -> Record {
    house.fifo.read(|view| view.keyed(lane).unwrap().get(&key(name)).cloned()).unwrap()
}

fn count(house: &House, lane: Lane) -> u64 {
    house.metrics.queue_dropped.get_or_create(&lane.into()).get()
}

// ---- intake

#[test]
fn a_message_is_one_frame_and_its_receipt_is_its_highest_seq() {
    let mut house = House::new(&options());
    let added = house.add(vec![put("a", 1), event("a", 1), alert("hot.a", 1)]).unwrap();
    assert_eq!(added, Added { lsn: Lsn(1), seq: Some(Seq(3)) });
    assert!(house.worker.round());
    let disk = house.disk.disk();
    assert_eq!((disk.frames.len(), disk.frames[0].effects.len()), (1, 3));
    assert_eq!((*house.durable_lsn.borrow(), house.fifo.head(), house.intake.lsn()), (Lsn(1), Seq(3), Lsn(1)));
}

#[test]
fn a_key_is_added_then_updated_and_keeps_its_incarnation_until_it_is_deleted() {
    let mut house = House::new(&options());
    let mut of = |change| {
        house.store(vec![change]);
        let record = newest(&house, Lane::State, "a");
        (record.delta, record.uid.seq.0, record.created_at.unix_ms)
    };
    assert_eq!(of(put("a", 10)), (DeltaType::Added, 1, 10));
    assert_eq!(of(put("a", 20)), (DeltaType::Updated, 1, 10));
    assert_eq!(of(delete("a", 30)), (DeltaType::Deleted, 1, 10));
    assert_eq!(of(put("a", 40)), (DeltaType::Added, 4, 40));
}

#[test]
fn an_incarnation_outlives_a_restart() {
    let mut house = House::new(&options());
    house.store(vec![put("a", 10), alert("hot.a", 10)]);
    let mut house = House::open(&house.disk, &options(), &house.clock);
    house.store(vec![put("a", 20), alert("hot.a", 20)]);
    for (lane, name, born) in [(Lane::State, "a", 1), (Lane::Alert, "hot.a", 2)] {
        let record = newest(&house, lane, name);
        assert_eq!((record.delta, record.uid.seq), (DeltaType::Updated, Seq(born)), "{lane}");
    }
}

#[test]
fn an_event_has_an_identity_of_its_own() {
    let mut house = House::new(&options());
    house.store(vec![event("a", 1), event("a", 2)]);
    let events = house.fifo.changes(Lane::Event, Seq::ZERO, 9).unwrap().records;
    assert_eq!(events.iter().map(|record| record.uid.seq.0).collect::<Vec<_>>(), [1, 2]);
    assert!(events.iter().all(|record| record.delta == DeltaType::Added));
}

#[test]
fn a_delete_of_an_unknown_key_changes_nothing() {
    let mut house = House::new(&options());
    let first = house.add(vec![put("a", 1)]).unwrap();
    assert_eq!(house.add(vec![delete("b", 2)]).unwrap(), Added { lsn: first.lsn, seq: None });
    assert_eq!(house.add(vec![]).unwrap(), Added { lsn: first.lsn, seq: None });
    assert_eq!(house.add(vec![put("c", 3)]).unwrap().seq, Some(Seq(2)), "no Seq was wasted");
}

#[test]
fn a_delete_of_a_key_that_is_not_committed_yet_is_still_told() {
    let mut house = House::new(&options());
    house.add(vec![put("a", 1)]).unwrap();
    house.store(vec![delete("a", 2)]);
    assert!(newest(&house, Lane::State, "a").is_deleted());
    assert_eq!(house.disk.disk().frames.iter().map(|frame| frame.effects.len()).sum::<usize>(), 1);
}

#[test]
fn a_key_beyond_the_bound_is_refused_and_the_whole_message_with_it() {
    let mut house = House::new(&QueueOptions { keys_max: 2, ..options() });
    house.store(vec![put("a", 1), put("b", 1)]);
    assert_eq!(house.add(vec![event("c", 2), put("c", 2)]), Err(Refused::KeysMax));
    assert_eq!(house.add(vec![put("a", 2), put("b", 2)]).unwrap().seq, Some(Seq(4)), "known keys go on");
    house.add(vec![alert("x", 2), alert("y", 2)]).unwrap();
    assert_eq!(house.add(vec![alert("z", 2)]), Err(Refused::KeysMax), "alerts have a bound of their own");
}

#[test]
fn a_tombstone_holds_its_slot_until_every_cursor_has_passed_it() {
    let mut house = House::new(&QueueOptions { keys_max: 1, ..options() });
    house.ack("s", Lane::State, Seq::ZERO);
    house.store(vec![put("a", 1)]);
    let gone = house.store(vec![delete("a", 2)]);
    assert_eq!(house.add(vec![put("b", 3)]), Err(Refused::KeysMax));
    let mut house = House::open(&house.disk, &QueueOptions { keys_max: 1, ..options() }, &house.clock);
    assert_eq!(house.add(vec![put("b", 3)]), Err(Refused::KeysMax), "also after a restart");
    house.ack("s", Lane::State, gone);
    house.store(vec![put("b", 3)]);
}

#[test]
fn a_deleted_key_comes_back_into_its_own_slot() {
    let mut house = House::new(&QueueOptions { keys_max: 1, ..options() });
    house.ack("s", Lane::State, Seq::ZERO);
    house.store(vec![put("a", 1)]);
    house.store(vec![delete("a", 2)]);
    house.store(vec![put("a", 3)]);
    house.store(vec![delete("a", 4), put("a", 4), delete("a", 4)]);
    assert_eq!(house.add(vec![put("b", 5)]), Err(Refused::KeysMax));
}

#[test]
fn a_full_commit_queue_refuses_and_takes_again_after_the_commit() {
    let cost = record(Lane::Event, "a", 1).cost();
    let mut house = House::new(&QueueOptions { commit_queue_bytes_max: 2 * cost, ..options() });
    house.add(vec![event("a", 1)]).unwrap();
    house.add(vec![event("a", 2)]).unwrap();
    assert_eq!(house.add(vec![event("a", 3)]), Err(Refused::CommitQueueFull));
    assert!(house.metrics.commit_queue_bytes.get() > 0);
    assert!(house.worker.round());
    assert_eq!(house.metrics.commit_queue_bytes.get(), 0);
    assert_eq!(house.store(vec![event("a", 3)]), Seq(3), "a refused message takes no Seq");
}

#[test]
fn a_message_that_no_frame_takes_is_refused_and_never_reaches_the_log() {
    let mut house = House::new(&QueueOptions { commit_queue_bytes_max: 64 << 20, ..options() });
    let event = |bytes: usize| Change::Event { key: key("a"), at: Stamp::default(), body: vec![0; bytes].into() };
    assert_eq!(house.add(vec![event(2 << 20), event(1 << 20)]), Err(Refused::TooLarge));
    house.store(vec![event(2 << 20)]);
}

#[test]
fn no_seq_is_given_out_beyond_the_reserve() {
    let disk = RamLog::default();
    disk.disk().refuse_reserves = true;
    let mut house = House::open(&disk, &options(), &Arc::default());
    assert_eq!(house.add(vec![event("a", 1)]), Err(Refused::CommitQueueFull));
    disk.disk().refuse_reserves = false;
    assert!(house.worker.round());
    assert_eq!(house.store(vec![event("a", 1)]), Seq(1));
    assert!(house.metrics.disk_errors.get_or_create(&Reason { reason: "reserve" }).get() > 0);
}

#[test]
fn an_unclean_start_goes_on_at_the_reserve_and_a_clean_one_at_the_next_seq() {
    let mut house = House::new(&options());
    assert_eq!(house.store(vec![put("a", 1)]), Seq(1));
    let mut house = House::open(&house.disk, &options(), &house.clock);
    let after_cut = house.store(vec![put("a", 2)]);
    assert!(after_cut.0 >= 1 << 20, "{after_cut}");
    house.worker.finish();
    let mut house = House::open(&house.disk, &options(), &house.clock);
    assert_eq!(house.store(vec![put("a", 3)]), after_cut.next());
}

#[test]
fn changes_are_counted_by_lane() {
    let mut house = House::new(&options());
    house.add(vec![put("a", 1), event("a", 1), event("a", 1)]).unwrap();
    let deltas = |lane: Lane| house.metrics.deltas.get_or_create(&lane.into()).get();
    assert_eq!((deltas(Lane::State), deltas(Lane::Event), deltas(Lane::Alert)), (1, 2, 0));
}

// ---- commits

#[test]
fn nothing_is_visible_or_durable_before_its_commit() {
    let mut house = House::new(&options());
    house.add(vec![put("a", 1)]).unwrap();
    assert_eq!((house.fifo.head(), *house.durable_lsn.borrow()), (Seq::ZERO, Lsn::ZERO));
    assert!(house.worker.round());
    assert_eq!((house.fifo.head(), *house.durable_lsn.borrow()), (Seq(1), Lsn(1)));
}

#[test]
fn a_disk_error_is_told_and_the_same_frames_go_first_when_it_is_over() {
    let mut house = House::new(&options());
    house.disk.disk().refuse_commits = true;
    house.add(vec![put("a", 1), event("a", 1)]).unwrap();
    assert!(!house.worker.round());
    assert!(house.durable.borrow().fault);
    assert_eq!((house.metrics.disk_fault.get(), house.fifo.head()), (1, Seq::ZERO));
    for at in 2..50 {
        house.add(vec![put("a", at)]).unwrap();
    }
    assert!(!house.worker.round());
    house.disk.disk().refuse_commits = false;
    assert!(house.worker.round());
    assert_eq!((house.durable.borrow().fault, house.metrics.disk_fault.get(), house.fifo.head()), (false, 0, Seq(2)));
    assert!(house.worker.round());
    let seqs: Vec<_> = house.disk.disk().frames.iter().map(|frame| (frame.prev_seq.0, frame.last_seq())).collect();
    assert_eq!(seqs, [(0, Some(Seq(2))), (2, Some(Seq(50)))], "what came during the fault is one state");
    assert_eq!(house.metrics.disk_errors.get_or_create(&Reason { reason: "commit" }).get(), 2);
}

#[test]
fn acknowledgements_that_came_during_a_fault_are_committed_after_it() {
    let mut house = House::new(&options());
    house.ack("s", Lane::Event, Seq::ZERO);
    house.store(vec![event("a", 1)]);
    house.disk.disk().refuse_commits = true;
    house.ack("s", Lane::Event, Seq(1));
    assert_eq!(house.fifo.cursors(), [("s".into(), Lane::Event, Seq::ZERO)]);
    house.disk.disk().refuse_commits = false;
    assert!(house.worker.round());
    assert_eq!(house.fifo.cursors(), [("s".into(), Lane::Event, Seq(1))]);
}

#[test]
fn a_round_without_work_writes_nothing() {
    let mut house = House::new(&options());
    house.ack("s", Lane::Event, Seq::ZERO);
    house.store(vec![event("a", 1)]);
    house.ack("s", Lane::Event, Seq(1));
    let commits = house.disk.disk().commits;
    house.ack("s", Lane::Event, Seq(1));
    assert!(house.worker.round());
    assert_eq!(house.disk.disk().commits, commits);
}

#[test]
fn a_checkpoint_follows_so_many_log_bytes_and_a_failed_one_is_tried_again_later() {
    let cost = record(Lane::Event, "a", 1).cost() as u64;
    let mut house = House::new(&QueueOptions { checkpoint_bytes: 4 * cost, ..options() });
    house.disk.disk().refuse_checkpoints = true;
    for at in 1..=6 {
        house.store(vec![event("123456", at)]);
    }
    let errors = house.metrics.disk_errors.get_or_create(&Reason { reason: "checkpoint" }).clone();
    assert_eq!((errors.get(), house.disk.disk().checkpoints), (3, 0), "at 4, 5 and 6 records");
    house.disk.disk().refuse_checkpoints = false;
    house.store(vec![event("123456", 7)]);
    assert_eq!((house.metrics.checkpoints.get(), house.disk.disk().checkpoints), (1, 1));
    house.store(vec![event("123456", 8)]);
    assert_eq!(house.disk.disk().checkpoints, 1);
}

#[test]
fn a_snapshot_is_written_bit_by_bit_between_commits() {
    let mut house = House::new(&options());
    house.store(vec![put("a", 1), event("a", 1), alert("x", 1)]);
    house.ack("s", Lane::Event, Seq(1));
    house.disk.disk().snapshot_due = true;
    for (at, left) in (2..).zip([3, 2, 1, 0, 0]) {
        house.store(vec![put("a", at)]);
        assert_eq!(house.disk.disk().snapshot_steps, left);
    }
    let disk = house.disk.disk();
    assert_eq!((disk.snapshots, disk.commits), (1, 7));
}

#[test]
fn a_snapshot_that_fails_is_counted_and_commits_go_on() {
    let mut house = House::new(&options());
    let errors = house.metrics.disk_errors.get_or_create(&Reason { reason: "snapshot" }).clone();
    house.disk.disk().snapshot_due = true;
    house.store(vec![put("a", 1)]);
    house.disk.disk().refuse_checkpoints = true;
    house.store(vec![put("a", 2)]);
    house.store(vec![put("a", 3)]);
    assert_eq!((errors.get(), house.disk.disk().snapshots), (1, 0));
    house.disk.disk().snapshot_due = true;
    house.store(vec![put("a", 4)]);
    assert_eq!(errors.get(), 2, "its checkpoint comes first");
}

/// The real store on a simulated disk with room for 12 small segments, four of them ballast.
#[test]
fn a_disk_that_fills_up_frees_its_log_and_commits_go_on() {
    use crate::store::sim::{RamKeyed, SimDisk};
    use crate::store::{Parts, Store, StoreOptions};
    const SEGMENT: u32 = 8 << 10;
    let (disk, keyed, clock) = (SimDisk::new(1), RamKeyed::new(1), Arc::new(ManualClock::at(1)));
    let open = || {
        let options = StoreOptions { data_dir: "data".into(), gateway: "test".into() };
        let (disk, keyed) = (Arc::new(disk.clone()), Box::new(keyed.clone()));
        Store::open_with(&options, Parts { disk, keyed, segment_bytes: SEGMENT, machine: 1 }, &*clock).unwrap()
    };
    disk.limit(12 * u64::from(SEGMENT));
    let (store, recovered) = open();
    let next_seq = recovered.next_seq;
    let fifo = Arc::new(DeltaFifo::recover(&options(), recovered));
    let metrics = Arc::new(Metrics::new());
    let (mut worker, mut ends) = Worker::new(store, next_seq, fifo.clone(), &options(), metrics.clone(), clock.clone());
    for at in 1..=2000 {
        ends.intake.add(vec![put(&format!("key{}", at % 5), at)]).unwrap();
        assert!(worker.round(), "round {at}");
    }
    let full = metrics.disk_errors.get_or_create(&Reason { reason: "full" }).get();
    assert!(full >= 1 && !ends.durable.borrow().fault, "{full}");
    drop(worker);
    disk.cut();
    let again = DeltaFifo::recover(&options(), open().1);
    assert_eq!(again.list(Lane::State, None), fifo.list(Lane::State, None));
}

#[test]
fn a_clean_stop_leaves_a_snapshot() {
    let mut house = House::new(&options());
    house.store(vec![put("a", 1)]);
    let disk = house.disk.clone();
    house.worker.finish();
    let disk = disk.disk();
    assert_eq!((disk.snapshots, disk.clean), (1, Some(Seq(2))));
}

#[test]
fn the_oldest_events_go_when_the_bound_is_reached_and_the_loss_is_counted_and_told() {
    let cost = record(Lane::Event, "a", 1).cost() as u64;
    let mut house = House::new(&QueueOptions { event_bytes_max: 3 * cost, ..options() });
    house.ack("s", Lane::Event, Seq::ZERO);
    let mut reader = house.fifo.reader(&"s".into(), Lane::Event);
    for at in 1..=5 {
        house.store(vec![event("123456", at)]);
    }
    assert_eq!((house.fifo.stats().events, count(&house, Lane::Event)), (3, 2));
    assert_eq!(reader.pop(9, 9999).iter().map(|record| record.seq.0).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(reader.take_gap(), Some(Gap { from: Seq(1), to: Seq(2), lost: 2 }));
    let house = House::open(&house.disk, &options(), &house.clock);
    let mut reader = house.fifo.reader(&"s".into(), Lane::Event);
    assert_eq!((reader.pop(9, 9999).len(), reader.take_gap().map(|gap| gap.lost)), (3, Some(2)), "also after a cut");
}

#[test]
fn events_that_every_sink_has_go_without_being_counted() {
    let mut house = House::new(&options());
    house.ack("s", Lane::Event, Seq::ZERO);
    let seq = house.store(vec![event("a", 1), event("a", 2)]);
    house.ack("s", Lane::Event, seq);
    assert_eq!((house.fifo.stats().events, count(&house, Lane::Event)), (0, 0));
}

#[test]
fn a_released_sink_holds_nothing_back_and_its_gauges_are_gone() {
    let mut house = House::new(&options());
    house.ack("s", Lane::State, Seq::ZERO);
    house.store(vec![put("a", 1)]);
    house.fifo.observe(&house.metrics, house.clock.wall());
    assert!(house.metrics.encode().contains("queue_lag_records{sink=\"s\",lane=\"state\"} 1"));
    house.acker.release(&"s".into());
    assert!(house.worker.round());
    assert_eq!(house.fifo.cursors(), []);
    assert!(!house.metrics.encode().contains("sink=\"s\""));
    let label = SinkLane { sink: "s".into(), lane: Lane::State.into() };
    assert_eq!(house.metrics.lag_records.get_or_create(&label).get(), 0);
}

#[test]
fn tombstones_are_forgotten_by_an_effect_that_rides_along() {
    let day = 24 * 3600 * 1000;
    let mut house = House::new(&options());
    house.store(vec![put("a", 1)]);
    let gone = house.store(vec![delete("a", 2)]);
    house.store(vec![put("b", day)]);
    house.store(vec![put("b", day + 3)]);
    assert_eq!(house.fifo.stats().tombstones, 1, "at the time of the commit it was not a day old");
    house.store(vec![put("b", day + 4)]);
    assert_eq!(house.fifo.stats().tombstones, 0);
    assert!(house.fifo.changes(Lane::State, Seq(gone.0 - 1), 9).is_err());
    let forget = Effect::Forget { lane: Lane::State, to: gone };
    assert!(house.disk.disk().frames.last().unwrap().effects.contains(&forget));
}

// ---- the thread

fn start(disk: &RamLog, options: &QueueOptions) -> (Arc<DeltaFifo>, Committer) {
    let recovered = disk.open();
    let next_seq = recovered.next_seq;
    let fifo = Arc::new(DeltaFifo::recover(options, recovered));
    let metrics = Arc::new(Metrics::new());
    let committer =
        Committer::start(disk.clone(), next_seq, fifo.clone(), options, metrics, Arc::new(SystemClock)).unwrap();
    (fifo, committer)
}

/// Waits for a watched value, at most ten seconds.
fn wait_for<T: Clone + Send + Sync + 'static>(
    watch: &mut tokio::sync::watch::Receiver<T>,
    wanted: impl FnMut(&T) -> bool,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let wait = async { tokio::time::timeout(Duration::from_secs(10), watch.wait_for(wanted)).await };
    runtime.block_on(wait).expect("within ten seconds").expect("the thread runs").clone()
}

#[test]
fn the_thread_commits_by_itself_and_stops_clean() {
    let disk = RamLog::default();
    let (fifo, mut committer) = start(&disk, &options());
    let added = committer.intake.add(vec![put("a", 1)]).unwrap();
    wait_for(&mut committer.durable_lsn, |lsn| *lsn >= added.lsn);
    assert_eq!(fifo.head(), Seq(1));
    assert!(committer.handle.is_alive());
    committer.intake.add(vec![put("b", 2)]).unwrap();
    committer.acker.ack(&"s".into(), Lane::State, Seq::ZERO);
    committer.handle.stop();
    assert_eq!(fifo.head(), Seq(2), "what waited is committed");
    assert_eq!((fifo.cursors().len(), disk.disk().clean), (1, Some(Seq(3))));
}

#[test]
fn what_comes_while_the_budget_is_spent_is_one_commit() {
    let disk = RamLog::default();
    let window = Duration::from_millis(50);
    let options = QueueOptions { wear_bytes_per_day: 0, commit_window_max: window, ..options() };
    let (_, mut committer) = start(&disk, &options);
    let mut last = Lsn::ZERO;
    (1..=20).for_each(|at| last = committer.intake.add(vec![event("a", at)]).unwrap().lsn);
    wait_for(&mut committer.durable_lsn, |lsn| *lsn >= last);
    assert_eq!(disk.disk().commits, 1);
    committer.handle.stop();
}

#[test]
fn a_sink_that_acknowledges_into_silence_gets_its_cursor_within_a_second_or_so() {
    let disk = RamLog::default();
    let (fifo, committer) = start(&disk, &options());
    let mut watch = fifo.watch();
    committer.acker.ack(&"s".into(), Lane::State, Seq::ZERO);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(10), watch.changed()).await })
        .expect("the creation of a cursor wakes its reader")
        .unwrap();
    assert_eq!(fifo.cursors(), [("s".into(), Lane::State, Seq::ZERO)]);
    committer.handle.stop();
}

#[test]
fn a_stop_during_a_fault_gives_up_what_was_not_acknowledged() {
    let disk = RamLog::default();
    let (fifo, mut committer) = start(&disk, &options());
    disk.disk().refuse_commits = true;
    committer.intake.add(vec![put("a", 1)]).unwrap();
    wait_for(&mut committer.durable, |durable| durable.fault);
    committer.handle.stop();
    let disk = disk.disk();
    assert_eq!((fifo.head(), disk.frames.len(), disk.clean), (Seq::ZERO, 0, None));
}

/// A disk of which tests say what a commit does.
struct Odd<F>(RamLog, F);

impl<F: FnMut() + Send + 'static> Log for Odd<F> {
    type Error = RamError;
    fn commit(&mut self, frames: &[crate::model::Frame]) -> Result<u64, RamError> {
        (self.1)();
        self.0.commit(frames)
    }
    fn make_room(&mut self, error: &RamError) -> bool {
        self.0.make_room(error)
    }
    fn log_bytes(&self) -> u64 {
        self.0.log_bytes()
    }
    fn checkpoint(&mut self) -> Result<(), RamError> {
        self.0.checkpoint()
    }
    fn snapshot_due(&self) -> bool {
        self.0.snapshot_due()
    }
    fn begin_snapshot(&mut self, image: crate::store::StateImage) -> Result<(), RamError> {
        self.0.begin_snapshot(image)
    }
    fn step_snapshot(&mut self) -> Result<bool, RamError> {
        self.0.step_snapshot()
    }
    fn reserve(&mut self, seq: Seq) -> Result<(), RamError> {
        self.0.reserve(seq)
    }
    fn reserved(&self) -> Seq {
        self.0.reserved()
    }
    fn lsn(&self) -> Lsn {
        self.0.lsn()
    }
    fn close(self, next_seq: Seq) -> Result<(), RamError> {
        self.0.close(next_seq)
    }
}

/// A queue on an odd disk to which one change is on its way.
fn odd(commit: impl FnMut() + Send + 'static, clock: Arc<dyn Clock>) -> Committer {
    let log = Odd(RamLog::default(), commit);
    let fifo = Arc::new(testing::fifo(Vec::new()));
    let mut committer = Committer::start(log, Seq(1), fifo, &options(), Arc::new(Metrics::new()), clock).unwrap();
    committer.intake.add(vec![put("a", 1)]).unwrap();
    committer
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn a_panic_of_the_disk_ends_the_thread_and_is_seen() {
    let mut committer = odd(|| panic!("as a broken store does"), Arc::new(SystemClock));
    assert!(block_on(committer.durable_lsn.changed()).is_err(), "the thread is gone");
    committer.handle.stop();
}

#[test]
fn a_disk_that_hangs_without_an_error_is_seen() {
    let (arrive, arrived) = std::sync::mpsc::sync_channel(1);
    let (release, released) = std::sync::mpsc::sync_channel::<()>(1);
    let clock = Arc::new(ManualClock::at(1));
    let hang = move || {
        arrive.send(()).unwrap();
        released.recv().unwrap();
    };
    let mut committer = odd(hang, clock.clone());
    arrived.recv().unwrap();
    clock.advance(Duration::from_secs(11));
    assert_eq!(committer.handle.waits_for_disk(clock.now()), Duration::from_secs(11));
    assert!(!committer.durable.borrow().fault, "there is no error");
    release.send(()).unwrap();
    block_on(committer.durable_lsn.changed()).unwrap();
    committer.handle.stop();
}
