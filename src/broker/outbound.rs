//! What waits for one subscriber, and the packet ids that are under way to it.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rumqttd::protocol::PublishProperties;

use super::hub::lock;
use crate::model::{Message, QoS};

/// One published message, shared by everyone who gets it.
#[derive(Debug)]
pub(super) struct Delivery {
    /// Topic name.
    pub(super) topic: Arc<str>,
    /// Payload; owns its memory, so that a long life pins no read buffer.
    pub(super) payload: Bytes,
    /// QoS of the publish, at most 1.
    pub(super) qos: QoS,
    /// The retain flag as published.
    pub(super) retain: bool,
    /// Connection that it came from; none for the gateway's own.
    pub(super) origin: Option<u64>,
    /// MQTT 5 properties, for MQTT 5 subscribers.
    pub(super) properties: Option<PublishProperties>,
    /// Bytes that it holds.
    pub(super) bytes: usize,
}

impl Delivery {
    /// The same publish as the engine sees it.
    pub(super) fn message(&self, client: &Arc<str>) -> Message {
        Message {
            client: Arc::clone(client),
            topic: Arc::clone(&self.topic),
            payload: self.payload.clone(),
            qos: self.qos,
            retain: self.retain,
        }
    }
}

/// A delivery as one subscriber gets it.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    /// The message.
    pub(super) delivery: Arc<Delivery>,
    /// The lower one of publish and subscription.
    pub(super) qos: QoS,
    /// The retain flag as sent.
    pub(super) retain: bool,
}

/// The queue of one subscriber, bounded by messages and bytes. Any thread pushes, its connection pops.
#[derive(Debug)]
pub(super) struct Outbound {
    queue: Mutex<Queue>,
    messages_max: usize,
    bytes_max: usize,
}

impl Outbound {
    /// An empty queue.
    pub(super) fn new(messages_max: usize, bytes_max: usize) -> Self {
        Self { queue: Mutex::default(), messages_max, bytes_max }
    }

    /// Adds a delivery; nothing is added to a full queue.
    pub(super) fn push(&self, outgoing: Outgoing) -> Pushed {
        let mut queue = lock(&self.queue);
        let bytes = queue.bytes + outgoing.delivery.bytes;
        if queue.items.len() >= self.messages_max || (bytes > self.bytes_max && !queue.items.is_empty()) {
            return Pushed::Full;
        }
        queue.bytes = bytes;
        queue.items.push_back(outgoing);
        Pushed::Queued { first: queue.items.len() == 1, crowded: queue.items.len() * 2 > self.messages_max }
    }

    /// The next delivery, unless it is one of QoS 1 and `window_open` is false.
    pub(super) fn pop(&self, window_open: bool) -> Option<Outgoing> {
        let mut queue = lock(&self.queue);
        let outgoing = queue.items.pop_front_if(|next| window_open || next.qos == QoS::AtMostOnce)?;
        queue.bytes -= outgoing.delivery.bytes;
        Some(outgoing)
    }
}

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It waits.
    Queued {
        /// The queue was empty: its connection must be woken.
        first: bool,
        /// The queue is more than half full: the publisher had better let others run.
        crowded: bool,
    },
    /// There was no room.
    Full,
}

/// Packet ids of QoS 1 deliveries that the client has not acknowledged. They may come back in any order.
#[derive(Debug)]
pub(super) struct Window {
    used: HashSet<u16>,
    last: u16,
    max: usize,
}

impl Window {
    /// At most `max` ids at a time.
    pub(super) fn new(max: u16) -> Self {
        Self { used: HashSet::new(), last: 0, max: usize::from(max) }
    }

    /// True if another delivery may go out.
    pub(super) fn is_open(&self) -> bool {
        self.used.len() < self.max
    }

    /// Takes an id; `None` if the window is closed.
    pub(super) fn take(&mut self) -> Option<u16> {
        if !self.is_open() {
            return None;
        }
        // The window is smaller than the number of ids, so that one is free.
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if self.used.insert(self.last) {
                return Some(self.last);
            }
        }
    }

    /// The client has acknowledged an id; false if it was not under way.
    pub(super) fn acknowledge(&mut self, pkid: u16) -> bool {
        self.used.remove(&pkid)
    }
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Outgoing>,
    bytes: usize,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
pub(super) mod tests {
    use super::*;

    /// A delivery of `qos` on `topic`.
    pub(in super::super) fn delivery(topic: &str, payload: &str, qos: QoS) -> Arc<Delivery> {
        Arc::new(Delivery {
            topic: topic.into(),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            qos,
            retain: true,
            origin: None,
            properties: None,
            bytes: topic.len() + payload.len(),
        })
    }

    fn outgoing(qos: QoS) -> Outgoing {
        Outgoing { delivery: delivery("t", "123", qos), qos, retain: false }
    }

    #[test]
    fn a_full_queue_takes_nothing_until_it_is_popped() {
        let outbound = Outbound::new(2, 1000);
        assert_eq!(outbound.push(outgoing(QoS::AtMostOnce)), Pushed::Queued { first: true, crowded: false });
        assert_eq!(outbound.push(outgoing(QoS::AtMostOnce)), Pushed::Queued { first: false, crowded: true });
        assert_eq!(outbound.push(outgoing(QoS::AtMostOnce)), Pushed::Full);
        assert!(outbound.pop(true).is_some());
        assert_eq!(outbound.push(outgoing(QoS::AtMostOnce)), Pushed::Queued { first: false, crowded: true });
    }

    #[test]
    fn bytes_are_bounded_but_one_message_always_fits() {
        let outbound = Outbound::new(10, 3);
        assert!(matches!(outbound.push(outgoing(QoS::AtMostOnce)), Pushed::Queued { .. }));
        assert_eq!(outbound.push(outgoing(QoS::AtMostOnce)), Pushed::Full);
        assert!(outbound.pop(true).is_some());
        assert!(matches!(outbound.push(outgoing(QoS::AtMostOnce)), Pushed::Queued { first: true, .. }));
    }

    #[test]
    fn a_closed_window_holds_qos_1_and_what_is_behind_it() {
        let outbound = Outbound::new(10, 1000);
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::AtMostOnce] {
            outbound.push(outgoing(qos));
        }
        assert_eq!(outbound.pop(false).map(|o| o.qos), Some(QoS::AtMostOnce));
        assert!(outbound.pop(false).is_none());
        assert_eq!(outbound.pop(true).map(|o| o.qos), Some(QoS::AtLeastOnce));
    }

    #[test]
    fn ids_come_back_in_any_order_and_are_never_used_twice() {
        let mut window = Window::new(3);
        assert_eq!((window.take(), window.take(), window.take(), window.take()), (Some(1), Some(2), Some(3), None));
        assert!(window.acknowledge(2) && !window.acknowledge(2));
        assert_eq!(window.take(), Some(4));
        window.acknowledge(4);
        window.last = u16::MAX;
        assert_eq!(window.take(), Some(2), "1 and 3 are still under way, 0 is no id");
    }
}
