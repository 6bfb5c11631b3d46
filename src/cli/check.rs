//! `tidegate check`: reads the configuration and says what is wrong with it.

use std::path::Path;
use std::process::ExitCode;

use super::output::{chain, err, out};
use super::{EXIT_USAGE, run};

/// Exit code 0 and a summary, or 64 and every error with its place and mend.
pub(super) fn check(path: &Path) -> ExitCode {
    match run::read(path) {
        Ok(config) => {
            out(&format!(
                "{} is good: {} sources, {} alerts, {} sinks, MQTT on {}, HTTP on {}\n",
                path.display(),
                config.source.len(),
                config.alert.len(),
                config.sink.len(),
                config.broker.listen,
                config.serve.listen,
            ));
            ExitCode::SUCCESS
        }
        Err(error) => {
            err(&chain(&*error));
            ExitCode::from(EXIT_USAGE)
        }
    }
}
