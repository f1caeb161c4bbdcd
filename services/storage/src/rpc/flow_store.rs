//! FlowStoreService.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use model::{ActorId, Attempt, ContextId, FlowId, FlowUid, JobId, OwnerId, Timestamp, Violations, limits};
use proto::convert;
use proto::convert::enums;
use proto::internal::v1 as wire;
use proto::internal::v1::flow_store_service_server::FlowStoreService;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::status::{checked, field};
use super::{Answers, Rpc, flow_parse, request_of};
use crate::commits::{Refusal, RefusalKind};
use crate::flows::FlowInContext;
use crate::pages::Page;
use crate::reads::LoadedNode;
use crate::store::Asker;
use crate::watches::{Watch, Watched};

/// Commits of one stream that are under way at once.
pub(crate) const COMMITS_IN_FLIGHT_MAX: usize = 64;
/// Answers that wait for a slow reader.
const OUT_BUFFER: usize = 64;
/// Flows of one answer of ListActiveFlows.
const ACTIVE_FLOWS_MAX: usize = 10_000;

fn record((stored, context_uid): FlowInContext) -> wire::FlowRecord {
    let mut record = convert::flow::to_record(&stored.flow, context_uid);
    if let Some(flow) = &mut record.flow {
        // The list of jobs is not read for this.
        flow.node_count = stored.node_count;
    }
    record
}

#[tonic::async_trait]
impl FlowStoreService for Rpc {
    async fn create_flow(
        &self,
        request: Request<wire::CreateFlowRequest>,
    ) -> Result<Response<wire::CreateFlowResponse>, Status> {
        let (context, asker, new, repeatable) = flow_parse::creation(request.into_inner())?;
        let created =
            self.hub.store().create_flow(context, asker, &new, repeatable.as_ref(), Timestamp::now());
        let created = created.await?;
        let first_job_id = created.0.first_job.0;
        crash_point!("storage.create.after");
        Ok(Response::new(wire::CreateFlowResponse { flow: Some(record(created)), first_job_id }))
    }

    async fn add_nodes(
        &self,
        request: Request<wire::AddNodesRequest>,
    ) -> Result<Response<wire::AddNodesResponse>, Status> {
        let wire::AddNodesRequest { context_id, flow_id, flow_uid, nodes } = request.into_inner();
        let uid = field("flow_uid", flow_uid.parse::<FlowUid>())?;
        let nodes = flow_parse::nodes(nodes)?;
        let store = self.hub.store();
        store.add_nodes(ContextId(context_id), FlowId(flow_id), uid, &nodes, Timestamp::now()).await?;
        Ok(Response::new(wire::AddNodesResponse {}))
    }

    async fn start_flow(
        &self,
        request: Request<wire::StartFlowRequest>,
    ) -> Result<Response<wire::StartFlowResponse>, Status> {
        let wire::StartFlowRequest { context_id, flow_id, flow_uid, owner } = request.into_inner();
        let uid = field("flow_uid", flow_uid.parse::<FlowUid>())?;
        let owner = field("owner", owner.parse::<OwnerId>())?;
        let store = self.hub.store();
        let started = store.start_flow(ContextId(context_id), FlowId(flow_id), uid, owner, Timestamp::now());
        Ok(Response::new(wire::StartFlowResponse { flow: Some(record(started.await?)) }))
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

    type LoadFlowStream = Answers<wire::LoadFlowResponse>;

    async fn load_flow(
        &self,
        request: Request<wire::LoadFlowRequest>,
    ) -> Result<Response<Self::LoadFlowStream>, Status> {
        let wire::LoadFlowRequest { context_id, flow_id } = request.into_inner();
        let store = self.hub.store().clone();
        let (tenant, stored, uid) = store.load_flow(ContextId(context_id), FlowId(flow_id)).await?;
        let (out, parts) = mpsc::channel(2);
        tokio::spawn(async move {
            let mut flow = Some(record((stored.clone(), uid)));
            let mut next = Some(0);
            while let Some(from) = next {
                let loaded = match store.load_nodes(&tenant, &stored, from).await {
                    Ok((loaded, after)) => {
                        next = after;
                        loaded
                    }
                    Err(error) => return drop(out.send(Err(error.into())).await),
                };
                for part in parts_of(flow.take(), loaded) {
                    if out.send(Ok(part)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(self.until_stop(ReceiverStream::new(parts))))
    }

    type ListActiveFlowsStream = Answers<wire::ListActiveFlowsResponse>;

    async fn list_active_flows(
        &self,
        _: Request<wire::ListActiveFlowsRequest>,
    ) -> Result<Response<Self::ListActiveFlowsStream>, Status> {
        let store = self.hub.store().clone();
        let tenants = store.tenants().await?;
        let (out, parts) = mpsc::channel(2);
        tokio::spawn(async move {
            for tenant in tenants {
                let active = match store.active_flows(&tenant).await {
                    Ok(active) => active,
                    Err(error) => return drop(out.send(Err(error.into())).await),
                };
                for part in active.chunks(ACTIVE_FLOWS_MAX) {
                    let flow = |id: &FlowId| wire::ActiveFlow { context_id: tenant.id.0, flow_id: id.0 };
                    let flows = part.iter().map(flow).collect();
                    if out.send(Ok(wire::ListActiveFlowsResponse { flows })).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(self.until_stop(ReceiverStream::new(parts))))
    }

    type CommitStream = Answers<wire::CommitResponse>;

    async fn commit(
        &self,
        request: Request<Streaming<wire::CommitRequest>>,
    ) -> Result<Response<Self::CommitStream>, Status> {
        let (out, answers) = mpsc::channel(OUT_BUFFER);
        // A task, since steps have to go on while nobody looks at the answers.
        // It ends by itself when the service ends, after the answers to what was begun.
        tokio::spawn(commits(self.clone(), request.into_inner(), out));
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

    async fn request_cancel(
        &self,
        request: Request<wire::RequestCancelRequest>,
    ) -> Result<Response<wire::RequestCancelResponse>, Status> {
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = Violations::new();
        let repeatable = request_of(&request_id, &body, &mut violations);
        let repeatable = checked(violations, repeatable)?;
        let wire::RequestCancelRequest { request_id: _, context_id, flow_id, on_behalf_of } = body;
        let (context, flow, asker) = (ContextId(context_id), FlowId(flow_id), Asker::from_wire(on_behalf_of));
        let store = self.hub.store();
        let wished =
            store.request_cancel(context, flow, asker, repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(wire::RequestCancelResponse { flow: Some(record(wished)) }))
    }

    async fn read_flow(
        &self,
        request: Request<wire::ReadFlowRequest>,
    ) -> Result<Response<wire::ReadFlowResponse>, Status> {
        let wire::ReadFlowRequest { context_id, flow_id, on_behalf_of } = request.into_inner();
        let asker = Asker::from_wire(on_behalf_of);
        let flow = self.hub.store().read_flow(ContextId(context_id), FlowId(flow_id), asker).await?;
        Ok(Response::new(wire::ReadFlowResponse { flow: Some(record(flow)) }))
    }

    async fn read_flows(
        &self,
        request: Request<wire::ReadFlowsRequest>,
    ) -> Result<Response<wire::ReadFlowsResponse>, Status> {
        let wire::ReadFlowsRequest { context_id, on_behalf_of, status, page_size, page_token } =
            request.into_inner();
        let status = match status {
            0 => None,
            number => Some(field("status", enums::flow_status_from_wire(number).ok_or("unknown status"))?),
        };
        let page = Page::parse(page_size, page_token)?;
        let asker = Asker::from_wire(on_behalf_of);
        let read = self.hub.store().read_flows(ContextId(context_id), asker, status, &page).await?;
        let flow = |stored: crate::record::flow::StoredFlow| {
            let mut flow = convert::flow::to_wire(&stored.flow);
            flow.node_count = stored.node_count;
            flow
        };
        let (flows, next_page_token) = read;
        let flows = flows.into_iter().map(flow).collect();
        Ok(Response::new(wire::ReadFlowsResponse { flows, next_page_token }))
    }

    async fn read_nodes(
        &self,
        request: Request<wire::ReadNodesRequest>,
    ) -> Result<Response<wire::ReadNodesResponse>, Status> {
        let wire::ReadNodesRequest { context_id, flow_id, on_behalf_of, page_size, page_token } =
            request.into_inner();
        let page = Page::parse(page_size, page_token)?;
        let asker = Asker::from_wire(on_behalf_of);
        let read = self.hub.store().read_nodes(ContextId(context_id), FlowId(flow_id), asker, &page).await?;
        let (nodes, next_page_token, revision) = read;
        Ok(Response::new(wire::ReadNodesResponse { nodes, next_page_token, revision: revision.0 }))
    }

    async fn remove_flow(
        &self,
        request: Request<wire::RemoveFlowRequest>,
    ) -> Result<Response<wire::RemoveFlowResponse>, Status> {
        let wire::RemoveFlowRequest { context_id, flow_id, on_behalf_of } = request.into_inner();
        let (context, flow, asker) = (ContextId(context_id), FlowId(flow_id), Asker::from_wire(on_behalf_of));
        self.hub.store().remove_flow(context, flow, asker, Timestamp::now()).await?;
        Ok(Response::new(wire::RemoveFlowResponse {}))
    }

    type WatchEventsStream = Answers<wire::WatchEventsResponse>;

    async fn watch_events(
        &self,
        request: Request<wire::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let wire::WatchEventsRequest { context_id, flow_id, on_behalf_of, position } = request.into_inner();
        let watch = Watch {
            context: ContextId(context_id),
            flow: (flow_id != 0).then_some(FlowId(flow_id)),
            asker: Asker::from_wire(on_behalf_of),
            position: if position.is_empty() { None } else { Some(position.parse()?) },
        };
        let watched = ReceiverStream::new(self.hub.watch(watch).await?);
        let answers = watched.map(|watched| {
            let Watched { event, position } = watched?;
            Ok(wire::WatchEventsResponse { event_json: event, position: position.to_string() })
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
        let (place, asker) = ((JobId(job_id), Attempt(attempt)), Asker::from_wire(on_behalf_of));
        let tail = self.hub.store().read_log(context, flow, place, offset, asker).await?;
        Ok(Response::new(wire::ReadLogResponse { offset: tail.offset, data: tail.data.into() }))
    }
}

type Commits = mpsc::Sender<Result<wire::CommitResponse, Status>>;

/// Applies the steps of one stream, many at once. What was begun is ended, also when the stream breaks.
async fn commits(rpc: Rpc, mut requests: Streaming<wire::CommitRequest>, out: Commits) {
    let mut under_way = FuturesUnordered::new();
    let mut open = true;
    while open || !under_way.is_empty() {
        tokio::select! {
            request = requests.message(), if open && under_way.len() < COMMITS_IN_FLIGHT_MAX => match request {
                Ok(Some(request)) => under_way.push(apply(&rpc, request)),
                Ok(None) | Err(_) => open = false,
            },
            Some(answer) = under_way.next() => {
                // Whoever asked may have left; it will ask again.
                let _ = out.send(Ok(answer)).await;
            }
            () = rpc.stop.cancelled(), if open => open = false,
        }
    }
}

async fn apply(rpc: &Rpc, request: wire::CommitRequest) -> wire::CommitResponse {
    let commit_id = request.commit_id.clone();
    let result = match flow_parse::commit(request) {
        Ok(commit) => rpc.hub.store().commit(commit, &rpc.routers, Timestamp::now()).await,
        Err(detail) => Err(Refusal { kind: RefusalKind::Invalid, detail }),
    };
    match result {
        Ok(revision) => wire::CommitResponse {
            commit_id,
            refusal: wire::CommitRefusal::Unspecified.into(),
            detail: String::new(),
            revision: revision.0,
        },
        Err(Refusal { kind, detail }) => {
            let refusal = match kind {
                RefusalKind::Fenced => wire::CommitRefusal::Fenced,
                RefusalKind::Gone => wire::CommitRefusal::Gone,
                RefusalKind::ContextDeleting => wire::CommitRefusal::ContextDeleting,
                RefusalKind::UnknownOutcome => wire::CommitRefusal::UnknownOutcome,
                RefusalKind::Invalid => wire::CommitRefusal::Invalid,
            };
            tracing::debug!(commit_id, ?refusal, detail, "a commit was refused");
            wire::CommitResponse { commit_id, refusal: refusal.into(), detail, revision: 0 }
        }
    }
}

/// Nodes in parts of at most a page's size; the first one has the flow, also when there are no nodes.
fn parts_of(flow: Option<wire::FlowRecord>, loaded: Vec<LoadedNode>) -> Vec<wire::LoadFlowResponse> {
    let mut parts = vec![wire::LoadFlowResponse { flow, nodes: Vec::new() }];
    let mut bytes = 0;
    for LoadedNode { job, json, spec } in loaded {
        let job_json = serde_json::to_vec(&spec).expect("a job's specification is JSON");
        let size = json.len() + job_json.len();
        if bytes > 0 && bytes + size > limits::PAGE_BYTES_MAX {
            parts.push(wire::LoadFlowResponse { flow: None, nodes: Vec::new() });
            bytes = 0;
        }
        bytes += size;
        if let Some(part) = parts.last_mut() {
            part.nodes.push(wire::StoredNode { job_id: job.0, node_json: json, job_json: job_json.into() });
        }
    }
    parts
}
