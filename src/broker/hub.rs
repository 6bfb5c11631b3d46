//! What all connections share: who is connected, who subscribed, what is retained. Locks are held for microseconds and
//! never across a wait, so that the engine's thread may publish through here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::Semaphore;
use tracing::warn;

use super::cause::Cause;
use super::outbound::{Delivery, Outbound, Outgoing};
use super::retained::{Next, Replay, Retained};
use super::session::{Offered, Session};
use super::tree::{Grant, Target, Tree};
use crate::config;
use crate::model::Millis;
use crate::runtime::clock::Clock;
use crate::runtime::metrics::{Metrics, Reason};

/// Bytes that may wait for one subscriber beyond one packet of the largest size.
const OUTBOUND_BYTES: usize = 4 << 20;

/// Publishes of all clients that may wait for an acknowledgement beyond `inflight_max`: some 50 MB.
const BEYOND_MAX: usize = 1 << 20;

/// The shared core. It holds no end of the engine's channel: the engine itself holds an `Alerter`.
pub(super) struct Hub {
    /// `[broker]`.
    pub(super) options: config::Broker,
    /// For latencies and rate limits.
    pub(super) clock: Arc<dyn Clock>,
    /// Counters.
    pub(super) metrics: Arc<Metrics>,
    /// Rate limit of the warning about retained messages beyond their bound.
    retained_warning: Throttle,
    /// Rate limit of the line about MQTT 3.1.1 clients that do what it has no refusal for.
    pub(super) refusal_warning: Throttle,
    /// Rate limit of the line about what is no MQTT.
    pub(super) stranger_warning: Throttle,
    /// Places for publishes that wait for their acknowledgement beyond their client's `inflight_max`.
    pub(super) beyond: Arc<Semaphore>,
    tree: RwLock<Tree>,
    retained: RwLock<Retained>,
    clients: Mutex<HashMap<Arc<str>, Arc<Session>>>,
    connections: AtomicU64,
    /// Beginning of assigned client ids, another one at each start.
    seed: String,
}

impl Hub {
    /// An empty hub.
    pub(super) fn new(options: config::Broker, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        let retained = Retained::new(options.retained_max, bytes(options.retained_bytes_max));
        let seed = format!("tidegate-{:x}-{:x}", clock.wall().unix_ms, clock.ticks().as_nanos());
        Self {
            options,
            clock,
            metrics,
            retained_warning: Throttle::default(),
            refusal_warning: Throttle::default(),
            stranger_warning: Throttle::default(),
            beyond: Arc::new(Semaphore::new(BEYOND_MAX)),
            tree: RwLock::default(),
            retained: RwLock::new(retained),
            clients: Mutex::default(),
            connections: AtomicU64::new(1),
            seed,
        }
    }

    /// Largest packet that is taken.
    pub(super) fn packet_bytes_max(&self) -> usize {
        bytes(self.options.packet_bytes_max)
    }

    /// A number for a new connection.
    pub(super) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    /// A client id for a client without one.
    pub(super) fn assign_client_id(&self, connection: u64) -> String {
        format!("{}-{connection}", self.seed)
    }

    /// Keeps what is to be retained and hands the message to all who subscribed. True if a subscriber's queue fills
    /// up, so that the publisher had better let others run. Never waits.
    pub(super) fn publish(&self, delivery: &Arc<Delivery>) -> bool {
        if delivery.retain {
            self.retain(delivery);
        }
        let targets = read(&self.tree).targets(&delivery.topic, delivery.origin);
        let mut is_crowded = false;
        for target in targets {
            is_crowded |= self.deliver(delivery, &target);
        }
        is_crowded
    }

    /// Registers a connection. The one that had the client id before is returned, and must be waited for.
    pub(super) fn enter(
        &self,
        id: u64,
        client: Arc<str>,
        will: Option<Arc<Delivery>>,
    ) -> (Arc<Session>, Option<Arc<Session>>) {
        let outbound = Outbound::new(self.options.outbound_max, OUTBOUND_BYTES + self.packet_bytes_max());
        let session = Arc::new(Session::new(id, Arc::clone(&client), outbound, will));
        let former = lock(&self.clients).insert(client, Arc::clone(&session));
        if let Some(former) = &former {
            former.kick(Cause::TakenOver);
        }
        (session, former)
    }

    /// Takes a connection out; its client id is free unless another one has it already.
    pub(super) fn leave(&self, session: &Session) {
        let mut clients = lock(&self.clients);
        if clients.get(&session.client).is_some_and(|current| current.id == session.id) {
            clients.remove(&session.client);
        }
        drop(clients);
        session.gone.cancel();
    }

    /// True if a client of this id is connected.
    pub(super) fn is_connected(&self, client: &str) -> bool {
        lock(&self.clients).contains_key(client)
    }

    /// Ends the connection of a client id, if there is one.
    pub(super) fn kick(&self, client: &str, cause: Cause) {
        if let Some(session) = lock(&self.clients).get(client) {
            session.kick(cause);
        }
    }

    /// Adds or replaces a subscription; true if it is new.
    pub(super) fn subscribe(&self, filter: &str, session: &Arc<Session>, grant: Grant) -> bool {
        write(&self.tree).insert(filter, session, grant)
    }

    /// Ends a subscription.
    pub(super) fn unsubscribe(&self, filter: &str, session: &Session) {
        write(&self.tree).remove(filter, session.id);
    }

    /// Starts a replay of retained messages for a subscription that has just been added.
    pub(super) fn replay(&self, filter: &str) -> Replay {
        read(&self.retained).replay(filter)
    }

    /// The next retained message of a replay.
    pub(super) fn next_retained(&self, replay: &Replay) -> Next {
        read(&self.retained).next(replay)
    }

    /// Counts a delivery that did not happen.
    pub(super) fn count_dropped(&self, reason: &'static str) {
        self.metrics.deliveries_dropped.get_or_create(&Reason { reason }).inc();
    }

    /// Counts a connection that was refused or ended by the gateway.
    pub(super) fn count_closed(&self, cause: Cause) {
        self.metrics.connections_closed.get_or_create(&Reason { reason: cause.label() }).inc();
    }

    fn retain(&self, delivery: &Arc<Delivery>) {
        let mut retained = write(&self.retained);
        let is_kept = retained.set(delivery);
        self.metrics.retained.set(i64::try_from(retained.len()).unwrap_or(i64::MAX));
        drop(retained);
        if !is_kept {
            self.count_dropped("retained_max");
            if self.retained_warning.allow(self.clock.now()) {
                warn!(topic = %delivery.topic, "retained messages have reached broker.retained_max or retained_bytes_max; not retained");
            }
        }
    }

    fn deliver(&self, delivery: &Arc<Delivery>, target: &Target) -> bool {
        let Target { session, grant } = target;
        let outgoing = Outgoing {
            delivery: Arc::clone(delivery),
            qos: delivery.qos.min(grant.qos),
            retain: delivery.retain && grant.retain_as_published,
        };
        match session.offer(outgoing) {
            Offered::Queued { crowded } => crowded,
            Offered::Dropped => {
                self.count_dropped("slow_subscriber");
                true
            }
            Offered::Overrun { first } => {
                self.count_dropped("slow_subscriber");
                if first {
                    warn!(client = %session.client, "a QoS 1 subscriber does not keep up; it is disconnected");
                }
                true
            }
        }
    }
}

/// Lets a line through once a minute.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Gateway time in milliseconds from which on the next one may pass.
    next: AtomicU64,
}

impl Throttle {
    const PAUSE_MS: u64 = 60_000;

    /// True if the line may be written.
    pub(super) fn allow(&self, now: Millis) -> bool {
        let pass = |next: u64| (next <= now.0).then_some(now.0.saturating_add(Self::PAUSE_MS));
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pass).is_ok()
    }
}

/// Locks; what a thread that panicked left behind is used as it is: each change under these locks is whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn bytes(size: config::ByteSize) -> usize {
    usize::try_from(size.0).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
pub(super) mod tests {
    use super::super::outbound::tests::delivery;
    use super::*;
    use crate::model::QoS;
    use crate::runtime::clock::ManualClock;

    /// A hub that stands still.
    pub(in super::super) fn hub(options: config::Broker) -> Arc<Hub> {
        Arc::new(Hub::new(options, Arc::new(ManualClock::default()), Arc::new(Metrics::new())))
    }

    const GRANT: Grant = Grant { qos: QoS::AtLeastOnce, no_local: false, retain_as_published: false };

    #[test]
    fn a_line_passes_once_a_minute() {
        let throttle = Throttle::default();
        let passed = [0, 1, 59_999, 60_000, 60_001].map(|ms| throttle.allow(Millis(ms)));
        assert_eq!(passed, [true, false, false, true, false]);
    }

    #[test]
    fn a_taken_client_id_stays_with_the_newer_connection() {
        let hub = hub(config::Broker::default());
        let (first, none) = hub.enter(1, "c".into(), None);
        let (second, former) = hub.enter(2, "c".into(), None);
        assert!(none.is_none() && former.is_some_and(|former| former.id == first.id));
        assert_eq!(first.kicked(), Some(Cause::TakenOver));
        hub.leave(&first);
        assert!(first.gone.is_cancelled() && hub.is_connected("c"));
        hub.leave(&second);
        assert!(!hub.is_connected("c"));
    }

    #[test]
    fn a_delivery_has_the_lower_qos_and_a_cleared_retain_flag() {
        let hub = hub(config::Broker::default());
        let (session, _) = hub.enter(1, "c".into(), None);
        hub.subscribe("a", &session, GRANT);
        for (sent, got) in [(QoS::AtMostOnce, QoS::AtMostOnce), (QoS::AtLeastOnce, QoS::AtLeastOnce)] {
            hub.publish(&delivery("a", "1", sent));
            let outgoing = session.outbound.pop(true).unwrap();
            assert_eq!((outgoing.qos, outgoing.retain), (got, false));
        }
        hub.subscribe("a", &session, Grant { qos: QoS::AtMostOnce, retain_as_published: true, ..GRANT });
        hub.publish(&delivery("a", "1", QoS::AtLeastOnce));
        let outgoing = session.outbound.pop(true).unwrap();
        assert_eq!((outgoing.qos, outgoing.retain), (QoS::AtMostOnce, true));
    }

    #[test]
    fn what_is_dropped_is_counted() {
        let hub = hub(config::Broker { outbound_max: 1, retained_max: 0, ..config::Broker::default() });
        let (session, _) = hub.enter(1, "c".into(), None);
        hub.subscribe("a", &session, GRANT);
        hub.publish(&delivery("a", "1", QoS::AtMostOnce));
        hub.publish(&delivery("a", "1", QoS::AtMostOnce));
        let text = hub.metrics.encode();
        assert!(text.contains("tidegate_mqtt_deliveries_dropped_total{reason=\"slow_subscriber\"} 1"), "{text}");
        assert!(text.contains("tidegate_mqtt_deliveries_dropped_total{reason=\"retained_max\"} 2"), "{text}");
    }
}
