//! Time as values. Who may read a clock is said in `runtime::clock`.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Gateway time in milliseconds: runs with the boot clock, never goes back, means nothing outside the gateway. All
/// durations (`for`, deadband intervals, back-off) are differences of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Millis(pub u64);

impl Millis {
    /// Time from `earlier` until now, zero if it lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Millis {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// How far a wall-clock time can be trusted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockQuality {
    /// The system clock was synchronised when the time was taken.
    Synced,
    /// Taken before the clock was synchronised, and corrected afterwards.
    Corrected,
    /// The clock may be wrong by any amount.
    #[default]
    Unsynced,
}

impl fmt::Display for ClockQuality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Synced => "synced",
            Self::Corrected => "corrected",
            Self::Unsynced => "unsynced",
        })
    }
}

/// Wall-clock time (milliseconds since 1970, UTC) with its quality.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub unix_ms: i64,
    /// How far it can be trusted.
    pub clock: ClockQuality,
}

impl Stamp {
    /// RFC 3339 with milliseconds, e.g. `2026-12-01T00:46:40.120Z`.
    pub fn rfc3339(self) -> String {
        let time = jiff::Timestamp::from_millisecond(self.unix_ms).unwrap_or_default();
        format!("{time:.3}")
    }

    /// RFC 3339 with whole seconds, as Kubernetes writes `metadata` times.
    pub fn rfc3339_seconds(self) -> String {
        let time = jiff::Timestamp::from_second(self.unix_ms.div_euclid(1000)).unwrap_or_default();
        format!("{time:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_written_as_rfc_3339() {
        let stamp = Stamp { unix_ms: 1_764_550_000_123, clock: ClockQuality::Synced };
        assert_eq!(stamp.rfc3339(), "2025-12-01T00:46:40.123Z");
        assert_eq!(stamp.rfc3339_seconds(), "2025-12-01T00:46:40Z");
        assert_eq!(Stamp::default().rfc3339(), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn a_span_never_goes_below_zero() {
        assert_eq!(Millis(5).since(Millis(9)), Duration::ZERO);
        assert_eq!(Millis(u64::MAX) + Duration::from_secs(1), Millis(u64::MAX));
    }
}
