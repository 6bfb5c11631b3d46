//! The server: its socket, its routes, and what all of them share.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::ConnectInfo;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Router, serve};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::accept::{Form, object_form};
use super::conn::{Door, Limits, Work};
use super::failure::Failure;
use super::health::{Health, report};
use super::list::{self, Pages, Scope};
use super::object::{Kind, gateway_label};
use super::query::{Include, Options};
use super::render::Renderer;
use super::view::View;
use super::{discovery, page, watch as watches};
use crate::model::{Millis, Seq};
use crate::queue::Durable;
use crate::runtime::clock::Clock;
use crate::runtime::metrics::{Metrics, SinkLane};

/// Bytes of path and query together.
const URI_BYTES_MAX: usize = 8 * 1024;
/// How long a request waits for a position ahead of the head, as an API server does.
const REACH_WAIT: Duration = Duration::from_secs(3);
/// How long answers may go on after the stop; then connections are cut.
const DRAIN: Duration = Duration::from_secs(1);
/// How often old pages are forgotten.
const PURGE_EVERY: Duration = Duration::from_secs(10);

/// What the server is told about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeOptions {
    /// The gateway's name.
    pub gateway: String,
    /// The Kubernetes namespace of its devices.
    pub namespace: String,
    /// Watches at a time.
    pub watchers_max: usize,
}

/// A server that could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is reachable from outside.
    #[error(
        "serve.listen is {address}, which others can reach, and the served API has no authentication yet; set it to \
         \"127.0.0.1:{}\" and let a proxy or an SSH tunnel with authentication reach it there", address.port()
    )]
    NotLoopback {
        /// As configured.
        address: SocketAddr,
    },
    /// The address cannot be had.
    #[error("cannot listen for HTTP on {address}; stop what listens there, or set serve.listen to another port")]
    Bind {
        /// As configured.
        address: SocketAddr,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The socket was had and then refused by the runtime.
    #[error("cannot serve HTTP on {address}")]
    Serve {
        /// As bound.
        address: SocketAddr,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
}

/// The HTTP server, bound and not yet running.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    shared: Shared,
}

impl Server {
    /// Binds `address`, which must be loopback; port 0 takes any free one. Connections wait until [`Server::run`].
    pub fn bind(
        address: SocketAddr,
        options: ServeOptions,
        view: Arc<impl View>,
        health: Arc<Health>,
        metrics: Arc<Metrics>,
        durable: watch::Receiver<Durable>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ServeError> {
        if !address.ip().is_loopback() {
            return Err(ServeError::NotLoopback { address });
        }
        let bound = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        });
        let (local, listener) = bound.map_err(|source| ServeError::Bind { address, source })?;
        let shared = Shared {
            gateway: gateway_label(&options.gateway).into(),
            watchers: Arc::new(Semaphore::new(options.watchers_max.min(Semaphore::MAX_PERMITS))),
            pages: Pages::default(),
            shutdown: CancellationToken::new(),
            started: clock.now(),
            options,
            view,
            health,
            metrics,
            durable,
            clock,
        };
        Ok(Self { listener, address: local, shared })
    }

    /// Where it listens, with the port that port 0 became.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown`. Then watches end cleanly, answers may take 1 s to finish, and what is left is cut. If
    /// the future is dropped, connections are cut at once.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        let address = self.address;
        let failed = |source| ServeError::Serve { address, source };
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(failed)?;
        let shared = Arc::new(Shared { shutdown: shutdown.clone(), ..self.shared });
        let cut = CancellationToken::new();
        let _cut_at_the_end = cut.clone().drop_guard();
        let door = Door::new(listener, Limits::default(), cut);
        let service = router(Arc::clone(&shared)).into_make_service_with_connect_info::<Work>();
        let serving = serve(door, service).with_graceful_shutdown(shutdown.clone().cancelled_owned());
        let overdue = async {
            shutdown.cancelled().await;
            sleep(DRAIN).await;
        };
        tokio::pin! {
            let serving = serving.into_future();
            let overdue = overdue;
        }
        info!(%address, "HTTP is served");
        loop {
            tokio::select! {
                ended = &mut serving => return ended.map_err(failed),
                () = &mut overdue => {
                    warn!(%address, "HTTP clients did not take their answers in time and are cut off");
                    return Ok(());
                }
                () = sleep(PURGE_EVERY) => shared.pages.purge(shared.clock.now()),
            }
        }
    }
}

/// What every request sees.
pub(super) struct Shared {
    pub(super) options: ServeOptions,
    /// The gateway as a label value.
    pub(super) gateway: Arc<str>,
    pub(super) view: Arc<dyn View>,
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) durable: watch::Receiver<Durable>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) watchers: Arc<Semaphore>,
    pub(super) pages: Pages,
    pub(super) shutdown: CancellationToken,
    pub(super) started: Millis,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Shared {
    /// The view, unless data must not be read now.
    pub(super) fn view(&self) -> Result<&dyn View, Failure> {
        if !self.health.has_started() {
            return Err(Failure::unavailable("the gateway is starting"));
        }
        if self.has_fault() {
            return Err(Failure::unavailable("the disk refuses writes; what is served could not be stored"));
        }
        Ok(&*self.view)
    }

    /// True while the disk refuses writes.
    pub(super) fn has_fault(&self) -> bool {
        self.durable.borrow().fault
    }

    /// Waits up to 3 s for a position that lies ahead.
    pub(super) async fn reach(&self, version: Seq) -> Result<(), Failure> {
        let mut head = self.view.watch();
        if self.view.head() >= version {
            return Ok(());
        }
        let reached = async {
            tokio::select! {
                () = self.shutdown.cancelled() => false,
                reached = head.wait_for(|head| *head >= version) => reached.is_ok(),
            }
        };
        match timeout(REACH_WAIT, reached).await {
            Ok(true) => Ok(()),
            _ => Err(Failure::too_large(version, self.view.head())),
        }
    }

    /// Writes a kind in a form.
    pub(super) fn renderer(&self, kind: Kind, form: Form, include: Include) -> Renderer {
        Renderer { kind, form, include, gateway: Arc::clone(&self.gateway) }
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(page::show))
        .route("/livez", get(livez))
        .route("/healthz", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/version", get(discovery::version))
        .route("/api", get(discovery::core))
        .route("/api/v1", get(discovery::core_resources))
        .route("/apis", get(discovery::groups))
        .route("/apis/tidegate.dev", get(discovery::group))
        .route("/apis/tidegate.dev/v1alpha1", get(discovery::resources))
        .route("/apis/tidegate.dev/v1alpha1/{plural}", get(everywhere))
        .route("/apis/tidegate.dev/v1alpha1/namespaces/{namespace}/{plural}", get(namespaced))
        .route("/apis/tidegate.dev/v1alpha1/namespaces/{namespace}/{plural}/{name}", get(named))
        .fallback(async || Failure::no_path())
        .method_not_allowed_fallback(async || Failure::method_not_allowed())
        .layer(from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
}

/// What holds for every request, before its path is looked at.
async fn guard(ConnectInfo(work): ConnectInfo<Work>, request: Request, next: Next) -> Response {
    let _busy = work.begin();
    let uri = request.uri();
    if uri.path().len() + uri.query().unwrap_or_default().len() > URI_BYTES_MAX {
        return Failure::too_long(URI_BYTES_MAX).into_response();
    }
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or("?"));
    if let Some(host) = host.filter(|host| !is_own_host(host)) {
        let message = format!("Host {host:?} is no name of this machine's loopback; use localhost or 127.0.0.1");
        return Failure::forbidden(message).into_response();
    }
    next.run(request).await
}

/// True for `localhost` and addresses. A web page that rebinds its own name to 127.0.0.1 comes under that name.
fn is_own_host(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => return address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<std::net::Ipv4Addr>().is_ok()
}

type Segments<T> = Result<Path<T>, PathRejection>;

async fn everywhere(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(work): ConnectInfo<Work>,
    path: Segments<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let Path(plural) = path.map_err(|error| Failure::bad_request(error.body_text()))?;
    collection(shared, &work, None, &plural, &uri, &headers).await
}

async fn namespaced(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(work): ConnectInfo<Work>,
    path: Segments<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let Path((namespace, plural)) = path.map_err(|error| Failure::bad_request(error.body_text()))?;
    collection(shared, &work, Some(namespace), &plural, &uri, &headers).await
}

/// A list or a watch.
async fn collection(
    shared: Arc<Shared>,
    work: &Work,
    namespace: Option<String>,
    plural: &str,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Response, Failure> {
    let kind = Kind::from_plural(plural).ok_or_else(Failure::no_path)?;
    let form = accepted(headers)?;
    let mut options = Options::parse(uri)?;
    let scope = Scope { kind, namespace };
    match options.watch.take() {
        Some(watch) => watches::watch(&shared, scope, form, options, watch, work.begin()),
        None => list::list(&shared, scope, form, options, work.begin()).await,
    }
}

async fn named(
    State(shared): State<Arc<Shared>>,
    path: Segments<(String, String, String)>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let Path((namespace, plural, name)) = path.map_err(|error| Failure::bad_request(error.body_text()))?;
    let kind = Kind::from_plural(&plural).ok_or_else(Failure::no_path)?;
    list::get(&shared, kind, &namespace, &name, accepted(&headers)?, &Options::parse(&uri)?).await
}

fn accepted(headers: &HeaderMap) -> Result<Form, Failure> {
    object_form(headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()))
}

/// Alive is who answers; a core task that ends takes the process with it.
async fn livez(uri: Uri) -> Response {
    health("livez", &[("ping", Ok(()))], &uri)
}

async fn readyz(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    let mut checks = shared.health.checks();
    if shared.has_fault() {
        checks.retain(|(name, _)| *name != "disk");
        checks.push(("disk", Err("it refuses writes; nothing is acknowledged".to_owned())));
    }
    health("readyz", &checks, &uri)
}

fn health(path: &str, checks: &[(&'static str, Result<(), String>)], uri: &Uri) -> Response {
    let verbose =
        uri.query().is_some_and(|query| query.split('&').any(|pair| pair.split('=').next() == Some("verbose")));
    let (good, text) = report(path, checks, verbose);
    let code = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CACHE_CONTROL, "no-store")], text)
        .into_response()
}

/// Lags are read at each scrape, so that they are never older than it and a sink that is gone is gone here, too.
async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let now = shared.clock.wall().unix_ms;
    shared.metrics.lag_records.clear();
    shared.metrics.lag_seconds.clear();
    for (sink, lane, _) in shared.view.cursors() {
        let lag = shared.view.lag(&sink, lane);
        let labels = SinkLane { sink: sink.to_string(), lane: lane.into() };
        let oldest = lag.oldest.map_or(0, |oldest| now.saturating_sub(oldest.unix_ms).max(0) / 1000);
        shared.metrics.lag_records.get_or_create(&labels).set(i64::try_from(lag.records).unwrap_or(i64::MAX));
        shared.metrics.lag_seconds.get_or_create(&labels).set(oldest);
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], shared.metrics.encode()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_name_is_not_our_host() {
        for host in ["localhost", "LOCALHOST:7480", "127.0.0.1:7480", "[::1]:7480", "gw.localhost", "10.0.0.7"] {
            assert!(is_own_host(host), "{host}");
        }
        for host in ["evil.example:7480", "localhost.evil.example", "127.0.0.1.evil.example", "", "[evil]", "?"] {
            assert!(!is_own_host(host), "{host}");
        }
    }
}
