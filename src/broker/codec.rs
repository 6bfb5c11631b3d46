//! rumqttd's codec behind calls that cannot reach its traps: its MQTT 3.1.1 writer panics on properties and on MQTT 5
//! codes, its MQTT 5 writer garbles a DISCONNECT without properties, its readers panic on packets of servers.
//! Everything read here has passed `frame` before.

use bytes::{BufMut, Bytes, BytesMut};
use rumqttd::protocol::{
    ConnAck, ConnAckProperties, ConnectReturnCode, Error, Packet, PingResp, Protocol, PubAck, PubAckProperties,
    PubAckReason, Publish, SubAck, SubscribeReasonCode, UnsubAck, UnsubAckReason, v4::V4, v5::V5,
};
use tracing::error;

use super::cause::Cause;
use super::frame::Version;
use super::outbound::Outgoing;
use crate::model::QoS;

/// Decodes one checked packet.
pub(super) fn decode(version: Version, mut frame: BytesMut) -> Result<Packet, Cause> {
    let len = frame.len();
    let packet = match version {
        Version::V4 => V4.read_mut(&mut frame, len),
        Version::V5 => V5.read_mut(&mut frame, len),
    };
    packet.map_err(|_| Cause::Malformed)
}

/// Encodes a delivery; `pkid` is 0 for QoS 0.
pub(super) fn publish(version: Version, outgoing: &Outgoing, pkid: u16, out: &mut BytesMut) {
    let delivery = &outgoing.delivery;
    let publish = match outgoing.qos {
        QoS::AtMostOnce => {
            let topic = Bytes::copy_from_slice(delivery.topic.as_bytes());
            Publish::new(topic, delivery.payload.clone(), outgoing.retain)
        }
        _ => acknowledged_publish(outgoing, pkid),
    };
    let properties = if version == Version::V5 { delivery.properties.clone() } else { None };
    encode(version, Packet::Publish(publish, properties), out);
}

/// QoS and packet id are private in the codec; its storage format is the way to set them.
fn acknowledged_publish(outgoing: &Outgoing, pkid: u16) -> Publish {
    let delivery = &outgoing.delivery;
    let mut stored = BytesMut::with_capacity(5 + delivery.topic.len() + delivery.payload.len());
    stored.put_u8(0x32 | u8::from(outgoing.retain));
    stored.put_u16(pkid);
    stored.put_u16(delivery.topic.len() as u16);
    stored.put_slice(delivery.topic.as_bytes());
    stored.put_slice(&delivery.payload);
    Publish::deserialize(stored.freeze())
}

/// CONNACK of success.
pub(super) fn connack(version: Version, properties: ConnAckProperties, out: &mut BytesMut) {
    let connack = ConnAck { session_present: false, code: ConnectReturnCode::Success };
    encode(version, Packet::ConnAck(connack, Some(properties)), out);
}

/// CONNACK that refuses, as far as the version has a word for it: MQTT 3.1.1 has five. Without a version the client
/// speaks one that is not served.
pub(super) fn refusal(version: Option<Version>, cause: Cause) -> Option<Vec<u8>> {
    match (version, cause) {
        (_, Cause::ConnectTimeout | Cause::WrongProtocol | Cause::PacketTooLarge) => None,
        (None, Cause::ProtocolVersion) => Some(vec![0x20, 2, 0, 1]),
        (Some(Version::V4), Cause::ClientId) => Some(vec![0x20, 2, 0, 2]),
        (Some(Version::V4), Cause::ConnectionsMax) => Some(vec![0x20, 2, 0, 3]),
        (Some(Version::V4), Cause::NotAuthorized) => Some(vec![0x20, 2, 0, 5]),
        (Some(Version::V5), cause) => Some(vec![0x20, 3, 0, cause.code(), 0]),
        _ => None,
    }
}

/// PUBACK; MQTT 3.1.1 has no reason and no receipt.
pub(super) fn puback(version: Version, pkid: u16, reason: PubAckReason, receipt: Option<u64>, out: &mut BytesMut) {
    let properties = receipt.filter(|_| version == Version::V5).map(|seq| PubAckProperties {
        reason_string: None,
        user_properties: vec![("tidegate-seq".to_owned(), seq.to_string())],
    });
    encode(version, Packet::PubAck(PubAck { pkid, reason }, properties), out);
}

/// SUBACK; MQTT 3.1.1 has one code for every refusal.
pub(super) fn suback(version: Version, pkid: u16, mut return_codes: Vec<SubscribeReasonCode>, out: &mut BytesMut) {
    if version == Version::V4 {
        for code in &mut return_codes {
            if !matches!(code, SubscribeReasonCode::Success(_)) {
                *code = SubscribeReasonCode::Failure;
            }
        }
    }
    encode(version, Packet::SubAck(SubAck { pkid, return_codes }, None), out);
}

/// UNSUBACK; MQTT 3.1.1 has no codes.
pub(super) fn unsuback(version: Version, pkid: u16, reasons: Vec<UnsubAckReason>, out: &mut BytesMut) {
    encode(version, Packet::UnsubAck(UnsubAck { pkid, reasons }, None), out);
}

/// PINGRESP.
pub(super) fn pingresp(version: Version, out: &mut BytesMut) {
    encode(version, Packet::PingResp(PingResp), out);
}

/// DISCONNECT; MQTT 3.1.1 servers have none.
pub(super) fn disconnect(version: Version, cause: Cause, out: &mut BytesMut) {
    if version == Version::V5 {
        out.put_slice(&[0xE0, 1, cause.code()]);
    }
}

fn encode(version: Version, packet: Packet, out: &mut BytesMut) {
    let start = out.len();
    let written: Result<usize, Error> = match version {
        Version::V4 => V4.write(packet, out),
        Version::V5 => V5.write(packet, out),
    };
    if let Err(error) = written {
        out.truncate(start);
        error!(%error, "a packet could not be encoded");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod tests {
    use std::sync::Arc;

    use rumqttd::protocol::PublishProperties;

    use super::super::outbound::Delivery;
    use super::*;

    fn outgoing(qos: QoS, properties: Option<PublishProperties>) -> Outgoing {
        let delivery = Delivery {
            topic: "压".into(),
            payload: Bytes::from_static(b"x"),
            qos,
            retain: true,
            origin: None,
            properties,
            bytes: 4,
        };
        Outgoing { delivery: Arc::new(delivery), qos, retain: true }
    }

    fn written(write: impl FnOnce(&mut BytesMut)) -> Vec<u8> {
        let mut out = BytesMut::new();
        write(&mut out);
        out.to_vec()
    }

    #[test]
    fn deliveries_carry_qos_id_and_retain_flag() {
        let topic = [0, 3, 0xE5, 0x8E, 0x8B];
        let qos0 = written(|out| publish(Version::V4, &outgoing(QoS::AtMostOnce, None), 0, out));
        assert_eq!(qos0, [[0x31, 6].as_slice(), &topic, b"x"].concat());
        let qos1 = written(|out| publish(Version::V4, &outgoing(QoS::AtLeastOnce, None), 258, out));
        assert_eq!(qos1, [[0x33, 8].as_slice(), &topic, &[1, 2], b"x"].concat());
        let v5 = written(|out| publish(Version::V5, &outgoing(QoS::AtLeastOnce, None), 258, out));
        assert_eq!(v5, [[0x33, 9].as_slice(), &topic, &[1, 2, 0], b"x"].concat());
    }

    #[test]
    fn properties_reach_mqtt_5_and_are_stripped_for_3_1_1() {
        let properties = PublishProperties { content_type: Some("t".to_owned()), ..PublishProperties::default() };
        let outgoing = outgoing(QoS::AtMostOnce, Some(properties));
        let v4 = written(|out| publish(Version::V4, &outgoing, 0, out));
        assert_eq!(v4.len(), 8);
        let v5 = written(|out| publish(Version::V5, &outgoing, 0, out));
        assert_eq!(v5, [0x31, 11, 0, 3, 0xE5, 0x8E, 0x8B, 4, 3, 0, 1, b't', b'x']);
    }

    #[test]
    fn acknowledgements_carry_receipts_only_in_mqtt_5() {
        let plain = |version| written(|out| puback(version, 7, PubAckReason::Success, None, out));
        assert_eq!((plain(Version::V4), plain(Version::V5)), (vec![0x40, 2, 0, 7], vec![0x40, 2, 0, 7]));
        let receipt = written(|out| puback(Version::V5, 7, PubAckReason::Success, Some(42), out));
        let property = [&[38, 0, 12][..], b"tidegate-seq", &[0, 2], b"42"].concat();
        assert_eq!(receipt, [&[0x40, 23, 0, 7, 0, 19][..], &property].concat());
        let refused = written(|out| puback(Version::V5, 7, PubAckReason::QuotaExceeded, None, out));
        assert_eq!(refused, [0x40, 4, 0, 7, 0x97, 0]);
        let v4 = written(|out| puback(Version::V4, 7, PubAckReason::Success, Some(42), out));
        assert_eq!(v4, [0x40, 2, 0, 7]);
    }

    #[test]
    fn refused_filters_have_one_code_in_3_1_1() {
        let codes = || {
            let granted = SubscribeReasonCode::Success(rumqttd::protocol::QoS::AtLeastOnce);
            vec![granted, SubscribeReasonCode::SharedSubscriptionsNotSupported]
        };
        assert_eq!(written(|out| suback(Version::V4, 1, codes(), out)), [0x90, 4, 0, 1, 1, 0x80]);
        assert_eq!(written(|out| suback(Version::V5, 1, codes(), out)), [0x90, 5, 0, 1, 0, 1, 0x9E]);
    }

    #[test]
    fn a_disconnect_has_its_reason_and_exists_in_mqtt_5_only() {
        assert_eq!(written(|out| disconnect(Version::V5, Cause::TakenOver, out)), [0xE0, 1, 0x8E]);
        assert!(written(|out| disconnect(Version::V4, Cause::TakenOver, out)).is_empty());
    }

    #[test]
    fn refusals_use_the_words_that_the_version_has() {
        assert_eq!(refusal(None, Cause::ProtocolVersion), Some(vec![0x20, 2, 0, 1]));
        assert_eq!(refusal(Some(Version::V4), Cause::ClientId), Some(vec![0x20, 2, 0, 2]));
        assert_eq!(refusal(Some(Version::V4), Cause::Malformed), None);
        assert_eq!(refusal(Some(Version::V5), Cause::ConnectionsMax), Some(vec![0x20, 3, 0, 0x97, 0]));
        assert_eq!(refusal(None, Cause::WrongProtocol), None);
    }
}
