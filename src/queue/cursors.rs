//! `Cursors`: how far each sink has acknowledged each lane.

use std::sync::Arc;

use super::keyed::NOBODY_WAITS;
use crate::model::{Lane, Seq};

/// All cursors; as many as sinks and lanes are configured, so a list is searched.
#[derive(Debug, Clone, Default)]
pub(super) struct Cursors {
    all: Vec<Cursor>,
}

/// One cursor.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    /// The sink's name.
    pub(super) sink: Arc<str>,
    /// The lane.
    pub(super) lane: Lane,
    /// Acknowledged up to and including.
    pub(super) seq: Seq,
    /// Records above the cursor that were dropped since the process started.
    pub(super) lost: u64,
}

impl Cursors {
    /// The cursor of a sink in a lane.
    pub(super) fn get(&self, sink: &str, lane: Lane) -> Option<&Cursor> {
        self.all.iter().find(|cursor| &*cursor.sink == sink && cursor.lane == lane)
    }

    /// Moves a cursor up, or creates it. True if it is new.
    pub(super) fn set(&mut self, sink: &Arc<str>, lane: Lane, seq: Seq) -> bool {
        let known = self.all.iter_mut().find(|cursor| cursor.sink == *sink && cursor.lane == lane);
        let is_new = known.is_none();
        match known {
            Some(cursor) => cursor.seq = cursor.seq.max(seq),
            None => self.all.push(Cursor { sink: sink.clone(), lane, seq, lost: 0 }),
        }
        is_new
    }

    /// Forgets a sink.
    pub(super) fn release(&mut self, sink: &str) {
        self.all.retain(|cursor| &*cursor.sink != sink);
    }

    /// The lowest cursor of a lane, [`NOBODY_WAITS`] if it has none.
    pub(super) fn lowest(&self, lane: Lane) -> Seq {
        self.of_lane(lane).map(|cursor| cursor.seq).min().unwrap_or(NOBODY_WAITS)
    }

    /// The cursors of a lane.
    pub(super) fn of_lane(&self, lane: Lane) -> impl Iterator<Item = &Cursor> {
        self.all.iter().filter(move |cursor| cursor.lane == lane)
    }

    /// The cursors of a lane, to be changed.
    pub(super) fn of_lane_mut(&mut self, lane: Lane) -> impl Iterator<Item = &mut Cursor> {
        self.all.iter_mut().filter(move |cursor| cursor.lane == lane)
    }

    /// All cursors.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Cursor> {
        self.all.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_never_moves_down() {
        let (mut cursors, sink) = (Cursors::default(), Arc::from("s"));
        assert!(cursors.set(&sink, Lane::State, Seq(5)));
        assert!(!cursors.set(&sink, Lane::State, Seq(3)));
        assert_eq!(cursors.get("s", Lane::State).map(|cursor| cursor.seq), Some(Seq(5)));
    }

    #[test]
    fn the_slowest_sink_decides_and_a_released_one_does_not_count() {
        let mut cursors = Cursors::default();
        assert_eq!(cursors.lowest(Lane::Event), NOBODY_WAITS);
        cursors.set(&Arc::from("slow"), Lane::Event, Seq(2));
        cursors.set(&Arc::from("fast"), Lane::Event, Seq(9));
        cursors.set(&Arc::from("slow"), Lane::State, Seq(1));
        assert_eq!(cursors.lowest(Lane::Event), Seq(2));
        cursors.release("slow");
        assert_eq!(cursors.lowest(Lane::Event), Seq(9));
        assert_eq!(cursors.iter().count(), 1);
    }
}
