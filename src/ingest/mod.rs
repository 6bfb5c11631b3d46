//! The heart: publish -> decode -> rules -> alert -> twin -> delta -> commit -> acknowledgement.
//!
//! `mapping`, `decode` and `pipeline` are pure: messages and time go in, alerts and changes come out. `engine` is the one
//! thread that runs them, publishes alerts before it hands anything to the queue, and never waits for disk or network.
//!
//! Invariants: an alert is published before its frame is added (1); a reading is acknowledged when the frame of its
//! effects is durable, a suppressed one when the newest frame of the key it was compared with is; a transition that
//! could not be added is kept (at most 10 000) and added first when there is room.
//!
//! What it does not do: no sockets, no files, no upstreams.

mod decode;
mod engine;
mod json;
mod mapping;
mod number;
mod pipeline;
pub mod problem;
mod stamp;

pub use decode::{CompiledSource, Decoded, DeviceTime, Reading, decode};
pub use engine::{Engine, EngineParts};
pub use mapping::{Mapping, MappingError, Role, Target};
pub use pipeline::{Outcome, Pipeline, Publication, Step};
