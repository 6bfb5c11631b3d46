//! The keyed store's side: what is kept under which key, and what waits for the next checkpoint.
//!
//! | key | value |
//! |---|---|
//! | `s/` lane, key | newest record of the key in lanes state and alert, also a tombstone |
//! | `l/` lane, Seq (8 bytes, big-endian) | every record of lanes alert and event that is not trimmed |
//! | `c/` lane, sink | the sink's cursor |
//! | `m/floor` lane | trimmed to u64, forgotten to u64 |
//! | `m/ckpt` | lsn u64, highest Seq u64: the store holds all frames up to and including it |
//! | `m/format` | version u16 (1) |
//!
//! Lane is one byte; records and cursors are written as effects (see `codec`). A key above 512 bytes is cut, and ends
//! in a byte that is no UTF-8 and a hash of 16 bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::codec::{self, Reader};
use super::snapshot::StateImage;
use crate::model::{Effect, Lane, Lsn, Record, Seq};

/// Why the keyed store did not do it.
pub type KeyedError = Box<dyn std::error::Error + Send + Sync>;

/// A key with its value.
pub(super) type Entry = (Vec<u8>, Vec<u8>);

/// A keyed store that is written at checkpoints only.
pub trait Keyed: Send {
    /// Opens the store if need be and reads all of it. Damage is counted, never an error.
    fn load(&mut self) -> Result<Loaded, KeyedError>;

    /// Applies a batch, wholly or not at all, and makes it durable. After an error nobody knows which; the next batch
    /// holds at least the same keys.
    fn apply(&mut self, batch: &Batch) -> Result<(), KeyedError>;
}

/// The content of a keyed store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Keys with their values, in any order.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Places at which something was there and could not be read.
    pub damages: usize,
}

/// What one checkpoint changes: first the ranges are emptied, then the entries set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// From the first key up to and not including the second.
    pub cleared: Vec<(Vec<u8>, Vec<u8>)>,
    /// The new value of a key; none removes it.
    pub entries: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

/// The newest frame that the keyed store holds, and the highest Seq up to there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Checkpoint {
    pub(super) lsn: Lsn,
    pub(super) seq: Seq,
}

/// What the keyed store gave at open.
#[derive(Debug, Default)]
pub(super) struct Image {
    /// Newest record per key of lanes state and alert, in order of Seq.
    pub(super) newest: Vec<Record>,
    /// Records of lanes alert and event, in order of Seq.
    pub(super) lanes: Vec<Record>,
    pub(super) cursors: Vec<(Arc<str>, Lane, Seq)>,
    pub(super) floors: BTreeMap<Lane, Floor>,
    pub(super) checkpoint: Checkpoint,
    /// Version of the layout; none if the store is new.
    pub(super) format: Option<u16>,
    /// Places at which something was there and could not be read.
    pub(super) damages: usize,
}

/// How far a lane is trimmed and its tombstones are forgotten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Floor {
    pub(super) trimmed: Seq,
    pub(super) forgotten: Seq,
}

/// The layout that this release reads and writes.
pub(super) const FORMAT: u16 = 1;

const KEY_BYTES_MAX: usize = 512;
/// Key of the position that the store holds.
pub(super) const CHECKPOINT: &[u8] = b"m/ckpt";
const FORMAT_KEY: &[u8] = b"m/format";
const FLOOR: &[u8] = b"m/floor";

impl Image {
    /// Reads entries; a value that makes no sense is counted as damage.
    pub(super) fn read(loaded: &Loaded) -> Self {
        let mut image = Self { damages: loaded.damages, ..Self::default() };
        for (key, value) in &loaded.entries {
            if image.entry(key, value).is_none() {
                image.damages += 1;
            }
        }
        image.newest.sort_by_key(|record| record.seq);
        image.lanes.sort_by_key(|record| record.seq);
        image.cursors.sort();
        image
    }

    fn entry(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let mut reader = Reader(value);
        match (key.get(..2)?, codec::decode_one(value)) {
            (b"s/", Some(Effect::Record(record))) => self.newest.push(record),
            (b"l/", Some(Effect::Record(record))) => self.lanes.push(record),
            (b"c/", Some(Effect::Cursor { sink, lane, seq })) => self.cursors.push((sink, lane, seq)),
            (b"m/", _) if key == CHECKPOINT => {
                self.checkpoint = Checkpoint { lsn: Lsn(reader.u64()?), seq: Seq(reader.u64()?) };
            }
            (b"m/", _) if key == FORMAT_KEY => self.format = Some(reader.u16()?),
            (b"m/", _) => {
                let lane = key.strip_prefix(FLOOR).and_then(|lane| codec::lane(*lane.first()?))?;
                let floor = Floor { trimmed: Seq(reader.u64()?), forgotten: Seq(reader.u64()?) };
                self.floors.insert(lane, floor);
            }
            _ => return None,
        }
        Some(())
    }
}

/// A batch that marks a store as ours.
pub(super) fn format_batch() -> Batch {
    let (key, value) = format_entry();
    Batch { entries: BTreeMap::from([(key, Some(value))]), ..Batch::default() }
}

/// A batch that makes any store hold the entries and nothing else.
pub(super) fn rebuild_batch(loaded: &Loaded) -> Batch {
    let entries = loaded.entries.iter().cloned().chain([format_entry()]);
    let entries = entries.map(|(key, value)| (key, Some(value))).collect();
    Batch { cleared: vec![(Vec::new(), vec![0xff])], entries }
}

/// What a keyed store holds that was brought up to a position.
pub(super) fn entries(image: StateImage, at: Checkpoint) -> impl Iterator<Item = Entry> + Send + 'static {
    let StateImage { newest, lane_records, cursors, floors } = image;
    let value = |effect: &Effect| {
        let mut value = Vec::new();
        codec::encode(&mut value, effect);
        value
    };
    let newest = newest.into_iter().map(move |record| (state_key(&record), value(&Effect::Record(record))));
    let records =
        lane_records.into_iter().map(move |record| (lane_key(record.lane, record.seq), value(&Effect::Record(record))));
    let cursors = cursors
        .into_iter()
        .map(move |(sink, lane, seq)| (cursor_key(lane, &sink), value(&Effect::Cursor { sink, lane, seq })));
    let floors = floors.into_iter().map(|(lane, trimmed, forgotten)| floor_entry(lane, Floor { trimmed, forgotten }));
    [format_entry(), checkpoint_entry(at)].into_iter().chain(floors).chain(cursors).chain(newest).chain(records)
}

/// What the commits since the last checkpoint change in the keyed store. Bounded by the log bytes since then.
#[derive(Debug, Default)]
pub(super) struct Pending {
    batch: Batch,
    floors: BTreeMap<Lane, Floor>,
    /// Every tombstone, in the keyed store or pending, by its lane and Seq.
    tombstones: BTreeMap<(Lane, Seq), Vec<u8>>,
    /// The Seq of each of them by key, so that one that is no more is not forgotten a second time.
    dead: HashMap<Vec<u8>, Seq>,
}

impl Pending {
    /// Nothing waits; tombstones and floors are those of the image.
    pub(super) fn new(image: &Image) -> Self {
        let mut pending = Self { floors: image.floors.clone(), ..Self::default() };
        image.newest.iter().for_each(|record| pending.bury(record, &state_key(record)));
        pending
    }

    /// Notes what an effect changes.
    pub(super) fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Record(record) => self.record(record),
            Effect::Cursor { sink, lane, .. } => {
                let mut value = Vec::new();
                codec::encode(&mut value, effect);
                self.batch.entries.insert(cursor_key(*lane, sink), Some(value));
            }
            Effect::Release { sink } => {
                for lane in Lane::ALL {
                    self.batch.entries.insert(cursor_key(lane, sink), None);
                }
            }
            Effect::Trim { lane, to, .. } => self.trim(*lane, *to),
            Effect::Forget { lane, to } => self.forget(*lane, *to),
        }
    }

    /// All that waits, with the position that it leads to. Stays until [`Self::clear`].
    pub(super) fn batch(&mut self, checkpoint: Checkpoint) -> &Batch {
        let (key, value) = checkpoint_entry(checkpoint);
        self.batch.entries.insert(key, Some(value));
        &self.batch
    }

    /// The batch is on disk.
    pub(super) fn clear(&mut self) {
        self.batch = Batch::default();
    }

    fn record(&mut self, record: &Record) {
        let mut value = Vec::new();
        codec::encode_record(&mut value, record);
        if matches!(record.lane, Lane::Alert | Lane::Event) {
            self.batch.entries.insert(lane_key(record.lane, record.seq), Some(value.clone()));
        }
        if matches!(record.lane, Lane::Alert | Lane::State) {
            let key = state_key(record);
            self.bury(record, &key);
            self.batch.entries.insert(key, Some(value));
        }
    }

    /// Keeps the books of tombstones.
    fn bury(&mut self, record: &Record, key: &[u8]) {
        if let Some(seq) = self.dead.remove(key) {
            self.tombstones.remove(&(record.lane, seq));
        }
        if record.is_deleted() {
            self.dead.insert(key.to_vec(), record.seq);
            self.tombstones.insert((record.lane, record.seq), key.to_vec());
        }
    }

    fn trim(&mut self, lane: Lane, to: Seq) {
        let range = (lane_key(lane, Seq::ZERO), lane_key(lane, Seq(to.0.saturating_add(1))));
        let covered: Vec<Vec<u8>> =
            self.batch.entries.range(range.0.clone()..range.1.clone()).map(|(key, _)| key.clone()).collect();
        for key in covered {
            self.batch.entries.remove(&key);
        }
        self.batch.cleared.retain(|(from, _)| *from != range.0);
        let floor = self.floors.entry(lane).or_default();
        floor.trimmed = floor.trimmed.max(to);
        self.batch.cleared.push((range.0, lane_key(lane, Seq(floor.trimmed.0.saturating_add(1)))));
        self.note_floor(lane);
    }

    fn forget(&mut self, lane: Lane, to: Seq) {
        let later = self.tombstones.split_off(&(lane, Seq(to.0.saturating_add(1))));
        let gone = self.tombstones.split_off(&(lane, Seq::ZERO));
        self.tombstones.extend(later);
        for key in gone.into_values() {
            self.dead.remove(&key);
            self.batch.entries.insert(key, None);
        }
        let floor = self.floors.entry(lane).or_default();
        floor.forgotten = floor.forgotten.max(to);
        self.note_floor(lane);
    }

    fn note_floor(&mut self, lane: Lane) {
        let floor = self.floors.get(&lane).copied().unwrap_or_default();
        let (key, value) = floor_entry(lane, floor);
        self.batch.entries.insert(key, Some(value));
    }
}

fn format_entry() -> Entry {
    (FORMAT_KEY.to_vec(), FORMAT.to_le_bytes().to_vec())
}

fn checkpoint_entry(at: Checkpoint) -> Entry {
    (CHECKPOINT.to_vec(), [at.lsn.0.to_le_bytes(), at.seq.0.to_le_bytes()].concat())
}

fn floor_entry(lane: Lane, floor: Floor) -> Entry {
    let value = [floor.trimmed.0.to_le_bytes(), floor.forgotten.0.to_le_bytes()].concat();
    ([FLOOR, &[lane as u8]].concat(), value)
}

fn state_key(record: &Record) -> Vec<u8> {
    let (namespace, name) = (record.key.namespace().as_bytes(), record.key.name().as_bytes());
    bounded([b"s/", [record.lane as u8].as_slice(), namespace, b"/", name].concat())
}

fn lane_key(lane: Lane, seq: Seq) -> Vec<u8> {
    [b"l/", [lane as u8].as_slice(), &seq.0.to_be_bytes()].concat()
}

fn cursor_key(lane: Lane, sink: &str) -> Vec<u8> {
    bounded([b"c/", [lane as u8].as_slice(), sink.as_bytes()].concat())
}

/// Cuts a long key, and ends it in a hash of the whole.
fn bounded(mut key: Vec<u8>) -> Vec<u8> {
    if key.len() > KEY_BYTES_MAX {
        let hash = fnv1a(&key);
        key.truncate(KEY_BYTES_MAX - 17);
        key.push(0xff);
        key.extend(hash.to_be_bytes());
    }
    key
}

/// FNV-1a, 128 bit: stable over releases.
fn fnv1a(bytes: &[u8]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{DeltaType, Epoch, ObjectKey, Stamp, Uid};
    use crate::store::codec::tests::any_effect;

    fn record(lane: Lane, delta: DeltaType, seq: u64, name: &str) -> Record {
        Record {
            lane,
            delta,
            seq: Seq(seq),
            epoch: Epoch(1),
            key: ObjectKey::new("default", name),
            uid: Uid::default(),
            created_at: Stamp::default(),
            at: Stamp::default(),
            body: bytes::Bytes::new(),
        }
    }

    /// What a keyed store holds after a batch.
    fn write(entries: &mut BTreeMap<Vec<u8>, Vec<u8>>, batch: &Batch) {
        entries.retain(|key, _| !batch.cleared.iter().any(|(from, to)| (from..to).contains(&key)));
        for (key, value) in &batch.entries {
            match value {
                Some(value) => drop(entries.insert(key.clone(), value.clone())),
                None => drop(entries.remove(key)),
            }
        }
    }

    fn image(entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> Image {
        Image::read(&Loaded { entries: entries.clone().into_iter().collect(), damages: 0 })
    }

    fn entries_of(effects: &[Effect]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut pending = Pending::default();
        for effect in effects {
            pending.apply(effect);
        }
        let mut entries = BTreeMap::new();
        write(&mut entries, pending.batch(Checkpoint::default()));
        entries
    }

    proptest! {
        #[test]
        fn checkpoints_at_any_place_lead_to_the_same_store(
            effects in proptest::collection::vec(any_effect(), 0..30),
            cut in any::<proptest::sample::Index>(),
        ) {
            // Seqs rise, as the queue gives them out.
            let effects: Vec<Effect> = effects.into_iter().zip(1..).map(|(effect, seq)| match effect {
                Effect::Record(record) => Effect::Record(Record { seq: Seq(seq), ..record }),
                other => other,
            }).collect();
            let (before, after) = effects.split_at(cut.index(effects.len() + 1));
            let mut entries = entries_of(before);
            let mut pending = Pending::new(&image(&entries));
            for effect in after {
                pending.apply(effect);
            }
            write(&mut entries, pending.batch(Checkpoint::default()));
            prop_assert_eq!(entries, entries_of(&effects));
        }

        #[test]
        fn an_image_of_any_bytes_is_read_without_a_panic(
            entries in proptest::collection::vec((any::<Vec<u8>>(), any::<Vec<u8>>()), 0..10),
        ) {
            let known = |key: &[u8]| matches!(key.get(..2), Some(b"s/" | b"l/" | b"c/" | b"m/"));
            let strange = entries.iter().filter(|(key, _)| !known(key)).count();
            let image = Image::read(&Loaded { entries, damages: 1 });
            prop_assert!(image.damages > strange, "each is counted");
        }
    }

    #[test]
    fn an_alert_is_kept_as_newest_and_for_its_readers() {
        let effects = [
            Effect::Record(record(Lane::Alert, DeltaType::Added, 1, "a")),
            Effect::Record(record(Lane::Alert, DeltaType::Updated, 2, "a")),
            Effect::Record(record(Lane::Event, DeltaType::Added, 3, "a")),
            Effect::Record(record(Lane::State, DeltaType::Added, 4, "a")),
        ];
        let image = image(&entries_of(&effects));
        let seqs = |records: &[Record]| records.iter().map(|record| record.seq.0).collect::<Vec<_>>();
        assert_eq!(seqs(&image.newest), [2, 4]);
        assert_eq!(seqs(&image.lanes), [1, 2, 3]);
        assert_eq!(image.damages, 0);
    }

    #[test]
    fn a_record_that_is_trimmed_before_the_checkpoint_never_gets_there() {
        let mut pending = Pending::default();
        pending.apply(&Effect::Record(record(Lane::Event, DeltaType::Added, 1, "a")));
        pending.apply(&Effect::Record(record(Lane::Event, DeltaType::Added, 2, "a")));
        pending.apply(&Effect::Trim { lane: Lane::Event, to: Seq(1), lost: 0 });
        let batch = pending.batch(Checkpoint::default());
        assert!(!batch.entries.contains_key(&lane_key(Lane::Event, Seq(1))));
        assert!(batch.entries.contains_key(&lane_key(Lane::Event, Seq(2))));
        assert_eq!(batch.cleared, [(lane_key(Lane::Event, Seq(0)), lane_key(Lane::Event, Seq(2)))]);
    }

    #[test]
    fn a_lower_trim_after_a_higher_one_takes_nothing_back() {
        let mut pending = Pending::default();
        pending.apply(&Effect::Trim { lane: Lane::Event, to: Seq(9), lost: 0 });
        pending.apply(&Effect::Trim { lane: Lane::Event, to: Seq(4), lost: 0 });
        pending.apply(&Effect::Trim { lane: Lane::Alert, to: Seq(2), lost: 0 });
        let batch = pending.batch(Checkpoint::default());
        assert_eq!(batch.cleared.len(), 2, "one range a lane");
        assert_eq!(batch.cleared[0].1, lane_key(Lane::Event, Seq(10)));
        let mut entries = BTreeMap::new();
        write(&mut entries, batch);
        let floors = image(&entries).floors;
        assert_eq!(floors[&Lane::Event], Floor { trimmed: Seq(9), forgotten: Seq(0) });
        assert_eq!(floors[&Lane::Alert], Floor { trimmed: Seq(2), forgotten: Seq(0) });
    }

    #[test]
    fn only_tombstones_of_the_lane_up_to_the_position_are_forgotten() {
        let effects = [
            Effect::Record(record(Lane::State, DeltaType::Deleted, 1, "old")),
            Effect::Record(record(Lane::Alert, DeltaType::Deleted, 2, "alert")),
            Effect::Record(record(Lane::State, DeltaType::Added, 3, "live")),
            Effect::Record(record(Lane::State, DeltaType::Deleted, 4, "young")),
            Effect::Forget { lane: Lane::State, to: Seq(3) },
        ];
        let image = image(&entries_of(&effects));
        let seqs: Vec<u64> = image.newest.iter().map(|record| record.seq.0).collect();
        assert_eq!(seqs, [2, 3, 4]);
    }

    #[test]
    fn the_highest_seq_is_no_special_case() {
        let effects = [
            Effect::Record(record(Lane::Event, DeltaType::Added, u64::MAX - 1, "a")),
            Effect::Record(record(Lane::State, DeltaType::Deleted, u64::MAX - 1, "a")),
            Effect::Trim { lane: Lane::Event, to: Seq(u64::MAX), lost: 0 },
            Effect::Forget { lane: Lane::State, to: Seq(u64::MAX) },
        ];
        let image = image(&entries_of(&effects));
        assert!(image.lanes.is_empty());
        assert_eq!(image.floors[&Lane::State].forgotten, Seq(u64::MAX));
    }

    #[test]
    fn keys_are_as_the_table_says() {
        let state = record(Lane::State, DeltaType::Added, 1, "hall/door");
        assert_eq!(state_key(&state), b"s/\x02default/hall/door");
        assert_eq!(lane_key(Lane::Event, Seq(258)), b"l/\x03\0\0\0\0\0\0\x01\x02");
        assert_eq!(cursor_key(Lane::Alert, "kafka"), b"c/\x01kafka");
        let long = bounded(vec![b'x'; 513]);
        assert_eq!((long.len(), long[495]), (512, 0xff));
        assert_ne!(long, bounded(vec![b'x'; 514]));
    }

    #[test]
    fn a_format_batch_marks_a_store_as_ours() {
        let mut entries = BTreeMap::new();
        assert_eq!(image(&entries).format, None);
        write(&mut entries, &format_batch());
        assert_eq!((image(&entries).format, image(&entries).damages), (Some(FORMAT), 0));
    }
}
