//! `make bench`: an all-in-one on a data directory of its own, and a client over
//! mTLS that measures it. No-op Rhai jobs, append-only file synced every second.
//!
//! Figures are medians (p50) and 99th percentiles (p99) of several runs. They
//! say what this machine does, not what the next one will: compare figures of
//! one run with each other, or two commits on one machine.

mod client;
mod load;
mod machine;
mod report;

use std::process::ExitCode;

use client::Client;
use mycora_cli::up;
use report::Report;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("the benchmark failed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let dir = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
    let running = up::start(up::Options::private(dir.path())).await?;
    let client = Client::connect(running.profile())?;
    let measured = measure(&client).await;
    running.stop().await?;
    measured
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
    report.latency(load::submit_to_start(client, 300).await?);
    Ok(report)
}
