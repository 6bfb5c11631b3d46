//! The command line as scripts rely on it: what `check` says, and with which code things end.

use std::process::Command;

use crate::gateway::Gateway;
use crate::parts::{Printed, folder, run, tidegate};

fn check(config: &str) -> (Printed, String) {
    let home = folder("check");
    let file = home.path().join("site.toml");
    std::fs::write(&file, config).expect("the folder is writable");
    let printed = run(Command::new(tidegate()).arg("check").arg("--config").arg(&file), 20);
    (printed, file.display().to_string())
}

#[test]
fn check_ends_with_64_and_says_file_line_and_mend() {
    for (config, line, mend) in [
        ("[broker]\nlisten = \"127.0.0.1:1883\"\nlissten = 3\n", 3, "listen"),
        ("[gateway]\nname = \"a\"\n\n[store]\nwear_gb_per_day = \"much\"\n", 5, "wear_gb_per_day"),
    ] {
        let (printed, file) = check(config);
        assert_eq!(printed.code, Some(64), "{config}: {}", printed.err);
        assert!(printed.err.contains(&format!("{file}:{line}")), "{file}:{line} is not in {}", printed.err);
        assert!(printed.err.contains(mend), "{mend} is not in {}", printed.err);
        assert_eq!(printed.out, "", "errors go to stderr only");
    }
}

#[test]
fn check_ends_with_64_and_shows_where_an_expression_stumbles() {
    let (printed, _) = check("[[alert]]\nalert = \"Hot\"\nexpr = \"temperature >\"\n");
    assert_eq!(printed.code, Some(64), "{}", printed.err);
    for part in ["Hot", "column 14", "temperature >\n", "write a metric"] {
        assert!(printed.err.contains(part), "{part:?} is not in {}", printed.err);
    }
}

#[test]
fn check_ends_with_0_on_a_good_file_and_starts_nothing() {
    let (printed, file) =
        check("[[source]]\ntopic = \"dev/{device}/state\"\n\n[[alert]]\nalert = \"Hot\"\nexpr = \"t > 80\"\n");
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    assert!(printed.out.contains(&file) && printed.out.contains("1 sources, 1 alerts"), "{}", printed.out);
}

#[test]
fn a_first_start_with_a_bad_configuration_ends_with_64_and_a_second_daemon_on_the_folder_is_refused() {
    let mut gateway = Gateway::new("only", "[[source]]\ntopic = \"dev/{device}/state\"\n");
    gateway.start();
    let second = folder("second");
    let config = second.path().join("second.toml");
    let text = std::fs::read_to_string(gateway.config()).expect("it was written");
    let moved =
        text.replace(&gateway.mqtt.to_string(), "127.0.0.1:0").replace(&gateway.http.to_string(), "127.0.0.1:0");
    std::fs::write(&config, &moved).expect("the folder is writable");
    let printed = run(Command::new(tidegate()).arg("run").arg("--config").arg(&config), 20);
    assert_eq!(printed.code, Some(1), "a second daemon: {}{}", printed.out, printed.err);
    std::fs::write(&config, moved + "\n[[alert]]\nalert = \"Hot\"\n").expect("the folder is writable");
    let printed = run(Command::new(tidegate()).arg("run").arg("--config").arg(&config), 20);
    assert_eq!(printed.code, Some(64), "a bad configuration: {}{}", printed.out, printed.err);
    assert_eq!(gateway.stop(), Some(0), "SIGTERM is a clean stop");
}
