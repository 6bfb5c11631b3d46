//! The way out: an upstream behind two traits, and the one pump that moves a sink's cursors.
//!
//! - [`Sink`] opens a [`Session`]; a session delivers records in order and says how many of the first are
//!   acknowledged. The library behind a sink never owns the queue: at most one window (1000 records, 1 MiB) is in
//!   flight, everything else waits in the DeltaFIFO.
//! - [`pump`] is one task per sink. A cursor follows the acknowledged prefix and nothing else. There is one path of
//!   recovery: after any failure the session is closed (within 1 s), every lane goes back to its first
//!   unacknowledged record, and a new session is opened with back-off (0.5 s to 30 s, refusals 30 s to 5 min).
//! - Keys of lane `state` that were in flight when a session died are sent once more, one request timeout after the
//!   new session's first acknowledgement: a late write of the old session may lie behind its successor.
//! - Lanes are preferred in the order alert, state, event; each with work gets a tenth of what is sent.
//! - A missing topic or a refused right holds the lane that it belongs to, not the others.
//! - A record is given up only when it was rejected twice alone: logged with its key, counted, and passed over.
//!
//! What it deliberately does not do: dead letters, transactions, creating topics in production, deciding where a new
//! sink starts (that is a cursor, written before the pump starts).

mod cloudevent;
mod error;
pub mod kafka;
mod pump;
mod share;
mod window;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub use error::{Cause, SinkError};
pub use pump::pump;

use crate::model::{Epoch, Lane, Record, Seq};

/// An upstream.
pub trait Sink: Send + 'static {
    /// What [`open`](Self::open) gives.
    type Session: Session;

    /// The sink's name; its cursors belong to it.
    fn name(&self) -> &Arc<str>;

    /// Time that one request may take. A delivery has three of them without an acknowledgement, a late write of a
    /// dead session one.
    fn request_timeout(&self) -> Duration;

    /// Connects. The pump bounds it to three request timeouts.
    fn open(&mut self) -> impl Future<Output = Result<Self::Session, SinkError>> + Send;
}

/// A live connection to an upstream; after an error it is closed and a new one is opened.
pub trait Session: Send {
    /// Sends records of one lane in order; resolves when all are acknowledged, one failed, or nothing was
    /// acknowledged for three request timeouts. What it did not count as acknowledged may still have arrived.
    fn deliver(&mut self, records: &[Record]) -> impl Future<Output = Delivered> + Send;

    /// Tells the upstream of records that it will never get; resolves when that is acknowledged.
    fn announce(&mut self, notice: &GapNotice) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Ends the session at once: nothing that waits in it is sent any more.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// How many of the first records are acknowledged, and what ended the delivery early.
#[derive(Debug)]
pub struct Delivered {
    /// The length of the acknowledged prefix.
    pub acked: usize,
    /// Why not all were; None only if all were.
    pub error: Option<SinkError>,
}

/// Records of a lane that were dropped before this sink had them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapNotice {
    /// The lane.
    pub lane: Lane,
    /// The epoch that tells of it.
    pub epoch: Epoch,
    /// First position of the gap.
    pub from: Seq,
    /// The last dropped record; the notice goes under this number.
    pub to: Seq,
    /// How many records were dropped, as far as is known: what was dropped before the last start was counted then.
    pub lost: u64,
}
