//! The whole gateway in this process, on a real store in a folder of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rumqttc::{AsyncClient, Event, EventLoop, Incoming, MqttOptions, QoS};
use serde_json::Value;
use tidegate::app::{Addresses, App};
use tidegate::config::Config;
use tidegate::runtime::clock::SystemClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

const CONFIG: &str = r#"
    [[source]]
    topic = "d/{device}/state"
    [[alert]]
    alert = "Hot"
    expr = "t > 80"
    [[sink]]
    name = "kafka"
    [sink.kafka]
    # Nobody listens there: the gateway must not mind.
    brokers = ["127.0.0.1:1"]
    request_timeout = "1s"
"#;

struct Gateway {
    addresses: Addresses,
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Gateway {
    fn start(dir: &Path, text: &str) -> Self {
        let mut config: Config = toml::from_str(text).unwrap();
        config.gateway.name = "test".into();
        dir.clone_into(&mut config.gateway.data_dir);
        config.broker.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        config.serve.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().spawn(move || {
            let app = App::build(config, Arc::new(SystemClock)).unwrap();
            tell.send(app.addresses()).unwrap();
            app.run(async { drop(stopped.await) }).unwrap();
        });
        Self { addresses: told.recv().unwrap(), stop, thread: thread.unwrap() }
    }

    fn stop(self) {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
    }

    fn client(&self, id: &str) -> (AsyncClient, EventLoop) {
        let address = self.addresses.mqtt;
        let mut options = MqttOptions::new(id, address.ip().to_string(), address.port());
        options.set_keep_alive(Duration::from_secs(5));
        AsyncClient::new(options, 100)
    }

    /// Publishes and waits for the acknowledgements.
    async fn publish(&self, messages: &[(&str, &str)]) {
        let (client, mut events) = self.client("device");
        for (topic, payload) in messages {
            client.try_publish(*topic, QoS::AtLeastOnce, false, payload.as_bytes()).unwrap();
        }
        let mut left = messages.len();
        while left > 0 {
            if let Event::Incoming(Incoming::PubAck(_)) = events.poll().await.unwrap() {
                left -= 1;
            }
        }
    }

    /// The next message on the alert topics.
    async fn next_alert(&self) -> (bool, Value) {
        let (client, mut events) = self.client("ear");
        client.try_subscribe("tidegate/alerts/#", QoS::AtLeastOnce).unwrap();
        loop {
            if let Event::Incoming(Incoming::Publish(publish)) = events.poll().await.unwrap() {
                return (publish.retain, serde_json::from_slice(&publish.payload).unwrap());
            }
        }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.addresses.http).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer[9..12].parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    async fn list(&self, kind: &str) -> Value {
        let (status, body) = self.get(&format!("/apis/tidegate.dev/v1alpha1/{kind}")).await;
        assert_eq!(status, 200, "{body}");
        let json = &body[body.find('{').unwrap()..=body.rfind('}').unwrap()];
        serde_json::from_str(json).unwrap()
    }
}

fn version(list: &Value) -> u64 {
    list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariant_15_after_a_restart_all_is_there_and_a_firing_alert_is_not_raised_again() {
    let dir = tempfile::tempdir().unwrap();
    let first = Gateway::start(dir.path(), CONFIG);
    first.publish(&[("d/a/state", r#"{"t":99}"#), ("d/b/state", r#"{"t":1}"#)]).await;
    let before = (first.list("devicestates").await, first.list("alerts").await);
    assert_eq!(before.0["items"].as_array().unwrap().len(), 2);
    assert_eq!(before.1["items"][0]["status"]["id"], "Hot/a/1");
    tokio::task::spawn_blocking(|| first.stop()).await.unwrap();

    let second = Gateway::start(dir.path(), CONFIG);
    let after = (second.list("devicestates").await, second.list("alerts").await);
    assert_eq!(after.0["items"], before.0["items"], "the same objects under the same versions");
    assert_eq!(after.1["items"], before.1["items"]);
    let (retained, alert) = second.next_alert().await;
    assert!(retained && alert["id"] == "Hot/a/1", "{alert}");

    second.publish(&[("d/a/state", r#"{"t":98}"#)]).await;
    assert_eq!(second.list("alerts").await["items"][0]["status"]["transition"], 1, "still the same firing");
    assert!(version(&second.list("devicestates").await) > version(&before.0), "Seq goes on");
    tokio::task::spawn_blocking(|| second.stop()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariant_8_with_no_upstream_the_gateway_starts_alerts_and_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(dir.path(), CONFIG);
    gateway.publish(&[("d/a/state", r#"{"t":99}"#)]).await;
    assert_eq!(gateway.next_alert().await.1["state"], "firing");
    assert_eq!(gateway.get("/readyz").await.0, 200);
    let metrics = gateway.get("/metrics").await.1;
    assert!(metrics.contains("tidegate_queue_lag_records{sink=\"kafka\",lane=\"state\"} 1"), "{metrics}");
    tokio::task::spawn_blocking(|| gateway.stop()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_is_gone_resolves_its_alert_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let first = Gateway::start(dir.path(), CONFIG);
    first.publish(&[("d/a/state", r#"{"t":99}"#)]).await;
    tokio::task::spawn_blocking(|| first.stop()).await.unwrap();
    let second = Gateway::start(dir.path(), &CONFIG.replace("\"Hot\"", "\"Warm\""));
    let mut resolved = false;
    for _ in 0..100 {
        resolved = second.list("alerts").await["items"][0]["status"]["state"] == "resolved";
        if resolved {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(resolved);
    tokio::task::spawn_blocking(|| second.stop()).await.unwrap();
}
