//! Parsing what the scheduler sends.

use model::{
    ActorId, ContextId, Epoch, FlowId, FlowNode, JobId, JobSpec, MessageId, Revision, RunnerId, Timestamp,
    Violations, limits,
};
use proto::convert::enums;
use proto::convert::flow_spec::header_from_wire;
use proto::internal::v1::{
    CommitRequest, CreateFlowRequest, FlowChange, NodeCommit, OutgoingMessage, StoredNode,
};

use crate::commits::{Commit, NodeChange, Outgoing};
use crate::error::Error;
use crate::flows::{NewFlow, NewNode};
use crate::record::message::Body;
use crate::requests::Request;
use crate::store::Asker;

/// A creation: where, for whom, what, and whether it may be repeated.
pub(super) type Creation = (ContextId, Asker, NewFlow, Option<Request>);

pub(super) fn creation(request: CreateFlowRequest) -> Result<Creation, Error> {
    let CreateFlowRequest {
        request_id,
        request_hash,
        context_id,
        flow_id,
        caller_id,
        on_behalf_of,
        flow,
        node_count,
    } = request;
    let mut violations = Violations::new();
    let repeatable = Request::parse(&request_id, || request_hash, &mut violations);
    // Its nodes come later, one chunk after the other.
    let header = header_from_wire(flow.unwrap_or_default(), "flow", &mut violations);
    if node_count == 0 || node_count as usize > limits::FLOW_NODES_MAX {
        let max = limits::FLOW_NODES_MAX;
        violations.add("node_count", format!("a flow has 1 to {max} nodes, not {node_count}"));
    }
    let new = header.map(|header| NewFlow {
        id: (flow_id != 0).then_some(FlowId(flow_id)),
        caller: ActorId(if caller_id == 0 { on_behalf_of } else { caller_id }),
        name: header.name,
        env_vars: header.env_vars,
        fail_fast: header.fail_fast,
        deadline_secs: header.deadline_secs,
        cancel_timeout_secs: header.cancel_timeout_secs,
        node_count,
    });
    let new = violations.into_result(new)?;
    Ok((ContextId(context_id), Asker::from_wire(on_behalf_of), new, repeatable))
}

pub(super) fn nodes(nodes: Vec<StoredNode>) -> Result<Vec<NewNode>, Error> {
    let mut violations = Violations::new();
    let mut parsed = Vec::with_capacity(nodes.len());
    for (i, StoredNode { job_id, node_json, job_json }) in nodes.into_iter().enumerate() {
        let node: Option<FlowNode> =
            violations.take(&format!("nodes[{i}].node_json"), serde_json::from_slice(&node_json));
        let job: Option<JobSpec> =
            violations.take(&format!("nodes[{i}].job_json"), serde_json::from_slice(&job_json));
        if node.as_ref().is_some_and(|node| node.job_id != JobId(job_id)) {
            violations.add(format!("nodes[{i}].job_id"), "the node's JSON has another number");
        }
        if let (Some(node), Some(job)) = (node, job) {
            parsed.push(NewNode { json: node_json, node, job });
        }
    }
    Ok(violations.into_result(Some(parsed))?)
}

/// A step; what is wrong with it is an answer, since the stream goes on.
pub(super) fn commit(request: CommitRequest) -> Result<Commit, String> {
    let CommitRequest {
        commit_id,
        context_id,
        context_uid,
        flow_id,
        flow_uid,
        owner,
        epoch,
        revision,
        flow,
        nodes,
        messages,
        due_millis,
    } = request;
    let FlowChange { status, result, result_truncated } = flow.unwrap_or_default();
    let status = match status {
        0 => None,
        number => Some(enums::flow_status_from_wire(number).ok_or("unknown flow status")?),
    };
    let flow = FlowId(flow_id);
    Ok(Commit {
        id: commit_id.parse().map_err(|error| format!("commit_id: {error}"))?,
        context: ContextId(context_id),
        context_uid: context_uid.parse().map_err(|error| format!("context_uid: {error}"))?,
        flow,
        flow_uid: flow_uid.parse().map_err(|error| format!("flow_uid: {error}"))?,
        owner: owner.parse().map_err(|error| format!("owner: {error}"))?,
        epoch: Epoch(epoch),
        revision: Revision(revision),
        status,
        result,
        result_truncated,
        nodes: nodes.into_iter().map(node_change).collect(),
        messages: messages.into_iter().map(|message| outgoing(flow, message)).collect(),
        due: (due_millis != 0).then_some(Timestamp::from_millis(due_millis)),
    })
}

fn node_change(node: NodeCommit) -> NodeChange {
    let NodeCommit { job_id, node_json, job_status, result_json, events } = node;
    NodeChange { job: JobId(job_id), json: node_json, job_status, result: result_json, events }
}

fn outgoing(flow: FlowId, message: OutgoingMessage) -> Outgoing {
    let OutgoingMessage { caller_id, message_id, runner_id, timeout_ack_secs, nodes, created_millis } =
        message;
    let created_at = Timestamp::from_millis(created_millis);
    let body = Body { flow, runner: RunnerId(runner_id), timeout_ack_secs, nodes, created_at };
    Outgoing::new(ActorId(caller_id), MessageId(message_id), body)
}
