//! `mycora runner`: where jobs can run.

use clap::Subcommand;
use model::Timestamp;

use super::Session;
use crate::failure::Failure;
use crate::output::{self, Format, json, summary};

/// Commands about runners.
#[derive(Debug, Subcommand)]
pub enum RunnerCommand {
    /// List the runners of a context, whether they are alive, and what they offer
    #[command(after_help = "Example:\n  mycora runner list --context 1")]
    List,
}

/// Runs the command.
///
/// # Errors
/// When the coordinator cannot be reached or refuses.
pub async fn run(session: &Session, command: &RunnerCommand) -> Result<(), Failure> {
    let RunnerCommand::List = command;
    let answer = session.clients.list_runners(session.context()?).await?;
    if session.global.output == Format::Table && answer.runners.is_empty() {
        output::note("there are no runners in this context; `mycora up` registers one");
        return Ok(());
    }
    output::answer(
        session.global.output,
        || json::of(&answer),
        || summary::runners(&answer.runners, Timestamp::now()),
    )
}
