//! How far sources were read, where no commit says so.

use store::{LaneKey, RowKey, Versioned};
use testkit::{PATIENCE, wait_until};
use workflow::instance::decode;
use workflow::subject::Source;
use workflow::{Key, Lane};

use crate::world::{TENANT, World};

const ORDER: &str = include_str!("../../../../libs/workflow/src/manifest/example.yaml");
const EVENTS: u64 = 50;

fn orders() -> Source {
    Source::Aggregate("Order".parse().expect("an aggregate"))
}

fn lane() -> Lane {
    let saga = "order-fulfilment".parse().expect("a name");
    Lane::Saga { tenant: TENANT.parse().expect("a tenant"), saga, shard: 0 }
}

/// The row that says how far orders were read.
async fn row(world: &World) -> Option<(u64, Versioned)> {
    let key = RowKey::new(Key::checkpoint(&orders().to_string()).as_str());
    let rows = world.store.read(&LaneKey::new(&lane().to_string()), &[key]).await.expect("read");
    let row = rows.into_iter().next().flatten()?;
    let checkpoint: saga::lane::checkpoint::Checkpoint = decode(&row.value).expect("a checkpoint");
    Some((checkpoint.position, row))
}

async fn until_position(world: &World, wanted: u64) -> Versioned {
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
