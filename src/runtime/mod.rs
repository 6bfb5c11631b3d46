//! The process: clock, back-off, supervision, metrics, logs, systemd.
//!
//! Every source of chance and every touch of the operating system that is not a file of the store goes through here,
//! so that the rooms above take them as arguments.

pub mod backoff;
pub mod clock;
pub mod metrics;
pub mod supervisor;
pub mod systemd;
pub mod telemetry;
