//! The load of one measurement: devices on rumqttc, given their messages by a thread that keeps the time, and one
//! subscriber.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rumqttc::{AsyncClient, Event, EventLoop, Incoming, MqttOptions, Outgoing, QoS};
use serde_json::Value;
use tokio::sync::Notify;

/// Messages before the measurement begins, in seconds.
const WARM_UP: u32 = 2;

/// One message in so many is marked: it switches the alert of its device, and is what the subscriber waits for.
const MARK_EVERY: u64 = 10;

/// Acknowledgements and alerts of the last messages have so long.
const LINGER: Duration = Duration::from_secs(2);

/// How much is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Devices, each with a connection of its own.
    pub(crate) devices: usize,
    /// Messages a second of all together.
    pub(crate) rate: u32,
    /// Length without the warm-up.
    pub(crate) seconds: u32,
}

/// What one measurement gave; times in microseconds.
pub(crate) struct Figures {
    /// From when a marked message was due to the subscriber.
    pub(crate) alert: Histogram<u64>,
    /// From when a message was due to its PUBACK.
    pub(crate) ack: Histogram<u64>,
    /// Messages that were not acknowledged, or marked ones that never arrived.
    pub(crate) missing: usize,
    /// CPU of the broker, as a share of one core.
    pub(crate) cpu: f64,
    /// Wall time.
    pub(crate) took: Duration,
}

/// What the clients share.
struct Board {
    measured_from: Instant,
    /// Marked messages that the subscriber has not got, by device and value.
    waiting: Mutex<HashMap<(String, u64), Instant>>,
    alert: Mutex<Histogram<u64>>,
    ack: Mutex<Histogram<u64>>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("fixed bounds")
}

impl Board {
    fn record(&self, histogram: &Mutex<Histogram<u64>>, due: Instant) {
        if due >= self.measured_from {
            let micros = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
            histogram.lock().expect("nobody panics while holding it").saturating_record(micros);
        }
    }

    /// A marked message, or the alert that it made, has arrived.
    fn arrived(&self, device: &str, value: u64) {
        let due = self.waiting.lock().expect("nobody panics while holding it").remove(&(device.to_owned(), value));
        if let Some(due) = due {
            self.record(&self.alert, due);
        }
    }
}

impl Load {
    /// Runs it against a broker; `filter` is where the subscriber waits.
    pub(crate) fn run(self, broker: SocketAddr, filter: &str) -> Figures {
        let from = Instant::now();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let board = Arc::new(Board {
            measured_from: from + Duration::from_secs(1 + u64::from(WARM_UP)),
            waiting: Mutex::default(),
            alert: histogram().into(),
            ack: histogram().into(),
        });
        let (granted, unacked) = (Arc::new(Notify::new()), Arc::new(Mutex::new(0_usize)));
        runtime.spawn(subscribe(
            connect("bench-subscriber", broker),
            filter.to_owned(),
            board.clone(),
            granted.clone(),
        ));
        runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(5), granted.notified()).await })
            .expect("SUBACK");
        let mut lines = Vec::new();
        for device in 0..self.devices {
            let (client, connection) = connect(&format!("bench-{device}"), broker);
            let dues = Arc::new(Mutex::new(std::collections::VecDeque::new()));
            runtime.spawn(acknowledge(connection, dues.clone(), board.clone(), unacked.clone()));
            lines.push((client, dues));
        }
        self.publish(from + Duration::from_secs(1), &lines, &board, &unacked);
        let end = Instant::now() + LINGER;
        let missing = || *unacked.lock().expect("unpoisoned") + board.waiting.lock().expect("unpoisoned").len();
        while missing() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let missing = missing();
        runtime.shutdown_timeout(Duration::from_secs(1));
        let alert = board.alert.lock().expect("unpoisoned").clone();
        let ack = board.ack.lock().expect("unpoisoned").clone();
        Figures { alert, ack, missing, cpu: 0.0, took: from.elapsed() }
    }

    /// Gives each message to its client when it is due.
    fn publish(self, start: Instant, lines: &[(AsyncClient, Dues)], board: &Board, unacked: &Mutex<usize>) {
        let count = u64::from(self.rate) * u64::from(self.seconds + WARM_UP);
        let period = Duration::from_secs(1) / self.rate;
        let mut high = vec![false; self.devices];
        for k in 0..count {
            let due = start + period * u32::try_from(k).expect("a measurement is short");
            let device = usize::try_from(k).expect("a measurement is short") % self.devices;
            // Another device's turn each time, also where both numbers have a common factor; never a device's first,
            // which takes back what an earlier measurement left.
            let turn = k + k / (MARK_EVERY * self.devices as u64);
            let marked = k >= self.devices as u64 && turn.is_multiple_of(MARK_EVERY);
            let name = format!("dev-{device}");
            if marked {
                high[device] = !high[device];
            }
            let value = k % 1_000_000 + if high[device] { 1_000_000 } else { 0 };
            let topic = format!("dev/{name}/{}", if marked { "mark" } else { "state" });
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if marked {
                board.waiting.lock().expect("unpoisoned").insert((name, value), due);
            }
            *unacked.lock().expect("unpoisoned") += 1;
            let (client, dues) = &lines[device];
            dues.lock().expect("unpoisoned").push_back(due);
            client
                .try_publish(topic, QoS::AtLeastOnce, false, format!(r#"{{"v":{value}}}"#))
                .expect("the client keeps up");
        }
    }
}

/// When the messages of a client that are not acknowledged yet were due, in order.
type Dues = Arc<Mutex<std::collections::VecDeque<Instant>>>;

/// Drives one device's connection.
async fn acknowledge(mut connection: EventLoop, dues: Dues, board: Arc<Board>, unacked: Arc<Mutex<usize>>) {
    loop {
        match connection.poll().await.expect("the broker keeps the connection") {
            // Both brokers acknowledge in order.
            Event::Incoming(Incoming::PubAck(_)) => {
                let due = dues.lock().expect("unpoisoned").pop_front().expect("only what was sent is acknowledged");
                board.record(&board.ack, due);
                *unacked.lock().expect("unpoisoned") -= 1;
            }
            Event::Outgoing(Outgoing::Disconnect) => return,
            _ => {}
        }
    }
}

async fn subscribe(
    (client, mut connection): (AsyncClient, EventLoop),
    filter: String,
    board: Arc<Board>,
    granted: Arc<Notify>,
) {
    client.try_subscribe(filter, QoS::AtLeastOnce).expect("a new client has room");
    loop {
        match connection.poll().await.expect("the broker keeps the connection") {
            Event::Incoming(Incoming::SubAck(_)) => granted.notify_one(),
            Event::Incoming(Incoming::Publish(publish)) if !publish.retain => {
                let json: Value = serde_json::from_slice(&publish.payload).expect("JSON");
                // An alert has the value that decided; a plain message is as it was sent.
                let (device, value) = match json["device"].as_str() {
                    Some(device) => (device.to_owned(), json["value"].as_u64()),
                    None => (publish.topic.split('/').nth(1).unwrap_or_default().to_owned(), json["v"].as_u64()),
                };
                board.arrived(&device, value.expect("a number"));
            }
            _ => {}
        }
    }
}

fn connect(id: &str, broker: SocketAddr) -> (AsyncClient, EventLoop) {
    let mut options = MqttOptions::new(id, broker.ip().to_string(), broker.port());
    options.set_keep_alive(Duration::from_secs(30));
    // Open loop: the client must never be what waits.
    options.set_inflight(60_000);
    let (client, mut connection) = AsyncClient::new(options, 60_000);
    let mut network = connection.network_options();
    network.set_tcp_nodelay(true);
    connection.set_network_options(network);
    (client, connection)
}
