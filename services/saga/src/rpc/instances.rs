//! Instances: what readers see of them.

use proto::v1::{
    ExplainSagaRequest, ExplainSagaResponse, GetSagaGraphRequest, GetSagaGraphResponse, GetSagaRequest,
    GetSagaResponse, GetSagaTimelineRequest, GetSagaTimelineResponse, ListSagaTimersRequest,
    ListSagaTimersResponse, ListSagasRequest, ListSagasResponse, WatchSagasRequest, WatchSagasResponse,
};
use tonic::Status;
use tonic::codegen::BoxStream;

use super::{Api, Principal, unimplemented};

/// Reads an instance with its state.
pub(super) async fn get(_: &Api, _: &Principal, _: GetSagaRequest) -> Result<GetSagaResponse, Status> {
    Err(unimplemented("GetSaga"))
}

/// Lists instances.
pub(super) async fn list(_: &Api, _: &Principal, _: ListSagasRequest) -> Result<ListSagasResponse, Status> {
    Err(unimplemented("ListSagas"))
}

/// Lists what an instance was given.
pub(super) async fn timeline(
    _: &Api,
    _: &Principal,
    _: GetSagaTimelineRequest,
) -> Result<GetSagaTimelineResponse, Status> {
    Err(unimplemented("GetSagaTimeline"))
}

/// Lists timers.
pub(super) async fn timers(
    _: &Api,
    _: &Principal,
    _: ListSagaTimersRequest,
) -> Result<ListSagaTimersResponse, Status> {
    Err(unimplemented("ListSagaTimers"))
}

/// Explains why an instance is where it is.
pub(super) async fn explain(
    _: &Api,
    _: &Principal,
    _: ExplainSagaRequest,
) -> Result<ExplainSagaResponse, Status> {
    Err(unimplemented("ExplainSaga"))
}

/// Describes a definition as nodes and edges.
pub(super) async fn graph(
    _: &Api,
    _: &Principal,
    _: GetSagaGraphRequest,
) -> Result<GetSagaGraphResponse, Status> {
    Err(unimplemented("GetSagaGraph"))
}

/// Watches instances.
pub(super) async fn watch(
    _: &Api,
    _: &Principal,
    _: WatchSagasRequest,
) -> Result<BoxStream<WatchSagasResponse>, Status> {
    Err(unimplemented("WatchSagas"))
}
