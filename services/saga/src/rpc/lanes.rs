//! Lanes: processed again.

use proto::v1::{ReplayLaneRequest, ReplayLaneResponse};
use tonic::Status;
use tonic::codegen::BoxStream;

use super::{Api, Principal, unimplemented};

/// Processes a lane again.
pub(super) async fn replay(
    _: &Api,
    _: &Principal,
    _: ReplayLaneRequest,
) -> Result<BoxStream<ReplayLaneResponse>, Status> {
    Err(unimplemented("ReplayLane"))
}
