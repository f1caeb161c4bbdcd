//! Census of owned lanes, as `/metrics` shows it: from the start, after a take-over, and to the end.

use std::sync::Arc;
use std::time::Duration;

use model::SagaStatus;
use saga::lane::answers::LaneRequestOutcome;
use workflow::Json;
use workflow::input::{CommandOutcome, Verb};
use workflow::lane_request::{EffectLaneRequest, SagaLaneRequest};

use crate::effects::{Upstream, command, manifest};
use crate::world::{EFFECT, TENANT, World};

const SAGA: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text }
sources: [{ aggregate: Order }, { aggregate: Payment }]
on_missing: { Paid: { park: 10m }, default: ignore }
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: reserve }
steps:
  reserve:
    effect: reserve
    input: { order: "${{ state.id }}" }
    on_success: { goto: wait }
    on_failure: { end: failed }
    compensate: { effect: release, input: { order: "${{ state.id }}" } }
  wait:
    timers: { pay-by: { after: 30m, raise: NotPaid }, hurry: { after: 10m, raise: Hurry } }
    on:
      Paid: [{ when: event.data.ok, goto: ship }, { dead_letter: not ok }]
      NotPaid: { compensate: not paid }
      Hurry: { goto: wait }
      Cancelled: { compensate: cancelled }
  ship: { command: { aggregate: Order, id: "${{ state.id }}", type: Ship }, on_success: { end: completed } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://upstream.example", allow_hosts: [upstream.example] }
effects:
  reserve: { request: { method: POST, path: /reserve, body: "${{ input }}" } }
  release: { request: { method: POST, path: /release, body: "${{ input }}" } }
"#;

/// Waits until `/metrics` shows all of these numbers.
async fn until_counted(world: &World, counts: &[(&str, usize)]) {
    for (name, number) in counts {
        world.until_measured(&format!("mycora_saga_{name} {number}")).await;
    }
}

/// Nothing of a lane.
const NOTHING: [(&str, usize); 9] = [
    (r#"instances{status="running"}"#, 0),
    (r#"instances{status="compensating"}"#, 0),
    (r#"instances{status="stuck"}"#, 0),
    (r#"instances{status="ended"}"#, 0),
    ("stuck", 0),
    ("letters", 0),
    ("parked_keys", 0),
    ("kept", 0),
    ("timers", 0),
];

/// Counts with an instance of each kind: `early` keeps an event, `early-2` waits for its start, `poisoned` is parked and has two
/// timers, `lost` is stuck, `refused` has ended.
const EVERYTHING: [(&str, usize); 9] = [
    (r#"instances{status="running"}"#, 2),
    (r#"instances{status="compensating"}"#, 0),
    (r#"instances{status="stuck"}"#, 1),
    (r#"instances{status="ended"}"#, 1),
    ("stuck", 1),
    ("letters", 1),
    ("parked_keys", 1),
    ("kept", 2),
    ("timers", 2),
];

async fn order(world: &World, id: &str) {
    world.event("Order", &format!("o-{id}"), "OrderPlaced", id, &format!(r#"{{"id":"{id}"}}"#)).await;
}

/// A lane with one instance of each kind.
async fn full(mut world: World) -> World {
    world.apply(SAGA).await;
    world.follow().await;
    world
        .serve(|command| {
            let order = command.payload.get("order").and_then(Json::as_text).unwrap_or_default();
            match (command.effect_name.as_str(), order) {
                ("reserve", "early") => None,
                ("reserve", "refused") | ("release", _) => {
                    Some((CommandOutcome::Failed, Json::object([("code", Json::text("declined"))])))
                }
                _ => Some((CommandOutcome::Succeeded, Json::object([]))),
            }
        })
        .await;
    world.own();
    until_counted(&world, &NOTHING).await;
    for id in ["early", "poisoned", "lost", "refused"] {
        order(&world, id).await;
    }
    world.wait_for("poisoned", "wait").await;
    world.wait_for("lost", "wait").await;
    world.event("Payment", "p-1", "Paid", "early", r#"{"ok":true}"#).await;
    world.event("Payment", "p-2", "Paid", "early-2", r#"{"ok":true}"#).await;
    world.event("Payment", "p-3", "Paid", "poisoned", r#"{"ok":false}"#).await;
    world.event("Order", "c-1", "Cancelled", "lost", "{}").await;
    world.wait_for("lost", "stuck").await;
    world.wait_for("refused", "failed").await;
    until_counted(&world, &EVERYTHING).await;
    world
}

fn purge(correlation: &str) -> SagaLaneRequest {
    SagaLaneRequest::Purge { correlation: correlation.parse().expect("a correlation"), letter: 0 }
}

async fn kill(world: &World, correlation: &str) {
    let verb = Verb::Kill { reason: "enough".to_owned() };
    let answer = world.ask(&format!("kill-{correlation}"), correlation, verb).await;
    assert_eq!(
        answer.instance.map(|instance| instance.status),
        Some(SagaStatus::Killed),
        "{:?}",
        answer.outcome
    );
}

/// Checks that each owner of a lane reports the same numbers, and that a former or dead owner reports none.
async fn counted_by_each_owner(world: World) -> World {
    let mut world = full(world).await;
    world.stop().await;
    until_counted(&world, &NOTHING).await;
    world.own();
    until_counted(&world, &EVERYTHING).await;
    world.crash().await;
    until_counted(&world, &NOTHING).await;
    world.own();
    until_counted(&world, &EVERYTHING).await;
    world
}

/// Checks that removed rows are no longer counted.
async fn counted_until_removed(world: &mut World) {
    assert_eq!(
        world.send_request("w-1", "poisoned", purge("poisoned")).await.outcome,
        LaneRequestOutcome::Done
    );
    // There is no such letter any more.
    world.send_request("w-2", "poisoned", purge("poisoned")).await;
    until_counted(world, &[("letters", 0), ("parked_keys", 0), ("timers", 2)]).await;
    for correlation in ["early", "poisoned", "lost"] {
        kill(world, correlation).await;
    }
    until_counted(world, &[(r#"instances{status="running"}"#, 0), ("stuck", 0), ("timers", 0)]).await;
    until_counted(world, &[(r#"instances{status="ended"}"#, 4), ("kept", 1)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_in_a_directory_are_counted_by_each_owner_until_removed() {
    let mut world = counted_by_each_owner(World::in_a_directory().await).await;
    counted_until_removed(&mut world).await;
    // Kept events of an ended instance go with its journal; an event without an instance becomes a dead letter.
    world.forward(Duration::from_secs(8 * 24 * 3600));
    until_counted(&world, &[(r#"instances{status="ended"}"#, 0), ("kept", 0), ("letters", 1)]).await;
    world.crash().await;
    world.own();
    let letter = NOTHING.map(|(name, number)| (name, if name == "letters" { 1 } else { number }));
    until_counted(&world, &letter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_in_redis_are_counted_by_each_owner_until_removed() {
    let mut world = counted_by_each_owner(World::in_redis().await).await;
    counted_until_removed(&mut world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_of_effects_are_counted_too() {
    let mut world = World::in_a_directory().await;
    world.apply(&manifest("retry")).await;
    world.results().await;
    let upstream = Upstream::with([]);
    world.own_effect(Arc::new(upstream.clone()));
    world.command(&command(1, Json::Null), "a").await;
    world.command(&command(1, Json::text("other")), "b").await;
    until_counted(&world, &[("letters", 1)]).await;
    world.crash().await;
    until_counted(&world, &[("letters", 0)]).await;
    world.own_effect(Arc::new(upstream.clone()));
    until_counted(&world, &[("letters", 1)]).await;
    let subject = workflow::MessageSubject::Effect {
        effect: EFFECT.parse().expect("a name"),
        command: model::CommandId::from_bits(1),
    };
    for request in ["r-1", "r-1", "r-2"] {
        let lane = format!("e:{TENANT}:{EFFECT}:0");
        let purged =
            world.send_request_to(request, &subject, lane, EffectLaneRequest::Purge { letter: 2 }).await;
        assert_eq!(purged.outcome, LaneRequestOutcome::Done);
        until_counted(&world, &[("letters", 0)]).await;
    }
}
