//! Tests of CONNECT, from the first byte to the decision.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

use super::super::hub::tests::hub;
use super::*;
use crate::config;

fn run_with(options: config::Broker, bytes: &[u8]) -> Result<Hello, Refusal> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let hub = hub(options);
    let mut socket = bytes;
    runtime.block_on(greet(&mut socket, &mut BytesMut::new(), &hub, 7))
}

fn run(bytes: &[u8]) -> Result<Hello, Refusal> {
    run_with(config::Broker::default(), bytes)
}

/// A CONNECT of MQTT 5 with flags, keep-alive, properties and the rest of the payload.
fn v5(flags: u8, keep_alive: u8, properties: &[u8], payload: &[u8]) -> Vec<u8> {
    let body = [b"\0\x04MQTT\x05", &[flags, 0, keep_alive, properties.len() as u8][..], properties, payload].concat();
    [&[0x10, body.len() as u8], &body[..]].concat()
}

fn cause(refusal: Result<Hello, Refusal>) -> Cause {
    match refusal {
        Err(Refusal::Refused { cause, .. }) => cause,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn an_empty_client_id_needs_a_clean_session_in_3_1_1() {
    let refused = run(b"\x10\x0c\0\x04MQTT\x04\x00\0\x3c\0\0").unwrap_err();
    assert_eq!(refused, Refusal::Refused { cause: Cause::ClientId, version: Some(Version::V4) });
    let hello = run(b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0").unwrap();
    assert!(hello.client.starts_with("tidegate-") && hello.client.ends_with("-7"), "{}", hello.client);
}

#[test]
fn an_empty_client_id_is_assigned_in_mqtt_5() {
    for flags in [0, 2] {
        let hello = run(&v5(flags, 60, b"", b"\0\0")).unwrap();
        assert_eq!(hello.connack.assigned_client_identifier.as_deref(), Some(&*hello.client));
    }
    let named = run(&v5(2, 60, b"", b"\0\x01n")).unwrap();
    assert_eq!((&*named.client, named.connack.assigned_client_identifier), ("n", None));
}

#[test]
fn keep_alive_is_shortened_for_mqtt_5_only() {
    let limit = |seconds| config::Broker { keep_alive_max: config::Span::secs(seconds), ..config::Broker::default() };
    for (wanted, announced, silence_ms) in [(9, None, 13_500), (60, Some(10), 15_000), (0, Some(10), 15_000)] {
        let hello = run_with(limit(10), &v5(2, wanted, b"", b"\0\0")).unwrap();
        assert_eq!(hello.connack.server_keep_alive, announced);
        assert_eq!(hello.profile.silence_max, Some(Duration::from_millis(silence_ms)));
    }
    let v4 = |seconds| [b"\x10\x0c\0\x04MQTT\x04\x02\0", &[seconds, 0, 0][..]].concat();
    assert_eq!(run_with(limit(10), &v4(0)).unwrap().profile.silence_max, None);
    assert_eq!(run_with(limit(10), &v4(60)).unwrap().profile.silence_max, Some(Duration::from_secs(90)));
}

#[test]
fn receipts_are_asked_for_by_a_user_property() {
    let asked = |value: &[u8], more: &[u8]| {
        let name = b"\x26\0\x11tidegate-receipts\0\x01";
        run(&v5(2, 60, &[name, value, more].concat(), b"\0\0")).unwrap().profile.receipts
    };
    assert!(asked(b"1", b""));
    assert!(asked(b"1", b"\x17\x01"));
    assert!(!asked(b"1", b"\x17\x00"), "no problem information, no user properties");
    assert!(!asked(b"0", b""));
}

#[test]
fn what_the_client_can_take_is_noted_and_what_is_not_there_is_announced() {
    let hello = run(&v5(2, 60, b"\x21\0\x05\x27\0\0\x01\0\x11\0\0\0\x09", b"\0\0")).unwrap();
    let Profile { receive_max, packet_bytes_max, session_expiry, .. } = hello.profile;
    assert_eq!((receive_max, packet_bytes_max, session_expiry), (5, 256, 9));
    let connack = hello.connack;
    assert_eq!((connack.max_qos, connack.receive_max, connack.max_packet_size), (Some(1), Some(64), Some(256 << 10)));
    assert_eq!((connack.session_expiry_interval, connack.topic_alias_max), (Some(0), None));
    assert_eq!((connack.shared_subscription_available, connack.subscription_identifiers_available), (Some(0), Some(0)));
    assert_eq!(run(&v5(2, 60, b"\x21\xff\xff", b"\0\0")).unwrap().profile.receive_max, RECEIVE_MAX_MAX);
}

#[test]
fn a_will_is_checked_like_a_publish() {
    let will = |flags, topic: &[u8]| run(&v5(flags, 60, b"", &[b"\0\0\0\0\x01", topic, b"\0\x01m"].concat()));
    let hello = will(0x2e, b"w").unwrap();
    let delivery = hello.will.expect("a will");
    assert_eq!((&*delivery.topic, &delivery.payload[..]), ("w", &b"m"[..]));
    assert_eq!((delivery.qos, delivery.retain, delivery.origin), (QoS::AtLeastOnce, true, Some(7)));
    assert_eq!(cause(will(0x16, b"w")), Cause::QosNotSupported);
    assert_eq!(cause(will(0x06, b"$")), Cause::NotAuthorized);
    assert_eq!(cause(will(0x06, b"+")), Cause::Malformed);
    let v4 = run(b"\x10\x12\0\x04MQTT\x04\x16\0\x3c\0\0\0\x01w\0\x01m").unwrap();
    assert_eq!(v4.will.expect("a will").qos, QoS::AtLeastOnce);
}

#[test]
fn a_client_that_cannot_take_the_connack_is_refused() {
    assert_eq!(cause(run(&v5(2, 60, b"\x27\0\0\0\x12", b"\0\x01n"))), Cause::PacketTooLarge);
}

#[test]
fn a_password_may_be_any_bytes() {
    assert!(run(b"\x10\x13\0\x04MQTT\x04\xC2\0\x3c\0\0\0\x01u\0\x02\xff\xfe").is_ok());
}

#[test]
fn extended_authentication_is_refused() {
    assert_eq!(cause(run(&v5(2, 60, b"\x15\0\x01m", b"\0\0"))), Cause::AuthenticationMethod);
}

#[test]
fn strangers_are_told_by_their_first_bytes() {
    for (bytes, look) in [
        (&b"GET / HTTP/1.1\r\n"[..], "HTTP"),
        (b"\x16\x03\x01\x02\x00", "TLS on the plain port"),
        (b"\x10\x0c\0\x04MQXX\x04\x02\0\x3c\0\0", "another protocol in a CONNECT"),
        (b"\0\0", "no MQTT"),
    ] {
        assert_eq!(cause(run(bytes)), Cause::WrongProtocol);
        assert_eq!(look_of(bytes), look);
    }
}

#[test]
fn a_connect_that_never_ends_is_gone_and_a_huge_one_refused() {
    assert_eq!(run(b"\x10\x0c\0\x04MQ").unwrap_err(), Refusal::Gone);
    assert_eq!(run(b"").unwrap_err(), Refusal::Gone);
    assert_eq!(cause(run(b"\x10\xff\xff\xff\x7f")), Cause::PacketTooLarge);
    assert_eq!(cause(run(b"\x10\xff\xff\xff\xff\x7f")), Cause::Malformed);
}

mod any_bytes {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn in_a_connect_end_in_a_verdict(
            level in 4_u8..6,
            body in proptest::collection::vec(prop_oneof![0_u8..4, any::<u8>()], 0..60),
        ) {
            let body = [b"\0\x04MQTT", &[level][..], &body].concat();
            let frame = [&[0x10, body.len() as u8], &body[..]].concat();
            drop(run(&frame));
        }
    }
}
