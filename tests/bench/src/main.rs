//! `make bench`: an all-in-one and a suite of separate processes, and a client over mTLS that measures them in turn. No-op Rhai
//! jobs, append-only file synced every second. `make bench-peers` runs the same loads on peers in the same rounds.
//!
//! A figure is the middle of several rounds. Times and rates say what this machine does, not what the next one will: compare those
//! of one run with each other. Processor time, commands and bytes of a flow can be compared between runs.
//!
//! `mycora-bench quick` measures an all-in-one within this process, in a minute, and what jobs of each language cost.
//! `make bench-size` measures one flow of 100,000 nodes, through separate processes, and 100,000 flows
//! that wait for a signal; `mycora-bench finished [N]` what flows cost that have ended, and
//! `mycora-bench watching [N]` what one watch of all flows costs, `mycora-bench growth [PART…]` how costs grow with what there
//! is, `mycora-bench neighbour` what a large flow costs another context, and `mycora-bench retention [N]` what bounds on ended flows
//! cost and hold. `mycora-bench steady PROFILE SECS PER_SECOND` keeps a suite of others busy and counts what calls and flows come to, for
//! `tests/deploy/upgrade`. `make bench-dead` measures what one dead supervisor costs nine others, and
//! `make bench-saga` what sagas cost; `mycora-bench saga PART…` parts of that.

mod client;
mod dead;
mod finished;
mod growth;
mod load;
mod machine;
mod neighbour;
mod processes;
mod report;
mod retention;
mod road;
mod runtimes;
mod saga;
mod size;
mod steady;
mod usage;
mod watching;

use std::num::ParseIntError;
use std::process::ExitCode;

use client::Client;
use mycora_cli::up;
use report::Report;

fn main() -> ExitCode {
    // The runner within starts this program as the first process of each job.
    sandbox::launch_if_asked(&[runner::ENGINE]);
    match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime.block_on(bench()),
        Err(error) => {
            eprintln!("the benchmark cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn bench() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["steady", profile, secs, per_second] = *arguments {
        return match steady(profile, secs, per_second).await {
            Ok(outcome) => {
                println!("{outcome}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("the load failed: {error}");
                ExitCode::FAILURE
            }
        };
    }
    // What was started for it ends with what is dropped here.
    let measured = tokio::select! {
        measured = measure_requested(&arguments) => measured,
        _ = tokio::signal::ctrl_c() => Some(Err("it was interrupted".into())),
    };
    match measured {
        Some(Ok(report)) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Some(Err(error)) => {
            eprintln!("the benchmark failed: {error}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!(
                "give nothing, or one of: rounds N, peers [ROUNDS], quick, runtimes, dead, large, waiting, size (both), growth [finished | under-way | nodes | output], neighbour, retention [N], saga [PART…], finished [N], watching [N], steady PROFILE SECS PER_SECOND"
            );
            ExitCode::from(2)
        }
    }
}

/// Measures what the arguments ask for; nothing where they ask for nothing that is known.
async fn measure_requested(
    arguments: &[&str],
) -> Option<Result<Report, Box<dyn std::error::Error + Send + Sync>>> {
    let measured = match *arguments {
        [] => Box::pin(road(false, Ok(road::ROUNDS))).await,
        ["peers"] => Box::pin(road(true, Ok(road::ROUNDS))).await,
        ["peers", rounds] => Box::pin(road(true, rounds.parse())).await,
        ["rounds", rounds] => Box::pin(road(false, rounds.parse())).await,
        ["quick"] => Box::pin(run()).await,
        ["runtimes"] => Box::pin(runtimes()).await,
        ["dead"] => dead().await,
        ["large"] => sizes(true, false).await,
        ["waiting"] => sizes(false, true).await,
        ["size"] => sizes(true, true).await,
        ["finished"] => finished(Ok(finished::FINISHED)).await,
        ["finished", flows] => finished(flows.parse()).await,
        ["growth", ref parts @ ..] if parts.iter().all(|part| growth::PARTS.contains(part)) => {
            Box::pin(grown(parts)).await
        }
        ["neighbour"] => neighbour().await,
        ["retention"] => retention(Ok(retention::FLOWS)).await,
        ["retention", flows] => retention(flows.parse()).await,
        ["saga", ref parts @ ..] => sagas(parts).await,
        ["watching"] => watching(Ok(watching::FLOWS)).await,
        ["watching", flows] => watching(flows.parse()).await,
        _ => return None,
    };
    Some(measured)
}

async fn road(
    with_peers: bool,
    rounds: Result<usize, ParseIntError>,
) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut report = Report::new(machine::describe())
        .of("client over mTLS, no-op rhai jobs, append-only file every second");
    road::measure(&mut report, with_peers, rounds?).await?;
    Ok(report)
}

async fn run() -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let dir = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
    let running = up::start(up::UpOptions::private(dir.path())).await?;
    let client = Client::connect(running.profile())?;
    let measured = measure(&client).await;
    running.stop().await?;
    let mut report = measured?;
    Box::pin(runtimes::measure(&mut report)).await?;
    Ok(report)
}

async fn finished(
    flows: Result<u32, ParseIntError>,
) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut report = Report::new(machine::describe());
    finished::measure(&mut report, flows?).await?;
    Ok(report)
}

async fn watching(
    flows: Result<u32, ParseIntError>,
) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut report = Report::new(machine::describe());
    watching::measure(&mut report, flows?).await?;
    Ok(report)
}

async fn runtimes() -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut report = Report::new(machine::describe());
    Box::pin(runtimes::measure(&mut report)).await?;
    Ok(report)
}

async fn dead() -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut report = Report::new(machine::describe());
    dead::measure(&mut report).await?;
    Ok(report)
}

async fn sagas(parts: &[&str]) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut report =
        Report::new(machine::describe()).of("the saga service in this process, nats-server beside it");
    Box::pin(saga::measure(&mut report, parts)).await?;
    Ok(report)
}

async fn grown(parts: &[&str]) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut report = Report::new(machine::describe());
    growth::measure(&mut report, parts).await?;
    Ok(report)
}

async fn neighbour() -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut report = Report::new(machine::describe());
    neighbour::measure(&mut report).await?;
    Ok(report)
}

async fn steady(
    profile: &str,
    secs: &str,
    per_second: &str,
) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    steady::measure(profile.as_ref(), secs.parse()?, per_second.parse()?).await
}

async fn retention(
    flows: Result<u32, ParseIntError>,
) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut report = Report::new(machine::describe());
    retention::measure(&mut report, flows?).await?;
    Ok(report)
}

async fn sizes(large: bool, waiting: bool) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut report = Report::new(machine::describe());
    if large {
        size::large(&mut report).await?;
    }
    if waiting {
        size::waiting(&mut report).await?;
    }
    Ok(report)
}

async fn measure(client: &Client) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut report = Report::new(machine::describe());
    eprintln!("warming up");
    load::chain(client, 40, 3).await?;
    eprintln!("chain of 40");
    report.chain(load::chain(client, 40, 20).await?);
    eprintln!("fan-out of 1000 and a join");
    report.fan_out(1000, &load::fan_out(client, 1000, 5).await?);
    eprintln!("single jobs, 64 at once");
    report.single(load::single(client, 4000, 64).await?);
    eprintln!("submit to start, one at a time");
    report.latency(load::one_by_one(client, 300, &client::no_op("only".into(), Vec::new())).await?.0);
    Ok(report)
}
