//! Retained messages in RAM: the newest per topic, bounded, replayed to new subscriptions piece by piece.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::outbound::Delivery;
use super::topic::{literal_prefix, matches};

/// Topics looked at under one lock; a replay goes on where it stopped.
const STEPS_MAX: usize = 256;

/// The store. Clients and the gateway have a share each, of the same size, so that clients never crowd out alerts.
#[derive(Debug)]
pub(super) struct Retained {
    entries: BTreeMap<Arc<str>, Entry>,
    version: u64,
    shares: [Share; 2],
    messages_max: usize,
    bytes_max: usize,
}

impl Retained {
    /// An empty store with the bounds of each share.
    pub(super) fn new(messages_max: usize, bytes_max: usize) -> Self {
        Self { entries: BTreeMap::new(), version: 0, shares: Default::default(), messages_max, bytes_max }
    }

    /// Keeps `delivery` as the newest of its topic, or takes the topic out if the payload is empty. False if there is
    /// no room; then nothing is kept for the topic: an old value must not pass for the newest.
    pub(super) fn set(&mut self, delivery: &Arc<Delivery>) -> bool {
        self.forget(&delivery.topic);
        if delivery.payload.is_empty() {
            return true;
        }
        let owner = usize::from(delivery.origin.is_none());
        let Some(share) = self.shares.get_mut(owner) else { return false };
        if share.messages >= self.messages_max || share.bytes + delivery.bytes > self.bytes_max {
            return false;
        }
        share.messages += 1;
        share.bytes += delivery.bytes;
        self.version += 1;
        let entry = Entry { delivery: Arc::clone(delivery), version: self.version, owner };
        self.entries.insert(Arc::clone(&delivery.topic), entry);
        true
    }

    /// Messages held.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A replay of what is held now and matches `filter`.
    pub(super) fn replay(&self, filter: &str) -> Replay {
        Replay { filter: filter.to_owned(), after: None, until: self.version }
    }

    /// The next message of a replay. What was published after its start is left out: it went the live way.
    pub(super) fn next(&self, replay: &Replay) -> Next {
        let prefix = literal_prefix(&replay.filter);
        let start = match &replay.after {
            Some(topic) => Bound::Excluded(&**topic),
            None => Bound::Included(prefix),
        };
        let mut last = None;
        for (topic, entry) in self.entries.range::<str, _>((start, Bound::Unbounded)).take(STEPS_MAX) {
            if !topic.starts_with(prefix) {
                return Next::Done;
            }
            if entry.version <= replay.until && matches(&replay.filter, topic) {
                return Next::Found(Arc::clone(topic), Arc::clone(&entry.delivery));
            }
            last = Some(topic);
        }
        last.map_or(Next::Done, |topic| Next::Later(Arc::clone(topic)))
    }

    fn forget(&mut self, topic: &str) {
        if let Some(old) = self.entries.remove(topic)
            && let Some(share) = self.shares.get_mut(old.owner)
        {
            share.messages -= 1;
            share.bytes -= old.delivery.bytes;
        }
    }
}

/// Where a new subscription stands in the retained messages.
#[derive(Debug, Clone)]
pub(super) struct Replay {
    /// Its filter.
    pub(super) filter: String,
    after: Option<Arc<str>>,
    until: u64,
}

impl Replay {
    /// Goes on behind `topic`.
    pub(super) fn advance(&mut self, topic: Arc<str>) {
        self.after = Some(topic);
    }
}

/// A step of a replay.
#[derive(Debug)]
pub(super) enum Next {
    /// A message; advance behind its topic when it is sent.
    Found(Arc<str>, Arc<Delivery>),
    /// Nothing yet; advance behind this topic and ask again.
    Later(Arc<str>),
    /// That was all.
    Done,
}

#[derive(Debug)]
struct Entry {
    delivery: Arc<Delivery>,
    version: u64,
    owner: usize,
}

#[derive(Debug, Default)]
struct Share {
    messages: usize,
    bytes: usize,
}

#[cfg(test)]
#[allow(clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::super::outbound::tests::delivery;
    use super::*;
    use crate::model::QoS;

    fn set(store: &mut Retained, topic: &str, payload: &str) -> bool {
        store.set(&delivery(topic, payload, QoS::AtMostOnce))
    }

    fn play(store: &Retained, mut replay: Replay) -> Vec<String> {
        let mut topics = Vec::new();
        loop {
            match store.next(&replay) {
                Next::Found(topic, _) => {
                    topics.push(topic.to_string());
                    replay.advance(topic);
                }
                Next::Later(topic) => replay.advance(topic),
                Next::Done => return topics,
            }
        }
    }

    #[test]
    fn the_newest_is_kept_and_an_empty_one_deletes() {
        let mut store = Retained::new(10, 1000);
        assert!(set(&mut store, "a", "1") && set(&mut store, "a", "2"));
        let Next::Found(_, kept) = store.next(&store.replay("a")) else { panic!("a is held") };
        assert_eq!((&kept.payload[..], store.len()), (&b"2"[..], 1));
        assert!(set(&mut store, "a", ""));
        assert_eq!((store.len(), store.shares[1].bytes), (0, 0));
    }

    #[test]
    fn bounds_hold_and_no_old_value_stays_behind_a_refused_one() {
        let mut store = Retained::new(2, 10);
        assert!(set(&mut store, "a", "1") && set(&mut store, "b", "1"));
        assert!(!set(&mut store, "c", "1"), "two messages are the bound");
        assert!(set(&mut store, "a", "1234567"));
        assert!(!set(&mut store, "b", "123456789"), "ten bytes are the bound");
        assert_eq!(play(&store, store.replay("#")), ["a"]);
    }

    #[test]
    fn clients_do_not_crowd_out_the_gateway() {
        let mut store = Retained::new(1, 1000);
        let from_client = |topic| {
            let mut delivery = delivery(topic, "1", QoS::AtMostOnce);
            Arc::get_mut(&mut delivery).expect("not shared").origin = Some(1);
            delivery
        };
        assert!(store.set(&from_client("c")));
        assert!(!store.set(&from_client("d")));
        assert!(set(&mut store, "tidegate/alerts/a/b", "1"));
    }

    #[test]
    fn a_replay_finds_every_match_over_many_steps() {
        let mut store = Retained::new(5000, 1 << 20);
        for n in 0..2000 {
            set(&mut store, &format!("a/{n}/x"), "1");
            set(&mut store, &format!("a/{n}/y"), "1");
        }
        for topic in ["a", "aa", "a!", "$SYS/a"] {
            set(&mut store, topic, "1");
        }
        assert_eq!(play(&store, store.replay("a/+/x")).len(), 2000);
        assert_eq!(play(&store, store.replay("a/#")).len(), 4001);
        assert_eq!(play(&store, store.replay("#")).len(), 4003);
        assert_eq!(play(&store, store.replay("$SYS/#")), ["$SYS/a"]);
        assert_eq!(play(&store, store.replay("a")), ["a"]);
    }

    #[test]
    fn what_comes_after_the_subscription_is_not_replayed() {
        let mut store = Retained::new(10, 1000);
        for topic in ["a", "b", "c"] {
            set(&mut store, topic, "1");
        }
        let replay = store.replay("#");
        set(&mut store, "b", "2");
        set(&mut store, "d", "1");
        assert_eq!(play(&store, replay), ["a", "c"]);
    }
}
