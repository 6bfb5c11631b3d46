//! `DeviceState`: a device's twin as it is stored, served and sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ClockQuality, Quality, Value};

/// The whole state of a device. Its JSON is the record's body: the Kafka value, the served object's `status`, and
/// what the twins are rebuilt from after a restart. Keys are camel case, times RFC 3339.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceState {
    /// The device's own name, unchanged.
    pub device: Arc<str>,
    /// Labels from the source and its topic placeholders.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Told by an availability topic; absent where the source has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub online: Option<bool>,
    /// Arrival time of the newest message that is in here.
    pub last_seen: String,
    /// Quality of `last_seen`.
    #[serde(default)]
    pub clock: ClockQuality,
    /// Values by metric name.
    pub metrics: BTreeMap<Arc<str>, MetricState>,
}

/// One metric of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricState {
    /// The last good value; null if there never was one.
    pub value: Option<Value>,
    /// Quality of the newest reading.
    pub quality: Quality,
    /// Why the quality is not good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    /// UCUM unit, where the source names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Arc<str>>,
    /// When the value was taken: the device's time where the source maps one, else its arrival.
    pub time: String,
}
