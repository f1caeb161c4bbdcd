//! From a submission that was checked to a flow that is stored and driven.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use flow::Plan;
use flow::engine::{Engine, StoredNode};
use model::flow::EnvVars;
use model::{
    ActorId, BlobHash, ContextId, Epoch, FlowId, FlowNode, FlowSpec, FlowUid, JobId, Name, Prerequisite,
    ScriptSource, Timestamp, limits,
};
use prost::Message as _;
use proto::convert;
use proto::internal::v1 as internal;
use proto::v1::{Flow, FlowStatus};
use tokio::sync::oneshot;
use tonic::{Code, Status};

use crate::changes::idempotency::{self, RequestFingerprint};
use crate::changes::submit::{PART_BYTES_MAX, Submitter, log_start};
use crate::commit;
use crate::driver::{AssignedFlowIds, ProvisionalFlow, SchedulerEvent};
use crate::error::bad_store;

/// Nodes and bytes of a flow whose first step is stored by the change that creates it.
const FIRST_STEP_NODES_MAX: usize = 64;
/// Nodes with which a flow is created in one change: as many as storage takes. It is stored as a whole or not at all.
const CREATED_NODES_MAX: usize = 500;
const FIRST_STEP_BYTES_MAX: usize = 256 * 1024;

/// Checked submission, without the nodes.
pub(crate) struct CheckedSubmission {
    pub(crate) fingerprint: RequestFingerprint,
    /// Requesting actor, context, and the caller on whose behalf.
    pub(crate) place: (ActorId, u32, ActorId),
    pub(crate) flow_id: u32,
    /// The flow without its nodes.
    pub(crate) header: proto::v1::FlowSpec,
    pub(crate) message_key: String,
}

impl Submitter {
    /// Stores a flow and starts it: with its first step where that may be, with its nodes where one change takes them.
    pub(crate) async fn create_whole(
        mut self,
        submission: CheckedSubmission,
        spec: FlowSpec,
        plan: Plan,
    ) -> Result<Flow, Status> {
        let CheckedSubmission { fingerprint, place, flow_id, header, message_key } = submission;
        let (actor, context_id, caller) = place;
        let (uid, blobs) = (self.own_uid(), blobs_of(&spec));
        let goes_first = spec.nodes.iter().any(|node| node.policy.goes_first());
        let is_ours = self.owns(&self.driver.replicas(), uid);
        let unstored = (is_ours && self.granted.has(place) && first_step_fits(&spec))
            .then(|| self.unstored(uid, (context_id, caller), &spec));
        let nodes = stored_nodes(spec);
        let mut begun = match unstored {
            Some(flow) => self.begin(flow, plan, &nodes).await,
            None => None,
        };
        let first_step = begun.as_mut().map(|begun| begun.take_step());
        let beginning = if is_ours && begun.is_none() { all_of(&nodes) } else { Vec::new() };
        let mut create = internal::CreateFlowRequest {
            request_id: fingerprint.id,
            request_hash: fingerprint.hash,
            context_id,
            flow_id,
            caller_id: caller.0,
            on_behalf_of: actor.0,
            flow: Some(header),
            node_count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
            flow_uid: uid.to_string(),
            blobs,
            message_key,
            nodes: beginning,
            owner: self.me.owner.to_string(),
            goes_first,
            first_step,
            traceparent: traceparent(),
        };
        if create.encoded_len() > limits::COMMIT_BYTES_MAX
            && let Some(begun) = begun.take()
        {
            // The estimate was too low: with its first step, the request exceeds the limit.
            self.driver.send(SchedulerEvent::FirstStepStored(begun, None)).await;
            (create.first_step, create.nodes) = (None, all_of(&nodes));
        }
        let created = self.store.create_flow(create).await.map(tonic::Response::into_inner);
        self.granted.note(place, &created);
        let is_driven = match begun {
            Some(begun) => self.begun(begun, created.as_ref().ok(), &nodes).await?,
            None => false,
        };
        self.created(actor, created?, nodes, is_driven).await
    }

    /// Drives a flow that is stored, whose nodes are numbered from 1 on, from where that has left it.
    async fn created(
        mut self,
        actor: ActorId,
        created: internal::CreateFlowResponse,
        mut nodes: Vec<StoredNode>,
        is_driven: bool,
    ) -> Result<Flow, Status> {
        let record = created.flow.ok_or_else(|| bad_store("a new flow without its record"))?;
        let flow = record.flow.clone().ok_or_else(|| bad_store("a new flow without its record"))?;
        if is_driven {
            log_start(&flow);
            return Ok(flow);
        }
        if flow.status() != FlowStatus::Created && !created.is_new {
            // A repeated request: its first sender may have failed before the flow was driven.
            self.touch(&flow).await?;
            return Ok(flow);
        }
        nodes.iter_mut().for_each(|stored| stored.node.renumber(created.first_job_id.saturating_sub(1)));
        if flow.status() != FlowStatus::Created {
            return self.drive(record, nodes, BTreeSet::new()).await;
        }
        let starting = async {
            self.add_nodes(&flow, &nodes, None, None).await?;
            self.start(&flow, nodes, None, None).await
        };
        match starting.await {
            // The same request arrived concurrently and was faster.
            Err(status) if status.code() == Code::FailedPrecondition => {
                self.started_meanwhile(actor, &flow).await?.ok_or(status)
            }
            started => started,
        }
    }

    /// Has the driver make the first step of a flow. Nothing when it is to be made once the flow is stored.
    async fn begin(
        &self,
        flow: model::Flow,
        plan: Plan,
        nodes: &[StoredNode],
    ) -> Option<Box<ProvisionalFlow>> {
        let engine = Box::new(Engine::unstored(flow, plan, nodes.to_vec()));
        let (answer, begun) = oneshot::channel();
        self.driver.send(SchedulerEvent::PrepareFirstStep(engine, answer)).await;
        begun.await.ok().flatten()
    }

    /// A flow of our own as it will be stored, but for its numbers.
    fn unstored(&self, uid: FlowUid, (context, caller): (u32, ActorId), spec: &FlowSpec) -> model::Flow {
        let now = Timestamp::now();
        model::Flow {
            status: model::FlowStatus::Started,
            owner: Some(self.me.owner),
            epoch: Epoch(1),
            deadline: spec.deadline_secs.map(|secs| now + Duration::from_secs(secs.into())),
            trace: rpc::current_trace(),
            ..model::Flow::of(spec, FlowId(0), uid, ContextId(context), caller, now)
        }
    }

    /// Reports to the driver what became of a flow whose first step it made; returns whether the driver now drives it.
    async fn begun(
        &self,
        begun: Box<ProvisionalFlow>,
        created: Option<&internal::CreateFlowResponse>,
        nodes: &[StoredNode],
    ) -> Result<bool, Status> {
        let stored = created.map_or(Ok(None), |created| stored_as(created, nodes));
        let (stored, failed) = match stored {
            Ok(stored) => (stored, None),
            Err(status) => (None, Some(status)),
        };
        let is_driven = stored.is_some();
        // The driver needs the outcome in every case.
        self.driver.send(SchedulerEvent::FirstStepStored(begun, stored)).await;
        failed.map_or(Ok(is_driven), Err)
    }

    /// A flow that was in CREATED, when it has got further.
    async fn started_meanwhile(&mut self, actor: ActorId, flow: &Flow) -> Result<Option<Flow>, Status> {
        let answered = internal::FindRequestResponse {
            flow_id: flow.id,
            flow_uid: flow.uid.clone(),
            ..internal::FindRequestResponse::default()
        };
        let flow = idempotency::flow_of(&mut self.store, actor, flow.context_id, &answered).await?;
        Ok(Some(flow).filter(|flow| flow.status() != FlowStatus::Created))
    }
}

/// Returns the trace context that a flow gets from the call that brings it about, for storage; empty for none.
pub(crate) fn traceparent() -> String {
    rpc::current_trace().map(|trace| trace.to_string()).unwrap_or_default()
}

/// Returns whether the first step of a flow can be made before it is stored. A large flow has to wait, so that no Redis script runs
/// long; so does one that needs the number it does not have yet: for a condition, or a wait that may be for that very flow.
fn first_step_fits(spec: &FlowSpec) -> bool {
    let texts = |texts: &EnvVars| texts.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    let of_flow = texts(&spec.env_vars);
    let bytes_of = |node: &model::NodeSpec| {
        let script = match &node.job.script {
            ScriptSource::Inline(text) => text.len(),
            ScriptSource::Blob(_) => 0,
        };
        let files = node.job.files.len() + node.job.outputs.len();
        let signature = node.job.signature.as_ref().map_or(0, String::len);
        of_flow + script + texts(&node.job.env_vars) + files * limits::NAME_CHARS_MAX + signature
    };
    let needs_query = |node: &model::NodeSpec| {
        node.when.is_some() || node.prerequisites.iter().any(|what| matches!(what, Prerequisite::Flow(_)))
    };
    spec.nodes.len() <= FIRST_STEP_NODES_MAX
        && !spec.nodes.iter().any(needs_query)
        && spec.nodes.iter().map(bytes_of).sum::<usize>() <= FIRST_STEP_BYTES_MAX
}

/// Every blob that the jobs refer to, once.
fn blobs_of(spec: &FlowSpec) -> Vec<String> {
    let blobs: BTreeSet<BlobHash> =
        spec.nodes.iter().flat_map(|node| node.job.blobs()).map(|blob| blob.sha256).collect();
    blobs.iter().map(BlobHash::to_string).collect()
}

/// The nodes of a flow, whose jobs are numbered from 1 on.
pub(crate) fn stored_nodes(spec: FlowSpec) -> Vec<StoredNode> {
    let ids: HashMap<Name, JobId> =
        spec.nodes.iter().map(|node| node.name.clone()).zip((1..).map(JobId)).collect();
    let stored = |node: model::NodeSpec| {
        let depends = node.depends.iter().map(|name| ids[name]).collect();
        StoredNode { node: FlowNode::new(ids[&node.name], &node, depends), job: Arc::new(node.job) }
    };
    spec.nodes.into_iter().map(stored).collect()
}

/// All nodes of a flow, for the change that creates it; none when they are more than it takes.
fn all_of(nodes: &[StoredNode]) -> Vec<internal::StoredNode> {
    if nodes.len() > CREATED_NODES_MAX {
        return Vec::new();
    }
    let (mut all, mut bytes) = (Vec::with_capacity(nodes.len()), 0);
    for stored in nodes {
        let wire = commit::stored_node(&stored.node, &stored.job);
        bytes += wire.node_json.len() + wire.job_json.len();
        if bytes >= PART_BYTES_MAX {
            return Vec::new();
        }
        all.push(wire);
    }
    all
}

/// Reads the numbers under which this call has stored a flow together with its first step; nothing when it has not.
fn stored_as(
    created: &internal::CreateFlowResponse,
    nodes: &[StoredNode],
) -> Result<Option<Box<AssignedFlowIds>>, Status> {
    let record = created.flow.clone().ok_or_else(|| bad_store("a new flow without its record"))?;
    let by = created.first_job_id.saturating_sub(1);
    let convert::flow::OwnedFlowRecord { mut flow, context_uid, last_commit, .. } =
        convert::flow::from_record(record).map_err(bad_store)?;
    if !created.is_new || flow.status != model::FlowStatus::Started {
        return Ok(None);
    }
    flow.jobs = nodes.iter().map(|stored| JobId(stored.node.job_id.0.saturating_add(by))).collect();
    Ok(Some(Box::new(AssignedFlowIds { context_uid, flow, last_commit, by })))
}

#[cfg(test)]
mod tests {
    use model::{JobSpec, NodeSpec, ScriptType};

    use super::*;

    /// A flow of so many nodes with scripts of so many bytes.
    fn spec(nodes: usize, bytes: usize) -> FlowSpec {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let node = |number| {
            let job = JobSpec::inline(ScriptType::Shell, "x".repeat(bytes));
            NodeSpec::new(name(&format!("n{number}")), job)
        };
        FlowSpec { nodes: (0..nodes).map(node).collect(), ..FlowSpec::new(name("flow")) }
    }

    #[test]
    fn a_first_step_is_made_before_of_small_flows_that_ask_for_no_number() {
        let fits = |change: fn(&mut FlowSpec)| {
            let mut spec = spec(4, 100);
            change(&mut spec);
            first_step_fits(&spec)
        };
        assert!(fits(|_| {}));
        assert!(fits(|spec| spec.nodes[1].prerequisites = vec!["signal:go".parse().expect("a wait")]));
        assert!(!fits(|spec| spec.nodes[1].prerequisites = vec!["flow:7".parse().expect("a wait")]));
        assert!(!fits(|spec| spec.nodes[1].when = Some("flow.id == 7".to_owned())));
        assert!(first_step_fits(&spec(FIRST_STEP_NODES_MAX, 10)));
        assert!(!first_step_fits(&spec(FIRST_STEP_NODES_MAX + 1, 10)));
        assert!(!first_step_fits(&spec(2, FIRST_STEP_BYTES_MAX / 2 + 1)));
        // The flow's variables travel with each of its jobs.
        let text = "v".repeat(FIRST_STEP_BYTES_MAX / 4);
        let mut wide = spec(4, 1);
        wide.env_vars.insert("LONG".to_owned(), text);
        assert!(!first_step_fits(&wide));
    }
}
