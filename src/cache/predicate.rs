//! Whether a change is worth a delta: report by exception with a deadband.

use crate::config::Deadband;
use crate::model::{Quality, Value};

/// A deadband against the last value *sent*, never the last seen, so that slow drift gets out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Predicate {
    limit: f64,
}

/// The two intervals of a source, in milliseconds; 0 is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Send at least this often while readings arrive.
    pub max_interval_ms: u64,
    /// Send a device at most this often.
    pub min_interval_ms: u64,
}

/// Steps of exactly the deadband count, although 20.3 - 20.2 is a little less than 0.1 in binary.
const EXACT: f64 = 1e-9;

impl Predicate {
    /// Per cent need the metric's range; without one they count as 0 (the configuration refuses that before).
    pub fn new(deadband: Deadband, range: Option<[f64; 2]>) -> Self {
        let limit = match (deadband, range) {
            (Deadband::Absolute(limit), _) => limit,
            (Deadband::Percent(percent), Some([low, high])) => (high - low).abs() * percent / 100.0,
            (Deadband::Percent(_), None) => 0.0,
        };
        Self { limit }
    }

    /// True if the newest reading differs from the last one sent by the deadband or more. Quality, type, text and
    /// boolean changes always pass.
    pub fn passes(self, sent: (&Option<Value>, Quality), now: (&Option<Value>, Quality)) -> bool {
        if sent.1 != now.1 {
            return true;
        }
        match (sent.0, now.0) {
            (None, None) => false,
            (Some(old), Some(new)) if self.limit == 0.0 => old != new,
            (Some(old), Some(new)) => match (old.as_f64(), new.as_f64()) {
                (Some(old), Some(new)) => (new - old).abs() >= self.limit * (1.0 - EXACT),
                _ => old != new,
            },
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the values are sent, and the last of them.
    fn sent(predicate: Predicate, values: &[f64]) -> Vec<f64> {
        let mut sent: Vec<f64> = Vec::new();
        for value in values {
            let last = sent.last().map(|v| Value::F64(*v));
            if predicate.passes((&last, Quality::Good), (&Some(Value::F64(*value)), Quality::Good)) {
                sent.push(*value);
            }
        }
        sent
    }

    fn absolute(limit: f64) -> Predicate {
        Predicate::new(Deadband::Absolute(limit), None)
    }

    #[test]
    fn g25_steps_of_exactly_the_deadband_all_count() {
        assert_eq!(sent(absolute(0.1), &[20.0, 20.1, 20.2, 20.3]), [20.0, 20.1, 20.2, 20.3]);
    }

    #[test]
    fn g25_slow_drift_gets_out() {
        assert_eq!(sent(absolute(0.5), &[20.0, 20.2, 20.4, 20.6]), [20.0, 20.6]);
    }

    #[test]
    fn g25_a_deadband_of_zero_lets_any_change_through_and_no_repeat() {
        assert_eq!(sent(absolute(0.0), &[5.0, 5.0, 5.000_000_1]), [5.0, 5.000_000_1]);
    }

    #[test]
    fn g25_per_cent_are_of_the_range_so_that_zero_is_no_trap() {
        let ten = Predicate::new(Deadband::Percent(10.0), Some([0.0, 1.0]));
        assert_eq!(sent(ten, &[0.0, 0.001, 0.0, 0.1]), [0.0, 0.1]);
    }

    #[test]
    fn a_quality_change_always_passes() {
        let value = Some(Value::F64(5.0));
        assert!(absolute(10.0).passes((&value, Quality::Good), (&value, Quality::Bad)));
        assert!(!absolute(10.0).passes((&None, Quality::Bad), (&None, Quality::Bad)));
    }

    #[test]
    fn text_and_booleans_are_compared_as_they_are() {
        let text = |t: &str| Some(Value::Text(t.into()));
        assert!(absolute(10.0).passes((&text("a"), Quality::Good), (&text("b"), Quality::Good)));
        assert!(!absolute(10.0).passes((&text("a"), Quality::Good), (&text("a"), Quality::Good)));
        let (on, one) = (Some(Value::Bool(true)), Some(Value::I64(1)));
        assert!(absolute(10.0).passes((&on, Quality::Good), (&one, Quality::Good)));
    }
}
