//! The wiring, and nothing else: `App::build(config)` puts the rooms together, `App::run(shutdown)` lets them run and
//! takes them down in order.
//!
//! Threads: two workers of the broker's runtime, one engine thread, one commit thread, and one worker of a second
//! runtime for sinks and the served API, so that a big list never delays an alert. A core part (broker, engine, commit)
//! that ends early ends the process; an edge (sink, served API) is built anew.

mod build;
mod run;

pub use build::{App, AppError};
pub use run::{Addresses, ExtraSink};
