//! Which event a change is for one watcher: ADDED, MODIFIED, DELETED or nothing.
//!
//! The queue tells each key's newest record once, however often it changed since the watcher's position. Hence what
//! the watcher knows has to be told from the record and from what it was sent:
//!
//! - Without a label selector an incarnation that was created after the position up to which the watcher has seen
//!   everything is ADDED, once. The Seqs of such creations are kept only while the watcher lags.
//! - With one, labels may change, so each key that was sent is kept with in or out. A key of which nothing is known
//!   (the watch began at a position, not at a list) and that does not match now may have matched: it is DELETED, at
//!   and with its Seq, which is harmless if the client never had it.
//! - A key that was deleted and made anew between two looks is told once, as it is now, under its new uid.

use std::collections::{HashMap, HashSet};

use super::render::EventType;
use crate::model::{ObjectKey, Record, Seq};

/// What one watcher knows. At most one entry per key of its lane.
#[derive(Debug)]
pub(super) enum Tracker {
    /// No label selector: everything up to `base` was told; `created` are the incarnations told since.
    Plain { base: Seq, created: HashSet<Seq> },
    /// A label selector: keys that are in (true) or out (false). With `listed` a key that is not here is out.
    Selected { listed: bool, start: Seq, inside: HashMap<ObjectKey, bool> },
}

impl Tracker {
    /// The watcher has the whole set as of `at`; those that matched are told by [`Self::sent`].
    pub(super) fn after_list(at: Seq, by_labels: bool) -> Self {
        Self::new(at, by_labels, true)
    }

    /// The watcher has something from `after`, nobody knows what.
    pub(super) fn after_position(after: Seq, by_labels: bool) -> Self {
        Self::new(after, by_labels, false)
    }

    fn new(at: Seq, by_labels: bool, listed: bool) -> Self {
        if by_labels {
            Self::Selected { listed, start: at, inside: HashMap::new() }
        } else {
            Self::Plain { base: at, created: HashSet::new() }
        }
    }

    /// The object was in the initial set.
    pub(super) fn sent(&mut self, record: &Record) {
        if let Self::Selected { inside, .. } = self {
            inside.insert(record.key.clone(), true);
        }
    }

    /// The event of a change; `matches` is what the label selector says of a live object.
    pub(super) fn judge(&mut self, record: &Record, matches: bool) -> Option<EventType> {
        match self {
            Self::Plain { base, created } => Some(judge_plain(*base, created, record)),
            Self::Selected { listed, start, inside } => judge_selected(*listed, *start, inside, record, matches),
        }
    }

    /// Every change up to `at` was told.
    pub(super) fn caught_up(&mut self, at: Seq) {
        if let Self::Plain { base, created } = self {
            *base = at;
            created.clear();
        }
    }
}

fn judge_plain(base: Seq, created: &mut HashSet<Seq>, record: &Record) -> EventType {
    if record.is_deleted() {
        created.remove(&record.uid.seq);
        return EventType::Deleted;
    }
    if record.uid.seq > base && created.insert(record.uid.seq) { EventType::Added } else { EventType::Modified }
}

fn judge_selected(
    listed: bool,
    start: Seq,
    inside: &mut HashMap<ObjectKey, bool>,
    record: &Record,
    matches: bool,
) -> Option<EventType> {
    let known = inside.get(&record.key).copied().or(listed.then_some(false));
    if record.is_deleted() {
        inside.remove(&record.key);
        return (known != Some(false)).then_some(EventType::Deleted);
    }
    if matches || !listed {
        inside.insert(record.key.clone(), matches);
    } else {
        inside.remove(&record.key);
    }
    match (known, matches) {
        (Some(false), true) => Some(EventType::Added),
        (None, true) if record.uid.seq > start => Some(EventType::Added),
        (Some(true) | None, true) => Some(EventType::Modified),
        (Some(true) | None, false) => Some(EventType::Deleted),
        (Some(false), false) => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::model::{Lane, Uid};
    use crate::serve::object::tests::record;

    fn change(name: &str, created: u64, seq: u64) -> Record {
        let record = record(Lane::State, name, seq, "{}");
        Record { uid: Uid { seq: Seq(created), ..record.uid }, ..record }
    }

    fn deletion(name: &str, created: u64, seq: u64) -> Record {
        let record = record(Lane::State, name, seq, "");
        Record { uid: Uid { seq: Seq(created), ..record.uid }, ..record }
    }

    #[test]
    fn an_incarnation_made_after_the_position_is_added_once() {
        let mut tracker = Tracker::after_position(Seq(10), false);
        assert_eq!(tracker.judge(&change("old", 5, 11), true), Some(EventType::Modified));
        assert_eq!(tracker.judge(&change("new", 12, 15), true), Some(EventType::Added));
        assert_eq!(tracker.judge(&change("new", 12, 16), true), Some(EventType::Modified));
        tracker.caught_up(Seq(16));
        assert_eq!(tracker.judge(&change("new", 12, 17), true), Some(EventType::Modified));
        assert_eq!(tracker.judge(&deletion("new", 12, 18), true), Some(EventType::Deleted));
    }

    #[test]
    fn a_key_that_moved_ahead_of_a_lagging_watcher_is_still_added() {
        let mut tracker = Tracker::after_position(Seq(5), false);
        assert_eq!(tracker.judge(&change("a", 6, 1500), true), Some(EventType::Added));
        assert_eq!(tracker.judge(&change("b", 10, 2000), true), Some(EventType::Added));
    }

    #[test]
    fn entering_and_leaving_a_selector_are_added_and_deleted() {
        let mut tracker = Tracker::after_list(Seq(10), true);
        tracker.sent(&change("in", 1, 9));
        assert_eq!(tracker.judge(&change("in", 1, 11), true), Some(EventType::Modified));
        assert_eq!(tracker.judge(&change("in", 1, 12), false), Some(EventType::Deleted));
        assert_eq!(tracker.judge(&change("in", 1, 13), false), None);
        assert_eq!(tracker.judge(&change("in", 1, 14), true), Some(EventType::Added));
        assert_eq!(tracker.judge(&change("out", 1, 15), false), None);
        assert_eq!(tracker.judge(&deletion("out", 1, 16), true), None);
        assert_eq!(tracker.judge(&deletion("in", 1, 17), true), Some(EventType::Deleted));
    }

    #[test]
    fn what_a_resumed_watcher_may_have_had_is_deleted_once() {
        let mut tracker = Tracker::after_position(Seq(10), true);
        assert_eq!(tracker.judge(&change("a", 1, 11), false), Some(EventType::Deleted));
        assert_eq!(tracker.judge(&change("a", 1, 12), false), None);
        assert_eq!(tracker.judge(&change("b", 13, 13), true), Some(EventType::Added));
        assert_eq!(tracker.judge(&change("c", 1, 14), true), Some(EventType::Modified));
        assert_eq!(tracker.judge(&deletion("d", 1, 15), true), Some(EventType::Deleted));
    }

    /// One step of a history: a key is put with or without the label, or deleted, or the watcher looks.
    #[derive(Debug, Clone)]
    enum Step {
        Put(u8, bool),
        Delete(u8),
        Look(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..5_u8, any::<bool>()).prop_map(|(key, label)| Step::Put(key, label)),
            2 => (0..5_u8).prop_map(Step::Delete),
            2 => (1..4_usize).prop_map(Step::Look),
        ];
        proptest::collection::vec(step, 1..60)
    }

    /// The queue as its contract says: the newest record of each key, and its label.
    #[derive(Default)]
    struct Queue {
        head: u64,
        newest: BTreeMap<u8, (Record, bool)>,
    }

    impl Queue {
        fn put(&mut self, key: u8, label: bool) {
            self.head += 1;
            let created =
                self.newest.get(&key).filter(|(r, _)| !r.is_deleted()).map_or(self.head, |(r, _)| r.uid.seq.0);
            self.newest.insert(key, (change(&key.to_string(), created, self.head), label));
        }

        fn delete(&mut self, key: u8) {
            if let Some((record, _)) = self.newest.get(&key).filter(|(r, _)| !r.is_deleted()).cloned() {
                self.head += 1;
                self.newest.insert(key, (deletion(&key.to_string(), record.uid.seq.0, self.head), false));
            }
        }

        fn live(&self, by_labels: bool) -> BTreeMap<String, (Seq, Seq)> {
            let live = self.newest.values().filter(|(r, label)| !r.is_deleted() && (*label || !by_labels));
            live.map(|(r, _)| (r.key.name().to_string(), (r.uid.seq, r.seq))).collect()
        }
    }

    /// A watcher that applies what it is told.
    struct Client {
        tracker: Tracker,
        after: Seq,
        has: BTreeMap<String, (Seq, Seq)>,
        listed: bool,
    }

    impl Client {
        fn look(&mut self, queue: &Queue, max: usize) {
            let mut changes: Vec<_> = queue.newest.values().filter(|(r, _)| r.seq > self.after).cloned().collect();
            changes.sort_by_key(|(r, _)| r.seq);
            let whole = changes.len() <= max;
            changes.truncate(max);
            for (record, label) in &changes {
                self.take(record, *label);
            }
            self.after = if whole { Seq(queue.head) } else { changes.last().unwrap().0.seq };
            if whole {
                self.tracker.caught_up(self.after);
            }
        }

        fn take(&mut self, record: &Record, label: bool) {
            let name = record.key.name().to_string();
            match self.tracker.judge(record, label) {
                Some(EventType::Deleted) => {
                    let had = self.has.remove(&name);
                    let by_labels = matches!(self.tracker, Tracker::Selected { .. });
                    assert!(
                        had.is_some() || !by_labels || !self.listed,
                        "a listed watcher is told only of what it has"
                    );
                }
                Some(EventType::Added) => {
                    let had = self.has.insert(name, (record.uid.seq, record.seq));
                    assert_ne!(had.map(|(uid, _)| uid), Some(record.uid.seq), "the same incarnation is added once");
                }
                Some(EventType::Modified) => {
                    let had = self.has.insert(name, (record.uid.seq, record.seq));
                    assert!(had.is_some() || !self.listed, "a listed watcher knows what is modified");
                }
                None => {}
            }
        }
    }

    proptest! {
        #[test]
        fn a_watcher_ends_with_exactly_what_is_there(
            before in steps(),
            after in steps(),
            by_labels in any::<bool>(),
            listed in any::<bool>(),
        ) {
            let mut queue = Queue::default();
            for step in before {
                match step {
                    Step::Put(key, label) => queue.put(key, label),
                    Step::Delete(key) => queue.delete(key),
                    Step::Look(_) => {}
                }
            }
            let at = Seq(queue.head);
            let mut tracker = Tracker::new(at, by_labels, listed);
            if listed {
                for (record, label) in queue.newest.values().filter(|(r, _)| !r.is_deleted()) {
                    if *label { tracker.sent(record); }
                }
            }
            let mut client = Client { tracker, after: at, has: queue.live(by_labels), listed };
            for step in after {
                match step {
                    Step::Put(key, label) => queue.put(key, label),
                    Step::Delete(key) => queue.delete(key),
                    Step::Look(max) => client.look(&queue, max),
                }
            }
            client.look(&queue, usize::MAX);
            prop_assert_eq!(client.has, queue.live(by_labels));
        }
    }
}
