//! Logs: structured to journald where the process runs under it, else as text to the terminal.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// The libraries' own chatter below warnings, unless the filter says otherwise: several records per packet.
const QUIET: [&str; 4] = ["sled=warn", "rumqttd=warn", "krafka=off", "hyper=warn"];

/// A log level or filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "log.level {level:?} is no level and no filter; use error, warn, info, debug, or \"info,tidegate::broker=debug\""
)]
pub struct TelemetryError {
    level: String,
    #[source]
    source: tracing_subscriber::filter::ParseError,
}

/// Checks `log.level` without starting anything.
pub fn check(level: &str) -> Result<(), TelemetryError> {
    filter(level).map(|_| ())
}

/// Starts logging, once per process. The filter is the first layer, so that refused records cost next to nothing.
pub fn start(level: &str) -> Result<(), TelemetryError> {
    let filter = filter(level)?;
    let sink: Box<dyn Layer<Registry> + Send + Sync> = match journald() {
        Some(layer) => Box::new(layer),
        None => Box::new(
            tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false),
        ),
    };
    // A second start in one process (tests) keeps the first one's settings.
    let _second = tracing_subscriber::registry().with(sink.with_filter(filter)).try_init().is_err();
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a thread panicked")));
    Ok(())
}

fn filter(level: &str) -> Result<EnvFilter, TelemetryError> {
    let text = format!("{},{level}", QUIET.join(","));
    EnvFilter::try_new(text).map_err(|source| TelemetryError { level: level.to_owned(), source })
}

/// journald's native protocol, if this process' standard error is its socket (systemd sets `JOURNAL_STREAM`).
fn journald() -> Option<tracing_journald::Layer> {
    std::env::var_os("JOURNAL_STREAM")?;
    tracing_journald::layer().ok().map(|layer| layer.with_syslog_identifier("tidegate".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_level_is_refused_with_the_mend() {
        for good in ["info", "warn", "info,tidegate::broker=debug"] {
            assert!(check(good).is_ok(), "{good}");
        }
        let error = check("info,=x=").expect_err("no filter");
        assert!(error.to_string().contains("use error, warn, info, debug"), "{error}");
    }
}
