//! The oracle: what must be true of everything that was seen, given what was acknowledged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::devices::{ALERTS, DEVICES, Device, READINGS, Reading, TIMED, What};
use super::watchers::{Objects, objects, plain};
use crate::kafka::{Record, by_key, deduplicate};
use crate::mqtt::{Life, Seen};

/// What was published within this time before the SIGKILL may not have been committed.
const DOUBT: f64 = 1.0;

/// Everything that was seen.
pub(crate) struct Evidence<'a> {
    /// What the devices said.
    pub(crate) devices: &'a [Device],
    /// What was acknowledged.
    pub(crate) lives: &'a [Arc<Life>],
    /// Wall time of the SIGKILL.
    pub(crate) killed_at: f64,
    /// The same after the start of the devices.
    pub(crate) killed_after: Duration,
    /// Topic of states.
    pub(crate) states: Vec<Record>,
    /// Topic of alerts.
    pub(crate) alerts: Vec<Record>,
    /// Topic of events.
    pub(crate) events: Vec<Record>,
    /// What our subscriber saw.
    pub(crate) inbox: Vec<Seen>,
    /// When it was subscribed.
    pub(crate) subscribed: Vec<f64>,
    /// What mosquitto_sub saw.
    pub(crate) mosquitto: Vec<Seen>,
    /// `kubectl get devicestates -o json`.
    pub(crate) listed_states: Value,
    /// `kubectl get alerts -o json`.
    pub(crate) listed_alerts: Value,
    /// `kubectl get devicestates`.
    pub(crate) table: String,
}

impl Evidence<'_> {
    /// Sizes.
    pub(crate) fn summary(&self) -> String {
        format!(
            "in Kafka: {} states, {} alert transitions, {} events; seen: {} by our subscriber, {} by mosquitto_sub",
            self.states.len(),
            self.alerts.len(),
            self.events.len(),
            self.inbox.len(),
            self.mosquitto.len()
        )
    }
}

/// Everything that is wrong.
pub(crate) fn judge(evidence: &Evidence<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    wrong.extend(acknowledgements(evidence));
    wrong.extend(headers(evidence));
    wrong.extend(states(evidence));
    wrong.extend(transitions(evidence));
    wrong.extend(final_alerts(evidence));
    wrong.extend(subscriber("our subscriber", &evidence.inbox, evidence));
    wrong.extend(subscriber("mosquitto_sub", &evidence.mosquitto, evidence));
    wrong.extend(completeness(evidence));
    wrong.extend(events(evidence));
    wrong.extend(lists(evidence));
    wrong
}

/// The number of the reading that a state holds.
pub(crate) fn number(state: &Value) -> Option<u64> {
    state["metrics"]["n"]["value"].as_f64().map(|n| n as u64)
}

/// Every message was acknowledged, in its client's order.
fn acknowledgements(evidence: &Evidence<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for life in evidence.lives {
        let marks = life.marks();
        if marks.iter().any(|mark| mark.acked.is_none()) {
            wrong.push(format!("{}: a message was never acknowledged", life.client));
        }
        if !marks.is_sorted_by_key(|mark| mark.acked) {
            wrong.push(format!("{}: acknowledgements did not come in order", life.client));
        }
    }
    wrong
}

/// Every record says where it comes from, all from one epoch, and nothing was dropped.
fn headers(evidence: &Evidence<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let all = || evidence.states.iter().chain(&evidence.alerts).chain(&evidence.events);
    let epochs: BTreeSet<_> = all().map(|record| record.header("tidegate_epoch")).collect();
    if epochs.len() != 1 || epochs.contains("") {
        wrong.push(format!("a SIGKILL makes no new epoch, but there are {epochs:?}"));
    }
    for record in all() {
        let subject = record.key.strip_prefix("e2e/").unwrap_or("no key of this gateway");
        let as_it_must = record.header("ce_source") == "/tidegate/e2e"
            && record.header("ce_specversion") == "1.0"
            && record.header("ce_subject") == subject
            && record.header("ce_id").ends_with(&format!("/{}", record.sequence()))
            && record.header("content-type") == "application/json";
        if !as_it_must {
            wrong.push(format!("odd headers: {record:?}"));
        }
    }
    wrong.truncate(5);
    wrong
}

/// State topic: every key's newest is the last acknowledged reading, and the numbers of a key never go back.
fn states(evidence: &Evidence<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let keys = by_key(&evidence.states);
    if keys.len() != DEVICES {
        wrong.push(format!("the state topic has {} keys", keys.len()));
    }
    for device in evidence.devices {
        let key = format!("e2e/default/{}", device.name);
        let Some(records) = keys.get(key.as_str()) else {
            wrong.push(format!("{key} is not in the state topic"));
            continue;
        };
        let (mut known, mut highest) = (HashMap::new(), 0);
        for record in records {
            let sequence = record.sequence();
            match known.insert(sequence, &record.value) {
                Some(first) if *first == record.value => continue,
                Some(_) => wrong.push(format!("{key}: two states under ce_sequence {sequence}")),
                None if sequence < highest => wrong.push(format!("{key}: ce_sequence {sequence} after {highest}")),
                None => highest = sequence,
            }
            wrong.extend(said(device, &record.json()).err());
        }
        let newest = records.iter().max_by_key(|record| record.sequence());
        let shown = newest.and_then(|record| number(&record.json()));
        if shown != Some(READINGS) {
            wrong.push(format!("{key}: reading {READINGS} was acknowledged, the newest state has {shown:?}"));
        }
        if records.last().map(|record| record.sequence()) != Some(highest) {
            wrong.push(format!("{key}: who upserts in order of offsets does not end with the newest state"));
        }
    }
    wrong
}

/// A state is exactly one reading that the device sent.
fn said(device: &Device, state: &Value) -> Result<(), String> {
    let metric = |name: &str| &state["metrics"][name]["value"];
    let shown = number(state).and_then(|n| {
        let (temperature, vibration) = (metric("temperature").as_f64()?, metric("vibration").as_f64()?);
        Some(Reading { n, temperature, vibration, running: metric("running").as_bool()? })
    });
    let sent = shown.and_then(|shown| device.reading(shown.n));
    if shown.is_some() && shown == sent && state["device"] == device.name.as_str() {
        return Ok(());
    }
    Err(format!("{} never sent what its state says: {state}", device.name))
}

/// Alert topic: firing and resolved by turns, numbered without a hole, under one id each.
fn transitions(evidence: &Evidence<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let keys = by_key(deduplicate(&evidence.alerts));
    for (key, records) in &keys {
        for (index, record) in records.iter().enumerate() {
            let (alert, wanted) = (record.json(), index as u64 + 1);
            let state = if wanted % 2 == 1 { "firing" } else { "resolved" };
            let id = format!("{}/{}/{wanted}", text(&alert, "alert"), text(&alert, "device"));
            if alert["transition"] != wanted || text(&alert, "state") != state || text(&alert, "id") != id {
                wrong.push(format!("{key}: transition {wanted} must be {state} under id {id}, but it is {alert}"));
                break;
            }
        }
    }
    for device in evidence.devices {
        let key = format!("e2e/default/Hot.{}", device.name);
        let told = keys.get(key.as_str()).map_or(0, Vec::len);
        let least = device.switches_of_hot();
        if told < least {
            wrong.push(format!("{key}: the readings switch it {least} times, the topic has {told} transitions"));
        }
    }
    wrong
}

/// The newest transition of each alert is what the device's last reading implies, in Kafka and for kubectl.
fn final_alerts(evidence: &Evidence<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let newest = newest_alerts(&evidence.alerts);
    for device in evidence.devices {
        for (alert, firing) in ALERTS.into_iter().zip(device.firing_at_the_end()) {
            let wanted = if firing { "firing" } else { "resolved" };
            let shown = newest.get(&(alert.to_owned(), device.name.clone()));
            if shown.map(|(_, alert)| text(alert, "state")) != Some(wanted) {
                wrong.push(format!("{alert} of {} must be {wanted} at the end, but it is {shown:?}", device.name));
            }
        }
    }
    wrong
}

/// Newest transition by alert and device, with its sequence.
fn newest_alerts(records: &[Record]) -> BTreeMap<(String, String), (u64, Value)> {
    let mut newest = BTreeMap::new();
    for record in deduplicate(records) {
        let alert = record.json();
        let name = (text(&alert, "alert").to_owned(), text(&alert, "device").to_owned());
        newest.insert(name, (record.sequence(), alert));
    }
    newest
}

/// Every transition that a subscriber saw is in Kafka under the same id, word for word as it was seen last.
fn subscriber(who: &str, seen: &[Seen], evidence: &Evidence<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let told: HashMap<String, Value> =
        evidence.alerts.iter().map(Record::json).map(|alert| (text(&alert, "id").to_owned(), alert)).collect();
    let mut last: BTreeMap<String, (&Seen, Value)> = BTreeMap::new();
    let mut count: HashMap<(String, String), usize> = HashMap::new();
    for seen in seen {
        let Ok(alert) = serde_json::from_str::<Value>(&seen.payload) else {
            wrong.push(format!("{who} saw no JSON: {seen:?}"));
            continue;
        };
        let (name, device) = (text(&alert, "alert").to_owned(), text(&alert, "device").to_owned());
        if seen.topic != format!("tidegate/alerts/{name}/{device}") {
            wrong.push(format!("{who} saw {alert} on {}", seen.topic));
        }
        // What is kept by the broker and replayed at a subscription was seen before, or came in between.
        if !seen.retained {
            *count.entry((name, text(&alert, "state").to_owned())).or_default() += 1;
        }
        last.insert(text(&alert, "id").to_owned(), (seen, alert));
    }
    for (id, (seen, alert)) in &last {
        let in_doubt = seen.at < evidence.killed_at + 0.1 && seen.at > evidence.killed_at - DOUBT;
        match told.get(id) {
            Some(kafka) if kafka == alert => {}
            // Published, and killed before its commit: it is published again with the same number when its reading
            // comes again; only what time decided need not come again.
            Some(_) if in_doubt => {}
            None if in_doubt && id.starts_with(TIMED) => {}
            other => wrong.push(format!("{who} saw {alert}, Kafka has under this id {other:?}")),
        }
    }
    for alert in ALERTS {
        for state in ["firing", "resolved"] {
            let saw = count.get(&(alert.to_owned(), state.to_owned())).copied().unwrap_or_default();
            if saw < DEVICES {
                wrong.push(format!("{who} saw {alert} {state} only {saw} times"));
            }
        }
    }
    wrong
}

/// What was committed while our subscriber was subscribed, it saw.
fn completeness(evidence: &Evidence<'_>) -> Vec<String> {
    let seen: BTreeSet<_> = evidence.inbox.iter().map(|seen| id(&seen.payload)).collect();
    let back = evidence.subscribed.iter().copied().find(|at| *at > evidence.killed_at).unwrap_or(f64::MAX);
    let mut wrong = Vec::new();
    for record in deduplicate(&evidence.alerts) {
        let alert = record.json();
        let at = unix(text(&alert, "time"));
        let was_away = at > evidence.killed_at - DOUBT && at < back + DOUBT;
        if !was_away && !seen.contains(text(&alert, "id")) {
            wrong.push(format!("our subscriber was there and did not see {alert}"));
        }
    }
    wrong
}

fn id(payload: &str) -> String {
    serde_json::from_str::<Value>(payload).map(|alert| text(&alert, "id").to_owned()).unwrap_or_default()
}

/// Event topic: every acknowledged event, once, in the device's order.
fn events(evidence: &Evidence<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let keys = by_key(deduplicate(&evidence.events));
    for (device, life) in evidence.devices.iter().zip(evidence.lives) {
        let key = format!("e2e/default/{}", device.name);
        let told = keys.get(key.as_str()).map(Vec::as_slice).unwrap_or_default();
        let mut count: HashMap<String, usize> = HashMap::new();
        let mut firsts = Vec::new();
        for record in told {
            let body = record.value.clone().unwrap_or_default();
            let times = count.entry(body.clone()).or_default();
            *times += 1;
            if *times == 1 {
                firsts.push(record.json()["number"].as_u64().unwrap_or_default());
            }
        }
        if !firsts.is_sorted() {
            wrong.push(format!("{key}: events came in the order {firsts:?}"));
        }
        for ((what, message), mark) in device.what.iter().zip(&life.messages).zip(life.marks()) {
            let (What::Event(number), Some(sent), Some(acked)) = (what, mark.sent, mark.acked) else { continue };
            let times = count.remove(&message.payload).unwrap_or_default();
            // Its acknowledgement was lost with the gateway: the device sent it again.
            let twice = sent <= evidence.killed_after && acked >= evidence.killed_after;
            if times == 0 || (times > 1 && !twice) || times > 4 {
                wrong.push(format!("{key}: event {number} was acknowledged, and is there {times} times"));
            }
        }
        if !count.is_empty() {
            wrong.push(format!("{key}: events that nobody sent: {count:?}"));
        }
    }
    wrong
}

/// kubectl shows what Kafka has: the same states under the same numbers.
fn lists(evidence: &Evidence<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut states = BTreeMap::new();
    for record in &evidence.states {
        let newest = states.entry(record.key.clone()).or_insert((0, Value::Null));
        if record.sequence() > newest.0 {
            *newest = (record.sequence(), record.json());
        }
    }
    let in_kafka: BTreeMap<_, _> = states
        .into_values()
        .map(|(version, state)| (text(&state, "device").to_owned(), (version, plain(&state))))
        .collect();
    let key = |objects: Objects, name: fn(&Value) -> String| -> BTreeMap<String, (u64, Value)> {
        objects.into_values().map(|(version, status)| (name(&status), (version, status))).collect()
    };
    wrong.extend(differ(
        "devicestates",
        &in_kafka,
        &key(objects(&evidence.listed_states), |s| text(s, "device").to_owned()),
    ));
    let in_kafka = newest_alerts(&evidence.alerts).into_values();
    let alert_name = |status: &Value| format!("{}.{}", text(status, "alert"), text(status, "device"));
    let in_kafka = in_kafka.map(|(version, alert)| (alert_name(&alert), (version, plain(&alert)))).collect();
    let listed = key(objects(&evidence.listed_alerts), |s| format!("{}.{}", text(s, "alert"), text(s, "device")));
    wrong.extend(differ("alerts", &in_kafka, &listed));
    let rows = evidence.table.lines().filter(|line| line.starts_with("dev-")).count();
    if rows != DEVICES {
        wrong.push(format!("kubectl get devicestates shows {rows} rows:\n{}", evidence.table));
    }
    wrong
}

fn differ(what: &str, kafka: &BTreeMap<String, (u64, Value)>, kubectl: &BTreeMap<String, (u64, Value)>) -> Vec<String> {
    let names: BTreeSet<_> = kafka.keys().chain(kubectl.keys()).collect();
    let odd = names.into_iter().filter(|name| kafka.get(*name) != kubectl.get(*name));
    odd.map(|name| format!("{what} {name}: Kafka has {:?}, kubectl shows {:?}", kafka.get(name), kubectl.get(name)))
        .collect()
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

/// Seconds since 1970 of an RFC 3339 text.
fn unix(time: &str) -> f64 {
    time.parse::<jiff::Timestamp>().map_or(0.0, |time| time.as_millisecond() as f64 / 1000.0)
}
