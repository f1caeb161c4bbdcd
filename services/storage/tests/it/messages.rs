//! A message is in exactly one place: out, held, or settled (I5).

use std::collections::BTreeSet;

use keys::Layout;
use kv::Cmd;
use model::{ActorId, MessageId};
use proto::internal::v1 as wire;
use testkit::{PATIENCE, wait_until};

use crate::places::{Redis, scenarios};
use crate::stage::{CONTEXT, EXECUTOR, Running, Stage};

async fn out(stage: &Stage<impl Redis>) -> Vec<String> {
    stage.command(Cmd::new("LRANGE").arg(&stage.keys().msg_out()).arg(0).arg(-1)).await.texts().unwrap()
}

async fn held(stage: &Stage<impl Redis>) -> Vec<String> {
    stage
        .command(Cmd::new("ZRANGE").arg(&stage.keys().msg_out_coordinator()).arg(0).arg(-1))
        .await
        .texts()
        .unwrap()
}

async fn status(stage: &Stage<impl Redis>, id: u32) -> (String, String) {
    let hash = stage.hash(&stage.keys().message(ActorId(EXECUTOR), MessageId(id))).await;
    (hash["status"].clone(), hash["router"].clone())
}

/// Checks that each of `count` messages is in one place, and gives how many are (out, held, settled).
async fn places(stage: &Stage<impl Redis>, count: u32) -> (usize, usize, usize) {
    let (out, held) = (out(stage).await, held(stage).await);
    let mut settled = 0;
    for id in 1..=count {
        let key = stage.keys().message(ActorId(EXECUTOR), MessageId(id));
        let is_settled = status(stage, id).await.0 != "dispatched";
        let places = out.iter().chain(&held).filter(|known| **known == key).count() + usize::from(is_settled);
        assert_eq!(places, 1, "{key} is in {places} places");
        settled += usize::from(is_settled);
    }
    (out.len(), held.len(), settled)
}

async fn send(stage: &Stage<impl Redis>, flow: &mut Running, ids: std::ops::RangeInclusive<u32>) {
    let messages = ids.map(|id| flow.message(id)).collect();
    let step = wire::CommitRequest { messages, ..flow.step() };
    stage.apply(flow, step).await;
}

async fn all_settled(stage: &Stage<impl Redis>, count: usize) {
    let settled = || async { held(stage).await.is_empty().then_some(()) };
    wait_until(settled, PATIENCE, format!("{count} messages are settled")).await;
}

async fn messages_pass_from_out_to_held_to_settled(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    send(&stage, &mut flow, 1..=3).await;
    assert_eq!(places(&stage, 3).await, (3, 0, 0));

    let mut router = stage.router("r1").await;
    let first = router.take(3).await;
    assert_eq!(places(&stage, 3).await, (0, 3, 0));
    let keys: Vec<_> = first.iter().map(|message| message.message_key.as_str()).collect();
    assert_eq!(keys, ["message:2:1", "message:2:2", "message:2:3"], "in the order they were sent");
    let expected = flow.message(1);
    assert_eq!((&first[0].nodes, first[0].created_millis), (&expected.nodes, expected.created_millis));
    assert_eq!((first[0].runner_id, first[0].flow_id, first[0].timeout_ack_secs), (7, flow.id, 60));
    assert_eq!(first[0].context_uid, stage.context_uid);

    // Committed while the router is connected: straight into its hold.
    send(&stage, &mut flow, 4..=5).await;
    assert_eq!(places(&stage, 5).await, (0, 5, 0));
    let second = router.take(2).await;
    assert_eq!(status(&stage, 4).await, ("dispatched".to_owned(), "r1".to_owned()));

    router.settle(&first, "").await;
    router.settle(&second, "UNDELIVERABLE: nobody there").await;
    all_settled(&stage, 5).await;
    assert_eq!(places(&stage, 5).await, (0, 0, 5));
    assert_eq!(status(&stage, 1).await.0, "acknowledged");
    assert_eq!(status(&stage, 5).await.0, "error");
    let failed = stage.hash(&stage.keys().message(ActorId(EXECUTOR), MessageId(5))).await;
    assert_eq!(failed["error"], "UNDELIVERABLE: nobody there");
}

async fn a_router_that_comes_back_is_sent_again_what_it_holds(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let mut router = stage.router("r1").await;
    // Whether it is connected yet or not, it gets them.
    send(&stage, &mut flow, 1..=4).await;
    let first = router.take(4).await;
    router.settle(&first[..1], "").await;
    let settled = || async { (held(&stage).await.len() == 3).then_some(()) };
    wait_until(settled, PATIENCE, "one is settled").await;
    drop(router);
    let mut other = stage.router("r2").await;
    let mut again = stage.router("r1").await;
    let second: BTreeSet<_> = again.take(3).await.into_iter().map(|message| message.message_key).collect();
    assert_eq!(second, first[1..].iter().map(|message| message.message_key.clone()).collect());
    assert_eq!(places(&stage, 4).await, (0, 3, 1));

    // The other one gets what was dropped, here made to look so.
    drop(again);
    for message in &first[1..] {
        let set = Cmd::new("ZADD").arg(&stage.keys().msg_out_coordinator()).arg(1);
        stage.command(set.arg(&format!("{}{}", stage.keys().prefix(), message.message_key))).await;
    }
    drop(other);
    other = stage.router("r2").await;
    let taken = other.take(3).await;
    assert_eq!(status(&stage, 4).await, ("dispatched".to_owned(), "r2".to_owned()));
    other.settle(&taken, "").await;
    all_settled(&stage, 3).await;
    assert_eq!(places(&stage, 4).await, (0, 0, 4));
}

#[tokio::test]
async fn a_hello_that_failed_is_made_up_for() {
    let redis = testkit::RedisServer::builder().persistent().start();
    let mut stage = Stage::over(redis, Layout::Database).await;
    let mut flow = stage.started(1).await;
    let mut router = stage.router("r1").await;
    send(&stage, &mut flow, 1..=3).await;
    router.take(3).await;
    drop(router);
    stage.redis.kill9();
    // It comes back while its holds cannot be read.
    let mut again = stage.router("r1").await;
    assert!(
        tokio::time::timeout(std::time::Duration::from_millis(200), again.answers.message()).await.is_err()
    );
    stage.redis.restart();
    // Long before its holds end.
    let taken = tokio::time::timeout(PATIENCE, again.take(3)).await.unwrap();
    again.settle(&taken, "").await;
    all_settled(&stage, 3).await;
    assert_eq!(places(&stage, 3).await, (0, 0, 3));
}

async fn every_message_is_taken_once_by_many_routers(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    send(&stage, &mut flow, 1..=40).await;
    let mut tasks = Vec::new();
    let (seen, mut keys) = tokio::sync::mpsc::unbounded_channel();
    for name in ["a", "b", "c"] {
        let (mut router, seen) = (stage.router(name).await, seen.clone());
        tasks.push(tokio::spawn(async move {
            loop {
                let messages = router.take(1).await;
                router.settle(&messages, "").await;
                for message in messages {
                    seen.send(message.message_key).unwrap();
                }
            }
        }));
    }
    for ids in [41..=60, 61..=80, 81..=100] {
        send(&stage, &mut flow, ids).await;
    }
    let mut all = BTreeSet::new();
    while all.len() < 100 {
        let key = keys.recv().await.unwrap();
        assert!(all.insert(key.clone()), "{key} was taken twice");
    }
    all_settled(&stage, 100).await;
    assert_eq!(places(&stage, 100).await, (0, 0, 100));
    for task in tasks {
        task.abort();
    }
}

async fn what_cannot_be_delivered_is_settled_with_the_reason(stage: Stage<impl Redis>) {
    // One that carried nodes of a flow, and was spoilt.
    let key = stage.key_of("message:2:9");
    stage.command(Cmd::new("SADD").arg(&stage.key_of("flow:1:messages")).arg(&key)).await;
    let spoilt = ["revision", "1", "flow_id", "1", "status", "dispatched", "to", "x", "open", "1"];
    stage.command(Cmd::new("HSET").arg(&key).args(spoilt)).await;
    stage.command(Cmd::new("LPUSH").arg(&stage.keys().msg_out()).arg(&key).arg("nonsense")).await;
    let _router = stage.router("r").await;
    let gone = || async {
        let hash = stage.hash(&key).await;
        (hash.get("status").map(String::as_str) == Some("error")).then_some(hash)
    };
    let hash = wait_until(gone, PATIENCE, "the message is settled").await;
    assert!(hash["error"].contains("field"), "{}", hash["error"]);
    assert!(out(&stage).await.is_empty() && held(&stage).await.is_empty());
}

async fn message_ids_are_reserved_once(stage: Stage<impl Redis>) {
    let reserve = wire::ReserveMessageIdsRequest { context_id: CONTEXT, caller_id: EXECUTOR, count: 100 };
    // What is below is for programs that number their messages themselves.
    for first in [1, 101, 201].map(|n| (1 << 30) + n) {
        let answer = stage.flows().reserve_message_ids(reserve).await.unwrap().into_inner();
        assert_eq!(answer.first_message_id, first);
    }
}

scenarios!(
    messages_pass_from_out_to_held_to_settled,
    a_router_that_comes_back_is_sent_again_what_it_holds,
    every_message_is_taken_once_by_many_routers,
    what_cannot_be_delivered_is_settled_with_the_reason,
    message_ids_are_reserved_once
);

#[tokio::test]
async fn supervisors_are_notified_that_attempts_of_a_removed_flow_can_be_forgotten() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let mut router = stage.router("r1").await;
        let (mut flow, mut other) = (stage.started(1).await, stage.started(1).await);
        let key = |of: &Running, attempt: u32| {
            let job = of.first_job;
            format!("{}-{}-{job}-{attempt}", of.context_uid, of.uid)
        };
        let carries = |of: &Running, attempt: u32| format!(r#"{{"job_key":"{}"}}"#, key(of, attempt)).into();
        // The second attempt went elsewhere, and one that is named is another flow's.
        let of_first = vec![carries(&flow, 1), carries(&other, 1)];
        let first = wire::OutgoingMessage { nodes: of_first, ..flow.message(1) };
        let second =
            wire::OutgoingMessage { nodes: vec![carries(&flow, 2)], runner_id: 8, ..flow.message(2) };
        let step = wire::CommitRequest { messages: vec![first, second], ..flow.step() };
        stage.apply(&mut flow, step).await;
        send(&stage, &mut other, 3..=3).await;
        router.take(3).await;
        let end = flow.end();
        stage.apply(&mut flow, end).await;
        let removal = wire::RemoveFlowRequest {
            context_id: CONTEXT,
            flow_id: flow.id,
            on_behalf_of: EXECUTOR,
            ..Default::default()
        };
        stage.flows().remove_flow(removal).await.unwrap();
        let mut received = Vec::new();
        while received.len() < 2 {
            received.extend(router.answers.message().await.unwrap().unwrap().forgets);
        }
        let forget = |runner_id, attempt| wire::AttemptsForget {
            context_id: CONTEXT,
            runner_id,
            job_keys: vec![key(&flow, attempt)],
        };
        assert_eq!(received, [forget(7, 1), forget(8, 2)]);
    }
}
