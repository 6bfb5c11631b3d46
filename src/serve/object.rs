//! The served kinds, and the metadata of an object made from a record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{Lane, Record, kube_name};

/// The API group.
pub(super) const GROUP: &str = "tidegate.dev";
/// The one version of it.
pub(super) const VERSION: &str = "v1alpha1";
/// Both, as `apiVersion` has them.
pub(super) const GROUP_VERSION: &str = "tidegate.dev/v1alpha1";
/// What a client may do.
pub(super) const VERBS: [&str; 3] = ["get", "list", "watch"];
/// Names of `kubectl get NAME` that take in both kinds.
pub(super) const CATEGORIES: [&str; 2] = ["all", "tidegate"];

/// Label of the gateway that serves the object.
const GATEWAY_LABEL: &str = "tidegate.dev/gateway";
/// Annotation: the device's or alert's own name, where Kubernetes does not take it.
const KEY_ANNOTATION: &str = "tidegate.dev/key";
/// Annotation: the epoch that the newest change was made in.
const EPOCH_ANNOTATION: &str = "tidegate.dev/epoch";

/// A served kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A device's twin, from lane `state`.
    DeviceState,
    /// An alert's newest transition, from lane `alert`.
    Alert,
}

impl Kind {
    /// All kinds in the order of discovery.
    pub(super) const ALL: [Self; 2] = [Self::DeviceState, Self::Alert];

    /// The kind behind a path segment.
    pub(super) fn from_plural(plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.plural() == plural)
    }

    /// `kind` of an object.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DeviceState => "DeviceState",
            Self::Alert => "Alert",
        }
    }

    /// `kind` of a list.
    pub(super) fn list_name(self) -> &'static str {
        match self {
            Self::DeviceState => "DeviceStateList",
            Self::Alert => "AlertList",
        }
    }

    /// Path segment.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::DeviceState => "devicestates",
            Self::Alert => "alerts",
        }
    }

    /// Singular name.
    pub(super) fn singular(self) -> &'static str {
        match self {
            Self::DeviceState => "devicestate",
            Self::Alert => "alert",
        }
    }

    /// Short name for the command line.
    pub(super) fn short(self) -> &'static str {
        match self {
            Self::DeviceState => "dst",
            Self::Alert => "tgalert",
        }
    }

    /// The lane that holds it.
    pub(super) fn lane(self) -> Lane {
        match self {
            Self::DeviceState => Lane::State,
            Self::Alert => Lane::Alert,
        }
    }
}

/// `metadata` of a served object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    creation_timestamp: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<&'static str, String>,
}

impl Metadata {
    /// Metadata of a record; a deletion's has the gateway's label only.
    pub(super) fn of(record: &Record, gateway: &str) -> Self {
        let own = record.key.name();
        let name = kube_name(own);
        let mut annotations = BTreeMap::from([(EPOCH_ANNOTATION, record.epoch.to_string())]);
        if *name != **own {
            annotations.insert(KEY_ANNOTATION, own.to_string());
        }
        Self {
            name,
            namespace: record.key.namespace().to_string(),
            uid: record.uid.to_string(),
            resource_version: record.seq.to_string(),
            creation_timestamp: record.created_at.rfc3339_seconds(),
            labels: labels(record, gateway),
            annotations,
        }
    }
}

/// The labels that selectors see: the object's own, as far as Kubernetes takes them, and the gateway's.
pub(super) fn labels(record: &Record, gateway: &str) -> BTreeMap<String, String> {
    /// What is read of a body; the rest is passed over.
    #[derive(Default, Deserialize)]
    struct Labelled {
        #[serde(default)]
        labels: BTreeMap<String, String>,
    }
    let Labelled { mut labels } = serde_json::from_slice(&record.body).unwrap_or_default();
    labels.retain(|key, value| is_label_key(key) && is_label_value(value));
    labels.insert(GATEWAY_LABEL.to_owned(), gateway.to_owned());
    labels
}

/// The gateway's name as a label value: as it is if Kubernetes takes it.
pub(super) fn gateway_label(gateway: &str) -> String {
    if is_label_value(gateway) { gateway.to_owned() } else { kube_name(gateway) }
}

/// True for `[prefix/]name` as Kubernetes takes it.
pub(super) fn is_label_key(key: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && is_label_value(name);
    match key.split_once('/') {
        None => is_name(key),
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
    }
}

/// True for at most 63 letters, digits, `-`, `_` and `.` that begin and end with a letter or digit; also empty.
pub(super) fn is_label_value(value: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    value.len() <= 63 && value.chars().all(inner) && edge(value.chars().next()) && edge(value.chars().last())
}

fn is_subdomain(prefix: &str) -> bool {
    let part = |part: &str| !part.is_empty() && is_label_value(part) && !part.contains('_');
    prefix.len() <= 253 && !prefix.contains(|c: char| c.is_ascii_uppercase()) && prefix.split('.').all(part)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
pub(super) mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::model::{ClockQuality, DeltaType, Epoch, ObjectKey, Seq, Stamp, Uid};

    /// A record of `name` in namespace `default`, created one Seq before.
    pub(in crate::serve) fn record(lane: Lane, name: &str, seq: u64, body: &str) -> Record {
        let at = |unix_ms| Stamp { unix_ms, clock: ClockQuality::Synced };
        Record {
            lane,
            delta: if body.is_empty() { DeltaType::Deleted } else { DeltaType::Updated },
            seq: Seq(seq),
            epoch: Epoch::new(1, 7),
            key: ObjectKey::new("default", name),
            uid: Uid { epoch: Epoch::new(1, 7), seq: Seq(seq - 1) },
            created_at: at(1_796_083_200_000),
            at: at(1_796_083_260_000),
            body: Bytes::copy_from_slice(body.as_bytes()),
        }
    }

    #[test]
    fn metadata_names_the_object_as_kubernetes_takes_it_and_keeps_the_original() {
        let body = r#"{"device":"hall/door 4","labels":{"hall":"north","bad key":"x","bad":"-"}}"#;
        let metadata = Metadata::of(&record(Lane::State, "hall/door 4", 9, body), "gw-1");
        let json = serde_json::to_value(&metadata).unwrap();
        assert_eq!(json["name"], kube_name("hall/door 4"));
        assert_eq!(json["annotations"]["tidegate.dev/key"], "hall/door 4");
        assert_eq!(json["labels"], serde_json::json!({"hall": "north", "tidegate.dev/gateway": "gw-1"}));
        assert_eq!(json["resourceVersion"], "9");
        assert_eq!(json["creationTimestamp"], "2026-12-01T00:00:00Z");
    }

    #[test]
    fn a_name_that_fits_has_no_key_annotation() {
        let json = serde_json::to_value(Metadata::of(&record(Lane::State, "press07", 9, "{}"), "gw-1")).unwrap();
        assert_eq!(json["annotations"], serde_json::json!({"tidegate.dev/epoch": Epoch::new(1, 7).to_string()}));
    }

    #[test]
    fn a_device_cannot_pose_as_another_gateways() {
        let body = r#"{"labels":{"tidegate.dev/gateway":"other"}}"#;
        assert_eq!(labels(&record(Lane::State, "a", 2, body), "gw-1")["tidegate.dev/gateway"], "gw-1");
    }

    #[test]
    fn labels_are_held_to_the_rules_of_kubernetes() {
        for key in ["a", "A.b_c-9", "example.com/a"] {
            assert!(is_label_key(key), "{key}");
        }
        for key in ["", "-a", "a/", "/a", "a b/c", "A/b", "a..b/c", &"x".repeat(64), "a/b/c"] {
            assert!(!is_label_key(key), "{key}");
        }
        assert!(is_label_value("") && is_label_value("21.5") && !is_label_value("a/b") && !is_label_value("ü"));
        assert_eq!(gateway_label("gw 1"), kube_name("gw 1"));
    }
}
