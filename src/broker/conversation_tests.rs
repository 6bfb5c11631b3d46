//! Tests of the protocol without sockets: bytes in, bytes out.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

use super::super::hub::tests::hub;
use super::super::outbound::tests::delivery;
use super::*;
use crate::config;
use crate::model::Seq;

fn profile(version: Version) -> Profile {
    Profile {
        version,
        silence_max: None,
        receipts: false,
        packet_bytes_max: usize::MAX,
        receive_max: 2,
        session_expiry: 0,
    }
}

fn talk_on(hub: &Arc<Hub>, id: u64, profile: Profile) -> Conversation {
    let (session, _) = hub.enter(id, format!("client-{id}").into(), None);
    Conversation::new(Arc::clone(hub), session, profile)
}

fn talk(version: Version, options: config::Broker) -> Conversation {
    talk_on(&hub(options), 1, profile(version))
}

fn say(talk: &mut Conversation, bytes: &[u8]) -> Result<Taken, End> {
    let taken = talk.take(&mut BytesMut::from(bytes), Duration::ZERO, false);
    talk.feed();
    taken
}

fn heard(talk: &mut Conversation) -> Vec<u8> {
    talk.out.split().to_vec()
}

/// PUBLISH on topic `a`.
fn qos1(pkid: u8) -> [u8; 7] {
    [0x32, 5, 0, 1, b'a', 0, pkid]
}

#[test]
fn a_packet_is_taken_when_it_is_whole() {
    let mut talk = talk(Version::V4, config::Broker::default());
    let mut input = BytesMut::new();
    for byte in [0xC0, 0x00, 0xC0] {
        input.extend_from_slice(&[byte]);
        assert_eq!(talk.take(&mut input, Duration::ZERO, false), Ok(Taken::All));
    }
    assert_eq!((heard(&mut talk), &input[..]), (vec![0xD0, 0], &[0xC0][..]));
}

#[test]
fn a_packet_beyond_the_bound_is_refused_by_its_header() {
    let options = config::Broker { packet_bytes_max: config::ByteSize(10), ..config::Broker::default() };
    let mut talk = talk(Version::V5, options);
    assert_eq!(say(&mut talk, &[0x30, 8]), Ok(Taken::All));
    assert_eq!(say(&mut talk, &[0x30, 9]), Err(Cause::PacketTooLarge.into()));
}

#[test]
fn filters_are_granted_at_most_qos_1_and_refused_one_by_one() {
    let options = config::Broker { subscriptions_max: 2, ..config::Broker::default() };
    let mut talk = talk(Version::V5, options);
    let filters =
        [&b"\0\x01a\x02"[..], b"\0\x0a$share/g/t\x01", b"\0\x01a\x00", b"\0\x01b\x01", b"\0\x01c\x01"].concat();
    let frame = [&[0x82, 3 + filters.len() as u8, 0, 7, 0], &filters[..]].concat();
    assert_eq!(say(&mut talk, &frame), Ok(Taken::All));
    assert_eq!(heard(&mut talk), [0x90, 8, 0, 7, 0, 1, 0x9E, 0, 1, 0x97]);
}

#[test]
fn unsubscribing_is_always_answered_once() {
    let mut v5 = talk(Version::V5, config::Broker::default());
    assert_eq!(say(&mut v5, b"\x82\x07\0\x01\0\0\x01a\x01\xA2\x09\0\x02\0\0\x01a\0\x01b"), Ok(Taken::All));
    assert_eq!(heard(&mut v5), [0x90, 4, 0, 1, 0, 1, 0xB0, 5, 0, 2, 0, 0, 0x11]);
    v5.hub.publish(&delivery("a", "1", QoS::AtMostOnce));
    v5.feed();
    assert!(heard(&mut v5).is_empty());
    let mut v4 = talk(Version::V4, config::Broker::default());
    assert_eq!(say(&mut v4, b"\xA2\x08\0\x02\0\x01a\0\x01b"), Ok(Taken::All));
    assert_eq!(heard(&mut v4), [0xB0, 2, 0, 2]);
}

#[test]
fn a_puback_waits_for_the_verdict_and_for_the_disk() {
    let mut talk = talk(Version::V4, config::Broker::default());
    assert_eq!(say(&mut talk, &[qos1(1), qos1(2)].concat()), Ok(Taken::All));
    let [first, second] = [(); 2].map(|()| talk.pop_pending().expect("two publishes").ticket.expect("of QoS 1"));
    talk.acknowledge(Lsn(9), Duration::ZERO);
    assert!(heard(&mut talk).is_empty());
    second.settle(Verdict::Stored { lsn: Lsn(1), seq: None });
    first.settle(Verdict::Stored { lsn: Lsn(2), seq: None });
    talk.acknowledge(Lsn(1), Duration::ZERO);
    assert!(heard(&mut talk).is_empty());
    talk.acknowledge(Lsn(2), Duration::ZERO);
    assert_eq!(heard(&mut talk), [0x40, 2, 0, 1, 0x40, 2, 0, 2]);
    assert!(!talk.awaits_acks());
}

#[test]
fn a_refused_publish_is_told_by_mqtt_5_and_skipped_by_3_1_1() {
    for (version, expected) in
        [(Version::V5, vec![0x40, 4, 0, 1, 0x97, 0, 0x40, 2, 0, 2]), (Version::V4, vec![0x40, 2, 0, 2])]
    {
        let mut talk = talk(version, config::Broker::default());
        let frames = match version {
            Version::V4 => [qos1(1), qos1(2)].concat(),
            Version::V5 => [[0x32, 6, 0, 1, b'a', 0, 1, 0], [0x32, 6, 0, 1, b'a', 0, 2, 0]].concat(),
        };
        assert_eq!(say(&mut talk, &frames), Ok(Taken::All));
        drop(talk.pop_pending());
        let second = talk.pop_pending().and_then(|inbound| inbound.ticket).unwrap();
        second.settle(Verdict::Stored { lsn: Lsn::ZERO, seq: None });
        talk.acknowledge(Lsn::ZERO, Duration::ZERO);
        assert_eq!(heard(&mut talk), expected, "{version:?}");
    }
}

#[test]
fn a_receipt_is_given_to_those_who_ask_and_have_room() {
    for (receipts, packet_bytes_max, len) in [(true, usize::MAX, 25), (true, 24, 4), (false, usize::MAX, 4)] {
        let profile = Profile { receipts, packet_bytes_max, ..profile(Version::V5) };
        let mut talk = talk_on(&hub(config::Broker::default()), 1, profile);
        assert_eq!(say(&mut talk, &[0x32, 6, 0, 1, b'a', 0, 1, 0]), Ok(Taken::All));
        let ticket = talk.pop_pending().and_then(|inbound| inbound.ticket).unwrap();
        ticket.settle(Verdict::Stored { lsn: Lsn::ZERO, seq: Some(Seq(42)) });
        talk.acknowledge(Lsn::ZERO, Duration::ZERO);
        assert_eq!(heard(&mut talk).len(), len);
    }
}

#[test]
fn mqtt_5_may_not_go_beyond_the_receive_maximum() {
    let mut talk = talk(Version::V5, config::Broker { inflight_max: 1, ..config::Broker::default() });
    assert_eq!(say(&mut talk, &[0x32, 6, 0, 1, b'a', 0, 1, 0]), Ok(Taken::All));
    assert_eq!(say(&mut talk, &[0x30, 4, 0, 1, b'a', 0]), Ok(Taken::All), "QoS 0 does not count");
    assert_eq!(say(&mut talk, &[0x32, 6, 0, 1, b'a', 0, 2, 0]), Err(Cause::ReceiveMaximum.into()));
}

#[test]
fn mqtt_3_1_1_is_not_read_beyond_the_receive_maximum() {
    let mut talk = talk(Version::V4, config::Broker { inflight_max: 1, ..config::Broker::default() });
    let mut input = BytesMut::from(&[qos1(1), qos1(2)].concat()[..]);
    assert_eq!(talk.take(&mut input, Duration::ZERO, false), Ok(Taken::Blocked));
    assert_eq!(input.len(), 7);
    assert_eq!(talk.take(&mut input, Duration::ZERO, true), Ok(Taken::All), "but all of it when the peer is gone");
}

#[test]
fn mqtt_3_1_1_is_read_on_when_the_disk_does_not_answer_within_a_second() {
    let mut talk = talk(Version::V4, config::Broker { inflight_max: 1, ..config::Broker::default() });
    let mut input = BytesMut::from(&[qos1(1), qos1(2), qos1(3)].concat()[..]);
    assert_eq!(talk.take(&mut input, Duration::ZERO, false), Ok(Taken::Blocked));
    assert_eq!(talk.take(&mut input, CROWD_MAX, false), Ok(Taken::All));
    assert_eq!(talk.hub.beyond.available_permits(), (1 << 20) - 2, "within a bound for all clients");
    while let Some(ticket) = talk.pop_pending().and_then(|inbound| inbound.ticket) {
        ticket.settle(Verdict::Stored { lsn: Lsn(1), seq: None });
    }
    talk.acknowledge(Lsn(1), CROWD_MAX);
    assert_eq!(heard(&mut talk).len(), 12);
    assert_eq!(talk.hub.beyond.available_permits(), 1 << 20);
}

#[test]
fn nothing_is_taken_while_too_much_waits_for_the_engine() {
    let mut talk = talk(Version::V4, config::Broker::default());
    let mut input = BytesMut::from(&[0x30, 3, 0, 1, b'a'].repeat(PENDING_MAX + 1)[..]);
    assert_eq!(talk.take(&mut input, Duration::ZERO, true), Ok(Taken::Batch));
    assert_eq!(talk.take(&mut input, Duration::ZERO, true), Ok(Taken::Blocked));
    assert_eq!(input.len(), 5);
    assert!(talk.pop_pending().is_some() && talk.pop_pending().is_some());
    assert_eq!(talk.take(&mut input, Duration::ZERO, true), Ok(Taken::All));
}

#[test]
fn the_gateways_topics_are_closed_to_clients() {
    let publish = |qos: u8| match qos {
        0 => b"\x30\x13\0\x10tidegate/alerts/\0".to_vec(),
        _ => b"\x32\x08\0\x03$SY\0\x09\0".to_vec(),
    };
    let mut v5 = talk(Version::V5, config::Broker::default());
    assert_eq!(say(&mut v5, &[publish(0), publish(1)].concat()), Ok(Taken::All));
    v5.acknowledge(Lsn::ZERO, Duration::ZERO);
    assert_eq!(heard(&mut v5), [0x40, 4, 0, 9, 0x87, 0]);
    assert!(!v5.has_pending());
    assert!(v5.hub.metrics.encode().contains("tidegate_messages_refused_total{reason=\"reserved_topic\"} 2"));
    let mut v4 = talk(Version::V4, config::Broker::default());
    assert_eq!(say(&mut v4, b"\x30\x05\0\x03$SY"), Err(Cause::NotAuthorized.into()));
}

#[test]
fn deliveries_stop_at_the_window_and_go_on_in_any_order_of_acknowledgements() {
    let mut talk = talk(Version::V4, config::Broker::default());
    assert_eq!(say(&mut talk, b"\x82\x06\0\x01\0\x01a\x01"), Ok(Taken::All));
    heard(&mut talk);
    for _ in 0..4 {
        talk.hub.publish(&delivery("a", "", QoS::AtLeastOnce));
    }
    talk.feed();
    assert_eq!(heard(&mut talk), [qos1(1), qos1(2)].concat());
    assert_eq!(say(&mut talk, &[0x40, 2, 0, 2]), Ok(Taken::All));
    assert_eq!(heard(&mut talk), qos1(3));
    assert_eq!(say(&mut talk, &[0x40, 2, 0, 3, 0x40, 2, 0, 77]), Ok(Taken::All), "77 is ignored");
    assert_eq!(heard(&mut talk), qos1(4));
}

#[test]
fn what_the_client_cannot_take_is_dropped_and_counted() {
    let profile = Profile { packet_bytes_max: 8, ..profile(Version::V4) };
    let mut talk = talk_on(&hub(config::Broker::default()), 1, profile);
    assert_eq!(say(&mut talk, b"\x82\x06\0\x01\0\x01a\x01"), Ok(Taken::All));
    heard(&mut talk);
    for payload in ["too large", "ok"].repeat(2) {
        talk.hub.publish(&delivery("a", if payload == "ok" { "" } else { payload }, QoS::AtLeastOnce));
    }
    talk.feed();
    assert_eq!(heard(&mut talk).len(), 14, "the dropped ones leave the window open");
    assert!(talk.hub.metrics.encode().contains("dropped_total{reason=\"packet_too_large\"} 2"));
}

#[test]
fn retained_messages_follow_the_suback_as_the_options_say() {
    let hub = hub(config::Broker::default());
    hub.publish(&delivery("a", "1", QoS::AtMostOnce));
    let mut talk = talk_on(&hub, 1, profile(Version::V5));
    // Retain handling: only if new, only if new, never, always.
    for (options, expected) in [(0x10, true), (0x10, false), (0x20, false), (0x00, true)] {
        assert_eq!(say(&mut talk, &[0x82, 7, 0, 1, 0, 0, 1, b'a', options]), Ok(Taken::All));
        let suback = vec![0x90, 4, 0, 1, 0, 0];
        let retained = if expected { vec![0x31, 5, 0, 1, b'a', 0, b'1'] } else { Vec::new() };
        assert_eq!(heard(&mut talk), [suback, retained].concat(), "{options:x}");
    }
}

#[test]
fn a_large_replay_is_not_bounded_by_the_queue() {
    let hub = hub(config::Broker { outbound_max: 1, ..config::Broker::default() });
    for n in 0..500 {
        hub.publish(&delivery(&format!("r/{n:03}"), "1", QoS::AtMostOnce));
    }
    let mut talk = talk_on(&hub, 1, profile(Version::V4));
    assert_eq!(say(&mut talk, b"\x82\x06\0\x01\0\x01#\x00"), Ok(Taken::All));
    while talk.feed() {}
    assert_eq!(heard(&mut talk).len(), 5 + 500 * 10);
}

#[test]
fn retained_qos_1_waits_for_the_window() {
    let hub = hub(config::Broker::default());
    for topic in ["a", "b", "c"] {
        hub.publish(&delivery(topic, "1", QoS::AtLeastOnce));
    }
    let mut talk = talk_on(&hub, 1, profile(Version::V4));
    assert_eq!(say(&mut talk, b"\x82\x06\0\x01\0\x01#\x01"), Ok(Taken::All));
    assert_eq!(heard(&mut talk).len(), 5 + 2 * 8);
    assert_eq!(say(&mut talk, &[0x40, 2, 0, 1]), Ok(Taken::All));
    assert_eq!(heard(&mut talk), [0x33, 6, 0, 1, b'c', 0, 3, b'1']);
}

#[test]
fn properties_go_to_mqtt_5_only_and_no_local_is_kept() {
    let hub = hub(config::Broker::default());
    let mut sender = talk_on(&hub, 1, profile(Version::V5));
    let mut v5 = talk_on(&hub, 2, profile(Version::V5));
    let mut v4 = talk_on(&hub, 3, profile(Version::V4));
    assert_eq!(say(&mut sender, b"\x82\x07\0\x01\0\0\x01a\x04"), Ok(Taken::All));
    assert_eq!(say(&mut v5, b"\x82\x07\0\x01\0\0\x01a\x00"), Ok(Taken::All));
    assert_eq!(say(&mut v4, b"\x82\x06\0\x01\0\x01a\x00"), Ok(Taken::All));
    for talk in [&mut sender, &mut v5, &mut v4] {
        heard(talk);
    }
    let with_property = b"\x30\x0c\0\x01a\x07\x26\0\x01k\0\x01vx";
    assert_eq!(say(&mut sender, with_property), Ok(Taken::All));
    v5.feed();
    v4.feed();
    assert!(heard(&mut sender).is_empty());
    assert_eq!(heard(&mut v5), with_property);
    assert_eq!(heard(&mut v4), b"\x30\x04\0\x01ax");
}

#[test]
fn a_disconnect_says_whether_the_will_goes_out() {
    let mut talk = talk(Version::V5, config::Broker::default());
    assert_eq!(say(&mut talk, &[0xE0, 0]), Err(End::Left { with_will: false }));
    assert_eq!(say(&mut talk, &[0xE0, 1, 4]), Err(End::Left { with_will: true }));
    let expiry = [0xE0, 7, 0, 5, 17, 0, 0, 0, 1];
    assert_eq!(say(&mut talk, &expiry), Err(Cause::Protocol.into()), "CONNECT had none");
}

#[test]
fn an_ended_conversation_leaves_nothing_behind() {
    let hub = hub(config::Broker::default());
    let mut talk = talk_on(&hub, 1, profile(Version::V4));
    assert_eq!(say(&mut talk, b"\x82\x06\0\x01\0\x01a\x00"), Ok(Taken::All));
    let session = Arc::clone(&talk.session);
    drop(talk);
    hub.publish(&delivery("a", "1", QoS::AtMostOnce));
    assert!(session.outbound.pop(true).is_none());
    assert!(session.gone.is_cancelled() && !hub.is_connected("client-1"));
}

/// Whatever the bytes are: no panic, and no endless loop.
mod any_bytes {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn end_in_a_verdict(
            v5 in any::<bool>(),
            first in prop_oneof![Just(0x30_u8), Just(0x32), Just(0x40), Just(0x82), Just(0xA2), Just(0xE0), any::<u8>()],
            body in proptest::collection::vec(prop_oneof![0_u8..4, any::<u8>()], 0..60),
        ) {
            let mut talk = talk(if v5 { Version::V5 } else { Version::V4 }, config::Broker::default());
            let frame = [&[first, body.len() as u8], &body[..]].concat();
            if say(&mut talk, &frame) == Ok(Taken::All) {
                prop_assert!(talk.pending.len() <= 1);
            }
        }
    }
}
