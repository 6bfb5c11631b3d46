//! The words of the gateway: plain types that every room shares.
//!
//! Nothing here does I/O, reads a clock or spawns anything. A type that goes to disk or over a wire states its
//! shape and units; its encoding lives in the room that writes it.

mod alert;
mod device;
mod effect;
mod key;
mod number;
mod publish;
mod record;
mod time;
mod value;

pub use alert::{Alert, AlertState, ParseSeverityError, Severity};
pub use device::{DeviceState, MetricState};
pub use effect::{Change, Effect, Frame};
pub use key::{ObjectKey, kube_name};
pub use number::{Epoch, Lsn, Seq, Uid};
pub use publish::{Message, QoS};
pub use record::{DeltaType, Lane, Record};
pub use time::{ClockQuality, Millis, Stamp};
pub use value::{Quality, Value};
