//! `mycora demo`: from nothing to a report, and nothing left behind.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Global, Session};
use crate::failure::{Failure, error_chain};
use crate::output::{self, time};
use crate::{demo, up};

/// What `demo` takes.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Keep everything in this directory [default: a temporary one, removed afterwards]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// Starts an all-in-one on free ports, runs the flow, shows what it gave, and leaves nothing behind.
///
/// # Errors
/// When something cannot be started, or on Ctrl-C.
pub async fn run(args: &DemoArgs, global: Global) -> Result<u8, Failure> {
    let began = Instant::now();
    // From here on Ctrl-C does not end the process, so that nothing is left half started.
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let temporary = match &args.data {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("mycora-demo-").tempdir().map_err(|error| {
            Failure::Failed(format!("cannot make a temporary directory: {error}; name one with --data"))
        })?),
    };
    let data_dir = args.data.clone().or_else(|| Some(temporary.as_ref()?.path().to_owned()));
    let data_dir = data_dir.unwrap_or_default();
    say(&global, &format!("starting every service in {}", data_dir.display()));
    let started = up::start(up::Options::private(&data_dir)).await;
    let running = started.map_err(|error| Failure::Unreachable(error_chain(&error)))?;
    say(&global, &format!("serving after {}", time::duration(began.elapsed())));
    let result = tokio::select! {
        biased;
        _ = interrupt.recv() => Err(interrupted()),
        _ = terminate.recv() => Err(interrupted()),
        result = show(&running, global.clone()) => result,
    };
    // Also after a failure, so that nothing stays.
    let stopped = running.stop().await.map_err(|error| Failure::Failed(error_chain(&error)));
    let removed = temporary.map_or(Ok(()), tempfile::TempDir::close);
    let code = result.map_err(|failure| match failure {
        // The flow does not go on: its coordinator is gone.
        Failure::Interrupted(_) => interrupted(),
        other => other,
    })?;
    stopped?;
    removed.map_err(|error| Failure::Failed(format!("cannot remove the temporary directory: {error}")))?;
    say(&global, &format!("done after {}; everything is stopped", time::duration(began.elapsed())));
    Ok(code)
}

async fn show(running: &up::Running, global: Global) -> Result<u8, Failure> {
    demo::run(&Session::with_profile(global, running.profile().clone())?).await
}

fn interrupted() -> Failure {
    Failure::Interrupted("interrupted; everything is stopped".to_owned())
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))
}

fn say(global: &Global, line: &str) {
    if !global.quiet {
        output::note(line);
    }
}
