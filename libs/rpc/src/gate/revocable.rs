//! Answers that end when their caller is believed no more.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Response};
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::gate::authenticate::VerifiedCaller;

/// Ends the answer with the status of a revocation when one comes before its end.
pub(crate) fn end_on_revocation(answer: Response<Body>, believed: VerifiedCaller) -> Response<Body> {
    answer.map(|body| {
        if body.is_end_stream() {
            return body;
        }
        let watch = RevocationWatch::Unneeded(Box::new(believed));
        Body::new(RevocableBody { body: Some(body), frames: 0, watch })
    })
}

/// Frames of an answer that is no stream: a message, and what ends it.
const FRAMES_UNARY: u32 = 2;

struct RevocableBody {
    /// Dropped at its end, so that its producer notices.
    body: Option<Body>,
    frames: u32,
    watch: RevocationWatch,
}

enum RevocationWatch {
    /// The answer has not shown to be a stream so far: those of most calls are none, and cost nothing then.
    Unneeded(Box<VerifiedCaller>),
    On(BoxFuture<'static, Status>),
    Over,
}

impl RevocationWatch {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        match self {
            Self::On(revoked) => revoked.as_mut().poll(cx),
            Self::Unneeded(_) | Self::Over => Poll::Pending,
        }
    }

    fn begin(&mut self) {
        if let Self::Unneeded(believed) = self {
            let believed = VerifiedCaller::clone(believed);
            *self = Self::On(Box::pin(believed.until_revoked()));
        }
    }
}

impl RevocableBody {
    fn revoke(&mut self, status: &Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.body = None;
        self.watch = RevocationWatch::Over;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }
}

impl http_body::Body for RevocableBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.frames >= FRAMES_UNARY {
            self.watch.begin();
        }
        if let Poll::Ready(status) = self.watch.poll(cx) {
            return self.revoke(&status);
        }
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        match Pin::new(body).poll_frame(cx) {
            Poll::Pending => {
                self.watch.begin();
                match self.watch.poll(cx) {
                    Poll::Ready(status) => self.revoke(&status),
                    Poll::Pending => Poll::Pending,
                }
            }
            Poll::Ready(Some(frame)) => {
                self.frames = self.frames.saturating_add(1);
                Poll::Ready(Some(frame))
            }
            Poll::Ready(None) => {
                self.body = None;
                self.watch = RevocationWatch::Over;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
