//! A broker in this process, an engine that the test plays, and clients that speak bytes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::broker::{Alerter, Broker, Inbound, Verdict};
use tidegate::config;
use tidegate::model::{Lsn, Message};
use tidegate::runtime::clock::SystemClock;
use tidegate::runtime::metrics::Metrics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Nothing on loopback takes longer, except on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running broker. The test is the engine.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    pub(crate) inbound: mpsc::Receiver<Inbound>,
    pub(crate) durable: watch::Sender<Lsn>,
    pub(crate) alerter: Alerter,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shutdown: CancellationToken,
    tasks: JoinSet<()>,
}

impl Gateway {
    /// On the defaults, with a free port.
    pub(crate) async fn start() -> Self {
        Self::start_with(config::Broker::default(), 1024).await
    }

    /// With options, and room for `inbound_max` publishes in the engine's channel.
    pub(crate) async fn start_with(options: config::Broker, inbound_max: usize) -> Self {
        let options = config::Broker { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..options };
        let (sender, inbound) = mpsc::channel(inbound_max);
        let (durable, receiver) = watch::channel(Lsn::ZERO);
        let metrics = Arc::new(Metrics::new());
        let clock = Arc::new(SystemClock);
        let broker = Broker::bind(&options, sender, receiver, clock, Arc::clone(&metrics)).await.expect("a free port");
        let (address, alerter) = (broker.local_addr(), broker.alerter());
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(broker.run(shutdown.clone()));
        Self { address, inbound, durable, alerter, metrics, shutdown, tasks }
    }

    /// Plays an engine that stores everything at once; returns what it has got.
    pub(crate) fn run_engine(&mut self) -> Arc<Mutex<Vec<Message>>> {
        let messages = Arc::new(Mutex::new(Vec::new()));
        let got = Arc::clone(&messages);
        let (_, closed) = mpsc::channel(1);
        let mut inbound = std::mem::replace(&mut self.inbound, closed);
        self.tasks.spawn(async move {
            while let Some(Inbound { message, ticket, .. }) = inbound.recv().await {
                got.lock().expect("no test panics with the lock").push(message);
                if let Some(ticket) = ticket {
                    ticket.settle(Verdict::Stored { lsn: Lsn::ZERO, seq: None });
                }
            }
        });
        messages
    }

    /// The next publish that reaches the engine.
    pub(crate) async fn next_inbound(&mut self) -> Inbound {
        timeout(PATIENCE, self.inbound.recv()).await.expect("a publish in time").expect("an open channel")
    }

    /// A connection that has said nothing yet.
    pub(crate) async fn dial(&self) -> Raw {
        let socket = TcpStream::connect(self.address).await.expect("a listener");
        socket.set_nodelay(true).expect("a socket");
        Raw { socket }
    }

    /// An MQTT 3.1.1 client with keep-alive 60.
    pub(crate) async fn v4(&self, client: &str) -> Raw {
        let mut raw = self.dial().await;
        raw.send(&connect_v4(client, 60)).await;
        raw.expect(&[0x20, 2, 0, 0]).await;
        raw
    }

    /// An MQTT 5 client with keep-alive 60.
    pub(crate) async fn v5(&self, client: &str) -> Raw {
        let mut raw = self.dial().await;
        raw.send(&connect_v5(2, &[], &[text(client)].concat())).await;
        let connack = raw.packet().await;
        assert_eq!((connack[0], connack[3]), (0x20, 0), "{connack:x?}");
        raw
    }

    /// A client of the version, subscribed to `filter` with QoS 1.
    pub(crate) async fn subscriber(&self, version: u8, client: &str, filter: &str) -> Raw {
        let mut raw = if version == 5 { self.v5(client).await } else { self.v4(client).await };
        raw.send(&subscribe(version, filter, 1)).await;
        let suback = raw.packet().await;
        assert_eq!((suback[0], suback.last()), (0x90, Some(&1)), "{suback:x?}");
        raw
    }

    /// The value of a sample in the metrics.
    pub(crate) fn sample(&self, name: &str) -> Option<f64> {
        let text = self.metrics.encode();
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Stops the broker and waits for its end.
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        drop(self.inbound);
        timeout(PATIENCE, async { while self.tasks.join_next().await.is_some() {} }).await.expect("an end in time");
    }
}

/// A client that speaks bytes.
pub(crate) struct Raw {
    pub(crate) socket: TcpStream,
}

impl Raw {
    /// Writes.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        timeout(PATIENCE, self.socket.write_all(bytes)).await.expect("room in time").expect("an open socket");
    }

    /// Reads as many bytes as there are in `bytes`, and compares.
    pub(crate) async fn expect(&mut self, bytes: &[u8]) {
        let mut got = vec![0; bytes.len()];
        let read = timeout(PATIENCE, self.socket.read_exact(&mut got)).await;
        read.expect("bytes in time").unwrap_or_else(|error| panic!("{error} instead of {bytes:x?}"));
        assert_eq!(got, bytes, "left: got {got:x?}");
    }

    /// Reads one packet.
    pub(crate) async fn packet(&mut self) -> Vec<u8> {
        timeout(PATIENCE, self.read_packet()).await.expect("a packet in time").expect("an open socket")
    }

    async fn read_packet(&mut self) -> std::io::Result<Vec<u8>> {
        let mut packet = vec![self.socket.read_u8().await?];
        let mut remaining = 0;
        for at in 0..4 {
            let byte = self.socket.read_u8().await?;
            packet.push(byte);
            remaining |= usize::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                break;
            }
        }
        let start = packet.len();
        packet.resize(start + remaining, 0);
        self.socket.read_exact(&mut packet[start..]).await?;
        Ok(packet)
    }

    /// Reads to the end; a reset is an end, too.
    pub(crate) async fn closed(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        if timeout(PATIENCE, self.socket.read_to_end(&mut rest)).await.expect("an end in time").is_err() {
            rest.clear();
        }
        rest
    }

    /// Writes; the peer may have closed.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) {
        drop(timeout(PATIENCE, self.socket.write_all(bytes)).await);
    }

    /// Reads one packet, if there is one within two seconds.
    pub(crate) async fn try_packet(&mut self) -> Option<Vec<u8>> {
        timeout(Duration::from_secs(2), self.read_packet()).await.ok()?.ok()
    }

    /// Fails if the peer does not close within two seconds.
    pub(crate) async fn try_closed(&mut self) -> Result<(), String> {
        let mut rest = Vec::new();
        match timeout(Duration::from_secs(2), self.socket.read_to_end(&mut rest)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("not closed, {rest:x?} received")),
        }
    }

    /// A round trip: everything sent before has been handled.
    pub(crate) async fn ping(&mut self) {
        self.send(&[0xC0, 0]).await;
        self.expect(&[0xD0, 0]).await;
    }
}

/// UTF-8 behind its length.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&u16::try_from(text.len()).expect("a short text").to_be_bytes()[..], text.as_bytes()].concat()
}

/// A packet of up to 2 MiB.
pub(crate) fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut rest = body.len();
    loop {
        let more = rest >= 0x80;
        bytes.push((rest & 0x7f) as u8 | if more { 0x80 } else { 0 });
        rest >>= 7;
        if !more {
            break;
        }
    }
    bytes.extend_from_slice(body);
    bytes
}

/// CONNECT of MQTT 3.1.1, clean session.
pub(crate) fn connect_v4(client: &str, keep_alive: u16) -> Vec<u8> {
    packet(0x10, &[b"\0\x04MQTT\x04\x02", &keep_alive.to_be_bytes()[..], &text(client)].concat())
}

/// CONNECT of MQTT 5, keep-alive 60; the payload starts with the client id.
pub(crate) fn connect_v5(flags: u8, properties: &[u8], payload: &[u8]) -> Vec<u8> {
    let len = u8::try_from(properties.len()).expect("few properties");
    packet(0x10, &[b"\0\x04MQTT\x05", &[flags, 0, 60, len][..], properties, payload].concat())
}

/// SUBSCRIBE to one filter, packet id 1.
pub(crate) fn subscribe(version: u8, filter: &str, options: u8) -> Vec<u8> {
    let properties: &[u8] = if version == 5 { &[0] } else { &[] };
    packet(0x82, &[&[0, 1], properties, &text(filter), &[options]].concat())
}

/// PUBLISH of MQTT 3.1.1; QoS 1 if there is a packet id.
pub(crate) fn publish_v4(topic: &str, pkid: u16, payload: &[u8]) -> Vec<u8> {
    if pkid == 0 {
        return packet(0x30, &[&text(topic)[..], payload].concat());
    }
    packet(0x32, &[&text(topic)[..], &pkid.to_be_bytes(), payload].concat())
}

/// PUBLISH of MQTT 5 without properties; QoS 1 if there is a packet id.
pub(crate) fn publish_v5(topic: &str, pkid: u16, payload: &[u8]) -> Vec<u8> {
    if pkid == 0 {
        return packet(0x30, &[&text(topic)[..], &[0], payload].concat());
    }
    packet(0x32, &[&text(topic)[..], &pkid.to_be_bytes(), &[0], payload].concat())
}
