//! Tenants that have as much as they may have.

use saga::sagas::VerbOutcome;
use saga::tenants::TenantRegistry;
use testkit::PATIENCE;
use workflow::Json;
use workflow::input::Verb;
use workflow::key::StoreTable;

use crate::world::World;

const SAGA: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text }
sources: [{ aggregate: Order }, { aggregate: Payment }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: wait }
steps: { wait: { on: { Paid: { end: completed }, Moved: { goto: moved } } }, moved: { on: { Paid: { end: completed } } } }
"#;

async fn world(quotas: &str) -> World {
    let mut world = World::simulated().await;
    world.apply(SAGA).await;
    tenants(&world, quotas).await;
    world.follow().await;
    world.own();
    world
}

async fn tenants(world: &World, quotas: &str) {
    let tenants =
        TenantRegistry::read("t", &format!("acme: {{ context: 1, quotas: {quotas} }}")).expect("good");
    let revision = world.definitions.in_force().revision;
    assert!(world.definitions.replace(None, Some(&tenants), revision, Vec::new()).await.expect("kept"));
}

async fn order(world: &World, id: &str) {
    let data = format!("{{\"id\":\"{id}\"}}");
    world.event("Order", &format!("o-{id}"), "OrderPlaced", id, &data).await;
}

async fn pay(world: &World, id: &str) {
    world.event("Payment", &format!("p-{id}"), "Paid", id, "{}").await;
}

/// Asks for a start, which there is no room for; gives why.
async fn is_full(world: &World, request: &str) -> String {
    let answer =
        world.ask(request, "by-hand", Verb::Start { data: Json::object([("id", Json::text("x"))]) }).await;
    match answer.outcome {
        VerbOutcome::Refused(refusal) => {
            assert_eq!(refusal.reason, "QUOTA_EXCEEDED");
            refusal.message
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn starts_wait_and_what_runs_goes_on() {
    let mut world = world("{ instances: 2 }").await;
    for id in ["a", "b", "c", "d"] {
        order(&world, id).await;
    }
    world.wait_for("a", "wait").await;
    world.wait_for("b", "wait").await;
    assert_eq!(is_full(&world, "r-1").await, "the tenant has 2 of the quota `instances`, which is 2");
    // What comes for one that waits comes behind its start, and those that run are not held up.
    pay(&world, "c").await;
    world.event("Payment", "m-b", "Moved", "b", "{}").await;
    world.wait_for("b", "moved").await;
    assert!(world.record("c").await.is_none() && world.record("d").await.is_none());
    // The next owner of the lane counts the instances, and waiting inputs are delivered again.
    world.crash().await;
    world.own();
    world.event("Order", "m-a", "Moved", "a", "{}").await;
    world.wait_for("a", "moved").await;
    assert_eq!(is_full(&world, "r-2").await, "the tenant has 2 of the quota `instances`, which is 2");
    assert_eq!(world.count(StoreTable::By).await, 2);
    pay(&world, "a").await;
    world.wait_for("a", "completed").await;
    world.wait_for("c", "completed").await;
    world.wait_for("d", "wait").await;
    pay(&world, "b").await;
    pay(&world, "d").await;
    world.wait_for("d", "completed").await;
    world.wait_for("b", "completed").await;
}

#[tokio::test]
async fn so_many_start_in_a_second() {
    let mut world = world("{ starts_per_sec: 5 }").await;
    let begin = std::time::Instant::now();
    for id in 0..8 {
        order(&world, &id.to_string()).await;
    }
    for id in 0..8 {
        world.wait_for(&id.to_string(), "wait").await;
    }
    // Five at once, and one each fifth of a second.
    assert!(begin.elapsed().as_millis() >= 500 && begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_quota_that_is_raised_lets_starts_through() {
    let mut world = world("{ instances: 1 }").await;
    order(&world, "a").await;
    world.wait_for("a", "wait").await;
    order(&world, "b").await;
    is_full(&world, "r-1").await;
    tenants(&world, "{ instances: 2 }").await;
    world.wait_for("b", "wait").await;
}
