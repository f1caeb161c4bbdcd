//! Transparent retries: a request that no server has processed goes out again, over another connection.
//!
//! A server asks its connections to leave when they are old, and when it stops. A request that meets the request to leave has
//! not been processed, whatever it would change, and the protocol has it sent again without the caller's notice (gRPC A6). Tonic
//! reports it as an error, so it is done here: what was read of a body is kept until the answer begins.

use std::error::Error as StdError;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::Reason;
use http::request::Parts;
use http::{Extensions, HeaderMap, Request};
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot;
use tonic::Status;
use tonic::body::Body;

/// Tries until a request is given up. The second one goes over a new connection, which may just as well be asked to leave.
pub(super) const TRIES_MAX: u32 = 5;

/// The largest part of a body that is kept, in bytes. Unary requests are one part; those that are larger are sent once.
const KEPT_BYTES_MAX: usize = 256 * 1024;

/// A request that can be sent again.
pub(super) struct RetainedRequest {
    head: Parts,
    body: oneshot::Receiver<UnreadBody>,
}

impl RetainedRequest {
    /// Returns the request to be sent, and what is necessary to send it again.
    pub(super) fn retain(request: Request<Body>) -> (Request<Body>, Self) {
        let (mut head, body) = request.into_parts();
        // No connection carries the extensions.
        head.extensions = Extensions::new();
        Self::lend(head, UnreadBody { part: None, rest: Some(body) })
    }

    /// Returns the request once more when its connection has dropped it; `None` where its body was read too far.
    pub(super) async fn again(self) -> Option<(Request<Body>, Self)> {
        let body = self.body.await.ok()?;
        Some(Self::lend(self.head, body))
    }

    /// Returns the headers that the request is sent again with.
    pub(super) const fn headers_mut(&mut self) -> &mut HeaderMap {
        &mut self.head.headers
    }

    fn lend(head: Parts, UnreadBody { part, rest }: UnreadBody) -> (Request<Body>, Self) {
        let (owner, given_back) = oneshot::channel();
        let is_due = part.is_some();
        let lent = Body::new(LentBody { part, is_due, rest, owner: Some(owner) });
        (Request::from_parts(head.clone(), lent), Self { head, body: given_back })
    }
}

/// Returns true for an error of a request that no server has processed: it waited for a connection that closed, or its stream
/// came behind the last one that the server named when it asked the connection to leave (RFC 9113, 6.8).
pub(super) fn is_unprocessed(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        if cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            return error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
        }
        next = cause.source();
    }
    false
}

/// A body of which at most the first part was read.
struct UnreadBody {
    /// The first part, if it was read.
    part: Option<Bytes>,
    /// The parts behind it; `None` where there are none.
    rest: Option<Body>,
}

/// A body that is given back when a connection drops it, unless more than its first part was read.
struct LentBody {
    /// The first part, once it was read.
    part: Option<Bytes>,
    /// True while that part is to be read once more.
    is_due: bool,
    rest: Option<Body>,
    /// Gets it back; `None` once something was read that is not kept.
    owner: Option<oneshot::Sender<UnreadBody>>,
}

impl http_body::Body for LentBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(part) = this.part.as_ref().filter(|_| this.is_due) {
            this.is_due = false;
            return Poll::Ready(Some(Ok(Frame::data(part.clone()))));
        }
        let Some(rest) = &mut this.rest else { return Poll::Ready(None) };
        let read = std::task::ready!(Pin::new(rest).poll_frame(cx));
        match read.as_ref().map(|read| read.as_ref().ok().and_then(Frame::data_ref)) {
            None => this.rest = None,
            Some(Some(part)) if this.part.is_none() && part.len() <= KEPT_BYTES_MAX => {
                this.part = Some(part.clone());
            }
            Some(_) => this.owner = None,
        }
        Poll::Ready(read)
    }

    fn is_end_stream(&self) -> bool {
        !self.is_due && self.rest.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let due = self.part.as_ref().filter(|_| self.is_due).map_or(0, |part| part.len() as u64);
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(due));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(due));
        }
        hint
    }
}

impl Drop for LentBody {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            // Once the call is over there is no receiver.
            let _ = owner.send(UnreadBody { part: self.part.take(), rest: self.rest.take() });
        }
    }
}

#[cfg(test)]
mod tests;
