//! SIGKILL again and again under load: nothing that was acknowledged is lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::gateway::Gateway;
use crate::kafka::{Kafka, by_key, deduplicate};
use crate::mqtt::{Life, Message, publish};
use crate::parts::{say, seed};

/// SIGKILLs, if `TIDEGATE_KILLS` does not say how many.
const KILLS: u32 = 50;

/// Clients.
const CLIENTS: usize = 4;

/// Events of one client for each SIGKILL; together 400 a second.
const EVENTS: u32 = 70;

fn events(client: &str, count: u32) -> Vec<Message> {
    let event = |n: u32| Message {
        topic: format!("dev/{client}/event"),
        payload: format!(r#"{{"number":{n}}}"#),
        due: Duration::from_millis(10) * n,
    };
    (1..=count).map(event).collect()
}

#[test]
fn sigkills_under_load_lose_nothing_acknowledged() {
    let wanted = std::env::var("TIDEGATE_KILLS").ok().map_or(KILLS, |text| text.parse().expect("a number"));
    let mut random = fastrand::Rng::with_seed(seed());
    let kafka = Kafka::new();
    let prefix = format!("crash-{}", std::process::id());
    kafka.topics(&prefix);
    let config = format!(
        "[[source]]\ntopic = \"dev/{{device}}/event\"\nclass = \"event\"\n\n\
         [[sink]]\nname = \"kafka\"\n[sink.kafka]\nbrokers = [\"{}\"]\nprefix = \"{prefix}\"\n",
        kafka.address
    );
    let mut gateway = Gateway::new("crash", &config);
    gateway.start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    let lives: Vec<_> = (0..CLIENTS)
        .map(|n| format!("c{n}"))
        .map(|c| Arc::new(Life::new(&c, events(&c, wanted * EVENTS), start)))
        .collect();
    for life in &lives {
        tasks.spawn_on(publish(life.clone(), gateway.mqtt), runtime.handle());
    }
    let mut kills = Vec::new();
    for _ in 0..wanted {
        std::thread::sleep(Duration::from_millis(random.u64(100..900)));
        kills.push(start.elapsed());
        gateway.kill();
        gateway.start();
    }
    say(&format!("{wanted} SIGKILLs in {:.1?}", start.elapsed()));
    let all = async {
        while let Some(end) = tasks.join_next().await {
            end.expect("a publisher works to its end");
        }
    };
    let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_mins(1), all).await });
    assert!(ended.is_ok(), "not everything was acknowledged 60 s after the last SIGKILL");
    gateway.wait_drained(Duration::from_mins(1));
    let repeated = assert_all_there(&kafka, &prefix, &lives);
    say(&format!("{} events are there, {repeated} of them twice or more", CLIENTS * (wanted * EVENTS) as usize));
    assert!(!kills.is_empty() && gateway.stop() == Some(0));
}

/// Every event is in the topic, first times in order; returns how many are there more than once, because their
/// acknowledgement died with the gateway.
fn assert_all_there(kafka: &Kafka, prefix: &str, lives: &[Arc<Life>]) -> usize {
    let topic = kafka.read(&format!("{prefix}.events"));
    assert!(topic.iter().all(|record| record.header("ce_type") == "dev.tidegate.event.v1"), "no gap was announced");
    let keys = by_key(deduplicate(&topic));
    let mut repeated = 0;
    for life in lives {
        let key = format!("crash/default/{}", life.client);
        let (mut count, mut firsts) = (HashMap::new(), Vec::new());
        for record in keys.get(key.as_str()).map(Vec::as_slice).unwrap_or_default() {
            let body = record.value.clone().unwrap_or_default();
            let times = count.entry(body.clone()).or_insert(0);
            *times += 1;
            if *times == 1 {
                firsts.push(body);
            }
        }
        let sent: Vec<_> = life.messages.iter().map(|message| message.payload.clone()).collect();
        let lost = sent.iter().filter(|body| !count.contains_key(*body)).count();
        assert_eq!(lost, 0, "{key}: {lost} acknowledged events are not in Kafka");
        assert_eq!(firsts, sent, "{key}: in the order in which they were sent");
        repeated += count.values().filter(|times| **times > 1).count();
    }
    repeated
}
