//! Progress of a request on its way out.
//!
//! Between the first byte of a request and its answer we cannot know whether it is carried out. Callers that keep a ledger of their
//! requests are notified at both ends of its departure: before the first byte leaves, and once the last one has left.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Observer of the departure of a request. Is called while bytes are written, so it must not block.
pub trait SendObserver: Send + Unpin {
    /// The first byte leaves next, over a connection to a host that proved its name. Until then the host has received no request.
    fn on_sending(&mut self) {}

    /// The whole request was given to the system, which delivers it whatever becomes of this process. The answer is not read yet.
    fn on_sent(&mut self) {}
}

/// Ignores the departure of the request.
impl SendObserver for () {}

/// Body of a request, which says when all of it was taken.
pub(crate) struct EgressBody {
    body: Full<Bytes>,
    is_taken: Arc<AtomicBool>,
}

impl EgressBody {
    pub(crate) fn new(body: Bytes) -> Self {
        let is_taken = Arc::new(AtomicBool::new(body.is_empty()));
        Self { body: Full::new(body), is_taken }
    }
}

impl Body for EgressBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if self.body.is_end_stream() {
            self.is_taken.store(true, Ordering::Release);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// How much of a request was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestWriteProgress {
    Nothing,
    Something,
    Everything,
}

/// Connection over which one request leaves, and whose observer is notified of that.
pub(crate) struct ObservedStream<S, D> {
    stream: S,
    departure: D,
    /// True once the HTTP client has taken the whole body to write it here.
    is_taken: Arc<AtomicBool>,
    written: RequestWriteProgress,
}

impl<S, D: SendObserver> ObservedStream<S, D> {
    pub(crate) fn new(stream: S, departure: D, request: &EgressBody) -> Self {
        Self {
            stream,
            departure,
            is_taken: Arc::clone(&request.is_taken),
            written: RequestWriteProgress::Nothing,
        }
    }

    fn begin(&mut self) {
        if self.written == RequestWriteProgress::Nothing {
            self.departure.on_sending();
            self.written = RequestWriteProgress::Something;
        }
    }
}

impl<S: AsyncRead + Unpin, D: Unpin> AsyncRead for ObservedStream<S, D> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin, D: SendObserver> AsyncWrite for ObservedStream<S, D> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.begin();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begin();
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Flushes. HTTP flushes once it has written everything that it holds, so that nothing is left when the body was taken as well.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        if self.written == RequestWriteProgress::Something && self.is_taken.load(Ordering::Acquire) {
            self.written = RequestWriteProgress::Everything;
            self.departure.on_sent();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
