//! `tidegate demo`: a whole gateway with simulated devices in one process, and what its clients measure.

mod reader;
mod report;
mod view;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::output::{chain, err, out};
use super::simulate::{Simulation, Stats};
use super::{DemoArgs, run};
use crate::app::{Addresses, App};
use crate::config::{Config, KafkaSink, Sink, Span, Start};
use crate::queue::DeltaFifo;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::metrics::Metrics;
use crate::runtime::telemetry;
use crate::sink::kafka::{KafkaOptions, create_topics};
use reader::Reader;

/// Length of a demo with devices, unless told otherwise.
const SPAN: Duration = Duration::from_secs(30);

/// The live view is drawn anew so often.
const FRAME_EVERY: Duration = Duration::from_millis(500);

/// What is on its way at the end has so long to arrive at the demo's own reader.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Runs the command.
pub(super) fn command(args: &DemoArgs) -> ExitCode {
    match demo(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            err(&chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn demo(args: &DemoArgs) -> Result<(), Box<dyn std::error::Error>> {
    telemetry::start(if args.devices == 0 { "info" } else { "warn" })?;
    let home = Home::new(args.data_dir.as_deref())?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let config = config(args, home.path())?;
    let kafka = prepare_kafka(&config)?;
    let mut app = App::build(config, clock.clone())?;

    let (stats, reader) = (Arc::new(Stats::new()), Reader::new());
    if args.devices > 0 {
        let (source, clock, metrics) = (reader.clone(), clock.clone(), app.metrics());
        let name = reader.name().clone();
        app.add_sink(
            &name,
            Box::new(move |fifo, acker, stop| Box::pin(crate::sink::pump(source, fifo, acker, clock, metrics, stop))),
        );
    }
    let scene = Scene {
        args: args.clone(),
        addresses: app.addresses(),
        fifo: app.fifo(),
        metrics: app.metrics(),
        stats,
        reader,
        clock,
        kafka,
        started: SystemClock.ticks(),
    };
    let mut last = String::new();
    app.run(async { last = scene.play().await })?;
    out(&last);
    Ok(())
}

/// What the demo plays and shows.
struct Scene {
    args: DemoArgs,
    addresses: Addresses,
    fifo: Arc<DeltaFifo>,
    metrics: Arc<Metrics>,
    stats: Arc<Stats>,
    reader: Reader,
    clock: Arc<dyn Clock>,
    kafka: bool,
    started: Duration,
}

impl Scene {
    /// Plays until its time is over or a signal; returns what is printed at the end.
    async fn play(&self) -> String {
        let stop = CancellationToken::new();
        let work = async {
            tokio::select! {
                () = self.work(&stop) => {}
                () = run::until_signal() => stop.cancel(),
            }
        };
        tokio::select! {
            () = work => {}
            () = self.show() => {}
        }
        if self.args.devices == 0 {
            return String::new();
        }
        self.drain().await;
        let report = report::Report::new(&self.stats.lock(), &self.metrics, &self.fifo, &self.reader);
        if self.args.json { report.json() } else { report.text() }
    }

    async fn work(&self, stop: &CancellationToken) {
        let (mqtt, span) = (self.addresses.mqtt, self.args.span);
        if self.args.devices == 0 {
            return match span {
                Some(span) => tokio::time::sleep(span).await,
                None => std::future::pending().await,
            };
        }
        let simulation = Simulation {
            broker: (mqtt.ip().to_string(), mqtt.port()),
            devices: self.args.devices,
            rate: self.args.rate,
            span: span.unwrap_or(SPAN),
            seed: 1,
        };
        simulation.run(self.stats.clone(), self.clock.clone(), stop.clone()).await;
    }

    async fn show(&self) {
        let mut view = view::View::new(self.args.json);
        loop {
            view.draw(self);
            tokio::time::sleep(FRAME_EVERY).await;
        }
    }

    /// Waits until the demo's reader has every event that was acknowledged to a device.
    async fn drain(&self) {
        let end = self.clock.ticks() + DRAIN_MAX;
        while self.reader.missing(&self.stats.lock()) > 0 && self.clock.ticks() < end {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The demo's configuration: the text beside this file, with the command line laid over it.
fn config(args: &DemoArgs, home: &Path) -> Result<Config, Box<dyn std::error::Error>> {
    let mut config: Config = toml::from_str(include_str!("demo.toml"))?;
    config.gateway.name = "demo".into();
    home.clone_into(&mut config.gateway.data_dir);
    config.broker.listen = free(args.mqtt);
    config.broker.connections_max = args.devices as usize + 100;
    config.serve.listen = free(args.http);
    if !args.kafka.is_empty() {
        let kafka =
            KafkaSink { brokers: args.kafka.clone(), prefix: "tidegate".into(), request_timeout: Span::secs(10) };
        config.sink.push(Sink { name: "kafka".into(), start: Start::Snapshot, kafka });
    }
    Ok(config)
}

/// The address, or the next free port after it.
fn free(wanted: SocketAddr) -> SocketAddr {
    let next = (0..100).filter_map(|step| Some(SocketAddr::new(wanted.ip(), wanted.port().checked_add(step)?)));
    next.into_iter().find(|address| std::net::TcpListener::bind(address).is_ok()).unwrap_or(wanted)
}

/// Makes the topics on the Kafka of the command line; the daemon itself never does.
fn prepare_kafka(config: &Config) -> Result<bool, Box<dyn std::error::Error>> {
    let Some(sink) = config.sink.first() else { return Ok(false) };
    let options = KafkaOptions::new(&config.gateway.name, &sink.kafka);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(create_topics(&options, 2))?;
    Ok(true)
}

/// Where the data lie; a folder of the demo's own is removed at the end.
struct Home {
    path: PathBuf,
    own: bool,
}

impl Home {
    fn new(given: Option<&Path>) -> std::io::Result<Self> {
        let own = given.is_none();
        let path = given
            .map_or_else(|| std::env::temp_dir().join(format!("tidegate-demo-{}", std::process::id())), Path::to_owned);
        std::fs::create_dir_all(&path)?;
        Ok(Self { path, own })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.own {
            // A leftover in the temporary folder does no harm.
            drop(std::fs::remove_dir_all(&self.path));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::cli::simulate::{COOL, HOT, TIMED_ALERT};

    #[test]
    fn the_demo_configuration_is_valid_and_agrees_with_the_simulator() {
        let config: Config = toml::from_str(include_str!("demo.toml")).unwrap();
        App::check(&config).unwrap();
        let rule = config.alert.iter().find(|rule| &*rule.alert == TIMED_ALERT).unwrap();
        assert_eq!(rule.expr, format!("temperature > {HOT}"));
        assert!((HOT - rule.hysteresis - COOL).abs() < f64::EPSILON);
    }
}
