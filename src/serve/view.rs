//! What the server needs of the queue, as a trait, so that it can be tested against a hand-driven one.

use std::sync::Arc;

use tokio::sync::watch;

use crate::model::{Epoch, Lane, ObjectKey, Record, Seq, kube_name};
use crate::queue::{DeltaFifo, Expired, Lag, Snapshot, Stats};

/// The committed view of the queue.
pub trait View: Send + Sync + 'static {
    /// Life of the store.
    fn epoch(&self) -> Epoch;

    /// Newest committed Seq.
    fn head(&self) -> Seq;

    /// Follows the head.
    fn watch(&self) -> watch::Receiver<Seq>;

    /// The live object of a key in lane state or alert.
    fn get(&self, lane: Lane, key: &ObjectKey) -> Option<Record>;

    /// All live objects of lane state or alert in key order, and the head they belong to.
    fn list(&self, lane: Lane, namespace: Option<&str>) -> Snapshot;

    /// Newest record (also tombstones) of each key that changed after `after`, in Seq order, at most `max`; `at` is
    /// the position to go on from. Fails if `after` is below the lane's floor or above the head.
    fn changes(&self, lane: Lane, after: Seq, max: usize) -> Result<Snapshot, Expired>;

    /// Every cursor: sink, lane, acknowledged up to and including.
    fn cursors(&self) -> Vec<(Arc<str>, Lane, Seq)>;

    /// What a sink has not acknowledged.
    fn lag(&self, sink: &str, lane: Lane) -> Lag;

    /// Sizes.
    fn stats(&self) -> Stats;
}

impl View for DeltaFifo {
    fn epoch(&self) -> Epoch {
        self.epoch()
    }

    fn head(&self) -> Seq {
        self.head()
    }

    fn watch(&self) -> watch::Receiver<Seq> {
        self.watch()
    }

    fn get(&self, lane: Lane, key: &ObjectKey) -> Option<Record> {
        self.get(lane, key)
    }

    fn list(&self, lane: Lane, namespace: Option<&str>) -> Snapshot {
        self.list(lane, namespace)
    }

    fn changes(&self, lane: Lane, after: Seq, max: usize) -> Result<Snapshot, Expired> {
        self.changes(lane, after, max)
    }

    fn cursors(&self) -> Vec<(Arc<str>, Lane, Seq)> {
        self.cursors()
    }

    fn lag(&self, sink: &str, lane: Lane) -> Lag {
        self.lag(sink, lane)
    }

    fn stats(&self) -> Stats {
        self.stats()
    }
}

/// The live object that is called `name` on the Kubernetes side.
///
/// A name that needed no change is its own key and is looked up; a made one is found by a scan of the lane, O(keys),
/// which a get by hand can afford.
pub(super) fn find(view: &dyn View, lane: Lane, namespace: &str, name: &str) -> Option<Record> {
    if kube_name(name) != name {
        return None;
    }
    let key = ObjectKey::new(namespace, name);
    view.get(lane, &key)
        .or_else(|| view.list(lane, Some(namespace)).records.into_iter().find(|r| kube_name(r.key.name()) == name))
}
