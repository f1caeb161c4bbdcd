//! Dead letters: read, applied, removed.

use proto::v1::{
    GetSagaDeadLetterRequest, GetSagaDeadLetterResponse, ListSagaDeadLettersRequest,
    ListSagaDeadLettersResponse, PurgeSagaDeadLettersRequest, PurgeSagaDeadLettersResponse,
    RedriveSagaDeadLettersRequest, RedriveSagaDeadLettersResponse,
};
use tonic::Status;

use super::{Api, Principal, unimplemented};

/// Lists dead letters.
pub(super) async fn list(
    _: &Api,
    _: &Principal,
    _: ListSagaDeadLettersRequest,
) -> Result<ListSagaDeadLettersResponse, Status> {
    Err(unimplemented("ListSagaDeadLetters"))
}

/// Reads a dead letter.
pub(super) async fn get(
    _: &Api,
    _: &Principal,
    _: GetSagaDeadLetterRequest,
) -> Result<GetSagaDeadLetterResponse, Status> {
    Err(unimplemented("GetSagaDeadLetter"))
}

/// Applies dead letters.
pub(super) async fn redrive(
    _: &Api,
    _: &Principal,
    _: RedriveSagaDeadLettersRequest,
) -> Result<RedriveSagaDeadLettersResponse, Status> {
    Err(unimplemented("RedriveSagaDeadLetters"))
}

/// Removes dead letters.
pub(super) async fn purge(
    _: &Api,
    _: &Principal,
    _: PurgeSagaDeadLettersRequest,
) -> Result<PurgeSagaDeadLettersResponse, Status> {
    Err(unimplemented("PurgeSagaDeadLetters"))
}
