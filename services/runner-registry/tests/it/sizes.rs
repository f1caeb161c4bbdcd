//! However much is said of runners, everybody is told of all of them.

use std::collections::{BTreeMap, BTreeSet};

use model::{InstanceInfo, Presence, limits};
use proto::convert;
use proto::v1;
use proto::v1::watch_runners_response::Event;
use rpc::ErrorView;
use tonic::Code;

use crate::{ADDRESS, Suite, next, presence};

/// The longest labels that are allowed.
fn labels() -> BTreeMap<String, String> {
    let key = |number: usize| format!("{number:0>width$}", width = limits::LABEL_KEY_BYTES_MAX);
    (0..limits::LABELS_MAX).map(|number| (key(number), "v".repeat(limits::LABEL_VALUE_BYTES_MAX))).collect()
}

fn largest(context_id: u32, runner_id: u32, address: &str) -> v1::RegisterRunnerRequest {
    let (address, labels) = (address.to_owned(), labels());
    v1::RegisterRunnerRequest { context_id, runner_id, address, labels, ..Default::default() }
}

/// The most that a supervisor may say.
fn most() -> Presence {
    let instance = InstanceInfo { layers: vec!["l".repeat(400)], ..presence().instances[0].clone() };
    let mut most = Presence { instances: vec![instance; limits::PRESENCE_INSTANCES_MAX], ..presence() };
    most.truncate();
    assert!(most.check().is_ok() && most.bytes() > limits::PRESENCE_BYTES_MAX - 1000, "{}", most.bytes());
    most
}

/// How many bytes these runners have.
fn bytes(runners: &[v1::Runner]) -> usize {
    let view = |runner: &v1::Runner| convert::runner::from_wire(runner.clone()).expect("a runner");
    runners.iter().map(|runner| convert::runner::wire_bytes(&view(runner))).sum()
}

#[tokio::test]
async fn the_largest_runners_hide_none_of_the_others() {
    let suite = Suite::start();
    // Those of the first supervisor have a presence as well.
    for id in 1..=8 {
        suite.actor(1).register_runner(largest(1, id, ADDRESS)).await.expect("within the limits");
    }
    for id in 9..=80 {
        suite.actor(1).register_runner(largest(1, id, "grpc://other:1")).await.expect("within the limits");
    }
    suite.register(2, 1).await;
    let gateway = suite.gateway().await;
    gateway.send(Some(&most())).await;

    // Services are told of each of them, in parts that they can read.
    let mut live = BTreeSet::new();
    let mut view = suite.watch().await;
    while live.len() < 9 {
        let part = next(&mut view).await;
        let runners: Vec<_> = part.iter().map(|(_, runner)| runner.clone()).collect();
        assert!(bytes(&runners) <= limits::PAGE_BYTES_MAX);
        live.extend(
            part.into_iter().filter(|(_, runner)| runner.live).map(|(context, runner)| (context, runner.id)),
        );
    }
    assert!(live.contains(&(2, 1)));
    let mut snapshot = BTreeSet::new();
    let mut view = suite.watch().await;
    loop {
        let part = view.message().await.expect("no error").expect("no end");
        if part.snapshot_end {
            break;
        }
        snapshot
            .extend(part.runners.iter().filter_map(|viewed| viewed.runner.as_ref()).map(|runner| runner.id));
    }
    assert!(snapshot.into_iter().eq(1..=80));

    // So are actors, page by page and one by one.
    let mut found = Vec::new();
    let mut request = v1::ListRunnersRequest { context_id: 1, page_size: 1000, page_token: String::new() };
    loop {
        let page = suite.actor(1).list_runners(request.clone()).await.expect("a page").into_inner();
        assert!(bytes(&page.runners) <= limits::PAGE_BYTES_MAX && !page.runners.is_empty());
        found.extend(page.runners.iter().map(|runner| runner.id));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert!(found.into_iter().eq(1..=80));
    let one = suite.actor(1).get_runner(v1::GetRunnerRequest { context_id: 1, runner_id: 80 }).await;
    assert_eq!(one.expect("found").into_inner().runner.expect("given").labels, labels());
    let request = v1::WatchRunnersRequest { context_id: 1, ..Default::default() };
    let mut watched = suite.actor(1).watch_runners(request).await.expect("a reader").into_inner();
    let mut seen = BTreeSet::new();
    loop {
        match watched.message().await.expect("no error").expect("no end").event.expect("given") {
            Event::Runner(runner) => seen.insert(runner.id),
            Event::SnapshotEnd(_) => break,
            other => panic!("{other:?}"),
        };
    }
    assert!(seen.into_iter().eq(1..=80));
}

#[tokio::test]
async fn a_record_from_before_the_limits_is_sent_unless_it_exceeds_a_message() {
    let suite = Suite::start();
    {
        let mut kept = suite.storage.0.lock().expect("not poisoned");
        let old = |id: u32, bytes: usize| v1::Runner {
            id,
            address: ADDRESS.into(),
            labels: BTreeMap::from([("k".to_owned(), "v".repeat(bytes))]),
            ..Default::default()
        };
        for (id, bytes) in [(1, 3_000_000), (2, limits::GRPC_MESSAGE_BYTES_MAX + 100), (3, 3_000_000)] {
            kept.records.insert((1, id), old(id, bytes));
        }
    }
    suite.register(1, 4).await;
    let mut view = suite.watch().await;
    let mut received = Vec::new();
    while received.last() != Some(&4) {
        received.extend(next(&mut view).await.into_iter().map(|(_, runner)| runner.id));
    }
    assert_eq!(received, [1, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_presence_over_the_limits_is_ignored() {
    let suite = Suite::start();
    suite.register(1, 1).await;
    let mut view = suite.watch().await;
    assert!(!next(&mut view).await[0].1.live);
    let gateway = suite.gateway().await;
    let mut much = most();
    much.instances.extend(vec![presence().instances[0].clone(); 10]);
    gateway.send(Some(&much)).await;
    gateway.send(Some(&presence())).await;
    let received = next(&mut view).await;
    assert_eq!((received[0].1.live, received[0].1.instances.len()), (true, 1), "{}", much.instances.len());
}

#[tokio::test]
async fn every_problem_of_a_registration_is_listed_at_once() {
    let suite = Suite::start();
    let fields = |status: tonic::Status| -> Vec<String> {
        let refused = ErrorView::from(&status);
        assert_eq!(refused.code, Code::InvalidArgument);
        refused.violations.into_iter().map(|violation| violation.field).collect()
    };
    let mut long = largest(1, 1, &format!("grpc://{}:1", "h".repeat(limits::HOST_BYTES_MAX + 1)));
    long.labels = BTreeMap::from([("k".to_owned(), "v".repeat(2_500_000))]);
    long.request_id = "two words".into();
    let refused = suite.actor(1).register_runner(long).await.expect_err("beyond three limits");
    assert_eq!(fields(refused), ["request_id", "address", "labels[k]"]);
    let change = v1::UpdateRunnerRequest {
        context_id: 1,
        runner_id: 1,
        request_id: "two words".into(),
        address: "nowhere".into(),
        ..Default::default()
    };
    let refused = suite.actor(1).update_runner(change).await.expect_err("two mistakes");
    assert_eq!(fields(refused), ["request_id", "address"]);
}
