//! Puts the rooms together, from the store upwards.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use crate::broker::{Broker, BrokerError};
use crate::config::{Config, Start};
use crate::ingest::{Engine, EngineParts, MappingError, Pipeline};
use crate::model::{Alert, Lane, QoS, Record, Seq};
use crate::queue::{Acker, Committer, DeltaFifo, QueueOptions, StartError};
use crate::rules::{RuleEngine, RuleErrors};
use crate::runtime::clock::Clock;
use crate::runtime::metrics::Metrics;
use crate::serve::{Health, ServeError, ServeOptions};
use crate::store::{Store, StoreError, StoreOptions};

use super::run::{Addresses, Facade, Parts};

/// Publishes between the connections and the engine; beyond it a connection waits, which its client sees as TCP
/// back-pressure.
const INBOUND_MAX: usize = 4096;

/// Why the gateway could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The rules do not compile.
    #[error("the alert rules cannot be used")]
    Rules(#[from] RuleErrors),
    /// The sources do not compile.
    #[error("the sources cannot be used")]
    Mapping(#[from] MappingError),
    /// The store cannot be opened.
    #[error("the store cannot be opened")]
    Store(#[from] StoreError),
    /// The commit thread cannot be started.
    #[error("the commit thread cannot be started")]
    Commit(#[from] StartError),
    /// The MQTT listener cannot be opened.
    #[error("the MQTT listener cannot be opened")]
    Broker(#[from] BrokerError),
    /// The HTTP listener cannot be opened.
    #[error("the HTTP listener cannot be opened")]
    Serve(#[from] ServeError),
    /// The operating system gives no thread.
    #[error("a thread cannot be started")]
    Thread(#[source] std::io::Error),
    /// A core part ended early.
    #[error("{0} ended early; the process ends so that the service manager starts it anew")]
    CoreEnded(&'static str),
}

impl AppError {
    /// True if the configuration is at fault: exit code 64.
    pub fn is_config(&self) -> bool {
        matches!(self, Self::Rules(_) | Self::Mapping(_))
    }
}

/// A gateway that listens but does not work yet.
pub struct App {
    pub(super) parts: Parts,
}

impl App {
    /// Checks what only the upper rooms can check: rules and sources.
    pub fn check(config: &Config) -> Result<(), AppError> {
        Pipeline::new(&config.source, &config.gateway.namespace, RuleEngine::compile(&config.alert)?, 1)?;
        Ok(())
    }

    /// Opens the store, recovers the queue, starts the engine and binds both listeners. Blocks; call it outside of any
    /// async context.
    pub fn build(config: Config, clock: Arc<dyn Clock>) -> Result<Self, AppError> {
        let metrics = Arc::new(Metrics::new());
        metrics.start_time.set(clock.wall().unix_ms as f64 / 1000.0);
        let rules = RuleEngine::compile(&config.alert)?;
        let mut pipeline = Pipeline::new(&config.source, &config.gateway.namespace, rules, config.queue.keys_max)?;

        let (committer, fifo, alerts) = open(&config, &mut pipeline, &metrics, &clock)?;
        let broker_runtime = runtime("tidegate-mqtt", 2)?;
        let edge_runtime = runtime("tidegate-edge", 1)?;
        let (sender, inbound) = mpsc::channel(INBOUND_MAX);
        let durable = committer.durable_lsn.clone();
        let broker =
            broker_runtime.block_on(Broker::bind(&config.broker, sender, durable, clock.clone(), metrics.clone()))?;
        let alerter = broker.alerter();
        for record in &alerts {
            retain(&alerter, &record.body);
        }
        let health = Arc::new(Health::new());
        let serve = ServeOptions {
            gateway: config.gateway.name.clone(),
            namespace: config.gateway.namespace.clone(),
            watchers_max: config.serve.watchers_max,
        };
        let facade = Facade {
            listen: config.serve.listen,
            options: serve,
            fifo: fifo.clone(),
            health: health.clone(),
            metrics: metrics.clone(),
            durable: committer.durable.clone(),
            clock: clock.clone(),
        };
        let server = edge_runtime.block_on(async { facade.bind() })?;
        let addresses = Addresses { mqtt: broker.local_addr(), http: server.local_addr() };
        warn_of_gone_sinks(&config, &fifo);
        let parts = EngineParts {
            pipeline,
            intake: committer.intake,
            alerter,
            inbound,
            clock: clock.clone(),
            metrics: metrics.clone(),
        };
        let engine = Engine::start(parts).map_err(AppError::Thread)?;
        Ok(Self {
            parts: Parts {
                config,
                clock,
                metrics,
                fifo,
                acker: committer.acker,
                commit: committer.handle,
                durable: committer.durable,
                engine,
                broker,
                server,
                facade,
                health,
                addresses,
                broker_runtime,
                edge_runtime,
                extra_sinks: Vec::new(),
            },
        })
    }

    /// Sets a check of `/readyz` that the caller knows of.
    pub fn report(&self, check: &'static str, state: Result<(), String>) {
        self.parts.health.set(check, state);
    }

    /// Where the gateway listens.
    pub fn addresses(&self) -> Addresses {
        self.parts.addresses
    }

    /// The committed view of the queue.
    pub fn fifo(&self) -> Arc<DeltaFifo> {
        self.parts.fifo.clone()
    }

    /// The counters.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.parts.metrics.clone()
    }
}

/// Opens the store, recovers queue and twins from it, and starts the commit thread; gives the stored alerts, too.
fn open(
    config: &Config,
    pipeline: &mut Pipeline,
    metrics: &Arc<Metrics>,
    clock: &Arc<dyn Clock>,
) -> Result<(Committer, Arc<DeltaFifo>, Vec<Record>), AppError> {
    let options = StoreOptions { data_dir: config.gateway.data_dir.clone(), gateway: config.gateway.name.clone() };
    let (store, recovered) = Store::open(&options, clock.clone())?;
    let (next_seq, epoch, clean) = (recovered.next_seq, recovered.epoch, recovered.clean);
    for gap in &recovered.gaps {
        error!(after = %gap.from, up_to = %gap.to, "the log is damaged: changes with these numbers may be lost");
        metrics.log_gaps.inc();
    }
    let options = queue_options(config, epoch);
    let fifo = Arc::new(DeltaFifo::recover(&options, recovered));
    let (devices, alerts) = (fifo.list(Lane::State, None).records, fifo.list(Lane::Alert, None).records);
    for key in pipeline.restore(&devices, &alerts) {
        warn!(%key, "a stored state cannot be read; it is kept and made anew when the device speaks");
    }
    info!(%epoch, %next_seq, clean, devices = devices.len(), "the store is open");
    let committer = Committer::start(store, next_seq, fifo.clone(), &options, metrics.clone(), clock.clone())?;
    Ok((committer, fifo, alerts))
}

/// Gives a new sink its cursors: at the beginning, or at the head.
pub(super) fn introduce(name: &Arc<str>, start: Start, fifo: &DeltaFifo, acker: &Acker) {
    let cursors = fifo.cursors();
    for lane in Lane::ALL {
        if !cursors.iter().any(|(sink, at, _)| sink == name && *at == lane) {
            let from = match start {
                Start::Snapshot => Seq::ZERO,
                Start::Now => fifo.head(),
            };
            acker.ack(name, lane, from);
        }
    }
}

/// A sink that is no longer configured keeps its cursors: loudly, for they hold records back.
fn warn_of_gone_sinks(config: &Config, fifo: &DeltaFifo) {
    let mut gone: Vec<_> = fifo.cursors().into_iter().map(|(sink, _, _)| sink).collect();
    gone.dedup();
    for sink in gone.iter().filter(|sink| !config.sink.iter().any(|s| s.name == **sink)) {
        warn!(%sink, "a sink is no longer configured; its cursors still hold records back");
    }
}

/// The retained topics of alerts are rebuilt from the stored alerts.
fn retain(alerter: &crate::broker::Alerter, body: &Bytes) {
    if let Ok(alert) = serde_json::from_slice::<Alert>(body) {
        let topic = Alert::topic(&alert.alert, &alert.device).into();
        alerter.publish(topic, body.clone(), QoS::AtLeastOnce, true);
    }
}

fn queue_options(config: &Config, epoch: crate::model::Epoch) -> QueueOptions {
    QueueOptions {
        epoch,
        keys_max: config.queue.keys_max,
        event_bytes_max: config.queue.event_bytes_max.0,
        alert_bytes_max: config.queue.alert_bytes_max.0,
        commit_queue_bytes_max: config.store.commit_queue_bytes_max.0 as usize,
        commit_window_max: config.store.commit_window_max.0,
        wear_bytes_per_day: u64::from(config.store.wear_gb_per_day) * 1_000_000_000,
        checkpoint_bytes: config.store.checkpoint_bytes.0,
    }
}

fn runtime(name: &str, workers: usize) -> Result<Runtime, AppError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(4)
        .thread_name(name)
        .thread_keep_alive(Duration::from_secs(10))
        .enable_all()
        .build()
        .map_err(AppError::Thread)
}
