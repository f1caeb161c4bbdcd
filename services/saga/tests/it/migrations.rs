//! Versions of a saga: instances keep theirs to the end, or become ones of the newest by way of those between.

use std::collections::BTreeMap;
use std::sync::Arc;

use saga::definitions::Definitions;
use saga::sagas::VerbOutcome;
use workflow::input::Verb;

use crate::world::World;

/// A version of the saga: the name of its first step, the type of its command, and its migration.
fn version(version: u32, step: &str, migrate: &str) -> String {
    format!(
        r#"
kind: Saga
name: order
version: {version}
state: {{ id: text, notes: int, way: text }}
sources: [{{ aggregate: Order }}, {{ aggregate: Payment }}]
start: {{ on: OrderPlaced, set: {{ id: "${{{{ event.data.id }}}}", notes: 0, way: "{version}" }}, goto: {step} }}
steps:
  {step}:
    on:
      Noted: {{ set: {{ notes: "${{{{ state.notes + 1 }}}}" }} }}
      Paid: {{ goto: ship }}
  ship:
    command: {{ aggregate: Order, id: "${{{{ state.id }}}}", type: Ship-{version}, payload: {{ id: "${{{{ state.id }}}}", way: "${{{{ state.way }}}}", notes: "${{{{ state.notes }}}}" }} }}
    on_success: {{ end: completed }}
{migrate}
"#
    )
}

fn versions() -> [String; 3] {
    let way = |from: u32, to: u32, steps: &str| {
        format!(
            "migrate: {{ from: {from}, steps: {{ {steps} }}, set: {{ way: \"${{{{ state.way }}}}-{to}\" }} }}"
        )
    };
    [
        version(1, "wait", ""),
        version(2, "pending", &way(1, 2, "wait: pending")),
        version(3, "paying", &way(2, 3, "pending: paying")),
    ]
}

async fn place(world: &World, id: &str) {
    world.event("Order", &format!("o-{id}"), "OrderPlaced", id, &format!("{{\"id\":\"{id}\"}}")).await;
}

async fn note(world: &World, ids: &[String]) {
    for id in ids {
        world.event("Payment", &format!("n-{id}"), "Noted", id, "{}").await;
    }
}

/// Orders of one version, all of them at its first step.
async fn started(world: &mut World, number: usize, text: &str, step: &str, count: usize) -> Vec<String> {
    world.apply(text).await;
    let ids: Vec<_> = (0..count).map(|at| format!("v{number}-{at}")).collect();
    for id in &ids {
        place(world, id).await;
    }
    for id in &ids {
        world.wait_for(id, step).await;
    }
    ids
}

/// Returns what was shipped, by order: the command's type, the way to its version, and the notes. Each was shipped once.
fn shipped(world: &World) -> BTreeMap<String, (String, String, i64)> {
    let calls: BTreeMap<_, _> =
        world.witness.calls().into_iter().map(|call| (call.id, (call.what, call.payload))).collect();
    let mut shipped = BTreeMap::new();
    for (what, payload) in calls.into_values() {
        let payload: serde_json::Value = serde_json::from_str(&payload).expect("JSON");
        let text = |key: &str| payload[key].as_str().expect("a text").to_owned();
        let notes = payload["notes"].as_i64().expect("a number");
        let before = shipped.insert(text("id"), (what, text("way"), notes));
        assert_eq!(before, None, "{payload} is shipped twice");
    }
    shipped
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_keep_their_version_or_go_the_whole_way_under_load() {
    const EACH: usize = 60;
    let mut world = World::in_redis().await;
    world.follow().await;
    let [one, two, three] = versions();
    world.apply(&one).await;
    world.own();
    let first = started(&mut world, 1, &one, "wait", EACH).await;
    let second = started(&mut world, 2, &two, "pending", EACH).await;
    let third = started(&mut world, 3, &three, "paying", EACH).await;
    // Every other one of the first two is migrated, between events of all of them.
    let world = Arc::new(world);
    let load = {
        let (world, ids) = (Arc::clone(&world), [first.clone(), second.clone(), third.clone()].concat());
        tokio::spawn(async move { note(&world, &ids).await })
    };
    for id in first.iter().chain(&second).step_by(2) {
        let answer = world.ask(&format!("m-{id}"), id, Verb::Migrate).await;
        assert_eq!(answer.outcome, VerbOutcome::Applied, "{id}");
    }
    load.await.expect("published");
    let mut world = Arc::into_inner(world).expect("nobody else has it");
    // A replica that has seen none of their files takes the lane.
    world.crash().await;
    world.definitions = Arc::new(Definitions::new(Arc::clone(&world.store)));
    world.definitions.refresh().await.expect("read");
    world.own();
    let all = [first.clone(), second.clone(), third].concat();
    for id in &all {
        world.event("Payment", &format!("p-{id}"), "Paid", id, "{}").await;
    }
    for id in &all {
        world.wait_for(id, "completed").await;
    }
    let shipped = shipped(&world);
    assert_eq!(shipped.len(), all.len());
    for (id, (what, way, notes)) in &shipped {
        let (number, at) = id.trim_start_matches('v').split_once('-').expect("as it was made");
        let is_migrated = number != "3" && at.parse::<usize>().expect("a number") % 2 == 0;
        let expected = match (number, is_migrated) {
            ("1", true) => ("Ship-3", "1-2-3"),
            ("2", true) => ("Ship-3", "2-3"),
            ("1", false) => ("Ship-1", "1"),
            ("2", false) => ("Ship-2", "2"),
            _ => ("Ship-3", "3"),
        };
        assert_eq!((what.as_str(), way.as_str(), *notes), (expected.0, expected.1, 1), "{id}");
    }
    // Each version on the way has its row: start, note, two migrations, payment and end.
    let journal = workflow::LaneRowKey::journal_of(&"v1-0".parse().expect("a correlation"));
    assert_eq!(world.rows(0, journal).await, 6);
}

#[tokio::test]
async fn a_migration_that_misses_a_version_names_it_and_changes_nothing() {
    let mut world = World::simulated().await;
    world.follow().await;
    let [one, _, three] = versions();
    world.apply(&one).await;
    world.own();
    started(&mut world, 1, &one, "wait", 1).await;
    world.apply(&three).await;
    let answer = world.ask("m-1", "v1-0", Verb::Migrate).await;
    let VerbOutcome::Refused(refusal) = answer.outcome else { panic!("{:?}", answer.outcome) };
    assert_eq!(
        (refusal.reason.as_str(), refusal.message.as_str()),
        (
            "SAGA_NOT_MIGRATABLE",
            "there is no way from version 1 of `order` to version 3: version 3 migrates from version 2, which is not kept here"
        )
    );
    let record = world.record("v1-0").await.expect("a record");
    assert_eq!(record.instance().map(|instance| (instance.version, instance.revision)), Some((1, 1)));
}
