//! The road of a job: the same loads on the all-in-one, on separate processes over mutual TLS and, where they are asked for, on
//! peers, one after the other in each round.
//!
//! A figure is the median of the rounds. Rates of one run can be compared; processor times, commands and bytes can be compared
//! between runs as well.

mod entrant;
mod peer;
mod table;

use std::time::Duration;

use proto::v1::NodeSpec;

use crate::client::{Client, no_op};
use crate::load;
use crate::report::{Report, percentiles};
use crate::usage::Used;
use entrant::Entrant;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Default number of rounds.
pub(crate) const ROUNDS: usize = 5;

/// Something that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Flows of jobs of which each waits for the one before, one flow at a time.
    Chain { length: u32, runs: u32 },
    /// Flows of many jobs and one that waits for all of them, one flow at a time.
    FanOut { width: u32, runs: u32 },
    /// Flows of one job, some of them at once.
    Single { flows: u32, at_once: u32 },
    /// Jobs that depend on nothing, all of them there at once.
    Wide { jobs: u32 },
    /// Flows of one job, each when the one before has ended.
    Alone { flows: u32 },
}

/// In the order of the table.
const LOADS: [Load; 5] = [
    Load::Chain { length: 40, runs: 10 },
    Load::FanOut { width: 1000, runs: 3 },
    Load::Single { flows: 2000, at_once: 64 },
    Load::Wide { jobs: 10_000 },
    Load::Alone { flows: 200 },
];

/// One run of a load.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) figures: Vec<f64>,
    pub(crate) used: Used,
}

impl Load {
    /// Returns the name of the load in the table, in the file and for peers.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Chain { length, .. } => format!("{length}-step chain"),
            Self::FanOut { width, .. } => format!("{width} fan-out and join"),
            Self::Single { at_once, .. } => format!("flows of one job, {at_once} at once"),
            Self::Wide { jobs } => format!("{jobs} jobs at once"),
            Self::Alone { .. } => "flow of one job, alone".to_owned(),
        }
    }

    /// Returns the names of the load's figures, with their units.
    pub(crate) const fn figures(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Chain { .. } | Self::FanOut { .. } => &[("whole", "ms")],
            Self::Single { .. } => &[("flows", "/s")],
            Self::Wide { .. } => &[("jobs", "/s")],
            Self::Alone { .. } => &[("to start p50", "ms"), ("to start p99", "ms"), ("to end p50", "ms")],
        }
    }

    /// Returns true if a larger figure is better.
    pub(crate) const fn is_rate(self) -> bool {
        matches!(self, Self::Single { .. } | Self::Wide { .. })
    }

    /// Returns the unit for which resource use is reported, and how many such units the load has.
    pub(crate) const fn units(self) -> (&'static str, u32) {
        match self {
            Self::Chain { length, runs } => ("node", length * runs),
            Self::FanOut { width, runs } => ("node", (width + 1) * runs),
            Self::Wide { jobs } => ("node", jobs),
            Self::Single { flows, .. } | Self::Alone { flows } => ("flow", flows),
        }
    }

    /// A small one of the same kind.
    const fn warm_up(self) -> Self {
        match self {
            Self::Chain { length, .. } => Self::Chain { length, runs: 2 },
            Self::FanOut { width, .. } => Self::FanOut { width, runs: 1 },
            Self::Single { at_once, .. } => Self::Single { flows: 200, at_once },
            Self::Wide { .. } => Self::Wide { jobs: 1000 },
            Self::Alone { .. } => Self::Alone { flows: 20 },
        }
    }

    /// Runs it on a suite; gives its figures.
    async fn run(self, client: &Client) -> Result<Vec<f64>, Error> {
        match self {
            Self::Chain { length, runs } => whole(client, &load::chain_of(length), runs).await,
            Self::FanOut { width, runs } => whole(client, &joined(width), runs).await,
            Self::Single { flows, at_once } => {
                Ok(vec![load::single(client, flows, usize::try_from(at_once)?).await?])
            }
            Self::Wide { jobs } => {
                let nodes = (0..jobs).map(|i| no_op(format!("n{i}"), Vec::new())).collect();
                let took = load::timed(client, "wide", nodes).await?;
                Ok(vec![f64::from(jobs) / took.as_secs_f64()])
            }
            Self::Alone { flows } => {
                let node = no_op("only".into(), Vec::new());
                let (mut start, mut end) = load::one_by_one(client, usize::try_from(flows)?, &node).await?;
                let ((start50, start99), (end50, _)) = (percentiles(&mut start), percentiles(&mut end));
                Ok([start50, start99, end50].map(millis).to_vec())
            }
        }
    }
}

/// The middle of the times of whole flows.
async fn whole(client: &Client, nodes: &[NodeSpec], runs: u32) -> Result<Vec<f64>, Error> {
    let mut times = Vec::new();
    for _ in 0..runs {
        times.push(load::timed(client, "whole", nodes.to_vec()).await?);
    }
    Ok(vec![millis(percentiles(&mut times).0)])
}

fn joined(width: u32) -> Vec<NodeSpec> {
    let mut nodes: Vec<_> = (0..width).map(|i| no_op(format!("n{i}"), Vec::new())).collect();
    nodes.push(no_op("join".into(), (0..width).map(|i| format!("n{i}")).collect()));
    nodes
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Measures every load on everything that takes part, and writes the figures to `target/bench-road.json` as well.
pub(crate) async fn measure(report: &mut Report, with_peers: bool, rounds: usize) -> Result<(), Error> {
    let mut entrants = vec![Entrant::all_in_one()?, Entrant::separate()?];
    if with_peers {
        entrants.extend(Entrant::peers(report)?);
    }
    let mut samples = vec![vec![Vec::with_capacity(rounds); LOADS.len()]; entrants.len()];
    for round in 0..=rounds {
        for (load_at, load) in LOADS.into_iter().enumerate() {
            for (entrant, samples) in entrants.iter_mut().zip(&mut samples) {
                eprintln!("round {round} of {rounds}: {}: {}", load.name(), entrant.name());
                // The first round warms up.
                if round == 0 {
                    entrant.run(load.warm_up()).await?;
                } else {
                    samples[load_at].push(entrant.run(load).await?);
                }
            }
        }
    }
    let names = entrants.iter().map(|entrant| entrant.name()).collect();
    let table = table::Table::new(&LOADS, names, &samples);
    table.write(&std::path::Path::new("target").join("bench-road.json"), rounds)?;
    table.print(report);
    Ok(())
}
