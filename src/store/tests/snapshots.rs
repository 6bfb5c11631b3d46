//! The keyed store rebuilt from the snapshot, and the log that waits for both.

use super::*;

/// So many commits, each with a key of its own, as one frame each.
fn frames(count: u64) -> Vec<Frame> {
    (1..=count).map(|n| put_body(n, n - 1, n, &format!("key{n}"), &[n as u8; 300])).collect()
}

fn commit(store: &mut Store, frames: &[Frame]) {
    for frame in frames {
        store.commit(std::slice::from_ref(frame)).unwrap();
    }
}

/// Opens, and finds exactly what the frames amount to, in the first life.
fn open_whole(rig: &Rig, frames: &[Frame]) -> Store {
    let (store, recovered) = rig.open();
    assert!(Truth::of(&recovered) == Truth::after(frames), "something is lost");
    assert_eq!((recovered.gaps, recovered.epoch), (Vec::new(), Epoch::new(1, MACHINE)));
    store
}

/// A store that was checkpointed, then snapshot, then went on and was killed; and its keyed store before the snapshot.
fn killed(frames: &[Frame]) -> (Rig, BTreeMap<Vec<u8>, Vec<u8>>) {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let (first, rest) = frames.split_at(frames.len() / 3);
    commit(&mut store, first);
    store.checkpoint().unwrap();
    let mut old = BTreeMap::new();
    rig.keyed.edit(|entries| old = entries.clone());
    let (second, third) = rest.split_at(rest.len() / 2);
    commit(&mut store, second);
    snapshot(&mut store, &Truth::after(&frames[..first.len() + second.len()]));
    commit(&mut store, third);
    (rig, old)
}

#[test]
fn a_lost_keyed_store_is_rebuilt_from_snapshot_and_log() {
    let frames = frames(120);
    let (rig, _) = killed(&frames);
    rig.keyed.lose();
    drop(open_whole(&rig, &frames));
    assert!(rig.keyed.keys().len() > 80, "it is there again");
    drop(open_whole(&rig, &frames));
}

#[test]
fn a_keyed_store_that_is_older_than_it_was_is_rebuilt() {
    let frames = frames(120);
    let (rig, old) = killed(&frames);
    rig.keyed.edit(|entries| entries.clone_from(&old));
    drop(open_whole(&rig, &frames));
    let mut now = BTreeMap::new();
    rig.keyed.edit(|entries| now.clone_from(entries));
    assert!(now.len() > old.len());
}

#[test]
fn a_damaged_entry_of_the_keyed_store_is_made_good() {
    let frames = frames(120);
    let (rig, _) = killed(&frames);
    rig.keyed.edit(|entries| entries.iter_mut().find(|(key, _)| key.ends_with(b"key7")).unwrap().1.truncate(20));
    drop(open_whole(&rig, &frames));
}

#[test]
fn a_keyed_store_that_is_lost_after_a_clean_stop_leaves_it_a_clean_stop() {
    let frames = frames(120);
    for last in [80, 120] {
        let (rig, _) = killed(&frames[..last]);
        open_whole(&rig, &frames[..last]).close(Seq(500)).unwrap();
        rig.keyed.lose();
        let (store, recovered) = rig.open();
        assert!(recovered.clean, "nothing is missing");
        assert_eq!((recovered.next_seq, store.lsn()), (Seq(500), Lsn(last as u64)));
        drop(store);
        drop(open_whole(&rig, &frames[..last]));
    }
}

#[test]
fn frames_of_a_failed_commit_stay_void_when_the_keyed_store_is_lost_after_a_clean_stop() {
    for seed in 0..30 {
        let rig = Rig::new(seed);
        let (mut store, _) = rig.open();
        commit(&mut store, &frames(3));
        rig.disk.fail(1000);
        store.commit(&[put(4, 3, 4, "late")]).unwrap_err();
        rig.disk.fail(0);
        store.close(Seq(5)).unwrap();
        rig.keyed.lose();
        drop(open_whole(&rig, &frames(3)));
        drop(open_whole(&rig, &frames(3)));
    }
}

#[test]
fn a_damaged_or_lost_snapshot_is_written_anew_and_nothing_is_lost() {
    let frames = frames(120);
    let harms: [fn(&mut Vec<u8>); 4] =
        [|bytes| bytes.clear(), |bytes| bytes[3] ^= 1, |bytes| bytes[200] ^= 1, |bytes| bytes.truncate(1000)];
    for harm in harms {
        let (rig, _) = killed(&frames);
        rig.disk.edit(Rig::snapshot_path(), harm);
        let mut store = open_whole(&rig, &frames);
        assert!(store.snapshot_due(), "at once");
        let held = rig.segments().len();
        store.checkpoint().unwrap();
        assert_eq!(rig.segments().len(), held, "no segment is recycled before");
        snapshot(&mut store, &Truth::after(&frames));
        assert!(!store.snapshot_due() && rig.segments().len() < held);
        drop(store);
        rig.keyed.lose();
        drop(open_whole(&rig, &frames));
    }
}

#[test]
fn what_a_damaged_snapshot_lost_is_told_if_the_keyed_store_is_lost_too() {
    let frames = frames(120);
    let (rig, _) = killed(&frames);
    rig.keyed.lose();
    rig.disk.edit(Rig::snapshot_path(), |bytes| bytes[900] ^= 1);
    let (_, recovered) = rig.open();
    assert_eq!(recovered.gaps, [Gap { from: Seq::ZERO, to: Seq(80) }]);
    assert_eq!(Truth::of(&recovered).newest.len(), 119, "the others are salvaged");
}

#[test]
fn a_segment_stays_until_both_images_hold_it() {
    let frames = frames(400);
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    commit(&mut store, &frames[..300]);
    let before = rig.segments();
    store.checkpoint().unwrap();
    assert_eq!(rig.segments(), before, "a checkpoint alone frees nothing");
    snapshot(&mut store, &Truth::after(&frames[..300]));
    assert_eq!(rig.segments().len(), 1);
    commit(&mut store, &frames[300..]);
    let before = rig.segments();
    rig.keyed.fail(1000);
    store.begin_snapshot(Truth::after(&frames).image()).unwrap_err();
    assert!(!store.step_snapshot().unwrap(), "there is none without its checkpoint");
    assert_eq!(rig.segments(), before);
    rig.keyed.fail(0);
    drop(store);
    rig.keyed.lose();
    drop(open_whole(&rig, &frames));
}

#[test]
fn a_snapshot_is_due_every_sixteen_segments_and_again_soon_after_an_error() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let every = u64::from(SEGMENT_BYTES) * 16;
    let mut lsn = 0;
    let mut fill = |store: &mut Store| {
        let mut bytes = 0;
        while !store.snapshot_due() {
            lsn += 1;
            let frame = put_body(lsn, lsn - 1, lsn, "key", &[0; 500]);
            store.commit(std::slice::from_ref(&frame)).unwrap();
            bytes += frame_bytes(&frame) as u64;
        }
        (bytes, Truth::after(&[put_body(lsn, lsn - 1, lsn, "key", &[0; 500])]))
    };
    for _ in 0..3 {
        let (bytes, truth) = fill(&mut store);
        assert!((every * 9 / 10..=every * 11 / 10).contains(&bytes), "{bytes}");
        store.begin_snapshot(truth.image()).unwrap();
        assert!(!store.snapshot_due(), "one is under way");
        while store.step_snapshot().unwrap() {}
    }
    let (_, truth) = fill(&mut store);
    store.begin_snapshot(truth.image()).unwrap();
    rig.disk.fail(1000);
    store.step_snapshot().unwrap_err();
    rig.disk.fail(0);
    assert!(!store.snapshot_due() && !store.step_snapshot().unwrap());
    assert!(!store.snapshots.is_due(store.at.lsn, store.log.total(), true), "not even on a tight disk");
    let (bytes, _) = fill(&mut store);
    assert!((every / 10..=every / 4).contains(&bytes), "{bytes}");
}

#[test]
fn an_empty_store_needs_no_snapshot() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    store.begin_snapshot(StateImage::default()).unwrap();
    assert!(!store.step_snapshot().unwrap());
    assert_eq!(rig.disk.files(Path::new("data/store")), [Path::new("data/store/ballast")]);
}

/// Commits to one key as long as there is room, from `first` on, at most `most`; the next position, and why it ended.
fn commit_until_full(store: &mut Store, first: u64, most: u64) -> (u64, Option<StoreError>) {
    for n in first..first + most {
        if let Err(error) = store.commit(&[put_body(n, n - 1, n, "key", &[n as u8; 700])]) {
            return (n, Some(error));
        }
    }
    (first + most, None)
}

#[test]
fn a_full_disk_gives_up_its_ballast_goes_on_and_takes_it_back_without_a_restart() {
    let rig = Rig::new(1);
    let ballast = PathBuf::from("data/store/ballast");
    let has_ballast = || rig.disk.files(Path::new("data/store")).contains(&ballast);
    let truth = |n: u64| Truth::after(&[put_body(n, n - 1, n, "key", &[n as u8; 700])]);
    rig.disk.limit(u64::from(SEGMENT_BYTES) * 12);
    let (mut store, _) = rig.open();
    assert!(has_ballast());
    let (next, error) = commit_until_full(&mut store, 1, 1000);
    assert!(next > 50 && next < 100, "{next}");
    assert!(has_ballast() && store.make_room(&error.unwrap()) && !has_ballast());
    store.commit(&[put_body(next, next - 1, next, "key", &[next as u8; 700])]).unwrap();
    snapshot(&mut store, &truth(next));
    let (next, error) = commit_until_full(&mut store, next + 1, 40);
    assert!(error.is_none(), "the snapshot has freed the log");
    snapshot(&mut store, &truth(next - 1));
    let (next, error) = commit_until_full(&mut store, next, 1000);
    assert!(!store.make_room(&error.unwrap()), "once");
    rig.disk.limit(u64::from(SEGMENT_BYTES) * 100);
    let frame = put_body(next, next - 1, next, "key", &[next as u8; 700]);
    store.commit(std::slice::from_ref(&frame)).unwrap();
    assert!(has_ballast());
    drop(store);
    rig.disk.cut();
    assert!(Truth::of(&rig.open().1) == Truth::after(&[frame]));
}

#[test]
fn any_other_error_costs_no_ballast() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    rig.disk.fail(1000);
    let error = store.commit(&[put(1, 0, 1, "a")]).unwrap_err();
    rig.disk.fail(0);
    assert!(!store.make_room(&error));
}
