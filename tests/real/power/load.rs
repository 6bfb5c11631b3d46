//! Publishers that note, with each acknowledgement, how long the log of the disk was when it came.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rumqttc::Outgoing;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{PubAck, PubAckReason};
use rumqttc::v5::{AsyncClient, Event, EventLoop, Incoming, MqttOptions};

use super::rig::Meter;

/// Messages that a client has under way.
const WINDOW: usize = 16;

/// Readings of a device between two alert transitions.
pub(crate) const STRIDE: usize = 8;

/// What a client publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// States, each other than the one before, with a level that raises and ends an alert.
    State,
    /// States of which most are suppressed.
    Band,
    /// Events.
    Event,
}

/// An acknowledgement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ack {
    /// Length of the log when it came.
    pub(crate) at: u64,
    /// Its receipt.
    pub(crate) seq: Option<u64>,
}

/// One client: message `i` is number `i / devices + 1` of device `i % devices`.
pub(crate) struct Client {
    /// Its name; its devices are `<name>-<n>`.
    pub(crate) name: String,
    /// What it publishes.
    pub(crate) kind: Kind,
    /// Number of its devices.
    pub(crate) devices: usize,
    receipts: bool,
    /// Messages that were sent, over all lives of the gateway.
    sent: AtomicUsize,
    acks: Mutex<Vec<Ack>>,
}

impl Client {
    /// A client that has sent nothing.
    pub(crate) fn new(name: &str, kind: Kind, devices: usize, receipts: bool) -> Arc<Self> {
        let acks = Mutex::default();
        Arc::new(Self { name: name.to_owned(), kind, devices, receipts, sent: AtomicUsize::new(0), acks })
    }

    /// The acknowledgements of the first messages, in order.
    pub(crate) fn acks(&self) -> Vec<Ack> {
        self.acks.lock().expect("nobody panics while holding it").clone()
    }

    /// The highest number of a device among the first `messages`.
    pub(crate) fn number(&self, device: usize, messages: usize) -> usize {
        (messages + self.devices - 1 - device) / self.devices
    }

    /// Messages that were sent.
    pub(crate) fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }

    fn message(&self, index: usize) -> (String, String) {
        let (device, number) = (index % self.devices, index / self.devices + 1);
        // Sizes from bytes to pages, in no order.
        let pad = "x".repeat(index * 7919 % 3000);
        let (topic, body) = match self.kind {
            Kind::State => {
                let level = if number / STRIDE % 2 == 1 { 90 } else { 10 };
                ("state", format!(r#"{{"n":{number},"level":{level},"pad":"{pad}"}}"#))
            }
            Kind::Band => ("band", format!(r#"{{"n":{number}}}"#)),
            Kind::Event => ("event", format!(r#"{{"n":{number},"pad":"{pad}"}}"#)),
        };
        (format!("{topic}/{}-{device}", self.name), body)
    }

    fn acked(&self, ack: &PubAck, meter: &Meter) {
        assert_eq!(ack.reason, PubAckReason::Success, "{}: everything is taken", self.name);
        let properties = ack.properties.iter().flat_map(|properties| &properties.user_properties);
        let seq = properties.filter(|(name, _)| name == "tidegate-seq").find_map(|(_, value)| value.parse().ok());
        assert!(self.receipts || seq.is_none(), "{}: only who asks gets a receipt", self.name);
        let ack = Ack { at: meter.now(), seq };
        self.acks.lock().expect("nobody panics while holding it").push(ack);
    }
}

/// Publishes without a pause until it is told to stop and everything is acknowledged.
pub(crate) async fn publish(client: Arc<Client>, broker: SocketAddr, meter: Meter, stop: Arc<AtomicBool>) {
    let (sender, mut connection) = connect(&client, broker);
    let (mut given, mut flying, mut connected) = (0, VecDeque::new(), false);
    loop {
        let stops = stop.load(Ordering::SeqCst);
        while connected && !stops && given < WINDOW {
            let (topic, payload) = client.message(client.sent.fetch_add(1, Ordering::SeqCst));
            sender.try_publish(topic, QoS::AtLeastOnce, false, payload).expect("the window fits");
            given += 1;
        }
        if stops && given == 0 {
            return;
        }
        let event = tokio::time::timeout(Duration::from_secs(30), connection.poll()).await;
        match event.expect("the broker answers within 30 s").expect("the connection holds") {
            Event::Incoming(Incoming::ConnAck(_)) => connected = true,
            Event::Incoming(Incoming::PubAck(ack)) => {
                assert_eq!(flying.pop_front(), Some(ack.pkid), "{}: acknowledged in order", client.name);
                client.acked(&ack, &meter);
                given -= 1;
            }
            Event::Outgoing(Outgoing::Publish(id)) => flying.push_back(id),
            _ => {}
        }
    }
}

fn connect(client: &Client, broker: SocketAddr) -> (AsyncClient, EventLoop) {
    let mut options = MqttOptions::new(&client.name, broker.ip().to_string(), broker.port());
    options.set_keep_alive(Duration::from_secs(10)).set_clean_start(true);
    if client.receipts {
        options.set_user_properties(vec![("tidegate-receipts".to_owned(), "1".to_owned())]);
    }
    let mut network = rumqttc::NetworkOptions::new();
    network.set_tcp_nodelay(true);
    options.set_network_options(network);
    AsyncClient::new(options, 2 * WINDOW)
}
