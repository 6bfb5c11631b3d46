//! Raw packets: framed and checked before rumqttd's codec sees them, so that nothing reaches it that it would panic on,
//! read wrongly or let pass.

use super::cause::Cause;
use super::properties::{self, Owner, id};
use super::topic;
use crate::model::QoS;

/// The protocol versions that are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// MQTT 3.1.1, level 4.
    V4,
    /// MQTT 5, level 5.
    V5,
}

/// A fixed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Packet type and flags.
    first: u8,
    /// Where the variable header starts.
    body: usize,
    /// Bytes of the whole packet.
    pub(super) len: usize,
}

impl Header {
    /// Reads the fixed header at the beginning of `buffer`; `None` if it is not all there yet.
    pub(super) fn read(buffer: &[u8]) -> Result<Option<Self>, Cause> {
        let Some((first, rest)) = buffer.split_first() else { return Ok(None) };
        if first >> 4 == 0 {
            return Err(Cause::Protocol);
        }
        let mut remaining = 0;
        for (at, byte) in rest.iter().take(4).enumerate() {
            remaining |= usize::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                let body = at + 2;
                return Ok(Some(Self { first: *first, body, len: body + remaining }));
            }
        }
        if rest.len() < 4 { Ok(None) } else { Err(Cause::Malformed) }
    }

    /// True if the length takes more bytes than it needs, which MQTT 5 forbids and 3.1.1 does not.
    fn is_padded(self) -> bool {
        let remaining = self.len - self.body;
        let needed = match remaining {
            0..0x80 => 1,
            0x80..0x4000 => 2,
            0x4000..0x0020_0000 => 3,
            _ => 4,
        };
        self.body - 1 > needed
    }
}

/// A checked packet of a client: what is hidden in the codec's types, or wrong there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checked {
    /// PUBLISH of QoS 0 or 1.
    Publish {
        /// QoS 0 or 1.
        qos: QoS,
        /// 0 for QoS 0.
        pkid: u16,
    },
    /// PUBACK for a delivery.
    PubAck {
        /// Packet id of the delivery.
        pkid: u16,
    },
    /// SUBSCRIBE.
    Subscribe,
    /// UNSUBSCRIBE.
    Unsubscribe,
    /// PINGREQ.
    PingReq,
    /// DISCONNECT.
    Disconnect {
        /// The client wants its will to be published.
        with_will: bool,
        /// Session Expiry Interval in seconds, 0 if absent.
        session_expiry: u32,
    },
}

/// Checks a whole packet that is not the first of its connection.
pub(super) fn check(version: Version, header: Header, frame: &[u8]) -> Result<Checked, Cause> {
    if version == Version::V5 && header.is_padded() {
        return Err(Cause::Malformed);
    }
    let (kind, flags) = (header.first >> 4, header.first & 0x0f);
    let wanted = if matches!(kind, 6 | 8 | 10) { 2 } else { 0 };
    if kind != 3 && flags != wanted {
        return Err(Cause::Malformed);
    }
    let mut body = Reader::new(frame.get(header.body..).unwrap_or_default());
    match kind {
        3 => check_publish(version, flags, &mut body),
        4 => check_puback(version, &mut body),
        8 => check_subscribe(version, &mut body),
        10 => check_unsubscribe(version, &mut body),
        12 => body.end().map(|()| Checked::PingReq),
        14 => check_disconnect(version, &mut body),
        15 if version == Version::V4 => Err(Cause::Malformed),
        // A second CONNECT, what only servers send, and the QoS 2 packets, for which there is no handshake.
        _ => Err(Cause::Protocol),
    }
}

fn check_publish(version: Version, flags: u8, body: &mut Reader<'_>) -> Result<Checked, Cause> {
    let qos = match (flags >> 1) & 3 {
        0 if flags & 8 != 0 => return Err(Cause::Malformed),
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        2 => QoS::ExactlyOnce,
        _ => return Err(Cause::Malformed),
    };
    let name = body.string()?;
    let pkid = if qos == QoS::AtMostOnce { 0 } else { body.packet_id()? };
    if version == Version::V5 && properties::check(Owner::Publish, body)?.has(id::TOPIC_ALIAS) {
        return Err(Cause::TopicAlias);
    }
    if name.is_empty() && version == Version::V5 {
        return Err(Cause::Protocol);
    }
    if !topic::is_name(name) {
        return Err(Cause::Malformed);
    }
    if qos == QoS::ExactlyOnce {
        return Err(Cause::QosNotSupported);
    }
    Ok(Checked::Publish { qos, pkid })
}

fn check_puback(version: Version, body: &mut Reader<'_>) -> Result<Checked, Cause> {
    let pkid = body.packet_id()?;
    if version == Version::V5 && !body.is_empty() {
        if !matches!(body.u8()?, 0 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99) {
            return Err(Cause::Malformed);
        }
        if !body.is_empty() {
            properties::check(Owner::Ack, body)?;
        }
    }
    body.end()?;
    Ok(Checked::PubAck { pkid })
}

fn check_subscribe(version: Version, body: &mut Reader<'_>) -> Result<Checked, Cause> {
    body.packet_id()?;
    if version == Version::V5 && properties::check(Owner::Subscribe, body)?.has(id::SUBSCRIPTION_IDENTIFIER) {
        return Err(Cause::SubscriptionId);
    }
    if body.is_empty() {
        return Err(Cause::Protocol);
    }
    while !body.is_empty() {
        let filter = body.string()?;
        if !topic::is_filter(filter) {
            return Err(Cause::Malformed);
        }
        let options = body.u8()?;
        let reserved = if version == Version::V5 { 0xC0 } else { 0xFC };
        if options & reserved != 0 || options & 0x03 == 3 || options & 0x30 == 0x30 {
            return Err(Cause::Malformed);
        }
        // No Local on a shared subscription is a protocol error.
        if options & 0x04 != 0 && topic::is_shared(filter) {
            return Err(Cause::Protocol);
        }
    }
    Ok(Checked::Subscribe)
}

fn check_unsubscribe(version: Version, body: &mut Reader<'_>) -> Result<Checked, Cause> {
    body.packet_id()?;
    if version == Version::V5 {
        properties::check(Owner::Unsubscribe, body)?;
    }
    if body.is_empty() {
        return Err(Cause::Protocol);
    }
    while !body.is_empty() {
        if !topic::is_filter(body.string()?) {
            return Err(Cause::Malformed);
        }
    }
    Ok(Checked::Unsubscribe)
}

fn check_disconnect(version: Version, body: &mut Reader<'_>) -> Result<Checked, Cause> {
    if body.is_empty() {
        return Ok(Checked::Disconnect { with_will: false, session_expiry: 0 });
    }
    if version == Version::V4 {
        return Err(Cause::Malformed);
    }
    let code = body.u8()?;
    if !matches!(code, 0 | 4 | 0x80..=0x83 | 0x90 | 0x93..=0x99) {
        return Err(Cause::Malformed);
    }
    let mut session_expiry = 0;
    if !body.is_empty() {
        session_expiry = properties::check(Owner::Disconnect, body)?.session_expiry;
    }
    body.end()?;
    Ok(Checked::Disconnect { with_will: code != 0, session_expiry })
}

/// What a raw CONNECT tells before it is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectHead {
    /// The version to decode it with.
    pub(super) version: Version,
    /// Where in the packet the password lies.
    pub(super) password: Option<std::ops::Range<usize>>,
}

/// Reads the protocol of a CONNECT; what is no CONNECT is [`Cause::WrongProtocol`].
pub(super) fn connect_version(header: Header, frame: &[u8]) -> Result<Version, Cause> {
    let mut body = Reader::new(frame.get(header.body..).unwrap_or_default());
    if header.first != 0x10 {
        return Err(Cause::WrongProtocol);
    }
    match (body.binary()?, body.u8()?) {
        (b"MQTT", 4) => Ok(Version::V4),
        (b"MQTT", 5) => Ok(Version::V5),
        (b"MQTT" | b"MQIsdp", _) => Err(Cause::ProtocolVersion),
        _ => Err(Cause::WrongProtocol),
    }
}

/// Checks a CONNECT whose protocol is known.
pub(super) fn check_connect(version: Version, header: Header, frame: &[u8]) -> Result<ConnectHead, Cause> {
    let mut body = Reader::new(frame.get(header.body..).unwrap_or_default());
    if version == Version::V5 && header.is_padded() {
        return Err(Cause::Malformed);
    }
    body.binary()?;
    body.u8()?;
    let flags = body.u8()?;
    check_connect_flags(version, flags)?;
    body.u16()?;
    if version == Version::V5 {
        properties::check(Owner::Connect, &mut body)?;
    }
    let bad_id = if version == Version::V5 { Cause::ClientId } else { Cause::Malformed };
    as_name(body.binary()?).map_err(|_| bad_id)?;
    if flags & 0x04 != 0 {
        if version == Version::V5 {
            properties::check(Owner::Will, &mut body)?;
        }
        if !topic::is_name(body.string()?) {
            return Err(Cause::Malformed);
        }
        body.binary()?;
    }
    if flags & 0x80 != 0 {
        as_name(body.binary()?)?;
    }
    let mut password = None;
    if flags & 0x40 != 0 {
        let len = body.binary()?.len();
        let end = frame.len() - body.len();
        password = Some(end - len..end);
    }
    body.end()?;
    Ok(ConnectHead { version, password })
}

/// Client ids and user names: UTF-8 without control characters.
fn as_name(bytes: &[u8]) -> Result<&str, Cause> {
    let text = std::str::from_utf8(bytes).map_err(|_| Cause::Malformed)?;
    if text.contains(char::is_control) { Err(Cause::Malformed) } else { Ok(text) }
}

fn check_connect_flags(version: Version, flags: u8) -> Result<(), Cause> {
    let has_will = flags & 0x04 != 0;
    let will_qos = (flags >> 3) & 3;
    let lone_password = version == Version::V4 && flags & 0xC0 == 0x40;
    let fits = flags & 1 == 0 && will_qos != 3 && (has_will || flags & 0x38 == 0) && !lone_password;
    if fits { Ok(()) } else { Err(Cause::Malformed) }
}

/// Reads fields; every read is checked against the end.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// From the beginning of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// True at the end.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn end(&self) -> Result<(), Cause> {
        if self.is_empty() { Ok(()) } else { Err(Cause::Malformed) }
    }

    /// The next `count` bytes.
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Cause> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Cause::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Cause> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Cause::Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// One byte.
    pub(super) fn u8(&mut self) -> Result<u8, Cause> {
        self.array().map(u8::from_be_bytes)
    }

    /// Two bytes.
    pub(super) fn u16(&mut self) -> Result<u16, Cause> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four bytes.
    pub(super) fn u32(&mut self) -> Result<u32, Cause> {
        self.array().map(u32::from_be_bytes)
    }

    fn packet_id(&mut self) -> Result<u16, Cause> {
        match self.u16()? {
            0 => Err(Cause::Malformed),
            pkid => Ok(pkid),
        }
    }

    /// A variable byte integer of at most four bytes, in its shortest form.
    pub(super) fn varint(&mut self) -> Result<usize, Cause> {
        let mut value = 0;
        for at in 0..4 {
            let byte = self.u8()?;
            value |= usize::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                return if byte == 0 && at > 0 { Err(Cause::Malformed) } else { Ok(value) };
            }
        }
        Err(Cause::Malformed)
    }

    /// Bytes behind their length.
    pub(super) fn binary(&mut self) -> Result<&'a [u8], Cause> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// UTF-8 without NUL, behind its length. Rust's check refuses surrogates, too.
    pub(super) fn string(&mut self) -> Result<&'a str, Cause> {
        let text = std::str::from_utf8(self.binary()?).map_err(|_| Cause::Malformed)?;
        if text.contains('\0') { Err(Cause::Malformed) } else { Ok(text) }
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
