//! Files, environment and generated documents of the configuration, as a user meets them.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::config::{Loaded, Paths, default_toml, load, reference};

/// A folder with files.
struct Etc(tempfile::TempDir);

impl Etc {
    fn new(files: &[(&str, &str)]) -> Self {
        let etc = Self(tempfile::tempdir().unwrap());
        for (name, text) in files {
            let path = etc.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        etc
    }

    fn load(&self, env: &[(&str, &str)]) -> Result<Loaded, String> {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        load(&Paths::named(self.0.path().join("tidegate.toml")), env, "edge-1")
            .map_err(|errors| errors.to_string().replace(&format!("{}/", self.0.path().display()), ""))
    }
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compares a generated document with the file; writes it anew and fails if it is stale.
fn fresh(path: &str, text: &str) {
    let file = root(path);
    let there = fs::read_to_string(&file).unwrap_or_default();
    if there != text {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        panic!("{path} was stale; it is written anew, look at the difference and keep it");
    }
}

#[test]
fn the_shipped_file_is_what_the_code_says() {
    fresh("etc/tidegate/tidegate.toml", &default_toml());
}

#[test]
fn the_reference_is_what_the_code_says() {
    fresh("etc/tidegate/reference.md", &reference());
}

#[test]
fn the_shipped_file_is_valid_and_changes_nothing() {
    let loaded = Etc::new(&[("tidegate.toml", &default_toml())]).load(&[]).unwrap();
    let nothing = Etc::new(&[("tidegate.toml", "")]).load(&[]).unwrap();
    assert_eq!(loaded.config, nothing.config);
}

#[test]
fn the_shipped_file_with_its_comments_as_code_is_valid_and_has_the_same_defaults() {
    let code = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with([' ', '#']) => rest.to_owned(),
        _ => line.to_owned(),
    };
    let text: String = default_toml().lines().map(|line| code(line) + "\n").collect();
    let mut loaded = Etc::new(&[("tidegate.toml", &text)]).load(&[]).unwrap();
    let config = &mut loaded.config;
    assert_eq!((config.source.len(), config.alert.len(), config.sink.len()), (2, 1, 1));
    config.source.clear();
    config.alert.clear();
    config.sink.clear();
    assert_eq!(*config, Etc::new(&[("tidegate.toml", "")]).load(&[]).unwrap().config);
}

#[test]
fn later_layers_win_key_by_key_and_arrays_are_appended() {
    let etc = Etc::new(&[
        (
            "tidegate.toml",
            "[broker]\nlisten = \"127.0.0.1:1\"\ninflight_max = 1\noutbound_max = 1\n[[source]]\ntopic = \"a/{device}\"\n",
        ),
        ("conf.d/20-b.toml", "[broker]\noutbound_max = 3\n[[source]]\ntopic = \"c/{device}\"\n"),
        ("conf.d/10-a.toml", "[broker]\ninflight_max = 2\noutbound_max = 2\n[[source]]\ntopic = \"b/{device}\"\n"),
        ("conf.d/readme.txt", "not read"),
        ("conf.d/.10-a.toml", "not read"),
    ]);
    let env = [
        ("TIDEGATE__BROKER__LISTEN", "127.0.0.1:9"),
        ("TIDEGATE__GATEWAY__NAME", "4711"),
        ("TIDEGATE__BROKER__PACKET_BYTES_MAX", "1MiB"),
        ("TIDEGATE__STORE__CHECKPOINT_BYTES", "9000000"),
        ("TIDEGATE__BROKER__ANONYMOUS", "true"),
        ("TIDEGATE__SERVE__WATCHERS_MAX", "7"),
        ("TIDEGATE_LOG", "not ours"),
        ("HOME", "/"),
    ];
    let loaded = etc.load(&env).unwrap();
    let config = &loaded.config;
    assert_eq!(config.broker.listen.port(), 9);
    assert_eq!((config.broker.inflight_max, config.broker.outbound_max), (2, 3));
    assert_eq!(config.gateway.name, "4711");
    assert_eq!(config.broker.packet_bytes_max.0, 1 << 20);
    assert_eq!(config.store.checkpoint_bytes.0, 9_000_000);
    assert_eq!((config.broker.anonymous, config.serve.watchers_max), (true, 7));
    let topics: Vec<&str> = config.source.iter().map(|source| source.topic.as_str()).collect();
    assert_eq!(topics, ["a/{device}", "b/{device}", "c/{device}"]);
    assert_eq!((loaded.files.len(), loaded.variables.len()), (3, 6));
}

#[test]
fn names_and_values_of_a_source_are_kept_as_they_are_written() {
    let text = "[[source]]\ntopic = 'tele/{device}/SENSOR'\nlabels = { Site = \"MUC.1\" }\n\
        [source.metrics.\"AM2301.Temperature\"]\nrange = [-40, 80.5]\ndeadband = 1\n\
        [source.metrics.\"switch:0\"]\npath = '\"switch:0\".aPower'\ndeadband = \"2.5%\"\nrange = [0, 1]\n\
        [[alert]]\nalert = \"Hot\"\nexpr = \"t > 1\"\nfor = \"1h30m\"\nannotations = { Summary = \"x\" }\n";
    let loaded = Etc::new(&[("tidegate.toml", text)]).load(&[]).unwrap();
    let alone: tidegate::config::Config = toml::from_str(text).unwrap();
    assert_eq!(loaded.config.source, alone.source);
    assert_eq!(loaded.config.alert, alone.alert);
    assert_eq!(loaded.config.gateway.name, "edge-1");
}

#[test]
fn all_errors_of_all_files_and_variables_are_told_at_once() {
    let etc = Etc::new(&[
        ("tidegate.toml", "[broker]\nlisten = 5\n\n[[source]]\ntopic = \"a/{device}\"\ntemprature = 1\n"),
        ("conf.d/a.toml", "[serve\n"),
        ("conf.d/b.toml", "[queue]\nevent_bytes_max = \"1MiB\"\n"),
    ]);
    let errors = etc.load(&[("TIDEGATE__BROKER__LISTN", "x"), ("TIDEGATE__LOG__LEVEL", "info")]).unwrap_err();
    for wanted in [
        "tidegate.toml:2:10: broker.listen must be an IP address and port, not the number 5; write for example \"127.0.0.1:1883\"",
        "tidegate.toml:6:1: unknown key \"temprature\" in [[source]]; known are topic, device",
        "  6 | temprature = 1\n    | ^^^^^^^^^^",
        "conf.d/a.toml:1:7: not valid TOML",
        "conf.d/b.toml:2:19: queue.event_bytes_max is 1MiB, below the least of 8MiB; set it to \"8MiB\" or more, or remove the line",
        "unknown environment variable TIDEGATE__BROKER__LISTN; did you mean TIDEGATE__BROKER__LISTEN?",
    ] {
        assert!(errors.contains(wanted), "wanted {wanted}\nfound {errors}");
    }
}

#[test]
fn a_contradiction_over_layers_names_the_place_of_the_value() {
    let etc = Etc::new(&[("tidegate.toml", ""), ("conf.d/a.toml", "\n[[source]]\ntopic = \"a/b\"\n")]);
    let errors = etc.load(&[("TIDEGATE__BROKER__LISTEN", "0.0.0.0:1883")]).unwrap_err();
    assert!(
        errors.contains("environment variable TIDEGATE__BROKER__LISTEN: broker.listen is 0.0.0.0:1883"),
        "{errors}"
    );
    assert!(errors.contains("conf.d/a.toml:3:9: source[0].topic does not tell the device"), "{errors}");
}

#[test]
fn a_name_in_two_files_names_both_places() {
    let sink = "[[sink]]\nname = \"cloud\"\nkafka.brokers = [\"h:1\"]\n";
    let errors = Etc::new(&[("tidegate.toml", sink), ("conf.d/a.toml", sink)]).load(&[]).unwrap_err();
    assert!(
        errors.contains(
            "conf.d/a.toml:2:8: sink \"cloud\" is already at tidegate.toml:2:8; give one of them another name"
        ),
        "{errors}"
    );
}

#[test]
fn a_file_that_is_named_must_be_there_and_the_default_one_may_be_missing() {
    let etc = Etc::new(&[]);
    assert!(etc.load(&[]).unwrap_err().starts_with("cannot read tidegate.toml: No such file"));
    let paths = Paths { file: etc.0.path().join("tidegate.toml"), required: false };
    let loaded = load(&paths, [], "edge-1").unwrap();
    assert_eq!((loaded.config.gateway.name.as_str(), loaded.files.len()), ("edge-1", 0));
}

#[test]
fn a_file_that_is_no_text_or_endless_is_refused() {
    let etc = Etc::new(&[("tidegate.toml", "\u{feff}[log]\nlevel = \"warn\"\n")]);
    assert_eq!(etc.load(&[]).unwrap().config.log.level, "warn");
    fs::write(etc.0.path().join("tidegate.toml"), b"a = 1\n\xff").unwrap();
    assert!(etc.load(&[]).unwrap_err().contains("line 2 is not UTF-8"));
    fs::write(etc.0.path().join("tidegate.toml"), "#".repeat((1 << 20) + 1)).unwrap();
    assert!(etc.load(&[]).unwrap_err().contains("more than 1 MiB"));
}
