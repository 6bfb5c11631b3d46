//! A lane as the pump sees it: its reader, and what stands in its way.

use tracing::{debug, error, info};

use super::super::SinkError;
use super::super::error::Chain;
use super::super::window::Limit;
use crate::model::{Lane, Millis, ObjectKey, Record, Seq};
use crate::queue::{Gap, LaneReader};
use crate::runtime::backoff::Backoff;

/// Rejections of a record alone before it is given up.
const REJECTIONS_MAX: u32 = 2;

/// What the pump asks of a lane's reader; [`LaneReader`] is the real one.
pub(super) trait Reader: Send {
    fn lane(&self) -> Lane;
    /// The next records; at least one if there is any, however large it is.
    fn pop(&mut self, records_max: usize, bytes_max: usize) -> Vec<Record>;
    fn ack(&mut self, count: usize) -> Option<Seq>;
    fn rewind(&mut self) -> Vec<ObjectKey>;
    fn resend(&mut self, keys: Vec<ObjectKey>);
    /// A gap that lies before what was popped last, also if that is nothing. Told once, and again after a rewind.
    fn take_gap(&mut self) -> Option<Gap>;
}

impl Reader for LaneReader {
    fn lane(&self) -> Lane {
        self.lane()
    }

    fn pop(&mut self, records_max: usize, bytes_max: usize) -> Vec<Record> {
        self.pop(records_max, bytes_max)
    }

    fn ack(&mut self, count: usize) -> Option<Seq> {
        self.ack(count)
    }

    fn rewind(&mut self) -> Vec<ObjectKey> {
        self.rewind()
    }

    fn resend(&mut self, keys: Vec<ObjectKey>) {
        self.resend(keys);
    }

    fn take_gap(&mut self) -> Option<Gap> {
        self.take_gap()
    }
}

/// One lane of one sink.
pub(super) struct Slot<R> {
    reader: R,
    /// Not served before this.
    held: Option<Millis>,
    /// The kind of failure that was last told; None while the lane is served.
    told: Option<&'static str>,
    retry: Backoff,
    denied: Backoff,
    /// So many records are sent alone, to find the one that is rejected.
    singles: usize,
    /// A record that was rejected alone, and how often.
    suspect: Option<(Seq, u32)>,
}

impl<R: Reader> Slot<R> {
    pub(super) fn new(reader: R, retry: Backoff, denied: Backoff) -> Self {
        Self { reader, held: None, told: None, retry, denied, singles: 0, suspect: None }
    }

    pub(super) fn lane(&self) -> Lane {
        self.reader.lane()
    }

    /// The next records, and the gap that is to be announced before them.
    pub(super) fn pop(&mut self, limit: Limit) -> (Vec<Record>, Option<Gap>) {
        let records_max = if self.singles > 0 { 1 } else { limit.records };
        let records = self.reader.pop(records_max, limit.bytes);
        (records, self.reader.take_gap())
    }

    /// The first `count` records in flight are done with.
    pub(super) fn ack(&mut self, count: usize) -> Option<Seq> {
        self.singles = self.singles.saturating_sub(count);
        self.suspect = None;
        self.reader.ack(count)
    }

    pub(super) fn rewind(&mut self) -> Vec<ObjectKey> {
        self.reader.rewind()
    }

    pub(super) fn resend(&mut self, keys: Vec<ObjectKey>) {
        self.reader.resend(keys);
    }

    /// One of `count` records from `first` on was rejected. True if it was alone, and often enough to be given up.
    pub(super) fn suspect(&mut self, first: Seq, count: usize) -> bool {
        if count > 1 {
            self.singles = count;
            return false;
        }
        let before = self.suspect.filter(|(seq, _)| *seq == first).map_or(0, |(_, times)| times);
        self.suspect = Some((first, before + 1));
        before + 1 >= REJECTIONS_MAX
    }

    /// The lane is left alone for a while; the others go on.
    pub(super) fn hold(&mut self, sink: &str, cause: &SinkError, now: Millis) {
        let denied = matches!(cause, SinkError::Denied { .. });
        let pause = if denied { self.denied.next_delay() } else { self.retry.next_delay() };
        self.held = Some(now + pause);
        let lane = self.lane();
        if self.told.replace(cause.kind()) == Some(cause.kind()) {
            debug!(%sink, %lane, error = %Chain(cause), "lane is still held");
        } else {
            error!(%sink, %lane, error = %Chain(cause), "lane is held; its records wait");
        }
    }

    /// The upstream has acknowledged something of this lane.
    pub(super) fn served(&mut self, sink: &str) {
        self.held = None;
        self.retry.reset();
        self.denied.reset();
        if self.told.take().is_some() {
            info!(%sink, lane = %self.lane(), "lane goes on");
        }
    }

    pub(super) fn is_held(&self, now: Millis) -> bool {
        self.held_until(now).is_some()
    }

    pub(super) fn held_until(&self, now: Millis) -> Option<Millis> {
        self.held.filter(|until| *until > now)
    }
}
