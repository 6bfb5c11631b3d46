//! The subscription tree: who gets a message.

use std::collections::HashMap;
use std::sync::Arc;

use super::session::Session;
use crate::model::QoS;

/// What a client asked for with a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    /// The most that deliveries have.
    pub(super) qos: QoS,
    /// MQTT 5: nothing that the client published itself.
    pub(super) no_local: bool,
    /// MQTT 5: the retain flag as published, not cleared.
    pub(super) retain_as_published: bool,
}

/// Who gets a message, once each, and how.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// The subscriber.
    pub(super) session: Arc<Session>,
    /// The highest of its overlapping filters.
    pub(super) grant: Grant,
}

/// All filters, a level of the tree per level of a filter; at most [`super::topic::LEVELS_MAX`] deep.
#[derive(Debug, Default)]
pub(super) struct Tree {
    root: Node,
}

impl Tree {
    /// Adds or replaces the subscription of a session; true if it is new.
    pub(super) fn insert(&mut self, filter: &str, session: &Arc<Session>, grant: Grant) -> bool {
        let mut node = &mut self.root;
        for level in filter.split('/') {
            if !node.below.contains_key(level) {
                node.below.insert(level.into(), Node::default());
            }
            let Some(next) = node.below.get_mut(level) else { return false };
            node = next;
        }
        let former = node.here.iter_mut().find(|target| target.session.id == session.id);
        let is_new = former.is_none();
        match former {
            Some(target) => target.grant = grant,
            None => node.here.push(Target { session: Arc::clone(session), grant }),
        }
        is_new
    }

    /// Takes a subscription out, and the branch if nothing else hangs on it.
    pub(super) fn remove(&mut self, filter: &str, session: u64) {
        self.root.remove(Some(filter), session);
    }

    /// Everyone whose filters match `topic`, each once, except a publisher that wants nothing of its own.
    pub(super) fn targets(&self, topic: &str, origin: Option<u64>) -> Vec<Target> {
        let mut found = Vec::new();
        let hidden = topic.starts_with('$');
        self.root.collect(Some(topic), hidden, &mut |target: &Target| {
            if !(target.grant.no_local && Some(target.session.id) == origin) {
                found.push(target.clone());
            }
        });
        found.sort_by_key(|target: &Target| target.session.id);
        found.dedup_by(|later, kept| {
            let is_same = later.session.id == kept.session.id;
            if is_same {
                kept.grant.qos = kept.grant.qos.max(later.grant.qos);
                kept.grant.retain_as_published |= later.grant.retain_as_published;
            }
            is_same
        });
        found
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.root.is_empty()
    }
}

/// One level. Wildcards are children like any word: no topic holds them.
#[derive(Debug, Default)]
struct Node {
    below: HashMap<Box<str>, Node>,
    here: Vec<Target>,
}

impl Node {
    fn is_empty(&self) -> bool {
        self.here.is_empty() && self.below.is_empty()
    }

    fn remove(&mut self, rest: Option<&str>, session: u64) {
        let Some(rest) = rest else {
            self.here.retain(|target| target.session.id != session);
            return;
        };
        let (level, rest) = split_level(rest);
        if let Some(next) = self.below.get_mut(level) {
            next.remove(rest, session);
            if next.is_empty() {
                self.below.remove(level);
            }
        }
    }

    /// `hidden`: this level is the `$…` one, which leading wildcards do not see.
    fn collect(&self, rest: Option<&str>, hidden: bool, visit: &mut impl FnMut(&Target)) {
        if !hidden && let Some(all) = self.below.get("#") {
            all.here.iter().for_each(&mut *visit);
        }
        let Some(rest) = rest else {
            self.here.iter().for_each(visit);
            return;
        };
        let (level, rest) = split_level(rest);
        if let Some(next) = self.below.get(level) {
            next.collect(rest, false, visit);
        }
        if !hidden && let Some(next) = self.below.get("+") {
            next.collect(rest, false, visit);
        }
    }
}

fn split_level(topic: &str) -> (&str, Option<&str>) {
    match topic.split_once('/') {
        Some((level, rest)) => (level, Some(rest)),
        None => (topic, None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use proptest::prelude::*;

    use super::super::topic::{is_filter, matches};
    use super::*;

    const PLAIN: Grant = Grant { qos: QoS::AtMostOnce, no_local: false, retain_as_published: false };

    fn ids(tree: &Tree, topic: &str) -> Vec<u64> {
        tree.targets(topic, None).iter().map(|target| target.session.id).collect()
    }

    #[test]
    fn a_client_gets_one_copy_with_the_highest_qos() {
        let mut tree = Tree::default();
        let session = Arc::new(Session::for_tests(1));
        tree.insert("a/+", &session, PLAIN);
        tree.insert("a/#", &session, Grant { qos: QoS::AtLeastOnce, ..PLAIN });
        tree.insert("a/b", &session, PLAIN);
        let targets = tree.targets("a/b", None);
        assert_eq!((targets.len(), targets[0].grant.qos), (1, QoS::AtLeastOnce));
    }

    #[test]
    fn no_local_hides_only_what_the_client_sent_by_that_filter() {
        let mut tree = Tree::default();
        let session = Arc::new(Session::for_tests(1));
        tree.insert("a", &session, Grant { no_local: true, ..PLAIN });
        assert!(tree.targets("a", Some(1)).is_empty());
        assert_eq!(tree.targets("a", Some(2)).len(), 1);
        tree.insert("+", &session, PLAIN);
        assert_eq!(tree.targets("a", Some(1)).len(), 1);
    }

    #[test]
    fn a_subscription_is_replaced_and_leaves_nothing_behind() {
        let mut tree = Tree::default();
        let session = Arc::new(Session::for_tests(1));
        assert!(tree.insert("a/b/c", &session, PLAIN));
        assert!(!tree.insert("a/b/c", &session, Grant { qos: QoS::AtLeastOnce, ..PLAIN }));
        assert_eq!(tree.targets("a/b/c", None)[0].grant.qos, QoS::AtLeastOnce);
        tree.remove("a/b", 1);
        tree.remove("a/b/c", 2);
        assert_eq!(ids(&tree, "a/b/c"), [1]);
        tree.remove("a/b/c", 1);
        assert!(tree.is_empty());
    }

    #[test]
    fn the_hash_sees_the_parent_and_leading_wildcards_no_dollar() {
        let mut tree = Tree::default();
        for (id, filter) in [(1, "#"), (2, "+/x"), (3, "$SYS/#"), (4, "a/#")] {
            tree.insert(filter, &Arc::new(Session::for_tests(id)), PLAIN);
        }
        assert_eq!(ids(&tree, "$SYS/x"), [3]);
        assert_eq!(ids(&tree, "$SYS"), [3]);
        assert_eq!(ids(&tree, "a"), [1, 4]);
        assert_eq!(ids(&tree, "a/x"), [1, 2, 4]);
    }

    proptest! {
        #[test]
        fn the_tree_finds_what_the_filters_match(
            filters in proptest::collection::vec("[ab+#$]{1,2}(/[ab+#]{0,2}){0,3}", 1..12),
            topic in "[ab$]{1,2}(/[ab]{0,2}){0,3}",
        ) {
            let mut tree = Tree::default();
            let mut expected = Vec::new();
            for (id, filter) in (0..).zip(filters.iter().filter(|filter| is_filter(filter))) {
                tree.insert(filter, &Arc::new(Session::for_tests(id)), PLAIN);
                if matches(filter, &topic) {
                    expected.push(id);
                }
            }
            prop_assert_eq!(ids(&tree, &topic), expected);
        }
    }
}
