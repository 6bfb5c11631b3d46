//! A streamed answer: a future writes into a bounded pipe, and the connection drives it while it reads.
//!
//! No task is spawned: if the client goes away the future is dropped, with all that it holds.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use tokio::io::{AsyncRead, DuplexStream, ReadBuf, duplex};
use tokio_util::codec::{BytesCodec, FramedRead};

/// Bytes that wait in one pipe.
const PIPE_BYTES: usize = 64 * 1024;

/// The end that the future writes to; dropping it ends the answer.
pub(super) type Writer = DuplexStream;

/// A body of what `write` writes; it ends when the future does.
pub(super) fn body<F, W>(write: F) -> Body
where
    F: FnOnce(Writer) -> W,
    W: Future<Output = ()> + Send + 'static,
{
    let (writer, reader) = duplex(PIPE_BYTES);
    let pipe = Pipe { writing: Some(Box::pin(write(writer))), reader };
    Body::from_stream(FramedRead::new(pipe, BytesCodec::new()))
}

struct Pipe {
    writing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    reader: DuplexStream,
}

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        if self.writing.as_mut().is_some_and(|writing| writing.as_mut().poll(cx).is_ready()) {
            self.writing = None;
        }
        Pin::new(&mut self.reader).poll_read(cx, out)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn an_answer_larger_than_the_pipe_arrives_whole() {
        let body = body(|mut writer| async move {
            for n in 0..100_u8 {
                writer.write_all(&[n; 10_000]).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        assert_eq!(bytes.len(), 1_000_000);
        assert!((0..100_u8).all(|n| bytes[usize::from(n) * 10_000..][..10_000].iter().all(|b| *b == n)));
    }

    #[tokio::test]
    async fn dropping_the_body_drops_what_its_future_holds() {
        let (held, mut gone) = tokio::sync::oneshot::channel::<()>();
        let body = body(|_writer| async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        assert!(gone.try_recv().is_err());
        drop(body);
        assert!(matches!(gone.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Closed)));
    }
}
