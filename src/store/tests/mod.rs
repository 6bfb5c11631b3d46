//! Tests of the whole store: a seeded simulation, damage on the simulated disk, and real files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

mod damage;
mod log_life;
mod real;
mod simulation;
mod snapshots;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::sim::{RamKeyed, SimDisk};
use super::*;
use crate::model::{ClockQuality, DeltaType, ObjectKey, Stamp, Uid};
use crate::runtime::clock::ManualClock;

/// Small, so that a short history fills many.
const SEGMENT_BYTES: u32 = 8 << 10;
const MACHINE: u32 = 7;

fn options(dir: &Path) -> StoreOptions {
    StoreOptions { data_dir: dir.to_owned(), gateway: "test".into() }
}

/// A disk and a keyed store that outlive the processes which open them.
struct Rig {
    disk: SimDisk,
    keyed: RamKeyed,
    clock: ManualClock,
}

impl Rig {
    fn new(seed: u64) -> Self {
        Self { disk: SimDisk::new(seed), keyed: RamKeyed::new(seed), clock: ManualClock::at(0) }
    }

    fn open_on(&self, machine: u32) -> Result<(Store, Recovered), StoreError> {
        let parts = Parts {
            disk: Arc::new(self.disk.clone()),
            keyed: Box::new(self.keyed.clone()),
            segment_bytes: SEGMENT_BYTES,
            machine,
        };
        Store::open_with(&options(Path::new("data")), parts, &self.clock)
    }

    fn try_open(&self) -> Result<(Store, Recovered), StoreError> {
        self.open_on(MACHINE)
    }

    fn open(&self) -> (Store, Recovered) {
        self.try_open().unwrap()
    }

    fn snapshot_path() -> &'static Path {
        Path::new("data/store/state.snap")
    }

    fn segments(&self) -> Vec<PathBuf> {
        let files = self.disk.files(Path::new("data/store/log"));
        files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "seg")).collect()
    }
}

fn record(lane: Lane, delta: DeltaType, seq: u64, name: &str, body: &[u8]) -> Record {
    let at = Stamp { unix_ms: seq.cast_signed(), clock: ClockQuality::Synced };
    let epoch = Epoch::new(1, MACHINE);
    Record {
        lane,
        delta,
        seq: Seq(seq),
        epoch,
        key: ObjectKey::new("default", name),
        uid: Uid { epoch, seq: Seq(seq) },
        created_at: at,
        at,
        body: bytes::Bytes::copy_from_slice(body),
    }
}

/// A whole snapshot of what the frames amount to, which are all that were committed.
fn snapshot(store: &mut Store, truth: &Truth) {
    store.begin_snapshot(truth.image()).unwrap();
    while store.step_snapshot().unwrap() {}
}

/// A frame with the new state of a key.
fn put(lsn: u64, prev_seq: u64, seq: u64, name: &str) -> Frame {
    put_body(lsn, prev_seq, seq, name, b"{}")
}

fn put_body(lsn: u64, prev_seq: u64, seq: u64, name: &str, body: &[u8]) -> Frame {
    let effects = vec![Effect::Record(record(Lane::State, DeltaType::Updated, seq, name, body))];
    Frame { lsn: Lsn(lsn), prev_seq: Seq(prev_seq), effects }
}

/// The state that effects lead to, written down once more and as plainly as can be.
#[derive(Debug, Clone, Default, PartialEq)]
struct Truth {
    newest: BTreeMap<(Lane, ObjectKey), Record>,
    lanes: BTreeMap<(Lane, Seq), Record>,
    cursors: BTreeMap<(Arc<str>, Lane), Seq>,
    trimmed: BTreeMap<Lane, Seq>,
    forgotten: BTreeMap<Lane, Seq>,
}

impl Truth {
    fn of(recovered: &Recovered) -> Self {
        let mut truth = Self::default();
        assert!(recovered.image.is_sorted_by_key(|record| record.seq));
        assert!(recovered.lane_records.is_sorted_by_key(|record| record.seq));
        for record in &recovered.image {
            truth.newest.insert((record.lane, record.key.clone()), record.clone());
        }
        for record in &recovered.lane_records {
            truth.lanes.insert((record.lane, record.seq), record.clone());
        }
        for (sink, lane, seq) in &recovered.cursors {
            truth.cursors.insert((Arc::clone(sink), *lane), *seq);
        }
        for (lane, trimmed, forgotten) in &recovered.floors {
            truth.raise(*lane, *trimmed, *forgotten);
        }
        recovered.tail.iter().for_each(|effect| truth.apply(effect));
        truth
    }

    fn raise(&mut self, lane: Lane, trimmed: Seq, forgotten: Seq) {
        for (floors, to) in [(&mut self.trimmed, trimmed), (&mut self.forgotten, forgotten)] {
            let floor = floors.entry(lane).or_default();
            *floor = to.max(*floor);
        }
    }

    fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Record(record) => {
                if record.lane != Lane::State {
                    self.lanes.insert((record.lane, record.seq), record.clone());
                }
                if record.lane != Lane::Event {
                    self.newest.insert((record.lane, record.key.clone()), record.clone());
                }
            }
            Effect::Cursor { sink, lane, seq } => drop(self.cursors.insert((Arc::clone(sink), *lane), *seq)),
            Effect::Release { sink } => self.cursors.retain(|(name, _), _| name != sink),
            Effect::Trim { lane, to, .. } => {
                self.lanes.retain(|(kept, seq), _| kept != lane || seq > to);
                self.raise(*lane, *to, Seq::ZERO);
            }
            Effect::Forget { lane, to } => {
                let is_gone = |record: &Record| record.lane == *lane && record.is_deleted() && record.seq <= *to;
                self.newest.retain(|_, record| !is_gone(record));
                self.raise(*lane, Seq::ZERO, *to);
            }
        }
    }

    fn apply_frame(&mut self, frame: &Frame) {
        frame.effects.iter().for_each(|effect| self.apply(effect));
    }

    /// What the queue would hand in for a snapshot.
    fn image(&self) -> StateImage {
        let floor = |map: &BTreeMap<Lane, Seq>, lane| map.get(&lane).copied().unwrap_or_default();
        let lanes = Lane::ALL.into_iter().filter(|lane| self.trimmed.contains_key(lane));
        StateImage {
            newest: self.newest.values().cloned().collect(),
            lane_records: self.lanes.values().cloned().collect(),
            cursors: self.cursors.iter().map(|((sink, lane), seq)| (Arc::clone(sink), *lane, *seq)).collect(),
            floors: lanes.map(|lane| (lane, floor(&self.trimmed, lane), floor(&self.forgotten, lane))).collect(),
        }
    }

    fn after(frames: &[Frame]) -> Self {
        let mut truth = Self::default();
        for frame in frames {
            truth.apply_frame(frame);
        }
        truth
    }
}
