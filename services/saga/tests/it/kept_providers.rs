//! A reload that changes nothing about a provider leaves its lanes and its calls alone.

use testkit::{NatsServer, PATIENCE, wait_until};

use crate::process::{ReplicaProcess, Upstream, prepare};
use crate::replicas::{LANES, MANIFEST};
use crate::streams::{Projection, connect, publish_event};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_survives_a_reload_of_unchanged_providers() {
    let (nats, dir, upstream) =
        (NatsServer::start(), tempfile::tempdir().expect("a directory"), Upstream::start());
    prepare(dir.path(), MANIFEST, &upstream);
    let broker = connect(&nats).await;
    let mut projection = Projection::open(&broker).await;
    let mut process = ReplicaProcess::start_alone(dir.path(), &nats, "combined");
    process.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    upstream.hold("/ship");
    publish_event(&*broker, "Order", "p-1", "OrderPlaced", "one", "{\"id\":\"one\"}").await;
    wait_until(async || (upstream.count("/ship") == 1).then_some(()), PATIENCE, "the call is made").await;
    let taken = process.metric("taken_total").expect("a number");
    // Once as before, and once with another version of the saga.
    let file = dir.path().join("manifests/order.yaml");
    let same = std::fs::read_to_string(&file).expect("a manifest");
    for text in [same.clone(), same.replace("version: 1\n", "version: 2\n")] {
        std::fs::write(&file, text).expect("written");
        process.process.hang_up();
        process.process.wait_for_line("manifests and tenants were read again", PATIENCE);
    }
    let sagas = 8.0;
    let again = async || (process.metric("taken_total")? == taken + sagas).then_some(());
    wait_until(again, PATIENCE, "lanes of the saga read other sources").await;
    process.until_lanes(|lanes| lanes == LANES, "it has all lanes again").await;
    upstream.release();
    wait_until(async || (upstream.count("/tell") == 1).then_some(()), PATIENCE, "the order goes on").await;
    let ended = async { while projection.next_soon().await.is_none_or(|fact| fact.kind != "completed") {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
    assert_eq!(upstream.count("/ship"), 1, "nobody asked twice");
    let unknown = process.metric("unknown_outcomes_total").unwrap_or_default();
    assert!(unknown == 0.0, "{unknown} calls were cut");
}
