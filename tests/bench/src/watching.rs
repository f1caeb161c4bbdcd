//! Cost of one watch of all flows, and the delay with which it reports their ends.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::Timestamp;
use proto::v1::watch_flows_response::Event;
use proto::v1::{FlowSnapshot, FlowStatus, NodeSpec, WatchFlowsRequest, WatchFlowsResponse};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::Streaming;

use crate::client::{Client, no_op};
use crate::processes::{AllInOne, processor_time, resident_bytes};
use crate::report::Report;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Default number of flows under way.
pub(crate) const FLOWS: u32 = 10_000;
const AT_ONCE: usize = 64;
/// Flows that end one after the other while all others wait.
const ALONE: usize = 300;
/// The name that the client gives to flows which wait.
const NAME: &str = "waits";

/// Measured cost of a watch.
pub(crate) struct Watched {
    pub(crate) flows: u32,
    /// Processor time of suite and Redis, for one flow from its signal to its end: without a watch, and with one.
    pub(crate) used: [(Duration, Duration); 2],
    /// How long that took for all of them.
    pub(crate) took: [Duration; 2],
    /// From the commit of an end to its notification: one at a time, and all at once.
    pub(crate) delays: [Vec<Duration>; 2],
    /// The snapshot of all of them.
    pub(crate) snapshot: Duration,
    /// Growth of the suite's memory since before the watch, in bytes.
    pub(crate) suite_bytes: u64,
    /// The stream of events, in bytes for each flow, from its submission to its end.
    pub(crate) events_bytes: u64,
}

/// Ends flows in an all-in-one, once without a watcher and once while one client watches all.
pub(crate) async fn measure(report: &mut Report, flows: u32) -> Result<(), Error> {
    let dir = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
    let suite = AllInOne::start(dir.path())?;
    let client = Client::connect(&suite.profile()?)?;
    let node = NodeSpec { prerequisites: vec!["signal:go".into()], ..no_op("only".into(), Vec::new()) };
    let redis = suite.redis_pid()?;
    let used = || -> Result<(Duration, Duration), Error> {
        Ok((processor_time(suite.pid())?, processor_time(redis)?))
    };
    let each = |after: (Duration, Duration), before: (Duration, Duration)| {
        ((after.0 - before.0) / flows, (after.1 - before.1) / flows)
    };
    let events_before = events_bytes(dir.path())?;
    eprintln!("submitting {flows} flows, and ending them unseen");
    crate::load::submit_many(&client, flows, AT_ONCE, &node).await?;
    let (before, begin) = (used()?, Instant::now());
    signal_all(&client, 1..=flows).await?;
    ended_all(&client).await?;
    let unseen = (each(used()?, before), begin.elapsed());
    let events_bytes = (events_bytes(dir.path())? - events_before) / u64::from(flows);

    eprintln!("submitting as many, and ending them under a watch");
    let count = flows + u32::try_from(ALONE)?;
    crate::load::submit_many(&client, count, AT_ONCE, &node).await?;
    let (memory, begin) = (resident_bytes(suite.pid())?, Instant::now());
    let mut answers = watch(&client, FlowSnapshot::Open).await?;
    let open = snapshot(&mut answers).await?;
    let snapshot = begin.elapsed();
    let (alone, rest): (Vec<u32>, Vec<u32>) =
        (open.iter().take(ALONE).copied().collect(), open.iter().skip(ALONE).copied().collect());
    let mut delays = [Vec::new(), Vec::new()];
    for flow in alone {
        client.signal(flow, "go").await?;
        delays[0].extend(ends(&mut answers, 1).await?);
    }
    let (before, begin) = (used()?, Instant::now());
    let reading = tokio::spawn(async move { ends(&mut answers, flows as usize).await });
    signal_all(&client, rest).await?;
    delays[1] = reading.await??;
    let seen = (each(used()?, before), begin.elapsed());
    let suite_bytes = resident_bytes(suite.pid())?.saturating_sub(memory);
    let (used, took) = ([unseen.0, seen.0], [unseen.1, seen.1]);
    report.watched(Watched { flows, used, took, delays, snapshot, suite_bytes, events_bytes });
    Ok(())
}

async fn watch(client: &Client, snapshot: FlowSnapshot) -> Result<Streaming<WatchFlowsResponse>, Error> {
    let request = WatchFlowsRequest {
        name_prefix: NAME.to_owned(),
        snapshot: snapshot.into(),
        ..WatchFlowsRequest::default()
    };
    client.watch_all(request).await
}

/// The flows of a snapshot that have not ended.
async fn snapshot(answers: &mut Streaming<WatchFlowsResponse>) -> Result<BTreeSet<u32>, Error> {
    let mut open = BTreeSet::new();
    while let Some(answer) = answers.message().await? {
        match answer.event {
            Some(Event::Flow(flow)) if flow.status() == FlowStatus::Started => {
                open.insert(flow.id);
            }
            Some(Event::Flow(flow)) => {
                open.remove(&flow.id);
            }
            Some(Event::SnapshotEnd(_)) => return Ok(open),
            _ => {}
        }
    }
    Err("the watch ended".into())
}

/// How late this many ends are reported.
async fn ends(answers: &mut Streaming<WatchFlowsResponse>, count: usize) -> Result<Vec<Duration>, Error> {
    let mut delays = Vec::with_capacity(count);
    while delays.len() < count {
        let answer = answers.message().await?.ok_or("the watch ended")?;
        let Some(Event::Flow(flow)) = answer.event else { continue };
        if flow.status() == FlowStatus::Finished {
            let time = flow.update_time.ok_or("an end without a time")?;
            let at = u64::try_from(time.seconds)? * 1000 + u64::try_from(time.nanos)? / 1_000_000;
            delays.push(Timestamp::now().since(Timestamp::from_millis(at)));
        }
    }
    Ok(delays)
}

async fn signal_all(client: &Client, flows: impl IntoIterator<Item = u32>) -> Result<(), Error> {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for flow in flows {
        let permit = Arc::clone(&permits).acquire_owned().await?;
        let client = client.clone();
        tasks.spawn(async move {
            let _permit = permit;
            client.signal(flow, "go").await
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

/// Waits until none of the flows is open: nearly all have ended when it is called.
async fn ended_all(client: &Client) -> Result<(), Error> {
    let mut answers = watch(client, FlowSnapshot::Open).await?;
    let mut open = snapshot(&mut answers).await?;
    while !open.is_empty() {
        let answer = answers.message().await?.ok_or("the watch ended")?;
        if let Some(Event::Flow(flow)) = answer.event
            && flow.status() == FlowStatus::Finished
        {
            open.remove(&flow.id);
        }
    }
    Ok(())
}

/// Returns the bytes that the stream of events of context 1 takes in Redis.
fn events_bytes(dir: &Path) -> Result<u64, Error> {
    let password = std::fs::read_to_string(dir.join("redis.password"))?;
    let reply = Command::new("redis-cli")
        .env("REDISCLI_AUTH", password.trim())
        .arg("-s")
        .arg(dir.join("redis.sock"))
        .args(["-n", "1"])
        .args(["MEMORY", "USAGE", "events", "SAMPLES", "0"])
        .output()?;
    Ok(String::from_utf8(reply.stdout)?.trim().parse().unwrap_or_default())
}
