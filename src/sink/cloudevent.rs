//! Records as CloudEvents 1.0 in the Kafka binding's binary mode: the body is the value, every attribute is a header
//! `ce_*`. Pure; no client's types.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::GapNotice;
use crate::model::{AlertState, DeltaType, Lane, Record, Seq, Stamp};
use crate::runtime::clock::is_plausible;

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";

/// What every record of one gateway has in common.
#[derive(Debug, Clone)]
pub(super) struct Format {
    gateway: String,
    prefix: String,
}

/// A record as it goes to Kafka.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) key: String,
    /// None is a tombstone.
    pub(super) value: Option<Bytes>,
    pub(super) headers: Vec<(&'static str, String)>,
    /// Milliseconds since 1970, never later than now.
    pub(super) timestamp_ms: i64,
}

impl Format {
    pub(super) fn new(gateway: &str, prefix: &str) -> Self {
        Self { gateway: gateway.to_owned(), prefix: prefix.to_owned() }
    }

    /// The topic that a lane feeds; no other lane does.
    pub(super) fn kafka_topic(&self, lane: Lane) -> String {
        let name = match lane {
            Lane::Alert => "alerts",
            Lane::State => "devicestates",
            Lane::Event => "events",
        };
        format!("{}.{name}", self.prefix)
    }

    /// `record` with its headers; `now` bounds its timestamp.
    pub(super) fn record(&self, record: &Record, now: Stamp) -> Outgoing {
        let subject = record.key.to_string();
        let key = format!("{}/{subject}", self.gateway);
        let mut headers = Vec::with_capacity(12);
        if let Some(content_type) = content_type(record) {
            headers.push(("content-type", content_type.to_owned()));
        }
        headers.extend([
            ("ce_specversion", "1.0".to_owned()),
            ("ce_id", format!("{}/{}/{}", self.gateway, record.epoch, record.seq)),
            ("ce_source", format!("/tidegate/{}", self.gateway)),
            ("ce_subject", subject),
            ("ce_type", kind(record).to_owned()),
            ("ce_time", record.at.rfc3339()),
            ("ce_sequence", sequence(record.seq)),
            ("ce_partitionkey", key.clone()),
            ("tidegate_epoch", record.epoch.to_string()),
            ("tidegate_clock", record.at.clock.to_string()),
        ]);
        let value = (!record.is_deleted()).then(|| record.body.clone());
        Outgoing { key, value, headers, timestamp_ms: timestamp(record.at, now) }
    }

    /// A gap's notice, one for each partition of the lane's topic; its id is not that of the dropped record.
    pub(super) fn gap(&self, gap: &GapNotice, now: Stamp) -> Outgoing {
        let body =
            format!(r#"{{"from":{},"to":{},"lost":{},"lane":"{}"}}"#, gap.from.0, gap.to.0, gap.lost, gap.lane.name());
        let headers = vec![
            ("content-type", JSON.to_owned()),
            ("ce_specversion", "1.0".to_owned()),
            ("ce_id", format!("{}/{}/{}/gap", self.gateway, gap.epoch, gap.to)),
            ("ce_source", format!("/tidegate/{}", self.gateway)),
            ("ce_type", "dev.tidegate.gap.v1".to_owned()),
            ("ce_time", now.rfc3339()),
            ("ce_sequence", sequence(gap.to)),
            ("ce_partitionkey", self.gateway.clone()),
            ("tidegate_epoch", gap.epoch.to_string()),
            ("tidegate_clock", now.clock.to_string()),
        ];
        let value = Some(Bytes::from(body));
        Outgoing { key: self.gateway.clone(), value, headers, timestamp_ms: now.unix_ms.max(0) }
    }
}

/// Twenty digits sort as text as the numbers do.
fn sequence(seq: Seq) -> String {
    format!("{:020}", seq.0)
}

/// Kafka refuses a time more than an hour ahead, and a time in 1970 lets retention delete the whole segment.
fn timestamp(at: Stamp, now: Stamp) -> i64 {
    if is_plausible(at) && at.unix_ms <= now.unix_ms { at.unix_ms } else { now.unix_ms.max(0) }
}

/// None without data.
fn content_type(record: &Record) -> Option<&'static str> {
    match record.lane {
        _ if record.is_deleted() => None,
        Lane::Event if !is_json(&record.body) => Some(BYTES),
        Lane::Alert | Lane::State | Lane::Event => Some(JSON),
    }
}

/// Most bodies that are not JSON are told by their first byte.
fn is_json(body: &[u8]) -> bool {
    let begins = |byte: &u8| matches!(byte, b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n');
    body.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(begins)
        && serde_json::from_slice::<&RawValue>(body).is_ok()
}

fn kind(record: &Record) -> &'static str {
    match (record.lane, record.delta) {
        (Lane::Event, _) => "dev.tidegate.event.v1",
        (Lane::State, DeltaType::Added) => "dev.tidegate.devicestate.created.v1",
        (Lane::State, DeltaType::Deleted) => "dev.tidegate.devicestate.deleted.v1",
        (Lane::State, _) => "dev.tidegate.devicestate.updated.v1",
        (Lane::Alert, DeltaType::Deleted) => "dev.tidegate.alert.deleted.v1",
        (Lane::Alert, _) => match alert_state(&record.body) {
            Some(AlertState::Firing) => "dev.tidegate.alert.firing.v1",
            Some(AlertState::Resolved) => "dev.tidegate.alert.resolved.v1",
            None => "dev.tidegate.alert.updated.v1",
        },
    }
}

fn alert_state(body: &[u8]) -> Option<AlertState> {
    #[derive(Deserialize)]
    struct Only {
        state: AlertState,
    }
    serde_json::from_slice::<Only>(body).ok().map(|alert| alert.state)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::model::{ClockQuality, Epoch, ObjectKey, Uid};

    const AT: i64 = 1_796_083_200_123; // 2026-12-01T00:00:00.123Z
    const NOW: Stamp = Stamp { unix_ms: AT + 5_000, clock: ClockQuality::Synced };

    fn record(lane: Lane, delta: DeltaType, body: &'static [u8]) -> Record {
        let at = Stamp { unix_ms: AT, clock: ClockQuality::Unsynced };
        Record {
            lane,
            delta,
            seq: Seq(1_764_550_000_000_042),
            epoch: Epoch(7),
            key: ObjectKey::new("default", "press07"),
            uid: Uid::default(),
            created_at: at,
            at,
            body: Bytes::from_static(body),
        }
    }

    fn sent(lane: Lane, delta: DeltaType, body: &'static [u8]) -> Outgoing {
        Format::new("site1", "tidegate").record(&record(lane, delta, body), NOW)
    }

    fn header(out: &Outgoing, name: &str) -> Option<String> {
        out.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
    }

    #[test]
    fn a_state_record_has_exactly_these_headers() {
        let out = sent(Lane::State, DeltaType::Updated, br#"{"device":"press07"}"#);
        let want = [
            ("content-type", "application/json"),
            ("ce_specversion", "1.0"),
            ("ce_id", "site1/7/1764550000000042"),
            ("ce_source", "/tidegate/site1"),
            ("ce_subject", "default/press07"),
            ("ce_type", "dev.tidegate.devicestate.updated.v1"),
            ("ce_time", "2026-12-01T00:00:00.123Z"),
            ("ce_sequence", "00001764550000000042"),
            ("ce_partitionkey", "site1/default/press07"),
            ("tidegate_epoch", "7"),
            ("tidegate_clock", "unsynced"),
        ];
        assert_eq!(out.headers, want.map(|(key, value)| (key, value.to_owned())));
        assert_eq!(out.key, "site1/default/press07");
        assert_eq!(out.value.as_deref(), Some(&br#"{"device":"press07"}"#[..]));
        assert_eq!(out.timestamp_ms, AT);
    }

    #[test]
    fn a_deleted_record_is_a_tombstone_without_a_content_type() {
        let out = sent(Lane::State, DeltaType::Deleted, b"");
        assert_eq!((out.value.clone(), header(&out, "content-type")), (None, None));
        assert_eq!(header(&out, "ce_type").unwrap(), "dev.tidegate.devicestate.deleted.v1");
    }

    #[test]
    fn a_type_says_what_happened() {
        for (lane, delta, body, want) in [
            (Lane::State, DeltaType::Added, &b"{}"[..], "devicestate.created"),
            (Lane::State, DeltaType::Replaced, b"{}", "devicestate.updated"),
            (Lane::Alert, DeltaType::Added, br#"{"id":"a/b/1","state":"firing","value":1}"#, "alert.firing"),
            (Lane::Alert, DeltaType::Updated, br#"{"state":"resolved"}"#, "alert.resolved"),
            (Lane::Alert, DeltaType::Updated, b"nonsense", "alert.updated"),
            (Lane::Event, DeltaType::Added, b"{}", "event"),
        ] {
            assert_eq!(header(&sent(lane, delta, body), "ce_type").unwrap(), format!("dev.tidegate.{want}.v1"));
        }
    }

    #[test]
    fn an_event_is_called_json_only_if_it_is() {
        for (body, json) in [
            (&b"{\"a\":1}"[..], true),
            (b" 21.5", true),
            (b"true", true),
            (b"[1,2]\n", true),
            (b"", false),
            (b"on", false),
            (b"{\"a\":", false),
            (b"12 34", false),
            (b"\x00\xff", false),
            (b"\"\xff\"", false),
        ] {
            let out = sent(Lane::Event, DeltaType::Added, body);
            let want = if json { JSON } else { BYTES };
            assert_eq!(header(&out, "content-type").unwrap(), want, "{body:?}");
            assert_eq!(out.value.as_deref(), Some(body), "an event without a body is no tombstone");
        }
    }

    #[test]
    fn a_timestamp_is_never_ahead_nor_before_the_release() {
        let stamp = |unix_ms| Stamp { unix_ms, clock: ClockQuality::Unsynced };
        assert_eq!(timestamp(stamp(AT), NOW), AT);
        assert_eq!(timestamp(stamp(AT + 3_600_000), NOW), NOW.unix_ms);
        for wrong in [0, -5, 86_400_000] {
            assert_eq!(timestamp(stamp(wrong), NOW), NOW.unix_ms);
        }
        assert_eq!(timestamp(stamp(-5), stamp(-5)), 0);
        assert_eq!(timestamp(stamp(5), stamp(7)), 7);
    }

    #[test]
    fn a_gap_goes_under_the_number_of_the_last_dropped_record() {
        let gap = GapNotice { lane: Lane::Event, epoch: Epoch(7), from: Seq(3), to: Seq(9), lost: 6 };
        let out = Format::new("site1", "p").gap(&gap, NOW);
        assert_eq!(out.value.as_deref(), Some(&br#"{"from":3,"to":9,"lost":6,"lane":"event"}"#[..]));
        assert_eq!(header(&out, "ce_type").unwrap(), "dev.tidegate.gap.v1");
        assert_eq!(header(&out, "ce_sequence").unwrap(), "00000000000000000009");
        assert_eq!(header(&out, "ce_id").unwrap(), "site1/7/9/gap");
        assert_eq!(out.key, "site1");
    }

    #[test]
    fn each_lane_has_its_own_topic() {
        let topics = Lane::ALL.map(|lane| Format::new("g", "tidegate").kafka_topic(lane));
        assert_eq!(topics, ["tidegate.alerts", "tidegate.devicestates", "tidegate.events"]);
    }
}
