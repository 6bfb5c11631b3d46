//! The states of one alert on one device, as ISA-18.2 has them before acknowledgement, and the step between them.

use std::time::Duration;

use crate::model::{AlertState, Millis};

/// State of an alert.
///
/// | state | condition true | false | unknown | delay is over | device gone |
/// |---|---|---|---|---|---|
/// | `Normal` | `Pending`, **fires** at once without a delay | - | - | - | - |
/// | `Pending` | **fires** if its delay is over | `Normal` | the delay stands still | **fires** | `Normal` |
/// | `Firing` | - | `Clearing`, **resolves** at once without a delay | - | - | **resolves** |
/// | `Clearing` | `Firing`, told to nobody | **resolves** if its delay is over | the delay stands still | **resolves** | **resolves** |
///
/// While the condition is unknown a delay neither runs on (nothing says that the condition held) nor starts anew (a
/// sensor with a loose wire that sends 95, null, 95, null would never fire): the time that was known counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing is wrong.
    #[default]
    Normal,
    /// The condition holds; the on-delay (`for`) runs.
    Pending(Delay),
    /// The alert was told.
    Firing,
    /// The alert was told, the condition holds no longer; the off-delay (`keep_firing_for`) runs.
    Clearing(Delay),
}

/// What happens to an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// The condition was evaluated: true.
    True,
    /// The condition was evaluated: false.
    False,
    /// The condition was evaluated: unknown.
    Unknown,
    /// Time has passed.
    Time,
    /// The device is gone.
    Gone,
}

/// The delays of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Delays {
    /// `for`.
    pub(super) on: Duration,
    /// `keep_firing_for`.
    pub(super) off: Duration,
}

/// A delay under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delay {
    /// Counts from a time.
    Runs {
        /// The condition was known to be so ever since, less what was unknown.
        since: Millis,
    },
    /// The condition is unknown.
    Stands {
        /// Time that counted before.
        spent: Duration,
    },
}

impl State {
    /// The state that follows, and what has to be told. An equal deadline counts as over.
    pub(super) fn step(self, input: Input, now: Millis, delays: Delays) -> (Self, Option<AlertState>) {
        use AlertState::{Firing, Resolved};
        let starts = Delay::Runs { since: now };
        match (self, input) {
            (Self::Normal, Input::True) if delays.on.is_zero() => (Self::Firing, Some(Firing)),
            (Self::Normal, Input::True) => (Self::Pending(starts), None),
            (Self::Pending(delay), Input::True) => {
                delay.resume(now).settle(now, delays.on, Self::Pending, Self::Firing, Firing)
            }
            (Self::Pending(delay), Input::Time) => delay.settle(now, delays.on, Self::Pending, Self::Firing, Firing),
            (Self::Pending(delay), Input::Unknown) => (Self::Pending(delay.pause(now)), None),
            (Self::Pending(_), Input::False | Input::Gone) => (Self::Normal, None),
            (Self::Firing, Input::False) if !delays.off.is_zero() => (Self::Clearing(starts), None),
            (Self::Firing, Input::False | Input::Gone) | (Self::Clearing(_), Input::Gone) => {
                (Self::Normal, Some(Resolved))
            }
            (Self::Clearing(_), Input::True) => (Self::Firing, None),
            (Self::Clearing(delay), Input::False) => {
                delay.resume(now).settle(now, delays.off, Self::Clearing, Self::Normal, Resolved)
            }
            (Self::Clearing(delay), Input::Time) => {
                delay.settle(now, delays.off, Self::Clearing, Self::Normal, Resolved)
            }
            (Self::Clearing(delay), Input::Unknown) => (Self::Clearing(delay.pause(now)), None),
            (Self::Normal | Self::Firing, _) => (self, None),
        }
    }

    /// When [`Input::Time`] will matter.
    pub(super) fn deadline(self, delays: Delays) -> Option<Millis> {
        match self {
            Self::Pending(Delay::Runs { since }) => Some(since + delays.on),
            Self::Clearing(Delay::Runs { since }) => Some(since + delays.off),
            _ => None,
        }
    }

    /// True between its two tellings, unless the off-delay runs.
    pub(super) fn is_firing(self) -> bool {
        self == Self::Firing
    }

    /// True while a delay runs or stands.
    pub(super) fn is_delayed(self) -> bool {
        matches!(self, Self::Pending(_) | Self::Clearing(_))
    }
}

impl Delay {
    fn pause(self, now: Millis) -> Self {
        match self {
            Self::Runs { since } => Self::Stands { spent: now.since(since) },
            Self::Stands { .. } => self,
        }
    }

    fn resume(self, now: Millis) -> Self {
        match self {
            Self::Stands { spent } => {
                let spent = u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
                Self::Runs { since: Millis(now.0.saturating_sub(spent)) }
            }
            Self::Runs { .. } => self,
        }
    }

    /// The next state and what is told if the delay is over, else the delay as it is.
    fn settle(
        self,
        now: Millis,
        length: Duration,
        under_way: impl Fn(Self) -> State,
        after: State,
        told: AlertState,
    ) -> (State, Option<AlertState>) {
        match self {
            Self::Runs { since } if now.since(since) >= length => (after, Some(told)),
            _ => (under_way(self), None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AlertState::{Firing, Resolved};
    use proptest::prelude::*;

    const DELAYS: Delays = Delays { on: Duration::from_millis(100), off: Duration::from_millis(50) };
    const NONE: Delays = Delays { on: Duration::ZERO, off: Duration::ZERO };

    fn is_told(state: State) -> bool {
        matches!(state, State::Firing | State::Clearing(_))
    }

    fn runs(since: u64) -> Delay {
        Delay::Runs { since: Millis(since) }
    }

    fn stands(ms: u64) -> Delay {
        Delay::Stands { spent: Duration::from_millis(ms) }
    }

    fn check(delays: Delays, table: &[(State, Input, u64, State, Option<AlertState>)]) {
        for (state, input, now, after, told) in table {
            assert_eq!(state.step(*input, Millis(*now), delays), (*after, *told), "{state:?} {input:?} at {now}");
        }
    }

    #[test]
    fn each_step_with_delays_is_as_the_table_says() {
        use State::{Clearing, Normal, Pending};
        check(
            DELAYS,
            &[
                (Normal, Input::True, 1000, Pending(runs(1000)), None),
                (Normal, Input::False, 1000, Normal, None),
                (Normal, Input::Unknown, 1000, Normal, None),
                (Normal, Input::Time, 1000, Normal, None),
                (Normal, Input::Gone, 1000, Normal, None),
                (Pending(runs(1000)), Input::True, 1099, Pending(runs(1000)), None),
                (Pending(runs(1000)), Input::True, 1100, State::Firing, Some(Firing)),
                (Pending(runs(1000)), Input::Time, 1099, Pending(runs(1000)), None),
                (Pending(runs(1000)), Input::Time, 1100, State::Firing, Some(Firing)),
                (Pending(runs(1000)), Input::False, 1100, Normal, None),
                (Pending(runs(1000)), Input::Unknown, 1030, Pending(stands(30)), None),
                (Pending(runs(1000)), Input::Gone, 1030, Normal, None),
                (Pending(stands(30)), Input::Unknown, 5000, Pending(stands(30)), None),
                (Pending(stands(30)), Input::Time, 5000, Pending(stands(30)), None),
                (Pending(stands(30)), Input::True, 5000, Pending(runs(4970)), None),
                (Pending(stands(100)), Input::True, 5000, State::Firing, Some(Firing)),
                (Pending(stands(30)), Input::False, 5000, Normal, None),
                (State::Firing, Input::True, 1000, State::Firing, None),
                (State::Firing, Input::Unknown, 1000, State::Firing, None),
                (State::Firing, Input::Time, 1000, State::Firing, None),
                (State::Firing, Input::False, 1000, Clearing(runs(1000)), None),
                (State::Firing, Input::Gone, 1000, Normal, Some(Resolved)),
                (Clearing(runs(1000)), Input::True, 1050, State::Firing, None),
                (Clearing(runs(1000)), Input::False, 1049, Clearing(runs(1000)), None),
                (Clearing(runs(1000)), Input::False, 1050, Normal, Some(Resolved)),
                (Clearing(runs(1000)), Input::Time, 1049, Clearing(runs(1000)), None),
                (Clearing(runs(1000)), Input::Time, 1050, Normal, Some(Resolved)),
                (Clearing(runs(1000)), Input::Unknown, 1020, Clearing(stands(20)), None),
                (Clearing(runs(1000)), Input::Gone, 1020, Normal, Some(Resolved)),
                (Clearing(stands(20)), Input::Time, 5000, Clearing(stands(20)), None),
                (Clearing(stands(20)), Input::False, 5000, Clearing(runs(4980)), None),
                (Clearing(stands(20)), Input::True, 5000, State::Firing, None),
                (Clearing(stands(20)), Input::Gone, 5000, Normal, Some(Resolved)),
            ],
        );
    }

    #[test]
    fn without_delays_each_edge_is_told_at_once() {
        check(
            NONE,
            &[
                (State::Normal, Input::True, 7, State::Firing, Some(Firing)),
                (State::Firing, Input::False, 7, State::Normal, Some(Resolved)),
                (State::Firing, Input::Unknown, 7, State::Firing, None),
            ],
        );
    }

    #[test]
    fn only_a_running_delay_has_a_deadline() {
        assert_eq!(State::Pending(runs(1000)).deadline(DELAYS), Some(Millis(1100)));
        assert_eq!(State::Clearing(runs(1000)).deadline(DELAYS), Some(Millis(1050)));
        for state in [State::Normal, State::Firing, State::Pending(stands(1)), State::Clearing(stands(1))] {
            assert_eq!(state.deadline(DELAYS), None);
        }
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_is_no_panic() {
        assert_eq!(State::Pending(runs(1000)).step(Input::Time, Millis(0), DELAYS).1, None);
        let (state, _) = State::Pending(stands(90)).step(Input::True, Millis(10), DELAYS);
        assert_eq!(state, State::Pending(runs(0)));
    }

    fn inputs() -> impl Strategy<Value = Vec<(Input, u64)>> {
        let input = prop_oneof![
            4 => Just(Input::True),
            4 => Just(Input::False),
            2 => Just(Input::Unknown),
            4 => Just(Input::Time),
            1 => Just(Input::Gone),
        ];
        proptest::collection::vec((input, 0_u64..80), 0..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn firing_and_resolved_alternate_and_unknown_tells_nothing(inputs in inputs(), on in 0_u64..120, off in 0_u64..120) {
            let delays = Delays { on: Duration::from_millis(on), off: Duration::from_millis(off) };
            let (mut state, mut now, mut last) = (State::Normal, 0, Resolved);
            for (input, pause) in inputs {
                now += pause;
                let before = state;
                let (after, told) = state.step(input, Millis(now), delays);
                state = after;
                if let Some(told) = told {
                    prop_assert_ne!(told, last);
                    last = told;
                    prop_assert_ne!(input, Input::Unknown);
                }
                prop_assert_eq!(is_told(state), last == Firing);
                if is_told(before) && input == Input::True {
                    prop_assert_eq!(state, State::Firing);
                }
                // What is due was told: no deadline stays behind after time has passed.
                if input == Input::Time {
                    prop_assert!(state.deadline(delays).is_none_or(|deadline| deadline > Millis(now)));
                }
            }
        }
    }
}
