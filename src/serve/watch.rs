//! Watch: one JSON line per event, for as long as the client stays.
//!
//! A watcher reads by position: it looks when the head moves, tells what changed, and waits. It ends only between two
//! lines: at its timeout, when the server stops, after an `ERROR`, or when the client is gone.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::sleep;
use tracing::debug;

use super::accept::Form;
use super::conn::Busy;
use super::failure::Failure;
use super::list::{CHUNK_BYTES, Scope, answer};
use super::pipe;
use super::query::{Options, Start, WatchOptions};
use super::render::{EventType, Renderer};
use super::selector::Filter;
use super::server::Shared;
use super::track::Tracker;
use crate::model::{Record, Seq};
use crate::runtime::metrics::Metrics;

/// Records of one look.
const LOOK_RECORDS_MAX: usize = 500;
/// Between two bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// The last bookmark comes this long before the end, or at half time of a short watch.
const LAST_BOOKMARK_BEFORE: Duration = Duration::from_secs(2);

/// Answers a watch: its headers at once, then its lines.
pub(super) fn watch(
    shared: &Arc<Shared>,
    scope: Scope,
    form: Form,
    options: Options,
    watch: WatchOptions,
    busy: Busy,
) -> Result<Response, Failure> {
    shared.view()?;
    let seat = Seat::take(shared, busy)?;
    let renderer = shared.renderer(scope.kind, form, options.include);
    let shared = Arc::clone(shared);
    let body = pipe::body(move |writer| async move {
        let watcher = Watcher {
            head: shared.view.watch(),
            by_labels: !options.filter.labels.selects_all(),
            output: Output { writer, lines: Vec::new(), is_first: true },
            scope,
            filter: options.filter,
            renderer,
            after: Seq::ZERO,
            told: Seq::ZERO,
            shared,
        };
        watcher.run(&watch).await;
        drop(seat);
    });
    Ok(answer(body))
}

/// One of the `watchers_max` places, counted while it is taken.
struct Seat {
    metrics: Arc<Metrics>,
    _permit: OwnedSemaphorePermit,
    _busy: Busy,
}

impl Seat {
    fn take(shared: &Shared, busy: Busy) -> Result<Self, Failure> {
        let permit = Arc::clone(&shared.watchers).try_acquire_owned();
        let permit = permit.map_err(|_| Failure::too_many(shared.options.watchers_max))?;
        shared.metrics.watchers.inc();
        Ok(Self { metrics: Arc::clone(&shared.metrics), _permit: permit, _busy: busy })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.metrics.watchers.dec();
    }
}

/// Why a watch ends before its time.
enum Stop {
    /// The client is told, and lists again or waits.
    Refused(Failure),
    /// The client has left.
    Gone,
}

struct Watcher {
    shared: Arc<Shared>,
    scope: Scope,
    filter: Filter,
    by_labels: bool,
    renderer: Renderer,
    head: watch::Receiver<Seq>,
    /// Everything up to here was told.
    after: Seq,
    /// The newest position that the client knows of.
    told: Seq,
    output: Output,
}

impl Watcher {
    async fn run(mut self, options: &WatchOptions) {
        match self.follow(options).await {
            Ok(()) => {}
            Err(Stop::Refused(failure)) => {
                self.output.lines.extend(Renderer::error(&failure));
                if self.output.flush().await.is_err() {
                    debug!("a client left before it was told why its watch ends");
                }
            }
            Err(Stop::Gone) => debug!("a client left its watch"),
        }
    }

    async fn follow(&mut self, options: &WatchOptions) -> Result<(), Stop> {
        let lead = LAST_BOOKMARK_BEFORE.min(options.timeout / 2);
        tokio::pin! {
            let end = sleep(options.timeout);
            let last_bookmark = sleep(options.timeout.saturating_sub(lead));
            let bookmark = sleep(BOOKMARK_EVERY);
        }
        let mut tracker = self.begin(options).await?;
        let mut last_is_told = !options.bookmarks;
        loop {
            let caught_up = self.look(&mut tracker).await?;
            if end.is_elapsed() || self.shared.shutdown.is_cancelled() {
                return Ok(());
            }
            if !caught_up {
                // A long stretch that the client did not select must not hold the thread.
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                () = self.shared.shutdown.cancelled() => return Ok(()),
                () = &mut end => return Ok(()),
                () = &mut last_bookmark, if !last_is_told => {
                    last_is_told = true;
                    self.tell_position().await?;
                }
                () = &mut bookmark, if options.bookmarks => {
                    bookmark.set(sleep(BOOKMARK_EVERY));
                    self.tell_position().await?;
                }
                moved = self.head.changed() => if moved.is_err() { return Ok(()) },
            }
        }
    }

    /// Tells the initial set, if there is to be one, and knows what the client has.
    async fn begin(&mut self, options: &WatchOptions) -> Result<Tracker, Stop> {
        match options.start {
            Start::After(after) => {
                (self.after, self.told) = (after, after);
                Ok(Tracker::after_position(after, self.by_labels))
            }
            Start::Now => {
                self.after = self.shared.view.head();
                Ok(Tracker::after_position(self.after, self.by_labels))
            }
            Start::Initial => self.tell_all().await,
            Start::Streaming(version) => {
                self.shared.reach(version).await.map_err(Stop::Refused)?;
                let tracker = self.tell_all().await?;
                if options.bookmarks {
                    self.told = self.after;
                    self.output.lines.extend(self.renderer.bookmark(self.after, true));
                    self.output.flush().await?;
                }
                Ok(tracker)
            }
        }
    }

    async fn tell_all(&mut self) -> Result<Tracker, Stop> {
        let list = self.shared.view.list(self.scope.kind.lane(), self.scope.namespace.as_deref());
        let mut tracker = Tracker::after_list(list.at, self.by_labels);
        for record in list.records {
            if self.filter.matches(&record, &self.shared.gateway) {
                tracker.sent(&record);
                self.tell(EventType::Added, &record).await?;
            }
        }
        self.output.flush().await?;
        self.after = list.at;
        Ok(tracker)
    }

    /// Tells what changed since the position. True if that was all.
    async fn look(&mut self, tracker: &mut Tracker) -> Result<bool, Stop> {
        self.head.borrow_and_update();
        let changes = self.shared.view.changes(self.scope.kind.lane(), self.after, LOOK_RECORDS_MAX);
        let changes = changes.map_err(|gone| Stop::Refused(Failure::too_old(gone.after, gone.floor, gone.head)))?;
        for record in &changes.records {
            if !self.is_in_scope(record) {
                continue;
            }
            // A record without a body has no labels to go by, and needs none.
            let matches = record.is_deleted() || self.filter.matches(record, &self.shared.gateway);
            if let Some(kind) = tracker.judge(record, matches) {
                self.tell(kind, record).await?;
                self.told = self.told.max(record.seq);
            }
        }
        self.output.flush().await?;
        self.after = self.after.max(changes.at);
        let caught_up = changes.records.len() < LOOK_RECORDS_MAX;
        if caught_up {
            tracker.caught_up(self.after);
        }
        Ok(caught_up)
    }

    fn is_in_scope(&self, record: &Record) -> bool {
        let namespace = self.scope.namespace.as_deref();
        namespace.is_none_or(|namespace| **record.key.namespace() == *namespace) && self.filter.fields.matches(record)
    }

    async fn tell(&mut self, kind: EventType, record: &Record) -> Result<(), Stop> {
        let line = self.renderer.event(kind, record, self.shared.clock.wall(), self.output.is_first);
        self.output.is_first = false;
        self.output.lines.extend(line);
        if self.output.lines.len() >= CHUNK_BYTES { self.output.flush().await } else { Ok(()) }
    }

    /// A bookmark, if it tells the client anything.
    async fn tell_position(&mut self) -> Result<(), Stop> {
        if self.after <= self.told {
            return Ok(());
        }
        self.told = self.after;
        self.output.lines.extend(self.renderer.bookmark(self.after, false));
        self.output.flush().await
    }
}

/// Lines on their way into the pipe; whole lines only.
struct Output {
    writer: pipe::Writer,
    lines: Vec<u8>,
    is_first: bool,
}

impl Output {
    async fn flush(&mut self) -> Result<(), Stop> {
        let written = self.writer.write_all(&self.lines).await.map_err(|_| Stop::Gone);
        self.lines.clear();
        written
    }
}
