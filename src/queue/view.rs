//! `View`: what the committed effects amount to. Live commits and recovery go through the same [`View::apply`].

use std::sync::Arc;

use super::cursors::Cursors;
use super::keyed::Keyed;
use super::lane::RecordLane;
use crate::model::{Effect, Lane, Record, Seq};
use crate::store::{Recovered, StateImage};

/// The queue in RAM, without locks.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    head: Seq,
    newest_ms: i64,
    states: Keyed,
    alerts: Keyed,
    alert_lane: RecordLane,
    event_lane: RecordLane,
    cursors: Cursors,
}

/// What a [`View::apply`] did beside changing records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Applied {
    /// Records that went before every cursor had passed them.
    pub(super) dropped: Vec<Dropped>,
    /// Sinks that are gone.
    pub(super) released: Vec<Arc<str>>,
    /// A cursor was created.
    pub(super) cursor_created: bool,
}

/// Records of a lane that a bound dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dropped {
    /// The lane.
    pub(super) lane: Lane,
    /// The first record.
    pub(super) from: Seq,
    /// The last record.
    pub(super) to: Seq,
    /// How many of them some cursor had not passed.
    pub(super) lost: u64,
}

impl View {
    /// The view that a store recovered: its image, then the log behind it.
    pub(super) fn recover(recovered: Recovered) -> Self {
        let Recovered { image, mut lane_records, cursors, floors, tail, .. } = recovered;
        let mut view = Self::default();
        for (lane, trimmed, forgotten) in floors {
            view.raise_head(trimmed.max(forgotten));
            view.trim(lane, trimmed);
            view.forget(lane, forgotten);
        }
        for (sink, lane, seq) in cursors {
            view.raise_head(seq);
            view.cursors.set(&sink, lane, seq);
        }
        view.settle_cursors();
        for record in &image {
            view.note(record);
            view.keyed_mut(record.lane).into_iter().for_each(|keyed| keyed.insert(record));
        }
        lane_records.sort_by_key(|record| record.seq);
        for record in &lane_records {
            view.note(record);
            view.records_mut(record.lane).into_iter().for_each(|lane| lane.push(record));
        }
        let mut applied = Applied::default();
        for effect in &tail {
            view.apply(effect, &mut applied);
        }
        view
    }

    /// Takes one committed effect.
    pub(super) fn apply(&mut self, effect: &Effect, applied: &mut Applied) {
        match effect {
            Effect::Record(record) => {
                self.note(record);
                self.keyed_mut(record.lane).into_iter().for_each(|keyed| keyed.insert(record));
                self.records_mut(record.lane).into_iter().for_each(|lane| lane.push(record));
            }
            Effect::Cursor { sink, lane, seq } => {
                self.raise_head(*seq);
                applied.cursor_created |= self.cursors.set(sink, *lane, *seq);
                self.settle_cursors();
            }
            Effect::Release { sink } => {
                self.cursors.release(sink);
                self.settle_cursors();
                applied.released.push(sink.clone());
            }
            Effect::Trim { lane, to, lost } => {
                self.raise_head(*to);
                if let Some((from, _)) = self.trim(*lane, *to).filter(|_| *lost > 0) {
                    applied.dropped.push(Dropped { lane: *lane, from, to: *to, lost: *lost });
                }
            }
            Effect::Forget { lane, to } => {
                self.raise_head(*to);
                self.forget(*lane, *to);
            }
        }
    }

    /// The newest Seq.
    pub(super) fn head(&self) -> Seq {
        self.head
    }

    /// The newest wall time of any record, in milliseconds since 1970.
    pub(super) fn newest_ms(&self) -> i64 {
        self.newest_ms
    }

    /// All cursors.
    pub(super) fn cursors(&self) -> &Cursors {
        &self.cursors
    }

    /// The keys of lane `state` or `alert`; lane `event` has none.
    pub(super) fn keyed(&self, lane: Lane) -> Option<&Keyed> {
        match lane {
            Lane::State => Some(&self.states),
            Lane::Alert => Some(&self.alerts),
            Lane::Event => None,
        }
    }

    /// The records of lane `alert` or `event`; lane `state` has none.
    pub(super) fn records(&self, lane: Lane) -> Option<&RecordLane> {
        match lane {
            Lane::Alert => Some(&self.alert_lane),
            Lane::Event => Some(&self.event_lane),
            Lane::State => None,
        }
    }

    /// Records of a lane above `seq`, in order; in lane `state` the newest of each key.
    pub(super) fn waiting(&self, lane: Lane, seq: Seq) -> Box<dyn Iterator<Item = &Record> + '_> {
        match self.records(lane) {
            Some(records) => Box::new(records.after(seq)),
            None => Box::new(self.states.after(seq)),
        }
    }

    /// The part of the image for a snapshot that is small: cursors and floors.
    pub(super) fn positions(&self) -> StateImage {
        let cursors = self.cursors.iter().map(|cursor| (cursor.sink.clone(), cursor.lane, cursor.seq)).collect();
        let trimmed = |lane| self.records(lane).map_or(Seq::ZERO, RecordLane::floor);
        let forgotten = |lane| self.keyed(lane).map_or(Seq::ZERO, Keyed::floor);
        let floors = Lane::ALL.map(|lane| (lane, trimmed(lane), forgotten(lane))).to_vec();
        StateImage { cursors, floors, ..StateImage::default() }
    }

    fn keyed_mut(&mut self, lane: Lane) -> Option<&mut Keyed> {
        match lane {
            Lane::State => Some(&mut self.states),
            Lane::Alert => Some(&mut self.alerts),
            Lane::Event => None,
        }
    }

    fn records_mut(&mut self, lane: Lane) -> Option<&mut RecordLane> {
        match lane {
            Lane::Alert => Some(&mut self.alert_lane),
            Lane::Event => Some(&mut self.event_lane),
            Lane::State => None,
        }
    }

    fn note(&mut self, record: &Record) {
        self.raise_head(record.seq);
        self.newest_ms = self.newest_ms.max(record.at.unix_ms);
    }

    fn raise_head(&mut self, seq: Seq) {
        self.head = self.head.max(seq);
    }

    /// Returns the first record that went, and how many.
    fn trim(&mut self, lane: Lane, to: Seq) -> Option<(Seq, u64)> {
        let records = match lane {
            Lane::Alert => &mut self.alert_lane,
            Lane::Event => &mut self.event_lane,
            Lane::State => return None,
        };
        for cursor in self.cursors.of_lane_mut(lane).filter(|cursor| cursor.seq < to) {
            cursor.lost += records.weigh_after(cursor.seq).0 - records.weigh_after(to).0;
        }
        records.trim(to).map(|trimmed| (trimmed.from, trimmed.count))
    }

    fn forget(&mut self, lane: Lane, to: Seq) {
        self.keyed_mut(lane).into_iter().for_each(|keyed| keyed.forget(to));
    }

    /// Brings what depends on the cursors up to date.
    fn settle_cursors(&mut self) {
        self.states.set_passed(self.cursors.lowest(Lane::State));
        self.alerts.set_passed(self.cursors.lowest(Lane::Alert));
        for (lane, floor) in [(Lane::Alert, self.alert_lane.floor()), (Lane::Event, self.event_lane.floor())] {
            let current = self.cursors.of_lane_mut(lane).filter(|cursor| cursor.seq >= floor);
            current.for_each(|cursor| cursor.lost = 0);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::queue::testing::{deleted, key, record};

    fn view(effects: &[Effect]) -> (View, Applied) {
        let (mut view, mut applied) = (View::default(), Applied::default());
        for effect in effects {
            view.apply(effect, &mut applied);
        }
        (view, applied)
    }

    fn cursor(sink: &str, lane: Lane, seq: u64) -> Effect {
        Effect::Cursor { sink: sink.into(), lane, seq: Seq(seq) }
    }

    fn events(seqs: std::ops::RangeInclusive<u64>) -> Vec<Effect> {
        seqs.map(|seq| Effect::Record(record(Lane::Event, "a", seq))).collect()
    }

    #[test]
    fn an_alert_is_kept_as_a_transition_and_as_the_newest_of_its_key() {
        let (view, _) = view(&[1, 2].map(|seq| Effect::Record(record(Lane::Alert, "a", seq))));
        assert_eq!(view.records(Lane::Alert).unwrap().len(), 2);
        assert_eq!(view.keyed(Lane::Alert).unwrap().get(&key("a")).unwrap().seq, Seq(2));
    }

    #[test]
    fn what_a_bound_dropped_is_told_and_counted_for_the_cursors_that_lack_it() {
        let mut effects = events(1..=6);
        effects.extend([cursor("slow", Lane::Event, 1), cursor("fast", Lane::Event, 5)]);
        effects.push(Effect::Trim { lane: Lane::Event, to: Seq(4), lost: 3 });
        let (mut view, applied) = view(&effects);
        assert_eq!(applied.dropped, [Dropped { lane: Lane::Event, from: Seq(1), to: Seq(4), lost: 3 }]);
        let lost = |view: &View, sink| view.cursors().get(sink, Lane::Event).unwrap().lost;
        assert_eq!((lost(&view, "slow"), lost(&view, "fast")), (3, 0));
        view.apply(&cursor("slow", Lane::Event, 5), &mut Applied::default());
        assert_eq!(lost(&view, "slow"), 0, "it has gone on behind the gap");
    }

    #[test]
    fn a_trim_of_what_all_have_passed_drops_nothing() {
        let mut effects = events(1..=3);
        effects.push(cursor("s", Lane::Event, 2));
        effects.push(Effect::Trim { lane: Lane::Event, to: Seq(2), lost: 0 });
        let (view, applied) = view(&effects);
        assert!(applied.dropped.is_empty());
        assert_eq!(view.records(Lane::Event).unwrap().len(), 1);
    }

    #[test]
    fn a_view_from_an_image_equals_one_from_the_whole_log() {
        let mut effects = events(1..=3);
        effects.push(Effect::Record(record(Lane::State, "a", 4)));
        effects.push(Effect::Record(deleted("b", 5)));
        effects.push(cursor("s", Lane::Event, 2));
        effects.push(Effect::Trim { lane: Lane::Event, to: Seq(2), lost: 0 });
        let whole = view(&effects).0;
        let recovered = Recovered {
            image: vec![deleted("b", 5), record(Lane::State, "a", 4)],
            lane_records: vec![record(Lane::Event, "a", 3)],
            cursors: vec![("s".into(), Lane::Event, Seq(2))],
            floors: vec![(Lane::Event, Seq(2), Seq::ZERO)],
            tail: events(2..=3),
            ..Recovered::default()
        };
        let view = View::recover(recovered);
        assert_eq!((view.head(), view.newest_ms()), (whole.head(), whole.newest_ms()));
        for lane in Lane::ALL {
            assert!(view.waiting(lane, Seq::ZERO).eq(whole.waiting(lane, Seq::ZERO)), "{lane}");
        }
    }

    #[test]
    fn the_head_survives_the_loss_of_every_record() {
        let recovered = Recovered {
            cursors: vec![("s".into(), Lane::State, Seq(7))],
            floors: vec![(Lane::Event, Seq(9), Seq::ZERO), (Lane::State, Seq::ZERO, Seq(8))],
            ..Recovered::default()
        };
        assert_eq!(View::recover(recovered).head(), Seq(9));
    }

    #[test]
    fn a_released_sink_is_told_and_holds_nothing_back() {
        let (view, applied) = view(&[cursor("s", Lane::State, 1), Effect::Release { sink: "s".into() }]);
        assert_eq!(applied.released, [Arc::from("s")]);
        assert!(applied.cursor_created);
        assert_eq!(view.cursors().iter().count(), 0);
    }
}
