//! One device with its own MQTT connection: open loop, acknowledged one by one, events sent again after a break.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rumqttc::{AsyncClient, Event, EventLoop, Incoming, MqttOptions, Outgoing as Out, QoS};
use tokio_util::sync::CancellationToken;

use super::device::{Device, Kind, Outgoing};
use super::stats::{Seen, Stats};
use crate::runtime::clock::Clock;

/// Publishes that a device may have under way; the client library waits beyond its own window.
const WINDOW: u16 = 64;

/// Messages that wait for the connection; older readings are dropped first, as a device's small memory does.
const WAITING_MAX: usize = 1000;

/// A new try after a broken connection.
const RECONNECT_AFTER: Duration = Duration::from_millis(300);

/// What is under way at the end of a device's life has so long to be acknowledged.
const GRACE: Duration = Duration::from_secs(10);

/// When a device sends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Ticks at which the device's life begins.
    pub(super) start: Duration,
    /// First message after the start.
    pub(super) offset: Duration,
    /// From one message to the next.
    pub(super) period: Duration,
    /// Length of its life.
    pub(super) span: Duration,
}

/// A message and when it was due.
struct Sent {
    message: Outgoing,
    due: Duration,
}

/// Publishes a device's messages until its life is over, or `stop`, and then waits for the last acknowledgements.
pub(super) async fn publish(
    mut device: Device,
    broker: (String, u16),
    pace: Pace,
    stats: Arc<Stats>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let (client, mut connection) = connect(device.name(), broker);
    let mut line = Line {
        client,
        stats,
        clock,
        connected: false,
        waiting: VecDeque::new(),
        flying: VecDeque::new(),
        acks: HashMap::new(),
    };
    let mut count = 0_u64;
    loop {
        let due = pace.offset + pace.period.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        let over = due >= pace.span || stop.is_cancelled();
        if over && line.is_idle() {
            break;
        }
        let now = line.clock.ticks();
        if over && now > pace.start + pace.span + GRACE {
            break;
        }
        let wait = if over { Duration::from_millis(100) } else { (pace.start + due).saturating_sub(now) };
        // A poll that is dropped while it connects leaves half a connection, and the next one takes it over: no timer
        // runs beside it, and what fell due meanwhile is given after it.
        let is_due = if line.connected {
            tokio::select! {
                event = connection.poll() => {
                    line.on_event(device.name(), event).await;
                    false
                }
                () = tokio::time::sleep(wait) => !over,
                () = stop.cancelled(), if !over => false,
            }
        } else if !over && wait.is_zero() {
            true
        } else {
            tokio::select! {
                event = connection.poll() => line.on_event(device.name(), event).await,
                () = stop.cancelled(), if !over => {}
            }
            false
        };
        if is_due {
            let message = device.next(due.as_secs_f64(), count);
            count += 1;
            line.give(device.name(), Sent { message, due: pace.start + due });
        }
        line.send();
    }
    line.hang_up(&mut connection).await;
}

/// Follows all alerts until `stop`; `subscribed` is cancelled when the broker has granted the subscription.
pub(super) async fn subscribe(
    broker: (String, u16),
    stats: Arc<Stats>,
    clock: Arc<dyn Clock>,
    subscribed: CancellationToken,
    stop: CancellationToken,
) {
    let (client, mut connection) = connect("sim-subscriber", broker);
    loop {
        let event = tokio::select! {
            event = connection.poll() => event,
            () = stop.cancelled() => return,
        };
        match event {
            Ok(Event::Incoming(Incoming::ConnAck(_))) => {
                drop(client.try_subscribe("tidegate/alerts/#", QoS::AtLeastOnce));
            }
            Ok(Event::Incoming(Incoming::SubAck(_))) => subscribed.cancel(),
            Ok(Event::Incoming(Incoming::Publish(publish))) if !publish.retain => {
                let now = clock.ticks();
                if let Some(seen) = seen(&publish.payload) {
                    stats.lock().alert(seen, now);
                }
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(RECONNECT_AFTER).await,
        }
    }
}

/// One connection with what is on its way.
struct Line {
    client: AsyncClient,
    stats: Arc<Stats>,
    clock: Arc<dyn Clock>,
    connected: bool,
    waiting: VecDeque<Sent>,
    /// Given to the client library, no packet id yet.
    flying: VecDeque<Sent>,
    /// Written, not acknowledged, by packet id.
    acks: HashMap<u16, Sent>,
}

impl Line {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.flying.is_empty() && self.acks.is_empty()
    }

    fn give(&mut self, device: &str, sent: Sent) {
        let mut counts = self.stats.lock();
        counts.readings += 1;
        if sent.message.kind == Kind::Crossing {
            counts.crossed(device, sent.due);
        }
        drop(counts);
        if self.waiting.len() >= WAITING_MAX {
            let reading = self.waiting.iter().position(|old| !matches!(old.message.kind, Kind::Event(_)));
            drop(self.waiting.remove(reading.unwrap_or(0)));
        }
        self.waiting.push_back(sent);
    }

    fn send(&mut self) {
        while self.connected && self.flying.len() < usize::from(WINDOW) {
            let Some(sent) = self.waiting.pop_front() else { return };
            let Outgoing { topic, payload, .. } = &sent.message;
            if self.client.try_publish(topic.as_str(), QoS::AtLeastOnce, false, payload.as_bytes()).is_err() {
                self.waiting.push_front(sent);
                return;
            }
            self.flying.push_back(sent);
        }
    }

    async fn on_event(&mut self, device: &str, event: Result<Event, rumqttc::ConnectionError>) {
        match event {
            Ok(Event::Incoming(Incoming::ConnAck(_))) => self.connected = true,
            Ok(Event::Outgoing(Out::Publish(id))) => {
                if let Some(sent) = self.flying.pop_front() {
                    self.acks.insert(id, sent);
                }
            }
            Ok(Event::Incoming(Incoming::PubAck(ack))) => {
                let Some(sent) = self.acks.remove(&ack.pkid) else { return };
                let mut counts = self.stats.lock();
                counts.acknowledge(sent.due, self.clock.ticks());
                if let Kind::Event(n) = sent.message.kind {
                    counts.events.insert((device.to_owned(), n));
                }
            }
            Ok(_) => {}
            Err(_) => {
                self.on_break();
                tokio::time::sleep(RECONNECT_AFTER).await;
            }
        }
    }

    /// The library forgets what was under way; events are sent again, readings are old by now.
    fn on_break(&mut self) {
        self.stats.lock().breaks += u64::from(self.connected);
        self.connected = false;
        let mut again: Vec<_> = self.acks.drain().map(|(_, sent)| sent).chain(self.flying.drain(..)).collect();
        again.retain(|sent| matches!(sent.message.kind, Kind::Event(_)));
        again.sort_by_key(|sent| sent.due);
        for sent in again.into_iter().rev() {
            self.waiting.push_front(sent);
        }
    }

    async fn hang_up(&mut self, connection: &mut EventLoop) {
        drop(self.client.try_disconnect());
        while self.connected {
            match tokio::time::timeout(RECONNECT_AFTER, connection.poll()).await {
                Ok(Ok(Event::Outgoing(Out::Disconnect)) | Err(_)) | Err(_) => self.connected = false,
                Ok(Ok(_)) => {}
            }
        }
    }
}

fn connect(id: &str, (host, port): (String, u16)) -> (AsyncClient, EventLoop) {
    let mut options = MqttOptions::new(id, host, port);
    options.set_keep_alive(Duration::from_secs(10));
    options.set_clean_session(true);
    options.set_inflight(WINDOW);
    options.set_max_packet_size(256 * 1024, 256 * 1024);
    let (client, mut connection) = AsyncClient::new(options, usize::from(WINDOW));
    let mut network = connection.network_options();
    network.set_tcp_nodelay(true);
    network.set_connection_timeout(5);
    connection.set_network_options(network);
    (client, connection)
}

fn seen(payload: &[u8]) -> Option<Seen> {
    let alert: crate::model::Alert = serde_json::from_slice(payload).ok()?;
    Some(Seen {
        alert: alert.alert.to_string(),
        device: alert.device.to_string(),
        state: alert.state.to_string(),
        latency: None,
    })
}
