//! An MQTT publish as the engine sees it.

use std::sync::Arc;

use bytes::Bytes;

/// MQTT quality of service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum QoS {
    /// QoS 0.
    #[default]
    AtMostOnce = 0,
    /// QoS 1.
    AtLeastOnce = 1,
    /// QoS 2.
    ExactlyOnce = 2,
}

/// A validated PUBLISH: the topic is UTF-8 without wildcards. Cloning is cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Client id of the publisher.
    pub client: Arc<str>,
    /// Topic name.
    pub topic: Arc<str>,
    /// Payload as sent.
    pub payload: Bytes,
    /// QoS of the publish.
    pub qos: QoS,
    /// The retain flag.
    pub retain: bool,
}
