//! What the operator configures: the schema, its units, and how files and environment are laid over each other.
//!
//! Invariants: every key stands in one table with its type and bounds, of which the checks, the reference and the
//! shipped file are made. Each file is checked by itself before anything is merged, so that an unknown key or a wrong
//! unit names its file, line and column, the nearest known name and the mend; all errors are told at once. What the
//! values must be to each other is checked last, on the merged whole, and names the place where the value was set. At
//! most 1 MiB a file and 257 files.
//!
//! Layers, later ones win: defaults, `/etc/tidegate/tidegate.toml`, `conf.d/*.toml` beside it in the order of their
//! names, environment variables `TIDEGATE__SECTION__KEY`. `[[source]]`, `[[alert]]` and `[[sink]]` are appended over the
//! files.
//!
//! Nothing here opens a socket or a store, reads the environment or the host name, or compiles the expressions of
//! alerts; the rooms take their part of [`Config`] as an argument.

mod check;
mod document;
mod error;
mod keys;
mod load;
mod path;
mod pattern;
mod reference;
mod schema;
mod units;

pub use check::check;
pub use error::{ConfigError, ConfigErrors, FilePlace, Place};
pub use load::{Loaded, Paths, load};
pub use path::{FieldPath, PathError};
pub use pattern::{PatternError, TopicPattern};
pub use reference::{default_toml, reference};
pub use schema::{
    AlertRule, Broker, Class, Config, Deadband, Format, Gateway, KafkaSink, Log, MetricMap, Online, Overflow, Queue,
    Serve, Sink, SinkKind, Source, Start, Store, Uplink,
};
pub use units::{ByteSize, Span};
