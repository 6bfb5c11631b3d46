//! From the first byte to CONNACK: who is this, and may it come in?

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rumqttd::protocol::{
    ConnAckProperties, Connect, ConnectProperties, LastWill, LastWillProperties, Packet, PublishProperties,
    QoS as WireQoS,
};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::cause::Cause;
use super::conversation::{Profile, properties_bytes};
use super::frame::{self, Header, Version};
use super::hub::Hub;
use super::outbound::Delivery;
use super::{codec, topic};
use crate::model::QoS;

/// QoS 1 deliveries under way to a client that names no Receive Maximum, and the most for any.
const RECEIVE_MAX: u16 = 64;
/// Bound of what a client may name.
const RECEIVE_MAX_MAX: u16 = 1024;

/// CONNECT user property by which a client asks for receipts, and its value.
const RECEIPTS: (&str, &str) = ("tidegate-receipts", "1");

/// A client that may come in.
#[derive(Debug)]
pub(super) struct Hello {
    /// Its client id, or the assigned one.
    pub(super) client: Arc<str>,
    /// What was settled.
    pub(super) profile: Profile,
    /// Its will.
    pub(super) will: Option<Arc<Delivery>>,
    /// What CONNACK says; MQTT 3.1.1 leaves it out.
    pub(super) connack: ConnAckProperties,
}

/// A client that may not.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It closed before it had said anything of use.
    Gone,
    /// It is refused.
    Refused {
        /// Why.
        cause: Cause,
        /// The version to say it in, where it is known.
        version: Option<Version>,
    },
}

impl Refusal {
    fn of(version: Option<Version>) -> impl Fn(Cause) -> Self {
        move |cause| Self::Refused { cause, version }
    }
}

/// Reads a CONNECT and decides; what follows it stays in `input`. The caller limits the time.
pub(super) async fn greet(
    socket: &mut (impl AsyncRead + Unpin),
    input: &mut BytesMut,
    hub: &Hub,
    connection: u64,
) -> Result<Hello, Refusal> {
    let (header, mut frame) = read_frame(socket, input, hub.packet_bytes_max()).await?;
    let version = frame::connect_version(header, &frame).map_err(Refusal::of(None))?;
    let refused = Refusal::of(Some(version));
    let head = frame::check_connect(version, header, &frame).map_err(&refused)?;
    // A password may be any bytes, but the codec wants UTF-8. Nobody reads it: there are no accounts.
    if let Some(password) = head.password.and_then(|range| frame.get_mut(range)) {
        password.fill(b'*');
    }
    let Packet::Connect(connect, properties, will, will_properties, _) =
        codec::decode(version, frame).map_err(&refused)?
    else {
        return Err(refused(Cause::Malformed));
    };
    let will = will.map(|will| make_will(version, connection, &will, will_properties)).transpose().map_err(&refused)?;
    decide(hub, version, connection, &connect, properties.as_ref(), will).map_err(&refused)
}

/// What it may be that is no MQTT, by its first bytes.
pub(super) fn look_of(input: &[u8]) -> &'static str {
    match input {
        [0x16, 0x03, ..] => "TLS on the plain port",
        [b'A'..=b'Z', b'A'..=b'Z', ..] => "HTTP",
        [0x10, ..] => "another protocol in a CONNECT",
        _ => "no MQTT",
    }
}

async fn read_frame(
    socket: &mut (impl AsyncRead + Unpin),
    input: &mut BytesMut,
    bytes_max: usize,
) -> Result<(Header, BytesMut), Refusal> {
    let refused = Refusal::of(None);
    loop {
        // Told by the first byte: nobody waits for a packet that will never be whole.
        if input.first().is_some_and(|first| *first != 0x10) {
            return Err(refused(Cause::WrongProtocol));
        }
        if let Some(header) = Header::read(input).map_err(&refused)? {
            if header.len > bytes_max {
                return Err(refused(Cause::PacketTooLarge));
            }
            if input.len() >= header.len {
                return Ok((header, input.split_to(header.len)));
            }
        }
        match socket.read_buf(input).await {
            Ok(0) | Err(_) => return Err(Refusal::Gone),
            Ok(_) => {}
        }
    }
}

fn decide(
    hub: &Hub,
    version: Version,
    connection: u64,
    connect: &Connect,
    properties: Option<&ConnectProperties>,
    will: Option<Arc<Delivery>>,
) -> Result<Hello, Cause> {
    if properties.is_some_and(|properties| properties.authentication_method.is_some()) {
        return Err(Cause::AuthenticationMethod);
    }
    if version == Version::V4 && connect.client_id.is_empty() && !connect.clean_session {
        return Err(Cause::ClientId);
    }
    let assigned = connect.client_id.is_empty().then(|| hub.assign_client_id(connection));
    let client = Arc::from(assigned.as_deref().unwrap_or(&connect.client_id));
    let server_keep_alive = if version == Version::V5 { shorter_keep_alive(hub, connect.keep_alive) } else { None };
    let keep_alive = server_keep_alive.unwrap_or(connect.keep_alive);
    let profile = make_profile(version, keep_alive, properties);
    let connack = ConnAckProperties {
        // There are no persistent sessions.
        session_expiry_interval: (profile.session_expiry > 0).then_some(0),
        receive_max: Some(hub.options.inflight_max.max(1)),
        max_qos: Some(1),
        max_packet_size: Some(u32::try_from(hub.packet_bytes_max()).unwrap_or(u32::MAX)),
        assigned_client_identifier: assigned,
        // No Topic Alias Maximum: its absence says 0.
        subscription_identifiers_available: Some(0),
        shared_subscription_available: Some(0),
        server_keep_alive,
        ..ConnAckProperties::default()
    };
    // A client that cannot even take the CONNACK is sent nothing.
    let mut bytes = BytesMut::new();
    codec::connack(version, connack.clone(), &mut bytes);
    if bytes.len() > profile.packet_bytes_max {
        return Err(Cause::PacketTooLarge);
    }
    Ok(Hello { client, profile, will, connack })
}

/// `keep_alive_max` in seconds, if the client wants a longer keep-alive or none.
fn shorter_keep_alive(hub: &Hub, wanted: u16) -> Option<u16> {
    let longest = u16::try_from(hub.options.keep_alive_max.0.as_secs()).unwrap_or(u16::MAX).max(1);
    (wanted == 0 || wanted > longest).then_some(longest)
}

fn make_profile(version: Version, keep_alive: u16, properties: Option<&ConnectProperties>) -> Profile {
    let asks_receipts = |properties: &ConnectProperties| {
        let asked = |(name, value): &(String, String)| (name.as_str(), value.as_str()) == RECEIPTS;
        properties.user_properties.iter().any(asked) && properties.request_problem_info != Some(0)
    };
    let packet_bytes_max = properties.and_then(|properties| properties.max_packet_size);
    let receive_max = properties.and_then(|properties| properties.receive_maximum).unwrap_or(RECEIVE_MAX);
    Profile {
        version,
        silence_max: (keep_alive > 0).then(|| Duration::from_millis(u64::from(keep_alive) * 1500)),
        receipts: properties.is_some_and(asks_receipts),
        packet_bytes_max: packet_bytes_max.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX),
        receive_max: receive_max.min(RECEIVE_MAX_MAX),
        session_expiry: properties.and_then(|properties| properties.session_expiry_interval).unwrap_or(0),
    }
}

/// A will of MQTT 3.1.1 with QoS 2 is published with QoS 1; MQTT 5 clients are told that this is the most.
fn make_will(
    version: Version,
    connection: u64,
    will: &LastWill,
    properties: Option<LastWillProperties>,
) -> Result<Arc<Delivery>, Cause> {
    let topic = std::str::from_utf8(&will.topic).map_err(|_| Cause::Malformed)?;
    if topic::is_reserved(topic) {
        return Err(Cause::NotAuthorized);
    }
    let qos = match will.qos {
        WireQoS::AtMostOnce => QoS::AtMostOnce,
        WireQoS::ExactlyOnce if version == Version::V5 => return Err(Cause::QosNotSupported),
        WireQoS::AtLeastOnce | WireQoS::ExactlyOnce => QoS::AtLeastOnce,
    };
    let properties = properties.map(|properties| PublishProperties {
        payload_format_indicator: properties.payload_format_indicator,
        message_expiry_interval: properties.message_expiry_interval,
        topic_alias: None,
        response_topic: properties.response_topic,
        correlation_data: properties.correlation_data,
        user_properties: properties.user_properties,
        subscription_identifiers: Vec::new(),
        content_type: properties.content_type,
    });
    Ok(Arc::new(Delivery {
        topic: topic.into(),
        payload: Bytes::copy_from_slice(&will.message),
        qos,
        retain: will.retain,
        origin: Some(connection),
        bytes: will.topic.len() + will.message.len() + properties_bytes(properties.as_ref()),
        properties,
    }))
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
