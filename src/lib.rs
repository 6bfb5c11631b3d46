//! Tidegate: an edge gateway that acts on the spot and lets state changes out whenever the uplink is open.
//!
//! The rooms stand in floor order, lowest first. A room imports only from lower floors, never sideways;
//! the one exception is `runtime`, which may import `model`. `ARCHITECTURE.md` walks one reading through them.

// Floor 0: the words, and the process.
pub mod model;
pub mod runtime;
// Floor 1: what is configured, and what is stored.
pub mod config;
pub mod store;
// Floor 2: the still engine.
pub mod cache;
pub mod queue;
pub mod rules;
// Floor 3: the edges.
pub mod broker;
pub mod serve;
pub mod sink;
// Floor 4: the heart.
pub mod ingest;
// Floor 5: the wiring.
pub mod app;
// Floor 6: the commands.
pub mod cli;
