//! The engine between a real broker and a queue whose disk can be made to fail.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::broker::Broker;
use crate::config::{self, Config};
use crate::queue::testing::{RamLog, options};
use crate::queue::{Committer, DeltaFifo, QueueOptions};
use crate::rules::RuleEngine;
use crate::runtime::clock::SystemClock;

const CONFIG: &str = r#"
    [[source]]
    topic = "d/{device}/state"
    [[source]]
    topic = "slow/{device}/{metric}"
    uplink = { min_interval = "1h" }
    [[source]]
    topic = "d/{device}/event"
    class = "event"
    [[alert]]
    alert = "Hot"
    expr = "t > 80"
"#;

/// Broker, engine and queue, wired as the gateway wires them, over a disk in RAM.
struct Gateway {
    disk: RamLog,
    metrics: Arc<Metrics>,
    address: std::net::SocketAddr,
    stop: CancellationToken,
    broker: tokio::task::JoinSet<()>,
    engine: Engine,
    committer: crate::queue::CommitHandle,
}

impl Gateway {
    async fn start(options: QueueOptions) -> Self {
        let (disk, clock): (_, Arc<dyn Clock>) = (RamLog::default(), Arc::new(SystemClock));
        let config: Config = toml::from_str(CONFIG).unwrap();
        let metrics = Arc::new(Metrics::new());
        let recovered = disk.open();
        let next_seq = recovered.next_seq;
        let fifo = Arc::new(DeltaFifo::recover(&options, recovered));
        let committer =
            Committer::start(disk.clone(), next_seq, fifo, &options, metrics.clone(), clock.clone()).unwrap();
        let rules = RuleEngine::compile(&config.alert).unwrap();
        let pipeline = Pipeline::new(&config.source, "default", rules, options.keys_max).unwrap();
        let (sender, inbound) = mpsc::channel(64);
        let listen = config::Broker { listen: "127.0.0.1:0".parse().unwrap(), ..config::Broker::default() };
        let broker =
            Broker::bind(&listen, sender, committer.durable_lsn.clone(), clock.clone(), metrics.clone()).await.unwrap();
        let (address, alerter, stop) = (broker.local_addr(), broker.alerter(), CancellationToken::new());
        let parts =
            EngineParts { pipeline, intake: committer.intake, alerter, inbound, clock, metrics: metrics.clone() };
        let engine = Engine::start(parts).unwrap();
        let mut task = tokio::task::JoinSet::new();
        task.spawn(broker.run(stop.clone()));
        Self { disk, metrics, address, stop, broker: task, engine, committer: committer.handle }
    }

    async fn connect(&self, id: u8) -> Client {
        let mut client = Client(TcpStream::connect(self.address).await.unwrap());
        client.send(&[0x10, 0x0d, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 60, 0, 1, id]).await;
        assert_eq!(client.read(4).await, [0x20, 2, 0, 0]);
        client
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while self.broker.join_next().await.is_some() {}
        tokio::task::spawn_blocking(|| {
            assert!(self.engine.join());
            self.committer.stop();
        })
        .await
        .unwrap();
    }
}

/// An MQTT 3.1.1 client, byte by byte.
struct Client(TcpStream);

impl Client {
    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    async fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        tokio::time::timeout(Duration::from_secs(10), self.0.read_exact(&mut bytes)).await.unwrap().unwrap();
        bytes
    }

    async fn publish(&mut self, pkid: u8, topic: &str, payload: &str) {
        self.publish_as(0x32, pkid, topic, payload).await;
    }

    async fn clear(&mut self, pkid: u8, topic: &str) {
        self.publish_as(0x33, pkid, topic, "").await;
    }

    async fn publish_as(&mut self, head: u8, pkid: u8, topic: &str, payload: &str) {
        let mut packet = vec![head, u8::try_from(4 + topic.len() + payload.len()).unwrap()];
        packet.extend([0, u8::try_from(topic.len()).unwrap()]);
        packet.extend(topic.bytes().chain([0, pkid]).chain(payload.bytes()));
        self.send(&packet).await;
    }

    async fn subscribe_to_alerts(&mut self) {
        let filter = b"tidegate/alerts/#";
        let mut packet = vec![0x82, 22, 0, 1, 0, 17];
        packet.extend(filter.iter().chain(&[1]));
        self.send(&packet).await;
        assert_eq!(self.read(5).await, [0x90, 3, 0, 1, 1]);
    }

    /// The payload of the next publish.
    async fn alert(&mut self) -> crate::model::Alert {
        let head = self.read(1).await;
        assert_eq!(head.first().map(|b| b >> 4), Some(3));
        let mut length = 0;
        for shift in [0, 7, 14] {
            let byte = self.read(1).await.first().copied().unwrap();
            length |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        let body = self.read(length).await;
        let start = body.iter().position(|b| *b == b'{').unwrap();
        serde_json::from_slice(body.get(start..).unwrap()).unwrap()
    }

    async fn assert_silent(&mut self) {
        let mut byte = [0];
        let read = tokio::time::timeout(Duration::from_millis(200), self.0.read_exact(&mut byte)).await;
        assert!(read.is_err(), "{byte:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariant_1_and_6_an_alert_waits_for_no_disk_and_an_acknowledgement_never_does_without_it() {
    let gateway = Gateway::start(options()).await;
    let (mut ear, mut device) = (gateway.connect(b'e').await, gateway.connect(b'd').await);
    ear.subscribe_to_alerts().await;
    gateway.disk.disk().refuse_commits = true;
    device.publish(7, "d/a/state", r#"{"t":99}"#).await;
    assert_eq!(ear.alert().await.id, "Hot/a/1");
    device.assert_silent().await;
    gateway.disk.disk().refuse_commits = false;
    assert_eq!(device.read(4).await, [0x40, 2, 0, 7], "the disk is back: what waited is stored and acknowledged");
    assert_eq!(gateway.disk.disk().frames.len(), 1, "state and alert of a message are one frame");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariant_7_beyond_keys_max_a_reading_is_counted_and_a_3_1_1_client_is_not_left_hanging() {
    let gateway = Gateway::start(QueueOptions { keys_max: 1, ..options() }).await;
    let mut device = gateway.connect(b'd').await;
    for (pkid, topic) in [(1, "d/a/state"), (2, "d/b/state")] {
        device.publish(pkid, topic, r#"{"t":1}"#).await;
        assert_eq!(device.read(4).await, [0x40, 2, 0, pkid]);
    }
    let refused = gateway.metrics.refused.get_or_create(&Reason { reason: "keys_max" }).get();
    assert_eq!(refused, 1);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transition_that_subscribers_saw_is_stored_although_its_reading_was_refused() {
    let small = QueueOptions { commit_queue_bytes_max: 1500, ..options() };
    let gateway = Gateway::start(small).await;
    let (mut ear, mut device) = (gateway.connect(b'e').await, gateway.connect(b'd').await);
    ear.subscribe_to_alerts().await;
    gateway.disk.disk().refuse_commits = true;
    for pkid in 1..=12 {
        device.publish(pkid, "d/a/event", "0123456789012345678901234567890123456789").await;
    }
    device.publish(13, "d/a/state", r#"{"t":99}"#).await;
    assert_eq!(ear.alert().await.id, "Hot/a/1");
    gateway.disk.disk().refuse_commits = false;
    let stored = || {
        let frames = gateway.disk.disk().frames.clone();
        frames
            .iter()
            .flat_map(|frame| &frame.effects)
            .any(|effect| matches!(effect, crate::model::Effect::Record(record) if &**record.key.name() == "Hot.a"))
    };
    for _ in 0..200 {
        if stored() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(stored());
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_deleted_lets_go_of_the_acknowledgements_of_its_held_readings() {
    let gateway = Gateway::start(options()).await;
    let (mut device, mut user) = (gateway.connect(b'd').await, gateway.connect(b'u').await);
    device.publish(1, "slow/a/t", "1").await;
    assert_eq!(device.read(4).await, [0x40, 2, 0, 1]);
    device.publish(2, "slow/a/t", "2").await;
    device.publish(3, "d/b/state", r#"{"t":1}"#).await;
    device.assert_silent().await;
    user.clear(9, "slow/a/t").await;
    assert_eq!(user.read(4).await, [0x40, 2, 0, 9]);
    assert_eq!(device.read(8).await, [0x40, 2, 0, 2, 0x40, 2, 0, 3], "else this client is never answered again");
    gateway.stop().await;
}
