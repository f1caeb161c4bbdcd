//! `mycora runner`: where jobs can run.

use clap::Subcommand;
use model::Timestamp;

use super::Session;
use crate::failure::Failure;
use crate::output::{self, Format, json, summary};

/// The context that `mycora up` and `mycora bootstrap` make.
const FIRST_CONTEXT: u32 = 1;

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
    let context = session.context()?;
    let answer = session.clients.list_runners(context).await?;
    if session.global.output == Format::Table && answer.runners.is_empty() {
        output::note(&none(context));
        return Ok(());
    }
    output::answer(
        session.global.output,
        || json::of(&answer),
        || summary::runners(&answer.runners, Timestamp::now()),
    )
}

/// That there are none, and who makes one: only the first context gets one by itself.
fn none(context: u32) -> String {
    let way = match context {
        FIRST_CONTEXT => "`mycora up` registers one, `mycora bootstrap --runner ADDRESS` others",
        _ => "an admin of the context registers one with `mycora.v1.RunnerService/RegisterRunner`",
    };
    format!("there are no runners in context {context}; {way}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_context_is_given_a_runner() {
        assert!(none(1).contains("`mycora up` registers one"));
        let said = none(2);
        assert!(
            said.starts_with("there are no runners in context 2;") && !said.contains("mycora up"),
            "{said}"
        );
    }
}
