//! Verbs of instances: messages to the owner of the lane, who answers.

use proto::v1::{
    CancelSagaRequest, CancelSagaResponse, CompleteSagaRequest, CompleteSagaResponse, KillSagaRequest,
    KillSagaResponse, MigrateSagaRequest, MigrateSagaResponse, PauseSagaRequest, PauseSagaResponse,
    ResumeSagaRequest, ResumeSagaResponse, RetrySagaStepRequest, RetrySagaStepResponse, SendSagaEventRequest,
    SendSagaEventResponse, SkipSagaStepRequest, SkipSagaStepResponse, StartSagaRequest, StartSagaResponse,
};
use tonic::Status;

use super::{Api, Principal, unimplemented};

/// Starts an instance.
pub(super) async fn start(_: &Api, _: &Principal, _: StartSagaRequest) -> Result<StartSagaResponse, Status> {
    Err(unimplemented("StartSaga"))
}

/// Gives an instance an event.
pub(super) async fn send(
    _: &Api,
    _: &Principal,
    _: SendSagaEventRequest,
) -> Result<SendSagaEventResponse, Status> {
    Err(unimplemented("SendSagaEvent"))
}

/// Keeps inputs back.
pub(super) async fn pause(_: &Api, _: &Principal, _: PauseSagaRequest) -> Result<PauseSagaResponse, Status> {
    Err(unimplemented("PauseSaga"))
}

/// Applies what was kept back.
pub(super) async fn resume(
    _: &Api,
    _: &Principal,
    _: ResumeSagaRequest,
) -> Result<ResumeSagaResponse, Status> {
    Err(unimplemented("ResumeSaga"))
}

/// Undoes what an instance has done.
pub(super) async fn cancel(
    _: &Api,
    _: &Principal,
    _: CancelSagaRequest,
) -> Result<CancelSagaResponse, Status> {
    Err(unimplemented("CancelSaga"))
}

/// Ends an instance where it stands.
pub(super) async fn kill(_: &Api, _: &Principal, _: KillSagaRequest) -> Result<KillSagaResponse, Status> {
    Err(unimplemented("KillSaga"))
}

/// Tries again what an instance is stuck at.
pub(super) async fn retry_step(
    _: &Api,
    _: &Principal,
    _: RetrySagaStepRequest,
) -> Result<RetrySagaStepResponse, Status> {
    Err(unimplemented("RetrySagaStep"))
}

/// Leaves out what an instance is stuck at.
pub(super) async fn skip_step(
    _: &Api,
    _: &Principal,
    _: SkipSagaStepRequest,
) -> Result<SkipSagaStepResponse, Status> {
    Err(unimplemented("SkipSagaStep"))
}

/// Ends a stuck instance as completed.
pub(super) async fn complete(
    _: &Api,
    _: &Principal,
    _: CompleteSagaRequest,
) -> Result<CompleteSagaResponse, Status> {
    Err(unimplemented("CompleteSaga"))
}

/// Makes an instance one of the definition in force.
pub(super) async fn migrate(
    _: &Api,
    _: &Principal,
    _: MigrateSagaRequest,
) -> Result<MigrateSagaResponse, Status> {
    Err(unimplemented("MigrateSaga"))
}
