//! Get and list, with pages that stay on the snapshot of the first.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use tokio::io::AsyncWriteExt as _;
use tracing::debug;

use super::accept::Form;
use super::conn::Busy;
use super::failure::Failure;
use super::object::Kind;
use super::pipe;
use super::query::Options;
use super::render::{ListMetadata, Renderer};
use super::server::Shared;
use super::view::find;
use crate::model::{Millis, ObjectKey, Record, Seq, Stamp};
use crate::queue::Snapshot;

/// Unfinished paged lists at a time; the oldest makes room.
const PAGED_LISTS_MAX: usize = 8;
/// How long the next page may be asked for.
const PAGE_LIFE: Duration = Duration::from_mins(1);
/// Bytes that are gathered before they go to the pipe.
pub(super) const CHUNK_BYTES: usize = 16 * 1024;

/// Which objects are meant: a kind, in one namespace or in all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) kind: Kind,
    pub(super) namespace: Option<String>,
}

/// Answers a get.
pub(super) async fn get(
    shared: &Shared,
    kind: Kind,
    namespace: &str,
    name: &str,
    form: Form,
    options: &Options,
) -> Result<Response, Failure> {
    let view = shared.view()?;
    shared.reach(options.version).await?;
    let record = find(view, kind.lane(), namespace, name).ok_or_else(|| Failure::not_found(kind, name))?;
    let bytes = shared.renderer(kind, form, options.include).single(&record, shared.clock.wall());
    Ok(answer(Body::from(bytes)))
}

/// Answers a list.
pub(super) async fn list(
    shared: &Shared,
    scope: Scope,
    form: Form,
    options: Options,
    busy: Busy,
) -> Result<Response, Failure> {
    shared.view()?;
    shared.reach(options.version).await?;
    let page = page(shared, &scope, &options)?;
    let renderer = shared.renderer(scope.kind, form, options.include);
    let now = shared.clock.wall();
    let body = pipe::body(move |writer| async move {
        if let Err(error) = write(writer, &renderer, page, now).await {
            debug!(%error, "a client left in the middle of a list");
        }
        drop(busy);
    });
    Ok(answer(body))
}

/// A response of JSON.
pub(super) fn answer(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache, private")], body).into_response()
}

/// The lists whose next pages may still be asked for.
#[derive(Debug, Default)]
pub(super) struct Pages(Mutex<VecDeque<Held>>);

#[derive(Debug)]
struct Held {
    at: Seq,
    query: u64,
    records: Arc<[Record]>,
    since: Millis,
}

impl Pages {
    /// Forgets what is too old.
    pub(super) fn purge(&self, now: Millis) {
        self.with(|held| held.retain(|list| now.since(list.since) < PAGE_LIFE));
    }

    fn find(&self, at: Seq, query: u64, now: Millis) -> Option<Arc<[Record]>> {
        self.purge(now);
        let same = |list: &&Held| (list.at, list.query) == (at, query);
        self.with(|held| held.iter().find(same).map(|list| Arc::clone(&list.records)))
    }

    fn hold(&self, list: Held) {
        self.with(|held| {
            held.retain(|other| (other.at, other.query) != (list.at, list.query));
            held.push_back(list);
            while held.len() > PAGED_LISTS_MAX {
                held.pop_front();
            }
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut VecDeque<Held>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A page: a part of a snapshot, and what its list says of itself.
#[derive(Debug)]
struct Page {
    records: Arc<[Record]>,
    from: usize,
    to: usize,
    metadata: ListMetadata,
}

/// The next page of the token, or the first one.
fn page(shared: &Shared, scope: &Scope, options: &Options) -> Result<Page, Failure> {
    let query = fingerprint(scope, options);
    let now = shared.clock.now();
    let (at, records, from) = if let Some(text) = &options.page {
        let token = Token::decode(text).ok_or_else(|| Failure::bad_request("continue is no token of this server"))?;
        if token.query != query {
            return Err(Failure::bad_request("continue belongs to a list with other parameters"));
        }
        let gone = "the continue token is too old; list again without it";
        let records = shared.pages.find(token.at, query, now).ok_or_else(|| Failure::expired(gone))?;
        let from = records.partition_point(|record| record.key <= token.last);
        (token.at, records, from)
    } else {
        let Snapshot { at, mut records } = shared.view()?.list(scope.kind.lane(), scope.namespace.as_deref());
        if options.exact && options.version != at {
            return Err(Failure::expired(format!(
                "resource version {} is not kept; the list is at {at}",
                options.version
            )));
        }
        records.retain(|record| options.filter.matches(record, &shared.gateway));
        (at, Arc::from(records), 0)
    };
    let to = from.saturating_add(options.limit.unwrap_or(usize::MAX)).min(records.len());
    let mut metadata = ListMetadata::at(at);
    if let Some(last) = to.checked_sub(1).and_then(|last| records.get(last)).filter(|_| to < records.len()) {
        metadata.page = Some(Token { at, query, last: last.key.clone() }.encode());
        metadata.remaining_item_count = Some(records.len() - to);
        shared.pages.hold(Held { at, query, records: Arc::clone(&records), since: now });
    }
    Ok(Page { records, from, to, metadata })
}

async fn write(mut writer: pipe::Writer, renderer: &Renderer, page: Page, now: Stamp) -> std::io::Result<()> {
    let mut chunk = renderer.list_head(&page.metadata);
    for (n, record) in page.records.get(page.from..page.to).unwrap_or_default().iter().enumerate() {
        if n > 0 {
            chunk.push(b',');
        }
        chunk.extend(renderer.item(record, now));
        if chunk.len() >= CHUNK_BYTES {
            writer.write_all(&chunk).await?;
            chunk.clear();
        }
    }
    chunk.extend_from_slice(Renderer::list_tail());
    writer.write_all(&chunk).await
}

/// Tells lists with other parameters apart; means nothing to another process.
fn fingerprint(scope: &Scope, options: &Options) -> u64 {
    let mut hasher = DefaultHasher::new();
    (scope.kind.name(), &scope.namespace).hash(&mut hasher);
    options.filter.labels.to_string().hash(&mut hasher);
    options.filter.fields.hash(&mut hasher);
    hasher.finish()
}

/// Where the next page begins. Written as `<at>.<query>.<last key in hex>`; opaque to clients.
#[derive(Debug, PartialEq, Eq)]
struct Token {
    at: Seq,
    query: u64,
    last: ObjectKey,
}

impl Token {
    fn encode(&self) -> String {
        let mut text = format!("{}.{:016x}.", self.at, self.query);
        for byte in self.last.to_string().bytes() {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
        }
        text
    }

    fn decode(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let at = Seq(parts.next()?.parse().ok()?);
        let query = u64::from_str_radix(parts.next()?, 16).ok()?;
        let hex = parts.next()?.as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = hex.chunks(2).map(byte).collect();
        let last = ObjectKey::parse(&String::from_utf8(bytes?).ok()?)?;
        parts.next().is_none().then_some(Self { at, query, last })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    fn held(at: u64, since: u64) -> Held {
        Held { at: Seq(at), query: 1, records: Arc::from(Vec::new()), since: Millis(since) }
    }

    #[test]
    fn a_token_survives_its_text_with_any_key() {
        let token = Token { at: Seq(u64::MAX), query: 7, last: ObjectKey::new("default", "hall/door 4 ü") };
        assert_eq!(Token::decode(&token.encode()), Some(token));
    }

    #[test]
    fn a_token_of_somebody_else_is_not_taken() {
        for text in ["", "1", "1.2", "1.2.", "x.0.61", "1.0.6", "1.0.zz", "1.0.612f62.9", "1.0.ff", "eyJ2IjoibWV0YSJ9"]
        {
            assert_eq!(Token::decode(text), None, "{text}");
        }
    }

    #[test]
    fn a_paged_list_is_held_for_a_minute() {
        let pages = Pages::default();
        pages.hold(held(5, 0));
        assert!(pages.find(Seq(5), 1, Millis(59_999)).is_some());
        assert!(pages.find(Seq(5), 2, Millis(0)).is_none(), "other parameters");
        assert!(pages.find(Seq(5), 1, Millis(60_000)).is_none());
    }

    #[test]
    fn the_oldest_paged_list_makes_room() {
        let pages = Pages::default();
        for at in 0..=PAGED_LISTS_MAX as u64 {
            pages.hold(held(at, 0));
            pages.hold(held(at, 0));
        }
        assert!(pages.find(Seq(0), 1, Millis(0)).is_none());
        assert!(pages.find(Seq(1), 1, Millis(0)).is_some());
    }
}
