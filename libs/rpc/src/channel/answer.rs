//! Answers that came over a connection. A broken connection, and an answer that is not a gRPC server's, are recognized here.
//!
//! Tonic reports a broken connection as INTERNAL, UNKNOWN or CANCELLED, as it comes, and reads the page of a proxy as if it
//! were a message. Here a broken connection becomes UNAVAILABLE, so that the reader of a stream knows that it may resume
//! elsewhere; a foreign answer is reported by its HTTP status.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status, TimeoutExpired};

use crate::error::{Error, ErrorKind, RpcReason};
use crate::gate::deadline::deadline_exceeded;

/// How the content types of gRPC begin.
const GRPC: &str = "application/grpc";

/// Takes over an answer of `target`.
///
/// # Errors
/// When it is none of a gRPC server.
pub(crate) fn received(answer: Response<Body>, target: &Arc<str>) -> Result<Response<Body>, Status> {
    let has_status = answer.headers().contains_key(Status::GRPC_STATUS);
    if !has_status && !is_grpc(answer.headers()) {
        return Err(foreign(&answer, target).into());
    }
    let target = Arc::clone(target);
    Ok(answer.map(|body| Body::new(ReceivedBody { body: Some(body), target, has_status })))
}

/// UNAVAILABLE for what broke before there was an answer; DEADLINE_EXCEEDED when the call's own time was up.
pub(crate) fn not_reached(target: &str, error: &(dyn StdError + 'static)) -> Status {
    failed(error, target, |cause| format!("cannot reach {target}: {cause}"))
}

/// Returns the status for a connection that broke while an answer was read, as [`not_reached`] does.
fn broken_off(target: &str, error: &(dyn StdError + 'static)) -> Status {
    failed(error, target, |cause| format!("the connection to {target} broke: {cause}"))
}

fn failed(
    error: &(dyn StdError + 'static),
    target: &str,
    message: impl FnOnce(&dyn StdError) -> String,
) -> Status {
    let mut cause = error;
    loop {
        if cause.is::<TimeoutExpired>() {
            return deadline_exceeded(target).into();
        }
        if let Some(own) = of_this_side(cause) {
            return own.clone();
        }
        match cause.source() {
            Some(deeper) => cause = deeper,
            None => break,
        }
    }
    Error::unavailable(RpcReason::PeerUnavailable, message(cause)).into()
}

/// Returns the status that this side decided, as for a request that is too large to be sent: no connection broke.
fn of_this_side<'a>(cause: &'a (dyn StdError + 'static)) -> Option<&'a Status> {
    let status = cause.downcast_ref::<Status>().filter(|status| status.source().is_none())?;
    let decided =
        !matches!(status.code(), Code::Unknown | Code::Cancelled | Code::Internal | Code::Unavailable);
    decided.then_some(status)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(GRPC.as_bytes()))
}

/// Translates an answer that does not come from a gRPC server, by its HTTP status.
fn foreign(answer: &Response<Body>, target: &str) -> Error {
    let status = answer.status();
    let kind = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
    let (error_kind, reason) = match status {
        StatusCode::UNAUTHORIZED => (ErrorKind::Unauthenticated, RpcReason::IdentityRequired),
        StatusCode::FORBIDDEN => (ErrorKind::PermissionDenied, RpcReason::MethodNotAllowed),
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            (ErrorKind::ResourceExhausted, RpcReason::LimitExceeded)
        }
        StatusCode::TOO_MANY_REQUESTS => (ErrorKind::Unavailable, RpcReason::PeerUnavailable),
        status if status.is_server_error() => (ErrorKind::Unavailable, RpcReason::PeerUnavailable),
        _ => (ErrorKind::Unimplemented, RpcReason::Unimplemented),
    };
    let message = format!(
        "{target} answers with HTTP {status}{kind}, as a proxy or a web server does: no gRPC server of Mycora was \
         reached. Look at the proxy in between, or at the address"
    );
    Error::new(error_kind, reason, message).with("http_status", status.as_u16())
}

/// The rest of an answer.
struct ReceivedBody {
    /// Dropped when it is over.
    body: Option<Body>,
    target: Arc<str>,
    /// True once the call's status was received: the answer is then complete.
    has_status: bool,
}

impl http_body::Body for ReceivedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let ended = match Pin::new(body).poll_frame(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(frame))) => {
                let trailers = frame.trailers_ref();
                this.has_status |= trailers.is_some_and(|all| all.contains_key(Status::GRPC_STATUS));
                return Poll::Ready(Some(Ok(frame)));
            }
            Poll::Ready(ended) => ended,
        };
        this.body = None;
        Poll::Ready(match ended {
            Some(Err(error)) => Some(Err(broken_off(&this.target, &error))),
            // Hyper reports a stream that was reset without an error as a normal end.
            _ if !this.has_status => Some(Err(Error::unavailable(
                RpcReason::PeerUnavailable,
                format!("{} broke off in the middle of its answer", this.target),
            )
            .into())),
            _ => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.has_status && self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::error::view::{ErrorView, RetryAdvice};

    fn target() -> Arc<str> {
        Arc::from("storage:7701")
    }

    fn page(status: u16, kind: &str) -> Response<Body> {
        let page = Response::builder().status(status).header(CONTENT_TYPE, kind);
        page.body(Body::new("<html>".to_owned())).expect("a response")
    }

    #[test]
    fn an_answer_of_a_proxy_is_reported_with_its_http_status() {
        for (status, code, retry) in [
            (200, Code::Unimplemented, RetryAdvice::Never),
            (401, Code::Unauthenticated, RetryAdvice::Never),
            (403, Code::PermissionDenied, RetryAdvice::Never),
            (404, Code::Unimplemented, RetryAdvice::Never),
            (429, Code::Unavailable, RetryAdvice::Again { after: None }),
            (431, Code::ResourceExhausted, RetryAdvice::Never),
            (500, Code::Unavailable, RetryAdvice::Again { after: None }),
            (502, Code::Unavailable, RetryAdvice::Again { after: None }),
            (503, Code::Unavailable, RetryAdvice::Again { after: None }),
        ] {
            let refused = received(page(status, "text/html"), &target()).expect_err("no gRPC");
            let view = ErrorView::from(&refused);
            assert_eq!((view.code, RetryAdvice::of(&refused)), (code, retry), "{status}");
            assert!(view.message.contains(&format!("HTTP {status}")), "{view}");
            assert!(view.message.contains("storage:7701") && view.message.contains("text/html"), "{view}");
        }
    }

    #[tokio::test]
    async fn an_answer_is_complete_only_with_its_grpc_status() {
        let answer = |headers: &[(&str, &str)]| {
            let answer = Response::builder().header(CONTENT_TYPE, "application/grpc+proto");
            let answer = headers.iter().fold(answer, |answer, (name, value)| answer.header(*name, *value));
            received(answer.body(Body::empty()).expect("a response"), &target()).expect("gRPC")
        };
        let whole = answer(&[("grpc-status", "5")]).into_body().collect().await.expect("it is whole");
        assert!(whole.to_bytes().is_empty());
        let broken = answer(&[]).into_body().collect().await.expect_err("nothing said how it ended");
        let view = ErrorView::from(&broken);
        assert_eq!((view.code, view.reason.as_str()), (Code::Unavailable, "PEER_UNAVAILABLE"));
    }

    #[tokio::test]
    async fn whatever_breaks_an_answer_it_is_unavailable() {
        for status in [Status::internal("h2 protocol error"), Status::unknown("x"), Status::cancelled("x")] {
            let body = http_body_util::StreamBody::new(tokio_stream::once(Err::<Frame<Bytes>, _>(status)));
            let answer = Response::builder().header(CONTENT_TYPE, GRPC).body(Body::new(body));
            let answer = received(answer.expect("a response"), &target()).expect("gRPC");
            let broken = answer.into_body().collect().await.expect_err("it breaks");
            assert_eq!(broken.code(), Code::Unavailable, "{broken}");
        }
    }
}
