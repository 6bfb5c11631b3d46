//! The commit thread: takes what waits, makes it durable, then visible.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{error, info, warn};

use super::drops::DropLog;
use super::forming::{Shared, Waiting};
use super::intake::{Acker, Intake};
use super::log::Log;
use super::upkeep::{Limits, cursor_effects, follow_ups};
use super::wear::WearBudget;
use super::{DeltaFifo, QueueOptions};
use crate::model::{Frame, Lane, Lsn, Millis, Seq};
use crate::runtime::clock::Clock;
use crate::runtime::metrics::{Metrics, Reason, SinkLane};

/// Seqs are reserved so far ahead; the reserve is raised when less than half of it is left.
const RESERVE: u64 = 1 << 20;

/// Acknowledgements of sinks wait so long for a frame to ride along with.
const ACK_WAIT_MAX: Duration = Duration::from_secs(1);

/// After a disk error the same frames are tried again so often.
const RETRY: Duration = Duration::from_secs(1);

/// A clean stop gives its snapshot so much time; without it the next start has more log to read, and nothing is lost.
const LAST_SNAPSHOT_MAX: Duration = Duration::from_secs(5);

/// With nothing to do the thread looks around so often.
const IDLE: Duration = Duration::from_mins(1);

/// How far the log is on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Durable {
    /// Position of the newest durable frame.
    pub lsn: Lsn,
    /// The disk refuses writes; nothing is acknowledged.
    pub fault: bool,
}

/// The commit thread with its ends.
#[derive(Debug)]
pub struct Committer {
    /// For the engine.
    pub intake: Intake,
    /// For the sinks.
    pub acker: Acker,
    /// For readiness: the durable position and whether the disk fails.
    pub durable: watch::Receiver<Durable>,
    /// For acknowledgements: the durable position alone.
    pub durable_lsn: watch::Receiver<Lsn>,
    /// For the supervisor.
    pub handle: CommitHandle,
}

/// The commit thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the commit thread")]
pub struct StartError(#[source] io::Error);

impl Committer {
    /// Starts the thread `tidegate-commit`. `next_seq` is the first Seq that may be given out, `fifo` what the log
    /// amounts to so far.
    pub fn start<L: Log>(
        log: L,
        next_seq: Seq,
        fifo: Arc<DeltaFifo>,
        options: &QueueOptions,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let (worker, ends) = Worker::new(log, next_seq, fifo, options, metrics, clock);
        let shared = worker.shared.clone();
        let thread = Builder::new().name("tidegate-commit".to_owned()).spawn(|| worker.run()).map_err(StartError)?;
        let Ends { intake, acker, durable, durable_lsn } = ends;
        Ok(Self { intake, acker, durable, durable_lsn, handle: CommitHandle { shared, thread } })
    }
}

/// Stops the commit thread, and tells whether it runs.
#[derive(Debug)]
pub struct CommitHandle {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl CommitHandle {
    /// Commits what waits, checkpoints, closes the log and joins the thread; blocks meanwhile. To be called after the
    /// engine has stopped. A disk that still fails is tried once more, then what waits is given up: none of it was
    /// acknowledged.
    pub fn stop(self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_one();
        if self.thread.join().is_err() {
            error!("the commit thread has panicked");
        }
    }

    /// How long the thread has been waiting for the disk: nothing is acknowledged meanwhile, and no error says so.
    pub fn waits_for_disk(&self, now: Millis) -> Duration {
        self.shared.waits_for_disk(now)
    }

    /// True while the thread runs. It ends by itself only by a panic, and then the process must end, too.
    pub fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }
}

/// The ends of a worker.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) intake: Intake,
    pub(super) acker: Acker,
    pub(super) durable: watch::Receiver<Durable>,
    pub(super) durable_lsn: watch::Receiver<Lsn>,
}

/// What the thread runs; a simulation calls [`Worker::round`] itself.
pub(super) struct Worker<L: Log> {
    log: L,
    shared: Arc<Shared>,
    fifo: Arc<DeltaFifo>,
    limits: Limits,
    window: Duration,
    checkpoint_bytes: u64,
    checkpoint_at: u64,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    durable: watch::Sender<Durable>,
    durable_lsn: watch::Sender<Lsn>,
    wear: WearBudget,
    /// Highest Seq of any frame that was taken.
    last_seq: Seq,
    /// Taken and not committed: after an error the very same frames go first.
    held: Vec<Frame>,
    drops: DropLog,
    reserve_fails: bool,
    /// A snapshot is under way.
    is_snapping: bool,
}

/// What the thread does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Round,
    /// A bit of the snapshot: nothing else is due.
    Snapshot,
    Finish,
}

impl<L: Log> Worker<L> {
    pub(super) fn new(
        log: L,
        next_seq: Seq,
        fifo: Arc<DeltaFifo>,
        options: &QueueOptions,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
    ) -> (Self, Ends) {
        let (lsn, head) = (log.lsn(), fifo.head());
        let next_seq = next_seq.max(head.next());
        let shared = Arc::new(Shared::new(lsn, next_seq, log.reserved(), options.commit_queue_bytes_max));
        let (durable, durable_rx) = watch::channel(Durable { lsn, fault: false });
        let (durable_lsn, durable_lsn_rx) = watch::channel(lsn);
        let ends = Ends {
            intake: Intake::new(shared.clone(), fifo.clone(), options.keys_max, lsn, metrics.clone()),
            acker: Acker::new(shared.clone()),
            durable: durable_rx,
            durable_lsn: durable_lsn_rx,
        };
        let mut worker = Self {
            log,
            shared,
            fifo,
            limits: Limits::new(options),
            window: options.commit_window_max,
            checkpoint_bytes: options.checkpoint_bytes,
            checkpoint_at: options.checkpoint_bytes,
            metrics,
            durable,
            durable_lsn,
            wear: WearBudget::new(options.wear_bytes_per_day, clock.now()),
            clock,
            last_seq: head,
            held: Vec::new(),
            drops: DropLog::default(),
            reserve_fails: false,
            is_snapping: false,
        };
        worker.keep_reserve();
        (worker, ends)
    }

    fn run(mut self) {
        loop {
            match self.wait() {
                Next::Round => drop(self.round()),
                Next::Snapshot => self.snapshot(),
                Next::Finish => return self.finish(),
            }
        }
    }

    /// One commit of what waits, or of what the disk refused before. False if the disk refused it.
    pub(super) fn round(&mut self) -> bool {
        self.shared.set_at_disk(Some(self.clock.now()));
        if self.held.is_empty() {
            self.take();
        }
        let stored = self.held.is_empty() || self.commit();
        self.keep_reserve();
        if stored {
            self.snapshot();
        }
        self.shared.set_at_disk(None);
        self.drops.tell(self.clock.now());
        stored
    }

    /// Commits all that waits and closes the log.
    pub(super) fn finish(mut self) {
        while self.round() && self.shared.lock().waiting() != Waiting::Nothing {}
        if self.held.is_empty() {
            self.last_snapshot();
        } else {
            error!(frames = self.held.len(), "stopped with a failing disk; what was not acknowledged is not stored");
        }
        if let Err(error) = self.log.close(self.shared.next_seq()) {
            error!(error = &error as &dyn Error, "no clean stop of the store; the next start replays its log");
        }
    }

    /// Waits until there is something to do.
    fn wait(&mut self) -> Next {
        let mut forming = self.shared.lock();
        let (idle_since, mut since) = (self.clock.now(), None);
        loop {
            if forming.stop {
                return Next::Finish;
            }
            let now = self.clock.now();
            let credit = self.wear.has_credit(now);
            let left = match due_in(forming.waiting(), !self.held.is_empty(), credit, self.window) {
                Some(span) => span.saturating_sub(now.since(*since.get_or_insert(now))),
                None => IDLE.saturating_sub(now.since(idle_since)),
            };
            if left.is_zero() {
                return Next::Round;
            }
            if self.is_snapping && self.held.is_empty() {
                return Next::Snapshot;
            }
            forming = match self.shared.wake.wait_timeout(forming, left) {
                Ok((forming, _)) => forming,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn take(&mut self) {
        let mut batch = self.shared.lock().take();
        let (incoming, acks) = (batch.incoming(), std::mem::take(&mut batch.acks));
        self.held = batch.frames(&mut self.last_seq);
        let mut effects = self.fifo.read(|view| cursor_effects(view, acks));
        if effects.is_empty() && self.held.is_empty() {
            return;
        }
        let follow_ups = self.fifo.read(|view| follow_ups(view, &effects, incoming, &self.limits));
        effects.extend(follow_ups);
        if !effects.is_empty() {
            self.held.push(Frame { lsn: batch.upkeep_lsn, prev_seq: self.last_seq, effects });
        }
    }

    fn commit(&mut self) -> bool {
        let started = self.clock.ticks();
        let mut outcome = self.log.commit(&self.held);
        let made_room = outcome.as_ref().is_err_and(|error| self.log.make_room(error));
        if made_room {
            self.disk_error("full");
            outcome = self.log.commit(&self.held);
        }
        match outcome {
            Ok(bytes) => {
                self.metrics.commit_seconds.observe(self.clock.ticks().saturating_sub(started).as_secs_f64());
                self.committed(bytes);
                if made_room {
                    self.begin_snapshot();
                }
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    fn committed(&mut self, bytes: u64) {
        let frames = std::mem::take(&mut self.held);
        let applied = self.fifo.apply(&frames);
        let queued = {
            let mut forming = self.shared.lock();
            forming.landed();
            forming.queued_bytes()
        };
        let lsn = frames.last().map_or(self.log.lsn(), |frame| frame.lsn);
        self.durable_lsn.send_replace(lsn);
        if self.durable.send_replace(Durable { lsn, fault: false }).fault {
            info!("the disk takes writes again");
        }
        self.wear.spend(bytes, self.clock.now());
        self.metrics.disk_fault.set(0);
        self.metrics.commits.inc();
        self.metrics.log_bytes.inc_by(bytes);
        self.metrics.commit_queue_bytes.set(i64::try_from(queued).unwrap_or(i64::MAX));
        for dropped in applied.dropped {
            self.metrics.queue_dropped.get_or_create(&dropped.lane.into()).inc_by(dropped.lost);
            self.drops.note(dropped);
        }
        for sink in applied.released {
            self.forget_gauges(&sink);
        }
        self.checkpoint();
    }

    fn failed(&mut self, error: &L::Error) {
        self.disk_error("commit");
        self.metrics.disk_fault.set(1);
        let mut began = false;
        self.durable.send_if_modified(|durable| {
            began = !std::mem::replace(&mut durable.fault, true);
            began
        });
        if began {
            error!(error = error as &dyn Error, "the disk refuses writes; nothing is acknowledged until it takes them");
        }
    }

    fn checkpoint(&mut self) {
        if self.log.log_bytes() < self.checkpoint_at {
            return;
        }
        match self.log.checkpoint() {
            Ok(()) => {
                self.metrics.checkpoints.inc();
                self.checkpoint_at = self.checkpoint_bytes;
            }
            Err(error) => {
                self.disk_error("checkpoint");
                self.checkpoint_at = self.log.log_bytes().saturating_add(self.checkpoint_bytes / 4);
                warn!(error = &error as &dyn Error, next_at = self.checkpoint_at, "a checkpoint failed; the log grows");
            }
        }
    }

    /// Begins a snapshot if one is due, or does a bit of the one under way: a commit waits for one bit at most.
    fn snapshot(&mut self) {
        if self.is_snapping {
            let outcome = self.log.step_snapshot();
            self.note_snapshot(outcome);
        } else if self.log.snapshot_due() {
            self.begin_snapshot();
        }
    }

    fn begin_snapshot(&mut self) {
        let outcome = self.log.begin_snapshot(self.fifo.image()).map(|()| true);
        self.note_snapshot(outcome);
    }

    fn note_snapshot(&mut self, outcome: Result<bool, L::Error>) {
        self.is_snapping = outcome.unwrap_or_else(|error| {
            self.disk_error("snapshot");
            warn!(error = &error as &dyn Error, "a snapshot failed; the log grows until one succeeds");
            false
        });
    }

    fn last_snapshot(&mut self) {
        let started = self.clock.ticks();
        let mut outcome = self.log.begin_snapshot(self.fifo.image()).map(|()| true);
        while matches!(outcome, Ok(true)) && self.clock.ticks().saturating_sub(started) < LAST_SNAPSHOT_MAX {
            outcome = self.log.step_snapshot();
        }
        match outcome {
            Ok(false) => {}
            Ok(true) => info!("no time for a last snapshot; the next start reads more of the log"),
            Err(error) => warn!(error = &error as &dyn Error, "no last snapshot; the next start reads more of the log"),
        }
    }

    fn keep_reserve(&mut self) {
        let next = self.shared.next_seq();
        let left = self.log.reserved().0.saturating_sub(next.0);
        if left >= RESERVE / 2 {
            return;
        }
        match self.log.reserve(Seq(next.0.saturating_add(RESERVE))) {
            Ok(()) => {
                self.reserve_fails = false;
                self.shared.set_reserved(self.log.reserved());
            }
            Err(error) => {
                self.disk_error("reserve");
                if !std::mem::replace(&mut self.reserve_fails, true) {
                    warn!(error = &error as &dyn Error, left, "the reserve of sequence numbers could not be raised");
                }
            }
        }
    }

    fn disk_error(&self, reason: &'static str) {
        self.metrics.disk_errors.get_or_create(&Reason { reason }).inc();
    }

    fn forget_gauges(&self, sink: &str) {
        for lane in Lane::ALL {
            let label = SinkLane { sink: sink.to_owned(), lane: lane.into() };
            self.metrics.lag_records.remove(&label);
            self.metrics.lag_seconds.remove(&label);
        }
    }
}

/// How long what waits may wait, from when it was first seen; none if nothing waits.
fn due_in(waiting: Waiting, held: bool, credit: bool, window: Duration) -> Option<Duration> {
    match waiting {
        _ if held => Some(RETRY),
        Waiting::Nothing => None,
        Waiting::Acks => Some(ACK_WAIT_MAX),
        Waiting::Frames if !credit => Some(window),
        Waiting::Frames | Waiting::Pressing => Some(Duration::ZERO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::queue::testing::{House, options, put};

    const WINDOW: Duration = Duration::from_millis(100);

    #[test]
    fn a_thread_with_nothing_else_to_do_goes_on_with_its_snapshot() {
        let mut house = House::new(&options());
        house.disk.disk().snapshot_due = true;
        house.store(vec![put("a", 1)]);
        for _ in 0..3 {
            assert_eq!(house.worker.wait(), Next::Snapshot);
            house.worker.snapshot();
        }
        assert_eq!((house.disk.disk().snapshots, house.worker.is_snapping), (1, false));
        assert!(house.add(vec![put("a", 2)]).is_ok());
        assert_eq!(house.worker.wait(), Next::Round);
        house.worker.shared.lock().stop = true;
        assert_eq!(house.worker.wait(), Next::Finish);
    }

    #[test]
    fn frames_go_at_once_while_there_is_credit_and_gather_when_it_is_spent() {
        assert_eq!(due_in(Waiting::Frames, false, true, WINDOW), Some(Duration::ZERO));
        assert_eq!(due_in(Waiting::Frames, false, false, WINDOW), Some(WINDOW));
        assert_eq!(due_in(Waiting::Pressing, false, false, WINDOW), Some(Duration::ZERO));
    }

    #[test]
    fn acknowledgements_of_sinks_wait_to_ride_along() {
        assert_eq!(due_in(Waiting::Acks, false, true, WINDOW), Some(ACK_WAIT_MAX));
        assert_eq!(due_in(Waiting::Nothing, false, true, WINDOW), None);
    }

    #[test]
    fn after_an_error_nothing_hurries_the_next_try() {
        for waiting in [Waiting::Nothing, Waiting::Acks, Waiting::Frames, Waiting::Pressing] {
            assert_eq!(due_in(waiting, true, true, WINDOW), Some(RETRY));
        }
    }
}
