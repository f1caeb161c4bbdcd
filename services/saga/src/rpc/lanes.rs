//! Lanes and tenants: listed, paused, moved, processed again.

use proto::v1::{
    ListLanesRequest, ListLanesResponse, MoveLaneRequest, MoveLaneResponse, PauseTenantRequest,
    PauseTenantResponse, ReplayLaneRequest, ReplayLaneResponse, ResumeTenantRequest, ResumeTenantResponse,
};
use tonic::Status;
use tonic::codegen::BoxStream;

use super::{Api, Principal, unimplemented};

/// Stops reading everything that comes for a tenant.
pub(super) async fn pause_tenant(
    _: &Api,
    _: &Principal,
    _: PauseTenantRequest,
) -> Result<PauseTenantResponse, Status> {
    Err(unimplemented("PauseTenant"))
}

/// Goes on with a tenant.
pub(super) async fn resume_tenant(
    _: &Api,
    _: &Principal,
    _: ResumeTenantRequest,
) -> Result<ResumeTenantResponse, Status> {
    Err(unimplemented("ResumeTenant"))
}

/// Lists lanes.
pub(super) async fn list(_: &Api, _: &Principal, _: ListLanesRequest) -> Result<ListLanesResponse, Status> {
    Err(unimplemented("ListLanes"))
}

/// Has a lane owned by another replica.
pub(super) async fn move_lane(
    _: &Api,
    _: &Principal,
    _: MoveLaneRequest,
) -> Result<MoveLaneResponse, Status> {
    Err(unimplemented("MoveLane"))
}

/// Processes a lane again.
pub(super) async fn replay(
    _: &Api,
    _: &Principal,
    _: ReplayLaneRequest,
) -> Result<BoxStream<ReplayLaneResponse>, Status> {
    Err(unimplemented("ReplayLane"))
}
