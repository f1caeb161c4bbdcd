//! Definitions as nodes and edges.

use proto::v1::{GetSagaGraphRequest, GetSagaGraphResponse};
use tonic::Status;

use super::{Api, Principal, unimplemented};

/// Describes a definition as nodes and edges.
pub(super) async fn graph(
    _: &Api,
    _: &Principal,
    _: GetSagaGraphRequest,
) -> Result<GetSagaGraphResponse, Status> {
    Err(unimplemented("GetSagaGraph"))
}
