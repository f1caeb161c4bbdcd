//! The process dies at each of its crash points, and everything ends as if it had not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use futures_util::StreamExt as _;
use testkit::{NatsServer, PATIENCE, Process};

use crate::process::{self, Upstream};
use crate::streams::{Projection, connect, publish_event};

/// Points that the test's sagas do not come by, and why.
const ELSEWHERE: [(&str, &str); 2] = [
    ("command.sent", "commands of aggregates need their gateway, by gRPC with TLS"),
    ("verb.published", "callers need storage, which knows them"),
];

const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text, payment: optional text }
sources: [{ aggregate: Order }, { aggregate: Payment }]
on_missing: { Paid: { park: 10m } }
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: reserve }
steps:
  reserve:
    effect: reserve
    input: { order: "${{ state.id }}" }
    on_success: { set: { payment: "${{ result.id }}" }, goto: wait }
    compensate: { effect: release, input: { order: "${{ state.id }}" } }
  wait:
    timers: { pay-by: { due: "now + 400", raise: NotPaid } }
    on:
      Paid: [{ when: event.data.ok, goto: ship }, { dead_letter: not ok }]
      NotPaid: { compensate: not paid }
  ship: { pivot: true, effect: ship, input: { order: "${{ state.id }}" }, on_success: { goto: tell } }
  tell: { effect: tell, input: { order: "${{ state.id }}" }, on_done: { end: completed } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
  reserve: { request: { method: POST, path: /reserve, body: "${{ input }}" }, retry: { initial: 1ms } }
  release: { request: { method: POST, path: /release, body: "${{ input }}" }, retry: { initial: 1ms } }
  ship: { request: { method: POST, path: /ship, body: "${{ input }}" }, retry: { initial: 1ms } }
  tell: { request: { method: POST, path: /tell, body: "${{ input }}" }, unknown_outcome: fail }
"#;

/// Points that the code has.
fn points() -> BTreeSet<String> {
    let mut points = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("sources").flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).expect("a text");
            let mut rest = text.as_str();
            while let Some((_, behind)) = rest.split_once("service::crash_point(") {
                let end = behind.find(");").expect("it ends");
                points.extend(behind[..end].split('"').skip(1).step_by(2).map(str::to_owned));
                rest = behind;
            }
        }
    }
    points
}

fn start(dir: &Path, nats: &NatsServer, crash_at: Option<String>) -> Process {
    let mut command = process::command(dir, nats);
    command
        .args(["--ops-listen", "127.0.0.1:0", "--drain-secs", "5"])
        .arg("--store-dir")
        .arg(dir.join("store"));
    if let Some(place) = crash_at {
        command.env("MYCORA_CRASH_AT", place);
    }
    Process::spawn("mycora-saga", &mut command)
}

/// Four orders: paid, not paid, one whose payment is poison, and one that is poison itself; gives what was called.
async fn run(nats: &NatsServer, point: Option<(&str, u32)>) -> BTreeMap<String, (String, String, usize)> {
    let (dir, upstream) = (tempfile::tempdir().expect("a directory"), Upstream::start());
    process::prepare(dir.path(), MANIFEST, &upstream);
    let broker = connect(nats).await;
    let mut projection = Projection::open(&broker).await;
    // Events are those of sagas that were in force before them.
    let mut first = start(dir.path(), nats, None);
    first.wait_for_line("definitions are in force", PATIENCE);
    first.terminate();
    assert!(first.wait(PATIENCE).success(), "{}", first.output());
    let mut process = start(dir.path(), nats, point.map(|(name, nth)| format!("{name}:{nth}")));
    for order in ["paid", "late", "poison"] {
        let data = format!("{{\"id\":\"{order}\"}}");
        publish_event(&*broker, "Order", &format!("p-{order}"), "OrderPlaced", order, &data).await;
    }
    publish_event(&*broker, "Order", "p-bad", "OrderPlaced", "bad", "{\"id\":7}").await;
    // They are stored before the timers are over, however long it takes until they are read.
    publish_event(&*broker, "Payment", "q-paid", "Paid", "paid", "{\"ok\":true}").await;
    publish_event(&*broker, "Payment", "q-poison", "Paid", "poison", "{\"ok\":false}").await;
    let mut restarts = 0;
    let mut seen = BTreeSet::new();
    let wanted: BTreeSet<_> = [("paid", "completed"), ("late", "compensated")].into();
    let begin = std::time::Instant::now();
    while !wanted.iter().all(|(order, end)| seen.contains(&((*order).to_owned(), (*end).to_owned()))) {
        assert!(begin.elapsed() < 2 * PATIENCE, "{point:?}: {seen:?}\n{}", process.output());
        if !process.is_running() {
            assert!(point.is_some() && restarts == 0, "{point:?}\n{}", process.output());
            restarts += 1;
            process = start(dir.path(), nats, None);
        }
        if let Some(fact) = projection.next_soon().await {
            seen.insert((fact.correlation.to_string(), fact.kind.clone()));
        }
    }
    process.terminate();
    if let Some((name, nth)) = point {
        println!("{name}:{nth} restarted {restarts}");
    }
    upstream.by_key()
}

/// What was done for an order: paths, each key once.
fn deeds(calls: &BTreeMap<String, (String, String, usize)>, order: &str) -> Vec<String> {
    let of = calls.values().filter(|(_, body, _)| body.contains(order));
    let mut deeds: Vec<_> = of.map(|(path, ..)| path.clone()).collect();
    deeds.sort();
    deeds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_at_any_point_goes_on_as_if_it_had_not() {
    let points = points();
    let elsewhere: BTreeSet<_> = ELSEWHERE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert!(elsewhere.is_subset(&points) && points.len() >= 18, "{points:?}");
    let visits = points.difference(&elsewhere).flat_map(|point| (1..=3).map(move |nth| (point.clone(), nth)));
    // Several at a time: most of their time they wait.
    futures_util::stream::iter(visits).for_each_concurrent(4, |(point, nth)| die_at(point, nth)).await;
}

async fn die_at(point: String, nth: u32) {
    let nats = NatsServer::start();
    let calls = run(&nats, Some((&point, nth))).await;
    // For one that may be called once at most, nobody knows when its process died with it.
    assert_eq!(deeds(&calls, "late"), ["/release", "/reserve"], "{point}:{nth}");
    let paid = deeds(&calls, "paid");
    assert!(
        paid == ["/reserve", "/ship", "/tell"] || (point == "effect.intent" && paid == ["/reserve", "/ship"]),
        "{point}:{nth} {paid:?}"
    );
    let told = calls.values().filter(|(path, ..)| path == "/tell").map(|(.., times)| *times);
    assert!(told.max().unwrap_or(0) <= 1, "{point}:{nth}: it may be called once at most");
}
