//! Errors of the scheduler, and the statuses that callers receive for them.

use tonic::Status;

/// Why the scheduler cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The scheduler's metrics cannot be registered.
    #[error("the scheduler's metrics cannot be registered")]
    Metrics(#[source] prometheus::Error),
}

/// Status for an answer of storage that cannot be read: a defect, or services
/// of incompatible versions.
#[expect(clippy::needless_pass_by_value, reason = "used as `map_err(bad_store)`")]
pub fn bad_store(error: impl ToString) -> Status {
    rpc::Error::internal(format!("an answer of storage cannot be read: {}", error.to_string())).into()
}

/// FAILED_PRECONDITION: the state does not allow it.
pub fn wrong_state(reason: rpc::RpcReason, message: impl Into<String>) -> Status {
    rpc::Error::new(rpc::ErrorKind::FailedPrecondition, reason, message).into()
}
