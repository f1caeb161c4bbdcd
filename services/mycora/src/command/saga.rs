//! `mycora saga`: state machines that wait for events, order work and undo it.

mod dead_letters;
mod definitions;
mod effects;
mod graph;
mod instances;
mod journal;
mod lanes;
mod replay;
pub mod replay_verify;
mod scope;
mod server;
mod start;
pub mod test;
mod timeline;
mod validate;
mod verbs;
mod watch;

use clap::{Args, Subcommand};

use self::dead_letters::SagaDeadLetterCommand;
use self::definitions::{SagaApplyArgs, SagaDefinitionListArgs, SagaDefinitionShowArgs, SagaRetireArgs};
use self::effects::SagaEffectCommand;
use self::graph::SagaGraphArgs;
use self::instances::{SagaListArgs, SagaTimersArgs};
use self::lanes::{SagaLanesArgs, SagaMoveLaneArgs};
use self::replay::SagaReplayArgs;
pub use self::replay_verify::SagaReplayVerifyArgs;
use self::scope::{SagaCommandScope, SagaInstanceArg};
use self::server::{SagaDrainArgs, SagaReloadArgs, SagaServerArgs, SagaTenantArgs};
use self::start::{SagaSendArgs, SagaStartArgs};
pub use self::test::SagaTestArgs;
use self::timeline::SagaTimelineArgs;
use self::validate::SagaValidateArgs;
use self::verbs::{SagaCancelArgs, SagaCompleteArgs, SagaKillArgs, SagaSkipStepArgs, SagaVerbArgs};
use self::watch::SagaWatchArgs;
use super::CliSession;
use crate::failure::CliError;
use crate::output::OutputFormat;

/// Arguments of `mycora saga`.
#[derive(Debug, Args)]
pub struct SagaArgs {
    /// The tenant of the sagas [default: `tenant` of the profile, else the number of the context]. Empty, or ignored, on a
    /// server without tenants
    #[arg(long, global = true, value_name = "TENANT", env = "MYCORA_TENANT", value_parser = scope::tenant)]
    pub tenant: Option<String>,
    /// Command to run.
    #[command(subcommand)]
    pub command: SagaCommand,
}

/// Commands about sagas.
#[derive(Debug, Subcommand)]
pub enum SagaCommand {
    /// Check manifests without putting anything in force; needs no server unless --remote is given
    #[command(after_help = validate::AFTER_HELP)]
    Validate(SagaValidateArgs),
    /// Play scenarios of a saga in virtual time, without any server, and everything that can go wrong in them
    #[command(after_help = test::AFTER_HELP)]
    Test(SagaTestArgs),
    /// Run a journal again and compare every byte of it, without any server
    #[command(after_help = replay_verify::AFTER_HELP)]
    ReplayVerify(SagaReplayVerifyArgs),
    /// Put the sagas of a manifest in force for a tenant, all of them or none
    #[command(after_help = definitions::APPLY_HELP)]
    Apply(SagaApplyArgs),
    /// List the definitions of sagas, by name, the newest first
    #[command(after_help = "Example:\n  mycora saga definitions --in-force")]
    Definitions(SagaDefinitionListArgs),
    /// Show a definition with its manifest
    #[command(after_help = definitions::DEFINITION_HELP)]
    Definition(SagaDefinitionShowArgs),
    /// Retire a saga: no new instance starts on it, and running ones continue
    #[command(
        after_help = "Admins may.\n\nExample:\n  mycora saga retire order-fulfilment --expect-version 3"
    )]
    Retire(SagaRetireArgs),
    /// Start an instance
    #[command(after_help = start::START_HELP)]
    Start(SagaStartArgs),
    /// Send an event to an instance, such as an approval
    #[command(after_help = start::SEND_HELP)]
    Send(SagaSendArgs),
    /// List instances, running and ended ones
    #[command(after_help = instances::LIST_HELP)]
    List(SagaListArgs),
    /// Show an instance: its state, what it waits for and what it may have to undo
    #[command(after_help = "Example:\n  mycora saga show order-fulfilment order-7 --output yaml")]
    Show(SagaInstanceArg),
    /// Watch an instance until it has ended, those of a saga, or all; Ctrl-C leaves them running
    #[command(after_help = watch::AFTER_HELP)]
    Watch(SagaWatchArgs),
    /// Show the inputs of an instance and what followed from each, oldest first
    #[command(after_help = timeline::AFTER_HELP)]
    Timeline(SagaTimelineArgs),
    /// List timers that are set, the first to fire first
    #[command(after_help = "Example:\n  mycora saga timers order-fulfilment --within 1h")]
    Timers(SagaTimersArgs),
    /// Explain the state of an instance
    #[command(after_help = "Example:\n  mycora saga explain order-fulfilment order-7")]
    Explain(SagaInstanceArg),
    /// Draw a saga, with the position of an instance in it
    #[command(after_help = graph::AFTER_HELP)]
    Graph(SagaGraphArgs),
    /// Pause an instance: hold back its inputs until it is resumed
    #[command(
        after_help = "Admins may. Calls that are under way go on.\n\nExample:\n  mycora saga pause order-fulfilment order-7"
    )]
    Pause(SagaVerbArgs),
    /// Resume a paused instance: apply the inputs that were held back, and new ones
    #[command(after_help = "Admins may.\n\nExample:\n  mycora saga resume order-fulfilment order-7")]
    Resume(SagaVerbArgs),
    /// Undo what an instance has done, in reverse
    #[command(after_help = verbs::CANCEL_HELP)]
    Cancel(SagaCancelArgs),
    /// End an instance where it stands, with nothing undone
    #[command(after_help = verbs::KILL_HELP)]
    Kill(SagaKillArgs),
    /// Retry the step at which an instance is stuck
    #[command(after_help = "Admins may.\n\nExample:\n  mycora saga retry-step order-fulfilment order-7")]
    RetryStep(SagaVerbArgs),
    /// Skip the step at which an instance is stuck, as if it had succeeded
    #[command(after_help = verbs::SKIP_HELP)]
    SkipStep(SagaSkipStepArgs),
    /// End a stuck instance as completed, after the rest was done by hand
    #[command(after_help = verbs::COMPLETE_HELP)]
    Complete(SagaCompleteArgs),
    /// Migrate an instance to the definition in force, as that definition says
    #[command(after_help = verbs::MIGRATE_HELP)]
    Migrate(SagaVerbArgs),
    /// List calls of effects, show one, and report its outcome
    #[command(subcommand)]
    Effect(SagaEffectCommand),
    /// List inputs that could not be processed, apply them again or remove them
    #[command(subcommand)]
    Letters(SagaDeadLetterCommand),
    /// List lanes: their owners, and how far their sources were read
    #[command(after_help = "Admins may.\n\nExample:\n  mycora saga lanes order-fulfilment")]
    Lanes(SagaLanesArgs),
    /// Move a lane to a given replica, or back to the one that its place assigns
    #[command(after_help = lanes::MOVE_HELP)]
    MoveLane(SagaMoveLaneArgs),
    /// Process a lane again: compare its journals, or read its sources from a position
    #[command(after_help = replay::AFTER_HELP)]
    Replay(SagaReplayArgs),
    /// Pause a tenant: stop reading its inputs; nothing is lost
    #[command(after_help = "Admins may.\n\nExample:\n  mycora saga pause-tenant --tenant acme")]
    PauseTenant(SagaTenantArgs),
    /// Resume a paused tenant with everything that came for it
    #[command(after_help = "Admins may.\n\nExample:\n  mycora saga resume-tenant --tenant acme")]
    ResumeTenant(SagaTenantArgs),
    /// Drain the service: it ends work in progress, gives up its lanes and exits
    #[command(after_help = server::DRAIN_HELP)]
    Drain(SagaDrainArgs),
    /// Reload manifests, providers and tenants from the operator's directory
    #[command(after_help = server::RELOAD_HELP)]
    Reload(SagaReloadArgs),
    /// Show the service's configuration, its backing services and its problems
    #[command(after_help = server::SERVER_HELP)]
    Server(SagaServerArgs),
}

impl SagaArgs {
    /// Returns whether this is done without a server.
    #[must_use]
    pub const fn is_alone(&self) -> bool {
        match &self.command {
            SagaCommand::Validate(args) => !args.remote,
            SagaCommand::Test(_) | SagaCommand::ReplayVerify(_) => true,
            SagaCommand::Server(args) => args.nats_permissions,
            _ => false,
        }
    }
}

/// Runs a command that needs no server; gives the exit code.
///
/// # Errors
/// When it cannot be done, or does need one.
pub fn run_alone(args: &SagaArgs, format: OutputFormat) -> Result<u8, CliError> {
    match &args.command {
        SagaCommand::Validate(args) => validate::alone(args, format),
        SagaCommand::Test(args) => test::run(args, format),
        SagaCommand::ReplayVerify(args) => replay_verify::run(args, format),
        SagaCommand::Server(args) if args.nats_permissions => server::nats_permissions(args, format),
        _ => Err(CliError::Failed("this needs a server".to_owned())),
    }
}

/// Runs a command that needs a server; gives the exit code.
///
/// # Errors
/// When the server cannot be reached or refuses.
pub async fn run(session: &CliSession, args: SagaArgs) -> Result<u8, CliError> {
    let SagaArgs { tenant, command } = args;
    match command {
        // These commands use only an explicit --tenant: without one they concern all tenants.
        SagaCommand::Drain(args) => return server::drain(session, tenant, args).await,
        SagaCommand::Reload(args) => return server::reload(session, tenant, args).await,
        SagaCommand::Server(args) if args.nats_permissions => {
            return server::nats_permissions(&args, session.global.output);
        }
        SagaCommand::Server(_) => return server::show(session).await,
        _ => {}
    }
    let scope = SagaCommandScope::find(session, tenant).await?;
    match command {
        SagaCommand::Validate(args) => return validate::remote(&scope, &args).await,
        SagaCommand::Apply(args) => definitions::apply(&scope, &args).await?,
        SagaCommand::Definitions(args) => definitions::list(&scope, args).await?,
        SagaCommand::Definition(args) => definitions::show(&scope, args).await?,
        SagaCommand::Retire(args) => definitions::retire(&scope, args).await?,
        SagaCommand::Start(args) => return start::start(&scope, args).await,
        SagaCommand::Send(args) => start::send(&scope, args).await?,
        SagaCommand::List(args) => instances::list(&scope, args).await?,
        SagaCommand::Show(instance) => instances::show(&scope, instance).await?,
        SagaCommand::Watch(args) => return watch::run(&scope, args).await,
        SagaCommand::Timeline(args) => timeline::run(&scope, args).await?,
        SagaCommand::Timers(args) => instances::timers(&scope, args).await?,
        SagaCommand::Explain(instance) => instances::explain(&scope, instance).await?,
        SagaCommand::Graph(args) => graph::run(&scope, args).await?,
        SagaCommand::Pause(args) => verbs::pause(&scope, args).await?,
        SagaCommand::Resume(args) => verbs::resume(&scope, args).await?,
        SagaCommand::Cancel(args) => return verbs::cancel(&scope, args).await,
        SagaCommand::Kill(args) => verbs::kill(&scope, args).await?,
        SagaCommand::RetryStep(args) => verbs::retry_step(&scope, args).await?,
        SagaCommand::SkipStep(args) => verbs::skip_step(&scope, args).await?,
        SagaCommand::Complete(args) => verbs::complete(&scope, args).await?,
        SagaCommand::Migrate(args) => verbs::migrate(&scope, args).await?,
        SagaCommand::Effect(command) => effects::run(&scope, command).await?,
        SagaCommand::Letters(command) => return dead_letters::run(&scope, command).await,
        SagaCommand::Lanes(args) => lanes::list(&scope, args).await?,
        SagaCommand::MoveLane(args) => lanes::move_lane(&scope, args).await?,
        SagaCommand::Replay(args) => return replay::run(&scope, args).await,
        SagaCommand::PauseTenant(args) => server::pause_tenant(&scope, args).await?,
        SagaCommand::ResumeTenant(args) => server::resume_tenant(&scope, args).await?,
        SagaCommand::Drain(_) | SagaCommand::Reload(_) | SagaCommand::Server(_) => {}
        command @ (SagaCommand::Test(_) | SagaCommand::ReplayVerify(_)) => {
            let args = SagaArgs { tenant: None, command };
            return run_alone(&args, session.global.output);
        }
    }
    Ok(0)
}
