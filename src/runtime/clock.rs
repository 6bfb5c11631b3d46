//! The only home of clocks. Durations use gateway time ([`Millis`], boot clock); wall time is stamped with its quality.

use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::model::{ClockQuality, Millis, Stamp};

/// No release is older than this (2026-11-01T00:00:00Z): a wall clock before it is wrong.
const RELEASE_UNIX_MS: i64 = 1_793_491_200_000;

/// Where systemd-timesyncd says that the clock is synchronised.
const TIMESYNC_MARKER: &str = "/run/systemd/timesync/synchronized";

/// What the gateway asks of a clock.
pub trait Clock: Send + Sync + 'static {
    /// Gateway time: never goes back, runs on in suspend.
    fn now(&self) -> Millis;

    /// Monotonic time with nanoseconds since an unnamed start: for latencies only.
    fn ticks(&self) -> Duration;

    /// Wall-clock time and how far it can be trusted.
    fn wall(&self) -> Stamp;
}

/// The system's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        let time = clock_gettime(ClockId::Boottime);
        Millis(time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000)
    }

    fn ticks(&self) -> Duration {
        let time = clock_gettime(ClockId::Monotonic);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    #[expect(clippy::disallowed_methods, reason = "the one home of the wall clock")]
    fn wall(&self) -> Stamp {
        let unix_ms = match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(span) => i64::try_from(span.as_millis()).unwrap_or(i64::MAX),
            Err(_) => 0,
        };
        let synced = unix_ms >= RELEASE_UNIX_MS && Path::new(TIMESYNC_MARKER).exists();
        Stamp { unix_ms, clock: if synced { ClockQuality::Synced } else { ClockQuality::Unsynced } }
    }
}

/// True if a wall time may be right: it is not before this release was made.
pub fn is_plausible(stamp: Stamp) -> bool {
    stamp.unix_ms >= RELEASE_UNIX_MS
}

/// A clock that stands until it is moved: for tests and simulation.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ms: AtomicU64,
    unix_ms: AtomicI64,
}

impl ManualClock {
    /// Starts at gateway time 0 and the given wall time.
    pub fn at(unix_ms: i64) -> Self {
        Self { now_ms: AtomicU64::new(0), unix_ms: AtomicI64::new(unix_ms) }
    }

    /// Lets time pass on both clocks.
    pub fn advance(&self, span: Duration) {
        let ms = span.as_millis() as u64;
        self.now_ms.fetch_add(ms, Ordering::SeqCst);
        self.unix_ms.fetch_add(ms.cast_signed(), Ordering::SeqCst);
    }

    /// Sets the wall clock alone, as `date -s` does.
    pub fn set_wall(&self, unix_ms: i64) {
        self.unix_ms.store(unix_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Millis {
        Millis(self.now_ms.load(Ordering::SeqCst))
    }

    fn ticks(&self) -> Duration {
        Duration::from_millis(self.now_ms.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Stamp {
        Stamp { unix_ms: self.unix_ms.load(Ordering::SeqCst), clock: ClockQuality::Synced }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_jumps_leaves_gateway_time_alone() {
        let clock = ManualClock::at(RELEASE_UNIX_MS);
        clock.advance(Duration::from_secs(5));
        clock.set_wall(0);
        assert_eq!(clock.now(), Millis(5000));
        assert!(!is_plausible(clock.wall()));
    }

    #[test]
    fn gateway_time_never_goes_back() {
        let first = SystemClock.now();
        assert!(SystemClock.now() >= first);
    }
}
