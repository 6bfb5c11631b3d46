//! Local alerts: compiles `[[alert]]` rules and follows the state of every alert on every device.
//!
//! # Expressions
//!
//! The grammar is a subset of CEL: numbers (`80`, `0x50`, `80u`, `80.5`), texts in either quotes, `true`, `false`,
//! metrics (`temperature`, `am2301.temperature`, and any name as `metric["switch:0.apower"]`), `< <= > >= == !=`,
//! `&& || !`, a minus in front of numbers, parentheses and comments. The rest of CEL is refused by name and place.
//! Where the subset overlaps with CEL it means the same, with these differences:
//!
//! - Numbers compare by their exact size, whatever their type: `21 == 21.0`, and 2^53 + 1 is not 2^53.
//! - Three values: a metric that is missing, or whose quality is not good, is unknown, and so is a comparison of two
//!   types and a metric that stands alone and is no boolean. `&&` and `||` are those of SQL: `false && unknown` is
//!   false, `true || unknown` is true. Unknown neither raises nor clears.
//! - Quality `Uncertain` is unknown, too: a retained value that is replayed to a new subscriber, or a stale one, says
//!   nothing of now and must not fire an edge. The first live value decides.
//! - `null`, numbers compared with texts, and conditions without a metric are refused, for they could never decide.
//!
//! # Which devices
//!
//! `on` is a pattern for device names in which `*` stands for any characters. A rule without `on` applies to every
//! device that has all metrics named in `expr`; one that is there but bad counts as there.
//!
//! # When an alert fires and resolves
//!
//! `for` is an on-delay, `keep_firing_for` an off-delay; without them an alert acts at once. No data is not
//! "resolved": silence leaves a firing alert as it is, and a delay that runs in a silence ends as the last value says.
//! While the condition is *unknown* a delay stands still and goes on with the next value: the time that was unknown
//! counts neither for nor against. So a flickering sensor still fires, a lone spike on either side of an outage does
//! not, and nothing fires or resolves on a value that is known to be bad. A restart keeps what was told; a delay
//! starts anew.
//!
//! `hysteresis` moves the limit of a single comparison while the alert fires. During the off-delay and the on-delay
//! the limit is the written one, so that a value between both limits neither starts nor ends a delay wrongly.
//!
//! | `expr` | fires at | resolves at |
//! |---|---|---|
//! | `t > 80`, `80 < t` | `t > 80` | `t <= 80 - hysteresis` |
//! | `t >= 80`, `80 <= t` | `t >= 80` | `t < 80 - hysteresis` |
//! | `t < 5`, `5 > t` | `t < 5` | `t >= 5 + hysteresis` |
//! | `t <= 5`, `5 >= t` | `t <= 5` | `t > 5 + hysteresis` |
//!
//! # Invariants
//!
//! - Firing and resolved alternate per alert and device, numbered from 1: odd fires, even resolves. A number is never
//!   given twice, neither after a restore nor when a deleted device comes back.
//! - A reading looks only at rules that name one of its metrics and whose pattern matches its device.
//! - Nothing recurses on what a user wrote. Evaluation allocates nothing and cannot fail; its cost is bounded by
//!   4096 bytes, 32 levels and 256 values and operators of an expression, checked when it is compiled.
//! - At most 10 000 rules and [`STATES_MAX`] alert states. A state is held while an alert is not normal, and for its
//!   number once it has fired. Beyond the bound a new alert is refused, counted and told. Of deleted devices, numbers
//!   are held one by one only while half of the room is free; beyond that they are merged into their highest, and
//!   alerts that fire for the first time from then on start above it.
//!
//! # What is not here
//!
//! No clock, no I/O, no task: time and facts come in as arguments, transitions go out. No persistence: the caller
//! stores what is told and gives it back by [`RuleEngine::restore`]. No acknowledgement, latch, shelving, windows,
//! functions or arithmetic.

use std::sync::Arc;

use crate::config::AlertRule;
use crate::model::{AlertState, ObjectKey, Quality, Value};

mod alerts;
mod annotate;
mod engine;
mod error;
#[cfg(test)]
mod fixtures;
mod glob;
mod lexer;
#[cfg(test)]
mod oracle;
mod parser;
mod program;
mod selection;
mod state;
#[cfg(test)]
mod tests;
mod truth;

pub use annotate::{ANNOTATION_BYTES_MAX, annotate};
pub use engine::RuleEngine;
pub use error::{Fault, FaultKind, RuleError, RuleErrors};

/// Rules of one gateway.
pub const RULES_MAX: usize = 10_000;
/// Alert states that are held; about 150 bytes each.
pub const STATES_MAX: usize = 1_000_000;
/// Longest `on`.
pub const PATTERN_BYTES_MAX: usize = 1024;

/// What the engine's owner knows of a device at the moment of an evaluation.
pub trait Facts {
    /// The last value of a metric and the quality of its newest reading; none if the device never had it.
    fn metric(&self, name: &str) -> Option<(&Value, Quality)>;
}

/// An alert fires or resolves.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// The rule.
    pub rule: Arc<AlertRule>,
    /// The device.
    pub device: ObjectKey,
    /// What it does.
    pub state: AlertState,
    /// Of this rule on this device, from 1: odd fires, even resolves.
    pub number: u64,
    /// The deciding value: of the only metric in `expr`, or of the left one where `expr` is one comparison. None
    /// elsewhere, and where the device is gone.
    pub value: Option<Value>,
}
