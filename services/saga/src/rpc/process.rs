//! The server itself: described, drained, its directory read again.

use proto::v1::{
    GetSagaServerRequest, GetSagaServerResponse, SagaServiceDrainRequest, SagaServiceDrainResponse,
    SagaServiceReloadRequest, SagaServiceReloadResponse,
};
use tonic::Status;

use super::{Api, Principal, unimplemented};

/// Describes the server.
pub(super) async fn get_server(
    _: &Api,
    _: &Principal,
    _: GetSagaServerRequest,
) -> Result<GetSagaServerResponse, Status> {
    Err(unimplemented("GetSagaServer"))
}

/// Drains the server.
pub(super) async fn drain(
    api: &Api,
    caller: &Principal,
    request: SagaServiceDrainRequest,
) -> Result<SagaServiceDrainResponse, Status> {
    let tenant = api.operators_tenant(caller, &request.tenant_id)?;
    match tenant {
        Some(_) => Err(unimplemented("Drain of a tenant")),
        None => {
            api.shutdown.begin();
            Ok(SagaServiceDrainResponse::default())
        }
    }
}

/// Reads the operator's directory again.
pub(super) async fn reload(
    _: &Api,
    _: &Principal,
    _: SagaServiceReloadRequest,
) -> Result<SagaServiceReloadResponse, Status> {
    Err(unimplemented("Reload"))
}
