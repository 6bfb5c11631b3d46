//! The HTTP server of the gateway: a list/watch API that unmodified kubectl, client-go and kube-rs read, health,
//! metrics and a status page for people.
//!
//! Served: `tidegate.dev/v1alpha1`, namespaced, `devicestates` (lane `state`) and `alerts` (lane `alert`, the newest
//! transition per alert and device), with get, list and watch. The wire contract is that of Kubernetes 1.37.
//!
//! Invariants:
//! - Only committed changes are told; `resourceVersion` is the [`Seq`](crate::model::Seq) of the change, or for a
//!   list and a bookmark the position that a watch goes on from without a gap.
//! - A watch from N at or above the lane's floor is exact: every key that changed after N is told, its newest state
//!   last. States between two looks collapse; a key that is gone is always told, one that was deleted and made anew
//!   meanwhile is told as it is now, under its new uid. Below the floor, or ahead of the head, a watch is answered by
//!   an in-stream `ERROR` with code 410, which makes every client list again.
//! - A watcher is a position, not a queue: 500 records are read at a time and written to a pipe of 64 KiB. What a
//!   slow watcher costs is its position, plus one entry per matched key if it has a label selector.
//! - A position never goes back: not over pages, bookmarks or reconnects.
//! - Bounds: 256 connections, 30 s for a request to arrive, 120 s without progress for an answer to be taken, 8 KiB of
//!   path and query, `watchers_max` watches (then 429), 8 unfinished paged lists of at most 60 s (then 410), pages of
//!   at most the list itself, streamed.
//! - Every error is a `Status` object with a reason and a code. While the gateway starts, or the disk refuses writes,
//!   data answers 503 with `Retry-After: 1`; health, metrics, discovery and the status page go on.
//!
//! What it does not do: no writes (405), no TLS, no authentication. Hence it binds to loopback only and refuses a
//! `Host` that is a foreign name, so that no web page reaches it by rebinding its own name. No OpenAPI, no HTTP/2, no
//! protobuf, no events of core/v1.

mod accept;
mod conn;
mod discovery;
mod failure;
mod health;
mod list;
mod object;
mod page;
mod pipe;
mod query;
mod render;
mod selector;
mod server;
mod table;
mod track;
mod view;
mod watch;

pub use health::Health;
pub use server::{ServeError, ServeOptions, Server};
pub use view::View;
