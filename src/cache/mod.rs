//! The Indexer: the twins of all devices in RAM, and the Predicate that decides which changes go upstream.
//!
//! One owner (the engine thread) writes and reads it; nothing here does I/O or knows a clock. At most `keys_max`
//! devices and 512 metrics a device; a device beyond the bound is refused, never an old one evicted. After a restart
//! the twins are rebuilt from the records of lane `state`, so they start as what was sent last.
//!
//! It is not a queue: what waits for an upstream lies in `queue`, as records.

mod indexer;
mod predicate;
mod twin;

pub use indexer::{Indexer, TooMany};
pub use predicate::{Limits, Predicate};
pub use twin::{METRICS_MAX, Twin};
