//! `tidegate simulate`: devices that publish over real MQTT connections, and what they measure.

mod client;
mod device;
mod stats;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::output::{err, out};
use super::{EXIT_USAGE, SimulateArgs};
use crate::runtime::clock::{Clock, SystemClock};
use client::Pace;
#[cfg(test)]
pub(super) use device::{COOL, HOT};
pub(super) use stats::{Counts, Stats};

/// The alert whose latency is measured: one reading decides it.
pub(super) const TIMED_ALERT: &str = "SimOverTemperature";

/// A simulation.
#[derive(Debug, Clone)]
pub(super) struct Simulation {
    /// Host and port.
    pub(super) broker: (String, u16),
    /// How many devices.
    pub(super) devices: u32,
    /// Messages a second of all devices.
    pub(super) rate: f64,
    /// How long.
    pub(super) span: Duration,
    /// Seed of the signals.
    pub(super) seed: u64,
}

impl Simulation {
    /// Runs until the span is over or `stop`, and until every client has its acknowledgements or gave up.
    pub(super) async fn run(&self, stats: Arc<Stats>, clock: Arc<dyn Clock>, stop: CancellationToken) {
        let (subscribed, hang_up) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        let subscriber =
            client::subscribe(self.broker.clone(), stats.clone(), clock.clone(), subscribed.clone(), hang_up.clone());
        let mut listener = JoinSet::new();
        listener.spawn(subscriber);
        // A broker that grants nothing still gets the devices.
        drop(tokio::time::timeout(Duration::from_secs(5), subscribed.cancelled()).await);

        let period = Duration::from_secs_f64(f64::from(self.devices) / self.rate);
        let start = clock.ticks();
        for index in 0..self.devices {
            let offset = period.mul_f64(f64::from(index) / f64::from(self.devices));
            let pace = Pace { start, offset, period, span: self.span };
            let device = device::Device::new(index, self.seed);
            let (stats, clock) = (stats.clone(), clock.clone());
            tasks.spawn(client::publish(device, self.broker.clone(), pace, stats, clock, stop.clone()));
        }
        while tasks.join_next().await.is_some() {}
        // Alerts of the last readings are on their way for a moment yet.
        tokio::time::sleep(Duration::from_millis(200)).await;
        hang_up.cancel();
        while listener.join_next().await.is_some() {}
    }
}

/// Runs the command: a progress line a second, a summary at the end.
pub(super) fn command(args: &SimulateArgs) -> ExitCode {
    let Some(broker) = host_port(&args.broker) else {
        err(&format!("{:?} is no broker address; write HOST:PORT, for example 127.0.0.1:1883", args.broker));
        return ExitCode::from(EXIT_USAGE);
    };
    let simulation = Simulation { broker, devices: args.devices, rate: args.rate, span: args.span, seed: args.seed };
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() else {
        err("the operating system gives no thread");
        return ExitCode::FAILURE;
    };
    let stats = Arc::new(Stats::new());
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let work = simulation.run(stats.clone(), Arc::new(SystemClock), stop.clone());
        tokio::pin!(work);
        loop {
            tokio::select! {
                () = &mut work => break,
                () = tokio::time::sleep(Duration::from_secs(1)) => err(&progress(&stats.lock())),
                () = super::run::until_signal(), if !stop.is_cancelled() => stop.cancel(),
            }
        }
    });
    let counts = stats.lock();
    out(&format!("{}\n", progress(&counts)));
    if counts.readings > 0 && counts.acknowledged == 0 {
        err(&format!("nothing was acknowledged by {}; is a broker running there?", args.broker));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// One line of figures.
pub(super) fn progress(counts: &Counts) -> String {
    let (messages, alerts) = figures(counts);
    format!("{messages}  {alerts}")
}

/// The figures of messages, and those of alerts.
pub(super) fn figures(counts: &Counts) -> (String, String) {
    let messages = format!(
        "sent {}  acknowledged {}  ack p50 {} us p99 {} us  breaks {}",
        counts.readings,
        counts.acknowledged,
        counts.ack_latency.value_at_quantile(0.5),
        counts.ack_latency.value_at_quantile(0.99),
        counts.breaks,
    );
    let alerts = format!(
        "alerts {} fired {} resolved, p50 {} us p99 {} us",
        counts.fired,
        counts.resolved,
        counts.alert_latency.value_at_quantile(0.5),
        counts.alert_latency.value_at_quantile(0.99),
    );
    (messages, alerts)
}

/// `HOST:PORT`, also `[::1]:1883`.
fn host_port(text: &str) -> Option<(String, u16)> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some((address.ip().to_string(), address.port()));
    }
    let (host, port) = text.rsplit_once(':')?;
    (!host.is_empty()).then_some(())?;
    Some((host.to_owned(), port.parse().ok()?))
}
