//! Lanes that have as much as they may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use saga::lane::gateway::{AggregateCommand, Gateway, GatewayAnswer};
use saga::lane::in_flight::{InFlightLimits, TENANT_COMMANDS_MAX};
use saga::sagas::SagaLane;
use saga::tenants::TenantRegistry;
use store::{KvStore, LaneKey, RowKey};
use testkit::{PATIENCE, wait_until};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use workflow::Json;
use workflow::key::StoreTable;

use crate::commit_gate::CommitGate;
use crate::hooked_store::HookedStore;
use crate::poison::applied;
use crate::process::ReplicaProcess;
use crate::replicas::{MANIFEST, Stage};
use crate::world::{TENANT, World};

/// Calls that may be open in a process.
const OPEN: usize = 3;
/// Orders that all have a call to make.
const ORDERS: usize = 40;

/// Counts the calls of an effect that are open.
async fn open_calls(store: &dyn KvStore, effect: &str) -> usize {
    let range = StoreTable::EffectDue.range();
    let range = RowKey::new(range.start.as_str())..RowKey::new(range.end.as_str());
    let lane = LaneKey::new(&format!("e:{TENANT}:{effect}:0"));
    store.scan(&lane, range, 1000).await.expect("it can be read").rows.len()
}

/// Starts a process that has one of the roles.
fn start(stage: &Stage, role: &str) -> ReplicaProcess {
    let redis = stage.redis.tcp_url();
    let rows = ["--redis-url", &redis, "--replica", role, "--role", role];
    ReplicaProcess::over(stage.dir.path(), &stage.nats, &rows, role, 20)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_process_opens_no_more_calls_than_a_tenant_may_have() {
    let mut stage = Stage::with(MANIFEST).await;
    let tenants = format!("{TENANT}: {{ context: 1, quotas: {{ open_effects: {OPEN} }} }}\n");
    std::fs::write(stage.dir.path().join("tenants.yaml"), tenants).expect("written");
    let (saga, effect) = (start(&stage, "saga"), start(&stage, "effect"));
    stage.upstream.hold("/reserve");
    stage.orders("o", ORDERS).await;
    // The process of sagas has no calls, so that it starts them all.
    stage.until_all_at("reserve").await;
    let store = stage.store().await;
    let called = async || (stage.upstream.count("/reserve") == OPEN).then_some(());
    wait_until(called, PATIENCE, "as many are called as may be").await;
    let commands = async || {
        let stream = stage.broker.stream(saga::lane::WORKFLOW_COMMANDS).await.expect("it answers");
        (stream.is_some_and(|stream| stream.messages >= ORDERS as u64)).then_some(())
    };
    wait_until(commands, PATIENCE, "all commands are in the stream").await;
    assert_eq!(open_calls(&*store, "reserve").await, OPEN);
    // Neither is it more after the lane was taken again.
    drop(effect);
    let effect = start(&stage, "effect");
    let called = async || (stage.upstream.count("/reserve") == 2 * OPEN).then_some(());
    wait_until(called, PATIENCE, "what was open is called again, and no other").await;
    assert_eq!(open_calls(&*store, "reserve").await, OPEN);
    stage.upstream.release();
    while stage.ended() < ORDERS {
        stage.look().await;
        for effect in ["reserve", "ship", "tell"] {
            assert!(open_calls(&*store, effect).await <= OPEN);
        }
    }
    stage.until_all_ended_once().await;
    drop((saga, effect));
}

const SAGA: &str = r#"
kind: Saga
name: order
version: 1
shards: SHARDS
state: { id: text }
sources: [{ aggregate: Order }, { aggregate: Payment }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: wait }
steps: { wait: { on: { Paid: { end: completed } } } }
"#;

async fn world(mut world: World, saga: &str) -> World {
    world.apply(&saga.replace("SHARDS", "1")).await;
    world.follow().await;
    world
}

/// Places an order with so many bytes beside its id.
async fn order(world: &World, id: &str, bytes: usize) {
    let data = format!("{{\"id\":\"{id}\",\"more\":\"{}\"}}", "x".repeat(bytes));
    world.event("Order", &format!("o-{id}"), "OrderPlaced", id, &data).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_is_read_than_may_be_in_flight() {
    const BYTES: usize = 1024 * 1024;
    const LARGE: usize = 64 * 1024;
    let mut world = world(World::in_a_directory().await, SAGA).await;
    world.bounds = InFlightLimits::of_bytes(BYTES);
    let held = CommitGate::default();
    world.store = HookedStore::over(Arc::clone(&world.store), held.clone());
    world.own();
    order(&world, "first", 1).await;
    world.wait_for("first", "wait").await;
    held.hold();
    for number in 0..100 {
        order(&world, &format!("{number}"), LARGE).await;
    }
    let bounds = world.bounds.clone();
    let is_full = || std::future::ready((bounds.in_flight_bytes() + 2 * LARGE > BYTES).then_some(()));
    wait_until(is_full, PATIENCE, "as much is in flight as may be").await;
    let source = workflow::subject::ConsumerSource::Aggregate("Order".to_owned());
    let lane = workflow::WorkflowLane::Saga {
        tenant: TENANT.parse().expect("a tenant"),
        saga: "order".parse().expect("a name"),
        shard: 0,
    };
    let cursor = world.outside.cursor(saga::lane::AGGREGATE_EVENTS, &source.consumer(&lane)).await;
    let cursor = cursor.expect("it answers").expect("a cursor");
    // Messages in flight, those of one pull, and those on their way in between.
    assert!(cursor.pending >= 100 - 16 - 4 - 2, "{cursor:?}");
    held.release();
    for number in 0..100 {
        world.wait_for(&format!("{number}"), "wait").await;
    }
    let is_empty = || std::future::ready((bounds.in_flight_bytes() == 0).then_some(()));
    wait_until(is_empty, PATIENCE, "who has nothing to do holds nothing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_source_goes_on_however_little_may_be_in_flight() {
    let mut world = world(World::in_a_directory().await, SAGA).await;
    let tenants = "acme: { context: 1, quotas: { instances: 3 } }";
    let tenants = TenantRegistry::read("t", tenants).expect("good");
    let revision = world.definitions.in_force().revision;
    assert!(world.definitions.replace(None, Some(&tenants), revision, Vec::new()).await.expect("kept"));
    world.bounds = InFlightLimits::of_bytes(1);
    // Starts wait for room that only payments make, of which each is larger than what may be in flight.
    for number in 0..20 {
        order(&world, &format!("{number}"), 2000).await;
    }
    world.own();
    for number in 0..3 {
        world.wait_for(&format!("{number}"), "wait").await;
    }
    let bounds = world.bounds.clone();
    let is_aside = || std::future::ready((bounds.in_flight_bytes() == 0).then_some(()));
    wait_until(is_aside, PATIENCE, "what waits for room does not count").await;
    let mut open: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    let paying = async {
        while !open.is_empty() {
            for id in std::mem::take(&mut open) {
                if world.record(&id).await.is_none() {
                    open.push(id);
                    continue;
                }
                let data = format!("{{\"more\":\"{}\"}}", "x".repeat(2000));
                world.event("Payment", &format!("p-{id}"), "Paid", &id, &data).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, paying).await.expect("they all start");
    for number in 0..20 {
        world.wait_for(&format!("{number}"), "completed").await;
    }
}

#[tokio::test]
async fn a_busy_lane_lets_others_have_their_turn() {
    const ORDERS: u64 = 1000;
    let mut world = world(World::simulated().await, SAGA).await;
    for number in 0..ORDERS {
        order(&world, &format!("{number}"), 1).await;
    }
    world.own();
    let (mut before, mut most) = (0, 0);
    // One thread has the lane and this: each has a turn after the other.
    while before < ORDERS {
        tokio::task::yield_now().await;
        let now = applied(&world);
        (before, most) = (now, most.max(now - before));
    }
    assert!((2..=32).contains(&most), "{most} transitions in one turn");
}

/// A gateway that answers when it may.
struct Gate {
    open: Semaphore,
    under_way: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait]
impl Gateway for Gate {
    async fn submit(&self, _: &AggregateCommand) -> GatewayAnswer {
        let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(under_way, Ordering::SeqCst);
        drop(self.open.acquire().await);
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        GatewayAnswer::Done(Json::object([]))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_of_a_tenant_share_its_turns_at_the_gateway() {
    const ORDERS: usize = 200;
    let saga = SAGA.replace("SHARDS", "2").replace(
        "{ wait: { on: { Paid: { end: completed } } } }",
        "{ wait: { command: { aggregate: Order, id: o, type: Do }, on_success: { end: completed } } }",
    );
    let mut world = world(World::in_a_directory().await, &saga).await;
    let gate =
        Arc::new(Gate { open: Semaphore::new(0), under_way: AtomicUsize::new(0), most: AtomicUsize::new(0) });
    let owners: Vec<_> = [0, 1]
        .map(|shard| {
            let gateway = Arc::clone(&gate) as Arc<dyn Gateway>;
            tokio::spawn(SagaLane { shard, gateway, ..world.lane() }.own(CancellationToken::new()))
        })
        .into();
    for number in 0..ORDERS {
        order(&world, &format!("{number}"), 1).await;
    }
    for number in 0..ORDERS {
        world.wait_for(&format!("{number}"), "wait").await;
    }
    let is_full =
        || std::future::ready((gate.under_way.load(Ordering::SeqCst) == TENANT_COMMANDS_MAX).then_some(()));
    wait_until(is_full, PATIENCE, "as many are submitted as may be").await;
    gate.open.add_permits(1);
    for number in 0..ORDERS {
        world.wait_for(&format!("{number}"), "completed").await;
    }
    assert_eq!(gate.most.load(Ordering::SeqCst), TENANT_COMMANDS_MAX);
    owners.iter().for_each(tokio::task::JoinHandle::abort);
}
