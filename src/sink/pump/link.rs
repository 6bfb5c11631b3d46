//! What the log and the metrics say of a sink: once per change of state.

use std::sync::Arc;

use tracing::{debug, error, info, warn};

use super::super::SinkError;
use super::super::error::Chain;
use crate::runtime::metrics::{Metrics, SinkLabel};

/// The state of one sink's link as it was last told.
#[derive(Debug)]
pub(super) struct Link {
    label: SinkLabel,
    metrics: Arc<Metrics>,
    told: Told,
    /// A session failed at work: the next one is believed only when something is acknowledged.
    doubted: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Up,
    Down(&'static str),
}

impl Link {
    pub(super) fn new(name: &Arc<str>, metrics: &Arc<Metrics>) -> Self {
        let link = Self {
            label: SinkLabel { sink: name.to_string() },
            metrics: Arc::clone(metrics),
            told: Told::Nothing,
            doubted: false,
        };
        link.set(0);
        link
    }

    /// A session is open.
    pub(super) fn opened(&mut self) {
        if !self.doubted {
            self.up();
        }
    }

    /// The session's first, or any, acknowledgement.
    pub(super) fn acknowledged(&mut self) {
        self.doubted = false;
        self.up();
    }

    /// A session could not be opened, or failed.
    pub(super) fn failed(&mut self) {
        self.metrics.sink_failures.get_or_create(&self.label).inc();
    }

    /// The link as a whole is down.
    pub(super) fn down(&mut self, error: &SinkError) {
        self.doubted = self.doubted || self.told == Told::Up;
        let (sink, cause, told) = (&self.label.sink, Chain(error), Told::Down(error.kind()));
        if self.told == told {
            debug!(%sink, error = %cause, "sink is still down");
        } else if matches!(error, SinkError::Unreachable { .. }) {
            warn!(%sink, error = %cause, "sink is down; its records wait");
        } else {
            error!(%sink, error = %cause, "sink is down; its records wait");
        }
        self.told = told;
        self.set(0);
    }

    /// The pump ends.
    pub(super) fn stop(&self) {
        self.set(0);
    }

    fn up(&mut self) {
        if self.told != Told::Up {
            info!(sink = %self.label.sink, "sink is up");
            self.told = Told::Up;
            self.set(1);
        }
    }

    fn set(&self, up: i64) {
        self.metrics.sink_up.get_or_create(&self.label).set(up);
    }
}
