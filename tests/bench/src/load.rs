//! The loads that are measured.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proto::v1::NodeSpec;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::client::{Client, no_op};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Runs chains of dependent nodes, one after the other; gives each one's time per step.
pub(crate) async fn chain(client: &Client, length: u32, runs: usize) -> Result<Vec<Duration>, Error> {
    let nodes = chain_of(length);
    let mut steps = Vec::with_capacity(runs);
    for _ in 0..runs {
        steps.push(timed(client, "chain", nodes.clone()).await? / length);
    }
    Ok(steps)
}

/// Nodes of which each depends on the one before.
pub(crate) fn chain_of(length: u32) -> Vec<NodeSpec> {
    let before = |i: u32| i.checked_sub(1).map(|before| format!("n{before}")).into_iter().collect();
    (0..length).map(|i| no_op(format!("n{i}"), before(i))).collect()
}

/// Runs a root, `width` nodes after it and a join; gives the times of whole flows.
pub(crate) async fn fan_out(client: &Client, width: u32, runs: usize) -> Result<Vec<Duration>, Error> {
    let mut nodes = vec![no_op("root".into(), Vec::new())];
    nodes.extend((0..width).map(|i| no_op(format!("n{i}"), vec!["root".into()])));
    nodes.push(no_op("join".into(), (0..width).map(|i| format!("n{i}")).collect()));
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        times.push(timed(client, "fan-out", nodes.clone()).await?);
    }
    Ok(times)
}

pub(crate) async fn timed(client: &Client, name: &str, nodes: Vec<NodeSpec>) -> Result<Duration, Error> {
    let begin = Instant::now();
    let flow = client.submit(name, nodes).await?;
    client.wait(flow.id).await?;
    Ok(begin.elapsed())
}

/// Submits flows of one job each, `at_once` under way; gives the flows per second.
pub(crate) async fn single(client: &Client, count: u32, at_once: usize) -> Result<f64, Error> {
    let permits = Arc::new(Semaphore::new(at_once));
    let mut tasks = JoinSet::new();
    let begin = Instant::now();
    for _ in 0..count {
        let permit = Arc::clone(&permits).acquire_owned().await?;
        let client = client.clone();
        tasks.spawn(async move {
            let _permit = permit;
            timed(&client, "single", vec![no_op("only".into(), Vec::new())]).await
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(f64::from(count) / begin.elapsed().as_secs_f64())
}

/// Submits flows of one node, each when the one before has ended; gives the times from the call to the script's
/// start, by the machine's one clock in whole milliseconds, and to the flow's end.
pub(crate) async fn one_by_one(
    client: &Client,
    count: usize,
    node: &NodeSpec,
) -> Result<(Vec<Duration>, Vec<Duration>), Error> {
    let (mut to_start, mut whole) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let (begin, clock) = (SystemTime::now().duration_since(UNIX_EPOCH)?, Instant::now());
        let flow = client.submit("latency", vec![node.clone()]).await?;
        client.wait(flow.id).await?;
        whole.push(clock.elapsed());
        let start = Duration::from_millis(client.first_start_millis(flow.id).await?);
        to_start.push(start.saturating_sub(begin));
    }
    Ok((to_start, whole))
}

/// Submits flows of one node, `at_once` under way, and does not wait for their ends.
pub(crate) async fn submit_many(
    client: &Client,
    count: u32,
    at_once: usize,
    node: &NodeSpec,
) -> Result<(), Error> {
    let permits = Arc::new(Semaphore::new(at_once));
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let permit = Arc::clone(&permits).acquire_owned().await?;
        let (client, node) = (client.clone(), node.clone());
        tasks.spawn(async move {
            let _permit = permit;
            client.submit("waits", vec![node]).await.map(drop)
        });
        while let Some(ended) = tasks.try_join_next() {
            ended??;
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}
