//! The one loop that moves a sink's cursors.

mod link;
mod slot;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use self::link::Link;
use self::slot::{Reader, Slot};
use super::error::Chain;
use super::share::Share;
use super::window::{Limit, Window};
use super::{Delivered, GapNotice, Session, Sink, SinkError};
use crate::model::{Epoch, Lane, Millis, ObjectKey, Record, Seq};
use crate::queue::{Acker, DeltaFifo, LaneReader};
use crate::runtime::backoff::Backoff;
use crate::runtime::clock::Clock;
use crate::runtime::metrics::{Metrics, SinkLane};

/// Moves the cursors of one sink until the token is cancelled; then the delivery under way has 2 s to end. The
/// sink's cursors must exist ([`Acker::ack`]). Stop it by the token, not by dropping it: only a closed session is
/// sure to send nothing more.
pub async fn pump<S: Sink>(
    sink: S,
    fifo: Arc<DeltaFifo>,
    acker: Acker,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
) {
    let name = Arc::clone(sink.name());
    let timing = Timing::new(sink.request_timeout());
    let lanes = Lane::ALL.map(|lane| fifo.reader(&name, lane));
    let (epoch, head) = (fifo.epoch(), fifo.watch());
    let ack = move |lane, seq| acker.ack(&name, lane, seq);
    let pump = Pump::<S, LaneReader, _>::new(sink, lanes, epoch, ack, Parts { clock, metrics, timing });
    pump.run(head, &shutdown).await;
}

/// The pump's bounds.
#[derive(Debug, Clone)]
pub(super) struct Timing {
    /// Of the sink.
    request: Duration,
    /// For opening a session.
    open_max: Duration,
    /// For one delivery in all: the last resort against a client that hangs and keeps no bound of its own.
    deliver_max: Duration,
    /// For closing a session.
    close_max: Duration,
    /// For the delivery under way when the pump is stopped.
    stop_max: Duration,
    /// First and largest delay when the upstream does not answer, or a lane is held.
    retry: (Duration, Duration),
    /// The same when it refuses.
    denied: (Duration, Duration),
    /// Most that is in flight.
    window: Limit,
}

impl Timing {
    fn new(request: Duration) -> Self {
        Self {
            request,
            open_max: request * 3,
            deliver_max: request * 12,
            close_max: Duration::from_secs(1),
            stop_max: Duration::from_secs(2),
            retry: (Duration::from_millis(500), Duration::from_secs(30)),
            denied: (Duration::from_secs(30), Duration::from_mins(5)),
            window: Limit { records: 1000, bytes: 1 << 20 },
        }
    }
}

/// What a pump is given beside its sink and its lanes.
struct Parts {
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    timing: Timing,
}

struct Pump<S, R, A> {
    sink: S,
    slots: [Slot<R>; 3],
    epoch: Epoch,
    /// Moves a durable cursor.
    ack: A,
    parts: Parts,
    share: Share,
    window: Window,
    link: Link,
    retry: Backoff,
    denied: Backoff,
    late: Late,
}

/// Keys of lane `state` that a dead session had in flight: at most as many as there are keys.
#[derive(Debug, Default)]
struct Late {
    keys: BTreeSet<ObjectKey>,
    /// Set by the first acknowledgement of the session after.
    due: Option<Millis>,
}

/// The next thing to do: tell of a gap, if there is one, and then send what lies behind it.
struct Job {
    lane: Lane,
    notice: Option<GapNotice>,
    records: Vec<Record>,
}

/// Why a session ended.
enum End {
    Stopped,
    /// A lane's delivery failed; the records that it did not get through.
    Failed(Lane, SinkError, Vec<Record>),
}

impl<S: Sink, R: Reader, A: Fn(Lane, Seq) + Send> Pump<S, R, A> {
    fn new(sink: S, readers: [R; 3], epoch: Epoch, ack: A, parts: Parts) -> Self {
        let seed = seed(sink.name(), parts.clock.as_ref());
        let backoff = |bounds: (Duration, Duration), salt: u64| Backoff::new(bounds.0, bounds.1, seed ^ salt);
        let timing = &parts.timing;
        Self {
            slots: readers.map(|reader| {
                let salt = reader.lane() as u64;
                Slot::new(reader, backoff(timing.retry, salt), backoff(timing.denied, salt))
            }),
            epoch,
            ack,
            share: Share::default(),
            window: Window::new(timing.window),
            link: Link::new(sink.name(), &parts.metrics),
            retry: backoff(timing.retry, 0x10),
            denied: backoff(timing.denied, 0x20),
            late: Late::default(),
            sink,
            parts,
        }
    }

    async fn run(mut self, mut head: watch::Receiver<Seq>, shutdown: &CancellationToken) {
        while let Some(mut session) = self.open(shutdown).await {
            let end = self.drain(&mut session, &mut head, shutdown).await;
            if timeout(self.parts.timing.close_max, session.close()).await.is_err() {
                warn!(sink = %self.sink.name(), "a session did not close in time");
            }
            let End::Failed(lane, error, records) = end else { break };
            let pause = self.recover(lane, &error, &records);
            if !sleep_unless(shutdown, pause).await {
                break;
            }
        }
        self.link.stop();
    }

    /// Opens a session, however long it takes; None when the pump is stopped.
    async fn open(&mut self, shutdown: &CancellationToken) -> Option<S::Session> {
        let within = self.parts.timing.open_max;
        loop {
            let opened = tokio::select! {
                biased;
                () = shutdown.cancelled() => return None,
                opened = timeout(within, self.sink.open()) => opened,
            };
            let error = match opened {
                Ok(Ok(session)) => {
                    self.link.opened();
                    return Some(session);
                }
                Ok(Err(error)) => error,
                Err(_) => SinkError::no_answer("opening a session", within),
            };
            let pause = self.pause(&error);
            if !sleep_unless(shutdown, pause).await {
                return None;
            }
        }
    }

    /// Works until the session fails or the pump is stopped.
    async fn drain(
        &mut self,
        session: &mut S::Session,
        head: &mut watch::Receiver<Seq>,
        shutdown: &CancellationToken,
    ) -> End {
        while !shutdown.is_cancelled() {
            // Marked before the lanes are asked, so that a change in between wakes the wait below.
            head.borrow_and_update();
            self.resend_late();
            let ended = match self.next_job() {
                Some(job) => self.work(session, job, shutdown).await,
                None => self.wait(head, shutdown).await,
            };
            if let Some(end) = ended {
                return end;
            }
        }
        End::Stopped
    }

    fn next_job(&mut self) -> Option<Job> {
        let (now, limit) = (self.parts.clock.now(), self.window.limit());
        for lane in self.share.order() {
            let epoch = self.epoch;
            let Some(slot) = self.slot(lane).filter(|slot| !slot.is_held(now)) else { continue };
            let (records, gap) = slot.pop(limit);
            let notice = gap.map(|gap| GapNotice { lane, epoch, from: gap.from, to: gap.to, lost: gap.lost });
            if notice.is_some() || !records.is_empty() {
                return Some(Job { lane, notice, records });
            }
            self.share.idle(lane);
        }
        None
    }

    async fn work(&mut self, session: &mut S::Session, job: Job, shutdown: &CancellationToken) -> Option<End> {
        if let Some(notice) = job.notice {
            let ended = self.announce(session, &notice, shutdown).await;
            if ended.is_some() {
                return ended;
            }
        }
        if job.records.is_empty() {
            return None;
        }
        self.deliver(session, job.lane, job.records, shutdown).await
    }

    async fn deliver(
        &mut self,
        session: &mut S::Session,
        lane: Lane,
        mut records: Vec<Record>,
        shutdown: &CancellationToken,
    ) -> Option<End> {
        let within = self.parts.timing.deliver_max;
        let work = timeout(within, session.deliver(&records));
        let Some(done) = unless_stopped(shutdown, self.parts.timing.stop_max, work).await else {
            return Some(End::Stopped);
        };
        let late = |acked| Delivered { acked, error: Some(SinkError::no_answer("sending records", within)) };
        let done = done.unwrap_or_else(|_| late(0));
        let acked = done.acked.min(records.len());
        self.acknowledge(lane, records.get(..acked).unwrap_or_default());
        if acked == records.len() {
            self.window.grow();
        }
        // A session that stops short and gives no reason has failed all the same.
        let error = if acked < records.len() { done.error.or_else(|| late(acked).error) } else { done.error };
        records.drain(..acked);
        error.map(|error| End::Failed(lane, error, records))
    }

    async fn announce(
        &mut self,
        session: &mut S::Session,
        notice: &GapNotice,
        shutdown: &CancellationToken,
    ) -> Option<End> {
        let within = self.parts.timing.deliver_max;
        let work = timeout(within, session.announce(notice));
        let Some(done) = unless_stopped(shutdown, self.parts.timing.stop_max, work).await else {
            return Some(End::Stopped);
        };
        let lane = notice.lane;
        match done.unwrap_or_else(|_| Err(SinkError::no_answer("announcing a gap", within))) {
            Ok(()) => {
                warn!(sink = %self.sink.name(), %lane, from = %notice.from, to = %notice.to, lost = notice.lost,
                    "records were dropped before this sink had them; it was told");
                (self.ack)(lane, notice.to);
                self.proved(lane);
                None
            }
            Err(error) => Some(End::Failed(lane, error, Vec::new())),
        }
    }

    /// Moves the cursor over `records`, the first that are in flight.
    fn acknowledge(&mut self, lane: Lane, records: &[Record]) {
        let count = records.len();
        let Some(slot) = self.slot(lane).filter(|_| count > 0) else { return };
        if let Some(seq) = slot.ack(count) {
            (self.ack)(lane, seq);
        }
        let labels = SinkLane { sink: self.sink.name().to_string(), lane: lane.into() };
        self.parts.metrics.delivered.get_or_create(&labels).inc_by(count as u64);
        // A window that its bytes cut short counts as much as one that is full of records.
        let kib = records.iter().map(Record::cost).sum::<usize>() >> 10;
        self.share.sent(lane, count.max(kib));
        self.proved(lane);
    }

    /// The session was acknowledged something: the link is up, the lane is served, and late writes have their time.
    fn proved(&mut self, lane: Lane) {
        self.link.acknowledged();
        self.retry.reset();
        self.denied.reset();
        let name = Arc::clone(self.sink.name());
        if let Some(slot) = self.slot(lane) {
            slot.served(&name);
        }
        if self.late.due.is_none() && !self.late.keys.is_empty() {
            self.late.due = Some(self.parts.clock.now() + self.parts.timing.request);
        }
    }

    fn resend_late(&mut self) {
        if self.late.due.is_some_and(|due| due <= self.parts.clock.now()) {
            let late = std::mem::take(&mut self.late);
            debug!(sink = %self.sink.name(), keys = late.keys.len(), "sending keys of a dead session once more");
            if let Some(slot) = self.slot(Lane::State) {
                slot.resend(late.keys.into_iter().collect());
            }
        }
    }

    /// After a failed session: lanes go back, and the delay before the next one.
    fn recover(&mut self, lane: Lane, error: &SinkError, records: &[Record]) -> Duration {
        if let (SinkError::Rejected { .. }, Some(first)) = (error, records.first()) {
            self.reject(lane, error, first, records.len());
        }
        for slot in &mut self.slots {
            let keys = slot.rewind();
            if slot.lane() == Lane::State {
                self.late.keys.extend(keys);
            }
        }
        self.late.due = None;
        match error {
            SinkError::Unreachable { .. } => {
                self.window.shrink();
                self.pause(error)
            }
            // A rejected record costs at most three sessions: no need to wait. A rejected notice has no such end.
            SinkError::Rejected { .. } if !records.is_empty() => {
                self.link.failed();
                Duration::ZERO
            }
            SinkError::Denied { .. } | SinkError::Misconfigured { .. } | SinkError::Rejected { .. } => {
                self.link.failed();
                let (name, now) = (Arc::clone(self.sink.name()), self.parts.clock.now());
                if let Some(slot) = self.slot(lane) {
                    slot.hold(&name, error, now);
                }
                Duration::ZERO
            }
        }
    }

    /// The upstream says that a record is at fault: `first` if it was alone, else one of `count` from `first` on.
    fn reject(&mut self, lane: Lane, error: &SinkError, first: &Record, count: usize) {
        let Some(slot) = self.slot(lane) else { return };
        if !slot.suspect(first.seq, count) {
            return;
        }
        let moved = slot.ack(1);
        if let Some(seq) = moved {
            (self.ack)(lane, seq);
        }
        self.parts.metrics.queue_dropped.get_or_create(&lane.into()).inc();
        tracing::error!(sink = %self.sink.name(), %lane, key = %first.key, seq = %first.seq, error = %Chain(error),
            "a record was rejected twice alone and is given up");
    }

    /// The link failed as a whole: says so once, and how long to wait.
    fn pause(&mut self, error: &SinkError) -> Duration {
        self.link.failed();
        self.link.down(error);
        if matches!(error, SinkError::Denied { .. }) { self.denied.next_delay() } else { self.retry.next_delay() }
    }

    /// Nothing to do: waits for a change, a held lane, late keys, or the end.
    async fn wait(&self, head: &mut watch::Receiver<Seq>, shutdown: &CancellationToken) -> Option<End> {
        let now = self.parts.clock.now();
        let held = self.slots.iter().filter_map(|slot| slot.held_until(now));
        let alarm = held.chain(self.late.due).min();
        let alarm = async {
            match alarm {
                Some(at) => tokio::time::sleep(at.since(now)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => Some(End::Stopped),
            changed = head.changed() => changed.err().map(|_| End::Stopped),
            () = alarm => None,
        }
    }

    fn slot(&mut self, lane: Lane) -> Option<&mut Slot<R>> {
        self.slots.iter_mut().find(|slot| slot.lane() == lane)
    }
}

/// Differs between sinks and between starts; a fleet that boots together does not retry together.
fn seed(name: &str, clock: &dyn Clock) -> u64 {
    let start = clock.ticks().as_nanos() as u64 ^ clock.wall().unix_ms as u64;
    name.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// False if the token was cancelled before the time was over.
async fn sleep_unless(shutdown: &CancellationToken, pause: Duration) -> bool {
    if pause.is_zero() {
        return !shutdown.is_cancelled();
    }
    tokio::select! {
        biased;
        () = shutdown.cancelled() => false,
        () = tokio::time::sleep(pause) => true,
    }
}

/// Awaits `work`; once the token is cancelled only for `grace` more. None if it did not end.
async fn unless_stopped<T>(shutdown: &CancellationToken, grace: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return Some(done),
        () = shutdown.cancelled() => {}
    }
    timeout(grace, work).await.ok()
}

#[cfg(test)]
mod tests;
