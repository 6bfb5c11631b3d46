//! What the values must be to each other, once all layers are merged.

use std::collections::HashMap;

use super::error::{ConfigError, ConfigErrors};
use super::path::FieldPath;
use super::pattern::TopicPattern;
use super::{AlertRule, Config, Deadband, Format, MetricMap, Online, Place, Sink, Source};

/// Checks a configuration that was made by a program; the errors name keys, no files.
pub fn check(config: &Config) -> Result<(), ConfigErrors> {
    ConfigErrors::check(faults(config).into_iter().map(|fault| fault.at(|_| Place::BuiltIn)).collect())
}

/// Something wrong between values.
#[derive(Debug, PartialEq)]
pub(super) enum Fault {
    /// A value; `message` follows the key in a sentence and ends with the mend.
    Value { key: String, message: String },
    /// A name that two tables have.
    Twice { what: &'static str, name: String, first: String, second: String },
}

impl Fault {
    /// The error, with the place of each key.
    pub(super) fn at(self, place: impl Fn(&str) -> Place) -> ConfigError {
        match self {
            Self::Value { key, message } => ConfigError::Value { place: place(&key), key, message },
            Self::Twice { what, name, first, second } => {
                ConfigError::Twice { what, name, first: place(&first), second: place(&second) }
            }
        }
    }
}

/// All that is wrong, in the order of the schema.
pub(super) fn faults(config: &Config) -> Vec<Fault> {
    let mut faults = Faults { list: Vec::new(), table: String::new() };
    faults.gateway(config);
    faults.listeners(config);
    faults.bounds(config);
    faults.log(&config.log.level);
    for (i, source) in config.source.iter().enumerate() {
        faults.table = format!("source[{i}].");
        faults.source(source);
    }
    for (i, alert) in config.alert.iter().enumerate() {
        faults.table = format!("alert[{i}].");
        faults.alert(alert);
    }
    for (i, sink) in config.sink.iter().enumerate() {
        faults.table = format!("sink[{i}].");
        faults.sink(sink);
    }
    faults.table.clear();
    faults.twice("alert", "alert", config.alert.iter().map(|rule| &*rule.alert));
    faults.twice("sink", "name", config.sink.iter().map(|sink| &*sink.name));
    faults.list
}

struct Faults {
    list: Vec<Fault>,
    /// The table that is looked at, with its dot; empty for those that are there once.
    table: String,
}

impl Faults {
    fn add(&mut self, key: &str, message: impl Into<String>) {
        self.list.push(Fault::Value { key: format!("{}{key}", self.table), message: message.into() });
    }

    fn unless(&mut self, good: bool, key: &str, message: impl Into<String>) {
        if !good {
            self.add(key, message);
        }
    }

    fn gateway(&mut self, config: &Config) {
        let gateway = &config.gateway;
        if !is_name(&gateway.name, 63) {
            self.add(
                "gateway.name",
                format!(
                    "is {:?}; set it to 1 to 63 letters, digits, `-`, `_` or `.`, a letter or digit at both ends",
                    shown(&gateway.name)
                ),
            );
        }
        if !is_label(&gateway.namespace) {
            self.add(
                "gateway.namespace",
                format!(
                    "is {:?}; set it to 1 to 63 lower-case letters, digits or `-`, a letter or digit at both ends (RFC 1123)",
                    shown(&gateway.namespace)
                ),
            );
        }
        self.unless(
            gateway.data_dir.is_absolute(),
            "gateway.data_dir",
            "is not absolute; write it from `/` on, for example \"/var/lib/tidegate\"",
        );
    }

    fn listeners(&mut self, config: &Config) {
        let (mqtt, http) = (config.broker.listen, config.serve.listen);
        if !mqtt.ip().is_loopback() && !config.broker.anonymous {
            self.add(
                "broker.listen",
                format!(
                    "is {mqtt}, which other machines reach, and clients need no name; set broker.anonymous = true if \
                     that network is trusted, or listen on \"127.0.0.1:{}\"",
                    mqtt.port()
                ),
            );
        }
        if !http.ip().is_loopback() {
            self.add(
                "serve.listen",
                format!(
                    "is {http}, which other machines reach, and it has no authentication; set it to \"127.0.0.1:{}\"",
                    http.port()
                ),
            );
        }
        let meet = mqtt.ip() == http.ip() || mqtt.ip().is_unspecified();
        if meet && mqtt.port() == http.port() && mqtt.port() != 0 {
            self.add("serve.listen", format!("is {http}, the port of broker.listen; set one of them to another port"));
        }
    }

    fn bounds(&mut self, config: &Config) {
        let packet = config.broker.packet_bytes_max;
        for (key, bound) in [
            ("store.commit_queue_bytes_max", config.store.commit_queue_bytes_max),
            ("queue.event_bytes_max", config.queue.event_bytes_max),
        ] {
            if bound < packet {
                self.add(
                    key,
                    format!(
                        "is {bound}, less than one packet of broker.packet_bytes_max = {packet}; set it to {packet} or more, \
                         or let packets be smaller"
                    ),
                );
            }
        }
    }

    fn log(&mut self, level: &str) {
        let is_level = |word: &str| matches!(word, "off" | "error" | "warn" | "info" | "debug" | "trace");
        let plain = |target: &str| target.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'));
        let good = level.len() <= 1024
            && level.split(',').all(|part| match part.trim().split_once('=') {
                Some((target, level)) => !target.is_empty() && plain(target) && is_level(level),
                None => is_level(part.trim()),
            });
        self.unless(
            good,
            "log.level",
            format!(
                "is {:?}; write off, error, warn, info, debug or trace, or a filter such as \"info,tidegate::broker=debug\"",
                shown(level)
            ),
        );
    }

    fn source(&mut self, source: &Source) {
        match TopicPattern::parse(&source.topic) {
            Err(error) => self.add("topic", error.to_string()),
            Ok(pattern) => self.topic(source, &pattern),
        }
        if source.device.as_deref().is_some_and(|name| name.is_empty() || name.len() > 512 || name.contains('\0')) {
            self.add("device", "must have 1 to 512 bytes; write the device's name");
        }
        if source.metric.as_deref().is_some_and(|name| name.is_empty() || name.len() > 512) {
            self.add("metric", "must have 1 to 512 bytes; write the metric's name, or remove the line");
        }
        for (key, path) in [("root", &source.root), ("time", &source.time)] {
            if let Some(Err(error)) = path.as_deref().map(FieldPath::parse) {
                self.add(key, error.to_string());
            }
        }
        self.format(source);
        self.metrics(source);
        self.uplink(source);
        for (name, value) in &source.labels {
            let good = is_label_name(name) && value.len() <= 512;
            self.unless(
                good,
                "labels",
                format!(
                    "has {:?}; a name takes letters, digits, `_`, `-`, `.` and `/`, a value 512 bytes",
                    shown(name)
                ),
            );
        }
    }

    fn topic(&mut self, source: &Source, pattern: &TopicPattern) {
        self.reserved("topic", &source.topic);
        let names: Vec<&str> = pattern.names().collect();
        match (names.contains(&"device"), source.device.is_some()) {
            (true, true) => self.add("device", "is there, but the topic has {device}, too; remove one of the two"),
            (false, false) => {
                self.add(
                    "topic",
                    "does not tell the device; put {device} in place of a level, or add a line `device = ...`",
                );
            }
            _ => {}
        }
        if names.contains(&"metric") && source.metric.is_some() {
            self.add("metric", "is there, but the topic has {metric}, too; remove one of the two");
        }
        if let Some(name) = names.iter().find(|name| source.labels.contains_key(**name)) {
            self.add("labels", format!("has {name:?}, which the topic's {{{name}}} gives, too; remove one of the two"));
        }
        if let Some(online) = &source.online {
            self.online(online, &names);
        }
    }

    fn online(&mut self, online: &Online, names: &[&str]) {
        match TopicPattern::parse(&online.topic) {
            Err(error) => self.add("online.topic", error.to_string()),
            Ok(pattern) => {
                self.reserved("online.topic", &online.topic);
                let own: Vec<&str> = pattern.names().collect();
                let by_topic = names.contains(&"device");
                if by_topic != own.contains(&"device") {
                    self.add(
                        "online.topic",
                        if by_topic {
                            "does not tell the device; put {device} in place of a level, as in the source's topic"
                        } else {
                            "has {device}, but the source names its device; remove the placeholder"
                        },
                    );
                }
                if let Some(name) = own.iter().find(|name| !names.contains(*name)) {
                    self.add(
                        "online.topic",
                        format!("has {{{name}}}, which the source's topic has not; write `+` for it"),
                    );
                }
            }
        }
        let words = !online.on.trim().is_empty() && !online.off.trim().is_empty();
        if !words || online.on.trim().eq_ignore_ascii_case(online.off.trim()) {
            self.add(
                "online.off",
                "and online.on must be two words that differ; set for example \"online\" and \"offline\"",
            );
        }
    }

    fn reserved(&mut self, key: &str, topic: &str) {
        self.unless(!topic.starts_with('$'), key, "begins with `$`, where devices do not publish; remove the source");
        let alerts = topic == "tidegate/alerts" || topic.starts_with("tidegate/alerts/");
        self.unless(
            !alerts,
            key,
            "lies in tidegate/alerts, where the gateway publishes its own alerts; remove the source",
        );
    }

    fn format(&mut self, source: &Source) {
        if !matches!(source.format, Format::Number | Format::Text) {
            return;
        }
        for (key, there) in
            [("root", source.root.is_some()), ("time", source.time.is_some()), ("drop", !source.drop.is_empty())]
        {
            self.unless(!there, key, "has no meaning without JSON; remove it, or set format = \"json\"");
        }
    }

    fn metrics(&mut self, source: &Source) {
        let mut paths: HashMap<String, &str> = HashMap::new();
        for (name, metric) in &source.metrics {
            let key = format!("metrics.{name}");
            if name.is_empty() || name.len() > 512 {
                self.add("metrics", "has a name that is empty or longer than 512 bytes; give it another name");
            }
            match FieldPath::parse(metric.path.as_deref().unwrap_or(name)) {
                Err(error) if metric.path.is_some() => self.add(&format!("{key}.path"), error.to_string()),
                Err(_) => self.add(&key, "is no path by its name; add a path, in quotes where it has dots"),
                Ok(path) => {
                    if let Some(other) = paths.insert(path.to_string(), name) {
                        self.add(
                            &key,
                            format!("takes the field {path} as metrics.{other} does; remove one of the two"),
                        );
                    }
                }
            }
            if let Some([low, high]) = metric.range {
                let good = low < high && low.is_finite() && high.is_finite();
                self.unless(
                    good,
                    &format!("{key}.range"),
                    "must be two numbers, the lower one first; write for example [0, 150]",
                );
            }
            self.deadband(&key, metric.deadband, metric);
        }
        let idle = !source.metrics.is_empty() && !source.drop.is_empty();
        self.unless(!idle, "drop", "has no meaning where `metrics` names the fields; remove one of the two");
        let good = source.drop.iter().all(|field| !field.is_empty() && field.len() <= 512);
        self.unless(good, "drop", "has a name that is empty or longer than 512 bytes; remove it");
    }

    fn uplink(&mut self, source: &Source) {
        let uplink = &source.uplink;
        if !uplink.max_interval.0.is_zero() && uplink.min_interval > uplink.max_interval {
            self.add(
                "uplink.min_interval",
                format!(
                    "is {}, above max_interval = {}; swap them or remove one",
                    uplink.min_interval, uplink.max_interval
                ),
            );
        }
        if !matches!(uplink.deadband, Deadband::Percent(_)) {
            return;
        }
        if source.metrics.is_empty() {
            self.add(
                "uplink.deadband",
                "is in per cent, but no metric has a range; add `metrics.<name> = { range = [0, 150] }`, or write a number",
            );
        }
        for (name, metric) in source.metrics.iter().filter(|(_, metric)| metric.deadband.is_none()) {
            self.deadband(&format!("metrics.{name}"), Some(uplink.deadband), metric);
        }
    }

    fn deadband(&mut self, key: &str, deadband: Option<Deadband>, metric: &MetricMap) {
        match deadband {
            Some(Deadband::Percent(percent)) if percent > 100.0 => {
                self.add(key, format!("has a deadband of {percent}%; set it to 100% or less"));
            }
            Some(Deadband::Percent(_)) if metric.range.is_none() => {
                self.add(key, "has a deadband in per cent and no range; add a range, for example `range = [0, 150]`, or write a number");
            }
            _ => {}
        }
    }

    fn alert(&mut self, alert: &AlertRule) {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let name = &*alert.alert;
        self.unless(
            !name.is_empty() && name.len() <= 63 && name.chars().all(plain),
            "alert",
            format!("is {:?}; set it to 1 to 63 letters, digits, `_` or `-`", shown(name)),
        );
        let expr = alert.expr.trim();
        self.unless(
            !expr.is_empty() && expr.len() <= 4096,
            "expr",
            "must have 1 to 4096 bytes; write for example \"temperature > 80\"",
        );
        let on = alert.on.as_deref().is_none_or(|on| !on.is_empty() && on.len() <= 512);
        self.unless(on, "on", "must have 1 to 512 bytes; remove the line to take every device that has the metrics");
        self.unless(
            alert.hysteresis.is_finite() && alert.hysteresis >= 0.0,
            "hysteresis",
            "must not be negative; set it to 0 or more",
        );
        for name in alert.labels.keys() {
            let good = is_label_name(name);
            self.unless(
                good,
                "labels",
                format!("has {:?}; a name takes letters, digits, `_`, `-`, `.` and `/`", shown(name)),
            );
        }
    }

    fn sink(&mut self, sink: &Sink) {
        self.unless(
            is_name(&sink.name, 63),
            "name",
            format!(
                "is {:?}; set it to 1 to 63 letters, digits, `-`, `_` or `.`, a letter or digit at both ends",
                shown(&sink.name)
            ),
        );
        let kafka = &sink.kafka;
        self.unless(
            !kafka.brokers.is_empty(),
            "kafka.brokers",
            "is empty; write for example [\"kafka.example.com:9092\"]",
        );
        for broker in kafka.brokers.iter().filter(|broker| !is_host_port(broker)) {
            self.add(
                "kafka.brokers",
                format!("has {:?}; write HOST:PORT, for example \"kafka.example.com:9092\"", shown(broker)),
            );
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let prefix = &kafka.prefix;
        self.unless(
            !prefix.is_empty() && prefix.len() <= 200 && prefix.chars().all(plain) && !prefix.starts_with('.'),
            "kafka.prefix",
            format!("is {:?}; set it to 1 to 200 letters, digits, `.`, `_` or `-`, no dot first", shown(prefix)),
        );
    }

    fn twice<'a>(&mut self, what: &'static str, key: &str, names: impl Iterator<Item = &'a str>) {
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (second, name) in names.enumerate() {
            if let Some(first) = seen.get(name) {
                let path = |i: usize| format!("{what}[{i}].{key}");
                self.list.push(Fault::Twice { what, name: name.to_owned(), first: path(*first), second: path(second) });
            } else {
                seen.insert(name, second);
            }
        }
    }
}

/// A value as a message shows it.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A name that fits a Kafka key, a URI path and a Kubernetes label value.
pub(super) fn is_name(text: &str, bytes_max: usize) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= bytes_max
        && edge(text.chars().next())
        && edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// A DNS label as RFC 1123 has it, in lower case.
fn is_label(text: &str) -> bool {
    is_name(text, 63) && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn is_label_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    !text.is_empty() && text.len() <= 128 && text.chars().all(plain)
}

/// `HOST:PORT`; an IPv6 address in brackets.
fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let digits = port.chars().all(|c| c.is_ascii_digit());
    let port = digits && port.parse::<u16>().is_ok_and(|port| port > 0);
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_name(host, 253),
    };
    host && port
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests;
