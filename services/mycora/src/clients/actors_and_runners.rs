//! Calls about actors, runners and the gateway: who and what there is.

use proto::v1;

use super::{ApiResponseStream, CALL_TIMEOUT, Clients, PAGE_SIZE, RETRY_WAITS, repeat, timed};
use crate::failure::{ApiCallError, CliError};

impl Clients {
    /// Asks who we are taken for.
    pub async fn who_am_i(&self) -> Result<v1::WhoAmIResponse, ApiCallError> {
        call!(self.actors, who_am_i, v1::WhoAmIRequest {}).await
    }

    /// Reads an actor.
    pub async fn get_actor(&self, id: u32) -> Result<v1::GetActorResponse, ApiCallError> {
        call!(self.actors, get_actor, v1::GetActorRequest { id }).await
    }

    /// Changes an actor. Tried again when the answer was lost: the request has an id.
    pub async fn update_actor(
        &self,
        request: &v1::UpdateActorRequest,
    ) -> Result<v1::UpdateActorResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.actors, update_actor, request).await
    }

    /// Registers a runner. Tried again when the answer was lost: the request has an id.
    pub async fn register_runner(
        &self,
        request: &v1::RegisterRunnerRequest,
    ) -> Result<v1::RegisterRunnerResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.runners, register_runner, request).await
    }

    /// Changes a runner. Tried again when the answer was lost: the request has an id.
    pub async fn update_runner(
        &self,
        request: &v1::UpdateRunnerRequest,
    ) -> Result<v1::UpdateRunnerResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.runners, update_runner, request).await
    }

    /// Drains a runner, or ends that. Tried again when the answer was lost: the request has an id.
    pub async fn drain_runner(
        &self,
        request: &v1::DrainRunnerRequest,
    ) -> Result<v1::DrainRunnerResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.runners, drain_runner, request).await
    }

    /// Deletes a runner. Tried again when the answer was lost: the request has an id.
    pub async fn delete_runner(
        &self,
        request: &v1::DeleteRunnerRequest,
    ) -> Result<v1::DeleteRunnerResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.runners, delete_runner, request).await
    }

    /// Watches the runners of a context.
    pub async fn watch_runners(
        &self,
        request: v1::WatchRunnersRequest,
    ) -> Result<ApiResponseStream<v1::WatchRunnersResponse>, ApiCallError> {
        Ok(ApiResponseStream(self.runners.clone().watch_runners(request).await?.into_inner()))
    }

    /// Reads a runner.
    pub async fn get_runner(
        &self,
        context_id: u32,
        runner_id: u32,
    ) -> Result<v1::GetRunnerResponse, ApiCallError> {
        call!(self.runners, get_runner, v1::GetRunnerRequest { context_id, runner_id }).await
    }

    /// Reads all runners of a context.
    pub async fn list_runners(&self, context_id: u32) -> Result<v1::ListRunnersResponse, ApiCallError> {
        let request = v1::ListRunnersRequest { context_id, ..Default::default() };
        let (runners, next_page_token) = pages!(self.runners, list_runners, request, runners, u32::MAX);
        Ok(v1::ListRunnersResponse { runners, next_page_token })
    }

    /// Describes the gateway.
    pub async fn get_gateway(&self) -> Result<v1::GetGatewayResponse, CliError> {
        let client = self.gateway.as_ref().map_err(Clone::clone)?;
        Ok(call!(client, get_gateway, v1::GetGatewayRequest {}).await?)
    }

    /// Has the gateway ping an address. One try: no reply is also an answer.
    pub async fn ping_peer(&self, address: String) -> Result<v1::PingPeerResponse, CliError> {
        let mut client = self.gateway.clone()?;
        let request = timed(v1::PingPeerRequest { address }, CALL_TIMEOUT);
        Ok(client.ping_peer(request).await.map_err(ApiCallError::from)?.into_inner())
    }
}
