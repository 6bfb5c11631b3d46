//! The schema: every key, its default and its bounds. `keys.rs` describes the same keys for checks and reference.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ByteSize, Span};
use crate::model::Severity;

/// The whole configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Who this gateway is.
    pub gateway: Gateway,
    /// The MQTT front.
    pub broker: Broker,
    /// The log and the keyed store.
    pub store: Store,
    /// Bounds of what waits for the upstreams.
    pub queue: Queue,
    /// The served API, health and metrics.
    pub serve: Serve,
    /// What is logged.
    pub log: Log,
    /// Topics that become twins and events; the first that matches wins.
    pub source: Vec<Source>,
    /// Local alerts.
    pub alert: Vec<AlertRule>,
    /// Upstreams.
    pub sink: Vec<Sink>,
}

/// `[gateway]`: who this gateway is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gateway {
    /// Name in Kafka keys and `ce_source`: 1 to 63 letters, digits, `-`, `_`, `.`. Default: empty, which means the host
    /// name; `load` fills it in.
    pub name: String,
    /// Kubernetes namespace of the devices, an RFC 1123 label. Default `default`.
    pub namespace: String,
    /// Where `store/` and `identity/` lie; absolute. Default `/var/lib/tidegate`.
    pub data_dir: PathBuf,
}

impl Default for Gateway {
    fn default() -> Self {
        Self { name: String::new(), namespace: "default".into(), data_dir: "/var/lib/tidegate".into() }
    }
}

/// `[broker]`: the MQTT front.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Broker {
    /// Address of the MQTT listener, 3.1.1 and 5 on one port. Default `127.0.0.1:1883`.
    pub listen: SocketAddr,
    /// Lets clients in without a name on an address that is not loopback. Default false.
    pub anonymous: bool,
    /// Connections at a time. Default 1000; 1 to 100000.
    pub connections_max: usize,
    /// Largest packet taken. Default `256KiB`; 1 KiB to 2 MiB.
    pub packet_bytes_max: ByteSize,
    /// Unacknowledged QoS 1 publishes a client may have under way (MQTT 5 Receive Maximum). Default 64; at
    /// least 1.
    pub inflight_max: u16,
    /// Messages waiting for one subscriber. Default 1000; 1 to 100000.
    pub outbound_max: usize,
    /// Subscriptions of one client. Default 100; 1 to 10000.
    pub subscriptions_max: usize,
    /// Retained messages. Default 10000; 1 to 1000000.
    pub retained_max: usize,
    /// Bytes of all retained messages. Default `16MiB`; 64 KiB to 1 GiB.
    pub retained_bytes_max: ByteSize,
    /// Time a connection has for its CONNECT. Default `10s`; 1 s to 5 min.
    pub connect_timeout: Span,
    /// Longest keep-alive; a longer one or none is set to it for MQTT 5 clients. Default `1h`; 10 s to 18 h.
    pub keep_alive_max: Span,
}

impl Default for Broker {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 1883)),
            anonymous: false,
            connections_max: 1000,
            packet_bytes_max: ByteSize::kib(256),
            inflight_max: 64,
            outbound_max: 1000,
            subscriptions_max: 100,
            retained_max: 10_000,
            retained_bytes_max: ByteSize::mib(16),
            connect_timeout: Span::secs(10),
            keep_alive_max: Span::secs(3600),
        }
    }
}

/// `[store]`: the log and the keyed store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// Flash budget: while it has credit each batch is committed at once. Default 5; 1 to 10000.
    pub wear_gb_per_day: u32,
    /// Longest time that a batch is gathered when the budget is spent. Default `100ms`; 1 ms to 5 s.
    pub commit_window_max: Span,
    /// Changes that may wait in RAM for the disk. Default `16MiB`; 1 MiB to 1 GiB, and not below
    /// `broker.packet_bytes_max`.
    pub commit_queue_bytes_max: ByteSize,
    /// Log written between two checkpoints of the keyed store. Default `32MiB`; 8 to 256 MiB.
    pub checkpoint_bytes: ByteSize,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            wear_gb_per_day: 5,
            commit_window_max: Span(std::time::Duration::from_millis(100)),
            commit_queue_bytes_max: ByteSize::mib(16),
            checkpoint_bytes: ByteSize::mib(32),
        }
    }
}

/// `[queue]`: bounds of what waits for the upstreams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Devices and alerts that are known at a time. Default 100000; 1 to 1000000.
    pub keys_max: usize,
    /// Event records that wait. Default `64MiB`; 8 MiB to 1 TiB, and not below `broker.packet_bytes_max`.
    pub event_bytes_max: ByteSize,
    /// Alert transitions that wait. Default `16MiB`; 1 MiB to 1 TiB.
    pub alert_bytes_max: ByteSize,
    /// What happens to events when their bound is reached. Default `drop_oldest`.
    pub overflow: Overflow,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            keys_max: 100_000,
            event_bytes_max: ByteSize::mib(64),
            alert_bytes_max: ByteSize::mib(16),
            overflow: Overflow::DropOldest,
        }
    }
}

/// What happens to new events when a bound is reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// The oldest records make room; counted, logged and told upstream.
    #[default]
    DropOldest,
}

/// `[serve]`: the served API, health and metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Serve {
    /// Address of the HTTP listener; loopback only, it has no authentication. Default `127.0.0.1:7480`.
    pub listen: SocketAddr,
    /// Watches at a time. Default 32; 1 to 1000.
    pub watchers_max: usize,
}

impl Default for Serve {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 7480)), watchers_max: 32 }
    }
}

/// `[log]`: what is logged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug`, or a filter such as `info,tidegate::broker=debug`. Default `info`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into() }
    }
}

/// `[[source]]`: topics that become twins and events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// A [`super::TopicPattern`]: `{device}`, `{metric}` and any other name take one level, `{name...}` takes one or more,
    /// once in a topic; names other than these two become labels. `+` and `#` are taken, too.
    pub topic: String,
    /// The device, where the topic has no `{device}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Arc<str>>,
    /// The metric of a bare value, where the topic has no `{metric}`. Default `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<Arc<str>>,
    /// What is kept of a message. Default `state`.
    #[serde(default)]
    pub class: Class,
    /// How payloads are read. Default `auto`.
    #[serde(default)]
    pub format: Format,
    /// [`super::FieldPath`] of the part of a JSON payload that holds the metrics; odd keys in quotes:
    /// `"switch:0".apower`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The metrics to take, by name; without it each field of a JSON object is one, nested names joined by dots.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<Arc<str>, MetricMap>,
    /// Fields that are left out with all below them; a trailing `*` takes all with that beginning.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drop: Vec<String>,
    /// [`super::FieldPath`] of the device's time, from the top of the payload: seconds, milliseconds, microseconds,
    /// nanoseconds or RFC 3339 with a zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Labels of the devices.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Availability topic of the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub online: Option<Online>,
    /// Which changes go upstream.
    #[serde(default)]
    pub uplink: Uplink,
}

/// One metric of a source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricMap {
    /// [`super::FieldPath`] in the JSON payload, below `root`. Default: the metric's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// UCUM unit, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Arc<str>>,
    /// Deadband of this metric instead of the source's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadband: Option<Deadband>,
    /// Engineering range, which a deadband in per cent needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
}

/// What is kept of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The newest state per device.
    #[default]
    State,
    /// Every message.
    Event,
    /// Nothing: rules see it, disk never does.
    Transient,
}

/// How payloads are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A bare number, then JSON, then the words on/off/true/false/online/offline, else text.
    #[default]
    Auto,
    /// JSON only.
    Json,
    /// A bare number only.
    Number,
    /// Text as it is.
    Text,
}

/// Availability topic of a source's devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Online {
    /// MQTT filter with the source's placeholders.
    pub topic: String,
    /// Payload that means online. Default `online`; `{"state":"online"}` is understood, too.
    #[serde(default = "online_word")]
    pub on: String,
    /// Payload that means offline. Default `offline`.
    #[serde(default = "offline_word")]
    pub off: String,
}

fn online_word() -> String {
    "online".into()
}

fn offline_word() -> String {
    "offline".into()
}

/// Which changes of a source go upstream. Quality changes, text and boolean changes always do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Uplink {
    /// Change against the last value sent that counts: a number, or `"1%"` of the metric's range. Default 0: any
    /// change.
    pub deadband: Deadband,
    /// Sends at least this often while readings arrive. Default `0s`: never without a change; at most 7 days.
    pub max_interval: Span,
    /// Sends a device at most this often; the last value wins. What is held back is not acknowledged before it is
    /// stored, and neither is what its client sent after it. Default `0s`: no limit; at most `1m`.
    pub min_interval: Span,
}

/// A deadband.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Deadband {
    /// In the metric's unit; 0 lets any change through. A change of exactly the deadband counts.
    Absolute(f64),
    /// In per cent of the metric's `range`.
    Percent(f64),
}

impl Default for Deadband {
    fn default() -> Self {
        Self::Absolute(0.0)
    }
}

impl Serialize for Deadband {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absolute(limit) => serializer.serialize_f64(*limit),
            Self::Percent(percent) => serializer.collect_str(&format_args!("{percent}%")),
        }
    }
}

impl<'de> Deserialize<'de> for Deadband {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(f64),
            Text(String),
        }
        let wrong = || D::Error::custom("a deadband is a number such as 0.2, or a text such as \"1%\"; not negative");
        let (value, percent) = match Raw::deserialize(deserializer).map_err(|_| wrong())? {
            Raw::Number(number) => (number, false),
            Raw::Text(text) => {
                let number = text.strip_suffix('%').ok_or_else(wrong)?;
                (number.trim().parse().map_err(|_| wrong())?, true)
            }
        };
        if !value.is_finite() || value < 0.0 {
            return Err(wrong());
        }
        Ok(if percent { Self::Percent(value) } else { Self::Absolute(value) })
    }
}

/// `[[alert]]`: a local alert; Prometheus' names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertRule {
    /// Name of the alert, unique: 1 to 63 letters, digits, `_`, `-`.
    pub alert: Arc<str>,
    /// Devices: a name, with `*` for any characters. Default: every device that has all metrics named in `expr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Condition, a subset of CEL: `temperature > 80 && running`.
    pub expr: String,
    /// How long it must hold before the alert fires (ISA-18.2 on-delay). Default `0s`; at most 30 days.
    #[serde(default, rename = "for")]
    pub for_: Span,
    /// How long the alert goes on firing when it holds no longer (off-delay). Default `0s`; at most
    /// 30 days.
    #[serde(default)]
    pub keep_firing_for: Span,
    /// Distance that the value must go back by before it counts as clear. Only where `expr` is one comparison of a
    /// metric with a number. Default 0.
    #[serde(default)]
    pub hysteresis: f64,
    /// `critical`, `high`, `medium` or `low`. Default `medium`.
    #[serde(default)]
    pub severity: Severity,
    /// Labels of the alert.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Texts for people; `{device}`, `{value}` and `{<metric>}` are filled in.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<Arc<str>, String>,
}

/// `[[sink]]`: an upstream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sink {
    /// Name, unique; its cursors belong to it. 1 to 63 letters, digits, `-`, `_`, `.`.
    pub name: Arc<str>,
    /// Where a new sink starts. Default `snapshot`.
    #[serde(default)]
    pub start: Start,
    /// What kind of upstream, with its own keys.
    pub kafka: KafkaSink,
}

impl Sink {
    /// What kind of upstream it is.
    pub fn kind(&self) -> SinkKind<'_> {
        SinkKind::Kafka(&self.kafka)
    }
}

/// The kinds of upstream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SinkKind<'a> {
    /// Apache Kafka.
    Kafka(&'a KafkaSink),
}

/// Where a new sink starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// The whole state, events and alerts from the oldest kept.
    #[default]
    Snapshot,
    /// What changes from now on.
    Now,
}

/// `[sink.kafka]`: Apache Kafka 3.9 or newer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaSink {
    /// Bootstrap servers, `HOST:PORT`; 1 to 32.
    pub brokers: Vec<String>,
    /// Prefix of the topics. Default `tidegate`: `tidegate.devicestates`, `tidegate.alerts`, `tidegate.events`.
    #[serde(default = "kafka_prefix")]
    pub prefix: String,
    /// Time for one request. Default `10s`; 1 s to 5 min.
    #[serde(default = "kafka_timeout")]
    pub request_timeout: Span,
}

fn kafka_prefix() -> String {
    "tidegate".into()
}

fn kafka_timeout() -> Span {
    Span::secs(10)
}
