//! What can go wrong here, and what callers are told of it.

use tonic::Status;

/// Storage answered with something that cannot be read: a defect, or services
/// of versions that do not fit together.
#[expect(clippy::needless_pass_by_value, reason = "used as `map_err(bad_store)`")]
pub fn bad_store(error: impl ToString) -> Status {
    rpc::Error::internal(format!("an answer of storage cannot be read: {}", error.to_string())).into()
}
