//! The scenario: who publishes, who looks on, and what goes wrong when.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::devices::{ALERTS, CONFIG, DEVICES, Device, What};
use super::oracle::{self, Evidence};
use super::publishers;
use super::watchers::{Watch, kubectl_view, objects};
use crate::gateway::Gateway;
use crate::kafka::Kafka;
use crate::kubectl::Kubectl;
use crate::mqtt::{Inbox, Life, Seen, publish, subscribe, unix_now};
use crate::parts::{Process, eventually, say, seed};

/// When Kafka is killed, after the start of the devices.
const KAFKA_KILL_AT: Duration = Duration::from_secs(15);

/// When SIGKILL hits the gateway: Kafka is away, so that whatever was acknowledged since is on disk only.
const KILL_AT: Duration = Duration::from_secs(28);

/// How long Kafka is away.
const KAFKA_AWAY: Duration = Duration::from_secs(20);

/// The last reading must be acknowledged by then.
const PUBLISH_MAX: Duration = Duration::from_secs(150);

/// Everything must have reached Kafka so long after the last acknowledgement.
const DRAIN_MAX: Duration = Duration::from_mins(1);

/// Delays of rules, and what is on its way to a subscriber, need so long.
const SETTLE: Duration = Duration::from_secs(2);

#[test]
fn what_fifty_devices_said_reaches_subscribers_kafka_and_kubectl_over_an_outage_and_a_sigkill() {
    let from = Instant::now();
    let seed = seed();
    let kafka = Kafka::new();
    let prefix = format!("e2e-{seed}-{}", std::process::id());
    kafka.topics(&prefix);
    let sink = format!(
        "[[sink]]\nname = \"kafka\"\n[sink.kafka]\nbrokers = [\"{}\"]\nprefix = \"{prefix}\"\nrequest_timeout = \"5s\"\n",
        kafka.address
    );
    let mut gateway = Gateway::new("e2e", &(CONFIG.to_owned() + &sink));
    let took = gateway.start();
    say(&format!("topics are made, the gateway is ready after {took:.1?}"));

    let onlookers = Onlookers::start(&gateway);
    let mut stage = Stage::start(seed, &gateway);
    let killed_at = stage.play(&mut gateway, &kafka, &onlookers);
    stage.finish();
    say(&format!("every message is acknowledged after {:.1?}", stage.start.elapsed()));
    std::thread::sleep(SETTLE);
    let drained = gateway.wait_drained(DRAIN_MAX);
    say(&format!("Kafka has everything {drained:.1?} later"));

    let mut problems = onlookers.agree(&gateway);
    let evidence = Evidence {
        devices: &stage.devices,
        lives: &stage.lives,
        killed_at,
        killed_after: stage.killed_after,
        states: kafka.read(&format!("{prefix}.devicestates")),
        alerts: kafka.read(&format!("{prefix}.alerts")),
        events: kafka.read(&format!("{prefix}.events")),
        inbox: onlookers.inbox.seen(),
        subscribed: onlookers.inbox.subscribed(),
        mosquitto: onlookers.mosquitto_saw(),
        listed_states: onlookers.kubectl.json(&["get", "devicestates", "-o", "json"]),
        listed_alerts: onlookers.kubectl.json(&["get", "alerts", "-o", "json"]),
        table: onlookers.kubectl.ok(&["get", "devicestates"]),
    };
    say(&evidence.summary());
    problems.extend(oracle::judge(&evidence));
    problems.extend(well(&gateway));
    if gateway.stop() != Some(0) {
        problems.push("SIGTERM does not end it with exit code 0".to_owned());
    }
    say(&format!("{} problems after {:.0?}", problems.len(), from.elapsed()));
    assert!(problems.is_empty(), "{} problems:\n  {}", problems.len(), problems[..problems.len().min(40)].join("\n  "));
}

/// What the gateway says of itself at the end.
fn well(gateway: &Gateway) -> Vec<String> {
    let mut problems = Vec::new();
    for name in
        ["tidegate_queue_dropped_total", "tidegate_messages_refused_total", "tidegate_mqtt_deliveries_dropped_total"]
    {
        let count = gateway.sum(name);
        if count != 0.0 {
            problems.push(format!("{name} is {count}"));
        }
    }
    gateway.get("/readyz");
    problems
}

/// The devices at work.
struct Stage {
    devices: Vec<Device>,
    lives: Vec<Arc<Life>>,
    start: Instant,
    killed_after: Duration,
    runtime: Runtime,
    tasks: JoinSet<()>,
    foreign: Vec<JoinHandle<()>>,
}

impl Stage {
    /// Starts all publishers: 48 on rumqttc, one on mosquitto_pub, one on paho.
    fn start(seed: u64, gateway: &Gateway) -> Self {
        let devices: Vec<_> = (0..DEVICES).map(|index| Device::new(index, seed)).collect();
        let start = Instant::now();
        let life = |device: &Device| Arc::new(Life::new(&device.name, device.messages.clone(), start));
        let lives: Vec<_> = devices.iter().map(life).collect();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let (broker, until) = (gateway.mqtt, start + PUBLISH_MAX);
        let mut tasks = JoinSet::new();
        for life in &lives[2..] {
            tasks.spawn_on(publish(life.clone(), broker), runtime.handle());
        }
        let (first, second) = (lives[0].clone(), lives[1].clone());
        let foreign = vec![
            std::thread::spawn(move || publishers::mosquitto(&first, broker, until)),
            std::thread::spawn(move || publishers::paho(&second, broker, until)),
        ];
        Self { devices, lives, start, killed_after: Duration::ZERO, runtime, tasks, foreign }
    }

    /// The faults; returns the wall time of the SIGKILL.
    fn play(&mut self, gateway: &mut Gateway, kafka: &Kafka, onlookers: &Onlookers) -> f64 {
        self.wait_until(KAFKA_KILL_AT);
        let outage = kafka.kill();
        say(&format!("{:.1?}: Kafka is killed", self.start.elapsed()));
        self.wait_until(KILL_AT);
        let promised = self.acknowledged();
        self.killed_after = self.start.elapsed();
        let killed_at = unix_now();
        gateway.kill();
        let took = gateway.start();
        say(&format!("{:.1?}: SIGKILL hit the gateway, it is ready again after {took:.1?}", self.killed_after));
        onlookers.restart_kubectl();
        Self::assert_kept(gateway, &promised);
        self.wait_until(KAFKA_KILL_AT + KAFKA_AWAY);
        outage.end();
        say(&format!("{:.1?}: Kafka is back", self.start.elapsed()));
        killed_at
    }

    /// The newest acknowledged reading of each device.
    fn acknowledged(&self) -> HashMap<String, u64> {
        let newest = |(device, life): (&Device, &Arc<Life>)| {
            let marks = life.marks();
            let acked = device.what.iter().zip(&marks).filter(|(_, mark)| mark.acked.is_some());
            let newest = acked
                .filter_map(|(what, _)| if let What::Reading(reading) = what { Some(reading.n) } else { None })
                .max();
            Some((device.name.clone(), newest?))
        };
        self.devices.iter().zip(&self.lives).filter_map(newest).collect()
    }

    /// A restarted gateway serves nothing older than what was acknowledged before.
    fn assert_kept(gateway: &Gateway, promised: &HashMap<String, u64>) {
        let served: HashMap<_, _> = objects(&gateway.list("devicestates"))
            .into_values()
            .filter_map(|(_, status)| Some((status["device"].as_str()?.to_owned(), oracle::number(&status)?)))
            .collect();
        for (device, n) in promised {
            let kept = served.get(device);
            assert!(kept >= Some(n), "reading {n} of {device} was acknowledged; after the restart there is {kept:?}");
        }
        say(&format!("the restarted gateway has every acknowledged reading of {} devices", promised.len()));
    }

    /// Waits for all publishers.
    fn finish(&mut self) {
        let all = async {
            while let Some(end) = self.tasks.join_next().await {
                end.expect("a publisher works to its end");
            }
        };
        let left = (self.start + PUBLISH_MAX).saturating_duration_since(Instant::now());
        let ended = self.runtime.block_on(async { tokio::time::timeout(left, all).await });
        assert!(ended.is_ok(), "not every message was acknowledged within {PUBLISH_MAX:?}");
        for thread in self.foreign.drain(..) {
            thread.join().expect("a publisher works to its end");
        }
    }

    fn wait_until(&self, after: Duration) {
        std::thread::sleep(after.saturating_sub(self.start.elapsed()));
    }
}

/// Those who look on all the time.
struct Onlookers {
    _runtime: Runtime,
    inbox: Arc<Inbox>,
    _mosquitto: Process,
    kubectl: Kubectl,
    kubectl_watch: std::cell::RefCell<Option<Process>>,
    states: Watch,
    alerts: Watch,
}

impl Onlookers {
    fn start(gateway: &Gateway) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let inbox = Arc::new(Inbox::default());
        runtime.spawn(subscribe("onlooker", "tidegate/alerts/#", gateway.mqtt, inbox.clone()));
        runtime.block_on(inbox.ready());
        let kubectl = Kubectl::new(gateway.http);
        let mut command = std::process::Command::new("mosquitto_sub");
        command.args(["-h", "127.0.0.1", "-p", &gateway.mqtt.port().to_string(), "-V", "5", "-q", "1"]);
        command.args(["-t", "tidegate/alerts/#", "-F", "%U %r %t %p"]);
        let mosquitto = Process::logged(&mut command, &kubectl.file("mosquitto_sub"));
        let watch = kubectl.follow(&["get", "devicestates", "-w", "-o", "json"], &kubectl.file("before"));
        Self {
            _runtime: runtime,
            inbox,
            _mosquitto: mosquitto,
            kubectl_watch: Some(watch).into(),
            kubectl,
            states: Watch::start(gateway.http, "devicestates"),
            alerts: Watch::start(gateway.http, "alerts"),
        }
    }

    /// kubectl ends with its watch; a user starts it again.
    fn restart_kubectl(&self) {
        let ended = self.kubectl_watch.take().expect("it was started").wait(Duration::from_secs(20));
        say(&format!("kubectl get -w ended with {ended} when the gateway was killed"));
        let watch = self.kubectl.follow(&["get", "devicestates", "-w", "-o", "json"], &self.kubectl.file("after"));
        self.kubectl_watch.replace(Some(watch));
    }

    /// Every watch must come to what a list shows, without ever having listed again.
    fn agree(&self, gateway: &Gateway) -> Vec<String> {
        let mut problems = Vec::new();
        for (watch, plural) in [(&self.states, "devicestates"), (&self.alerts, "alerts")] {
            let list = objects(&gateway.list(plural));
            let told = eventually(
                &format!("the watch of {plural} shows what the list shows"),
                Duration::from_secs(15),
                || {
                    let told = watch.told();
                    (told.objects == list || !told.problems.is_empty()).then_some(told)
                },
            );
            say(&format!("the watch of {plural} had {} events in {} watches", told.events, told.watches));
            if told.watches < 2 {
                problems.push(format!("the watch of {plural} was not resumed"));
            }
            problems.extend(told.problems);
        }
        let list = objects(&gateway.list("devicestates"));
        let file = self.kubectl.file("after");
        eventually("kubectl get -w shows what the list shows", Duration::from_secs(15), || {
            (kubectl_view(&std::fs::read_to_string(&file).ok()?) == list).then_some(())
        });
        problems
    }

    /// What mosquitto_sub printed.
    fn mosquitto_saw(&self) -> Vec<Seen> {
        let text = std::fs::read_to_string(self.kubectl.file("mosquitto_sub")).expect("it was started");
        let saw = text.lines().filter_map(|line| {
            let mut parts = line.splitn(4, ' ');
            let (at, retained, topic, payload) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            let at = at.parse().ok()?;
            Some(Seen { at, retained: retained == "1", topic: topic.to_owned(), payload: payload.to_owned() })
        });
        saw.collect()
    }
}

#[test]
fn every_device_crosses_every_limit_and_ends_far_from_all() {
    for index in 0..DEVICES {
        let device = Device::new(index, 1);
        assert!(device.switches_of_hot() >= 4, "{}: {}", device.name, device.switches_of_hot());
        assert_eq!(device.firing_at_the_end().len(), ALERTS.len());
        assert_eq!(Device::new(index, 1).what, device.what);
    }
}
