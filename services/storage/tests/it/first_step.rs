//! Flows that one change creates, starts and moves by their first step.

use bytes::Bytes;
use kv::Cmd;
use model::id::Uid;
use model::{
    ActorId, Attempt, ContextEvent, ContextId, ContextUid, Execution, FlowId, FlowNode, FlowUid, JobId,
    JobKey, MessageId, NodeEvent, NodeState, RunnerId, Timestamp,
};
use proto::internal::v1 as wire;
use proto::v1::FlowStatus;
use serde_json::Value;
use tonic::Code;

use crate::creation::{kept, whole};
use crate::places::{Redis, scenarios};
use crate::stage::{CONTEXT, EXECUTOR, Stage, create, failure, json, script};

/// Message that carries the first node.
pub(crate) const MESSAGE: u32 = (1 << 30) + 7;
const MADE_MILLIS: u64 = 1_763_690_000_125;
const DUE_MILLIS: u64 = 1_763_690_060_125;

/// The nodes of a flow of two, the second after the first, which `message` carries.
fn nodes(first: u32, message: u32) -> Vec<FlowNode> {
    let stored = whole(2, &script("true")).nodes;
    let mut nodes: Vec<FlowNode> =
        stored.iter().map(|node| serde_json::from_slice(&node.node_json).unwrap()).collect();
    nodes.iter_mut().for_each(|node| node.renumber(first - 1));
    nodes[0].state = NodeState::Dispatched;
    nodes[0].runner = Some(RunnerId(7));
    nodes[0].message_key = Some(format!("message:{EXECUTOR}:{message}"));
    nodes
}

/// Events of the first node.
fn events(flow: u32, job: u32) -> Vec<Bytes> {
    let event = |state| {
        json(&ContextEvent::Node(NodeEvent {
            flow_id: FlowId(flow),
            job_id: JobId(job),
            name: Some("node-0".parse().unwrap()),
            state,
            attempt: Attempt(1),
            reason: None,
            exit_code: None,
            instance: None,
            tries: 0,
            deaths: 0,
            losses: 0,
            time: Timestamp::from_millis(1_763_690_000_125),
        }))
    };
    vec![event(NodeState::Ready), event(NodeState::Dispatched)]
}

fn execution(job_key: JobKey, (context, flow): (u32, u32)) -> Execution {
    Execution {
        context_id: ContextId(context),
        flow_id: FlowId(flow),
        caller_id: ActorId(EXECUTOR),
        env_vars: [("A".to_owned(), "1".to_owned())].into(),
        timeout_secs: 60,
        ..Execution::of_script(
            job_key,
            "flow".parse().unwrap(),
            "node-0".parse().unwrap(),
            model::ScriptType::Shell,
            model::ScriptSource::Inline("true".to_owned()),
        )
    }
}

fn message(id: u32, execution: &Execution) -> wire::OutgoingMessage {
    wire::OutgoingMessage {
        caller_id: EXECUTOR,
        message_id: id,
        runner_id: 7,
        timeout_ack_secs: 60,
        nodes: vec![json(execution)],
        created_millis: 1_763_690_000_125,
    }
}

/// A flow of two nodes, whose first was dispatched before anything had a number.
pub(crate) fn with_first_step(uid: FlowUid) -> wire::CreateFlowRequest {
    let job_key =
        JobKey { context: ContextUid(Uid::from_bits(0)), flow: uid, job: JobId(1), attempt: Attempt(1) };
    let stored = |node: &FlowNode| wire::StoredNode {
        job_id: node.job_id.0,
        node_json: json(node),
        job_json: json(&script("true")),
    };
    let step = wire::FirstStep {
        nodes: nodes(1, MESSAGE).iter().map(stored).collect(),
        events: events(0, 1),
        messages: vec![message(MESSAGE, &execution(job_key, (0, 0)))],
        due_millis: DUE_MILLIS,
        deadline_millis: DUE_MILLIS,
        made_millis: MADE_MILLIS,
    };
    wire::CreateFlowRequest {
        owner: Uid::random().to_string(),
        flow_uid: uid.to_string(),
        first_step: Some(step),
        ..create(2)
    }
}

/// Stored nodes, by name, but for their numbers and their message.
async fn kept_nodes(stage: &Stage<impl Redis>, flow: u32, first: u32) -> Vec<FlowNode> {
    let fields = stage.hash(&stage.keys().flow_nodes(FlowId(flow))).await;
    let mut nodes: Vec<FlowNode> =
        (first..first + 2).map(|id| serde_json::from_str(&fields[&id.to_string()]).unwrap()).collect();
    for node in &mut nodes {
        let JobId(id) = node.job_id;
        assert!(node.depends.iter().all(|before| before.0 == id - 1), "{node:?}");
        (node.job_id, node.depends, node.message_key) = (JobId(id - first), Vec::new(), None);
    }
    nodes
}

/// Events of a flow's nodes in the stream, but for numbers.
async fn events_of(stage: &Stage<impl Redis>, flow: u32, job: u32) -> Vec<Value> {
    let entries = stage.command(Cmd::new("XRANGE").arg(&stage.keys().events()).arg("-").arg("+")).await;
    let events = entries.entries().unwrap().into_iter().map(|entry| {
        let event: Value = serde_json::from_slice(entry.field("e").unwrap()).unwrap();
        event
    });
    let mut of_nodes: Vec<Value> =
        events.filter(|event| event["kind"] == "node" && event["flow_id"] == flow).collect();
    for event in &mut of_nodes {
        assert_eq!(event["job_id"], job, "{event}");
        event["flow_id"] = Value::Null;
        event["job_id"] = Value::Null;
    }
    of_nodes
}

async fn it_is_kept_as_one_that_came_later(stage: Stage<impl Redis>) {
    let mut router = stage.router("r").await;
    let mut later = stage.started(2).await;
    let uid: FlowUid = later.uid.parse().unwrap();
    let context = later.context_uid.parse().unwrap();
    let job_key = JobKey { context, flow: uid, job: JobId(1), attempt: Attempt(1) };
    let node = &nodes(1, MESSAGE - 1)[0];
    let change = wire::NodeCommit {
        job_id: 1,
        node_json: json(node),
        job_status: node.state.job_status().to_owned(),
        events: events(later.id, 1),
        ..Default::default()
    };
    let step = wire::CommitRequest {
        nodes: vec![change],
        messages: vec![message(MESSAGE - 1, &execution(job_key, (CONTEXT, later.id)))],
        due_millis: DUE_MILLIS,
        ..later.step()
    };
    stage.apply(&mut later, step).await;

    let uid = FlowUid::random();
    let made = stage.flows().create_flow(with_first_step(uid)).await.unwrap().into_inner();
    let record = made.flow.unwrap();
    let flow = record.flow.clone().unwrap();
    assert!(made.is_new);
    assert_eq!((flow.status(), made.first_job_id), (FlowStatus::Started, 3));
    let keys = stage.keys();
    let (one, other) = (keys.flow(FlowId(flow.id)), keys.flow(FlowId(later.id)));
    assert_eq!(kept(&stage, &one).await, kept(&stage, &other).await);
    // Nothing of it lies before its making.
    let fields = stage.hash(&one).await;
    let time = |millis| Timestamp::from_millis(millis).to_string();
    assert_eq!((&fields["created_at"], &fields["deadline"]), (&time(MADE_MILLIS), &time(DUE_MILLIS)));
    let job = |id| keys.job(ActorId(EXECUTOR), JobId(id));
    assert_eq!(kept(&stage, &job(3)).await, kept(&stage, &job(1)).await);
    assert_eq!(kept_nodes(&stage, flow.id, 3).await, kept_nodes(&stage, later.id, 1).await);
    assert_eq!(events_of(&stage, flow.id, 3).await, events_of(&stage, later.id, 1).await);
    assert_eq!(events_of(&stage, flow.id, 3).await.len(), 2);

    // The message names the attempt by the numbers that everything has now.
    let held = router.take(2).await;
    let sent: Execution = serde_json::from_slice(&held[1].nodes[0]).unwrap();
    let job_key = JobKey { context, flow: uid, job: JobId(3), attempt: Attempt(1) };
    assert_eq!(sent, execution(job_key, (CONTEXT, flow.id)));
    let of_message = |id| keys.message(ActorId(EXECUTOR), MessageId(id));
    let without_numbers = async |id| {
        let mut fields = kept(&stage, &of_message(id)).await;
        (fields.remove("job_keys").unwrap(), fields.remove("nodes").unwrap(), fields)
    };
    let (job_keys, nodes, fields) = without_numbers(MESSAGE).await;
    assert_eq!(fields, without_numbers(MESSAGE - 1).await.2);
    assert_eq!(job_keys, job_key.to_string());
    assert_eq!(nodes.as_bytes(), [b"[", &held[1].nodes[0][..], b"]"].concat());
    let carriers = Cmd::new("SMEMBERS").arg(&keys.flow_messages(FlowId(flow.id)));
    assert_eq!(stage.command(carriers).await.texts().unwrap(), [of_message(MESSAGE)]);
    let due = Cmd::new("ZSCORE").arg(&keys.due()).arg(&format!("{}-{uid}", flow.id));
    assert_eq!(stage.command(due).await.text().unwrap(), "1763690060.125");

    // It is driven from there on.
    let mut running = later.made(record, 3);
    let step = running.end();
    stage.apply(&mut running, step).await;
}

async fn without_a_router_its_message_waits_for_one(stage: Stage<impl Redis>) {
    let uid = FlowUid::random();
    let made = stage.flows().create_flow(with_first_step(uid)).await.unwrap().into_inner();
    let flow = made.flow.unwrap().flow.unwrap();
    let mut router = stage.router("r").await;
    let held = router.take(1).await;
    let sent: Execution = serde_json::from_slice(&held[0].nodes[0]).unwrap();
    assert_eq!((sent.flow_id, sent.job_key.flow), (FlowId(flow.id), uid));
}

async fn more_than_a_first_step_has_is_left_to_be_made(stage: Stage<impl Redis>) {
    let mut request = with_first_step(FlowUid::random());
    let step = request.first_step.as_mut().unwrap();
    let one = step.messages[0].clone();
    step.messages =
        (0..3).map(|n| wire::OutgoingMessage { message_id: MESSAGE + n, ..one.clone() }).collect();
    let made = stage.flows().create_flow(request).await.unwrap().into_inner();
    assert!(made.is_new);
    assert_eq!(made.flow.unwrap().flow.unwrap().status(), FlowStatus::Created);
}

async fn what_is_no_step_is_refused_by_its_name(stage: Stage<impl Redis>) {
    let before = stage.command(Cmd::new("DBSIZE")).await.int();
    let refused = async |change: fn(&mut wire::FirstStep), field: &str| {
        let mut request = with_first_step(FlowUid::random());
        change(request.first_step.as_mut().unwrap());
        let refused = stage.flows().create_flow(request).await;
        let fields = rpc::ErrorView::from(refused.as_ref().unwrap_err()).to_string();
        assert!(fields.contains(field), "{fields}");
        assert_eq!(failure(refused).0, Code::InvalidArgument);
    };
    refused(|step| step.events.push(Bytes::from_static(b"{}")), "first_step.events").await;
    let of_flow = |step: &mut wire::FirstStep| {
        step.events = vec![Bytes::from_static(br#"{"kind":"job","caller_id":1,"job_id":1,"removed":true}"#)];
    };
    refused(of_flow, "first_step.events").await;
    let of_nothing = |step: &mut wire::FirstStep| step.messages[0].nodes = vec![Bytes::from_static(b"{}")];
    refused(of_nothing, "first_step.messages").await;
    refused(|step| step.nodes.truncate(1), "nodes").await;
    assert_eq!(stage.command(Cmd::new("DBSIZE")).await.int(), before);
}

scenarios!(
    it_is_kept_as_one_that_came_later,
    without_a_router_its_message_waits_for_one,
    more_than_a_first_step_has_is_left_to_be_made,
    what_is_no_step_is_refused_by_its_name,
);
