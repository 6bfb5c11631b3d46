//! The generated documents: the reference of all keys, and the commented file that is shipped.

use super::Config;
use super::keys::{Key, Kind, ROOT};

/// The reference of the configuration as Markdown: one table for each section, with every key, its type, default,
/// bounds and meaning.
pub fn reference() -> String {
    let mut text = String::from(REFERENCE_HEAD);
    let defaults = defaults();
    for section in ROOT {
        section_reference(&mut text, section.name, section, Some(&defaults));
    }
    text
}

/// The configuration file that is shipped: every default as a comment, and examples as comments. It is valid as it is,
/// and with any or all of its comments that look like code (`#` without a blank) made code.
pub fn default_toml() -> String {
    let mut text = String::from(FILE_HEAD);
    let defaults = defaults();
    for section in ROOT {
        let Kind::Table(keys) = section.kind else { continue };
        text.extend(["\n# ", &section.doc.replace('`', ""), "\n[", section.name, "]\n"]);
        for key in keys {
            for line in wrap(&comment(key), 116) {
                text.extend(["# ", &line, "\n"]);
            }
            let value = defaults.get(section.name).and_then(|table| table.get(key.name));
            text.extend(["#", key.name, " = ", &value.map(ToString::to_string).unwrap_or_default(), "\n"]);
        }
    }
    text.push_str(FILE_EXAMPLES);
    text
}

const REFERENCE_HEAD: &str = "\
# Configuration reference

Layers, later ones win: the defaults below, `/etc/tidegate/tidegate.toml` (or `--config FILE`), `conf.d/*.toml` beside it
in the order of their names, and for the single tables environment variables `TIDEGATE__SECTION__KEY`, for example
`TIDEGATE__BROKER__LISTEN=127.0.0.1:1884`. The arrays `[[source]]`, `[[alert]]` and `[[sink]]` are appended over the
files; the name of an alert or a sink may be there once only. An unknown key, variable or unit is an error.

A size is written `\"512KiB\"`, `\"8MiB\"`, `\"1GiB\"` or as a number of bytes; a duration `\"250ms\"`, `\"30s\"`, `\"10m\"`, `\"2h\"`,
`\"7d\"` or joined, `\"1h30m\"`.
";

const FILE_HEAD: &str = "\
# Configuration of tidegate. Lines that begin with `#` and no blank are the defaults, or examples.
# Files conf.d/*.toml beside this one are read after it, in the order of their names; [[source]], [[alert]] and [[sink]]
# are appended, everything else is replaced. Variables TIDEGATE__SECTION__KEY come last.
# `tidegate check` tells what is wrong, with line and mend.
";

const FILE_EXAMPLES: &str = r#"
# Topics that become twins and events; the first that matches wins. `{device}` and `{metric}` are what they say, other
# placeholders become labels; `{name...}` takes several levels. Examples: bare numbers, one topic for each metric;
#[[source]]
#topic = "plant/{line}/{device}/{metric}"
#labels = { site = "muc1" }
#metrics.temperature = { unit = "Cel", range = [0, 150], deadband = "1%" }
#metrics.vibration = { unit = "mm/s", deadband = 0.2 }
#uplink = { min_interval = "1s", max_interval = "10m" }

# and JSON as Tasmota sends it, with its availability topic; its `Time` has no zone, so that the time of arrival counts.
#[[source]]
#topic = "tele/{device}/SENSOR"
#format = "json"
#drop = ["Time", "TempUnit"]
#online = { topic = "tele/{device}/LWT", on = "Online", off = "Offline" }

# Local alerts; they are published to tidegate/alerts/<alert>/<device> before anything touches disk or network.
#[[alert]]
#alert = "PressOverTemp"
#on = "press*"
#expr = "temperature > 80"
#hysteresis = 5
#for = "2s"
#keep_firing_for = "10s"
#severity = "critical"
#labels = { team = "maintenance" }
#annotations = { summary = "{device} is at {temperature} Cel" }

# Upstreams; what they have not taken yet waits on disk.
#[[sink]]
#name = "cloud"
#start = "snapshot"
#[sink.kafka]
#brokers = ["kafka.example.com:9092"]
#prefix = "tidegate"
#request_timeout = "10s"
"#;

/// The least of each array of tables, to read the defaults of its keys from.
const LEAST: &str = r#"
[[source]]
topic = "a/{device}"
online.topic = "b/{device}"
[source.metrics.any]
[[alert]]
alert = "A"
expr = "a > 1"
[[sink]]
name = "k"
kafka.brokers = []
"#;

#[expect(clippy::expect_used, reason = "the text is a constant, and a test reads it")]
fn defaults() -> toml::Value {
    let least: Config = toml::from_str(LEAST).expect("the least configuration is valid");
    toml::Value::try_from(&least).expect("a configuration can be written as TOML")
}

fn section_reference(text: &mut String, title: &str, key: &Key, parent: Option<&toml::Value>) {
    let Some(keys) = key.kind.keys() else { return };
    let (open, close) = if matches!(key.kind, Kind::Tables(..)) { ("[[", "]]") } else { ("[", "]") };
    let mut table = parent.and_then(|parent| parent.get(key.name));
    if let Some(first) = table.and_then(|table| table.get(0)) {
        table = Some(first);
    }
    text.extend(["\n## `", open, title, close, "`\n\n", key.doc]);
    if let Kind::Tables(_, most) | Kind::NamedTables(_, most) = key.kind {
        text.extend([" At most ", &most.to_string(), "."]);
    }
    text.push_str("\n\n| key | type | default | bounds | meaning |\n|---|---|---|---|---|\n");
    for key in keys {
        text.push_str(&row(key, table));
    }
    for key in keys {
        let (title, table) = match key.kind {
            Kind::NamedTables(..) => (format!("{title}.{}.<name>", key.name), None),
            _ => (format!("{title}.{}", key.name), table),
        };
        section_reference(text, &title, key, table);
    }
}

fn row(key: &Key, table: Option<&toml::Value>) -> String {
    let default = match table.and_then(|table| table.get(key.name)) {
        _ if key.required => "required".into(),
        Some(value) if key.kind.keys().is_none() => format!("`{value}`"),
        _ => String::new(),
    };
    let cells = [format!("`{}`", key.name), key.kind.name().into(), default, key.kind.bounds(), key.doc.into()];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

/// Meaning and bounds of a key for the shipped file.
fn comment(key: &Key) -> String {
    let bounds = key.kind.bounds();
    let doc = key.doc.replace('`', "");
    if bounds.is_empty() { doc } else { format!("{doc} ({bounds})") }
}

/// Breaks a text into lines of at most `width` characters.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A configuration with every key set.
    const WHOLE: &str = r#"
[[source]]
topic = "a"
device = "d"
metric = "m"
root = "r"
drop = ["x"]
time = "t"
labels = { a = "b" }
online = { topic = "o" }
[source.metrics.any]
path = "p"
unit = "u"
deadband = 1
range = [0, 1]
[[alert]]
alert = "A"
on = "d"
expr = "e"
labels = { a = "b" }
annotations = { a = "b" }
[[sink]]
name = "k"
kafka.brokers = ["h:1"]
"#;

    /// Paths of all keys of a value, arrays and named tables without their indices and names.
    fn written(value: &toml::Value, keys: &[Key], path: &str, out: &mut BTreeSet<String>) {
        for (name, value) in value.as_table().unwrap() {
            let path = format!("{path}.{name}");
            out.insert(path.clone());
            match keys.iter().find(|key| key.name == name).map(|key| key.kind) {
                Some(Kind::Table(keys)) => written(value, keys, &path, out),
                Some(Kind::Tables(keys, _)) => written(&value[0], keys, &path, out),
                Some(Kind::NamedTables(keys, _)) => written(&value["any"], keys, &path, out),
                _ => {}
            }
        }
    }

    fn described(keys: &[Key], path: &str, out: &mut BTreeSet<String>) {
        for key in keys {
            let path = format!("{path}.{}", key.name);
            described(key.kind.keys().unwrap_or_default(), &path, out);
            out.insert(path);
        }
    }

    #[test]
    fn every_key_of_the_schema_is_described_and_every_description_is_a_key() {
        let whole: Config = toml::from_str(WHOLE).unwrap();
        let (mut schema, mut table) = (BTreeSet::new(), BTreeSet::new());
        written(&toml::Value::try_from(&whole).unwrap(), ROOT, "", &mut schema);
        described(ROOT, "", &mut table);
        assert_eq!(schema, table);
    }

    #[test]
    fn every_required_key_is_required_by_the_schema_and_no_other() {
        fn each(keys: &[Key], check: &mut impl FnMut(&Key)) {
            for key in keys {
                check(key);
                each(key.kind.keys().unwrap_or_default(), check);
            }
        }
        for (array, least) in [("source", "topic"), ("alert", "alert expr"), ("sink", "name kafka")] {
            let section = ROOT.iter().find(|key| key.name == array).unwrap();
            let required: Vec<&str> =
                section.kind.keys().unwrap().iter().filter(|key| key.required).map(|key| key.name).collect();
            assert_eq!(required.join(" "), least);
        }
        each(ROOT, &mut |key| assert!(key.doc.ends_with('.'), "{}", key.name));
    }

    #[test]
    fn every_default_lies_within_its_bounds() {
        let text = toml::to_string(&defaults()).unwrap();
        let document = super::super::document::Document { path: "defaults".into(), text };
        let found = document.inspect(&mut super::super::document::Origins::default());
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn the_reference_has_a_row_for_each_key_with_its_default() {
        let text = reference();
        assert!(text.contains("| `listen` | IP address and port | `\"127.0.0.1:1883\"` |"), "{text}");
        assert!(text.contains("| `checkpoint_bytes` | size | `\"32MiB\"` | 8MiB to 256MiB |"), "{text}");
        assert!(text.contains("## `[source.metrics.<name>]`"), "{text}");
        assert!(text.contains("| `topic` | text | required |"), "{text}");
    }

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("endless", 3), ["endless"]);
    }
}
