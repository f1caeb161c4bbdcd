//! `FlowService`: flows, for clients.

use std::sync::Arc;

use model::{ActorId, ContextId, FlowId, FlowNode, limits};
use proto::convert;
use proto::internal::v1 as internal;
use proto::v1::flow_service_server::FlowService;
use proto::v1::{
    CancelFlowRequest, CancelFlowResponse, DeleteFlowRequest, DeleteFlowResponse, GetFlowRequest,
    GetFlowResponse, ListFlowNodesRequest, ListFlowNodesResponse, ListFlowsRequest, ListFlowsResponse,
    StreamFlowLogsRequest, StreamFlowLogsResponse, SubmitFlowRequest, SubmitFlowResponse, WatchFlowRequest,
    WatchFlowResponse,
};
use rpc::Caller;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::clients::FlowStoreClient;
use crate::driver::{Event, Handle};
use crate::error::bad_store;
use crate::logs::LogStream;
use crate::metrics::Metrics;
use crate::reader::FlowReader;
use crate::submit::Submitter;
use crate::watch::Watch;

/// Serves clients.
pub struct FlowRpc {
    store: FlowStoreClient,
    driver: Handle,
    submitter: Submitter,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

impl FlowRpc {
    /// Streams end when `stop` is cancelled.
    #[must_use]
    pub const fn new(
        store: FlowStoreClient,
        driver: Handle,
        submitter: Submitter,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Self {
        Self { store, driver, submitter, metrics, stop }
    }

    fn store(&self) -> FlowStoreClient {
        self.store.clone()
    }

    fn reader(&self, actor: ActorId, context_id: u32, flow_id: u32) -> FlowReader {
        FlowReader { store: self.store(), actor, context: ContextId(context_id), flow: FlowId(flow_id) }
    }

    /// Runs a stream's task until it or the service ends.
    fn spawn<T: Send + 'static>(
        &self,
        answers: mpsc::Sender<Result<T, Status>>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let stop = self.stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = task => {}
                () = answers.closed() => {}
                () = stop.cancelled() => {
                    let draining = rpc::Error::unavailable(rpc::Reason::Draining, "the scheduler is ending; resume elsewhere");
                    // A watcher that does not read does not need the reason.
                    let _ = answers.try_send(Err(draining.into()));
                }
            }
        });
    }
}

/// The actor behind a call. The method policy admits actors only.
fn actor_of<T>(request: &Request<T>) -> Result<ActorId, Status> {
    Caller::of(request)?.actor().ok_or_else(|| Status::permission_denied("only actors may call this"))
}

fn page_size(asked: u32) -> Result<u32, Status> {
    match asked {
        0 => Ok(limits::PAGE_SIZE_DEFAULT),
        1..=limits::PAGE_SIZE_MAX => Ok(asked),
        _ => {
            let mut violations = model::Violations::new();
            violations
                .add("page_size", format!("at most {} are allowed, not {asked}", limits::PAGE_SIZE_MAX));
            Err(rpc::Error::invalid(violations).into())
        }
    }
}

#[tonic::async_trait]
impl FlowService for FlowRpc {
    type WatchFlowStream = ReceiverStream<Result<WatchFlowResponse, Status>>;
    type StreamFlowLogsStream = ReceiverStream<Result<StreamFlowLogsResponse, Status>>;

    async fn submit_flow(
        &self,
        request: Request<SubmitFlowRequest>,
    ) -> Result<Response<SubmitFlowResponse>, Status> {
        let actor = actor_of(&request)?;
        // In a task of its own: a caller that goes away leaves no flow half made.
        let submission = tokio::spawn(self.submitter.clone().submit(actor, request.into_inner()));
        let flow = submission.await.map_err(rpc::Error::internal)??;
        self.metrics.flows_submitted.inc();
        Ok(Response::new(SubmitFlowResponse { flow: Some(flow) }))
    }

    async fn get_flow(&self, request: Request<GetFlowRequest>) -> Result<Response<GetFlowResponse>, Status> {
        let on_behalf_of = actor_of(&request)?.0;
        let GetFlowRequest { context_id, flow_id } = request.into_inner();
        let read = internal::ReadFlowRequest { context_id, flow_id, on_behalf_of };
        let record = self.store().read_flow(read).await?.into_inner().flow;
        Ok(Response::new(GetFlowResponse { flow: record.and_then(|record| record.flow) }))
    }

    async fn list_flows(
        &self,
        request: Request<ListFlowsRequest>,
    ) -> Result<Response<ListFlowsResponse>, Status> {
        let on_behalf_of = actor_of(&request)?.0;
        let ListFlowsRequest { context_id, status, page_size: asked, page_token } = request.into_inner();
        let page_size = page_size(asked)?;
        let read = internal::ReadFlowsRequest { context_id, on_behalf_of, status, page_size, page_token };
        let page = self.store().read_flows(read).await?.into_inner();
        let internal::ReadFlowsResponse { flows, next_page_token } = page;
        Ok(Response::new(ListFlowsResponse { flows, next_page_token }))
    }

    async fn list_flow_nodes(
        &self,
        request: Request<ListFlowNodesRequest>,
    ) -> Result<Response<ListFlowNodesResponse>, Status> {
        let on_behalf_of = actor_of(&request)?.0;
        let ListFlowNodesRequest { context_id, flow_id, page_size: asked, page_token } = request.into_inner();
        let page_size = page_size(asked)?;
        let read = internal::ReadNodesRequest { context_id, flow_id, on_behalf_of, page_size, page_token };
        let page = self.store().read_nodes(read).await?.into_inner();
        let node = |json: &prost::bytes::Bytes| {
            let node: FlowNode = serde_json::from_slice(json).map_err(bad_store)?;
            Ok(convert::node::to_wire(&node))
        };
        let nodes = page.nodes.iter().map(node).collect::<Result<_, Status>>()?;
        Ok(Response::new(ListFlowNodesResponse { nodes, next_page_token: page.next_page_token }))
    }

    async fn watch_flow(
        &self,
        request: Request<WatchFlowRequest>,
    ) -> Result<Response<Self::WatchFlowStream>, Status> {
        let actor = actor_of(&request)?;
        let WatchFlowRequest { context_id, flow_id, resume_position } = request.into_inner();
        let (answers, stream) = mpsc::channel(limits::WATCH_BUFFER);
        let watch = Watch::new(self.reader(actor, context_id, flow_id), answers.clone());
        self.spawn(answers, watch.run(resume_position));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn cancel_flow(
        &self,
        request: Request<CancelFlowRequest>,
    ) -> Result<Response<CancelFlowResponse>, Status> {
        let on_behalf_of = actor_of(&request)?.0;
        let CancelFlowRequest { request_id, context_id, flow_id } = request.into_inner();
        let cancel = internal::RequestCancelRequest { request_id, context_id, flow_id, on_behalf_of };
        let (mut store, driver) = (self.store(), self.driver.clone());
        // In a task of its own: a caller that goes away must not keep the wish from the driver.
        let cancelling = tokio::spawn(async move {
            let answer = store.request_cancel(cancel).await;
            let refused = answer.as_ref().is_err_and(|status| rpc::Retry::of(status) == rpc::Retry::Never);
            if !refused {
                // Also after an error: the wish may be stored, and its answer lost.
                driver.send(Event::Changed((ContextId(context_id), FlowId(flow_id)))).await;
            }
            answer
        });
        let record = cancelling.await.map_err(rpc::Error::internal)??.into_inner().flow;
        let flow =
            record.and_then(|record| record.flow).ok_or_else(|| bad_store("a flow without its record"))?;
        Ok(Response::new(CancelFlowResponse { flow: Some(flow) }))
    }

    async fn delete_flow(
        &self,
        request: Request<DeleteFlowRequest>,
    ) -> Result<Response<DeleteFlowResponse>, Status> {
        let on_behalf_of = actor_of(&request)?.0;
        let DeleteFlowRequest { context_id, flow_id } = request.into_inner();
        let remove = internal::RemoveFlowRequest { context_id, flow_id, on_behalf_of };
        self.store().remove_flow(remove).await?;
        Ok(Response::new(DeleteFlowResponse {}))
    }

    async fn stream_flow_logs(
        &self,
        request: Request<StreamFlowLogsRequest>,
    ) -> Result<Response<Self::StreamFlowLogsStream>, Status> {
        let actor = actor_of(&request)?;
        let StreamFlowLogsRequest { context_id, flow_id, node, follow } = request.into_inner();
        let (answers, stream) = mpsc::channel(limits::WATCH_BUFFER);
        let logs = LogStream::new(self.reader(actor, context_id, flow_id), answers.clone());
        self.spawn(answers, logs.run(node, follow));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
