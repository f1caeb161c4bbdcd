//! `FlowService`: flows, for clients.

use std::sync::Arc;
use std::time::Duration;

use model::{ActorId, Attempt, ContextId, FlowNode, Role, Timestamp, Violations, limits};
use proto::internal::v1 as internal;
use proto::v1::flow_service_server::FlowService;
use proto::v1::{
    AddFlowNodesRequest, AddFlowNodesResponse, CancelFlowRequest, CancelFlowResponse, CancelNodeRequest,
    CancelNodeResponse, CreateFlowRequest, CreateFlowResponse, DeleteFlowRequest, DeleteFlowResponse,
    ExplainNodeRequest, ExplainNodeResponse, FlowSnapshot, GetFlowGraphRequest, GetFlowGraphResponse,
    GetFlowRequest, GetFlowResponse, GraphFormat, ListFlowNodesRequest, ListFlowNodesResponse,
    ListFlowsRequest, ListFlowsResponse, RetryFlowRequest, RetryFlowResponse, RunJobRequest, RunJobResponse,
    SignalFlowRequest, SignalFlowResponse, StartFlowRequest, StartFlowResponse, StreamFlowLogsRequest,
    StreamFlowLogsResponse, SubmitFlowRequest, SubmitFlowResponse, UpdateNodeStatusRequest,
    UpdateNodeStatusResponse, WatchFlowRequest, WatchFlowResponse, WatchFlowsRequest, WatchFlowsResponse,
};
use proto::{convert, required};
use rpc::{Caller, Directory, answer_while_member, while_member};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use crate::changes::idempotency::hash_of;
use crate::changes::submit::Submitter;
use crate::changes::{flow_inputs, job, retry};
use crate::clients::FlowStoreClient;
use crate::error::bad_store;
use crate::log_reads::LogReadClient;
use crate::metrics::Metrics;
use crate::rpc::completion::run_to_completion;
use crate::views::answers::{self, AnswerSender, AnswerStream};
use crate::views::context_flows::{ContextFlowsReader, ContextFlowsStart, ContextFlowsWatch};
use crate::views::explain::Explainer;
use crate::views::graph_rendering;
use crate::views::logs::{self, FlowLogSelection, FlowLogStream};
use crate::views::node_names::NodeNames;
use crate::views::reader::{self, FlowReader};
use crate::views::watch::FlowWatch;

/// Serves clients.
pub struct FlowRpc {
    store: FlowStoreClient,
    submitter: Submitter,
    explainer: Explainer,
    log_reads: LogReadClient,
    metrics: Arc<Metrics>,
    directory: Arc<dyn Directory>,
    stop: CancellationToken,
}

impl FlowRpc {
    /// Streams end when `stop` is cancelled.
    #[must_use]
    pub const fn new(
        store: FlowStoreClient,
        submitter: Submitter,
        explainer: Explainer,
        log_reads: LogReadClient,
        metrics: Arc<Metrics>,
        directory: Arc<dyn Directory>,
        stop: CancellationToken,
    ) -> Self {
        Self { store, submitter, explainer, log_reads, metrics, directory, stop }
    }

    fn store(&self) -> FlowStoreClient {
        self.store.clone()
    }

    fn reader(&self, actor: ActorId, context_id: u32, flow_id: u32) -> FlowReader {
        FlowReader::new(self.store(), actor, context_id, flow_id)
    }

    /// Makes a stream that ends when its reader loses the role.
    fn for_reader<T: Send + 'static>(
        &self,
        stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
        context_id: u32,
        actor: ActorId,
    ) -> Response<BoxStream<T>> {
        let directory = Arc::clone(&self.directory);
        Response::new(while_member(stream, directory, ContextId(context_id), actor, Role::Reader))
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
                    // A watcher that does not read does not need the reason.
                    let _ = answers.try_send(Err(draining("resume elsewhere")));
                }
            }
        });
    }
}

/// UNAVAILABLE with what to do, for callers whose answers end with the scheduler.
fn draining(way_out: &str) -> Status {
    let message = format!("the scheduler is ending; {way_out}");
    rpc::Error::unavailable(rpc::RpcReason::Draining, message).into()
}

/// The actor behind a call. The method policy admits actors only.
fn actor_of<T>(request: &Request<T>) -> Result<ActorId, Status> {
    Caller::of(request)?.actor().ok_or_else(|| Status::permission_denied("only actors may call this"))
}

/// The size of a page, unless something is wrong with it or with the rest of the request.
fn page_size(requested: u32, mut violations: Violations) -> Result<u32, Status> {
    if requested > limits::PAGE_SIZE_MAX {
        violations
            .add("page_size", format!("at most {} are allowed, not {requested}", limits::PAGE_SIZE_MAX));
    }
    let size = if requested == 0 { limits::PAGE_SIZE_DEFAULT } else { requested };
    Ok(violations.into_result(Some(size)).map_err(rpc::Error::invalid)?)
}

#[tonic::async_trait]
impl FlowService for FlowRpc {
    type WatchFlowStream = BoxStream<WatchFlowResponse>;
    type WatchFlowsStream = BoxStream<WatchFlowsResponse>;
    type StreamFlowLogsStream = BoxStream<StreamFlowLogsResponse>;

    async fn submit_flow(
        &self,
        request: Request<SubmitFlowRequest>,
    ) -> Result<Response<SubmitFlowResponse>, Status> {
        let actor = actor_of(&request)?;
        rpc::leaves_jobs(&request, request.get_ref().flow.as_ref().map_or(0, |flow| flow.nodes.len()));
        let flow = run_to_completion(self.submitter.clone().submit(actor, request.into_inner())).await?;
        self.metrics.flows_submitted.inc();
        Ok(Response::new(SubmitFlowResponse { flow: Some(flow) }))
    }

    async fn create_flow(
        &self,
        request: Request<CreateFlowRequest>,
    ) -> Result<Response<CreateFlowResponse>, Status> {
        let actor = actor_of(&request)?;
        let flow = run_to_completion(self.submitter.clone().create(actor, request.into_inner())).await?;
        Ok(Response::new(CreateFlowResponse { flow: Some(flow) }))
    }

    async fn add_flow_nodes(
        &self,
        request: Request<AddFlowNodesRequest>,
    ) -> Result<Response<AddFlowNodesResponse>, Status> {
        let actor = actor_of(&request)?;
        rpc::leaves_jobs(&request, request.get_ref().nodes.len());
        let first = run_to_completion(self.submitter.clone().fill(actor, request.into_inner())).await?;
        Ok(Response::new(AddFlowNodesResponse { first_job_id: first.0 }))
    }

    async fn start_flow(
        &self,
        request: Request<StartFlowRequest>,
    ) -> Result<Response<StartFlowResponse>, Status> {
        let actor = actor_of(&request)?;
        let flow =
            run_to_completion(self.submitter.clone().start_filled(actor, request.into_inner())).await?;
        self.metrics.flows_submitted.inc();
        Ok(Response::new(StartFlowResponse { flow: Some(flow) }))
    }

    async fn run_job(&self, request: Request<RunJobRequest>) -> Result<Response<RunJobResponse>, Status> {
        let actor = actor_of(&request)?;
        rpc::leaves_jobs(&request, 1);
        let wait = Duration::from_secs(request.get_ref().wait_secs.into());
        let flow = run_to_completion(self.submitter.clone().submit_job(actor, request.into_inner())).await?;
        self.metrics.flows_submitted.inc();
        let reader = self.reader(actor, flow.context_id, flow.id);
        // The submission was allowed and the job runs; only an actor that may still see it may wait for it.
        let (outcome, directory) = (job::outcome(reader, wait), Arc::clone(&self.directory));
        let context = ContextId(flow.context_id);
        tokio::select! {
            answer = answer_while_member(outcome, directory, context, actor, Role::Reader) => {
                Ok(Response::new(answer?))
            }
            () = self.stop.cancelled() => Err(draining("ask again with the same request_id")),
        }
    }

    async fn get_flow(&self, request: Request<GetFlowRequest>) -> Result<Response<GetFlowResponse>, Status> {
        let actor = actor_of(&request)?;
        let body = request.into_inner();
        required::check(&body).map_err(rpc::Error::from)?;
        let GetFlowRequest { context_id, flow_id } = body;
        let flow = self.reader(actor, context_id, flow_id).flow().await?;
        Ok(Response::new(GetFlowResponse { flow: Some(flow) }))
    }

    async fn list_flows(
        &self,
        request: Request<ListFlowsRequest>,
    ) -> Result<Response<ListFlowsResponse>, Status> {
        let on_behalf_of = actor_of(&request)?.0;
        let body = request.into_inner();
        let page_size = page_size(body.page_size, required::missing(&body))?;
        let ListFlowsRequest {
            context_id,
            status,
            page_size: _,
            page_token,
            caller_id,
            name_prefix,
            created_from,
            created_before,
        } = body;
        let millis = |time: Option<_>| time.map_or(0, |time| convert::time::from_wire(time).as_millis());
        let read = internal::ReadFlowsRequest {
            context_id,
            on_behalf_of,
            status,
            page_size,
            page_token,
            caller_id,
            name_prefix,
            created_from_millis: millis(created_from),
            created_before_millis: millis(created_before),
            to_watch: false,
        };
        let page = self.store().read_flows(read).await?.into_inner();
        let internal::ReadFlowsResponse { flows, next_page_token, position: _ } = page;
        Ok(Response::new(ListFlowsResponse { flows, next_page_token }))
    }

    async fn list_flow_nodes(
        &self,
        request: Request<ListFlowNodesRequest>,
    ) -> Result<Response<ListFlowNodesResponse>, Status> {
        let on_behalf_of = actor_of(&request)?.0;
        let body = request.into_inner();
        let page_size = page_size(body.page_size, required::missing(&body))?;
        let ListFlowNodesRequest { context_id, flow_id, page_size: _, page_token, states } = body;
        let read = internal::ReadNodesRequest {
            context_id,
            flow_id,
            on_behalf_of,
            page_size,
            page_token,
            states,
            job_ids: Vec::new(),
        };
        let page = self.store().read_nodes(read).await?.into_inner();
        let home = reader::home(&page)?;
        let nodes = page.nodes.iter().map(|json| serde_json::from_slice(json));
        let nodes: Vec<FlowNode> = nodes.collect::<Result<_, _>>().map_err(bad_store)?;
        let mut reader = self.reader(ActorId(on_behalf_of), context_id, flow_id);
        let nodes = NodeNames::default().resolve_to_wire(&mut reader, &nodes, home).await?;
        Ok(Response::new(ListFlowNodesResponse { nodes, next_page_token: page.next_page_token }))
    }

    async fn watch_flow(
        &self,
        request: Request<WatchFlowRequest>,
    ) -> Result<Response<Self::WatchFlowStream>, Status> {
        let actor = actor_of(&request)?;
        let body = request.into_inner();
        required::check(&body).map_err(rpc::Error::from)?;
        let WatchFlowRequest { context_id, flow_id, resume_position } = body;
        let (answers, stream) = mpsc::channel(answers::CHANNEL);
        let sender = AnswerSender::new(answers.clone(), self.metrics.slow_watchers.clone());
        let watch = FlowWatch::new(self.reader(actor, context_id, flow_id), sender);
        self.spawn(answers, watch.run(resume_position));
        Ok(self.for_reader(AnswerStream::new(stream), context_id, actor))
    }

    async fn watch_flows(
        &self,
        request: Request<WatchFlowsRequest>,
    ) -> Result<Response<Self::WatchFlowsStream>, Status> {
        let actor = actor_of(&request)?;
        let body = request.into_inner();
        let mut violations = required::missing(&body);
        let WatchFlowsRequest { context_id, caller_id, name_prefix, snapshot, resume_position } = body;
        if name_prefix.chars().count() > limits::NAME_CHARS_MAX {
            violations.add("name_prefix", format!("has at most {} characters", limits::NAME_CHARS_MAX));
        }
        let snapshot = violations.take("snapshot", FlowSnapshot::try_from(snapshot).map_err(|_| "unknown"));
        let snapshot = violations.into_result(snapshot).map_err(rpc::Error::invalid)?;
        let (answers, stream) = mpsc::channel(answers::CHANNEL);
        let sender = AnswerSender::new(answers.clone(), self.metrics.slow_watchers.clone());
        let reader =
            ContextFlowsReader::new(self.store(), actor, ContextId(context_id), caller_id, name_prefix);
        let begin = ContextFlowsStart::of(snapshot, resume_position);
        self.spawn(answers, ContextFlowsWatch::new(reader, sender).run(begin));
        Ok(self.for_reader(AnswerStream::new(stream), context_id, actor))
    }

    async fn signal_flow(
        &self,
        request: Request<SignalFlowRequest>,
    ) -> Result<Response<SignalFlowResponse>, Status> {
        let actor = actor_of(&request)?;
        let already_given = flow_inputs::signal(self.store(), actor, request.into_inner()).await?;
        Ok(Response::new(SignalFlowResponse { already_given }))
    }

    async fn cancel_flow(
        &self,
        request: Request<CancelFlowRequest>,
    ) -> Result<Response<CancelFlowResponse>, Status> {
        let actor = actor_of(&request)?;
        let flow = flow_inputs::cancel_flow(self.store(), actor, request.into_inner()).await?;
        Ok(Response::new(CancelFlowResponse { flow: Some(flow) }))
    }

    async fn cancel_node(
        &self,
        request: Request<CancelNodeRequest>,
    ) -> Result<Response<CancelNodeResponse>, Status> {
        let actor = actor_of(&request)?;
        flow_inputs::cancel_node(self.store(), actor, request.into_inner()).await?;
        Ok(Response::new(CancelNodeResponse {}))
    }

    async fn update_node_status(
        &self,
        request: Request<UpdateNodeStatusRequest>,
    ) -> Result<Response<UpdateNodeStatusResponse>, Status> {
        let actor = actor_of(&request)?;
        flow_inputs::update_node(self.store(), actor, request.into_inner()).await?;
        Ok(Response::new(UpdateNodeStatusResponse {}))
    }

    async fn retry_flow(
        &self,
        request: Request<RetryFlowRequest>,
    ) -> Result<Response<RetryFlowResponse>, Status> {
        let actor = actor_of(&request)?;
        Ok(Response::new(run_to_completion(retry::retry(self.store(), actor, request.into_inner())).await?))
    }

    async fn explain_node(
        &self,
        request: Request<ExplainNodeRequest>,
    ) -> Result<Response<ExplainNodeResponse>, Status> {
        let actor = actor_of(&request)?;
        let body = request.into_inner();
        required::check(&body).map_err(rpc::Error::from)?;
        let ExplainNodeRequest { context_id, flow_id, node } = body;
        let reader = self.reader(actor, context_id, flow_id);
        Ok(Response::new(self.explainer.explain(reader, &node, Timestamp::now()).await?))
    }

    async fn get_flow_graph(
        &self,
        request: Request<GetFlowGraphRequest>,
    ) -> Result<Response<GetFlowGraphResponse>, Status> {
        let actor = actor_of(&request)?;
        let body = request.into_inner();
        let mut violations = required::missing(&body);
        let GetFlowGraphRequest { context_id, flow_id, format } = body;
        let format = violations.take("format", GraphFormat::try_from(format).map_err(|_| "unknown format"));
        let format = violations.into_result(format).map_err(rpc::Error::invalid)?;
        let mut reader = self.reader(actor, context_id, flow_id);
        let flow = reader.flow().await?;
        let nodes = reader.all_nodes().await?.nodes;
        let graph = graph_rendering::draw(&flow.name, &nodes, format)
            .map_err(|too_large| too_large.of(nodes.len()))?;
        Ok(Response::new(GetFlowGraphResponse { graph }))
    }

    async fn delete_flow(
        &self,
        request: Request<DeleteFlowRequest>,
    ) -> Result<Response<DeleteFlowResponse>, Status> {
        let on_behalf_of = actor_of(&request)?.0;
        let mut body = request.into_inner();
        required::check(&body).map_err(rpc::Error::from)?;
        let request_id = std::mem::take(&mut body.request_id);
        let request_hash = hash_of(&body);
        let DeleteFlowRequest { context_id, flow_id, request_id: _, expected_revision } = body;
        let remove = internal::RemoveFlowRequest {
            context_id,
            flow_id,
            on_behalf_of,
            request_id,
            request_hash,
            expected_revision,
        };
        self.store().remove_flow(remove).await?;
        Ok(Response::new(DeleteFlowResponse {}))
    }

    async fn stream_flow_logs(
        &self,
        request: Request<StreamFlowLogsRequest>,
    ) -> Result<Response<Self::StreamFlowLogsStream>, Status> {
        let actor = actor_of(&request)?;
        let body = request.into_inner();
        let mut violations = required::missing(&body);
        let StreamFlowLogsRequest { context_id, flow_id, node, follow, attempt, offset, tail, since } = body;
        if attempt != 0 && node.is_empty() {
            violations.add("attempt", "an attempt is one of a node: name the node as well");
        }
        if offset != 0 && attempt == 0 {
            violations.add("offset", "an offset is one of an attempt: name the attempt as well");
        }
        if !violations.is_empty() {
            return Err(rpc::Error::invalid(violations).into());
        }
        let attempt = (attempt != 0).then_some(Attempt(attempt));
        let since = since.map(convert::time::from_wire);
        let wanted = FlowLogSelection { node, attempt, offset, follow, tail, since };
        let (answers, stream) = mpsc::channel(logs::CHANNEL);
        let log_reads = self.log_reads.clone();
        let logs = FlowLogStream::new(self.reader(actor, context_id, flow_id), log_reads, answers.clone());
        self.spawn(answers, logs.run(wanted));
        Ok(self.for_reader(ReceiverStream::new(stream), context_id, actor))
    }
}
