//! The demo's own reader: a sink with a cursor of its own that remembers every event it got.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;

use crate::cli::simulate::Counts;
use crate::model::{Lane, Record};
use crate::sink::{Delivered, GapNotice, Session, Sink, SinkError};

/// Remembers events by device and number.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    name: Arc<str>,
    seen: Arc<Mutex<HashSet<(String, u64)>>>,
}

#[derive(Deserialize)]
struct Event {
    device: String,
    n: u64,
}

impl Reader {
    /// A reader that has seen nothing.
    pub(super) fn new() -> Self {
        Self { name: "demo".into(), seen: Arc::default() }
    }

    /// The name of its cursors.
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Events that were acknowledged to a device and did not arrive here.
    pub(super) fn missing(&self, counts: &Counts) -> usize {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        counts.events.difference(&seen).count()
    }
}

impl Sink for Reader {
    type Session = Self;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn request_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn open(&mut self) -> Result<Self, SinkError> {
        Ok(self.clone())
    }
}

impl Session for Reader {
    async fn deliver(&mut self, records: &[Record]) -> Delivered {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let events = records.iter().filter(|record| record.lane == Lane::Event);
        let events = events.filter_map(|record| serde_json::from_slice::<Event>(&record.body).ok());
        seen.extend(events.map(|event| (event.device, event.n)));
        Delivered { acked: records.len(), error: None }
    }

    async fn announce(&mut self, _gap: &GapNotice) -> Result<(), SinkError> {
        Ok(())
    }

    async fn close(self) {}
}
