//! The house: floors, crate homes, sizes. Failing this is failing the build.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms and their floors. A room imports only from lower floors; `runtime` may import `model`.
const FLOORS: [(&str, u8); 14] = [
    ("model", 0),
    ("runtime", 0),
    ("config", 1),
    ("store", 1),
    ("cache", 2),
    ("queue", 2),
    ("rules", 2),
    ("broker", 3),
    ("informer", 3),
    ("serve", 3),
    ("sink", 3),
    ("ingest", 4),
    ("app", 5),
    ("cli", 6),
];

/// Heavy crates and the only places that may name them.
const HOMES: [(&str, &[&str]); 7] = [
    ("rumqttd", &["src/broker/"]),
    ("sled", &["src/store/sled.rs"]),
    ("krafka", &["src/sink/kafka.rs"]),
    ("config", &["src/config/load.rs"]),
    ("tracing_journald", &["src/runtime/telemetry.rs"]),
    ("rumqttc", &["src/cli/simulate/client.rs"]),
    ("axum", &["src/serve/"]),
];

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const FUNCTION_LINES_MEDIAN_MAX: usize = 8;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files below a folder, with their paths from the root.
fn sources(folder: &str) -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join(folder), &mut found);
    found.sort();
    let name = |path: &Path| path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
    found.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// The room of a file, and its floor.
fn room(file: &str) -> Option<(&'static str, u8)> {
    let name = file.strip_prefix("src/")?.split('/').next()?;
    FLOORS.into_iter().find(|(room, _)| *room == name)
}

/// Lines without comments, so that prose may name what it likes.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(n, line)| (n + 1, line)).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn imports_own_config(text: &str) -> bool {
    text.contains("use crate::config") || text.contains("use crate::{config") || text.contains("crate::config::")
}

fn report(what: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

#[test]
fn every_room_stands_on_its_floor() {
    let mut wrong = Vec::new();
    for (file, text) in sources("src") {
        let Some((room, floor)) = room(&file) else { continue };
        for (n, line) in code(&text) {
            for part in line.split("crate::").skip(1) {
                let target = part.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                let Some((other, below)) = FLOORS.into_iter().find(|(name, _)| *name == target) else { continue };
                let allowed = other == room || below < floor || (room == "runtime" && other == "model");
                if !allowed {
                    wrong.push(format!("{file}:{n}: {room} (floor {floor}) imports {other} (floor {below})"));
                }
            }
        }
    }
    report("a room imports only from lower floors, never sideways", &wrong);
}

#[test]
fn every_heavy_crate_stays_in_its_home() {
    let mut wrong = Vec::new();
    for (file, text) in sources("src") {
        for (n, line) in code(&text) {
            for (name, homes) in HOMES {
                let path = format!("{name}::");
                // A room of ours may bear the same name: `crate::config::`, or `config::` where that is imported.
                let own = text.contains(&format!("mod {name};")) || (name == "config" && imports_own_config(&text));
                let used = line.match_indices(&path).any(|(at, _)| {
                    let before = line[..at].chars().last();
                    before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':') || line[..at].ends_with(" ::")
                });
                if used && !own && !homes.iter().any(|home| file.starts_with(home)) {
                    wrong.push(format!("{file}:{n}: {name} belongs in {}", homes.join(", ")));
                }
            }
        }
    }
    report("a heavy crate has one home", &wrong);
}

#[test]
fn files_and_functions_stay_small() {
    let (mut wrong, mut lengths) = (Vec::new(), Vec::new());
    for (file, text) in sources("src").into_iter().chain(sources("tests")) {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            wrong.push(format!("{file}: {lines} lines, at most {FILE_LINES_MAX}"));
        }
        for (name, at, length) in functions(&text) {
            if length > FUNCTION_LINES_MAX {
                wrong.push(format!("{file}:{at}: fn {name} has {length} lines, at most {FUNCTION_LINES_MAX}"));
            }
            if file.starts_with("src/") {
                lengths.push(length);
            }
        }
    }
    lengths.sort_unstable();
    let median = lengths[lengths.len() / 2];
    if median > FUNCTION_LINES_MEDIAN_MAX {
        wrong.push(format!("the median function has {median} lines, at most {FUNCTION_LINES_MEDIAN_MAX}"));
    }
    report("sizes", &wrong);
}

/// Functions of a formatted file: name, first line, length. A function ends at the brace in its own column.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<_> = text.lines().collect();
    let mut found = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let Some(at) = body.find("fn ").filter(|at| {
            body[..*at]
                .split_whitespace()
                .all(|w| w.starts_with("pub") || ["async", "const", "in"].contains(&w) || w.ends_with(')'))
        }) else {
            continue;
        };
        let name = body[at + 3..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned();
        if name.is_empty() || body.ends_with(';') {
            continue;
        }
        let end = format!("{}}}", " ".repeat(line.len() - body.len()));
        let one_line = body.ends_with('}');
        let length = if one_line { 1 } else { lines[n..].iter().position(|l| **l == end).map_or(1, |l| l + 1) };
        found.push((name, n + 1, length));
    }
    found
}

#[test]
fn every_room_opens_with_what_it_is_for() {
    let mut wrong = Vec::new();
    for (file, text) in sources("src").into_iter().chain(sources("tests")) {
        let first =
            text.lines().find(|line| line.starts_with("//!") || line.starts_with("mod ") || line.starts_with("use "));
        if !first.is_some_and(|line| line.starts_with("//! ")) {
            wrong.push(format!("{file}: it does not open with a `//!` sentence"));
        }
    }
    report("a file opens with a sentence", &wrong);
}

/// Beginnings of the paths of modules that are compiled for tests only.
fn test_modules() -> Vec<String> {
    let mut found = Vec::new();
    for (file, text) in sources("src") {
        let beside = &file[..=file.rfind('/').unwrap()];
        let dir = if file.ends_with("/mod.rs") { beside.to_owned() } else { file.replace(".rs", "/") };
        let lines: Vec<_> = text.lines().collect();
        for at in (0..lines.len()).filter(|at| lines[*at] == "#[cfg(test)]") {
            let item = lines[at + 1..].iter().take_while(|line| !line.is_empty() && !line.ends_with('{'));
            let item: Vec<_> = item.take(8).collect();
            let path = item.iter().find_map(|line| line.strip_prefix("#[path = \"")?.strip_suffix("\"]"));
            let name = item.iter().find_map(|line| line.strip_suffix(';')?.rsplit_once("mod "));
            match (path, name) {
                (Some(path), _) => found.push(format!("{beside}{path}")),
                (None, Some((_, name))) => found.extend([format!("{dir}{name}.rs"), format!("{dir}{name}/")]),
                (None, None) => {}
            }
        }
    }
    found
}

#[test]
fn queue_and_store_have_as_much_test_as_code() {
    let mut sums: HashMap<&str, (usize, usize)> = HashMap::new();
    let tests = test_modules();
    for (file, text) in sources("src") {
        let Some((room, _)) = room(&file) else { continue };
        let at = if tests.iter().any(|test| file.starts_with(test)) {
            0
        } else {
            text.find("#[cfg(test)]").unwrap_or(text.len())
        };
        let count =
            |part: &str| part.lines().filter(|l| !l.trim().is_empty() && !l.trim_start().starts_with("//")).count();
        let sum = sums.entry(room).or_default();
        sum.0 += count(&text[..at]);
        sum.1 += count(&text[at..]);
    }
    let mut wrong = Vec::new();
    for (room, least) in [("queue", 1.0), ("store", 1.0)] {
        let (code, test) = sums.get(room).copied().unwrap_or_default();
        if (test as f64) < least * code as f64 {
            wrong.push(format!("{room}: {test} lines of test for {code} of code, at least {least} each"));
        }
    }
    let integration: usize = sources("tests").iter().map(|(_, text)| text.lines().count()).sum();
    let (code, test) = sums.values().fold((0, 0), |sum, room| (sum.0 + room.0, sum.1 + room.1));
    if ((test + integration) as f64) < 0.6 * code as f64 {
        wrong.push(format!("overall: {} lines of test for {code} of code, at least 0.6 each", test + integration));
    }
    report("tests to code", &wrong);
}
