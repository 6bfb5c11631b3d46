//! The engine between a real broker and a queue whose disk can be made to fail.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::broker::Broker;
use crate::config::{self, Config};
use crate::queue::testing::{House, RamLog, key, options};
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_waits_for_no_disk_behind_however_many_acknowledgements_that_do() {
    let gateway = Gateway::start(options()).await;
    let (mut ear, mut device) = (gateway.connect(b'e').await, gateway.connect(b'd').await);
    ear.subscribe_to_alerts().await;
    gateway.disk.disk().refuse_commits = true;
    for pkid in 1..=100 {
        device.publish(pkid, "d/a/state", r#"{"t":1}"#).await;
    }
    device.publish(101, "d/a/state", r#"{"t":99}"#).await;
    assert_eq!(ear.alert().await.id, "Hot/a/1", "inflight_max is 64");
    gateway.disk.disk().refuse_commits = false;
    assert_eq!(device.read(4 * 101).await.get(400..), Some(&[0x40, 2, 0, 101][..]));
    gateway.stop().await;
}

/// An engine without its thread, on a queue whose commits the test makes happen.
async fn still(options: &QueueOptions) -> (State, House) {
    let mut house = House::new(options);
    let config: Config = toml::from_str(CONFIG).unwrap();
    let rules = RuleEngine::compile(&config.alert).unwrap();
    let pipeline = Pipeline::new(&config.source, "default", rules, 100).unwrap();
    let (sender, inbound) = mpsc::channel(1);
    let (clock, metrics) = (house.clock.clone(), house.metrics.clone());
    let listen = config::Broker { listen: "127.0.0.1:0".parse().unwrap(), ..config::Broker::default() };
    let broker =
        Broker::bind(&listen, sender, house.durable_lsn.clone(), clock.clone(), metrics.clone()).await.unwrap();
    let intake = std::mem::replace(&mut house.intake, House::new(options).intake);
    let parts = EngineParts { pipeline, intake, alerter: broker.alerter(), inbound, clock, metrics };
    (State::new(parts, Heartbeat::default()), house)
}

fn publish(engine: &mut State, topic: &str, payload: &str, ticket: Option<Ticket>) {
    let payload = bytes::Bytes::copy_from_slice(payload.as_bytes());
    let message = Message { client: "c".into(), topic: topic.into(), payload, qos: QoS::AtLeastOnce, retain: false };
    engine.on_inbound(Inbound { message, received: Duration::ZERO, ticket });
}

/// Fills the commit queue with events.
fn fill(engine: &mut State) {
    let refused =
        |engine: &State| engine.parts.metrics.refused.get_or_create(&Reason { reason: "commit_queue_full" }).get();
    while refused(engine) == 0 {
        publish(engine, "d/x/event", "0123456789", None);
    }
}

fn small() -> QueueOptions {
    QueueOptions { commit_queue_bytes_max: 1500, ..options() }
}

#[tokio::test]
async fn a_later_transition_never_overtakes_one_that_found_no_room() {
    let (mut engine, mut house) = still(&small()).await;
    fill(&mut engine);
    publish(&mut engine, "d/a/state", r#"{"t":99}"#, None);
    assert!(house.commit(), "now there is room");
    publish(&mut engine, "d/a/state", r#"{"t":1}"#, None);
    engine.on_time();
    assert!(house.commit());
    let newest = house.fifo.get(Lane::Alert, &key("Hot.a")).unwrap();
    let newest: crate::model::Alert = serde_json::from_slice(&newest.body).unwrap();
    assert_eq!(newest.id, "Hot/a/2", "the alert is resolved, and so it stays");
}

#[tokio::test]
async fn a_message_sent_once_more_is_not_acknowledged_while_its_transition_waits_for_room() {
    let (mut engine, mut house) = still(&small()).await;
    publish(&mut engine, "d/a/state", r#"{"t":10}"#, None);
    fill(&mut engine);
    for _ in 0..2 {
        let (ticket, verdict) = Ticket::loose();
        publish(&mut engine, "d/a/state", r#"{"t":99}"#, Some(ticket));
        assert_eq!(verdict(), Some(Verdict::Refused));
    }
    assert!(house.commit());
    let (ticket, verdict) = Ticket::loose();
    publish(&mut engine, "d/a/state", r#"{"t":99}"#, Some(ticket));
    assert!(matches!(verdict(), Some(Verdict::Stored { .. })));
    assert!(house.commit());
    assert!(house.fifo.get(Lane::Alert, &key("Hot.a")).is_some());
}

#[tokio::test]
async fn a_transition_that_never_finds_room_is_counted_and_holds_nobody_up() {
    let (mut engine, mut house) = still(&QueueOptions { keys_max: 1, ..options() }).await;
    for device in ["a", "b"] {
        publish(&mut engine, &format!("d/{device}/event"), r#"{"t":99}"#, None);
    }
    publish(&mut engine, "d/a/event", r#"{"t":1}"#, None);
    assert!(house.commit());
    assert!(engine.backlog.is_empty());
    assert_eq!(house.metrics.queue_dropped.get_or_create(&Lane::Alert.into()).get(), 1);
    assert_eq!(house.fifo.stats().alerts, 1);
}

#[tokio::test]
async fn a_refusal_is_warned_of_once_a_minute_whatever_finds_room_in_between() {
    let (mut engine, house) = still(&small()).await;
    assert!(engine.may_warn("keys_max"));
    publish(&mut engine, "d/a/state", r#"{"t":1}"#, None);
    assert!(!engine.may_warn("keys_max"), "a line a message fills the log, which lies on the same disk");
    assert!(engine.may_warn("too_large"));
    house.clock.advance(Duration::from_mins(1));
    assert!(engine.may_warn("keys_max"));
}
