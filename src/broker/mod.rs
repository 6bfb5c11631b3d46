//! The MQTT front: one TCP port for MQTT 3.1.1 and 5, over rumqttd's codec and nothing else of rumqttd.
//!
//! Invariants:
//! - A PUBACK goes out when the engine has settled the publish *and* the durable position has passed it, in the order
//!   of that client's publishes. What is refused or not on disk is never acknowledged as taken.
//! - Live subscribers and alerts never wait: not for the disk, not for the engine, not for each other. A subscriber
//!   whose queue (`outbound_max` messages, and 4 MiB beyond one packet) is full loses QoS 0 messages, counted, and is
//!   disconnected for one of QoS 1.
//! - A full engine channel stops the reading of the publishing sockets only, after 64 more publishes each; their
//!   deliveries, acknowledgements and pings go on up to there, and their keep-alive does not run against them.
//! - An MQTT 3.1.1 client with `inflight_max` publishes that wait for their acknowledgement is not read, but for a
//!   second only: what a disk does not answer must not keep readings from the rules. So up to 65 535 wait for each
//!   client, and 2^20 more than `inflight_max` for all of them.
//! - Every packet is checked as raw bytes before the codec sees it; no input makes a task panic.
//! - All that a publish held is handed to the engine before its connection's client id is free for another one: a
//!   client that comes back never overtakes itself, and its will comes before what it says next.
//! - Everything is bounded: connections, packets, subscriptions, queues, publishes under way, retained messages.
//!
//! What MQTT 3.1.1 has no word for: a publish that the engine refuses stays without an acknowledgement while those
//! behind it get theirs, and once something is stored again the connection is closed, for only a client that comes back
//! sends it once more; a QoS 2 publish, and a publish to `$…` or `tidegate/alerts/…`, closes the connection at once. MQTT 5 clients are told 0x97, 0x9B and 0x87.
//!
//! What is not here: persistent sessions (asked for, they are answered as clean ones), QoS 2, TLS, WebSocket,
//! accounts, shared subscriptions, subscription identifiers, topic aliases, delays of wills. Retained messages live in
//! RAM. A message expiry interval is forwarded as it came.

mod acks;
mod cause;
mod codec;
mod connection;
mod conversation;
mod frame;
mod handshake;
mod hub;
mod listener;
mod outbound;
mod properties;
mod retained;
mod session;
mod topic;
mod tree;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

pub use acks::{Ticket, Verdict};

use self::connection::Links;
use self::hub::Hub;
use self::outbound::Delivery;
use crate::config;
use crate::model::{Lsn, Message, QoS};
use crate::runtime::clock::Clock;
use crate::runtime::metrics::Metrics;

/// Why the broker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The address is taken, not ours, or not allowed.
    #[error("cannot listen for MQTT on {0}; stop what listens there, or set broker.listen to another address")]
    Bind(SocketAddr, #[source] std::io::Error),
}

/// One publish on its way to the engine.
#[derive(Debug)]
pub struct Inbound {
    /// The publish; QoS 0 or 1.
    pub message: Message,
    /// `Clock::ticks` when the packet was read.
    pub received: Duration,
    /// Present for QoS 1, except for a will: must be settled, in any order.
    pub ticket: Option<Ticket>,
}

/// The MQTT broker, bound and not yet serving.
pub struct Broker {
    listener: TcpListener,
    address: SocketAddr,
    hub: Arc<Hub>,
    inbound: mpsc::Sender<Inbound>,
    durable: watch::Receiver<Lsn>,
}

impl Broker {
    /// Binds the listener. `durable` is the position that acknowledgements wait for.
    pub async fn bind(
        options: &config::Broker,
        inbound: mpsc::Sender<Inbound>,
        durable: watch::Receiver<Lsn>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, BrokerError> {
        let failed = |error| BrokerError::Bind(options.listen, error);
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let hub = Arc::new(Hub::new(options.clone(), clock, metrics));
        Ok(Self { listener, address, hub, inbound, durable })
    }

    /// Where it listens; tells the port if port 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The way for the gateway's own messages.
    pub fn alerter(&self) -> Alerter {
        Alerter { hub: Arc::clone(&self.hub) }
    }

    /// Serves until the token is cancelled. Then nothing more is read, acknowledgements that become due within a
    /// second go out, MQTT 5 clients get DISCONNECT 0x8B, no will is published, and all is over within two seconds.
    /// The engine's channel is closed when this returns.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { listener, address, hub, inbound, durable } = self;
        info!(%address, "MQTT listener is open");
        listener::listen(listener, hub, Links { inbound, durable, shutdown }).await;
    }
}

/// Publishes inside the process, at once, without disk or network. Cloning is cheap.
#[derive(Clone)]
pub struct Alerter {
    hub: Arc<Hub>,
}

impl Alerter {
    /// Hands the message to all who subscribed, and keeps it if `retain` is set; an empty payload then deletes. QoS 2
    /// is published as QoS 1. Never waits, from any thread. A `topic` that is no valid name is dropped with an error
    /// in the log.
    pub fn publish(&self, topic: Arc<str>, payload: Bytes, qos: QoS, retain: bool) {
        if !topic::is_name(&topic) {
            self.hub.count_dropped("invalid_topic");
            error!(%topic, "a message of the gateway has a topic that is no valid name; it is dropped");
            return;
        }
        let bytes = topic.len() + payload.len();
        let qos = qos.min(QoS::AtLeastOnce);
        self.hub.publish(&Arc::new(Delivery { topic, payload, qos, retain, origin: None, properties: None, bytes }));
    }
}
