//! What is printed at the end of a demo.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::reader::Reader;
use crate::cli::simulate::Counts;
use crate::model::Lane;
use crate::queue::DeltaFifo;
use crate::runtime::metrics::Metrics;

/// The figures of a demo; as JSON its keys are part of the command's contract.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    readings: u64,
    acknowledged: u64,
    deltas: u64,
    alerts_fired: u64,
    alerts_resolved: u64,
    alert_latency_us: Latency,
    ack_latency_us: Latency,
    queue_pending: u64,
    queue_bytes: u64,
    lost: usize,
}

/// Quantiles in microseconds.
#[derive(Debug, Serialize)]
struct Latency {
    p50: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

impl Latency {
    fn new(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: histogram.max() }
    }
}

impl Report {
    /// The figures now.
    pub(super) fn new(counts: &Counts, metrics: &Metrics, fifo: &DeltaFifo, reader: &Reader) -> Self {
        let deltas = Lane::ALL.iter().map(|lane| metrics.deltas.get_or_create(&(*lane).into()).get()).sum();
        let stats = fifo.stats();
        Self {
            readings: counts.readings,
            acknowledged: counts.acknowledged,
            deltas,
            alerts_fired: counts.fired,
            alerts_resolved: counts.resolved,
            alert_latency_us: Latency::new(&counts.alert_latency),
            ack_latency_us: Latency::new(&counts.ack_latency),
            queue_pending: stats.pending_records,
            queue_bytes: stats.pending_bytes,
            lost: reader.missing(counts),
        }
    }

    /// One object on one line.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| unreachable!("figures are always JSON: {error}")) + "\n"
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { alert_latency_us: alert, ack_latency_us: ack, .. } = self;
        format!(
            "\n{} messages sent, {} acknowledged (each on disk before its acknowledgement), {} deltas\n\
             {} alerts fired, {} resolved; publish to alert p50 {} us, p99 {} us, max {} us\n\
             acknowledgement p50 {} us, p99 {} us, max {} us\n\
             acknowledged events that did not arrive: {}\n",
            self.readings,
            self.acknowledged,
            self.deltas,
            self.alerts_fired,
            self.alerts_resolved,
            alert.p50,
            alert.p99,
            alert.max,
            ack.p50,
            ack.p99,
            ack.max,
            self.lost,
        )
    }
}
