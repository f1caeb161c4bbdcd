//! The streams of FlowStoreService.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use keys::FlowRef;
use model::{ContextId, ContextUid, FlowUid, Timestamp, TraceParent, limits};
use proto::internal::v1 as wire;
use proto::internal::v1::join_response::News as WireEvent;
use service::traces;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};
use tracing::field::Empty;
use tracing::info_span;

use super::flow_store::record;
use super::{StorageRpc, flow_parse};
use crate::error::{Error, Result};
use crate::flows::commits::{CommitRejection, CommitRejectionKind};
use crate::flows::flow_inputs::inputs_from;
use crate::flows::reads::{ActiveCursor, LoadedNode};
use crate::flows::replica_session::{ReplicaEvent, ReplicaHeartbeat, ReplicaSession};
use crate::record::flow::StoredFlow;
use crate::store::{Store, TenantStore};

/// Commits of one stream that are under way at once.
pub(crate) const COMMITS_IN_FLIGHT_MAX: usize = 64;
/// Flows of one answer of ListActiveFlows.
const ACTIVE_FLOWS_MAX: usize = 10_000;
/// Heartbeats that may wait for the one before them.
const BEATS_MAX: usize = 4;

type StorageResponseSender<T> = mpsc::Sender<std::result::Result<T, Status>>;

/// Applies the steps of one stream, many at once. A step that was begun is completed even when the stream breaks.
pub(super) async fn commits(
    rpc: StorageRpc,
    mut requests: Streaming<wire::CommitRequest>,
    out: StorageResponseSender<wire::CommitResponse>,
) {
    let mut under_way = FuturesUnordered::new();
    let mut open = true;
    while open || !under_way.is_empty() {
        tokio::select! {
            request = requests.message(), if open && under_way.len() < COMMITS_IN_FLIGHT_MAX => match request {
                Ok(Some(request)) => under_way.push(apply(&rpc, request)),
                Ok(None) | Err(_) => open = false,
            },
            Some(answer) = under_way.next() => {
                // The scheduler may have left; it will resend the commit.
                let _ = out.send(Ok(answer)).await;
            }
            () = rpc.stop.cancelled(), if open => open = false,
        }
    }
}

async fn apply(rpc: &StorageRpc, request: wire::CommitRequest) -> wire::CommitResponse {
    let commit_id = request.commit_id.clone();
    // A stream has commits of many flows: each is in the trace of its own.
    let span = traces::begin_below(TraceParent::read(&request.traceparent), || {
        info_span!(
            target: traces::TARGET, parent: None, "commit", context = request.context_id, flow = request.flow_id,
            commit = commit_id, refusal = Empty,
        )
    });
    let result = match flow_parse::commit(request) {
        Ok(commit) => rpc.hub.store().commit(commit, &rpc.routers, Timestamp::now()).await,
        Err(detail) => Err(CommitRejection { kind: CommitRejectionKind::Invalid, detail }),
    };
    match result {
        Ok(revision) => wire::CommitResponse {
            commit_id,
            refusal: wire::CommitRefusal::Unspecified.into(),
            detail: String::new(),
            revision: revision.0,
        },
        Err(CommitRejection { kind, detail }) => {
            let refusal = match kind {
                CommitRejectionKind::Fenced => wire::CommitRefusal::Fenced,
                CommitRejectionKind::Gone => wire::CommitRefusal::Gone,
                CommitRejectionKind::ContextDeleting => wire::CommitRefusal::ContextDeleting,
                CommitRejectionKind::Frozen => wire::CommitRefusal::Frozen,
                CommitRejectionKind::UnknownOutcome => wire::CommitRefusal::UnknownOutcome,
                CommitRejectionKind::Invalid => wire::CommitRefusal::Invalid,
            };
            span.record("refusal", refusal.as_str_name());
            tracing::debug!(commit_id, ?refusal, detail, "a commit was refused");
            wire::CommitResponse { commit_id, refusal: refusal.into(), detail, revision: 0 }
        }
    }
}

/// Sends a flow in parts: first the flow itself, its signals and its inbox, then its nodes.
pub(super) async fn load(
    store: &Store,
    (tenant, stored, uid): (Arc<TenantStore>, StoredFlow, ContextUid),
    out: &StorageResponseSender<wire::LoadFlowResponse>,
) -> Result<()> {
    let mut part = wire::LoadFlowResponse {
        signals: store.signals(&tenant, stored.flow.id).await?,
        flow: Some(record((stored.clone(), uid))),
        ..Default::default()
    };
    let mut parts = FlowPartSender { out, bytes: part.signals.iter().map(String::len).sum() };
    let mut known = 0;
    loop {
        let inputs = inputs_from(&tenant, stored.flow.id, known).await?;
        if inputs.is_empty() {
            break;
        }
        known += inputs.len();
        for input in inputs {
            parts.make_room(&mut part, input.len()).await;
            part.inputs.push(input);
        }
    }
    let mut next = Some(0);
    while let Some(from) = next {
        let (nodes, after) = store.load_nodes(&tenant, &stored, from).await?;
        next = after;
        for LoadedNode { job, json, spec } in nodes {
            let job_json = Bytes::from(serde_json::to_vec(&spec).expect("a job's specification is JSON"));
            parts.make_room(&mut part, json.len() + job_json.len()).await;
            part.nodes.push(wire::StoredNode { job_id: job.0, node_json: json, job_json });
        }
        if out.is_closed() {
            return Ok(());
        }
    }
    // The caller may have left.
    let _ = out.send(Ok(part)).await;
    Ok(())
}

/// Parts of a flow, none of them beyond the size of a page unless a single entry is.
struct FlowPartSender<'a> {
    out: &'a StorageResponseSender<wire::LoadFlowResponse>,
    bytes: usize,
}

impl FlowPartSender<'_> {
    /// Sends the part that is being filled when so many bytes more do not fit into it.
    async fn make_room(&mut self, part: &mut wire::LoadFlowResponse, bytes: usize) {
        if self.bytes > 0 && self.bytes + bytes > limits::PAGE_BYTES_MAX {
            // The caller may have left.
            let _ = self.out.send(Ok(std::mem::take(part))).await;
            self.bytes = 0;
        }
        self.bytes += bytes;
    }
}

/// Sends the flows of these contexts that have something to do.
pub(super) async fn list_active(
    store: &Store,
    tenants: Vec<Arc<TenantStore>>,
    out: &StorageResponseSender<wire::ListActiveFlowsResponse>,
) -> Result<()> {
    let mut flows = Vec::new();
    for tenant in tenants {
        let mut next = Some(ActiveCursor::Now("0".to_owned()));
        while let Some(cursor) = next {
            let (found, after) = store.active_flows(&tenant, cursor).await?;
            next = after;
            let millis = |due: Option<Timestamp>| due.map_or(0, Timestamp::as_millis);
            flows.extend(found.into_iter().map(|(flow, due)| active(tenant.id, flow, millis(due))));
            if flows.len() >= ACTIVE_FLOWS_MAX {
                let flows = std::mem::take(&mut flows);
                if out.send(Ok(wire::ListActiveFlowsResponse { flows })).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
    if !flows.is_empty() {
        // The caller may have left.
        let _ = out.send(Ok(wire::ListActiveFlowsResponse { flows })).await;
    }
    Ok(())
}

fn active(context: ContextId, FlowRef { id, uid }: FlowRef, due_millis: u64) -> wire::ActiveFlow {
    let FlowUid(uid) = uid;
    wire::ActiveFlow { context_id: context.0, flow_id: id.0, flow_uid: uid.to_string(), due_millis }
}

/// Serves one scheduler replica.
pub(super) async fn join(
    rpc: StorageRpc,
    requests: Streaming<wire::JoinRequest>,
    out: mpsc::Sender<Result<ReplicaEvent>>,
) {
    let ended = tokio::select! {
        () = rpc.stop.cancelled() => Ok(()),
        ended = serve_replica(&rpc, requests, out.clone()) => ended,
    };
    if let Err(error) = ended {
        // The replica may have left.
        let _ = out.send(Err(error)).await;
    }
}

async fn serve_replica(
    rpc: &StorageRpc,
    mut requests: Streaming<wire::JoinRequest>,
    out: mpsc::Sender<Result<ReplicaEvent>>,
) -> Result<()> {
    let Ok(Some(first)) = requests.message().await else {
        return Err(Error::field("hello", "comes first"));
    };
    let mut joining = ReplicaSession::begin(&rpc.hub, &rpc.replicas, flow_parse::hello(first)?, out).await?;
    let (sender, mut beats) = mpsc::channel(BEATS_MAX);
    let receiving = async {
        loop {
            let beat = match requests.message().await {
                Ok(Some(wire::JoinRequest { hello: None })) => ReplicaHeartbeat::Alive,
                Ok(Some(_)) => return Err(Error::field("hello", "comes once")),
                Ok(None) => ReplicaHeartbeat::Ends,
                Err(_) => return Ok(()),
            };
            if sender.send(beat).await.is_err() || beat == ReplicaHeartbeat::Ends {
                // Queued heartbeats are still handled before the session ends.
                sender.closed().await;
                return Ok(());
            }
        }
    };
    tokio::select! {
        ended = joining.run(&mut beats) => ended,
        broken = receiving => broken,
    }
}

/// Converts an event for a replica to its wire form.
pub(super) fn replica_event_to_wire(event: ReplicaEvent) -> wire::JoinResponse {
    let event = match event {
        ReplicaEvent::Replicas(live) => {
            WireEvent::Replicas(wire::Replicas { names: live.keys().cloned().collect() })
        }
        ReplicaEvent::Touched(flows) => {
            let flows = flows.into_iter().map(|(context, flow)| active(context, flow, 0)).collect();
            WireEvent::Touched(wire::TouchedFlows { flows })
        }
        ReplicaEvent::Resync => WireEvent::Resync(wire::Resync {}),
    };
    wire::JoinResponse { news: Some(event) }
}
