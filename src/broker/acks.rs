//! Acknowledgements of one client, in the order of its publishes.
//!
//! A [`Ticket`] may be settled on any thread and in any order; the client hears in the order in which it published.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::hub::lock;
use crate::model::{Lsn, Seq};

/// What the engine says of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Acknowledge when `lsn` is durable.
    Stored {
        /// The newest frame that must be on disk; [`Lsn::ZERO`] if there is none.
        lsn: Lsn,
        /// The receipt: the highest Seq of the publish's visible effects.
        seq: Option<Seq>,
    },
    /// It can never be taken: its device or its size is beyond a bound. An MQTT 5 client is told 0x97; an MQTT 3.1.1
    /// client, which would send it for ever, gets an acknowledgement. The engine counts the loss and warns of it.
    Declined,
    /// No room now. An MQTT 5 client is told 0x97, in its turn. MQTT 3.1.1 knows no refusal: that packet id is never
    /// acknowledged, those behind it are, and its connection is closed when something is stored again.
    Refused,
}

/// The right to an acknowledgement; settled once. A ticket that is dropped counts as [`Verdict::Refused`].
#[derive(Debug)]
pub struct Ticket {
    board: Arc<Board>,
    number: u64,
    is_settled: bool,
}

impl Ticket {
    /// Hands the verdict to the connection. Never blocks; does nothing if the connection is gone.
    pub fn settle(mut self, verdict: Verdict) {
        self.is_settled = true;
        self.board.settle(self.number, Outcome::Engine(verdict));
    }

    /// A ticket without a connection, and a way to ask what it was settled with.
    #[cfg(test)]
    pub(crate) fn loose() -> (Self, impl FnOnce() -> Option<Verdict>) {
        let board = Arc::new(Board::new(Arc::default()));
        let ticket = board.open(1, Duration::ZERO);
        let verdict = move || match board.release(Lsn(u64::MAX))?.outcome {
            Outcome::Engine(verdict) => Some(verdict),
            Outcome::NotAuthorized => None,
        };
        (ticket, verdict)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_settled {
            self.board.settle(self.number, Outcome::Engine(Verdict::Refused));
        }
    }
}

/// What a publish is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// What the engine said.
    Engine(Verdict),
    /// The client may not publish to this topic.
    NotAuthorized,
}

/// The publishes of one connection that wait for their acknowledgement, oldest first.
#[derive(Debug)]
pub(super) struct Board {
    slots: Mutex<Slots>,
    wake: Arc<Notify>,
}

impl Board {
    /// An empty board; `wake` is told when a publish is settled.
    pub(super) fn new(wake: Arc<Notify>) -> Self {
        Self { slots: Mutex::default(), wake }
    }

    /// A publish that the engine will settle. `received` is `Clock::ticks` when it was read.
    pub(super) fn open(self: &Arc<Self>, pkid: u16, received: Duration) -> Ticket {
        Ticket { board: Arc::clone(self), number: self.add(pkid, received, None), is_settled: false }
    }

    /// A publish whose answer is known, in its place behind those that wait.
    pub(super) fn refuse(&self, pkid: u16, received: Duration) {
        self.add(pkid, received, Some(Outcome::NotAuthorized));
    }

    /// Publishes that wait.
    pub(super) fn len(&self) -> usize {
        lock(&self.slots).waiting.len()
    }

    /// When the oldest publish that waits was read.
    pub(super) fn oldest(&self) -> Option<Duration> {
        lock(&self.slots).waiting.front().map(|slot| slot.received)
    }

    /// The oldest publish, if its answer may go out now that `durable` is on disk.
    pub(super) fn release(&self, durable: Lsn) -> Option<Answer> {
        let mut slots = lock(&self.slots);
        let is_due = |slot: &mut Slot| match slot.outcome {
            None => false,
            Some(Outcome::Engine(Verdict::Stored { lsn, .. })) => lsn <= durable,
            Some(_) => true,
        };
        let slot = slots.waiting.pop_front_if(is_due)?;
        slots.first += 1;
        slot.outcome.map(|outcome| Answer { pkid: slot.pkid, received: slot.received, outcome })
    }

    fn add(&self, pkid: u16, received: Duration, outcome: Option<Outcome>) -> u64 {
        let mut slots = lock(&self.slots);
        slots.waiting.push_back(Slot { pkid, received, outcome });
        slots.first + slots.waiting.len() as u64 - 1
    }

    fn settle(&self, number: u64, outcome: Outcome) {
        let mut slots = lock(&self.slots);
        let at = number.checked_sub(slots.first).and_then(|at| usize::try_from(at).ok());
        let slot = at.and_then(|at| slots.waiting.get_mut(at));
        debug_assert!(slot.as_ref().is_some_and(|slot| slot.outcome.is_none()), "a ticket is settled once");
        if let Some(slot) = slot {
            slot.outcome = Some(outcome);
        }
        drop(slots);
        self.wake.notify_one();
    }
}

/// An answer that may go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    /// Packet id of the publish.
    pub(super) pkid: u16,
    /// When it was read.
    pub(super) received: Duration,
    /// What to say.
    pub(super) outcome: Outcome,
}

#[derive(Debug, Default)]
struct Slots {
    /// Number of the oldest.
    first: u64,
    waiting: VecDeque<Slot>,
}

#[derive(Debug)]
struct Slot {
    pkid: u16,
    received: Duration,
    outcome: Option<Outcome>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> Arc<Board> {
        Arc::new(Board::new(Arc::new(Notify::new())))
    }

    fn stored(lsn: u64) -> Verdict {
        Verdict::Stored { lsn: Lsn(lsn), seq: None }
    }

    fn pkids(board: &Board, durable: u64) -> Vec<u16> {
        std::iter::from_fn(|| board.release(Lsn(durable))).map(|answer| answer.pkid).collect()
    }

    #[test]
    fn answers_go_out_in_the_order_of_the_publishes() {
        let board = board();
        let [first, second, third] = [1, 2, 3].map(|pkid| board.open(pkid, Duration::ZERO));
        third.settle(stored(1));
        second.settle(stored(2));
        assert!(pkids(&board, 9).is_empty());
        first.settle(stored(3));
        assert!(pkids(&board, 2).is_empty(), "the first one is not on disk");
        assert_eq!(pkids(&board, 3), [1, 2, 3]);
        assert_eq!(board.len(), 0);
    }

    #[test]
    fn a_later_publish_waits_for_its_own_frame() {
        let board = board();
        board.open(1, Duration::ZERO).settle(stored(1));
        board.open(2, Duration::ZERO).settle(stored(5));
        assert_eq!(pkids(&board, 4), [1]);
        assert_eq!(pkids(&board, 5), [2]);
    }

    #[test]
    fn a_ticket_that_is_dropped_is_refused() {
        let board = board();
        drop(board.open(4, Duration::ZERO));
        let outcome = board.release(Lsn::ZERO).map(|answer| answer.outcome);
        assert_eq!(outcome, Some(Outcome::Engine(Verdict::Refused)));
    }

    #[test]
    fn a_refused_topic_is_answered_in_its_turn() {
        let board = board();
        let ticket = board.open(1, Duration::ZERO);
        board.refuse(2, Duration::ZERO);
        assert!(pkids(&board, 0).is_empty());
        ticket.settle(stored(0));
        assert_eq!(pkids(&board, 0), [1, 2]);
    }

    #[test]
    fn tickets_find_their_slot_after_others_are_gone() {
        let board = board();
        board.open(1, Duration::ZERO).settle(stored(0));
        let second = board.open(2, Duration::ZERO);
        assert_eq!(pkids(&board, 0), [1]);
        let third = board.open(3, Duration::ZERO);
        third.settle(stored(0));
        second.settle(Verdict::Refused);
        assert_eq!(pkids(&board, 0), [2, 3]);
    }
}
