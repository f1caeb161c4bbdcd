//! From a step of the engine to the commit that stores it.

use std::collections::BTreeSet;

use flow::engine::{ChangedNode, Engine, FlowStepOutput};
use flow::graph::NodeIndex;
use flow::retry::RetryCounters;
use model::{ContextUid, FlowId, FlowNode, JobSpec, NodeEvent, Timestamp, TraceParent, limits};
use proto::convert::enums::flow_status_to_wire;
use proto::internal::v1::{CommitRequest, FirstStep, FlowChange, NodeCommit, OutgoingMessage, StoredNode};

use crate::message_ids::{ContextCaller, MessageIds};

/// Values of a commit besides the step itself.
#[derive(Debug, Clone, Copy)]
pub struct CommitHeader<'a> {
    /// The uid of the flow's context.
    pub context_uid: ContextUid,
    /// When the step was made.
    pub now: Timestamp,
    /// The step before it, or the change of owner that it builds on.
    pub last_commit: &'a str,
    /// How many of the oldest entries of the flow's inbox it has taken up.
    pub inputs_taken: usize,
    /// The flow only waits, and everything that it waits for is known to storage.
    pub rests: bool,
    /// The other flows that it waits for.
    pub awaited_flows: &'a BTreeSet<FlowId>,
    /// Trace context for what the step causes.
    pub trace: Option<TraceParent>,
}

/// Builds the commit of a step. Gives the dispatched nodes their message keys,
/// so that they are stored with them.
#[must_use]
pub fn build(
    engine: &mut Engine,
    step: &FlowStepOutput,
    frame: CommitHeader<'_>,
    ids: &mut MessageIds,
) -> CommitRequest {
    let messages = messages(engine, step, (frame.now, frame.trace), ids);
    let flow = engine.flow();
    CommitRequest {
        commit_id: model::id::Uid::random().to_string(),
        context_id: flow.context_id.0,
        context_uid: frame.context_uid.to_string(),
        flow_id: flow.id.0,
        flow_uid: flow.uid.to_string(),
        owner: flow.owner.map(|owner| owner.to_string()).unwrap_or_default(),
        epoch: flow.epoch.0,
        last_commit: frame.last_commit.to_owned(),
        flow: step.flow_changed.then(|| FlowChange {
            status: flow_status_to_wire(flow.status).into(),
            result: flow.result.clone(),
            result_truncated: flow.result_truncated,
        }),
        nodes: step.changed.iter().map(|change| node(engine, change, frame.now)).collect(),
        messages,
        due_millis: step.due.map_or(0, Timestamp::as_millis),
        inputs_taken: u32::try_from(frame.inputs_taken).unwrap_or(u32::MAX),
        rests: frame.rests,
        awaited_flow_ids: if frame.rests {
            frame.awaited_flows.iter().map(|flow| flow.0).collect()
        } else {
            Vec::new()
        },
        traceparent: frame.trace.map(|trace| trace.to_string()).unwrap_or_default(),
    }
}

/// Builds the first step of a flow that is not stored yet, from the step and its messages.
#[must_use]
pub fn first_step(
    engine: &Engine,
    step: &FlowStepOutput,
    messages: Vec<OutgoingMessage>,
    now: Timestamp,
) -> FirstStep {
    let events = |change: &ChangedNode| events(engine, engine.node(change.node), change, now);
    let nodes = (0..engine.nodes().len()).map(NodeIndex::new);
    let nodes = nodes.map(|node| stored_node(engine.node(node), engine.job(node)));
    FirstStep {
        nodes: nodes.collect(),
        events: step.changed.iter().flat_map(events).collect(),
        messages,
        due_millis: step.due.map_or(0, Timestamp::as_millis),
        deadline_millis: engine.flow().deadline.map_or(0, Timestamp::as_millis),
        made_millis: now.as_millis(),
    }
}

/// A node with its job, for storage.
#[must_use]
pub fn stored_node(node: &FlowNode, job: &JobSpec) -> StoredNode {
    StoredNode { job_id: node.job_id.0, node_json: json(node).into(), job_json: json(job).into() }
}

fn node(engine: &Engine, change: &ChangedNode, now: Timestamp) -> NodeCommit {
    let node = engine.node(change.node);
    let result_json = if node.result.is_empty() { Vec::new() } else { json(&node.result) };
    NodeCommit {
        job_id: node.job_id.0,
        node_json: json(node).into(),
        job_status: node.state.job_status().to_owned(),
        result_json: result_json.into(),
        events: events(engine, node, change, now),
        ended_message: change.ended_message.clone().unwrap_or_default(),
    }
}

/// One event for each state that the node went through; one as well when only
/// something else about it changed.
fn events(
    engine: &Engine,
    node: &FlowNode,
    change: &ChangedNode,
    now: Timestamp,
) -> Vec<prost::bytes::Bytes> {
    let event = |state, attempt, reason, spent| {
        let RetryCounters { tries, deaths, losses } = spent;
        json(&model::ContextEvent::Node(NodeEvent {
            flow_id: engine.flow().id,
            job_id: node.job_id,
            name: Some(node.name.clone()),
            state,
            attempt,
            reason,
            exit_code: node.exit_code,
            instance: node.instance.clone(),
            tries,
            deaths,
            losses,
            time: now,
        }))
        .into()
    };
    let mut events = Vec::with_capacity(change.transitions.len().max(1));
    // After each transition, the current attempt is the one that the next transition applies to.
    for pair in change.transitions.windows(2) {
        events.push(event(pair[0].to, pair[1].attempt, pair[0].reason.clone(), pair[0].spent));
    }
    // The last event carries the node as it is now: the reason why it waits may have been set after its transition.
    events.push(event(node.state, node.attempt, node.reason.clone(), RetryCounters::of(node)));
    events
}

/// Puts what a step dispatches into messages, whose keys the nodes are given. `trace` is the trace context of the attempts.
pub fn messages(
    engine: &mut Engine,
    step: &FlowStepOutput,
    (now, trace): (Timestamp, Option<TraceParent>),
    ids: &mut MessageIds,
) -> Vec<OutgoingMessage> {
    let caller: ContextCaller = (engine.flow().context_id, engine.flow().caller_id);
    let traceparent = trace.map(|trace| trace.to_string());
    let mut messages: Vec<OutgoingMessage> = Vec::new();
    for dispatch in &step.dispatches {
        let mut open: Option<(OutgoingMessage, usize)> = None;
        for &index in &dispatch.nodes {
            let mut execution = engine.execution(index);
            execution.traceparent.clone_from(&traceparent);
            let bytes = json(&execution);
            let ack = engine.node(index).policy.timeout_ack;
            let fits = open.as_ref().is_some_and(|(message, size)| {
                size + bytes.len() <= limits::PAGE_BYTES_MAX && message.timeout_ack_secs == ack
            });
            if !fits {
                messages.extend(open.take().map(|(message, _)| message));
            }
            let (message, size) = open.get_or_insert_with(|| {
                let message = OutgoingMessage {
                    caller_id: caller.1.0,
                    message_id: ids.take(caller).0,
                    runner_id: dispatch.runner.0,
                    timeout_ack_secs: ack,
                    nodes: Vec::new(),
                    created_millis: now.as_millis(),
                };
                (message, 0)
            });
            *size += bytes.len();
            message.nodes.push(bytes.into());
            let key = format!("message:{}:{}", message.caller_id, message.message_id);
            engine.set_message_key(index, key);
        }
        messages.extend(open.map(|(message, _)| message));
    }
    messages
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("values of the model are JSON")
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use flow::engine::{Destinations, FlowEngineInput, NoDestination, PlacementRequest, StepEnvironment};
    use model::execution::Outcome;
    use model::{
        ActorId, AttemptEnd, ContextId, Flow, FlowUid, JobId, JobSpec, NodePolicy, NodeReport, NodeSpec,
        ReportKind, ReportSource, Revision, RunnerId, ScriptType,
    };

    use super::*;

    struct Anywhere;

    impl Destinations for Anywhere {
        fn choose(&mut self, _: &PlacementRequest<'_>) -> Result<RunnerId, NoDestination> {
            Ok(RunnerId(1))
        }

        fn locate(&self, _: &ReportSource) -> Option<RunnerId> {
            None
        }
    }

    /// A flow of one node that may be tried twice, and at once.
    fn engine() -> Engine {
        traced(None)
    }

    /// The flow as it is in a trace.
    fn traced(trace: Option<TraceParent>) -> Engine {
        let (uid, name, now) = (FlowUid::random(), "flow".parse().expect("a name"), Timestamp::default());
        let flow = Flow {
            jobs: vec![JobId(1)],
            revision: Revision(1),
            trace,
            ..Flow::new(FlowId(1), uid, name, ContextId(1), ActorId(1), now)
        };
        let mut policy = NodePolicy { retries: 1, ..NodePolicy::default() };
        policy.backoff.initial_secs = 0.0;
        policy.backoff.max_secs = 0.0;
        let job = JobSpec::inline(ScriptType::Shell, "true");
        let spec = NodeSpec { policy, ..NodeSpec::new("a".parse().expect("a name"), job) };
        Engine::new(ContextUid::random(), flow, &[spec]).expect("a flow of one node")
    }

    fn step(engine: &mut Engine, ids: &mut MessageIds, input: FlowEngineInput) -> CommitRequest {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let mut outside = StepEnvironment { destinations: &mut Anywhere, jitter: &mut || 0.0 };
        let mut inputs = VecDeque::from([input]);
        let mut step = engine.step(now, &mut inputs, &mut outside, 500);
        while step.more && step.dispatches.is_empty() {
            step = engine.step(now, &mut inputs, &mut outside, 500);
        }
        let frame = CommitHeader {
            context_uid: ContextUid::random(),
            now,
            last_commit: "",
            inputs_taken: 0,
            rests: false,
            awaited_flows: &BTreeSet::new(),
            trace: engine.flow().trace,
        };
        build(engine, &step, frame, ids)
    }

    #[test]
    fn attempts_and_commits_belong_to_the_trace_of_their_flow() {
        // Without a collector there is no span of the step between the two.
        for trace in
            [None, Some(TraceParent::sampled(7, 2)), Some(TraceParent { trace: 7, span: 2, flags: 0 })]
        {
            let (mut engine, mut ids) = (traced(trace), MessageIds::default());
            ids.add((ContextId(1), ActorId(1)), 70);
            let commit = step(&mut engine, &mut ids, FlowEngineInput::Start);
            assert_eq!(TraceParent::read(&commit.traceparent), trace);
            assert_eq!(TraceParent::of_execution(&commit.messages[0].nodes[0]), trace);
        }
    }

    #[test]
    fn the_message_of_each_attempt_is_named_at_its_end() {
        let (mut engine, mut ids) = (engine(), MessageIds::default());
        ids.add((ContextId(1), ActorId(1)), 70);
        let first = step(&mut engine, &mut ids, FlowEngineInput::Start);
        assert_eq!((first.messages[0].message_id, &*first.nodes[0].ended_message), (70, ""));

        let ends = |engine: &Engine, outcome| {
            let node = flow::graph::NodeIndex::new(0);
            let end = AttemptEnd::unstarted(outcome, None, Timestamp::default());
            let end = AttemptEnd { exit_code: Some(1), ..end };
            FlowEngineInput::Report(NodeReport {
                job_key: engine.job_key(node),
                context_id: ContextId(1),
                flow_id: FlowId(1),
                source: None,
                kind: ReportKind::Ended(Box::new(end)),
            })
        };
        // The next attempt goes out in the same commit, in a message of its own.
        let failed = ends(&engine, Outcome::Failed);
        let again = step(&mut engine, &mut ids, failed);
        assert_eq!((again.messages[0].message_id, &*again.nodes[0].ended_message), (71, "message:1:70"));
        let succeeded = ends(&engine, Outcome::Succeeded);
        let last = step(&mut engine, &mut ids, succeeded);
        assert_eq!((last.messages.len(), &*last.nodes[0].ended_message), (0, "message:1:71"));
    }
}
