//! The real binary as a daemon: configuration, start, SIGKILL, SIGTERM, and what it tells over HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::http;
use crate::parts::{Process, eventually, folder, free_address, say, tidegate};

/// From exec to `/readyz`.
const READY_MAX: Duration = Duration::from_secs(20);

/// From SIGTERM to the end.
const STOP_MAX: Duration = Duration::from_secs(20);

/// One gateway: its folder and addresses stay the same over restarts.
pub(crate) struct Gateway {
    home: TempDir,
    /// Where it takes MQTT.
    pub(crate) mqtt: SocketAddr,
    /// Where it serves.
    pub(crate) http: SocketAddr,
    process: Option<Process>,
}

impl Gateway {
    /// A gateway that does not run yet. `config` goes behind the tables that say its name, folder and addresses.
    pub(crate) fn new(name: &str, config: &str) -> Self {
        let (home, mqtt, http) = (folder(name), free_address(), free_address());
        let head = format!(
            "[gateway]\nname = \"{name}\"\ndata_dir = \"{}\"\n\n[broker]\nlisten = \"{mqtt}\"\n\n[serve]\nlisten = \"{http}\"\n\n",
            home.path().join("data").display()
        );
        let gateway = Self { home, mqtt, http, process: None };
        std::fs::write(gateway.config(), head + config).expect("the folder is writable");
        gateway
    }

    /// Its configuration file.
    pub(crate) fn config(&self) -> PathBuf {
        self.home.path().join("tidegate.toml")
    }

    /// A file in its folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Starts it and returns at once.
    pub(crate) fn spawn(&mut self) {
        let mut command = Command::new(tidegate());
        command.arg("run").arg("--config").arg(self.config()).env("NO_COLOR", "1").env("RUST_BACKTRACE", "1");
        self.process = Some(Process::logged(&mut command, &self.file("log")));
    }

    /// Starts it; returns when it is ready, with the time that took.
    pub(crate) fn start(&mut self) -> Duration {
        let from = Instant::now();
        self.spawn();
        self.wait_ready();
        from.elapsed()
    }

    /// Waits until `/readyz` answers 200.
    pub(crate) fn wait_ready(&mut self) {
        let (address, process) = (self.http, self.process.as_mut().expect("it was started"));
        eventually("/readyz answers 200", READY_MAX, || {
            process.assert_runs();
            http::get(address, "/readyz").is_ok_and(|answer| answer.status == 200).then_some(())
        });
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.take().expect("it was started").kill();
    }

    /// SIGTERM; returns the exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.process.take().expect("it was started").terminate(STOP_MAX).code()
    }

    /// Its PID.
    #[allow(dead_code, reason = "only the bench asks")]
    pub(crate) fn pid(&mut self) -> u32 {
        self.process.as_mut().expect("it was started").child().id()
    }

    /// GET, which must succeed.
    pub(crate) fn get(&self, path: &str) -> String {
        let answer = http::get(self.http, path).unwrap_or_else(|error| panic!("GET {path}: {error}"));
        assert_eq!(answer.status, 200, "GET {path}: {}", answer.body);
        answer.body
    }

    /// The list of a kind, as JSON.
    pub(crate) fn list(&self, plural: &str) -> Value {
        let text = self.get(&format!("/apis/tidegate.dev/v1alpha1/{plural}"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("the list of {plural} is no JSON: {error}"))
    }

    /// All samples of a metric family: labels as they are written, and the value.
    pub(crate) fn metric(&self, name: &str) -> Vec<(String, f64)> {
        let text = self.get("/metrics");
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        let own = samples.filter_map(|(key, value)| {
            let labels = key.strip_prefix(name)?;
            (labels.is_empty() || labels.starts_with('{'))
                .then(|| (labels.to_owned(), value.parse().expect("a number")))
        });
        own.collect()
    }

    /// Sum of a metric family.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.metric(name).iter().map(|(_, value)| value).sum()
    }

    /// Waits until every sink has acknowledged everything, twice in a row.
    pub(crate) fn wait_drained(&self, within: Duration) -> Duration {
        let (from, mut quiet) = (Instant::now(), 0);
        eventually("tidegate_queue_lag_records is 0 for every sink", within, || {
            let lags = self.metric("tidegate_queue_lag_records");
            let drained = !lags.is_empty() && lags.iter().all(|(_, lag)| *lag == 0.0);
            // The gauge is brought up to date once a second.
            std::thread::sleep(Duration::from_millis(600));
            quiet = if drained { quiet + 1 } else { 0 };
            (quiet > 2).then_some(())
        });
        from.elapsed()
    }

    /// The end of its log.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let log = std::fs::read_to_string(self.file("log")).unwrap_or_default();
        let all: Vec<_> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.process = None;
        if std::thread::panicking() {
            let tail = self.log_tail(60);
            self.home.disable_cleanup(true);
            say(&format!("end of the gateway's log; everything is kept in {}\n{tail}", self.home.path().display()));
        }
    }
}
