//! A watch has no gap and no duplicate across a resume (I8).

use futures_util::future::join_all;
use keys::Layout;
use kv::Cmd;
use proto::internal::v1 as wire;
use proto::v1;
use rpc::ErrorView;
use tonic::{Code, Streaming};

use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, READER, Running, Stage, failure};

pub(crate) type Events = Streaming<wire::WatchEventsResponse>;

pub(crate) async fn watch(stage: &Stage<impl Redis>, flow_id: u32, position: &str) -> Events {
    let request = wire::WatchEventsRequest {
        context_id: CONTEXT,
        flow_id,
        on_behalf_of: READER,
        position: position.to_owned(),
        only_flows: false,
        first_nodes: 0,
    };
    stage.flows().watch_events(request).await.unwrap().into_inner()
}

pub(crate) async fn next(events: &mut Events) -> (String, String) {
    let event = events.message().await.unwrap().unwrap();
    (String::from_utf8(event.event_json.to_vec()).unwrap(), event.position)
}

/// The next that is no sign of life.
pub(crate) async fn next_event(events: &mut Events) -> (String, String) {
    loop {
        let (event, position) = next(events).await;
        if !event.is_empty() {
            return (event, position);
        }
    }
}

async fn step(stage: &Stage<impl Redis>, flow: &mut Running, events: std::ops::Range<u32>) {
    let step = step_of(flow, events);
    stage.apply(flow, step).await;
}

/// A step of a flow that emits these events.
pub(crate) fn step_of(flow: &Running, events: std::ops::Range<u32>) -> wire::CommitRequest {
    let event = |n| format!(r#"{{"kind":"node","flow_id":{},"n":{n}}}"#, flow.id).into_bytes().into();
    let node = flow.node(0);
    let node = wire::NodeCommit {
        job_id: node.job_id.0,
        node_json: crate::stage::json(&node),
        job_status: "started".to_owned(),
        result_json: Vec::new().into(),
        events: events.map(event).collect(),
        ended_message: String::new(),
    };
    wire::CommitRequest { nodes: vec![node], ..flow.step() }
}

/// Adds an event to the context's stream without a hint.
async fn add_without_hint(stage: &Stage<impl Redis>, event: &str) {
    let keys = stage.keys();
    let id = format!("{}-1", stage.revision().await + 1);
    stage.command(Cmd::new("HINCRBY").arg(&keys.ids()).arg("revision").arg(1)).await;
    let add = Cmd::new("XADD").arg(&keys.events()).arg(&id).arg("e").arg(event);
    stage.command(add.arg("b").arg("00000000000000aa")).await;
}

/// Makes a change as another storage does: watches here only get its hint. Without an event it leaves a gap.
async fn change_elsewhere(stage: &Stage<impl Redis>, event: &str) {
    const CHANGE: &str = "local revision = redis.call('HINCRBY', KEYS[1], 'revision', 1)
        if ARGV[2] == '' then return end
        redis.call('XADD', KEYS[2], revision .. '-1', 'e', ARGV[2], 'b', '00000000000000aa')
        redis.call('PUBLISH', ARGV[1], revision)";
    let keys = stage.keys();
    let change = Cmd::new("EVAL").arg(CHANGE).arg(2).arg(&keys.ids()).arg(&keys.events());
    stage.command(change.arg(&keys.hint_channel()).arg(event)).await;
}

fn number(event: &str) -> u32 {
    serde_json::from_str::<serde_json::Value>(event).unwrap()["n"].as_u64().unwrap().try_into().unwrap()
}

async fn nothing_is_missing_and_nothing_comes_twice(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let mut other = stage.started(1).await;
    let mut events = watch(&stage, flow.id, "").await;
    let (first, mut position) = next(&mut events).await;
    assert_eq!(first, "", "the first answer says where the watch stands");
    let mut seen = Vec::new();
    for round in 0..40 {
        step(&stage, &mut flow, round * 3..round * 3 + 3).await;
        step(&stage, &mut other, 0..1).await;
        // Of three events two are read, then the watch is resumed in the middle of a change.
        for _ in 0..2 {
            let (event, at) = next_event(&mut events).await;
            seen.push(number(&event));
            position = at;
        }
        events = watch(&stage, flow.id, &position).await;
        assert_eq!(next(&mut events).await, (String::new(), position.clone()));
    }
    while seen.len() < 120 {
        seen.push(number(&next_event(&mut events).await.0));
    }
    assert_eq!(seen, (0..120).collect::<Vec<_>>());
}

async fn many_events_of_the_past_are_caught_up_with(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let mut events = watch(&stage, 0, "").await;
    let (_, position) = next(&mut events).await;
    drop(events);
    for round in 0..10 {
        step(&stage, &mut flow, round * 100..round * 100 + 100).await;
    }
    let mut events = watch(&stage, 0, &position).await;
    next(&mut events).await;
    let mut last = String::new();
    for n in 0..1000 {
        let (event, at) = next(&mut events).await;
        assert_eq!(number(&event), n);
        last = at;
    }
    assert_eq!(next(&mut events).await, (String::new(), last), "it is told that this was all");
    step(&stage, &mut flow, 1000..1001).await;
    assert_eq!(number(&next(&mut events).await.0), 1000);
}

async fn a_watch_from_any_position_receives_the_same_events_as_an_open_watch(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let mut other = stage.started(1).await;
    // One watch stays open: a watcher that has missed little is served without a read from Redis, one that has missed much is not.
    let mut all = watch(&stage, 0, "").await;
    let mut received = vec![next(&mut all).await];
    for round in 0..15 {
        step(&stage, &mut flow, round * 90..round * 90 + 90).await;
        step(&stage, &mut other, 0..10).await;
        for _ in 0..100 {
            received.push(next(&mut all).await);
        }
    }
    let of = |flow: &Running| format!(r#""flow_id":{},"#, flow.id);
    for (flow, begin) in [&flow, &other].into_iter().flat_map(|flow| {
        [0, 1, 89, 90, 100, 359, 360, 361, 362, 363, 364, 1000, 1499, 1500].map(|begin| (flow, begin))
    }) {
        let mut events = watch(&stage, flow.id, &received[begin].1).await;
        assert_eq!(next(&mut events).await, (String::new(), received[begin].1.clone()), "{begin}");
        for known in received[begin + 1..].iter().filter(|(event, _)| event.contains(&of(flow))) {
            assert_eq!(&next(&mut events).await, known, "from {begin} on");
        }
        assert_eq!(
            next(&mut events).await,
            (String::new(), received[1500].1.clone()),
            "this was all, from {begin} on"
        );
    }
}

async fn a_watch_that_begins_before_the_hint_of_an_event_receives_it(stage: Stage<impl Redis>) {
    let flow = stage.started(1).await;
    // A watch is open already.
    let mut other = watch(&stage, flow.id, "").await;
    let (_, position) = next(&mut other).await;
    let event = format!(r#"{{"kind":"node","flow_id":{},"n":7}}"#, flow.id);
    add_without_hint(&stage, &event).await;

    let mut events = watch(&stage, flow.id, &position).await;
    assert_eq!(next(&mut events).await, (String::new(), position));
    let (received, at) = next(&mut events).await;
    assert_eq!(received, event);
    assert_eq!(next(&mut events).await, (String::new(), at.clone()), "this was all");
    assert_eq!(next(&mut other).await, (event, at), "and others are told as well");
}

async fn our_changes_and_those_of_other_storages_are_sent_in_stream_order(stage: Stage<impl Redis>) {
    let mut flows = Vec::new();
    for _ in 0..4 {
        flows.push(stage.started(1).await);
    }
    let mut all = watch(&stage, 0, "").await;
    let (_, begin) = next(&mut all).await;
    for round in 0..30_u32 {
        let ours = join_all(flows.iter_mut().map(|flow| step(&stage, flow, 0..2)));
        let others = async {
            if round.is_multiple_of(3) {
                change_elsewhere(&stage, "").await;
            }
            change_elsewhere(&stage, r#"{"kind":"node","flow_id":99,"n":7}"#).await;
        };
        tokio::join!(ours, others);
    }
    let from = format!("({}", begin.split_once('-').unwrap().0.replace('.', "-"));
    let ask = Cmd::new("XRANGE").arg(&stage.keys().events()).arg(&from).arg("+");
    let written = stage.command(ask).await.entries().unwrap();
    assert_eq!(written.len(), 30 * (4 * 2 + 1));
    for entry in written {
        let position = format!("{}-{}", entry.id.replace('-', "."), entry.text("b").unwrap());
        let (event, at) = next_event(&mut all).await;
        assert_eq!((event, at), (entry.text("e").unwrap().to_owned(), position));
    }
}

async fn a_position_that_is_gone_is_refused(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let mut events = watch(&stage, flow.id, "").await;
    let (_, position) = next(&mut events).await;
    let request = |position: &str| wire::WatchEventsRequest {
        context_id: CONTEXT,
        flow_id: 0,
        on_behalf_of: READER,
        position: position.to_owned(),
        only_flows: false,
        first_nodes: 0,
    };
    assert_eq!(position.split('.').next().unwrap(), flow.revision.to_string(), "the revision stands first");
    let other_bits = format!("{}{}", &position[..position.len() - 16], "0123456789abcdef");
    let refused = failure(stage.flows().watch_events(request(&other_bits)).await);
    assert_eq!(refused, (Code::OutOfRange, "POSITION_GONE".to_owned()));
    assert_eq!(failure(stage.flows().watch_events(request("x")).await).0, Code::InvalidArgument);
    // More than a joining watcher gets from memory.
    for _ in 0..11 {
        step(&stage, &mut flow, 0..100).await;
    }
    stage.command(Cmd::new("XTRIM").arg(&stage.keys().events()).arg("MAXLEN").arg(0)).await;
    assert_eq!(failure(stage.flows().watch_events(request(&position)).await).0, Code::OutOfRange);
}

async fn a_watch_ends_with_the_role_that_allowed_it(stage: Stage<impl Redis>) {
    let mut events = watch(&stage, 0, "").await;
    next(&mut events).await;
    let keys = stage.keys();
    stage.command(Cmd::new("HSET").arg(&keys.context()).arg("readers").arg("[]")).await;
    add_without_hint(&stage, r#"{"kind":"context"}"#).await;
    // The hint may come before the subscription stands, which then reads by itself.
    stage.command(Cmd::new("PUBLISH").arg(&keys.hint_channel()).arg("")).await;
    assert_eq!(failure(events.message().await).0, Code::NotFound);
}

async fn runner_records_are_watched_over_all_contexts(stage: Stage<impl Redis>) {
    let put = |id: u32| wire::PutRunnerRequest {
        runner: Some(v1::RegisterRunnerRequest {
            request_id: format!("r{id}"),
            context_id: CONTEXT,
            runner_id: id,
            address: format!("grpc://host:{}", id % 1000 + 1),
            ..Default::default()
        }),
        on_behalf_of: ADMIN,
    };
    let first = stage.runners().put_runner(put(5)).await.unwrap().into_inner();
    let again = stage.runners().put_runner(put(5)).await.unwrap().into_inner();
    assert_eq!(first, again);
    let mut parts = stage.runners().watch_runners(wire::WatchRunnersRequest {}).await.unwrap().into_inner();
    let snapshot = parts.message().await.unwrap().unwrap();
    assert_eq!(snapshot.runners, [wire::RunnerRecord { context_id: CONTEXT, runner: first.runner }]);
    assert!(parts.message().await.unwrap().unwrap().snapshot_end);
    let second = stage.runners().put_runner(put(6)).await.unwrap().into_inner();
    let change = parts.message().await.unwrap().unwrap();
    assert_eq!(change.runners, [wire::RunnerRecord { context_id: CONTEXT, runner: second.runner }]);
    let read = wire::ReadRunnersRequest { context_id: CONTEXT, on_behalf_of: READER, ..Default::default() };
    let all = stage.runners().read_runners(read).await.unwrap().into_inner().runners;
    assert_eq!(all.iter().map(|runner| runner.id).collect::<Vec<_>>(), [5, 6]);
    // An id that the caller chose does not move the counter.
    let last = stage.runners().put_runner(put(u32::MAX)).await.unwrap().into_inner().runner.unwrap();
    let unwished = stage.runners().put_runner(put(0)).await.unwrap().into_inner().runner.unwrap();
    assert_eq!((last.id, unwished.id), (u32::MAX, 1));
}

/// Reads until the watch is ended; gives how many events there were and the position to resume from.
async fn read_to_the_end(events: &mut Events, mut seen: u32) -> (u32, String) {
    let mut last = String::new();
    loop {
        match events.message().await {
            Ok(event) => {
                let event = event.unwrap();
                assert_eq!(number(std::str::from_utf8(&event.event_json).unwrap()), seen);
                (seen, last) = (seen + 1, event.position);
            }
            Err(status) => {
                let view = ErrorView::from(&status);
                assert_eq!((view.code, view.reason.as_str()), (Code::ResourceExhausted, "SLOW_CONSUMER"));
                assert_eq!(view.metadata["resume_position"], last, "after the last that was sent");
                return (seen, last);
            }
        }
    }
}

async fn a_watcher_that_does_not_read_is_ended(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let mut events = watch(&stage, 0, "").await;
    next(&mut events).await;
    for n in 0..1500 {
        step(&stage, &mut flow, n..n + 1).await;
    }
    let (seen, position) = read_to_the_end(&mut events, 0).await;
    assert!((256..1500).contains(&seen), "what was buffered is sent first, not only {seen}");
    // It goes on from there without a gap.
    let mut events = watch(&stage, 0, &position).await;
    assert_eq!(next(&mut events).await, (String::new(), position));
    for n in seen..1500 {
        assert_eq!(number(&next_event(&mut events).await.0), n);
    }
}

async fn a_watcher_holds_no_more_than_its_buffer(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let mut other = stage.started(1).await;
    let (mut all, mut of_one) = (watch(&stage, 0, "").await, watch(&stage, other.id, "").await);
    next(&mut all).await;
    next(&mut of_one).await;
    // 100 steps of 40 KB each, far fewer than the buffer has places for.
    let padding = "x".repeat(40_000);
    for n in 0..100 {
        let event = format!(r#"{{"kind":"node","flow_id":{},"n":{n},"x":"{padding}"}}"#, flow.id);
        let node = wire::NodeCommit {
            job_id: flow.first_job,
            node_json: crate::stage::json(&flow.node(0)),
            job_status: "started".to_owned(),
            events: vec![event.into_bytes().into()],
            ..Default::default()
        };
        let large = wire::CommitRequest { nodes: vec![node], ..flow.step() };
        stage.apply(&mut flow, large).await;
    }
    let (seen, _) = read_to_the_end(&mut all, 0).await;
    // 1 MiB in the buffer, and what was on its way.
    assert!((26..26 + 70).contains(&seen), "{seen}");
    // Watches of other flows are not affected.
    step(&stage, &mut other, 0..1).await;
    assert_eq!(number(&next(&mut of_one).await.0), 0);
}

#[tokio::test]
async fn what_we_have_written_is_not_read() {
    let stage = Stage::new(Layout::Database).await;
    let mut flow = stage.started(1).await;
    let mut events = watch(&stage, 0, "").await;
    next(&mut events).await;
    stage.raw(&["CONFIG", "RESETSTAT"]);
    for n in 0..40 {
        step(&stage, &mut flow, n..n + 1).await;
        assert_eq!(number(&next_event(&mut events).await.0), n);
    }
    let statistics = stage.raw(&["INFO", "commandstats"]);
    let calls_of = |command: &str| {
        let (_, calls) = statistics.split_once(&format!("cmdstat_{command}:calls="))?;
        calls.split_once(',')?.0.parse::<u32>().ok()
    };
    // One within each script, which looks whether the store went back.
    let (last, others) = (calls_of("xrevrange").unwrap(), calls_of("xrange").unwrap_or_default());
    assert!((40..50).contains(&last) && others < 10, "{last} and {others}");
}

#[tokio::test]
async fn a_store_that_went_back_ends_watches() {
    let mut stage = Stage::new(Layout::Database).await;
    let mut events = watch(&stage, 0, "").await;
    next(&mut events).await;
    stage.redis.restart();
    assert_eq!(failure(events.message().await).0, Code::OutOfRange);
}

scenarios!(sentinels: nothing_is_missing_and_nothing_comes_twice, many_events_of_the_past_are_caught_up_with, a_watch_from_any_position_receives_the_same_events_as_an_open_watch, a_watch_that_begins_before_the_hint_of_an_event_receives_it, our_changes_and_those_of_other_storages_are_sent_in_stream_order, a_position_that_is_gone_is_refused, a_watch_ends_with_the_role_that_allowed_it, runner_records_are_watched_over_all_contexts, a_watcher_that_does_not_read_is_ended, a_watcher_holds_no_more_than_its_buffer);
