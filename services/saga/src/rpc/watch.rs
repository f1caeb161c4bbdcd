//! Watching instances.

use proto::v1::{WatchSagasRequest, WatchSagasResponse};
use tonic::Status;
use tonic::codegen::BoxStream;

use super::{Api, Principal, unimplemented};

/// Watches instances.
pub(super) async fn watch(
    _: &Api,
    _: &Principal,
    _: WatchSagasRequest,
) -> Result<BoxStream<WatchSagasResponse>, Status> {
    Err(unimplemented("WatchSagas"))
}
