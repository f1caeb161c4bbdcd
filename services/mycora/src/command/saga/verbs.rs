//! Changes of one instance: `mycora saga pause` to `mycora saga migrate`.

use clap::Args;
use proto::v1;

use super::scope::{SagaCommandScope, SagaInstanceArg, SagaRequestIdFlag, SagaResultFlags};
use super::watch;
use crate::failure::CliError;
use crate::output::saga::change::{self, SagaRequestRef};
use crate::output::saga::instance::quoted;
use crate::output::{self, json};

pub(super) const CANCEL_HELP: &str = "\
Needs the role admin. The steps that were done are undone in reverse order, as the definition says. A pivot in progress is awaited, and may succeed; after the pivot an instance cannot be cancelled, only killed.

Examples:
  mycora saga cancel order-fulfilment order-7 --reason 'the customer called'
  mycora saga cancel order-fulfilment order-7 --reason test --dry-run";

pub(super) const KILL_HELP: &str = "\
Needs the role admin. Nothing is undone, and open calls are cancelled. Works on paused, parked and stuck instances too.

Example:
  mycora saga kill order-fulfilment order-7 --reason 'seen to by hand' --yes";

pub(super) const SKIP_HELP: &str = "\
Needs the role admin. The result replaces that of every branch that has not succeeded. It is ignored if a compensation is skipped.

Example:
  mycora saga skip-step order-fulfilment order-7 --result '{\"label\": {\"code\": \"L-1\"}}'";

pub(super) const COMPLETE_HELP: &str = "\
Needs the role admin.

Example:
  mycora saga complete order-fulfilment order-7 --reason 'shipped by hand'";

pub(super) const MIGRATE_HELP: &str = "\
Needs the role admin. The definition in force says from which version it migrates, and how steps and state are mapped (`migrate`). An instance several versions behind passes through those between, in one change. Works on paused and parked instances too, which stay so.

Example:
  mycora saga migrate order-fulfilment order-7 --dry-run";

/// Arguments of every change of an instance.
#[derive(Debug, Args)]
pub struct SagaVerbArgs {
    /// Instance to change.
    #[command(flatten)]
    pub instance: SagaInstanceArg,
    /// Only show what would follow
    #[arg(long)]
    pub dry_run: bool,
    /// Only if the instance is still at this revision, as `saga show` shows it
    #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..))]
    pub expect_revision: Option<u64>,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

/// Arguments of `saga cancel`.
#[derive(Debug, Args)]
pub struct SagaCancelArgs {
    /// Instance to change, and how.
    #[command(flatten)]
    pub verb: SagaVerbArgs,
    /// Why, in at most 300 characters; its definition sees it as `saga.reason`
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Watch it until it has ended; Ctrl-C leaves it running
    #[arg(long, short, conflicts_with = "dry_run")]
    pub watch: bool,
}

/// Arguments of `saga kill`.
#[derive(Debug, Args)]
pub struct SagaKillArgs {
    /// Instance to change, and how.
    #[command(flatten)]
    pub verb: SagaVerbArgs,
    /// Why, in at most 300 characters
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Confirm: nothing that it has done is undone
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `saga skip-step`.
#[derive(Debug, Args)]
pub struct SagaSkipStepArgs {
    /// Instance to change, and how.
    #[command(flatten)]
    pub verb: SagaVerbArgs,
    /// Result that replaces the step's.
    #[command(flatten)]
    pub result: SagaResultFlags,
}

/// Arguments of `saga complete`.
#[derive(Debug, Args)]
pub struct SagaCompleteArgs {
    /// Instance to change, and how.
    #[command(flatten)]
    pub verb: SagaVerbArgs,
    /// Why, in at most 300 characters
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// Requests a change of an instance with the arguments common to all of them, and shows what followed.
macro_rules! send_verb {
    ($scope:expr, $verb:expr, $call:ident, $request:ident { $($field:ident: $value:expr),* }) => {{
        let (scope, SagaVerbArgs { instance, dry_run, expect_revision, repeat }) = ($scope, $verb);
        let request = v1::$request {
            request_id: repeat.id(),
            tenant_id: scope.tenant_id.clone(),
            saga: instance.saga,
            correlation_id: instance.correlation,
            expected_revision: expect_revision.unwrap_or_default(),
            dry_run,
            $($field: $value,)*
        };
        let answer = scope.clients().$call(&request).await?;
        let request_ref = SagaRequestRef { request_id: &request.request_id, dry_run };
        let text = || change::text(&answer.change.clone().unwrap_or_default(), request_ref);
        output::answer(scope.format(), || json::of(&answer), text)
    }};
}

pub(super) async fn pause(scope: &SagaCommandScope<'_>, verb: SagaVerbArgs) -> Result<(), CliError> {
    send_verb!(scope, verb, pause_saga, PauseSagaRequest {})
}

pub(super) async fn resume(scope: &SagaCommandScope<'_>, verb: SagaVerbArgs) -> Result<(), CliError> {
    send_verb!(scope, verb, resume_saga, ResumeSagaRequest {})
}

pub(super) async fn cancel(scope: &SagaCommandScope<'_>, args: SagaCancelArgs) -> Result<u8, CliError> {
    let SagaCancelArgs { verb, reason, watch } = args;
    if !watch {
        return send_verb!(scope, verb, cancel_saga, CancelSagaRequest { reason: reason }).map(|()| 0);
    }
    let instance = verb.instance.clone();
    let request = v1::CancelSagaRequest {
        request_id: verb.repeat.id(),
        tenant_id: scope.tenant_id.clone(),
        saga: verb.instance.saga,
        correlation_id: verb.instance.correlation,
        expected_revision: verb.expect_revision.unwrap_or_default(),
        dry_run: false,
        reason,
    };
    scope.clients().cancel_saga(&request).await?;
    watch::until_ended(scope, instance).await
}

pub(super) async fn kill(scope: &SagaCommandScope<'_>, args: SagaKillArgs) -> Result<(), CliError> {
    let SagaKillArgs { verb, reason, yes } = args;
    if !yes && !verb.dry_run {
        let SagaInstanceArg { saga, correlation } = &verb.instance;
        return Err(CliError::Invalid(format!(
            "the instance {} of `{saga}` would end where it stands, with nothing undone; confirm with --yes, or look with \
             --dry-run",
            quoted(correlation)
        )));
    }
    send_verb!(scope, verb, kill_saga, KillSagaRequest { reason: reason })
}

pub(super) async fn retry_step(scope: &SagaCommandScope<'_>, verb: SagaVerbArgs) -> Result<(), CliError> {
    send_verb!(scope, verb, retry_saga_step, RetrySagaStepRequest {})
}

pub(super) async fn skip_step(scope: &SagaCommandScope<'_>, args: SagaSkipStepArgs) -> Result<(), CliError> {
    let SagaSkipStepArgs { verb, result } = args;
    let result_json = result.read()?;
    send_verb!(scope, verb, skip_saga_step, SkipSagaStepRequest { result_json: result_json })
}

pub(super) async fn complete(scope: &SagaCommandScope<'_>, args: SagaCompleteArgs) -> Result<(), CliError> {
    let SagaCompleteArgs { verb, reason } = args;
    send_verb!(scope, verb, complete_saga, CompleteSagaRequest { reason: reason })
}

pub(super) async fn migrate(scope: &SagaCommandScope<'_>, verb: SagaVerbArgs) -> Result<(), CliError> {
    send_verb!(scope, verb, migrate_saga, MigrateSagaRequest {})
}
