//! `mycora job`: one job, without a flow file.

mod run;

use clap::Subcommand;

pub use self::run::RunArgs;
use super::Session;
use crate::failure::Failure;

/// Commands about single jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Run one script as a flow of its own, show what it prints, and exit with its outcome
    #[command(after_help = run::AFTER_HELP)]
    Run(RunArgs),
}

/// Runs the command; gives the exit code.
///
/// # Errors
/// When the coordinator cannot be reached or refuses.
pub async fn run(session: &Session, command: &JobCommand) -> Result<u8, Failure> {
    let JobCommand::Run(args) = command;
    run::run(session, args).await
}
