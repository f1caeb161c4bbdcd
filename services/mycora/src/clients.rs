//! Calls to the services. The only place of this crate that makes gRPC requests.

use std::future::Future;
use std::time::Duration;

use proto::v1;
use proto::v1::actor_service_client::ActorServiceClient;
use proto::v1::context_service_client::ContextServiceClient;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::gateway_service_client::GatewayServiceClient;
use proto::v1::job_service_client::JobServiceClient;
use proto::v1::message_service_client::MessageServiceClient;
use proto::v1::runner_service_client::RunnerServiceClient;
use proto::v1::saga_service_client::SagaServiceClient;
use proto::v1::supervisor_service_client::SupervisorServiceClient;
use rpc::{Channel, RetryAdvice};
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Response, Status, Streaming};
use uuid::Uuid;

use self::bearer::BearerInterceptor;

use crate::failure::{ApiCallError, CliError};
use crate::profile::{ApiService, Profile};

/// How long one answer may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Waits between tries of a call that may be repeated.
const RETRY_WAITS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(600), Duration::from_millis(1500)];
/// Waits between tries where giving up would lose much: a service that restarts gets about 30 s.
const PATIENT_WAITS: [Duration; 9] = {
    let mut waits = [Duration::from_secs(5); 9];
    (waits[0], waits[1], waits[2]) = (RETRY_WAITS[0], RETRY_WAITS[1], RETRY_WAITS[2]);
    waits
};
/// How long a start may take, which checks the flow as a whole.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long one try to remove a context may take.
const DELETE_CONTEXT_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest delay before a retry, as asked for by a server, that is still waited for.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Entries of one page where all pages are wanted.
const PAGE_SIZE: u32 = 1000;

/// A way to a service, on which calls show who we are.
type AuthenticatedChannel = InterceptedService<Channel, BearerInterceptor>;

/// Ways to the services that the command line needs.
#[derive(Debug, Clone)]
pub struct Clients {
    flows: FlowServiceClient<AuthenticatedChannel>,
    jobs: JobServiceClient<AuthenticatedChannel>,
    contexts: ContextServiceClient<AuthenticatedChannel>,
    actors: ActorServiceClient<AuthenticatedChannel>,
    runners: RunnerServiceClient<AuthenticatedChannel>,
    /// Not every profile names one; nor the next three.
    messages: Result<MessageServiceClient<AuthenticatedChannel>, CliError>,
    gateway: Result<GatewayServiceClient<AuthenticatedChannel>, CliError>,
    supervisor: Result<SupervisorServiceClient<AuthenticatedChannel>, CliError>,
    sagas: Result<SagaServiceClient<AuthenticatedChannel>, CliError>,
}

/// An answer that comes in pieces.
pub struct ApiResponseStream<T>(Streaming<T>);

impl<T> ApiResponseStream<T> {
    /// The next piece; `None` when there is no more. Nothing is lost when this is dropped.
    ///
    /// # Errors
    /// What ended the stream.
    pub async fn next(&mut self) -> Result<Option<T>, ApiCallError> {
        self.0.message().await.map_err(ApiCallError::from)
    }
}

/// Calls a method, and calls it again when it may have been a passing trouble.
macro_rules! call {
    ($client:expr, $method:ident, $request:expr, $waits:expr, $timeout:expr) => {
        repeat($waits, || {
            let (mut client, request) = ($client.clone(), timed($request.clone(), $timeout));
            async move { client.$method(request).await }
        })
    };
    ($client:expr, $method:ident, $request:expr) => {
        call!($client, $method, $request, &RETRY_WAITS, CALL_TIMEOUT)
    };
}

/// Reads one page after the other until there is no more, or there are as many as are wanted.
macro_rules! pages {
    ($client:expr, $method:ident, $request:expr, $items:ident, $limit:expr) => {
        pages!($client, $method, $request, $items, $limit, &RETRY_WAITS)
    };
    ($client:expr, $method:ident, $request:expr, $items:ident, $limit:expr, $waits:expr) => {{
        let limit: u32 = $limit;
        let (mut request, mut all) = ($request, Vec::new());
        loop {
            let left = limit.saturating_sub(u32::try_from(all.len()).unwrap_or(u32::MAX));
            if left == 0 {
                break (all, request.page_token);
            }
            request.page_size = left.min(PAGE_SIZE);
            let page = call!($client, $method, request, $waits, CALL_TIMEOUT).await?;
            all.extend(page.$items);
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break (all, request.page_token);
            }
        }
    }};
}

mod actors_and_runners;
mod attempts;
mod bearer;
mod checking;
pub mod health;
mod messages;
mod moving;
mod objects;
pub(crate) mod sagas;
mod trace;

pub(crate) use self::trace::trace_calls;

impl Clients {
    /// Prepares to call; connects with the first call. Must be called within a runtime.
    ///
    /// # Errors
    /// When an address or a certificate file cannot be used.
    pub fn new(profile: &Profile) -> Result<Self, CliError> {
        let bearer = BearerInterceptor::of(profile)?;
        let way = |host| Ok(InterceptedService::new(profile.channel_to(host)?, bearer.clone()));
        let storage = way(ApiService::Storage)?;
        Ok(Self {
            flows: FlowServiceClient::new(way(ApiService::Scheduler)?),
            jobs: JobServiceClient::new(storage.clone()),
            contexts: ContextServiceClient::new(storage.clone()),
            actors: ActorServiceClient::new(storage),
            runners: RunnerServiceClient::new(way(ApiService::RunnerRegistry)?),
            messages: way(ApiService::Router).map(MessageServiceClient::new),
            gateway: way(ApiService::MyceliumGateway).map(GatewayServiceClient::new),
            supervisor: way(ApiService::Supervisor).map(SupervisorServiceClient::new),
            sagas: way(ApiService::Saga).map(SagaServiceClient::new),
        })
    }

    /// Submits a flow. Tried again when the answer was lost: the request has an id.
    pub async fn submit_flow(
        &self,
        request: &v1::SubmitFlowRequest,
    ) -> Result<v1::SubmitFlowResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.flows, submit_flow, request).await
    }

    /// Creates a flow to be filled. Tried again when the answer was lost: the request has an id.
    pub async fn create_flow(
        &self,
        request: &v1::CreateFlowRequest,
    ) -> Result<v1::CreateFlowResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.flows, create_flow, request).await
    }

    /// Adds nodes to a flow. Tried again for as long as a service may need to restart: the same nodes
    /// at the same place change nothing.
    pub async fn add_nodes(
        &self,
        request: &v1::AddFlowNodesRequest,
    ) -> Result<v1::AddFlowNodesResponse, ApiCallError> {
        call!(self.flows, add_flow_nodes, request, &PATIENT_WAITS, CALL_TIMEOUT).await
    }

    /// Starts a flow that was filled. Tried again as long as [`Clients::add_nodes`]: starting twice is
    /// starting once.
    pub async fn start_flow(
        &self,
        request: v1::StartFlowRequest,
    ) -> Result<v1::StartFlowResponse, ApiCallError> {
        call!(self.flows, start_flow, request, &PATIENT_WAITS, START_TIMEOUT).await
    }

    /// Reads a flow.
    pub async fn get_flow(&self, context_id: u32, flow_id: u32) -> Result<v1::GetFlowResponse, ApiCallError> {
        call!(self.flows, get_flow, v1::GetFlowRequest { context_id, flow_id }).await
    }

    /// Reads the nodes of a flow that are in one of these states; all without any.
    pub async fn list_nodes(
        &self,
        context_id: u32,
        flow_id: u32,
        states: &[v1::NodeState],
    ) -> Result<Vec<v1::FlowNode>, ApiCallError> {
        let states = states.iter().map(|state| (*state).into()).collect();
        let request = v1::ListFlowNodesRequest { context_id, flow_id, states, ..Default::default() };
        Ok(pages!(self.flows, list_flow_nodes, request, nodes, u32::MAX).0)
    }

    /// Reads the nodes of a flow. Tried again for as long as a service may need to restart.
    pub async fn list_nodes_with_retry(
        &self,
        context_id: u32,
        flow_id: u32,
    ) -> Result<Vec<v1::FlowNode>, ApiCallError> {
        let request = v1::ListFlowNodesRequest { context_id, flow_id, ..Default::default() };
        Ok(pages!(self.flows, list_flow_nodes, request, nodes, u32::MAX, &PATIENT_WAITS).0)
    }

    /// Reads the newest flows that the request describes, at most `limit`.
    pub async fn list_flows(
        &self,
        request: v1::ListFlowsRequest,
        limit: u32,
    ) -> Result<v1::ListFlowsResponse, ApiCallError> {
        let (flows, next_page_token) = pages!(self.flows, list_flows, request, flows, limit);
        Ok(v1::ListFlowsResponse { flows, next_page_token })
    }

    /// Asks to cancel a flow. Tried again when the answer was lost: cancelling twice is cancelling once.
    pub async fn cancel_flow(
        &self,
        request: &v1::CancelFlowRequest,
    ) -> Result<v1::CancelFlowResponse, ApiCallError> {
        call!(self.flows, cancel_flow, request).await
    }

    /// Asks to cancel a node. Tried again as [`Clients::cancel_flow`].
    pub async fn cancel_node(
        &self,
        request: &v1::CancelNodeRequest,
    ) -> Result<v1::CancelNodeResponse, ApiCallError> {
        call!(self.flows, cancel_node, request).await
    }

    /// Runs a flow again. Tried again when the answer was lost: the request has an id.
    pub async fn retry_flow(
        &self,
        request: &v1::RetryFlowRequest,
    ) -> Result<v1::RetryFlowResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.flows, retry_flow, request).await
    }

    /// Gives a signal to a flow. Tried again: the first of a name counts.
    pub async fn signal_flow(
        &self,
        request: &v1::SignalFlowRequest,
    ) -> Result<v1::SignalFlowResponse, ApiCallError> {
        call!(self.flows, signal_flow, request).await
    }

    /// Asks why a node is where it is.
    pub async fn explain_node(
        &self,
        request: &v1::ExplainNodeRequest,
    ) -> Result<v1::ExplainNodeResponse, ApiCallError> {
        call!(self.flows, explain_node, request).await
    }

    /// Has a flow drawn.
    pub async fn flow_graph(
        &self,
        request: v1::GetFlowGraphRequest,
    ) -> Result<v1::GetFlowGraphResponse, ApiCallError> {
        call!(self.flows, get_flow_graph, request).await
    }

    /// Starts one job. Tried again when the answer was lost: the request has an id.
    pub async fn run_job(&self, request: &v1::RunJobRequest) -> Result<v1::RunJobResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.flows, run_job, request).await
    }

    /// Reports on an attempt. Tried again when the answer was lost: the request has an id.
    pub async fn update_node(
        &self,
        request: &v1::UpdateNodeStatusRequest,
    ) -> Result<v1::UpdateNodeStatusResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.flows, update_node_status, request).await
    }

    /// Removes an ended flow. Tried again when the answer was lost: the request has an id.
    pub async fn delete_flow(
        &self,
        context_id: u32,
        flow_id: u32,
    ) -> Result<v1::DeleteFlowResponse, ApiCallError> {
        let request_id = Uuid::new_v4().to_string();
        let request = v1::DeleteFlowRequest { context_id, flow_id, request_id, expected_revision: 0 };
        call!(self.flows, delete_flow, request).await
    }

    /// Reads a context.
    pub async fn get_context(&self, id: u32) -> Result<v1::GetContextResponse, ApiCallError> {
        call!(self.contexts, get_context, v1::GetContextRequest { id }).await
    }

    /// How much a context has.
    pub async fn context_usage(&self, context_id: u32) -> Result<v1::GetContextUsageResponse, ApiCallError> {
        call!(self.contexts, get_context_usage, v1::GetContextUsageRequest { context_id }).await
    }

    /// Removes a context. One try: the answer to a second one depends on the outcome of the first.
    pub async fn delete_context(
        &self,
        request: &v1::DeleteContextRequest,
    ) -> Result<v1::DeleteContextResponse, ApiCallError> {
        let request = timed(request.clone(), DELETE_CONTEXT_TIMEOUT);
        Ok(self.contexts.clone().delete_context(request).await?.into_inner())
    }

    /// Watches a flow from a position on; an empty one begins with a snapshot.
    pub async fn watch_flow(
        &self,
        request: v1::WatchFlowRequest,
    ) -> Result<ApiResponseStream<v1::WatchFlowResponse>, ApiCallError> {
        Ok(ApiResponseStream(self.flows.clone().watch_flow(request).await?.into_inner()))
    }

    /// Watches the flows of a context from a position on; an empty one begins with a snapshot.
    pub async fn watch_flows(
        &self,
        request: v1::WatchFlowsRequest,
    ) -> Result<ApiResponseStream<v1::WatchFlowsResponse>, ApiCallError> {
        Ok(ApiResponseStream(self.flows.clone().watch_flows(request).await?.into_inner()))
    }

    /// Reads what jobs print.
    pub async fn stream_logs(
        &self,
        request: v1::StreamFlowLogsRequest,
    ) -> Result<ApiResponseStream<v1::StreamFlowLogsResponse>, ApiCallError> {
        Ok(ApiResponseStream(self.flows.clone().stream_flow_logs(request).await?.into_inner()))
    }

    /// Uploads a blob, given in pieces. Tried again as a whole: the content is its name.
    pub async fn put_blob(&self, pieces: &[v1::PutBlobRequest]) -> Result<v1::PutBlobResponse, ApiCallError> {
        repeat(&RETRY_WAITS, || {
            let (mut client, pieces) = (self.jobs.clone(), pieces.to_vec());
            async move { client.put_blob(timed(tokio_stream::iter(pieces), CALL_TIMEOUT)).await }
        })
        .await
    }

    /// Downloads a blob, piece by piece.
    pub async fn stream_blob(
        &self,
        context_id: u32,
        sha256: String,
    ) -> Result<ApiResponseStream<v1::GetBlobResponse>, ApiCallError> {
        let request = timed(v1::GetBlobRequest { context_id, sha256 }, CALL_TIMEOUT);
        Ok(ApiResponseStream(self.jobs.clone().get_blob(request).await?.into_inner()))
    }

    /// Downloads a blob.
    pub async fn get_blob(&self, context_id: u32, sha256: String) -> Result<Vec<u8>, ApiCallError> {
        let mut pieces = self.stream_blob(context_id, sha256).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.next().await? {
            bytes.extend(piece.data);
        }
        Ok(bytes)
    }

    /// Describes the supervisor.
    pub async fn get_supervisor(&self) -> Result<v1::GetSupervisorResponse, CliError> {
        let client = self.supervisor.as_ref().map_err(Clone::clone)?;
        Ok(call!(client, get_supervisor, v1::GetSupervisorRequest {}).await?)
    }

    /// Asks the supervisor why it takes no jobs: empty when it takes some, `None` when this identity may not know.
    pub async fn intake_problem(&self) -> Result<Option<String>, CliError> {
        let client = self.supervisor.as_ref().map_err(Clone::clone)?;
        match call!(client, get_supervisor, v1::GetSupervisorRequest {}).await {
            Ok(supervisor) => Ok(Some(supervisor.intake_problem)),
            Err(error) if matches!(error.view.code, Code::PermissionDenied | Code::Unauthenticated) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the instances of the supervisor.
    pub async fn list_instances(&self) -> Result<v1::ListInstancesResponse, CliError> {
        let client = self.supervisor.as_ref().map_err(Clone::clone)?;
        Ok(call!(client, list_instances, v1::ListInstancesRequest {}).await?)
    }

    /// Has the supervisor's machine drained. Tried again when the answer was lost: it may be repeated.
    pub async fn drain(&self, deadline_secs: Option<u32>) -> Result<v1::DrainResponse, CliError> {
        let client = self.supervisor.as_ref().map_err(Clone::clone)?;
        let request = v1::DrainRequest { request_id: uuid::Uuid::new_v4().to_string(), deadline_secs };
        Ok(call!(client, drain, request.clone()).await?)
    }

    /// Has the supervisor take jobs again. Tried again as [`Clients::drain`].
    pub async fn resume(&self) -> Result<v1::ResumeResponse, CliError> {
        let client = self.supervisor.as_ref().map_err(Clone::clone)?;
        let request = v1::ResumeRequest { request_id: uuid::Uuid::new_v4().to_string() };
        Ok(call!(client, resume, request.clone()).await?)
    }

    /// Has the supervisor take one root of a coordinator for another. Tried again as [`Clients::drain`].
    pub async fn succeed_coordinator(
        &self,
        request: v1::SucceedCoordinatorRequest,
    ) -> Result<v1::SucceedCoordinatorResponse, CliError> {
        let client = self.supervisor.as_ref().map_err(Clone::clone)?;
        Ok(call!(client, succeed_coordinator, request.clone()).await?)
    }
}

fn timed<T>(message: T, timeout: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(timeout);
    request
}

/// Calls, and calls again after each of the waits when it may have been a passing trouble.
async fn repeat<T, F>(waits: &[Duration], call: impl FnMut() -> F) -> Result<T, ApiCallError>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    repeat_while(waits, call, |_| true).await
}

/// Calls and calls again as [`repeat`] does, but not after an exceeded deadline: the caller has waited long enough.
async fn repeat_in_time<T, F>(waits: &[Duration], call: impl FnMut() -> F) -> Result<T, ApiCallError>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    repeat_while(waits, call, |error| error.view.code != Code::DeadlineExceeded).await
}

async fn repeat_while<T, F>(
    waits: &[Duration],
    mut call: impl FnMut() -> F,
    is_worth_it: impl Fn(&ApiCallError) -> bool,
) -> Result<T, ApiCallError>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let mut waits = waits.iter();
    loop {
        let error = match call().await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => ApiCallError::from(status),
        };
        match (error.retry, waits.next()) {
            (RetryAdvice::Again { after }, Some(wait)) if is_worth_it(&error) => {
                tokio::time::sleep(after.unwrap_or(*wait).min(WAIT_MAX)).await
            }
            _ => return Err(error),
        }
    }
}
