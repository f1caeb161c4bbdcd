//! Ten steps, of which one fails: what was done or is unknown is undone in reverse and once each, as an outside witness saw it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Instant;

use model::SagaStatus;
use saga::sagas::VerbOutcome;
use tempfile::TempDir;
use testkit::{NatsServer, PATIENCE, wait_until};
use workflow::Json;
use workflow::input::{CommandOutcome, Verb};

use crate::crashes::{Mortal, order_states};
use crate::process::{self, Commands, Upstream};
use crate::served::Rows;
use crate::streams::{Projection, ask, connect, publish_event};
use crate::world::World;

const STEPS: usize = 10;
/// Step behind which there is no way back, where a saga has one.
const PIVOT: usize = 4;
/// Step of which no answer comes in time, where a saga has one.
const SLOW: usize = 5;

/// A saga of ten steps in a row, each of this effect and, before the pivot, with this compensation.
fn saga(name: &str, effect: impl Fn(usize) -> &'static str, undo: &str, pivot: Option<usize>) -> String {
    let mut text = format!(
        "kind: Saga\nname: {name}\nversion: 1\nstate: {{ id: text }}\nsources: [{{ aggregate: Order }}]\n\
         start: {{ on: {name}, set: {{ id: \"${{{{ event.data.id }}}}\" }}, goto: s0 }}\nsteps:\n"
    );
    for at in 0..STEPS {
        let input = format!("input: {{ n: {at}, order: \"${{{{ state.id }}}}\" }}");
        let follows = if at + 1 < STEPS { format!("goto: s{}", at + 1) } else { "end: completed".to_owned() };
        let undone = if pivot.is_none_or(|pivot| at < pivot) {
            format!("    compensate: {{ effect: {undo}, {input} }}\n")
        } else {
            String::new()
        };
        let is_pivot = pivot == Some(at);
        text += &format!(
            "  s{at}:\n    pivot: {is_pivot}\n    effect: {}\n    {input}\n{undone}    on_success: {{ {follows} }}\n",
            effect(at)
        );
    }
    text
}

const PROVIDER: &str = r#"
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
"#;
const EFFECTS: [&str; 5] = ["do", "do-once", "do-later", "undo", "undo-once"];

/// An effect, whose calls have paths of their own: that of the step and of the order.
fn effect(name: &str) -> String {
    let (verb, _) = name.split_once('-').unwrap_or((name, ""));
    let request = format!(
        "{{ method: POST, path: \"/{verb}-${{{{ input.n }}}}/${{{{ input.order }}}}\", body: \"${{{{ input }}}}\"HEADERS }}"
    );
    // A held call may take as long as the test needs.
    let (headers, more) = match name {
        "do-later" => (
            ", headers: { x-token: \"${{ callback_token }}\" }",
            "callback: true\n    timeouts: { start_to_close: 2s, schedule_to_close: 2s }",
        ),
        "do-once" | "undo-once" => ("", "unknown_outcome: fail\n    timeouts: { start_to_close: 10m }"),
        _ => ("", "unknown_outcome: retry\n    timeouts: { start_to_close: 10m }"),
    };
    let request = request.replace("HEADERS", headers);
    format!(
        "  {name}:\n    request: {request}\n    {more}\n    retry: {{ initial: 1ms }}\n    breaker: {{ open: 1ms }}\n"
    )
}

/// All sagas of these tests that are run by processes.
fn all_sagas() -> String {
    let slow = |at| if at == SLOW { "do-later" } else { "do" };
    let sagas = [
        saga("plain", |_| "do", "undo", None),
        saga("unsure", |_| "do-once", "undo", None),
        saga("careful", |_| "do-once", "undo-once", None),
        saga("slow", slow, "undo", None),
        saga("pivoted", |_| "do", "undo", Some(PIVOT)),
    ];
    manifest(&sagas)
}

/// Sagas with the provider of their effects.
fn manifest(sagas: &[String]) -> String {
    format!("{}\n---{PROVIDER}{}", sagas.join("---\n"), EFFECTS.map(effect).concat())
}

/// Expectation for an order.
struct Expected {
    saga: &'static str,
    /// End of the order.
    end: &'static str,
    /// Steps that are undone, in this order.
    undone: Vec<usize>,
}

/// Servers and files that orders need, and what they show to the outside.
struct Scene {
    nats: NatsServer,
    upstream: Upstream,
    gateway: String,
    dir: TempDir,
    expected: BTreeMap<String, Expected>,
}

impl Scene {
    async fn new() -> Self {
        let (dir, upstream) = (tempfile::tempdir().expect("a directory"), Upstream::start());
        process::prepare(dir.path(), &all_sagas(), &upstream);
        let gateway = Commands::default().serve(dir.path()).await;
        Self { nats: NatsServer::start(), upstream, gateway, dir, expected: BTreeMap::new() }
    }

    fn process(&self, rows: Rows) -> Mortal<'_> {
        Mortal::start((self.dir.path(), &self.nats, &self.gateway), rows, None)
    }

    /// Expects steps before this one to be undone in reverse.
    fn expect(&mut self, order: String, saga: &'static str, end: &'static str, before: usize) {
        self.expected.insert(order, Expected { saga, end, undone: (0..before).rev().collect() });
    }

    async fn place_all(&self, broker: &dyn broker::MessageBroker) {
        for (order, Expected { saga, .. }) in &self.expected {
            let data = format!("{{\"id\":\"{order}\"}}");
            publish_event(broker, "Order", &format!("p-{order}"), saga, order, &data).await;
        }
    }

    /// Waits until these things have become of orders.
    async fn until(
        &self,
        projection: &mut Projection,
        mortal: &Mortal<'_>,
        mut wanted: BTreeSet<(String, &str)>,
    ) {
        let begin = Instant::now();
        while !wanted.is_empty() {
            assert!(begin.elapsed() < 4 * PATIENCE, "{wanted:?}\n{}", mortal.process.output());
            if let Some(fact) = projection.next_soon().await {
                wanted.retain(|(order, kind)| fact.correlation.as_str() != order || fact.kind != *kind);
            }
        }
    }

    fn ends(&self) -> BTreeSet<(String, &str)> {
        self.expected.iter().map(|(order, expected)| (order.clone(), expected.end)).collect()
    }

    /// Checks the calls of each order that the upstream recorded, and the stored rows; `may_repeat` names calls that may have come again.
    async fn check(&self, mortal: &mut Mortal<'_>, may_repeat: impl Fn(&str) -> bool) {
        for (path, _, times) in self.upstream.by_key().values() {
            assert!(*times == 1 || may_repeat(path), "{path} was called {times} times");
        }
        for (order, expected) in &self.expected {
            assert_eq!(self.undone(order), expected.undone, "{order}");
        }
        mortal.end();
        let store = mortal.kept.open().await;
        for saga in ["plain", "unsure", "careful", "slow", "pivoted"] {
            let of = self.expected.iter().filter(|(_, expected)| expected.saga == saga);
            let orders: Vec<_> = of.map(|(order, _)| order.as_str()).collect();
            for (order, state) in order_states(&*store, saga, &orders, &EFFECTS).await {
                let end = self.expected[&order].end;
                assert_eq!(state, format!("{end}, 0 letters, parked by None"), "{order}");
            }
        }
    }

    /// Steps of an order that were undone, each key once, as the first of its calls came.
    fn undone(&self, order: &str) -> Vec<usize> {
        let mut keys = BTreeSet::new();
        let mut undone = Vec::new();
        for call in self.upstream.calls() {
            let Some((step, whose)) = call.path.strip_prefix("/undo-").and_then(|path| path.split_once('/'))
            else {
                continue;
            };
            if whose == order && keys.insert(call.key) {
                undone.push(step.parse().expect("a number"));
            }
        }
        undone
    }
}

async fn fail_at_each_step(rows: Rows) {
    let mut scene = Scene::new().await;
    for step in 0..STEPS {
        scene.upstream.forget(&format!("/do-{step}/failing-{step}"));
        scene.expect(format!("failing-{step}"), "plain", "compensated", step);
        // It is unknown whether the step happened, so it is undone as well.
        scene.upstream.cut(&format!("/do-{step}/lost-{step}"));
        scene.expect(format!("lost-{step}"), "unsure", "compensated", step + 1);
        scene.upstream.forget(&format!("/do-{step}/pivoted-{step}"));
        let (end, undone) = if step <= PIVOT { ("compensated", step) } else { ("stuck", 0) };
        scene.expect(format!("pivoted-{step}"), "pivoted", end, undone);
    }
    scene.expect("late".to_owned(), "slow", "compensated", SLOW + 1);
    scene.upstream.hold("/do-7/held");
    scene.expect("held".to_owned(), "pivoted", "completed", 0);
    let broker = connect(&scene.nats).await;
    let mut projection = Projection::open(&broker).await;
    let mut mortal = scene.process(rows);
    scene.place_all(&*broker).await;
    let is_held = async || (scene.upstream.count("/do-7/held") == 1).then_some(());
    wait_until(is_held, 4 * PATIENCE, "it is behind its pivot").await;
    let cancel = Verb::Cancel { reason: "enough".to_owned() };
    let answer = ask(&*broker, "pivoted", ("cancel", "cancel"), "held", cancel).await;
    assert_eq!(answer.refusal().map(|refusal| refusal.reason.as_str()), Some("PAST_PIVOT"));
    scene.upstream.release();
    scene.until(&mut projection, &mortal, scene.ends()).await;
    scene.check(&mut mortal, |_| false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_of_ten_steps_that_fails_at_any_is_undone_in_reverse() {
    fail_at_each_step(Rows::Directory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_of_ten_steps_over_redis_that_fails_at_any_is_undone_in_reverse() {
    fail_at_each_step(Rows::Redis).await;
}

/// Kills the process while each of ten compensations is being called: of a saga whose compensations may be called again, and of one
/// where each may be called once at most.
async fn die_at_each_compensation(rows: Rows) {
    let mut scene = Scene::new().await;
    let held: Vec<_> = (0..STEPS).flat_map(|n| [format!("again-{n}"), format!("once-{n}")]).collect();
    let path = |order: &str| {
        let (_, step) = order.rsplit_once('-').expect("a number");
        format!("/undo-{step}/{order}")
    };
    for order in &held {
        scene.upstream.cut(&format!("/do-9/{order}"));
        scene.upstream.hold(&path(order));
        let saga = if order.starts_with("again") { "unsure" } else { "careful" };
        scene.expect(order.clone(), saga, "compensated", STEPS);
    }
    let broker = connect(&scene.nats).await;
    let mut projection = Projection::open(&broker).await;
    let mut mortal = scene.process(rows);
    scene.place_all(&*broker).await;
    let all_called = async || held.iter().all(|order| scene.upstream.count(&path(order)) == 1).then_some(());
    wait_until(all_called, 4 * PATIENCE, "each compensation is being called").await;
    mortal.process.kill9();
    assert!(mortal.is_dead());
    scene.upstream.release();
    mortal.start_again();
    // Of what may be called once a person has to say what became of it.
    let (again, once): (Vec<_>, Vec<_>) = held.iter().partition(|order| order.starts_with("again"));
    let ends = again.iter().map(|order| ((*order).clone(), "compensated"));
    let stuck = once.iter().map(|order| ((*order).clone(), "stuck"));
    scene.until(&mut projection, &mortal, ends.chain(stuck).collect()).await;
    for order in &once {
        let skip = Verb::SkipStep { result: Json::Null };
        let request = format!("skip-{order}");
        let answer = ask(&*broker, "careful", (&request, &request), order, skip).await;
        assert_eq!(answer.outcome, VerbOutcome::Applied, "{order}");
    }
    let ends = once.iter().map(|order| ((*order).clone(), "compensated")).collect();
    scene.until(&mut projection, &mortal, ends).await;
    for order in &again {
        assert_eq!(scene.upstream.count(&path(order)), 2, "{order}: once more, under its key");
    }
    let is_called_again = |called: &str| again.iter().any(|order| path(order) == called);
    scene.check(&mut mortal, is_called_again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compensations_that_die_with_their_process_have_one_key_each() {
    die_at_each_compensation(Rows::Directory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compensations_over_redis_that_die_with_their_process_have_one_key_each() {
    die_at_each_compensation(Rows::Redis).await;
}

/// Steps of an order that were undone, as its compensations were ordered.
fn ordered(world: &World, order: &str) -> Vec<i64> {
    let calls = world.witness.calls().into_iter().filter(|called| called.what == "undo");
    let inputs = calls.map(|called| workflow::json::read(called.payload.as_bytes(), 1000).expect("JSON"));
    let of_order = inputs.filter(|input| input.get("order") == Some(&Json::text(order)));
    let steps = of_order.map(|input| match input.get("n") {
        Some(Json::Int(step)) => *step,
        other => panic!("{other:?}"),
    });
    steps.collect()
}

async fn compensation_that_fails_for_good(mut world: World) {
    let manifest = manifest(&[saga("plain", |_| "do", "undo", None)]);
    world.apply(&manifest.replace("ADDRESS", "upstream.example")).await;
    // The last step fails; then one compensation of each order, the first time that it is called.
    let has_failed = Mutex::new(BTreeSet::new());
    world
        .serve(move |command| {
            let step = command.payload.get("n");
            let fails = match command.effect_name.as_str() {
                "do" => step == Some(&Json::Int(9)),
                _ => {
                    step == Some(&Json::Int(4))
                        && has_failed.lock().expect("no panic").insert(command.reply_to.correlation.clone())
                }
            };
            let outcome = if fails { CommandOutcome::Failed } else { CommandOutcome::Succeeded };
            Some((outcome, Json::object([("code", Json::text("gone"))])))
        })
        .await;
    world.follow().await;
    world.own();
    world.until_measured("mycora_saga_stuck 0").await;
    let ends = [
        ("retried", Verb::RetryStep, vec![8, 7, 6, 5, 4, 4, 3, 2, 1, 0]),
        ("skipped", Verb::SkipStep { result: Json::Null }, vec![8, 7, 6, 5, 4, 3, 2, 1, 0]),
    ];
    for (order, verb, undone) in ends {
        let data = format!("{{\"id\":\"{order}\"}}");
        world.event("Order", &format!("p-{order}"), "plain", order, &data).await;
        world.wait_for(order, "stuck").await;
        world.until_measured("mycora_saga_stuck 1").await;
        assert_eq!(ordered(&world, order), [8, 7, 6, 5, 4], "nothing more until somebody looks");
        assert_eq!(world.ask(&format!("r-{order}"), order, verb).await.outcome, VerbOutcome::Applied);
        world.wait_for(order, "compensated").await;
        assert_eq!(world.status(order).await, SagaStatus::Compensated);
        world.until_measured("mycora_saga_stuck 0").await;
        assert_eq!(ordered(&world, order), undone);
    }
    // Another order of the same compensation has a key of its own.
    assert_eq!(world.witness.distinct_calls().len(), 2 * STEPS + 10 + 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compensation_that_fails_for_good_is_ended_by_a_person() {
    for world in [World::simulated().await, World::in_a_directory().await, World::in_redis().await] {
        compensation_that_fails_for_good(world).await;
    }
}
