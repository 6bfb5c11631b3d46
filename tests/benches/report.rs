//! The table for the README.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::load::{Figures, Load};

/// Everything that was measured; each list has one entry a round.
pub(crate) struct Report {
    load: Load,
    kafka: bool,
    /// The gateway with its uplink open.
    pub(crate) open: Vec<Figures>,
    /// mosquitto after it.
    pub(crate) reference: Vec<Figures>,
    /// The gateway with its uplink cut.
    pub(crate) cut: Vec<Figures>,
    /// mosquitto after it.
    pub(crate) reference_again: Vec<Figures>,
    /// A gateway that has spent its budget for flash wear, with its uplink cut.
    pub(crate) spent: Vec<Figures>,
    /// The gateway's memory.
    pub(crate) memory: Vec<(&'static str, Memory)>,
    /// mosquitto's.
    pub(crate) mosquitto: Memory,
    /// To the first CONNACK and to `/readyz`, of several starts.
    pub(crate) starts: Vec<(&'static str, Vec<(Duration, Duration)>)>,
}

/// Resident memory in KiB.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    now: u64,
    peak: u64,
}

impl Memory {
    /// Of a process.
    pub(crate) fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux says it");
            line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
        };
        Self { now: field("VmRSS:"), peak: field("VmHWM:") }
    }
}

impl Report {
    /// Nothing measured yet.
    pub(crate) fn new(load: Load, kafka: bool) -> Self {
        Self {
            load,
            kafka,
            open: Vec::new(),
            reference: Vec::new(),
            cut: Vec::new(),
            reference_again: Vec::new(),
            spent: Vec::new(),
            memory: Vec::new(),
            mosquitto: Memory::default(),
            starts: Vec::new(),
        }
    }

    /// The newest round in one line.
    pub(crate) fn last(&self) -> String {
        let p50 = |list: &[Figures]| {
            list.last().map_or_else(String::new, |f| {
                format!(
                    "alert {} us, ack {} us, missing {}",
                    f.alert.value_at_quantile(0.5),
                    f.ack.value_at_quantile(0.5),
                    f.missing
                )
            })
        };
        format!(
            "p50 open: {}; cut: {}; budget spent: {}; mosquitto: {} / {}",
            p50(&self.open),
            p50(&self.cut),
            p50(&self.spent),
            p50(&self.reference),
            p50(&self.reference_again)
        )
    }

    /// All of it.
    pub(crate) fn markdown(&self) -> String {
        let Load { devices, rate, seconds } = self.load;
        let mut text = format!(
            "{} rounds of {seconds} s, open loop, {devices} devices, {rate} messages a second with QoS 1, of which one in ten\n\
             switches an alert; {}. Medians over the rounds; ratios are to mosquitto in the same round,\n\
             mosquitto's own are between its two turns of a round.\n\n\
             | microseconds | p50 | p99 | p99.9 | max | p50 to mosquitto's | p99 to mosquitto's |\n|---|---|---|---|---|---|---|\n",
            self.open.len(),
            machine()
        );
        let open = if self.kafka { "uplink open (Kafka)" } else { "no uplink" };
        let alert = |figures: &Figures| figures.alert.clone();
        let ack = |figures: &Figures| figures.ack.clone();
        row(&mut text, &format!("publish to alert, {open}"), (&self.open, &self.reference), alert);
        row(&mut text, "publish to alert, uplink cut", (&self.cut, &self.reference_again), alert);
        row(&mut text, "publish to alert, flash budget spent", (&self.spent, &self.reference_again), alert);
        row(&mut text, "mosquitto, publish to plain subscriber", (&self.reference, &self.reference_again), alert);
        row(&mut text, &format!("acknowledgement (on disk), {open}"), (&self.open, &self.reference), ack);
        row(&mut text, "acknowledgement (on disk), uplink cut", (&self.cut, &self.reference_again), ack);
        row(&mut text, "acknowledgement (on disk), flash budget spent", (&self.spent, &self.reference_again), ack);
        row(&mut text, "mosquitto, acknowledgement (from RAM)", (&self.reference, &self.reference_again), ack);
        self.sizes(&mut text);
        text
    }

    fn sizes(&self, text: &mut String) {
        text.push_str("\n| | |\n|---|---|\n");
        let mut line =
            |what: &str, value: String| writeln!(text, "| {what} | {value} |").expect("a String takes everything");
        for (when, memory) in &self.memory {
            line(
                &format!("resident memory, {when}"),
                format!("{:.1} MB, peak {:.1} MB", mb(memory.now), mb(memory.peak)),
            );
        }
        line("mosquitto's, after the load", format!("{:.1} MB", mb(self.mosquitto.now)));
        let cpu =
            |list: &[Figures]| format!("{:.0} % of a core", 100.0 * median(list.iter().map(|figures| figures.cpu)));
        line(
            "CPU under this load, uplink open / cut / mosquitto",
            format!("{} / {} / {}", cpu(&self.open), cpu(&self.cut), cpu(&self.reference)),
        );
        for (what, starts) in &self.starts {
            let of = |pick: fn(&(Duration, Duration)) -> Duration| {
                median(starts.iter().map(|start| 1000.0 * pick(start).as_secs_f64()))
            };
            let value =
                format!("{:.0} ms to the first CONNACK, {:.0} ms to /readyz", of(|start| start.0), of(|start| start.1));
            line(&format!("start, {what} (median of {})", starts.len()), value);
        }
        let missing = |list: &[Figures]| list.iter().map(|figures| figures.missing).sum::<usize>();
        let all = [&self.open, &self.cut, &self.spent, &self.reference, &self.reference_again];
        line(
            "messages without acknowledgement or alert",
            all.map(|list| missing(list)).iter().sum::<usize>().to_string(),
        );
    }
}

/// Medians of one kind of latency, and its ratios to the reference of the same rounds.
fn row(text: &mut String, name: &str, pair: (&[Figures], &[Figures]), of: impl Fn(&Figures) -> Histogram<u64>) {
    let at = |figures: &Figures, quantile: f64| of(figures).value_at_quantile(quantile) as f64;
    let over = |quantile: f64| median(pair.0.iter().map(|figures| at(figures, quantile)));
    let ratio =
        |quantile: f64| median(pair.0.iter().zip(pair.1).map(|(own, other)| at(own, quantile) / at(other, quantile)));
    let max = pair.0.iter().map(|figures| of(figures).max()).max().unwrap_or_default();
    let written = writeln!(
        text,
        "| {name} | {:.0} | {:.0} | {:.0} | {max} | {:.2} | {:.2} |",
        over(0.5),
        over(0.99),
        over(0.999),
        ratio(0.5),
        ratio(0.99)
    );
    written.expect("a String takes everything");
}

fn mb(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The machine in a few words.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map(|rest| rest.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{cores} cores of {}, Linux {}", model.unwrap_or("an unnamed CPU").trim(), kernel.trim())
}
