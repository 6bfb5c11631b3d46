//! The engine thread: rules, twins and Seqs; it never waits for disk or network.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::{info, warn};

use super::pipeline::{Outcome, Pipeline, Step};
use crate::broker::{Alerter, Inbound, Ticket, Verdict};
use crate::model::{Change, Lane, Lsn, Message, Millis, ObjectKey, QoS, Seq};
use crate::queue::{Added, Intake, Refused};
use crate::runtime::clock::Clock;
use crate::runtime::metrics::{Metrics, Reason};
use crate::runtime::supervisor::Heartbeat;

/// Publishes taken in one go before timers are looked at.
const BATCH_MAX: usize = 256;

/// Transitions that wait for room in the commit queue; beyond it the oldest is dropped, counted and logged.
const BACKLOG_MAX: usize = 10_000;

/// A kind of refusal is warned of at most so often.
const WARN_PAUSE: Duration = Duration::from_mins(1);

/// Readings of one device that wait for `min_interval`.
const HELD_MAX: usize = 4096;

/// The engine comes by at least this often, for its heartbeat.
const TICK: Duration = Duration::from_millis(500);

/// What the engine works with.
pub struct EngineParts {
    /// Mapping, twins and rules.
    pub pipeline: Pipeline,
    /// The queue's end for the engine.
    pub intake: Intake,
    /// Publishes alerts on the broker.
    pub alerter: Alerter,
    /// Publishes of all clients.
    pub inbound: mpsc::Receiver<Inbound>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// The running engine thread. It ends when the broker has dropped its sender.
pub struct Engine {
    thread: JoinHandle<()>,
    heart: Heartbeat,
}

impl Engine {
    /// Starts the thread.
    pub fn start(parts: EngineParts) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let heart = Heartbeat::default();
        heart.beat(parts.clock.now());
        let mut state = State::new(parts, heart.clone());
        let thread =
            std::thread::Builder::new().name("tidegate-engine".into()).spawn(move || runtime.block_on(state.run()))?;
        Ok(Self { thread, heart })
    }

    /// True while the thread runs.
    pub fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }

    /// The thread's sign of life.
    pub fn heart(&self) -> &Heartbeat {
        &self.heart
    }

    /// Waits for the thread's end; false if it panicked.
    pub fn join(self) -> bool {
        self.thread.join().is_ok()
    }
}

struct State {
    parts: EngineParts,
    heart: Heartbeat,
    /// Tickets of readings that `min_interval` keeps back, by device; bounded by the clients' in-flight windows.
    held: HashMap<ObjectKey, Vec<Ticket>>,
    /// Transitions that were published and found no room; they go before any later one.
    backlog: VecDeque<Change>,
    /// When which refusal was warned of last.
    warned: HashMap<&'static str, Millis>,
}

impl State {
    fn new(parts: EngineParts, heart: Heartbeat) -> Self {
        Self { parts, heart, held: HashMap::new(), backlog: VecDeque::new(), warned: HashMap::new() }
    }

    async fn run(&mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        for step in self.parts.pipeline.on_start(self.parts.clock.wall()) {
            self.take(step, None, None);
        }
        loop {
            let wait = self.wait();
            tokio::select! {
                biased;
                count = self.parts.inbound.recv_many(&mut batch, BATCH_MAX) => {
                    if count == 0 {
                        break;
                    }
                    batch.drain(..).for_each(|inbound| self.on_inbound(inbound));
                }
                () = tokio::time::sleep(wait) => {}
            }
            self.on_time();
            self.heart.beat(self.parts.clock.now());
        }
        let wall = self.parts.clock.wall();
        for step in self.parts.pipeline.flush_all(wall) {
            self.take(step, None, None);
        }
        self.work_off_backlog();
    }

    fn wait(&self) -> Duration {
        let now = self.parts.clock.now();
        self.parts.pipeline.next_deadline().map_or(TICK, |deadline| deadline.since(now).min(TICK))
    }

    fn on_inbound(&mut self, inbound: Inbound) {
        let (now, wall) = (self.parts.clock.now(), self.parts.clock.wall());
        let step = self.parts.pipeline.on_message(&inbound.message, now, wall);
        let metrics = &self.parts.metrics;
        metrics.readings.inc_by(step.readings as u64);
        if step.outcome == Outcome::Unmapped {
            metrics.unmapped.inc();
            if self.may_warn("unmapped") {
                let Message { topic, client, .. } = &inbound.message;
                info!(%topic, %client, "no [[source]] takes this topic; told once a minute");
            }
        }
        let metrics = &self.parts.metrics;
        if let Some(reason) = step.problem {
            metrics.undecodable.get_or_create(&Reason { reason }).inc();
        }
        self.take(step, inbound.ticket, Some(inbound.received));
    }

    fn on_time(&mut self) {
        let (now, wall) = (self.parts.clock.now(), self.parts.clock.wall());
        if self.parts.pipeline.next_deadline().is_some_and(|deadline| deadline <= now) {
            for step in self.parts.pipeline.on_time(now, wall) {
                self.take(step, None, None);
            }
        }
        self.work_off_backlog();
    }

    /// Publishes a step's alerts, adds its changes, and settles the ticket. In this order.
    fn take(&mut self, step: Step, ticket: Option<Ticket>, received: Option<Duration>) {
        self.publish(&step, received);
        self.work_off_backlog();
        let Step { changes, put, outcome, .. } = step;
        let verdict = match self.add(&changes) {
            Ok(added) => {
                self.parts.pipeline.added(put.as_ref(), added.lsn, self.parts.clock.now());
                self.settle_held(put.as_ref(), self.unless_backlog(Verdict::Stored { lsn: added.lsn, seq: added.seq }));
                self.verdict(&outcome, added)
            }
            Err(refused) => Some(self.refuse(refused, changes, put.as_ref())),
        };
        match (ticket, verdict, outcome) {
            (Some(ticket), None, Outcome::Held(key)) => {
                let held = self.held.entry(key).or_default();
                // A client that comes back again and again leaves tickets behind; one that is dropped is refused.
                if held.len() < HELD_MAX {
                    held.push(ticket);
                }
            }
            (Some(ticket), verdict, _) => ticket.settle(verdict.unwrap_or(Verdict::Refused)),
            (None, ..) => {}
        }
    }

    /// The step found no room. What subscribers have seen must be stored in the end, whatever becomes of the reading.
    fn refuse(&mut self, refused: Refused, changes: Vec<Change>, put: Option<&ObjectKey>) -> Verdict {
        self.count_refused(refused);
        let transitions: Vec<_> = changes.into_iter().filter(is_transition).collect();
        let is_full = refused == Refused::CommitQueueFull;
        if is_full || !transitions.is_empty() {
            // Without its transitions the state may find room.
            self.parts.pipeline.refused(put, self.parts.clock.now());
        } else {
            self.settle_held(put, Verdict::Declined);
        }
        for transition in transitions {
            self.keep(transition);
        }
        if is_full { Verdict::Refused } else { Verdict::Declined }
    }

    fn publish(&self, step: &Step, received: Option<Duration>) {
        for alert in &step.alerts {
            self.parts.alerter.publish(alert.topic.clone(), alert.payload.clone(), QoS::AtLeastOnce, true);
            let reason = if alert.firing { "firing" } else { "resolved" };
            self.parts.metrics.alert_transitions.get_or_create(&Reason { reason }).inc();
            if let Some(received) = received {
                let latency = self.parts.clock.ticks().saturating_sub(received);
                self.parts.metrics.alert_latency.observe(latency.as_secs_f64());
            }
        }
    }

    fn add(&mut self, changes: &[Change]) -> Result<Added, Refused> {
        if changes.is_empty() {
            return Ok(Added { lsn: Lsn::ZERO, seq: None });
        }
        if !self.backlog.is_empty() && changes.iter().any(is_transition) {
            return Err(Refused::CommitQueueFull);
        }
        self.parts.intake.add(changes.to_vec())
    }

    fn verdict(&mut self, outcome: &Outcome, added: Added) -> Option<Verdict> {
        let stored = |lsn: Lsn, seq: Option<Seq>| Some(self.unless_backlog(Verdict::Stored { lsn, seq }));
        match outcome {
            Outcome::Unmapped => Some(Verdict::Stored { lsn: Lsn::ZERO, seq: None }),
            Outcome::Nothing => stored(Lsn::ZERO, None),
            Outcome::Suppressed(base) => stored(*base, None),
            Outcome::Stored => stored(added.lsn, added.seq),
            Outcome::Held(_) => None,
            Outcome::Refused => {
                self.count_refused(Refused::KeysMax);
                Some(Verdict::Declined)
            }
        }
    }

    /// A message that is sent once more has no transition any more; the one of its first time may be in the backlog.
    fn unless_backlog(&self, verdict: Verdict) -> Verdict {
        if self.backlog.is_empty() { verdict } else { Verdict::Refused }
    }

    fn settle_held(&mut self, put: Option<&ObjectKey>, verdict: Verdict) {
        for ticket in put.and_then(|key| self.held.remove(key)).unwrap_or_default() {
            ticket.settle(verdict);
        }
    }

    fn count_refused(&mut self, refused: Refused) {
        let reason = match refused {
            Refused::CommitQueueFull => "commit_queue_full",
            Refused::KeysMax => "keys_max",
            Refused::TooLarge => "too_large",
        };
        self.parts.metrics.refused.get_or_create(&Reason { reason }).inc();
        if self.may_warn(reason) {
            warn!(reason, "publishes are refused: {refused}");
        }
    }

    fn may_warn(&mut self, reason: &'static str) -> bool {
        let now = self.parts.clock.now();
        let is_due = self.warned.get(reason).is_none_or(|last| now.since(*last) >= WARN_PAUSE);
        if is_due {
            self.warned.insert(reason, now);
        }
        is_due
    }

    fn keep(&mut self, transition: Change) {
        if self.backlog.len() >= BACKLOG_MAX {
            self.backlog.pop_front();
            self.count_dropped_transition();
        }
        self.backlog.push_back(transition);
    }

    fn work_off_backlog(&mut self) {
        while let Some(transition) = self.backlog.front() {
            match self.parts.intake.add(vec![transition.clone()]) {
                Ok(_) => {}
                Err(Refused::CommitQueueFull) => return,
                // It never finds room, and those behind it shall not wait for it.
                Err(refused) => {
                    self.count_refused(refused);
                    self.count_dropped_transition();
                }
            }
            self.backlog.pop_front();
        }
    }

    fn count_dropped_transition(&self) {
        self.parts.metrics.queue_dropped.get_or_create(&Lane::Alert.into()).inc();
    }
}

fn is_transition(change: &Change) -> bool {
    matches!(change, Change::Alert { .. })
}

#[cfg(test)]
#[path = "engine_tests.rs"]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]
mod tests;
