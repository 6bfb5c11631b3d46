//! Objects, lists and watch events as bytes of JSON, in the form that a client asked for.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use super::accept::Form;
use super::failure::Failure;
use super::object::{GROUP_VERSION, Kind, Metadata};
use super::query::Include;
use super::table::{Column, cells, columns};
use crate::model::{Record, Seq, Stamp};

/// Marks the bookmark behind the initial part of a streaming list.
const INITIAL_END: &str = "k8s.io/initial-events-end";
/// `apiVersion` of `PartialObjectMetadata`.
const META_V1: &str = "meta.k8s.io/v1";

/// Writes one kind in one form.
#[derive(Debug, Clone)]
pub(super) struct Renderer {
    pub(super) kind: Kind,
    pub(super) form: Form,
    pub(super) include: Include,
    /// The gateway as a label value.
    pub(super) gateway: Arc<str>,
}

/// What happened, as a watcher is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum EventType {
    /// New to the watcher.
    Added,
    /// Known to the watcher.
    Modified,
    /// Gone, or no longer selected.
    Deleted,
}

/// `metadata` of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMetadata {
    pub(super) resource_version: String,
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    pub(super) page: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remaining_item_count: Option<usize>,
}

impl ListMetadata {
    /// Of a whole list, or of one object's Table.
    pub(super) fn at(version: Seq) -> Self {
        Self { resource_version: version.to_string(), page: None, remaining_item_count: None }
    }
}

impl Renderer {
    /// The answer of a get.
    pub(super) fn single(&self, record: &Record, now: Stamp) -> Vec<u8> {
        match self.form {
            Form::Table(version) => json(&self.table(version, record, now, true)),
            Form::Object | Form::Metadata => self.item(record, now),
        }
    }

    /// What stands before the items of a list.
    pub(super) fn list_head(&self, metadata: &ListMetadata) -> Vec<u8> {
        let (version, kind, items) = match self.form {
            Form::Object => (GROUP_VERSION, self.kind.list_name(), "items"),
            Form::Metadata => (META_V1, "PartialObjectMetadataList", "items"),
            Form::Table(version) => (version, "Table", "rows"),
        };
        let mut head = json(&Head {
            api_version: version,
            kind,
            metadata,
            column_definitions: matches!(self.form, Form::Table(_)).then(|| columns(self.kind)),
        });
        head.pop();
        head.extend_from_slice(format!(",\"{items}\":[").as_bytes());
        head
    }

    /// One item of a list; commas are the caller's.
    pub(super) fn item(&self, record: &Record, now: Stamp) -> Vec<u8> {
        match self.form {
            Form::Object => json(&self.object(record)),
            Form::Metadata => json(&self.partial(record)),
            Form::Table(_) => json(&self.row(record, now)),
        }
    }

    /// What stands behind the items.
    pub(super) fn list_tail() -> &'static [u8] {
        b"]}\n"
    }

    /// One line of a watch. `first` is true for a Table's first frame, which alone defines the columns.
    pub(super) fn event(&self, kind: EventType, record: &Record, now: Stamp, first: bool) -> Vec<u8> {
        match self.form {
            Form::Object => line(&kind, &self.object(record)),
            Form::Metadata => line(&kind, &self.partial(record)),
            Form::Table(version) => line(&kind, &self.table(version, record, now, first)),
        }
    }

    /// A line that says: nothing new up to `version`.
    pub(super) fn bookmark(&self, version: Seq, initial_end: bool) -> Vec<u8> {
        let (api_version, kind) = match self.form {
            Form::Object => (GROUP_VERSION, self.kind.name()),
            Form::Metadata => (META_V1, "PartialObjectMetadata"),
            Form::Table(api_version) => {
                let table: Table<'_> = Table { rows: Vec::new(), ..Table::new(api_version, ListMetadata::at(version)) };
                return line(&"BOOKMARK", &table);
            }
        };
        let annotations = initial_end.then(|| BTreeMap::from([(INITIAL_END, "true")]));
        let metadata = Mark { resource_version: version.to_string(), creation_timestamp: (), annotations };
        line(&"BOOKMARK", &Object { api_version, kind, metadata: &metadata, status: None })
    }

    /// The last line of a watch that cannot go on.
    pub(super) fn error(failure: &Failure) -> Vec<u8> {
        line(&"ERROR", failure.status())
    }

    fn object<'a>(&self, record: &'a Record) -> Object<'a, Metadata> {
        Object {
            api_version: GROUP_VERSION,
            kind: self.kind.name(),
            metadata: Metadata::of(record, &self.gateway),
            status: body(record),
        }
    }

    fn partial(&self, record: &Record) -> Object<'static, Metadata> {
        let metadata = Metadata::of(record, &self.gateway);
        Object { api_version: META_V1, kind: "PartialObjectMetadata", metadata, status: None }
    }

    fn row<'a>(&self, record: &'a Record, now: Stamp) -> Row<'a> {
        let object = match self.include {
            Include::None => None,
            Include::Metadata => Some(self.partial(record)),
            Include::Object => Some(self.object(record)),
        };
        Row { cells: cells(self.kind, record, now), object }
    }

    fn table<'a>(&self, version: &'static str, record: &'a Record, now: Stamp, first: bool) -> Table<'a> {
        Table {
            column_definitions: if first { columns(self.kind) } else { Vec::new() },
            rows: vec![self.row(record, now)],
            ..Table::new(version, ListMetadata::at(record.seq))
        }
    }
}

/// A list without its items.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: &'a ListMetadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    column_definitions: Option<Vec<Column>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a, M> {
    api_version: &'static str,
    kind: &'static str,
    metadata: M,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Cow<'a, RawValue>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Table<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: ListMetadata,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    column_definitions: Vec<Column>,
    rows: Vec<Row<'a>>,
}

impl Table<'_> {
    fn new(api_version: &'static str, metadata: ListMetadata) -> Self {
        Self { kind: "Table", api_version, metadata, column_definitions: Vec::new(), rows: Vec::new() }
    }
}

#[derive(Serialize)]
struct Row<'a> {
    cells: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<Object<'a, Metadata>>,
}

/// `metadata` of a bookmark.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    resource_version: String,
    creation_timestamp: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<&'static str, &'static str>>,
}

#[derive(Serialize)]
struct Event<'a, T, O> {
    #[serde(rename = "type")]
    kind: &'a T,
    object: &'a O,
}

/// The record's body as it is; written anew only where a line break in it would break a watch's lines.
fn body(record: &Record) -> Option<Cow<'_, RawValue>> {
    if record.body.contains(&b'\n') {
        let value: serde_json::Value = serde_json::from_slice(&record.body).ok()?;
        return serde_json::value::to_raw_value(&value).ok().map(Cow::Owned);
    }
    serde_json::from_slice::<&RawValue>(&record.body).ok().map(Cow::Borrowed)
}

fn line(kind: &impl Serialize, object: &impl Serialize) -> Vec<u8> {
    let mut line = json(&Event { kind, object });
    line.push(b'\n');
    line
}

#[expect(clippy::expect_used, reason = "the types above have string keys and no writer that fails")]
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain structs are always written")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::Lane;
    use crate::serve::object::tests::record;

    const BODY: &str = r#"{"device":"a","lastSeen":"2026-12-01T00:00:00Z","metrics":{}, "odd" : 1.50}"#;

    fn renderer(form: Form) -> Renderer {
        Renderer { kind: Kind::DeviceState, form, include: Include::Metadata, gateway: "gw-1".into() }
    }

    fn read(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn the_body_is_served_byte_for_byte() {
        let text = renderer(Form::Object).single(&record(Lane::State, "a", 5, BODY), Stamp::default());
        let text = String::from_utf8(text).unwrap();
        assert!(text.ends_with(&format!("\"status\":{BODY}}}")), "{text}");
        let object = read(text.as_bytes());
        assert_eq!((&object["apiVersion"], &object["kind"]), (&GROUP_VERSION.into(), &"DeviceState".into()));
    }

    #[test]
    fn an_event_is_one_line_whatever_the_body_holds() {
        let broken = BODY.replace(", ", ",\n");
        let line = renderer(Form::Object).event(
            EventType::Added,
            &record(Lane::State, "a", 5, &broken),
            Stamp::default(),
            true,
        );
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
        assert_eq!((&read(&line)["type"], &read(&line)["object"]["status"]["odd"]), (&"ADDED".into(), &json!(1.5)));
    }

    #[test]
    fn a_deletion_is_metadata_with_its_own_version() {
        let line =
            renderer(Form::Object).event(EventType::Deleted, &record(Lane::State, "a", 5, ""), Stamp::default(), true);
        let event = read(&line);
        assert_eq!((&event["type"], &event["object"]["metadata"]["resourceVersion"]), (&"DELETED".into(), &"5".into()));
        assert!(event["object"].get("status").is_none());
    }

    #[test]
    fn a_list_is_closed_around_its_items() {
        for (form, kind, items) in [
            (Form::Object, "DeviceStateList", "items"),
            (Form::Metadata, "PartialObjectMetadataList", "items"),
            (Form::Table(META_V1), "Table", "rows"),
        ] {
            let renderer = renderer(form);
            let mut text = renderer.list_head(&ListMetadata::at(Seq(7)));
            text.extend(renderer.item(&record(Lane::State, "a", 5, BODY), Stamp::default()));
            text.extend(Renderer::list_tail());
            let list = read(&text);
            assert_eq!((&list["kind"], &list["metadata"]), (&kind.into(), &json!({"resourceVersion": "7"})));
            assert_eq!(list[items].as_array().unwrap().len(), 1);
        }
    }

    #[test]
    fn only_the_first_frame_of_a_table_defines_its_columns() {
        let renderer = renderer(Form::Table(META_V1));
        let row = record(Lane::State, "a", 5, BODY);
        let frame = |first| read(&renderer.event(EventType::Modified, &row, Stamp::default(), first))["object"].clone();
        assert_eq!(frame(true)["columnDefinitions"][0]["name"], "Name");
        assert!(frame(false).get("columnDefinitions").is_none());
        assert_eq!(frame(false)["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(frame(false)["metadata"]["resourceVersion"], "5");
    }

    #[test]
    fn a_row_carries_what_was_asked_for() {
        let row = |include| {
            let renderer = Renderer { include, ..renderer(Form::Table(META_V1)) };
            read(&renderer.item(&record(Lane::State, "a", 5, BODY), Stamp::default()))
        };
        assert!(row(Include::None).get("object").is_none());
        assert_eq!(row(Include::Object)["object"]["kind"], "DeviceState");
    }

    #[test]
    fn a_bookmark_carries_its_version_and_marks_the_end_of_the_initial_part() {
        let mark = read(&renderer(Form::Object).bookmark(Seq(9), true));
        assert_eq!((&mark["type"], &mark["object"]["kind"]), (&"BOOKMARK".into(), &"DeviceState".into()));
        assert_eq!(mark["object"]["metadata"]["resourceVersion"], "9");
        assert_eq!(mark["object"]["metadata"]["annotations"][INITIAL_END], "true");
        assert!(
            read(&renderer(Form::Object).bookmark(Seq(9), false))["object"]["metadata"].get("annotations").is_none()
        );
        assert_eq!(
            read(&renderer(Form::Table(META_V1)).bookmark(Seq(9), true))["object"]["metadata"]["resourceVersion"],
            "9"
        );
    }
}
