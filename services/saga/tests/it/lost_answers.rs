//! A store that commits, and whose answers to that are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use saga::sagas::VerbOutcome;
use saga::tenants::TenantRegistry;
use store::{CommitOutcome, KvStore, RowBatch, StoreError};
use workflow::Json;
use workflow::input::Verb;

use crate::hooked_store::{HookedStore, StoreHook};
use crate::world::World;

const SAGA: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text }
sources: [{ aggregate: Order }, { aggregate: Payment }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: wait }
steps:
  wait:
    timers: { pay-by: { due: "now + 60000", raise: NotPaid } }
    on: { NotPaid: { goto: late } }
  late:
    timers: { give-up: { due: "now + 60000", raise: Lost } }
    on: { Lost: { end: completed } }
"#;

/// Loses the answer to each commit of an instance's record, and counts them.
struct LosesAnswers(Arc<AtomicU64>);

#[async_trait]
impl StoreHook for LosesAnswers {
    async fn commit(&self, store: &dyn KvStore, batch: RowBatch) -> Result<CommitOutcome, StoreError> {
        let is_record = batch.lane.as_str().starts_with("s:")
            && batch.ops.iter().any(|op| op.key().as_str().starts_with("saga:"));
        let outcome = store.commit(batch).await?;
        if is_record && matches!(outcome, CommitOutcome::Committed(_)) {
            self.0.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Indeterminate { why: "the connection was lost".to_owned() });
        }
        Ok(outcome)
    }
}

/// Asks for a start, and returns the outcome.
async fn start(world: &World, request: &str, correlation: &str) -> VerbOutcome {
    let data = Json::object([("id", Json::text(correlation))]);
    world.ask(request, correlation, Verb::Start { data }).await.outcome
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_followed_by_all_that_follows_from_it() {
    let lost = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&lost);
    let mut world =
        World::simulated_over(|store| HookedStore::over(Arc::new(store), LosesAnswers(count))).await;
    world.apply(SAGA).await;
    let tenants = TenantRegistry::read("t", "acme: { context: 1, quotas: { instances: 1 } }").expect("good");
    let revision = world.definitions.in_force().revision;
    assert!(world.definitions.replace(None, Some(&tenants), revision, Vec::new()).await.expect("kept"));
    world.follow().await;
    world.own();
    world.event("Order", "o-a", "OrderPlaced", "a", "{\"id\":\"a\"}").await;
    world.wait_for("a", "wait").await;
    let full = start(&world, "r-1", "b").await;
    assert!(matches!(&full, VerbOutcome::Refused(refusal) if refusal.reason == "QUOTA_EXCEEDED"), "{full:?}");
    // Timers that such commits have set fire, one after the other.
    world.forward(Duration::from_secs(61));
    world.wait_for("a", "late").await;
    world.forward(Duration::from_secs(61));
    world.wait_for("a", "completed").await;
    assert!(!matches!(start(&world, "r-2", "b").await, VerbOutcome::Refused(_)), "its end made room");
    assert!(lost.load(Ordering::Relaxed) >= 4);
}
