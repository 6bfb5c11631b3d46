//! `tidegate run`: the daemon.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use super::EXIT_USAGE;
use super::output::{chain, err, one_line};
use crate::app::{App, AppError};
use crate::config::{self, Config, Loaded, Paths};
use crate::runtime::clock::SystemClock;
use crate::runtime::telemetry;

/// The configuration that the gateway started with last.
const LAST_GOOD: &str = "last-good.toml";

/// Most rules that are told to be wrong at a time.
const FAULTS_PRINTED_MAX: usize = 20;

/// Reads and checks the whole configuration.
pub(super) fn read(path: &Path) -> Result<Config, Box<dyn Error>> {
    let system = rustix::system::uname();
    let hostname = system.nodename().to_string_lossy();
    let paths = if path == Paths::default().file { Paths::default() } else { Paths::named(path) };
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let loaded = config::load(&paths, std::env::vars_os().filter_map(text), &hostname)?;
    telemetry::check(&loaded.config.log.level)?;
    App::check(&loaded.config).map_err(|error| placed(error, &loaded))?;
    Ok(loaded.config)
}

/// Puts the place of each rule in front of what is wrong with it: the rules themselves know no files.
fn placed(error: AppError, loaded: &Loaded) -> Box<dyn Error> {
    let AppError::Rules(faults) = error else { return error.into() };
    let rules = &loaded.config.alert;
    let texts = faults.errors().iter().take(FAULTS_PRINTED_MAX).map(|fault| {
        let index = |name| rules.iter().position(|rule| &*rule.alert == name);
        match fault.at().and_then(|(rule, key)| Some((index(rule)?, key))) {
            Some((index, key)) => format!("{}: {fault}", loaded.place(&format!("alert[{index}].{key}"))),
            None => fault.to_string(),
        }
    });
    texts.collect::<Vec<_>>().join("\n").into()
}

/// Runs until SIGTERM or SIGINT.
///
/// A configuration that cannot be used ends a first start with exit code 64. Later starts go on with the last good
/// one: a gateway in the field is not silenced by a typing error. Readiness is red until it is mended.
pub(super) fn run(path: &Path) -> ExitCode {
    let (config, fault) = match read(path) {
        Ok(config) => (config, None),
        Err(error) => {
            let Some(config) = home(path).and_then(|home| last_good(&home)) else {
                err(&chain(&*error));
                return ExitCode::from(EXIT_USAGE);
            };
            (config, Some(one_line(&*error)))
        }
    };
    if let Err(error) = telemetry::start(&config.log.level) {
        err(&chain(&error));
        return ExitCode::from(EXIT_USAGE);
    }
    info!(version = env!("CARGO_PKG_VERSION"), config = %path.display(), "tidegate is starting");
    if config.source.is_empty() {
        warn!("no [[source]] is configured; messages are passed on, but make no device, alert or record");
    }
    let copy = if fault.is_none() { Some(config.clone()) } else { None };
    let work = App::build(config, Arc::new(SystemClock)).and_then(|app| {
        if let Some(fault) = fault {
            error!(fault, "the configuration cannot be used; the last good one stays in force");
            app.report("configuration", Err(fault));
        }
        if let (Some(config), Some(home)) = (copy, home(path)) {
            remember(&config, &home);
        }
        app.run(until_signal())
    });
    match work {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            error!(reason = one_line(&problem), "tidegate cannot go on");
            ExitCode::from(if problem.is_config() { EXIT_USAGE } else { 1 })
        }
    }
}

/// Resolves at SIGTERM or SIGINT.
pub(super) async fn until_signal() {
    let wait = async |kind| match signal(kind) {
        Ok(mut stream) => drop(stream.recv().await),
        // Without a handler the signal's default action ends the process.
        Err(error) => {
            error!(%error, "a signal handler cannot be set");
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = wait(SignalKind::terminate()) => info!("SIGTERM"),
        () = wait(SignalKind::interrupt()) => info!("SIGINT"),
    }
}

/// Where the last good configuration lies: the service's own folder, which is systemd's `StateDirectory=`, else the
/// default one. Not `gateway.data_dir`: where a broken configuration says that the data lie is unknown, and one that an
/// earlier `data_dir` still holds would open the store of that time. A file that a person names by hand is none of the
/// service's: it gets no other one's configuration.
fn home(path: &Path) -> Option<PathBuf> {
    let folders = std::env::var_os("STATE_DIRECTORY").unwrap_or_default();
    let first = std::env::split_paths(&folders).find(|folder| folder.is_absolute());
    first.or_else(|| (path == Paths::default().file).then(|| Config::default().gateway.data_dir))
}

fn last_good(home: &Path) -> Option<Config> {
    let config: Config = toml::from_str(&std::fs::read_to_string(home.join(LAST_GOOD)).ok()?).ok()?;
    config::check(&config).ok()?;
    App::check(&config).ok()?;
    Some(config)
}

/// Keeps a configuration that the gateway could start with; written beside and renamed, so that it is whole or old.
/// Without the service's own folder there is no service to be kept alive.
fn remember(config: &Config, home: &Path) {
    let file = home.join(LAST_GOOD);
    let write = || -> Result<(), Box<dyn Error>> {
        let new = file.with_extension("new");
        let text = toml::to_string(config)?;
        if std::fs::read_to_string(&file).is_ok_and(|old| old == text) {
            return Ok(());
        }
        std::fs::write(&new, text)?;
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, &file)?;
        Ok(std::fs::File::open(home)?.sync_all()?)
    };
    if home.is_dir()
        && let Err(error) = write()
    {
        warn!(error = one_line(&*error), "the configuration could not be kept as the last good one");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn the_last_good_configuration_is_found_wherever_it_says_that_the_data_lie() {
        let (home, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut config = Config::default();
        for name in ["first", "second"] {
            config.gateway.name = name.into();
            data.path().join(name).clone_into(&mut config.gateway.data_dir);
            remember(&config, home.path());
            assert_eq!(last_good(home.path()).unwrap().gateway.data_dir, config.gateway.data_dir);
        }
    }
}
