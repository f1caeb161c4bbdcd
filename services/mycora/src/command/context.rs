//! `mycora context`: tenants.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use rpc::Retry;
use tonic::Code;

use super::{Session, values};
use crate::failure::{CallError, Failure};
use crate::output::{self, json};

/// Waits between calls that broke off.
const WAIT: Duration = Duration::from_secs(1);
/// Supervisors that do not answer are given up by the coordinator after 300 s; it is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(600);

/// Commands about contexts.
#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// Remove a context with everything in it, here and at its supervisors
    #[command(after_help = "Example:\n  mycora context delete 3 --yes")]
    Delete(DeleteArgs),
}

/// What `context delete` takes.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// The context's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Really remove it: its flows, results, logs, files and runners are gone then
    #[arg(long)]
    pub yes: bool,
}

/// Runs the command.
///
/// # Errors
/// When the coordinator cannot be reached or refuses.
pub async fn run(session: &Session, command: &ContextCommand) -> Result<(), Failure> {
    let ContextCommand::Delete(DeleteArgs { id, yes }) = command;
    if !yes {
        return Err(Failure::Invalid(format!(
            "context {id} would be removed with all its flows, results, logs, files and runners; say so with --yes"
        )));
    }
    let answer = delete(session, *id).await?;
    output::answer(session.global.output, || json::of(&answer), || format!("context {id} is deleted\n"))
}

async fn delete(session: &Session, id: u32) -> Result<proto::v1::DeleteContextResponse, Failure> {
    let began = Instant::now();
    let mut broke_off = false;
    loop {
        let error = match session.clients.delete_context(id).await {
            Ok(answer) => return Ok(answer),
            // The try before went through, and only its answer was lost.
            Err(CallError { view, .. }) if broke_off && view.code == Code::NotFound => {
                return Ok(proto::v1::DeleteContextResponse::default());
            }
            Err(error) => error,
        };
        let goes_on = matches!(error.retry, Retry::Again { .. });
        // A coordinator that was never there is not waited for.
        let refused = !broke_off && error.view.reason.is_empty() && error.view.code == Code::Unavailable;
        if !goes_on || refused || began.elapsed() >= PATIENCE {
            return Err(match Failure::from(error) {
                Failure::Unreachable(text) | Failure::Closed(text) if broke_off => {
                    Failure::Unreachable(format!(
                        "{text}\nthe removal of context {id} goes on; see its end with `mycora context delete {id} --yes`"
                    ))
                }
                other => other,
            });
        }
        if !broke_off && !session.global.quiet {
            output::note(&format!("context {id} is being deleted; its supervisors are told"));
        }
        broke_off = true;
        tokio::time::sleep(WAIT).await;
    }
}
