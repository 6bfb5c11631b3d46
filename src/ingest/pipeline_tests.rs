//! The pipeline, message by message, with time moved by hand.

use bytes::Bytes;

use super::*;
use crate::config::Config;
use crate::model::{AlertState, ClockQuality, DeltaType, Epoch, Lane, QoS, Seq, Uid};

const SOURCES: &str = r#"
    [[source]]
    topic = "plant/{line}/{device}/state"
    [source.metrics]
    temperature = { unit = "Cel", deadband = 0.5 }
    running = {}

    [[source]]
    topic = "slow/{device}/{metric}"
    uplink = { min_interval = "1s" }

    [[source]]
    topic = "plant/{line}/{device}/event"
    class = "event"

    [[source]]
    topic = "probe/{device}"
    class = "transient"

    [[alert]]
    alert = "Hot"
    expr = "temperature > 80"
    hysteresis = 5
    severity = "critical"
    labels = { team = "press" }
    annotations = { summary = "{device} is at {temperature} Cel" }

    [[alert]]
    alert = "Stopped"
    expr = "!running"
    for = "2s"
"#;

fn pipeline() -> Pipeline {
    with_keys_max(100)
}

fn with_keys_max(keys_max: usize) -> Pipeline {
    let config: Config = toml::from_str(SOURCES).unwrap();
    Pipeline::new(&config.source, "default", RuleEngine::compile(&config.alert).unwrap(), keys_max).unwrap()
}

fn message(topic: &str, payload: &str) -> Message {
    let payload = Bytes::copy_from_slice(payload.as_bytes());
    Message { client: "c".into(), topic: topic.into(), payload, qos: QoS::AtLeastOnce, retain: false }
}

fn wall(unix_ms: i64) -> Stamp {
    Stamp { unix_ms, clock: ClockQuality::Synced }
}

/// Sends a message at gateway time `ms` and adds its frame as number `lsn`.
fn send(pipeline: &mut Pipeline, topic: &str, payload: &str, ms: u64, lsn: u64) -> Step {
    let step = pipeline.on_message(&message(topic, payload), Millis(ms), wall(1_800_000_000_000 + ms.cast_signed()));
    pipeline.added(step.put.as_ref(), Lsn(lsn), Millis(ms));
    step
}

fn body(step: &Step) -> DeviceState {
    let put = step.changes.iter().find_map(|change| match change {
        Change::Put { body, .. } => Some(body.clone()),
        _ => None,
    });
    serde_json::from_slice(&put.expect("the step puts a state")).unwrap()
}

fn alerts(step: &Step) -> Vec<Alert> {
    step.alerts.iter().map(|alert| serde_json::from_slice(&alert.payload).unwrap()).collect()
}

fn record(lane: Lane, key: &str, body: Bytes) -> Record {
    Record {
        lane,
        delta: DeltaType::Added,
        seq: Seq(1),
        epoch: Epoch::new(1, 1),
        key: ObjectKey::new("default", key),
        uid: Uid::default(),
        created_at: Stamp::default(),
        at: Stamp::default(),
        body,
    }
}

#[test]
fn a_first_reading_becomes_the_whole_state_of_its_device() {
    let mut pipeline = pipeline();
    let step = send(&mut pipeline, "plant/l1/press07/state", r#"{"temperature":21.5,"running":true}"#, 0, 1);
    assert_eq!((&step.outcome, step.readings), (&Outcome::Stored, 2));
    let state = body(&step);
    assert_eq!(&*state.device, "press07");
    assert_eq!(state.labels.get("line").map(|l| &**l), Some("l1"));
    let temperature = state.metrics.get("temperature").unwrap();
    assert_eq!(temperature.value, Some(Value::F64(21.5)));
    assert_eq!(temperature.unit.as_deref(), Some("Cel"));
    assert_eq!(temperature.time, "2027-01-15T08:00:00.000Z");
}

#[test]
fn a_suppressed_reading_waits_for_the_frame_it_was_compared_with() {
    let mut pipeline = pipeline();
    send(&mut pipeline, "plant/l1/a/state", r#"{"temperature":20.0}"#, 0, 7);
    let step = send(&mut pipeline, "plant/l1/a/state", r#"{"temperature":20.2}"#, 10, 99);
    assert_eq!(step.outcome, Outcome::Suppressed(Lsn(7)));
    assert!(step.changes.is_empty());
}

#[test]
fn an_alert_is_published_and_stored_under_the_same_bytes() {
    let mut pipeline = pipeline();
    let step = send(&mut pipeline, "plant/l1/a/state", r#"{"temperature":81.5}"#, 0, 1);
    let alert = alerts(&step).pop().unwrap();
    assert_eq!(alert.id, "Hot/a/1");
    assert_eq!((alert.state, alert.transition), (AlertState::Firing, 1));
    assert_eq!(alert.value, Some(Value::F64(81.5)));
    assert_eq!(alert.labels.get("team").map(|l| &**l), Some("press"));
    assert_eq!(alert.labels.get("line").map(|l| &**l), Some("l1"), "a device's labels are there, too");
    assert_eq!(alert.annotations.get("summary").map(String::as_str), Some("a is at 81.5 Cel"));
    let publication = step.alerts.first().unwrap();
    assert_eq!(&*publication.topic, "tidegate/alerts/Hot/a");
    assert!(step.changes.iter().any(|change| matches!(change, Change::Alert { key, body, .. }
        if *body == publication.payload && &**key.name() == "Hot.a")));
}

#[test]
fn an_alert_of_a_suppressed_reading_is_stored_all_the_same() {
    let mut pipeline = pipeline();
    send(&mut pipeline, "plant/l1/a/state", r#"{"temperature":79.9}"#, 0, 1);
    let step = send(&mut pipeline, "plant/l1/a/state", r#"{"temperature":80.1}"#, 1, 2);
    assert_eq!(step.alerts.len(), 1);
    assert_eq!((step.changes.len(), &step.outcome), (1, &Outcome::Stored), "the deadband holds the state back only");
}

#[test]
fn a_delay_fires_by_time_alone() {
    let mut pipeline = pipeline();
    send(&mut pipeline, "plant/l1/a/state", r#"{"running":false}"#, 1000, 1);
    assert_eq!(pipeline.next_deadline(), Some(Millis(3000)));
    assert!(pipeline.on_time(Millis(2999), wall(0)).is_empty());
    let steps = pipeline.on_time(Millis(3000), wall(0));
    assert_eq!(alerts(steps.first().unwrap()).first().map(|a| a.state), Some(AlertState::Firing));
}

#[test]
fn many_delays_that_end_at_once_are_a_frame_each_so_that_they_always_fit() {
    let mut pipeline = pipeline();
    for device in ["a", "b"] {
        send(&mut pipeline, &format!("plant/l1/{device}/state"), r#"{"running":false}"#, 1000, 1);
    }
    let steps = pipeline.on_time(Millis(3000), wall(0));
    assert_eq!(steps.iter().map(|step| step.changes.len()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn a_change_within_min_interval_is_held_and_its_acknowledgement_with_it() {
    let mut pipeline = pipeline();
    send(&mut pipeline, "slow/a/t", "1", 0, 1);
    let device = ObjectKey::new("default", "a");
    for (ms, value) in [(100, "2"), (200, "3")] {
        let step = send(&mut pipeline, "slow/a/t", value, ms, 0);
        assert_eq!(step.outcome, Outcome::Held(device.clone()));
        assert!(step.changes.is_empty());
    }
    assert!(pipeline.on_time(Millis(999), wall(0)).is_empty());
    let step = pipeline.on_time(Millis(1000), wall(0)).pop().unwrap();
    assert_eq!(body(&step).metrics.get("t").unwrap().value, Some(Value::I64(3)), "the last value wins");
    assert_eq!(step.put, Some(device));
}

#[test]
fn a_state_that_found_no_room_is_tried_again() {
    let mut pipeline = pipeline();
    let step = pipeline.on_message(&message("plant/l1/a/state", r#"{"temperature":1}"#), Millis(0), wall(0));
    pipeline.refused(step.put.as_ref(), Millis(0));
    assert_eq!(pipeline.next_deadline(), Some(Millis(1000)));
    assert_eq!(pipeline.on_time(Millis(1000), wall(0)).len(), 1);
}

#[test]
fn an_event_is_kept_as_it_came_and_every_time() {
    let mut pipeline = pipeline();
    for lsn in 1..=2 {
        let step = send(&mut pipeline, "plant/l1/a/event", "not json at all", 0, lsn);
        assert!(matches!(step.changes.as_slice(), [Change::Event { body, .. }] if body == "not json at all"));
    }
}

#[test]
fn rules_see_what_an_event_and_a_transient_reading_say() {
    let mut pipeline = pipeline();
    let step = send(&mut pipeline, "plant/l1/a/event", r#"{"temperature":99}"#, 0, 1);
    assert_eq!(alerts(&step).len(), 1);
    let step = send(&mut pipeline, "probe/b", r#"{"temperature":99}"#, 0, 2);
    assert_eq!(alerts(&step).len(), 1);
    assert!(step.changes.iter().all(|change| matches!(change, Change::Alert { .. })), "disk sees the alert alone");
}

#[test]
fn an_empty_retained_message_takes_the_device_away_and_resolves_its_alerts() {
    let mut pipeline = pipeline();
    send(&mut pipeline, "plant/l1/a/state", r#"{"temperature":90}"#, 0, 1);
    let cleared = Message { retain: true, ..message("plant/l1/a/state", "") };
    let step = pipeline.on_message(&cleared, Millis(5), wall(5));
    assert_eq!(alerts(&step).first().map(|a| (a.state, a.transition)), Some((AlertState::Resolved, 2)));
    assert!(matches!(step.changes.last(), Some(Change::Delete { key, .. }) if &**key.name() == "a"));
}

#[test]
fn a_second_deletion_waits_for_the_first_one_instead_of_being_acknowledged_at_once() {
    let mut pipeline = pipeline();
    send(&mut pipeline, "plant/l1/a/state", r#"{"temperature":1}"#, 0, 1);
    let cleared = Message { retain: true, ..message("plant/l1/a/state", "") };
    for ms in [5, 6] {
        let step = pipeline.on_message(&cleared, Millis(ms), wall(0));
        assert!(matches!(step.changes.as_slice(), [Change::Delete { .. }]));
        assert_eq!(step.outcome, Outcome::Stored, "the queue says where the Delete is");
    }
}

#[test]
fn a_deletion_that_found_no_room_is_tried_again() {
    let mut pipeline = pipeline();
    send(&mut pipeline, "plant/l1/a/state", r#"{"temperature":1}"#, 0, 1);
    let cleared = Message { retain: true, ..message("plant/l1/a/state", "") };
    let step = pipeline.on_message(&cleared, Millis(5), wall(0));
    pipeline.refused(step.put.as_ref(), Millis(5));
    let again = pipeline.on_time(Millis(1005), wall(0));
    let changes = &again.first().expect("it is not forgotten").changes;
    assert!(matches!(changes.as_slice(), [Change::Delete { key, .. }] if &**key.name() == "a"));
}

#[test]
fn a_metric_whose_removal_found_no_room_is_not_acknowledged_as_known_to_be_gone() {
    let mut pipeline = pipeline();
    send(&mut pipeline, "slow/a/t", "1", 0, 1);
    send(&mut pipeline, "slow/a/u", "2", 5000, 2);
    let cleared = Message { retain: true, ..message("slow/a/t", "") };
    let step = pipeline.on_message(&cleared, Millis(9000), wall(0));
    pipeline.refused(step.put.as_ref(), Millis(9000));
    let again = pipeline.on_message(&cleared, Millis(9001), wall(0));
    assert_eq!((again.outcome, again.changes.len()), (Outcome::Stored, 1));
}

#[test]
fn an_empty_retained_message_of_one_metric_takes_that_metric_away() {
    let mut pipeline = pipeline();
    send(&mut pipeline, "slow/a/t", "1", 0, 1);
    send(&mut pipeline, "slow/a/u", "2", 5000, 2);
    let step = pipeline.on_message(&Message { retain: true, ..message("slow/a/t", "") }, Millis(9000), wall(0));
    let state = body(&step);
    assert_eq!(state.metrics.keys().map(|k| &**k).collect::<Vec<_>>(), ["u"]);
}

#[test]
fn a_device_beyond_keys_max_is_refused_and_known_ones_go_on() {
    let mut pipeline = with_keys_max(1);
    send(&mut pipeline, "plant/l1/a/state", r#"{"temperature":1}"#, 0, 1);
    let step = send(&mut pipeline, "plant/l1/b/state", r#"{"temperature":99}"#, 0, 2);
    assert_eq!((step.outcome, step.changes.len(), step.alerts.len()), (Outcome::Refused, 0, 0));
    assert_eq!(send(&mut pipeline, "plant/l1/a/state", r#"{"temperature":9}"#, 0, 3).outcome, Outcome::Stored);
}

#[test]
fn a_topic_that_no_source_takes_has_no_effect() {
    assert_eq!(send(&mut pipeline(), "other/topic", "1", 0, 1).outcome, Outcome::Unmapped);
}

#[test]
fn after_a_restart_nothing_is_sent_again_and_a_firing_alert_is_not_raised_again() {
    let mut first = pipeline();
    let step = send(&mut first, "plant/l1/a/state", r#"{"temperature":90}"#, 0, 1);
    let state = record(Lane::State, "a", serde_json::to_vec(&body(&step)).unwrap().into());
    let alert = record(Lane::Alert, "Hot.a", step.alerts.first().unwrap().payload.clone());
    let broken = record(Lane::State, "b", Bytes::from_static(b"{"));

    let mut second = pipeline();
    let devices = [state, broken];
    assert_eq!(second.restore(&devices, &[alert]), [&ObjectKey::new("default", "b")]);
    let step = send(&mut second, "plant/l1/a/state", r#"{"temperature":90.2}"#, 0, 1);
    assert_eq!((step.changes.len(), step.alerts.len()), (0, 0));
    let step = send(&mut second, "plant/l1/a/state", r#"{"temperature":70}"#, 0, 2);
    assert_eq!(alerts(&step).first().map(|a| a.id.clone()), Some("Hot/a/2".into()), "the count goes on");
}

#[test]
fn a_firing_alert_whose_rule_is_gone_is_resolved_at_the_start() {
    let mut first = pipeline();
    let step = send(&mut first, "plant/l1/a/state", r#"{"temperature":90}"#, 0, 1);
    let alert = record(Lane::Alert, "Hot.a", step.alerts.first().unwrap().payload.clone());
    let mut second = Pipeline::new(&[], "default", RuleEngine::compile(&[]).unwrap(), 9).unwrap();
    second.restore(&[], &[alert]);
    let told = alerts(second.on_start(wall(0)).first().unwrap());
    assert_eq!(told.first().map(|a| (a.id.as_str(), a.state)), Some(("Hot/a/2", AlertState::Resolved)));
    assert!(second.on_start(wall(0)).is_empty(), "once");
}

#[test]
fn g18_a_device_clock_in_the_future_is_not_believed() {
    let source = "[[source]]\ntopic = \"ams/{device}\"\ntime = \"t\"\nroot = \"data\"";
    let config: Config = toml::from_str(source).unwrap();
    let mut pipeline = Pipeline::new(&config.source, "default", RuleEngine::compile(&[]).unwrap(), 9).unwrap();
    let now = wall(1_800_000_000_000);
    for (t, expected) in [(1_800_007_200, "2027-01-15T08:00:00.000Z"), (1_799_996_400, "2027-01-15T07:00:00.000Z")] {
        let step =
            pipeline.on_message(&message("ams/1", &format!(r#"{{"t":{t},"data":{{"P":{t}}}}}"#)), Millis(0), now);
        assert_eq!(body(&step).metrics.get("P").unwrap().time, expected);
        assert_eq!(step.problem, (t > 1_800_000_000).then_some(TIME_AHEAD), "it is counted, too");
    }
}
