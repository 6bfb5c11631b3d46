//! `LaneReader`: one lane as one sink reads it.

use std::sync::Arc;

use super::DeltaFifo;
use super::pass::Passes;
use super::tape::{Gap, Tape};
use super::view::View;
use crate::model::{Lane, ObjectKey, Record, Seq};

/// Reads one lane for one sink: pop, then ack or rewind. Nothing here blocks; who waits for more follows
/// [`DeltaFifo::watch`].
///
/// A reader moves its own cursor only; [`super::Acker::ack`] makes it durable.
#[derive(Debug)]
pub struct LaneReader {
    fifo: Arc<DeltaFifo>,
    sink: Arc<str>,
    lane: Lane,
    mode: Mode,
    told: Seq,
}

#[derive(Debug)]
enum Mode {
    /// The sink's cursor is not committed yet.
    NoCursor,
    State(Passes),
    Records(Tape),
}

impl LaneReader {
    pub(super) fn new(fifo: Arc<DeltaFifo>, sink: Arc<str>, lane: Lane) -> Self {
        let mode = fifo.read(|view| attach(view, &sink, lane));
        let mut reader = Self { fifo, sink, lane, mode, told: Seq::ZERO };
        reader.told = reader.cursor();
        reader
    }

    /// The next records to send, in order, at most `records_max` and (beyond the first) at most `bytes_max` of
    /// [`Record::cost`]; empty if there is nothing.
    ///
    /// In lane `state` at most one record of a key is popped and unacknowledged at a time, so a pass must be
    /// acknowledged before the next one starts. A reader whose sink has no committed cursor pops nothing until it has.
    pub fn pop(&mut self, records_max: usize, bytes_max: usize) -> Vec<Record> {
        let Self { fifo, sink, lane, mode, told } = self;
        fifo.read(|view| {
            if matches!(mode, Mode::NoCursor) {
                *mode = attach(view, sink, *lane);
                *told = mode.cursor();
            }
            match (mode, view.keyed(*lane), view.records(*lane)) {
                (Mode::State(passes), Some(keyed), _) => passes.pop(keyed, view.head(), records_max, bytes_max),
                (Mode::Records(tape), _, Some(records)) => tape.pop(records, records_max, bytes_max),
                _ => Vec::new(),
            }
        })
    }

    /// The first `count` popped and unacknowledged records are delivered. Returns the cursor if it moved since the
    /// last call that returned one.
    pub fn ack(&mut self, count: usize) -> Option<Seq> {
        match &mut self.mode {
            Mode::State(passes) => self.fifo.read(|view| {
                view.keyed(Lane::State).into_iter().for_each(|keyed| passes.ack(count, keyed, view.head()));
            }),
            Mode::Records(tape) => tape.ack(count),
            Mode::NoCursor => {}
        }
        let cursor = self.cursor();
        (cursor > std::mem::replace(&mut self.told, cursor)).then_some(cursor)
    }

    /// The session died: what is popped and unacknowledged will be popped again. Returns its keys.
    pub fn rewind(&mut self) -> Vec<ObjectKey> {
        match &mut self.mode {
            Mode::State(passes) => passes.rewind(),
            Mode::Records(tape) => tape.rewind(),
            Mode::NoCursor => Vec::new(),
        }
    }

    /// Sends the newest state of these keys once more in the next pass (late writes of a dead session). Lanes `alert`
    /// and `event` have nothing to send again: their readers keep the highest Seq.
    pub fn resend(&mut self, keys: Vec<ObjectKey>) {
        if let Mode::State(passes) = &mut self.mode {
            passes.resend(keys);
        }
    }

    /// A gap that lies before the records of the last [`LaneReader::pop`], told once: it is to be announced before
    /// them. After a rewind to before it, it is told again. Lane `state` has none.
    pub fn take_gap(&mut self) -> Option<Gap> {
        match &mut self.mode {
            Mode::Records(tape) => tape.take_gap(),
            Mode::State(_) | Mode::NoCursor => None,
        }
    }

    /// The lane.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// Acknowledged up to and including, ahead of the durable cursor.
    pub fn cursor(&self) -> Seq {
        self.mode.cursor()
    }
}

impl Mode {
    fn cursor(&self) -> Seq {
        match self {
            Self::NoCursor => Seq::ZERO,
            Self::State(passes) => passes.cursor(),
            Self::Records(tape) => tape.cursor(),
        }
    }
}

fn attach(view: &View, sink: &str, lane: Lane) -> Mode {
    match (view.cursors().get(sink, lane), view.records(lane)) {
        (None, _) => Mode::NoCursor,
        (Some(cursor), None) => Mode::State(Passes::new(cursor.seq)),
        (Some(cursor), Some(records)) => Mode::Records(Tape::new(cursor.seq, cursor.lost, records)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::model::Effect;
    use crate::queue::testing::{self, record};

    fn fifo(effects: Vec<Effect>) -> Arc<DeltaFifo> {
        Arc::new(testing::fifo(effects))
    }

    fn cursor(lane: Lane, seq: u64) -> Effect {
        Effect::Cursor { sink: "s".into(), lane, seq: Seq(seq) }
    }

    #[test]
    fn a_reader_without_a_committed_cursor_waits_for_it() {
        let fifo = fifo(vec![Effect::Record(record(Lane::State, "a", 1)), Effect::Record(record(Lane::State, "b", 2))]);
        let mut reader = fifo.reader(&"s".into(), Lane::State);
        assert!(reader.pop(9, 9999).is_empty());
        assert_eq!((reader.ack(1), reader.rewind().len(), reader.take_gap()), (None, 0, None));
        testing::apply(&fifo, vec![cursor(Lane::State, 1)]);
        let records = reader.pop(9, 9999);
        assert_eq!((records.len(), records[0].seq), (1, Seq(2)));
        assert_eq!(reader.ack(1), Some(Seq(2)));
    }

    #[test]
    fn a_cursor_is_told_once_when_it_moves() {
        for lane in Lane::ALL {
            let records = [1, 2].map(|seq| Effect::Record(record(lane, &format!("k{seq}"), seq)));
            let fifo = fifo(records.into_iter().chain([cursor(lane, 0)]).collect());
            let mut reader = fifo.reader(&"s".into(), lane);
            assert_eq!(reader.ack(5), None, "{lane}: nothing is popped");
            assert_eq!(reader.pop(9, 9999).len(), 2);
            assert_eq!((reader.ack(1), reader.ack(0), reader.ack(1)), (Some(Seq(1)), None, Some(Seq(2))), "{lane}");
            assert_eq!((reader.cursor(), reader.lane()), (Seq(2), lane));
        }
    }

    #[test]
    fn sinks_read_each_at_its_own_cursor() {
        let ahead = Effect::Cursor { sink: "ahead".into(), lane: Lane::Event, seq: Seq(2) };
        let records = [1, 2, 3].map(|seq| Effect::Record(record(Lane::Event, "a", seq)));
        let fifo = fifo(records.into_iter().chain([cursor(Lane::Event, 0), ahead]).collect());
        assert_eq!(fifo.reader(&"s".into(), Lane::Event).pop(9, 9999).len(), 3);
        assert_eq!(fifo.reader(&"ahead".into(), Lane::Event).pop(9, 9999).len(), 1);
    }
}
