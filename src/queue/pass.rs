//! `Passes`: how a sink reads lane `state`.
//!
//! A pass takes the keys whose last change lies in (cursor, S], S being the head when it starts, in the order of that
//! change, and sends each once with the newest state it has when it is popped. The cursor follows the acknowledged
//! prefix and stands at S when the pass is done; what changes meanwhile waits for the next pass. So a key waits at
//! most one pass, and nothing is kept per key and sink: the rule is the same after a restart. A pass holds one key and
//! Seq for each of its keys, at most `keys_max` of them (some 5 MB for 100 000).

use std::collections::{HashMap, HashSet, VecDeque};

use super::keyed::Keyed;
use crate::model::{ObjectKey, Record, Seq};

/// The passes of one sink.
#[derive(Debug)]
pub(super) struct Passes {
    cursor: Seq,
    end: Seq,
    todo: VecDeque<Stop>,
    flying: VecDeque<Flying>,
    acked: HashMap<ObjectKey, Seq>,
    again: HashSet<ObjectKey>,
}

/// A key of the pass and its last change when the pass started.
#[derive(Debug)]
struct Stop {
    place: Seq,
    key: ObjectKey,
}

/// A key that was popped, and the state that was sent.
#[derive(Debug)]
struct Flying {
    stop: Stop,
    sent: Seq,
}

impl Passes {
    /// Starts behind a durable cursor.
    pub(super) fn new(cursor: Seq) -> Self {
        Self {
            cursor,
            end: cursor,
            todo: VecDeque::new(),
            flying: VecDeque::new(),
            acked: HashMap::new(),
            again: HashSet::new(),
        }
    }

    /// Acknowledged up to and including.
    pub(super) fn cursor(&self) -> Seq {
        self.cursor
    }

    /// The next records of the pass; a new pass starts when all of the last one is acknowledged.
    pub(super) fn pop(&mut self, keyed: &Keyed, head: Seq, records_max: usize, bytes_max: usize) -> Vec<Record> {
        if self.is_done() {
            self.open(keyed, head);
        }
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < records_max {
            let Some(stop) = self.todo.pop_front() else { break };
            // A key without a record is a tombstone that every cursor has passed: there is nothing to send.
            let Some(record) = keyed.get(&stop.key) else { continue };
            if !records.is_empty() && bytes + record.cost() > bytes_max {
                self.todo.push_front(stop);
                break;
            }
            bytes += record.cost();
            self.flying.push_back(Flying { stop, sent: record.seq });
            records.push(record.clone());
        }
        self.settle();
        records
    }

    /// The first `count` popped records are delivered.
    pub(super) fn ack(&mut self, count: usize, keyed: &Keyed, head: Seq) {
        for flying in self.flying.drain(..count.min(self.flying.len())) {
            self.acked.insert(flying.stop.key, flying.sent);
        }
        self.settle();
        if self.is_done() && count > 0 {
            // What changed during the pass may all be acknowledged by now; then the cursor goes on to the head.
            self.open(keyed, head);
        }
    }

    /// What is popped and not acknowledged goes back to its place; its keys are returned.
    pub(super) fn rewind(&mut self) -> Vec<ObjectKey> {
        self.acked.clear();
        let keys = self.flying.iter().map(|flying| flying.stop.key.clone()).collect();
        while let Some(flying) = self.flying.pop_back() {
            self.todo.push_front(flying.stop);
        }
        keys
    }

    /// These keys are sent once more in the next pass, whatever the cursor says.
    pub(super) fn resend(&mut self, keys: Vec<ObjectKey>) {
        self.again.extend(keys);
    }

    fn is_done(&self) -> bool {
        self.todo.is_empty() && self.flying.is_empty()
    }

    fn open(&mut self, keyed: &Keyed, head: Seq) {
        if head == self.end && self.again.is_empty() {
            return;
        }
        let again = std::mem::take(&mut self.again);
        let fresh = |record: &Record| self.acked.get(&record.key) != Some(&record.seq);
        let passed = again.iter().filter_map(|key| keyed.get(key)).filter(|record| record.seq <= self.cursor);
        let beyond = keyed.after(self.cursor).filter(|record| fresh(record) || again.contains(&record.key));
        let mut stops: Vec<Stop> =
            passed.chain(beyond).map(|record| Stop { place: record.seq, key: record.key.clone() }).collect();
        stops.sort_by_key(|stop| stop.place);
        self.todo = stops.into();
        self.end = head;
        self.acked.clear();
        self.settle();
    }

    /// The cursor stands right before the first key that is not acknowledged, or at the end of the pass.
    fn settle(&mut self) {
        let first = self.flying.front().map(|flying| &flying.stop).or(self.todo.front());
        let to = first.map_or(self.end, |stop| Seq(stop.place.0.saturating_sub(1)));
        self.cursor = self.cursor.max(to);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::model::{Lane, Uid};
    use crate::queue::testing::{deleted, key, record};

    /// Keyed states with their head.
    #[derive(Default)]
    struct States {
        keyed: Keyed,
        head: Seq,
    }

    impl States {
        fn of(keys: &[&str]) -> Self {
            let mut states = Self::default();
            for key in keys {
                states.put(key);
            }
            states
        }

        fn put(&mut self, key: &str) {
            self.head = self.head.next();
            self.keyed.insert(&record(Lane::State, key, self.head.0));
        }

        fn delete(&mut self, key: &str) {
            self.head = self.head.next();
            self.keyed.insert(&deleted(key, self.head.0));
        }

        fn pop(&self, passes: &mut Passes, max: usize) -> Vec<(String, u64)> {
            let records = passes.pop(&self.keyed, self.head, max, usize::MAX);
            records.iter().map(|record| (record.key.name().to_string(), record.seq.0)).collect()
        }

        fn ack(&self, passes: &mut Passes, count: usize) -> u64 {
            passes.ack(count, &self.keyed, self.head);
            passes.cursor().0
        }
    }

    fn sent(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
        pairs.iter().map(|(key, seq)| ((*key).to_owned(), *seq)).collect()
    }

    #[test]
    fn a_pass_goes_in_the_order_of_the_last_change() {
        let states = States::of(&["a", "b", "c", "a"]);
        let mut passes = Passes::new(Seq::ZERO);
        assert_eq!(states.pop(&mut passes, 9), sent(&[("b", 2), ("c", 3), ("a", 4)]));
        assert_eq!(states.ack(&mut passes, 3), 4);
    }

    #[test]
    fn the_cursor_follows_the_acknowledged_prefix_and_never_what_is_only_popped() {
        let states = States::of(&["a", "b", "c"]);
        let mut passes = Passes::new(Seq::ZERO);
        states.pop(&mut passes, 3);
        assert_eq!(passes.cursor(), Seq::ZERO);
        assert_eq!(states.ack(&mut passes, 1), 1);
        assert_eq!(states.ack(&mut passes, 1), 2);
        assert_eq!(states.ack(&mut passes, 9), 3);
    }

    #[test]
    fn an_update_before_the_pop_is_one_record_with_the_newest_state() {
        let mut states = States::of(&["a", "b"]);
        let mut passes = Passes::new(Seq::ZERO);
        assert_eq!(states.pop(&mut passes, 1), sent(&[("a", 1)]));
        states.put("b");
        states.put("b");
        assert_eq!(states.pop(&mut passes, 9), sent(&[("b", 4)]));
    }

    #[test]
    fn a_key_is_never_popped_twice_before_its_acknowledgement() {
        let mut states = States::of(&["a"]);
        let mut passes = Passes::new(Seq::ZERO);
        assert_eq!(states.pop(&mut passes, 9), sent(&[("a", 1)]));
        states.put("a");
        assert_eq!(states.pop(&mut passes, 9), []);
        states.ack(&mut passes, 1);
        assert_eq!(states.pop(&mut passes, 9), sent(&[("a", 2)]));
    }

    #[test]
    fn the_cursor_of_a_finished_pass_stands_at_its_start_not_at_the_head() {
        let mut states = States::of(&["a", "b"]);
        let mut passes = Passes::new(Seq::ZERO);
        states.pop(&mut passes, 9);
        states.put("a");
        assert_eq!(states.ack(&mut passes, 2), 2);
        assert_eq!(states.pop(&mut passes, 9), sent(&[("a", 3)]));
    }

    #[test]
    fn a_key_that_changes_all_the_time_never_keeps_another_waiting() {
        let mut states = States::of(&["busy", "rare"]);
        let mut passes = Passes::new(Seq::ZERO);
        let mut order = Vec::new();
        for _ in 0..6 {
            states.put("busy");
            order.extend(states.pop(&mut passes, 1).into_iter().map(|(key, _)| key));
            states.ack(&mut passes, 1);
        }
        assert!(order[..2].contains(&"rare".to_owned()), "{order:?}");
    }

    #[test]
    fn a_key_acknowledged_with_its_newest_state_is_not_sent_again_in_the_next_pass() {
        let mut states = States::of(&["a", "b"]);
        let mut passes = Passes::new(Seq::ZERO);
        states.pop(&mut passes, 1);
        states.put("b");
        assert_eq!(states.pop(&mut passes, 1), sent(&[("b", 3)]));
        assert_eq!(states.ack(&mut passes, 2), 3, "nothing is left, so the cursor is at the head");
        assert_eq!(states.pop(&mut passes, 9), []);
        assert_eq!((passes.acked.len(), passes.todo.len()), (0, 0), "nothing is remembered beyond a pass");
    }

    #[test]
    fn a_key_deleted_before_it_was_sent_is_sent_as_deleted() {
        let mut states = States::of(&["a"]);
        states.put("new");
        states.head = Seq(3);
        let uid = Uid { seq: Seq(2), ..Uid::default() };
        states.keyed.insert(&Record { uid, ..deleted("new", 3) });
        let mut passes = Passes::new(Seq(1));
        let records = passes.pop(&states.keyed, states.head, 9, usize::MAX);
        assert_eq!(records.len(), 1);
        assert!(records[0].is_deleted() && records[0].key == key("new"));
    }

    #[test]
    fn a_forgotten_tombstone_leaves_the_pass() {
        let mut states = States::of(&["a", "b"]);
        states.delete("a");
        let mut passes = Passes::new(Seq::ZERO);
        assert_eq!(states.pop(&mut passes, 1), sent(&[("b", 2)]));
        states.keyed.forget(Seq(3));
        assert_eq!(states.pop(&mut passes, 9), []);
        assert_eq!(states.ack(&mut passes, 1), 3);
    }

    #[test]
    fn a_rewind_sends_the_unacknowledged_again_with_their_newest_state() {
        let mut states = States::of(&["a", "b", "c"]);
        let mut passes = Passes::new(Seq::ZERO);
        states.pop(&mut passes, 3);
        states.ack(&mut passes, 1);
        states.put("b");
        assert_eq!(passes.rewind(), [key("b"), key("c")]);
        assert_eq!(passes.cursor(), Seq(1));
        assert_eq!(states.pop(&mut passes, 9), sent(&[("b", 4), ("c", 3)]));
    }

    #[test]
    fn a_resent_key_goes_once_more_although_the_cursor_has_passed_it() {
        let states = States::of(&["a", "b"]);
        let mut passes = Passes::new(Seq::ZERO);
        states.pop(&mut passes, 9);
        assert_eq!(states.ack(&mut passes, 2), 2);
        passes.resend(vec![key("b"), key("a"), key("never seen")]);
        assert_eq!(states.pop(&mut passes, 9), sent(&[("a", 1), ("b", 2)]));
        assert_eq!(states.ack(&mut passes, 2), 2, "the cursor does not go back");
        assert_eq!(states.pop(&mut passes, 9), []);
    }

    #[test]
    fn a_resent_key_that_waits_in_this_pass_goes_again_in_the_next() {
        let states = States::of(&["a", "b"]);
        let mut passes = Passes::new(Seq::ZERO);
        states.pop(&mut passes, 1);
        passes.resend(vec![key("b")]);
        states.pop(&mut passes, 1);
        states.ack(&mut passes, 2);
        assert_eq!(states.pop(&mut passes, 9), sent(&[("b", 2)]));
    }

    #[test]
    fn a_batch_ends_at_its_bound_but_holds_one_record_at_least() {
        let states = States::of(&["a", "b", "c"]);
        let cost = record(Lane::State, "a", 1).cost();
        let mut passes = Passes::new(Seq::ZERO);
        assert_eq!(passes.pop(&states.keyed, states.head, 9, 2 * cost).len(), 2);
        assert_eq!(passes.pop(&states.keyed, states.head, 9, 0).len(), 1);
        assert_eq!(passes.pop(&states.keyed, states.head, 0, cost).len(), 0);
    }
}
