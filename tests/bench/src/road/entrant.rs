//! Entrants of the comparison: suites and peers, each with the processes that are measured.

use tempfile::TempDir;

use super::peer::Peer;
use super::{Load, Sample};
use crate::client::Client;
use crate::processes::{AllInOne, Separate};
use crate::report::Report;
use crate::usage::{Meter, Redis};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The services that are processes of their own, as `deploy/local/up.sh` calls them.
const SERVICES: [&str; 7] =
    ["storage", "runner-registry", "scheduler", "mycelium-gateway", "router", "supervisor", "runner"];

/// Something that loads are run on.
pub(crate) struct Entrant {
    name: &'static str,
    meter: Meter,
    runs: Runs,
}

enum Runs {
    // The suite ends before its directory goes.
    AllInOne { client: Client, _suite: AllInOne, _dir: TempDir },
    Separate { client: Client, _suite: Separate, _dir: TempDir },
    Peer(Peer),
}

impl Entrant {
    /// One process with all services.
    pub(crate) fn all_in_one() -> Result<Self, Error> {
        let dir = directory()?;
        let suite = AllInOne::start(dir.path())?;
        let client = Client::connect(&suite.profile()?)?;
        let processes =
            vec![named("suite", suite.pid()), named("redis", suite.redis_pid()?), named("client", me())];
        let password = Some(dir.path().join("redis.password"));
        let meter = Meter::new(processes, Redis { socket: dir.path().join("redis.sock"), password });
        Ok(Self { name: "all-in-one", meter, runs: Runs::AllInOne { client, _suite: suite, _dir: dir } })
    }

    /// Each service a process, over mutual TLS.
    pub(crate) fn separate() -> Result<Self, Error> {
        let dir = directory()?;
        let suite = Separate::start(dir.path())?;
        let client = Client::connect(&suite.profile()?)?;
        let mut processes = vec![named("redis", suite.pid("redis")?), named("client", me())];
        for service in SERVICES {
            processes.push(named(service, suite.pid(service)?));
        }
        let meter = Meter::new(processes, suite.redis());
        Ok(Self { name: "separate, mTLS", meter, runs: Runs::Separate { client, _suite: suite, _dir: dir } })
    }

    /// Peers that this machine has. The report names those left out.
    pub(crate) fn peers(report: &mut Report) -> Result<Vec<Self>, Error> {
        match Peer::bullmq()? {
            Ok((peer, meter)) => Ok(vec![Self { name: "BullMQ", meter, runs: Runs::Peer(peer) }]),
            Err(lack) => {
                report.left_out("BullMQ", &lack);
                Ok(Vec::new())
            }
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// Runs a load and reports what it used.
    pub(crate) async fn run(&mut self, load: Load) -> Result<Sample, Error> {
        let begun = self.meter.begin()?;
        let figures = match &mut self.runs {
            Runs::AllInOne { client, .. } | Runs::Separate { client, .. } => load.run(client).await?,
            Runs::Peer(peer) => peer.run(load)?,
        };
        Ok(Sample { figures, used: self.meter.end(&begun)? })
    }
}

fn directory() -> Result<TempDir, Error> {
    Ok(tempfile::Builder::new().prefix("mycora-bench-").tempdir()?)
}

fn named(name: &str, pid: u32) -> (String, u32) {
    (name.to_owned(), pid)
}

fn me() -> u32 {
    std::process::id()
}
