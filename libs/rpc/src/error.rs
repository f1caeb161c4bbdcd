//! The one mapping from errors to `Status`.

pub(crate) mod reason;
pub(crate) mod view;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use model::Violations;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

pub use self::reason::RpcReason;

/// The `domain` of every `google.rpc.ErrorInfo` of ours.
pub const ERROR_DOMAIN: &str = "mycora";

/// A message is cut here. Clients built on gRPC's C core refuse metadata beyond
/// 8 KiB, in which message and details (that repeat it) have to fit together.
const MESSAGE_BYTES_MAX: usize = 768;
/// Field violations are listed up to this many bytes; base64 makes a third more of them.
const VIOLATIONS_BYTES_MAX: usize = 3 * 1024;
/// One violation's description is cut here.
const DESCRIPTION_BYTES_MAX: usize = 512;
/// Bytes that the encoding adds to each violation.
const VIOLATION_OVERHEAD_BYTES: usize = 8;
/// When to try again what a full disk was in the way of: room is made by ending jobs, which takes seconds.
const DISK_FULL_RETRY: Duration = Duration::from_secs(5);

/// Passes the status of another service on to a caller: the caller gets that service's decision, for instance about permission.
/// Its metadata stay behind.
#[must_use]
#[expect(clippy::needless_pass_by_value, reason = "its place is in `map_err`")]
pub fn forward_status(status: Status) -> Status {
    Status::with_details(status.code(), status.message(), status.details().to_vec().into())
}

type RpcErrorCause = Box<dyn std::error::Error + Send + Sync>;

/// Kind of a failure; decides the gRPC status code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself is wrong, whatever the state of the world.
    InvalidArgument(Violations),
    /// The resource is not there, or the caller may not know that it is.
    NotFound {
        /// Name of the missing thing, as in `flow 7 in context 1`.
        resource: String,
    },
    /// The resource is there already.
    AlreadyExists,
    /// The state refuses the call; a retry does not help until the state is changed.
    FailedPrecondition,
    /// A race was lost; read again and decide again.
    Aborted,
    /// The caller is known and may not.
    PermissionDenied,
    /// The caller is not known.
    Unauthenticated,
    /// A limit or a queue is full.
    ResourceExhausted,
    /// Not now; the same call may succeed later.
    Unavailable,
    /// A position outside of what there is.
    OutOfRange,
    /// The call took too long.
    DeadlineExceeded,
    /// There is no such method here.
    Unimplemented,
    /// The caller gave it up.
    Cancelled,
    /// A defect. Its cause goes to the log and never to the caller.
    Internal,
}

impl ErrorKind {
    const fn code(&self) -> Code {
        match self {
            Self::InvalidArgument(_) => Code::InvalidArgument,
            Self::NotFound { .. } => Code::NotFound,
            Self::AlreadyExists => Code::AlreadyExists,
            Self::FailedPrecondition => Code::FailedPrecondition,
            Self::Aborted => Code::Aborted,
            Self::PermissionDenied => Code::PermissionDenied,
            Self::Unauthenticated => Code::Unauthenticated,
            Self::ResourceExhausted => Code::ResourceExhausted,
            Self::Unavailable => Code::Unavailable,
            Self::OutOfRange => Code::OutOfRange,
            Self::DeadlineExceeded => Code::DeadlineExceeded,
            Self::Unimplemented => Code::Unimplemented,
            Self::Cancelled => Code::Cancelled,
            Self::Internal => Code::Internal,
        }
    }
}

/// An error on its way to a caller. A service's own errors convert into it, in
/// one place, and `?` makes a [`Status`] of it in a handler.
#[derive(Debug)]
pub struct Error(Box<RpcErrorParts>);

/// Boxed, so that a `Result` with this error stays small.
#[derive(Debug)]
struct RpcErrorParts {
    kind: ErrorKind,
    reason: RpcReason,
    message: String,
    metadata: HashMap<String, String>,
    retry_after: Option<Duration>,
    source: Option<RpcErrorCause>,
}

impl Error {
    /// Builds one; the message is for people and says what to do.
    ///
    /// # Panics
    /// In development, when the reason is none of this kind: programs may branch on either.
    #[must_use]
    pub fn new(kind: ErrorKind, reason: RpcReason, message: impl Into<String>) -> Self {
        debug_assert!(reason.codes().contains(&kind.code()), "{reason} never comes as {kind:?}");
        Self(Box::new(RpcErrorParts {
            kind,
            reason,
            message: message.into(),
            metadata: HashMap::new(),
            retry_after: None,
            source: None,
        }))
    }

    /// INVALID_ARGUMENT with everything that is wrong.
    #[must_use]
    pub fn invalid(violations: Violations) -> Self {
        let message = violations.to_string();
        Self::new(ErrorKind::InvalidArgument(violations), RpcReason::InvalidRequest, message)
    }

    /// NOT_FOUND.
    #[must_use]
    pub fn not_found(resource: impl Into<String>) -> Self {
        let resource = resource.into();
        let message = format!("{resource} was not found");
        Self::new(ErrorKind::NotFound { resource }, RpcReason::NotFound, message)
    }

    /// UNAVAILABLE.
    #[must_use]
    pub fn unavailable(reason: RpcReason, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, reason, message)
    }

    /// UNAVAILABLE, with when to try again: a disk has no room.
    #[must_use]
    pub fn disk_full(message: impl Into<String>) -> Self {
        Self::unavailable(RpcReason::DiskFull, message).retry_after(DISK_FULL_RETRY)
    }

    /// INTERNAL: the cause is logged when this becomes a [`Status`], and the caller gets only the id under which it was logged.
    /// A cause that is a full disk is no defect, and is named to the caller.
    #[must_use]
    pub fn internal(cause: impl Into<RpcErrorCause>) -> Self {
        let cause = cause.into();
        if is_disk_full(&*cause) {
            tracing::error!(%cause, "a disk is full");
            return Self::disk_full("a disk of this service is full").with_cause(cause);
        }
        Self::new(ErrorKind::Internal, RpcReason::Internal, "internal error").with_cause(cause)
    }

    /// Adds the cause. It is logged with a defect and is never sent to the caller.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Into<RpcErrorCause>) -> Self {
        self.0.source = Some(cause.into());
        self
    }

    /// Adds an entry to the metadata of `ErrorInfo`, for programs.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl fmt::Display) -> Self {
        self.0.metadata.insert(key.into(), value.to_string());
        self
    }

    /// Says when to try again (`RetryInfo`).
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.0.retry_after = Some(delay);
        self
    }

    /// Returns the kind of the failure.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> RpcReason {
        self.0.reason
    }

    /// The status that the caller gets.
    #[must_use]
    pub fn into_status(self) -> Status {
        let mut details = ErrorDetails::new();
        details.set_error_info(self.0.reason.as_str(), ERROR_DOMAIN, self.0.metadata.clone());
        if let Some(delay) = self.0.retry_after {
            details.set_retry_info(Some(delay));
        }
        match &self.0.kind {
            ErrorKind::InvalidArgument(violations) => add_violations(&mut details, violations),
            ErrorKind::NotFound { resource } => {
                details.set_resource_info("", cut(resource, MESSAGE_BYTES_MAX), "", "");
            }
            _ => {}
        }
        let message = match self.0.kind {
            ErrorKind::Internal => self.logged(),
            _ => cut(&self.0.message, MESSAGE_BYTES_MAX).to_owned(),
        };
        Status::with_error_details(self.0.kind.code(), message, details)
    }

    /// Writes a defect to the log and gives what the caller may know of it.
    fn logged(&self) -> String {
        let id = format!("{:016x}", rand::random::<u64>());
        let mut causes = self.0.message.clone();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            causes.push_str(": ");
            causes.push_str(&cause.to_string());
            next = cause.source();
        }
        tracing::error!(error_id = id, "{causes}");
        format!("internal error; the server's log has it under error_id {id}")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|cause| cause as _)
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        error.into_status()
    }
}

impl From<Violations> for Error {
    fn from(violations: Violations) -> Self {
        Self::invalid(violations)
    }
}

/// Returns true for an error whose root cause is a full disk or an exceeded quota.
fn is_disk_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        let kind = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        matches!(kind, Some(std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded))
    })
}

fn add_violations(details: &mut ErrorDetails, violations: &Violations) {
    let all = violations.as_slice();
    let mut bytes = 0;
    for (listed, violation) in all.iter().enumerate() {
        let field = cut(&violation.field, DESCRIPTION_BYTES_MAX);
        let description = cut(&violation.description, DESCRIPTION_BYTES_MAX);
        bytes += field.len() + description.len() + VIOLATION_OVERHEAD_BYTES;
        if bytes > VIOLATIONS_BYTES_MAX {
            details.add_bad_request_violation("", format!("and {} more", all.len() - listed));
            return;
        }
        details.add_bad_request_violation(field, description);
    }
}

/// The beginning of a text, at most so many bytes, never half a character.
fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::view::ErrorView;

    #[test]
    fn every_status_has_a_reason() {
        let status = Error::not_found("flow 7").with("flow", 7).into_status();
        assert_eq!(status.code(), Code::NotFound);
        let info = status.get_details_error_info().expect("always there");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("NOT_FOUND", ERROR_DOMAIN));
        assert_eq!(info.metadata.get("flow").map(String::as_str), Some("7"));
    }

    #[test]
    fn all_violations_are_listed() {
        let mut violations = Violations::new();
        violations.add("name", "must not be empty");
        violations.add("nodes[3].depends[0]", "names no node");
        let status = Status::from(Error::from(violations.clone()));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(ErrorView::from(&status).violations, violations.as_slice());
    }

    #[test]
    fn a_status_fits_into_eight_kibibytes() {
        let mut violations = Violations::new();
        for i in 0..100_000 {
            violations.add(format!("nodes[{i}].name"), "müst not be empty");
        }
        let status = Error::invalid(violations).into_status();
        let encoded = status.message().len() + status.details().len().div_ceil(3) * 4;
        assert!(encoded < 7 * 1024, "{encoded} bytes");
        let listed = ErrorView::from(&status).violations;
        let last = listed.last().expect("some");
        let unlisted: usize =
            last.description.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a count");
        assert_eq!(unlisted + listed.len() - 1, 100_000);
    }

    #[test]
    fn an_internal_error_hides_its_cause() {
        let status = Error::internal("WRONGTYPE key secret").into_status();
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().contains("WRONGTYPE"), "{}", status.message());
        assert!(!String::from_utf8_lossy(status.details()).contains("WRONGTYPE"));
    }

    #[test]
    fn a_full_disk_is_no_defect() {
        #[derive(Debug, thiserror::Error)]
        #[error("a file cannot be written")]
        struct NotWritten(#[source] std::io::Error);
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        for error in [Error::internal(full()), Error::internal(NotWritten(full()))] {
            let view = ErrorView::from(&error.into_status());
            assert_eq!((view.code, view.reason.as_str()), (Code::Unavailable, "DISK_FULL"));
            assert_eq!(view.retry_after, Some(DISK_FULL_RETRY));
            assert!(!view.message.contains("written"), "{}", view.message);
        }
        let other = NotWritten(std::io::ErrorKind::PermissionDenied.into());
        assert_eq!(Error::internal(other).reason(), RpcReason::Internal);
    }

    #[test]
    fn an_error_carries_its_retry_delay() {
        let error = Error::unavailable(RpcReason::Draining, "the scheduler is ending");
        let view = ErrorView::from(&error.retry_after(Duration::from_millis(1500)).into_status());
        assert_eq!(view.retry_after, Some(Duration::from_millis(1500)));
    }
}
