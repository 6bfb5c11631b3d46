//! End to end: fifty devices over real MQTT connections, three kinds of alert, a real Kafka that goes away, a SIGKILL,
//! and kubectl; then an oracle that knows what every device said and what was acknowledged.

mod devices;
mod oracle;
mod oracle_tests;
mod publishers;
mod scenario;
mod watchers;
