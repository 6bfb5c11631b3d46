//! The Kafka sink: what it makes of errors, and a round trip where `TIDEGATE_KAFKA` names a broker.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use super::*;
use crate::model::{DeltaType, Epoch, ObjectKey, Seq, Stamp, Uid};
use crate::runtime::clock::SystemClock;

fn options(brokers: &str, prefix: &str) -> KafkaOptions {
    KafkaOptions {
        gateway: "site1".to_owned(),
        brokers: vec![brokers.to_owned()],
        prefix: prefix.to_owned(),
        request_timeout: Duration::from_secs(10),
    }
}

/// A real broker, if `TIDEGATE_KAFKA` names one, and a prefix that no other run has.
fn broker(test: &str) -> Option<KafkaOptions> {
    let Ok(brokers) = std::env::var("TIDEGATE_KAFKA") else {
        eprintln!("skipped: {test} needs a Kafka broker; set TIDEGATE_KAFKA=HOST:PORT");
        return None;
    };
    let run = SystemClock.wall().unix_ms;
    Some(options(&brokers, &format!("{test}-{run}-{}", std::process::id())))
}

async fn open(options: &KafkaOptions) -> KafkaSession {
    KafkaSink::new("cloud".into(), options.clone(), Arc::new(SystemClock)).open().await.unwrap()
}

fn record(lane: Lane, seq: u64, name: &str, body: &str) -> Record {
    let at = Stamp { unix_ms: SystemClock.wall().unix_ms, ..Stamp::default() };
    Record {
        lane,
        delta: if body.is_empty() { DeltaType::Deleted } else { DeltaType::Updated },
        seq: Seq(seq),
        epoch: Epoch(7),
        key: ObjectKey::new("default", name),
        uid: Uid::default(),
        created_at: at,
        at,
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

fn header<'a>(record: &'a ReadRecord, name: &str) -> &'a str {
    let found = record.headers.iter().find(|(key, _)| key == name);
    std::str::from_utf8(&found.unwrap().1).unwrap()
}

fn sorted(code: ErrorCode) -> SinkError {
    let options = options("kafka:9092", "plant");
    let refusal = Refusal { options: &options, doing: "sending to plant.devicestates".to_owned() };
    refusal.sort(Some(Lane::State), KrafkaError::broker(code, "as the broker says"))
}

#[test]
fn a_missing_topic_names_itself_and_the_command_that_creates_it() {
    let want = "topic plant.devicestates does not exist; create it: kafka-topics.sh --bootstrap-server kafka:9092 \
                --create --topic plant.devicestates --partitions 3 --config cleanup.policy=compact";
    assert_eq!(sorted(ErrorCode::UnknownTopicOrPartition).to_string(), want);
}

#[test]
fn errors_are_sorted_by_what_is_to_be_done() {
    for (code, kind) in [
        (ErrorCode::TopicAuthorizationFailed, "denied"),
        (ErrorCode::ClusterAuthorizationFailed, "denied"),
        (ErrorCode::SaslAuthenticationFailed, "denied"),
        (ErrorCode::MessageTooLarge, "rejected"),
        (ErrorCode::InvalidRecord, "rejected"),
        (ErrorCode::InvalidTimestamp, "misconfigured"),
        (ErrorCode::UnknownTopicOrPartition, "misconfigured"),
        (ErrorCode::InvalidTopic, "misconfigured"),
        (ErrorCode::NotEnoughReplicas, "unreachable"),
        (ErrorCode::LeaderNotAvailable, "unreachable"),
        (ErrorCode::ProducerFenced, "unreachable"),
        (ErrorCode::Unknown(999), "unreachable"),
    ] {
        assert_eq!(sorted(code).kind(), kind, "{code:?}");
    }
}

#[test]
fn a_refused_certificate_is_no_broken_link() {
    let options = options("kafka:9092", "plant");
    let refusal = Refusal { options: &options, doing: "connecting".to_owned() };
    let network = |text: &str| KrafkaError::network(std::io::Error::other(text.to_owned()));
    assert_eq!(refusal.sort(None, network("received fatal alert: BadCertificate")).kind(), "denied");
    assert_eq!(refusal.sort(None, network("connection reset")).kind(), "unreachable");
    assert_eq!(refusal.sort(None, KrafkaError::auth("wrong password")).kind(), "denied");
    assert_eq!(refusal.sort(None, KrafkaError::timeout("connect")).kind(), "unreachable");
}

#[test]
fn a_round_holds_one_batch_of_the_fullest_partition() {
    let mut round = Round::default();
    for _ in 0..4 {
        assert!(round.has_room_for(ALONE_BYTES));
        round.put(0, ALONE_BYTES);
    }
    assert!(!round.has_room_for(1), "a second batch of partition 0 could overtake the first");
}

#[test]
fn a_large_record_makes_a_round_of_its_own() {
    let mut round = Round::default();
    assert!(round.has_room_for(10 << 20));
    round.put(1, 10 << 20);
    assert!(!round.has_room_for(1));
    let mut round = Round::default();
    round.put(1, 10);
    assert!(!round.has_room_for(ALONE_BYTES + 1));
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_unreachable() {
    let mut options = options("127.0.0.1:1", "x");
    options.request_timeout = Duration::from_millis(300);
    let mut sink = KafkaSink::new("cloud".into(), options, Arc::new(SystemClock));
    let error = sink.open().await.err().unwrap();
    assert_eq!(error.kind(), "unreachable", "{error}");
}

#[tokio::test]
async fn with_a_broker_records_arrive_with_key_headers_and_order() {
    let Some(options) = broker("roundtrip") else { return };
    create_topics(&options, 3).await.unwrap();
    create_topics(&options, 3).await.unwrap();
    let mut session = open(&options).await;
    let body = format!("{{\"pad\":\"{}\"}}", "x".repeat(700));
    let mut records: Vec<_> = (1..=600).map(|seq| record(Lane::State, seq, &format!("d{}", seq % 17), &body)).collect();
    records.push(record(Lane::State, 601, "d5", ""));
    let start = SystemClock.ticks();
    let done = session.deliver(&records).await;
    assert_eq!((done.acked, done.error.map(|error| error.to_string())), (601, None));
    assert!(SystemClock.ticks().saturating_sub(start) < LINGER * 3, "five rounds were not sealed at once");
    session.close().await;

    let read = read_all(&options.brokers, &format!("{}.devicestates", options.prefix)).await.unwrap();
    assert_eq!(read.len(), 601);
    for partition in 0..3 {
        let sequence: Vec<_> =
            read.iter().filter(|r| r.partition == partition).map(|r| header(r, "ce_sequence")).collect();
        assert!(!sequence.is_empty() && sequence.is_sorted(), "partition {partition}");
    }
    let last = read.iter().find(|r| header(r, "ce_sequence") == format!("{:020}", 601)).unwrap();
    assert_eq!((last.key.as_deref(), &last.value), (Some(&b"site1/default/d5"[..]), &None));
    assert_eq!(header(last, "ce_type"), "dev.tidegate.devicestate.deleted.v1");
}

#[tokio::test]
async fn with_a_broker_a_gap_is_told_to_every_partition() {
    let Some(options) = broker("gap") else { return };
    create_topics(&options, 4).await.unwrap();
    let mut session = open(&options).await;
    let notice = GapNotice { lane: Lane::Event, epoch: Epoch(7), from: Seq(3), to: Seq(9), lost: 6 };
    session.announce(&notice).await.unwrap();
    session.close().await;
    let read = read_all(&options.brokers, &format!("{}.events", options.prefix)).await.unwrap();
    let mut partitions: Vec<_> = read.iter().map(|record| record.partition).collect();
    partitions.sort_unstable();
    assert_eq!(partitions, [0, 1, 2, 3]);
    assert!(read.iter().all(|record| header(record, "ce_type") == "dev.tidegate.gap.v1"));
}

#[tokio::test]
async fn with_a_broker_a_missing_topic_is_misconfigured() {
    let Some(options) = broker("missing") else { return };
    let mut session = open(&options).await;
    let done = session.deliver(&[record(Lane::Alert, 1, "x", "{}")]).await;
    session.close().await;
    let error = done.error.unwrap().to_string();
    assert!(error.starts_with(&format!("topic {}.alerts does not exist; create it: ", options.prefix)), "{error}");
}

#[tokio::test]
async fn with_a_broker_a_record_that_is_too_large_is_rejected_and_overtaken_by_none() {
    let Some(options) = broker("toolarge") else { return };
    create_topics(&options, 1).await.unwrap();
    let mut session = open(&options).await;
    let mut records: Vec<_> = (1..=9).map(|seq| record(Lane::Event, seq, "d", "{}")).collect();
    records[4].body = vec![b'x'; 2 << 20].into();
    let done = session.deliver(&records).await;
    assert_eq!((done.acked, done.error.unwrap().kind()), (4, "rejected"));
    session.close().await;
    let read = read_all(&options.brokers, &format!("{}.events", options.prefix)).await.unwrap();
    assert_eq!(read.len(), 4, "records behind the rejected one were written");
}
