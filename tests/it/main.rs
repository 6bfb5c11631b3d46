//! All quick integration tests: one binary, no server, no root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests may panic and read the clock"
)]

mod broker;
mod config;
mod docs;
mod gateway;
mod process;
mod serve;
mod tidy;
