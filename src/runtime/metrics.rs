//! Every metric of the gateway, in one place: names as Prometheus wants them, units in the name, base units only.
//!
//! A room gets `&Metrics` and counts; nobody registers anything elsewhere, so that the list in the README is this file.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::model::Lane;

/// Label `reason` of what was dropped or refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// A fixed word.
    pub reason: &'static str,
}

/// Labels of what belongs to one sink's lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SinkLane {
    /// The sink's name.
    pub sink: String,
    /// The lane.
    pub lane: LaneLabel,
}

/// A lane as a label value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label's value is the variant's name")]
pub enum LaneLabel {
    /// Lane `alert`.
    alert,
    /// Lane `state`.
    state,
    /// Lane `event`.
    event,
}

impl From<Lane> for LaneLabel {
    fn from(lane: Lane) -> Self {
        match lane {
            Lane::Alert => Self::alert,
            Lane::State => Self::state,
            Lane::Event => Self::event,
        }
    }
}

/// Label `sink`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SinkLabel {
    /// The sink's name.
    pub sink: String,
}

/// All metric families. Counting is lock-free.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Connections that are open.
    pub connections: Gauge,
    /// Connections that were refused or ended by the gateway, by reason.
    pub connections_closed: Family<Reason, Counter>,
    /// Publishes taken from clients.
    pub publishes: Counter,
    /// Messages handed to subscribers.
    pub deliveries: Counter,
    /// Messages that a subscriber did not get, by reason.
    pub deliveries_dropped: Family<Reason, Counter>,
    /// Retained messages held.
    pub retained: Gauge,
    /// Readings decoded.
    pub readings: Counter,
    /// Messages that no source took.
    pub unmapped: Counter,
    /// Messages that a source could not read, by reason.
    pub undecodable: Family<Reason, Counter>,
    /// Publishes that were refused, by reason.
    pub refused: Family<Reason, Counter>,
    /// Alert transitions published, by state.
    pub alert_transitions: Family<Reason, Counter>,
    /// Changes added to the queue, by lane.
    pub deltas: Family<LaneOnly, Counter>,
    /// From reading the packet to publishing the alert.
    pub alert_latency: Histogram,
    /// From reading the packet to its acknowledgement.
    pub ack_latency: Histogram,
    /// Group commits.
    pub commits: Counter,
    /// Bytes written to the log.
    pub log_bytes: Counter,
    /// Time of a write with its fdatasync.
    pub commit_seconds: Histogram,
    /// Checkpoints of the keyed store.
    pub checkpoints: Counter,
    /// Damaged places in the log, each an exact gap of Seqs, told at a start.
    pub log_gaps: Counter,
    /// 1 while the disk refuses writes.
    pub disk_fault: Gauge,
    /// Failed writes, by operation.
    pub disk_errors: Family<Reason, Counter>,
    /// Bytes that wait in RAM for the disk.
    pub commit_queue_bytes: Gauge,
    /// Live devices.
    pub devices: Gauge,
    /// Live alerts, firing or resolved.
    pub alerts: Gauge,
    /// Records that some cursor has not passed, by sink and lane.
    pub lag_records: Family<SinkLane, Gauge>,
    /// Age of the oldest of them.
    pub lag_seconds: Family<SinkLane, Gauge>,
    /// Records that were dropped before every cursor had passed them, by lane.
    pub queue_dropped: Family<LaneOnly, Counter>,
    /// Records acknowledged by a sink, by lane.
    pub delivered: Family<SinkLane, Counter>,
    /// Sessions of a sink that failed.
    pub sink_failures: Family<SinkLabel, Counter>,
    /// 1 while a sink has a working session.
    pub sink_up: Family<SinkLabel, Gauge>,
    /// Watches that are open on the served API.
    pub watchers: Gauge,
    /// Start of the process, seconds since 1970.
    pub start_time: Gauge<f64, AtomicU64>,
}

/// Label `lane`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LaneOnly {
    /// The lane.
    pub lane: LaneLabel,
}

impl From<Lane> for LaneOnly {
    fn from(lane: Lane) -> Self {
        Self { lane: lane.into() }
    }
}

/// From 50 microseconds to 6.5 s, each bucket twice the one before.
fn latency() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(0.000_05, 2.0, 18))
}

impl Metrics {
    /// All families at zero.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("tidegate"),
            connections: Gauge::default(),
            connections_closed: Family::default(),
            publishes: Counter::default(),
            deliveries: Counter::default(),
            deliveries_dropped: Family::default(),
            retained: Gauge::default(),
            readings: Counter::default(),
            unmapped: Counter::default(),
            undecodable: Family::default(),
            refused: Family::default(),
            alert_transitions: Family::default(),
            deltas: Family::default(),
            alert_latency: latency(),
            ack_latency: latency(),
            commits: Counter::default(),
            log_bytes: Counter::default(),
            commit_seconds: latency(),
            checkpoints: Counter::default(),
            log_gaps: Counter::default(),
            disk_fault: Gauge::default(),
            disk_errors: Family::default(),
            commit_queue_bytes: Gauge::default(),
            devices: Gauge::default(),
            alerts: Gauge::default(),
            lag_records: Family::default(),
            lag_seconds: Family::default(),
            queue_dropped: Family::default(),
            delivered: Family::default(),
            sink_failures: Family::default(),
            sink_up: Family::default(),
            watchers: Gauge::default(),
            start_time: Gauge::default(),
        };
        metrics.register_edges();
        metrics.register_heart();
        metrics.register_store();
        metrics
    }

    /// The text that `/metrics` serves: `OpenMetrics` 1.0.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(std::fmt::Error) => String::new(),
        }
    }

    fn register_edges(&mut self) {
        let r = &mut self.registry;
        r.register("mqtt_connections", "MQTT connections that are open", self.connections.clone());
        r.register(
            "mqtt_connections_closed",
            "MQTT connections refused or ended by the gateway",
            self.connections_closed.clone(),
        );
        r.register("mqtt_publishes", "Publishes taken from MQTT clients", self.publishes.clone());
        r.register("mqtt_deliveries", "Messages handed to MQTT subscribers", self.deliveries.clone());
        r.register(
            "mqtt_deliveries_dropped",
            "Messages that an MQTT subscriber did not get",
            self.deliveries_dropped.clone(),
        );
        r.register("mqtt_retained", "Retained MQTT messages held", self.retained.clone());
        r.register("sink_delivered", "Records acknowledged by a sink", self.delivered.clone());
        r.register("sink_failures", "Sessions of a sink that failed", self.sink_failures.clone());
        r.register("sink_up", "1 while a sink has a working session", self.sink_up.clone());
        r.register("watchers", "Watches that are open on the served API", self.watchers.clone());
    }

    fn register_heart(&mut self) {
        let r = &mut self.registry;
        r.register("readings", "Sensor readings decoded", self.readings.clone());
        r.register("messages_unmapped", "Publishes that no source took", self.unmapped.clone());
        r.register(
            "messages_undecodable",
            "Publishes that a source could not read, or not wholly",
            self.undecodable.clone(),
        );
        r.register("messages_refused", "Publishes refused for want of room", self.refused.clone());
        r.register("alert_transitions", "Alert transitions published", self.alert_transitions.clone());
        r.register("deltas", "Changes added to the queue", self.deltas.clone());
        r.register(
            "alert_latency_seconds",
            "From reading a packet to publishing the alert",
            self.alert_latency.clone(),
        );
        r.register("ack_latency_seconds", "From reading a packet to its acknowledgement", self.ack_latency.clone());
        r.register("start_time_seconds", "Start of the process, seconds since 1970", self.start_time.clone());
    }

    fn register_store(&mut self) {
        let r = &mut self.registry;
        r.register("store_commits", "Group commits", self.commits.clone());
        r.register("store_log_bytes", "Bytes written to the log", self.log_bytes.clone());
        r.register("store_commit_seconds", "Time of a write with its fdatasync", self.commit_seconds.clone());
        r.register("store_checkpoints", "Checkpoints of the keyed store", self.checkpoints.clone());
        r.register("store_log_gaps", "Damaged places that the last start found in the log", self.log_gaps.clone());
        r.register("store_disk_fault", "1 while the disk refuses writes", self.disk_fault.clone());
        r.register("store_disk_errors", "Failed disk operations", self.disk_errors.clone());
        r.register("commit_queue_bytes", "Bytes that wait in RAM for the disk", self.commit_queue_bytes.clone());
        r.register("devices", "Live devices", self.devices.clone());
        r.register("alerts", "Live alerts, firing or resolved", self.alerts.clone());
        r.register("queue_lag_records", "Records that a sink has not acknowledged", self.lag_records.clone());
        r.register("queue_lag_seconds", "Age of the oldest record not acknowledged", self.lag_seconds.clone());
        r.register("queue_dropped", "Records dropped before every cursor passed them", self.queue_dropped.clone());
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_exposed_with_help_and_prefix() {
        let metrics = Metrics::new();
        metrics.refused.get_or_create(&Reason { reason: "keys_max" }).inc();
        metrics.deltas.get_or_create(&Lane::State.into()).inc_by(2);
        let text = metrics.encode();
        assert!(text.contains("tidegate_messages_refused_total{reason=\"keys_max\"} 1"), "{text}");
        assert!(text.contains("tidegate_deltas_total{lane=\"state\"} 2"), "{text}");
        assert!(text.contains("# HELP tidegate_ack_latency_seconds "), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
