//! `Keyed`: the newest record of each key, tombstones included, in order of the last change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use crate::model::{ObjectKey, Record, Seq};

/// Where the lowest cursor stands if a lane has none: nobody waits for anything.
pub(super) const NOBODY_WAITS: Seq = Seq(u64::MAX);

/// One record per key. A key that is gone keeps its slot as a tombstone until that is forgotten.
#[derive(Debug, Clone)]
pub(super) struct Keyed {
    by_seq: BTreeMap<Seq, Record>,
    keys: HashMap<ObjectKey, Seq>,
    tombstones: BTreeSet<Seq>,
    floor: Seq,
    passed: Seq,
    unpassed: usize,
}

/// How long tombstones stay although every cursor has passed them.
#[derive(Debug, Clone, Copy)]
pub(super) struct TombstoneLimits {
    /// Most tombstones that stay for watchers alone.
    pub(super) passed_max: usize,
    /// Least age, in milliseconds of wall time.
    pub(super) age_ms_min: i64,
}

impl Default for Keyed {
    fn default() -> Self {
        Self {
            by_seq: BTreeMap::new(),
            keys: HashMap::new(),
            tombstones: BTreeSet::new(),
            floor: Seq::ZERO,
            passed: NOBODY_WAITS,
            unpassed: 0,
        }
    }
}

impl Keyed {
    /// Takes a record unless the key's own is as new, or it is a tombstone that was forgotten before.
    pub(super) fn insert(&mut self, record: &Record) {
        let known = self.keys.get(&record.key).copied();
        if known.is_some_and(|seq| seq >= record.seq) {
            return;
        }
        if let Some(seq) = known {
            self.remove(seq);
        }
        if record.is_deleted() {
            if record.seq <= self.floor {
                self.keys.remove(&record.key);
                return;
            }
            self.tombstones.insert(record.seq);
            self.unpassed += usize::from(record.seq > self.passed);
        }
        self.keys.insert(record.key.clone(), record.seq);
        self.by_seq.insert(record.seq, record.clone());
    }

    /// The newest record of a key, live or tombstone.
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Record> {
        self.by_seq.get(self.keys.get(key)?)
    }

    /// All keys whose last change is above `seq`, in that order.
    pub(super) fn after(&self, seq: Seq) -> impl Iterator<Item = &Record> {
        self.by_seq.range((Bound::Excluded(seq), Bound::Unbounded)).map(|(_, record)| record)
    }

    /// All live records, in order of the last change.
    pub(super) fn live(&self) -> impl Iterator<Item = &Record> {
        self.by_seq.values().filter(|record| !record.is_deleted())
    }

    /// Number of live keys.
    pub(super) fn live_count(&self) -> usize {
        self.keys.len() - self.tombstones.len()
    }

    /// Number of tombstones, passed or not.
    pub(super) fn tombstone_count(&self) -> usize {
        self.tombstones.len()
    }

    /// Tombstones that some cursor has not passed, oldest first.
    pub(super) fn graves(&self) -> impl Iterator<Item = &Record> {
        let beyond = (Bound::Excluded(self.passed), Bound::Unbounded);
        self.tombstones.range(beyond).filter_map(|seq| self.by_seq.get(seq))
    }

    /// From here on a list of changes is exact: the newest tombstone that was forgotten.
    pub(super) fn floor(&self) -> Seq {
        self.floor
    }

    /// The lowest cursor of the lane, or [`NOBODY_WAITS`].
    pub(super) fn passed(&self) -> Seq {
        self.passed
    }

    /// Tells where the lowest cursor of the lane stands now.
    pub(super) fn set_passed(&mut self, passed: Seq) {
        let count = |from, to| self.tombstones.range((Bound::Excluded(from), Bound::Included(to))).count();
        if passed > self.passed {
            self.unpassed -= count(self.passed, passed);
        } else if passed < self.passed {
            self.unpassed += count(passed, self.passed);
        }
        self.passed = passed;
    }

    /// Forgets the tombstones up to and including `to`.
    pub(super) fn forget(&mut self, to: Seq) {
        self.floor = self.floor.max(to);
        while let Some(seq) = self.tombstones.first().copied().filter(|seq| *seq <= to) {
            if let Some(record) = self.by_seq.get(&seq) {
                self.keys.remove(&record.key);
            }
            self.remove(seq);
        }
    }

    /// Up to which tombstone may be forgotten if the lowest cursor stands at `passed` and the newest stamp is `now_ms`.
    ///
    /// It ends at the first one that a cursor still needs, or that is too young and within the number that is kept.
    pub(super) fn forgettable(&self, passed: Seq, now_ms: i64, limits: TombstoneLimits) -> Option<Seq> {
        let mut surplus = (self.tombstones.len() - self.unpassed).saturating_sub(limits.passed_max);
        let mut to = None;
        for seq in &self.tombstones {
            let Some(record) = self.by_seq.get(seq) else { break };
            let old = now_ms.saturating_sub(record.at.unix_ms) >= limits.age_ms_min;
            if *seq > passed || !(old || surplus > 0) {
                break;
            }
            surplus = surplus.saturating_sub(1);
            to = Some(*seq);
        }
        to
    }

    fn remove(&mut self, seq: Seq) {
        self.by_seq.remove(&seq);
        if self.tombstones.remove(&seq) && seq > self.passed {
            self.unpassed -= 1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::model::Lane;
    use crate::queue::testing::{deleted, key, record};

    const LIMITS: TombstoneLimits = TombstoneLimits { passed_max: 2, age_ms_min: 1000 };

    fn seqs<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<u64> {
        records.map(|record| record.seq.0).collect()
    }

    #[test]
    fn only_the_newest_record_of_a_key_is_kept() {
        let mut keyed = Keyed::default();
        for record in [record(Lane::State, "a", 1), record(Lane::State, "b", 2), record(Lane::State, "a", 3)] {
            keyed.insert(&record);
        }
        assert_eq!(seqs(keyed.after(Seq::ZERO)), [2, 3]);
        assert_eq!(keyed.get(&key("a")).unwrap().seq, Seq(3));
    }

    #[test]
    fn an_older_record_never_replaces_a_newer_one() {
        let mut keyed = Keyed::default();
        keyed.insert(&record(Lane::State, "a", 3));
        keyed.insert(&record(Lane::State, "a", 2));
        assert_eq!(keyed.get(&key("a")).unwrap().seq, Seq(3));
        assert_eq!(keyed.live_count(), 1);
    }

    #[test]
    fn a_deleted_key_stays_as_a_tombstone_and_may_come_back() {
        let mut keyed = Keyed::default();
        keyed.insert(&record(Lane::State, "a", 1));
        keyed.insert(&deleted("a", 2));
        assert_eq!((keyed.live_count(), keyed.tombstone_count()), (0, 1));
        assert!(keyed.get(&key("a")).unwrap().is_deleted());
        keyed.insert(&record(Lane::State, "a", 3));
        assert_eq!((keyed.live_count(), keyed.tombstone_count()), (1, 0));
    }

    #[test]
    fn forgetting_raises_the_floor_and_frees_the_slot() {
        let mut keyed = Keyed::default();
        keyed.insert(&deleted("a", 2));
        keyed.insert(&deleted("b", 4));
        keyed.forget(Seq(3));
        assert_eq!((keyed.floor(), keyed.tombstone_count()), (Seq(3), 1));
        assert!(keyed.get(&key("a")).is_none());
        keyed.insert(&deleted("a", 2));
        assert!(keyed.get(&key("a")).is_none(), "what was forgotten does not come back by a replay");
    }

    #[test]
    fn a_tombstone_that_a_cursor_needs_is_never_forgettable() {
        let mut keyed = Keyed::default();
        (1..=9).for_each(|seq| keyed.insert(&deleted(&format!("k{seq}"), seq)));
        keyed.set_passed(Seq(4));
        assert_eq!(keyed.forgettable(Seq(4), i64::MAX, LIMITS), Some(Seq(4)));
        assert_eq!(keyed.forgettable(Seq::ZERO, i64::MAX, LIMITS), None);
        assert_eq!(seqs(keyed.graves()), [5, 6, 7, 8, 9]);
    }

    #[test]
    fn a_young_tombstone_stays_unless_there_are_too_many() {
        let mut keyed = Keyed::default();
        (1..=2).for_each(|seq| keyed.insert(&deleted(&format!("k{seq}"), seq)));
        assert_eq!(keyed.forgettable(NOBODY_WAITS, 999, LIMITS), None);
        assert_eq!(keyed.forgettable(NOBODY_WAITS, 1001, LIMITS), Some(Seq(1)), "stamps are the Seq in milliseconds");
        (3..=5).for_each(|seq| keyed.insert(&deleted(&format!("k{seq}"), seq)));
        assert_eq!(keyed.forgettable(NOBODY_WAITS, 5, LIMITS), Some(Seq(3)), "two stay");
    }

    #[test]
    fn tombstones_that_wait_for_a_cursor_do_not_push_out_the_others() {
        let mut keyed = Keyed::default();
        (1..=9).for_each(|seq| keyed.insert(&deleted(&format!("k{seq}"), seq)));
        keyed.set_passed(Seq(2));
        assert_eq!(keyed.forgettable(Seq(2), 5, LIMITS), None, "only two are passed, and two may stay");
    }

    #[test]
    fn the_count_of_unpassed_tombstones_follows_the_cursor_both_ways() {
        let mut keyed = Keyed::default();
        (1..=6).for_each(|seq| keyed.insert(&deleted(&format!("k{seq}"), seq)));
        for (passed, unpassed) in [(Seq(2), 4), (Seq(5), 1), (Seq::ZERO, 6), (NOBODY_WAITS, 0), (Seq(3), 3)] {
            keyed.set_passed(passed);
            assert_eq!((keyed.unpassed, keyed.graves().count()), (unpassed, unpassed), "at {passed}");
        }
        keyed.insert(&record(Lane::State, "k6", 7));
        assert_eq!(keyed.unpassed, 2);
    }
}
