//! Flows that come in pieces: created, filled, and started when all is there.

use std::collections::HashMap;
use std::sync::Arc;

use flow::engine::StoredNode;
use flow::plan::Plan;
use model::{ActorId, FlowNode, JobId, Name, NodeSpec, Timestamp, Violations, limits};
use proto::convert;
use proto::internal::v1::{self as internal, FlowPurpose};
use proto::required;
use proto::v1::{AddFlowNodesRequest, CreateFlowRequest, Flow, FlowStatus, StartFlowRequest};
use tonic::Status;

use crate::changes::created_jobs;
use crate::changes::creation::traceparent;
use crate::changes::idempotency::{self, RequestFingerprint, hash_of, hash_without};
use crate::changes::script_blobs;
use crate::changes::signatures::{self, JobSigningContext};
use crate::changes::submit::{Submitter, signatures_of};
use crate::error::{bad_store, wrong_state};
use crate::loader::{self, StartedFlow};

/// At most so many missing places are named.
const MISSING_NAMED_MAX: usize = 5;

impl Submitter {
    /// Creates a flow without its nodes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with everything that is wrong, else what storage answers.
    pub async fn create(mut self, actor: ActorId, request: CreateFlowRequest) -> Result<Flow, Status> {
        let request_hash = hash_of(&CreateFlowRequest { request_id: String::new(), ..request.clone() });
        let mut violations = required::missing(&request);
        let CreateFlowRequest { request_id, context_id, flow_id, caller_id, flow, node_count } = request;
        let flow = flow.unwrap_or_default();
        let fingerprint = RequestFingerprint::parse(&request_id, request_hash, &mut violations);
        convert::flow_spec::header_from_wire(flow.clone(), "flow", &mut violations);
        if !flow.nodes.is_empty() {
            violations.add("flow.nodes", "nodes are added with AddFlowNodes");
        }
        if node_count == 0 || node_count as usize > limits::FLOW_NODES_MAX {
            let max = limits::FLOW_NODES_MAX;
            violations.add("node_count", format!("a flow has 1 to {max} nodes, not {node_count}"));
        }
        if !violations.is_empty() {
            return Err(rpc::Error::invalid(violations).into());
        }
        let create = internal::CreateFlowRequest {
            request_id: fingerprint.id,
            request_hash: fingerprint.hash,
            context_id,
            flow_id,
            caller_id: if caller_id == 0 { actor.0 } else { caller_id },
            on_behalf_of: actor.0,
            flow: Some(flow),
            node_count,
            flow_uid: self.own_uid().to_string(),
            blobs: Vec::new(),
            message_key: String::new(),
            nodes: Vec::new(),
            owner: String::new(),
            goes_first: false,
            first_step: None,
            traceparent: traceparent(),
        };
        let record = self.store.create_flow(create).await?.into_inner().flow;
        record.and_then(|record| record.flow).ok_or_else(|| bad_store("a new flow without its record"))
    }

    /// Adds nodes at their place; returns the job of the first. Their dependencies are kept by name until
    /// the flow is started. A repeated request changes nothing, whatever has become of the flow.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with everything that is wrong, else what storage answers.
    pub async fn fill(mut self, actor: ActorId, mut request: AddFlowNodesRequest) -> Result<JobId, Status> {
        let request_hash = hash_without(&mut request, |request| {
            std::iter::once(&mut request.request_id).chain(signatures_of(&mut request.nodes)).collect()
        });
        let mut violations = required::missing(&request);
        let is_named = violations.is_empty();
        let AddFlowNodesRequest { context_id, flow_id, first_index, mut nodes, request_id } = request;
        let fingerprint = RequestFingerprint::parse(&request_id, request_hash, &mut violations);
        if !is_named {
            return Err(rpc::Error::invalid(violations).into());
        }
        if let Some(answered) = fingerprint.find(&mut self.store, actor, context_id).await? {
            return Ok(JobId(answered.first_job_id));
        }
        let (flow, first_job) = self.read(actor, context_id, flow_id, FlowPurpose::AddNodes).await?;
        let caller = ActorId(flow.caller_id);
        created_jobs::resolve_jobs(&mut self.store, (actor, context_id, caller), &mut nodes).await?;
        let mut specs = parse_nodes(nodes, first_index, flow.node_count, violations)?;
        if signatures::any(&specs) {
            let (context_uid, keys) = signatures::signer(&mut self.store, actor, context_id, caller).await?;
            let place = JobSigningContext { context_uid, caller, keys: &keys, env_vars: &flow.env_vars };
            let violations = signatures::check_specs(&specs, place, false, "", Timestamp::now());
            violations.into_result(Some(())).map_err(rpc::Error::invalid)?;
        }
        script_blobs::keep(&mut self.store, (actor, context_id), &mut specs).await?;
        let first = JobId(first_job.0 + first_index);
        let nodes: Vec<StoredNode> = specs
            .into_iter()
            .zip((first.0..).map(JobId))
            .map(|(spec, id)| {
                let mut node = FlowNode::new(id, &spec, Vec::new());
                node.depends_named = spec.depends;
                StoredNode { node, job: Arc::new(spec.job) }
            })
            .collect();
        self.add_nodes(&flow, &nodes, Some(actor), Some(&fingerprint)).await?;
        Ok(first)
    }

    /// Checks a flow as a whole and starts it. A repeated request is answered with the flow as it is.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with everything that is wrong, FAILED_PRECONDITION when nodes are missing or the
    /// flow has ended, else what storage answers.
    pub async fn start_filled(mut self, actor: ActorId, request: StartFlowRequest) -> Result<Flow, Status> {
        let mut violations = required::missing(&request);
        let is_named = violations.is_empty();
        let StartFlowRequest { context_id, flow_id, request_id } = request;
        let body = StartFlowRequest { context_id, flow_id, request_id: String::new() };
        let fingerprint = RequestFingerprint::parse(&request_id, hash_of(&body), &mut violations);
        if !is_named {
            return Err(rpc::Error::invalid(violations).into());
        }
        if let Some(answered) = fingerprint.find(&mut self.store, actor, context_id).await? {
            return idempotency::flow_of(&mut self.store, actor, context_id, &answered).await;
        }
        let (flow, first_job) = self.read(actor, context_id, flow_id, FlowPurpose::Start).await?;
        match flow.status() {
            FlowStatus::Created => {}
            FlowStatus::Started => {
                violations.into_result(Some(())).map_err(rpc::Error::invalid)?;
                return self.start_again(flow, actor, fingerprint).await;
            }
            _ => return Err(wrong_state(rpc::RpcReason::FlowEnded, format!("flow {flow_id} has ended"))),
        }
        let request = internal::LoadFlowRequest { context_id, flow_id, on_behalf_of: actor.0 };
        let parts = self.store.load_flow(request).await?.into_inner();
        let StartedFlow { context_uid, mut nodes, .. } = loader::collect(parts).await?;
        check_complete(&flow, first_job, &nodes)?;
        let caller = ActorId(flow.caller_id);
        let keys = if signatures::any_kept(&nodes) {
            signatures::signer(&mut self.store, actor, context_id, caller).await?.1
        } else {
            Vec::new()
        };
        let place = JobSigningContext { context_uid, caller, keys: &keys, env_vars: &flow.env_vars };
        let named = resolve(place, &mut nodes, Timestamp::now(), violations)?;
        let starting = async {
            self.add_nodes(&flow, &named, Some(actor), None).await?;
            self.start(&flow, nodes, Some(actor), Some(&fingerprint)).await
        };
        match starting.await {
            // A concurrent call was faster.
            Err(status) if status.code() == tonic::Code::FailedPrecondition => {
                let done = fingerprint.was_done(&mut self.store, actor, context_id).await?;
                let (flow, _) = self.read(actor, context_id, flow_id, FlowPurpose::Start).await?;
                match flow.status() {
                    _ if done => Ok(flow),
                    FlowStatus::Started => self.start_again(flow, actor, fingerprint).await,
                    _ => Err(status),
                }
            }
            started => started,
        }
    }

    /// Records a start request for a flow that already runs. The flow does not change, but storage remembers the request.
    async fn start_again(
        &mut self,
        flow: Flow,
        actor: ActorId,
        fingerprint: RequestFingerprint,
    ) -> Result<Flow, Status> {
        let request = internal::StartFlowRequest {
            context_id: flow.context_id,
            flow_id: flow.id,
            flow_uid: flow.uid,
            owner: String::new(),
            on_behalf_of: actor.0,
            request_id: fingerprint.id,
            request_hash: fingerprint.hash,
        };
        let record = self.store.start_flow(request).await?.into_inner().flow;
        record.and_then(|record| record.flow).ok_or_else(|| bad_store("a flow without its record"))
    }

    /// A flow with the first of its jobs, for an actor that may do this with it.
    async fn read(
        &mut self,
        actor: ActorId,
        context_id: u32,
        flow_id: u32,
        purpose: FlowPurpose,
    ) -> Result<(Flow, JobId), Status> {
        let (on_behalf_of, purpose) = (actor.0, purpose.into());
        let request = internal::ReadFlowRequest { context_id, flow_id, on_behalf_of, purpose };
        let record = self.store.read_flow(request).await?.into_inner().flow;
        let record = record.ok_or_else(|| bad_store("a flow without its record"))?;
        let first_job = JobId(record.first_job_id);
        Ok((record.flow.ok_or_else(|| bad_store("a flow without its record"))?, first_job))
    }
}

fn parse_nodes(
    nodes: Vec<proto::v1::NodeSpec>,
    first_index: u32,
    node_count: u32,
    mut violations: Violations,
) -> Result<Vec<NodeSpec>, rpc::Error> {
    let count = nodes.len();
    if count == 0 || count > limits::ADD_NODES_MAX {
        let max = limits::ADD_NODES_MAX;
        violations.add("nodes", format!("1 to {max} nodes are added at once, not {count}"));
        return Err(rpc::Error::invalid(violations));
    }
    let end = (first_index as usize).saturating_add(count);
    if end > node_count as usize {
        violations.add(
            "first_index",
            format!("{node_count} nodes were announced, these would be numbers {first_index} to {}", end - 1),
        );
    }
    let specs = nodes.into_iter().enumerate().filter_map(|(i, node)| {
        convert::flow_spec::node_from_wire(node, &format!("nodes[{i}]"), &mut violations)
    });
    let specs: Vec<NodeSpec> = specs.collect();
    Ok(violations.into_result(Some(specs))?)
}

fn check_complete(flow: &Flow, first_job: JobId, nodes: &[StoredNode]) -> Result<(), Status> {
    if nodes.len() == flow.node_count as usize {
        return Ok(());
    }
    let there: std::collections::HashSet<JobId> = nodes.iter().map(|stored| stored.node.job_id).collect();
    let missing: Vec<String> = (0..flow.node_count)
        .filter(|index| !there.contains(&JobId(first_job.0 + index)))
        .take(MISSING_NAMED_MAX)
        .map(|index| index.to_string())
        .collect();
    let message = format!(
        "flow {} has {} of its {} nodes; add those that are missing, from these places on: {}",
        flow.id,
        nodes.len(),
        flow.node_count,
        missing.join(", ")
    );
    Err(wrong_state(rpc::RpcReason::NodesMissing, message))
}

/// Checks all nodes together and resolves the names of their dependencies to jobs. Returns the nodes that changed.
fn resolve(
    place: JobSigningContext<'_>,
    nodes: &mut [StoredNode],
    now: Timestamp,
    mut violations: Violations,
) -> Result<Vec<StoredNode>, rpc::Error> {
    let names: HashMap<JobId, Name> =
        nodes.iter().map(|stored| (stored.node.job_id, stored.node.name.clone())).collect();
    let specs: Vec<NodeSpec> = nodes.iter().map(|stored| spec_of(stored, &names)).collect();
    violations.absorb(Plan::of_specs(place.env_vars, &specs));
    // Only the whole flow shows which files each node receives.
    violations.absorb::<()>(Err(signatures::check_specs(&specs, place, true, "", now)));
    violations.into_result(Some(()))?;
    let ids: HashMap<&Name, JobId> =
        specs.iter().map(|spec| &spec.name).zip(nodes.iter().map(|stored| stored.node.job_id)).collect();
    let mut changed = Vec::new();
    for (stored, spec) in nodes.iter_mut().zip(&specs) {
        if !stored.node.depends_named.is_empty() {
            stored.node.depends = spec.depends.iter().map(|name| ids[name]).collect();
            stored.node.depends_named = Vec::new();
            changed.push(stored.clone());
        }
    }
    Ok(changed)
}

/// Restores the specification of a node that was not started yet. An interrupted start may have given it
/// the jobs of its dependencies already.
fn spec_of(stored: &StoredNode, names: &HashMap<JobId, Name>) -> NodeSpec {
    let FlowNode {
        name,
        depends,
        depends_named,
        run_if,
        allow_failure,
        target,
        policy,
        prerequisites,
        when,
        ..
    } = &stored.node;
    NodeSpec {
        name: name.clone(),
        depends: depends_named.iter().chain(depends.iter().filter_map(|id| names.get(id))).cloned().collect(),
        run_if: *run_if,
        allow_failure: *allow_failure,
        target: target.clone(),
        policy: policy.clone(),
        prerequisites: prerequisites.clone(),
        when: when.clone(),
        job: (*stored.job).clone(),
    }
}
