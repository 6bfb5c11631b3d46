//! `Alert`: what a rule says of a device, as it is published, stored, served and sent.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ClockQuality, Value};

/// An alert transition. The same JSON object is the MQTT payload on `tidegate/alerts/<alert>/<device>`, the Kafka
/// value and the served Alert's `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// Idempotency key: `<alert>/<device>/<transition>`, each part percent-encoded.
    pub id: String,
    /// Name of the rule.
    pub alert: Arc<str>,
    /// Name of the device.
    pub device: Arc<str>,
    /// Firing or resolved.
    pub state: AlertState,
    /// From the rule.
    pub severity: Severity,
    /// From the rule and the device; the rule wins.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// From the rule, with `{device}`, `{value}` and metric names filled in.
    pub annotations: BTreeMap<Arc<str>, String>,
    /// The value that decided, where the expression is one comparison.
    pub value: Option<Value>,
    /// Counts this alert's transitions from 1: odd fires, even resolves.
    pub transition: u64,
    /// RFC 3339 with milliseconds.
    pub time: String,
    /// Quality of `time`.
    pub clock: ClockQuality,
}

impl Alert {
    /// The id of a transition; equal after a restart that publishes it again.
    pub fn make_id(alert: &str, device: &str, transition: u64) -> String {
        format!("{}/{}/{transition}", encode_level(alert), encode_level(device))
    }

    /// The MQTT topic of an alert: names percent-encoded so that each stays one level.
    pub fn topic(alert: &str, device: &str) -> String {
        format!("tidegate/alerts/{}/{}", encode_level(alert), encode_level(device))
    }
}

/// Percent-encodes what would break a topic level: `/`, `+`, `#`, `%` and control characters.
fn encode_level(name: &str) -> String {
    let mut level = String::with_capacity(name.len());
    for c in name.chars() {
        if matches!(c, '/' | '+' | '#' | '%') || c.is_ascii_control() {
            let [high, low] = [u32::from(c) >> 4, u32::from(c) & 0xf].map(|n| char::from_digit(n, 16).unwrap_or('0'));
            level.extend(['%', high.to_ascii_uppercase(), low.to_ascii_uppercase()]);
        } else {
            level.push(c);
        }
    }
    level
}

/// Prometheus' two states of an alert that is told to anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertState {
    /// The condition holds.
    Firing,
    /// It held and does no longer.
    Resolved,
}

impl fmt::Display for AlertState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Firing => "firing",
            Self::Resolved => "resolved",
        })
    }
}

/// ISA-18.2 priority of an alert.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// For information.
    Low,
    /// Look at it today.
    #[default]
    Medium,
    /// Look at it now.
    High,
    /// Act now.
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        })
    }
}

/// A severity that is none of the four.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("severity {0:?} is not known; use critical, high, medium or low")]
pub struct ParseSeverityError(String);

impl FromStr for Severity {
    type Err = ParseSeverityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "critical" => Self::Critical,
            "high" => Self::High,
            "medium" => Self::Medium,
            "low" => Self::Low,
            other => return Err(ParseSeverityError(other.to_owned())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_topic_keeps_each_name_one_level() {
        assert_eq!(Alert::topic("Hot+", "hall/door 4"), "tidegate/alerts/Hot%2B/hall%2Fdoor 4");
        assert_eq!(Alert::make_id("Hot", "a%b", 3), "Hot/a%25b/3");
    }
}
