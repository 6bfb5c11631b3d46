//! A queue in RAM, driven by hand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tidegate::model::{ClockQuality, DeltaType, Epoch, Lane, ObjectKey, Record, Seq, Stamp, Uid};
use tidegate::queue::{Expired, Lag, Snapshot, Stats};
use tidegate::serve::View;
use tokio::sync::watch;

/// Wall time of every record, 2026-12-01T00:00:00Z.
pub(super) const START_MS: i64 = 1_796_083_200_000;

#[derive(Debug)]
pub(super) struct FakeView {
    newest: Mutex<BTreeMap<(Lane, ObjectKey), Record>>,
    floor: Mutex<Seq>,
    head: watch::Sender<Seq>,
}

impl FakeView {
    /// Empty, with this head.
    pub(super) fn at(head: u64) -> Arc<Self> {
        Arc::new(Self { newest: Mutex::default(), floor: Mutex::new(Seq::ZERO), head: watch::Sender::new(Seq(head)) })
    }

    /// A device's whole state; returns its Seq.
    pub(super) fn put(&self, name: &str, labels: &str, temperature: f64) -> u64 {
        let body = format!(
            r#"{{"device":{name:?},"labels":{labels},"online":true,"lastSeen":"2026-12-01T00:00:00Z","metrics":{{"temperature":{{"value":{temperature},"quality":"good","time":"2026-12-01T00:00:00Z"}}}}}}"#
        );
        self.commit(Lane::State, name, &body)
    }

    /// An alert's transition; returns its Seq.
    pub(super) fn alert(&self, alert: &str, device: &str, state: &str) -> u64 {
        let body = format!(
            r#"{{"id":"{alert}/{device}/1","alert":{alert:?},"device":{device:?},"state":"{state}","severity":"high","labels":{{}},"annotations":{{}},"value":81.5,"transition":1,"time":"2026-12-01T00:00:00.000Z","clock":"synced"}}"#
        );
        self.commit(Lane::Alert, &format!("{alert}.{device}"), &body)
    }

    /// The device is gone; returns the tombstone's Seq.
    pub(super) fn delete(&self, name: &str) -> u64 {
        self.commit(Lane::State, name, "")
    }

    /// Only the head moves, as when another lane changes.
    pub(super) fn advance(&self) -> u64 {
        self.head.send_modify(|head| *head = head.next());
        self.head.borrow().0
    }

    /// Changes up to and including `floor` can no longer be watched from.
    pub(super) fn forget(&self, floor: u64) {
        *self.floor.lock().unwrap() = Seq(floor);
    }

    /// How many wait for the head to move.
    pub(super) fn followers(&self) -> usize {
        self.head.receiver_count()
    }

    fn commit(&self, lane: Lane, name: &str, body: &str) -> u64 {
        let key = ObjectKey::new("default", name);
        let mut newest = self.newest.lock().unwrap();
        let seq = self.head.borrow().next();
        let before = newest.get(&(lane, key.clone())).filter(|record| !record.is_deleted());
        let stamp = Stamp { unix_ms: START_MS, clock: ClockQuality::Synced };
        let record = Record {
            lane,
            delta: match (body.is_empty(), before) {
                (true, _) => DeltaType::Deleted,
                (false, None) => DeltaType::Added,
                (false, Some(_)) => DeltaType::Updated,
            },
            seq,
            epoch: self.epoch(),
            key: key.clone(),
            uid: before.map_or(Uid { epoch: self.epoch(), seq }, |record| record.uid),
            created_at: stamp,
            at: stamp,
            body: Bytes::copy_from_slice(body.as_bytes()),
        };
        newest.insert((lane, key), record);
        drop(newest);
        self.head.send_replace(seq);
        seq.0
    }
}

impl View for FakeView {
    fn epoch(&self) -> Epoch {
        Epoch::new(3, 7)
    }

    fn head(&self) -> Seq {
        *self.head.borrow()
    }

    fn watch(&self) -> watch::Receiver<Seq> {
        self.head.subscribe()
    }

    fn get(&self, lane: Lane, key: &ObjectKey) -> Option<Record> {
        self.newest.lock().unwrap().get(&(lane, key.clone())).filter(|record| !record.is_deleted()).cloned()
    }

    fn list(&self, lane: Lane, namespace: Option<&str>) -> Snapshot {
        let newest = self.newest.lock().unwrap();
        let live = newest.values().filter(|r| r.lane == lane && !r.is_deleted());
        let records = live.filter(|r| namespace.is_none_or(|ns| **r.key.namespace() == *ns)).cloned().collect();
        Snapshot { at: self.head(), records }
    }

    fn changes(&self, lane: Lane, after: Seq, max: usize) -> Result<Snapshot, Expired> {
        let newest = self.newest.lock().unwrap();
        let (floor, head) = (*self.floor.lock().unwrap(), self.head());
        if after < floor || after > head {
            return Err(Expired { after, floor, head });
        }
        let mut records: Vec<_> = newest.values().filter(|r| r.lane == lane && r.seq > after).cloned().collect();
        records.sort_by_key(|record| record.seq);
        let whole = records.len() <= max;
        records.truncate(max);
        let at = if whole { head } else { records.last().map_or(after, |record| record.seq) };
        Ok(Snapshot { at, records })
    }

    fn cursors(&self) -> Vec<(Arc<str>, Lane, Seq)> {
        vec![("cloud".into(), Lane::State, Seq(1))]
    }

    fn lag(&self, _sink: &str, _lane: Lane) -> Lag {
        Lag { records: 4, bytes: 400, oldest: Some(Stamp { unix_ms: START_MS, clock: ClockQuality::Synced }) }
    }

    fn stats(&self) -> Stats {
        Stats { devices: self.list(Lane::State, None).records.len(), ..Stats::default() }
    }
}
