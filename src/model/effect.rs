//! What is committed: a message's changes, and the frames that carry them to disk.

use std::sync::Arc;

use bytes::Bytes;

use super::{Lane, Lsn, ObjectKey, Record, Seq, Stamp};

/// A change that the engine asks for; the queue makes a [`Record`] of it. All changes of one message are one frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The whole new state of a key in lane `state`.
    Put {
        /// The device.
        key: ObjectKey,
        /// When.
        at: Stamp,
        /// JSON of a [`super::DeviceState`].
        body: Bytes,
    },
    /// The key is gone, in lane `state`.
    Delete {
        /// The device.
        key: ObjectKey,
        /// When.
        at: Stamp,
    },
    /// An alert transition; the newest per key is the served Alert.
    Alert {
        /// `namespace/alert.device`.
        key: ObjectKey,
        /// When.
        at: Stamp,
        /// JSON of a [`super::Alert`].
        body: Bytes,
    },
    /// A record of class `event`.
    Event {
        /// The device.
        key: ObjectKey,
        /// When.
        at: Stamp,
        /// As the device sent it.
        body: Bytes,
    },
}

/// One entry of a frame: replaying all effects in order gives the queue's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A visible change.
    Record(Record),
    /// A sink has acknowledged its lane up to and including `seq`.
    Cursor {
        /// The sink's name.
        sink: Arc<str>,
        /// The lane.
        lane: Lane,
        /// Acknowledged up to and including.
        seq: Seq,
    },
    /// A sink's cursors are gone; nothing is kept for it any more.
    Release {
        /// The sink's name.
        sink: Arc<str>,
    },
    /// Lane records up to and including `to` are forgotten: every cursor passed them, or a bound did.
    Trim {
        /// `alert` or `event`.
        lane: Lane,
        /// Forgotten up to and including.
        to: Seq,
        /// How many of them some cursor had not passed; more than zero makes it a gap.
        lost: u64,
    },
    /// The tombstones of a lane up to and including `to` are forgotten.
    Forget {
        /// `state` or `alert`.
        lane: Lane,
        /// Forgotten up to and including.
        to: Seq,
    },
}

/// A frame of the log: written whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its position; rises by at least one.
    pub lsn: Lsn,
    /// The highest Seq of any frame before it: a jump is no gap, a hole is.
    pub prev_seq: Seq,
    /// What it does, in order.
    pub effects: Vec<Effect>,
}

impl Frame {
    /// The highest Seq in the frame, if it changes anything visible.
    pub fn last_seq(&self) -> Option<Seq> {
        let seq = |effect: &Effect| match effect {
            Effect::Record(record) => Some(record.seq),
            _ => None,
        };
        self.effects.iter().filter_map(seq).max()
    }
}
