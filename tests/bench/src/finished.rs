//! Cost of flows that have ended: memory of the suite, time of a start, time of a list.

use std::time::{Duration, Instant};

use proto::v1::FlowStatus;

use crate::client::Client;
use crate::load::single;
use crate::processes::{AllInOne, resident_bytes};
use crate::report::Report;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Default number of flows.
pub(crate) const FINISHED: u32 = 60_000;
/// The memory is read so many times on the way.
const PARTS: u32 = 6;
const AT_ONCE: usize = 32;

/// Measured cost of flows that have ended.
pub(crate) struct Finished {
    pub(crate) flows: u32,
    /// Flows a second, of each part.
    pub(crate) rates: Vec<f64>,
    /// Bytes of the suite before the first part, and after each.
    pub(crate) suite_bytes: Vec<u64>,
    pub(crate) redis_bytes: u64,
    /// The first page of all flows, of those of a status that all have, and of one that none has.
    pub(crate) lists: [Duration; 3],
    /// From the start of `mycora up` until it is ready.
    pub(crate) start: Duration,
}

/// Runs flows of one job to their ends in an all-in-one, and starts that again.
pub(crate) async fn measure(report: &mut Report, flows: u32) -> Result<(), Error> {
    let dir = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
    let suite = AllInOne::start(dir.path())?;
    let client = Client::connect(&suite.profile()?)?;
    // What every suite has once it has done something is no growth.
    single(&client, 100, AT_ONCE).await?;
    let (mut rates, mut suite_bytes) = (Vec::new(), vec![resident_bytes(suite.pid())?]);
    for part in 1..=PARTS {
        eprintln!("running flows to their ends, part {part} of {PARTS}");
        rates.push(single(&client, flows / PARTS, AT_ONCE).await?);
        suite_bytes.push(resident_bytes(suite.pid())?);
    }
    let redis_bytes = resident_bytes(suite.redis_pid()?)?;
    let mut lists = [Duration::ZERO; 3];
    let statuses = [FlowStatus::Unspecified, FlowStatus::Finished, FlowStatus::Error];
    for (time, status) in lists.iter_mut().zip(statuses) {
        let begin = Instant::now();
        client.list(status).await?;
        *time = begin.elapsed();
    }
    drop(suite);
    let begin = Instant::now();
    let _suite = AllInOne::start(dir.path())?;
    let start = begin.elapsed();
    report.finished(&Finished { flows, rates, suite_bytes, redis_bytes, lists, start });
    Ok(())
}
