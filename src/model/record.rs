//! `Record`: one change as it is stored, served and delivered.

use std::fmt;

use bytes::Bytes;

use super::{Epoch, ObjectKey, Seq, Stamp, Uid};

/// What happened to a key; client-go's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DeltaType {
    /// The key is new.
    Added = 1,
    /// The key was there.
    Updated = 2,
    /// The key is gone; the body is empty.
    Deleted = 3,
    /// Part of a whole image, or its closing marker.
    Replaced = 4,
    /// Told again without a change.
    Sync = 5,
}

impl fmt::Display for DeltaType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "Added",
            Self::Updated => "Updated",
            Self::Deleted => "Deleted",
            Self::Replaced => "Replaced",
            Self::Sync => "Sync",
        })
    }
}

/// One order, one cursor a sink, own Kafka topics. No order is promised between lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Lane {
    /// Alert transitions: every record is kept until every cursor has passed it.
    Alert = 1,
    /// Device states: the newest record per key is what counts.
    State = 2,
    /// Events: every record is kept until every cursor has passed it.
    Event = 3,
}

impl Lane {
    /// All lanes in a slow link's order of preference.
    pub const ALL: [Self; 3] = [Self::Alert, Self::State, Self::Event];

    /// The name in metrics, logs and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alert => "alert",
            Self::State => "state",
            Self::Event => "event",
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One visible change. In lane `state` it is the key's whole state; in lane `alert` a transition, whose newest per key
/// is the served Alert; in lane `event` what the device said. Cloning is cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The lane it belongs to.
    pub lane: Lane,
    /// What happened.
    pub delta: DeltaType,
    /// Its number.
    pub seq: Seq,
    /// The epoch it was born in.
    pub epoch: Epoch,
    /// `namespace/device`, or `namespace/alert.device` in lane `alert`.
    pub key: ObjectKey,
    /// Incarnation of the key; the record's own identity in lane `event`.
    pub uid: Uid,
    /// When the incarnation was created.
    pub created_at: Stamp,
    /// When the change was made.
    pub at: Stamp,
    /// JSON of a [`super::DeviceState`] or [`super::Alert`], or the event as the device sent it; empty if Deleted.
    pub body: Bytes,
}

impl Record {
    /// True if the key is gone.
    pub fn is_deleted(&self) -> bool {
        self.delta == DeltaType::Deleted
    }

    /// Bytes that the record counts for in a bound: key, body and fixed part.
    pub fn cost(&self) -> usize {
        self.key.namespace().len() + self.key.name().len() + self.body.len() + 96
    }
}
