//! The columns that kubectl shows, and their cells.

use std::fmt::Write as _;

use serde::Serialize;

use super::object::Kind;
use crate::model::{Alert, DeviceState, MetricState, Quality, Record, Stamp, Value, kube_name};

/// Characters of the summary of a device's metrics.
const SUMMARY_CHARS_MAX: usize = 60;
/// Characters of one text value in it.
const TEXT_CHARS_MAX: usize = 24;
/// What is not known, as kubectl writes it.
const UNKNOWN: &str = "<unknown>";

/// A column's definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Column {
    name: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    format: &'static str,
    description: &'static str,
    /// 0 is always shown, 1 with `-o wide` only.
    priority: u8,
}

/// The columns of a kind.
pub(super) fn columns(kind: Kind) -> Vec<Column> {
    let column = |name, description| Column { name, kind: "string", format: "", description, priority: 0 };
    let name = Column { format: "name", ..column("Name", "Name of the object") };
    let age = column("Age", "Time since the object was created");
    match kind {
        Kind::DeviceState => vec![
            name,
            column("Online", "Told by the device's availability topic"),
            column("Last Seen", "Time since the newest message"),
            column("Metrics", "Values; a ? marks one that is not good"),
            age,
            Column { priority: 1, ..column("Device", "The device's own name") },
        ],
        Kind::Alert => vec![
            name,
            column("State", "Firing or resolved"),
            column("Severity", "Critical, high, medium or low"),
            column("Device", "The device's own name"),
            column("Value", "The value that decided"),
            column("Since", "Time since the last transition"),
            age,
            Column { priority: 1, ..column("Alert", "Name of the rule") },
            Column { priority: 1, ..column("Transition", "Counts transitions; odd fires, even resolves") },
        ],
    }
}

/// The cells of a record's row at the wall time `now`, one for each column.
pub(super) fn cells(kind: Kind, record: &Record, now: Stamp) -> Vec<String> {
    let name = kube_name(record.key.name());
    let age = since(record.created_at.unix_ms, now);
    let mut cells = match kind {
        _ if record.is_deleted() => vec![name, "<deleted>".to_owned()],
        Kind::DeviceState => match serde_json::from_slice::<DeviceState>(&record.body) {
            Ok(state) => device_cells(name, age, &state, now),
            Err(_) => vec![name],
        },
        Kind::Alert => match serde_json::from_slice::<Alert>(&record.body) {
            Ok(alert) => alert_cells(name, age, &alert, now),
            Err(_) => vec![name],
        },
    };
    cells.resize(columns(kind).len(), String::new());
    cells
}

/// `temperature=21.5 vibration=0.3`, as many as fit, then how many more there are.
pub(super) fn summary(state: &DeviceState) -> String {
    let mut text = String::new();
    let mut chars = 0;
    for (shown, (name, metric)) in state.metrics.iter().enumerate() {
        let term = format!("{}={}", plain(name, TEXT_CHARS_MAX), shown_value(metric));
        let length = term.chars().count() + usize::from(shown > 0);
        if shown > 0 && chars + length > SUMMARY_CHARS_MAX - 4 {
            let written = write!(text, " +{}", state.metrics.len() - shown);
            debug_assert!(written.is_ok(), "writing to a String cannot fail");
            break;
        }
        if shown > 0 {
            text.push(' ');
        }
        text.push_str(&term);
        chars += length;
    }
    text
}

/// A value as people read it: a few decimals, one line.
pub(super) fn short(value: &Value) -> String {
    match value {
        Value::F64(number) => short_number(*number),
        Value::Text(text) => plain(text, TEXT_CHARS_MAX),
        other => other.to_string(),
    }
}

/// The time from an RFC 3339 text until `now`, as kubectl writes it.
pub(super) fn since_text(time: &str, now: Stamp) -> String {
    time.parse::<jiff::Timestamp>().map_or_else(|_| UNKNOWN.to_owned(), |time| since(time.as_millisecond(), now))
}

/// A span in seconds as kubectl writes it: at most two units, the smaller left out when it says little.
pub(super) fn span(seconds: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    const YEAR: u64 = 365 * DAY;
    let two = |big: u64, big_unit: char, small: u64, small_unit: char| match seconds % big / small {
        0 => format!("{}{big_unit}", seconds / big),
        rest => format!("{}{big_unit}{rest}{small_unit}", seconds / big),
    };
    match seconds {
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(MINUTE, 'm', 1, 's'),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(HOUR, 'h', MINUTE, 'm'),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(DAY, 'd', HOUR, 'h'),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        _ => two(YEAR, 'y', DAY, 'd'),
    }
}

fn device_cells(name: String, age: String, state: &DeviceState, now: Stamp) -> Vec<String> {
    let online = state.online.map_or_else(|| UNKNOWN.to_owned(), |online| online.to_string());
    let device = plain(&state.device, 253);
    vec![name, online, since_text(&state.last_seen, now), summary(state), age, device]
}

fn alert_cells(name: String, age: String, alert: &Alert, now: Stamp) -> Vec<String> {
    vec![
        name,
        alert.state.to_string(),
        alert.severity.to_string(),
        plain(&alert.device, 253),
        alert.value.as_ref().map(short).unwrap_or_default(),
        since_text(&alert.time, now),
        age,
        plain(&alert.alert, 253),
        alert.transition.to_string(),
    ]
}

/// Zero if the time lies ahead: a clock may be wrong.
fn since(unix_ms: i64, now: Stamp) -> String {
    span(u64::try_from(now.unix_ms.saturating_sub(unix_ms) / 1000).unwrap_or(0))
}

fn shown_value(metric: &MetricState) -> String {
    let value = metric.value.as_ref().map_or_else(|| "null".to_owned(), short);
    if metric.quality == Quality::Good { value } else { value + "?" }
}

fn short_number(number: f64) -> String {
    let size = number.abs();
    if size != 0.0 && !(1e-3..1e15).contains(&size) {
        return format!("{number:.3e}");
    }
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// At most `chars_max` characters, none of which moves a terminal's cursor.
fn plain(text: &str, chars_max: usize) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut plain: String = chars.by_ref().take(chars_max).collect();
    if chars.next().is_some() {
        plain.pop();
        plain.push('…');
    }
    plain
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::model::{ClockQuality, Lane};
    use crate::serve::object::tests::record;

    fn now() -> Stamp {
        Stamp { unix_ms: 1_796_083_500_000, clock: ClockQuality::Synced }
    }

    fn state(metrics: &str) -> DeviceState {
        let text = format!(r#"{{"device":"p","lastSeen":"2026-12-01T00:04:48.500Z","metrics":{metrics}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    fn metric(value: &str, quality: &str) -> String {
        format!(r#"{{"value":{value},"quality":"{quality}","time":""}}"#)
    }

    #[test]
    fn spans_read_as_kubectl_writes_them() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (8 * 3600 + 60, "8h"),
            (2 * 86_400 + 3600, "2d1h"),
            (9 * 86_400 + 3600, "9d"),
            (800 * 86_400, "2y70d"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn a_device_has_a_cell_for_each_column() {
        let body = serde_json::to_string(&DeviceState {
            online: Some(true),
            ..state(&format!(r#"{{"temperature":{}}}"#, metric("21.5", "good")))
        });
        let cells = cells(Kind::DeviceState, &record(Lane::State, "press07", 2, &body.unwrap()), now());
        assert_eq!(cells, ["press07", "true", "11s", "temperature=21.5", "5m", "p"]);
        assert_eq!(cells.len(), columns(Kind::DeviceState).len());
    }

    #[test]
    fn an_alert_has_a_cell_for_each_column() {
        let body = r#"{"id":"hot/press07/3","alert":"hot","device":"press07","state":"firing","severity":"high","labels":{},
            "annotations":{},"value":81.25,"transition":3,"time":"2026-12-01T00:03:00.000Z","clock":"synced"}"#;
        let cells = cells(Kind::Alert, &record(Lane::Alert, "hot.press07", 2, body), now());
        assert_eq!(cells, ["hot.press07", "firing", "high", "press07", "81.25", "2m", "5m", "hot", "3"]);
        assert_eq!(cells.len(), columns(Kind::Alert).len());
    }

    #[test]
    fn a_deletion_and_a_body_that_cannot_be_read_still_make_a_row() {
        let deleted = cells(Kind::DeviceState, &record(Lane::State, "a", 2, ""), now());
        assert_eq!(deleted, ["a", "<deleted>", "", "", "", ""]);
        assert_eq!(cells(Kind::Alert, &record(Lane::Alert, "a", 2, "{"), now())[..2], ["a", ""]);
    }

    #[test]
    fn the_summary_stays_short_and_says_what_it_leaves_out() {
        let many: Vec<String> = (0..20).map(|n| format!(r#""metric{n:02}":{}"#, metric("1.5", "good"))).collect();
        let text = summary(&state(&format!("{{{}}}", many.join(","))));
        assert_eq!(text, "metric00=1.5 metric01=1.5 metric02=1.5 metric03=1.5 +16");
        let long = format!("{:?}", "x".repeat(500));
        let text = summary(&state(&format!(r#"{{"a":{},"b":{}}}"#, metric(&long, "good"), metric("null", "bad"))));
        assert_eq!(text, format!("a={}… b=null?", "x".repeat(23)));
    }

    #[test]
    fn values_are_short_and_cannot_move_the_cursor() {
        for (value, text) in [
            (Value::F64(21.123_456), "21.1235"),
            (Value::F64(-0.0), "-0"),
            (Value::F64(1e300), "1.000e300"),
            (Value::F64(0.000_012), "1.200e-5"),
            (Value::F64(100.0), "100"),
            (Value::I64(100), "100"),
            (Value::Text("a\u{1b}[2Jb\n".into()), "a [2Jb "),
        ] {
            assert_eq!(short(&value), text);
        }
    }

    #[test]
    fn a_time_ahead_of_the_clock_is_no_time_ago() {
        assert_eq!(since_text("2036-12-01T00:00:00Z", now()), "0s");
        assert_eq!(since_text("yesterday", now()), UNKNOWN);
    }
}
