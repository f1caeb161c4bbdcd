//! Clocks that are wrong: those of replicas over one Redis change nothing, and that of a store of one process is watched.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use identity::{Identity, IssueOptions, Pki, ServiceName, TrustDomain};
use model::Timestamp;
use saga::placement::SagaReplicaRole;
use tempfile::TempDir;
use testkit::{NatsServer, PATIENCE, RedisServer, TestProcess, wait_until};

use crate::clock::{ClockByHand, SetForward};
use crate::hooked_store::HookedStore;
use crate::process::{Upstream, command};
use crate::served::{Rows, Served, ServiceOptions};
use crate::streams::{aggregates, connect, publish_event};
use crate::world::TENANT;

/// How long an order waits to be paid.
const PAY_WITHIN: Duration = Duration::from_secs(3);
const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
shards: 4
state: { id: text }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: wait }
steps:
  wait:
    timers: { pay-by: { after: 3s, raise: NotPaid } }
    on: { Paid: { goto: ship }, NotPaid: { goto: release } }
  ship: { effect: ship, input: { order: "${{ state.id }}" }, on_success: { end: completed } }
  release: { effect: release, input: { order: "${{ state.id }}" }, on_success: { end: completed } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
  ship: { request: { method: POST, path: /ship, body: "${{ input }}" } }
  release: { request: { method: POST, path: /release, body: "${{ input }}" } }
"#;

/// The library that gives a process another clock: `apt-get install faketime`.
fn faketime() -> Option<PathBuf> {
    let of = |dir: std::fs::DirEntry| {
        let file = dir.path().join("faketime/libfaketimeMT.so.1");
        file.exists().then_some(file)
    };
    std::fs::read_dir("/usr/lib").ok()?.flatten().find_map(of)
}

/// Writes what processes read. Certificates are good also by a clock that is late.
fn prepare(upstream: &Upstream) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("manifests")).expect("made");
    let manifest = MANIFEST.replace("ADDRESS", &upstream.address);
    std::fs::write(dir.path().join("manifests/order.yaml"), manifest).expect("written");
    std::fs::write(dir.path().join("tenants.yaml"), format!("{TENANT}: {{ context: 1 }}\n"))
        .expect("written");
    let before = SystemTime::now() - Duration::from_secs(3600);
    let pki = Pki::init(&dir.path().join("pki"), &TrustDomain::default(), before).expect("an authority");
    pki.issue(Identity::Service(ServiceName::Saga), &IssueOptions::from(before)).expect("issued");
    dir
}

/// Starts a replica whose clock is so far off, and waits until it has what it needs.
fn start(
    off: &str,
    name: &str,
    (dir, nats, redis): (&TempDir, &NatsServer, &RedisServer),
    library: &PathBuf,
) -> TestProcess {
    let mut command: Command = command(dir.path(), nats);
    command
        .args(["--redis-url", &redis.tcp_url(), "--replica", name])
        .arg("--ops-listen")
        .arg(format!("unix:{}", dir.path().join(format!("{name}.sock")).display()))
        .env("LD_PRELOAD", library)
        .env("FAKETIME", off)
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let mut process = TestProcess::spawn(name, &mut command);
    let line = process.wait_for_line("saga started", PATIENCE);
    let (now, logged) = (Timestamp::now(), line.split([' ', '"']).find_map(Timestamp::from_rfc3339));
    let logged = logged.expect("the moment by its clock");
    assert!(
        logged.since(now).max(now.since(logged)) > Duration::from_secs(540),
        "its clock is not off: {line}"
    );
    process
}

/// Places orders of which every second one is paid, and waits until they have ended as they should, each at its time.
async fn order(broker: &dyn broker::MessageBroker, upstream: &Upstream, name: &str) {
    const ORDERS: usize = 20;
    let (shipped, released) = (upstream.count("/ship"), upstream.count("/release"));
    let begin = Instant::now();
    for number in 0..ORDERS {
        let (id, data) = (format!("{name}-{number}"), format!(r#"{{"id":"{name}-{number}"}}"#));
        publish_event(broker, "Order", &format!("placed-{id}"), "OrderPlaced", &id, &data).await;
        if number % 2 == 0 {
            publish_event(broker, "Order", &format!("paid-{id}"), "Paid", &id, "{}").await;
        }
    }
    let all = async || {
        let (ship, release) = (upstream.count("/ship") - shipped, upstream.count("/release") - released);
        // What was counted before the first of them could be due, was too early.
        assert!(
            begin.elapsed() > PAY_WITHIN || release == 0,
            "{release} released after {:?}",
            begin.elapsed()
        );
        (ship + release >= ORDERS).then_some((ship, release))
    };
    let ended = wait_until(all, 2 * PATIENCE, "all orders have come to their end").await;
    assert_eq!(ended, (ORDERS / 2, ORDERS / 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_ten_minutes_ahead_and_behind_fire_at_the_time_of_their_store() {
    let Some(library) = faketime() else {
        println!(
            "left out: clocks of processes cannot be set; `apt-get install faketime` has what sets them"
        );
        return;
    };
    let (nats, redis) = (NatsServer::start(), RedisServer::builder().tcp().persistent().start());
    let upstream = Upstream::start();
    let dir = prepare(&upstream);
    let broker = connect(&nats).await;
    broker.ensure_stream(&aggregates()).await.expect("a stream");
    let on = (&dir, &nats, &redis);
    let mut ahead = start("+10m", "ahead", on, &library);
    order(&*broker, &upstream, "ahead").await;
    let mut behind = start("-10m", "behind", on, &library);
    order(&*broker, &upstream, "both").await;
    // Work under way passes to the replica whose clock is behind.
    for number in 0..4 {
        let (id, data) = (format!("left-{number}"), format!(r#"{{"id":"left-{number}"}}"#));
        publish_event(&*broker, "Order", &format!("placed-{id}"), "OrderPlaced", &id, &data).await;
    }
    let released = upstream.count("/release");
    ahead.kill9();
    let left = async || (upstream.count("/release") == released + 4).then_some(());
    wait_until(left, 2 * PATIENCE, "what was left is released").await;
    order(&*broker, &upstream, "behind").await;
    // Each order was called for once, by either replica: 60 orders, and four that were left.
    let by_key = upstream.by_key();
    assert_eq!((by_key.len(), upstream.calls().len()), (64, 64));
    assert!(behind.is_running());
    behind.kill9();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_clock_that_is_set_back_is_counted() {
    let clock = SetForward::default();
    let by_hand = clock.clone();
    let with = ServiceOptions {
        rows: Rows::Directory,
        role: SagaReplicaRole { sagas: true, effects: false },
        store: Some(Box::new(move |_, store| HookedStore::over(store, ClockByHand(by_hand)))),
        ..ServiceOptions::default()
    };
    let served = Served::with(with).await;
    let was_set_back = async |times: f64| {
        let is_counted = async || (served.metric("clock_went_back_total") >= times).then_some(());
        wait_until(is_counted, PATIENCE, format!("it is told {times} times")).await;
        assert_eq!(served.metric("clock_went_back_total"), times);
    };
    was_set_back(0.0).await;
    clock.back(Duration::from_secs(2));
    was_set_back(1.0).await;
    // Ahead is no alarm.
    clock.forward(Duration::from_secs(600));
    let beats = async |count: u64| {
        let wanted = clock.looks() + count;
        let beaten = async || (clock.looks() >= wanted).then_some(());
        wait_until(beaten, PATIENCE, "it goes on").await;
    };
    beats(5).await;
    was_set_back(1.0).await;
    clock.back(Duration::from_secs(600));
    was_set_back(2.0).await;
}
