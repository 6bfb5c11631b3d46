//! `Log`: what the commit thread asks of the store.

use crate::model::{Frame, Lsn, Seq};
use crate::store::{StateImage, Store, StoreError};

/// The commit point. The seam is here so that the queue's tests, and a simulation of power cuts, need no disk.
pub trait Log: Send + 'static {
    /// Why a write failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Makes all frames durable and returns the bytes written. After an error nothing of them counts as written; the
    /// same frames may be committed again.
    fn commit(&mut self, frames: &[Frame]) -> Result<u64, Self::Error>;

    /// After a failed commit: if the disk is full, gives up what is kept for that moment. True if the same frames may fit
    /// now, and a snapshot shall follow, which frees log.
    fn make_room(&mut self, error: &Self::Error) -> bool;

    /// Log bytes since the last checkpoint.
    fn log_bytes(&self) -> u64;

    /// Brings the keyed store up to the newest commit and frees the log before it.
    fn checkpoint(&mut self) -> Result<(), Self::Error>;

    /// True if a snapshot is due and none is under way.
    fn snapshot_due(&self) -> bool;

    /// Checkpoints, and begins a snapshot of the image, which is what all commits so far amount to.
    fn begin_snapshot(&mut self, image: StateImage) -> Result<(), Self::Error>;

    /// Does a small bit of the snapshot under way; true while there is more to do. After an error none is under way.
    fn step_snapshot(&mut self) -> Result<bool, Self::Error>;

    /// Makes sure, durably, that Seqs below `seq` may be given out.
    fn reserve(&mut self, seq: Seq) -> Result<(), Self::Error>;

    /// Every Seq that is given out is below this.
    fn reserved(&self) -> Seq;

    /// Position of the newest frame.
    fn lsn(&self) -> Lsn;

    /// Clean stop: a checkpoint, then the mark of it with the next Seq.
    fn close(self, next_seq: Seq) -> Result<(), Self::Error>;
}

impl Log for Store {
    type Error = StoreError;

    fn commit(&mut self, frames: &[Frame]) -> Result<u64, StoreError> {
        Self::commit(self, frames)
    }

    fn make_room(&mut self, error: &StoreError) -> bool {
        Self::make_room(self, error)
    }

    fn log_bytes(&self) -> u64 {
        Self::log_bytes(self)
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        Self::checkpoint(self)
    }

    fn snapshot_due(&self) -> bool {
        Self::snapshot_due(self)
    }

    fn begin_snapshot(&mut self, image: StateImage) -> Result<(), StoreError> {
        Self::begin_snapshot(self, image)
    }

    fn step_snapshot(&mut self) -> Result<bool, StoreError> {
        Self::step_snapshot(self)
    }

    fn reserve(&mut self, seq: Seq) -> Result<(), StoreError> {
        Self::reserve(self, seq)
    }

    fn reserved(&self) -> Seq {
        Self::reserved(self)
    }

    fn lsn(&self) -> Lsn {
        Self::lsn(self)
    }

    fn close(self, next_seq: Seq) -> Result<(), StoreError> {
        Self::close(self, next_seq)
    }
}
