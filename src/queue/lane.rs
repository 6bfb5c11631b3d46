//! `RecordLane`: every record of a lane in order, until it is trimmed.

use std::collections::VecDeque;

use crate::model::{Record, Seq};

/// The records of lane `alert` or `event`.
///
/// Each record has an ordinal, counted since the process started, so that a reader that fell behind can tell exactly
/// how many records it has lost; and the sum of all costs up to it, so that a lag in bytes needs no walk.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordLane {
    held: VecDeque<Held>,
    first: u64,
    start_bytes: u64,
    end_bytes: u64,
    floor: Seq,
}

/// What a trim took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trimmed {
    /// The first record that went.
    pub(super) from: Seq,
    /// How many went.
    pub(super) count: u64,
}

#[derive(Debug, Clone)]
struct Held {
    record: Record,
    end_bytes: u64,
}

impl RecordLane {
    /// Appends a record; one that is not newer than the last, or was trimmed before, is a replay and ignored.
    pub(super) fn push(&mut self, record: &Record) {
        let last = self.held.back().map_or(self.floor, |held| held.record.seq);
        if record.seq > last {
            self.end_bytes += record.cost() as u64;
            self.held.push_back(Held { record: record.clone(), end_bytes: self.end_bytes });
        }
    }

    /// Forgets the records up to and including `to`.
    pub(super) fn trim(&mut self, to: Seq) -> Option<Trimmed> {
        self.floor = self.floor.max(to);
        let from = self.front()?;
        let before = self.first;
        while let Some(held) = self.held.pop_front_if(|held| held.record.seq <= to) {
            self.start_bytes = held.end_bytes;
            self.first += 1;
        }
        let count = self.first - before;
        (count > 0).then_some(Trimmed { from, count })
    }

    /// Number of records held.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Cost of the records held.
    pub(super) fn bytes(&self) -> u64 {
        self.end_bytes - self.start_bytes
    }

    /// Everything up to here is forgotten.
    pub(super) fn floor(&self) -> Seq {
        self.floor
    }

    /// The oldest record held.
    pub(super) fn front(&self) -> Option<Seq> {
        self.held.front().map(|held| held.record.seq)
    }

    /// Ordinal of the oldest record held.
    pub(super) fn first_ordinal(&self) -> u64 {
        self.first
    }

    /// Ordinal of the first record above `seq`.
    pub(super) fn ordinal_after(&self, seq: Seq) -> u64 {
        self.first + self.index_after(seq) as u64
    }

    /// Records from an ordinal on, oldest first.
    pub(super) fn starting_at(&self, ordinal: u64) -> impl Iterator<Item = &Record> {
        let skip = usize::try_from(ordinal.saturating_sub(self.first)).unwrap_or(usize::MAX).min(self.held.len());
        self.held.range(skip..).map(|held| &held.record)
    }

    /// Records above `seq`, oldest first.
    pub(super) fn after(&self, seq: Seq) -> impl Iterator<Item = &Record> {
        self.held.range(self.index_after(seq)..).map(|held| &held.record)
    }

    /// How many records lie above `seq`, and their cost.
    pub(super) fn weigh_after(&self, seq: Seq) -> (u64, u64) {
        let index = self.index_after(seq);
        let before = index.checked_sub(1).and_then(|last| self.held.get(last));
        let start = before.map_or(self.start_bytes, |held| held.end_bytes);
        ((self.held.len() - index) as u64, self.end_bytes - start)
    }

    /// The last record at or below `seq`.
    pub(super) fn last_up_to(&self, seq: Seq) -> Option<Seq> {
        self.held.get(self.index_after(seq).checked_sub(1)?).map(|held| held.record.seq)
    }

    /// The record up to which the oldest must go so that at least `bytes` are freed, as far as there are any.
    pub(super) fn last_of_oldest(&self, bytes: u64) -> Option<Seq> {
        let goal = self.start_bytes.saturating_add(bytes);
        let index = self.held.partition_point(|held| held.end_bytes < goal);
        self.held.get(index).or(self.held.back()).map(|held| held.record.seq)
    }

    fn index_after(&self, seq: Seq) -> usize {
        self.held.partition_point(|held| held.record.seq <= seq)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::model::Lane;
    use crate::queue::testing::record;

    fn lane(seqs: impl IntoIterator<Item = u64>) -> RecordLane {
        let mut lane = RecordLane::default();
        seqs.into_iter().for_each(|seq| lane.push(&record(Lane::Event, "a", seq)));
        lane
    }

    fn seqs<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<u64> {
        records.map(|record| record.seq.0).collect()
    }

    #[test]
    fn records_above_a_position_come_in_order() {
        let lane = lane([2, 4, 6]);
        assert_eq!(seqs(lane.after(Seq(2))), [4, 6]);
        assert_eq!(seqs(lane.after(Seq(3))), [4, 6]);
        assert_eq!(seqs(lane.after(Seq(9))), [0; 0]);
        assert_eq!((lane.front(), lane.len()), (Some(Seq(2)), 3));
    }

    #[test]
    fn a_trim_tells_what_it_took_and_keeps_the_ordinals_of_the_rest() {
        let mut lane = lane([2, 4, 6]);
        assert_eq!(lane.ordinal_after(Seq(4)), 2);
        assert_eq!(lane.trim(Seq(5)), Some(Trimmed { from: Seq(2), count: 2 }));
        assert_eq!((lane.first_ordinal(), lane.floor()), (2, Seq(5)));
        assert_eq!(lane.ordinal_after(Seq(4)), 2);
        assert_eq!(seqs(lane.starting_at(0)), [6]);
        assert_eq!(lane.trim(Seq(5)), None);
    }

    #[test]
    fn a_replayed_record_is_not_held_twice() {
        let mut lane = lane([2, 4, 4, 2]);
        assert_eq!(lane.len(), 2);
        lane.trim(Seq(9));
        lane.push(&record(Lane::Event, "a", 7));
        assert_eq!((lane.len(), lane.bytes()), (0, 0));
    }

    #[test]
    fn the_weight_of_a_rest_is_the_sum_of_its_costs() {
        let mut lane = lane(1..=5);
        let cost = record(Lane::Event, "a", 1).cost() as u64;
        assert_eq!(lane.weigh_after(Seq(2)), (3, 3 * cost));
        lane.trim(Seq(3));
        assert_eq!((lane.weigh_after(Seq::ZERO), lane.bytes()), ((2, 2 * cost), 2 * cost));
        assert_eq!(lane.weigh_after(Seq(5)), (0, 0));
    }

    #[test]
    fn the_oldest_go_until_enough_is_freed() {
        let lane = lane(1..=5);
        let cost = record(Lane::Event, "a", 1).cost() as u64;
        assert_eq!(lane.last_of_oldest(1), Some(Seq(1)));
        assert_eq!(lane.last_of_oldest(cost + 1), Some(Seq(2)));
        assert_eq!(lane.last_of_oldest(100 * cost), Some(Seq(5)));
        assert_eq!(lane.last_up_to(Seq(3)), Some(Seq(3)));
        assert_eq!(lane.last_up_to(Seq::ZERO), None);
    }
}
