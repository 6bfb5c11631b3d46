//! The oracle must be able to say no: a world without a fault passes, and each fault that is put into it is named.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::devices::{ALERTS, DEVICES, Device, READINGS, Reading, What};
use super::oracle::{Evidence, judge};
use crate::kafka::Record;
use crate::mqtt::{Life, Seen};

/// A world in which everything went well.
struct World {
    devices: Vec<Device>,
    lives: Vec<Arc<Life>>,
    states: Vec<Record>,
    alerts: Vec<Record>,
    events: Vec<Record>,
}

impl World {
    fn new() -> Self {
        let devices: Vec<_> = (0..DEVICES).map(|index| Device::new(index, 7)).collect();
        let start = Instant::now();
        let lives = devices.iter().map(|device| {
            let life = Life::new(&device.name, device.messages.clone(), start);
            for index in 0..device.messages.len() {
                life.sent(index);
                life.acked(index);
            }
            Arc::new(life)
        });
        let lives = lives.collect();
        let mut world = Self { devices, lives, states: Vec::new(), alerts: Vec::new(), events: Vec::new() };
        let mut sequence = 1000;
        for index in 0..DEVICES {
            world.tell(index, &mut sequence);
        }
        world
    }

    fn tell(&mut self, index: usize, sequence: &mut u64) {
        let device = &self.devices[index];
        let (mut firing, mut counts) = ([false; 3], [0_u64; 3]);
        for (what, message) in device.what.iter().zip(&device.messages) {
            *sequence += 1;
            let reading = match what {
                What::Event(_) => {
                    self.events.push(record(&device.name, *sequence, &message.payload));
                    continue;
                }
                What::Reading(reading) => reading,
            };
            if reading.n % 100 == 0 {
                self.states.push(record(&device.name, *sequence, &state(&device.name, reading).to_string()));
            }
            let limit = if firing[0] { 75.0 } else { 80.0 };
            let now =
                [reading.temperature > limit, reading.vibration > 5.0, reading.running && reading.temperature > 70.0];
            for rule in 0..3 {
                if std::mem::replace(&mut firing[rule], now[rule]) != now[rule] {
                    *sequence += 1;
                    counts[rule] += 1;
                    let alert = alert(ALERTS[rule], &device.name, counts[rule]);
                    self.alerts.push(record(
                        &format!("{}.{}", ALERTS[rule], device.name),
                        *sequence,
                        &alert.to_string(),
                    ));
                }
            }
        }
    }

    /// What is seen of it.
    fn evidence(&self) -> Evidence<'_> {
        let seen = |record: &Record| {
            let alert = record.json();
            let name = |field: &str| alert[field].as_str().expect("a text").to_owned();
            let topic = format!("tidegate/alerts/{}/{}", name("alert"), name("device"));
            Seen { at: 5000.0, retained: false, topic, payload: alert.to_string() }
        };
        let inbox: Vec<_> = self.alerts.iter().map(seen).collect();
        Evidence {
            devices: &self.devices,
            lives: &self.lives,
            killed_at: 9000.0,
            killed_after: Duration::from_hours(1),
            states: self.states.clone(),
            alerts: self.alerts.clone(),
            events: self.events.clone(),
            mosquitto: inbox.clone(),
            inbox,
            subscribed: vec![1.0, 9001.0],
            listed_states: list(&self.states),
            listed_alerts: list(&self.alerts),
            table: self.devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join("\n"),
        }
    }
}

fn record(name: &str, sequence: u64, body: &str) -> Record {
    let headers = json!([
        "ce_sequence",
        format!("{sequence:020}"),
        "ce_source",
        "/tidegate/e2e",
        "ce_specversion",
        "1.0",
        "ce_subject",
        format!("default/{name}"),
        "ce_id",
        format!("e2e/1/{sequence}"),
        "content-type",
        "application/json",
        "tidegate_epoch",
        "1",
    ]);
    let line = json!({"partition": 0, "offset": sequence, "headers": headers, "key": format!("e2e/default/{name}"), "payload": body});
    Record::parse(&line.to_string())
}

fn state(device: &str, reading: &Reading) -> Value {
    json!({"device": device, "metrics": {
        "n": {"value": reading.n}, "temperature": {"value": reading.temperature},
        "vibration": {"value": reading.vibration}, "running": {"value": reading.running},
    }})
}

fn alert(alert: &str, device: &str, transition: u64) -> Value {
    let state = if transition % 2 == 1 { "firing" } else { "resolved" };
    let id = format!("{alert}/{device}/{transition}");
    let time = "1970-01-01T01:00:00.000Z";
    json!({"id": id, "alert": alert, "device": device, "state": state, "transition": transition, "time": time})
}

/// The newest of each key as the served API lists it.
fn list(records: &[Record]) -> Value {
    let newest: std::collections::BTreeMap<_, _> = records.iter().map(|record| (&record.key, record)).collect();
    let items = newest.values().map(|record| {
        json!({"metadata": {"name": record.key, "resourceVersion": record.sequence().to_string()}, "status": record.json()})
    });
    json!({"items": items.collect::<Vec<_>>()})
}

/// What the oracle says after `spoil`.
fn said(spoil: impl FnOnce(&mut Evidence<'_>)) -> String {
    static WORLD: LazyLock<World> = LazyLock::new(World::new);
    let mut evidence = WORLD.evidence();
    spoil(&mut evidence);
    judge(&evidence).join("\n")
}

#[test]
fn a_world_without_a_fault_passes_also_with_records_that_came_twice() {
    assert_eq!(said(|_| {}), "");
    assert_eq!(said(|evidence| evidence.events.extend(evidence.events[..100].to_vec())), "");
    assert_eq!(said(|evidence| evidence.alerts.extend(evidence.alerts[..100].to_vec())), "");
}

#[test]
fn each_fault_of_states_is_named() {
    let newest = said(|evidence| drop(evidence.states.remove(3)));
    assert!(newest.contains("reading 400 was acknowledged, the newest state has Some(300)"), "{newest}");
    let back = said(|evidence| {
        let older = evidence.states[0].sequence() - 1;
        let body = evidence.states[0].value.clone().expect("a state");
        evidence.states.push(record("dev-00", older, &body));
    });
    assert!(back.contains("does not end with the newest state") && back.contains("ce_sequence"), "{back}");
    let foreign = said(|evidence| {
        let reading = Reading { n: READINGS, temperature: 1.0, vibration: 1.0, running: true };
        let last = evidence.states[3].sequence();
        evidence.states[3] = record("dev-00", last, &state("dev-00", &reading).to_string());
    });
    assert!(foreign.contains("dev-00 never sent") && foreign.contains("devicestates dev-00: Kafka has"), "{foreign}");
    let epoch = said(|evidence| {
        let text = json!({"partition": 0, "offset": 1, "headers": ["ce_sequence", format!("{:020}", 1), "tidegate_epoch", "2"], "payload": "1"});
        evidence.events.insert(0, Record::parse(&text.to_string()));
    });
    assert!(epoch.contains("no new epoch") && epoch.contains("odd headers"), "{epoch}");
}

#[test]
fn each_fault_of_alerts_is_named() {
    let hole = said(|evidence| drop(evidence.alerts.remove(2)));
    assert!(hole.contains("must be") && hole.contains("Kafka has under this id None"), "{hole}");
    let again = said(|evidence| {
        let last = evidence.alerts.last().cloned().expect("there are alerts");
        let name = last.key.strip_prefix("e2e/default/").expect("a key").to_owned();
        evidence.alerts.push(record(&name, last.sequence() + 1, last.value.as_deref().expect("an alert")));
    });
    assert!(again.contains("must be") && again.contains("alerts"), "{again}");
    let unseen = said(|evidence| drop(evidence.inbox.remove(5)));
    assert!(unseen.contains("did not see"), "{unseen}");
    let other = said(|evidence| evidence.mosquitto[5].payload = alert("Hot", "dev-00", 99).to_string());
    assert!(other.contains("mosquitto_sub saw"), "{other}");
}

#[test]
fn each_fault_of_events_is_named() {
    let lost = said(|evidence| drop(evidence.events.remove(10)));
    assert!(lost.contains("event 11 was acknowledged, and is there 0 times"), "{lost}");
    let twice = said(|evidence| {
        let (body, last) =
            (evidence.events[10].value.clone().expect("an event"), evidence.events.last().expect("events").sequence());
        evidence.events.push(record("dev-00", last + 1, &body));
    });
    assert!(twice.contains("event 11 was acknowledged, and is there 2 times"), "{twice}");
    let order = said(|evidence| {
        let (one, two) = (evidence.events[10].value.clone(), evidence.events[11].value.clone());
        (evidence.events[10].value, evidence.events[11].value) = (two, one);
    });
    assert!(order.contains("events came in the order"), "{order}");
    let row = said(|evidence| evidence.table = "NAME".to_owned());
    assert!(row.contains("shows 0 rows"), "{row}");
}
