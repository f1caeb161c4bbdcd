//! Cost and effect of bounds on ended flows: flows of five jobs run until most have been removed, beside single flows of another
//! context that are timed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proto::v1::GetContextUsageResponse;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::client::{Client, no_op};
use crate::load::{chain_of, one_by_one};
use crate::processes::AllInOne;
use crate::report::Report;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Default number of flows: twice what a context keeps.
pub(crate) const FLOWS: u32 = 200_000;
const JOBS: u32 = 5;
/// The first parts only fill what is kept; from then on each new flow has an old one removed.
const PARTS: u32 = 8;
const AT_ONCE: usize = 16;
/// Single flows that are timed at a time.
const TIMED: usize = 20;

/// Result of one part of the load.
pub(crate) struct Part {
    pub(crate) flows: u32,
    /// Flows a second.
    pub(crate) rate: f64,
    /// Times of single flows of another context, to their ends.
    pub(crate) single: Vec<Duration>,
    /// Bytes that Redis uses.
    pub(crate) redis_bytes: u64,
    pub(crate) usage: GetContextUsageResponse,
}

/// Runs `flows` flows in an all-in-one.
pub(crate) async fn measure(report: &mut Report, flows: u32) -> Result<(), Error> {
    let dir = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
    let suite = AllInOne::start(dir.path())?;
    let profile = suite.profile()?;
    let client = Client::connect(&profile)?;
    let single = client.in_a_new_context(&profile).await?;
    one_by_one(&single, TIMED, &no_op("only".into(), Vec::new())).await?;
    for part in 1..=PARTS {
        eprintln!("flows of {JOBS} jobs, part {part} of {PARTS}");
        let over = Arc::new(AtomicBool::new(false));
        let timing = tokio::spawn(time_singles(single.clone(), Arc::clone(&over)));
        let rate = run(&client, flows / PARTS).await?;
        over.store(true, Ordering::Relaxed);
        report.retention(&Part {
            flows: flows / PARTS * part,
            rate,
            single: timing.await??,
            redis_bytes: suite.redis().counts()?.bytes_kept,
            usage: client.usage(&profile).await?,
        });
    }
    Ok(())
}

/// Times single flows, one after the other, until the load is over.
async fn time_singles(client: Client, over: Arc<AtomicBool>) -> Result<Vec<Duration>, Error> {
    let mut times = Vec::new();
    while !over.load(Ordering::Relaxed) {
        times.extend(one_by_one(&client, TIMED, &no_op("only".into(), Vec::new())).await?.1);
    }
    Ok(times)
}

/// Runs so many chains to their ends; gives the chains per second.
async fn run(client: &Client, count: u32) -> Result<f64, Error> {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    let begin = std::time::Instant::now();
    for _ in 0..count {
        let permit = Arc::clone(&permits).acquire_owned().await?;
        let client = client.clone();
        tasks.spawn(async move {
            let _permit = permit;
            client.run("kept", chain_of(JOBS)).await
        });
        while let Some(ended) = tasks.try_join_next() {
            ended??;
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(f64::from(count) / begin.elapsed().as_secs_f64())
}
