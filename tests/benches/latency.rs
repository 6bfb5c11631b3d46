//! How fast the real binary is, beside plain mosquitto in the same minutes; prints a table for the README.
//!
//! Open loop: a thread that does nothing else gives each message to its client when it is due, and every latency
//! counts from that moment, so that a stall is not left out. Each round measures the gateway with its uplink open,
//! mosquitto, the gateway with its uplink cut, mosquitto again, and a gateway whose budget for flash wear is spent; ratios
//! are taken within a round.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::let_underscore_must_use,
    clippy::print_stdout,
    reason = "a measurement may panic, print and read the clock"
)]

#[path = "../real/gateway.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod gateway;
#[path = "../real/http.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod http;
#[path = "../real/kafka.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod kafka;
mod load;
#[path = "../real/parts.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod parts;
mod report;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use gateway::Gateway;
use kafka::Kafka;
use load::{Figures, Load};
use parts::{Process, eventually, folder, free_address, say};
use report::{Memory, Report};

/// Starts that the start time is the median of.
const STARTS: usize = 10;

/// Room for a commit at once, whatever the load: the figures are of the machine, not of the budget for its flash.
const NO_BUDGET: u32 = 10_000;

/// The smallest budget; a few seconds of this load spend it, and commits gather from then on.
const LEAST_BUDGET: u32 = 1;

/// One source and one alert, which every marked message switches.
const CONFIG: &str = r#"
[[source]]
topic = "dev/{device}/+"
format = "json"

[[alert]]
alert = "High"
expr = "v >= 1000000"
"#;

fn main() {
    // The test runner's flags, such as --bench, mean nothing here.
    let load =
        Load { devices: 30, rate: number("TIDEGATE_BENCH_RATE", 1000), seconds: number("TIDEGATE_BENCH_SECONDS", 10) };
    let rounds = number("TIDEGATE_BENCH_ROUNDS", 5);
    let nobody = || sink(&free_address().to_string(), "cut");
    let mut open = gateway("open", NO_BUDGET, &uplink());
    let mut cut = gateway("cut", NO_BUDGET, &nobody());
    let mut spent = gateway("spent", LEAST_BUDGET, &nobody());
    let mosquitto = Mosquitto::start();
    open.start();
    cut.start();
    spent.start();
    std::thread::sleep(Duration::from_secs(2));
    let idle = Memory::of(open.pid());

    Load { seconds: load.seconds.max(10), ..load }.run(spent.mqtt, "tidegate/alerts/#");
    let mut report = Report::new(load, std::env::var("TIDEGATE_KAFKA").is_ok());
    for round in 1..=rounds {
        let alerts = "tidegate/alerts/#";
        report.open.push(measure(load, open.mqtt, alerts, open.pid()));
        report.reference.push(measure(load, mosquitto.address, "dev/+/mark", mosquitto.pid));
        report.cut.push(measure(load, cut.mqtt, alerts, cut.pid()));
        report.reference_again.push(measure(load, mosquitto.address, "dev/+/mark", mosquitto.pid));
        report.spent.push(measure(load, spent.mqtt, alerts, spent.pid()));
        say(&format!("round {round} of {rounds}: {}", report.last()));
    }
    report.memory = [
        ("idle", idle),
        ("after the load, uplink open", Memory::of(open.pid())),
        ("after the load, uplink cut", Memory::of(cut.pid())),
    ]
    .into();
    report.mosquitto = Memory::of(mosquitto.pid);
    assert_eq!([open.stop(), cut.stop(), spent.stop()], [Some(0); 3], "SIGTERM is a clean stop");
    report.starts.push(("empty data folder", starts(|| Gateway::new("new", CONFIG))));
    let mut used = Some(cut);
    report
        .starts
        .push(("data folder of the run above, clean stop", starts_again(used.as_mut().expect("it is there"), false)));
    report.starts.push(("the same after SIGKILL", starts_again(used.as_mut().expect("it is there"), true)));
    println!("{}", report.markdown());
}

/// A gateway with the source and the alert.
fn gateway(name: &str, wear_gb_per_day: u32, sink: &str) -> Gateway {
    Gateway::new(name, &format!("[store]\nwear_gb_per_day = {wear_gb_per_day}\n{CONFIG}{sink}"))
}

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The sink of the gateway whose uplink is open; none without a Kafka.
fn uplink() -> String {
    if std::env::var("TIDEGATE_KAFKA").is_err() {
        return String::new();
    }
    let kafka = Kafka::new();
    let prefix = format!("bench-{}", std::process::id());
    kafka.topics(&prefix);
    sink(&kafka.address, &prefix)
}

fn sink(broker: &str, prefix: &str) -> String {
    format!("\n[[sink]]\nname = \"kafka\"\n[sink.kafka]\nbrokers = [\"{broker}\"]\nprefix = \"{prefix}\"\n")
}

/// One measurement, with the CPU time that the broker took for it.
fn measure(load: Load, broker: SocketAddr, filter: &str, pid: u32) -> Figures {
    let before = cpu(pid);
    let mut figures = load.run(broker, filter);
    figures.cpu = cpu(pid).saturating_sub(before).as_secs_f64() / figures.took.as_secs_f64();
    figures
}

/// User and system time of a process.
fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    // The second field is the name in parentheses, which may hold anything.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number");
    Duration::from_millis(ticks * 10)
}

/// mosquitto with what it is by default: no persistence, acknowledgements from RAM.
struct Mosquitto {
    address: SocketAddr,
    pid: u32,
    _process: Process,
    _home: tempfile::TempDir,
}

impl Mosquitto {
    fn start() -> Self {
        let (address, home) = (free_address(), folder("mosquitto"));
        let config = home.path().join("mosquitto.conf");
        let text = format!("listener {} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n", address.port());
        std::fs::write(&config, text).expect("the folder is writable");
        let mut process = Process::logged(Command::new("mosquitto").arg("-c").arg(&config), &home.path().join("log"));
        eventually("mosquitto takes connections", Duration::from_secs(5), || connack(address).then_some(()));
        Self { address, pid: process.child().id(), _process: process, _home: home }
    }
}

/// Time from exec to the first CONNACK and to `/readyz`, of so many starts of new gateways.
fn starts(make: impl Fn() -> Gateway) -> Vec<(Duration, Duration)> {
    let one = |_| {
        let mut gateway = make();
        let times = start(&mut gateway);
        gateway.stop();
        times
    };
    (0..STARTS).map(one).collect()
}

/// The same of one gateway with its data, stopped or killed in between.
fn starts_again(gateway: &mut Gateway, kill: bool) -> Vec<(Duration, Duration)> {
    let mut one = |_| {
        let times = start(gateway);
        if kill {
            gateway.kill();
        } else {
            gateway.stop();
        }
        times
    };
    // The first finds what the load, or the last stop, left; it is not measured.
    one(0);
    (0..STARTS).map(one).collect()
}

fn start(gateway: &mut Gateway) -> (Duration, Duration) {
    let from = Instant::now();
    gateway.spawn();
    let (mqtt, address) = (gateway.mqtt, gateway.http);
    let ready = std::thread::spawn(move || {
        poll(|| http::get(address, "/readyz").is_ok_and(|answer| answer.status == 200));
        from.elapsed()
    });
    poll(|| connack(mqtt));
    (from.elapsed(), ready.join().expect("it only waits"))
}

fn poll(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "it does not start");
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Whether a CONNECT is accepted: MQTT 3.1.1, clean session, no client id.
fn connack(broker: SocketAddr) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(broker)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x0a\x00\x00")?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    ask().is_ok_and(|answer| answer == [0x20, 2, 0, 0])
}
