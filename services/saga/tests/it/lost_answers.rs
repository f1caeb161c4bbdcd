//! A store that commits, and whose answers to that are lost.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use saga::sagas::VerbOutcome;
use saga::tenants::Tenants;
use store::{
    Batch, Beat, Caps, KvStore, LaneKey, Living, Measure, MemoryStore, Outcome, Page, RowKey, StoreError,
    Versioned,
};
use workflow::Json;
use workflow::input::Verb;

use crate::clock::SetForward;
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

/// A store that loses its answer to each commit of an instance's record.
struct LosesAnswers {
    store: MemoryStore<SetForward>,
    lost: Arc<AtomicU64>,
}

#[async_trait]
impl KvStore for LosesAnswers {
    async fn commit(&self, batch: Batch) -> Result<Outcome, StoreError> {
        let is_record = batch.lane.as_str().starts_with("s:")
            && batch.ops.iter().any(|op| op.key().as_str().starts_with("saga:"));
        let outcome = self.store.commit(batch).await?;
        if is_record && matches!(outcome, Outcome::Committed(_)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Indeterminate { why: "the connection was lost".to_owned() });
        }
        Ok(outcome)
    }

    async fn read(&self, lane: &LaneKey, keys: &[RowKey]) -> Result<Vec<Option<Versioned>>, StoreError> {
        self.store.read(lane, keys).await
    }

    async fn scan(&self, lane: &LaneKey, range: Range<RowKey>, limit: usize) -> Result<Page, StoreError> {
        self.store.scan(lane, range, limit).await
    }

    async fn take(&self, lane: &LaneKey) -> Result<u64, StoreError> {
        self.store.take(lane).await
    }

    async fn now(&self) -> Result<u64, StoreError> {
        self.store.now().await
    }

    async fn beat(&self, beat: &Beat) -> Result<Living, StoreError> {
        self.store.beat(beat).await
    }

    async fn measure(&self) -> Result<Measure, StoreError> {
        self.store.measure().await
    }

    fn caps(&self) -> Caps {
        self.store.caps()
    }
}

/// Asks for a start, and gives what is said to that.
async fn start(world: &World, request: &str, correlation: &str) -> VerbOutcome {
    let data = Json::object([("id", Json::text(correlation))]);
    world.ask(request, correlation, Verb::Start { data }).await.outcome
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_followed_by_all_that_follows_from_it() {
    let lost = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&lost);
    let mut world = World::simulated_over(|store| Arc::new(LosesAnswers { store, lost: count })).await;
    world.apply(SAGA).await;
    let tenants = Tenants::read("t", "acme: { context: 1, quotas: { instances: 1 } }").expect("good");
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
