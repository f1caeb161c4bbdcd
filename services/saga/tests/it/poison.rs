//! Poison of every kind: what it becomes, whom it holds up, and whom it does not.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use broker::{Headers, Publication};
use bytes::Bytes;
use model::SagaStatus;
use saga::sagas::DeadLetterRow;
use workflow::instance::{CorrelationEntry, decode};
use workflow::json::DEPTH_MAX;
use workflow::key::StoreTable;
use workflow::lane_request::SagaLaneRequest;
use workflow::{Json, LaneRowKey};

use crate::letters::{everywhere, summary};
use crate::streams::publish;
use crate::world::World;

/// A saga that can be given more than it may take of everything.
const SAGA: &str = r#"
kind: Saga
name: order
version: 1
state: { log: text, sum: int, price: optional text }
limits: { work_items: 1, state_bytes: 2000 }
sources: [{ aggregate: Order }]
start: { on: Opened, set: { log: "", sum: 0 }, goto: wait }
steps:
  wait:
    on:
      Added: { set: { log: "${{ state.log + event.data.c }}" } }
      Summed: { set: { sum: "${{ event.data.n }}" } }
      Priced: { set: { price: "${{ event.data.n }}" } }
      Doubled: { set: { sum: "${{ (event.data.c + event.data.c).len() }}" } }
      Forked: { goto: both }
      Declared: { dead_letter: "${{ event.data.c }} is poison" }
      Closed: { end: completed }
  both:
    parallel:
      one: { command: { aggregate: Order, id: one, type: Do } }
      two: { command: { aggregate: Order, id: two, type: Do } }
    on_done: { end: completed }
"#;

/// Events that parse but cannot be applied, or have no instance yet: the type, the version of the schema, the data; and the code of the
/// dead letter that they become, with a part of its reason.
fn of_their_correlation() -> Vec<(&'static str, u32, String, &'static str, &'static str)> {
    let long = |length: usize| format!("{{\"c\":\"{}\"}}", "x".repeat(length));
    vec![
        ("Added", 2, long(1), "VERSION", "version 2 of the schema of `Added` is not among 1 to 1"),
        ("Summed", 1, r#"{"n":1.5}"#.to_owned(), "KIND", "`state.sum` is int, not a text"),
        ("Summed", 1, r#"{"n":1e2}"#.to_owned(), "KIND", "`state.sum` is int, not a text"),
        ("Summed", 1, r#"{"n":9223372036854775808}"#.to_owned(), "KIND", "`state.sum` is int, not a text"),
        ("Added", 1, long(2000), "LIMIT", "the state, in bytes, has at most 2000, this would be "),
        ("Forked", 1, "{}".to_owned(), "LIMIT", "one input, in work, has at most 1, this would be 2"),
        ("Doubled", 1, long(200_000), "FORMULA", "Length of string too large"),
        ("Declared", 1, long(1), "DECLARED", "x is poison"),
    ]
}

/// An object around objects, the message itself among them.
fn nested(depth: usize) -> String {
    format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth))
}

/// Messages whose correlation cannot be determined, though they name one: the body, and the code of the dead letter.
fn without_correlation(correlation: &str) -> Vec<(Vec<u8>, &'static str)> {
    let body = |head: &str, data: &str| {
        format!("{{{head}\"metadata\":{{\"correlation_id\":\"{correlation}\"}},\"data\":{data}}}")
    };
    let of = |data: &str| body("\"type\":\"Added\",", data).into_bytes();
    let whole = of("{\"c\":\"x\"}");
    let mut latin = whole.clone();
    let at = latin.iter().rposition(|byte| *byte == b'x').expect("it is there");
    latin[at] = 0xfc;
    vec![
        (whole[..whole.len() - 3].to_vec(), "JSON"),
        (latin, "JSON"),
        (Vec::new(), "JSON"),
        (of("{\"c\":\"x\",\"c\":\"y\"}"), "JSON"),
        // The message is an object as well, so that this is one too deep.
        (of(&nested(DEPTH_MAX)), "JSON"),
        (of("{\"c\":.5}"), "JSON"),
        (of("{\"c\":NaN}"), "JSON"),
        ([&whole[..], b"{}"].concat(), "JSON"),
        (b"[]".to_vec(), "ENVELOPE"),
        (body("", "{}").into_bytes(), "ENVELOPE"),
        (body("\"type\":\"Added\",\"schema_version\":1.5,", "{}").into_bytes(), "ENVELOPE"),
        (br#"{"type":"Added","data":{"c":"x"},"metadata":{"correlation_id":""}}"#.to_vec(), "CORRELATION"),
        (br#"{"type":"Added","data":{"c":"x"},"metadata":{"correlation_id":["c"]}}"#.to_vec(), "CORRELATION"),
    ]
}

/// Publishes a body that need not be a text.
async fn bytes(world: &World, id: &str, body: &[u8]) {
    let outgoing = Publication {
        subject: "tenant.acme.aggregate.Order.x".to_owned(),
        message_id: id.to_owned(),
        headers: Headers::new(),
        payload: Bytes::copy_from_slice(body),
    };
    publish(&*world.broker, outgoing).await;
}

async fn started(mut world: World) -> World {
    world.apply(SAGA).await;
    world.follow().await;
    world.own();
    world
}

async fn letter(world: &World, correlation: &str, number: u64) -> DeadLetterRow {
    let key = LaneRowKey::dead(&correlation.parse().expect("a correlation"), number);
    let row = || world.row(key.as_str());
    let row = testkit::wait_until(row, testkit::PATIENCE, format!("a letter of {correlation}")).await;
    decode(&row).expect("a letter")
}

/// Publishes an event of a version of its schema.
async fn event(world: &World, id: &str, kind: &str, version: u32, correlation: &str, data: &str) {
    let body = format!(
        r#"{{"event_id":"{id}","type":"{kind}","schema_version":{version},"data":{data},"metadata":{{"correlation_id":"{correlation}"}}}}"#
    );
    world.raw("tenant.acme.aggregate.Order.x", id, &body).await;
}

async fn field(world: &World, correlation: &str, name: &str) -> Option<Json> {
    let record = world.record(correlation).await?;
    record.instance().and_then(|instance| instance.state.get(name).cloned())
}

async fn until_log(world: &World, correlation: &str, expected: &str) {
    let is =
        || async { (field(world, correlation, "log").await == Some(Json::text(expected))).then_some(()) };
    testkit::wait_until(is, testkit::PATIENCE, format!("{correlation} has {expected}")).await;
}

everywhere! {
    every_kind_of_poison_is_a_letter_with_its_reason 0;
    others_go_on_beside_every_kind_of_poison 1000;
}

async fn every_kind_of_poison_is_a_letter_with_its_reason(world: World, _: usize) {
    let mut world = started(world).await;
    let kinds = of_their_correlation();
    for (at, (kind, version, data, ..)) in kinds.iter().enumerate() {
        let correlation = format!("c-{at}");
        event(&world, &format!("o-{at}"), "Opened", 1, &correlation, "{}").await;
        event(&world, &format!("p-{at}"), kind, *version, &correlation, data).await;
        event(&world, &format!("q-{at}"), "Added", 1, &correlation, r#"{"c":"behind"}"#).await;
    }
    for (at, (_, _, data, code, why)) in kinds.iter().enumerate() {
        let correlation = format!("c-{at}");
        let DeadLetterRow { letter, input, raw, .. } = letter(&world, &correlation, 0).await;
        assert_eq!((letter.code.as_str(), letter.parks), (*code, true), "{data}");
        assert!(letter.why.contains(why), "{}", letter.why);
        assert!(input.is_some() != raw.is_some(), "one of them is kept");
        let parked = || async { world.record(&correlation).await.filter(|record| record.held.len() == 1) };
        let record = testkit::wait_until(parked, testkit::PATIENCE, "what is behind it waits").await;
        assert_eq!((record.parked_by, record.letters), (Some(0), 1));
        // Nothing of it was done.
        let instance = record.instance().expect("it runs");
        assert_eq!(
            (instance.revision, instance.status, instance.step.as_str()),
            (1, SagaStatus::Running, "wait")
        );
        let skip = SagaLaneRequest::Redrive {
            correlation: correlation.parse().expect("a correlation"),
            letter: 0,
            skip: true,
            data: None,
        };
        assert_eq!(
            summary(&world.send_request(&format!("r-{at}"), &correlation, skip).await),
            ("removed", None, 1, 0)
        );
        until_log(&world, &correlation, "behind").await;
    }
    assert_eq!((world.count(StoreTable::Dead).await, world.count(StoreTable::Parked).await), (0, 0));
    assert!(world.witness.calls().is_empty(), "no work of a refused input was ordered");

    // Data within the limits makes no dead letter: digits as they were written, and the largest depth.
    event(&world, "f-1", "Opened", 1, "fine", "{}").await;
    event(&world, "f-2", "Priced", 1, "fine", r#"{"n":12.50}"#).await;
    event(&world, "f-3", "Added", 1, "fine", &format!("{{\"c\":\"y\",\"a\":{}}}", nested(DEPTH_MAX - 2)))
        .await;
    until_log(&world, "fine", "y").await;
    assert_eq!(field(&world, "fine", "price").await, Some(Json::text("12.50")));

    // Messages without a correlation park none, not even the one that they name.
    let bodies = without_correlation("fine");
    for (at, (body, _)) in bodies.iter().enumerate() {
        bytes(&world, &format!("n-{at}"), body).await;
    }
    event(&world, "f-4", "Added", 1, "fine", r#"{"c":"z"}"#).await;
    until_log(&world, "fine", "yz").await;
    for (at, (body, code)) in bodies.iter().enumerate() {
        let DeadLetterRow { letter, raw, correlation, .. } = letter(&world, "-", at as u64).await;
        let body = String::from_utf8_lossy(body);
        assert_eq!((letter.code.as_str(), letter.parks, correlation), (*code, false, None), "{body}");
        assert_eq!(raw.map(|raw| raw.body), Some(body.into_owned()));
    }
    let fine = world.record("fine").await.expect("a record");
    assert_eq!((fine.parked_by, fine.letters, fine.held.len()), (None, 0, 0));
    event(&world, "f-5", "Closed", 1, "fine", "{}").await;
    world.wait_for("fine", "completed").await;
    assert_eq!(world.count(StoreTable::Dead).await, bodies.len());
}

/// Has so many orders opened and closed; gives how long it took and how many inputs were applied.
async fn orders(world: &mut World, name: &str, count: usize, beside: &[Vec<u8>]) -> (Duration, u64) {
    let (begin, before) = (Instant::now(), applied(world));
    for at in 0..count {
        let correlation = format!("{name}-{at}");
        event(world, &format!("o-{correlation}"), "Opened", 1, &correlation, "{}").await;
        if let Some(body) = beside.get(at) {
            bytes(world, &format!("n-{correlation}"), body).await;
        }
        event(world, &format!("p-{correlation}"), "Closed", 1, &correlation, "{}").await;
    }
    for at in 0..count {
        world.wait_for(&format!("{name}-{at}"), "completed").await;
    }
    (begin.elapsed(), applied(world) - before)
}

/// Inputs that were applied to instances.
pub(crate) fn applied(world: &World) -> u64 {
    let families = world.registry.gather();
    let family = families.iter().find(|family| family.name() == "mycora_saga_transitions_total");
    let metrics = family.map(|family| family.get_metric()).unwrap_or_default();
    let is_applied = |label: &prometheus::proto::LabelPair| label.value() == "applied";
    let of = metrics.iter().filter(|metric| metric.get_label().iter().any(is_applied));
    of.map(|metric| metric.get_counter().get_value()).sum::<f64>() as u64
}

async fn others_go_on_beside_every_kind_of_poison(world: World, others: usize) {
    let mut world = started(world).await;
    // As it is without poison.
    let (clean, expected) = orders(&mut world, "clean", others, &[]).await;
    assert_eq!(expected, 2 * others as u64);
    let kinds = of_their_correlation();
    let poisoned: BTreeSet<_> = (0..kinds.len()).map(|at| format!("bad-{at}")).collect();
    for (at, (kind, version, data, ..)) in kinds.iter().enumerate() {
        let correlation = format!("bad-{at}");
        event(&world, &format!("o-{correlation}"), "Opened", 1, &correlation, "{}").await;
        event(&world, &format!("p-{correlation}"), kind, *version, &correlation, data).await;
        event(&world, &format!("q-{correlation}"), "Closed", 1, &correlation, "{}").await;
    }
    for correlation in &poisoned {
        letter(&world, correlation, 0).await;
    }
    let uncorrelated: Vec<_> = without_correlation("beside-0").into_iter().map(|(body, _)| body).collect();
    let (beside, found) = orders(&mut world, "beside", others, &uncorrelated).await;
    println!("{others} orders took {clean:?} without poison and {beside:?} beside it");
    assert_eq!(
        found, expected,
        "each input of the others was applied once, and none of those behind a letter"
    );
    for at in 0..others {
        let record = world.record(&format!("beside-{at}")).await.expect("a record");
        assert_eq!((record.letters, record.parked_by, record.held.len()), (0, None, 0));
        let CorrelationEntry::Ended(tombstone) = record.entry else { panic!("{record:?}") };
        assert_eq!((tombstone.status, tombstone.revision), (SagaStatus::Completed, 2));
    }
    // All that is poisoned still waits as it did.
    for correlation in &poisoned {
        let record = world.record(correlation).await.expect("a record");
        assert_eq!((record.parked_by, record.letters, record.held.len()), (Some(0), 1, 1), "{correlation}");
        assert_eq!(record.instance().map(|instance| instance.revision), Some(1));
    }
    assert_eq!(world.count(StoreTable::Dead).await, poisoned.len() + uncorrelated.len());
    assert_eq!(world.count(StoreTable::Parked).await, poisoned.len());
}
