//! Why the gateway ends or refuses a connection: one list for reason codes, metrics and logs.

/// A reason of ours. A client that leaves by itself has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The bytes are not a packet.
    Malformed,
    /// A packet that may not come here, or a value that may not be in it.
    Protocol,
    /// A topic that clients may not publish to.
    NotAuthorized,
    /// Larger than `packet_bytes_max`.
    PacketTooLarge,
    /// More unacknowledged publishes than `inflight_max`.
    ReceiveMaximum,
    /// A topic alias, although none is allowed.
    TopicAlias,
    /// QoS 2, although the most is QoS 1.
    QosNotSupported,
    /// A subscription identifier, although there are none.
    SubscriptionId,
    /// Nothing was received for one and a half keep-alive times.
    KeepAlive,
    /// Another connection uses the same client id.
    TakenOver,
    /// A QoS 1 message found the subscriber's queue full.
    SlowSubscriber,
    /// A publish of an MQTT 3.1.1 client was refused, and there is room again: only a reconnect brings it once more.
    Unstored,
    /// The gateway stops.
    Stopping,
    /// `connections_max` is reached.
    ConnectionsMax,
    /// No CONNECT within `connect_timeout`.
    ConnectTimeout,
    /// Not MQTT at all.
    WrongProtocol,
    /// MQTT of a version that is not served.
    ProtocolVersion,
    /// MQTT 3.1.1 wants a persistent session without a client id.
    ClientId,
    /// MQTT 5 extended authentication.
    AuthenticationMethod,
}

impl Cause {
    /// Reason code of MQTT 5, in DISCONNECT and CONNACK.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Malformed => 0x81,
            Self::Protocol | Self::ConnectTimeout | Self::WrongProtocol => 0x82,
            Self::ProtocolVersion => 0x84,
            Self::ClientId => 0x85,
            Self::NotAuthorized => 0x87,
            Self::Stopping => 0x8B,
            Self::AuthenticationMethod => 0x8C,
            Self::KeepAlive => 0x8D,
            Self::TakenOver => 0x8E,
            Self::ReceiveMaximum => 0x93,
            Self::TopicAlias => 0x94,
            Self::PacketTooLarge => 0x95,
            Self::SlowSubscriber | Self::Unstored | Self::ConnectionsMax => 0x97,
            Self::QosNotSupported => 0x9B,
            Self::SubscriptionId => 0xA1,
        }
    }

    /// The label `reason` of metrics, and the word in logs.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Protocol => "protocol_error",
            Self::NotAuthorized => "not_authorized",
            Self::PacketTooLarge => "packet_too_large",
            Self::ReceiveMaximum => "receive_maximum",
            Self::TopicAlias => "topic_alias",
            Self::QosNotSupported => "qos_not_supported",
            Self::SubscriptionId => "subscription_id",
            Self::KeepAlive => "keep_alive",
            Self::TakenOver => "taken_over",
            Self::SlowSubscriber => "slow_subscriber",
            Self::Unstored => "unstored",
            Self::Stopping => "stopping",
            Self::ConnectionsMax => "connections_max",
            Self::ConnectTimeout => "connect_timeout",
            Self::WrongProtocol => "wrong_protocol",
            Self::ProtocolVersion => "protocol_version",
            Self::ClientId => "client_id",
            Self::AuthenticationMethod => "authentication_method",
        }
    }
}
