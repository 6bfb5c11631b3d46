//! The live view: twins, alerts with their latency, cursors, and the addresses to try.

use std::fmt::Write;
use std::io::IsTerminal;

use super::Scene;
use crate::cli::output::{err, out};
use crate::cli::simulate::{Counts, progress};
use crate::model::{DeviceState, Lane, Record};

/// Devices that are shown; the rest is a number.
const DEVICES_MAX: usize = 10;

/// How often a line is written where there is no terminal to draw on, in frames.
const LINE_EVERY: u32 = 10;

/// Draws on a terminal, or writes a line now and then.
pub(super) struct View {
    terminal: bool,
    quiet: bool,
    frames: u32,
}

impl View {
    /// A view of stdout; with `json` stdout belongs to the last line alone.
    pub(super) fn new(json: bool) -> Self {
        Self { terminal: std::io::stdout().is_terminal() && !json, quiet: json, frames: 0 }
    }

    /// One frame.
    pub(super) fn draw(&mut self, scene: &Scene) {
        self.frames += 1;
        if scene.args.devices == 0 {
            if self.frames == 1 {
                err(&addresses(scene));
            }
        } else if self.terminal {
            out(&format!("\x1b[H\x1b[2J{}", frame(scene)));
        } else if self.frames == 1 && !self.quiet {
            err(&addresses(scene));
        } else if self.frames.is_multiple_of(LINE_EVERY) {
            err(&progress(&scene.stats.lock()));
        }
    }
}

fn frame(scene: &Scene) -> String {
    let mut text = addresses(scene);
    let stats = scene.fifo.stats();
    line(&mut text, format_args!("\nTwins ({} devices)", stats.devices));
    for record in scene.fifo.list(Lane::State, None).records.iter().take(DEVICES_MAX) {
        line(&mut text, format_args!("  {}", twin(record)));
    }
    let counts = scene.stats.lock();
    line(&mut text, format_args!("\nAlerts ({} fired, {} resolved)", counts.fired, counts.resolved));
    recent(&mut text, &counts);
    line(&mut text, format_args!("\nQueue  {} records, {} bytes waiting", stats.pending_records, stats.pending_bytes));
    for (sink, lane, seq) in scene.fifo.cursors() {
        let lag = scene.fifo.lag(&sink, lane).records;
        line(&mut text, format_args!("  {sink:<8} {lane:<6} at {seq}, {lag} behind"));
    }
    let seconds = scene.clock.ticks().saturating_sub(scene.started).as_secs();
    line(&mut text, format_args!("\n{seconds} s  {}", progress(&counts)));
    text
}

fn recent(text: &mut String, counts: &Counts) {
    for seen in &counts.recent {
        let latency = seen.latency.map(|span| format!("{} us after its reading", span.as_micros()));
        let latency = latency.unwrap_or_default();
        line(text, format_args!("  {:<20} {:<10} {:<9} {latency}", seen.alert, seen.device, seen.state));
    }
}

fn addresses(scene: &Scene) -> String {
    let (mqtt, http) = (scene.addresses.mqtt, scene.addresses.http);
    let mut text = String::from("Tidegate demo. Try, while it runs:\n");
    let port = mqtt.port();
    line(&mut text, format_args!("  mosquitto_sub -p {port} -t 'tidegate/alerts/#' -v"));
    let example = r#"{"temperature":95,"running":true}"#;
    line(&mut text, format_args!("  mosquitto_pub -p {port} -t sim/mine/state -q 1 -m '{example}'"));
    line(
        &mut text,
        format_args!("  kubectl -s http://{http} get devicestates -w      kubectl -s http://{http} get alerts"),
    );
    line(&mut text, format_args!("  http://{http}/  http://{http}/metrics"));
    if scene.kafka {
        line(&mut text, format_args!("  Kafka topics tidegate.devicestates, tidegate.alerts, tidegate.events"));
    }
    text
}

fn twin(record: &Record) -> String {
    let Ok(state) = serde_json::from_slice::<DeviceState>(&record.body) else {
        return record.key.to_string();
    };
    let metrics = state.metrics.iter().map(|(name, metric)| match &metric.value {
        Some(value) => format!("{name} {value}"),
        None => format!("{name} -"),
    });
    format!("{:<10} {}", state.device, metrics.collect::<Vec<_>>().join("  "))
}

/// Writing to a String cannot fail.
fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").unwrap_or_default();
}
