//! Why an instance is where it is.

use proto::v1::{ExplainSagaRequest, ExplainSagaResponse};
use tonic::Status;

use super::{Api, Principal, unimplemented};

/// Explains why an instance is where it is.
pub(super) async fn explain(
    _: &Api,
    _: &Principal,
    _: ExplainSagaRequest,
) -> Result<ExplainSagaResponse, Status> {
    Err(unimplemented("ExplainSaga"))
}
