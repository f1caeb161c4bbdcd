//! Definitions: checked, put in force, taken out of it, read.

use proto::v1::{
    ApplySagaRequest, ApplySagaResponse, GetSagaDefinitionRequest, GetSagaDefinitionResponse,
    ListSagaDefinitionsRequest, ListSagaDefinitionsResponse, RetireSagaRequest, RetireSagaResponse,
    ValidateSagaRequest, ValidateSagaResponse,
};
use tonic::Status;

use super::{Api, Principal, unimplemented};

/// Checks a manifest and keeps nothing.
pub(super) async fn validate(
    _: &Api,
    _: &Principal,
    _: ValidateSagaRequest,
) -> Result<ValidateSagaResponse, Status> {
    Err(unimplemented("ValidateSaga"))
}

/// Puts the sagas of a manifest in force for one tenant.
pub(super) async fn apply(_: &Api, _: &Principal, _: ApplySagaRequest) -> Result<ApplySagaResponse, Status> {
    Err(unimplemented("ApplySaga"))
}

/// Takes a saga of the tenant out of force.
pub(super) async fn retire(
    _: &Api,
    _: &Principal,
    _: RetireSagaRequest,
) -> Result<RetireSagaResponse, Status> {
    Err(unimplemented("RetireSaga"))
}

/// Reads a definition.
pub(super) async fn get(
    _: &Api,
    _: &Principal,
    _: GetSagaDefinitionRequest,
) -> Result<GetSagaDefinitionResponse, Status> {
    Err(unimplemented("GetSagaDefinition"))
}

/// Lists definitions.
pub(super) async fn list(
    _: &Api,
    _: &Principal,
    _: ListSagaDefinitionsRequest,
) -> Result<ListSagaDefinitionsResponse, Status> {
    Err(unimplemented("ListSagaDefinitions"))
}
