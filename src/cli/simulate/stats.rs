//! What the clients measured. Latencies count from when a message was due, so that a stall is not left out.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

/// Shared by all clients of a simulation.
#[derive(Debug)]
pub(in crate::cli) struct Stats(Mutex<Counts>);

/// Counts and latencies.
#[derive(Debug)]
pub(in crate::cli) struct Counts {
    /// Messages that were sent, each counted once.
    pub(in crate::cli) readings: u64,
    /// Messages that were acknowledged.
    pub(in crate::cli) acknowledged: u64,
    /// Connections that broke.
    pub(in crate::cli) breaks: u64,
    /// Alerts seen to fire by the subscriber.
    pub(in crate::cli) fired: u64,
    /// Alerts seen to resolve by the subscriber.
    pub(in crate::cli) resolved: u64,
    /// From a crossing reading's due time to the alert at the subscriber, in microseconds.
    pub(in crate::cli) alert_latency: Histogram<u64>,
    /// From a message's due time to its acknowledgement, in microseconds.
    pub(in crate::cli) ack_latency: Histogram<u64>,
    /// Events that were acknowledged: device and number.
    pub(in crate::cli) events: HashSet<(String, u64)>,
    /// The newest alerts, for the live view.
    pub(in crate::cli) recent: std::collections::VecDeque<Seen>,
    crossings: HashMap<String, Duration>,
}

/// An alert as the subscriber saw it.
#[derive(Debug, Clone)]
pub(in crate::cli) struct Seen {
    /// The alert's name.
    pub(in crate::cli) alert: String,
    /// The device.
    pub(in crate::cli) device: String,
    /// `firing` or `resolved`.
    pub(in crate::cli) state: String,
    /// Publish to alert, where one reading decides.
    pub(in crate::cli) latency: Option<Duration>,
}

/// Lines of alerts that the live view may show.
const RECENT_MAX: usize = 8;

/// Three digits are enough for a figure that somebody reads.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000, 3).unwrap_or_else(|error| unreachable!("the bounds are fixed: {error}"))
}

impl Stats {
    /// All at zero.
    pub(in crate::cli) fn new() -> Self {
        Self(Mutex::new(Counts {
            readings: 0,
            acknowledged: 0,
            breaks: 0,
            fired: 0,
            resolved: 0,
            alert_latency: histogram(),
            ack_latency: histogram(),
            events: HashSet::new(),
            recent: std::collections::VecDeque::new(),
            crossings: HashMap::new(),
        }))
    }

    /// The counts; a panic elsewhere leaves them readable.
    pub(in crate::cli) fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// A reading that decides the temperature alert of `device` was due at `due`.
    pub(in crate::cli) fn crossed(&mut self, device: &str, due: Duration) {
        self.crossings.insert(device.to_owned(), due);
    }

    /// The subscriber got an alert.
    pub(in crate::cli) fn alert(&mut self, seen: Seen, now: Duration) {
        let crossing = if seen.alert == super::TIMED_ALERT { self.crossings.remove(&seen.device) } else { None };
        let latency = crossing.map(|due| now.saturating_sub(due));
        if let Some(latency) = latency {
            self.alert_latency.saturating_record(micros(latency));
        }
        *(if seen.state == "firing" { &mut self.fired } else { &mut self.resolved }) += 1;
        self.recent.push_front(Seen { latency, ..seen });
        self.recent.truncate(RECENT_MAX);
    }

    /// A message that was due at `due` is acknowledged.
    pub(in crate::cli) fn acknowledge(&mut self, due: Duration, now: Duration) {
        self.acknowledged += 1;
        self.ack_latency.saturating_record(micros(now.saturating_sub(due)));
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
