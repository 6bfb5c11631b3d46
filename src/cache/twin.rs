//! A device's twin: its state now, what of it was sent, and in which frame.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Limits, Predicate};
use crate::model::{DeviceState, Lsn, MetricState, Millis, Quality, Stamp, Value};

/// Metrics that one device may have; a source that makes names out of data must not fill the memory.
pub const METRICS_MAX: usize = 512;

/// A device's twin.
#[derive(Debug, Clone)]
pub struct Twin {
    state: DeviceState,
    sent: BTreeMap<Arc<str>, (Option<Value>, Quality)>,
    sent_online: Option<bool>,
    sent_at: Option<Millis>,
    lsn: Lsn,
    dirty: bool,
}

impl Twin {
    /// The twin of a device of which nothing is known yet.
    pub fn new(device: Arc<str>) -> Self {
        Self {
            state: DeviceState { device, ..DeviceState::default() },
            sent: BTreeMap::new(),
            sent_online: None,
            sent_at: None,
            lsn: Lsn::ZERO,
            dirty: false,
        }
    }

    /// The twin as it was sent last, from its stored record.
    pub fn restore(state: DeviceState) -> Self {
        let mut twin = Self { state, ..Self::new(Arc::from("")) };
        twin.sent = twin.image();
        twin.sent_online = twin.state.online;
        twin
    }

    /// The state now.
    pub fn state(&self) -> &DeviceState {
        &self.state
    }

    /// Position of the newest frame that holds this device.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// True if there is a change that has not been sent, kept back by the source's `min_interval`.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// A message arrived: its time and labels.
    pub fn touch(&mut self, at: Stamp, labels: &BTreeMap<Arc<str>, Arc<str>>) {
        self.state.last_seen = at.rfc3339();
        self.state.clock = at.clock;
        for (name, value) in labels {
            if self.state.labels.get(name) != Some(value) {
                self.state.labels.insert(name.clone(), value.clone());
                self.dirty = true;
            }
        }
    }

    /// The device is there, or not. True if that is worth a delta.
    pub fn set_online(&mut self, online: bool) -> bool {
        self.state.online = Some(online);
        self.dirty |= self.sent_online != Some(online);
        self.dirty
    }

    /// True if the metric is known or there is room for it.
    pub fn has_room(&self, metric: &str) -> bool {
        self.state.metrics.contains_key(metric) || self.state.metrics.len() < METRICS_MAX
    }

    /// Takes a reading; a bad one keeps the last good value beside its quality. True if it is worth a delta, or if
    /// one is waiting already. False also for a metric beyond [`METRICS_MAX`], which is left out.
    pub fn apply(&mut self, metric: &Arc<str>, reading: MetricState, predicate: Predicate) -> bool {
        if !self.has_room(metric) {
            return false;
        }
        let kept = self.state.metrics.get(metric).and_then(|old| old.value.clone());
        let value = if reading.quality == Quality::Bad { kept } else { reading.value };
        let now = MetricState { value, ..reading };
        let news = match self.sent.get(metric) {
            None => true,
            Some((value, quality)) => predicate.passes((value, *quality), (&now.value, now.quality)),
        };
        self.state.metrics.insert(metric.clone(), now);
        self.dirty |= news;
        self.dirty
    }

    /// Takes a metric away; true if it was there.
    pub fn remove_metric(&mut self, metric: &str) -> bool {
        let gone = self.state.metrics.remove(metric).is_some();
        self.sent.remove(metric);
        self.dirty |= gone;
        gone
    }

    /// Marks the twin as changed if its source wants a sign of life by now.
    pub fn heartbeat(&mut self, now: Millis, limits: Limits) {
        let due = self.sent_at.is_none_or(|sent| now.since(sent).as_millis() >= u128::from(limits.max_interval_ms));
        self.dirty |= limits.max_interval_ms > 0 && due;
    }

    /// When the waiting change may go, if `min_interval` keeps it back now.
    pub fn held_until(&self, now: Millis, limits: Limits) -> Option<Millis> {
        let free = self.sent_at? + std::time::Duration::from_millis(limits.min_interval_ms);
        (limits.min_interval_ms > 0 && free > now).then_some(free)
    }

    /// The state went out in frame `lsn`: later readings are compared with it.
    pub fn sent(&mut self, lsn: Lsn, now: Millis) {
        self.sent = self.image();
        self.sent_online = self.state.online;
        self.sent_at = Some(now);
        self.lsn = lsn;
        self.dirty = false;
    }

    fn image(&self) -> BTreeMap<Arc<str>, (Option<Value>, Quality)> {
        let entry = |(name, m): (&Arc<str>, &MetricState)| (name.clone(), (m.value.clone(), m.quality));
        self.state.metrics.iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Deadband;

    fn reading(value: f64) -> MetricState {
        MetricState {
            value: Some(Value::F64(value)),
            quality: Quality::Good,
            reason: None,
            unit: None,
            time: String::new(),
        }
    }

    fn any() -> Predicate {
        Predicate::new(Deadband::Absolute(1.0), None)
    }

    #[test]
    fn a_bad_reading_keeps_the_last_good_value_beside_it() {
        let (mut twin, name) = (Twin::new("d".into()), Arc::from("t"));
        assert!(twin.apply(&name, reading(21.5), any()));
        twin.sent(Lsn(1), Millis(0));
        let bad = MetricState { value: None, quality: Quality::Bad, ..reading(0.0) };
        assert!(twin.apply(&name, bad, any()), "a quality change is worth a delta");
        let metric = twin.state().metrics.get(&name).cloned();
        assert_eq!(metric.map(|m| (m.value, m.quality)), Some((Some(Value::F64(21.5)), Quality::Bad)));
    }

    #[test]
    fn a_restored_twin_sends_no_needless_delta() {
        let (mut twin, name) = (Twin::new("d".into()), Arc::from("t"));
        twin.apply(&name, reading(5.0), any());
        let mut again = Twin::restore(twin.state().clone());
        assert!(!again.apply(&name, reading(5.5), any()));
        assert!(again.apply(&name, reading(6.0), any()));
    }

    #[test]
    fn what_waits_stays_waiting_until_it_is_sent() {
        let (mut twin, name) = (Twin::new("d".into()), Arc::from("t"));
        let limits = Limits { max_interval_ms: 0, min_interval_ms: 1000 };
        twin.apply(&name, reading(1.0), any());
        assert_eq!(twin.held_until(Millis(0), limits), None, "the first state goes at once");
        twin.sent(Lsn(1), Millis(0));
        assert!(twin.apply(&name, reading(9.0), any()));
        assert_eq!(twin.held_until(Millis(400), limits), Some(Millis(1000)));
        assert!(twin.apply(&name, reading(1.1), any()), "back near the sent value, but a change was acknowledged");
        assert_eq!(twin.held_until(Millis(1000), limits), None);
    }

    #[test]
    fn a_heartbeat_is_due_after_max_interval() {
        let mut twin = Twin::new("d".into());
        let limits = Limits { max_interval_ms: 1000, min_interval_ms: 0 };
        twin.sent(Lsn(1), Millis(0));
        twin.heartbeat(Millis(999), limits);
        assert!(!twin.is_dirty());
        twin.heartbeat(Millis(1000), limits);
        assert!(twin.is_dirty());
    }

    #[test]
    fn metrics_are_bounded() {
        let mut twin = Twin::new("d".into());
        for n in 0..=METRICS_MAX {
            let fits = twin.apply(&Arc::from(n.to_string()), reading(1.0), any());
            assert!(fits || n == METRICS_MAX);
        }
        assert_eq!(twin.state().metrics.len(), METRICS_MAX);
    }
}
