//! Which lane is served next on a link that is too slow for all.

use std::cmp::Reverse;

use crate::model::Lane;

/// Every lane with work gets one record in so many.
const SHARE: i64 = 10;
/// A lane is owed a turn once it lacks so many records, so that debts are paid in windows worth a round trip.
const OWED_RECORDS: i64 = 100;
/// A lane is owed a turn once it was passed over so many times, however small the windows of the others.
const PASSED_MAX: u32 = 9;
/// What a lane has had beyond its share is remembered up to this; an hour alone on the link is not held against it.
const AHEAD_RECORDS_MAX: i64 = 9_000;

/// Deficit counter: lanes are served in the order alert, state, event, but a lane that has had less than a tenth goes
/// first. Never twice in a row, so that an alert waits for one window at most.
#[derive(Debug, Default)]
pub(super) struct Share {
    lanes: [Account; 3],
    /// The last window was served out of turn.
    paid: bool,
}

impl Share {
    /// The lanes in the order in which they are to be asked for work.
    pub(super) fn order(&self) -> [Lane; 3] {
        let mut order = Lane::ALL;
        if !self.paid {
            // Of two that are owed, the one that was passed over longer.
            order.sort_by_key(|lane| Reverse(self.owed(*lane).map(|account| account.passed)));
        }
        order
    }

    /// A window of `lane` was sent, which counts for so many records; the other lanes were passed over.
    pub(super) fn sent(&mut self, lane: Lane, records: usize) {
        let records = i64::try_from(records).unwrap_or(AHEAD_RECORDS_MAX).min(AHEAD_RECORDS_MAX);
        self.paid = !self.paid && self.owed(lane).is_some();
        for (at, account) in self.lanes.iter_mut().enumerate() {
            account.credit = account.credit.saturating_add(records);
            account.passed = account.passed.saturating_add(1);
            if at == index(lane) {
                account.passed = 0;
                account.credit = (account.credit - records * SHARE).max(-AHEAD_RECORDS_MAX * SHARE);
            }
        }
    }

    /// Alerts go first anyway: nothing is ever owed to them.
    fn owed(&self, lane: Lane) -> Option<&Account> {
        self.lanes.get(index(lane)).filter(|account| lane != Lane::Alert && account.is_owed())
    }

    /// `lane` was asked and had no work: nothing is owed to it.
    pub(super) fn idle(&mut self, lane: Lane) {
        if let Some(account) = self.lanes.get_mut(index(lane)) {
            account.passed = 0;
            account.credit = account.credit.min(0);
        }
    }
}

/// One lane's balance.
#[derive(Debug, Default)]
struct Account {
    /// Tenths of records that the lane is owed; negative if it has had more than its share.
    credit: i64,
    passed: u32,
}

impl Account {
    fn is_owed(&self) -> bool {
        self.credit >= OWED_RECORDS * SHARE || self.passed >= PASSED_MAX
    }
}

fn index(lane: Lane) -> usize {
    match lane {
        Lane::Alert => 0,
        Lane::State => 1,
        Lane::Event => 2,
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    /// Plays `rounds` windows; a lane's window holds `window[lane]` records, 0 for no work.
    fn play(rounds: usize, window: [usize; 3]) -> [f64; 3] {
        let (mut share, mut sent) = (Share::default(), [0_usize; 3]);
        for _ in 0..rounds {
            for lane in share.order() {
                let records = window[index(lane)];
                if records == 0 {
                    share.idle(lane);
                    continue;
                }
                share.sent(lane, records);
                sent[index(lane)] += records;
                break;
            }
        }
        let all: usize = sent.iter().sum();
        sent.map(|records| records as f64 / all as f64)
    }

    #[test]
    fn with_work_everywhere_alerts_get_most_and_the_others_a_tenth() {
        let [alert, state, event] = play(10_000, [1000; 3]);
        assert!((0.79..=0.81).contains(&alert), "{alert}");
        assert!(state >= 0.0999 && event >= 0.0999, "{state} {event}");
    }

    #[test]
    fn a_tenth_holds_for_windows_of_any_size() {
        for window in [[62; 3], [1; 3], [1000, 900, 1100], [1000, 0, 1000], [0, 1000, 1000], [700, 1000, 800]] {
            let got = play(50_000, window);
            for (share, records) in got.into_iter().zip(window) {
                assert!(share >= 0.0985 || records == 0, "{window:?} gave {got:?}");
            }
        }
    }

    #[test]
    fn an_alert_waits_for_one_window_at_most() {
        let mut share = Share::default();
        let mut before = Lane::Alert;
        for _ in 0..1000 {
            let lane = share.order()[0];
            assert!(lane == Lane::Alert || before == Lane::Alert, "{before} was followed by {lane}");
            share.sent(lane, 500);
            before = lane;
        }
    }

    #[test]
    fn a_lane_alone_gets_the_whole_link() {
        assert!(play(100, [0, 1000, 0])[1] >= 1.0);
        assert!(play(100, [0, 0, 1])[2] >= 1.0);
    }

    #[test]
    fn a_trickle_of_alerts_does_not_stop_the_others() {
        let mut share = Share::default();
        let turns = (0..100).filter(|_| {
            let lane = share.order()[0];
            share.sent(lane, if lane == Lane::Alert { 1 } else { 1000 });
            lane == Lane::State
        });
        assert!(turns.count() >= 8);
    }

    #[test]
    fn an_alert_goes_before_a_lane_that_is_owed_little() {
        let mut share = Share::default();
        share.sent(Lane::Alert, 5);
        assert_eq!(share.order()[0], Lane::Alert);
        share.sent(Lane::Alert, 1000);
        assert_eq!(share.order(), [Lane::State, Lane::Event, Lane::Alert]);
    }

    #[test]
    fn an_idle_lane_saves_no_credit_and_an_hour_alone_is_no_debt() {
        let mut share = Share::default();
        for _ in 0..1000 {
            share.sent(Lane::State, 1000);
            share.idle(Lane::Alert);
            share.idle(Lane::Event);
        }
        assert_ne!(share.order()[0], Lane::Event);
        for _ in 0..10 {
            share.sent(Lane::Alert, 1000);
        }
        assert_eq!(share.order()[0], Lane::State);
    }
}
