//! What must be there after a power cut.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tidegate::model::{AlertState, Effect, Epoch, Lane, ObjectKey, Record, Seq};
use tidegate::queue::{DeltaFifo, QueueOptions};
use tidegate::runtime::clock::SystemClock;
use tidegate::store::{Gap, Store, StoreError, StoreOptions};

use super::load::{Ack, Client, Kind, STRIDE};
use super::{BAND, EVENT_BYTES, GATEWAY, RULE};

/// What the library finds in a data directory.
pub(crate) struct Found {
    states: HashMap<String, (usize, Seq)>,
    /// Transitions of each device's alert, from 1.
    alerts: HashMap<String, Vec<(u64, AlertState)>>,
    /// The served transition of each device's alert.
    newest: HashMap<String, u64>,
    events: HashMap<String, BTreeMap<usize, Seq>>,
    event_bytes: u64,
    /// Events up to here were dropped by the bound.
    event_floor: Seq,
    /// Devices whose events are there twice.
    repeated: Vec<String>,
    head: Seq,
    next_seq: Seq,
    epoch: Epoch,
    gaps: Vec<Gap>,
    /// The store was stopped cleanly.
    pub(crate) clean: bool,
    /// The keyed store was damaged, and is now another one.
    pub(crate) put_aside: bool,
}

impl Found {
    /// Opens the store as the daemon does, and leaves it as a crash would.
    pub(crate) fn open(data: &Path) -> Result<Self, StoreError> {
        let options = StoreOptions { data_dir: data.to_owned(), gateway: GATEWAY.to_owned() };
        let (store, recovered) = Store::open(&options, Arc::new(SystemClock))?;
        let mut found = Self {
            states: HashMap::new(),
            alerts: HashMap::new(),
            newest: HashMap::new(),
            events: HashMap::new(),
            event_bytes: 0,
            event_floor: Seq::ZERO,
            repeated: Vec::new(),
            head: Seq::ZERO,
            next_seq: recovered.next_seq,
            epoch: recovered.epoch,
            gaps: recovered.gaps.clone(),
            clean: recovered.clean,
            put_aside: data.join("store/sled.corrupt-1").exists(),
        };
        let tail = recovered.tail.iter().filter_map(|effect| match effect {
            Effect::Record(record) => Some(record),
            _ => None,
        });
        for record in recovered.lane_records.iter().chain(tail).filter(|record| record.lane == Lane::Alert) {
            let (device, transition, state) = alert(record);
            found.alerts.entry(device).or_default().push((transition, state));
        }
        found.read(&DeltaFifo::recover(&queue_options(recovered.epoch), recovered));
        drop(store);
        Ok(found)
    }

    fn read(&mut self, fifo: &DeltaFifo) {
        self.head = fifo.head();
        for record in fifo.list(Lane::State, None).records {
            self.states.insert(record.key.name().to_string(), (number(&record), record.seq));
        }
        for record in fifo.list(Lane::Alert, None).records {
            let (device, transition, _) = alert(&record);
            self.newest.insert(device, transition);
        }
        let all = fifo.changes(Lane::Event, Seq::ZERO, usize::MAX).or_else(|expired| {
            self.event_floor = expired.floor;
            fifo.changes(Lane::Event, expired.floor, usize::MAX)
        });
        for record in all.expect("the floor can be asked for").records {
            self.event_bytes += record.cost() as u64;
            let device = record.key.name().to_string();
            if self.events.entry(device.clone()).or_default().insert(number(&record), record.seq).is_some() {
                self.repeated.push(device);
            }
        }
    }

    /// What is wrong, knowing what was acknowledged when the log was so long; nothing if all is well.
    pub(crate) fn judge(&self, clients: &[Arc<Client>], length: u64) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut highest = 0;
        for client in clients {
            let acks: Vec<_> = client.acks().into_iter().take_while(|ack| ack.at <= length).collect();
            highest = acks.iter().filter_map(|ack| ack.seq).max().unwrap_or(0).max(highest);
            for device in 0..client.devices {
                let name = format!("{}-{device}", client.name);
                let acked = client.number(device, acks.len());
                let sent = client.number(device, client.sent());
                let receipts: Vec<_> = acks.iter().skip(device).step_by(client.devices).collect();
                let verdict = match client.kind {
                    Kind::State => self.state(&name, acked, sent, &receipts).or_else(|| self.alert(&name, acked, sent)),
                    Kind::Band => self.band(&name, acked, sent),
                    Kind::Event => self.event(&name, sent, &receipts),
                };
                wrong.extend(verdict.map(|verdict| format!("{name}: {verdict}")));
            }
        }
        if self.head.0 < highest || self.next_seq <= self.head {
            wrong.push(format!("head {} and next {}, but {highest} was in a receipt", self.head, self.next_seq));
        }
        if !self.gaps.is_empty() || self.epoch.counter() != 1 {
            wrong.push(format!("told of loss: {:?}, epoch {}", self.gaps, self.epoch.counter()));
        }
        if !self.repeated.is_empty() {
            wrong.push(format!("events twice: {:?}", self.repeated));
        }
        wrong
    }

    fn state(&self, name: &str, acked: usize, sent: usize, receipts: &[&Ack]) -> Option<String> {
        let Some((number, seq)) = self.states.get(name) else {
            return (acked > 0).then(|| format!("state {acked} was acknowledged, and there is none"));
        };
        if *number < acked || *number > sent {
            return Some(format!("state {number}, but {acked} was acknowledged and {sent} the last sent"));
        }
        // Of a message's effects the highest is told.
        let receipt = number.checked_sub(1).and_then(|n| receipts.get(n)).and_then(|ack| ack.seq);
        let fits = receipt.is_none_or(|receipt| seq.0 <= receipt && receipt <= seq.0 + 1);
        (!fits).then(|| format!("state {number} has Seq {seq}, and its receipt was {receipt:?}"))
    }

    /// A suppressed state is nearer than the deadband to the one that is stored.
    fn band(&self, name: &str, acked: usize, sent: usize) -> Option<String> {
        let number = self.states.get(name).map_or(0, |(number, _)| *number);
        let fits = (acked == 0 || number > 0) && number + BAND > acked && number <= sent;
        (!fits).then(|| format!("state {number}, but {acked} was acknowledged and {sent} the last sent"))
    }

    fn alert(&self, name: &str, acked: usize, sent: usize) -> Option<String> {
        let all = self.alerts.get(name).map(Vec::as_slice).unwrap_or_default();
        let number = self.states.get(name).map_or(0, |(number, _)| *number);
        let alternate = all.iter().zip(1..).all(|((transition, state), n)| {
            let expected = if n % 2 == 1 { AlertState::Firing } else { AlertState::Resolved };
            *transition == n && *state == expected
        });
        // A newer state may be lost with the end of a write whose beginning has the alert; never the other way round.
        let fits = all.len() >= number.max(acked) / STRIDE && all.len() <= sent / STRIDE;
        let served = self.newest.get(name).copied().unwrap_or(0);
        (!alternate || !fits || served != all.len() as u64).then(|| {
            let due = acked / STRIDE;
            format!("alert transitions {all:?}, served {served}; {due} were acknowledged; state {number}, {sent} sent")
        })
    }

    fn event(&self, name: &str, sent: usize, receipts: &[&Ack]) -> Option<String> {
        let none = BTreeMap::new();
        let all = self.events.get(name).unwrap_or(&none);
        let dropped = all.keys().next().map_or(receipts.len(), |first| first - 1).min(receipts.len());
        // The bound drops the oldest, and not before it is reached.
        let is_full = self.event_bytes + (1 << 20) > EVENT_BYTES;
        let last = receipts[..dropped].iter().rev().find_map(|ack| ack.seq).unwrap_or(0);
        if dropped > 0 && (!is_full || last > self.event_floor.0 || self.event_floor == Seq::ZERO) {
            let (bytes, floor) = (self.event_bytes, self.event_floor);
            return Some(format!("the oldest {dropped} events are gone, the floor is {floor}, {bytes} bytes are kept"));
        }
        for (number, ack) in (1..).zip(receipts).skip(dropped) {
            match all.get(&number) {
                None => return Some(format!("event {number} of {} acknowledged ones is not there", receipts.len())),
                Some(seq) if ack.seq.is_some_and(|receipt| receipt != seq.0) => {
                    return Some(format!("event {number} has Seq {seq}, and its receipt was {:?}", ack.seq));
                }
                Some(_) => {}
            }
        }
        let last = all.keys().next_back().copied().unwrap_or(0);
        let is_order = all.values().is_sorted();
        (last > sent || !is_order).then(|| format!("event {last} of {sent} sent ones; in order: {is_order}"))
    }

    /// What differs in the lists that a daemon serves.
    pub(crate) fn compare(&self, states: &Value, alerts: &Value) -> Vec<String> {
        let items = |list: &Value| list["items"].as_array().cloned().unwrap_or_default();
        let served: HashMap<_, _> = items(states)
            .iter()
            .map(|item| (text(&item["status"]["device"]), item["status"]["metrics"]["n"]["value"].as_u64()))
            .collect();
        let stored = self.states.iter().map(|(name, (number, _))| (name.clone(), Some(*number as u64))).collect();
        let raised: HashMap<_, _> = items(alerts)
            .iter()
            .map(|item| (text(&item["status"]["device"]), item["status"]["transition"].as_u64().unwrap_or(0)))
            .collect();
        let mut wrong = Vec::new();
        if served != stored {
            wrong.push(format!("states served: {served:?}\nstored: {stored:?}"));
        }
        if raised != self.newest {
            wrong.push(format!("alerts served: {raised:?}\nstored: {:?}", self.newest));
        }
        wrong
    }

    /// In short.
    pub(crate) fn sizes(&self) -> String {
        let events: usize = self.events.values().map(BTreeMap::len).sum();
        let alerts: usize = self.alerts.values().map(Vec::len).sum();
        format!("{} states, {alerts} alert transitions, {events} events", self.states.len())
    }

    /// True if something of the two is not the same.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        let numbers = |found: &Self| found.states.clone();
        numbers(self) != numbers(other) || self.alerts != other.alerts || self.events != other.events
    }
}

fn queue_options(epoch: Epoch) -> QueueOptions {
    QueueOptions {
        epoch,
        keys_max: 100_000,
        event_bytes_max: EVENT_BYTES,
        alert_bytes_max: 16 << 20,
        commit_queue_bytes_max: 16 << 20,
        commit_window_max: Duration::from_millis(100),
        wear_bytes_per_day: 1 << 40,
        checkpoint_bytes: 8 << 20,
    }
}

/// The number in a body: a state's metric, or an event as it was sent.
fn number(record: &Record) -> usize {
    let body: Value = serde_json::from_slice(&record.body).unwrap_or_default();
    let number = if record.lane == Lane::State { &body["metrics"]["n"]["value"] } else { &body["n"] };
    number.as_u64().unwrap_or_else(|| panic!("{} of {} has no number: {body}", record.lane, record.key)) as usize
}

/// Device, transition and state of an alert record.
fn alert(record: &Record) -> (String, u64, AlertState) {
    let alert: tidegate::model::Alert = serde_json::from_slice(&record.body).expect("an alert record holds an alert");
    assert_eq!(record.key, ObjectKey::new("default", format!("{RULE}.{}", alert.device)), "{alert:?}");
    (alert.device.to_string(), alert.transition, alert.state)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
