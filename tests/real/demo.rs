//! `tidegate demo`, as a user runs it.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::kafka::{Kafka, by_key, deduplicate};
use crate::mqtt::unix_now;
use crate::parts::{Printed, free_address, run, tidegate};

/// The keys of its JSON, which scripts rely on.
const KEYS: [&str; 10] = [
    "readings",
    "acknowledged",
    "deltas",
    "alerts_fired",
    "alerts_resolved",
    "alert_latency_us",
    "ack_latency_us",
    "queue_pending",
    "queue_bytes",
    "lost",
];

fn demo(args: &[&str]) -> Printed {
    let (mqtt, http) = (free_address().to_string(), free_address().to_string());
    run(Command::new(tidegate()).arg("demo").args(["--mqtt", &mqtt, "--http", &http]).args(args), 60)
}

/// Checks the last line; returns it.
fn figures(printed: &Printed) -> Value {
    assert_eq!(printed.code, Some(0), "{}{}", printed.out, printed.err);
    let last = printed.out.lines().last().unwrap_or_default();
    let figures: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{last:?} is no JSON: {error}"));
    let keys: BTreeSet<_> = figures.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(KEYS));
    for latency in ["alert_latency_us", "ack_latency_us"] {
        let at =
            |quantile: &str| figures[latency][quantile].as_u64().unwrap_or_else(|| panic!("no {quantile} in {last}"));
        assert!(
            0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("p999") && at("p999") <= at("max"),
            "{last}"
        );
    }
    assert_eq!(figures["lost"], 0, "{last}");
    figures
}

#[test]
fn the_demo_prints_one_object_of_figures_and_loses_nothing() {
    let figures = figures(&demo(&["--for", "6s", "--json", "--devices", "5"]));
    let count = |key: &str| figures[key].as_u64().unwrap_or_else(|| panic!("{key} is no number in {figures}"));
    assert!(count("readings") > 500, "{figures}");
    assert_eq!(
        count("acknowledged"),
        count("readings"),
        "nothing went wrong, so everything is acknowledged: {figures}"
    );
    assert!(count("alerts_fired") > 0 && count("deltas") > 0, "{figures}");
}

#[test]
fn the_demo_makes_its_kafka_topics_and_fills_them() {
    let kafka = Kafka::new();
    // A new store numbers from the wall clock: what an earlier demo left in these topics is below.
    let from = (unix_now() * 1e6) as u64;
    figures(&demo(&["--for", "8s", "--json", "--devices", "5", "--kafka", &kafka.address]));
    let read =
        |topic: &str| -> Vec<_> { kafka.read(topic).into_iter().filter(|record| record.sequence() >= from).collect() };
    let states = read("tidegate.devicestates");
    let keys: Vec<_> = by_key(&states).into_keys().map(str::to_owned).collect();
    assert_eq!(keys, (0..5).map(|n| format!("demo/default/sim-{n:04}")).collect::<Vec<_>>());
    assert!(!read("tidegate.alerts").is_empty());
    let events = read("tidegate.events");
    assert_eq!(by_key(&events).len(), 5, "every device has its events there");
    for (key, records) in by_key(deduplicate(&events)) {
        let numbers: Vec<_> = records.iter().filter_map(|record| record.json()["n"].as_u64()).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "{key}");
    }
}
