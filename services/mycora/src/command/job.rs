//! `mycora job`: single jobs, without a flow file.

mod run;
mod script;
mod stored_jobs;

use clap::Subcommand;

pub use self::run::JobRunArgs;
pub use self::script::{ScriptArgs, ScriptSourceArgs};
pub use self::stored_jobs::{JobCreateArgs, JobDeleteArgs, JobIdArgs, JobListArgs};
use super::CliSession;
use crate::failure::CliError;

/// Commands about single jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Run one script as a flow of its own, show its output, and exit with its outcome
    #[command(after_help = run::AFTER_HELP)]
    Run(JobRunArgs),
    /// Store a job for use in flows
    #[command(after_help = stored_jobs::CREATE_HELP)]
    Create(JobCreateArgs),
    /// Show a job: what it executes, and its state
    #[command(after_help = "Examples:\n  mycora job get 7\n  mycora job get 7 --caller 2 --context 3")]
    Get(JobIdArgs),
    /// List stored jobs, or those of a flow
    #[command(after_help = "Examples:\n  mycora job list\n  mycora job list --flow 3")]
    List(JobListArgs),
    /// Remove a job that belongs to no flow
    #[command(after_help = "Example:\n  mycora job delete 7")]
    Delete(JobDeleteArgs),
}

/// Runs the command; gives the exit code.
///
/// # Errors
/// When the coordinator cannot be reached or refuses.
pub async fn run(session: &CliSession, command: &JobCommand) -> Result<u8, CliError> {
    match command {
        JobCommand::Run(args) => run::run(session, args).await,
        JobCommand::Create(args) => stored_jobs::create(session, args).await.map(|()| 0),
        JobCommand::Get(args) => stored_jobs::get(session, args).await.map(|()| 0),
        JobCommand::List(args) => stored_jobs::list(session, args).await.map(|()| 0),
        JobCommand::Delete(args) => stored_jobs::delete(session, args).await.map(|()| 0),
    }
}
