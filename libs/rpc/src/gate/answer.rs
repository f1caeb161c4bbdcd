//! Steps that every answer passes on its way back: it carries the id of its call, and a failure says why.
//!
//! Handlers fail with [`Error`], which has a reason. Tonic's own answers (it cannot decode a message, does
//! not know a compression) have none, and sometimes a code that no other stack uses; such answers are rewritten
//! here. They are recognized by their missing details.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body as _, Frame, SizeHint};
use model::Violations;
use tokio::time::Sleep;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::{ErrorDetail, RequestInfo, StatusExt as _};
use tracing::Span;

use crate::error::{Error, ErrorKind, RpcReason};
use crate::gate::deadline::{RpcCallContext, deadline_exceeded};
use crate::gate::load_shedder::RpcCallPermit;
use crate::gate::request_headers::{REQUEST_ID_HEADER, RequestIdHeader, beyond};
use crate::metrics::Metrics;
use crate::server::connection_state::ConnectionCallGuard;

/// One call, for as long as it is being answered.
pub(crate) struct RpcActiveCall {
    pub(crate) path: String,
    pub(crate) ambient: RpcCallContext,
    pub(crate) span: Span,
    pub(crate) metrics: Metrics,
    /// Given back with the end of the answer; health and reflection need none.
    pub(crate) permit: Option<RpcCallPermit>,
    /// Counts the call as under way on a stranger's connection; as long as `permit`.
    pub(crate) open_call: Option<ConnectionCallGuard>,
}

impl RpcActiveCall {
    /// The answer to a call that failed before there was one.
    pub(crate) fn refuse(&self, error: Error) -> Response<Body> {
        let status = self.span.in_scope(|| error.into_status());
        let mut answer = status.into_http();
        self.finish(answer.headers_mut());
        answer
    }

    /// The answer to a call whose time is over.
    pub(crate) fn too_late(&self) -> Response<Body> {
        self.metrics.deadlines_passed.inc();
        self.refuse(deadline_exceeded(&self.path))
    }

    /// Takes over an answer, and what will still come of it.
    pub(crate) fn wrap(self, mut answer: Response<Body>, is_stream: bool) -> Response<Body> {
        self.finish(answer.headers_mut());
        if answer.body().is_end_stream() {
            return answer;
        }
        // An answer of one message is complete as soon as it has begun.
        let deadline = self.ambient.deadline.filter(|_| is_stream);
        let sleep = deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline.0)));
        answer.map(|body| Body::new(AnswerBody { body: Some(body), sleep, answering: self }))
    }

    /// Adds the id of the call, and makes sure that a failure says why. Headers, or the trailers of a stream.
    fn finish(&self, headers: &mut HeaderMap) {
        headers.insert(REQUEST_ID_HEADER, self.ambient.request_id.header());
        let failed = headers.get(Status::GRPC_STATUS).is_some_and(|code| code.as_bytes() != b"0");
        if !failed {
            return;
        }
        // Ours to write, whatever made it: a defect in it must not take the answer along.
        let Some(status) = Status::from_header_map(headers) else { return };
        let status = explained(status, &self.path);
        let status = with_request_id(&status, &self.ambient.request_id);
        headers.remove(Status::GRPC_STATUS_DETAILS);
        headers.remove(Status::GRPC_MESSAGE);
        if let Err(error) = status.add_header(headers) {
            tracing::error!(%error, method = self.path, "a status cannot be written");
        }
    }
}

/// The rest of an answer.
struct AnswerBody {
    /// Dropped at its end, so that its producer notices.
    body: Option<Body>,
    sleep: Option<Pin<Box<Sleep>>>,
    answering: RpcActiveCall,
}

impl AnswerBody {
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready())
    }

    /// Ends a stream at its deadline.
    fn cut(&mut self) -> Frame<Bytes> {
        (self.body, self.sleep) = (None, None);
        self.answering.metrics.deadlines_passed.inc();
        let status = deadline_exceeded(&self.answering.path).into_status();
        let mut trailers = HeaderMap::new();
        if status.add_header(&mut trailers).is_err() {
            let code = HeaderValue::from(Code::DeadlineExceeded as i32);
            trailers.insert(Status::GRPC_STATUS, code);
        }
        self.answering.finish(&mut trailers);
        Frame::trailers(trailers)
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let RpcActiveCall { ambient, span, .. } = &this.answering;
        let polled = span.in_scope(|| ambient.sync_scope(|| Pin::new(body).poll_frame(cx)));
        match polled {
            Poll::Pending if this.is_over(cx) => Poll::Ready(Some(Ok(this.cut()))),
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(mut frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    this.answering.finish(trailers);
                } else if this.is_over(cx) {
                    // Also of a stream that never pauses.
                    return Poll::Ready(Some(Ok(this.cut())));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(ended) => {
                (this.body, this.sleep) = (None, None);
                (this.answering.permit, this.answering.open_call) = (None, None);
                Poll::Ready(ended)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Returns the failure with a reason added where it has none.
fn explained(status: Status, path: &str) -> Status {
    if !status.details().is_empty() {
        return status;
    }
    let metadata = status.metadata().clone();
    let mut written = of_tonic(status.code(), status.message(), path)
        .unwrap_or_else(|| by_code(status.code(), status.message()))
        .into_status();
    // As `grpc-accept-encoding`, which names the encodings that a caller may send instead.
    *written.metadata_mut() = metadata;
    written
}

/// Translates what tonic 0.14 says by itself. A test for each is in `tests/it/answers.rs`, over a real connection.
fn of_tonic(code: Code, message: &str, path: &str) -> Option<Error> {
    let new = |kind, reason, message: String| Some(Error::new(kind, reason, message).with("method", path));
    match code {
        Code::OutOfRange if message.contains("message length too large") => Some(too_large(message)),
        Code::ResourceExhausted if message.contains("exceeded while decompressing") => {
            Some(too_large(message))
        }
        Code::Internal if message.starts_with("failed to decode Protobuf message") => undecodable(message),
        Code::Internal if message == "Missing request message." => undecodable("the request has no message"),
        Code::Internal
            if ["protocol error: received message", "Error decompressing", "Unexpected EOF decoding"]
                .iter()
                .any(|known| message.starts_with(known)) =>
        {
            undecodable(message)
        }
        Code::Unimplemented if message.is_empty() => Some(unknown_method(path)),
        Code::Unimplemented => new(ErrorKind::Unimplemented, RpcReason::Unimplemented, message.to_owned()),
        Code::Cancelled if message.starts_with("Timeout expired") => Some(deadline_exceeded(path)),
        _ => None,
    }
}

/// The path leads nowhere.
pub(crate) fn unknown_method(path: &str) -> Error {
    let message = format!("{path} is not a method of this server; reflection lists its methods");
    Error::new(ErrorKind::Unimplemented, RpcReason::Unimplemented, message).with("method", path)
}

fn undecodable(why: &str) -> Option<Error> {
    let mut violations = Violations::new();
    violations.add("", format!("the message cannot be read: {why}"));
    Some(Error::invalid(violations))
}

/// Tonic names the numbers in its text, and nowhere else.
fn too_large(message: &str) -> Error {
    let mut numbers = message.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(size), Some(value)) => beyond("rpc_message_bytes_max", value, size, "the message"),
        (Some(value), None) => {
            let text = format!("the message has more than {value} bytes when it is decompressed");
            Error::new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded, text)
                .with("limit", "rpc_message_bytes_max")
                .with("max", value)
        }
        _ => Error::new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded, message),
    }
}

/// A status that says no more than its code.
fn by_code(code: Code, message: &str) -> Error {
    let (kind, reason) = match code {
        Code::InvalidArgument => (ErrorKind::InvalidArgument(Violations::new()), RpcReason::InvalidRequest),
        Code::NotFound => (ErrorKind::NotFound { resource: message.to_owned() }, RpcReason::NotFound),
        Code::AlreadyExists => (ErrorKind::AlreadyExists, RpcReason::AlreadyExists),
        Code::FailedPrecondition => (ErrorKind::FailedPrecondition, RpcReason::WrongState),
        Code::Aborted => (ErrorKind::Aborted, RpcReason::RevisionMismatch),
        Code::PermissionDenied => (ErrorKind::PermissionDenied, RpcReason::MethodNotAllowed),
        Code::Unauthenticated => (ErrorKind::Unauthenticated, RpcReason::IdentityRequired),
        Code::ResourceExhausted => (ErrorKind::ResourceExhausted, RpcReason::LimitExceeded),
        Code::Unavailable => (ErrorKind::Unavailable, RpcReason::PeerUnavailable),
        Code::OutOfRange => (ErrorKind::OutOfRange, RpcReason::PositionGone),
        Code::DeadlineExceeded => (ErrorKind::DeadlineExceeded, RpcReason::DeadlineExceeded),
        Code::Unimplemented => (ErrorKind::Unimplemented, RpcReason::Unimplemented),
        Code::Cancelled => (ErrorKind::Cancelled, RpcReason::Cancelled),
        Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => {
            return Error::internal(format!("a status without a reason: {code:?}: {message}"));
        }
    };
    Error::new(kind, reason, message)
}

/// Returns the failure with the id of this call in `RequestInfo`; an id of another call is dropped.
fn with_request_id(status: &Status, id: &RequestIdHeader) -> Status {
    let mut details = status.get_error_details_vec();
    details.retain(|detail| !matches!(detail, ErrorDetail::RequestInfo(_)));
    details.push(RequestInfo::new(id.as_str(), "").into());
    let metadata = status.metadata().clone();
    Status::with_error_details_vec_and_metadata(status.code(), status.message(), details, metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::view::ErrorView;

    #[test]
    fn message_sizes_are_read_from_the_error_text_of_tonic() {
        let message =
            "Error, decoded message length too large: found 5000000 bytes, the limit is: 4194304 bytes";
        let view = ErrorView::from(&explained(Status::out_of_range(message), "/a.B/C"));
        assert_eq!((view.code, view.reason.as_str()), (Code::ResourceExhausted, "LIMIT_EXCEEDED"));
        assert_eq!(view.metadata.get("limit").map(String::as_str), Some("rpc_message_bytes_max"));
        assert_eq!(view.metadata.get("max").map(String::as_str), Some("4194304"));
        assert_eq!(view.metadata.get("asked").map(String::as_str), Some("5000000"));
    }

    #[test]
    fn every_code_has_a_reason() {
        for code in (1..=16).map(Code::from_i32) {
            let view = ErrorView::from(&explained(Status::new(code, "bare"), "/a.B/C"));
            assert!(!view.reason.is_empty(), "{code:?}");
        }
        let kept = Error::not_found("flow 7").into_status();
        assert_eq!(explained(kept.clone(), "/a.B/C").message(), kept.message());
    }
}
