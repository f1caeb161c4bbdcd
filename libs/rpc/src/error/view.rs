//! A client's view of a failed call.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use model::Violation;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// A [`Status`] with its details read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorView {
    /// The status code.
    pub code: Code,
    /// `ErrorInfo.reason`; empty when the server gave none.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The fields that were refused.
    pub violations: Vec<Violation>,
    /// How long the server asks the caller to wait before a retry.
    pub retry_after: Option<Duration>,
    /// `ErrorInfo.metadata`.
    pub metadata: BTreeMap<String, String>,
}

impl From<&Status> for ErrorView {
    fn from(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        let violations = details.bad_request().map(|b| b.field_violations.as_slice()).unwrap_or_default();
        Self {
            code: status.code(),
            reason: info.map(|i| i.reason.clone()).unwrap_or_default(),
            message: status.message().to_owned(),
            violations: violations
                .iter()
                .map(|v| Violation { field: v.field.clone(), description: v.description.clone() })
                .collect(),
            retry_after: details.retry_info().and_then(|r| r.retry_delay),
            metadata: info.map(|i| i.metadata.clone().into_iter().collect()).unwrap_or_default(),
        }
    }
}

impl fmt::Display for ErrorView {
    /// The message, or one line for each field that was refused.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.violations.is_empty() {
            let text = if self.message.is_empty() { code_name(self.code) } else { &self.message };
            return f.write_str(text);
        }
        for (i, violation) in self.violations.iter().enumerate() {
            let line_break = if i == 0 { "" } else { "\n" };
            write!(f, "{line_break}{violation}")?;
        }
        Ok(())
    }
}

/// Advice to a client about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAdvice {
    /// Repeating the call would fail the same way.
    Never,
    /// A race was lost: read, decide and call again.
    Reread,
    /// Repeating the call may succeed. Whether the failed one had an effect is not
    /// known, so a mutation is repeated with the same `request_id`.
    Again {
        /// The earliest retry, when the server named one.
        after: Option<Duration>,
    },
}

impl RetryAdvice {
    /// Decides it from the status.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        let after = || status.get_details_retry_info().and_then(|info| info.retry_delay);
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded => Self::Again { after: after() },
            Code::ResourceExhausted => {
                after().map_or(Self::Never, |delay| Self::Again { after: Some(delay) })
            }
            Code::Aborted => Self::Reread,
            _ if connection_broke(status) => Self::Again { after: None },
            _ => Self::Never,
        }
    }
}

/// Returns true for a status that was not sent by the server but made on this side, from
/// an error of the connection: only such a one has a source.
fn connection_broke(status: &Status) -> bool {
    matches!(status.code(), Code::Unknown | Code::Cancelled | Code::Internal) && status.source().is_some()
}

/// The code as gRPC writes it: `NOT_FOUND`.
#[must_use]
pub const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_repeated() {
        assert_eq!(RetryAdvice::of(&Status::unavailable("")), RetryAdvice::Again { after: None });
        assert_eq!(RetryAdvice::of(&Status::aborted("")), RetryAdvice::Reread);
        assert_eq!(RetryAdvice::of(&Status::resource_exhausted("")), RetryAdvice::Never);
        assert_eq!(RetryAdvice::of(&Status::failed_precondition("")), RetryAdvice::Never);
        assert_eq!(RetryAdvice::of(&Status::unknown("the server's own")), RetryAdvice::Never);
        let broken = Status::from_error(Box::new(std::io::Error::other("connection reset")));
        assert_eq!(RetryAdvice::of(&broken), RetryAdvice::Again { after: None });
    }
}
