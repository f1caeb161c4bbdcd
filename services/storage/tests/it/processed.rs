//! A message is processed when it was acknowledged and every attempt that it carried has ended, in either order.

use std::collections::BTreeMap;

use bytes::Bytes;
use kv::Cmd;
use model::{ActorId, MessageId, NodeState};
use proto::internal::v1 as wire;
use testkit::{PATIENCE, wait_until};

use crate::places::{Redis, scenarios};
use crate::stage::{EXECUTOR, Router, Running, Stage, json};

async fn message(stage: &Stage<impl Redis>, id: u32) -> BTreeMap<String, String> {
    stage.hash(&stage.keys().message(ActorId(EXECUTOR), MessageId(id))).await
}

/// Waits until message `id` has this status.
async fn has_status(stage: &Stage<impl Redis>, id: u32, status: &str) -> BTreeMap<String, String> {
    let look = || async { Some(message(stage, id).await).filter(|message| message["status"] == status) };
    wait_until(look, PATIENCE, format!("message {id} is {status}")).await
}

/// A message with `count` nodes.
pub(crate) fn carrying(flow: &Running, id: u32, count: usize) -> wire::OutgoingMessage {
    wire::OutgoingMessage { nodes: vec![Bytes::from_static(b"{}"); count], ..flow.message(id) }
}

/// The nodes at these places, whose attempts have ended, with the messages that carried them.
pub(crate) fn ended(flow: &Running, places: &[(u32, u32)]) -> wire::CommitRequest {
    let node = |(place, message): &(u32, u32)| {
        let mut node = flow.node(*place);
        node.state = NodeState::Completed;
        wire::NodeCommit {
            job_id: node.job_id.0,
            node_json: json(&node),
            job_status: "finished".to_owned(),
            ended_message: format!("message:{EXECUTOR}:{message}"),
            ..Default::default()
        }
    };
    wire::CommitRequest { nodes: places.iter().map(node).collect(), ..flow.step() }
}

async fn dead_letters(stage: &Stage<impl Redis>) -> Vec<String> {
    stage.command(Cmd::new("ZRANGE").arg(&stage.keys().dead_letters()).arg(0).arg(-1)).await.texts().unwrap()
}

async fn acknowledged_first(stage: Stage<impl Redis>) {
    let mut flow = stage.started(3).await;
    let mut router = stage.router("r").await;
    let send = wire::CommitRequest { messages: vec![carrying(&flow, 1, 3)], ..flow.step() };
    let sent = stage.apply(&mut flow, send).await;
    let before = message(&stage, 1).await;
    assert_eq!((&*before["open"], &before["revision"]), ("3", &sent.to_string()));
    assert_eq!(before["nodes"], "[{},{},{}]");

    let taken = router.take(1).await;
    router.settle(&taken, "").await;
    let settled = has_status(&stage, 1, "acknowledged").await;
    assert_eq!((&*settled["transport_status"], &*settled["error"]), ("read", ""));
    assert!(settled["logs"].contains("acknowledged"), "{}", settled["logs"]);
    assert_eq!(settled["nodes"], "[]", "no copy is kept of what has arrived");
    let step = ended(&flow, &[(0, 1), (1, 1)]);
    stage.apply(&mut flow, step).await;
    let between = message(&stage, 1).await;
    assert_eq!((&*between["status"], &*between["open"]), ("acknowledged", "1"));
    let step = ended(&flow, &[(2, 1)]);
    let revision = stage.apply(&mut flow, step).await;
    let processed = message(&stage, 1).await;
    assert_eq!((&*processed["status"], &processed["revision"]), ("processed", &revision.to_string()));
}

/// Message 1 with `count` nodes, which a router has that came after it. Storage has looked by then for what that router had
/// before, and gives it nothing more by itself.
async fn held_by_one_that_came(
    stage: &Stage<impl Redis>,
    flow: &mut Running,
    count: usize,
) -> (Router, Vec<wire::HeldMessage>) {
    let send = wire::CommitRequest { messages: vec![carrying(flow, 1, count)], ..flow.step() };
    stage.apply(flow, send).await;
    let mut router = stage.router("r").await;
    let taken = router.take(1).await;
    (router, taken)
}

async fn ended_first_and_both_reported_twice(stage: Stage<impl Redis>) {
    let mut flow = stage.started(2).await;
    let (mut router, taken) = held_by_one_that_came(&stage, &mut flow, 2).await;
    let step = ended(&flow, &[(0, 1)]);
    stage.apply(&mut flow, step.clone()).await;
    // Its answer was lost.
    assert_eq!(stage.commit(step).await.refusal(), wire::CommitRefusal::Unspecified);
    assert_eq!(message(&stage, 1).await["open"], "1");
    let step = ended(&flow, &[(1, 1)]);
    stage.apply(&mut flow, step).await;
    let processed = message(&stage, 1).await;
    assert_eq!((&*processed["status"], &*processed["transport_status"]), ("processed", "read"));
    assert_eq!(processed["nodes"], "[]");
    let held = async || stage.command(Cmd::new("ZCARD").arg(&stage.keys().msg_out_coordinator())).await.int();
    assert_eq!(held().await, Ok(1), "the router has it");

    router.settle(&taken, "").await;
    wait_until(|| async { (held().await == Ok(0)).then_some(()) }, PATIENCE, "it is settled".to_owned())
        .await;
    assert_eq!(message(&stage, 1).await, processed, "there is nothing more to say of it");
    router.settle(&taken, "too late").await;
    let send = wire::CommitRequest { messages: vec![carrying(&flow, 2, 1)], ..flow.step() };
    stage.apply(&mut flow, send).await;
    let taken = router.take(1).await;
    router.settle(&taken, "").await;
    has_status(&stage, 2, "acknowledged").await;
    assert_eq!(message(&stage, 1).await["status"], "processed");
    assert!(dead_letters(&stage).await.is_empty());
}

/// A message fails after its jobs were refused: their flow learns of that before the router reports the failure.
async fn ended_first_and_then_given_up(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let (router, taken) = held_by_one_that_came(&stage, &mut flow, 1).await;
    let step = ended(&flow, &[(0, 1)]);
    stage.apply(&mut flow, step).await;
    router.settle(&taken, "refused").await;
    let failed = has_status(&stage, 1, "error").await;
    assert_eq!((&*failed["error"], &*failed["transport_status"]), ("refused", "failed"));
    assert_eq!(dead_letters(&stage).await.len(), 1);
}

async fn each_attempt_counts_for_the_message_that_carried_it(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let mut router = stage.router("r").await;
    let send = wire::CommitRequest { messages: vec![carrying(&flow, 1, 1)], ..flow.step() };
    stage.apply(&mut flow, send).await;
    let taken = router.take(1).await;
    router.settle(&taken, "").await;
    has_status(&stage, 1, "acknowledged").await;
    // The first attempt fails, and the next one goes out in the same step.
    let again = wire::CommitRequest { messages: vec![carrying(&flow, 2, 1)], ..ended(&flow, &[(0, 1)]) };
    stage.apply(&mut flow, again).await;
    assert_eq!(message(&stage, 1).await["status"], "processed");
    let taken = router.take(1).await;
    router.settle(&taken, "").await;
    has_status(&stage, 2, "acknowledged").await;
    let step = ended(&flow, &[(0, 2)]);
    stage.apply(&mut flow, step).await;
    assert_eq!(message(&stage, 2).await["status"], "processed");
}

async fn what_did_not_arrive_stays_an_error(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let mut router = stage.router("r").await;
    let send = wire::CommitRequest { messages: vec![carrying(&flow, 1, 1)], ..flow.step() };
    stage.apply(&mut flow, send).await;
    let taken = router.take(1).await;
    router.settle(&taken, "TIMEOUT_ACK: nobody \"there\"").await;
    let failed = has_status(&stage, 1, "error").await;
    assert_eq!(failed["transport_status"], "failed");
    let logs: serde_json::Value = serde_json::from_str(&failed["logs"]).unwrap();
    assert_eq!(logs[0]["text"], "given up: TIMEOUT_ACK: nobody \"there\"");
    let step = ended(&flow, &[(0, 1)]);
    stage.apply(&mut flow, step).await;
    let after = message(&stage, 1).await;
    assert_eq!((&*after["status"], &*after["open"]), ("error", "0"));
    let key = stage.keys().message(ActorId(EXECUTOR), MessageId(1));
    assert_eq!(dead_letters(&stage).await, std::slice::from_ref(&key));

    // It goes with its flow, and an attempt that ends after that brings nothing back.
    stage.command(Cmd::new("DEL").arg(&key)).await;
    let step = ended(&flow, &[(0, 1)]);
    stage.apply(&mut flow, step).await;
    assert!(stage.hash(&key).await.is_empty());
}

/// A router whose settlements are lost is given its message again, and sends what it is given.
async fn who_comes_back_is_not_given_what_has_ended(stage: Stage<impl Redis>) {
    let mut flow = stage.started(3).await;
    let execution = |place| {
        let job = flow.node(place).job_id;
        Bytes::from(format!(r#"{{"job_key":"{:032x}-{}-{job}-1"}}"#, 1, flow.uid))
    };
    let nodes: Vec<_> = (0..3).map(execution).collect();
    let carries = |id, places: &[usize]| wire::OutgoingMessage {
        nodes: places.iter().map(|place| nodes[*place].clone()).collect(),
        ..flow.message(id)
    };
    let (part, whole) = (carries(1, &[0, 1]), carries(2, &[2]));
    let mut router = stage.router("r").await;
    let send = wire::CommitRequest { messages: vec![part, whole], ..flow.step() };
    stage.apply(&mut flow, send).await;
    assert_eq!(router.take(2).await.len(), 2);
    let step = ended(&flow, &[(0, 1), (2, 2)]);
    stage.apply(&mut flow, step).await;

    let mut router = stage.router("r").await;
    let again = router.take(1).await;
    let given: Vec<_> = again.iter().map(|message| (&*message.message_key, &*message.nodes)).collect();
    assert_eq!(given, [(&*format!("message:{EXECUTOR}:1"), std::slice::from_ref(&nodes[1]))]);
    has_status(&stage, 2, "processed").await;
    assert_eq!(message(&stage, 1).await["status"], "dispatched");
    let step = ended(&flow, &[(1, 1)]);
    stage.apply(&mut flow, step).await;
    let _router = stage.router("r").await;
    has_status(&stage, 1, "processed").await;
    assert!(dead_letters(&stage).await.is_empty());
}

async fn what_ends_before_a_router_comes_is_not_sent(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let send = wire::CommitRequest { messages: vec![carrying(&flow, 1, 1)], ..flow.step() };
    stage.apply(&mut flow, send).await;
    let step = ended(&flow, &[(0, 1)]);
    stage.apply(&mut flow, step).await;
    let _router = stage.router("r").await;
    let failed = has_status(&stage, 1, "error").await;
    assert_eq!(failed["error"], "its attempts had ended before it was sent");
}

scenarios!(
    acknowledged_first,
    who_comes_back_is_not_given_what_has_ended,
    what_ends_before_a_router_comes_is_not_sent,
    ended_first_and_both_reported_twice,
    ended_first_and_then_given_up,
    each_attempt_counts_for_the_message_that_carried_it,
    what_did_not_arrive_stays_an_error
);
