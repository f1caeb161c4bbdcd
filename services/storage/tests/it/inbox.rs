//! Inputs that other parties send to a flow, and flows that only wait.

use std::collections::BTreeSet;

use kv::Cmd;
use model::limits::{FLOW_INPUTS_MAX, FLOW_SIGNALS_MAX, SIGNAL_PAYLOAD_BYTES_MAX};
use model::{FlowId, FlowInput, FlowNode, Generation, JobId, NodeState};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::Code;

use crate::places::{Redis, scenarios};
use crate::stage::{CONTEXT, EXECUTOR, Running, Stage, failure, json};

fn signal(name: &str) -> FlowInput {
    FlowInput::Signal { name: name.parse().unwrap() }
}

async fn inputs(stage: &Stage<impl Redis>, flow: &Running, known: u32) -> Vec<FlowInput> {
    let request =
        wire::ReadInputsRequest { context_id: CONTEXT, flow_id: flow.id, flow_uid: flow.uid.clone(), known };
    let inputs = stage.flows().read_inputs(request).await.unwrap().into_inner().inputs;
    inputs.iter().map(|input| serde_json::from_slice(input).unwrap()).collect()
}

async fn load(stage: &Stage<impl Redis>, flow: &Running) -> wire::LoadFlowResponse {
    let request = wire::LoadFlowRequest { context_id: CONTEXT, flow_id: flow.id, on_behalf_of: 0 };
    let mut parts = stage.flows().load_flow(request).await.unwrap().into_inner();
    let mut whole = parts.message().await.unwrap().unwrap();
    while let Some(part) = parts.message().await.unwrap() {
        assert!(part.flow.is_none() && part.signals.is_empty());
        whole.inputs.extend(part.inputs);
        whole.nodes.extend(part.nodes);
    }
    whole
}

/// Those that have something to do: now, and at a time.
async fn active(stage: &Stage<impl Redis>) -> (BTreeSet<u32>, Vec<(u32, u64)>) {
    let (mut now, mut due) = (BTreeSet::new(), Vec::new());
    let mut parts =
        stage.flows().list_active_flows(wire::ListActiveFlowsRequest {}).await.unwrap().into_inner();
    while let Some(part) = parts.message().await.unwrap() {
        for flow in part.flows {
            assert_eq!((flow.context_id, flow.flow_uid.len()), (CONTEXT, 32));
            if flow.due_millis == 0 {
                now.insert(flow.flow_id);
            } else {
                due.push((flow.flow_id, flow.due_millis));
            }
        }
    }
    (now, due)
}

async fn wait_for(stage: &Stage<impl Redis>, flow: &Running, awaited: u32) -> v1::FlowStatus {
    let request = wire::AwaitFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        flow_uid: flow.uid.clone(),
        awaited_flow_id: awaited,
    };
    stage.flows().await_flow(request).await.unwrap().into_inner().status()
}

async fn what_is_taken_up_is_trimmed_exactly(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    for name in ["a", "b", "c"] {
        assert!(!stage.push(&flow, &signal(name)).await);
    }
    assert_eq!(inputs(&stage, &flow, 1).await, [signal("b"), signal("c")]);
    let step = wire::CommitRequest { inputs_taken: 2, ..flow.step() };
    stage.apply(&mut flow, step.clone()).await;
    assert_eq!(inputs(&stage, &flow, 0).await, [signal("c")]);
    // The same step again, since its answer was lost, takes nothing more.
    stage.commit(step).await;
    assert_eq!(inputs(&stage, &flow, 0).await, [signal("c")]);
    let whole = load(&stage, &flow).await;
    assert_eq!(whole.inputs, [json(&signal("c"))]);
    assert_eq!(whole.signals.into_iter().collect::<BTreeSet<_>>(), ["a", "b", "c"].map(String::from).into());
    let record = whole.flow.unwrap();
    assert_eq!(record.last_commit, flow.last_commit);
    assert_eq!(record.first_job_id, flow.first_job);
    // The end takes the rest with it.
    let end = flow.end();
    stage.apply(&mut flow, end).await;
    assert!(inputs(&stage, &flow, 0).await.is_empty());
}

async fn a_signal_is_kept_once_by_its_name(stage: Stage<impl Redis>) {
    let flow = stage.created(1).await;
    let early = wire::PushInputRequest { payload: "yes".to_owned(), ..flow.push(&signal("go")) };
    assert!(!stage.flows().push_input(early.clone()).await.unwrap().into_inner().unchanged);
    let later = wire::PushInputRequest { payload: "no".to_owned(), ..early };
    assert!(stage.flows().push_input(later).await.unwrap().into_inner().unchanged, "the first counts");
    let kept = stage.hash(&stage.keys().flow_signals(FlowId(flow.id))).await;
    let kept: serde_json::Value = serde_json::from_str(&kept["go"]).unwrap();
    assert_eq!((&kept["actor"], &kept["payload"]), (&EXECUTOR.into(), &"yes".into()));
    assert!(inputs(&stage, &flow, 0).await.is_empty(), "whoever starts it finds the signal");
    let refused =
        failure(stage.flows().push_input(flow.push(&FlowInput::CancelNode { job_id: JobId(1) })).await);
    assert_eq!(refused, (Code::FailedPrecondition, "FLOW_NOT_STARTED".to_owned()));

    let mut flow = stage.started(1).await;
    let end = flow.end();
    stage.apply(&mut flow, end).await;
    assert!(!stage.push(&flow, &signal("late")).await, "kept for the case that it is run again");
    assert!(inputs(&stage, &flow, 0).await.is_empty());
    assert_eq!(active(&stage).await.0, BTreeSet::new());
}

async fn a_request_to_cancel_counts_first_and_when_it_is_sooner(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let cancel = |grace_secs| FlowInput::Cancel { grace_secs };
    let request = wire::PushInputRequest {
        request_id: "1".to_owned(),
        request_hash: "aa".to_owned(),
        ..flow.push(&cancel(30))
    };
    let first = stage.flows().push_input(request.clone()).await.unwrap().into_inner();
    assert!(!first.unchanged);
    let record = first.flow.clone().unwrap();
    assert_eq!(record.cancel_grace_secs, 30);
    assert_eq!(record.last_commit, flow.last_commit, "a wish fences nobody");
    let again = stage.flows().push_input(request.clone()).await.unwrap().into_inner();
    assert_eq!(first, again, "the same request, the first answer");
    let other = wire::PushInputRequest { request_hash: "bb".to_owned(), ..request };
    assert_eq!(failure(stage.flows().push_input(other).await).1, "REQUEST_ID_REUSED");
    assert!(stage.push(&flow, &cancel(30)).await);
    assert!(!stage.push(&flow, &cancel(0)).await);
    assert_eq!(inputs(&stage, &flow, 0).await, [cancel(30), cancel(0)]);
    let record = load(&stage, &flow).await.flow.unwrap();
    let since = record.flow.unwrap().cancel_requested_time;
    assert_eq!(since, first.flow.unwrap().flow.unwrap().cancel_requested_time);
    assert_eq!(record.cancel_grace_secs, 0);
    // The owner computed its step before the inputs were pushed.
    let end = flow.end();
    let ended = stage.apply(&mut flow, end).await;
    let after = stage.flows().push_input(flow.push(&cancel(0))).await.unwrap().into_inner();
    assert!(after.unchanged);
    assert_eq!(after.flow.unwrap().flow.unwrap().revision, ended, "an ended flow stays as it is");
}

/// A step in which the first node ends.
fn ended(flow: &Running, generation: u32) -> wire::CommitRequest {
    let node = FlowNode { state: NodeState::Completed, generation: Generation(generation), ..flow.node(0) };
    let node = wire::NodeCommit {
        job_id: flow.first_job,
        node_json: json(&node),
        job_status: "finished".to_owned(),
        ..Default::default()
    };
    wire::CommitRequest { nodes: vec![node], ..flow.step() }
}

async fn a_request_to_cancel_a_node_that_has_ended_is_answered_and_not_kept(stage: Stage<impl Redis>) {
    let mut flow = stage.started(2).await;
    let step = ended(&flow, 1);
    stage.apply(&mut flow, step).await;
    let request = |place: u32, request_id: &str| wire::PushInputRequest {
        request_id: request_id.to_owned(),
        request_hash: "aa".to_owned(),
        ..flow.push(&FlowInput::CancelNode { job_id: JobId(flow.first_job + place) })
    };
    let (before, kept, late, after) =
        (request(0, "ended"), request(1, "runs"), request(0, "late"), request(0, "after"));
    let unchanged = async |request: &wire::PushInputRequest| {
        stage.flows().push_input(request.clone()).await.unwrap().into_inner().unchanged
    };
    assert!(unchanged(&before).await);
    assert!(!unchanged(&kept).await && !unchanged(&kept).await);
    assert_eq!(inputs(&stage, &flow, 0).await.len(), 1);

    // With its end the whole flow has ended, and that is no other answer.
    let end = flow.end();
    stage.apply(&mut flow, end).await;
    assert!(unchanged(&late).await);
    stage.flows().restart_flow(flow.restart()).await.unwrap();
    for request in [&before, &late] {
        assert!(unchanged(request).await, "it was for the run before");
    }
    let reused = wire::PushInputRequest { request_hash: "bb".to_owned(), ..before };
    assert_eq!(failure(stage.flows().push_input(reused).await).1, "REQUEST_ID_REUSED");
    assert!(inputs(&stage, &flow, 0).await.is_empty());
    // The flow's owner may not have started the node again yet.
    assert!(!unchanged(&after).await);
    assert_eq!(inputs(&stage, &flow, 0).await.len(), 1);
}

async fn a_flow_that_rests_is_active_again_with_an_input(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    assert_eq!(active(&stage).await, (BTreeSet::from([flow.id]), Vec::new()));
    let rest = wire::CommitRequest { rests: true, due_millis: 1_763_690_001_125, ..flow.step() };
    stage.apply(&mut flow, rest).await;
    let due = vec![(flow.id, 1_763_690_001_125)];
    assert_eq!(active(&stage).await, (BTreeSet::new(), due.clone()));

    stage.push(&flow, &signal("a")).await;
    assert_eq!(active(&stage).await, (BTreeSet::from([flow.id]), due));
    stage.push(&flow, &signal("b")).await;
    // Computed when only the first had come.
    let rest = wire::CommitRequest { rests: true, inputs_taken: 1, ..flow.step() };
    stage.apply(&mut flow, rest).await;
    assert_eq!(active(&stage).await, (BTreeSet::from([flow.id]), Vec::new()), "the second keeps it active");
    let rest = wire::CommitRequest { rests: true, inputs_taken: 1, ..flow.step() };
    stage.apply(&mut flow, rest).await;
    assert_eq!(active(&stage).await.0, BTreeSet::new());
    let on = flow.step();
    stage.apply(&mut flow, on).await;
    assert_eq!(active(&stage).await.0, BTreeSet::from([flow.id]));
}

async fn who_waits_for_a_flow_is_touched_when_it_ends_or_goes(stage: Stage<impl Redis>) {
    let (mut first, mut second) = (stage.started(1).await, stage.started(1).await);
    let mut waiting = stage.started(1).await;
    assert_eq!(wait_for(&stage, &waiting, 999).await, v1::FlowStatus::Unspecified);
    assert_eq!(wait_for(&stage, &waiting, first.id).await, v1::FlowStatus::Started);
    let rest = wire::CommitRequest { rests: true, ..waiting.step() };
    stage.apply(&mut waiting, rest).await;
    let others = BTreeSet::from([first.id, second.id]);
    assert_eq!(active(&stage).await.0, others);
    let end = first.end();
    stage.apply(&mut first, end).await;
    assert_eq!(active(&stage).await.0, BTreeSet::from([second.id, waiting.id]));
    assert_eq!(wait_for(&stage, &waiting, first.id).await, v1::FlowStatus::Finished);
    let waiters = |flow: &Running| stage.keys().flow_waiters(FlowId(flow.id));
    assert_eq!(stage.command(Cmd::new("EXISTS").arg(&waiters(&first))).await.int(), Ok(0));

    // One that is not started any more, and is removed.
    let given_up = stage.created(1).await;
    assert_eq!(wait_for(&stage, &waiting, given_up.id).await, v1::FlowStatus::Created);
    let rest = wire::CommitRequest { rests: true, ..waiting.step() };
    stage.apply(&mut waiting, rest).await;
    stage.push(&given_up, &FlowInput::Cancel { grace_secs: 0 }).await;
    let remove = |id| wire::RemoveFlowRequest {
        context_id: CONTEXT,
        flow_id: id,
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    stage.flows().remove_flow(remove(given_up.id)).await.unwrap();
    assert_eq!(active(&stage).await.0, BTreeSet::from([second.id, waiting.id]));
    assert_eq!(wait_for(&stage, &waiting, given_up.id).await, v1::FlowStatus::Unspecified);

    // One that waited and is gone by itself is not found for ever.
    assert_eq!(wait_for(&stage, &waiting, second.id).await, v1::FlowStatus::Started);
    let end = waiting.end();
    stage.apply(&mut waiting, end).await;
    stage.flows().remove_flow(remove(waiting.id)).await.unwrap();
    let end = second.end();
    stage.apply(&mut second, end).await;
    assert_eq!(active(&stage).await.0, BTreeSet::from([waiting.id]));
    let take = wire::TakeFlowRequest {
        context_id: CONTEXT,
        flow_id: waiting.id,
        owner: model::OwnerId::random().to_string(),
    };
    assert_eq!(failure(stage.flows().take_flow(take).await).0, Code::NotFound);
    assert_eq!(active(&stage).await, (BTreeSet::new(), Vec::new()));
    let gone = wire::AwaitFlowRequest {
        context_id: CONTEXT,
        flow_id: waiting.id,
        flow_uid: waiting.uid,
        awaited_flow_id: second.id,
    };
    assert_eq!(failure(stage.flows().await_flow(gone).await).0, Code::NotFound);
}

/// The awaited flow ends between the step that goes to rest and its commit: the next owner of the
/// waiting flow must find it among the active ones.
async fn a_flow_does_not_rest_that_was_touched_meanwhile(stage: Stage<impl Redis>) {
    let (mut first, mut second) = (stage.started(1).await, stage.started(1).await);
    let mut waiting = stage.started(1).await;
    for awaited in [&first, &second] {
        assert_eq!(wait_for(&stage, &waiting, awaited.id).await, v1::FlowStatus::Started);
    }
    let awaited_flow_ids = vec![first.id, second.id];
    let end = first.end();
    stage.apply(&mut first, end).await;
    let rest = wire::CommitRequest { rests: true, awaited_flow_ids, ..waiting.step() };
    stage.apply(&mut waiting, rest).await;
    assert_eq!(active(&stage).await.0, BTreeSet::from([second.id, waiting.id]));
    let rest = wire::CommitRequest { rests: true, awaited_flow_ids: vec![second.id], ..waiting.step() };
    stage.apply(&mut waiting, rest).await;
    assert_eq!(active(&stage).await.0, BTreeSet::from([second.id]));
    let end = second.end();
    stage.apply(&mut second, end).await;
    assert_eq!(active(&stage).await.0, BTreeSet::from([waiting.id]));
}

async fn an_inbox_has_limits(stage: Stage<impl Redis>) {
    let flow = stage.started(1).await;
    let keys = stage.keys();
    let names = (1..FLOW_SIGNALS_MAX).flat_map(|n| [format!("s{n}"), "{}".to_owned()]).collect::<Vec<_>>();
    stage.command(Cmd::new("HSET").arg(&keys.flow_signals(FlowId(flow.id))).args(&names)).await;
    assert!(!stage.push(&flow, &signal("last")).await);
    let refused = failure(stage.flows().push_input(flow.push(&signal("one more"))).await);
    assert_eq!(refused, (Code::ResourceExhausted, "LIMIT_EXCEEDED".to_owned()));
    assert!(stage.push(&flow, &signal("s1")).await, "one that is there is no more");

    let node = FlowInput::CancelNode { job_id: JobId(flow.first_job) };
    let full: Vec<_> = (1..FLOW_INPUTS_MAX).map(|_| serde_json::to_string(&node).unwrap()).collect();
    let list = keys.flow_inputs(FlowId(flow.id));
    for part in full.chunks(1000) {
        stage.command(Cmd::new("RPUSH").arg(&list).args(part)).await;
    }
    let refused = failure(stage.flows().push_input(flow.push(&node)).await);
    assert_eq!(refused.0, Code::ResourceExhausted);
    // A page of them, and the rest.
    let mut seen = 0;
    loop {
        let page = inputs(&stage, &flow, seen).await.len();
        if page == 0 {
            break;
        }
        seen += u32::try_from(page).unwrap();
    }
    assert_eq!(seen as usize, FLOW_INPUTS_MAX);
    assert_eq!(load(&stage, &flow).await.inputs.len(), FLOW_INPUTS_MAX);

    let long = "x".repeat(SIGNAL_PAYLOAD_BYTES_MAX + 1);
    let long = wire::PushInputRequest { payload: long, ..flow.push(&signal("s1")) };
    assert_eq!(failure(stage.flows().push_input(long).await).0, Code::InvalidArgument);
    let nonsense = wire::PushInputRequest { input_json: b"{}".to_vec().into(), ..flow.push(&signal("s1")) };
    assert_eq!(failure(stage.flows().push_input(nonsense).await).0, Code::InvalidArgument);
}

scenarios!(
    what_is_taken_up_is_trimmed_exactly,
    a_signal_is_kept_once_by_its_name,
    a_request_to_cancel_counts_first_and_when_it_is_sooner,
    a_request_to_cancel_a_node_that_has_ended_is_answered_and_not_kept,
    a_flow_that_rests_is_active_again_with_an_input,
    who_waits_for_a_flow_is_touched_when_it_ends_or_goes,
    a_flow_does_not_rest_that_was_touched_meanwhile,
    an_inbox_has_limits
);
