//! MQTT clients of the tests: publishers that remember what was acknowledged, and a subscriber that remembers what it
//! saw.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use rumqttc::{AsyncClient, ConnectionError, Event, EventLoop, Incoming, MqttOptions, Outgoing, QoS};
use tokio::sync::Notify;

/// Messages that a publisher has under way without an acknowledgement.
pub(crate) const WINDOW: usize = 20;

/// A new try after a broken connection.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A message of a client's life.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// MQTT topic.
    pub(crate) topic: String,
    /// Payload.
    pub(crate) payload: String,
    /// When it is sent, after the start.
    pub(crate) due: Duration,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    /// When it was first given to the network, after the start.
    pub(crate) sent: Option<Duration>,
    /// When its acknowledgement came.
    pub(crate) acked: Option<Duration>,
}

/// One client's messages in order, and what became of each.
pub(crate) struct Life {
    /// The client's id.
    pub(crate) client: String,
    /// Its messages.
    pub(crate) messages: Vec<Message>,
    start: Instant,
    marks: Mutex<Vec<Mark>>,
}

impl Life {
    /// A life that begins at `start`.
    pub(crate) fn new(client: &str, messages: Vec<Message>, start: Instant) -> Self {
        let marks = Mutex::new(vec![Mark::default(); messages.len()]);
        Self { client: client.to_owned(), messages, start, marks }
    }

    /// Message `index` goes out.
    pub(crate) fn sent(&self, index: usize) {
        let now = self.start.elapsed();
        self.lock()[index].sent.get_or_insert(now);
    }

    /// Message `index` was acknowledged.
    pub(crate) fn acked(&self, index: usize) {
        let now = self.start.elapsed();
        self.lock()[index].acked.get_or_insert(now);
    }

    /// Time until message `index` is due.
    pub(crate) fn until(&self, index: usize) -> Duration {
        self.messages.get(index).map_or(Duration::MAX, |message| message.due.saturating_sub(self.start.elapsed()))
    }

    /// What became of every message so far.
    pub(crate) fn marks(&self) -> Vec<Mark> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Mark>> {
        self.marks.lock().expect("nobody panics while holding it")
    }
}

/// Publishes a whole life with QoS 1 and a clean session: each message when it is due, in order, at most [`WINDOW`]
/// under way; after a broken connection everything without an acknowledgement once more, in order.
pub(crate) async fn publish(life: Arc<Life>, broker: SocketAddr) {
    let mut next = 0;
    while next < life.messages.len() {
        let (client, mut connection) = connect(&life.client, broker);
        let mut line =
            Line { life: &life, client, connected: false, next, given: VecDeque::new(), flying: VecDeque::new() };
        let ended = line.work(&mut connection).await;
        next = line.first_open();
        if ended.is_err() {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

/// One connection of a publisher.
struct Line<'a> {
    life: &'a Life,
    client: AsyncClient,
    connected: bool,
    /// The first message that was not given to this connection.
    next: usize,
    /// Given to the client library, without a packet id yet.
    given: VecDeque<usize>,
    /// On the wire, by packet id, in order.
    flying: VecDeque<(u16, usize)>,
}

impl Line<'_> {
    /// Works until all is acknowledged, or the connection breaks.
    async fn work(&mut self, connection: &mut EventLoop) -> Result<(), ConnectionError> {
        loop {
            self.fill();
            if self.first_open() == self.life.messages.len() {
                return self.hang_up(connection).await;
            }
            let has_room = self.connected && self.given.len() + self.flying.len() < WINDOW;
            let wait = if has_room { self.life.until(self.next) } else { Duration::MAX };
            let event = tokio::select! {
                event = connection.poll() => event?,
                () = tokio::time::sleep(wait.min(Duration::from_mins(1))) => continue,
            };
            self.on_event(&event);
        }
    }

    /// Hands over what is due and fits into the window.
    fn fill(&mut self) {
        while self.connected && self.given.len() + self.flying.len() < WINDOW && self.life.until(self.next).is_zero() {
            let message = &self.life.messages[self.next];
            if self.client.try_publish(&message.topic, QoS::AtLeastOnce, false, message.payload.as_bytes()).is_err() {
                return;
            }
            self.life.sent(self.next);
            self.given.push_back(self.next);
            self.next += 1;
        }
    }

    fn on_event(&mut self, event: &Event) {
        match event {
            Event::Incoming(Incoming::ConnAck(_)) => self.connected = true,
            Event::Outgoing(Outgoing::Publish(id)) => {
                let index = self.given.pop_front().expect("only what was given goes out");
                self.flying.push_back((*id, index));
            }
            Event::Incoming(Incoming::PubAck(ack)) => {
                let (id, index) = self.flying.pop_front().expect("only what went out is acknowledged");
                assert_eq!(ack.pkid, id, "{}: acknowledgements come in the order of the messages", self.life.client);
                self.life.acked(index);
            }
            _ => {}
        }
    }

    /// The first message without an acknowledgement.
    fn first_open(&self) -> usize {
        let flying = self.flying.front().map(|(_, index)| *index);
        flying.or(self.given.front().copied()).unwrap_or(self.next)
    }

    async fn hang_up(&mut self, connection: &mut EventLoop) -> Result<(), ConnectionError> {
        self.client.try_disconnect().expect("an idle client has room for a request");
        loop {
            match connection.poll().await {
                Ok(Event::Outgoing(Outgoing::Disconnect)) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
        }
    }
}

/// A message as a subscriber saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Wall time, seconds since 1970.
    pub(crate) at: f64,
    /// It was kept by the broker, and came at the subscription.
    pub(crate) retained: bool,
    /// MQTT topic.
    pub(crate) topic: String,
    /// Payload.
    pub(crate) payload: String,
}

/// What a subscriber saw so far, and when it was subscribed.
#[derive(Default)]
pub(crate) struct Inbox {
    seen: Mutex<Vec<Seen>>,
    subscribed: Mutex<Vec<f64>>,
    granted: Notify,
}

impl Inbox {
    /// Everything seen so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("nobody panics while holding it").clone()
    }

    /// Wall times of all granted subscriptions.
    pub(crate) fn subscribed(&self) -> Vec<f64> {
        self.subscribed.lock().expect("nobody panics while holding it").clone()
    }

    /// Waits for the first subscription.
    pub(crate) async fn ready(&self) {
        tokio::time::timeout(Duration::from_secs(10), self.granted.notified()).await.expect("the broker grants it");
    }
}

/// Subscribes with QoS 1 and a clean session, again after each broken connection; ends with its task.
pub(crate) async fn subscribe(client_id: &str, filter: &str, broker: SocketAddr, inbox: Arc<Inbox>) {
    loop {
        let (client, mut connection) = connect(client_id, broker);
        while let Ok(event) = connection.poll().await {
            match event {
                Event::Incoming(Incoming::ConnAck(_)) => {
                    client.try_subscribe(filter, QoS::AtLeastOnce).expect("an idle client has room for a request");
                }
                Event::Incoming(Incoming::SubAck(_)) => {
                    inbox.subscribed.lock().expect("nobody panics while holding it").push(unix_now());
                    inbox.granted.notify_one();
                }
                Event::Incoming(Incoming::Publish(publish)) => {
                    let payload = String::from_utf8_lossy(&publish.payload).into_owned();
                    let seen = Seen { at: unix_now(), retained: publish.retain, topic: publish.topic, payload };
                    inbox.seen.lock().expect("nobody panics while holding it").push(seen);
                }
                _ => {}
            }
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

fn connect(client_id: &str, broker: SocketAddr) -> (AsyncClient, EventLoop) {
    let mut options = MqttOptions::new(client_id, broker.ip().to_string(), broker.port());
    options.set_keep_alive(Duration::from_secs(10));
    options.set_clean_session(true);
    options.set_inflight(WINDOW as u16);
    options.set_max_packet_size(256 * 1024, 256 * 1024);
    let (client, mut connection) = AsyncClient::new(options, 2 * WINDOW);
    let mut network = connection.network_options();
    network.set_tcp_nodelay(true);
    network.set_connection_timeout(5);
    connection.set_network_options(network);
    (client, connection)
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970").as_secs_f64()
}
