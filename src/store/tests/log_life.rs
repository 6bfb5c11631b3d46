//! Commits, checkpoints and stops without damage.

use super::*;

#[test]
fn a_failed_commit_is_made_good_by_committing_the_same_frames_again() {
    let rig = Rig::new(5);
    let (mut store, _) = rig.open();
    let frames = [put(1, 0, 1, "a"), put(2, 1, 2, "b")];
    rig.disk.fail(1000);
    store.commit(&frames).unwrap_err();
    assert_eq!(store.lsn(), Lsn::ZERO);
    store.commit(&frames).unwrap_err();
    rig.disk.fail(0);
    assert!(store.commit(&frames).unwrap() > 0);
    assert_eq!(store.lsn(), Lsn(2));
    drop(store);
    rig.disk.cut();
    assert!(Truth::of(&rig.open().1) == Truth::after(&frames));
}

#[test]
fn frames_of_a_failed_commit_do_not_come_back_after_a_clean_stop() {
    for seed in 0..30 {
        let rig = Rig::new(seed);
        let (mut store, _) = rig.open();
        rig.disk.fail(1000);
        store.commit(&[put(1, 0, 1, "a")]).unwrap_err();
        rig.disk.fail(0);
        store.close(Seq(2)).unwrap();
        let (store, recovered) = rig.open();
        assert!(recovered.clean && recovered.tail.is_empty() && recovered.image.is_empty());
        drop(store);
        assert!(rig.open().1.tail.is_empty());
    }
}

#[test]
fn a_batch_larger_than_a_segment_is_split_between_frames() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let frames: Vec<Frame> = (1..=20).map(|n| put_body(n, n - 1, n, &format!("key{n}"), &[n as u8; 1500])).collect();
    store.commit(&frames).unwrap();
    assert!(rig.segments().len() > 3);
    drop(store);
    rig.disk.cut();
    let (_, recovered) = rig.open();
    assert!(Truth::of(&recovered) == Truth::after(&frames));
    assert_eq!(recovered.gaps, []);
}

#[test]
fn a_frame_that_fills_a_segment_is_taken_and_one_byte_more_is_refused() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let max = log::frame_bytes_max(SEGMENT_BYTES);
    let empty = frame_bytes(&put_body(1, 0, 1, "key", b""));
    let sized = |lsn: u64, bytes: usize| put_body(lsn, lsn - 1, lsn, "key", &vec![7; bytes - empty]);
    store.commit(&[put(1, 0, 1, "small"), sized(2, max)]).unwrap();
    let refusal = store.commit(&[put(3, 2, 3, "small"), sized(4, max + 1)]).unwrap_err();
    assert!(matches!(refusal, StoreError::FrameTooLarge { lsn: Lsn(4), .. }), "{refusal}");
    assert!(refusal.to_string().contains("packet_bytes_max"), "{refusal}");
    store.commit(&[put(3, 2, 3, "small")]).unwrap();
    drop(store);
    assert_eq!(rig.open().0.lsn(), Lsn(3));
}

#[test]
#[should_panic(expected = "follows frame")]
fn a_position_that_does_not_rise_is_a_bug() {
    let (mut store, _) = Rig::new(1).open();
    drop(store.commit(&[put(2, 0, 1, "a"), put(2, 1, 2, "b")]));
}

#[test]
fn a_clean_stop_goes_on_where_it_was() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let frames = [put(1, 0, 1, "a"), put(2, 1, 7, "b")];
    store.commit(&frames).unwrap();
    store.close(Seq(9)).unwrap();
    let (store, recovered) = rig.open();
    assert!(recovered.clean && recovered.tail.is_empty());
    assert_eq!((recovered.next_seq, store.lsn()), (Seq(9), Lsn(2)));
    assert!(Truth::of(&recovered) == Truth::after(&frames));
    drop(store);
    let (_, recovered) = rig.open();
    assert!(!recovered.clean, "the mark is used up");
    assert_eq!(recovered.next_seq, Seq(9 + RESERVE));
}

#[test]
fn the_next_seq_follows_a_clock_that_can_be_trusted() {
    let rig = Rig::new(1);
    rig.clock.set_wall(1_800_000_000_000);
    let (store, recovered) = rig.open();
    assert_eq!(recovered.next_seq, Seq(1_800_000_000_000_000));
    store.close(recovered.next_seq).unwrap();
    rig.clock.set_wall(0);
    assert_eq!(rig.open().1.next_seq, Seq(1_800_000_000_000_000), "it never goes back");
}

#[test]
fn the_reserve_is_written_ahead_and_survives_a_power_cut() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let before = store.reserved();
    store.reserve(before).unwrap();
    assert_eq!(store.reserved(), before, "nothing to do");
    store.reserve(before.next()).unwrap();
    assert_eq!(store.reserved(), Seq(before.0 + 1 + RESERVE));
    rig.disk.fail(1000);
    store.reserve(Seq(u64::MAX / 2)).unwrap_err();
    assert_eq!(store.reserved(), Seq(before.0 + 1 + RESERVE), "an error gives nothing out");
    rig.disk.fail(0);
    let reserved = store.reserved();
    drop(store);
    rig.disk.cut();
    assert!(rig.open().1.next_seq >= reserved);
}

#[test]
fn a_checkpoint_and_a_snapshot_recycle_segments_and_keep_few() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let mut lsn = 0;
    for _ in 0..5 {
        for _ in 0..60 {
            lsn += 1;
            store.commit(&[put_body(lsn, lsn - 1, lsn, "key", &[0; 1000])]).unwrap();
        }
        assert!(store.log_bytes() > 60_000, "{}", store.log_bytes());
        store.checkpoint().unwrap();
        assert_eq!(store.log_bytes(), 0);
        assert!(rig.segments().len() > 7, "no snapshot holds them");
        let truth = Truth::after(&[put_body(lsn, lsn - 1, lsn, "key", &[0; 1000])]);
        snapshot(&mut store, &truth);
        assert_eq!(rig.segments().len(), 1);
        assert!(rig.disk.files(Path::new("data/store/log")).len() <= 5);
    }
}

#[test]
fn starts_without_a_checkpoint_count_for_the_log_they_hold() {
    let rig = Rig::new(1);
    for start in 1..=5 {
        let (mut store, _) = rig.open();
        let next = store.lsn().0 + 1;
        store.commit(&[put(next, next - 1, next, "key")]).unwrap();
        let held = rig.segments().len() as u64;
        assert!(held <= start);
        assert!(store.log_bytes() >= (held - 1) * u64::from(SEGMENT_BYTES), "{} in {held}", store.log_bytes());
    }
}

#[test]
fn a_failed_checkpoint_keeps_the_log_and_the_next_one_catches_up() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let (mut store, _) = rig.open();
        let frames = [put(1, 0, 1, "a"), put(2, 1, 2, "b"), put(3, 2, 3, "a")];
        store.commit(&frames[..2]).unwrap();
        rig.keyed.fail(1000);
        store.checkpoint().unwrap_err();
        assert!(store.log_bytes() > 0);
        store.commit(&frames[2..]).unwrap();
        rig.keyed.fail(0);
        store.checkpoint().unwrap();
        drop(store);
        rig.disk.cut();
        let (_, recovered) = rig.open();
        assert!(recovered.tail.is_empty());
        assert!(Truth::of(&recovered) == Truth::after(&frames));
    }
}

#[test]
fn trims_and_forgotten_tombstones_leave_nothing_in_the_keyed_store() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let one = |lsn: u64, effect| Frame { lsn: Lsn(lsn), prev_seq: Seq(lsn - 1), effects: vec![effect] };
    let add = |lsn, lane, delta| one(lsn, Effect::Record(record(lane, delta, lsn, "key", b"{}")));
    let (alert, event) = (Lane::Alert, Lane::Event);
    let mut frames = vec![
        add(1, alert, DeltaType::Added),
        add(2, event, DeltaType::Added),
        add(3, Lane::State, DeltaType::Deleted),
        one(4, Effect::Cursor { sink: "kafka".into(), lane: alert, seq: Seq(1) }),
    ];
    store.commit(&frames).unwrap();
    store.checkpoint().unwrap();
    frames.extend([
        add(5, event, DeltaType::Added),
        one(6, Effect::Trim { lane: alert, to: Seq(1), lost: 0 }),
        one(7, Effect::Trim { lane: event, to: Seq(5), lost: 1 }),
        one(8, Effect::Forget { lane: Lane::State, to: Seq(3) }),
        one(9, Effect::Release { sink: "kafka".into() }),
    ]);
    store.commit(&frames[4..]).unwrap();
    store.checkpoint().unwrap();
    let keys = rig.keyed.keys();
    assert!(!keys.iter().any(|key| key.starts_with(b"l/") || key.starts_with(b"c/")), "{keys:?}");
    assert_eq!(keys.iter().filter(|key| key.starts_with(b"s/")).count(), 1, "the alert stays");
    drop(store);
    let (_, recovered) = rig.open();
    assert!(Truth::of(&recovered) == Truth::after(&frames));
    let floors = [(alert, Seq(1), Seq(0)), (Lane::State, Seq(0), Seq(3)), (event, Seq(5), Seq(0))];
    assert_eq!(recovered.floors, floors);
}

#[test]
fn a_tombstone_that_came_to_life_again_is_not_forgotten() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let one = |lsn: u64, effect| Frame { lsn: Lsn(lsn), prev_seq: Seq(lsn - 1), effects: vec![effect] };
    store.commit(&[one(1, Effect::Record(record(Lane::State, DeltaType::Deleted, 1, "key", b"")))]).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let (mut store, _) = rig.open();
    store.commit(&[put(2, 1, 2, "key"), one(3, Effect::Forget { lane: Lane::State, to: Seq(1) })]).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    assert_eq!(rig.open().1.image.len(), 1);
}

#[test]
fn long_names_that_begin_alike_are_two_keys() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let stem = "x".repeat(3000);
    let frames = [put(1, 0, 1, &format!("{stem}a")), put(2, 1, 2, &format!("{stem}b"))];
    store.commit(&frames).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    assert!(rig.keyed.keys().iter().all(|key| key.len() <= 512));
    assert!(Truth::of(&rig.open().1) == Truth::after(&frames));
}

#[test]
fn a_store_can_be_moved_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Store>();
}

#[test]
fn a_segment_that_failed_is_never_written_again() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let (mut store, _) = rig.open();
        store.commit(&[put(1, 0, 1, "a")]).unwrap();
        rig.disk.fail(1000);
        store.commit(&[put(2, 1, 2, "b")]).unwrap_err();
        rig.disk.fail(0);
        let failed = rig.segments().remove(0);
        let before = rig.disk.read(&failed).unwrap();
        store.commit(&[put(2, 1, 2, "b"), put(3, 2, 3, "c")]).unwrap();
        assert_eq!(rig.disk.read(&failed).unwrap(), before);
        assert_eq!(rig.segments().len(), 2);
        snapshot(&mut store, &Truth::default());
        assert_eq!(rig.disk.files(Path::new("data/store/log")).len(), 1, "nor is it used as a spare");
    }
}

#[test]
fn what_a_start_has_shown_survives_a_power_cut_though_its_sync_had_failed() {
    let mut shown = 0;
    for seed in 0..60 {
        let rig = Rig::new(seed);
        let (mut store, _) = rig.open();
        rig.disk.fail(400);
        let committed = store.commit(&[put_body(1, 0, 1, "a", &[7; 3000])]);
        rig.disk.fail(0);
        drop(store);
        let (store, recovered) = rig.open();
        shown += usize::from(committed.is_err() && !recovered.tail.is_empty());
        drop(store);
        rig.disk.cut();
        assert_eq!(rig.open().1.tail, recovered.tail, "seed {seed}");
    }
    assert!(shown > 5, "{shown} starts have seen a write whose sync had failed");
}

#[test]
fn a_start_on_a_full_disk_goes_on_as_soon_as_there_is_room() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    store.commit(&[put(1, 0, 1, "a")]).unwrap();
    drop(store);
    rig.disk.fill(true);
    let refusal = rig.try_open().err().expect("the identity cannot be written");
    assert!(matches!(refusal, StoreError::Io { .. }), "{refusal}");
    rig.disk.fill(false);
    let (mut store, recovered) = rig.open();
    assert_eq!((recovered.tail.len(), recovered.gaps.len()), (1, 0));
    let frames = [put(1, 0, 1, "a"), put_body(2, 1, 2, "b", &[7; 5000]), put_body(3, 2, 3, "c", &[7; 5000])];
    store.commit(&frames[1..2]).unwrap();
    snapshot(&mut store, &Truth::after(&frames[..2]));
    rig.disk.fill(true);
    assert!(store.commit(&frames[2..]).is_ok(), "the snapshot has made room");
    rig.disk.fill(false);
    drop(store);
    rig.disk.cut();
    assert_eq!(Truth::of(&rig.open().1).newest.len(), 3);
}

#[test]
fn a_commit_of_nothing_writes_nothing() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    rig.disk.fail(1000);
    assert_eq!(store.commit(&[]).unwrap(), 0);
    store.checkpoint().unwrap();
}

#[test]
fn a_commit_costs_its_frames_and_nothing_more() {
    let rig = Rig::new(1);
    let (mut store, _) = rig.open();
    let frames = [put(1, 0, 1, "a"), put(2, 1, 2, "b")];
    let expected: usize = frames.iter().map(frame_bytes).sum();
    assert_eq!(store.commit(&frames).unwrap(), expected as u64);
    assert_eq!(store.log_bytes(), expected as u64);
}
