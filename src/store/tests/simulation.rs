//! Histories of commits, checkpoints, disk errors, kills and power cuts, by chance from a seed.
//!
//! `TIDEGATE_SIM_HISTORIES` sets how many, `TIDEGATE_SIM_SEED` plays one alone and prints its log.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tracing::debug;

use super::super::sim::Rng;
use super::*;

const HISTORIES: u64 = 150;
const STEPS: u64 = 40;

#[test]
fn what_was_committed_is_recovered_and_nothing_half() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("TIDEGATE_SIM_SEED") {
        tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).init();
        History::new(seed).play();
        return;
    }
    let (mut cuts, mut errors, mut snapshots, mut rebuilt) = (0, 0, 0, 0);
    for seed in 0..number("TIDEGATE_SIM_HISTORIES").unwrap_or(HISTORIES) {
        let mut history = History::new(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| history.play())) {
            eprintln_seed(seed);
            resume_unwind(panic);
        }
        cuts += history.cuts;
        errors += history.errors;
        snapshots += history.snapshots;
        rebuilt += history.rebuilt;
    }
    assert!(cuts > 100 && errors > 100, "the histories are too tame: {cuts} cuts, {errors} failed commits");
    assert!(snapshots > 50 && rebuilt > 100, "{snapshots} snapshots, {rebuilt} harms");
}

fn eprintln_seed(seed: u64) {
    eprintln!("failed: play it alone with TIDEGATE_SIM_SEED={seed}");
}

struct History {
    rng: Rng,
    rig: Rig,
    /// What was acknowledged or recovered.
    truth: Truth,
    last: Lsn,
    last_seq: Seq,
    /// Committed without success so far; they come first next time.
    waiting: Vec<Frame>,
    next_seq: Seq,
    /// The highest that was ever given out.
    given: Seq,
    closed: bool,
    /// The keyed store as it was at some time.
    old_keyed: BTreeMap<Vec<u8>, Vec<u8>>,
    cuts: usize,
    errors: usize,
    snapshots: usize,
    rebuilt: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let rig = Rig::new(rng.number());
        if rng.hits(300) {
            rig.clock.set_wall(1_800_000_000_000);
        }
        Self {
            rng,
            rig,
            truth: Truth::default(),
            last: Lsn::ZERO,
            last_seq: Seq::ZERO,
            waiting: Vec::new(),
            next_seq: Seq::ZERO,
            given: Seq::ZERO,
            closed: false,
            old_keyed: BTreeMap::new(),
            cuts: 0,
            errors: 0,
            snapshots: 0,
            rebuilt: 0,
        }
    }

    fn play(&mut self) {
        let is_faulty = self.rng.hits(600);
        let mut store = self.reopen();
        for _ in 0..STEPS {
            let is_bad_moment = is_faulty && self.rng.hits(400);
            self.set_faults(if is_bad_moment { 60 } else { 0 });
            match self.rng.below(100) {
                0..55 => self.commit(&mut store),
                55..62 => drop(store.checkpoint()),
                62..67 if store.snapshots.draft.is_none() => drop(store.begin_snapshot(self.truth.image())),
                62..80 => self.step_snapshot(&mut store),
                80..83 => self.jump(&mut store),
                83 => self.rig.keyed.edit(|entries| self.old_keyed.clone_from(entries)),
                84..90 => {
                    drop(store);
                    self.harm();
                    store = self.reopen();
                }
                90..96 => {
                    drop(store);
                    self.cut();
                    self.harm();
                    store = self.reopen();
                }
                _ => {
                    self.closed = store.close(self.next_seq).is_ok();
                    if self.rng.hits(500) {
                        self.cut();
                    }
                    self.harm();
                    store = self.reopen();
                }
            }
        }
    }

    fn step_snapshot(&mut self, store: &mut Store) {
        let held = store.snapshots.held;
        for _ in 0..=self.rng.below(80) {
            if !store.step_snapshot().unwrap_or(false) {
                break;
            }
        }
        self.snapshots += usize::from(store.snapshots.held > held);
    }

    /// One of the two images is lost, damaged, or, with sled, older than it was.
    fn harm(&mut self) {
        if self.rng.hits(500) {
            return;
        }
        let disk: Arc<dyn Disk> = Arc::new(self.rig.disk.clone());
        let second = snapshot::read(&*disk, Rig::snapshot_path()).unwrap();
        let has_second = matches!(second, snapshot::Found::Snapshot { loaded, .. } if loaded.damages == 0)
            || log::reaches_back(&disk, Path::new("data/store/log")).unwrap();
        let at = self.rng.below(4000) as usize;
        let harm = if has_second { self.rng.below(5) } else { 3 + self.rng.below(2) };
        debug!(harm, "harm");
        self.rebuilt += usize::from(harm < 3);
        match harm {
            0 => self.rig.keyed.lose(),
            1 => self.rig.keyed.edit(|entries| entries.clone_from(&self.old_keyed)),
            2 => self.rig.keyed.edit(|entries| {
                let victim = at % entries.len().max(1);
                entries.iter_mut().nth(victim).into_iter().for_each(|(_, value)| value.truncate(value.len() / 2));
            }),
            3 => drop(self.rig.disk.remove(Rig::snapshot_path())),
            _ => self.rig.disk.edit(Rig::snapshot_path(), |bytes| {
                let at = at % bytes.len().max(1);
                bytes.iter_mut().skip(at).take(3).for_each(|byte| *byte ^= 9);
            }),
        }
    }

    fn set_faults(&self, per_mille: u64) {
        self.rig.disk.fail(per_mille);
        self.rig.keyed.fail(per_mille * 5);
    }

    fn cut(&mut self) {
        self.rig.disk.cut();
        debug!("cut");
        self.cuts += 1;
    }

    fn commit(&mut self, store: &mut Store) {
        for _ in 0..self.rng.below(5) {
            let frame = self.frame(store);
            self.waiting.push(frame);
        }
        let (first, last) = (self.waiting.first().map(|f| f.lsn.0), self.waiting.last().map(|f| f.lsn.0));
        let committed = store.commit(&self.waiting);
        debug!(first, last, ok = committed.is_ok(), "commit");
        if committed.is_err() {
            self.errors += 1;
            return;
        }
        self.waiting.drain(..).for_each(|frame| {
            self.truth.apply_frame(&frame);
            self.last = frame.lsn;
        });
        assert_eq!(store.lsn(), self.last);
    }

    /// The identity's reserve is used up.
    fn jump(&mut self, store: &mut Store) {
        let far = Seq(self.next_seq.0 + RESERVE + self.rng.below(1000));
        if store.reserve(far.next()).is_ok() {
            self.next_seq = far;
        }
    }

    fn frame(&mut self, store: &Store) -> Frame {
        let newest = self.waiting.last().map_or(self.last, |frame| frame.lsn);
        let lsn = Lsn(newest.0 + 1 + self.rng.below(3));
        let prev_seq = self.last_seq;
        let effects = (0..=self.rng.below(3)).map(|_| self.effect(store)).collect();
        Frame { lsn, prev_seq, effects }
    }

    fn effect(&mut self, store: &Store) -> Effect {
        let sink = ["kafka", "kube"][self.rng.below(2) as usize].into();
        let lane = Lane::ALL[self.rng.below(3) as usize];
        let to = Seq(self.last_seq.0.saturating_sub(self.rng.below(4)));
        match self.rng.below(20) {
            0..3 => Effect::Cursor { sink, lane, seq: to },
            3 => Effect::Release { sink },
            4 => Effect::Trim { lane: [Lane::Alert, Lane::Event][self.rng.below(2) as usize], to, lost: 0 },
            5 => Effect::Forget { lane: [Lane::Alert, Lane::State][self.rng.below(2) as usize], to },
            _ => Effect::Record(self.record(lane, store)),
        }
    }

    fn record(&mut self, lane: Lane, store: &Store) -> Record {
        assert!(self.next_seq < store.reserved(), "the reserve is far enough");
        let seq = self.next_seq;
        self.next_seq = seq.next();
        (self.given, self.last_seq) = (seq, seq);
        let delta = if self.rng.hits(200) { DeltaType::Deleted } else { DeltaType::Updated };
        let length = if self.rng.hits(50) { self.rng.below(5000) } else { self.rng.below(200) };
        let body = vec![self.rng.number() as u8; length as usize];
        record(lane, delta, seq.0, &format!("device{}", self.rng.below(6)), &body)
    }

    /// Opens until it succeeds, with power cuts between, and looks at what came back.
    fn reopen(&mut self) -> Store {
        let mut attempts = 0;
        let (store, recovered) = loop {
            match self.rig.try_open() {
                Ok(opened) => break opened,
                Err(error) => debug!(%error, "open failed"),
            }
            if self.rng.hits(500) {
                self.cut();
            }
            attempts += 1;
            if attempts > 3 {
                self.set_faults(0);
            }
        };
        assert!(attempts > 0 || !self.closed || recovered.clean, "a clean stop is known as one");
        self.check(&store, &recovered);
        if !self.rng.hits(300) {
            return store;
        }
        drop(store);
        self.set_faults(0);
        if self.rng.hits(500) {
            self.cut();
        }
        let (store, again) = self.rig.open();
        assert!(Truth::of(&again) == self.truth, "a second open finds what the first one found");
        self.check(&store, &again);
        store
    }

    fn check(&mut self, store: &Store, recovered: &Recovered) {
        assert_eq!(recovered.gaps, []);
        assert_eq!(recovered.epoch, Epoch::new(1, MACHINE));
        assert!(recovered.next_seq > self.given, "{} was given out, {} comes next", self.given, recovered.next_seq);
        assert!(recovered.next_seq < store.reserved());
        for frame in self.waiting.drain(..).take_while(|frame| frame.lsn <= store.lsn()) {
            self.truth.apply_frame(&frame);
            self.last = frame.lsn;
        }
        assert_eq!(store.lsn(), self.last, "the newest frame is the last acknowledged one or one that waited");
        assert!(Truth::of(recovered) == self.truth, "what is recovered is what was committed");
        let seqs = self.truth.newest.values().chain(self.truth.lanes.values()).map(|record| record.seq);
        assert!(seqs.max().is_none_or(|seq| seq < recovered.next_seq));
        self.last_seq = store.at.seq;
        self.next_seq = recovered.next_seq;
        self.closed = false;
    }
}

/// One misfortune.
#[derive(Debug, Clone, Copy)]
enum Harm {
    Bytes,
    CutShort,
    SegmentGone,
    LogGone,
    KeyedGone,
    KeyedOld,
    EntryGone,
    StoreGone,
    IdentityGone,
    CopyGone,
}

impl Harm {
    fn any(rng: &mut Rng) -> Self {
        use Harm::{
            Bytes, CopyGone, CutShort, EntryGone, IdentityGone, KeyedGone, KeyedOld, LogGone, SegmentGone, StoreGone,
        };
        let all = [
            Bytes,
            Bytes,
            CutShort,
            SegmentGone,
            LogGone,
            KeyedGone,
            KeyedOld,
            EntryGone,
            StoreGone,
            IdentityGone,
            CopyGone,
        ];
        all[rng.below(all.len() as u64) as usize]
    }

    fn strike(self, rig: &Rig, rng: &mut Rng, old: &BTreeMap<Vec<u8>, Vec<u8>>) {
        let segments = rig.segments();
        let segment = &segments[rng.below(segments.len() as u64) as usize];
        let at = rng.below(u64::from(SEGMENT_BYTES)) as usize;
        let copies = ["a", "b"].map(|name| Path::new("data/identity").join(name));
        match self {
            Self::Bytes => {
                rig.disk.edit(segment, |bytes| bytes.iter_mut().skip(at).take(64).for_each(|byte| *byte ^= 5));
            }
            Self::CutShort => rig.disk.edit(segment, |bytes| bytes.truncate(at)),
            // Without the newest one the log ends as if that had never been opened: nobody can tell.
            Self::SegmentGone if Some(segment) == segments.last() => {}
            Self::SegmentGone => rig.disk.remove(segment).unwrap(),
            Self::LogGone => segments.iter().for_each(|path| rig.disk.remove(path).unwrap()),
            Self::KeyedGone => rig.keyed.lose(),
            Self::KeyedOld => rig.keyed.edit(|entries| entries.clone_from(old)),
            Self::EntryGone => rig.keyed.edit(|entries| {
                if let Some((_, value)) = entries.iter_mut().find(|(key, _)| key.starts_with(b"s/")) {
                    value.truncate(at % 60);
                }
            }),
            Self::StoreGone => {
                rig.keyed.lose();
                Self::LogGone.strike(rig, rng, old);
            }
            Self::IdentityGone => copies.iter().for_each(|path| rig.disk.remove(path).unwrap()),
            Self::CopyGone => rig.disk.remove(&copies[at % 2]).unwrap(),
        }
    }
}

/// A store with a key for each Seq, stopped cleanly or not; returns how many there are, how many before the last two
/// commits,
/// and the keyed store as it was at some time.
fn live(rig: &Rig, rng: &mut Rng) -> (u64, u64, BTreeMap<Vec<u8>, Vec<u8>>) {
    let (mut store, _) = rig.open();
    let (mut newest, mut before, mut settled, mut old) = (0, 0, 0, BTreeMap::new());
    for _ in 0..20 + rng.below(60) {
        let count = 1 + rng.below(4);
        let frame = |n: u64| put_body(n, n - 1, n, &format!("key{n}"), &vec![n as u8; 100 + n as usize % 300]);
        store.commit(&(newest + 1..=newest + count).map(frame).collect::<Vec<_>>()).unwrap();
        (settled, before, newest) = (before, newest, newest + count);
        if rng.hits(80) {
            rig.keyed.edit(|entries| old.clone_from(entries));
            store.checkpoint().unwrap();
        }
    }
    if rng.hits(300) {
        store.close(Seq(newest + 1)).unwrap();
    }
    (newest, settled, old)
}

#[test]
fn whatever_is_lost_is_told_by_a_gap_or_a_new_epoch() {
    let mut losses = 0;
    for seed in 0..120 {
        let (rig, mut rng) = (Rig::new(seed), Rng::new(seed));
        let (newest, settled, old) = live(&rig, &mut rng);
        let harm = Harm::any(&mut rng);
        harm.strike(&rig, &mut rng, &old);
        let (store, recovered) = rig.open();
        let truth = Truth::of(&recovered);
        let found: Vec<u64> = truth.newest.values().map(|record| record.seq.0).collect();
        let told = |seq: u64| recovered.gaps.iter().any(|gap| gap.from.0 < seq && seq <= gap.to.0);
        let is_new_life = recovered.epoch.counter() > 1;
        // Damage with nothing behind it cannot be told from a write that had not returned; ours may hit two of them.
        let silent: Vec<u64> =
            (1..=settled).filter(|seq| !found.contains(seq) && !told(*seq) && !is_new_life).collect();
        assert!(silent.is_empty(), "seed {seed}, {harm:?}: {silent:?} of {newest} are lost without a word");
        assert!(recovered.next_seq > Seq(newest), "seed {seed}, {harm:?}");
        losses += usize::from(found.len() as u64 != newest);
        drop(store);
        let (_, again) = rig.open();
        assert!(Truth::of(&again) == truth, "seed {seed}, {harm:?}: a second start finds the same");
    }
    assert!(losses > 20, "only {losses} histories have lost anything");
}
