//! Calls, from their commands to their results.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use model::{EffectState, Timestamp};
use saga::effects::CallMessage;
use saga::lane::answers::LaneRequestOutcome;
use saga::providers::{CallProvider, ProviderCall};
use testkit::{PATIENCE, wait_until};
use tokio::sync::Semaphore;
use workflow::Json;
use workflow::input::CommandOutcome;
use workflow::lane_request::{
    CallCompletion, EffectCallRequest, EffectLaneRequest, RewindTarget, SourceRewindSpec,
};
use workflow::ledger::ProviderAnswer;
use workflow::message::{EffectCommand, EffectResult, ResultRecipient};

use crate::world::{EFFECT, World};

const ORDER: &str = include_str!("../../../../libs/workflow/src/manifest/example.yaml");

/// Manifest with the effect above as a flow that has to show life.
const FLOWS: &str = r#"
kind: Saga
name: order
version: 1
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, goto: reserve }
steps: { reserve: { effect: payment-reserve, on_success: { end: completed } } }
---
kind: EffectProvider
name: flows
transport: flow
flow: { actor: 1, signing_key: "secret:actor-1" }
effects: { payment-reserve: { flow_file: reserve.yaml, timeouts: { heartbeat: 2m } } }
"#;

/// An upstream whose answers the test sets, with a record of its calls.
#[derive(Clone)]
pub(crate) struct Upstream {
    answers: Arc<Mutex<VecDeque<ProviderAnswer>>>,
    query_answers: Arc<Mutex<VecDeque<Option<ProviderAnswer>>>>,
    calls: Arc<Mutex<Vec<String>>>,
    tokens: Arc<Mutex<Vec<String>>>,
    /// True if calls wait for an answer which never comes.
    hanging: Arc<Mutex<bool>>,
    called: Arc<Semaphore>,
}

impl Upstream {
    pub(crate) fn with(answers: impl IntoIterator<Item = ProviderAnswer>) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            query_answers: Arc::default(),
            calls: Arc::default(),
            tokens: Arc::default(),
            hanging: Arc::default(),
            called: Arc::new(Semaphore::new(0)),
        }
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().expect("no panic").clone()
    }

    fn tokens(&self) -> Vec<String> {
        self.tokens.lock().expect("no panic").clone()
    }

    async fn was_called(&self) {
        let permit = tokio::time::timeout(PATIENCE, self.called.acquire()).await;
        permit.expect("it is called").expect("open").forget();
    }
}

#[async_trait]
impl CallProvider for Upstream {
    async fn call(&self, call: &ProviderCall) -> ProviderAnswer {
        call.sent.raise();
        self.calls.lock().expect("no panic").push(format!("{} {}", call.command, call.input));
        self.tokens.lock().expect("no panic").extend(call.callback_token.clone());
        let is_hanging = *self.hanging.lock().expect("no panic");
        self.called.add_permits(1);
        if is_hanging {
            std::future::pending::<()>().await;
        }
        let next = self.answers.lock().expect("no panic").pop_front();
        next.unwrap_or_else(|| ProviderAnswer::Succeeded(Json::object([])))
    }

    async fn ask(&self, _: &ProviderCall) -> Option<ProviderAnswer> {
        self.calls.lock().expect("no panic").push("asked".to_owned());
        self.query_answers.lock().expect("no panic").pop_front().flatten()
    }

    async fn adopt(&self, _: &ProviderCall, external: &str) {
        self.calls.lock().expect("no panic").push(format!("adopt {external}"));
    }

    async fn stop(&self, _: &ProviderCall, external: &str) {
        self.calls.lock().expect("no panic").push(format!("stop {external}"));
    }
}

pub(crate) fn command(number: u128, payload: Json) -> EffectCommand {
    EffectCommand {
        tenant_id: crate::world::TENANT.to_owned(),
        command_id: model::CommandId::from_bits(number),
        effect_name: EFFECT.parse().expect("a name"),
        payload,
        cancel: false,
        reply_to: ResultRecipient {
            saga: "order-fulfilment".parse().expect("a name"),
            correlation: "c-1".parse().expect("a correlation"),
            run: 0,
            step: "reserve".parse().expect("a step"),
        },
        metadata: BTreeMap::new(),
    }
}

fn passing() -> ProviderAnswer {
    ProviderAnswer::Passing { why: "503".to_owned(), after: None }
}

fn lost() -> ProviderAnswer {
    ProviderAnswer::Unknown { why: "cut".to_owned() }
}

/// The example with this policy for unknown outcomes and short pauses.
pub(crate) fn manifest(policy: &str) -> String {
    let start = ORDER.find("    unknown_outcome: { query").expect("the policy");
    let end = start + ORDER[start..].find('\n').expect("a line");
    let policy = if policy == "query" {
        ORDER[start..end].to_owned()
    } else {
        format!("    unknown_outcome: {policy}")
    };
    let text = format!("{}{policy}{}", &ORDER[..start], &ORDER[end..]);
    text.replace("initial: 500ms", "initial: 1ms")
        .replace("window: 20", "window: 3")
        .replace("open: 30s", "open: 1ms")
}

pub(crate) async fn served(world: &mut World, policy: &str, upstream: &Upstream) {
    world.apply(&manifest(policy)).await;
    world.results().await;
    world.own_effect(Arc::new(upstream.clone()));
}

fn end(result: &EffectResult) -> (CommandOutcome, bool) {
    (result.result_type, result.may_have_happened)
}

pub(crate) async fn each_world() -> [World; 3] {
    [World::simulated().await, World::in_a_directory().await, World::in_redis().await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_made_once_for_a_command_that_comes_often() {
    for mut world in each_world().await {
        let upstream = Upstream::with([ProviderAnswer::Succeeded(Json::object([("id", Json::Int(7))]))]);
        served(&mut world, "query", &upstream).await;
        for copy in 0..3 {
            world.command(&command(1, Json::Int(1)), &format!("copy-{copy}")).await;
        }
        let result = world.result().await;
        assert_eq!(
            (end(&result), result.payload.get("id")),
            ((CommandOutcome::Succeeded, false), Some(&Json::Int(7)))
        );
        assert_eq!(result.reply_to.correlation.as_str(), "c-1");
        // The same command with another payload belongs to no call.
        world.command(&command(1, Json::Int(2)), "other").await;
        world.command(&command(2, Json::Int(3)), "next").await;
        assert_eq!(world.result().await.command_id, model::CommandId::from_bits(2));
        let id = |number| model::CommandId::from_bits(number);
        assert_eq!(upstream.calls(), [format!("{} 1", id(1)), format!("{} 3", id(2))]);
        world.until_measured("mycora_saga_letters_written_total 1").await;
        let lane = store::LaneKey::new(&format!("e:{}:{EFFECT}:0", crate::world::TENANT));
        let dead = workflow::key::StoreTable::Dead.range();
        let dead = store::RowKey::new(dead.start.as_str())..store::RowKey::new(dead.end.as_str());
        let letters = world.store.scan(&lane, dead, 10).await.expect("it can be read").rows;
        let letters =
            letters.iter().map(|(_, row)| workflow::instance::decode(&row.value).expect("a letter"));
        let codes: Vec<_> = letters.map(|row: saga::sagas::DeadLetterRow| row.letter.code).collect();
        assert_eq!(codes, ["KEY_CONFLICT"]);
        let ended = world.stop().await;
        assert!(matches!(ended, saga::lane::LaneExit::Stopped { .. }), "{ended}");
    }
}

/// Counts the commits of all stores.
fn commits(world: &World) -> u64 {
    let families = world.registry.gather();
    let family = families.iter().find(|family| family.name() == "mycora_saga_commit_seconds");
    let metrics = family.into_iter().flat_map(|family| family.get_metric());
    metrics.map(|metric| metric.get_histogram().get_sample_count()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_come_together_are_taken_together() {
    // As many calls as a tenant may have at once wait for their answers.
    const CALLS: usize = 4;
    const COMMANDS: usize = 300;
    for mut world in each_world().await {
        let upstream = Upstream::with([]);
        *upstream.hanging.lock().expect("no panic") = true;
        world.apply(&manifest("query")).await;
        // The third of them comes again, in between, and the last but one with another payload.
        for number in 1..=COMMANDS {
            let id = number as u128;
            world.command(&command(id, Json::Int(1)), &format!("c-{number}")).await;
            match number {
                10 => world.command(&command(3, Json::Int(1)), "again").await,
                COMMANDS => world.command(&command(id - 1, Json::Int(2)), "other").await,
                _ => {}
            }
        }
        world.own_effect(Arc::new(upstream.clone()));
        let is_taken = async || (world.open_calls().await == COMMANDS).then_some(());
        wait_until(is_taken, PATIENCE, "all are taken").await;
        wait_until(async || (world.metrics.letters.get() == 1).then_some(()), PATIENCE, "a letter").await;
        for _ in 0..CALLS {
            upstream.was_called().await;
        }
        let made = commits(&world) - CALLS as u64;
        assert!(made < COMMANDS as u64 / 4, "{made} commits take {COMMANDS} commands");
        world.crash().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_passes_is_tried_again_and_an_open_breaker_costs_no_attempt() {
    let mut world = World::simulated().await;
    let upstream = Upstream::with(vec![passing(); 7]);
    served(&mut world, "query", &upstream).await;
    world.command(&command(1, Json::Null), "a").await;
    assert_eq!(end(&world.result().await), (CommandOutcome::Succeeded, false));
    assert_eq!(upstream.calls().len(), 8);
    let row = world.call(1).await;
    assert_eq!((row.state, row.attempts), (EffectState::Succeeded, 8));
    let upstream = Upstream::with(vec![passing(); 8]);
    let mut world = World::simulated().await;
    served(&mut world, "query", &upstream).await;
    world.command(&command(1, Json::Null), "a").await;
    assert_eq!(end(&world.result().await), (CommandOutcome::Failed, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_outcome_goes_by_its_policy() {
    for (policy, answers, query_answers, expected, calls) in [
        ("retry", vec![lost()], vec![], (CommandOutcome::Succeeded, false), 2),
        ("fail", vec![lost()], vec![], (CommandOutcome::Unknown, true), 1),
        ("query", vec![lost()], vec![None, Some(passing())], (CommandOutcome::Succeeded, false), 4),
        (
            "query",
            vec![lost()],
            vec![Some(ProviderAnswer::Succeeded(Json::Null))],
            (CommandOutcome::Succeeded, false),
            2,
        ),
    ] {
        let mut world = World::simulated().await;
        let upstream = Upstream::with(answers);
        upstream.query_answers.lock().expect("no panic").extend(query_answers);
        served(&mut world, policy, &upstream).await;
        world.command(&command(1, Json::Null), "a").await;
        assert_eq!(end(&world.result().await), expected, "{policy}");
        assert_eq!(upstream.calls().len(), calls, "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_an_owner_that_died_goes_by_its_policy() {
    for (policy, expected, calls) in
        [("retry", (CommandOutcome::Succeeded, false), 2), ("fail", (CommandOutcome::Unknown, true), 1)]
    {
        for mut world in each_world().await {
            let upstream = Upstream::with([]);
            *upstream.hanging.lock().expect("no panic") = true;
            served(&mut world, policy, &upstream).await;
            world.command(&command(1, Json::Null), "a").await;
            upstream.was_called().await;
            world.crash().await;
            *upstream.hanging.lock().expect("no panic") = false;
            world.own_effect(Arc::new(upstream.clone()));
            assert_eq!(end(&world.result().await), expected, "{policy}");
            assert_eq!(upstream.calls().len(), calls, "{policy}");
        }
    }
}

/// Asks something of a call, and waits for the answer.
pub(crate) async fn ask(
    world: &World,
    request: &str,
    number: u128,
    call_request: EffectCallRequest,
) -> LaneRequestOutcome {
    let command = model::CommandId::from_bits(number);
    let subject = workflow::MessageSubject::Effect { effect: EFFECT.parse().expect("a name"), command };
    let lane = format!("e:{}:{EFFECT}:0", crate::world::TENANT);
    world
        .send_request_to(request, &subject, lane, EffectLaneRequest::Call { command, asked: call_request })
        .await
        .outcome
}

fn refused(outcome: LaneRequestOutcome) -> String {
    match outcome {
        LaneRequestOutcome::Refused(refusal) => refusal.reason,
        other => panic!("{other:?}"),
    }
}

fn happened(result: &str) -> EffectCallRequest {
    EffectCallRequest::Happened { result: Json::text(result) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_resolves_what_is_manual() {
    for mut world in each_world().await {
        let upstream = Upstream::with([lost(), lost(), lost()]);
        served(&mut world, "manual", &upstream).await;
        for number in 1..=3 {
            world.command(&command(number, Json::Null), &format!("c-{number}")).await;
            upstream.was_called().await;
            world.until(number, EffectState::Manual).await;
        }
        assert_eq!(ask(&world, "r-1", 1, happened("by hand")).await, LaneRequestOutcome::Done);
        let result = world.result().await;
        assert_eq!(
            (end(&result), result.payload),
            ((CommandOutcome::Succeeded, false), Json::text("by hand"))
        );
        // The same request has the same answer; another one comes too late.
        assert_eq!(ask(&world, "r-1", 1, happened("by hand")).await, LaneRequestOutcome::Done);
        assert_eq!(refused(ask(&world, "r-2", 1, EffectCallRequest::NotDone).await), "EFFECT_NOT_UNKNOWN");
        assert_eq!(refused(ask(&world, "r-2", 1, EffectCallRequest::NotDone).await), "EFFECT_NOT_UNKNOWN");
        assert_eq!(refused(ask(&world, "r-3", 9, EffectCallRequest::Cancel).await), "EFFECT_NOT_FOUND");
        assert_eq!(ask(&world, "r-4", 2, EffectCallRequest::NotDone).await, LaneRequestOutcome::Done);
        let result = world.result().await;
        assert_eq!(result.payload.get("code"), Some(&Json::text("not_done")));
        assert_eq!(ask(&world, "r-5", 3, EffectCallRequest::Retry).await, LaneRequestOutcome::Done);
        assert_eq!(end(&world.result().await), (CommandOutcome::Succeeded, false));
        assert_eq!(refused(ask(&world, "r-6", 3, EffectCallRequest::Retry).await), "EFFECT_NOT_OPEN");
        assert_eq!(upstream.calls().len(), 4);
        let ended = world.stop().await;
        assert!(matches!(ended, saga::lane::LaneExit::Stopped { .. }), "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_requests_reach_a_call_in_progress() {
    let mut world = World::simulated().await;
    let upstream = Upstream::with([]);
    *upstream.hanging.lock().expect("no panic") = true;
    served(&mut world, "manual", &upstream).await;
    world.command(&command(1, Json::Null), "a").await;
    upstream.was_called().await;
    assert_eq!(refused(ask(&world, "r-1", 1, EffectCallRequest::Retry).await), "EFFECT_NOT_OPEN");
    assert_eq!(refused(ask(&world, "r-2", 1, EffectCallRequest::NotDone).await), "EFFECT_NOT_UNKNOWN");
    assert_eq!(ask(&world, "r-3", 1, EffectCallRequest::Cancel).await, LaneRequestOutcome::Done);
    assert!(world.call(1).await.is_unwanted);
    // Requests that are repeated after their owner died were carried out before.
    world.crash().await;
    *upstream.hanging.lock().expect("no panic") = false;
    world.own_effect(Arc::new(upstream.clone()));
    assert_eq!(ask(&world, "r-3", 1, EffectCallRequest::Cancel).await, LaneRequestOutcome::Done);
    world.until(1, EffectState::Manual).await;
    assert_eq!(ask(&world, "r-4", 1, EffectCallRequest::NotDone).await, LaneRequestOutcome::Done);
    assert_eq!(world.result().await.payload.get("code"), Some(&Json::text("not_done")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_ends_by_its_token_once() {
    for mut world in each_world().await {
        let upstream = Upstream::with([
            ProviderAnswer::Waiting { external: None },
            ProviderAnswer::Waiting { external: None },
        ]);
        let callback = manifest("retry")
            .replace("request: { method: POST", "callback: true\n    request: { method: POST");
        world.apply(&callback).await;
        world.results().await;
        world.own_effect(Arc::new(upstream.clone()));
        for number in 1..=2 {
            world.command(&command(number, Json::Null), &format!("c-{number}")).await;
            world.until(number, EffectState::Waiting).await;
        }
        let tokens = upstream.tokens();
        assert_eq!(tokens.len(), 2);
        let complete = |token: &str| EffectCallRequest::Complete {
            token: model::BlobHash::of(token.as_bytes()),
            end: CallCompletion::Failed { code: "no_stock".to_owned(), result: Json::Null },
        };
        assert_eq!(refused(ask(&world, "r-1", 1, complete(&tokens[1])).await), "TOKEN_REFUSED");
        assert_eq!(ask(&world, "r-2", 1, complete(&tokens[0])).await, LaneRequestOutcome::Done);
        let result = world.result().await;
        assert_eq!(
            (end(&result).0, result.payload.get("code")),
            (CommandOutcome::Failed, Some(&Json::text("no_stock")))
        );
        assert_eq!(refused(ask(&world, "r-3", 1, complete(&tokens[0])).await), "EFFECT_NOT_WAITING");
        // The token outlives its owner, and stands nowhere as it is.
        world.crash().await;
        world.own_effect(Arc::new(upstream.clone()));
        assert!(!format!("{:?}", world.call(2).await).contains(&tokens[1]));
        assert_eq!(ask(&world, "r-4", 2, complete(&tokens[1])).await, LaneRequestOutcome::Done);
        assert_eq!(upstream.calls().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_are_read_again_without_a_call() {
    let mut world = World::simulated().await;
    let upstream = Upstream::with([]);
    served(&mut world, "retry", &upstream).await;
    for number in 1..=3 {
        world.command(&command(number, Json::Null), &format!("c-{number}")).await;
        world.result().await;
    }
    let subject = workflow::MessageSubject::Effect {
        effect: EFFECT.parse().expect("a name"),
        command: model::CommandId::from_bits(0),
    };
    let lane = format!("e:{}:{EFFECT}:0", crate::world::TENANT);
    let sources =
        vec![SourceRewindSpec { source: format!("commands.{EFFECT}"), to: RewindTarget::Sequence(1) }];
    let answer = world.send_request_to("r-1", &subject, lane, EffectLaneRequest::SetBack(sources)).await;
    assert_eq!(answer.outcome, LaneRequestOutcome::Done);
    // What comes behind everything that was read again shows that it was.
    world.command(&command(4, Json::Null), "c-4").await;
    assert_eq!(world.result().await.command_id, model::CommandId::from_bits(4));
    assert_eq!(upstream.calls().len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_elsewhere_is_stopped_when_its_saga_does_not_want_it() {
    let mut world = World::simulated().await;
    let upstream = Upstream::with([ProviderAnswer::Waiting { external: Some("flow 9".to_owned()) }]);
    served(&mut world, "retry", &upstream).await;
    world.command(&command(1, Json::Null), "a").await;
    world.until(1, EffectState::Waiting).await;
    world.command(&EffectCommand { cancel: true, ..command(1, Json::Null) }, "b").await;
    // A command behind it shows that it was taken.
    world.command(&command(2, Json::Null), "c").await;
    assert_eq!(world.result().await.command_id, model::CommandId::from_bits(2));
    assert!(
        world.calls.notify(model::CommandId::from_bits(1), CallMessage::Answer(ProviderAnswer::Cancelled))
    );
    assert_eq!(end(&world.result().await), (CommandOutcome::Cancelled, false));
    assert!(upstream.calls().contains(&"stop flow 9".to_owned()), "{:?}", upstream.calls());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_elsewhere_is_taken_over_by_the_next_owner_and_stopped_again_where_it_was() {
    let mut world = World::simulated().await;
    let upstream = Upstream::with([ProviderAnswer::Waiting { external: Some("flow 9".to_owned()) }]);
    served(&mut world, "retry", &upstream).await;
    let until = async |calls: &[&str]| {
        let are = || std::future::ready((upstream.calls()[1..] == *calls).then_some(()));
        testkit::wait_until(are, testkit::PATIENCE, format!("{calls:?}")).await;
    };
    world.command(&command(1, Json::Null), "a").await;
    world.until(1, EffectState::Waiting).await;
    until(&[]).await;
    world.crash().await;
    world.own_effect(Arc::new(upstream.clone()));
    until(&["adopt flow 9"]).await;
    world.command(&EffectCommand { cancel: true, ..command(1, Json::Null) }, "b").await;
    until(&["adopt flow 9", "stop flow 9"]).await;
    // It is unknown whether the stop arrived.
    world.crash().await;
    world.own_effect(Arc::new(upstream.clone()));
    until(&["adopt flow 9", "stop flow 9", "adopt flow 9", "stop flow 9"]).await;
    assert!(
        world.calls.notify(model::CommandId::from_bits(1), CallMessage::Answer(ProviderAnswer::Cancelled))
    );
    assert_eq!(end(&world.result().await), (CommandOutcome::Cancelled, false));
}

/// Waits until a sign of life of a call was noted after a moment; gives when.
async fn alive_after(world: &World, number: u128, since: Option<Timestamp>) -> Option<Timestamp> {
    let noted =
        async || world.call(number).await.alive.filter(|alive| since.is_none_or(|since| *alive > since));
    Some(testkit::wait_until(noted, testkit::PATIENCE, "a sign of life is noted").await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_that_shows_no_life_is_stopped_and_one_that_does_is_waited_for() {
    let mut world = World::simulated().await;
    let waiting = |flow: &str| ProviderAnswer::Waiting { external: Some(flow.to_owned()) };
    let upstream = Upstream::with([waiting("flow 1"), waiting("flow 2")]);
    world.apply(FLOWS).await;
    world.results().await;
    world.own_effect(Arc::new(upstream.clone()));
    let stopped = async |flow: &str| {
        let stop = format!("stop {flow}");
        let was = || std::future::ready(upstream.calls().contains(&stop).then_some(()));
        testkit::wait_until(was, testkit::PATIENCE, format!("{flow} is stopped")).await;
    };
    let id = model::CommandId::from_bits;
    for number in 1..=2 {
        world.command(&command(number, Json::Null), &format!("h-{number}")).await;
        world.until(number, EffectState::Waiting).await;
    }
    let began = alive_after(&world, 1, None).await;
    world.forward(Duration::from_secs(90));
    assert!(world.calls.notify(id(1), CallMessage::Beat));
    let beaten = alive_after(&world, 1, began).await;
    // The first has shown life a minute ago, the second two and a half minutes ago.
    world.forward(Duration::from_secs(60));
    stopped("flow 2").await;
    assert!(world.calls.notify(id(2), CallMessage::Answer(ProviderAnswer::Cancelled)));
    assert_eq!(world.result().await.command_id, id(2));
    assert_eq!((world.call(1).await.state, world.call(1).await.is_unwanted), (EffectState::Waiting, false));
    // There was no owner for an hour: the wait for heartbeats starts again.
    world.crash().await;
    world.forward(Duration::from_secs(3600));
    world.own_effect(Arc::new(upstream.clone()));
    let adopted = alive_after(&world, 1, beaten).await;
    assert!(!upstream.calls().contains(&"stop flow 1".to_owned()), "{:?}", upstream.calls());
    assert!(adopted.zip(beaten).is_some_and(|(adopted, beaten)| adopted.since(beaten).as_secs() >= 3600));
    world.forward(Duration::from_secs(121));
    stopped("flow 1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_end_and_their_rows_with_them() {
    let mut world = World::in_a_directory().await;
    let upstream = Upstream::with([]);
    served(&mut world, "retry", &upstream).await;
    for number in 0..300 {
        world.command(&command(number, Json::Null), &format!("m-{number}")).await;
    }
    for _ in 0..300 {
        assert_eq!(end(&world.result().await).0, CommandOutcome::Succeeded);
    }
    world.stop().await;
    assert_eq!((upstream.calls().len(), world.open_calls().await), (300, 0));
}
