//! Calls about sagas: definitions, instances, calls of effects, dead letters, lanes, and the service itself.
//!
//! Whatever changes something is tried again when the answer was lost: each of these requests has an id. One deadline is the end: the
//! server has waited for the owner of the lane all that time.

use proto::v1;
use proto::v1::saga_service_client::SagaServiceClient;
use rpc::{RetryAdvice, RpcReason};
use tonic::{Code, Status};
use uuid::Uuid;

use super::{
    ApiResponseStream, AuthenticatedChannel, CALL_TIMEOUT, Clients, PAGE_SIZE, RETRY_WAITS, repeat,
    repeat_in_time, timed,
};
use crate::failure::{ApiCallError, CliError};

/// The field of all requests that a server without tenants refuses to be given.
const TENANT_FIELD: &str = "tenant_id";

/// Calls a method that changes something, as `call!` does, until a deadline was exceeded.
macro_rules! change {
    ($client:expr, $method:ident, $request:expr) => {
        repeat_in_time(&RETRY_WAITS, || {
            let (mut client, request) = ($client.clone(), timed($request.clone(), CALL_TIMEOUT));
            async move { client.$method(request).await }
        })
        .await
    };
}

impl Clients {
    fn sagas(&self) -> Result<&SagaServiceClient<AuthenticatedChannel>, CliError> {
        self.sagas.as_ref().map_err(Clone::clone)
    }

    /// Tells whether requests name this tenant; not so on a server that has none.
    ///
    /// # Errors
    /// When the server cannot be reached. Other errors are left to the actual call.
    pub async fn names_tenant(&self, tenant: &str) -> Result<bool, CliError> {
        let request = v1::ListSagaDefinitionsRequest {
            tenant_id: tenant.to_owned(),
            page_size: 1,
            ..Default::default()
        };
        let client = self.sagas()?;
        match call!(client, list_saga_definitions, request).await {
            Err(ApiCallError { view, .. }) if view.code == Code::InvalidArgument => {
                Ok(view.violations.iter().all(|violation| violation.field != TENANT_FIELD))
            }
            Err(error) if matches!(error.view.code, Code::Unavailable | Code::DeadlineExceeded) => {
                Err(error.into())
            }
            Ok(_) | Err(_) => Ok(true),
        }
    }

    /// Watches instances from a position on; an empty one begins with a snapshot.
    pub async fn watch_sagas(
        &self,
        request: v1::WatchSagasRequest,
    ) -> Result<ApiResponseStream<v1::WatchSagasResponse>, ApiCallError> {
        // Errors of the profile are reported unchanged.
        let unknown = |failure: CliError| ApiCallError::from(Status::invalid_argument(failure.to_string()));
        let mut client = self.sagas().map_err(unknown)?.clone();
        Ok(ApiResponseStream(client.watch_sagas(request).await?.into_inner()))
    }

    /// Processes a lane again. One try: the stream reports the progress.
    pub async fn replay_lane(
        &self,
        request: v1::ReplayLaneRequest,
    ) -> Result<ApiResponseStream<v1::ReplayLaneResponse>, CliError> {
        let mut client = self.sagas()?.clone();
        let id = request.request_id.clone();
        let response = client.replay_lane(request).await;
        Ok(ApiResponseStream(response.map_err(|status| unanswered(status.into(), &id))?.into_inner()))
    }

    /// Reads the operator's directory again. Where nothing was changed because of what is wrong with its files, the answer has all
    /// that is wrong: the refusal has room for the first problems only, so the server is asked for them.
    pub async fn reload_sagas(
        &self,
        request: &v1::SagaServiceReloadRequest,
    ) -> Result<v1::SagaServiceReloadResponse, CliError> {
        debug_assert!(!request.request_id.is_empty());
        let client = self.sagas()?;
        let refused = match change!(client, reload, request) {
            Err(error) if error.view.reason == RpcReason::ManifestsRefused.as_str() => error,
            answer => return answer.map_err(|error| unanswered(error, &request.request_id)),
        };
        let check = v1::SagaServiceReloadRequest {
            request_id: Uuid::new_v4().to_string(),
            dry_run: true,
            ..request.clone()
        };
        let found = change!(client, reload, &check)?;
        // They may have been mended meanwhile.
        if found.problems.is_empty() { Err(refused.into()) } else { Ok(found) }
    }

    /// Reads the rows of a timeline that the request describes, the oldest first, at most `limit`.
    pub async fn get_saga_timeline(
        &self,
        request: v1::GetSagaTimelineRequest,
        limit: u32,
    ) -> Result<v1::GetSagaTimelineResponse, CliError> {
        let client = self.sagas()?;
        let (mut request, mut all) = (request, v1::GetSagaTimelineResponse::default());
        loop {
            let left = limit.saturating_sub(u32::try_from(all.entries.len()).unwrap_or(u32::MAX));
            if left == 0 {
                return Ok(all);
            }
            request.page_size = left.min(PAGE_SIZE);
            let page = call!(client, get_saga_timeline, request).await?;
            all.first_revision = page.first_revision;
            all.entries.extend(page.entries);
            all.next_page_token.clone_from(&page.next_page_token);
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }
}

/// Tells how a change can be repeated whose answer did not come, and where to look for the reason.
pub(crate) fn unanswered(error: ApiCallError, request_id: &str) -> CliError {
    let may_be_done = matches!(error.retry, RetryAdvice::Again { .. });
    let is_late = error.view.code == Code::DeadlineExceeded;
    let text = error.view.to_string();
    match CliError::from(error) {
        // The server is there, and waited.
        CliError::Unreachable(_) if is_late => CliError::Unreachable(format!(
            "{text}\n`mycora saga lanes` shows which lanes have no owner, and what is wrong with those that have one; \
             with --request-id {request_id} the same call has one effect"
        )),
        CliError::Unreachable(text) if may_be_done => CliError::Unreachable(format!(
            "{text}\nshould it have been done after all: with --request-id {request_id} it has one effect"
        )),
        other => other,
    }
}

/// Defines methods that read with one answer.
macro_rules! read {
    ($($(#[$doc:meta])* $name:ident: $request:ident -> $response:ident;)*) => {
        impl Clients {$(
            $(#[$doc])*
            pub async fn $name(&self, request: &v1::$request) -> Result<v1::$response, CliError> {
                let client = self.sagas()?;
                Ok(call!(client, $name, request).await?)
            }
        )*}
    };
}

read! {
    /// Checks a manifest.
    validate_saga: ValidateSagaRequest -> ValidateSagaResponse;
    /// Reads a definition with its manifest.
    get_saga_definition: GetSagaDefinitionRequest -> GetSagaDefinitionResponse;
    /// Reads an instance.
    get_saga: GetSagaRequest -> GetSagaResponse;
    /// Asks why an instance is where it is.
    explain_saga: ExplainSagaRequest -> ExplainSagaResponse;
    /// Reads the graph of a definition.
    get_saga_graph: GetSagaGraphRequest -> GetSagaGraphResponse;
    /// Reads a call of an effect.
    get_effect: GetEffectRequest -> GetEffectResponse;
    /// Reads a dead letter.
    get_saga_dead_letter: GetSagaDeadLetterRequest -> GetSagaDeadLetterResponse;
    /// Describes the server.
    get_saga_server: GetSagaServerRequest -> GetSagaServerResponse;
}

/// Defines methods that read page by page, at most `limit` items.
macro_rules! listed {
    ($($(#[$doc:meta])* $name:ident: $request:ident -> $response:ident of $items:ident;)*) => {
        impl Clients {$(
            $(#[$doc])*
            pub async fn $name(&self, request: v1::$request, limit: u32) -> Result<v1::$response, CliError> {
                let client = self.sagas()?;
                let ($items, next_page_token) = pages!(client, $name, request, $items, limit);
                Ok(v1::$response { $items, next_page_token })
            }
        )*}
    };
}

listed! {
    /// Reads the definitions that the request describes, at most `limit`.
    list_saga_definitions: ListSagaDefinitionsRequest -> ListSagaDefinitionsResponse of definitions;
    /// Reads the instances that the request describes, at most `limit`.
    list_sagas: ListSagasRequest -> ListSagasResponse of sagas;
    /// Reads the timers that the request describes, the first to fire first, at most `limit`.
    list_saga_timers: ListSagaTimersRequest -> ListSagaTimersResponse of timers;
    /// Reads the calls of effects that the request describes, at most `limit`.
    list_effects: ListEffectsRequest -> ListEffectsResponse of calls;
    /// Reads the dead letters that the request describes, at most `limit`.
    list_saga_dead_letters: ListSagaDeadLettersRequest -> ListSagaDeadLettersResponse of dead_letters;
    /// Reads the lanes that the request describes, at most `limit`.
    list_lanes: ListLanesRequest -> ListLanesResponse of lanes;
}

/// Defines methods that change something; each request has to carry its request id.
macro_rules! changed {
    ($($(#[$doc:meta])* $name:ident($method:ident): $request:ident -> $response:ident;)*) => {
        impl Clients {$(
            $(#[$doc])*
            pub async fn $name(&self, request: &v1::$request) -> Result<v1::$response, CliError> {
                debug_assert!(!request.request_id.is_empty());
                let client = self.sagas()?;
                change!(client, $method, request).map_err(|error| unanswered(error, &request.request_id))
            }
        )*}
    };
}

changed! {
    /// Puts sagas in force.
    apply_saga(apply_saga): ApplySagaRequest -> ApplySagaResponse;
    /// Takes a saga out of force.
    retire_saga(retire_saga): RetireSagaRequest -> RetireSagaResponse;
    /// Starts an instance.
    start_saga(start_saga): StartSagaRequest -> StartSagaResponse;
    /// Gives an instance an event.
    send_saga_event(send_saga_event): SendSagaEventRequest -> SendSagaEventResponse;
    /// Keeps the inputs of an instance back.
    pause_saga(pause_saga): PauseSagaRequest -> PauseSagaResponse;
    /// Applies the inputs that were kept back.
    resume_saga(resume_saga): ResumeSagaRequest -> ResumeSagaResponse;
    /// Undoes what an instance has done.
    cancel_saga(cancel_saga): CancelSagaRequest -> CancelSagaResponse;
    /// Ends an instance where it stands.
    kill_saga(kill_saga): KillSagaRequest -> KillSagaResponse;
    /// Tries again what an instance is stuck at.
    retry_saga_step(retry_saga_step): RetrySagaStepRequest -> RetrySagaStepResponse;
    /// Leaves out what an instance is stuck at.
    skip_saga_step(skip_saga_step): SkipSagaStepRequest -> SkipSagaStepResponse;
    /// Ends a stuck instance as completed.
    complete_saga(complete_saga): CompleteSagaRequest -> CompleteSagaResponse;
    /// Makes an instance one of the definition that is in force.
    migrate_saga(migrate_saga): MigrateSagaRequest -> MigrateSagaResponse;
    /// Ends a call that waits for its answer.
    complete_effect(complete_effect): CompleteEffectRequest -> CompleteEffectResponse;
    /// Says whether a call happened.
    resolve_effect(resolve_effect): ResolveEffectRequest -> ResolveEffectResponse;
    /// Makes a call again.
    retry_effect(retry_effect): RetryEffectRequest -> RetryEffectResponse;
    /// Cancels a call.
    cancel_effect(cancel_effect): CancelEffectRequest -> CancelEffectResponse;
    /// Applies dead letters.
    redrive_saga_dead_letters(redrive_saga_dead_letters): RedriveSagaDeadLettersRequest -> RedriveSagaDeadLettersResponse;
    /// Removes dead letters.
    purge_saga_dead_letters(purge_saga_dead_letters): PurgeSagaDeadLettersRequest -> PurgeSagaDeadLettersResponse;
    /// Stops reading what comes for a tenant.
    pause_tenant(pause_tenant): PauseTenantRequest -> PauseTenantResponse;
    /// Goes on with a tenant.
    resume_tenant(resume_tenant): ResumeTenantRequest -> ResumeTenantResponse;
    /// Has a lane owned by another replica.
    move_lane(move_lane): MoveLaneRequest -> MoveLaneResponse;
    /// Drains the service, or gives up a tenant's lanes.
    drain_sagas(drain): SagaServiceDrainRequest -> SagaServiceDrainResponse;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_an_answer_is_reported_with_its_request_id() {
        let text = |status: Status| unanswered(ApiCallError::from(status), "id-1").to_string();
        let late = text(Status::deadline_exceeded("late"));
        assert!(
            late.starts_with("late\n`mycora saga lanes` ") && late.contains("--request-id id-1"),
            "{late}"
        );
        assert!(text(Status::unavailable("gone")).ends_with("with --request-id id-1 it has one effect"));
        for refused in
            [Status::permission_denied("no"), Status::invalid_argument("no"), Status::aborted("no")]
        {
            assert!(!text(refused).contains("--request-id"));
        }
    }
}
