//! Closing a connection without losing what was sent last.
//!
//! The kernel answers bytes that nobody has read, when a socket is closed, with a reset, and a client that gets a reset throws
//! away what it has not read yet itself: the GOAWAY that says which of its calls were not processed. So the server closes its
//! own direction first, and reads on until the client has closed too.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a client may take to close: a round trip to the other side of the world, several times.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that are thrown away at once.
const READ_BYTES: usize = 4096;

/// A connection whose shutdown waits until the other side has closed too.
#[derive(Debug)]
pub(crate) struct LingeringStream<S> {
    stream: S,
    /// Set once this side is closed.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> LingeringStream<S> {
    pub(crate) const fn new(stream: S) -> Self {
        Self { stream, until: None }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for LingeringStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, until } = &mut *self;
        if until.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
        }
        let until = until.get_or_insert_with(|| Box::pin(sleep(LINGER_TIMEOUT)));
        let mut bytes = [0; READ_BYTES];
        while until.as_mut().poll(cx).is_pending() {
            let mut read = ReadBuf::new(&mut bytes);
            let ended = ready!(Pin::new(&mut *stream).poll_read(cx, &mut read));
            if ended.is_err() || read.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const LAST: &[u8] = b"the last words";

    /// A client whose bytes the server has not read, and the server's end.
    async fn connected() -> (TcpStream, LingeringStream<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let mut client = TcpStream::connect(address).await.expect("connected");
        let (server, _) = listener.accept().await.expect("accepted");
        client.write_all(&[1; 3 * READ_BYTES]).await.expect("sent");
        server.readable().await.expect("received");
        (client, LingeringStream::new(server))
    }

    #[tokio::test]
    async fn a_client_that_is_still_sending_gets_the_last_words() {
        let (mut client, mut server) = connected().await;
        let closing = tokio::spawn(async move {
            server.write_all(LAST).await.expect("sent");
            server.shutdown().await.expect("closed");
        });
        let mut got = vec![0; LAST.len()];
        client.read_exact(&mut got).await.expect("read");
        client.write_all(&[1; 3 * READ_BYTES]).await.expect("sent");
        assert_eq!(client.read(&mut got).await.expect("closed, not reset"), 0);
        assert!(!closing.is_finished(), "it waits for this side");
        drop(client);
        closing.await.expect("closed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_close_is_not_waited_for_longer() {
        let (client, mut server) = connected().await;
        let begin = tokio::time::Instant::now();
        server.shutdown().await.expect("closed");
        assert!(begin.elapsed() >= LINGER_TIMEOUT, "{:?}", begin.elapsed());
        drop(client);
    }
}
