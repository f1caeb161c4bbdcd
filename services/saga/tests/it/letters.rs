//! Dead letters: applied again in order, left out, removed.

use model::SagaStatus;
use saga::lane::answers::{LaneRequestAnswer, LaneRequestOutcome};
use saga::sagas::VerbOutcome;
use workflow::Json;
use workflow::input::Verb;
use workflow::instance::CorrelationEntry;
use workflow::key::StoreTable;
use workflow::lane_request::SagaLaneRequest;
use workflow::step::HELD_BYTES_MAX;

use crate::world::World;

/// A saga whose state records the order of its events.
const TALLY: &str = r#"
kind: Saga
name: tally
version: VERSION
state: { log: text }
sources: [{ aggregate: Order, versions: 1..2, on_version: dead_letter }]
correlate: CORRELATE
on_missing: { Lonely: dead_letter, default: ignore }
start: { on: Opened, set: { log: "" }, goto: wait }
steps:
  wait:
    on:
      Added:
        - { when: event.data.c == "!", dead_letter: a poison }
        - { set: { log: "${{ state.log + event.data.c }}" }, goto: wait }
      Closed: { end: completed }
      Lonely: { end: failed }
"#;

fn manifest(version: u32, correlate: &str) -> String {
    TALLY.replace("VERSION", &version.to_string()).replace("CORRELATE", correlate)
}

async fn started(mut world: World) -> World {
    world.apply(&manifest(1, "event.metadata.correlation_id")).await;
    world.follow().await;
    world.own();
    world
}

async fn add(world: &World, correlation: &str, id: &str, data: &str) {
    world.event("Order", &format!("{correlation}-{id}"), "Added", correlation, data).await;
}

/// An instance that has applied `a`, whose second event is poison, and behind which `c` and `d` wait.
async fn poisoned(world: &World, correlation: &str) {
    world.event("Order", &format!("{correlation}-0"), "Opened", correlation, "{}").await;
    add(world, correlation, "1", r#"{"c":"a"}"#).await;
    add(world, correlation, "2", r#"{"c":"!"}"#).await;
    add(world, correlation, "3", r#"{"c":"c"}"#).await;
    add(world, correlation, "4", r#"{"c":"d"}"#).await;
    until_held(world, correlation, 2).await;
}

async fn until_held(world: &World, correlation: &str, held: u64) {
    let are = || async { world.record(correlation).await.filter(|record| record.held.len() == held) };
    testkit::wait_until(are, testkit::PATIENCE, format!("{held} inputs of {correlation} wait")).await;
}

async fn log(world: &World, correlation: &str) -> String {
    match world.record(correlation).await.map(|record| record.entry) {
        Some(CorrelationEntry::Live(instance)) => match instance.state.get("log") {
            Some(Json::Text(log)) => log.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

async fn until_log(world: &World, correlation: &str, expected: &str) {
    let is = || async { (log(world, correlation).await == expected).then_some(()) };
    testkit::wait_until(is, testkit::PATIENCE, format!("{correlation} has {expected}")).await;
}

fn redrive(correlation: &str, letter: u64, data: Option<&str>) -> SagaLaneRequest {
    let data = data.map(|data| workflow::json::read(data.as_bytes(), data.len()).expect("JSON"));
    SagaLaneRequest::Redrive {
        correlation: correlation.parse().expect("a correlation"),
        letter,
        skip: false,
        data,
    }
}

fn skip(correlation: &str, letter: u64) -> SagaLaneRequest {
    SagaLaneRequest::Redrive {
        correlation: correlation.parse().expect("one"),
        letter,
        skip: true,
        data: None,
    }
}

fn purge(correlation: &str, letter: u64) -> SagaLaneRequest {
    SagaLaneRequest::Purge { correlation: correlation.parse().expect("a correlation"), letter }
}

pub(crate) fn summary(answer: &LaneRequestAnswer) -> (&str, Option<u64>, u64, u64) {
    let outcome = match &answer.outcome {
        LaneRequestOutcome::Done => "removed",
        LaneRequestOutcome::Applied => "applied",
        LaneRequestOutcome::Held => "held",
        LaneRequestOutcome::Kept => "kept",
        LaneRequestOutcome::Dead(_) => "dead",
        LaneRequestOutcome::Ignored(_) => "ignored",
        LaneRequestOutcome::PassedOn(_) => "passed on",
        LaneRequestOutcome::Refused(refusal) => &refusal.reason,
    };
    (outcome, answer.front, answer.held, answer.removed)
}

/// Runs a case on a simulation, and on real servers with each store.
macro_rules! everywhere {
    ($($case:ident $others:literal;)*) => {
        $(mod $case {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn in_memory() {
                super::$case(super::World::simulated().await, $others).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn in_a_directory() {
                super::$case(super::World::in_a_directory().await, $others).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn in_redis() {
                super::$case(super::World::in_redis().await, $others).await;
            }
        })*
    };
}
pub(crate) use everywhere;

everywhere! {
    a_letter_is_applied_in_front_of_what_waits_while_others_go_on 1000;
    a_letter_is_left_out_or_removed 0;
    what_waits_behind_a_letter_is_bounded_in_bytes 17;
}

async fn a_letter_is_applied_in_front_of_what_waits_while_others_go_on(world: World, others: usize) {
    let mut world = started(world).await;
    poisoned(&world, "bad").await;
    for other in 0..others {
        world.event("Order", &format!("o-{other}"), "Opened", &format!("c-{other}"), "{}").await;
        world.event("Order", &format!("p-{other}"), "Closed", &format!("c-{other}"), "{}").await;
    }
    for other in 0..others {
        world.wait_for(&format!("c-{other}"), "completed").await;
    }
    // All of them have ended, and it still waits.
    let record = world.record("bad").await.expect("a record");
    assert_eq!((record.parked_by, record.held.len(), log(&world, "bad").await.as_str()), (Some(0), 2, "a"));
    let failed = world.send_request("r-1", "bad", redrive("bad", 0, None)).await;
    assert_eq!(summary(&failed), ("dead", Some(0), 2, 0));
    assert_eq!(failed.outcome, LaneRequestOutcome::Dead("a poison".to_owned()));
    // Letters that fail again are no further ones.
    assert_eq!((world.count(StoreTable::Dead).await, world.metrics.letters.get()), (1, 1));
    let applied = world.send_request("r-2", "bad", redrive("bad", 0, Some(r#"{"c":"b"}"#))).await;
    assert_eq!(summary(&applied), ("applied", None, 2, 0));
    until_log(&world, "bad", "abcd").await;
    // The same requests have the same answers, and change nothing.
    assert_eq!(world.send_request("r-2", "bad", redrive("bad", 0, Some(r#"{"c":"b"}"#))).await, applied);
    assert_eq!(
        summary(&world.send_request("r-1", "bad", redrive("bad", 0, None)).await),
        ("dead", Some(0), 2, 0)
    );
    let gone = world.send_request("r-3", "bad", redrive("bad", 0, None)).await;
    assert_eq!(summary(&gone).0, "LETTER_NOT_FOUND");
    assert_eq!(log(&world, "bad").await, "abcd");
    world.event("Order", "bad-9", "Closed", "bad", "{}").await;
    world.wait_for("bad", "completed").await;
    assert_eq!((world.count(StoreTable::Dead).await, world.count(StoreTable::Parked).await), (0, 0));
    let ended = world.stop().await;
    assert!(matches!(ended, saga::lane::LaneExit::Stopped { .. }), "{ended}");
}

/// Checks that of inputs of a million bytes sixteen may wait: one that is asked for is refused, as is a letter that would wait, and
/// one that comes waits until there is room, in front of smaller ones.
async fn what_waits_behind_a_letter_is_bounded_in_bytes(world: World, inputs: usize) {
    let mut world = started(world).await;
    // A letter that parks nothing.
    world.event("Order", "bad-lonely", "Lonely", "bad", "{}").await;
    world.event("Order", "bad-0", "Opened", "bad", "{}").await;
    add(&world, "bad", "1", r#"{"c":"!"}"#).await;
    let large = format!(r#"{{"c":"c","pad":"{}"}}"#, "x".repeat(1_000_000));
    for input in 1..inputs {
        add(&world, "bad", &format!("{input}-large"), &large).await;
    }
    until_held(&world, "bad", inputs as u64 - 1).await;
    let held = world.record("bad").await.expect("a record").held_bytes;
    assert!(held <= HELD_BYTES_MAX && held > HELD_BYTES_MAX - 1_000_000, "{held}");
    let data = workflow::json::read(large.as_bytes(), large.len()).expect("JSON");
    let send = || Verb::Send { kind: "Added".to_owned(), data: data.clone() };
    let VerbOutcome::Refused(refusal) = world.ask("r-1", "bad", send()).await.outcome else {
        panic!("taken")
    };
    assert_eq!(refusal.reason, "BYTES_EXCEEDED");
    let pad = format!(r#"{{"pad":"{}"}}"#, "x".repeat(1_000_000));
    let full = world.send_request("r-2", "bad", redrive("bad", 0, Some(&pad))).await;
    assert_eq!((summary(&full).0, world.count(StoreTable::Dead).await), ("LIMIT_EXCEEDED", 2));
    add(&world, "bad", "last", &large).await;
    add(&world, "bad", "small", r#"{"c":"s"}"#).await;
    let applied = world.send_request("r-3", "bad", redrive("bad", 1, Some(r#"{"c":"b"}"#))).await;
    assert_eq!(summary(&applied).0, "applied");
    until_log(&world, "bad", &format!("b{}s", "c".repeat(inputs))).await;
    let record = world.record("bad").await.expect("a record");
    assert_eq!((record.held.len(), record.held_bytes, world.count(StoreTable::Parked).await), (0, 0, 0));
    world.send_request("r-4", "bad", redrive("bad", 0, None)).await;
    world.wait_for("bad", "failed").await;
}

async fn a_letter_is_left_out_or_removed(world: World, _: usize) {
    let world = started(world).await;
    poisoned(&world, "left").await;
    poisoned(&world, "gone").await;
    assert_eq!(summary(&world.send_request("r-1", "left", skip("left", 0)).await), ("removed", None, 2, 0));
    until_log(&world, "left", "acd").await;
    assert_eq!(summary(&world.send_request("r-2", "gone", purge("gone", 0)).await), ("removed", None, 0, 2));
    add(&world, "gone", "5", r#"{"c":"e"}"#).await;
    until_log(&world, "gone", "ae").await;
    assert_eq!((world.count(StoreTable::Dead).await, world.count(StoreTable::Parked).await), (0, 0));
    // A missing letter counts as removed.
    assert_eq!(summary(&world.send_request("r-3", "gone", purge("gone", 0)).await), ("removed", None, 0, 0));
}

#[tokio::test]
async fn a_second_letter_behind_the_first_stands_in_front_then() {
    let world = started(World::simulated().await).await;
    poisoned(&world, "bad").await;
    add(&world, "bad", "5", r#"{"c":"!"}"#).await;
    add(&world, "bad", "6", r#"{"c":"f"}"#).await;
    until_held(&world, "bad", 4).await;
    world.send_request("r-1", "bad", redrive("bad", 0, Some(r#"{"c":"b"}"#))).await;
    until_log(&world, "bad", "abcd").await;
    until_held(&world, "bad", 1).await;
    assert_eq!(world.record("bad").await.expect("a record").parked_by, Some(1));
    // Letters that do not exist, and letters without a correlation.
    assert_eq!(
        summary(&world.send_request("r-2", "bad", redrive("bad", 0, None)).await).0,
        "LETTER_NOT_FOUND"
    );
    assert_eq!(summary(&world.send_request("r-3", "bad", skip("bad", 1)).await), ("removed", None, 1, 0));
    until_log(&world, "bad", "abcdf").await;
}

#[tokio::test]
async fn a_message_that_is_no_input_waits_for_its_turn_and_is_a_letter_then() {
    let world = started(World::simulated().await).await;
    poisoned(&world, "bad").await;
    let newer = r#"{"event_id":"bad-v","type":"Added","schema_version":9,"data":{"c":"v"},"metadata":{"correlation_id":"bad"}}"#;
    world.raw("tenant.acme.aggregate.Order.x", "bad-v", newer).await;
    add(&world, "bad", "5", r#"{"c":"w"}"#).await;
    until_held(&world, "bad", 4).await;
    assert_eq!(world.count(StoreTable::Dead).await, 1);
    world.send_request("r-1", "bad", skip("bad", 0)).await;
    until_log(&world, "bad", "acd").await;
    until_held(&world, "bad", 1).await;
    // While its version is unknown, the letter stays, and so do the inputs behind it.
    let stays = world.send_request("r-2", "bad", redrive("bad", 1, None)).await;
    assert_eq!(summary(&stays), ("dead", Some(1), 1, 0));
    let known = manifest(2, "event.metadata.correlation_id").replace("1..2", "1..9");
    let mut world = world;
    world.apply(&known).await;
    assert_eq!(
        summary(&world.send_request("r-3", "bad", redrive("bad", 1, None)).await),
        ("applied", None, 1, 0)
    );
    until_log(&world, "bad", "acdvw").await;
}

/// Checks that an input that would be one letter too many waits until a letter goes, and that nothing else waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_only_so_many_letters_and_what_would_be_one_more_waits() {
    for mut world in [World::simulated().await, World::in_redis().await] {
        world.letters_max = 2;
        world = started(world).await;
        poisoned(&world, "a").await;
        poisoned(&world, "b").await;
        world.event("Order", "c-0", "Opened", "c", "{}").await;
        add(&world, "c", "1", r#"{"c":"!"}"#).await;
        add(&world, "c", "2", r#"{"c":"x"}"#).await;
        world.until_measured("mycora_saga_lanes_full_of_letters 1").await;
        // Others go on meanwhile.
        world.event("Order", "d-0", "Opened", "d", "{}").await;
        add(&world, "d", "1", r#"{"c":"y"}"#).await;
        world.wait_for("d", "wait").await;
        until_log(&world, "d", "y").await;
        assert_eq!((log(&world, "c").await, world.count(StoreTable::Dead).await), (String::new(), 2));
        // The next owner of the lane counts the letters, and waiting inputs are delivered again.
        world.crash().await;
        world.own();
        world.until_measured("mycora_saga_lanes_full_of_letters 1").await;
        assert_eq!((log(&world, "c").await, world.count(StoreTable::Dead).await), (String::new(), 2));
        assert_eq!(summary(&world.send_request("r-1", "a", purge("a", 0)).await), ("removed", None, 0, 2));
        until_held(&world, "c", 1).await;
        world.until_measured("mycora_saga_lanes_full_of_letters 0").await;
        assert_eq!(world.count(StoreTable::Dead).await, 2);
        assert_eq!(summary(&world.send_request("r-2", "c", skip("c", 0)).await), ("removed", None, 1, 0));
        until_log(&world, "c", "x").await;
        world.until_measured("mycora_saga_letters 1").await;
    }
}

#[tokio::test]
async fn letters_without_a_correlation_find_their_instance_or_go() {
    let mut world = started(World::simulated().await).await;
    world.event("Order", "c-0", "Opened", "c", "{}").await;
    let lost = r#"{"event_id":"c-1","type":"Added","data":{"c":"a","of":"c"}}"#;
    world.raw("tenant.acme.aggregate.Order.x", "c-1", lost).await;
    world.raw("tenant.acme.aggregate.Order.x", "c-2", "{").await;
    let are = || async { (world.count(StoreTable::Dead).await == 2).then_some(()) };
    testkit::wait_until(are, testkit::PATIENCE, "two letters").await;
    assert_eq!(summary(&world.send_request("r-1", "-", redrive("-", 0, None)).await).0, "dead");
    assert_eq!(summary(&world.send_request("r-2", "-", redrive("-", 1, None)).await).0, "dead");
    world.apply(&manifest(2, "event.metadata.correlation_id ?? event.data.of")).await;
    // The lane of its correlation answers.
    let applied = world.send_request("r-3", "-", redrive("-", 0, None)).await;
    assert_eq!(summary(&applied).0, "applied");
    assert_eq!(log(&world, "c").await, "a");
    let again = world.send_request("r-3", "-", redrive("-", 0, None)).await;
    assert_eq!(again.outcome, LaneRequestOutcome::PassedOn("c".parse().expect("a correlation")));
    assert_eq!(summary(&world.send_request("r-4", "-", purge("-", 1)).await), ("removed", None, 0, 0));
    assert_eq!(world.count(StoreTable::Dead).await, 0);
    // An event without an instance parks no correlation, and is applied once there is an instance.
    world.event("Order", "d-1", "Lonely", "d", "{}").await;
    let is = || async { (world.count(StoreTable::Dead).await == 1).then_some(()) };
    testkit::wait_until(is, testkit::PATIENCE, "a letter").await;
    world.event("Order", "d-2", "Opened", "d", "{}").await;
    world.wait_for("d", "wait").await;
    assert_eq!(summary(&world.send_request("r-5", "d", redrive("d", 0, None)).await).0, "applied");
    assert_eq!(world.status("d").await, SagaStatus::Failed);
}

#[tokio::test]
async fn everything_behind_a_letter_goes_with_it_however_much_it_is() {
    let world = started(World::simulated().await).await;
    poisoned(&world, "bad").await;
    for more in 10..970 {
        add(&world, "bad", &more.to_string(), r#"{"c":"x"}"#).await;
    }
    until_held(&world, "bad", 962).await;
    assert_eq!(summary(&world.send_request("r-1", "bad", purge("bad", 0)).await), ("removed", None, 0, 962));
    let are = || async { (world.count(StoreTable::Parked).await == 0).then_some(()) };
    testkit::wait_until(are, testkit::PATIENCE, "nothing is left").await;
    add(&world, "bad", "last", r#"{"c":"e"}"#).await;
    until_log(&world, "bad", "ae").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_owner_applies_what_is_left_behind_a_letter() {
    let mut world = started(World::simulated().await).await;
    for turn in 0..20 {
        let correlation = format!("bad-{turn}");
        poisoned(&world, &correlation).await;
        world
            .send_request(&format!("r-{turn}"), &correlation, redrive(&correlation, 0, Some(r#"{"c":"b"}"#)))
            .await;
        // The letter is applied, and perhaps some of the inputs behind it.
        world.crash().await;
        world.own();
        until_log(&world, &correlation, "abcd").await;
    }
}
