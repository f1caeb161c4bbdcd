//! Calls, from their commands to their results.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use model::EffectState;
use saga::effects::Word;
use saga::providers::{Call, Provider};
use tokio::sync::Semaphore;
use workflow::Json;
use workflow::input::Outcome;
use workflow::ledger::Answer;
use workflow::message::{EffectCommand, EffectResult, ReplyTo};

use crate::world::{EFFECT, World};

const ORDER: &str = include_str!("../../../../libs/workflow/src/manifest/example.yaml");

/// An upstream that answers as it is told, and has a witness.
#[derive(Clone)]
pub(crate) struct Upstream {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    asked: Arc<Mutex<VecDeque<Option<Answer>>>>,
    calls: Arc<Mutex<Vec<String>>>,
    /// Whether calls wait for an answer which never comes.
    hanging: Arc<Mutex<bool>>,
    called: Arc<Semaphore>,
}

impl Upstream {
    fn with(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            asked: Arc::default(),
            calls: Arc::default(),
            hanging: Arc::default(),
            called: Arc::new(Semaphore::new(0)),
        }
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().expect("no panic").clone()
    }

    async fn was_called(&self) {
        let permit = tokio::time::timeout(testkit::PATIENCE, self.called.acquire()).await;
        permit.expect("it is called").expect("open").forget();
    }
}

#[async_trait]
impl Provider for Upstream {
    async fn call(&self, call: &Call) -> Answer {
        call.sent.raise();
        self.calls.lock().expect("no panic").push(format!("{} {}", call.command, call.input));
        let is_hanging = *self.hanging.lock().expect("no panic");
        self.called.add_permits(1);
        if is_hanging {
            std::future::pending::<()>().await;
        }
        let next = self.answers.lock().expect("no panic").pop_front();
        next.unwrap_or_else(|| Answer::Succeeded(Json::object([])))
    }

    async fn ask(&self, _: &Call) -> Option<Answer> {
        self.calls.lock().expect("no panic").push("asked".to_owned());
        self.asked.lock().expect("no panic").pop_front().flatten()
    }

    async fn adopt(&self, _: &Call, external: &str) {
        self.calls.lock().expect("no panic").push(format!("adopt {external}"));
    }

    async fn stop(&self, _: &Call, external: &str) {
        self.calls.lock().expect("no panic").push(format!("stop {external}"));
    }
}

fn command(number: u128, payload: Json) -> EffectCommand {
    EffectCommand {
        tenant_id: crate::world::TENANT.to_owned(),
        command_id: model::CommandId::from_bits(number),
        effect_name: EFFECT.parse().expect("a name"),
        payload,
        cancel: false,
        reply_to: ReplyTo {
            saga: "order-fulfilment".parse().expect("a name"),
            correlation: "c-1".parse().expect("a correlation"),
            run: 0,
            step: "reserve".parse().expect("a step"),
        },
        metadata: BTreeMap::new(),
    }
}

fn passing() -> Answer {
    Answer::Passing { why: "503".to_owned(), after: None }
}

fn lost() -> Answer {
    Answer::Unknown { why: "cut".to_owned() }
}

/// The example with this policy for unknown outcomes and short pauses.
fn manifest(policy: &str) -> String {
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

async fn served(world: &mut World, policy: &str, upstream: &Upstream) {
    world.apply(&manifest(policy)).await;
    world.results().await;
    world.own_effect(Arc::new(upstream.clone()));
}

fn end(result: &EffectResult) -> (Outcome, bool) {
    (result.result_type, result.may_have_happened)
}

async fn each_world() -> [World; 3] {
    [World::simulated().await, World::in_a_directory().await, World::in_redis().await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_made_once_for_a_command_that_comes_often() {
    for mut world in each_world().await {
        let upstream = Upstream::with([Answer::Succeeded(Json::object([("id", Json::Int(7))]))]);
        served(&mut world, "query", &upstream).await;
        for copy in 0..3 {
            world.command(&command(1, Json::Int(1)), &format!("copy-{copy}")).await;
        }
        let result = world.result().await;
        assert_eq!(
            (end(&result), result.payload.get("id")),
            ((Outcome::Succeeded, false), Some(&Json::Int(7)))
        );
        assert_eq!(result.reply_to.correlation.as_str(), "c-1");
        // The same command with another payload is nobody's.
        world.command(&command(1, Json::Int(2)), "other").await;
        world.command(&command(2, Json::Int(3)), "next").await;
        assert_eq!(world.result().await.command_id, model::CommandId::from_bits(2));
        let id = |number| model::CommandId::from_bits(number);
        assert_eq!(upstream.calls(), [format!("{} 1", id(1)), format!("{} 3", id(2))]);
        assert_eq!(world.metrics.letters.get(), 1);
        let ended = world.stop().await;
        assert!(matches!(ended, saga::lane::Ended::Stopped { .. }), "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_passes_is_tried_again_and_an_open_breaker_costs_no_attempt() {
    let mut world = World::simulated().await;
    let upstream = Upstream::with(vec![passing(); 7]);
    served(&mut world, "query", &upstream).await;
    world.command(&command(1, Json::Null), "a").await;
    assert_eq!(end(&world.result().await), (Outcome::Succeeded, false));
    assert_eq!(upstream.calls().len(), 8);
    let row = world.call(1).await;
    assert_eq!((row.state, row.attempts), (EffectState::Succeeded, 8));
    let upstream = Upstream::with(vec![passing(); 8]);
    let mut world = World::simulated().await;
    served(&mut world, "query", &upstream).await;
    world.command(&command(1, Json::Null), "a").await;
    assert_eq!(end(&world.result().await), (Outcome::Failed, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_that_nobody_knows_goes_by_its_policy() {
    for (policy, answers, asked, expected, calls) in [
        ("retry", vec![lost()], vec![], (Outcome::Succeeded, false), 2),
        ("fail", vec![lost()], vec![], (Outcome::Unknown, true), 1),
        ("query", vec![lost()], vec![None, Some(passing())], (Outcome::Succeeded, false), 4),
        ("query", vec![lost()], vec![Some(Answer::Succeeded(Json::Null))], (Outcome::Succeeded, false), 2),
    ] {
        let mut world = World::simulated().await;
        let upstream = Upstream::with(answers);
        upstream.asked.lock().expect("no panic").extend(asked);
        served(&mut world, policy, &upstream).await;
        world.command(&command(1, Json::Null), "a").await;
        assert_eq!(end(&world.result().await), expected, "{policy}");
        assert_eq!(upstream.calls().len(), calls, "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_an_owner_that_died_goes_by_its_policy() {
    for (policy, expected, calls) in
        [("retry", (Outcome::Succeeded, false), 2), ("fail", (Outcome::Unknown, true), 1)]
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_resolves_what_is_manual() {
    let mut world = World::simulated().await;
    let upstream = Upstream::with([lost()]);
    served(&mut world, "manual", &upstream).await;
    world.command(&command(1, Json::Null), "a").await;
    upstream.was_called().await;
    world.until(1, EffectState::Manual).await;
    world.until_measured(r#"mycora_saga_effects_open{state="manual"} 1"#).await;
    world
        .until_measured(&format!(
            r#"mycora_saga_unknown_outcomes_total{{effect="{EFFECT}",policy="manual"}} 1"#
        ))
        .await;
    assert!(world.calls.tell(model::CommandId::from_bits(1), Word::Resolve(Some(Json::text("by hand")))));
    let result = world.result().await;
    assert_eq!((end(&result), result.payload), ((Outcome::Succeeded, false), Json::text("by hand")));
    world.until_measured(r#"mycora_saga_effects_open{state="manual"} 0"#).await;
    world.until_measured(&format!(r#"mycora_saga_effect_attempts_sum{{effect="{EFFECT}"}} 1"#)).await;
    world.until_measured(&format!(r#"mycora_saga_effect_seconds_count{{effect="{EFFECT}"}} 1"#)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_elsewhere_is_stopped_when_its_saga_does_not_want_it() {
    let mut world = World::simulated().await;
    let upstream = Upstream::with([Answer::Waiting { external: Some("flow 9".to_owned()) }]);
    served(&mut world, "retry", &upstream).await;
    world.command(&command(1, Json::Null), "a").await;
    world.until(1, EffectState::Waiting).await;
    world.command(&EffectCommand { cancel: true, ..command(1, Json::Null) }, "b").await;
    // A command behind it shows that it was taken.
    world.command(&command(2, Json::Null), "c").await;
    assert_eq!(world.result().await.command_id, model::CommandId::from_bits(2));
    assert!(world.calls.tell(model::CommandId::from_bits(1), Word::Answer(Answer::Cancelled)));
    assert_eq!(end(&world.result().await), (Outcome::Cancelled, false));
    assert!(upstream.calls().contains(&"stop flow 9".to_owned()), "{:?}", upstream.calls());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_elsewhere_is_taken_over_by_the_next_owner_and_stopped_again_where_it_was() {
    let mut world = World::simulated().await;
    let upstream = Upstream::with([Answer::Waiting { external: Some("flow 9".to_owned()) }]);
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
    // Whether the stop was heard is not known.
    world.crash().await;
    world.own_effect(Arc::new(upstream.clone()));
    until(&["adopt flow 9", "stop flow 9", "adopt flow 9", "stop flow 9"]).await;
    assert!(world.calls.tell(model::CommandId::from_bits(1), Word::Answer(Answer::Cancelled)));
    assert_eq!(end(&world.result().await), (Outcome::Cancelled, false));
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
        assert_eq!(end(&world.result().await).0, Outcome::Succeeded);
    }
    world.stop().await;
    assert_eq!((upstream.calls().len(), world.open_calls().await), (300, 0));
}
