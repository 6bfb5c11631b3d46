//! The real Kafka of `tests/run`: topics, faults, and what is in a topic, read by kcat.

use std::collections::{BTreeMap, HashMap};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

use crate::parts::{required, run};

/// The lab.
pub(crate) struct Kafka {
    /// Bootstrap address.
    pub(crate) address: String,
    script: String,
}

/// A record as a foreign reader gets it.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// Kafka partition.
    pub(crate) partition: i32,
    /// Offset in it.
    pub(crate) offset: i64,
    /// Record key.
    pub(crate) key: String,
    /// None for a tombstone.
    pub(crate) value: Option<String>,
    headers: HashMap<String, String>,
}

/// What kcat prints of a record.
#[derive(Deserialize)]
struct Line {
    partition: i32,
    offset: i64,
    #[serde(default)]
    headers: Vec<String>,
    key: Option<String>,
    payload: Option<String>,
}

impl Kafka {
    /// The lab that `tests/run` started.
    pub(crate) fn new() -> Self {
        Self { address: required("TIDEGATE_KAFKA"), script: required("TIDEGATE_KAFKA_SH") }
    }

    /// Creates the three topics of a prefix: states compacted, all with two partitions.
    pub(crate) fn topics(&self, prefix: &str) {
        self.script(&["topic", &format!("{prefix}.devicestates"), "2", "cleanup.policy=compact"]);
        self.script(&["topic", &format!("{prefix}.alerts"), "2"]);
        self.script(&["topic", &format!("{prefix}.events"), "2"]);
    }

    /// SIGKILL; it is started again at the latest when the guard goes out of scope.
    pub(crate) fn kill(&self) -> Outage<'_> {
        self.script(&["kill"]);
        Outage { kafka: self, over: false }
    }

    /// Every record of a topic, partition by partition in order of offsets.
    pub(crate) fn read(&self, topic: &str) -> Vec<Record> {
        let mut kcat = Command::new("kcat");
        kcat.args(["-C", "-q", "-J", "-e", "-o", "beginning", "-X", "isolation.level=read_committed"]);
        kcat.args(["-b", &self.address, "-t", topic]);
        let printed = run(&mut kcat, 60);
        assert_eq!(printed.code, Some(0), "kcat of {topic}: {}", printed.err);
        let mut records: Vec<_> = printed.out.lines().map(Record::parse).collect();
        records.sort_by_key(|record| (record.partition, record.offset));
        records
    }

    fn script(&self, args: &[&str]) {
        let printed = run(Command::new(&self.script).args(args), 120);
        assert_eq!(printed.code, Some(0), "kafka.sh {}: {}{}", args.join(" "), printed.out, printed.err);
    }
}

/// A time without Kafka.
pub(crate) struct Outage<'a> {
    kafka: &'a Kafka,
    over: bool,
}

impl Outage<'_> {
    /// Starts it again; returns when it is ready.
    pub(crate) fn end(mut self) {
        self.over = true;
        self.kafka.script(&["up"]);
    }
}

impl Drop for Outage<'_> {
    fn drop(&mut self) {
        if !self.over {
            // The tests after this one need it, too.
            let _ = Command::new(&self.kafka.script).arg("up").output();
        }
    }
}

impl Record {
    /// A record as kcat prints it.
    pub(crate) fn parse(line: &str) -> Self {
        let raw: Line = serde_json::from_str(line).unwrap_or_else(|error| panic!("kcat printed {line}: {error}"));
        let headers = raw.headers.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        let key = raw.key.unwrap_or_default();
        Self { partition: raw.partition, offset: raw.offset, key, value: raw.payload, headers }
    }

    /// A header's value; empty if it is not there.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// `ce_sequence`, which tells duplicates apart.
    pub(crate) fn sequence(&self) -> u64 {
        let text = self.header("ce_sequence");
        assert_eq!(text.len(), 20, "ce_sequence {text:?} of {self:?} has not 20 digits");
        text.parse().unwrap_or_else(|_| panic!("ce_sequence {text:?} is no number"))
    }

    /// The value as JSON.
    pub(crate) fn json(&self) -> Value {
        let text = self.value.as_deref().unwrap_or_else(|| panic!("{self:?} has no value"));
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{text} is no JSON: {error}"))
    }
}

/// What a reader of an event or alert topic keeps: per partition only what is above the highest sequence so far.
pub(crate) fn deduplicate(records: &[Record]) -> Vec<&Record> {
    let mut highest = HashMap::new();
    let is_new = |record: &&Record| {
        let high = highest.entry(record.partition).or_insert(0);
        let new = record.sequence() > *high;
        *high = (*high).max(record.sequence());
        new
    };
    records.iter().filter(is_new).collect()
}

/// The records of each key, in order.
pub(crate) fn by_key<'a>(records: impl IntoIterator<Item = &'a Record>) -> BTreeMap<&'a str, Vec<&'a Record>> {
    let mut keys: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        keys.entry(&record.key).or_default().push(record);
    }
    keys
}
