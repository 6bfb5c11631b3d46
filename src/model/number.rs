//! Positions and identities, each a type of its own so that two `u64`s cannot be swapped.

use std::fmt;

/// Number of a change that an upstream or a watcher can see: one counter for the whole gateway, never reused, never
/// lower. The same number is the Kafka `ce_sequence`, the Kubernetes `resourceVersion` and the receipt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seq(pub u64);

impl Seq {
    /// Before every change.
    pub const ZERO: Self = Self(0);

    /// The Seq that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Position of a frame in the log. Internal: no outsider ever sees one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Before every frame.
    pub const ZERO: Self = Self(0);

    /// The Lsn that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Life of the store: a counter (high 32 bits) and a hash of the machine (low 32 bits). A larger epoch is a newer one
/// of the same machine; readers keep the newest `(epoch, seq)` per key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

impl Epoch {
    /// An epoch from its two parts.
    pub fn new(counter: u32, machine: u32) -> Self {
        Self(u64::from(counter) << 32 | u64::from(machine))
    }

    /// How many lives the store has had, from 1.
    pub fn counter(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Incarnation of an object: the epoch and the Seq in which it was created, written as an RFC 9562 UUID.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Uid {
    /// Epoch of the creation.
    pub epoch: Epoch,
    /// Seq of the creation.
    pub seq: Seq,
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (e, s) = (self.epoch.0, self.seq.0);
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            e >> 32,
            e >> 16 & 0xffff,
            e & 0xffff,
            s >> 48,
            s & 0xffff_ffff_ffff
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_reads_as_a_uuid_and_differs_by_each_part() {
        let uid = Uid { epoch: Epoch::new(1, 0xdead_beef), seq: Seq(0x0006_4471_2233_4455) };
        assert_eq!(uid.to_string(), "00000001-dead-beef-0006-447122334455");
        assert_ne!(uid.to_string(), Uid { seq: uid.seq.next(), ..uid }.to_string());
    }

    #[test]
    fn a_later_life_is_a_larger_epoch() {
        assert!(Epoch::new(2, 0) > Epoch::new(1, u32::MAX));
        assert_eq!(Epoch::new(7, 9).counter(), 7);
    }
}
