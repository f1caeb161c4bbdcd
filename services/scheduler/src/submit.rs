//! From a submission to a flow that runs.

use std::collections::HashMap;
use std::sync::Arc;

use flow::engine::StoredNode;
use flow::plan::Plan;
use model::{ActorId, BlobHash, ContextId, FlowId, FlowNode, FlowSpec, JobId, Name, OwnerId, Violations};
use prost::Message as _;
use proto::convert;
use proto::internal::v1 as internal;
use proto::v1::{Flow, SubmitFlowRequest};
use tonic::Status;

use crate::clients::FlowStoreClient;
use crate::driver::{Event, Handle, StartedFlow};
use crate::error::bad_store;
use crate::run::STEP_NODES_MAX;

/// Nodes are added in parts of at most this many bytes.
const PART_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Takes submissions.
#[derive(Clone)]
pub struct Submitter {
    /// Flows, as storage keeps them.
    pub store: FlowStoreClient,
    /// Where started flows go.
    pub driver: Handle,
    /// Who will own them.
    pub owner: OwnerId,
}

impl Submitter {
    /// Checks a submission, stores it and starts it.
    ///
    /// Not cancel safe: run it in a task of its own, so that a caller that goes
    /// away leaves no flow half made. (One that a crash leaves in CREATED is
    /// completed by the same `request_id`.)
    ///
    /// # Errors
    /// INVALID_ARGUMENT with everything that is wrong, else what storage answers.
    pub async fn submit(mut self, actor: ActorId, request: SubmitFlowRequest) -> Result<Flow, Status> {
        let request_hash = request_hash(&request);
        let SubmitFlowRequest { request_id, context_id, flow_id, caller_id, flow } = request;
        let wire = flow.unwrap_or_default();
        let header = proto::v1::FlowSpec { nodes: Vec::new(), ..wire.clone() };
        let spec = check(wire)?;
        let create = internal::CreateFlowRequest {
            request_id,
            request_hash,
            context_id,
            flow_id,
            caller_id: if caller_id == 0 { actor.0 } else { caller_id },
            on_behalf_of: actor.0,
            flow: Some(header),
            node_count: u32::try_from(spec.nodes.len()).unwrap_or(u32::MAX),
        };
        let created = self.store.create_flow(create).await?.into_inner();
        let record = created.flow.ok_or_else(|| bad_store("a new flow without its record"))?;
        let flow = record.flow.clone().ok_or_else(|| bad_store("a new flow without its record"))?;
        if flow.status() != proto::v1::FlowStatus::Created {
            // The same request has come before. Whoever began it may not have got to driving the flow.
            self.driver.send(Event::Adopt((ContextId(flow.context_id), FlowId(flow.id)))).await;
            return Ok(flow);
        }
        let nodes = stored_nodes(&spec, created.first_job_id);
        self.add_nodes(&flow, &nodes).await?;
        self.start(&flow, nodes).await
    }

    async fn add_nodes(&mut self, flow: &Flow, nodes: &[StoredNode]) -> Result<(), Status> {
        let mut part = Vec::new();
        let mut bytes = 0;
        for (i, stored) in nodes.iter().enumerate() {
            let wire = internal::StoredNode {
                job_id: stored.node.job_id.0,
                node_json: serde_json::to_vec(&stored.node).map_err(bad_store)?.into(),
                job_json: serde_json::to_vec(&*stored.job).map_err(bad_store)?.into(),
            };
            bytes += wire.node_json.len() + wire.job_json.len();
            part.push(wire);
            if i + 1 == nodes.len() || part.len() == STEP_NODES_MAX || bytes >= PART_BYTES_MAX {
                let request = internal::AddNodesRequest {
                    context_id: flow.context_id,
                    flow_id: flow.id,
                    flow_uid: flow.uid.clone(),
                    nodes: std::mem::take(&mut part),
                };
                self.store.add_nodes(request).await?;
                bytes = 0;
            }
        }
        Ok(())
    }

    async fn start(&mut self, flow: &Flow, nodes: Vec<StoredNode>) -> Result<Flow, Status> {
        let request = internal::StartFlowRequest {
            context_id: flow.context_id,
            flow_id: flow.id,
            flow_uid: flow.uid.clone(),
            owner: self.owner.to_string(),
        };
        let started = match self.store.start_flow(request).await {
            Ok(started) => started.into_inner(),
            Err(status) => {
                // It may be started all the same, with an answer that was lost.
                self.driver.send(Event::Adopt((ContextId(flow.context_id), FlowId(flow.id)))).await;
                return Err(status);
            }
        };
        let record = started.flow;
        let record = record.ok_or_else(|| bad_store("a started flow without its record"))?;
        let answer = record.flow.clone().unwrap_or_default();
        let (mut flow, context_uid) = convert::flow::from_record(record).map_err(bad_store)?;
        flow.jobs = nodes.iter().map(|stored| stored.node.job_id).collect();
        self.driver.send(Event::Started(Box::new(StartedFlow { context_uid, flow, nodes }))).await;
        Ok(answer)
    }
}

/// What makes two submissions the same: everything but the request id.
fn request_hash(request: &SubmitFlowRequest) -> String {
    let body = SubmitFlowRequest { request_id: String::new(), ..request.clone() };
    BlobHash::of(&body.encode_to_vec()).to_string()
}

fn check(flow: proto::v1::FlowSpec) -> Result<FlowSpec, Status> {
    let spec = convert::flow_spec::from_wire(flow, "flow").map_err(rpc::Error::invalid)?;
    Plan::of_specs(&spec.env_vars, &spec.nodes).map_err(|violations| {
        let mut in_request = Violations::new();
        for violation in violations.as_slice() {
            in_request.add(format!("flow.{}", violation.field), &violation.description);
        }
        rpc::Error::invalid(in_request)
    })?;
    Ok(spec)
}

fn stored_nodes(spec: &FlowSpec, first_job_id: u32) -> Vec<StoredNode> {
    let ids: HashMap<&Name, JobId> =
        spec.nodes.iter().map(|node| &node.name).zip((first_job_id..).map(JobId)).collect();
    spec.nodes
        .iter()
        .map(|node| {
            let depends = node.depends.iter().map(|name| ids[name]).collect();
            StoredNode {
                node: FlowNode::new(ids[&node.name], node, depends),
                job: Arc::new(node.job.clone()),
            }
        })
        .collect()
}
