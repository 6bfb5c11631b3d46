//! `sd_notify(3)`: readiness, status and the watchdog. Silent where no service manager listens.

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::debug;

/// Tells the service manager that the gateway serves.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells it that the gateway is going down.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// A sign of life; only to be sent while workers and engine are alive.
pub fn watchdog() {
    notify(&[NotifyState::Watchdog]);
}

/// How often the service manager wants a sign of life: half of its limit. None without a watchdog.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "the service manager could not be told");
    }
}
