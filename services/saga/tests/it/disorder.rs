//! A broker that loses, repeats, forgets and goes back; and two owners of one lane.

mod forgetful;
mod servers;

use testkit::{PATIENCE, wait_until};
use workflow::input::CommandOutcome;
use workflow::instance::CorrelationEntry;
use workflow::{Json, WorkflowLane};

use crate::world::{TENANT, World};

/// Counts upwards, and calls every hole and every repeat a dead letter. The counter is an aggregate with versions.
const COUNTER: &str = r#"
kind: Saga
name: counter
version: 1
state: { n: int }
sources: [{ aggregate: Counter }]
correlate: event.aggregate_id
start: { on: Began, set: { n: 0 }, goto: count }
steps:
  count:
    on:
      Next:
        - { when: event.data.n == state.n + 1 && event.data.n < LAST, set: { n: "${{ event.data.n }}" } }
        - { when: event.data.n == state.n + 1, set: { n: "${{ event.data.n }}" }, goto: tell }
        - { dead_letter: "${{ event.data.n }} after ${{ state.n }}" }
  tell: { effect: tell, on_success: { end: completed } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://127.0.0.1:1", allow_hosts: ["127.0.0.1:1"], private: true }
effects: { tell: { request: { method: POST, path: / } } }
"#;
const LAST: u64 = 40;
const COUNTERS: [&str; 3] = ["a", "b", "c"];
const STREAM: &str = "AGGREGATE_EVENTS";

async fn counting(mut world: World) -> World {
    world.apply(&COUNTER.replace("LAST", &LAST.to_string())).await;
    world.serve(|_| Some((CommandOutcome::Succeeded, Json::object([])))).await;
    world.own();
    for counter in COUNTERS {
        next(&world, counter, 0).await;
    }
    for counter in COUNTERS {
        world.until_revision(counter, 1).await;
    }
    world
}

/// Publishes the next event of a counter; the one of number 0 begins it.
async fn next(world: &World, counter: &str, n: u64) {
    let kind = if n == 0 { "Began" } else { "Next" };
    let id = format!("{counter}-{n}");
    let body = format!(
        r#"{{"event_id":"{id}","type":"{kind}","aggregate_id":"{counter}","version":{n},"data":{{"n":{n}}}}}"#
    );
    world.raw(&format!("tenant.{TENANT}.aggregate.Counter.{counter}"), &id, &body).await;
}

fn consumer(world: &World) -> String {
    let lane = WorkflowLane::Saga {
        tenant: TENANT.parse().expect("a tenant"),
        saga: world.saga.parse().expect("a name"),
        shard: 0,
    };
    workflow::subject::ConsumerSource::Aggregate("Counter".to_owned()).consumer(&lane)
}

/// The letter of a counter that has found a hole, or a repeat.
async fn hole(world: &World, counter: &str) -> Option<String> {
    let letter = world.row(&format!("dead:{counter}:{:020}", 0)).await?;
    Some(String::from_utf8_lossy(&letter).into_owned())
}

/// Every counter has come to its end, without a hole and without a repeat.
async fn assert_counted(world: &World) {
    for counter in COUNTERS {
        let come = async || {
            assert_eq!(hole(world, counter).await, None, "{counter}");
            world.has_ended(counter).await.then_some(())
        };
        wait_until(come, 4 * PATIENCE, format!("{counter} comes to its end")).await;
        let record = world.record(counter).await.expect("a record");
        let CorrelationEntry::Ended(tombstone) = &record.entry else { panic!("{record:?}") };
        // One row for the start, one for each number, one for the result.
        assert_eq!((tombstone.revision, record.letters), (LAST + 2, 0), "{counter}");
    }
    assert_eq!(world.metrics.letters.get(), 0);
    assert_eq!(world.witness.distinct_calls(), ["tell"; 3]);
}

/// The line of metrics that says how many lanes found a stream to have gone back.
fn went_back(stream: &str, why: &str, times: u64) -> String {
    format!("mycora_saga_stream_went_back_total{{stream=\"{stream}\",why=\"{why}\"}} {times}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_rise_without_holes_through_everything_that_a_broker_does() {
    for seed in 0..4_u64 {
        let mut world = counting(World::simulated().await).await;
        let (simulated, consumer) = (world.simulated.clone().expect("a simulation"), consumer(&world));
        let mut random = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for n in 1..=LAST {
            for counter in COUNTERS {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                match (random >> 32) % 12 {
                    0 => simulated.lose_deliveries(STREAM, &consumer, 2),
                    1 => simulated.forget_acks(STREAM, &consumer, 3),
                    2 => simulated.redeliver(STREAM, &consumer, (random >> 20) % (3 * n) + 1),
                    3 => {
                        let cursors = world.cursors();
                        simulated.drop_connection();
                        // Without this a slow lane would see several cuts as one.
                        world.until_cursors(cursors + 1).await;
                    }
                    4 if n % 4 == 0 => {
                        world.crash().await;
                        world.own();
                    }
                    _ => {}
                }
                next(&world, counter, n).await;
            }
        }
        // The last lost messages come over the next connection.
        simulated.drop_connection();
        assert_counted(&world).await;
        println!("seed {seed}: {} cursors", world.cursors());
        assert!(world.cursors() > 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_made_anew_is_noticed_and_read() {
    let world = counting(World::simulated().await).await;
    let simulated = world.simulated.clone().expect("a simulation");
    for n in 1..=LAST / 2 {
        for counter in COUNTERS {
            next(&world, counter, n).await;
        }
    }
    world.until_revision("c", LAST / 2 + 1).await;
    simulated.delete_stream(STREAM);
    world.make_aggregates().await;
    // Some of them once more, under other sequences.
    for n in LAST / 4..=LAST {
        for counter in COUNTERS {
            next(&world, counter, n).await;
        }
    }
    simulated.drop_connection();
    assert_counted(&world).await;
    world.until_measured(&went_back(STREAM, "made_anew", 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequences_that_are_used_again_are_noticed_and_read() {
    let mut world = counting(World::simulated().await).await;
    let simulated = world.simulated.clone().expect("a simulation");
    for n in 1..=LAST / 2 {
        for counter in COUNTERS {
            next(&world, counter, n).await;
        }
    }
    world.until_revision("c", LAST / 2 + 1).await;
    world.stop().await;
    // The tail is lost, and what comes has its sequences.
    simulated.roll_back(STREAM, 20);
    for n in LAST / 2 + 1..=LAST {
        for counter in COUNTERS {
            next(&world, counter, n).await;
        }
    }
    world.own();
    assert_counted(&world).await;
    world.until_measured(&went_back(STREAM, "other_message", 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_or_loses_a_consumer_is_read_on() {
    let mut world = counting(World::in_a_directory().await).await;
    let consumer = consumer(&world);
    for n in 1..=LAST {
        for counter in COUNTERS {
            next(&world, counter, n).await;
        }
        if n == LAST / 4 {
            world.broker.delete_cursor(STREAM, &consumer).await.expect("deleted");
        }
        if n == LAST / 2 {
            world.kill_nats().await;
        }
    }
    assert_counted(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_owner_commits_nothing_more() {
    for make in [0, 1, 2] {
        let world = match make {
            0 => World::simulated().await,
            1 => World::in_a_directory().await,
            _ => World::in_redis().await,
        };
        let mut world = counting(world).await;
        // Another owner takes the lane while the first one works.
        let second = world.second_owner();
        for n in 1..=LAST {
            for counter in COUNTERS {
                next(&world, counter, n).await;
            }
        }
        let ended = world.ended().await;
        assert!(matches!(ended, saga::lane::LaneExit::Fenced { .. }), "{ended}");
        assert!(world.metrics.fenced_commits.get() >= 1);
        assert_counted(&world).await;
        second.abort();
    }
}
