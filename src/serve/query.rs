//! The parameters of list and watch, read and checked once.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use axum::extract::Query;
use axum::http::Uri;
use serde::Deserialize;

use super::failure::Failure;
use super::selector::Filter;
use crate::model::Seq;

/// Longest life of a watch that a client may ask for.
const TIMEOUT_MAX: Duration = Duration::from_hours(24);

/// A list, a get, or a watch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    /// Which objects.
    pub(super) filter: Filter,
    /// Not older than this; zero for any.
    pub(super) version: Seq,
    /// `resourceVersionMatch=Exact`.
    pub(super) exact: bool,
    /// Objects on a page; none for all.
    pub(super) limit: Option<usize>,
    /// Token of the next page.
    pub(super) page: Option<String>,
    /// What a Table row carries.
    pub(super) include: Include,
    /// Set if it is a watch.
    pub(super) watch: Option<WatchOptions>,
}

/// What is special to a watch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WatchOptions {
    /// How it begins.
    pub(super) start: Start,
    /// The client takes bookmarks.
    pub(super) bookmarks: bool,
    /// When it ends.
    pub(super) timeout: Duration,
}

/// How a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// Every object as ADDED, then live.
    Initial,
    /// As `Initial`, not older than the Seq (zero for any), and the end of the initial part is marked: the streaming
    /// list.
    Streaming(Seq),
    /// Every change after the Seq.
    After(Seq),
    /// What changes from now on.
    Now,
}

/// `includeObject`: what a Table row carries beside its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Include {
    /// Nothing.
    None,
    /// Metadata.
    Metadata,
    /// The whole object.
    Object,
}

impl Options {
    /// Reads the query of a request. Parameters that are not known are passed over, as an API server does.
    pub(super) fn parse(uri: &Uri) -> Result<Self, Failure> {
        let Query(raw) = Query::<Raw>::try_from_uri(uri).map_err(|error| Failure::bad_request(error.body_text()))?;
        let version = raw.version()?;
        let watch =
            if flag("watch", raw.watch.as_deref())? == Some(true) { Some(raw.watch_options(version)?) } else { None };
        let exact = if watch.is_some() { false } else { raw.exact()? };
        let page = raw.page.filter(|page| !page.is_empty());
        if page.is_some() && version > Seq::ZERO {
            return Err(Failure::bad_request("resourceVersion does not go together with continue"));
        }
        Ok(Self {
            filter: Filter::parse(
                raw.label_selector.as_deref().unwrap_or_default(),
                raw.field_selector.as_deref().unwrap_or_default(),
            )?,
            version,
            exact,
            limit: limit(raw.limit.as_deref())?,
            page,
            include: include(raw.include_object.as_deref())?,
            watch,
        })
    }
}

/// The texts as they come.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    watch: Option<String>,
    resource_version: Option<String>,
    resource_version_match: Option<String>,
    send_initial_events: Option<String>,
    allow_watch_bookmarks: Option<String>,
    timeout_seconds: Option<String>,
    label_selector: Option<String>,
    field_selector: Option<String>,
    limit: Option<String>,
    #[serde(rename = "continue")]
    page: Option<String>,
    include_object: Option<String>,
}

impl Raw {
    fn version(&self) -> Result<Seq, Failure> {
        let text = self.resource_version.as_deref().unwrap_or_default();
        Ok(Seq(if text.is_empty() { 0 } else { number("resourceVersion", text)? }))
    }

    fn version_match(&self) -> Option<&str> {
        self.resource_version_match.as_deref().filter(|text| !text.is_empty())
    }

    fn exact(&self) -> Result<bool, Failure> {
        let field = "resourceVersionMatch";
        let has_version = self.resource_version.as_deref().is_some_and(|text| !text.is_empty());
        match self.version_match() {
            Some(_) if !has_version => Err(Failure::invalid(field, "is forbidden without resourceVersion")),
            None | Some("NotOlderThan") => Ok(false),
            Some("Exact") if self.resource_version.as_deref() == Some("0") => {
                Err(Failure::invalid(field, "Exact is forbidden for resourceVersion 0"))
            }
            Some("Exact") => Ok(true),
            Some(_) => Err(Failure::invalid(field, "supported values: Exact, NotOlderThan")),
        }
    }

    fn watch_options(&self, version: Seq) -> Result<WatchOptions, Failure> {
        let initial = flag("sendInitialEvents", self.send_initial_events.as_deref())?;
        let field = "resourceVersionMatch";
        let start = match (initial, self.version_match()) {
            (Some(_), Some("NotOlderThan")) if initial == Some(true) => Start::Streaming(version),
            (Some(_), Some("NotOlderThan")) if version == Seq::ZERO => Start::Now,
            (None, None) if version == Seq::ZERO => Start::Initial,
            (Some(_), Some("NotOlderThan")) | (None, None) => Start::After(version),
            (Some(_), _) => {
                return Err(Failure::invalid(field, "sendInitialEvents requires resourceVersionMatch NotOlderThan"));
            }
            (None, Some(_)) => {
                return Err(Failure::invalid(field, "is forbidden for watch unless sendInitialEvents is provided"));
            }
        };
        let bookmarks = flag("allowWatchBookmarks", self.allow_watch_bookmarks.as_deref())? == Some(true);
        Ok(WatchOptions { start, bookmarks, timeout: timeout(self.timeout_seconds.as_deref())? })
    }
}

/// A flag as an API server reads it: there without a value is true.
fn flag(name: &str, text: Option<&str>) -> Result<Option<bool>, Failure> {
    match text {
        None => Ok(None),
        Some("" | "1" | "true" | "True" | "TRUE") => Ok(Some(true)),
        Some("0" | "false" | "False" | "FALSE") => Ok(Some(false)),
        Some(other) => Err(Failure::bad_request(format!("{name}={other:?} is neither true nor false"))),
    }
}

fn number(name: &str, text: &str) -> Result<u64, Failure> {
    text.parse().map_err(|_| Failure::bad_request(format!("{name}={text:?} is not a whole number of 64 bits")))
}

/// None for no limit, which is also 0.
fn limit(text: Option<&str>) -> Result<Option<usize>, Failure> {
    let limit = text.filter(|text| !text.is_empty()).map(|text| number("limit", text)).transpose()?;
    Ok(limit.filter(|limit| *limit > 0).map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}

fn include(text: Option<&str>) -> Result<Include, Failure> {
    match text.unwrap_or_default() {
        "" | "Metadata" => Ok(Include::Metadata),
        "None" => Ok(Include::None),
        "Object" => Ok(Include::Object),
        other => Err(Failure::bad_request(format!("includeObject={other:?} is none of None, Metadata, Object"))),
    }
}

/// What is asked for, or 30 to 60 minutes by chance, so that many watches do not end together.
fn timeout(text: Option<&str>) -> Result<Duration, Failure> {
    let seconds = text.filter(|text| !text.is_empty()).map(|text| number("timeoutSeconds", text)).transpose()?;
    Ok(match seconds {
        None | Some(0) => Duration::from_secs(1800 + RandomState::new().hash_one(()) % 1800),
        Some(seconds) => Duration::from_secs(seconds).min(TIMEOUT_MAX),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Options, Failure> {
        Options::parse(&format!("/x?{query}").parse().unwrap())
    }

    fn start(query: &str) -> Start {
        parse(&format!("watch=true&{query}")).unwrap().watch.unwrap().start
    }

    fn code(query: &str) -> Option<i32> {
        parse(query).unwrap_err().status().code
    }

    #[test]
    fn a_list_reads_what_kubectl_sends() {
        let options = parse("limit=500&labelSelector=hall%20in%20(a%2Cb)&includeObject=Object&unknown=1").unwrap();
        assert_eq!((options.limit, options.include, options.watch.is_none()), (Some(500), Include::Object, true));
        assert_eq!(options.filter, Filter::parse("hall in (a,b)", "").unwrap());
        assert_eq!(parse("limit=0&resourceVersion=&continue=").unwrap(), parse("").unwrap());
        assert_eq!(parse("resourceVersion=7").unwrap().version, Seq(7));
        assert!(parse("resourceVersion=7&resourceVersionMatch=Exact").unwrap().exact);
    }

    #[test]
    fn a_watch_starts_where_its_parameters_say() {
        assert_eq!(start(""), Start::Initial);
        assert_eq!(start("resourceVersion=0"), Start::Initial);
        assert_eq!(start("resourceVersion=7"), Start::After(Seq(7)));
        let streaming = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        assert_eq!(start(streaming), Start::Streaming(Seq(0)));
        assert_eq!(start(&format!("{streaming}&resourceVersion=7")), Start::Streaming(Seq(7)));
        let quiet = "sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
        assert_eq!(start(quiet), Start::Now);
        assert_eq!(start(&format!("{quiet}&resourceVersion=7")), Start::After(Seq(7)));
    }

    #[test]
    fn parameters_that_do_not_go_together_are_invalid() {
        assert_eq!(code("watch=true&sendInitialEvents=true"), Some(422));
        assert_eq!(code("watch=true&sendInitialEvents=true&resourceVersionMatch=Exact"), Some(422));
        assert_eq!(code("watch=true&resourceVersionMatch=NotOlderThan"), Some(422));
        assert_eq!(code("resourceVersionMatch=Exact"), Some(422));
        assert_eq!(code("resourceVersion=7&continue=x"), Some(400));
    }

    #[test]
    fn what_cannot_be_read_is_a_bad_request() {
        for query in ["resourceVersion=abc", "limit=-1", "watch=maybe", "includeObject=All", "watch=1&timeoutSeconds=x"]
        {
            assert_eq!(code(query), Some(400), "{query}");
        }
    }

    #[test]
    fn a_watch_without_a_timeout_ends_within_the_hour() {
        let timeout = |query: &str| parse(query).unwrap().watch.unwrap().timeout.as_secs();
        assert!((1800..3600).contains(&timeout("watch=1")));
        assert_eq!(timeout("watch=1&timeoutSeconds=5"), 5);
        assert_eq!(timeout("watch=1&timeoutSeconds=99999999999"), TIMEOUT_MAX.as_secs());
    }
}
