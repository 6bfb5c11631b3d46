//! One message through mapping, decoder, rules and twins: pure, with time as an argument.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::decode::{Decoded, DeviceTime, Reading, decode};
use super::mapping::{Mapping, MappingError, Target};
use super::problem::{TIME_AHEAD, TOO_MANY_METRICS};
use crate::cache::{Indexer, Limits, Predicate, Twin};
use crate::config::{Class, Source};
use crate::model::{
    Alert, AlertState, Change, DeviceState, Lsn, Message, MetricState, Millis, ObjectKey, Quality, Record, Stamp, Value,
};
use crate::rules::{Facts, RuleEngine, Transition, annotate};

/// A device's clock that runs further ahead than this is wrong: the arrival counts.
const AHEAD_MAX_MS: i64 = 5 * 60 * 1000;

/// A state that found no room waits so long.
const RETRY: Duration = Duration::from_secs(1);

/// Mapping, twins and rules of one gateway.
pub struct Pipeline {
    mapping: Mapping,
    uplinks: Vec<Uplink>,
    twins: Indexer,
    rules: RuleEngine,
    held: BTreeSet<(Millis, ObjectKey)>,
    orphans: Vec<(ObjectKey, Alert)>,
}

/// What one message, or the passing of time, asks for. Publish `alerts` first, then add `changes`.
#[derive(Debug, Default)]
pub struct Step {
    /// To be published on the broker at once.
    pub alerts: Vec<Publication>,
    /// One frame.
    pub changes: Vec<Change>,
    /// The device whose whole state, or whose end, is in `changes`.
    pub put: Option<ObjectKey>,
    /// When the message may be acknowledged.
    pub outcome: Outcome,
    /// How many readings were decoded.
    pub readings: usize,
    /// What was odd about the payload.
    pub problem: Option<&'static str>,
}

/// When a message may be acknowledged.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It has no effect that is kept.
    #[default]
    Nothing,
    /// No source takes its topic; it has no effect that is kept.
    Unmapped,
    /// It was compared with a state that was added in this frame.
    Suppressed(Lsn),
    /// When its changes are durable.
    Stored,
    /// When the device's next state is durable, which `min_interval` keeps back until then.
    Held(ObjectKey),
    /// It was a reading of a device that does not fit.
    Refused,
}

/// An alert on its way to the subscribers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// MQTT topic.
    pub topic: Arc<str>,
    /// JSON of an [`Alert`].
    pub payload: Bytes,
    /// True if it fires, false if it resolves.
    pub firing: bool,
}

impl Pipeline {
    /// A pipeline without any device.
    pub fn new(sources: &[Source], namespace: &str, rules: RuleEngine, keys_max: usize) -> Result<Self, MappingError> {
        Ok(Self {
            mapping: Mapping::compile(sources, namespace)?,
            uplinks: sources.iter().map(Uplink::new).collect(),
            twins: Indexer::new(keys_max),
            rules,
            held: BTreeSet::new(),
            orphans: Vec::new(),
        })
    }

    /// Rebuilds twins and alert states from the newest committed records; what cannot be read is returned.
    pub fn restore<'a>(&mut self, devices: &'a [Record], alerts: &'a [Record]) -> Vec<&'a ObjectKey> {
        let mut unread = Vec::new();
        for record in devices {
            match serde_json::from_slice::<DeviceState>(&record.body) {
                // A device beyond a bound that was lowered stays in the queue and is made anew when it speaks.
                Ok(state) => drop(self.twins.entry(&record.key, || Twin::restore(state)).is_ok()),
                Err(_) => unread.push(&record.key),
            }
        }
        for record in alerts {
            match serde_json::from_slice::<Alert>(&record.body) {
                Ok(alert) => self.restore_alert(record, alert),
                Err(_) => unread.push(&record.key),
            }
        }
        unread
    }

    /// A firing alert that no rule will ever move again is resolved by [`Pipeline::on_start`].
    fn restore_alert(&mut self, record: &Record, alert: Alert) {
        let device = ObjectKey::new(record.key.namespace().clone(), alert.device.clone());
        let known = self.rules.restore(&alert.alert, &device, alert.state, alert.transition);
        if !known && alert.state == AlertState::Firing {
            self.orphans.push((record.key.clone(), alert));
        }
    }

    /// Resolves restored alerts whose rule is gone or applies to their device no longer; one step each.
    pub fn on_start(&mut self, wall: Stamp) -> Vec<Step> {
        let resolve = |(key, old): (ObjectKey, Alert)| {
            let mut step = Step { outcome: Outcome::Stored, ..Step::default() };
            let transition = old.transition + 1;
            let id = Alert::make_id(&old.alert, &old.device, transition);
            let (state, time, clock) = (AlertState::Resolved, wall.rfc3339(), wall.clock);
            step.tell(key, wall, &Alert { id, state, transition, time, clock, value: None, ..old });
            step
        };
        std::mem::take(&mut self.orphans).into_iter().map(resolve).collect()
    }

    /// Takes one publish.
    pub fn on_message(&mut self, message: &Message, now: Millis, wall: Stamp) -> Step {
        let Some(target) = self.mapping.resolve(&message.topic) else {
            return Step { outcome: Outcome::Unmapped, ..Step::default() };
        };
        // A retained PUBLISH to the broker itself is live: only a replay by another broker would be old.
        let Some(source) = self.mapping.source(target.source) else { return Step::default() };
        let decoded = decode(source, &target, &message.payload, false);
        let class = self.uplinks.get(target.source).map_or(Class::State, |uplink| uplink.class);
        let mut step = match class {
            _ if decoded.cleared && message.retain => self.on_cleared(&target, wall),
            _ if decoded.cleared => Step { problem: Some("empty"), ..Step::default() },
            Class::Event => self.on_event(&target, &decoded, message, now, wall),
            Class::State | Class::Transient => self.on_state(&target, &decoded, class, now, wall),
        };
        step.readings = decoded.readings.len();
        let time_problem = decoded.time_ignored.or(is_ahead(&decoded, wall).then_some(TIME_AHEAD));
        step.problem = step.problem.or(decoded.problem).or(time_problem);
        step
    }

    /// The frame of a step has been added.
    pub fn added(&mut self, put: Option<&ObjectKey>, lsn: Lsn, now: Millis) {
        if let Some(twin) = put.and_then(|key| self.twins.get_mut(key)) {
            twin.sent(lsn, now);
        }
    }

    /// The frame of a step was refused: its device, or the end of it, is tried again in a second.
    pub fn refused(&mut self, put: Option<&ObjectKey>, now: Millis) {
        if let Some(key) = put {
            self.held.insert((now + RETRY, key.clone()));
        }
    }

    /// When [`Pipeline::on_time`] wants to be called.
    pub fn next_deadline(&self) -> Option<Millis> {
        let held = self.held.first().map(|(until, _)| *until);
        [held, self.rules.next_deadline()].into_iter().flatten().min()
    }

    /// Delays of rules that have run out, and states that were kept back until now; one step each.
    pub fn on_time(&mut self, now: Millis, wall: Stamp) -> Vec<Step> {
        let mut transitions = Vec::new();
        self.rules.on_time(now, &mut transitions);
        let tell = |transition| {
            let mut step = Step { outcome: Outcome::Stored, ..Step::default() };
            self.publish(std::slice::from_ref(transition), None, wall, &mut step);
            step
        };
        let mut steps: Vec<Step> = transitions.iter().map(tell).collect();
        while self.held.first().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, key)) = self.held.pop_first() {
                steps.extend(self.flush(&key, wall));
            }
        }
        steps
    }

    /// All states that are kept back, at a stop.
    pub fn flush_all(&mut self, wall: Stamp) -> Vec<Step> {
        let held = std::mem::take(&mut self.held);
        held.iter().filter_map(|(_, key)| self.flush(key, wall)).collect()
    }

    fn flush(&self, key: &ObjectKey, wall: Stamp) -> Option<Step> {
        let mut step = Step { outcome: Outcome::Stored, ..Step::default() };
        match self.twins.get(key) {
            Some(twin) if twin.is_dirty() => step.put(key, twin, wall),
            Some(_) => return None,
            None => step.delete(key, wall),
        }
        Some(step)
    }

    fn on_state(&mut self, target: &Target, decoded: &Decoded, class: Class, now: Millis, wall: Stamp) -> Step {
        let Some(uplink) = self.uplinks.get(target.source) else { return Step::default() };
        let device = &target.device;
        let Ok(twin) = self.twins.entry(device, || Twin::new(device.name().clone())) else {
            return Step { outcome: Outcome::Refused, ..Step::default() };
        };
        twin.touch(wall, &target.labels);
        let time = taken_at(decoded, wall).rfc3339();
        let mut told = Vec::with_capacity(decoded.readings.len());
        let mut problem = None;
        for reading in &decoded.readings {
            if !twin.has_room(&reading.metric) {
                problem = Some(TOO_MANY_METRICS);
                continue;
            }
            twin.apply(&reading.metric, metric_state(reading, &time), uplink.predicate(&reading.metric));
            told.push(reading.metric.clone());
        }
        if let Some(online) = decoded.online {
            twin.set_online(online);
        }
        twin.heartbeat(now, uplink.limits);

        let mut transitions = Vec::new();
        self.rules.on_reading(device, &told, &TwinFacts(Some(twin), &[]), now, &mut transitions);
        let mut step = Step { problem, ..Step::default() };
        step.outcome = match twin.held_until(now, uplink.limits) {
            _ if class == Class::Transient => Outcome::Nothing,
            _ if !twin.is_dirty() => Outcome::Suppressed(twin.lsn()),
            Some(until) => {
                self.held.insert((until, device.clone()));
                Outcome::Held(device.clone())
            }
            None => {
                step.put(device, twin, wall);
                Outcome::Stored
            }
        };
        self.publish(&transitions, Some(&[]), wall, &mut step);
        step
    }

    /// Every message of class `event` is kept as it came; rules see its readings on top of the device's twin.
    fn on_event(&mut self, target: &Target, decoded: &Decoded, message: &Message, now: Millis, wall: Stamp) -> Step {
        let device = &target.device;
        let change = Change::Event { key: device.clone(), at: wall, body: message.payload.clone() };
        let mut step = Step { changes: vec![change], outcome: Outcome::Stored, ..Step::default() };
        let told: Vec<_> = decoded.readings.iter().map(|reading| reading.metric.clone()).collect();
        let mut transitions = Vec::new();
        let facts = TwinFacts(self.twins.get(device), &decoded.readings);
        self.rules.on_reading(device, &told, &facts, now, &mut transitions);
        self.publish(&transitions, Some(&decoded.readings), wall, &mut step);
        step
    }

    /// An empty retained message takes away what its topic named: one metric, or the device.
    fn on_cleared(&mut self, target: &Target, wall: Stamp) -> Step {
        let device = &target.device;
        let mut step = Step { outcome: Outcome::Stored, ..Step::default() };
        let Some(twin) = self.twins.get_mut(device) else {
            // Its Delete may wait for the disk, or for room. For a key that it does not know the queue does nothing.
            step.delete(device, wall);
            return step;
        };
        if let Some(metric) = &target.metric {
            let is_gone = twin.remove_metric(metric);
            if !is_gone && !twin.is_dirty() {
                return Step { outcome: Outcome::Suppressed(twin.lsn()), ..Step::default() };
            }
            if !is_gone || !twin.state().metrics.is_empty() {
                step.put(device, twin, wall);
                return step;
            }
        }
        let mut transitions = Vec::new();
        self.rules.on_deleted(device, &mut transitions);
        self.publish(&transitions, None, wall, &mut step);
        step.delete(device, wall);
        self.twins.remove(device);
        step
    }

    /// Turns transitions into publications and changes. `overlay` are readings that are not in the twin.
    fn publish(&self, transitions: &[Transition], overlay: Option<&[Reading]>, wall: Stamp, step: &mut Step) {
        for transition in transitions {
            let twin = self.twins.get(&transition.device);
            let facts = TwinFacts(twin, overlay.unwrap_or_default());
            let alert = alert(transition, twin, &facts, wall);
            let name = format!("{}.{}", alert.alert, alert.device);
            step.tell(ObjectKey::new(transition.device.namespace().clone(), name), wall, &alert);
            if step.outcome == Outcome::Nothing || matches!(step.outcome, Outcome::Suppressed(_)) {
                step.outcome = Outcome::Stored;
            }
        }
    }
}

impl Step {
    /// An alert to be published and stored as the same bytes.
    fn tell(&mut self, key: ObjectKey, at: Stamp, alert: &Alert) {
        let payload = Bytes::from(json(alert));
        self.changes.push(Change::Alert { key, at, body: payload.clone() });
        let topic = Alert::topic(&alert.alert, &alert.device).into();
        self.alerts.push(Publication { topic, payload, firing: alert.state == AlertState::Firing });
    }

    fn put(&mut self, key: &ObjectKey, twin: &Twin, at: Stamp) {
        self.changes.push(Change::Put { key: key.clone(), at, body: json(twin.state()).into() });
        self.put = Some(key.clone());
    }

    fn delete(&mut self, key: &ObjectKey, at: Stamp) {
        self.changes.push(Change::Delete { key: key.clone(), at });
        self.put = Some(key.clone());
    }
}

/// What a source says about changes, ready to use.
struct Uplink {
    class: Class,
    limits: Limits,
    fallback: Predicate,
    metrics: std::collections::HashMap<Arc<str>, Predicate>,
}

impl Uplink {
    fn new(source: &Source) -> Self {
        let ms = |span: crate::config::Span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX);
        let limits =
            Limits { max_interval_ms: ms(source.uplink.max_interval), min_interval_ms: ms(source.uplink.min_interval) };
        let metric = |(name, map): (&Arc<str>, &crate::config::MetricMap)| {
            let deadband = map.deadband.unwrap_or(source.uplink.deadband);
            (name.clone(), Predicate::new(deadband, map.range))
        };
        Self {
            class: source.class,
            limits,
            fallback: Predicate::new(source.uplink.deadband, None),
            metrics: source.metrics.iter().map(metric).collect(),
        }
    }

    fn predicate(&self, metric: &str) -> Predicate {
        self.metrics.get(metric).copied().unwrap_or(self.fallback)
    }
}

/// Readings of the message at hand, then the twin.
struct TwinFacts<'a>(Option<&'a Twin>, &'a [Reading]);

impl Facts for TwinFacts<'_> {
    fn metric(&self, name: &str) -> Option<(&Value, Quality)> {
        if let Some(reading) = self.1.iter().rev().find(|reading| &*reading.metric == name) {
            return Some((reading.value.as_ref().unwrap_or(NOTHING), reading.quality));
        }
        let metric = self.0?.state().metrics.get(name)?;
        Some((metric.value.as_ref().unwrap_or(NOTHING), metric.quality))
    }
}

/// Stands where a metric has never had a good value; its quality is bad, so nobody compares with it.
const NOTHING: &Value = &Value::Bool(false);

fn metric_state(reading: &Reading, time: &str) -> MetricState {
    MetricState {
        value: reading.value.clone(),
        quality: reading.quality,
        reason: reading.reason.map(Arc::from),
        unit: reading.unit.clone(),
        time: time.to_owned(),
    }
}

fn is_ahead(decoded: &Decoded, wall: Stamp) -> bool {
    decoded.time.as_ref().is_some_and(|time| time.unix_ms > wall.unix_ms + AHEAD_MAX_MS)
}

/// The device's own time where the source maps one and it can be right, else the arrival.
fn taken_at(decoded: &Decoded, wall: Stamp) -> Stamp {
    match decoded.time {
        Some(DeviceTime { unix_ms }) if unix_ms <= wall.unix_ms + AHEAD_MAX_MS => Stamp { unix_ms, ..wall },
        _ => wall,
    }
}

fn alert(transition: &Transition, twin: Option<&Twin>, facts: &TwinFacts<'_>, wall: Stamp) -> Alert {
    let (rule, device) = (&transition.rule, transition.device.name());
    let mut labels = twin.map(|twin| twin.state().labels.clone()).unwrap_or_default();
    labels.extend(rule.labels.clone());
    let fill =
        |(name, text): (&Arc<str>, &String)| (name.clone(), annotate(text, device, transition.value.as_ref(), facts));
    Alert {
        id: Alert::make_id(&rule.alert, device, transition.number),
        alert: rule.alert.clone(),
        device: device.clone(),
        state: transition.state,
        severity: rule.severity,
        labels,
        annotations: rule.annotations.iter().map(fill).collect(),
        value: transition.value.clone(),
        transition: transition.number,
        time: wall.rfc3339(),
        clock: wall.clock,
    }
}

/// Our own types have string keys and finite numbers only, so writing them as JSON cannot fail.
fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|error| unreachable!("a state is always JSON: {error}"))
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]
mod tests;
