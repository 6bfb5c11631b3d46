//! Tests of the raw checks, with the bytes written out.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

use super::*;

fn run(version: Version, frame: &[u8]) -> Result<Checked, Cause> {
    let header = Header::read(frame)?.expect("a whole header");
    assert_eq!(header.len, frame.len(), "the test's length is wrong: {frame:x?}");
    check(version, header, frame)
}

fn connect(frame: &[u8]) -> Result<ConnectHead, Cause> {
    let header = Header::read(frame)?.expect("a whole header");
    assert_eq!(header.len, frame.len(), "the test's length is wrong: {frame:x?}");
    check_connect(connect_version(header, frame)?, header, frame)
}

#[test]
fn a_header_waits_for_its_length_and_refuses_five_bytes() {
    assert_eq!(Header::read(&[]), Ok(None));
    assert_eq!(Header::read(&[0x30]), Ok(None));
    assert_eq!(Header::read(&[0x30, 0x80, 0x80, 0x80]), Ok(None));
    assert_eq!(Header::read(&[0x30, 0x80, 0x80, 0x80, 0x80]), Err(Cause::Malformed));
    let largest = Header::read(&[0x30, 0xff, 0xff, 0xff, 0x7f]).unwrap().unwrap();
    assert_eq!(largest.len, 268_435_455 + 5);
}

#[test]
fn a_padded_length_is_refused_by_mqtt_5_only() {
    assert_eq!(run(Version::V4, &[0xC0, 0x80, 0x00]), Ok(Checked::PingReq));
    assert_eq!(run(Version::V5, &[0xC0, 0x80, 0x00]), Err(Cause::Malformed));
}

#[test]
fn publishes_are_read_with_their_qos_and_id() {
    assert_eq!(run(Version::V4, &[0x31, 3, 0, 1, b'a']), Ok(Checked::Publish { qos: QoS::AtMostOnce, pkid: 0 }));
    let qos1 = Ok(Checked::Publish { qos: QoS::AtLeastOnce, pkid: 7 });
    assert_eq!(run(Version::V4, &[0x3A, 5, 0, 1, b'a', 0, 7]), qos1);
    assert_eq!(run(Version::V5, &[0x32, 6, 0, 1, b'a', 0, 7, 0]), qos1);
}

#[test]
fn bad_publishes_are_refused_with_their_reason() {
    for (version, frame, cause) in [
        (Version::V4, [0x36, 5, 0, 1, b'a', 0, 1].as_slice(), Cause::Malformed),
        (Version::V4, &[0x38, 3, 0, 1, b'a'], Cause::Malformed),
        (Version::V4, &[0x32, 5, 0, 1, b'a', 0, 0], Cause::Malformed),
        (Version::V4, &[0x32, 3, 0, 1, b'a'], Cause::Malformed),
        (Version::V4, &[0x30, 2, 0, 0], Cause::Malformed),
        (Version::V4, &[0x30, 3, 0, 1, b'+'], Cause::Malformed),
        (Version::V4, &[0x30, 3, 0, 1, 0], Cause::Malformed),
        (Version::V4, &[0x30, 3, 0, 1, 0xff], Cause::Malformed),
        (Version::V4, &[0x30, 5, 0, 3, 0xed, 0xa0, 0x80], Cause::Malformed),
        (Version::V4, &[0x30, 3, 0, 9, b'a'], Cause::Malformed),
        (Version::V4, &[0x34, 5, 0, 1, b'a', 0, 1], Cause::QosNotSupported),
        (Version::V5, &[0x30, 3, 0, 0, 0], Cause::Protocol),
        (Version::V5, &[0x30, 6, 0, 0, 3, 35, 0, 1], Cause::TopicAlias),
        (Version::V5, &[0x30, 7, 0, 1, b'a', 3, 35, 0, 0], Cause::TopicAlias),
        (Version::V5, &[0x30, 3, 0, 1, b'a'], Cause::Malformed),
    ] {
        assert_eq!(run(version, frame), Err(cause), "{frame:x?}");
    }
}

#[test]
fn reserved_flags_and_types_of_servers_are_refused() {
    for frame in [[0xC1_u8, 0].as_slice(), &[0x80, 6, 0, 1, 0, 1, b'a', 0], &[0xE1, 0], &[0x42, 2, 0, 1]] {
        assert_eq!(run(Version::V4, frame), Err(Cause::Malformed), "{frame:x?}");
    }
    for frame in [[0x20_u8, 2, 0, 0].as_slice(), &[0x90, 3, 0, 1, 0], &[0xB0, 2, 0, 1], &[0xD0, 0], &[0x50, 2, 0, 1]] {
        assert_eq!(run(Version::V5, frame), Err(Cause::Protocol), "{frame:x?}");
    }
    assert_eq!(run(Version::V5, &[0x62, 2, 0, 1]), Err(Cause::Protocol));
    assert_eq!(run(Version::V4, &[0x00, 0]), Err(Cause::Protocol));
    assert_eq!(run(Version::V4, &[0xF0, 0]), Err(Cause::Malformed));
    assert_eq!(run(Version::V5, &[0xF0, 0]), Err(Cause::Protocol));
}

#[test]
fn subscribes_hold_filters_and_known_options() {
    assert_eq!(run(Version::V4, &[0x82, 6, 0, 1, 0, 1, b'a', 2]), Ok(Checked::Subscribe));
    assert_eq!(run(Version::V5, &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x2d]), Ok(Checked::Subscribe));
    for (version, frame, cause) in [
        (Version::V4, [0x82, 6, 0, 0, 0, 1, b'a', 0].as_slice(), Cause::Malformed),
        (Version::V4, &[0x82, 6, 0, 1, 0, 1, b'a', 3], Cause::Malformed),
        (Version::V4, &[0x82, 6, 0, 1, 0, 1, b'a', 4], Cause::Malformed),
        (Version::V4, &[0x82, 2, 0, 1], Cause::Protocol),
        (Version::V4, &[0x82, 7, 0, 1, 0, 2, b'a', b'#', 0], Cause::Malformed),
        (Version::V4, &[0x82, 5, 0, 1, 0, 1, b'a'], Cause::Malformed),
        (Version::V5, &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x30], Cause::Malformed),
        (Version::V5, &[0x82, 9, 0, 1, 2, 11, 1, 0, 1, b'a', 0], Cause::SubscriptionId),
        (Version::V5, &[0x82, 9, 0, 1, 2, 11, 0, 0, 1, b'a', 0], Cause::Protocol),
    ] {
        assert_eq!(run(version, frame), Err(cause), "{frame:x?}");
    }
}

#[test]
fn unsubscribes_hold_filters() {
    assert_eq!(run(Version::V4, &[0xA2, 5, 0, 1, 0, 1, b'a']), Ok(Checked::Unsubscribe));
    assert_eq!(run(Version::V4, &[0xA2, 2, 0, 1]), Err(Cause::Protocol));
    assert_eq!(run(Version::V5, &[0xA2, 3, 0, 1, 0]), Err(Cause::Protocol));
    assert_eq!(run(Version::V4, &[0xA2, 4, 0, 1, 0, 0]), Err(Cause::Malformed));
}

#[test]
fn acknowledgements_are_short_in_3_1_1_and_carry_a_reason_in_5() {
    assert_eq!(run(Version::V4, &[0x40, 2, 0, 9]), Ok(Checked::PubAck { pkid: 9 }));
    assert_eq!(run(Version::V5, &[0x40, 3, 0, 9, 0x10]), Ok(Checked::PubAck { pkid: 9 }));
    assert_eq!(run(Version::V5, &[0x40, 4, 0, 9, 0x10, 0]), Ok(Checked::PubAck { pkid: 9 }));
    assert_eq!(run(Version::V4, &[0x40, 3, 0, 9, 0]), Err(Cause::Malformed));
    assert_eq!(run(Version::V5, &[0x40, 3, 0, 9, 0x01]), Err(Cause::Malformed));
    assert_eq!(run(Version::V4, &[0x40, 2, 0, 0]), Err(Cause::Malformed));
}

#[test]
fn a_disconnect_of_one_byte_is_a_reason() {
    let plain = Ok(Checked::Disconnect { with_will: false, session_expiry: 0 });
    assert_eq!(run(Version::V4, &[0xE0, 0]), plain);
    assert_eq!(run(Version::V5, &[0xE0, 1, 0]), plain);
    assert_eq!(run(Version::V5, &[0xE0, 1, 4]), Ok(Checked::Disconnect { with_will: true, session_expiry: 0 }));
    let later = Ok(Checked::Disconnect { with_will: false, session_expiry: 5 });
    assert_eq!(run(Version::V5, &[0xE0, 7, 0, 5, 17, 0, 0, 0, 5]), later);
    assert_eq!(run(Version::V4, &[0xE0, 1, 0]), Err(Cause::Malformed));
    assert_eq!(run(Version::V5, &[0xE0, 1, 0x8B]), Err(Cause::Malformed));
}

#[test]
fn a_connect_tells_its_version_and_where_the_password_lies() {
    let frame = b"\x10\x13\0\x04MQTT\x04\xC2\0\x3c\0\0\0\x01u\0\x02\xff\xfe";
    let head = connect(frame).unwrap();
    assert_eq!(head, ConnectHead { version: Version::V4, password: Some(19..21) });
    assert_eq!(connect(b"\x10\x0d\0\x04MQTT\x05\x02\0\x3c\0\0\0").unwrap().version, Version::V5);
}

#[test]
fn other_protocols_are_told_apart() {
    assert_eq!(connect(b"\x10\x0c\0\x04MQTT\x03\x02\0\x3c\0\0"), Err(Cause::ProtocolVersion));
    assert_eq!(connect(b"\x10\x0e\0\x06MQIsdp\x03\x02\0\x3c\0\0"), Err(Cause::ProtocolVersion));
    assert_eq!(connect(b"\x10\x0c\0\x04MQXX\x04\x02\0\x3c\0\0"), Err(Cause::WrongProtocol));
    assert_eq!(connect(b"\x30\x03\0\x01a"), Err(Cause::WrongProtocol));
}

#[test]
fn a_bad_client_id_has_a_word_of_its_own_in_mqtt_5() {
    assert_eq!(connect(b"\x10\x0e\0\x04MQTT\x05\x02\0\x3c\0\0\x01\n"), Err(Cause::ClientId));
    assert_eq!(connect(b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01\n"), Err(Cause::Malformed));
}

#[test]
fn connects_with_bad_flags_or_trailing_bytes_are_malformed() {
    for frame in [
        b"\x10\x0c\0\x04MQTT\x04\x03\0\x3c\0\0".as_slice(),
        b"\x10\x0c\0\x04MQTT\x04\x0a\0\x3c\0\0",
        b"\x10\x0c\0\x04MQTT\x04\x22\0\x3c\0\0",
        b"\x10\x0f\0\x04MQTT\x04\x42\0\x3c\0\0\0\x01p",
        b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\0x",
        b"\x10\x12\0\x04MQTT\x04\x1e\0\x3c\0\0\0\x01w\0\x01m",
        b"\x10\x12\0\x04MQTT\x04\x06\0\x3c\0\0\0\x01#\0\x01m",
        b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01\0",
        b"\x10\x0a\0\x04MQTT\x04\x02\0\x3c",
        b"\x10\x0c\0\x04MQTT\x05\x02\0\x3c\0\0",
    ] {
        assert_eq!(connect(frame), Err(Cause::Malformed), "{frame:x?}");
    }
}
