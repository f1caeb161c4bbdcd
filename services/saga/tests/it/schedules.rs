//! Sagas that start by the calendar.

use std::time::Duration;

use model::Timestamp;
use serde::Deserialize;
use store::Clock as _;
use testkit::PATIENCE;
use workflow::instance::decode;
use workflow::key::StoreTable;

use crate::world::World;

const HOUR: u64 = 3_600_000;

/// Starts each hour, and waits then.
fn hourly(catch_up: &str) -> String {
    format!(
        "kind: Saga\nname: report\nversion: 1\nstate: {{ at: int }}\nsources: [{{ aggregate: Order }}]\nstart: {{ schedule: \"0 * * * *\", catch_up: {catch_up}, set: {{ at: \"${{{{ event.data.scheduled }}}}\" }}, goto: write }}\nsteps: {{ write: {{ on: {{ Written: {{ end: completed }} }} }} }}\n"
    )
}

/// The occurrence that is waited for, in milliseconds since 1970.
async fn waited_for(world: &World) -> u64 {
    let found = async {
        loop {
            if let Some(row) = world.row("schedule").await {
                return decode::<Due>(&row).expect("a row").due.as_millis();
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("it waits")
}

/// The part of the row that says when.
#[derive(Deserialize)]
struct Due {
    due: Timestamp,
}

/// Waits until the occurrence behind this one is waited for.
async fn until_behind(world: &World, due: u64) -> u64 {
    let behind = async {
        loop {
            let next = waited_for(world).await;
            if next > due {
                return next;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, behind).await.expect("it fires")
}

/// Sets the clock to a moment.
fn set(world: &World, millis: u64) {
    world.forward(Duration::from_millis(millis - world.clock.now()));
}

fn correlation(due: u64) -> String {
    format!("report@{}", Timestamp::from_millis(due).rfc3339())
}

async fn started(world: &World) -> usize {
    world.count(StoreTable::By).await
}

#[tokio::test]
async fn an_occurrence_starts_one_instance_at_its_time() {
    let mut world = World::simulated().await;
    world.apply(&hourly("last")).await;
    world.follow().await;
    world.own();
    let first = waited_for(&world).await;
    set(&world, first - 1000);
    assert_eq!((waited_for(&world).await, started(&world).await), (first, 0));
    set(&world, first + 5);
    assert_eq!(until_behind(&world, first).await, first + HOUR);
    world.wait_for(&correlation(first), "started").await;
    let record = world.record(&correlation(first)).await.expect("it has started");
    let state = record.instance().expect("it waits").state.to_string();
    assert_eq!(state, format!("{{\"at\":{first}}}"));
    // The next owner knows of the occurrence, whatever happened to the former owner.
    world.crash().await;
    world.own();
    set(&world, first + HOUR + 1);
    assert_eq!(until_behind(&world, first + HOUR).await, first + 2 * HOUR);
    assert_eq!(started(&world).await, 2);
}

#[tokio::test]
async fn missed_starts_are_caught_up_by_the_policy_of_the_manifest() {
    for (catch_up, expected) in [("last", vec![2]), ("all", vec![0, 1, 2]), ("none", vec![])] {
        let mut world = World::simulated().await;
        world.apply(&hourly(catch_up)).await;
        world.own();
        let first = waited_for(&world).await;
        world.stop().await;
        // Two hours and five minutes later.
        set(&world, first + 2 * HOUR + 300_000);
        world.own();
        let mut next = first;
        while next != first + 3 * HOUR {
            next = until_behind(&world, next).await;
        }
        assert_eq!(started(&world).await, expected.len(), "{catch_up}");
        for hour in expected {
            let correlation = correlation(first + hour * HOUR);
            assert!(world.record(&correlation).await.is_some(), "{catch_up}: {correlation}");
        }
        world.stop().await;
    }
}

#[tokio::test]
async fn two_owners_start_it_once() {
    let mut world = World::simulated().await;
    world.apply(&hourly("all")).await;
    world.own();
    let first = waited_for(&world).await;
    let second = world.second_owner();
    set(&world, first + 2 * HOUR + 1);
    let mut next = first;
    while next != first + 3 * HOUR {
        next = until_behind(&world, next).await;
    }
    assert_eq!(started(&world).await, 3);
    world.crash().await;
    second.abort();
}

#[tokio::test]
async fn every_shard_starts_its_own() {
    let mut world = World::simulated().await;
    world.apply(&hourly("all").replace("version: 1", "version: 1\nshards: 2")).await;
    world.own();
    let other = world.own_shard(1);
    let first = waited_for(&world).await;
    set(&world, first + 9 * HOUR + 1);
    let mut next = first;
    while next != first + 10 * HOUR {
        next = until_behind(&world, next).await;
    }
    let all = async {
        while started(&world).await + world.count_in(1, StoreTable::By).await < 10 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("all of them start");
    let (one, all) = (started(&world).await, started(&world).await + world.count_in(1, StoreTable::By).await);
    assert!(all == 10 && one > 0 && one < 10, "{one} of {all}");
    other.abort();
}

#[tokio::test]
async fn a_schedule_is_that_of_the_definition_in_force() {
    let mut world = World::simulated().await;
    world.apply(&hourly("last")).await;
    world.own();
    let first = waited_for(&world).await;
    assert_eq!(world.count(StoreTable::Due).await, 1);
    world.stop().await;
    world.apply(&hourly("last").replace("version: 1", "version: 2").replace("0 * * * *", "30 4 * * *")).await;
    world.own();
    let moved = async {
        while waited_for(&world).await % (24 * HOUR) != 4 * HOUR + HOUR / 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, moved).await.expect("it waits for the other time");
    assert_eq!(world.count(StoreTable::Due).await, 1, "and no more at {first}");
    world.stop().await;
    let without = hourly("last").replace("version: 1", "version: 3");
    world
        .apply(
            &without
                .replace("schedule: \"0 * * * *\", catch_up: last", "on: Begun")
                .replace("scheduled", "at"),
        )
        .await;
    world.own();
    let gone = async {
        while world.row("schedule").await.is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("it waits no more");
    assert_eq!(world.count(StoreTable::Due).await, 0);
}
