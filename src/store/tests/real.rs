//! The store on real files, with sled.

use std::fs;

use super::*;

fn open(dir: &Path) -> (Store, Recovered) {
    Store::open(&options(dir), Arc::new(ManualClock::at(0))).unwrap()
}

fn log_files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir.join("store/log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    files.sort();
    files
}

#[test]
fn what_was_committed_survives_a_kill_and_a_clean_stop() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, recovered) = open(dir.path());
    assert!(recovered.image.is_empty() && !recovered.clean);
    let body = vec![0x5a; 300_000];
    let event = |lsn: u64| Frame {
        lsn: Lsn(lsn),
        prev_seq: Seq(lsn - 1),
        effects: vec![Effect::Record(record(Lane::Event, DeltaType::Added, lsn, "key", &body))],
    };
    let frames = [put(1, 0, 1, "a"), event(2), put(3, 2, 3, "b"), event(4)];
    store.commit(&frames[..2]).unwrap();
    store.checkpoint().unwrap();
    store.commit(&frames[2..]).unwrap();
    drop(store);
    let (store, recovered) = open(dir.path());
    assert!(!recovered.clean);
    assert_eq!((recovered.image.len(), recovered.lane_records.len(), recovered.tail.len()), (1, 1, 2));
    assert!(Truth::of(&recovered) == Truth::after(&frames));
    store.close(recovered.next_seq).unwrap();
    let (store, again) = open(dir.path());
    assert!(again.clean && again.tail.is_empty() && again.gaps.is_empty());
    assert_eq!((again.next_seq, store.lsn()), (recovered.next_seq, Lsn(4)));
    assert!(Truth::of(&again) == Truth::after(&frames));
    assert_eq!(fs::read_dir(dir.path().join("store/sled/blobs")).unwrap().count(), 0);
    assert_eq!(fs::metadata(dir.path().join("store/ballast")).unwrap().len(), 16 << 20);
}

#[test]
fn a_second_daemon_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let refusal = Store::open(&options(dir.path()), Arc::new(ManualClock::at(0))).err().unwrap();
    assert!(matches!(refusal, StoreError::Locked { .. }), "{refusal}");
    drop(first);
    open(dir.path());
}

#[test]
fn a_large_value_that_shrinks_leaves_no_chunk_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sled");
    let mut keyed = SledKeyed::new(&path);
    assert_eq!(keyed.load().unwrap(), Loaded::default());
    let set = |keyed: &mut SledKeyed, value: Option<&[u8]>| {
        let entries = BTreeMap::from([(b"s/key".to_vec(), value.map(<[u8]>::to_vec))]);
        keyed.apply(&Batch { entries, ..Batch::default() }).unwrap();
    };
    let big: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
    for value in [Some(big.as_slice()), Some(&big[..100_000]), Some(b"small".as_slice()), Some(b""), None] {
        set(&mut keyed, value);
        let expected: Vec<_> = value.into_iter().map(|value| (b"s/key".to_vec(), value.to_vec())).collect();
        assert_eq!(keyed.load().unwrap(), Loaded { entries: expected, damages: 0 });
    }
    set(&mut keyed, Some(&big));
    let cleared = vec![(b"s/".to_vec(), b"s0".to_vec())];
    keyed.apply(&Batch { cleared, ..Batch::default() }).unwrap();
    assert_eq!(keyed.load().unwrap(), Loaded::default());
}

#[test]
fn a_half_written_snapshot_does_not_stop_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path());
    store.commit(&[put(1, 0, 1, "a")]).unwrap();
    store.close(Seq(2)).unwrap();
    fs::write(dir.path().join("store/sled/snap.00000000000000FF.generating"), b"short").unwrap();
    let (store, recovered) = open(dir.path());
    assert!(recovered.clean);
    assert_eq!(recovered.image.len(), 1);
    drop(store);
    fs::write(dir.path().join("store/sled/snap.0000000000FFFFFF"), b"nonsense").unwrap();
    let (_, recovered) = open(dir.path());
    assert_eq!((recovered.image.len(), recovered.gaps.len()), (1, 0));
}

/// Cuts sled's file to `size` after a checkpoint of 200 keys, with a snapshot or the whole log behind it, and starts
/// twice: nothing is lost.
fn cut_sled(dir: &Path, size: u64, with_snapshot: bool) {
    let (mut store, _) = open(dir);
    let mut frames: Vec<Frame> =
        (1..=200).map(|n| put_body(n, n - 1, n, &format!("key{n}"), &vec![n as u8; 20_000])).collect();
    store.commit(&frames).unwrap();
    if with_snapshot {
        snapshot(&mut store, &Truth::after(&frames));
    }
    store.close(Seq(201)).unwrap();
    let (mut store, _) = open(dir);
    frames.push(put(201, 200, 201, "b"));
    store.commit(&frames[200..]).unwrap();
    drop(store);
    let db = fs::OpenOptions::new().write(true).open(dir.join("store/sled/db")).unwrap();
    assert!(db.metadata().unwrap().len() > size);
    db.set_len(size).unwrap();
    let (mut store, recovered) = open(dir);
    assert_eq!((recovered.gaps.len(), recovered.epoch.counter()), (0, 1));
    assert!(Truth::of(&recovered) == Truth::after(&frames), "something is lost");
    frames.push(put(202, 201, recovered.next_seq.0, "c"));
    store.commit(&frames[201..]).unwrap();
    store.close(recovered.next_seq.next()).unwrap();
    let (_, again) = open(dir);
    assert!(again.clean && again.gaps.is_empty());
    assert!(Truth::of(&again) == Truth::after(&frames));
}

#[test]
fn a_damaged_keyed_store_is_put_aside_and_built_anew() {
    for with_snapshot in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        cut_sled(dir.path(), 5_000_000, with_snapshot);
        assert!(dir.path().join("store/sled.corrupt-1").is_dir());
    }
}

#[test]
fn a_keyed_store_that_comes_back_with_an_older_state_is_seen() {
    for with_snapshot in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        cut_sled(dir.path(), 100_000, with_snapshot);
    }
}

#[test]
fn a_deleted_keyed_store_is_rebuilt_from_the_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path());
    let frames = [put(1, 0, 1, "a"), put_body(2, 1, 2, "b", &vec![7; 300_000])];
    store.commit(&frames).unwrap();
    snapshot(&mut store, &Truth::after(&frames));
    drop(store);
    fs::remove_dir_all(dir.path().join("store/sled")).unwrap();
    fs::remove_dir_all(dir.path().join("store/log")).unwrap();
    let (store, recovered) = open(dir.path());
    assert!(Truth::of(&recovered) == Truth::after(&frames));
    assert_eq!(recovered.epoch.counter(), 1);
    drop(store);
    fs::write(dir.path().join("store/state.snap"), b"nonsense").unwrap();
    let (_, recovered) = open(dir.path());
    assert!(Truth::of(&recovered) == Truth::after(&frames), "the keyed store has it");
}

/// Copies the files of a store, but for the ballast.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else if entry.file_name() != "ballast" {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_flipped_bit_in_sled_loses_nothing_silently() {
    let origin = tempfile::tempdir().unwrap();
    for start in 0..3 {
        let (mut store, _) = open(origin.path());
        let frame = |n: u64| put_body(n, n - 1, n, &format!("key{n}"), &vec![n as u8; 300]);
        store.commit(&(start * 60 + 1..=start * 60 + 60).map(frame).collect::<Vec<_>>()).unwrap();
        store.close(Seq(start * 60 + 61)).unwrap();
    }
    drop(open(origin.path()));
    let file = fs::read(origin.path().join("store/sled/db")).unwrap();
    let written = file.iter().rposition(|byte| *byte != 0).unwrap();
    for at in (0..6).map(|part| written * (2 * part + 1) / 12) {
        let dir = tempfile::tempdir().unwrap();
        copy(origin.path(), dir.path());
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        fs::write(dir.path().join("store/sled/db"), damaged).unwrap();
        let (_, recovered) = open(dir.path());
        let found: Vec<u64> = Truth::of(&recovered).newest.values().map(|record| record.seq.0).collect();
        let told = |seq: u64| recovered.gaps.iter().any(|gap| gap.from.0 < seq && seq <= gap.to.0);
        let silent: Vec<u64> = (1..=180).filter(|seq| !found.contains(seq) && !told(*seq)).collect();
        assert_eq!(silent, Vec::<u64>::new(), "bit at {at} flipped");
    }
}

#[test]
fn a_deleted_keyed_store_is_rebuilt_from_what_the_log_holds() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path());
    let frames = [put(1, 0, 1, "a"), put(2, 1, 2, "b")];
    store.commit(&frames).unwrap();
    drop(store);
    fs::remove_dir_all(dir.path().join("store/sled")).unwrap();
    let (_, recovered) = open(dir.path());
    assert!(Truth::of(&recovered) == Truth::after(&frames));
    assert_eq!((recovered.gaps.len(), recovered.epoch.counter()), (0, 1), "the log reaches back to the beginning");
}

#[test]
fn a_store_that_was_removed_begins_a_new_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path());
    store.commit(&[put(1, 0, 1, "a")]).unwrap();
    store.close(Seq(2)).unwrap();
    fs::remove_dir_all(dir.path().join("store")).unwrap();
    let (_, recovered) = open(dir.path());
    assert_eq!((recovered.epoch.counter(), recovered.clean), (2, false));
    assert!(recovered.next_seq > Seq(RESERVE));
}

#[test]
fn a_segment_is_whole_from_the_start_and_short_ones_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path());
    store.commit(&[put(1, 0, 1, "a")]).unwrap();
    store.commit(&[put(2, 1, 2, "b")]).unwrap();
    drop(store);
    let segment = log_files(dir.path()).remove(0);
    assert_eq!(fs::metadata(&segment).unwrap().len(), u64::from(log::SEGMENT_BYTES));
    let bytes = fs::read(&segment).unwrap();
    fs::write(&segment, &bytes[..250]).unwrap();
    let (_, recovered) = open(dir.path());
    assert_eq!(recovered.gaps, [Gap { from: Seq(1), to: Seq(recovered.next_seq.0 - 1) }]);
}
