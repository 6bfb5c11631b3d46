//! One connection: its socket, its timers, its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::cause::Cause;
use super::conversation::{CROWD_MAX, Conversation, End, Taken};
use super::frame::Version;
use super::handshake::{Hello, Refusal, greet, look_of};
use super::hub::Hub;
use super::{Inbound, codec};
use crate::model::Lsn;

/// Room that is made for a read.
const READ_BYTES: usize = 4 << 10;

/// How long a taken-over connection has to hand over what it has read.
const TAKEOVER_MAX: Duration = Duration::from_secs(1);

/// How long a stop waits for acknowledgements of what has been read.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// How long the last bytes may take.
const FAREWELL_MAX: Duration = Duration::from_millis(250);

/// A connection's ways to the engine.
#[derive(Debug, Clone)]
pub(super) struct Links {
    /// Publishes for the engine.
    pub(super) inbound: mpsc::Sender<Inbound>,
    /// The position that is on disk.
    pub(super) durable: watch::Receiver<Lsn>,
    /// Cancelled when the gateway stops.
    pub(super) shutdown: CancellationToken,
}

/// A place among `connections_max`, or the right to be told that there is none.
#[derive(Debug)]
pub(super) enum Seat {
    /// A place.
    Taken(OwnedSemaphorePermit),
    /// None is free. A client that takes its own old connection over gets that one's place.
    Full {
        /// Holds the bound of those who are told.
        waiting: OwnedSemaphorePermit,
        /// Where places come from.
        places: Arc<Semaphore>,
    },
}

/// Serves a connection from its first byte to its last.
pub(super) async fn serve(mut socket: TcpStream, peer: SocketAddr, seat: Seat, hub: Arc<Hub>, links: Links) {
    if let Err(error) = socket.set_nodelay(true) {
        debug!(%peer, %error, "TCP_NODELAY could not be set");
    }
    let id = hub.next_connection();
    let mut input = BytesMut::with_capacity(READ_BYTES);
    let greeting = timeout(hub.options.connect_timeout.0, greet(&mut socket, &mut input, &hub, id));
    let greeted = tokio::select! {
        greeted = greeting => greeted.unwrap_or(Err(Refusal::Refused { cause: Cause::ConnectTimeout, version: None })),
        () = links.shutdown.cancelled() => return,
    };
    let hello = match greeted {
        Ok(hello) => hello,
        Err(refusal) => return refuse(socket, peer, &refusal, &input, &hub).await,
    };
    let version = Some(hello.profile.version);
    let Some(_place) = take_place(seat, &hello, &hub).await else {
        let refusal = Refusal::Refused { cause: Cause::ConnectionsMax, version };
        return refuse(socket, peer, &refusal, &input, &hub).await;
    };
    let talk = enter(id, hello, &hub, &links).await;
    debug!(%peer, client = %talk.session.client, version = ?talk.profile.version, "a client connected");
    converse(socket, talk, input, &hub, links).await;
}

/// Waits for a place if the client's own former connection holds one.
async fn take_place(seat: Seat, hello: &Hello, hub: &Hub) -> Option<OwnedSemaphorePermit> {
    match seat {
        Seat::Taken(place) => Some(place),
        Seat::Full { waiting, places } => {
            if !hub.is_connected(&hello.client) {
                return None;
            }
            hub.kick(&hello.client, Cause::TakenOver);
            let place = timeout(TAKEOVER_MAX, places.acquire_owned()).await.ok()?.ok();
            drop(waiting);
            place
        }
    }
}

/// Takes the client id. What the former connection has read, and its will, goes first.
async fn enter(id: u64, hello: Hello, hub: &Arc<Hub>, links: &Links) -> Conversation {
    let Hello { client, profile, will, connack } = hello;
    let (session, former) = hub.enter(id, client, will);
    let version = profile.version;
    let mut talk = Conversation::new(Arc::clone(hub), session, profile);
    talk.acknowledge(*links.durable.borrow(), hub.clock.ticks());
    if let Some(former) = former
        && timeout(TAKEOVER_MAX, former.gone.cancelled()).await.is_err()
        && let Some(will) = former.take_will()
    {
        // The engine is so busy that the old connection cannot hand over; its will must not come after ours.
        hub.publish(&will);
        let message = will.message(&former.client);
        let inbound = Inbound { message, received: hub.clock.ticks(), ticket: None };
        send(&links.inbound, inbound, &links.shutdown).await;
    }
    codec::connack(version, connack, &mut talk.out);
    talk
}

/// Runs a conversation and ends it in order: last words, what waits for the engine, the will, the client id, the
/// socket.
async fn converse(mut socket: TcpStream, mut talk: Conversation, mut input: BytesMut, hub: &Hub, mut links: Links) {
    let mut end = run(&mut socket, &mut talk, &mut input, hub, &mut links).await;
    if end == End::Caused(Cause::TakenOver) {
        end = hear_out(&socket, &mut talk, &mut input, hub, &links).await;
    }
    report(end, &talk, hub);
    if let End::Caused(cause) = end {
        codec::disconnect(talk.profile.version, cause, &mut talk.out);
    }
    // Also to a peer that has closed: it may have closed its own half only.
    say(&mut socket, &mut talk.out).await;
    match end {
        End::Left { with_will: false } | End::Caused(Cause::Stopping) => drop(talk.session.take_will()),
        End::Left { with_will: true } | End::Lost | End::Caused(_) => talk.publish_will(),
    }
    while let Some(inbound) = talk.pop_pending() {
        send(&links.inbound, inbound, &links.shutdown).await;
    }
    drop(talk);
    if end != End::Lost {
        linger(&mut socket).await;
    }
}

/// Serves what a taken-over client had sent before: a button that wakes, publishes and hangs up may be back before its
/// first words are read. Gives the end that they lead to.
async fn hear_out(socket: &TcpStream, talk: &mut Conversation, input: &mut BytesMut, hub: &Hub, links: &Links) -> End {
    input.reserve(READ_BYTES);
    // Most often there is nothing more.
    drop(socket.try_read_buf(input));
    let now = hub.clock.ticks();
    loop {
        match talk.take(input, now, true) {
            Err(end) => return end,
            Ok(Taken::All) => return Cause::TakenOver.into(),
            Ok(Taken::Batch | Taken::Blocked) => {
                while let Some(inbound) = talk.pop_pending() {
                    send(&links.inbound, inbound, &links.shutdown).await;
                }
            }
        }
    }
}

/// Moves bytes until something ends the connection.
async fn run(
    socket: &mut TcpStream,
    talk: &mut Conversation,
    input: &mut BytesMut,
    hub: &Hub,
    links: &mut Links,
) -> End {
    let (mut reader, mut writer) = socket.split();
    let session = Arc::clone(&talk.session);
    let mut state = Flow { heard: hub.clock.ticks(), ..Flow::default() };
    let silence_max = talk.profile.silence_max;
    let mut alarm = std::pin::pin!(sleep(silence_max.unwrap_or(Duration::MAX)));
    loop {
        let next = match step(talk, input, hub, links, &mut state) {
            Ok(next) => next,
            Err(end) => return end,
        };
        if input.capacity() - input.len() < READ_BYTES / 8 {
            input.reserve(READ_BYTES);
        }
        tokio::select! {
            read = reader.read_buf(input), if next.reads => match read {
                // A reset counts as the end, too: what was read before it is served.
                Ok(0) | Err(_) => state.peer_gone = true,
                Ok(_) => {}
            },
            wrote = writer.write_buf(&mut talk.out), if next.writes => {
                if wrote.is_err() {
                    // Nobody listens any more, but there may be packets left to read.
                    state.is_mute = true;
                }
            }
            permit = links.inbound.reserve(), if next.sends => match permit {
                Ok(permit) => if let Some(inbound) = talk.pop_pending() { permit.send(inbound) },
                Err(_) => return Cause::Stopping.into(),
            },
            changed = links.durable.changed(), if next.awaits_commit => state.durable_closed = changed.is_err(),
            () = session.wake.notified() => {}
            () = tokio::task::yield_now(), if next.is_busy => {}
            () = sleep(CROWD_MAX), if next.asks_again => {}
            () = links.shutdown.cancelled(), if !state.drains => {
                state.drains = true;
                alarm.set(sleep(DRAIN_MAX));
            }
            () = &mut alarm, if state.drains || silence_max.is_some() => {
                let silence_max = silence_max.unwrap_or_default();
                let silence = hub.clock.ticks().saturating_sub(state.heard);
                if state.drains {
                    return Cause::Stopping.into();
                }
                if silence >= silence_max && next.reads {
                    return Cause::KeepAlive.into();
                }
                // Silence that we asked for by not reading does not count.
                let rest = silence_max.saturating_sub(silence);
                alarm.set(sleep(if rest.is_zero() { silence_max } else { rest }));
            }
        }
    }
}

/// Does all that can be done without waiting, and says what to wait for.
fn step(
    talk: &mut Conversation,
    input: &mut BytesMut,
    hub: &Hub,
    links: &mut Links,
    state: &mut Flow,
) -> Result<Waits, End> {
    if let Some(cause) = talk.session.kicked() {
        return Err(cause.into());
    }
    let now = hub.clock.ticks();
    let unread = input.len();
    let taken = if state.drains { Taken::Blocked } else { talk.take(input, now, state.peer_gone)? };
    if input.len() < unread {
        state.heard = now;
    }
    send_pending(talk, links)?;
    talk.acknowledge(*links.durable.borrow_and_update(), now);
    if talk.has_to_come_back() {
        return Err(Cause::Unstored.into());
    }
    let has_more = talk.feed();
    if state.is_mute {
        talk.out.clear();
    } else if talk.out.is_empty() && talk.out.capacity() > 1 << 16 {
        talk.out = BytesMut::new();
    }
    if state.peer_gone && taken == Taken::All {
        return Err(End::Lost);
    }
    if state.drains && !talk.has_pending() && !talk.awaits_acks() {
        return Err(Cause::Stopping.into());
    }
    // What blocked may have moved since: then there is nothing to wait for.
    let is_free = taken == Taken::Blocked && !state.drains && !talk.is_blocked(state.peer_gone, now);
    Ok(Waits {
        reads: taken != Taken::Blocked && !state.peer_gone,
        writes: !talk.out.is_empty(),
        sends: talk.has_pending(),
        awaits_commit: talk.awaits_commit() && !state.durable_closed,
        is_busy: taken == Taken::Batch || is_free || (has_more && !state.is_mute),
        asks_again: taken == Taken::Blocked && !state.drains,
    })
}

/// Hands over what the engine has room for.
fn send_pending(talk: &mut Conversation, links: &Links) -> Result<(), End> {
    while talk.has_pending() {
        match links.inbound.try_reserve() {
            Ok(permit) => {
                if let Some(inbound) = talk.pop_pending() {
                    permit.send(inbound);
                }
            }
            Err(TrySendError::Full(())) => break,
            Err(TrySendError::Closed(())) => return Err(Cause::Stopping.into()),
        }
    }
    Ok(())
}

/// Where a connection's traffic stands.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "four ends that close one by one, in any order")]
struct Flow {
    /// `Clock::ticks` of the newest packet.
    heard: Duration,
    /// The peer will send nothing more.
    peer_gone: bool,
    /// Nothing can be written any more.
    is_mute: bool,
    /// The gateway stops: nothing is read any more, acknowledgements still go out.
    drains: bool,
    /// No further commit will be announced.
    durable_closed: bool,
}

/// What a connection waits for.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is the condition of one branch of a select")]
struct Waits {
    reads: bool,
    writes: bool,
    sends: bool,
    awaits_commit: bool,
    is_busy: bool,
    asks_again: bool,
}

/// Sends to the engine, however full its channel is; the stop of the gateway gives it a last second.
async fn send(inbound: &mpsc::Sender<Inbound>, message: Inbound, shutdown: &CancellationToken) {
    let hurry = async {
        shutdown.cancelled().await;
        sleep(DRAIN_MAX).await;
    };
    tokio::select! {
        sent = inbound.send(message) => if sent.is_err() {
            debug!("the engine is gone; a publish without acknowledgement is dropped");
        },
        () = hurry => debug!("the engine takes nothing; a publish without acknowledgement is dropped"),
    }
}

fn report(end: End, talk: &Conversation, hub: &Hub) {
    let client = &talk.session.client;
    let End::Caused(cause) = end else {
        debug!(%client, ?end, "a client disconnected");
        return;
    };
    hub.count_closed(cause);
    let is_unsaid = matches!(cause, Cause::QosNotSupported | Cause::NotAuthorized);
    if talk.profile.version == Version::V4 && is_unsaid && hub.refusal_warning.allow(hub.clock.now()) {
        warn!(%client, reason = cause.label(), "an MQTT 3.1.1 client asked for what is refused; its connection is closed");
    } else {
        debug!(%client, reason = cause.label(), "a connection is closed");
    }
}

async fn refuse(mut socket: TcpStream, peer: SocketAddr, refusal: &Refusal, input: &[u8], hub: &Hub) {
    let Refusal::Refused { cause, version } = *refusal else { return };
    hub.count_closed(cause);
    debug!(%peer, reason = cause.label(), "a connection is refused");
    if cause == Cause::WrongProtocol && hub.stranger_warning.allow(hub.clock.now()) {
        warn!(%peer, looks_like = look_of(input), "a connection that does not speak MQTT is closed");
    }
    if let Some(bytes) = codec::refusal(version, cause) {
        say(&mut socket, &mut BytesMut::from(&*bytes)).await;
        linger(&mut socket).await;
    }
}

/// Writes the last bytes and closes our half; a peer that does not read cannot hold us.
async fn say(socket: &mut TcpStream, out: &mut BytesMut) {
    let words = async {
        socket.write_all_buf(out).await?;
        socket.shutdown().await
    };
    if !matches!(timeout(FAREWELL_MAX, words).await, Ok(Ok(()))) {
        debug!("the last bytes could not be written");
    }
}

/// Reads what the peer still sends: closing over unread bytes would reset the connection, and our last words with it.
async fn linger(socket: &mut TcpStream) {
    let mut rest = [0; 1024];
    let drained = async { while matches!(socket.read(&mut rest).await, Ok(1..)) {} };
    if timeout(FAREWELL_MAX, drained).await.is_err() {
        debug!("a peer does not close its connection");
    }
}
