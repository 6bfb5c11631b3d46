//! `Tape`: how a sink reads lane `alert` or `event`: every record above the cursor, in order.

use std::collections::VecDeque;

use super::lane::RecordLane;
use crate::model::{ObjectKey, Record, Seq};

/// Records that a reader will never see: all that lay in `from..=to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// First position of the gap.
    pub from: Seq,
    /// Last position of the gap: the last record that was dropped.
    pub to: Seq,
    /// How many records were lost in it. For a reader that is new: 0 if they were dropped before the last checkpoint of
    /// an earlier start (they were counted then), and too many if its cursor was moved after the drop.
    pub lost: u64,
}

/// The position of one sink in a record lane.
#[derive(Debug)]
pub(super) struct Tape {
    acked: Position,
    read: Position,
    flying: VecDeque<(Position, ObjectKey)>,
    gap: Option<Gap>,
}

/// Behind a record: its Seq, and the ordinal of the record that follows.
#[derive(Debug, Clone, Copy)]
struct Position {
    seq: Seq,
    next: u64,
}

impl Tape {
    /// Starts behind a durable cursor, above which `lost` records are known to be dropped.
    pub(super) fn new(cursor: Seq, lost: u64, lane: &RecordLane) -> Self {
        let next =
            if cursor >= lane.floor() { lane.ordinal_after(cursor) } else { lane.first_ordinal().saturating_sub(lost) };
        let acked = Position { seq: cursor, next };
        Self { acked, read: acked, flying: VecDeque::new(), gap: None }
    }

    /// Acknowledged up to and including.
    pub(super) fn cursor(&self) -> Seq {
        self.acked.seq
    }

    /// The next records.
    pub(super) fn pop(&mut self, lane: &RecordLane, records_max: usize, bytes_max: usize) -> Vec<Record> {
        self.skip_dropped(lane);
        let (mut records, mut bytes) = (Vec::new(), 0);
        for record in lane.starting_at(self.read.next).take(records_max) {
            bytes += record.cost();
            if bytes > bytes_max && !records.is_empty() {
                break;
            }
            self.read = Position { seq: record.seq, next: self.read.next + 1 };
            self.flying.push_back((self.read, record.key.clone()));
            records.push(record.clone());
        }
        records
    }

    /// The first `count` popped records are delivered.
    pub(super) fn ack(&mut self, count: usize) {
        if let Some((last, _)) = self.flying.drain(..count.min(self.flying.len())).next_back() {
            self.acked = last;
        }
    }

    /// Goes back to the first record that is not acknowledged. A gap that lay behind it is told again.
    pub(super) fn rewind(&mut self) -> Vec<ObjectKey> {
        self.read = self.acked;
        self.gap = None;
        self.flying.drain(..).map(|(_, key)| key).collect()
    }

    /// The gap before the records popped last, once.
    pub(super) fn take_gap(&mut self) -> Option<Gap> {
        self.gap.take()
    }

    fn skip_dropped(&mut self, lane: &RecordLane) {
        if self.read.seq >= lane.floor() {
            return;
        }
        let lost = lane.first_ordinal().saturating_sub(self.read.next);
        let (from, before) = self.gap.map_or((self.read.seq.next(), 0), |gap| (gap.from, gap.lost));
        self.gap = Some(Gap { from, to: lane.floor(), lost: before + lost });
        self.read = Position { seq: lane.floor(), next: lane.first_ordinal() };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::model::Lane;
    use crate::queue::testing::{key, record};

    fn lane(last: u64) -> RecordLane {
        let mut lane = RecordLane::default();
        (1..=last).for_each(|seq| lane.push(&record(Lane::Event, &format!("k{seq}"), seq)));
        lane
    }

    fn pop(tape: &mut Tape, lane: &RecordLane, max: usize) -> Vec<u64> {
        tape.pop(lane, max, usize::MAX).iter().map(|record| record.seq.0).collect()
    }

    #[test]
    fn records_come_in_order_and_the_cursor_follows_the_acknowledgements() {
        let lane = lane(5);
        let mut tape = Tape::new(Seq(1), 0, &lane);
        assert_eq!(pop(&mut tape, &lane, 2), [2, 3]);
        assert_eq!(pop(&mut tape, &lane, 9), [4, 5]);
        assert_eq!(tape.cursor(), Seq(1));
        tape.ack(3);
        assert_eq!(tape.cursor(), Seq(4));
        tape.ack(9);
        assert_eq!((tape.cursor(), pop(&mut tape, &lane, 9)), (Seq(5), vec![]));
    }

    #[test]
    fn a_rewind_goes_back_to_the_first_unacknowledged_record() {
        let lane = lane(3);
        let mut tape = Tape::new(Seq::ZERO, 0, &lane);
        pop(&mut tape, &lane, 3);
        tape.ack(1);
        assert_eq!(tape.rewind(), [key("k2"), key("k3")]);
        assert_eq!(pop(&mut tape, &lane, 9), [2, 3]);
    }

    #[test]
    fn a_reader_that_fell_behind_goes_on_at_the_floor_and_is_told_the_gap_once() {
        let mut lane = lane(6);
        let mut tape = Tape::new(Seq(1), 0, &lane);
        lane.trim(Seq(4));
        assert_eq!(pop(&mut tape, &lane, 9), [5, 6]);
        assert_eq!(tape.take_gap(), Some(Gap { from: Seq(2), to: Seq(4), lost: 3 }));
        assert_eq!(tape.take_gap(), None);
    }

    #[test]
    fn what_was_popped_before_it_was_dropped_is_not_in_the_gap() {
        let mut lane = lane(6);
        let mut tape = Tape::new(Seq::ZERO, 0, &lane);
        pop(&mut tape, &lane, 3);
        lane.trim(Seq(5));
        assert_eq!(pop(&mut tape, &lane, 9), [6]);
        assert_eq!(tape.take_gap(), Some(Gap { from: Seq(4), to: Seq(5), lost: 2 }));
    }

    #[test]
    fn a_gap_that_was_not_acknowledged_is_told_again_after_a_rewind() {
        let mut lane = lane(6);
        let mut tape = Tape::new(Seq(1), 0, &lane);
        lane.trim(Seq(4));
        pop(&mut tape, &lane, 1);
        let gap = tape.take_gap();
        tape.rewind();
        assert_eq!(pop(&mut tape, &lane, 1), [5]);
        assert_eq!(tape.take_gap(), gap);
        tape.ack(1);
        tape.rewind();
        assert_eq!((pop(&mut tape, &lane, 9), tape.take_gap()), (vec![6], None));
    }

    #[test]
    fn a_gap_that_grows_before_it_is_taken_is_told_as_one() {
        let mut lane = lane(6);
        let mut tape = Tape::new(Seq::ZERO, 0, &lane);
        lane.trim(Seq(2));
        assert_eq!(pop(&mut tape, &lane, 0), [0; 0]);
        lane.trim(Seq(5));
        assert_eq!(pop(&mut tape, &lane, 9), [6]);
        assert_eq!(tape.take_gap(), Some(Gap { from: Seq(1), to: Seq(5), lost: 5 }));
    }

    #[test]
    fn a_new_reader_behind_the_floor_knows_what_was_counted_for_its_cursor() {
        let mut lane = lane(6);
        lane.trim(Seq(4));
        let mut tape = Tape::new(Seq(1), 3, &lane);
        assert_eq!(pop(&mut tape, &lane, 1), [5]);
        assert_eq!(tape.take_gap(), Some(Gap { from: Seq(2), to: Seq(4), lost: 3 }));
    }

    #[test]
    fn a_batch_ends_at_its_bound_but_holds_one_record_at_least() {
        let lane = lane(5);
        let cost = record(Lane::Event, "k1", 1).cost();
        let mut tape = Tape::new(Seq::ZERO, 0, &lane);
        assert_eq!(tape.pop(&lane, 9, 3 * cost - 1).len(), 2);
        assert_eq!(tape.pop(&lane, 9, 0).len(), 1);
    }
}
