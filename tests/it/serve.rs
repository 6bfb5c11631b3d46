//! The served API over real sockets, against a queue that is driven by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

mod client;
mod fake;
mod kubectl;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::model::kube_name;
use tidegate::queue::Durable;
use tidegate::runtime::clock::ManualClock;
use tidegate::runtime::metrics::Metrics;
use tidegate::serve::{Health, ServeError, ServeOptions, Server};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use client::{get, get_as, send};
use fake::{FakeView, START_MS};

const DEVICES: &str = "/apis/tidegate.dev/v1alpha1/namespaces/default/devicestates";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const STREAMING: &str = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

/// A running server and all that drives it.
struct House {
    address: SocketAddr,
    view: Arc<FakeView>,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    durable: watch::Sender<Durable>,
    shutdown: CancellationToken,
    server: JoinSet<Result<(), ServeError>>,
}

impl House {
    fn start(head: u64) -> Self {
        Self::with_watchers(head, 32)
    }

    fn with_watchers(head: u64, watchers_max: usize) -> Self {
        let view = FakeView::at(head);
        let (health, metrics) = (Arc::new(Health::new()), Arc::new(Metrics::new()));
        health.set(Health::START, Ok(()));
        let durable = watch::Sender::new(Durable::default());
        let options = ServeOptions { gateway: "gw-1".into(), namespace: "default".into(), watchers_max };
        let server = Server::bind(
            SocketAddr::from(([127, 0, 0, 1], 0)),
            options,
            Arc::clone(&view),
            Arc::clone(&health),
            Arc::clone(&metrics),
            durable.subscribe(),
            Arc::new(ManualClock::at(START_MS + 5000)),
        )
        .unwrap();
        let (address, shutdown) = (server.local_addr(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(server.run(shutdown.clone()));
        Self { address, view, health, metrics, durable, shutdown, server: tasks }
    }

    async fn get(&self, target: &str) -> (u16, Value) {
        get(self.address, target).await
    }

    /// Devices in a list's answer, and its version.
    async fn names(&self, query: &str) -> (Vec<String>, String, Value) {
        let (code, list) = self.get(&format!("{DEVICES}?{query}")).await;
        assert_eq!(code, 200, "{list}");
        let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
        let names = list["items"].as_array().unwrap().iter().map(name).collect();
        (names, list["metadata"]["resourceVersion"].as_str().unwrap().to_owned(), list["metadata"].clone())
    }

    async fn watch(&self, query: &str) -> client::Answer {
        let answer = send(self.address, "GET", &format!("{DEVICES}?{query}"), &[]).await;
        assert_eq!(answer.code, 200);
        answer
    }
}

fn event(kind: &str, name: &str, version: u64) -> (String, String, u64) {
    (kind.to_owned(), name.to_owned(), version)
}

#[tokio::test]
async fn discovery_is_told_in_both_forms() {
    let house = House::start(1);
    let (_, groups) = house.get("/apis").await;
    assert_eq!(groups["groups"][0]["preferredVersion"]["groupVersion"], "tidegate.dev/v1alpha1");
    let (_, list) = house.get("/apis/tidegate.dev/v1alpha1").await;
    assert_eq!(list["kind"], "APIResourceList");
    assert_eq!(list["resources"][0]["name"], "devicestates");
    assert_eq!(list["resources"][0]["verbs"], json!(["get", "list", "watch"]));
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let (_, document) = get_as(house.address, "/apis", &format!("{aggregated},application/json")).await;
    assert_eq!(
        (&document["kind"], &document["apiVersion"]),
        (&"APIGroupDiscoveryList".into(), &"apidiscovery.k8s.io/v2".into())
    );
    let resource = &document["items"][0]["versions"][0]["resources"][1];
    assert_eq!((&resource["resource"], &resource["shortNames"]), (&"alerts".into(), &json!(["tgalert"])));
    let answer = send(house.address, "GET", "/apis", &[&format!("Accept: {aggregated}")]).await;
    assert!(answer.headers.contains(&format!("content-type: {}\r\n", aggregated.to_lowercase())), "{}", answer.headers);
    assert_eq!(house.get("/api").await.1["versions"], json!(["v1"]));
    assert_eq!(house.get("/api/v1").await.1["resources"], json!([]));
    assert_eq!(house.get("/version").await.1["major"], "1");
    assert_eq!(house.get("/openapi/v3").await.0, 404);
}

#[tokio::test]
async fn an_object_is_found_by_its_kubernetes_name() {
    let house = House::start(10);
    house.view.put("press07", r#"{"hall":"north"}"#, 21.5);
    house.view.put("hall/door 4", "{}", 1.0);
    let (code, press) = house.get(&format!("{DEVICES}/press07")).await;
    assert_eq!((code, &press["kind"]), (200, &"DeviceState".into()));
    assert_eq!(press["metadata"]["labels"], json!({"hall": "north", "tidegate.dev/gateway": "gw-1"}));
    assert_eq!(
        (&press["metadata"]["resourceVersion"], &press["status"]["metrics"]["temperature"]["value"]),
        (&"11".into(), &21.5.into())
    );
    let (_, door) = house.get(&format!("{DEVICES}/{}", kube_name("hall/door 4"))).await;
    assert_eq!(door["metadata"]["annotations"]["tidegate.dev/key"], "hall/door 4");
    let (code, status) = house.get(&format!("{DEVICES}/nobody")).await;
    assert_eq!((code, &status["reason"], &status["details"]["name"]), (404, &"NotFound".into(), &"nobody".into()));
    assert_eq!(house.get("/apis/tidegate.dev/v1alpha1/namespaces/other/devicestates/press07").await.0, 404);
    assert_eq!(house.get("/apis/tidegate.dev/v1alpha1/namespaces/default/gateways").await.0, 404);
}

#[tokio::test]
async fn a_list_selects_by_labels_fields_and_namespace() {
    let house = House::start(10);
    house.view.put("a", r#"{"hall":"north"}"#, 1.0);
    house.view.put("b", r#"{"hall":"south"}"#, 1.0);
    house.view.put("c", "{}", 1.0);
    assert_eq!(house.names("").await.0, ["a", "b", "c"]);
    assert_eq!(house.names("labelSelector=hall%20in%20(north,south),hall!=south").await.0, ["a"]);
    assert_eq!(house.names("labelSelector=!hall").await.0, ["c"]);
    assert_eq!(house.names("fieldSelector=metadata.name=b").await.0, ["b"]);
    let (_, all) = house.get("/apis/tidegate.dev/v1alpha1/devicestates").await;
    assert_eq!(all["items"].as_array().unwrap().len(), 3);
    let (_, other) = house.get("/apis/tidegate.dev/v1alpha1/namespaces/other/devicestates").await;
    assert_eq!((&other["items"], &other["metadata"]["resourceVersion"]), (&json!([]), &"13".into()));
    let (code, status) = house.get(&format!("{DEVICES}?fieldSelector=status.online=true")).await;
    assert_eq!((code, &status["reason"]), (400, &"BadRequest".into()));
}

#[tokio::test]
async fn pages_stay_on_the_snapshot_of_the_first() {
    let house = House::start(10);
    for name in ["a", "b", "c", "d", "e"] {
        house.view.put(name, "{}", 1.0);
    }
    let (names, version, metadata) = house.names("limit=2").await;
    assert_eq!((names, &*version, &metadata["remainingItemCount"]), (vec!["a".into(), "b".into()], "15", &3.into()));
    let token = metadata["continue"].as_str().unwrap().to_owned();
    house.view.put("aa", "{}", 1.0);
    house.view.delete("c");
    let (names, version, metadata) = house.names(&format!("limit=2&continue={token}")).await;
    assert_eq!((names, &*version), (vec!["c".to_owned(), "d".into()], "15"));
    let last = metadata["continue"].as_str().unwrap();
    let (names, version, metadata) = house.names(&format!("limit=2&continue={last}")).await;
    assert_eq!((names, &*version, metadata.get("continue")), (vec!["e".to_owned()], "15", None));
    let (code, _) = house.get(&format!("{DEVICES}?limit=2&continue={token}&labelSelector=x")).await;
    assert_eq!(code, 400);
    let (code, status) = house.get(&format!("{DEVICES}?limit=2&continue={}", token.replace("15.", "14."))).await;
    assert_eq!((code, &status["reason"]), (410, &"Expired".into()));
}

#[tokio::test]
async fn kubectl_gets_a_table() {
    let house = House::start(10);
    house.view.put("press07", "{}", 21.5);
    house.view.alert("hot", "press07", "firing");
    let (_, table) = get_as(house.address, DEVICES, TABLE).await;
    assert_eq!((&table["kind"], &table["apiVersion"]), (&"Table".into(), &"meta.k8s.io/v1".into()));
    assert_eq!(table["columnDefinitions"][2]["name"], "Last Seen");
    assert_eq!(table["rows"][0]["cells"], json!(["press07", "true", "5s", "temperature=21.5", "5s", "press07"]));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let (_, alerts) = get_as(house.address, "/apis/tidegate.dev/v1alpha1/alerts?includeObject=Object", TABLE).await;
    let cells = alerts["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells[..5], ["hot.press07", "firing", "high", "press07", "81.5"]);
    assert_eq!(alerts["rows"][0]["object"]["kind"], "Alert");
    let (code, status) = get_as(house.address, DEVICES, "application/vnd.kubernetes.protobuf").await;
    assert_eq!((code, &status["reason"]), (406, &"NotAcceptable".into()));
}

#[tokio::test]
async fn a_list_ahead_of_the_head_waits_and_then_answers() {
    let house = House::start(10);
    let ahead = format!("{DEVICES}?resourceVersion=11");
    let (answer, ()) = tokio::join!(house.get(&ahead), async {
        while house.view.followers() < 1 {
            tokio::task::yield_now().await;
        }
        house.view.put("a", "{}", 1.0);
    });
    assert_eq!((answer.0, &answer.1["metadata"]["resourceVersion"]), (200, &"11".into()));
    assert_eq!(house.get(&format!("{DEVICES}?resourceVersion=5&resourceVersionMatch=Exact")).await.0, 410);
    assert_eq!(house.get(&format!("{DEVICES}?resourceVersion=11&resourceVersionMatch=Exact")).await.0, 200);
}

#[tokio::test]
async fn a_version_that_never_comes_is_told_as_too_large() {
    let house = House::start(10);
    let ahead = format!("{DEVICES}?resourceVersion=99");
    let streaming = format!("{STREAMING}&resourceVersion=99");
    let mut watch = house.watch(&streaming).await;
    let (list, ()) = tokio::join!(house.get(&ahead), async {
        // The watch follows the head and waits for it, the list waits. A stop ends the wait of 3 s early.
        while house.view.followers() < 3 {
            tokio::task::yield_now().await;
        }
        house.shutdown.cancel();
    });
    let line = watch.line().await.unwrap();
    assert_eq!((list.0, &line["type"]), (504, &"ERROR".into()));
    for status in [&list.1, &line["object"]] {
        assert_eq!((&status["code"], &status["reason"]), (&504.into(), &"Timeout".into()));
        assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    }
    assert_eq!(watch.line().await, None);
}

#[tokio::test]
async fn a_watch_tells_every_change_after_its_version_and_resumes() {
    let house = House::start(10);
    house.view.put("old", "{}", 1.0);
    let (_, version, _) = house.names("").await;
    house.view.put("old", "{}", 2.0);
    house.view.put("new", "{}", 2.0);
    let mut watch = house.watch(&format!("watch=true&resourceVersion={version}")).await;
    assert!(watch.headers.contains("content-type: application/json\r\n"), "{}", watch.headers);
    assert_eq!(watch.event().await, event("MODIFIED", "old", 12));
    assert_eq!(watch.event().await, event("ADDED", "new", 13));
    house.view.put("new", "{}", 3.0);
    assert_eq!(watch.event().await, event("MODIFIED", "new", 14));
    drop(watch);
    house.view.delete("old");
    house.view.alert("hot", "new", "firing");
    house.view.put("new", "{}", 4.0);
    let mut watch = house.watch("watch=true&resourceVersion=14").await;
    assert_eq!(watch.event().await, event("DELETED", "old", 15));
    assert_eq!(watch.event().await, event("MODIFIED", "new", 17));
}

#[tokio::test]
async fn a_watch_without_a_version_begins_with_all_there_is() {
    let house = House::start(10);
    house.view.put("a", "{}", 1.0);
    house.view.put("b", "{}", 1.0);
    for query in ["watch=true", "watch=true&resourceVersion=0"] {
        let mut watch = house.watch(query).await;
        assert_eq!(watch.event().await, event("ADDED", "a", 11));
        assert_eq!(watch.event().await, event("ADDED", "b", 12));
    }
    let mut one = house.watch("watch=true&resourceVersion=0&fieldSelector=metadata.name=b").await;
    assert_eq!(one.event().await, event("ADDED", "b", 12));
    house.view.delete("a");
    house.view.delete("b");
    assert_eq!(one.event().await, event("DELETED", "b", 14));
}

#[tokio::test]
async fn a_version_outside_of_what_is_kept_is_expired_in_the_stream() {
    let house = House::start(10);
    house.view.forget(8);
    for version in [7, 11] {
        let mut watch = house.watch(&format!("watch=true&resourceVersion={version}")).await;
        let line = watch.line().await.unwrap();
        assert_eq!((&line["type"], &line["object"]["code"]), (&"ERROR".into(), &410.into()), "{line}");
        assert_eq!((&line["object"]["kind"], &line["object"]["reason"]), (&"Status".into(), &"Expired".into()));
        assert_eq!(watch.line().await, None);
    }
    house.view.put("a", "{}", 1.0);
    assert_eq!(house.watch("watch=true&resourceVersion=8").await.event().await, event("ADDED", "a", 11));
}

#[tokio::test]
async fn a_streaming_list_marks_the_end_of_its_initial_part() {
    let house = House::start(10);
    house.view.put("a", "{}", 1.0);
    house.view.advance();
    let mut watch = house.watch(STREAMING).await;
    assert_eq!(watch.event().await, event("ADDED", "a", 11));
    let mark = watch.line().await.unwrap();
    assert_eq!((&mark["type"], &mark["object"]["metadata"]["resourceVersion"]), (&"BOOKMARK".into(), &"12".into()));
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    house.view.put("b", "{}", 1.0);
    assert_eq!(watch.event().await, event("ADDED", "b", 13));
    let (code, status) = house.get(&format!("{DEVICES}?watch=true&sendInitialEvents=true")).await;
    assert_eq!((code, &status["reason"]), (422, &"Invalid".into()));
}

#[tokio::test]
async fn a_selector_on_a_watch_is_relative_to_the_watcher() {
    let house = House::start(10);
    house.view.put("a", r#"{"hall":"north"}"#, 1.0);
    house.view.put("b", r#"{"hall":"south"}"#, 1.0);
    let mut watch = house.watch("watch=true&labelSelector=hall=north").await;
    assert_eq!(watch.event().await, event("ADDED", "a", 11));
    house.view.put("b", r#"{"hall":"south"}"#, 2.0);
    house.view.put("a", r#"{"hall":"south"}"#, 2.0);
    assert_eq!(watch.event().await, event("DELETED", "a", 14));
    house.view.put("b", r#"{"hall":"north"}"#, 3.0);
    assert_eq!(watch.event().await, event("ADDED", "b", 15));
    house.view.delete("b");
    assert_eq!(watch.event().await, event("DELETED", "b", 16));
}

#[tokio::test]
async fn a_table_watch_defines_its_columns_once() {
    let house = House::start(10);
    house.view.put("a", "{}", 1.0);
    let target = format!("{DEVICES}?watch=true");
    let mut watch = send(house.address, "GET", &target, &[&format!("Accept: {TABLE}")]).await;
    let first = watch.line().await.unwrap();
    assert_eq!((&first["object"]["kind"], first["object"].get("columnDefinitions").is_some()), (&"Table".into(), true));
    house.view.delete("a");
    let second = watch.line().await.unwrap();
    assert_eq!((&second["type"], second["object"].get("columnDefinitions")), (&"DELETED".into(), None));
    assert_eq!(second["object"]["rows"][0]["cells"][1], "<deleted>");
}

#[tokio::test]
async fn a_watch_ends_cleanly_at_its_timeout_after_a_bookmark() {
    let house = House::start(10);
    let mut watch = house.watch("watch=true&resourceVersion=10&allowWatchBookmarks=true&timeoutSeconds=1").await;
    let mut quiet = house.watch("watch=true&resourceVersion=10&timeoutSeconds=1").await;
    house.view.advance();
    assert_eq!(watch.event().await, event("BOOKMARK", "", 11));
    assert_eq!(watch.line().await, None);
    assert_eq!(quiet.line().await, None);
}

#[tokio::test]
async fn a_stop_ends_watches_cleanly() {
    let mut house = House::start(10);
    let mut watch = house.watch("watch=true&resourceVersion=10").await;
    house.view.put("a", "{}", 1.0);
    assert_eq!(watch.event().await, event("ADDED", "a", 11));
    house.shutdown.cancel();
    assert_eq!(watch.line().await, None);
    house.server.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn watches_are_bounded_and_a_place_is_free_again_when_the_client_leaves() {
    let house = House::with_watchers(10, 1);
    let mut watch = house.watch("watch=true").await;
    house.view.put("a", "{}", 1.0);
    assert_eq!(watch.event().await, event("ADDED", "a", 11));
    assert_eq!(house.metrics.watchers.get(), 1);
    let refused = send(house.address, "GET", &format!("{DEVICES}?watch=true"), &[]).await;
    assert!(refused.code == 429 && refused.headers.contains("retry-after: 1\r\n"), "{}", refused.headers);
    drop(watch);
    while house.metrics.watchers.get() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(house.watch("watch=true").await.event().await, event("ADDED", "a", 11));
}

#[tokio::test]
async fn a_lagging_watcher_is_told_everything_in_order() {
    let house = House::start(10);
    let names: Vec<String> = (0..1200).map(|n| format!("device-{n:04}")).collect();
    for name in &names {
        house.view.put(name, "{}", 1.0);
    }
    let mut watch = house.watch("watch=true&resourceVersion=10").await;
    for (n, name) in names.iter().enumerate() {
        assert_eq!(watch.event().await, event("ADDED", name, 11 + n as u64));
    }
    assert_eq!(house.names("").await.0.len(), 1200);
}

#[tokio::test]
async fn writes_are_refused_with_a_status() {
    let house = House::start(10);
    for (method, target) in [("POST", DEVICES), ("DELETE", &format!("{DEVICES}/a")), ("PATCH", &format!("{DEVICES}/a"))]
    {
        let answer = send(house.address, method, target, &["Content-Length: 0"]).await;
        assert_eq!(answer.code, 405);
        let status: Value = serde_json::from_str(&answer.text().await).unwrap();
        assert_eq!((&status["kind"], &status["reason"]), (&"Status".into(), &"MethodNotAllowed".into()));
    }
}

#[tokio::test]
async fn readiness_follows_the_checks_and_the_disk() {
    let house = House::start(10);
    let ask = async |target: &str| {
        let answer = send(house.address, "GET", target, &[]).await;
        (answer.code, answer.text().await)
    };
    assert_eq!(ask("/readyz").await, (200, "ok".into()));
    house.health.set("sink/cloud", Err("connection refused".into()));
    assert_eq!(
        ask("/readyz").await,
        (503, "[-]sink/cloud failed: connection refused\n[+]start ok\nreadyz check failed\n".into())
    );
    assert_eq!(house.get(DEVICES).await.0, 200, "a sink that is down takes nothing from the readers");
    house.health.set("sink/cloud", Ok(()));
    assert_eq!(ask("/readyz?verbose").await.1, "[+]sink/cloud ok\n[+]start ok\nreadyz check passed\n");
    house.durable.send_modify(|durable| durable.fault = true);
    assert_eq!(ask("/readyz").await.0, 503);
    let refused = send(house.address, "GET", DEVICES, &[]).await;
    assert!(refused.code == 503 && refused.headers.contains("retry-after: 1\r\n"), "{}", refused.headers);
    assert!(ask("/").await.1.contains("NOT STORED"));
    house.durable.send_modify(|durable| durable.fault = false);
    house.health.set(Health::START, Err("replaying".into()));
    assert_eq!(house.get(&format!("{DEVICES}?watch=true")).await.0, 503);
    assert_eq!((ask("/livez").await, ask("/healthz").await.0), ((200, "ok".into()), 200));
}

#[tokio::test]
async fn metrics_are_openmetrics_with_fresh_lags() {
    let house = House::start(10);
    let answer = send(house.address, "GET", "/metrics", &[]).await;
    assert!(answer.headers.contains("content-type: application/openmetrics-text; version=1.0.0"), "{}", answer.headers);
    let text = answer.text().await;
    assert!(text.contains("tidegate_queue_lag_records{sink=\"cloud\",lane=\"state\"} 4"), "{text}");
    assert!(text.contains("tidegate_queue_lag_seconds{sink=\"cloud\",lane=\"state\"} 5"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn the_status_page_shows_firing_alerts_first_and_escapes_names() {
    let house = House::start(10);
    house.view.alert("cold", "a", "resolved");
    house.view.alert("hot", "<b>", "firing");
    house.view.put("<script>alert(1)</script>", "{}", 21.5);
    let answer = send(house.address, "GET", "/", &[]).await;
    assert!(answer.headers.contains("content-security-policy: default-src 'none'"), "{}", answer.headers);
    let html = answer.text().await;
    assert!(html.find("hot").unwrap() < html.find("cold").unwrap(), "{html}");
    assert!(html.contains("&lt;b&gt;") && html.contains("&lt;script&gt;") && !html.contains("<script"), "{html}");
    assert!(html.contains("temperature=21.5") && html.contains("<td>cloud</td>"), "{html}");
}

#[tokio::test]
async fn foreign_hosts_and_endless_queries_are_refused() {
    let house = House::start(10);
    assert_eq!(send(house.address, "GET", "/apis", &["Host: evil.example"]).await.code, 403);
    assert_eq!(house.get(&format!("{DEVICES}?labelSelector={}", "a".repeat(9000))).await.0, 414);
}

#[test]
fn an_address_that_others_reach_is_refused_with_the_mend() {
    let bind = |address: SocketAddr| {
        let options = ServeOptions { gateway: "gw".into(), namespace: "default".into(), watchers_max: 1 };
        let durable = watch::Sender::new(Durable::default());
        let (health, metrics, clock) = (Arc::default(), Arc::default(), Arc::new(ManualClock::default()));
        Server::bind(address, options, FakeView::at(0), health, metrics, durable.subscribe(), clock)
    };
    let error = bind(SocketAddr::from(([0, 0, 0, 0], 7480))).unwrap_err().to_string();
    assert!(error.contains("0.0.0.0:7480") && error.contains("\"127.0.0.1:7480\""), "{error}");
    let first = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let error = bind(first.local_addr()).unwrap_err().to_string();
    assert!(error.contains(&first.local_addr().to_string()) && error.contains("serve.listen"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_nothing_is_cut_off_at_the_stop() {
    let mut house = House::start(10);
    for n in 0..400 {
        house.view.put(&format!("d{n}-{}", "x".repeat(50_000)), "{}", 1.0);
    }
    let stuck = house.watch("watch=true").await;
    house.shutdown.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(5), house.server.join_next()).await;
    ended.expect("the stop is bounded").unwrap().unwrap().unwrap();
    drop(stuck);
}
