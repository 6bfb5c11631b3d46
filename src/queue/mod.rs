//! The queue: a durable DeltaFIFO. The engine adds changes, the commit thread makes them durable, sinks and watchers
//! read what is committed.
//!
//! - [`Intake`] (engine thread) gives out Seqs and makes frames; it never waits. [`Acker`] (sinks) moves cursors.
//! - The commit thread ([`Committer`]) writes what has gathered as one group, applies it to the [`DeltaFifo`], then
//!   tells the durable position.
//! - [`DeltaFifo`] is what all committed effects amount to; [`LaneReader`] reads one lane of it for one sink.
//!
//! # Invariants
//!
//! 1. A reader sees committed changes only, whole commits at a time: live commits and recovery are one piece of code.
//! 2. A Seq is given out once: above the head and below the log's reserve, 2^20 ahead and raised at the half.
//! 3. Lane `state`: of each key the newest record is kept, a Deleted included. A sink reads it in passes (see
//!    [`LaneReader::pop`]): a key waits at most one pass, at most one record of it is unacknowledged, a Deleted is
//!    always sent, the cursor follows what is acknowledged.
//! 4. Lanes `alert` and `event`: a record goes when every cursor has passed it, or when the lane's bound in bytes is
//!    reached: then the oldest go, counted, warned of once a minute, and told to each reader that lacks them as one [`Gap`].
//!    Without a sink records stay up to that bound.
//! 5. A tombstone holds its key's slot until every cursor of its lane has passed it. Then it stays for watchers: at
//!    least 24 h, counted from its own stamp to the newest stamp of any record, and at most 10 000 a lane. A clock that
//!    was once ahead makes it shorter; a watcher then lists again.
//! 6. Trims and forgets ride in the next frame; they never cause a commit.
//! 7. Bounds: `keys_max` slots in each of the lanes `state` and `alert`, bytes of each record lane (the batch that comes
//!    in counts), `commit_queue_bytes_max` in RAM before the disk, 3 MiB a message, one cursor a sink and lane.
//! 8. A disk error keeps the frames as they are and tries them again every second, before anything that came later;
//!    nothing is acknowledged meanwhile, and what comes gathers as one state a key.
//! 9. The store's snapshot is an image of the [`DeltaFifo`]: when one is due the commit thread clones the records in
//!    pieces (1 024 under one lock, bodies shared), and the store writes them bit by bit between commits. A commit waits
//!    for one bit at most (256 KiB); with nothing else to do the thread goes on with it. The records stay in RAM until they
//!    are written, at most one more version of each body.
//!
//! # client-go's rules
//!
//! A port of DeltaFIFO is held to client-go's tests; here they are held by the tests named. What concerns a list from
//! upstream (Replace, Resync, `HasSynced`, the transformer, batches of the initial list) belongs to the informer.
//!
//! | client-go | here |
//! | --- | --- |
//! | addUpdate: one pop, newest wins | `an_update_before_the_pop_is_one_record_with_the_newest_state` |
//! | enqueueing with and without lister | `a_delete_of_an_unknown_key_changes_nothing` |
//! | detectLineJumpers | `a_key_that_changes_all_the_time_never_keeps_another_waiting` |
//! | DeleteExistingNonPropagated | `a_key_deleted_before_it_was_sent_is_sent_as_deleted` |
//! | PopMultipleDeltaInBatch: no key twice | `a_key_is_never_popped_twice_before_its_acknowledgement` |
//! | PopShouldUnblockWhenClosed | pop never blocks |
//! | KeyOf | `model::key` |
//! | basic: order of one producer | `histories_with_power_cuts_end_well` |
//! | ours: killed between add and ack; replay; sinks apart; resourceVersion rises | `histories_with_power_cuts_end_well` |
//! | ours: tombstones survive a restart | `tombstones_survive_a_restart_until_every_cursor_has_passed` |
//! | ours: full disk | `a_disk_error_is_told_and_the_same_frames_go_first_when_it_is_over` |
//!
//! # What it does not do
//!
//! It decides nothing about readings, encodes no body, opens no connection, and reads nothing back from disk: bodies of
//! waiting records live in RAM, within the bounds above. Policy `hold`, bounds by age and free space, dead letters and
//! the Replace marker of a new epoch are not here yet.

mod commit;
mod cursors;
mod drops;
mod fifo;
mod forming;
mod intake;
mod keyed;
mod lane;
mod log;
mod pass;
mod reader;
#[cfg(test)]
mod sim;
mod tape;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod upkeep;
mod view;
mod wear;

use std::time::Duration;

use crate::model::Epoch;

pub use commit::{CommitHandle, Committer, Durable, StartError};
pub use fifo::{DeltaFifo, Expired, Lag, Snapshot, Stats};
pub use intake::{Acker, Added, Intake, Refused};
pub use log::Log;
pub use reader::LaneReader;
pub use tape::Gap;

/// Bounds of the queue.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// The life of the store, which new records are born in.
    pub epoch: Epoch,
    /// Keys of lane `state`, and apart from them of lane `alert`: live ones, and deleted ones that a sink still lacks.
    pub keys_max: usize,
    /// Cost of the records kept in lane `event`.
    pub event_bytes_max: u64,
    /// Cost of the records kept in lane `alert`.
    pub alert_bytes_max: u64,
    /// Cost of what waits in RAM for the disk.
    pub commit_queue_bytes_max: usize,
    /// How long frames gather for one commit when the wear budget is spent.
    pub commit_window_max: Duration,
    /// Bytes that may be written a day before commits gather; one hour's worth may be written at once.
    pub wear_bytes_per_day: u64,
    /// Log bytes between two checkpoints.
    pub checkpoint_bytes: u64,
}
