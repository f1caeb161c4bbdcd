//! Large data: work and results up to their limits and beyond them, and a server that takes smaller messages than required.

use std::sync::Arc;

use model::EffectState;
use testkit::{PATIENCE, wait_until};
use workflow::Json;
use workflow::input::{CALL_BYTES_MAX, CommandOutcome, WORK_BYTES_MAX};
use workflow::key::StoreTable;
use workflow::ledger::ProviderAnswer;

use crate::effects::{Upstream, command, manifest};
use crate::everywhere::everywhere;
use crate::world::World;

/// Gives an effect what an event says, and an aggregate what the effect gives.
const BIG: &str = r#"
kind: Saga
name: big
version: 1
state: { text: text }
limits: { state_bytes: 262144 }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { text: "${{ event.data.text }}" }, goto: reserve }
steps:
  reserve:
    effect: payment-reserve
    input: { one: "${{ state.text }}", other: "${{ state.text }}" }
    on_success: { goto: tell }
  tell:
    command: { aggregate: Order, id: o, type: Tell, payload: { one: "${{ state.text }}", other: "${{ state.text }}" } }
    on_success: { end: completed }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://127.0.0.1:1", allow_hosts: ["127.0.0.1:1"], private: true }
effects: { payment-reserve: { request: { method: POST, path: / } } }
"#;

everywhere! {
    work_has_its_size_and_no_more
    a_result_too_large_to_keep_is_reported_as_a_failure
}

/// Data with a text of quotes, each of which has two bytes in JSON.
fn quotes(bytes: usize) -> String {
    Json::object([("text", Json::text("\"".repeat(bytes / 2)))]).to_string()
}

async fn work_has_its_size_and_no_more(mut world: World) {
    world.apply(BIG).await;
    world.serve(|_| Some((CommandOutcome::Succeeded, Json::Null))).await;
    world.follow().await;
    world.own();
    // The largest texts that two of them have room in one piece of work.
    let most = (WORK_BYTES_MAX - "{\"one\":\"\",\"other\":\"\"}".len()) / 4 * 2;
    world.event("Order", "e-1", "OrderPlaced", "fits", &quotes(most)).await;
    world.wait_for("fits", "completed").await;
    let sizes: Vec<_> = world.witness.calls().iter().map(|call| call.payload.len()).collect();
    assert!(
        sizes.len() == 2 && sizes.iter().all(|size| (WORK_BYTES_MAX - 4..=WORK_BYTES_MAX).contains(size)),
        "{sizes:?}"
    );
    world.event("Order", "e-2", "OrderPlaced", "beyond", &quotes(most + 2)).await;
    world.event("Order", "e-3", "OrderPlaced", "behind", &quotes(10)).await;
    world.wait_for("behind", "completed").await;
    let letter = world.row(&format!("dead:beyond:{:020}", 0)).await.expect("a letter");
    let letter = String::from_utf8_lossy(&letter);
    assert!(
        letter.contains("a piece of work, in bytes, has at most 458752"),
        "{}",
        &letter[letter.len() - 300..]
    );
    // Fractions are stored as texts: encoded again, they exceed the bytes of a row.
    let fractions = format!("{{\"text\":\"x\",\"list\":[1.5{}]}}", ",1.5".repeat(200_000));
    world.event("Order", "e-4", "OrderPlaced", "grows", &fractions).await;
    world.event("Order", "e-5", "OrderPlaced", "last", &quotes(10)).await;
    world.wait_for("last", "completed").await;
    let letter = world.row(&format!("dead:grows:{:020}", 0)).await.expect("a letter");
    assert!(String::from_utf8_lossy(&letter).contains("bytes as it is stored; at most"));
    assert_eq!(world.count(StoreTable::Dead).await, 2);
    let ended = world.stop().await;
    assert!(matches!(ended, saga::lane::LaneExit::Stopped { .. }), "{ended}");
}

async fn a_result_too_large_to_keep_is_reported_as_a_failure(mut world: World) {
    world.apply(&manifest("retry")).await;
    world.results().await;
    let text = |bytes: usize| Json::text("x".repeat(bytes - 2));
    let answers =
        [300_000, 600_000, 900_000, CALL_BYTES_MAX - 1].map(|bytes| ProviderAnswer::Succeeded(text(bytes)));
    world.own_effect(Arc::new(Upstream::with(answers)));
    for (number, input, outcome) in [
        (1, text(400_000), CommandOutcome::Succeeded),
        (2, text(400_000), CommandOutcome::Failed),
        (3, Json::Int(3), CommandOutcome::Succeeded),
        (4, Json::Int(4), CommandOutcome::Succeeded),
    ] {
        world.command(&command(number, input), &format!("m-{number}")).await;
        let result = world.result().await;
        assert_eq!(
            (result.result_type, result.may_have_happened),
            (outcome, outcome == CommandOutcome::Failed),
            "{number}"
        );
        let is_named = result.payload.to_string().contains("result_too_large");
        assert_eq!(is_named, outcome == CommandOutcome::Failed, "{number}");
        let ended = if is_named { EffectState::Failed } else { EffectState::Succeeded };
        assert_eq!(world.call(number).await.state, ended);
    }
}

#[tokio::test]
async fn a_stream_that_is_not_there_is_named() {
    let mut world = World::simulated().await;
    let simulated = world.simulated.clone().expect("a simulation");
    world.apply(BIG).await;
    world.serve(|_| Some((CommandOutcome::Succeeded, Json::Null))).await;
    world.follow().await;
    simulated.delete_stream("AGGREGATE_EVENTS");
    world.own();
    let named = async || {
        let found = world.readiness.problems();
        found.into_iter().find(|(name, _)| name == "stream AGGREGATE_EVENTS")
    };
    let (_, why) = wait_until(named, PATIENCE, "it is named").await;
    assert!(why.contains("its owner has to create it first"), "{why}");
    assert!(world.readiness.is_ready(), "it may be made at any time");
    world.make_aggregates().await;
    world.event("Order", "e-1", "OrderPlaced", "c", &quotes(10)).await;
    world.wait_for("c", "completed").await;
    assert_eq!(world.readiness.problems(), []);
}

#[tokio::test]
async fn a_message_that_the_server_refuses_waits_until_it_is_taken() {
    let mut world = World::simulated().await;
    let simulated = world.simulated.clone().expect("a simulation");
    world.apply(BIG).await;
    world.serve(|_| Some((CommandOutcome::Succeeded, Json::Null))).await;
    world.follow().await;
    world.own();
    // An event fits, and the work that has its text twice does not.
    simulated.set_max_payload(28 * 1024);
    world.event("Order", "e-1", "OrderPlaced", "c", &quotes(7_000)).await;
    world.event("Order", "e-2", "OrderPlaced", "d", &quotes(10)).await;
    let named = async || {
        let found = world.readiness.problems();
        found.into_iter().find(|(name, _)| name == "nats server").map(|(_, why)| why)
    };
    let why = wait_until(named, PATIENCE, "it is named").await;
    assert!(why.contains("raise max_payload") && !why.contains("acme"), "{why}");
    simulated.set_max_payload(1024 * 1024);
    for order in ["c", "d"] {
        world.wait_for(order, "completed").await;
    }
    assert_eq!(world.witness.distinct_calls().len(), 4, "nothing was given up");
    wait_until(async || world.readiness.problems().is_empty().then_some(()), PATIENCE, "it is well").await;
}
