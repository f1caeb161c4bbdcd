//! Bounds of what a context keeps of what has ended: the oldest go, whole, and nothing else does.

use std::collections::BTreeSet;
use std::time::Duration;

use identity::Identity;
use keys::Layout;
use kv::Cmd;
use model::{ActorId, BlobHash, FlowId, FlowInput, NodeState, Timestamp};
use proto::internal::v1 as wire;
use proto::v1;
use storage::{Config, Quota, QuotaSetting, StorageQuotas};
use testkit::{PATIENCE, RedisServer, wait_until};
use tonic::Code;

use crate::places::{Redis, scenarios};
use crate::received::{accepted, acknowledge, letter};
use crate::stage::{CONTEXT, EXECUTOR, READER, Running, STRANGER, Stage, failure, json};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Longer than anything that has ended is kept.
const LATER: Duration = Duration::from_secs(31 * 24 * 3600);

/// Sets the context's own bounds.
async fn keep(stage: &Stage<impl Redis>, retention: v1::ContextRetention) {
    let settings =
        v1::ContextSettings { retention: Some(retention), executors_may_submit: true, ..Default::default() };
    let change =
        v1::UpdateContextRequest { context_id: CONTEXT, settings: Some(settings), ..Default::default() };
    stage.contexts(Identity::Admin).update_context(change).await.unwrap();
}

/// A flow that has ended, with an attempt, a message that carried it, a signal and a log.
async fn ended_flow(stage: &Stage<impl Redis>, message: u32) -> Running {
    let mut flow = stage.started(2).await;
    let mut node = flow.node(0);
    node.attempt = model::Attempt(1);
    node.state = NodeState::Completed;
    let key = format!("{}-{}-{}-1", flow.context_uid, flow.uid, flow.first_job);
    let carrier = wire::OutgoingMessage {
        nodes: vec![format!(r#"{{"job_key":"{key}"}}"#).into()],
        ..flow.message(message)
    };
    stage.push(&flow, &FlowInput::Signal { name: "go".parse().unwrap() }).await;
    let step = wire::CommitRequest { messages: vec![carrier], ..flow.step() };
    stage.apply(&mut flow, step).await;
    let logs = wire::AppendLogsRequest { chunks: vec![flow.log_chunk()] };
    stage.messages().append_logs(logs).await.unwrap();
    let change = wire::NodeCommit {
        job_id: node.job_id.0,
        node_json: json(&node),
        job_status: "finished".to_owned(),
        ..Default::default()
    };
    let end = wire::CommitRequest { nodes: vec![change], ..flow.end() };
    stage.apply(&mut flow, end).await;
    flow
}

/// Ids of all flows.
async fn flows(stage: &Stage<impl Redis>) -> BTreeSet<u32> {
    let ids =
        stage.command(Cmd::new("ZRANGE").arg(&stage.keys().flows()).arg(0).arg(-1)).await.texts().unwrap();
    ids.iter().map(|id| id.parse().unwrap()).collect()
}

/// Ids of the ended flows that are kept and were measured.
async fn kept(stage: &Stage<impl Redis>) -> Vec<u32> {
    let ids = stage.command(Cmd::new("ZRANGE").arg(&stage.keys().flows_ended()).arg(0).arg(-1)).await;
    ids.texts().unwrap().iter().map(|id| id.parse().unwrap()).collect()
}

/// Keys of the context that name this flow or its jobs.
async fn traces_of(stage: &Stage<impl Redis>, flow: &Running) -> Vec<String> {
    let job = |place| format!("job:{EXECUTOR}:{}", flow.first_job + place);
    let own = format!("flow:{}", flow.id);
    let names: Vec<String> = (0..flow.count).map(job).chain([own.clone()]).collect();
    let (log, inner) = (format!("log:{}:", flow.id), format!("{own}:"));
    let prefix = stage.keys().prefix().to_owned();
    let keys = stage.command(Cmd::new("KEYS").arg("*")).await.texts().unwrap();
    let is_of = |key: &String| {
        let Some(name) = key.strip_prefix(&prefix) else { return false };
        names.iter().any(|own| own == name) || name.starts_with(&log) || name.starts_with(&inner)
    };
    keys.into_iter().filter(is_of).collect()
}

/// Checks that the sum of ended flows is what their records say.
async fn sum_is_right(stage: &Stage<impl Redis>) {
    let mut sum = 0;
    for flow in kept(stage).await {
        let bytes: u64 = stage.hash(&stage.keys().flow(FlowId(flow))).await["bytes"].parse().unwrap();
        assert!(bytes > 500, "{bytes}");
        sum += bytes;
    }
    assert_eq!(stage.counted("ended_flow_bytes").await, sum);
}

async fn beyond_their_number_the_oldest_flows_go(stage: Stage<impl Redis>) {
    let running = stage.started(1).await;
    let mut ended = Vec::new();
    for message in 1..=5 {
        ended.push(ended_flow(&stage, message).await);
    }
    keep(&stage, v1::ContextRetention { ended_flows_max: 2, ..Default::default() }).await;
    let swept = stage.sweep(Timestamp::now()).await;
    // Those that ended within a millisecond have no order among them.
    assert_eq!(flows(&stage).await.len(), 3, "{swept:?}");
    assert!(flows(&stage).await.contains(&running.id));
    let left: BTreeSet<u32> = kept(&stage).await.into_iter().collect();
    assert_eq!(left.len(), 2);
    sum_is_right(&stage).await;
    for (n, flow) in (1_u32..).zip(&ended) {
        let message = stage.keys().message(ActorId(EXECUTOR), model::MessageId(n));
        let carried = stage.command(Cmd::new("EXISTS").arg(&message)).await.int().unwrap();
        if left.contains(&flow.id) {
            assert!(traces_of(&stage, flow).await.len() >= 6, "{:?}", traces_of(&stage, flow).await);
            assert_eq!(carried, 1);
        } else {
            assert_eq!(traces_of(&stage, flow).await, [""; 0], "nothing of it is left");
            assert_eq!(carried, 0);
        }
    }
    let last = stage
        .command(Cmd::new("XREVRANGE").arg(&stage.keys().events()).arg("+").arg("-").arg("COUNT").arg(1))
        .await;
    let event: serde_json::Value =
        serde_json::from_str(last.entries().unwrap()[0].text("e").unwrap()).unwrap();
    assert!(event["status"].is_null() && event["kind"] == "flow", "watchers learn that it is gone: {event}");
    assert_eq!(event["caller_id"], EXECUTOR);
}

async fn flows_go_when_their_time_is_over(stage: Stage<impl Redis>) {
    let (waits, running) = (stage.created(1).await, stage.started(1).await);
    let given_up = stage.created(1).await;
    stage.push(&given_up, &FlowInput::Cancel { grace_secs: 0 }).await;
    ended_flow(&stage, 1).await;
    stage.sweep(Timestamp::now() + DAY).await;
    assert_eq!(flows(&stage).await.len(), 4, "a day is no time");
    assert_eq!(kept(&stage).await.len(), 2, "one that was never started is over when it is cancelled");
    assert_eq!(stage.counted("flows_open").await, 3);
    stage.sweep(Timestamp::now() + LATER).await;
    assert_eq!(flows(&stage).await, BTreeSet::from([waits.id, running.id]));
    assert_eq!((stage.counted("flows_open").await, stage.counted("jobs_open").await), (2, 2));
    assert_eq!(stage.counted("ended_flow_bytes").await, 0);
    // A context may keep less than the coordinator, and no more.
    ended_flow(&stage, 2).await;
    let long = v1::ContextRetention { ended_flow_keep_secs: 10 * LATER.as_secs(), ..Default::default() };
    keep(&stage, long).await;
    stage.sweep(Timestamp::now() + LATER).await;
    assert_eq!(flows(&stage).await.len(), 2);
    ended_flow(&stage, 3).await;
    keep(&stage, v1::ContextRetention { ended_flow_keep_secs: 60, ..Default::default() }).await;
    stage.sweep(Timestamp::now() + Duration::from_secs(30)).await;
    assert_eq!(flows(&stage).await.len(), 3);
    stage.sweep(Timestamp::now() + Duration::from_secs(90)).await;
    assert_eq!(flows(&stage).await.len(), 2);
}

async fn bytes_of_ended_flows_are_bounded(stage: Stage<impl Redis>) {
    for message in 1..=6 {
        ended_flow(&stage, message).await;
    }
    stage.sweep(Timestamp::now()).await;
    let before = stage.counted("ended_flow_bytes").await;
    assert_eq!(kept(&stage).await.len(), 6);
    keep(&stage, v1::ContextRetention { ended_flow_bytes_max: before / 2, ..Default::default() }).await;
    stage.sweep(Timestamp::now()).await;
    assert_eq!(kept(&stage).await.len(), 3);
    assert!(stage.counted("ended_flow_bytes").await <= before / 2);
    sum_is_right(&stage).await;
}

async fn a_large_flow_goes_in_parts(stage: Stage<impl Redis>) {
    let mut large = stage.started(450).await;
    let end = large.end();
    stage.apply(&mut large, end).await;
    let small = ended_flow(&stage, 1).await;
    stage.sweep(Timestamp::now()).await;
    sum_is_right(&stage).await;
    let of_large: u64 = stage.hash(&stage.keys().flow(FlowId(large.id))).await["bytes"].parse().unwrap();
    let of_small: u64 = stage.hash(&stage.keys().flow(FlowId(small.id))).await["bytes"].parse().unwrap();
    assert!(of_large > 50 * of_small, "some of its nodes stand for all: {of_large}, {of_small}");
    let swept = stage.sweep(Timestamp::now() + LATER).await;
    assert_eq!(swept.flows, 2);
    assert_eq!(flows(&stage).await, BTreeSet::new());
    assert_eq!(traces_of(&stage, &large).await, [""; 0]);
    assert_eq!(stage.counted("ended_flow_bytes").await, 0);
}

async fn a_flow_that_runs_again_is_not_kept_as_ended(stage: Stage<impl Redis>) {
    let mut flow = ended_flow(&stage, 1).await;
    stage.sweep(Timestamp::now()).await;
    assert_eq!(kept(&stage).await, [flow.id]);
    stage.flows().restart_flow(flow.restart()).await.unwrap();
    assert_eq!((kept(&stage).await.len(), stage.counted("ended_flow_bytes").await), (0, 0));
    stage.sweep(Timestamp::now() + LATER).await;
    assert_eq!(flows(&stage).await, BTreeSet::from([flow.id]));
    let take = wire::TakeFlowRequest { context_id: CONTEXT, flow_id: flow.id, owner: flow.owner.clone() };
    let taken = stage.flows().take_flow(take).await.unwrap().into_inner().flow.unwrap();
    (flow.epoch, flow.last_commit) = (taken.epoch, taken.last_commit);
    let end = flow.end();
    stage.apply(&mut flow, end).await;
    stage.sweep(Timestamp::now()).await;
    assert_eq!(kept(&stage).await, [flow.id]);
    sum_is_right(&stage).await;
    // One that is deleted leaves the sum as well.
    let removal = wire::RemoveFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    stage.flows().remove_flow(removal).await.unwrap();
    assert_eq!((kept(&stage).await.len(), stage.counted("ended_flow_bytes").await), (0, 0));
}

async fn a_flow_that_is_started_after_its_cancellation_is_measured_at_its_end(stage: Stage<impl Redis>) {
    let created = stage.created(1).await;
    stage.push(&created, &FlowInput::Cancel { grace_secs: 0 }).await;
    stage.sweep(Timestamp::now()).await;
    assert_eq!(kept(&stage).await, [created.id]);
    let mut flow = stage.start_flow(created).await;
    assert_eq!((kept(&stage).await.len(), stage.counted("ended_flow_bytes").await), (0, 0));
    stage.sweep(Timestamp::now() + LATER).await;
    assert_eq!(flows(&stage).await, BTreeSet::from([flow.id]));
    let end = flow.end();
    stage.apply(&mut flow, end).await;
    stage.sweep(Timestamp::now()).await;
    assert_eq!(kept(&stage).await, [flow.id]);
    sum_is_right(&stage).await;
}

async fn a_removal_that_was_interrupted_is_finished(stage: Stage<impl Redis>) {
    let flow = ended_flow(&stage, 1).await;
    // As a storage leaves it that dies after the first script of a removal.
    stage.command(Cmd::new("HSET").arg(&stage.keys().flow(FlowId(flow.id))).arg("deleting").arg(1)).await;
    stage.sweep(Timestamp::now()).await;
    assert_eq!(kept(&stage).await, [flow.id]);
    stage.sweep(Timestamp::now() + LATER).await;
    assert_eq!(traces_of(&stage, &flow).await, [""; 0]);
    assert_eq!(stage.counted("ended_flow_bytes").await, 0);
}

async fn blobs_of_flows_that_go_are_idle(stage: Stage<impl Redis>) {
    let put = |text: &'static [u8]| {
        let piece = v1::PutBlobRequest { context_id: CONTEXT, data: text.into(), ..Default::default() };
        let mut jobs = stage.jobs(EXECUTOR);
        async move { jobs.put_blob(tokio_stream::iter([piece])).await.unwrap().into_inner().blob.unwrap() }
    };
    let (output, other) = (put(b"an output").await, put(b"another flow's").await);
    for (blob, ends) in [(&output, true), (&other, false)] {
        let mut flow = stage.started(1).await;
        let mut node = flow.node(0);
        node.state = NodeState::Completed;
        let blob = model::job::BlobRef { sha256: blob.sha256.parse().unwrap(), size: blob.size };
        node.outputs.insert("out".parse().unwrap(), blob);
        let change = wire::NodeCommit {
            job_id: node.job_id.0,
            node_json: json(&node),
            job_status: "finished".to_owned(),
            ..Default::default()
        };
        let step = if ends { flow.end() } else { flow.step() };
        stage.apply(&mut flow, wire::CommitRequest { nodes: vec![change], ..step }).await;
    }
    stage.sweep(Timestamp::now() + LATER).await;
    let refs = |blob: &v1::BlobRef| {
        let hash: BlobHash = blob.sha256.parse().unwrap();
        Cmd::new("SCARD").arg(&stage.keys().blob_refs(hash))
    };
    assert_eq!(stage.command(refs(&output)).await.int().unwrap(), 0);
    assert_eq!(stage.command(refs(&other)).await.int().unwrap(), 1);
    let idle = stage
        .command(Cmd::new("ZRANGE").arg(&stage.keys().blob_idle()).arg(0).arg(-1))
        .await
        .texts()
        .unwrap();
    assert_eq!(idle, [output.sha256]);
}

async fn finished_messages_go_beyond_their_number(stage: Stage<impl Redis>) {
    let mut keys = Vec::new();
    for n in 1..=5 {
        keys.push(accepted(&stage, &letter(n)).await);
    }
    for key in &keys[..4] {
        acknowledge(&stage, READER, 0, &[key]).await.unwrap();
    }
    keep(&stage, v1::ContextRetention { messages_done_max: 1, ..Default::default() }).await;
    assert_eq!(stage.sweep(Timestamp::now()).await.messages, 3);
    let left =
        stage.command(Cmd::new("ZRANGE").arg(&stage.keys().letters()).arg(0).arg(-1)).await.texts().unwrap();
    let expected: Vec<String> = keys[3..].iter().map(|key| stage.key_of(key)).collect();
    assert_eq!(left, expected, "the last one that was read, and the one that was not");
    // By their age: a mark of the first sweep says how far the changes had come by then.
    assert_eq!(stage.sweep(Timestamp::now() + DAY).await.messages, 0);
    assert_eq!(stage.sweep(Timestamp::now() + LATER).await.messages, 1);
    let left = stage.command(Cmd::new("ZCARD").arg(&stage.keys().letters())).await.int().unwrap();
    assert_eq!(left, 1, "what was not read stays");
}

async fn flows_of_an_earlier_version_are_measured(mut stage: Stage<impl Redis>) {
    let ended = ended_flow(&stage, 1).await;
    let running = stage.started(1).await;
    stage.sweep(Timestamp::now()).await;
    let keys = stage.keys();
    stage.command(Cmd::new("DEL").arg(&keys.flows_ended()).arg(&keys.flows_unmeasured())).await;
    stage.command(Cmd::new("HDEL").arg(&keys.flow(FlowId(ended.id))).arg("bytes")).await;
    stage.command(Cmd::new("HDEL").arg(&keys.ids()).arg("ended_flow_bytes")).await;
    stage.command(Cmd::new("HSET").arg(&keys.ids()).arg("flows_listed").arg(1)).await;
    stage.start().await;
    stage.sweep(Timestamp::now()).await;
    assert_eq!(kept(&stage).await, [ended.id]);
    sum_is_right(&stage).await;
    assert_eq!(
        stage.command(Cmd::new("HGET").arg(&keys.ids()).arg("flows_listed")).await.text().as_deref(),
        Ok("2")
    );
    stage.sweep(Timestamp::now() + LATER).await;
    assert_eq!(flows(&stage).await, BTreeSet::from([running.id]));
}

async fn usage_names_what_there_is_and_its_bounds(stage: Stage<impl Redis>) {
    ended_flow(&stage, 1).await;
    ended_flow(&stage, 2).await;
    let _open = stage.started(3).await;
    accepted(&stage, &letter(1)).await;
    keep(&stage, v1::ContextRetention { ended_flows_max: 9, events_keep_secs: 60, ..Default::default() })
        .await;
    let ask = |actor| {
        let mut contexts = stage.contexts(Identity::Actor(ActorId(actor)));
        async move { contexts.get_context_usage(v1::GetContextUsageRequest { context_id: CONTEXT }).await }
    };
    assert_eq!(failure(ask(STRANGER).await).0, Code::NotFound);
    let before = ask(READER).await.unwrap().into_inner();
    stage.sweep(Timestamp::now()).await;
    let usage = ask(READER).await.unwrap().into_inner();
    let of = |usage: &v1::GetContextUsageResponse, kind: v1::ContextUsageKind| {
        *usage.entries.iter().find(|entry| entry.kind() == kind).unwrap()
    };
    let ended = of(&usage, v1::ContextUsageKind::FlowsEnded);
    assert_eq!((ended.count, ended.count_max, ended.is_estimated), (2, 9, false));
    assert_eq!(ended.bytes, stage.counted("ended_flow_bytes").await);
    assert_eq!(of(&before, v1::ContextUsageKind::FlowsEnded).count, 2, "also before they are measured");
    let open = of(&usage, v1::ContextUsageKind::FlowsOpen);
    assert_eq!((open.count, open.count_max), (1, 200_000));
    assert!(open.bytes > 1000, "{open:?}");
    assert_eq!(of(&usage, v1::ContextUsageKind::JobsOpen).count, 3);
    let messages = of(&usage, v1::ContextUsageKind::Messages);
    assert!(messages.count == 1 && messages.bytes > 200, "{messages:?}");
    let events = of(&usage, v1::ContextUsageKind::Events);
    let length = stage.command(Cmd::new("XLEN").arg(&stage.keys().events())).await.uint().unwrap();
    assert!(events.count == length && events.bytes_max > events.bytes, "{events:?}");
    let retention = usage.retention.unwrap();
    assert_eq!((retention.ended_flows_max, retention.events_keep_secs), (9, 60));
    assert_eq!(retention.ended_flow_keep_secs, u64::from(model::limits::ENDED_FLOW_KEEP_SECS));
    let sum: u64 = usage.entries.iter().map(|entry| entry.bytes).sum();
    assert!(usage.bytes == sum && usage.bytes_max >= sum, "{usage:?}");
    // Everything that Redis has of the context is in the sum, about.
    let mut all = 0;
    for key in stage.command(Cmd::new("KEYS").arg("*")).await.texts().unwrap() {
        if stage.keys().parse(&key).is_some() {
            all += stage.command(Cmd::new("MEMORY").arg("USAGE").arg(&key)).await.uint().unwrap();
        }
    }
    assert!(usage.bytes > all / 2 && usage.bytes < all * 2, "{} of {all}: {usage:?}", usage.bytes);
}

scenarios!(
    beyond_their_number_the_oldest_flows_go,
    flows_go_when_their_time_is_over,
    bytes_of_ended_flows_are_bounded,
    a_large_flow_goes_in_parts,
    a_flow_that_runs_again_is_not_kept_as_ended,
    a_flow_that_is_started_after_its_cancellation_is_measured_at_its_end,
    a_removal_that_was_interrupted_is_finished,
    blobs_of_flows_that_go_are_idle,
    finished_messages_go_beyond_their_number,
    flows_of_an_earlier_version_are_measured,
    usage_names_what_there_is_and_its_bounds
);

#[tokio::test]
async fn supervisors_are_notified_of_attempts_of_flows_that_go() {
    let stage = Stage::new(Layout::HashTag).await;
    let mut router = stage.router("r1").await;
    let flow = ended_flow(&stage, 1).await;
    router.take(1).await;
    stage.sweep(Timestamp::now() + LATER).await;
    let mut forgets = Vec::new();
    while forgets.is_empty() {
        forgets.extend(router.answers.message().await.unwrap().unwrap().forgets);
    }
    let job_keys = vec![format!("{}-{}-{}-1", flow.context_uid, flow.uid, flow.first_job)];
    assert_eq!(forgets, [wire::AttemptsForget { context_id: CONTEXT, runner_id: 7, job_keys }]);
}

/// A running storage looks by itself, soon after flows have ended.
#[tokio::test]
async fn flows_go_without_a_sweep() {
    let quotas = StorageQuotas::with(&[QuotaSetting::new(Quota::EndedFlows, 1)]);
    let stage = Stage::with(RedisServer::start(), Config { quotas, ..Config::default() }).await;
    for message in 1..=3 {
        ended_flow(&stage, message).await;
    }
    let one = || async { (flows(&stage).await.len() == 1).then_some(()) };
    wait_until(one, PATIENCE, "one ended flow is left").await;
}

#[tokio::test]
async fn a_redis_that_is_too_full_is_relieved_of_old_flows() {
    let stage = Stage::new(Layout::Database).await;
    let mut old = Vec::new();
    for message in 1..=3 {
        let flow = ended_flow(&stage, message).await;
        old.push(flow.id);
    }
    stage.sweep(Timestamp::now()).await;
    let ended = stage.keys().flows_ended();
    let hours_ago = (Timestamp::now().as_millis() / 1000 - 2 * 3600).to_string();
    for flow in &old {
        stage.command(Cmd::new("ZADD").arg(&ended).arg(&hours_ago).arg(*flow)).await;
    }
    let fresh = ended_flow(&stage, 4).await;
    let info = stage.command(Cmd::new("INFO").arg("memory")).await.text().unwrap();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let used: u64 = used.trim().parse().unwrap();
    // Three quarters are used.
    stage.command(Cmd::new("CONFIG").arg("SET").arg("maxmemory").arg(used / 3 * 4)).await;
    let gone = || async { (flows(&stage).await == BTreeSet::from([fresh.id])).then_some(()) };
    wait_until(gone, PATIENCE, "the old ones are gone").await;
    assert!(traces_of(&stage, &fresh).await.len() > 3, "what has just ended can be read");
}
