//! Calls of effects: read, resolved, made again, cancelled.

use proto::v1::{
    CancelEffectRequest, CancelEffectResponse, CompleteEffectRequest, CompleteEffectResponse,
    GetEffectRequest, GetEffectResponse, ListEffectsRequest, ListEffectsResponse, ResolveEffectRequest,
    ResolveEffectResponse, RetryEffectRequest, RetryEffectResponse,
};
use tonic::Status;

use super::{Api, Principal, unimplemented};

/// Reads a call.
pub(super) async fn get(_: &Api, _: &Principal, _: GetEffectRequest) -> Result<GetEffectResponse, Status> {
    Err(unimplemented("GetEffect"))
}

/// Lists calls.
pub(super) async fn list(
    _: &Api,
    _: &Principal,
    _: ListEffectsRequest,
) -> Result<ListEffectsResponse, Status> {
    Err(unimplemented("ListEffects"))
}

/// Ends a call that waits for its answer.
pub(super) async fn complete(
    _: &Api,
    _: &Principal,
    _: CompleteEffectRequest,
) -> Result<CompleteEffectResponse, Status> {
    Err(unimplemented("CompleteEffect"))
}

/// Says whether a call happened.
pub(super) async fn resolve(
    _: &Api,
    _: &Principal,
    _: ResolveEffectRequest,
) -> Result<ResolveEffectResponse, Status> {
    Err(unimplemented("ResolveEffect"))
}

/// Makes a call again.
pub(super) async fn retry(
    _: &Api,
    _: &Principal,
    _: RetryEffectRequest,
) -> Result<RetryEffectResponse, Status> {
    Err(unimplemented("RetryEffect"))
}

/// Cancels a call.
pub(super) async fn cancel(
    _: &Api,
    _: &Principal,
    _: CancelEffectRequest,
) -> Result<CancelEffectResponse, Status> {
    Err(unimplemented("CancelEffect"))
}
