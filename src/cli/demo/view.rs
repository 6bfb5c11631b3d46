//! The live view: twins, alerts with their latency, cursors, and the addresses to try.

use std::fmt::Write;
use std::io::IsTerminal;

use super::Scene;
use crate::cli::output::{err, out};
use crate::cli::simulate::{Counts, figures, progress};
use crate::model::{DeviceState, Lane, Record};

/// Rows and columns of a terminal that does not tell its size.
const SIZE: (usize, usize) = (24, 80);

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
            // Each line is drawn over the old one, and what is left below is cleared: nothing flickers.
            let rows = if self.frames == 1 { "\x1b[2J" } else { "" };
            let text = fitted(&frame(scene, size()), size());
            out(&format!("{rows}\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")));
        } else if self.frames == 1 && !self.quiet {
            err(&addresses(scene));
        } else if self.frames.is_multiple_of(LINE_EVERY) {
            err(&progress(&scene.stats.lock()));
        }
    }
}

/// Rows and columns of the terminal.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => SIZE,
    }
}

/// The lines that the terminal has room for, each cut to its width; the last row stays free for the cursor.
fn fitted(text: &str, (rows, columns): (usize, usize)) -> String {
    let cut = |line: &str| line.chars().take(columns).chain(['\n']).collect::<String>();
    text.lines().take(rows.saturating_sub(1).max(1)).map(cut).collect()
}

/// All that is to be seen; devices and alerts get the rows that the rest leaves, devices the most of them.
fn frame(scene: &Scene, (rows, _): (usize, usize)) -> String {
    let mut text = addresses(scene);
    let (stats, cursors) = (scene.fifo.stats(), scene.fifo.cursors());
    let counts = scene.stats.lock();
    // Three headings, three empty lines before them, an empty line before two of figures, and the cursor's row.
    let spare = rows.saturating_sub(text.lines().count() + cursors.len() + 10);
    let alerts = counts.recent.len().min(spare / 2);
    let devices = spare - alerts;

    line(&mut text, format_args!("\nTwins ({} devices)", stats.devices));
    let records = scene.fifo.list(Lane::State, None).records;
    let shown = if records.len() <= devices { records.len() } else { devices.saturating_sub(1) };
    for record in records.iter().take(shown) {
        line(&mut text, format_args!("  {}", twin(record)));
    }
    if shown < records.len() {
        line(&mut text, format_args!("  and {} more", records.len() - shown));
    }
    line(&mut text, format_args!("\nAlerts ({} fired, {} resolved)", counts.fired, counts.resolved));
    recent(&mut text, &counts, alerts);
    line(&mut text, format_args!("\nQueue  {} records, {} bytes waiting", stats.pending_records, stats.pending_bytes));
    for (sink, lane, seq) in cursors {
        let lag = scene.fifo.lag(&sink, lane).records;
        line(&mut text, format_args!("  {sink:<8} {lane:<6} at {seq}, {lag} behind"));
    }
    let seconds = scene.clock.ticks().saturating_sub(scene.started).as_secs();
    let (messages, alerts) = figures(&counts);
    line(&mut text, format_args!("\n{seconds} s  {messages}\n{:width$}   {alerts}", "", width = digits(seconds)));
    text
}

fn digits(number: u64) -> usize {
    number.to_string().len() + 1
}

fn recent(text: &mut String, counts: &Counts, most: usize) {
    for seen in counts.recent.iter().take(most) {
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
    line(&mut text, format_args!("  kubectl -s http://{http} get devicestates -w"));
    line(&mut text, format_args!("  kubectl -s http://{http} get alerts"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_never_scrolls_a_small_terminal() {
        let text = fitted("123456\näöüäöü\n\n4\n", (3, 4));
        assert_eq!(text, "1234\näöüä\n");
        assert_eq!(fitted("1\n2\n", (0, 80)), "1\n");
        assert_eq!(fitted("1\n2\n", (24, 80)), "1\n2\n");
    }
}
