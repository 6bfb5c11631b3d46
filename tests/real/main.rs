//! Tests of the real binary against real parts: Apache Kafka, kubectl, mosquitto and paho. Started by `tests/run`,
//! which installs and starts the parts and says where they are.
//!
//! Every test starts its own gateway on free loopback ports with a data folder of its own, and ends what it started.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::let_underscore_must_use,
    reason = "tests may panic, wait and read the clock"
)]

mod clients;
mod command;
mod crash;
mod demo;
mod e2e;
mod gateway;
mod http;
mod kafka;
mod kubectl;
mod mqtt;
mod parts;
mod power;
