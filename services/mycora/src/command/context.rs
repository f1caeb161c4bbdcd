//! `mycora context`: tenants, who may do what in them, and who did.

mod audit;
mod change;
mod delete;
mod export;
mod import;
pub(super) mod moving_progress;
mod retention;

use clap::{Args, Subcommand};

pub use self::audit::ContextAuditArgs;
pub use self::change::{ContextCreateArgs, ContextSwitch, ContextUpdateArgs};
pub use self::delete::ContextDeleteArgs;
pub use self::export::ContextExportArgs;
pub use self::import::{ContextImportArgs, RunningFlows};
pub use self::retention::RetentionBound;
use super::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, OutputFormat, json, objects, usage};

/// Commands about contexts.
#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// Create a context; the caller becomes its first admin
    #[command(after_help = change::CREATE_HELP)]
    Create(ContextCreateArgs),
    /// List the contexts in which you have a role; the admin sees all
    #[command(after_help = "Example:\n  mycora context list")]
    List,
    /// Show a context: its members and its switches
    #[command(after_help = "Example:\n  mycora context show 3")]
    Show(ContextShowArgs),
    /// Change roles and switches of a context. What is not named stays as it is
    #[command(after_help = change::UPDATE_HELP)]
    Update(ContextUpdateArgs),
    /// Show the audit log, newest first. For admins of the context
    #[command(after_help = audit::AFTER_HELP)]
    Audit(ContextAuditArgs),
    /// Show how much a context has of each kind, and the bounds of what is kept
    #[command(after_help = USAGE_HELP)]
    Usage(ContextShowArgs),
    /// Write a context with everything in it to a file. For admins of the context
    #[command(after_help = export::AFTER_HELP)]
    Export(ContextExportArgs),
    /// Bring a context from a file that `context export` wrote, with --as admin
    #[command(after_help = import::AFTER_HELP)]
    Import(ContextImportArgs),
    /// Remove a context with everything in it, here and at its supervisors
    #[command(after_help = "Example:\n  mycora context delete 3 --yes")]
    Delete(ContextDeleteArgs),
}

const USAGE_HELP: &str = "\
Counts are exact. Bytes behind ~ are extrapolated from a sample. Ended flows beyond a bound are removed, the oldest first; `mycora context update --keep` \
lowers the bounds.

Example:
  mycora context usage 3";

/// Arguments of `context show` and `context usage`.
#[derive(Debug, Args)]
pub struct ContextShowArgs {
    /// The context's number
    #[arg(value_parser = values::id)]
    pub id: u32,
}

/// Runs the command.
///
/// # Errors
/// When the coordinator cannot be reached or refuses.
pub async fn run(session: &CliSession, command: &ContextCommand) -> Result<(), CliError> {
    match command {
        ContextCommand::Create(args) => change::create(session, args).await,
        ContextCommand::List => list(session).await,
        ContextCommand::Show(ContextShowArgs { id }) => {
            let answer = session.clients.get_context(*id).await?;
            let text = || objects::context(&answer.context.clone().unwrap_or_default());
            output::answer(session.global.output, || json::of(&answer), text)
        }
        ContextCommand::Usage(ContextShowArgs { id }) => {
            let answer = session.clients.context_usage(*id).await?;
            output::answer(session.global.output, || json::of(&answer), || usage::context_usage(&answer))
        }
        ContextCommand::Update(args) => change::update(session, args).await,
        ContextCommand::Audit(args) => audit::run(session, args).await,
        ContextCommand::Export(args) => export::run(session, args).await,
        ContextCommand::Import(args) => import::run(session, args).await,
        ContextCommand::Delete(args) => delete::run(session, args).await,
    }
}

async fn list(session: &CliSession) -> Result<(), CliError> {
    let answer = session.clients.list_contexts().await?;
    if session.global.output == OutputFormat::Table && answer.contexts.is_empty() {
        output::note("you have no role in any context; `mycora context create` makes one");
        return Ok(());
    }
    output::answer(session.global.output, || json::of(&answer), || objects::contexts(&answer.contexts))
}
