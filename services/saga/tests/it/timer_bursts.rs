//! Many timers that are due at once, and what goes on beside them.

use std::time::{Duration, Instant};

use model::Timestamp;
use saga::tenants::TenantRegistry;
use store::{LaneKey, RowKey};
use testkit::{PATIENCE, wait_until};
use workflow::LaneRowKey;

use crate::world::{TENANT, World};

/// Scales the number of timers.
const TIMERS: &str = "MYCORA_TEST_TIMERS";
/// Another instance takes at most so long from its event to its command while timers fire.
const LATENCY_MAX: Duration = Duration::from_secs(10);

const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text, due: int }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}", due: "${{ event.data.due }}" }, goto: wait }
steps:
  wait:
    timers: { pay-by: { due: state.due, raise: NotPaid } }
    on: { NotPaid: { end: completed }, Paid: { goto: close } }
  close: { command: { aggregate: Order, id: "${{ state.id }}", type: Close }, on_success: { end: completed } }
"#;

fn timers() -> u64 {
    std::env::var(TIMERS).ok().and_then(|count| count.parse().ok()).unwrap_or(1000)
}

async fn event(world: &World, kind: &str, order: &str, due: Timestamp) {
    let data = format!("{{\"id\":\"{order}\",\"due\":{}}}", due.as_millis());
    world.event("Order", &format!("{kind}-{order}"), kind, order, &data).await;
}

/// Returns whether an instance runs.
async fn is_any_running(world: &World) -> bool {
    let (lane, range) = (LaneKey::new(&format!("s:{TENANT}:order:0")), LaneRowKey::by_status("running"));
    let range = RowKey::new(range.start.as_str())..RowKey::new(range.end.as_str());
    !world.store.scan(&lane, range, 1).await.expect("it can be read").rows.is_empty()
}

/// Has as many timers fire as are to be, all of them due at a moment that is so far ahead. `forward` brings it about.
async fn all_fire_while_others_go_on(mut world: World, ahead: Duration, forward: Duration) {
    let timers = timers();
    world.apply(MANIFEST).await;
    let tenants =
        "acme: { context: 1, quotas: { instances: 1000000, timers: 1000000, starts_per_sec: 100000 } }";
    let tenants = TenantRegistry::read("t", tenants).expect("good");
    let revision = world.definitions.in_force().revision;
    assert!(world.definitions.replace(None, Some(&tenants), revision, Vec::new()).await.expect("kept"));
    world.own();
    let (begin, due) = (Instant::now(), Timestamp::now() + ahead);
    for order in 0..timers {
        event(&world, "OrderPlaced", &format!("o-{order}"), due).await;
    }
    let last = format!("o-{}", timers - 1);
    let is_last = async || world.record(&last).await;
    let patience = PATIENCE + Duration::from_millis(20) * u32::try_from(timers).expect("not so many");
    wait_until(is_last, patience, "all have started").await;
    println!("{timers} instances had started after {:?}", begin.elapsed());

    world.forward(forward);
    let is_firing = async || (world.metrics.timers_fired.get() > 0).then_some(());
    wait_until(is_firing, PATIENCE + ahead.saturating_sub(forward), "the first timer fires").await;
    let begin = Instant::now();
    let mut latencies = Vec::new();
    while world.metrics.timers_fired.get() < timers {
        let order = format!("other-{}", latencies.len());
        let placed = Instant::now();
        let never = due + Duration::from_secs(86_400);
        event(&world, "OrderPlaced", &order, never).await;
        event(&world, "Paid", &order, never).await;
        let is_closed = async || (world.witness.calls().len() > latencies.len()).then_some(());
        wait_until(is_closed, PATIENCE, format!("{order} is closed")).await;
        latencies.push(placed.elapsed());
    }
    let took = begin.elapsed();
    latencies.sort();
    let most = latencies.last().copied().unwrap_or_default();
    let middle = latencies.get(latencies.len() / 2).copied().unwrap_or_default();
    println!(
        "{timers} timers fired in {took:?}; {} others beside them took {middle:?}, {most:?} at most",
        latencies.len()
    );
    assert!(!latencies.is_empty(), "others go on meanwhile");
    assert!(most < LATENCY_MAX, "{most:?}");
    // Each has fired once, and of those that were paid none.
    assert_eq!(world.metrics.timers_fired.get(), timers);
    assert_eq!(world.metrics.letters.get(), 0);
    assert_eq!(world.witness.distinct_calls().len(), latencies.len());
    let is_over = async || (!is_any_running(&world).await).then_some(());
    wait_until(is_over, PATIENCE, "all have ended").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_that_are_due_at_once_are_fired_beside_everything_else_in_a_directory() {
    let (hour, hours) = (Duration::from_secs(3600), Duration::from_secs(7200));
    all_fire_while_others_go_on(World::in_a_directory().await, hour, hours).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_that_are_due_at_once_are_fired_beside_everything_else_in_redis() {
    // The clock of Redis cannot be set forward: the timers are due once all instances have started.
    let ahead = Duration::from_millis(5 * timers());
    all_fire_while_others_go_on(World::in_redis().await, ahead, Duration::ZERO).await;
}
