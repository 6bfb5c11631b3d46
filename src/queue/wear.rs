//! `WearBudget`: how many bytes may be written to flash before commits gather.

use std::time::Duration;

use crate::model::Millis;

const PAGE: u64 = 4096;
const DAY_MS: i128 = 24 * 3600 * 1000;

/// A token bucket of bytes: fills at the daily budget, holds one hour's worth, starts full. A commit costs its bytes
/// rounded up to pages, and one page for the metadata of its sync. Debt is as deep as the bucket at most.
#[derive(Debug, Clone)]
pub(super) struct WearBudget {
    bytes_per_day: u64,
    /// In bytes times milliseconds of a day, so that filling loses nothing to rounding.
    level: i128,
    filled_at: Millis,
}

impl WearBudget {
    /// A full bucket.
    pub(super) fn new(bytes_per_day: u64, now: Millis) -> Self {
        let mut budget = Self { bytes_per_day, level: 0, filled_at: now };
        budget.level = budget.size();
        budget
    }

    /// True if a commit may be written at once.
    pub(super) fn has_credit(&mut self, now: Millis) -> bool {
        self.fill(now);
        self.level > 0
    }

    /// A commit of `bytes` was written.
    pub(super) fn spend(&mut self, bytes: u64, now: Millis) {
        self.fill(now);
        let cost = bytes.div_ceil(PAGE).saturating_add(1).saturating_mul(PAGE);
        self.level = (self.level - i128::from(cost) * DAY_MS).max(-self.size());
    }

    fn fill(&mut self, now: Millis) {
        let span = now.since(self.filled_at);
        self.filled_at = self.filled_at.max(now);
        let filled = i128::from(self.bytes_per_day) * span.as_millis().cast_signed();
        self.level = (self.level + filled).min(self.size());
    }

    fn size(&self) -> i128 {
        i128::from(self.bytes_per_day) * Duration::from_hours(1).as_millis().cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 24 pages a day: one an hour.
    const PER_DAY: u64 = 24 * PAGE;

    fn hours(n: u64) -> Millis {
        Millis(n * 3_600_000)
    }

    #[test]
    fn the_bucket_starts_with_one_hour_and_a_commit_costs_a_page_more_than_it_holds() {
        let mut budget = WearBudget::new(2 * PER_DAY, hours(0));
        assert!(budget.has_credit(hours(0)));
        budget.spend(1, hours(0));
        assert!(!budget.has_credit(hours(0)), "one page of data, one of metadata: two an hour");
        assert!(budget.has_credit(Millis(1)));
    }

    #[test]
    fn a_debt_is_paid_back_before_there_is_credit() {
        let mut budget = WearBudget::new(4 * PER_DAY, hours(0));
        budget.spend(6 * PAGE, hours(0));
        assert!(!budget.has_credit(Millis(45 * 60_000)));
        assert!(budget.has_credit(Millis(45 * 60_000 + 1)), "three pages at four an hour");
    }

    #[test]
    fn credit_and_debt_are_bounded_by_an_hour() {
        let mut budget = WearBudget::new(PER_DAY, hours(0));
        budget.spend(u64::MAX / 2, hours(0));
        assert!(budget.has_credit(hours(1) + Duration::from_millis(1)));
        assert!(budget.has_credit(hours(1000)));
        budget.spend(0, hours(1000));
        assert!(!budget.has_credit(hours(1000)));
    }

    #[test]
    fn small_steps_fill_as_much_as_a_large_one() {
        let mut budget = WearBudget::new(1000, hours(0));
        budget.spend(PAGE, hours(0));
        (1..3_600_000).for_each(|ms| assert!(!budget.has_credit(Millis(ms))));
        assert!(budget.has_credit(Millis(3_600_001)));
    }

    #[test]
    fn no_budget_means_no_credit() {
        assert!(!WearBudget::new(0, hours(0)).has_credit(hours(9)));
    }
}
