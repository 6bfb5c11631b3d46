//! Clients that are not ours against a bare gateway: mosquitto's in both protocol versions, and kubectl.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::http;
use crate::kubectl::Kubectl;
use crate::parts::{Process, eventually, folder, free_address, run, say, tidegate};

/// `tidegate demo --devices 0`: a bare gateway that takes the demo's topics.
struct Bare {
    mqtt: SocketAddr,
    http: SocketAddr,
    process: Process,
    _home: tempfile::TempDir,
}

impl Bare {
    fn start() -> Self {
        let (mqtt, http, home) = (free_address(), free_address(), folder("bare"));
        let mut command = Command::new(tidegate());
        command.args(["demo", "--devices", "0", "--mqtt", &mqtt.to_string(), "--http", &http.to_string()]);
        command.arg("--data-dir").arg(home.path().join("data"));
        let mut process = Process::logged(&mut command, &home.path().join("log"));
        eventually("/readyz answers 200", Duration::from_secs(20), || {
            process.assert_runs();
            http::get(http, "/readyz").is_ok_and(|answer| answer.status == 200).then_some(())
        });
        Self { mqtt, http, process, _home: home }
    }

    fn publish(&self, version: &str, args: &[&str]) {
        let printed = run(mosquitto("mosquitto_pub", self.mqtt, version).args(args), 10);
        assert_eq!(printed.code, Some(0), "mosquitto_pub -V {version} {args:?}: {}{}", printed.out, printed.err);
        assert_eq!(printed.err, "", "mosquitto_pub -V {version} {args:?}");
    }

    /// What a new subscriber gets at once, `count` messages.
    fn retained(&self, version: &str, filter: &str, count: usize) -> Vec<String> {
        let count = count.to_string();
        let mut command = mosquitto("mosquitto_sub", self.mqtt, version);
        let printed = run(command.args(["-q", "1", "-t", filter, "-C", &count, "-W", "5", "-F", "%r %t %p"]), 10);
        assert_eq!(printed.code, Some(0), "mosquitto_sub {filter}: {}{}", printed.out, printed.err);
        let mut lines: Vec<_> = printed.out.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

fn mosquitto(program: &str, broker: SocketAddr, version: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["-h", "127.0.0.1", "-p", &broker.port().to_string(), "-V", version]);
    command
}

/// A subscriber, and a way to get its next line.
fn listen(broker: SocketAddr, version: &str, filter: &str) -> (Process, impl FnMut() -> String) {
    // Into a pipe it would keep "Subscribed" back until a message comes.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", &broker.port().to_string(), "-V", version]);
    command.args(["-q", "1", "-d", "-t", filter, "-F", "> %r %q %t %p"]);
    let mut process = Process::spawn(command.stdout(Stdio::piped()).stdin(Stdio::null()));
    let out = process.child().stdout.take().expect("it is piped");
    let (send, lines) = std::sync::mpsc::sync_channel(1000);
    std::thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    let next = move |beginning: &str| loop {
        let line = lines.recv_timeout(Duration::from_secs(10)).unwrap_or_else(|_| panic!("no line {beginning:?}"));
        if let Some(rest) = line.strip_prefix(beginning) {
            return rest.to_owned();
        }
    };
    next("Subscribed");
    (process, move || next("> "))
}

#[test]
fn mosquittos_clients_publish_subscribe_and_get_retained_values_in_both_versions() {
    let bare = Bare::start();
    for (version, other) in [("311", "5"), ("5", "311")] {
        let (_subscriber, mut next) = listen(bare.mqtt, other, "any/#");
        for qos in ["0", "1"] {
            let topic = format!("any/{version}/{qos}");
            bare.publish(version, &["-q", qos, "-t", &topic, "-m", "hello"]);
            assert_eq!(next(), format!("0 {qos} {topic} hello"));
        }
        bare.publish(version, &["-q", "1", "-r", "-t", &format!("kept/{version}"), "-m", "a"]);
        bare.publish(version, &["-q", "1", "-r", "-t", &format!("kept/{version}"), "-m", "b"]);
        assert_eq!(bare.retained(other, &format!("kept/{version}"), 1), [format!("1 kept/{version} b")]);
    }
    assert_eq!(bare.retained("5", "kept/+", 2), ["1 kept/311 b", "1 kept/5 b"]);
    assert_eq!(bare.process.terminate(Duration::from_secs(10)).code(), Some(0));
}

#[test]
fn an_alert_reaches_mosquitto_sub_and_is_kept_for_the_next_one() {
    let bare = Bare::start();
    let (_subscriber, mut next) = listen(bare.mqtt, "5", "tidegate/alerts/#");
    let topic = "tidegate/alerts/SimOverTemperature/press07";
    for (temperature, state, transition) in [("90.5", "firing", 1), ("70", "resolved", 2), ("99", "firing", 3)] {
        let reading = format!(r#"{{"temperature":{temperature},"vibration":1,"running":true}}"#);
        bare.publish("311", &["-q", "1", "-t", "sim/press07/state", "-m", &reading]);
        let line = next();
        let payload = line.strip_prefix(&format!("0 1 {topic} ")).unwrap_or_else(|| panic!("saw {line}"));
        let alert: Value = serde_json::from_str(payload).expect("an alert is JSON");
        assert_eq!((alert["state"].as_str(), alert["transition"].as_u64()), (Some(state), Some(transition)), "{alert}");
        assert_eq!(alert["id"], format!("SimOverTemperature/press07/{transition}"));
    }
    let kept = bare.retained("311", "tidegate/alerts/#", 1);
    assert!(kept[0].starts_with(&format!("1 {topic} ")) && kept[0].contains("press07/3"), "{kept:?}");
    let denied = run(mosquitto("mosquitto_pub", bare.mqtt, "5").args(["-q", "1", "-t", topic, "-m", "forged"]), 10);
    assert!(denied.err.contains("Not authorized"), "a client may not publish an alert: {}{}", denied.out, denied.err);
    assert_eq!(bare.retained("311", "tidegate/alerts/#", 1), kept);
}

#[test]
fn kubectl_gets_watches_describes_and_discovers() {
    let bare = Bare::start();
    let kubectl = Kubectl::new(bare.http);
    let resources = kubectl.ok(&["api-resources"]);
    assert!(resources.contains("devicestates") && resources.contains("tidegate.dev/v1alpha1"), "{resources}");
    assert_eq!(kubectl.run(&["get", "devicestates"]).out, "");

    let file = kubectl.file("watched");
    let _watch = kubectl.follow(&["get", "devicestates", "-w", "-o", "name"], &file);
    for device in ["press07", "oven1", "Hall/Door 4"] {
        bare.publish(
            "5",
            &[
                "-q",
                "1",
                "-t",
                &format!("sim/{}/state", device.replace('/', "_")),
                "-m",
                r#"{"temperature":85.5,"running":true}"#,
            ],
        );
    }
    let table = eventually("kubectl get shows three rows", Duration::from_secs(5), || {
        let printed = kubectl.run(&["get", "devicestates"]);
        (printed.out.lines().count() == 4).then_some(printed.out)
    });
    assert!(table.starts_with("NAME") && table.contains("temperature=85.5"), "{table}");
    say(&format!("kubectl shows\n{table}"));
    eventually("kubectl get -w prints them", Duration::from_secs(10), || {
        let text = std::fs::read_to_string(&file).ok()?;
        (text.contains("/press07") && text.contains("/oven1")).then_some(())
    });
    let yaml = kubectl.ok(&["get", "devicestate", "press07", "-o", "yaml"]);
    assert!(
        yaml.contains("kind: DeviceState") && yaml.contains("value: 85.5") && yaml.contains("device: press07"),
        "{yaml}"
    );
    let description = kubectl.ok(&["describe", "devicestate", "press07"]);
    assert!(
        description.contains("Name:") && description.contains("press07") && description.contains("85.5"),
        "{description}"
    );
    let alerts = kubectl.ok(&["get", "alerts", "-A"]);
    assert!(alerts.contains("firing") && alerts.contains("press07"), "{alerts}");
    let pages = kubectl.ok(&["get", "devicestates", "--chunk-size=2", "-o", "name"]);
    assert_eq!(pages.lines().count(), 3, "{pages}");
    let selected = kubectl.ok(&["get", "devicestates", "-l", "tidegate.dev/gateway=demo", "-o", "name"]);
    assert_eq!(selected.lines().count(), 3, "{selected}");
    let missing = kubectl.run(&["get", "devicestate", "nobody"]);
    assert!(missing.code == Some(1) && missing.err.contains("NotFound"), "{}", missing.err);
    let refused = kubectl.run(&["delete", "devicestate", "press07"]);
    assert!(refused.code == Some(1), "the served API is read-only: {}", refused.out);
}
