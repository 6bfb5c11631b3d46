//! Lets the rooms run, watches over them, and takes them down in order.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::build::{App, AppError, introduce};
use crate::broker::Broker;
use crate::config::{self, Config, SinkKind, Start};
use crate::ingest::Engine;
use crate::model::Lane;
use crate::queue::{Acker, CommitHandle, DeltaFifo, Durable};
use crate::runtime::clock::Clock;
use crate::runtime::metrics::Metrics;
use crate::runtime::{supervisor, systemd};
use crate::serve::{Health, ServeError, ServeOptions, Server};
use crate::sink::kafka::{KafkaOptions, KafkaSink};
use crate::sink::{self};

/// How often gauges and health are brought up to date.
const OBSERVE_EVERY: Duration = Duration::from_secs(1);

/// An engine that was not seen for so long is stuck: the watchdog is no longer fed.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// A commit that takes longer is told: an SD card that dies may keep the kernel waiting, and gives no error.
const COMMIT_SLOW_AFTER: Duration = Duration::from_secs(10);

/// Edges have so long to finish what is under way.
const EDGE_STOP_MAX: Duration = Duration::from_secs(4);

/// Where a gateway listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// MQTT, 3.1.1 and 5.
    pub mqtt: SocketAddr,
    /// Served API, health, metrics, status page.
    pub http: SocketAddr,
}

/// A pump of a sink that is not in the configuration, such as the demo's reader.
pub type ExtraSink =
    Box<dyn FnOnce(Arc<DeltaFifo>, Acker, CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// What the served API is built from, the first time and anew.
#[derive(Clone)]
pub(super) struct Facade {
    pub(super) listen: SocketAddr,
    pub(super) options: ServeOptions,
    pub(super) fifo: Arc<DeltaFifo>,
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) durable: watch::Receiver<Durable>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Facade {
    /// Binds the listener; needs an async context.
    pub(super) fn bind(&self) -> Result<Server, ServeError> {
        Server::bind(
            self.listen,
            self.options.clone(),
            self.fifo.clone(),
            self.health.clone(),
            self.metrics.clone(),
            self.durable.clone(),
            self.clock.clone(),
        )
    }

    /// Serves until `shutdown`; a server that ends early is bound anew.
    async fn serve(self, first: Server, shutdown: CancellationToken) {
        let (mut first, health) = (Some(first), self.health.clone());
        let build = || {
            let server = first.take().map_or_else(|| self.bind(), Ok);
            let shutdown = shutdown.clone();
            async move {
                let ended = match server {
                    Ok(server) => server.run(shutdown).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = ended {
                    warn!(%error, "the served API has ended");
                }
            }
        };
        supervisor::keep("serve", shutdown.clone(), |state| health.set("serve", state), build).await;
    }
}

/// All rooms of a gateway.
pub(super) struct Parts {
    pub(super) config: Config,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) fifo: Arc<DeltaFifo>,
    pub(super) acker: Acker,
    pub(super) commit: CommitHandle,
    pub(super) durable: watch::Receiver<Durable>,
    pub(super) engine: Engine,
    pub(super) broker: Broker,
    pub(super) server: Server,
    pub(super) facade: Facade,
    pub(super) health: Arc<Health>,
    pub(super) addresses: Addresses,
    pub(super) broker_runtime: Runtime,
    pub(super) edge_runtime: Runtime,
    pub(super) extra_sinks: Vec<ExtraSink>,
}

impl App {
    /// Adds a sink of the embedding program; its cursors start at the beginning.
    pub fn add_sink(&mut self, name: &Arc<str>, start: ExtraSink) {
        introduce(name, Start::Snapshot, &self.parts.fifo, &self.parts.acker);
        self.parts.extra_sinks.push(start);
    }

    /// Runs until `shutdown` resolves, then stops in order: listeners, engine, sinks, commit thread, store. Blocks;
    /// call it outside of any async context.
    pub fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), AppError> {
        let Parts { broker, server, facade, broker_runtime, edge_runtime, engine, commit, mut extra_sinks, .. } =
            self.parts;
        let watched = Watched {
            clock: self.parts.clock,
            metrics: self.parts.metrics,
            fifo: self.parts.fifo,
            durable: self.parts.durable,
            health: self.parts.health,
        };
        let (stop_broker, stop_edges) = (CancellationToken::new(), CancellationToken::new());

        let mut front = JoinSet::new();
        front.spawn_on(broker.run(stop_broker.clone()), broker_runtime.handle());
        let mut edges = JoinSet::new();
        // Store, queue and engine are there: who has waited at the open listener is served, not sent away.
        watched.health.set(Health::START, Ok(()));
        edges.spawn_on(facade.serve(server, stop_edges.clone()), edge_runtime.handle());
        for sink in &self.parts.config.sink {
            let pump = configured(sink, &self.parts.config, &watched, &self.parts.acker, &stop_edges);
            edges.spawn_on(pump, edge_runtime.handle());
        }
        for start in extra_sinks.drain(..) {
            let pump = start(watched.fifo.clone(), self.parts.acker.clone(), stop_edges.clone());
            edges.spawn_on(pump, edge_runtime.handle());
        }

        info!(mqtt = %self.parts.addresses.mqtt, http = %self.parts.addresses.http, "tidegate is ready");
        systemd::ready(&format!("MQTT on {}, HTTP on {}", self.parts.addresses.mqtt, self.parts.addresses.http));
        let ended = edge_runtime.block_on(async {
            tokio::select! {
                () = shutdown => None,
                _ = front.join_next() => Some("the broker"),
                name = watched.watch(&engine, &commit) => Some(name),
            }
        });
        systemd::stopping();
        info!("tidegate is stopping");
        stop_broker.cancel();
        edge_runtime.block_on(async { while front.join_next().await.is_some() {} });
        drop(front);
        broker_runtime.shutdown_timeout(Duration::from_secs(1));
        let engine_ended_well = engine.join();
        stop_edges.cancel();
        let all = async { while edges.join_next().await.is_some() {} };
        if edge_runtime.block_on(async { tokio::time::timeout(EDGE_STOP_MAX, all).await }).is_err() {
            warn!("an upstream did not stop in time; what it has not acknowledged is sent again");
        }
        commit.stop();
        edge_runtime.shutdown_timeout(Duration::from_secs(1));
        info!("tidegate has stopped");
        match ended {
            Some(name) => Err(AppError::CoreEnded(name)),
            None if !engine_ended_well => Err(AppError::CoreEnded("the engine")),
            None => Ok(()),
        }
    }
}

/// What is looked at once a second.
struct Watched {
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    fifo: Arc<DeltaFifo>,
    durable: watch::Receiver<Durable>,
    health: Arc<Health>,
}

impl Watched {
    /// Keeps gauges, health and watchdog up to date; resolves with the name of a core part that ended.
    async fn watch(&self, engine: &Engine, commit: &CommitHandle) -> &'static str {
        let mut told = false;
        let every = systemd::watchdog_interval().map_or(OBSERVE_EVERY, |limit| limit.min(OBSERVE_EVERY));
        loop {
            if !engine.is_alive() {
                return "the engine";
            }
            if !commit.is_alive() {
                return "the commit thread";
            }
            self.fifo.observe(&self.metrics, self.clock.wall());
            let stuck = engine.heart().age(self.clock.now()) > STUCK_AFTER;
            self.health.set("engine", if stuck { Err("the engine is stuck".into()) } else { Ok(()) });
            let fault = self.durable.borrow().fault;
            let waited = commit.waits_for_disk(self.clock.now());
            let hangs = waited > COMMIT_SLOW_AFTER;
            if hangs && !told {
                error!(?waited, "the disk does not answer; nothing is acknowledged");
            }
            told = hangs;
            self.health.set("disk", disk(fault, hangs));
            if !stuck {
                systemd::watchdog();
            }
            tokio::time::sleep(every).await;
        }
    }
}

fn disk(fault: bool, hangs: bool) -> Result<(), String> {
    match (fault, hangs) {
        (_, true) => Err("the disk does not answer; nothing is acknowledged".into()),
        (true, _) => Err("the disk refuses writes; nothing is acknowledged".into()),
        (false, false) => Ok(()),
    }
}

/// Waits until the cursors of a sink that was just introduced are durable; false at a shutdown.
async fn known(name: &Arc<str>, fifo: &DeltaFifo, shutdown: &CancellationToken) -> bool {
    let all = || Lane::ALL.iter().all(|lane| fifo.cursors().iter().any(|(sink, at, _)| sink == name && at == lane));
    while !all() {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
            () = shutdown.cancelled() => return false,
        }
    }
    true
}

/// The pump of a configured sink, built anew whenever it ends early.
fn configured(
    sink: &config::Sink,
    config: &Config,
    watched: &Watched,
    acker: &Acker,
    shutdown: &CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    let SinkKind::Kafka(kafka) = sink.kind();
    let options = KafkaOptions::new(&config.gateway.name, kafka);
    introduce(&sink.name, sink.start, &watched.fifo, acker);
    let (name, fifo, acker) = (sink.name.clone(), watched.fifo.clone(), acker.clone());
    let (clock, metrics, health) = (watched.clock.clone(), watched.metrics.clone(), watched.health.clone());
    let shutdown = shutdown.clone();
    async move {
        if !known(&name, &fifo, &shutdown).await {
            return;
        }
        let build = || {
            let kafka = KafkaSink::new(name.clone(), options.clone(), clock.clone());
            sink::pump(kafka, fifo.clone(), acker.clone(), clock.clone(), metrics.clone(), shutdown.clone())
        };
        // An upstream that is away is the normal case and no reason to be unready; a pump that dies is.
        supervisor::keep("sink", shutdown.clone(), |state| health.set("sinks", state), build).await;
    }
}
