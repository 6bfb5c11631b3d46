//! The Kafka sink. The only home of krafka, which is pinned: its settings here are measured, not a matter of taste.
//!
//! Idempotent producer, `acks=all`, CloudEvents in binary mode. Records of a window go out in **rounds** of at most one
//! batch (128 KiB) per partition, each sealed by a flush and acknowledged before the next: a batch that fails for good
//! is never overtaken by a later one of its partition, so that in alert and event topics the sequence rises per
//! partition whatever fails.
//!
//! Not here: TLS and SASL, compression, transactions, creating topics (but for the demo).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use krafka::admin::{CreateTopicsOptions, NewTopic};
use krafka::consumer::{AutoOffsetReset, Consumer};
use krafka::error::ErrorCode;
use krafka::producer::{DeliveryHandle, Producer};
use krafka::{CloseOptions, Kafka, KrafkaError, MetadataRecoveryStrategy, ProtocolErrorKind};
use tokio::time::timeout;

use super::cloudevent::{Format, Outgoing};
use super::{Delivered, GapNotice, Session, Sink, SinkError};
use crate::config;
use crate::model::{Lane, Record};
use crate::runtime::clock::Clock;

/// Bytes of one batch, as the client counts them.
const BATCH_BYTES: usize = 128 << 10;
/// A larger record makes a round of its own. A batch that is too large for its topic is halved twice at most, and a
/// half may overtake a quarter that failed: no record here is larger than such a quarter.
const ALONE_BYTES: usize = BATCH_BYTES / 4;
/// Batches are sealed by a flush; this only bounds what a missed flush would cost. A shorter linger would split a
/// round into two batches of one partition.
const LINGER: Duration = Duration::from_secs(1);
/// The queue keeps the records, the client only a window: it must never give one up by itself.
const DELIVERY_TIMEOUT: Duration = Duration::from_hours(30 * 24);
const BUFFER_BYTES: usize = 4 << 20;
/// For the client to find a topic or room in its buffer.
const BLOCK_MAX: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(5);
/// Request timeouts that a delivery may last without an acknowledgement.
const PATIENCE: u32 = 3;
/// Bounds of [`read_all`].
const READ_RECORDS_MAX: usize = 1_000_000;
const READ_TIME_MAX: Duration = Duration::from_mins(1);

/// What a Kafka sink must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaOptions {
    /// `gateway.name`, or the host name: client id, beginning of every key, end of `ce_source`.
    pub gateway: String,
    /// Bootstrap servers, `HOST:PORT`.
    pub brokers: Vec<String>,
    /// Prefix of the topics `<prefix>.devicestates`, `<prefix>.alerts`, `<prefix>.events`.
    pub prefix: String,
    /// Time for one request.
    pub request_timeout: Duration,
}

impl KafkaOptions {
    /// From the configuration of a sink, for the gateway of that name.
    pub fn new(gateway: &str, sink: &config::KafkaSink) -> Self {
        Self {
            gateway: gateway.to_owned(),
            brokers: sink.brokers.clone(),
            prefix: sink.prefix.clone(),
            request_timeout: sink.request_timeout.0,
        }
    }

    async fn connect(&self) -> Result<Kafka, SinkError> {
        let refusal = Refusal { options: self, doing: format!("connecting to Kafka at {}", self.brokers.join(",")) };
        Kafka::builder(self.brokers.join(","))
            .client_id(&self.gateway)
            .request_timeout(self.request_timeout)
            .connect_timeout(self.request_timeout.min(CONNECT_TIMEOUT_MAX))
            // Both defaults make the client forget brokers or topics in an outage.
            .metadata_recovery_strategy(MetadataRecoveryStrategy::None)
            .metadata_topic_cache_ttl(None)
            .allow_auto_create_topics(false)
            .connect()
            .await
            .map_err(|error| refusal.sort(None, error))
    }

    fn format(&self) -> Format {
        Format::new(&self.gateway, &self.prefix)
    }
}

/// Apache Kafka 3.9 or newer as an upstream.
pub struct KafkaSink {
    name: Arc<str>,
    options: KafkaOptions,
    clock: Arc<dyn Clock>,
}

impl KafkaSink {
    /// A sink of that name; nothing is connected yet. The clock bounds the records' timestamps.
    pub fn new(name: Arc<str>, options: KafkaOptions, clock: Arc<dyn Clock>) -> Self {
        Self { name, options, clock }
    }
}

impl Sink for KafkaSink {
    type Session = KafkaSession;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn request_timeout(&self) -> Duration {
        self.options.request_timeout
    }

    async fn open(&mut self) -> Result<KafkaSession, SinkError> {
        let kafka = self.options.connect().await?;
        let built = kafka
            .producer()
            .linger(LINGER)
            .batch_size(BATCH_BYTES)
            .buffer_memory(BUFFER_BYTES)
            .delivery_timeout(DELIVERY_TIMEOUT)
            .max_block(BLOCK_MAX)
            .metrics_push(false)
            .build()
            .await;
        let refusal = Refusal { options: &self.options, doing: "asking Kafka for a producer id".to_owned() };
        Ok(KafkaSession {
            producer: built.map_err(|error| refusal.sort(None, error))?,
            format: self.options.format(),
            options: self.options.clone(),
            clock: Arc::clone(&self.clock),
        })
    }
}

/// A connected producer.
pub struct KafkaSession {
    producer: Producer,
    format: Format,
    options: KafkaOptions,
    clock: Arc<dyn Clock>,
}

impl Session for KafkaSession {
    async fn deliver(&mut self, records: &[Record]) -> Delivered {
        let mut acked = 0;
        while let Some(rest) = records.get(acked..).filter(|rest| !rest.is_empty()) {
            let round = self.round(rest).await;
            acked += round.acked;
            if round.error.is_some() {
                return Delivered { acked, error: round.error };
            }
        }
        Delivered { acked, error: None }
    }

    async fn announce(&mut self, notice: &GapNotice) -> Result<(), SinkError> {
        let kafka_topic = self.format.kafka_topic(notice.lane);
        let out = self.format.gap(notice, self.clock.wall());
        let partitions = self.producer.partitions_for(&kafka_topic).await;
        let mut handles = Vec::new();
        for info in partitions.map_err(|error| self.refused(notice.lane, error))? {
            let record = to_wire(kafka_topic.clone(), out.clone()).partition(info.partition);
            handles.push(self.enqueue(notice.lane, record).await?);
        }
        self.seal().await;
        for handle in handles {
            self.outcome(notice.lane, handle).await?;
        }
        Ok(())
    }

    /// A producer that is dropped without this goes on sending in the background for 30 days.
    async fn close(self) {
        let closed = self.producer.close_with(CloseOptions::new().timeout(Duration::ZERO)).await;
        if let Err(error) = closed {
            tracing::debug!(%error, "records were in flight when the session was closed");
        }
    }
}

impl KafkaSession {
    /// Sends as many of the first records as make one batch per partition, at least one.
    async fn round(&self, records: &[Record]) -> Delivered {
        let (mut round, mut handles, mut error) = (Round::default(), Vec::new(), None);
        for record in records {
            let out = self.format.record(record, self.clock.wall());
            let wire = to_wire(self.format.kafka_topic(record.lane), out);
            let bytes = wire.estimated_size();
            if !round.has_room_for(bytes) {
                break;
            }
            match self.enqueue(record.lane, wire).await {
                Ok(handle) => {
                    round.put(handle.partition(), bytes);
                    handles.push((record.lane, handle));
                }
                Err(refused) => {
                    error = Some(refused);
                    break;
                }
            }
        }
        self.seal().await;
        for (acked, (lane, handle)) in handles.iter_mut().enumerate() {
            if let Err(failed) = self.outcome(*lane, handle).await {
                return Delivered { acked, error: Some(failed) };
            }
        }
        Delivered { acked: handles.len(), error }
    }

    async fn enqueue(&self, lane: Lane, record: krafka::Record) -> Result<DeliveryHandle, SinkError> {
        match timeout(self.patience(), self.producer.enqueue(record)).await {
            Ok(queued) => queued.map_err(|error| self.refused(lane, error)),
            Err(_) => Err(self.silence(lane)),
        }
    }

    /// What was enqueued goes out at once. A flush seals when it is first polled; its wait is not needed here.
    async fn seal(&self) {
        tokio::select! {
            biased;
            _ = self.producer.flush() => {}
            () = std::future::ready(()) => {}
        }
    }

    async fn outcome<H>(&self, lane: Lane, handle: H) -> Result<(), SinkError>
    where
        H: Future<Output = krafka::Result<krafka::producer::RecordMetadata>>,
    {
        match timeout(self.patience(), handle).await {
            Ok(Ok(stored)) if stored.is_persisted() => Ok(()),
            Ok(Err(error)) => Err(self.refused(lane, error)),
            Ok(Ok(_)) | Err(_) => Err(self.silence(lane)),
        }
    }

    fn patience(&self) -> Duration {
        self.options.request_timeout * PATIENCE
    }

    fn refused(&self, lane: Lane, error: KrafkaError) -> SinkError {
        let doing = format!("sending to {}", self.format.kafka_topic(lane));
        Refusal { options: &self.options, doing }.sort(Some(lane), error)
    }

    fn silence(&self, lane: Lane) -> SinkError {
        SinkError::no_answer(format!("sending to {}", self.format.kafka_topic(lane)), self.patience())
    }
}

/// Creates the three topics where they are missing: lane `state` compacted, replication as the cluster's default. For
/// the demo and tests; the daemon never creates topics.
pub async fn create_topics(options: &KafkaOptions, partitions: u16) -> Result<(), SinkError> {
    let refusal = Refusal { options, doing: format!("creating the topics {}.*", options.prefix) };
    let kafka = options.connect().await?;
    let mut topics = Vec::new();
    for lane in Lane::ALL {
        let topic = NewTopic::new(options.format().kafka_topic(lane), i32::from(partitions), -1)
            .map_err(|error| refusal.sort(None, error))?;
        topics.push(settings(lane).iter().fold(topic, |topic, (key, value)| topic.with_config(*key, *value)));
    }
    let limit = CreateTopicsOptions::default().timeout(options.request_timeout * PATIENCE);
    let created = kafka.admin().create_topics(topics, limit).await.map_err(|error| refusal.sort(None, error))?;
    for result in created.into_values() {
        match result {
            Ok(()) | Err(KrafkaError::Broker { code: ErrorCode::TopicAlreadyExists, .. }) => {}
            Err(error) => return Err(refusal.sort(None, error)),
        }
    }
    Ok(())
}

/// Settings of a lane's topic that differ from a cluster's default.
fn settings(lane: Lane) -> &'static [(&'static str, &'static str)] {
    match lane {
        Lane::State => &[("cleanup.policy", "compact")],
        Lane::Alert | Lane::Event => &[],
    }
}

/// A record as it lies in Kafka.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRecord {
    /// The partition.
    pub partition: i32,
    /// The offset within it.
    pub offset: i64,
    /// The key.
    pub key: Option<Bytes>,
    /// The value; None is a tombstone.
    pub value: Option<Bytes>,
    /// The headers that have a value.
    pub headers: Vec<(String, Bytes)>,
}

/// Reads a topic from its beginning to what is its end when the call begins. For the demo's count and for tests: at
/// most a million records and 60 s, else it is an error.
pub async fn read_all(brokers: &[String], topic: &str) -> Result<Vec<ReadRecord>, SinkError> {
    let options = KafkaOptions {
        gateway: "tidegate-read".to_owned(),
        brokers: brokers.to_vec(),
        prefix: String::new(),
        request_timeout: Duration::from_secs(10),
    };
    match timeout(READ_TIME_MAX, read_to_end(&options, topic)).await {
        Ok(records) => records,
        Err(_) => Err(SinkError::no_answer(format!("reading {topic}"), READ_TIME_MAX)),
    }
}

async fn read_to_end(options: &KafkaOptions, topic: &str) -> Result<Vec<ReadRecord>, SinkError> {
    let refusal = Refusal { options, doing: format!("reading {topic}") };
    let sort = |error| refusal.sort(None, error);
    let kafka = options.connect().await?;
    let consumer = kafka.consumer_without_group().auto_offset_reset(AutoOffsetReset::Earliest).metrics_push(false);
    let consumer = consumer.build().await.map_err(sort)?;
    let mut ends = ends(&consumer, topic).await.map_err(sort)?;
    consumer.assign(topic, ends.keys().copied().collect()).await.map_err(sort)?;
    let mut records = Vec::new();
    while !ends.is_empty() {
        for record in consumer.poll(Duration::from_millis(200)).await.map_err(sort)? {
            if ends.get(&record.partition).is_some_and(|end| record.offset < *end) {
                records.push(read(record));
            }
        }
        if records.len() > READ_RECORDS_MAX {
            return Err(SinkError::Misconfigured {
                what: format!("{topic} holds more than {READ_RECORDS_MAX} records"),
                mend: "read it with kafka-console-consumer.sh".to_owned(),
                source: "too many records to read into memory".into(),
            });
        }
        let mut done = Vec::new();
        for (partition, end) in &ends {
            if consumer.position(topic, *partition).await.is_some_and(|at| at >= *end) {
                done.push(*partition);
            }
        }
        ends.retain(|partition, _| !done.contains(partition));
    }
    consumer.close_with(CloseOptions::new().timeout(Duration::ZERO)).await.or_else(|_| Ok(()))?;
    Ok(records)
}

/// The partitions that hold anything, each with the offset behind its last record.
async fn ends(consumer: &Consumer, topic: &str) -> krafka::Result<BTreeMap<i32, i64>> {
    let mut ends = BTreeMap::new();
    let metadata = consumer.fetch_metadata(Some(topic)).await?;
    let known = metadata.topics.iter().find(|info| info.name == topic);
    for info in known.ok_or_else(|| KrafkaError::unknown_topic(topic))?.partitions_iter() {
        let (begin, end) = consumer.fetch_watermarks(topic, info.partition).await?;
        if begin < end {
            ends.insert(info.partition, end);
        }
    }
    Ok(ends)
}

fn read(record: krafka::ConsumerRecord) -> ReadRecord {
    ReadRecord {
        partition: record.partition,
        offset: record.offset,
        key: record.key,
        value: record.value,
        headers: record.headers.into_iter().filter_map(|(key, value)| Some((key, value?))).collect(),
    }
}

fn to_wire(kafka_topic: String, out: Outgoing) -> krafka::Record {
    let record = match out.value {
        Some(value) => krafka::Record::new(kafka_topic, value).key(out.key),
        None => krafka::Record::tombstone(kafka_topic, out.key),
    };
    out.headers.into_iter().fold(record.timestamp(out.timestamp_ms), |record, (key, value)| record.header(key, value))
}

/// What is under way: at most one batch per partition.
#[derive(Debug, Default)]
struct Round {
    partitions: BTreeMap<i32, usize>,
    alone: bool,
}

impl Round {
    /// The partition is not known yet: there is room if there is in the fullest.
    fn has_room_for(&self, bytes: usize) -> bool {
        let fullest = self.partitions.values().max();
        fullest.is_none_or(|fullest| !self.alone && bytes <= ALONE_BYTES && fullest + bytes <= BATCH_BYTES)
    }

    fn put(&mut self, partition: i32, bytes: usize) {
        self.alone = bytes > ALONE_BYTES;
        *self.partitions.entry(partition).or_default() += bytes;
    }
}

/// Sorts the client's errors into what the pump does about them.
struct Refusal<'a> {
    options: &'a KafkaOptions,
    doing: String,
}

impl Refusal<'_> {
    fn sort(&self, lane: Option<Lane>, error: KrafkaError) -> SinkError {
        let doing = self.doing.clone();
        match &error {
            KrafkaError::Broker { code, .. } => self.sort_code(lane, *code, error),
            KrafkaError::Auth { .. } => self.denied(error),
            // A missing client certificate looks like a broken link to the client.
            KrafkaError::Network(cause) if cause.to_string().contains("fatal alert") => self.denied(error),
            KrafkaError::UnknownTopic { .. } => self.unknown_topic(lane, error),
            KrafkaError::Config { .. } => self.misconfigured("Kafka's client does not take its settings", error),
            KrafkaError::Serialization { .. } | KrafkaError::Compression { .. } => {
                SinkError::Rejected { doing, source: error.into() }
            }
            KrafkaError::Protocol { kind, .. } => match kind {
                ProtocolErrorKind::FrameTooLarge | ProtocolErrorKind::InvalidLength => {
                    SinkError::Rejected { doing, source: error.into() }
                }
                ProtocolErrorKind::UnknownApiVersion => self.misconfigured("the broker is older than Kafka 3.9", error),
                _ => SinkError::Unreachable { doing, source: error.into() },
            },
            _ => SinkError::Unreachable { doing, source: error.into() },
        }
    }

    fn sort_code(&self, lane: Option<Lane>, code: ErrorCode, error: KrafkaError) -> SinkError {
        use ErrorCode as Code;
        match code {
            Code::UnknownTopicOrPartition | Code::UnknownTopicId => self.unknown_topic(lane, error),
            Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedSaslMechanism
            | Code::IllegalSaslState => self.denied(error),
            // The pump never sends a time ahead of its own clock: not the record is wrong, but one of the clocks.
            Code::InvalidTimestamp => SinkError::Misconfigured {
                what: format!("Kafka does not take the time of records while {}", self.doing),
                mend: "set the gateway's clock, or on the topic message.timestamp.type=LogAppendTime".to_owned(),
                source: error.into(),
            },
            Code::MessageTooLarge | Code::RecordListTooLarge | Code::InvalidMessageSize | Code::InvalidRecord => {
                SinkError::Rejected { doing: self.doing.clone(), source: error.into() }
            }
            Code::InvalidTopic
            | Code::InvalidConfig
            | Code::InvalidReplicationFactor
            | Code::InvalidPartitions
            | Code::InvalidRequiredAcks
            | Code::UnsupportedVersion
            | Code::UnsupportedForMessageFormat
            | Code::PolicyViolation => self.misconfigured("Kafka does not take the request", error),
            _ => SinkError::Unreachable { doing: self.doing.clone(), source: error.into() },
        }
    }

    fn unknown_topic(&self, lane: Option<Lane>, error: KrafkaError) -> SinkError {
        let Some(lane) = lane else { return self.misconfigured("the topic does not exist", error) };
        let kafka_topic = self.options.format().kafka_topic(lane);
        let server = self.options.brokers.first().map_or("HOST:PORT", String::as_str);
        let settings: String = settings(lane).iter().flat_map(|(key, value)| [" --config ", key, "=", value]).collect();
        let mend = format!(
            "create it: kafka-topics.sh --bootstrap-server {server} --create --topic {kafka_topic} --partitions 3{settings}"
        );
        SinkError::Misconfigured { what: format!("topic {kafka_topic} does not exist"), mend, source: error.into() }
    }

    fn denied(&self, error: KrafkaError) -> SinkError {
        let mend = format!(
            "give {} the rights to write to {}.* and to be an idempotent producer",
            self.options.gateway, self.options.prefix
        );
        SinkError::Denied { doing: self.doing.clone(), mend, source: error.into() }
    }

    fn misconfigured(&self, what: &str, error: KrafkaError) -> SinkError {
        let what = format!("{what} while {}", self.doing);
        SinkError::Misconfigured { what, mend: "check [sink.kafka] and the topics".to_owned(), source: error.into() }
    }
}

#[cfg(test)]
mod tests;
