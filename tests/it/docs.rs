//! The documents say what the code does: test names, metrics, help texts.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate::model::Lane;
use tidegate::runtime::metrics::{Metrics, Reason, SinkLabel, SinkLane};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// Words in back-quotes that look like names of tests.
fn named_tests(text: &str) -> HashSet<&str> {
    let words = text.split('`').skip(1).step_by(2);
    words.filter(|word| word.len() > 25 && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')).collect()
}

fn rust_files(dir: &Path, found: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn the_architecture_is_short_and_every_test_it_names_exists() {
    let text = read("ARCHITECTURE.md");
    assert!(text.lines().count() <= 250);
    let mut code = String::new();
    rust_files(&root().join("src"), &mut code);
    rust_files(&root().join("tests"), &mut code);
    let named = named_tests(&text);
    assert!(named.len() > 10);
    let missing: Vec<_> = named.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names tests that are not there: {missing:?}");
    for number in 1..=15 {
        assert!(text.contains(&format!("\n| {number} | ")), "invariant {number} is missing");
    }
}

/// The text of all families; one with labels is left out of it until it has a sample.
fn every_family() -> String {
    let metrics = Metrics::new();
    let (reason, sink) = (Reason { reason: "" }, SinkLabel { sink: String::new() });
    for family in [
        &metrics.connections_closed,
        &metrics.deliveries_dropped,
        &metrics.undecodable,
        &metrics.refused,
        &metrics.alert_transitions,
        &metrics.disk_errors,
    ] {
        drop(family.get_or_create(&reason));
    }
    for family in [&metrics.deltas, &metrics.queue_dropped] {
        drop(family.get_or_create(&Lane::State.into()));
    }
    let lane = SinkLane { sink: String::new(), lane: Lane::State.into() };
    drop(metrics.delivered.get_or_create(&lane));
    for family in [&metrics.lag_records, &metrics.lag_seconds] {
        drop(family.get_or_create(&lane));
    }
    drop(metrics.sink_failures.get_or_create(&sink));
    drop(metrics.sink_up.get_or_create(&sink));
    metrics.encode()
}

#[test]
fn the_readme_lists_every_metric() {
    let mut table = String::from("| metric | type | meaning |\n|---|---|---|\n");
    let text = every_family();
    assert_eq!(text.matches("# HELP ").count(), read("src/runtime/metrics.rs").matches("r.register(").count());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else { continue };
        let kind = lines.peek().and_then(|line| line.rsplit_once(' ')).unwrap().1;
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        writeln!(table, "| `{name}` | {kind} | {} |", help.trim_end_matches('.')).unwrap();
    }
    let readme = read("README.md");
    let (before, rest) = readme.split_once("<!-- metrics -->\n").expect("README.md has the mark");
    let (_, after) = rest.split_once("<!-- /metrics -->\n").expect("README.md has the closing mark");
    let fresh = format!("{before}<!-- metrics -->\n{table}<!-- /metrics -->\n{after}");
    if fresh != readme {
        fs::write(root().join("README.md"), &fresh).unwrap();
        panic!("the metrics in README.md were stale; they are written anew, look at the difference and keep it");
    }
}

#[test]
fn the_help_texts_are_the_golden_ones() {
    let mut text = String::new();
    for command in ["", "run", "check", "simulate", "demo"] {
        let mut tidegate = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let args = command.split_whitespace().chain(["--help"]);
        let output = tidegate.args(args).env("COLUMNS", "100").output().unwrap();
        assert!(output.status.success());
        writeln!(text, "$ tidegate {command} --help\n{}", String::from_utf8(output.stdout).unwrap()).unwrap();
    }
    let golden = root().join("tests/golden/help.txt");
    if fs::read_to_string(&golden).ok().as_deref() != Some(&text) {
        fs::write(golden, &text).unwrap();
        panic!("tests/golden/help.txt was stale; it is written anew, look at the difference and keep it");
    }
}

#[test]
fn the_command_line_ends_with_the_documented_codes() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.toml");
    fs::write(&bad, "[broker]\nlisten = \"127.0.0.1:1883\"\nconections_max = 5\n").unwrap();
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(args)
            .env("STATE_DIRECTORY", dir.path())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for command in ["check", "run"] {
        let (code, error) = run(&[command, "--config", bad.to_str().unwrap()]);
        assert_eq!(code, Some(64), "{error}");
        assert!(error.contains("bad.toml:3:1"), "{error}");
        assert!(error.contains("connections_max"), "the nearest name: {error}");
    }
    assert_eq!(run(&["check", "--config", "/nonexistent/x.toml"]).0, Some(64));
    assert_eq!(run(&["frobnicate"]).0, Some(64));
    assert_eq!(run(&["--version"]).0, Some(0));
    let shipped = root().join("etc/tidegate/tidegate.toml");
    assert_eq!(run(&["check", "--config", shipped.to_str().unwrap()]).0, Some(0));
}
