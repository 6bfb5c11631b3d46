//! The pump against a fake upstream and fake lanes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

mod fake;

use std::io;

use self::fake::{MS, Plan, Rig, unreachable};
use super::*;
use crate::queue::Gap;
use crate::runtime::clock::ManualClock;

/// What a reader keeps that drops every number not above the highest so far.
fn filtered(stored: &[u64]) -> Vec<u64> {
    let mut highest = 0;
    let is_new = |seq: &u64| {
        let new = *seq > highest;
        highest = highest.max(*seq);
        new
    };
    stored.iter().copied().filter(is_new).collect()
}

#[tokio::test]
async fn an_upstream_that_comes_late_gets_everything_in_order() {
    let rig = Rig::new();
    rig.add(Lane::Event, 1..=35);
    rig.world.change(|state| state.opens_fail.extend((0..3).map(|_| unreachable("connecting"))));
    rig.run(async {
        rig.world.until(|state| state.acks.contains(&(Lane::Event, 35))).await;
        assert!(rig.is_up());
    })
    .await;
    assert_eq!(rig.world.stored(Lane::Event), (1..=35).collect::<Vec<_>>());
    assert_eq!((rig.failures(), rig.delivered(Lane::Event), rig.is_up()), (3, 35, false));
}

#[tokio::test]
async fn records_that_come_while_the_pump_waits_are_sent() {
    let rig = Rig::new();
    rig.run(async {
        for seq in 1..=5 {
            rig.add(Lane::Alert, [seq]);
            rig.world.until(|state| state.acks.contains(&(Lane::Alert, seq))).await;
        }
    })
    .await;
    assert_eq!(rig.world.stored(Lane::Alert), [1, 2, 3, 4, 5]);
    assert_eq!(rig.world.get(|state| state.opened), 1);
}

#[tokio::test]
async fn a_delivery_that_breaks_loses_nothing_and_keeps_the_order() {
    let rig = Rig::new();
    rig.add(Lane::Event, 1..=40);
    let breaks = [(10, 4), (0, 0), (7, 7), (10, 0), (3, 1)];
    rig.plan(breaks.map(|(stored, acked)| Plan::Break { stored, acked }));
    rig.run_to(Lane::Event, 40).await;
    let stored = rig.world.stored(Lane::Event);
    assert_eq!(filtered(&stored), (1..=40).collect::<Vec<_>>(), "{stored:?}");
    let acks = rig.world.get(|state| state.acks.clone());
    assert!(acks.is_sorted(), "a cursor went back: {acks:?}");
    assert_eq!((acks[0], rig.failures()), ((Lane::Event, 4), 5));
}

#[tokio::test]
async fn whatever_breaks_every_record_of_every_lane_arrives_in_order() {
    for seed in 1..=8_u64 {
        let rig = Rig::new();
        let mut chance = seed;
        let mut below = |bound: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((chance >> 33) % bound) as usize
        };
        let plans = (0..20).map(|_| {
            let stored = below(11);
            Plan::Break { stored, acked: below(stored as u64 + 1) }
        });
        rig.plan(plans);
        for lane in Lane::ALL {
            rig.add(lane, 1..=60);
        }
        let ends = |state: &fake::State| Lane::ALL.iter().all(|lane| state.acks.contains(&(*lane, 60)));
        rig.run(rig.world.until(ends)).await;
        for lane in Lane::ALL {
            assert_eq!(filtered(&rig.world.stored(lane)), (1..=60).collect::<Vec<_>>(), "seed {seed}, {lane}");
        }
    }
}

#[tokio::test]
async fn after_a_broken_delivery_the_window_is_small_and_grows_again() {
    let mut rig = Rig::new();
    rig.timing.window.records = 64;
    rig.add(Lane::Event, 1..=200);
    rig.plan([Plan::Break { stored: 0, acked: 0 }]);
    rig.run_to(Lane::Event, 200).await;
    let sizes: Vec<_> = rig.world.get(|state| state.deliveries.iter().map(Vec::len).collect());
    assert_eq!(sizes, [64, 4, 8, 16, 32, 64, 64, 12]);
}

#[tokio::test]
async fn a_session_that_stops_short_without_a_reason_counts_as_failed() {
    let rig = Rig::new();
    rig.add(Lane::Event, 1..=10);
    rig.plan([Plan::StopShort(3)]);
    rig.run_to(Lane::Event, 10).await;
    assert_eq!(rig.world.stored(Lane::Event), (1..=10).collect::<Vec<_>>());
    assert_eq!(rig.failures(), 1);
}

#[tokio::test]
async fn an_upstream_that_hangs_is_left_and_opened_anew() {
    let mut rig = Rig::new();
    rig.timing.deliver_max = 50 * MS;
    rig.add(Lane::State, 1..=3);
    rig.plan([Plan::Hang]);
    rig.run_to(Lane::State, 3).await;
    assert!(rig.world.get(|state| state.opened) >= 2);
    assert_eq!(filtered(&rig.world.stored(Lane::State)), [1, 2, 3]);
}

#[tokio::test]
async fn state_keys_in_flight_are_sent_once_more_one_request_timeout_after_the_first_acknowledgement() {
    let clock = Arc::new(ManualClock::at(0));
    let mut rig = Rig::new();
    rig.clock = Arc::<ManualClock>::clone(&clock);
    rig.add(Lane::State, [1, 2, 3]);
    rig.plan([Plan::Break { stored: 3, acked: 1 }]);
    rig.run(async {
        rig.world.until(|state| state.acks.contains(&(Lane::State, 3))).await;
        rig.add(Lane::Alert, [9]);
        rig.world.until(|state| state.acks.contains(&(Lane::Alert, 9))).await;
        assert_eq!(rig.world.stored(Lane::State), [1, 2, 3, 2, 3], "resent before its time");
        clock.advance(MS);
        rig.world.until(|state| state.stored.len() == 8).await;
        clock.advance(10 * MS);
        rig.add(Lane::Alert, [10]);
        rig.world.until(|state| state.acks.contains(&(Lane::Alert, 10))).await;
    })
    .await;
    assert_eq!(rig.world.stored(Lane::State), [1, 2, 3, 2, 3, 2, 3], "not exactly once more");
}

#[tokio::test]
async fn the_time_of_late_writes_begins_anew_with_each_session() {
    let clock = Arc::new(ManualClock::at(0));
    let mut rig = Rig::new();
    rig.clock = Arc::<ManualClock>::clone(&clock);
    rig.timing.window.records = 64;
    rig.add(Lane::State, [1, 2, 3]);
    rig.plan([Plan::Break { stored: 3, acked: 0 }, Plan::Break { stored: 1, acked: 1 }]);
    rig.run(async {
        rig.world.until(|state| state.acks.contains(&(Lane::State, 1))).await;
        clock.advance(10 * MS);
        rig.world.until(|state| state.acks.contains(&(Lane::State, 3))).await;
    })
    .await;
    assert_eq!(rig.world.get(|state| state.deliveries[2].clone()), [2, 3], "resent before an acknowledgement");
}

#[tokio::test]
async fn event_records_in_flight_are_not_sent_once_more() {
    let rig = Rig::new();
    rig.add(Lane::Event, [1, 2]);
    rig.plan([Plan::Break { stored: 0, acked: 0 }]);
    rig.run(async {
        rig.world.until(|state| state.acks.contains(&(Lane::Event, 2))).await;
        tokio::time::sleep(3 * MS).await;
        rig.add(Lane::Alert, [9]);
        rig.world.until(|state| state.acks.contains(&(Lane::Alert, 9))).await;
    })
    .await;
    assert_eq!(rig.world.stored(Lane::Event), [1, 2]);
}

#[tokio::test]
async fn a_rejected_record_is_found_given_up_and_counted() {
    let rig = Rig::new();
    rig.add(Lane::Event, 1..=25);
    rig.world.change(|state| state.poison.extend([4, 5, 25]));
    rig.run_to(Lane::Event, 25).await;
    let want: Vec<_> = (1..=24).filter(|seq| ![4, 5].contains(seq)).collect();
    assert_eq!(rig.world.stored(Lane::Event), want);
    let alone = |seq| rig.world.get(|state| state.deliveries.iter().filter(|sent| **sent == [seq]).count());
    assert_eq!([alone(4), alone(5), alone(25)], [2, 2, 2], "given up before it was alone twice");
    assert_eq!((rig.dropped(Lane::Event), rig.delivered(Lane::Event)), (3, 22));
}

#[tokio::test]
async fn a_record_that_is_rejected_only_in_company_is_kept() {
    let rig = Rig::new();
    rig.add(Lane::Event, 1..=10);
    rig.world.change(|state| state.poison.insert(3));
    rig.run(async {
        rig.world.until(|state| state.deliveries.iter().any(|sent| *sent == [1])).await;
        rig.world.change(|state| state.poison.clear());
        rig.world.until(|state| state.acks.contains(&(Lane::Event, 10))).await;
    })
    .await;
    assert_eq!(rig.world.stored(Lane::Event), (1..=10).collect::<Vec<_>>());
    assert_eq!(rig.dropped(Lane::Event), 0);
}

#[tokio::test]
async fn a_missing_topic_holds_its_own_lane_only() {
    let rig = Rig::new();
    rig.add(Lane::State, 1..=5);
    rig.add(Lane::Event, 6..=8);
    rig.world.change(|state| state.missing.push(Lane::State));
    rig.run(async {
        for seq in 10..20 {
            rig.add(Lane::Alert, [seq]);
            rig.world.until(|state| state.acks.contains(&(Lane::Alert, seq))).await;
        }
        rig.world.until(|state| state.acks.contains(&(Lane::Event, 8))).await;
        assert!(rig.is_up());
        assert_eq!(rig.world.cursor(Lane::State), 0);
        rig.world.change(|state| state.missing.clear());
        rig.world.until(|state| state.acks.contains(&(Lane::State, 5))).await;
    })
    .await;
    assert_eq!(filtered(&rig.world.stored(Lane::State)), [1, 2, 3, 4, 5]);
    assert_eq!(rig.dropped(Lane::State), 0);
}

#[tokio::test]
async fn a_gap_is_told_before_the_next_record_and_its_acknowledgement_moves_the_cursor() {
    let mut rig = Rig::new();
    rig.gaps[2] = Some(Gap { from: Seq(2), to: Seq(9), lost: 7 });
    rig.add(Lane::Event, [10, 11]);
    rig.world.change(|state| state.announcements_fail = 2);
    rig.run_to(Lane::Event, 11).await;
    let notice = GapNotice { lane: Lane::Event, epoch: Epoch(1), from: Seq(2), to: Seq(9), lost: 7 };
    assert_eq!(rig.world.get(|state| state.notices.clone()), [notice; 3], "not told until it was acknowledged");
    assert_eq!(rig.world.get(|state| state.acks[0]), (Lane::Event, 9));
    assert_eq!(rig.world.stored(Lane::Event), [9, 10, 11], "9 is the notice");
}

#[tokio::test]
async fn every_lane_with_work_gets_a_tenth_and_alerts_the_most() {
    let mut rig = Rig::new();
    rig.timing.window.records = 100;
    for lane in Lane::ALL {
        rig.add(lane, 1..=3000);
    }
    rig.run(rig.world.until(|state| state.stored.len() >= 3000)).await;
    let share = Lane::ALL.map(|lane| rig.world.stored(lane).len());
    assert!(share[0] > 2000 && share[1] >= 290 && share[2] >= 290, "{share:?}");
}

#[tokio::test]
async fn a_stop_waits_for_the_delivery_under_way() {
    let rig = Rig::new();
    rig.add(Lane::Alert, [1, 2]);
    rig.plan([Plan::Wait]);
    rig.run(async {
        rig.world.until(|state| !state.deliveries.is_empty()).await;
        rig.world.go.notify_one();
    })
    .await;
    assert_eq!(rig.world.cursor(Lane::Alert), 2);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_delivery_that_hangs() {
    let mut rig = Rig::new();
    rig.timing.stop_max = 3 * MS;
    rig.timing.deliver_max = Duration::from_mins(1);
    rig.add(Lane::Alert, [1, 2]);
    rig.plan([Plan::Hang]);
    rig.run(rig.world.until(|state| !state.deliveries.is_empty())).await;
    assert_eq!(rig.world.cursor(Lane::Alert), 0);
}

#[tokio::test]
async fn a_stop_ends_a_long_back_off_at_once() {
    let mut rig = Rig::new();
    rig.timing.denied = (Duration::from_mins(1), Duration::from_mins(1));
    let source = || Box::new(io::Error::other("no rights"));
    rig.world.change(|state| {
        let (doing, mend) = ("connecting".to_owned(), "give it rights".to_owned());
        state.opens_fail.push_back(SinkError::Denied { doing, mend, source: source() });
    });
    rig.run(rig.world.until(|state| state.opens_fail.is_empty())).await;
    assert_eq!((rig.world.get(|state| state.opened), rig.failures()), (0, 1));
}

#[tokio::test]
async fn a_queue_that_is_gone_ends_the_pump() {
    let rig = Rig::new();
    rig.add(Lane::Alert, [1]);
    rig.run(async {
        rig.world.until(|state| state.acks.contains(&(Lane::Alert, 1))).await;
        drop(rig.head.lock().unwrap().take());
        rig.world.until(|state| state.closed == 1).await;
    })
    .await;
}
