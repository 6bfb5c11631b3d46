//! `DeltaFifo`: the committed view of the queue, shared with its readers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

use super::QueueOptions;
use super::keyed::{Keyed, NOBODY_WAITS};
use super::lane::RecordLane;
use super::reader::LaneReader;
use super::view::{Applied, View};
use crate::model::{Epoch, Frame, Lane, ObjectKey, Record, Seq, Stamp};
use crate::runtime::metrics::{Metrics, SinkLane};
use crate::store::{Recovered, StateImage};

/// Records that are copied for a snapshot under one lock.
const PIECE: usize = 1024;

/// The committed view of the queue: many readers, one writer (the commit thread).
///
/// A reader sees whole commits only: [`DeltaFifo::head`] and every record up to it are durable. The lock is held for
/// the copy of records in RAM alone, never during I/O.
#[derive(Debug)]
pub struct DeltaFifo {
    epoch: Epoch,
    view: RwLock<View>,
    head: watch::Sender<Seq>,
    passed_state: AtomicU64,
    passed_alert: AtomicU64,
}

/// Records of a lane at one position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The position that the records belong to, to go on from.
    pub at: Seq,
    /// The records.
    pub records: Vec<Record>,
}

/// Changes behind a position cannot be told exactly any more, or not yet: list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("position {after} is outside of what is kept (floor {floor}, head {head})")]
pub struct Expired {
    /// The position asked for.
    pub after: Seq,
    /// The lowest that can be answered.
    pub floor: Seq,
    /// The highest.
    pub head: Seq,
}

/// What a sink has not acknowledged of a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lag {
    /// Records; in lane `state` keys.
    pub records: u64,
    /// Their [`Record::cost`].
    pub bytes: u64,
    /// When the oldest of them was made.
    pub oldest: Option<Stamp>,
}

/// What the queue holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Live keys of lane `state`.
    pub devices: usize,
    /// Live keys of lane `alert`.
    pub alerts: usize,
    /// Tombstones of both.
    pub tombstones: usize,
    /// Records of lane `event` that are kept.
    pub events: usize,
    /// [`Record::cost`] of what the slowest sink of each lane has not acknowledged.
    pub pending_bytes: u64,
    /// Number of these records.
    pub pending_records: u64,
}

impl DeltaFifo {
    /// Rebuilds the view from what the store recovered. Its `next_seq`, `clean` and `gaps` are not used here.
    pub fn recover(options: &QueueOptions, recovered: Recovered) -> Self {
        let view = View::recover(recovered);
        let fifo = Self {
            epoch: options.epoch,
            head: watch::Sender::new(view.head()),
            passed_state: AtomicU64::new(0),
            passed_alert: AtomicU64::new(0),
            view: RwLock::new(view),
        };
        fifo.read(|view| fifo.publish_passed(view));
        fifo
    }

    /// The life of the store that new records are born in.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Newest committed Seq.
    pub fn head(&self) -> Seq {
        *self.head.borrow()
    }

    /// Follows the head; also wakes when a sink's cursor was created.
    pub fn watch(&self) -> watch::Receiver<Seq> {
        self.head.subscribe()
    }

    /// The live object of a key in lane `state` or `alert`.
    pub fn get(&self, lane: Lane, key: &ObjectKey) -> Option<Record> {
        self.read(|view| view.keyed(lane)?.get(key).filter(|record| !record.is_deleted()).cloned())
    }

    /// All live objects of lane `state` or `alert` in key order, and the head they belong to. Lane `event` has none.
    pub fn list(&self, lane: Lane, namespace: Option<&str>) -> Snapshot {
        let wanted = |record: &&Record| namespace.is_none_or(|namespace| &**record.key.namespace() == namespace);
        let mut snapshot = self.read(|view| {
            let records = view.keyed(lane).map(|keyed| keyed.live().filter(wanted).cloned().collect());
            Snapshot { at: view.head(), records: records.unwrap_or_default() }
        });
        snapshot.records.sort_by(|a, b| a.key.cmp(&b.key));
        snapshot
    }

    /// What changed after `after`, in Seq order, at most `max` records: of each key of lane `state` or `alert` the
    /// newest record, tombstones included; of lane `event` every record. `at` is the position to go on from.
    ///
    /// Exact from the lane's floor on, whatever the age of `after`; below it, or above the head, [`Expired`].
    pub fn changes(&self, lane: Lane, after: Seq, max: usize) -> Result<Snapshot, Expired> {
        self.read(|view| {
            let head = view.head();
            let floor = view.keyed(lane).map(Keyed::floor);
            let floor = floor.or(view.records(lane).map(RecordLane::floor)).unwrap_or_default();
            if after < floor || after > head {
                return Err(Expired { after, floor, head });
            }
            let all: Box<dyn Iterator<Item = &Record>> = match view.keyed(lane) {
                Some(keyed) => Box::new(keyed.after(after)),
                None => view.waiting(lane, after),
            };
            let mut all = all.peekable();
            let records: Vec<Record> = all.by_ref().take(max).cloned().collect();
            let cut = all.peek().is_some();
            let at = if cut { records.last().map_or(after, |record| record.seq) } else { head };
            Ok(Snapshot { at, records })
        })
    }

    /// What a sink has not acknowledged of a lane; nothing for an unknown sink.
    pub fn lag(&self, sink: &str, lane: Lane) -> Lag {
        self.read(|view| view.cursors().get(sink, lane).map(|cursor| lag(view, lane, cursor.seq)).unwrap_or_default())
    }

    /// Counts what is held.
    pub fn stats(&self) -> Stats {
        self.read(|view| {
            let mut stats = Stats { events: view.records(Lane::Event).map_or(0, RecordLane::len), ..Stats::default() };
            for lane in Lane::ALL {
                let live = view.keyed(lane).map_or(0, Keyed::live_count);
                match lane {
                    Lane::State => stats.devices = live,
                    Lane::Alert => stats.alerts = live,
                    Lane::Event => {}
                }
                stats.tombstones += view.keyed(lane).map_or(0, Keyed::tombstone_count);
                let pending = lag(view, lane, view.cursors().lowest(lane));
                stats.pending_bytes += pending.bytes;
                stats.pending_records += pending.records;
            }
            stats
        })
    }

    /// Every cursor: sink, lane, acknowledged up to and including.
    pub fn cursors(&self) -> Vec<(Arc<str>, Lane, Seq)> {
        self.read(|view| view.cursors().iter().map(|cursor| (cursor.sink.clone(), cursor.lane, cursor.seq)).collect())
    }

    /// A reader of one lane for one sink, from its durable cursor. A new sink's cursor is created by
    /// [`super::Acker::ack`] before; until that is committed the reader pops nothing.
    pub fn reader(self: &Arc<Self>, sink: &Arc<str>, lane: Lane) -> LaneReader {
        LaneReader::new(self.clone(), sink.clone(), lane)
    }

    /// Brings the gauges up to date: devices, alerts, and each sink's lag. To be called every few seconds.
    pub fn observe(&self, metrics: &Metrics, now: Stamp) {
        let (devices, alerts, lags) = self.read(|view| {
            let live = |lane| view.keyed(lane).map_or(0, Keyed::live_count);
            let lags = view.cursors().iter().map(|cursor| {
                let label = SinkLane { sink: cursor.sink.to_string(), lane: cursor.lane.into() };
                (label, lag(view, cursor.lane, cursor.seq))
            });
            (live(Lane::State), live(Lane::Alert), lags.collect::<Vec<_>>())
        });
        metrics.devices.set(gauge(devices as u64));
        metrics.alerts.set(gauge(alerts as u64));
        for (label, lag) in lags {
            let age_ms = lag.oldest.map_or(0, |oldest| now.unix_ms.saturating_sub(oldest.unix_ms).max(0));
            metrics.lag_records.get_or_create(&label).set(gauge(lag.records));
            metrics.lag_seconds.get_or_create(&label).set(age_ms / 1000);
        }
    }

    /// Takes committed frames; the commit thread alone calls it.
    pub(super) fn apply(&self, frames: &[Frame]) -> Applied {
        let mut applied = Applied::default();
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        for effect in frames.iter().flat_map(|frame| &frame.effects) {
            view.apply(effect, &mut applied);
        }
        self.publish_passed(&view);
        let head = view.head();
        drop(view);
        self.head.send_if_modified(|seen| std::mem::replace(seen, head) != head || applied.cursor_created);
        applied
    }

    /// All that is held, for a snapshot: records are cloned in pieces, their bodies shared. Nobody but the commit thread
    /// changes the view, so in its hands the pieces belong together, though the lock is let go between them.
    pub(super) fn image(&self) -> StateImage {
        let mut image = self.read(View::positions);
        for lane in Lane::ALL {
            self.copy(&mut image.newest, |view, after| {
                Some(view.keyed(lane)?.after(after).take(PIECE).cloned().collect())
            });
            self.copy(&mut image.lane_records, |view, after| {
                Some(view.records(lane)?.after(after).take(PIECE).cloned().collect())
            });
        }
        image
    }

    fn copy(&self, out: &mut Vec<Record>, select: impl Fn(&View, Seq) -> Option<Vec<Record>>) {
        let mut after = Seq::ZERO;
        while let Some(piece) = self.read(|view| select(view, after)) {
            let Some(last) = piece.last() else { return };
            after = last.seq;
            out.extend(piece);
        }
    }

    /// Reads under the lock; `read` must not wait for anything.
    pub(super) fn read<T>(&self, read: impl FnOnce(&View) -> T) -> T {
        read(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where the lowest cursor of a keyed lane stands, without the lock.
    pub(super) fn passed(&self, lane: Lane) -> Seq {
        match lane {
            Lane::State => Seq(self.passed_state.load(Ordering::Acquire)),
            Lane::Alert => Seq(self.passed_alert.load(Ordering::Acquire)),
            Lane::Event => NOBODY_WAITS,
        }
    }

    fn publish_passed(&self, view: &View) {
        let passed = |lane| view.keyed(lane).map_or(NOBODY_WAITS, Keyed::passed).0;
        self.passed_state.store(passed(Lane::State), Ordering::Release);
        self.passed_alert.store(passed(Lane::Alert), Ordering::Release);
    }
}

fn lag(view: &View, lane: Lane, cursor: Seq) -> Lag {
    let oldest = view.waiting(lane, cursor).next().map(|record| record.at);
    let (records, bytes) = match view.records(lane) {
        Some(records) => records.weigh_after(cursor),
        None => view.waiting(lane, cursor).fold((0, 0), |(n, bytes), record| (n + 1, bytes + record.cost() as u64)),
    };
    Lag { records, bytes, oldest }
}

fn gauge(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::model::Effect;
    use crate::queue::testing::{self, deleted, key, record};

    fn states(keys: &[(&str, u64)]) -> Vec<Effect> {
        keys.iter().map(|(key, seq)| Effect::Record(record(Lane::State, key, *seq))).collect()
    }

    fn cursor(sink: &str, lane: Lane, seq: u64) -> Effect {
        Effect::Cursor { sink: sink.into(), lane, seq: Seq(seq) }
    }

    fn seqs(snapshot: &Snapshot) -> Vec<u64> {
        snapshot.records.iter().map(|record| record.seq.0).collect()
    }

    #[test]
    fn a_list_holds_the_live_objects_in_key_order_at_the_head() {
        let mut effects = states(&[("b", 1), ("a", 2), ("gone", 3)]);
        effects.push(Effect::Record(deleted("gone", 4)));
        effects.push(Effect::Record(record(Lane::Event, "x", 5)));
        let fifo = testing::fifo(effects);
        let list = fifo.list(Lane::State, None);
        assert_eq!((list.at, seqs(&list)), (Seq(5), vec![2, 1]));
        assert_eq!(fifo.list(Lane::State, Some("other")).records, []);
        assert_eq!(fifo.list(Lane::State, Some("default")).records.len(), 2);
        assert_eq!(fifo.list(Lane::Event, None).records, []);
        assert_eq!(fifo.get(Lane::State, &key("gone")), None);
        assert_eq!(fifo.get(Lane::State, &key("a")).unwrap().seq, Seq(2));
    }

    #[test]
    fn changes_are_exact_from_the_floor_on_and_expired_below_it() {
        let mut effects = states(&[("a", 1), ("b", 2)]);
        effects.extend([Effect::Record(deleted("a", 3)), Effect::Record(deleted("c", 4))]);
        effects.push(Effect::Forget { lane: Lane::State, to: Seq(3) });
        let fifo = testing::fifo(effects);
        let expired = Expired { after: Seq(2), floor: Seq(3), head: Seq(4) };
        assert_eq!(fifo.changes(Lane::State, Seq(2), 9), Err(expired));
        assert_eq!(seqs(&fifo.changes(Lane::State, Seq(3), 9).unwrap()), [4]);
        assert!(fifo.changes(Lane::State, Seq(5), 9).is_err(), "the future is not known");
    }

    #[test]
    fn a_cut_list_of_changes_goes_on_where_it_ended() {
        let fifo = testing::fifo(states(&[("a", 1), ("b", 2), ("c", 3), ("d", 4)]));
        let first = fifo.changes(Lane::State, Seq::ZERO, 3).unwrap();
        assert_eq!((first.at, seqs(&first)), (Seq(3), vec![1, 2, 3]));
        let rest = fifo.changes(Lane::State, first.at, 3).unwrap();
        assert_eq!((rest.at, seqs(&rest)), (Seq(4), vec![4]));
        assert_eq!(fifo.changes(Lane::State, Seq(1), 0).unwrap().at, Seq(1));
    }

    #[test]
    fn events_and_alerts_can_be_followed_too() {
        let effects = [(Lane::Event, 1), (Lane::Event, 2), (Lane::Alert, 3), (Lane::Alert, 4)]
            .map(|(lane, seq)| Effect::Record(record(lane, "a", seq)));
        let fifo = testing::fifo(effects.to_vec());
        assert_eq!(seqs(&fifo.changes(Lane::Event, Seq::ZERO, 9).unwrap()), [1, 2]);
        assert_eq!(seqs(&fifo.changes(Lane::Alert, Seq::ZERO, 9).unwrap()), [4], "the newest of each alert");
    }

    #[test]
    fn the_head_is_told_and_so_is_a_new_cursor() {
        let fifo = testing::fifo(states(&[("a", 1)]));
        let mut watch = fifo.watch();
        testing::apply(&fifo, states(&[("a", 2)]));
        assert!(watch.has_changed().unwrap());
        assert_eq!(*watch.borrow_and_update(), Seq(2));
        testing::apply(&fifo, vec![cursor("s", Lane::State, 1)]);
        assert!(watch.has_changed().unwrap(), "its reader can start");
        watch.mark_unchanged();
        testing::apply(&fifo, vec![cursor("s", Lane::State, 2)]);
        assert!(!watch.has_changed().unwrap());
    }

    #[test]
    fn lag_counts_keys_and_records_never_a_difference_of_seqs() {
        let mut effects = states(&[("a", 10), ("a", 20), ("b", 30)]);
        effects.push(Effect::Record(record(Lane::Event, "a", 40)));
        effects.extend([cursor("s", Lane::State, 5), cursor("s", Lane::Event, 5), cursor("t", Lane::State, 30)]);
        let fifo = testing::fifo(effects);
        let lag = fifo.lag("s", Lane::State);
        assert_eq!((lag.records, lag.oldest.unwrap().unix_ms), (2, 20));
        assert_eq!(lag.bytes, 2 * record(Lane::State, "a", 1).cost() as u64);
        assert_eq!(fifo.lag("s", Lane::Event).records, 1);
        assert_eq!(fifo.lag("t", Lane::State), Lag::default());
        assert_eq!(fifo.lag("unknown", Lane::State), Lag::default());
        let stats = fifo.stats();
        assert_eq!((stats.devices, stats.events, stats.pending_records), (2, 1, 3));
        assert_eq!(fifo.cursors().len(), 3);
    }

    #[test]
    fn an_image_for_a_snapshot_leads_to_the_same_queue() {
        let mut effects: Vec<Effect> = (1..=3000)
            .map(|seq| Effect::Record(record(Lane::ALL[seq as usize % 3], &format!("k{}", seq % 900), seq)))
            .collect();
        effects.push(Effect::Record(deleted("k7", 3001)));
        effects.extend([cursor("s", Lane::State, 900), cursor("t", Lane::Event, 500)]);
        effects.push(Effect::Trim { lane: Lane::Event, to: Seq(400), lost: 0 });
        effects.push(Effect::Forget { lane: Lane::State, to: Seq(3) });
        let fifo = testing::fifo(effects);
        let image = fifo.image();
        let StateImage { newest, lane_records, cursors, floors } = image;
        let recovered = Recovered { image: newest, lane_records, cursors, floors, ..Recovered::default() };
        let again = DeltaFifo::recover(&testing::options(), recovered);
        assert_eq!((again.head(), again.stats(), again.cursors()), (fifo.head(), fifo.stats(), fifo.cursors()));
        for lane in Lane::ALL {
            let all = |fifo: &DeltaFifo| fifo.read(|view| view.waiting(lane, Seq::ZERO).cloned().collect::<Vec<_>>());
            assert_eq!(all(&again), all(&fifo), "{lane}");
            assert_eq!(again.list(lane, None), fifo.list(lane, None), "{lane}");
            assert_eq!(again.changes(lane, Seq(3), 9999), fifo.changes(lane, Seq(3), 9999), "{lane}");
        }
    }

    #[test]
    fn gauges_show_what_is_held_and_how_far_a_sink_is_behind() {
        let mut effects = states(&[("a", 1000), ("b", 2000)]);
        effects.push(cursor("s", Lane::State, 0));
        let (fifo, metrics) = (testing::fifo(effects), Metrics::new());
        fifo.observe(&metrics, Stamp { unix_ms: 6000, ..Stamp::default() });
        let label = SinkLane { sink: "s".into(), lane: Lane::State.into() };
        assert_eq!(metrics.devices.get(), 2);
        assert_eq!(metrics.lag_records.get_or_create(&label).get(), 2);
        assert_eq!(metrics.lag_seconds.get_or_create(&label).get(), 5);
    }

    #[test]
    fn tombstones_survive_a_restart_until_every_cursor_has_passed() {
        let recovered = Recovered {
            image: vec![record(Lane::State, "a", 1), deleted("b", 2)],
            cursors: vec![("s".into(), Lane::State, Seq(1))],
            ..Recovered::default()
        };
        let fifo = Arc::new(DeltaFifo::recover(&testing::options(), recovered));
        assert_eq!((fifo.stats().tombstones, fifo.passed(Lane::State)), (1, Seq(1)));
        assert!(fifo.reader(&"s".into(), Lane::State).pop(9, 9999)[0].is_deleted());
    }
}
