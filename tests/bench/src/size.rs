//! Cost of size: one very large flow, and very many that wait.

use std::time::{Duration, Instant};

use proto::v1::NodeSpec;

use crate::client::{Client, no_op};
use crate::processes::{AllInOne, Separate, peak_bytes, processor_time, resident_bytes};
use crate::report::Report;

type Error = Box<dyn std::error::Error + Send + Sync>;

const LAYERS: u32 = 100;
const WIDTH: u32 = 1000;
/// Nodes of the large flow.
pub(crate) const NODES: u32 = LAYERS * WIDTH;
/// Nodes of the layer before that each node depends on.
const DEPENDS: u32 = 10;
const WAITING: u32 = 100_000;
const SETTLED: Duration = Duration::from_secs(10);
const WATCHED: Duration = Duration::from_secs(60);

/// One flow of 100,000 nodes in layers of 1000, through separate processes.
pub(crate) async fn large(report: &mut Report) -> Result<(), Error> {
    let dir = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
    let suite = Separate::start(dir.path())?;
    let client = Client::connect(&suite.profile()?)?;
    let before = suite.redis_bytes()?;
    eprintln!("creating a flow of {NODES} nodes");
    let begin = Instant::now();
    let flow = create(&client).await?;
    let created = begin.elapsed();
    let begin = Instant::now();
    client.start(flow).await?;
    let started = begin.elapsed();
    eprintln!("running it");
    let begin = Instant::now();
    client.wait(flow).await?;
    let ran = begin.elapsed();
    let scheduler = peak_bytes(suite.pid("scheduler")?)?;
    let storage = peak_bytes(suite.pid("storage")?)?;
    report.large(NODES, (created, started, ran), (scheduler, storage), suite.redis_bytes()? - before);
    Ok(())
}

/// Creates the flow and adds its nodes; gives its id.
pub(crate) async fn create(client: &Client) -> Result<u32, Error> {
    let flow = client.create("large", NODES).await?;
    for layer in 0..LAYERS {
        let nodes: Vec<NodeSpec> = (0..WIDTH).map(|i| node(layer, i)).collect();
        client.add(flow.id, layer * WIDTH, nodes).await?;
    }
    Ok(flow.id)
}

fn node(layer: u32, i: u32) -> NodeSpec {
    let depends = match layer.checked_sub(1) {
        Some(before) => (0..DEPENDS).map(|d| format!("n{before}-{}", (i + d) % WIDTH)).collect(),
        None => Vec::new(),
    };
    no_op(format!("n{layer}-{i}"), depends)
}

/// 100,000 flows that wait for a signal, in an all-in-one: what it and Redis use in a minute.
pub(crate) async fn waiting(report: &mut Report) -> Result<(), Error> {
    let dir = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
    let suite = AllInOne::start(dir.path())?;
    let client = Client::connect(&suite.profile()?)?;
    eprintln!("submitting {WAITING} flows that wait for a signal");
    let begin = Instant::now();
    let node = NodeSpec { prerequisites: vec!["signal:go".into()], ..no_op("only".into(), Vec::new()) };
    crate::load::submit_many(&client, WAITING, 64, &node).await?;
    let submitted = begin.elapsed();
    // What is still being written down is not idleness.
    tokio::time::sleep_until(tokio::time::Instant::now() + SETTLED).await;
    let redis = suite.redis_pid()?;
    let used = || -> Result<(Duration, Duration), Error> {
        Ok((processor_time(suite.pid())?, processor_time(redis)?))
    };
    let before = used()?;
    eprintln!("watching it for {} s", WATCHED.as_secs());
    tokio::time::sleep_until(tokio::time::Instant::now() + WATCHED).await;
    let after = used()?;
    let share = |after: Duration, before: Duration| (after - before).as_secs_f64() / WATCHED.as_secs_f64();
    let begin = Instant::now();
    client.signal(1, "go").await?;
    client.wait(1).await?;
    let woke = begin.elapsed();
    report.waiting(
        WAITING,
        submitted,
        (share(after.0, before.0), share(after.1, before.1)),
        (resident_bytes(suite.pid())?, resident_bytes(redis)?),
        woke,
    );
    Ok(())
}
