//! How far sources were read, where no commit says so.

use store::{LaneKey, RowKey, VersionedValue};
use testkit::{PATIENCE, wait_until};
use workflow::instance::decode;
use workflow::subject::ConsumerSource;
use workflow::{LaneRowKey, WorkflowLane};

use crate::world::{TENANT, World};

const ORDER: &str = include_str!("../../../../libs/workflow/src/manifest/example.yaml");
const EVENTS: u64 = 50;

fn orders() -> ConsumerSource {
    ConsumerSource::Aggregate("Order".parse().expect("an aggregate"))
}

fn lane() -> WorkflowLane {
    let saga = "order-fulfilment".parse().expect("a name");
    WorkflowLane::Saga { tenant: TENANT.parse().expect("a tenant"), saga, shard: 0 }
}

const SAGA: &str = r#"
kind: Saga
name: order-fulfilment
version: 1
state: { id: text }
sources: [{ aggregate: Order }, { aggregate: Payment }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: wait }
steps: { wait: { on: { Paid: { goto: wait } } } }
"#;

/// The row that says how far orders were read.
async fn row(world: &World) -> Option<(u64, VersionedValue)> {
    let key = RowKey::new(LaneRowKey::checkpoint(&orders().to_string()).as_str());
    let rows = world.store.read(&LaneKey::new(&lane().to_string()), &[key]).await.expect("read");
    let row = rows.into_iter().next().flatten()?;
    let checkpoint: saga::lane::checkpoint::Checkpoint = decode(&row.value).expect("a checkpoint");
    Some((checkpoint.position, row))
}

async fn until_position(world: &World, wanted: u64) -> VersionedValue {
    let noted = async || row(world).await.filter(|(position, _)| *position == wanted);
    wait_until(noted, PATIENCE, format!("the position is {wanted}")).await.1
}

#[tokio::test]
async fn what_is_nothing_to_a_lane_is_not_read_again_after_a_crash() {
    let mut world = World::simulated().await;
    world.apply(ORDER).await;
    world.own();
    for number in 0..EVENTS {
        world.event("Order", &format!("e-{number}"), "OrderSeen", "nobody", "{}").await;
    }
    let noted = until_position(&world, EVENTS).await;
    // Taking it and opening its sources are commits as well.
    assert!(noted.revision < EVENTS, "there is a commit for each message: {}", noted.revision);
    world.crash().await;
    world.own();
    world.event("Order", "e-last", "OrderSeen", "nobody", "{}").await;
    until_position(&world, EVENTS + 1).await;
    let consumer = orders().consumer(&lane());
    let cursor = world.broker.cursor("AGGREGATE_EVENTS", &consumer).await.expect("an answer");
    assert_eq!(cursor.map(|cursor| cursor.delivered), Some(1));
}

/// Has the stream of aggregates forget all but the last of its messages.
fn keep_aggregates(world: &World, messages: u64) {
    let nats = world.ground.nats.as_ref().expect("a real server");
    let wanted = format!(
        r#"{{"name":"AGGREGATE_EVENTS","subjects":["tenant.*.aggregate.*.*"],"storage":"file","retention":"limits","discard":"old","max_msgs":{messages},"duplicate_window":120000000000,"max_consumers":100000,"num_replicas":1}}"#
    );
    let reply = nats.ask("$JS.API.STREAM.UPDATE.AGGREGATE_EVENTS", &wanted);
    assert!(!reply.contains("error"), "{reply}");
}

/// Publishes so many events of an aggregate.
async fn events(world: &World, aggregate: &str, kind: &str, numbers: std::ops::Range<u64>) {
    for number in numbers {
        world.event(aggregate, &format!("{kind}-{number}"), kind, "a", r#"{"id":"a"}"#).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_source_misses_nothing_of_a_stream_that_forgets_what_others_brought() {
    const KEPT: u64 = 5;
    let mut world = World::in_a_directory().await;
    keep_aggregates(&world, KEPT);
    world.apply(SAGA).await;
    world.own();
    events(&world, "Order", "OrderPlaced", 0..1).await;
    until_position(&world, 1).await;
    // The stream forgets the only order, which was read, and has messages of others. They come in portions that the stream can keep:
    // messages that it forgets before a busy lane has read them would be lost permanently.
    for first in (0..20).step_by(KEPT as usize) {
        events(&world, "Payment", "Paid", first..first + KEPT).await;
        world.until_revision("a", 1 + first + KEPT).await;
    }
    until_position(&world, 21).await;
    events(&world, "Payment", "Paid", 20..22).await;
    world.until_revision("a", 23).await;
    world.crash().await;
    let cursors = world.cursors();
    world.own();
    world.until_cursors(cursors + 2).await;
    events(&world, "Payment", "Paid", 22..23).await;
    world.until_revision("a", 24).await;
    assert_eq!(world.metrics.events_expired.get(), 0);
    // Orders that come while no lane reads them, and that the stream forgets, are missed.
    world.crash().await;
    events(&world, "Order", "OrderSeen", 0..10).await;
    events(&world, "Payment", "Paid", 23..30).await;
    world.own();
    let is_counted = async || (world.metrics.events_expired.get() > 0).then_some(());
    wait_until(is_counted, PATIENCE, "it is told that messages are gone").await;
}
