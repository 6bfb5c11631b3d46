//! Upkeep: which cursor moves, trims and forgets ride in the next frame.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::QueueOptions;
use super::cursors::Cursors;
use super::keyed::{NOBODY_WAITS, TombstoneLimits};
use super::lane::RecordLane;
use super::view::View;
use crate::model::{Effect, Lane, Seq};

/// Tombstones that every cursor has passed stay this long, for watchers.
const TOMBSTONE_AGE_MS_MIN: i64 = 24 * 3600 * 1000;

/// And at most so many of them a lane.
const TOMBSTONES_PASSED_MAX: usize = 10_000;

/// Acknowledgements that wait for the commit thread: the newest of each sink and lane.
#[derive(Debug, Clone, Default)]
pub(super) struct Acks {
    moves: BTreeMap<(Arc<str>, Lane), Seq>,
    releases: Vec<Arc<str>>,
}

impl Acks {
    /// Nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.moves.is_empty() && self.releases.is_empty()
    }

    /// A sink has acknowledged its lane up to `seq`.
    pub(super) fn ack(&mut self, sink: &Arc<str>, lane: Lane, seq: Seq) {
        let newest = self.moves.entry((sink.clone(), lane)).or_insert(seq);
        *newest = seq.max(*newest);
    }

    /// A sink is gone; an acknowledgement that comes later creates it anew.
    pub(super) fn release(&mut self, sink: &Arc<str>) {
        self.moves.retain(|(of, _), _| of != sink);
        if !self.releases.contains(sink) {
            self.releases.push(sink.clone());
        }
    }
}

/// The limits that upkeep holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    event_bytes_max: u64,
    alert_bytes_max: u64,
    tombstones: TombstoneLimits,
}

impl Limits {
    /// From the configuration.
    pub(super) fn new(options: &QueueOptions) -> Self {
        let tombstones = TombstoneLimits { passed_max: TOMBSTONES_PASSED_MAX, age_ms_min: TOMBSTONE_AGE_MS_MIN };
        Self { event_bytes_max: options.event_bytes_max, alert_bytes_max: options.alert_bytes_max, tombstones }
    }

    fn bytes_max(&self, lane: Lane) -> u64 {
        if lane == Lane::Alert { self.alert_bytes_max } else { self.event_bytes_max }
    }
}

/// Cost of the records that the batch adds to the record lanes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Incoming {
    /// Lane `alert`.
    pub(super) alert: u64,
    /// Lane `event`.
    pub(super) event: u64,
}

/// The effects of the acknowledgements: only real moves. A cursor never lies above the head; a new one in a record
/// lane begins at what is kept, so that it is told no gap.
pub(super) fn cursor_effects(view: &View, acks: Acks) -> Vec<Effect> {
    let mut cursors = view.cursors().clone();
    let mut effects = Vec::new();
    for sink in acks.releases {
        if cursors.iter().any(|cursor| cursor.sink == sink) {
            cursors.release(&sink);
            effects.push(Effect::Release { sink });
        }
    }
    for ((sink, lane), seq) in acks.moves {
        let seq = seq.min(view.head());
        match cursors.get(&sink, lane) {
            Some(cursor) if cursor.seq >= seq => {}
            Some(_) => effects.push(Effect::Cursor { sink, lane, seq }),
            None => {
                let floor = view.records(lane).map_or(Seq::ZERO, RecordLane::floor);
                effects.push(Effect::Cursor { sink, lane, seq: seq.max(floor) });
            }
        }
    }
    effects
}

/// What may be trimmed and forgotten once `moves` have been applied to the view.
pub(super) fn follow_ups(view: &View, moves: &[Effect], incoming: Incoming, limits: &Limits) -> Vec<Effect> {
    let mut cursors = view.cursors().clone();
    for effect in moves {
        match effect {
            Effect::Cursor { sink, lane, seq } => {
                cursors.set(sink, *lane, *seq);
            }
            Effect::Release { sink } => cursors.release(sink),
            Effect::Record(_) | Effect::Trim { .. } | Effect::Forget { .. } => {}
        }
    }
    let trims = [(Lane::Alert, incoming.alert), (Lane::Event, incoming.event)]
        .into_iter()
        .filter_map(|(lane, incoming)| trim(view, &cursors, lane, incoming, limits.bytes_max(lane)));
    let forgets = [Lane::State, Lane::Alert].into_iter().filter_map(|lane| forget(view, &cursors, lane, limits));
    trims.chain(forgets).collect()
}

fn trim(view: &View, cursors: &Cursors, lane: Lane, incoming: u64, bytes_max: u64) -> Option<Effect> {
    let records = view.records(lane)?;
    let lowest = cursors.lowest(lane);
    let passed = if lowest == NOBODY_WAITS { None } else { records.last_up_to(lowest) };
    let excess = records.bytes().saturating_add(incoming).saturating_sub(bytes_max);
    let bound = if excess > 0 { records.last_of_oldest(excess) } else { None };
    let to = passed.max(bound)?;
    let waiting = |seq| records.weigh_after(seq).0;
    let lost = if lowest < to { waiting(lowest) - waiting(to) } else { 0 };
    Some(Effect::Trim { lane, to, lost })
}

fn forget(view: &View, cursors: &Cursors, lane: Lane, limits: &Limits) -> Option<Effect> {
    let to = view.keyed(lane)?.forgettable(cursors.lowest(lane), view.newest_ms(), limits.tombstones)?;
    Some(Effect::Forget { lane, to })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::queue::testing::{self, deleted, record};
    use crate::queue::view::Applied;

    fn view(effects: impl IntoIterator<Item = Effect>) -> View {
        let mut view = View::default();
        effects.into_iter().for_each(|effect| view.apply(&effect, &mut Applied::default()));
        view
    }

    fn events(last: u64) -> impl Iterator<Item = Effect> {
        (1..=last).map(|seq| Effect::Record(record(Lane::Event, "a", seq)))
    }

    fn cursor(sink: &str, lane: Lane, seq: u64) -> Effect {
        Effect::Cursor { sink: sink.into(), lane, seq: Seq(seq) }
    }

    fn trimmed(to: u64, lost: u64) -> Effect {
        Effect::Trim { lane: Lane::Event, to: Seq(to), lost }
    }

    /// Room for `records` events.
    fn limits(records: u64) -> Limits {
        let cost = record(Lane::Event, "a", 1).cost() as u64;
        Limits { event_bytes_max: records * cost, ..Limits::new(&testing::options()) }
    }

    fn acks(moves: &[(&str, Lane, u64)]) -> Acks {
        let mut acks = Acks::default();
        for (sink, lane, seq) in moves {
            acks.ack(&Arc::from(*sink), *lane, Seq(*seq));
        }
        acks
    }

    #[test]
    fn only_a_move_upwards_becomes_an_effect() {
        let view = view(events(9).chain([cursor("s", Lane::Event, 5)]));
        assert_eq!(cursor_effects(&view, acks(&[("s", Lane::Event, 5), ("s", Lane::Event, 3)])), []);
        assert_eq!(cursor_effects(&view, acks(&[("s", Lane::Event, 6)])), [cursor("s", Lane::Event, 6)]);
    }

    #[test]
    fn a_cursor_never_lies_above_the_head() {
        let view = view(events(3).chain([cursor("s", Lane::Event, 1)]));
        assert_eq!(cursor_effects(&view, acks(&[("s", Lane::Event, 99)])), [cursor("s", Lane::Event, 3)]);
    }

    #[test]
    fn a_new_cursor_begins_at_what_is_kept() {
        let view = view(events(5).chain([trimmed(3, 0)]));
        let made = cursor_effects(&view, acks(&[("s", Lane::Event, 0), ("s", Lane::State, 0)]));
        assert_eq!(made, [cursor("s", Lane::State, 0), cursor("s", Lane::Event, 3)]);
    }

    #[test]
    fn an_acknowledgement_after_a_release_creates_the_sink_anew() {
        let view = view(events(5).chain([cursor("s", Lane::Event, 2)]));
        let mut acks = acks(&[("s", Lane::Event, 4)]);
        acks.release(&Arc::from("s"));
        acks.release(&Arc::from("s"));
        acks.release(&Arc::from("unknown"));
        acks.ack(&Arc::from("s"), Lane::Event, Seq(1));
        let effects = cursor_effects(&view, acks);
        assert_eq!(effects, [Effect::Release { sink: "s".into() }, cursor("s", Lane::Event, 1)]);
    }

    #[test]
    fn what_the_slowest_sink_has_passed_is_trimmed_in_the_frame_that_moves_it() {
        let view = view(events(9).chain([cursor("slow", Lane::Event, 2), cursor("fast", Lane::Event, 8)]));
        let none = Incoming::default();
        assert_eq!(follow_ups(&view, &[], none, &limits(99)), [trimmed(2, 0)]);
        assert_eq!(follow_ups(&view, &[cursor("slow", Lane::Event, 6)], none, &limits(99)), [trimmed(6, 0)]);
        let gone = Effect::Release { sink: "slow".into() };
        assert_eq!(follow_ups(&view, &[gone], none, &limits(99)), [trimmed(8, 0)]);
    }

    #[test]
    fn without_a_sink_records_stay_up_to_their_bound_and_none_counts_as_lost() {
        let view = view(events(9));
        assert_eq!(follow_ups(&view, &[], Incoming::default(), &limits(9)), []);
        assert_eq!(follow_ups(&view, &[], Incoming::default(), &limits(7)), [trimmed(2, 0)]);
    }

    #[test]
    fn beyond_the_bound_the_oldest_are_dropped_and_counted() {
        let view = view(events(9).chain([cursor("s", Lane::Event, 1)]));
        assert_eq!(follow_ups(&view, &[], Incoming::default(), &limits(6)), [trimmed(3, 2)]);
        let cost = record(Lane::Event, "a", 1).cost() as u64;
        let incoming = Incoming { event: 2 * cost, alert: 0 };
        assert_eq!(follow_ups(&view, &[], incoming, &limits(6)), [trimmed(5, 4)], "the batch counts before it is in");
    }

    #[test]
    fn an_acknowledgement_in_the_same_frame_is_not_counted_as_lost() {
        let view = view(events(9).chain([cursor("s", Lane::Event, 1)]));
        assert_eq!(follow_ups(&view, &[cursor("s", Lane::Event, 3)], Incoming::default(), &limits(6)), [trimmed(3, 0)]);
    }

    #[test]
    fn a_tombstone_goes_after_a_day_and_after_every_cursor() {
        let day = TOMBSTONE_AGE_MS_MIN as u64;
        let later = Effect::Record(record(Lane::State, "b", day + 1));
        let effects = [Effect::Record(deleted("a", 1)), cursor("s", Lane::State, 0), later];
        let view = view(effects);
        let none = Incoming::default();
        assert_eq!(follow_ups(&view, &[], none, &limits(9)), [], "the cursor needs it");
        let passed = [cursor("s", Lane::State, 1)];
        let forgotten = Effect::Forget { lane: Lane::State, to: Seq(1) };
        assert_eq!(follow_ups(&view, &passed, none, &limits(9)), [forgotten]);
    }
}
