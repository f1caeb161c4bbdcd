//! How the cost of work grows with what there is: flows that have ended, flows under way, nodes of one flow, and output.
//!
//! Costs are processor time, so that a busy machine counts little: that of the suite and of this client, and that of Redis.

use std::time::{Duration, Instant};

use model::ScriptType;
use proto::v1::NodeSpec;

use crate::client::{Client, no_op, node};
use crate::load;
use crate::processes::AllInOne;
use crate::report::Report;
use crate::usage::processor_times;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Loads that can be measured, in this order.
pub(crate) const PARTS: [&str; 4] = ["finished", "under-way", "nodes", "output"];

/// Flows of one job that are measured at a time, and how many of them are under way.
const FLOWS: u32 = 3000;
const AT_ONCE: usize = 64;
/// Flows that have ended before.
const FINISHED: [u32; 4] = [0, 1000, 10_000, 100_000];
const UNDER_WAY: [usize; 6] = [1, 8, 64, 512, 4096, 10_000];
const NODES: [u32; 4] = [100, 1000, 10_000, 100_000];
/// Nodes of a flow that are added by one call.
const ADDED: u32 = 1000;
const OUTPUT: [u64; 5] = [1 << 10, 32 << 10, 1 << 20, 4 << 20, 10 << 20];
/// Jobs of each size of output.
const JOBS: u32 = 20;

/// Cost of one unit of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) suite: Duration,
    pub(crate) redis: Duration,
    pub(crate) took: Duration,
}

/// A suite of its own for each part, so that one leaves nothing to the next.
struct Bed {
    _dir: tempfile::TempDir,
    client: Client,
    pids: [u32; 3],
    suite: AllInOne,
}

impl Bed {
    async fn new() -> Result<Self, Error> {
        let dir = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
        let suite = AllInOne::start(dir.path())?;
        let client = Client::connect(&suite.profile()?)?;
        load::single(&client, 500, AT_ONCE).await?;
        let pids = [suite.pid(), std::process::id(), suite.redis_pid()?];
        Ok(Self { _dir: dir, client, pids, suite })
    }

    /// Runs a load of so many units.
    async fn cost<T>(&self, units: u32, load: impl Future<Output = Result<T, Error>>) -> Result<Cost, Error> {
        // This process has started the suite, which has started Redis: each is counted without the next.
        let (before, begin) = (processor_times(&self.pids)?, Instant::now());
        load.await?;
        let (after, took) = (processor_times(&self.pids)?, begin.elapsed());
        let spent = |which: usize| after[which].saturating_sub(before[which]);
        let (suite, redis) = (spent(0) + spent(1), spent(2));
        Ok(Cost { suite: suite / units, redis: redis / units, took: took / units })
    }
}

/// Measures these parts.
pub(crate) async fn measure(report: &mut Report, parts: &[&str]) -> Result<(), Error> {
    for part in PARTS.into_iter().filter(|part| parts.is_empty() || parts.contains(part)) {
        eprintln!("{part}");
        let bed = Bed::new().await?;
        match part {
            "finished" => finished(report, &bed).await?,
            "under-way" => under_way(report, &bed).await?,
            "nodes" => nodes(report, &bed).await?,
            _ => output(report, &bed).await?,
        }
        drop(bed.suite);
    }
    Ok(())
}

/// Flows of one job after so many that have ended in the same context.
async fn finished(report: &mut Report, bed: &Bed) -> Result<(), Error> {
    let mut ended = 0;
    for wanted in FINISHED {
        load::single(&bed.client, wanted.saturating_sub(ended), AT_ONCE).await?;
        ended = wanted.max(ended);
        let cost = bed.cost(FLOWS, load::single(&bed.client, FLOWS, AT_ONCE)).await?;
        ended += FLOWS;
        report.grown(&format!("a flow of one job after {wanted} that have ended"), cost);
    }
    Ok(())
}

/// Flows of one job, so many under way.
async fn under_way(report: &mut Report, bed: &Bed) -> Result<(), Error> {
    for at_once in UNDER_WAY {
        let flows = if at_once == 1 { FLOWS / 10 } else { FLOWS.max(u32::try_from(at_once)? * 2) };
        let cost = bed.cost(flows, load::single(&bed.client, flows, at_once)).await?;
        report.grown(&format!("a flow of one job, {at_once} at once"), cost);
    }
    Ok(())
}

/// A node of one flow of so many that depend on nothing.
async fn nodes(report: &mut Report, bed: &Bed) -> Result<(), Error> {
    for count in NODES {
        // As many nodes in all, so that the clock of processor time is fine enough.
        let flows = (10_000 / count).max(1);
        let cost = bed
            .cost(count * flows, async {
                for _ in 0..flows {
                    wide(&bed.client, count).await?;
                }
                Ok(())
            })
            .await?;
        report.grown(&format!("a node of a flow of {count}"), cost);
    }
    Ok(())
}

async fn wide(client: &Client, count: u32) -> Result<(), Error> {
    let flow = client.create("wide", count).await?;
    for first in (0..count).step_by(ADDED as usize) {
        let nodes = (first..count.min(first + ADDED)).map(|i| no_op(format!("n{i}"), Vec::new())).collect();
        client.add(flow.id, first, nodes).await?;
    }
    client.start(flow.id).await?;
    client.wait(flow.id).await
}

/// A MiB of what shell jobs print, one flow at a time.
async fn output(report: &mut Report, bed: &Bed) -> Result<(), Error> {
    for bytes in OUTPUT {
        let prints = || -> Vec<NodeSpec> {
            // Lines, as programs print them.
            let script =
                format!("yes 'a line that somebody wrote to see what is going on' | head -c {bytes}");
            vec![node("prints".into(), Vec::new(), ScriptType::Shell, &script)]
        };
        let cost = bed
            .cost(JOBS, async {
                for _ in 0..JOBS {
                    load::timed(&bed.client, "prints", prints()).await?;
                }
                Ok(())
            })
            .await?;
        report.grown(&format!("a shell job that prints {} KiB", bytes >> 10), cost);
    }
    Ok(())
}
