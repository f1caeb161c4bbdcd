//! `mycora job`: single jobs, without a flow file.

mod kept;
mod run;
mod script;

use clap::Subcommand;

pub use self::kept::{CreateArgs, DeleteArgs, JobArgs, ListArgs};
pub use self::run::RunArgs;
pub use self::script::{ScriptArgs, SourceArgs};
use super::Session;
use crate::failure::Failure;

/// Commands about single jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Run one script as a flow of its own, show what it prints, and exit with its outcome
    #[command(after_help = run::AFTER_HELP)]
    Run(RunArgs),
    /// Keep a job, for flows to take up
    #[command(after_help = kept::CREATE_HELP)]
    Create(CreateArgs),
    /// Show a job: what it executes, and where it stands
    #[command(after_help = "Examples:\n  mycora job get 7\n  mycora job get 7 --caller 2 --context 3")]
    Get(JobArgs),
    /// List jobs that are kept, or those of a flow
    #[command(after_help = "Examples:\n  mycora job list\n  mycora job list --flow 3")]
    List(ListArgs),
    /// Remove a job that belongs to no flow
    #[command(after_help = "Example:\n  mycora job delete 7")]
    Delete(DeleteArgs),
}

/// Runs the command; gives the exit code.
///
/// # Errors
/// When the coordinator cannot be reached or refuses.
pub async fn run(session: &Session, command: &JobCommand) -> Result<u8, Failure> {
    match command {
        JobCommand::Run(args) => run::run(session, args).await,
        JobCommand::Create(args) => kept::create(session, args).await.map(|()| 0),
        JobCommand::Get(args) => kept::get(session, args).await.map(|()| 0),
        JobCommand::List(args) => kept::list(session, args).await.map(|()| 0),
        JobCommand::Delete(args) => kept::delete(session, args).await.map(|()| 0),
    }
}
