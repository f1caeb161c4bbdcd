//! `mycora demo`: from nothing to a report, and nothing left behind.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{CliSession, GlobalFlags};
use crate::failure::{CliError, error_chain};
use crate::output::{self, time};
use crate::up::NatsProgram;
use crate::{demo, up};

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Keep everything in this directory [default: a temporary one, removed afterwards]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Show sagas instead of a flow: four orders, over stand-ins for payments, mail and aggregates that run here. Needs a
    /// `nats-server`, and keeps nothing
    #[arg(long, conflicts_with = "data")]
    pub saga: bool,
    /// The program for the private NATS server [default: `nats-server` in the PATH, or Debian's /usr/sbin/nats-server]
    #[arg(long, env = "MYCORA_NATS_SERVER", value_name = "FILE")]
    pub nats_server: Option<PathBuf>,
}

/// Starts an all-in-one on free ports, runs the flow or the sagas, shows what came of it, and leaves nothing behind.
///
/// # Errors
/// When something cannot be started, or on Ctrl-C.
pub async fn run(args: &DemoArgs, global: GlobalFlags) -> Result<u8, CliError> {
    let began = Instant::now();
    // From here on Ctrl-C does not end the process, so that nothing is left half started.
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    if args.saga {
        // Before anything starts.
        NatsProgram::find(args.nats_server.as_deref())
            .map_err(|error| CliError::Unreachable(error_chain(&error)))?;
    }
    let temporary = match &args.data {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("mycora-demo-").tempdir().map_err(|error| {
            CliError::Failed(format!("cannot make a temporary directory: {error}; name one with --data"))
        })?),
    };
    let place = args.data.clone().or_else(|| Some(temporary.as_ref()?.path().to_owned())).unwrap_or_default();
    // What sagas need beside it is no business of the data directory.
    let data_dir = if args.saga { place.join("data") } else { place.clone() };
    let mut options = up::UpOptions::private(&data_dir);
    let stage = match args.saga {
        true => Some(stage(&place.join("stage"), args, &mut options, &global).await?),
        false => None,
    };
    say(&global, &format!("starting every service in {}", data_dir.display()));
    let started = up::start(options).await;
    let running = started.map_err(|error| CliError::Unreachable(error_chain(&error)))?;
    say(&global, &format!("serving after {}", time::duration(began.elapsed())));
    let result = tokio::select! {
        biased;
        _ = interrupt.recv() => Err(interrupted()),
        _ = terminate.recv() => Err(interrupted()),
        result = show(&running, stage, global.clone(), &data_dir) => result,
    };
    // Also after a failure, so that nothing stays.
    let stopped = running.stop().await.map_err(|error| CliError::Failed(error_chain(&error)));
    let removed = temporary.map_or(Ok(()), tempfile::TempDir::close);
    let code = result.map_err(|failure| match failure {
        // The flow does not go on: its coordinator is gone.
        CliError::Interrupted(_) => interrupted(),
        other => other,
    })?;
    stopped?;
    removed.map_err(|error| CliError::Failed(format!("cannot remove the temporary directory: {error}")))?;
    say(&global, &format!("done after {}; everything is stopped", time::duration(began.elapsed())));
    Ok(code)
}

/// Starts what stands in for the world outside.
async fn stage(
    dir: &Path,
    args: &DemoArgs,
    options: &mut up::UpOptions,
    global: &GlobalFlags,
) -> Result<demo::saga::SagaDemo, CliError> {
    let stage = demo::saga::SagaDemo::open(dir).await?;
    stage.configure(options, args.nats_server.clone())?;
    say(global, &stage.text());
    Ok(stage)
}

async fn show(
    running: &up::AllInOneHandle,
    stage: Option<demo::saga::SagaDemo>,
    global: GlobalFlags,
    data_dir: &Path,
) -> Result<u8, CliError> {
    let session = CliSession::with_profile(global, running.profile().clone())?;
    match stage {
        Some(stage) => stage.show(running, &session, data_dir).await,
        None => demo::run(&session).await,
    }
}

fn interrupted() -> CliError {
    CliError::Interrupted("interrupted; everything is stopped".to_owned())
}

fn listen(kind: SignalKind) -> Result<Signal, CliError> {
    signal(kind).map_err(|error| CliError::Failed(format!("cannot wait for signals: {error}")))
}

fn say(global: &GlobalFlags, line: &str) {
    if !global.quiet {
        output::note(line);
    }
}
