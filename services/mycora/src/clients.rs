//! Calls to the services. The only place of this crate that makes gRPC requests.

use std::future::Future;
use std::time::Duration;

use proto::v1;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::job_service_client::JobServiceClient;
use proto::v1::runner_service_client::RunnerServiceClient;
use rpc::{Channel, Retry};
use tonic::{Response, Status, Streaming};

use crate::failure::{CallError, Failure};
use crate::profile::{Host, Profile};

/// How long one answer may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Waits between tries of a call that may be repeated.
const RETRY_WAITS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(600), Duration::from_millis(1500)];
/// A server that wants to be asked later than this is not waited for.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Entries of one page where all pages are wanted.
const PAGE_SIZE: u32 = 1000;

/// Ways to the services that the command line needs.
#[derive(Debug, Clone)]
pub struct Clients {
    flows: FlowServiceClient<Channel>,
    jobs: JobServiceClient<Channel>,
    runners: RunnerServiceClient<Channel>,
}

/// An answer that comes in pieces.
pub struct Pieces<T>(Streaming<T>);

impl<T> Pieces<T> {
    /// The next piece; `None` when there is no more. Nothing is lost when this is dropped.
    ///
    /// # Errors
    /// What ended the stream.
    pub async fn next(&mut self) -> Result<Option<T>, CallError> {
        self.0.message().await.map_err(CallError::from)
    }
}

impl Clients {
    /// Prepares to call; connects with the first call. Has to be made within a runtime.
    ///
    /// # Errors
    /// When an address or a certificate file cannot be used.
    pub fn new(profile: &Profile) -> Result<Self, Failure> {
        Ok(Self {
            flows: FlowServiceClient::new(profile.channel_to(Host::Scheduler)?),
            jobs: JobServiceClient::new(profile.channel_to(Host::Storage)?),
            runners: RunnerServiceClient::new(profile.channel_to(Host::RunnerRegistry)?),
        })
    }

    /// Submits a flow. Tried again when the answer was lost: the request has an id.
    pub async fn submit_flow(
        &self,
        request: v1::SubmitFlowRequest,
    ) -> Result<v1::SubmitFlowResponse, CallError> {
        debug_assert!(!request.request_id.is_empty());
        repeat(|| {
            let (mut client, request) = (self.flows.clone(), timed(request.clone()));
            async move { client.submit_flow(request).await }
        })
        .await
    }

    /// Reads a flow.
    pub async fn get_flow(&self, context_id: u32, flow_id: u32) -> Result<v1::GetFlowResponse, CallError> {
        repeat(|| {
            let mut client = self.flows.clone();
            async move { client.get_flow(timed(v1::GetFlowRequest { context_id, flow_id })).await }
        })
        .await
    }

    /// Reads all nodes of a flow.
    pub async fn list_nodes(&self, context_id: u32, flow_id: u32) -> Result<Vec<v1::FlowNode>, CallError> {
        let mut nodes = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListFlowNodesRequest { context_id, flow_id, page_size: PAGE_SIZE, page_token };
            let page = repeat(|| {
                let (mut client, request) = (self.flows.clone(), timed(request.clone()));
                async move { client.list_flow_nodes(request).await }
            })
            .await?;
            nodes.extend(page.nodes);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(nodes);
            }
        }
    }

    /// Reads the newest flows of a context, at most `limit`.
    pub async fn list_flows(
        &self,
        context_id: u32,
        status: v1::FlowStatus,
        limit: u32,
    ) -> Result<v1::ListFlowsResponse, CallError> {
        let mut all = v1::ListFlowsResponse::default();
        loop {
            let left = limit.saturating_sub(u32::try_from(all.flows.len()).unwrap_or(u32::MAX));
            if left == 0 {
                return Ok(all);
            }
            let request = v1::ListFlowsRequest {
                context_id,
                status: status.into(),
                page_size: left.min(PAGE_SIZE),
                page_token: std::mem::take(&mut all.next_page_token),
            };
            let page = repeat(|| {
                let (mut client, request) = (self.flows.clone(), timed(request.clone()));
                async move { client.list_flows(request).await }
            })
            .await?;
            all.flows.extend(page.flows);
            all.next_page_token = page.next_page_token;
            if all.next_page_token.is_empty() {
                return Ok(all);
            }
        }
    }

    /// Asks to cancel a flow. Tried again when the answer was lost: cancelling twice is cancelling once.
    pub async fn cancel_flow(
        &self,
        request: v1::CancelFlowRequest,
    ) -> Result<v1::CancelFlowResponse, CallError> {
        repeat(|| {
            let (mut client, request) = (self.flows.clone(), timed(request.clone()));
            async move { client.cancel_flow(request).await }
        })
        .await
    }

    /// Removes an ended flow. Never tried again: the second answer would be that it is not there.
    pub async fn delete_flow(
        &self,
        context_id: u32,
        flow_id: u32,
    ) -> Result<v1::DeleteFlowResponse, CallError> {
        let request = timed(v1::DeleteFlowRequest { context_id, flow_id });
        Ok(self.flows.clone().delete_flow(request).await?.into_inner())
    }

    /// Watches a flow from a position on; an empty one begins with a snapshot.
    pub async fn watch_flow(
        &self,
        request: v1::WatchFlowRequest,
    ) -> Result<Pieces<v1::WatchFlowResponse>, CallError> {
        Ok(Pieces(self.flows.clone().watch_flow(request).await?.into_inner()))
    }

    /// Reads what jobs print.
    pub async fn stream_logs(
        &self,
        request: v1::StreamFlowLogsRequest,
    ) -> Result<Pieces<v1::StreamFlowLogsResponse>, CallError> {
        Ok(Pieces(self.flows.clone().stream_flow_logs(request).await?.into_inner()))
    }

    /// Uploads a blob, given in pieces. Tried again as a whole: the content is its name.
    pub async fn put_blob(&self, pieces: &[v1::PutBlobRequest]) -> Result<v1::PutBlobResponse, CallError> {
        repeat(|| {
            let (mut client, pieces) = (self.jobs.clone(), pieces.to_vec());
            async move { client.put_blob(timed(tokio_stream::iter(pieces))).await }
        })
        .await
    }

    /// Downloads a blob.
    pub async fn get_blob(&self, context_id: u32, sha256: String) -> Result<Vec<u8>, CallError> {
        let request = timed(v1::GetBlobRequest { context_id, sha256 });
        let mut pieces = Pieces(self.jobs.clone().get_blob(request).await?.into_inner());
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.next().await? {
            bytes.extend(piece.data);
        }
        Ok(bytes)
    }

    /// Reads all runners of a context.
    pub async fn list_runners(&self, context_id: u32) -> Result<v1::ListRunnersResponse, CallError> {
        let mut all = v1::ListRunnersResponse::default();
        loop {
            let page_token = std::mem::take(&mut all.next_page_token);
            let request = v1::ListRunnersRequest { context_id, page_size: PAGE_SIZE, page_token };
            let page = repeat(|| {
                let (mut client, request) = (self.runners.clone(), timed(request.clone()));
                async move { client.list_runners(request).await }
            })
            .await?;
            all.runners.extend(page.runners);
            all.next_page_token = page.next_page_token;
            if all.next_page_token.is_empty() {
                return Ok(all);
            }
        }
    }
}

fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

/// Calls, and calls again when it may have been a passing trouble.
async fn repeat<T, F>(mut call: impl FnMut() -> F) -> Result<T, CallError>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let mut waits = RETRY_WAITS.iter();
    loop {
        let error = match call().await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => CallError::from(status),
        };
        match (error.retry, waits.next()) {
            (Retry::Again { after }, Some(wait)) => {
                tokio::time::sleep(after.unwrap_or(*wait).min(WAIT_MAX)).await
            }
            _ => return Err(error),
        }
    }
}
