//! Parses the requests of the scheduler.

use bytes::Bytes;
use keys::FlowRef;
use model::flow::EnvVars;
use model::{
    ActorId, ContextId, Epoch, FlowId, FlowInput, FlowNode, FlowUid, Generation, JobId, JobSpec, MessageId,
    MessageKey, Rerun, Revision, RunnerId, Timestamp, TraceParent, Violations, limits,
};
use proto::convert::enums;
use proto::convert::flow_spec::header_from_wire;
use proto::internal::v1::{
    self as wire, AddNodesRequest, CommitRequest, CreateFlowRequest, FindRequestRequest, FlowChange,
    JoinHello, JoinRequest, NodeCommit, OutgoingMessage, PushInputRequest, ReadFlowsRequest,
    ReadNodesRequest, RestartFlowRequest, StoredNode, WatchEventsRequest,
};

use super::NAME_BYTES_MAX;
use super::status::{checked, field};
use crate::error::Error;
use crate::flows::commits::{DispatchMessage, FlowCommit, NodeChange};
use crate::flows::creation::FlowStartSpec;
use crate::flows::first_step::{FirstStep, StepEvent, StepExecution, UnnumberedMessage};
use crate::flows::flow_inputs::PushedFlowInput;
use crate::flows::lifecycle::{FlowRestart, NewFlow, NewNode};
use crate::flows::reads::{FlowFilter, NodeFilter};
use crate::messages::message_holds::parse_message_key;
use crate::pages::PageRequest;
use crate::watch::events::WatchSubject;

use crate::flows::replicas::{ReplicaHello, ReplicaIncarnation};
use crate::idempotency::{BatchPart, IdempotencyKey};
use crate::store::RequestPrincipal;
use crate::watch::event_watch::EventWatch;

/// Parameters of a creation: context, principal, flow, what it starts with, and the idempotency key.
pub(super) type CreateFlowParams =
    (ContextId, RequestPrincipal, NewFlow, Option<FlowStartSpec>, Option<IdempotencyKey>);

pub(super) fn creation(request: CreateFlowRequest) -> Result<CreateFlowParams, Error> {
    let CreateFlowRequest {
        request_id,
        request_hash,
        context_id,
        flow_id,
        caller_id,
        on_behalf_of,
        flow,
        node_count,
        flow_uid,
        blobs,
        message_key,
        nodes,
        owner,
        goes_first,
        first_step,
        traceparent,
    } = request;
    let mut violations = Violations::new();
    let repeatable = IdempotencyKey::parse(&request_id, || request_hash, &mut violations);
    let beginning = beginning((nodes, first_step), node_count, &owner, &mut violations);
    // The nodes are in a field of their own, or come later in chunks.
    let header = header_from_wire(flow.unwrap_or_default(), "flow", &mut violations);
    if node_count == 0 || node_count as usize > limits::FLOW_NODES_MAX {
        let max = limits::FLOW_NODES_MAX;
        violations.add("node_count", format!("a flow has 1 to {max} nodes, not {node_count}"));
    }
    let uid = match flow_uid.as_str() {
        "" => None,
        text => violations.take("flow_uid", text.parse()),
    };
    let blobs = blobs.iter().filter_map(|hash| violations.take("blobs", hash.parse())).collect();
    let message = match message_key.as_str() {
        "" => None,
        text => violations.take("message_key", parse_message_key(text).ok_or("message:<caller>:<id>")),
    };
    let come_along = beginning.as_ref().map(|beginning| beginning.nodes.as_slice()).unwrap_or_default();
    let goes_first = goes_first || come_along.iter().any(|new| new.node.policy.goes_first());
    let new = header.map(|spec| NewFlow {
        id: (flow_id != 0).then_some(FlowId(flow_id)),
        uid,
        caller: ActorId(if caller_id == 0 { on_behalf_of } else { caller_id }),
        spec,
        node_count,
        blobs,
        message,
        goes_first,
        trace: TraceParent::read(&traceparent),
    });
    let new = violations.into_result(new)?;
    Ok((ContextId(context_id), RequestPrincipal::from_wire(on_behalf_of), new, beginning, repeatable))
}

/// Parses what a flow is started with, if given: its nodes, or the nodes as its first step has left them.
fn beginning(
    (wire, step): (Vec<StoredNode>, Option<wire::FirstStep>),
    node_count: u32,
    owner: &str,
    violations: &mut Violations,
) -> Option<FlowStartSpec> {
    let (wire, step) = match step {
        Some(mut step) => (std::mem::take(&mut step.nodes), Some(first_step(step, violations))),
        None => (wire, None),
    };
    if wire.is_empty() {
        return None;
    }
    if wire.len() != node_count as usize {
        violations.add("nodes", format!("all {node_count} nodes or none, not {}", wire.len()));
    }
    let numbers = wire.iter().map(|node| node.job_id);
    if !numbers.eq(1..=node_count) {
        violations.add("nodes", "their jobs are numbered from 1 on");
    }
    let nodes = violations.absorb(nodes(wire));
    let owner = violations.take("owner", owner.parse());
    Some(FlowStartSpec { nodes: nodes?, owner: owner?, step })
}

fn first_step(step: wire::FirstStep, violations: &mut Violations) -> FirstStep {
    let wire::FirstStep { nodes: _, events, messages, due_millis, deadline_millis, made_millis } = step;
    let mut bytes = events.iter().map(Bytes::len).sum();
    let events = events.iter().filter_map(|json| {
        let event = StepEvent::read(json).ok_or("what a node went through, with its numbers first");
        violations.take("first_step.events", event)
    });
    let events = events.collect();
    let messages_in = messages.into_iter().map(|message| {
        let mut message = outgoing(message);
        bytes += message.bytes();
        let nodes = std::mem::take(&mut message.nodes);
        let executions = nodes.iter().filter_map(|json| {
            let execution = StepExecution::read(json).ok_or("executions, with their numbers first");
            violations.take("first_step.messages", execution)
        });
        UnnumberedMessage { message, executions: executions.collect() }
    });
    FirstStep {
        events,
        messages: messages_in.collect(),
        due: moment(due_millis),
        deadline: moment(deadline_millis),
        made: Timestamp::from_millis(made_millis),
        bytes,
    }
}

/// Parameters of an addition of nodes: flow, nodes, principal, and the request that they are part of.
pub(super) type AddNodesParams =
    ((ContextId, FlowId, FlowUid), Vec<NewNode>, RequestPrincipal, Option<BatchPart>);

pub(super) fn filling(request: AddNodesRequest) -> Result<AddNodesParams, Error> {
    let AddNodesRequest {
        context_id,
        flow_id,
        flow_uid,
        nodes: stored,
        on_behalf_of,
        request_id,
        request_hash,
        request_ends: ends,
        request_first_job_id,
    } = request;
    let flow = flow_ref(flow_id, &flow_uid)?;
    let first_job = JobId(request_first_job_id);
    let filling =
        repeatable(&request_id, request_hash)?.map(|request| BatchPart { request, ends, first_job });
    let place = (ContextId(context_id), flow.id, flow.uid);
    Ok((place, nodes(stored)?, RequestPrincipal::from_wire(on_behalf_of), filling))
}

/// The request, when it may be repeated.
pub(super) fn repeatable(id: &str, hash: String) -> Result<Option<IdempotencyKey>, Error> {
    let mut violations = Violations::new();
    let request = IdempotencyKey::parse(id, || hash, &mut violations);
    Ok(violations.into_result(Some(request))?)
}

fn nodes(nodes: Vec<StoredNode>) -> Result<Vec<NewNode>, Violations> {
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
    violations.into_result(Some(parsed))
}

/// Parses a step. An error is returned as text for the answer, since the stream continues.
pub(super) fn commit(request: CommitRequest) -> Result<FlowCommit, String> {
    let CommitRequest {
        commit_id,
        context_id,
        context_uid,
        flow_id,
        flow_uid,
        owner,
        epoch,
        last_commit,
        flow,
        nodes,
        messages,
        due_millis,
        inputs_taken,
        rests,
        awaited_flow_ids,
        traceparent: _,
    } = request;
    let FlowChange { status, result, result_truncated } = flow.unwrap_or_default();
    let status = match status {
        0 => None,
        number => Some(enums::flow_status_from_wire(number).ok_or("unknown flow status")?),
    };
    Ok(FlowCommit {
        id: commit_id.parse().map_err(|error| format!("commit_id: {error}"))?,
        context: ContextId(context_id),
        context_uid: context_uid.parse().map_err(|error| format!("context_uid: {error}"))?,
        flow: FlowId(flow_id),
        flow_uid: flow_uid.parse().map_err(|error| format!("flow_uid: {error}"))?,
        owner: owner.parse().map_err(|error| format!("owner: {error}"))?,
        epoch: Epoch(epoch),
        last_commit,
        status,
        result,
        result_truncated,
        nodes: nodes.into_iter().map(node_change).collect::<Result<_, _>>()?,
        messages: messages.into_iter().map(outgoing).collect(),
        due: moment(due_millis),
        inputs_taken,
        rests,
        awaited: awaited_flow_ids.into_iter().map(FlowId).collect(),
    })
}

/// Parameters of a restart: which flow, how, on whose behalf, and the idempotency key.
pub(super) type RestartFlowParams =
    ((ContextId, FlowId, FlowUid), FlowRestart, RequestPrincipal, Option<IdempotencyKey>);

pub(super) fn restarting(request: RestartFlowRequest) -> Result<RestartFlowParams, Error> {
    let RestartFlowRequest {
        request_id,
        request_hash,
        context_id,
        flow_id,
        flow_uid,
        on_behalf_of,
        rerun_json,
        env_vars,
        generation,
        signatures,
        expected_revision,
        traceparent,
    } = request;
    let mut violations = Violations::new();
    let repeatable = IdempotencyKey::parse(&request_id, || request_hash, &mut violations);
    let uid: Option<FlowUid> = violations.take("flow_uid", flow_uid.parse());
    let rerun: Option<Rerun> = violations.take("rerun_json", serde_json::from_str(&rerun_json));
    check_env(&env_vars, &mut violations);
    if signatures.len() > limits::RETRY_SIGNATURES_MAX {
        let (max, count) = (limits::RETRY_SIGNATURES_MAX, signatures.len());
        violations.add("signatures", format!("at most {max} are given at once, not {count}"));
    }
    let signatures = signatures.into_iter().map(|(job, signature)| (JobId(job), signature)).collect();
    let generation = Generation(generation);
    let parsed = uid.zip(rerun).map(|(uid, rerun)| {
        let expected_revision = expected(expected_revision);
        let trace = TraceParent::read(&traceparent);
        let restart = FlowRestart { generation, rerun, env_vars, signatures, expected_revision, trace };
        ((ContextId(context_id), FlowId(flow_id), uid), restart)
    });
    let (place, restart) = violations.into_result(parsed)?;
    Ok((place, restart, RequestPrincipal::from_wire(on_behalf_of), repeatable))
}

fn check_env(env_vars: &EnvVars, violations: &mut Violations) {
    let bytes: usize = env_vars.iter().map(|(name, value)| name.len() + value.len()).sum();
    if env_vars.len() > limits::ENV_ENTRIES_MAX || bytes > limits::ENV_BYTES_MAX {
        let (entries, max) = (limits::ENV_ENTRIES_MAX, limits::ENV_BYTES_MAX);
        violations.add("env_vars", format!("at most {entries} variables and {max} bytes, not {bytes}"));
    }
}

/// Parses the look-up of an earlier request: context, principal and idempotency key.
pub(super) fn repeated(
    request: FindRequestRequest,
) -> Result<(ContextId, RequestPrincipal, IdempotencyKey), Error> {
    let FindRequestRequest { request_id, request_hash, context_id, on_behalf_of } = request;
    let mut violations = Violations::new();
    let parsed = IdempotencyKey::parse(&request_id, || request_hash, &mut violations);
    if request_id.is_empty() {
        violations.add("request_id", "name the request");
    }
    let request = violations.into_result(parsed)?;
    Ok((ContextId(context_id), RequestPrincipal::from_wire(on_behalf_of), request))
}

/// Parameters of an input for a flow: context, flow, input, principal, and the idempotency key.
pub(super) type PushInputParams =
    (ContextId, FlowId, PushedFlowInput, RequestPrincipal, Option<IdempotencyKey>);

pub(super) fn push(request: PushInputRequest) -> Result<PushInputParams, Error> {
    let PushInputRequest {
        request_id,
        request_hash,
        context_id,
        flow_id,
        on_behalf_of,
        input_json: json,
        payload,
    } = request;
    let mut violations = Violations::new();
    let repeatable = IdempotencyKey::parse(&request_id, || request_hash, &mut violations);
    for (field, max, len) in [
        ("input_json", limits::PAGE_BYTES_MAX, json.len()),
        ("payload", limits::SIGNAL_PAYLOAD_BYTES_MAX, payload.len()),
    ] {
        if len > max {
            violations.add(field, format!("at most {max} bytes, not {len}"));
        }
    }
    let input: Option<FlowInput> = violations.take("input_json", serde_json::from_slice(&json));
    let pushed = violations.into_result(input.map(|input| PushedFlowInput { input, json, payload }))?;
    Ok((
        ContextId(context_id),
        FlowId(flow_id),
        pushed,
        RequestPrincipal::from_wire(on_behalf_of),
        repeatable,
    ))
}

/// Parses the filter and the page of a list of flows.
pub(super) fn flow_filter(
    request: ReadFlowsRequest,
) -> Result<(ContextId, RequestPrincipal, FlowFilter, PageRequest), Error> {
    let ReadFlowsRequest {
        context_id,
        on_behalf_of,
        status,
        page_size,
        page_token,
        caller_id,
        name_prefix,
        created_from_millis,
        created_before_millis,
        to_watch: _,
    } = request;
    let mut violations = Violations::new();
    let status = match status {
        0 => None,
        number => violations.take("status", enums::flow_status_from_wire(number).ok_or("unknown status")),
    };
    let filter = FlowFilter {
        status,
        caller: (caller_id != 0).then_some(ActorId(caller_id)),
        name_prefix,
        created_from: moment(created_from_millis),
        created_before: moment(created_before_millis),
    };
    let page = PageRequest::parse(page_size, &page_token, &mut violations);
    checked(violations, (ContextId(context_id), RequestPrincipal::from_wire(on_behalf_of), filter, page))
}

/// Parses the parameters of a watch.
pub(super) fn watch(request: WatchEventsRequest) -> Result<EventWatch, Error> {
    let WatchEventsRequest { context_id, flow_id, on_behalf_of, position, only_flows, first_nodes } = request;
    let subject = match (flow_id, only_flows) {
        (0, false) => None,
        (0, true) => Some(WatchSubject::Flows),
        (flow, false) => Some(WatchSubject::Flow(FlowId(flow))),
        (_, true) => return Err(Error::field("only_flows", "not with a flow")),
    };
    let position = if position.is_empty() { None } else { Some(position.parse()?) };
    if first_nodes > 0 && (flow_id == 0 || position.is_some()) {
        return Err(Error::field("first_nodes", "only with a flow, and without a position"));
    }
    if first_nodes > limits::PAGE_SIZE_MAX {
        let max = limits::PAGE_SIZE_MAX;
        return Err(Error::field("first_nodes", format!("at most {max}, not {first_nodes}")));
    }
    let asker = RequestPrincipal::from_wire(on_behalf_of);
    Ok(EventWatch { context: ContextId(context_id), subject, asker, position })
}

/// Parses the filter and the page of a list of nodes.
pub(super) fn node_filter(
    request: ReadNodesRequest,
) -> Result<(ContextId, FlowId, RequestPrincipal, NodeFilter, PageRequest), Error> {
    let ReadNodesRequest { context_id, flow_id, on_behalf_of, page_size, page_token, states, job_ids } =
        request;
    let mut violations = Violations::new();
    if job_ids.len() > limits::PAGE_SIZE_MAX as usize {
        let (max, requested) = (limits::PAGE_SIZE_MAX, job_ids.len());
        violations.add("job_ids", format!("at most {max}, not {requested}"));
    }
    let state = |number: i32| enums::node_state_from_wire(number).ok_or("unknown state");
    let states = violations.take("states", states.into_iter().map(state).collect::<Result<_, _>>());
    let filter =
        NodeFilter { states: states.unwrap_or_default(), jobs: job_ids.into_iter().map(JobId).collect() };
    let page = PageRequest::parse(page_size, &page_token, &mut violations);
    let asker = RequestPrincipal::from_wire(on_behalf_of);
    checked(violations, (ContextId(context_id), FlowId(flow_id), asker, filter, page))
}

/// The flow of a number and a uid.
pub(super) fn flow_ref(flow_id: u32, flow_uid: &str) -> Result<FlowRef, Error> {
    Ok(FlowRef { id: FlowId(flow_id), uid: field("flow_uid", flow_uid.parse())? })
}

/// Parses the introduction of a replica that joins.
pub(super) fn hello(request: JoinRequest) -> Result<ReplicaHello, Error> {
    let JoinHello { name, owner, address, again } =
        request.hello.ok_or_else(|| Error::field("hello", "comes first"))?;
    for (name, len) in [("hello.name", name.len()), ("hello.address", address.len() + 1)] {
        if len == 0 || len > NAME_BYTES_MAX {
            return Err(Error::field(name, format!("1 to {NAME_BYTES_MAX} bytes")));
        }
    }
    let owner = field("hello.owner", owner.parse())?;
    Ok(ReplicaHello { name, replica: ReplicaIncarnation { owner, address }, resumes: again })
}

/// The revision that something is expected to be at; 0 is any.
pub(super) fn expected(revision: u64) -> Option<Revision> {
    (revision != 0).then_some(Revision(revision))
}

/// In milliseconds; 0 is none.
fn moment(millis: u64) -> Option<Timestamp> {
    (millis != 0).then_some(Timestamp::from_millis(millis))
}

fn node_change(node: NodeCommit) -> Result<NodeChange, String> {
    let NodeCommit { job_id, node_json, job_status, result_json, events, ended_message } = node;
    let ended_message = match ended_message.as_str() {
        "" => None,
        text => Some(parse_message_key(text).ok_or_else(|| format!("ended_message: `{text}`"))?),
    };
    let job = JobId(job_id);
    Ok(NodeChange { job, json: node_json, job_status, result: result_json, events, ended_message })
}

fn outgoing(message: OutgoingMessage) -> DispatchMessage {
    let OutgoingMessage { caller_id, message_id, runner_id, timeout_ack_secs, nodes, created_millis } =
        message;
    DispatchMessage {
        key: MessageKey { caller: ActorId(caller_id), id: MessageId(message_id) },
        runner: RunnerId(runner_id),
        timeout_ack_secs,
        nodes,
        created_at: Timestamp::from_millis(created_millis),
    }
}
