//! The description of every key: type, bounds and meaning in one table.
//!
//! The check of each file and variable, the reference and the shipped default file are all made from it; a test holds
//! it equal to the schema's own fields. Defaults are not repeated here, they are read from [`super::Config`].

use super::{ByteSize, Span};

/// One key of a table.
#[derive(Debug)]
pub(super) struct Key {
    /// The name as it is written.
    pub(super) name: &'static str,
    /// What it takes.
    pub(super) kind: Kind,
    /// True if its table is wrong without it.
    pub(super) required: bool,
    /// What it means; whole sentences.
    pub(super) doc: &'static str,
}

/// What a key takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// `true` or `false`.
    Flag,
    /// A whole number within bounds.
    Count(u64, u64),
    /// A number, not negative.
    Number,
    /// A size within bounds.
    Size(ByteSize, ByteSize),
    /// A duration within bounds, in milliseconds.
    Time(u64, u64),
    /// An IP address with a port.
    Address,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// An array of texts, with the most it may hold.
    Texts(usize),
    /// A table from names to texts, with the most it may hold.
    TextMap(usize),
    /// A number, or a text in per cent.
    Deadband,
    /// Two numbers, the lower one first.
    Range,
    /// A table with these keys.
    Table(&'static [Key]),
    /// An array of tables with these keys, with the most it may hold.
    Tables(&'static [Key], usize),
    /// A table from free names to tables with these keys, with the most it may hold.
    NamedTables(&'static [Key], usize),
}

impl Key {
    /// The keys below it, none unless it is a table of some sort.
    pub(super) fn below(&self) -> &'static [Key] {
        self.kind.keys().unwrap_or_default()
    }

    /// True if it is a table of some sort that knows the name.
    pub(super) fn has_below(&self, name: &str) -> bool {
        self.below().iter().any(|key| key.name == name)
    }
}

impl Kind {
    /// The keys below, if it is a table of some sort.
    pub(super) fn keys(self) -> Option<&'static [Key]> {
        match self {
            Self::Table(keys) | Self::Tables(keys, _) | Self::NamedTables(keys, _) => Some(keys),
            _ => None,
        }
    }

    /// The type in the words of the reference.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Flag => "true or false",
            Self::Count(..) => "whole number",
            Self::Number => "number",
            Self::Size(..) => "size",
            Self::Time(..) => "duration",
            Self::Address => "IP address and port",
            Self::Choice(_) => "word",
            Self::Texts(_) => "array of texts",
            Self::TextMap(_) => "table of texts",
            Self::Deadband => "number or per cent",
            Self::Range => "two numbers",
            Self::Table(_) | Self::Tables(..) | Self::NamedTables(..) => "table",
        }
    }

    /// The bounds in the words of the reference; empty if any value will do.
    pub(super) fn bounds(self) -> String {
        match self {
            Self::Count(least, most) => format!("{least} to {most}"),
            Self::Size(least, most) => format!("{least} to {most}"),
            Self::Time(least, most) => format!("{} to {}", millis(least), millis(most)),
            Self::Number => "at least 0".into(),
            Self::Choice(words) => words.join(", "),
            Self::Texts(most) | Self::TextMap(most) | Self::Tables(_, most) | Self::NamedTables(_, most) => {
                format!("at most {most}")
            }
            Self::Deadband => "at least 0; at most 100%".into(),
            Self::Range => "lower one first".into(),
            Self::Text | Self::Flag | Self::Address | Self::Table(_) => String::new(),
        }
    }
}

/// A duration of so many milliseconds.
pub(super) fn millis(n: u64) -> Span {
    Span(std::time::Duration::from_millis(n))
}

const fn key(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { name, kind, required: false, doc }
}

const fn must(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { name, kind, required: true, doc }
}

const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;

/// The whole configuration.
pub(super) static ROOT: &[Key] = &[
    key("gateway", Kind::Table(GATEWAY), "Who this gateway is."),
    key("broker", Kind::Table(BROKER), "The MQTT front."),
    key("store", Kind::Table(STORE), "The log and the keyed store."),
    key("queue", Kind::Table(QUEUE), "Bounds of what waits for the upstreams."),
    key("serve", Kind::Table(SERVE), "The served API, health and metrics."),
    key("log", Kind::Table(LOG), "What is logged."),
    key("source", Kind::Tables(SOURCE, 1024), "Topics that become twins and events; the first that matches wins."),
    key("alert", Kind::Tables(ALERT, 1024), "Local alerts; Prometheus' names."),
    key("sink", Kind::Tables(SINK, 8), "Upstreams."),
];

static GATEWAY: &[Key] = &[
    key("name", Kind::Text, "Name in Kafka keys and `ce_source`. Empty means the host name."),
    key("namespace", Kind::Text, "Kubernetes namespace of the devices."),
    key("data_dir", Kind::Text, "Where `store/` and `identity/` lie; an absolute path."),
];

static BROKER: &[Key] = &[
    key("listen", Kind::Address, "Address of the MQTT listener, 3.1.1 and 5 on one port."),
    key("anonymous", Kind::Flag, "Lets clients in without a name on an address that is not loopback."),
    key("connections_max", Kind::Count(1, 100_000), "Connections at a time."),
    key(
        "packet_bytes_max",
        Kind::Size(ByteSize::kib(1), ByteSize::mib(2)),
        "Largest packet taken; all effects of a message fit into one frame of the log.",
    ),
    key(
        "inflight_max",
        Kind::Count(1, 65_535),
        "Unacknowledged QoS 1 publishes a client may have under way (MQTT 5 Receive Maximum).",
    ),
    key("outbound_max", Kind::Count(1, 100_000), "Messages waiting for one subscriber."),
    key("subscriptions_max", Kind::Count(1, 10_000), "Subscriptions of one client."),
    key("retained_max", Kind::Count(1, 1_000_000), "Retained messages."),
    key("retained_bytes_max", Kind::Size(ByteSize::kib(64), ByteSize::mib(1024)), "Bytes of all retained messages."),
    key("connect_timeout", Kind::Time(SECOND, 300 * SECOND), "Time a connection has for its CONNECT."),
    key(
        "keep_alive_max",
        Kind::Time(10 * SECOND, 18 * HOUR),
        "Longest keep-alive; a longer one or none is set to it for MQTT 5 clients.",
    ),
];

static STORE: &[Key] = &[
    key(
        "wear_gb_per_day",
        Kind::Count(1, 10_000),
        "Flash budget in gigabytes a day: while it has credit each batch is committed at once.",
    ),
    key(
        "commit_window_max",
        Kind::Time(1, 5 * SECOND),
        "Longest time that a batch is gathered when the budget is spent.",
    ),
    key(
        "commit_queue_bytes_max",
        Kind::Size(ByteSize::mib(1), ByteSize::mib(1024)),
        "Changes that may wait in RAM for the disk; at least `broker.packet_bytes_max`.",
    ),
    key(
        "checkpoint_bytes",
        Kind::Size(ByteSize::mib(8), ByteSize::mib(256)),
        "Log written between two checkpoints of the keyed store.",
    ),
];

static QUEUE: &[Key] = &[
    key("keys_max", Kind::Count(1, 1_000_000), "Devices and alerts that are known at a time."),
    key(
        "event_bytes_max",
        Kind::Size(ByteSize::mib(8), ByteSize::mib(1 << 20)),
        "Event records that wait; at least `broker.packet_bytes_max`.",
    ),
    key("alert_bytes_max", Kind::Size(ByteSize::mib(1), ByteSize::mib(1 << 20)), "Alert transitions that wait."),
    key(
        "overflow",
        Kind::Choice(&["drop_oldest"]),
        "What happens to events when their bound is reached: the oldest make room; counted, logged and told upstream.",
    ),
];

static SERVE: &[Key] = &[
    key("listen", Kind::Address, "Address of the HTTP listener; loopback only, it has no authentication."),
    key("watchers_max", Kind::Count(1, 1000), "Watches at a time."),
];

static LOG: &[Key] = &[key(
    "level",
    Kind::Text,
    "`off`, `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,tidegate::broker=debug`.",
)];

static SOURCE: &[Key] = &[
    must(
        "topic",
        Kind::Text,
        "MQTT filter with named placeholders: `{device}`, `{metric}` and any other name take one level, `{name...}` \
         takes one or more; other names than these two become labels. `+` and `#` are taken, too.",
    ),
    key("device", Kind::Text, "The device, where the topic has no `{device}`."),
    key("metric", Kind::Text, "The metric of a bare value, where the topic has no `{metric}`; without either `value`."),
    key(
        "class",
        Kind::Choice(&["state", "event", "transient"]),
        "What is kept: `state` the newest state per device, `event` every message, `transient` nothing, but rules see it.",
    ),
    key(
        "format",
        Kind::Choice(&["auto", "json", "number", "text"]),
        "How payloads are read; `auto`: a bare number, then JSON, then the words on, off, true, false, online and \
         offline, else text.",
    ),
    key(
        "root",
        Kind::Text,
        "Dotted path of the part of a JSON payload that holds the metrics; odd keys in quotes: `\"switch:0\".apower`.",
    ),
    key(
        "metrics",
        Kind::NamedTables(METRIC, 512),
        "The metrics to take, by name; without it each field of a JSON object is one, nested names joined by dots.",
    ),
    key(
        "drop",
        Kind::Texts(256),
        "Fields that are left out with all below them; a trailing `*` takes all with that beginning.",
    ),
    key(
        "time",
        Kind::Text,
        "Dotted path of the device's time in a JSON payload: seconds, milliseconds, microseconds, nanoseconds or RFC 3339 \
         with a zone.",
    ),
    key("labels", Kind::TextMap(64), "Labels of the devices."),
    key("online", Kind::Table(ONLINE), "Availability topic of the devices."),
    key(
        "uplink",
        Kind::Table(UPLINK),
        "Which changes go upstream. Quality changes, text and boolean changes always do.",
    ),
];

static METRIC: &[Key] = &[
    key("path", Kind::Text, "Dotted path in the JSON payload, below `root`; without it the metric's name."),
    key("unit", Kind::Text, "UCUM unit, for display."),
    key("deadband", Kind::Deadband, "Deadband of this metric instead of the source's."),
    key("range", Kind::Range, "Engineering range, which a deadband in per cent needs."),
];

static ONLINE: &[Key] = &[
    must("topic", Kind::Text, "MQTT filter with the source's placeholders."),
    key("on", Kind::Text, "Payload that means online; `{\"state\":\"online\"}` is understood, too."),
    key("off", Kind::Text, "Payload that means offline."),
];

static UPLINK: &[Key] = &[
    key(
        "deadband",
        Kind::Deadband,
        "Change against the last value sent that counts: a number, or `\"1%\"` of the metric's range. 0: any change.",
    ),
    key("max_interval", Kind::Time(0, 7 * DAY), "Sends at least this often while readings arrive. 0s: only changes."),
    key(
        "min_interval",
        Kind::Time(0, DAY / 1440),
        "Sends a device at most this often; the last value wins. Acknowledgements of what is held back wait so long. 0s: no limit.",
    ),
];

static ALERT: &[Key] = &[
    must("alert", Kind::Text, "Name of the alert, unique: letters, digits, `_` and `-`."),
    key(
        "on",
        Kind::Text,
        "Devices: a name, with `*` for any characters; without it every device that has all metrics named.",
    ),
    must("expr", Kind::Text, "Condition, a subset of CEL: `temperature > 80 && running`."),
    key("for", Kind::Time(0, 30 * DAY), "How long it must hold before the alert fires (ISA-18.2 on-delay)."),
    key("keep_firing_for", Kind::Time(0, 30 * DAY), "How long it goes on firing when it holds no longer (off-delay)."),
    key(
        "hysteresis",
        Kind::Number,
        "Distance that the value must go back by before it counts as clear; only where `expr` is one comparison of a \
         metric with a number.",
    ),
    key("severity", Kind::Choice(&["critical", "high", "medium", "low"]), "ISA-18.2 priority."),
    key("labels", Kind::TextMap(64), "Labels of the alert."),
    key("annotations", Kind::TextMap(64), "Texts for people; `{device}`, `{value}` and `{<metric>}` are filled in."),
];

static SINK: &[Key] = &[
    must("name", Kind::Text, "Name, unique; its cursors belong to it. Letters, digits, `_`, `.` and `-`."),
    key(
        "start",
        Kind::Choice(&["snapshot", "now"]),
        "Where a new sink starts: `snapshot` with the whole state and the oldest events kept, `now` with what changes next.",
    ),
    must("kafka", Kind::Table(KAFKA), "Apache Kafka 3.9 or newer."),
];

static KAFKA: &[Key] = &[
    must("brokers", Kind::Texts(32), "Bootstrap servers, `HOST:PORT`."),
    key("prefix", Kind::Text, "Prefix of the topics `<prefix>.devicestates`, `<prefix>.alerts` and `<prefix>.events`."),
    key("request_timeout", Kind::Time(SECOND, 300 * SECOND), "Time for one request."),
];
