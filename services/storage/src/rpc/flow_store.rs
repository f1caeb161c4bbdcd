//! FlowStoreService.

use futures_util::StreamExt as _;
use model::{ActorId, Attempt, ContextId, FlowId, JobId, OwnerId, Timestamp, Violations};
use proto::convert::flow::OwnedFlowRecord;
use proto::convert::{self, enums, time};
use proto::internal::v1 as wire;
use proto::internal::v1::flow_store_service_server::FlowStoreService;
use proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::status::{checked, field};
use super::{StorageResponseStream, StorageRpc, flow_parse, flow_streams};
use crate::error::Error;
use crate::flows::creation::CreatedFlow;
use crate::flows::lifecycle::FlowInContext;
use crate::flows::reads::{FlowPage, LogTail, MessageState, NodePage};
use crate::idempotency::{IdempotencyKey as Repeatable, StoredResult};
use crate::messages::message_holds::parse_message_key;
use crate::pages::PageRequest;
use crate::record::flow::StoredFlow;
use crate::store::RequestPrincipal;
use crate::tenants::permission::ContextAction;
use crate::watch::event_watch::WatchedEvent;

/// Answers that wait for a slow reader.
const OUT_BUFFER: usize = 64;
/// Parts of a listing that are read ahead.
const PARTS_AHEAD: usize = 2;

/// A flow record on the wire.
pub(super) fn record((stored, context_uid): FlowInContext) -> wire::FlowRecord {
    let StoredFlow { flow, node_count, first_job, last_commit } = stored;
    convert::flow::to_record(&OwnedFlowRecord { flow, context_uid, last_commit, node_count, first_job })
}

/// A page of nodes on the wire.
fn page_to_wire(page: NodePage) -> wire::ReadNodesResponse {
    let NodePage { nodes, next, revision, context_uid, flow_uid, to_watch: _ } = page;
    wire::ReadNodesResponse {
        nodes,
        next_page_token: next,
        revision: revision.0,
        context_uid: context_uid.to_string(),
        flow_uid: flow_uid.to_string(),
    }
}

/// A flow that is to be watched, and its first nodes.
fn flow_to_watch(mut page: NodePage) -> (Option<wire::FlowRecord>, Option<wire::ReadNodesResponse>) {
    let flow = page.to_watch.take().map(|(flow, _)| record((flow, page.context_uid)));
    (flow, Some(page_to_wire(page)))
}

/// Returns the action that a principal must be allowed, for the purpose of its request for a flow.
const fn action_of(purpose: wire::FlowPurpose) -> ContextAction {
    match purpose {
        wire::FlowPurpose::Unspecified => ContextAction::Read,
        wire::FlowPurpose::ReportNode => ContextAction::ReportNode,
        wire::FlowPurpose::CancelNode => ContextAction::CancelNode,
        wire::FlowPurpose::AddNodes => ContextAction::AddFlowNodes,
        wire::FlowPurpose::Start => ContextAction::StartFlow,
        wire::FlowPurpose::Retry => ContextAction::RetryFlow,
        wire::FlowPurpose::Signal => ContextAction::SignalFlow,
    }
}

#[tonic::async_trait]
impl FlowStoreService for StorageRpc {
    async fn read_signer(
        &self,
        request: Request<wire::ReadSignerRequest>,
    ) -> Result<Response<wire::ReadSignerResponse>, Status> {
        let wire::ReadSignerRequest { context_id, caller_id, on_behalf_of } = request.into_inner();
        let asker = RequestPrincipal::from_wire(on_behalf_of);
        let (context, caller) = (ContextId(context_id), ActorId(caller_id));
        let (uid, keys) = self.hub.store().signer(context, caller, asker, Timestamp::now()).await?;
        Ok(Response::new(wire::ReadSignerResponse { context_uid: uid.to_string(), keys }))
    }

    async fn read_jobs(
        &self,
        request: Request<wire::ReadJobsRequest>,
    ) -> Result<Response<wire::ReadJobsResponse>, Status> {
        let wire::ReadJobsRequest { context_id, caller_id, job_ids, on_behalf_of } = request.into_inner();
        let jobs: Vec<JobId> = job_ids.into_iter().map(JobId).collect();
        let (context, asker) = (ContextId(context_id), RequestPrincipal::from_wire(on_behalf_of));
        let kept = self.hub.store().read_jobs(context, asker, ActorId(caller_id), &jobs).await?;
        let specs = kept.iter().map(|kept| convert::job::spec_to_wire(&kept.spec)).collect();
        Ok(Response::new(wire::ReadJobsResponse { specs }))
    }

    async fn keep_scripts(
        &self,
        request: Request<wire::KeepScriptsRequest>,
    ) -> Result<Response<wire::KeepScriptsResponse>, Status> {
        let wire::KeepScriptsRequest { context_id, scripts, on_behalf_of } = request.into_inner();
        let (context, asker) = (ContextId(context_id), RequestPrincipal::from_wire(on_behalf_of));
        for script in &scripts {
            self.hub.store().keep_script(context, asker, script, Timestamp::now()).await?;
        }
        Ok(Response::new(wire::KeepScriptsResponse {}))
    }

    async fn create_flow(
        &self,
        request: Request<wire::CreateFlowRequest>,
    ) -> Result<Response<wire::CreateFlowResponse>, Status> {
        let (context, asker, new, beginning, repeatable) = flow_parse::creation(request.into_inner())?;
        let what = (&new, beginning.as_ref());
        let at = (&self.routers, Timestamp::now());
        let created = self.hub.store().create_flow(context, asker, what, repeatable.as_ref(), at);
        let CreatedFlow { flow, context_uid, is_new } = created.await?;
        let first_job_id = flow.first_job.0;
        service::crash_point("storage.create.after");
        let flow = Some(record((flow, context_uid)));
        Ok(Response::new(wire::CreateFlowResponse { flow, first_job_id, is_new }))
    }

    async fn add_nodes(
        &self,
        request: Request<wire::AddNodesRequest>,
    ) -> Result<Response<wire::AddNodesResponse>, Status> {
        let (place, nodes, asker, filling) = flow_parse::filling(request.into_inner())?;
        self.hub.store().add_nodes(place, &nodes, (asker, filling.as_ref()), Timestamp::now()).await?;
        Ok(Response::new(wire::AddNodesResponse {}))
    }

    async fn start_flow(
        &self,
        request: Request<wire::StartFlowRequest>,
    ) -> Result<Response<wire::StartFlowResponse>, Status> {
        let wire::StartFlowRequest {
            context_id,
            flow_id,
            flow_uid,
            owner,
            on_behalf_of,
            request_id,
            request_hash,
        } = request.into_inner();
        let flow = flow_parse::flow_ref(flow_id, &flow_uid)?;
        let repeatable = flow_parse::repeatable(&request_id, request_hash)?;
        let owner = match owner.as_str() {
            "" => None,
            owner => Some(field("owner", owner.parse::<OwnerId>())?),
        };
        let (place, asker) =
            ((ContextId(context_id), flow.id, flow.uid), RequestPrincipal::from_wire(on_behalf_of));
        let by = (asker, repeatable.as_ref());
        let started = self.hub.store().start_flow(place, owner, by, Timestamp::now());
        let (flow, signals) = started.await?;
        Ok(Response::new(wire::StartFlowResponse { flow: Some(record(flow)), signals }))
    }

    async fn restart_flow(
        &self,
        request: Request<wire::RestartFlowRequest>,
    ) -> Result<Response<wire::RestartFlowResponse>, Status> {
        let (place, restart, asker, repeatable) = flow_parse::restarting(request.into_inner())?;
        let store = self.hub.store();
        let done = store.restart_flow(place, &restart, asker, repeatable.as_ref(), Timestamp::now());
        let (flow, restarted) = done.await?;
        Ok(Response::new(wire::RestartFlowResponse { flow: Some(record(flow)), restarted }))
    }

    async fn take_flow(
        &self,
        request: Request<wire::TakeFlowRequest>,
    ) -> Result<Response<wire::TakeFlowResponse>, Status> {
        let wire::TakeFlowRequest { context_id, flow_id, owner } = request.into_inner();
        let owner = field("owner", owner.parse::<OwnerId>())?;
        let store = self.hub.store();
        let taken = store.take_flow(ContextId(context_id), FlowId(flow_id), owner, Timestamp::now());
        Ok(Response::new(wire::TakeFlowResponse { flow: Some(record(taken.await?)) }))
    }

    type LoadFlowStream = StorageResponseStream<wire::LoadFlowResponse>;

    async fn load_flow(
        &self,
        request: Request<wire::LoadFlowRequest>,
    ) -> Result<Response<Self::LoadFlowStream>, Status> {
        let wire::LoadFlowRequest { context_id, flow_id, on_behalf_of } = request.into_inner();
        let store = self.hub.store().clone();
        let asker = RequestPrincipal::from_wire(on_behalf_of);
        let loading = store.load_flow(ContextId(context_id), FlowId(flow_id), asker).await?;
        let (out, parts) = mpsc::channel(PARTS_AHEAD);
        tokio::spawn(async move {
            if let Err(error) = flow_streams::load(&store, loading, &out).await {
                // The caller may have left.
                let _ = out.send(Err(error.into())).await;
            }
        });
        Ok(Response::new(self.until_stop(ReceiverStream::new(parts))))
    }

    type ListActiveFlowsStream = StorageResponseStream<wire::ListActiveFlowsResponse>;

    async fn list_active_flows(
        &self,
        _: Request<wire::ListActiveFlowsRequest>,
    ) -> Result<Response<Self::ListActiveFlowsStream>, Status> {
        let store = self.hub.store().clone();
        let tenants = store.tenants().await?;
        let (out, parts) = mpsc::channel(PARTS_AHEAD);
        tokio::spawn(async move {
            if let Err(error) = flow_streams::list_active(&store, tenants, &out).await {
                // As above.
                let _ = out.send(Err(error.into())).await;
            }
        });
        Ok(Response::new(self.until_stop(ReceiverStream::new(parts))))
    }

    type CommitStream = StorageResponseStream<wire::CommitResponse>;

    async fn commit(
        &self,
        request: Request<Streaming<wire::CommitRequest>>,
    ) -> Result<Response<Self::CommitStream>, Status> {
        let (out, answers) = mpsc::channel(OUT_BUFFER);
        // A separate task, since steps must go on while the answers are not read.
        // It ends with the service, after answering every step that was begun.
        tokio::spawn(flow_streams::commits(self.clone(), request.into_inner(), out));
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn reserve_message_ids(
        &self,
        request: Request<wire::ReserveMessageIdsRequest>,
    ) -> Result<Response<wire::ReserveMessageIdsResponse>, Status> {
        let wire::ReserveMessageIdsRequest { context_id, caller_id, count } = request.into_inner();
        let (context, caller) = (ContextId(context_id), ActorId(caller_id));
        let first = self.hub.store().reserve_messages(context, caller, count, Timestamp::now()).await?;
        Ok(Response::new(wire::ReserveMessageIdsResponse { first_message_id: first.0 }))
    }

    async fn push_input(
        &self,
        request: Request<wire::PushInputRequest>,
    ) -> Result<Response<wire::PushInputResponse>, Status> {
        let (context, flow, pushed, asker, repeatable) = flow_parse::push(request.into_inner())?;
        let store = self.hub.store();
        let push = store.push_input(context, flow, &pushed, asker, repeatable.as_ref(), Timestamp::now());
        let (flow, unchanged) = push.await?;
        Ok(Response::new(wire::PushInputResponse { flow: Some(record(flow)), unchanged }))
    }

    async fn read_inputs(
        &self,
        request: Request<wire::ReadInputsRequest>,
    ) -> Result<Response<wire::ReadInputsResponse>, Status> {
        let wire::ReadInputsRequest { context_id, flow_id, flow_uid, known } = request.into_inner();
        let flow = flow_parse::flow_ref(flow_id, &flow_uid)?;
        let inputs = self.hub.store().read_inputs(ContextId(context_id), flow, known as usize).await?;
        Ok(Response::new(wire::ReadInputsResponse { inputs }))
    }

    async fn await_flow(
        &self,
        request: Request<wire::AwaitFlowRequest>,
    ) -> Result<Response<wire::AwaitFlowResponse>, Status> {
        let wire::AwaitFlowRequest { context_id, flow_id, flow_uid, awaited_flow_id } = request.into_inner();
        let (context, flow) = (ContextId(context_id), flow_parse::flow_ref(flow_id, &flow_uid)?);
        let store = self.hub.store();
        let status = store.await_flow(context, flow, FlowId(awaited_flow_id), Timestamp::now()).await?;
        let status = status.map_or(v1::FlowStatus::Unspecified, enums::flow_status_to_wire);
        Ok(Response::new(wire::AwaitFlowResponse { status: status.into() }))
    }

    type JoinStream = StorageResponseStream<wire::JoinResponse>;

    async fn join(
        &self,
        request: Request<Streaming<wire::JoinRequest>>,
    ) -> Result<Response<Self::JoinStream>, Status> {
        let (out, answers) = mpsc::channel(OUT_BUFFER);
        // The hello is awaited in the task: its sender may want to see the answer's beginning first.
        tokio::spawn(flow_streams::join(self.clone(), request.into_inner(), out));
        let answers =
            ReceiverStream::new(answers).map(|event| Ok(flow_streams::replica_event_to_wire(event?)));
        Ok(Response::new(self.until_stop(answers)))
    }

    async fn read_message(
        &self,
        request: Request<wire::ReadMessageRequest>,
    ) -> Result<Response<wire::ReadMessageResponse>, Status> {
        let wire::ReadMessageRequest { context_id, message_key, on_behalf_of } = request.into_inner();
        let key = parse_message_key(&message_key)
            .ok_or_else(|| Error::field("message_key", "message:<caller>:<id>"))?;
        let asker = RequestPrincipal::from_wire(on_behalf_of);
        let message = self.hub.store().read_message(ContextId(context_id), key, asker).await?;
        let MessageState { status, transport_status, router, error, created_at } = message;
        let created_millis = created_at.as_millis();
        Ok(Response::new(wire::ReadMessageResponse {
            status,
            transport_status,
            router,
            error,
            created_millis,
        }))
    }

    async fn find_request(
        &self,
        request: Request<wire::FindRequestRequest>,
    ) -> Result<Response<wire::FindRequestResponse>, Status> {
        let (context, actor, request) = flow_parse::repeated(request.into_inner())?;
        let found = self.hub.store().find_request(context, actor, &request).await?;
        let answer = found.map(|StoredResult { flow, flow_uid, first_job }| wire::FindRequestResponse {
            found: true,
            flow_id: flow.map_or(0, |flow| flow.0),
            flow_uid,
            first_job_id: first_job.map_or(0, |job| job.0),
        });
        Ok(Response::new(answer.unwrap_or_default()))
    }

    async fn read_flow(
        &self,
        request: Request<wire::ReadFlowRequest>,
    ) -> Result<Response<wire::ReadFlowResponse>, Status> {
        let request = request.into_inner();
        let action = action_of(request.purpose());
        let wire::ReadFlowRequest { context_id, flow_id, on_behalf_of, purpose: _ } = request;
        let (context, flow, asker) =
            (ContextId(context_id), FlowId(flow_id), RequestPrincipal::from_wire(on_behalf_of));
        let flow = self.hub.store().read_flow(context, flow, asker, action).await?;
        Ok(Response::new(wire::ReadFlowResponse { flow: Some(record(flow)) }))
    }

    async fn read_flows(
        &self,
        request: Request<wire::ReadFlowsRequest>,
    ) -> Result<Response<wire::ReadFlowsResponse>, Status> {
        let (request, store) = (request.into_inner(), self.hub.store());
        let to_watch = request.to_watch;
        let (context, asker, filter, page) = flow_parse::flow_filter(request)?;
        let FlowPage { flows, next, position } =
            store.read_flows(context, asker, &filter, &page, to_watch).await?;
        let flow = |stored: StoredFlow| v1::Flow {
            // The list of jobs is not read for this.
            node_count: stored.node_count,
            ..convert::flow::to_wire(&stored.flow)
        };
        let flows = flows.into_iter().map(flow).collect();
        let position = position.map(|position| position.to_string()).unwrap_or_default();
        Ok(Response::new(wire::ReadFlowsResponse { flows, next_page_token: next, position }))
    }

    async fn read_nodes(
        &self,
        request: Request<wire::ReadNodesRequest>,
    ) -> Result<Response<wire::ReadNodesResponse>, Status> {
        let (context, flow, asker, filter, page) = flow_parse::node_filter(request.into_inner())?;
        let page = self.hub.store().read_nodes(context, flow, asker, &filter, &page, false).await?;
        Ok(Response::new(page_to_wire(page)))
    }

    async fn remove_flow(
        &self,
        request: Request<wire::RemoveFlowRequest>,
    ) -> Result<Response<wire::RemoveFlowResponse>, Status> {
        let wire::RemoveFlowRequest {
            context_id,
            flow_id,
            on_behalf_of,
            request_id,
            request_hash,
            expected_revision,
        } = request.into_inner();
        let mut violations = Violations::new();
        let repeatable = Repeatable::parse(&request_id, || request_hash, &mut violations);
        let repeatable = checked(violations, repeatable)?;
        let (context, asker) = (ContextId(context_id), RequestPrincipal::from_wire(on_behalf_of));
        let flow = (FlowId(flow_id), flow_parse::expected(expected_revision));
        let store = self.hub.store();
        let forgets = store.remove_flow(context, flow, asker, repeatable.as_ref(), Timestamp::now()).await?;
        self.routers.forget_attempts(forgets);
        Ok(Response::new(wire::RemoveFlowResponse {}))
    }

    type WatchEventsStream = StorageResponseStream<wire::WatchEventsResponse>;

    async fn watch_events(
        &self,
        request: Request<wire::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let request = request.into_inner();
        let (flow, first_nodes) = (FlowId(request.flow_id), request.first_nodes);
        let watch = flow_parse::watch(request)?;
        let (mut first, watched) = if first_nodes == 0 {
            (None, self.hub.watch(watch).await?)
        } else {
            let nodes = PageRequest::parse(first_nodes, "", &mut Violations::new());
            let (page, watched) = self.hub.watch_from_now(watch, flow, nodes).await?;
            (Some(page), watched)
        };
        let answers = watched.map(move |watched| {
            let WatchedEvent { event, position } = watched?;
            let (flow, first_nodes) = first.take().map_or((None, None), flow_to_watch);
            Ok(wire::WatchEventsResponse {
                event_json: event,
                position: position.to_string(),
                flow,
                first_nodes,
            })
        });
        Ok(Response::new(self.until_stop(answers)))
    }

    async fn read_log(
        &self,
        request: Request<wire::ReadLogRequest>,
    ) -> Result<Response<wire::ReadLogResponse>, Status> {
        let wire::ReadLogRequest { context_id, flow_id, job_id, attempt, offset, on_behalf_of } =
            request.into_inner();
        let (context, flow) = (ContextId(context_id), FlowId(flow_id));
        let (place, asker) = ((JobId(job_id), Attempt(attempt)), RequestPrincipal::from_wire(on_behalf_of));
        let LogTail { offset, data, runner, times } =
            self.hub.store().read_log(context, flow, place, offset, asker).await?;
        let runner_id = runner.map_or(0, |runner| runner.0);
        let time = |(offset, time)| v1::LogTime { offset, time: Some(time::to_wire(time)) };
        let times = times.into_iter().map(time).collect();
        Ok(Response::new(wire::ReadLogResponse { offset, data: data.into(), runner_id, times }))
    }
}
