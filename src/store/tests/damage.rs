//! What an open finds after damage, loss and mix-ups, on the simulated disk.

use super::super::sim::Rng;
use super::*;

/// The keys of the newest records, with their Seqs.
fn seqs(recovered: &Recovered) -> Vec<u64> {
    Truth::of(recovered)
        .newest
        .values()
        .map(|record| record.seq.0)
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// One commit for each Seq, with a key of its own.
fn fill(store: &mut Store, seqs: std::ops::RangeInclusive<u64>) {
    for seq in seqs {
        store.commit(&[put(seq, seq - 1, seq, &format!("key{seq}"))]).unwrap();
    }
}

/// Where the frame with this text stands in a segment: its first byte, and the first one behind it.
fn frame_at(rig: &Rig, text: &str) -> (PathBuf, std::ops::Range<usize>) {
    let mut found = None;
    for path in rig.segments() {
        let bytes = rig.disk.read(&path).unwrap();
        if let Some(at) = bytes.windows(text.len()).rposition(|window| window == text.as_bytes()) {
            // Head, tag, lane, delta, four numbers, two stamps, the namespace with its length, the name's length.
            let start = at - 40 - 3 - 32 - 18 - 11 - 4;
            let length = u32::from_le_bytes(bytes[start..start + 4].try_into().unwrap()) as usize;
            found = Some((path, start..start + length));
        }
    }
    found.expect("a frame with this text is in the log")
}

#[test]
fn a_new_directory_begins_with_epoch_one_and_nothing() {
    let (store, recovered) = Rig::new(1).open();
    assert_eq!(recovered.epoch, Epoch::new(1, MACHINE));
    assert_eq!((recovered.next_seq, store.lsn(), store.log_bytes()), (Seq(1), Lsn::ZERO, 0));
    assert_eq!(recovered.gaps, []);
    assert_eq!(store.reserved(), Seq(1 + RESERVE));
}

#[test]
fn a_flipped_bit_in_the_middle_is_an_exact_gap() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    fill(&mut store, 1..=9);
    drop(store);
    let (path, range) = frame_at(&rig, "key5");
    for at in range {
        let keep = rig.disk.read(&path).unwrap();
        rig.disk.edit(&path, |bytes| bytes[at] ^= 4);
        let found = log_only(&rig);
        assert_eq!(found.gaps, [Gap { from: Seq(4), to: Seq(5) }], "byte {at}");
        assert_eq!(found.frames.len(), 8, "byte {at}");
        rig.disk.edit(&path, |bytes| *bytes = keep);
    }
}

/// Reads the log as it is, and changes nothing.
fn log_only(rig: &Rig) -> Replay {
    let disk = Arc::new(rig.disk.clone());
    log::recover(disk, Path::new("data/store/log"), SEGMENT_BYTES, Checkpoint::default(), None).unwrap().1
}

#[test]
fn damage_is_told_at_every_start_until_a_checkpoint() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    fill(&mut store, 1..=9);
    drop(store);
    let (path, range) = frame_at(&rig, "key5");
    rig.disk.edit(&path, |bytes| bytes[range.start + 50] ^= 1);
    let gap = [Gap { from: Seq(4), to: Seq(5) }];
    for _ in 0..2 {
        let (_store, recovered) = rig.open();
        assert_eq!(recovered.gaps, gap);
        assert_eq!(seqs(&recovered), [1, 2, 3, 4, 6, 7, 8, 9]);
        assert_eq!(recovered.epoch.counter(), 1, "a gap that is told is no new life");
    }
    let (mut store, _) = rig.open();
    store.checkpoint().unwrap();
    drop(store);
    assert_eq!(rig.open().1.gaps, []);
}

#[test]
fn a_torn_tail_is_dropped_and_counted() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    fill(&mut store, 1..=3);
    drop(store);
    let (path, range) = frame_at(&rig, "key3");
    for cut in [range.start + 41, range.end - 1] {
        rig.disk.edit(&path, |bytes| bytes[cut..].fill(0));
        let replay = log_only(&rig);
        assert_eq!((replay.frames.len(), replay.torn_bytes), (2, range.len()));
        assert_eq!((replay.gaps.len(), replay.open_end), (0, false));
    }
    rig.disk.edit(&path, |bytes| bytes[range.start..].fill(0));
    assert_eq!(log_only(&rig).torn_bytes, 0, "nothing was written");
    assert_eq!(seqs(&rig.open().1), [1, 2]);
}

#[test]
fn a_write_that_is_torn_in_the_middle_is_dropped_from_there() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    fill(&mut store, 1..=2);
    store.commit(&[put(3, 2, 3, "key3"), put(4, 3, 4, "key4"), put(5, 4, 5, "key5")]).unwrap();
    drop(store);
    let (path, range) = frame_at(&rig, "key4");
    rig.disk.edit(&path, |bytes| bytes[range].fill(0));
    let (mut store, recovered) = rig.open();
    assert_eq!(seqs(&recovered), [1, 2, 3]);
    assert_eq!(recovered.gaps, [], "its commit had not returned");
    // What stands behind the tear must not come back when its position is used again.
    store.commit(&[put(4, 3, 2_000_000, "other")]).unwrap();
    drop(store);
    assert_eq!(seqs(&rig.open().1), [1, 2, 3, 2_000_000]);
}

#[test]
fn a_tear_with_a_later_commit_behind_it_is_damage() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    store.commit(&[put(1, 0, 1, "key1"), put(2, 1, 2, "key2"), put(3, 2, 3, "key3")]).unwrap();
    store.commit(&[put(4, 3, 4, "key4")]).unwrap();
    drop(store);
    let (path, range) = frame_at(&rig, "key2");
    rig.disk.edit(&path, |bytes| bytes[range].fill(0));
    let (_, recovered) = rig.open();
    assert_eq!(recovered.gaps, [Gap { from: Seq(1), to: Seq(2) }]);
    assert_eq!(seqs(&recovered), [1, 3, 4]);
}

#[test]
fn any_log_file_may_be_cut_short_or_emptied_and_the_loss_is_told() {
    let sizes = [0, 40, 64, 300, 5000, SEGMENT_BYTES as usize - 1];
    for (victim, size) in (0..3).flat_map(|victim| sizes.map(|size| (victim, size))) {
        let rig = Rig::new(1);
        let (mut store, _) = rig.open();
        fill(&mut store, 1..=200);
        drop(store);
        let segments = rig.segments();
        assert!(segments.len() >= 3, "{segments:?}");
        let path = &segments[victim];
        rig.disk.edit(path, |bytes| bytes.truncate(size));
        let (store, recovered) = rig.open();
        let found = seqs(&recovered);
        let told = |seq: &u64| recovered.gaps.iter().any(|gap| gap.from.0 < *seq && *seq <= gap.to.0);
        let silent: Vec<u64> = (1..=200).filter(|seq| !found.contains(seq) && !told(seq)).collect();
        assert_eq!(silent, Vec::<u64>::new(), "segment {victim} cut to {size}");
        assert!(recovered.next_seq > Seq(200) && store.lsn() <= Lsn(200));
    }
}

#[test]
fn a_log_that_is_gone_is_told_and_the_checkpoint_counts() {
    let rig = Rig::new(1);
    let (mut store, first) = rig.open();
    fill(&mut store, 1..=5);
    store.checkpoint().unwrap();
    fill(&mut store, 6..=9);
    drop(store);
    rig.segments().iter().for_each(|path| rig.disk.remove(path).unwrap());
    let (_, recovered) = rig.open();
    assert_eq!(seqs(&recovered), [1, 2, 3, 4, 5]);
    assert_eq!(recovered.gaps, [Gap { from: Seq(5), to: Seq(recovered.next_seq.0 - 1) }]);
    assert_eq!(recovered.epoch, first.epoch);
}

#[test]
fn a_lost_keyed_store_and_no_snapshot_begin_a_new_epoch_where_the_log_begins() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let frames: Vec<Frame> = (1..=103).map(|n| put(n, n - 1, n, &format!("key{n}"))).collect();
    for frame in &frames[..100] {
        store.commit(std::slice::from_ref(frame)).unwrap();
    }
    snapshot(&mut store, &Truth::after(&frames[..100]));
    store.commit(&frames[100..]).unwrap();
    drop(store);
    rig.keyed.lose();
    rig.disk.remove(Rig::snapshot_path()).unwrap();
    let (mut store, recovered) = rig.open();
    let first = seqs(&recovered)[0];
    assert_eq!(recovered.gaps, [Gap { from: Seq::ZERO, to: Seq(first - 1) }]);
    assert!((2..=101).contains(&first) && seqs(&recovered).ends_with(&[101, 102, 103]), "{:?}", seqs(&recovered));
    assert_eq!(recovered.epoch, Epoch::new(2, MACHINE));
    fill(&mut store, 104..=104);
    drop(store);
    assert_eq!(rig.open().1.epoch, Epoch::new(2, MACHINE), "one loss is one new epoch");
}

#[test]
fn a_lost_store_begins_a_new_epoch_above_all_seqs_given_out() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    fill(&mut store, 1..=5);
    let reserved = store.reserved();
    drop(store);
    rig.keyed.lose();
    for path in rig.disk.files(Path::new("data/store/log")) {
        rig.disk.remove(&path).unwrap();
    }
    let (_, recovered) = rig.open();
    assert_eq!((recovered.epoch, recovered.next_seq), (Epoch::new(2, MACHINE), reserved));
    assert_eq!(recovered.gaps, [Gap { from: Seq::ZERO, to: Seq(reserved.0 - 1) }]);
}

#[test]
fn a_lost_identity_begins_a_new_epoch() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    fill(&mut store, 1..=5);
    store.close(Seq(6)).unwrap();
    for name in ["a", "b"] {
        rig.disk.remove(&Path::new("data/identity").join(name)).unwrap();
    }
    let (_, recovered) = rig.open();
    assert_eq!((recovered.epoch, recovered.next_seq), (Epoch::new(2, MACHINE), Seq(6)));
    assert_eq!(seqs(&recovered), [1, 2, 3, 4, 5]);
}

#[test]
fn one_lost_copy_of_the_identity_is_no_matter() {
    for name in ["a", "b"] {
        let rig = Rig::new(1);
        let (mut store, _) = rig.open();
        fill(&mut store, 1..=5);
        store.close(Seq(6)).unwrap();
        rig.disk.remove(&Path::new("data/identity").join(name)).unwrap();
        let (_, recovered) = rig.open();
        assert!(recovered.clean);
        assert_eq!(recovered.epoch, Epoch::new(1, MACHINE));
    }
}

#[test]
fn another_machine_begins_a_new_epoch() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    fill(&mut store, 1..=5);
    store.close(Seq(6)).unwrap();
    let (store, recovered) = rig.open_on(8).unwrap();
    assert_eq!((recovered.epoch, recovered.clean), (Epoch::new(2, 8), false));
    assert!(recovered.next_seq > Seq(RESERVE), "the other machine may go on as well");
    drop(store);
    assert_eq!(rig.open_on(8).unwrap().1.epoch, Epoch::new(2, 8));
}

#[test]
fn an_older_copy_of_the_store_begins_a_new_epoch() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    fill(&mut store, 1..=5);
    store.checkpoint().unwrap();
    drop(store);
    let log: Vec<(PathBuf, Vec<u8>)> =
        rig.segments().into_iter().map(|path| (path.clone(), rig.disk.read(&path).unwrap())).collect();
    let mut copy = BTreeMap::new();
    rig.keyed.edit(|entries| copy = entries.clone());
    let (mut store, _) = rig.open();
    fill(&mut store, 6..=9);
    store.close(Seq(10)).unwrap();
    rig.keyed.edit(|entries| *entries = copy);
    for path in rig.segments() {
        match log.iter().find(|(old, _)| *old == path) {
            Some((_, content)) => rig.disk.edit(&path, |bytes| bytes.clone_from(content)),
            None => rig.disk.remove(&path).unwrap(),
        }
    }
    let (_, recovered) = rig.open();
    assert_eq!((recovered.epoch, recovered.clean), (Epoch::new(2, MACHINE), false));
    assert!(recovered.next_seq > Seq(RESERVE));
}

#[test]
fn an_older_copy_of_the_identity_begins_a_new_epoch() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let copies = [Path::new("data/identity/a"), Path::new("data/identity/b")];
    let old = rig.disk.read(copies[0]).unwrap();
    store.reserve(Seq(3 * RESERVE)).unwrap();
    store.commit(&[put(1, 0, 2 * RESERVE, "key")]).unwrap();
    drop(store);
    for path in copies {
        rig.disk.edit(path, |bytes| bytes.clone_from(&old));
    }
    let (_, recovered) = rig.open();
    assert_eq!(recovered.epoch, Epoch::new(2, MACHINE));
    assert!(recovered.next_seq > Seq(2 * RESERVE));
}

#[test]
fn an_entry_that_makes_no_sense_and_is_nowhere_else_is_told_and_the_others_count() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    fill(&mut store, 1..=3);
    snapshot(&mut store, &Truth::after(&(1..=3).map(|n| put(n, n - 1, n, &format!("key{n}"))).collect::<Vec<_>>()));
    drop(store);
    drop(rig.open());
    rig.disk.remove(Rig::snapshot_path()).unwrap();
    rig.keyed.edit(|entries| {
        let value = entries.iter_mut().find(|(key, _)| key.ends_with(b"key2")).unwrap().1;
        value.truncate(20);
    });
    let (_, recovered) = rig.open();
    assert_eq!(recovered.gaps, [Gap { from: Seq::ZERO, to: Seq(3) }]);
    assert_eq!(seqs(&recovered), [1, 3]);
}

#[test]
fn a_newer_format_of_the_log_or_the_keyed_store_is_refused() {
    let rig = Rig::new(1);
    drop(rig.open());
    let path = rig.segments().remove(0);
    let old = rig.disk.read(&path).unwrap();
    rig.disk.edit(&path, |bytes| {
        bytes[6] = 2;
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    });
    let refusal = rig.try_open().err().unwrap();
    assert!(matches!(refusal, StoreError::NewerFormat { found: 2, .. }), "{refusal}");
    rig.disk.edit(&path, |bytes| *bytes = old);
    rig.open();
    rig.keyed.edit(|entries| drop(entries.insert(b"m/format".to_vec(), vec![9, 0])));
    let refusal = rig.try_open().err().unwrap();
    assert!(matches!(refusal, StoreError::NewerFormat { found: 9, .. }), "{refusal}");
}

#[test]
fn payloads_that_look_like_frames_do_not_stop_the_start() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    // Each eight bytes begin a head with positions in order and a length that nearly fills the segment.
    let words = (0..800_u64).map(|word| 0x1b58 | (word + 1) << 32);
    let body: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    store.commit(&[put_body(1, 0, 1, "hostile", &body)]).unwrap();
    fill(&mut store, 2..=3);
    drop(store);
    let (path, range) = frame_at(&rig, "hostile");
    rig.disk.edit(&path, |bytes| bytes[range.start] ^= 1);
    let (_, recovered) = rig.open();
    assert!(!recovered.gaps.is_empty());
    assert_eq!(seqs(&recovered).last(), Some(&3));
}

#[test]
fn chance_bytes_in_the_log_never_stop_the_start() {
    for seed in 0..60 {
        let rig = Rig::new(seed);
        let mut rng = Rng::new(seed);
        let (mut store, _) = rig.open();
        fill(&mut store, 1..=80);
        drop(store);
        let segments = rig.segments();
        for _ in 0..=rng.below(4) {
            let path = &segments[rng.below(segments.len() as u64) as usize];
            let (at, length) = (rng.below(8000) as usize, 1 + rng.below(1000) as usize);
            rig.disk
                .edit(path, |bytes| bytes.iter_mut().skip(at).take(length).for_each(|byte| *byte = rng.number() as u8));
        }
        let (store, recovered) = rig.open();
        let found = seqs(&recovered);
        let told = |seq: u64| recovered.gaps.iter().any(|gap| gap.from.0 < seq && seq <= gap.to.0);
        let last = found.last().copied().unwrap_or_default();
        assert!((1..=last).all(|seq| found.contains(&seq) || told(seq)), "seed {seed}: {:?}", recovered.gaps);
        assert!(store.lsn() <= Lsn(80));
    }
}
