//! Connections with bounds: how many there are, how long a request may take to arrive and an answer to be taken.
//!
//! axum's server has none of these; they are laid around the socket, where they hold for every path.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tracing::warn;

/// The limits of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Connections at a time; more wait in the listen queue of the system.
    pub(super) connections_max: usize,
    /// From the first wait for a request until it is there, and between two requests.
    pub(super) request: Duration,
    /// Without a byte of an answer being taken.
    pub(super) stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections_max: 256, request: Duration::from_secs(30), stall: Duration::from_mins(2) }
    }
}

/// Accepts at most `connections_max` connections.
pub(super) struct Door {
    listener: TcpListener,
    limits: Limits,
    permits: Arc<Semaphore>,
    cut: CancellationToken,
}

impl Door {
    /// `cut` ends every connection at once.
    pub(super) fn new(listener: TcpListener, limits: Limits, cut: CancellationToken) -> Self {
        Self { listener, limits, permits: Arc::new(Semaphore::new(limits.connections_max)), cut }
    }
}

impl Listener for Door {
    type Io = Conn;
    type Addr = SocketAddr;

    #[expect(clippy::expect_used, reason = "nobody closes the semaphore")]
    async fn accept(&mut self) -> (Conn, SocketAddr) {
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed");
        let (stream, address) = Listener::accept(&mut self.listener).await;
        if let Err(error) = stream.set_nodelay(true) {
            warn!(%error, "TCP_NODELAY was refused, answers may be late");
        }
        (Conn::new(stream, self.limits, permit, self.cut.clone()), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection. Its timers run only while there is something to wait for.
pub(super) struct Conn {
    stream: TcpStream,
    limits: Limits,
    work: Work,
    /// Runs while a request is awaited, with the number of the requests before it.
    request_timer: Option<(u64, Pin<Box<Sleep>>)>,
    /// Runs while the client takes nothing.
    stall_timer: Option<Pin<Box<Sleep>>>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _permit: OwnedSemaphorePermit,
}

impl Conn {
    fn new(stream: TcpStream, limits: Limits, permit: OwnedSemaphorePermit, cut: CancellationToken) -> Self {
        Self {
            stream,
            limits,
            work: Work::default(),
            request_timer: None,
            stall_timer: None,
            cut: Box::pin(cut.cancelled_owned()),
            _permit: permit,
        }
    }

    /// An error if all connections were cut.
    fn check_cut(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }

    /// Called when nothing is there to read.
    fn poll_request_timer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.work.is_busy() {
            self.request_timer = None;
            return Poll::Pending;
        }
        let requests = self.work.requests();
        if self.request_timer.as_ref().is_none_or(|(before, _)| *before != requests) {
            self.request_timer = Some((requests, Box::pin(sleep(self.limits.request))));
        }
        match &mut self.request_timer {
            Some((_, timer)) => timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
            None => Poll::Pending,
        }
    }

    /// Counts the time that a write waits.
    fn poll_stall_timer<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall_timer = None;
            // An answer that is being taken is no idle connection.
            self.request_timer = None;
            return written;
        }
        let timer = self.stall_timer.get_or_insert_with(|| Box::pin(sleep(self.limits.stall)));
        timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Conn {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check_cut(cx)?;
        match Pin::new(&mut self.stream).poll_read(cx, out) {
            Poll::Pending => self.poll_request_timer(cx),
            read @ Poll::Ready(_) => read,
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check_cut(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.poll_stall_timer(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_cut(cx)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.poll_stall_timer(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What a connection is at: counts its requests, and those that are being answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Work(Arc<(AtomicUsize, AtomicU64)>);

/// A request is being answered while this lives.
#[derive(Debug)]
pub(super) struct Busy(Work);

impl Work {
    /// A request has arrived.
    pub(super) fn begin(&self) -> Busy {
        self.0.0.fetch_add(1, Ordering::Relaxed);
        self.0.1.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    fn is_busy(&self) -> bool {
        self.0.0.load(Ordering::Relaxed) > 0
    }

    fn requests(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connected<IncomingStream<'_, Door>> for Work {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        stream.io().work.clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LONG: Duration = Duration::from_mins(1);
    const SHORT: Duration = Duration::from_millis(20);

    async fn door(request: Duration, stall: Duration) -> (Door, SocketAddr, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = CancellationToken::new();
        let limits = Limits { connections_max: 1, request, stall };
        (Door::new(listener, limits, cut.clone()), address, cut)
    }

    async fn pair(request: Duration, stall: Duration) -> (Conn, TcpStream, CancellationToken) {
        let (mut door, address, cut) = door(request, stall).await;
        let client = TcpStream::connect(address).await.unwrap();
        let (conn, _) = door.accept().await;
        (conn, client, cut)
    }

    fn kind<T: std::fmt::Debug>(outcome: io::Result<T>) -> io::ErrorKind {
        outcome.unwrap_err().kind()
    }

    #[tokio::test]
    async fn a_request_that_trickles_in_runs_out_of_time() {
        let (mut conn, mut client, _cut) = pair(SHORT, LONG).await;
        client.write_all(b"G").await.unwrap();
        assert_eq!(conn.read(&mut [0; 1]).await.unwrap(), 1);
        let mut feed = tokio::time::interval(Duration::from_millis(1));
        let trickle = async {
            loop {
                feed.tick().await;
                client.write_all(b"E").await.unwrap();
            }
        };
        let ended = async {
            loop {
                if let Err(error) = conn.read(&mut [0; 1]).await {
                    return error.kind();
                }
            }
        };
        let both = async {
            tokio::select! {
                () = trickle => {}
                kind = ended => assert_eq!(kind, io::ErrorKind::TimedOut),
            }
        };
        tokio::time::timeout(Duration::from_secs(2), both).await.expect("the time for a request runs out");
    }

    #[tokio::test]
    async fn a_watch_may_be_silent_for_as_long_as_it_lasts() {
        let (mut conn, client, _cut) = pair(SHORT, LONG).await;
        let busy = conn.work.begin();
        let silent = tokio::time::timeout(SHORT * 3, conn.read(&mut [0; 1])).await;
        assert!(silent.is_err(), "{silent:?}");
        drop(busy);
        assert_eq!(kind(conn.read(&mut [0; 1]).await), io::ErrorKind::TimedOut);
        drop(client);
    }

    #[tokio::test]
    async fn an_answer_that_nobody_takes_runs_out_of_time() {
        let (mut conn, client, _cut) = pair(LONG, SHORT).await;
        let written = async {
            loop {
                if let Err(error) = conn.write_all(&[0; 8192]).await {
                    return error.kind();
                }
            }
        };
        assert_eq!(written.await, io::ErrorKind::TimedOut);
        drop(client);
    }

    #[tokio::test]
    async fn a_cut_ends_a_connection_that_waits() {
        let (mut conn, client, cut) = pair(LONG, LONG).await;
        let mut buffer = [0; 1];
        let (read, ()) = tokio::join!(conn.read(&mut buffer), async { cut.cancel() });
        assert_eq!(kind(read), io::ErrorKind::ConnectionAborted);
        assert_eq!(kind(conn.write_all(b"x").await), io::ErrorKind::ConnectionAborted);
        drop(client);
    }

    #[tokio::test]
    async fn one_more_connection_waits_until_another_ends() {
        let (mut door, address, _cut) = door(LONG, LONG).await;
        let _clients = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let (first, _) = door.accept().await;
        assert!(tokio::time::timeout(SHORT, door.accept()).await.is_err());
        drop(first);
        let _second = door.accept().await;
    }
}
