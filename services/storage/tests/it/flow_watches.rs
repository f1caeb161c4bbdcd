//! Watching the flows of a context without their nodes.

use keys::Layout;
use kv::Cmd;
use model::{FlowId, FlowInput};
use proto::internal::v1 as wire;
use proto::v1;
use serde_json::Value;
use tonic::{Code, Streaming};

use crate::places::{Redis, scenarios};
use crate::stage::{CONTEXT, EXECUTOR, READER, Running, STRANGER, Stage, create, failure};

type Events = Streaming<wire::WatchEventsResponse>;

fn request(position: &str) -> wire::WatchEventsRequest {
    wire::WatchEventsRequest {
        context_id: CONTEXT,
        on_behalf_of: READER,
        position: position.to_owned(),
        only_flows: true,
        ..Default::default()
    }
}

async fn watch(stage: &Stage<impl Redis>, position: &str) -> Events {
    stage.flows().watch_events(request(position)).await.unwrap().into_inner()
}

/// The next answer: an event, nothing for a sign of life, with its position.
async fn next(events: &mut Events) -> (Value, String) {
    let answer = events.message().await.unwrap().unwrap();
    if answer.event_json.is_empty() {
        return (Value::Null, answer.position);
    }
    (serde_json::from_slice(&answer.event_json).unwrap(), answer.position)
}

/// Flow, status and generation of an event.
fn flow_state(event: &Value) -> (u64, String, u64) {
    assert_eq!(event["kind"], "flow", "{event}");
    let status = event["status"].as_str().unwrap_or("gone").to_owned();
    (event["flow_id"].as_u64().unwrap(), status, event["generation"].as_u64().unwrap())
}

/// A step in which so many nodes change.
async fn step(stage: &Stage<impl Redis>, flow: &mut Running, events: u32) {
    let event = |n| format!(r#"{{"kind":"node","flow_id":{},"n":{n}}}"#, flow.id).into_bytes().into();
    let node = wire::NodeCommit {
        job_id: flow.first_job,
        node_json: crate::stage::json(&flow.node(0)),
        job_status: "started".to_owned(),
        events: (0..events).map(event).collect(),
        ..Default::default()
    };
    let step = wire::CommitRequest { nodes: vec![node], ..flow.step() };
    stage.apply(flow, step).await;
}

async fn end(stage: &Stage<impl Redis>, flow: &mut Running) {
    let end = flow.end();
    stage.apply(flow, end).await;
}

async fn remove(stage: &Stage<impl Redis>, flow: &Running) {
    let request = wire::RemoveFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    stage.flows().remove_flow(request).await.unwrap();
}

async fn flows_are_sent_with_their_owner_and_without_their_nodes(stage: Stage<impl Redis>) {
    let mut events = watch(&stage, "").await;
    let (_, begin) = next(&mut events).await;
    let mut flow = stage.started(1).await;
    let mut other = stage.started(1).await;
    step(&stage, &mut flow, 3).await;
    end(&stage, &mut flow).await;
    step(&stage, &mut other, 2).await;
    assert!(!stage.push(&other, &FlowInput::Cancel { grace_secs: 5 }).await);
    remove(&stage, &flow).await;

    let (mut received, mut all) = (Vec::new(), Vec::new());
    while received.last().is_none_or(|(_, status, _)| status != "gone") {
        let (event, position) = next(&mut events).await;
        assert_eq!((&event["name"], &event["caller_id"]), (&"flow".into(), &EXECUTOR.into()), "{event}");
        assert!(event["created_at"].is_number(), "{event}");
        received.push(flow_state(&event));
        all.push((event, position));
    }
    let (first, second) = (u64::from(flow.id), u64::from(other.id));
    let expected = [
        (first, "created"),
        (first, "created"),
        (first, "started"),
        (second, "created"),
        (second, "created"),
        (second, "started"),
        (first, "finished"),
        (second, "started"),
        (first, "gone"),
    ];
    assert_eq!(received, expected.map(|(flow, status)| (flow, status.to_owned(), 1)));
    assert!(all[7].0["cancel_requested_time"].is_number());

    // A watch from any of these positions receives the later events, and the mark that there are no more.
    for from in 0..=all.len() {
        let position = if from == 0 { &begin } else { &all[from - 1].1 };
        let mut again = watch(&stage, position).await;
        assert_eq!(next(&mut again).await, (Value::Null, position.clone()));
        for known in &all[from..] {
            assert_eq!(&next(&mut again).await, known, "from {from} on");
        }
        assert_eq!(next(&mut again).await.0, Value::Null);
    }
}

async fn nothing_falls_between_a_page_and_what_follows_it(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let created =
        stage.flows().create_flow(create(1)).await.unwrap().into_inner().flow.unwrap().flow.unwrap();
    let read = wire::ReadFlowsRequest {
        context_id: CONTEXT,
        on_behalf_of: READER,
        page_size: 10,
        to_watch: true,
        ..Default::default()
    };
    let page = stage.flows().read_flows(read.clone()).await.unwrap().into_inner();
    // More than a tailer remembers lies between the page and the watch.
    step(&stage, &mut flow, 700).await;
    end(&stage, &mut flow).await;
    let mut events = watch(&stage, &page.position).await;
    assert_eq!(next(&mut events).await, (Value::Null, page.position.clone()));
    assert_eq!(flow_state(&next(&mut events).await.0), (u64::from(flow.id), "finished".to_owned(), 1));
    assert_eq!(next(&mut events).await.0, Value::Null, "this was all");

    // To be watched flows come in short: their variables and their result may be long.
    let ids: Vec<u32> = page.flows.iter().map(|flow| flow.id).collect();
    assert_eq!(ids, [created.id, flow.id]);
    let short = stage.flows().read_flows(read.clone()).await.unwrap().into_inner().flows.swap_remove(1);
    let listed = wire::ReadFlowsRequest { to_watch: false, ..read };
    let listed = stage.flows().read_flows(listed).await.unwrap().into_inner();
    assert_eq!(listed.position, "");
    let long = &listed.flows[1];
    assert!(!long.env_vars.is_empty() && !long.result.is_empty());
    assert_eq!(short, v1::Flow { env_vars: Default::default(), result: Default::default(), ..long.clone() });
}

async fn an_end_is_sent_with_its_result_if_that_is_short_and_complete(stage: Stage<impl Redis>) {
    let mut events = watch(&stage, "").await;
    next(&mut events).await;
    for (bytes, truncated) in [(1000, false), (1020, false), (10, true)] {
        let mut flow = stage.started(1).await;
        let mut end = flow.end();
        let change = end.flow.as_mut().unwrap();
        change.result = [("k".to_owned(), "\"".repeat(bytes / 2))].into();
        change.result_truncated = truncated;
        let result = serde_json::to_value(&change.result).unwrap();
        let is_included = result.to_string().len() <= 1024 && !truncated;
        stage.apply(&mut flow, end).await;
        let mut received = Value::Null;
        while received["status"] != "finished" {
            received = next(&mut events).await.0;
            assert!(received["status"] == "finished" || received.get("result").is_none(), "{received}");
        }
        assert_eq!(received.get("result"), Some(&result).filter(|_| is_included), "{bytes} {truncated}");
    }
}

async fn what_others_wrote_into_a_flow_does_not_spoil_its_events(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let key = stage.keys().flow(FlowId(flow.id));
    let spoil = Cmd::new("HSET").arg(&key).arg("name").arg("a\",\"status\":\"x").arg("caller_id").arg("2}");
    stage.command(spoil).await;
    let mut events = watch(&stage, "").await;
    next(&mut events).await;
    end(&stage, &mut flow).await;
    let (event, _) = next(&mut events).await;
    assert_eq!(flow_state(&event), (u64::from(flow.id), "finished".to_owned(), 1));
    assert_eq!((event.get("name"), event.get("caller_id")), (None, None));
}

async fn only_readers_may_watch_flows_and_only_flows(stage: Stage<impl Redis>) {
    let flow = stage.started(1).await;
    let strangers = wire::WatchEventsRequest { on_behalf_of: STRANGER, ..request("") };
    assert_eq!(failure(stage.flows().watch_events(strangers).await).0, Code::NotFound);
    let both = wire::WatchEventsRequest { flow_id: flow.id, ..request("") };
    assert_eq!(failure(stage.flows().watch_events(both).await).0, Code::InvalidArgument);
    let mut events = watch(&stage, "").await;
    next(&mut events).await;
    stage.command(Cmd::new("HSET").arg(&stage.keys().context()).arg("readers").arg("[]")).await;
    let id = format!("{}-1", stage.revision().await + 1);
    stage.command(Cmd::new("HINCRBY").arg(&stage.keys().ids()).arg("revision").arg(1)).await;
    let add = Cmd::new("XADD").arg(&stage.keys().events()).arg(&id).arg("e").arg(r#"{"kind":"context"}"#);
    stage.command(add.arg("b").arg("00000000000000aa")).await;
    stage.command(Cmd::new("PUBLISH").arg(&stage.keys().hint_channel()).arg("")).await;
    assert_eq!(failure(events.message().await).0, Code::NotFound, "its role was taken away");
}

#[tokio::test]
async fn a_store_that_went_back_ends_watches_of_flows() {
    let mut stage = Stage::new(Layout::Database).await;
    let mut events = watch(&stage, "").await;
    next(&mut events).await;
    stage.redis.restart();
    assert_eq!(failure(events.message().await).0, Code::OutOfRange);
}

scenarios!(
    flows_are_sent_with_their_owner_and_without_their_nodes,
    nothing_falls_between_a_page_and_what_follows_it,
    an_end_is_sent_with_its_result_if_that_is_short_and_complete,
    what_others_wrote_into_a_flow_does_not_spoil_its_events,
    only_readers_may_watch_flows_and_only_flows,
);
