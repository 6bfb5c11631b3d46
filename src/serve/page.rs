//! The status page: one HTML document without scripts, styles or pictures from elsewhere, that a browser in a
//! terminal shows as well. Everything that a device may have named is escaped.

use std::fmt::{self, Display, Write};
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};

use super::server::Shared;
use super::table::{short, since_text, span, summary};
use crate::model::{Alert, AlertState, DeviceState, Lane, Record, Stamp};

/// Rows of each table; the rest is counted.
const ROWS_MAX: usize = 200;

/// No script runs and nothing is fetched, whatever slips into the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = "body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;max-width:75em;color:#223;background:#fff}\
    h1{font-size:1.3em}h2{font-size:1.05em;margin:1.4em 0 .3em}table{border-collapse:collapse;width:100%}\
    th,td{text-align:left;padding:.15em .8em .15em 0;border-bottom:1px solid #ccd;vertical-align:top}\
    th{font-weight:600;color:#556}.bad{color:#b00;font-weight:600}.dim{color:#778}\
    @media(prefers-color-scheme:dark){body{color:#dde;background:#181a20}th{color:#99a}td,th{border-color:#334}.bad{color:#f66}}";

/// `/`.
pub(super) async fn show(State(shared): State<Arc<Shared>>) -> Response {
    let mut html = String::with_capacity(16 * 1024);
    if write_page(&mut html, &shared).is_err() {
        html.clear();
    }
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, html).into_response()
}

fn write_page(html: &mut String, shared: &Shared) -> fmt::Result {
    let now = shared.clock.wall();
    let gateway = Escaped(&shared.options.gateway);
    write!(
        html,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"2\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{gateway} - Tidegate</title>\
         <style>{STYLE}</style></head><body>\n<h1>Tidegate: {gateway}</h1>\n"
    )?;
    write_summary(html, shared, now)?;
    write_health(html, shared)?;
    if shared.health.has_started() {
        write_alerts(html, shared, now)?;
        write_devices(html, shared, now)?;
        write_queue(html, shared, now)?;
    }
    html.push_str(
        "<p class=\"dim\">Also here: /readyz?verbose, /metrics, and /apis/tidegate.dev/v1alpha1 for kubectl.</p>\n",
    );
    html.push_str("</body></html>\n");
    Ok(())
}

fn write_summary(html: &mut String, shared: &Shared, now: Stamp) -> fmt::Result {
    let uptime = span(shared.clock.now().since(shared.started).as_secs());
    let namespace = Escaped(&shared.options.namespace);
    write!(html, "<p>Namespace {namespace}, up {uptime}, {} (clock {})", now.rfc3339_seconds(), now.clock)?;
    if shared.health.has_started() {
        let stats = shared.view.stats();
        write!(
            html,
            ", epoch {}, head {}, {} devices, {} alerts, {} events waiting",
            shared.view.epoch(),
            shared.view.head(),
            stats.devices,
            stats.alerts,
            stats.events
        )?;
    }
    html.push_str(".</p>\n");
    if shared.has_fault() {
        html.push_str(
            "<p class=\"bad\">The disk refuses writes: nothing is acknowledged. What is shown is the newest stored \
             state; values since then are NOT STORED and not shown.</p>\n",
        );
    }
    Ok(())
}

fn write_health(html: &mut String, shared: &Shared) -> fmt::Result {
    for (name, outcome) in shared.health.checks() {
        if let Err(reason) = outcome {
            writeln!(html, "<p class=\"bad\">Not ready: {} - {}</p>", Escaped(name), Escaped(&reason))?;
        }
    }
    Ok(())
}

fn write_alerts(html: &mut String, shared: &Shared, now: Stamp) -> fmt::Result {
    let records = shared.view.list(Lane::Alert, None).records;
    let mut alerts: Vec<Alert> = records.iter().filter_map(read).collect();
    let firing_first = |alert: &Alert| (alert.state == AlertState::Resolved, std::cmp::Reverse(alert.severity));
    alerts.sort_by_cached_key(|alert| (firing_first(alert), std::cmp::Reverse(alert.time.clone())));
    let firing = alerts.iter().filter(|alert| alert.state == AlertState::Firing).count();
    writeln!(html, "<h2>Alerts: {firing} firing, {} resolved</h2>", alerts.len() - firing)?;
    table(html, &["State", "Severity", "Alert", "Device", "Value", "Since"], &alerts, |html, alert| {
        let class = if alert.state == AlertState::Firing { "bad" } else { "dim" };
        cell(html, class, &alert.state)?;
        cell(html, "", &alert.severity)?;
        cell(html, "", &alert.alert)?;
        cell(html, "", &alert.device)?;
        cell(html, "", &alert.value.as_ref().map(short).unwrap_or_default())?;
        cell(html, "", &since_text(&alert.time, now))
    })
}

fn write_devices(html: &mut String, shared: &Shared, now: Stamp) -> fmt::Result {
    let records = shared.view.list(Lane::State, None).records;
    writeln!(html, "<h2>Devices: {}</h2>", records.len())?;
    table(html, &["Device", "Online", "Last seen", "Metrics", "Version"], &records, |html, record| {
        let state: Option<DeviceState> = read(record);
        cell(html, "", record.key.name())?;
        let online = state.as_ref().and_then(|state| state.online);
        cell(
            html,
            if online == Some(false) { "bad" } else { "" },
            &online.map_or("", |on| if on { "yes" } else { "no" }),
        )?;
        cell(html, "", &state.as_ref().map(|state| since_text(&state.last_seen, now)).unwrap_or_default())?;
        cell(html, "", &state.as_ref().map(summary).unwrap_or_default())?;
        cell(html, "dim", &record.seq)
    })
}

fn write_queue(html: &mut String, shared: &Shared, now: Stamp) -> fmt::Result {
    let stats = shared.view.stats();
    writeln!(html, "<h2>Queue: {} records, {} bytes wait</h2>", stats.pending_records, stats.pending_bytes)?;
    table(html, &["Sink", "Lane", "Waiting", "Oldest", "Acknowledged up to"], &shared.view.cursors(), |html, cursor| {
        let (sink, lane, seq) = cursor;
        let lag = shared.view.lag(sink, *lane);
        cell(html, "", sink)?;
        cell(html, "", lane)?;
        cell(html, "", &lag.records)?;
        cell(html, "", &lag.oldest.map(|at| since_text(&at.rfc3339(), now)).unwrap_or_default())?;
        cell(html, "dim", seq)
    })
}

fn read<T: serde::de::DeserializeOwned>(record: &Record) -> Option<T> {
    serde_json::from_slice(&record.body).ok()
}

/// At most [`ROWS_MAX`] rows, and how many more there are.
fn table<T>(
    html: &mut String,
    heads: &[&str],
    rows: &[T],
    write_row: impl Fn(&mut String, &T) -> fmt::Result,
) -> fmt::Result {
    if rows.is_empty() {
        html.push_str("<p class=\"dim\">None.</p>\n");
        return Ok(());
    }
    html.push_str("<table><tr>");
    for head in heads {
        write!(html, "<th>{head}</th>")?;
    }
    html.push_str("</tr>\n");
    for row in rows.iter().take(ROWS_MAX) {
        html.push_str("<tr>");
        write_row(html, row)?;
        html.push_str("</tr>\n");
    }
    html.push_str("</table>\n");
    if rows.len() > ROWS_MAX {
        writeln!(html, "<p class=\"dim\">And {} more.</p>", rows.len() - ROWS_MAX)?;
    }
    Ok(())
}

fn cell(html: &mut String, class: &str, content: &dyn Display) -> fmt::Result {
    if class.is_empty() {
        return write!(html, "<td>{}</td>", Escaped(&content.to_string()));
    }
    write!(html, "<td class=\"{class}\">{}</td>", Escaped(&content.to_string()))
}

/// Text that is safe between tags and inside of quoted attributes.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if c.is_control() => f.write_char(' ')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_device_says_becomes_markup() {
        let nasty = "<script>alert('x')</script>\"&\n";
        let mut html = String::new();
        cell(&mut html, "bad", &nasty).unwrap();
        let safe = "<td class=\"bad\">&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp; </td>";
        assert_eq!(html, safe);
    }

    #[test]
    fn a_long_table_is_cut_and_says_so() {
        let mut html = String::new();
        table(&mut html, &["N"], &vec![7; ROWS_MAX + 5], |html, n| cell(html, "", n)).unwrap();
        assert_eq!(html.matches("<td>7</td>").count(), ROWS_MAX);
        assert!(html.ends_with("And 5 more.</p>\n"), "{html}");
        html.clear();
        table(&mut html, &["N"], &[0; 0], |html, n| cell(html, "", n)).unwrap();
        assert_eq!(html, "<p class=\"dim\">None.</p>\n");
    }
}
