//! The two publishers that are not ours: mosquitto_pub, one process a message, and paho.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::mqtt::Life;
use crate::parts::{Process, run};

/// Publishes a life with mosquitto_pub, in both protocol versions by turns: a message is acknowledged when its process
/// ends with 0 and without a word (it only warns of a refusal), and is published again otherwise.
pub(crate) fn mosquitto(life: &Life, broker: SocketAddr, until: Instant) {
    for (index, message) in life.messages.iter().enumerate() {
        std::thread::sleep(life.until(index));
        let version = if index % 2 == 0 { "311" } else { "5" };
        loop {
            let mut command = Command::new("mosquitto_pub");
            command.args(["-h", "127.0.0.1", "-p", &broker.port().to_string(), "-i", &life.client, "-V", version]);
            command.args(["-q", "1", "-t", &message.topic, "-m", &message.payload]);
            life.sent(index);
            let printed = run(&mut command, 10);
            if printed.code == Some(0) && printed.err.is_empty() {
                life.acked(index);
                break;
            }
            assert!(Instant::now() < until, "mosquitto_pub does not get message {index} acknowledged");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Publishes a life with paho: a message is acknowledged when paho says so.
pub(crate) fn paho(life: &Arc<Life>, broker: SocketAddr, until: Instant) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/publisher.py");
    let mut command = Command::new(python());
    command.arg(script).args(["127.0.0.1", &broker.port().to_string(), &life.client]);
    let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let out = process.child().stdout.take().expect("it is piped");
    let marks = life.clone();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(out).lines() {
            let line = line.expect("it prints text");
            marks.acked(line.parse().unwrap_or_else(|_| panic!("publisher.py printed {line:?}")));
        }
    });
    let mut lines = process.child().stdin.take().expect("it is piped");
    for (index, message) in life.messages.iter().enumerate() {
        std::thread::sleep(life.until(index));
        life.sent(index);
        writeln!(lines, "{index} {} {}", message.topic, message.payload).expect("publisher.py reads");
    }
    drop(lines);
    let status = process.wait(until.saturating_duration_since(Instant::now()));
    assert!(status.success(), "publisher.py ended with {status}");
    reader.join().expect("it reads to the end");
}

/// The Python that has paho: Debian's package belongs to Debian's own.
fn python() -> &'static str {
    let has_paho =
        |program: &&str| run(Command::new(program).args(["-c", "import paho.mqtt.client"]), 20).code == Some(0);
    ["/usr/bin/python3", "python3"]
        .into_iter()
        .find(has_paho)
        .expect("paho for Python is there: tests/real/setup.sh real")
}
