//! Cost of one context for another: flows of one job, one at a time, alone and while another context runs a large flow.

use std::time::Duration;

use crate::client::{Client, no_op};
use crate::load::one_by_one;
use crate::processes::AllInOne;
use crate::report::Report;
use crate::size;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Flows that are measured alone.
const ALONE: usize = 500;
/// Flows that are measured at a time beside the large one.
const PART: usize = 20;

/// Times from submission to start and to the end.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) start: Vec<Duration>,
    pub(crate) end: Vec<Duration>,
}

impl Times {
    async fn add(&mut self, client: &Client, count: usize) -> Result<(), Error> {
        let (start, end) = one_by_one(client, count, &no_op("only".into(), Vec::new())).await?;
        self.start.extend(start);
        self.end.extend(end);
        Ok(())
    }
}

/// Measures an all-in-one.
pub(crate) async fn measure(report: &mut Report) -> Result<(), Error> {
    let dir = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
    let suite = AllInOne::start(dir.path())?;
    let large = Client::connect(&suite.profile()?)?;
    let single = large.in_a_new_context(&suite.profile()?).await?;
    let (mut warm_up, mut alone, mut beside) = (Times::default(), Times::default(), Times::default());
    warm_up.add(&single, PART).await?;
    eprintln!("flows of one job, alone");
    alone.add(&single, ALONE).await?;
    eprintln!("the same while a flow of {} nodes runs in another context", size::NODES);
    let flow = size::create(&large).await?;
    large.start(flow).await?;
    let ends = large.wait(flow);
    tokio::pin!(ends);
    loop {
        tokio::select! {
            ended = &mut ends => break ended?,
            added = beside.add(&single, PART) => added?,
        }
    }
    report.neighbour(alone, beside);
    Ok(())
}
