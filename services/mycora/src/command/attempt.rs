//! `mycora attempt`: single attempts, directly on the machine that runs them, without a coordinator.

mod run;

use std::time::Duration;

use clap::{Args, Subcommand};
use model::JobKey;
use proto::v1;

pub use self::run::AttemptRunArgs;
use super::CliSession;
use crate::failure::{ApiCallError, CliError};
use crate::output::{self, OutputFormat, attempt as shown, json};

/// Help text that these commands share: what each of them needs.
const WHICH: &str = "\
Needs the admin's certificate. `mycora flow explain FLOW JOB` and `mycora flow jobs FLOW --keys` show the key of an attempt; those of earlier attempts differ in the last number only. The files below logs/CONTEXT_UID in the supervisor's work directory have these names as well.";

/// Shown below the options of `logs`.
pub(super) const LOGS_HELP: &str = "\
Needs the admin's certificate. `mycora flow explain FLOW JOB` and `mycora flow jobs FLOW --keys` show the key of an attempt; those of earlier attempts differ in the last number only. The files below logs/CONTEXT_UID in the supervisor's work directory have these names as well.

Example:
  mycora attempt logs 0f…-3a…-7-1 --follow --as admin";

const WAIT_HELP: &str = "\
Needs the admin's certificate.

Example:
  mycora attempt wait 0f…-3a…-7-1 --within 60 --as admin

Exit codes: 0 it completed; 1 it did not, or not within that time.";

const STOP_HELP: &str = "\
A waiting attempt does not start; a running one is asked to end, and is killed after the grace period. Its coordinator is notified. An attempt that has ended is not changed. Needs the admin's certificate.

Example:
  mycora attempt stop 0f…-3a…-7-1 --grace 30 --as admin";

/// Commands about attempts at one machine: that at `supervisor` below `[addresses]` of the profile, else at its `address`.
#[derive(Debug, Subcommand)]
pub enum AttemptCommand {
    /// Run a script directly on the machine, show its output, and exit with its outcome
    #[command(after_help = run::AFTER_HELP)]
    Run(AttemptRunArgs),
    /// Show the state of an attempt, and how it ended
    #[command(after_help = format!("{WHICH}\n\nExample:\n  mycora attempt show 0f…-3a…-7-1 --as admin"))]
    Show(AttemptKeyArgs),
    /// Wait until an attempt has ended, and exit with its outcome
    #[command(after_help = WAIT_HELP)]
    Wait(AttemptWaitArgs),
    /// Stop an attempt, regardless of which coordinator sent it
    #[command(after_help = STOP_HELP)]
    Stop(AttemptStopArgs),
    /// Print the kept output of an attempt
    #[command(after_help = LOGS_HELP)]
    Logs(AttemptLogsArgs),
}

/// Which attempt.
#[derive(Debug, Args)]
pub struct AttemptKeyArgs {
    /// The attempt: `<context uid>-<flow uid>-<job>-<attempt>`
    pub job_key: JobKey,
}

/// Arguments of `attempt wait`.
#[derive(Debug, Args)]
pub struct AttemptWaitArgs {
    /// Which.
    #[command(flatten)]
    pub attempt: AttemptKeyArgs,
    /// Wait at most this many seconds [default: until it has ended]
    #[arg(long, value_name = "SECS")]
    pub within: Option<u32>,
}

/// Arguments of `attempt stop`.
#[derive(Debug, Args)]
pub struct AttemptStopArgs {
    /// Which.
    #[command(flatten)]
    pub attempt: AttemptKeyArgs,
    /// Seconds between asking the script to end and ending it, up to 3600; 0: at once [default: 5]
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u32).range(..=3600))]
    pub grace: Option<u32>,
}

/// Arguments of `attempt logs`.
#[derive(Debug, Args)]
pub struct AttemptLogsArgs {
    /// Which.
    #[command(flatten)]
    pub attempt: AttemptKeyArgs,
    /// Start at this byte
    #[arg(long, value_name = "BYTE", default_value_t = 0)]
    pub offset: u64,
    /// Follow until the attempt has ended
    #[arg(long, short)]
    pub follow: bool,
}

/// Runs the command; gives the exit code.
///
/// # Errors
/// When the supervisor cannot be reached or refuses.
pub async fn run(session: &CliSession, command: &AttemptCommand) -> Result<u8, CliError> {
    match command {
        AttemptCommand::Run(args) => run::run(session, args).await,
        AttemptCommand::Show(AttemptKeyArgs { job_key }) => {
            let answer = session.clients.get_attempt(job_key.to_string()).await?;
            let text = || shown::whole(&answer.attempt.clone().unwrap_or_default());
            output::answer(session.global.output, || json::of(&answer), text).map(|()| 0)
        }
        AttemptCommand::Wait(args) => wait(session, args).await,
        AttemptCommand::Stop(AttemptStopArgs { attempt: AttemptKeyArgs { job_key }, grace }) => {
            let answer = session.clients.stop_attempt(job_key.to_string(), *grace).await?;
            let text = || shown::whole(&answer.attempt.clone().unwrap_or_default());
            output::answer(session.global.output, || json::of(&answer), text).map(|()| 0)
        }
        AttemptCommand::Logs(args) => logs(session, args).await.map(|()| 0),
    }
}

async fn wait(session: &CliSession, args: &AttemptWaitArgs) -> Result<u8, CliError> {
    let key = args.attempt.job_key.to_string();
    let ended = within(args.within, session.clients.wait_attempt(&key));
    let answer = match interrupted(ended, &key).await? {
        Some(answer) => answer,
        None => {
            let secs = args.within.unwrap_or_default();
            output::note(&format!("attempt {key} has not ended after {secs} s"));
            let v1::GetAttemptResponse { attempt } = session.clients.get_attempt(key).await?;
            v1::WaitAttemptResponse { attempt }
        }
    };
    let attempt = answer.attempt.clone().unwrap_or_default();
    output::answer(session.global.output, || json::of(&answer), || shown::whole(&attempt))?;
    Ok(exit_code(&attempt))
}

/// Returns the result of `work`, or `None` when it takes longer than `secs`.
async fn within<T>(
    secs: Option<u32>,
    work: impl Future<Output = Result<T, CliError>>,
) -> Result<Option<T>, CliError> {
    match secs {
        None => work.await.map(Some),
        Some(secs) => match tokio::time::timeout(Duration::from_secs(secs.into()), work).await {
            Ok(result) => result.map(Some),
            Err(_) => Ok(None),
        },
    }
}

/// Waits for `work` until Ctrl-C is pressed: the attempt goes on then.
async fn interrupted<T>(work: impl Future<Output = Result<T, CliError>>, key: &str) -> Result<T, CliError> {
    tokio::select! {
        result = work => result,
        pressed = tokio::signal::ctrl_c() => Err(match pressed {
            Ok(()) => CliError::Interrupted(format!(
                "attempt {key} continues; see `mycora attempt show {key}`, or end it with `mycora attempt stop {key}`"
            )),
            Err(error) => CliError::Failed(format!("cannot wait for signals: {error}")),
        }),
    }
}

/// 0 when it completed.
fn exit_code(attempt: &v1::Attempt) -> u8 {
    u8::from(attempt.state() != v1::AttemptState::Finished)
}

/// Prints what is kept of what an attempt printed.
pub(super) async fn logs(session: &CliSession, args: &AttemptLogsArgs) -> Result<(), CliError> {
    let request = v1::StreamAttemptLogsRequest {
        job_key: args.attempt.job_key.to_string(),
        offset: args.offset,
        follow: args.follow,
    };
    let mut pieces = session.clients.stream_attempt_logs(request).await?;
    let format = session.global.output;
    let mut first = true;
    let read = loop {
        match pieces.next().await {
            Ok(Some(piece)) if format == OutputFormat::Table => output::print_bytes(piece.text.as_bytes())?,
            // A follower gets each piece at once, not with the last one.
            Ok(Some(piece)) if args.follow => output::print_stream_item(format, &json::of(&piece))?,
            Ok(Some(piece)) => output::print_item(format, first, &json::of(&piece))?,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
        first = false;
    };
    if format != OutputFormat::Table && !args.follow {
        // Close the list after a failure too, so that a program can read it.
        output::end_items(format, first)?;
    }
    read.map_err(|error: ApiCallError| error.into())
}
