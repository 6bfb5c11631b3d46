//! The shared face of one connection: what other threads may do to it.

use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::cause::Cause;
use super::hub::lock;
use super::outbound::{Delivery, Outbound, Outgoing, Pushed};
use crate::model::QoS;

/// A session; all are clean ones, so that it lives as long as its connection.
#[derive(Debug)]
pub(super) struct Session {
    /// Number of the connection; unique in this process.
    pub(super) id: u64,
    /// Client id.
    pub(super) client: Arc<str>,
    /// What waits for the client.
    pub(super) outbound: Outbound,
    /// Wakes the connection's task: a delivery, a settled ticket, a kick.
    pub(super) wake: Arc<Notify>,
    /// Cancelled when nothing of this session will be routed any more.
    pub(super) gone: CancellationToken,
    kicked: OnceLock<Cause>,
    will: Mutex<Option<Arc<Delivery>>>,
}

impl Session {
    /// A session with its will.
    pub(super) fn new(id: u64, client: Arc<str>, outbound: Outbound, will: Option<Arc<Delivery>>) -> Self {
        Self {
            id,
            client,
            outbound,
            wake: Arc::new(Notify::new()),
            gone: CancellationToken::new(),
            kicked: OnceLock::new(),
            will: Mutex::new(will),
        }
    }

    /// A session that only has a number.
    #[cfg(test)]
    pub(super) fn for_tests(id: u64) -> Self {
        Self::new(id, "test".into(), Outbound::new(10, 1000), None)
    }

    /// Queues a delivery. A QoS 1 message that finds no room ends the connection: it must not be lost silently.
    pub(super) fn offer(&self, outgoing: Outgoing) -> Offered {
        let qos = outgoing.qos;
        match self.outbound.push(outgoing) {
            Pushed::Queued { first, crowded } => {
                if first {
                    self.wake.notify_one();
                }
                Offered::Queued { crowded }
            }
            Pushed::Full if qos == QoS::AtMostOnce => Offered::Dropped,
            Pushed::Full => Offered::Overrun { first: self.kick(Cause::SlowSubscriber) },
        }
    }

    /// Asks the connection to end; the first reason counts. True if this was it.
    pub(super) fn kick(&self, cause: Cause) -> bool {
        let is_first = self.kicked.set(cause).is_ok();
        self.wake.notify_one();
        is_first
    }

    /// Why the connection has to end.
    pub(super) fn kicked(&self) -> Option<Cause> {
        self.kicked.get().copied()
    }

    /// The will, for whoever comes first: it is published once.
    pub(super) fn take_will(&self) -> Option<Arc<Delivery>> {
        lock(&self.will).take()
    }
}

/// What became of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offered {
    /// It waits; `crowded` if more than half of the queue does.
    Queued {
        /// The publisher had better let others run.
        crowded: bool,
    },
    /// QoS 0, and the queue was full.
    Dropped,
    /// QoS 1, and the queue was full.
    Overrun {
        /// The first time for this connection.
        first: bool,
    },
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::super::outbound::tests::delivery;
    use super::*;

    fn outgoing(qos: QoS) -> Outgoing {
        Outgoing { delivery: delivery("t", "1", qos), qos, retain: false }
    }

    #[test]
    fn a_full_queue_drops_qos_0_and_ends_the_connection_for_qos_1() {
        let session = Session::new(1, "c".into(), Outbound::new(1, 100), None);
        assert_eq!(session.offer(outgoing(QoS::AtLeastOnce)), Offered::Queued { crowded: true });
        assert_eq!(session.offer(outgoing(QoS::AtMostOnce)), Offered::Dropped);
        assert_eq!(session.kicked(), None);
        assert_eq!(session.offer(outgoing(QoS::AtLeastOnce)), Offered::Overrun { first: true });
        assert_eq!(session.offer(outgoing(QoS::AtLeastOnce)), Offered::Overrun { first: false });
        assert_eq!(session.kicked(), Some(Cause::SlowSubscriber));
    }

    #[test]
    fn the_first_reason_counts_and_a_will_is_taken_once() {
        let session = Session::new(1, "c".into(), Outbound::new(1, 100), Some(delivery("w", "1", QoS::AtMostOnce)));
        assert!(session.kick(Cause::TakenOver) && !session.kick(Cause::SlowSubscriber));
        assert_eq!(session.kicked(), Some(Cause::TakenOver));
        assert!(session.take_will().is_some() && session.take_will().is_none());
    }
}
