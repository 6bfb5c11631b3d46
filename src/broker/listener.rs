//! Accepts connections, within bounds, and ends them all when the gateway stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use super::cause::Cause;
use super::connection::{Links, Seat, serve};
use super::hub::Hub;

/// Connections beyond `connections_max` that are told so at a time; further ones are closed without a word.
const REFUSALS_MAX: usize = 64;

/// Pause after a failed accept: the usual reason, too many open files, does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// All connections are over this long after the stop.
const STOP_MAX: Duration = Duration::from_millis(1_900);

/// Accepts until the shutdown token is cancelled, then sees all connections end.
pub(super) async fn listen(listener: TcpListener, hub: Arc<Hub>, links: Links) {
    let door = Door::new(&hub);
    let mut tasks = JoinSet::new();
    let mut is_failing = false;
    loop {
        tokio::select! {
            () = links.shutdown.cancelled() => break,
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => check(ended),
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => {
                    is_failing = false;
                    door.open(socket, peer, &hub, &links, &mut tasks);
                }
                Err(error) => {
                    if !is_failing {
                        warn!(%error, "connections cannot be accepted");
                    }
                    is_failing = true;
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    stop(tasks).await;
}

/// Hands out places.
struct Door {
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
}

impl Door {
    fn new(hub: &Hub) -> Self {
        let places = hub.options.connections_max.min(Semaphore::MAX_PERMITS);
        Self { places: Arc::new(Semaphore::new(places)), refusals: Arc::new(Semaphore::new(REFUSALS_MAX)) }
    }

    fn open(&self, socket: TcpStream, peer: SocketAddr, hub: &Arc<Hub>, links: &Links, tasks: &mut JoinSet<()>) {
        let seat = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => Seat::Taken(place),
            Err(_) => match Arc::clone(&self.refusals).try_acquire_owned() {
                Ok(waiting) => Seat::Full { waiting, places: Arc::clone(&self.places) },
                Err(_) => return hub.count_closed(Cause::ConnectionsMax),
            },
        };
        tasks.spawn(serve(socket, peer, seat, Arc::clone(hub), links.clone()));
    }
}

async fn stop(mut tasks: JoinSet<()>) {
    let connections = tasks.len();
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            check(ended);
        }
    };
    if timeout(STOP_MAX, all).await.is_err() {
        warn!(connections = tasks.len(), "connections did not end in time");
        tasks.shutdown().await;
    }
    info!(connections, "MQTT listener is closed");
}

fn check(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        error!(%error, "a connection's task panicked; its client is disconnected");
    }
}
