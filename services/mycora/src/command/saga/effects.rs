//! `mycora saga effect`: calls that sagas have ordered.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use model::{CommandId, EffectName, Timestamp};
use proto::v1;
use proto::v1::{complete_effect_request, resolve_effect_request};

use super::scope::{self, SagaCommandScope, SagaRequestIdFlag, SagaResultFlags};
use crate::failure::CliError;
use crate::output::saga::effect;
use crate::output::{self, PageSummary, json};

const COMPLETE_HELP: &str = "\
Needs the role executor, and the token that was issued for the call. A failure has a code of A-Z a-z 0-9 _ . and -, which the saga can test (`result.code`), and may have a result, which is an object.

Examples:
  mycora saga effect complete 018f4d2e-7a1b-7c3d-8e4f-0123456789ab --token-file token --succeeded --result '{\"approved\": true}'
  mycora saga effect complete 018f4d2e-7a1b-7c3d-8e4f-0123456789ab --token-file token --failed refused";

const RESOLVE_HELP: &str = "\
Needs the role admin. Only a person can find out whether a call of unknown outcome happened; its saga continues with this answer. A call that did not happen is a failure with the code `not_done`.

Examples:
  mycora saga effect resolve 018f4d2e-7a1b-7c3d-8e4f-0123456789ab --succeeded --result '{\"payment_id\": \"p-9\"}'
  mycora saga effect resolve 018f4d2e-7a1b-7c3d-8e4f-0123456789ab --not-done";

/// Commands about calls of effects.
#[derive(Debug, Subcommand)]
pub enum SagaEffectCommand {
    /// List calls, those that ended up to 7 days ago among them
    #[command(
        after_help = "Examples:\n  mycora saga effect list --state manual\n  mycora saga effect list --saga order-fulfilment --correlation order-7"
    )]
    List(SagaEffectListArgs),
    /// Show a call with its input and its result
    #[command(after_help = "Example:\n  mycora saga effect show 018f4d2e-7a1b-7c3d-8e4f-0123456789ab")]
    Show(SagaEffectCallArgs),
    /// End a call that waits for its answer by a token
    #[command(after_help = COMPLETE_HELP)]
    Complete(SagaEffectCompleteArgs),
    /// Resolve a call of unknown outcome: say whether it happened
    #[command(after_help = RESOLVE_HELP)]
    Resolve(SagaEffectResolveArgs),
    /// Make a call again at once, under its own idempotency key
    #[command(
        after_help = "Needs the role admin. For a call that waits for its next try, or whose outcome is unknown.\n\nExample:\n  mycora saga effect retry 018f4d2e-7a1b-7c3d-8e4f-0123456789ab"
    )]
    Retry(SagaEffectChangeArgs),
    /// Cancel a call; its saga is notified as of any other end
    #[command(
        after_help = "Needs the role admin. A call that is being made is awaited first.\n\nExample:\n  mycora saga effect cancel 018f4d2e-7a1b-7c3d-8e4f-0123456789ab"
    )]
    Cancel(SagaEffectChangeArgs),
}

/// Arguments of `saga effect list`.
#[derive(Debug, Args)]
pub struct SagaEffectListArgs {
    /// Only calls of this effect
    #[arg(long, value_name = "EFFECT", value_parser = effect_name)]
    pub effect: Option<String>,
    /// Only calls in this state; may be repeated
    #[arg(long = "state", value_enum)]
    pub states: Vec<EffectStateFilter>,
    /// Only calls that instances of this saga ordered
    #[arg(long, value_name = "SAGA", value_parser = scope::saga)]
    pub saga: Option<String>,
    /// Only calls that the instance of this correlation ordered
    #[arg(long, requires = "saga", value_parser = scope::correlation)]
    pub correlation: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// A state as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EffectStateFilter {
    /// Ordered, and not made yet.
    Accepted,
    /// Being made.
    Calling,
    /// Waits for its next try.
    Backoff,
    /// Waits for its answer.
    Waiting,
    /// Perhaps made.
    Unknown,
    /// Perhaps made; a person has to find out.
    Manual,
    /// Ended well.
    Succeeded,
    /// Failed permanently.
    Failed,
    /// Took too long.
    #[value(name = "timed_out", alias = "timed-out")]
    TimedOut,
    /// No longer wanted.
    Cancelled,
}

impl From<EffectStateFilter> for v1::EffectState {
    fn from(filter: EffectStateFilter) -> Self {
        match filter {
            EffectStateFilter::Accepted => Self::Accepted,
            EffectStateFilter::Calling => Self::Calling,
            EffectStateFilter::Backoff => Self::Backoff,
            EffectStateFilter::Waiting => Self::Waiting,
            EffectStateFilter::Unknown => Self::Unknown,
            EffectStateFilter::Manual => Self::Manual,
            EffectStateFilter::Succeeded => Self::Succeeded,
            EffectStateFilter::Failed => Self::Failed,
            EffectStateFilter::TimedOut => Self::TimedOut,
            EffectStateFilter::Cancelled => Self::Cancelled,
        }
    }
}

/// Names one call.
#[derive(Debug, Args)]
pub struct SagaEffectCallArgs {
    /// The command that ordered it, a UUID
    #[arg(value_name = "COMMAND", value_parser = command)]
    pub command_id: String,
    /// The effect of the call [default: the tenant's effect that has the command]
    #[arg(long, value_name = "EFFECT", value_parser = effect_name)]
    pub effect: Option<String>,
}

/// Arguments of every change of a call.
#[derive(Debug, Args)]
pub struct SagaEffectChangeArgs {
    /// Which call.
    #[command(flatten)]
    pub call: SagaEffectCallArgs,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

/// Arguments of `saga effect complete`.
#[derive(Debug, Args)]
#[group(id = "ended", required = true, multiple = false, args = ["succeeded", "failed"])]
pub struct SagaEffectCompleteArgs {
    /// Which call.
    #[command(flatten)]
    pub change: SagaEffectChangeArgs,
    /// The file with the token, readable by its owner only
    #[arg(long, value_name = "FILE")]
    pub token_file: PathBuf,
    /// The call succeeded
    #[arg(long)]
    pub succeeded: bool,
    /// The call failed permanently, with this code
    #[arg(long, value_name = "CODE")]
    pub failed: Option<String>,
    /// Result that the saga sees.
    #[command(flatten)]
    pub result: SagaResultFlags,
}

/// Arguments of `saga effect resolve`.
#[derive(Debug, Args)]
#[group(id = "happened", required = true, multiple = false, args = ["succeeded", "not_done"])]
pub struct SagaEffectResolveArgs {
    /// Which call.
    #[command(flatten)]
    pub change: SagaEffectChangeArgs,
    /// The call happened, and succeeded
    #[arg(long)]
    pub succeeded: bool,
    /// The call did not happen, and will not
    #[arg(long, conflicts_with_all = ["result", "result_file"])]
    pub not_done: bool,
    /// Result that the saga sees.
    #[command(flatten)]
    pub result: SagaResultFlags,
}

fn effect_name(text: &str) -> Result<String, String> {
    scope::name::<EffectName>(text)
}

fn command(text: &str) -> Result<String, String> {
    scope::name::<CommandId>(text)
}

/// A request to change a call, with what all of them have in common.
macro_rules! changed {
    ($scope:expr, $change:expr, $request:ident { $($field:ident: $value:expr),* }) => {{
        let SagaEffectChangeArgs { call: SagaEffectCallArgs { command_id, effect }, repeat } = $change;
        v1::$request {
            request_id: repeat.id(),
            tenant_id: $scope.tenant_id.clone(),
            effect: effect.unwrap_or_default(),
            command_id,
            $($field: $value,)*
        }
    }};
}

pub(super) async fn run(scope: &SagaCommandScope<'_>, command: SagaEffectCommand) -> Result<(), CliError> {
    match command {
        SagaEffectCommand::List(args) => list(scope, args).await,
        SagaEffectCommand::Show(args) => show(scope, args).await,
        SagaEffectCommand::Complete(args) => complete(scope, args).await,
        SagaEffectCommand::Resolve(args) => resolve(scope, args).await,
        SagaEffectCommand::Retry(args) => {
            let request = changed!(scope, args, RetryEffectRequest {});
            let answer = scope.clients().retry_effect(&request).await?;
            let text = || changed_text(answer.call.as_ref(), &request.request_id);
            output::answer(scope.format(), || json::of(&answer), text)
        }
        SagaEffectCommand::Cancel(args) => {
            let request = changed!(scope, args, CancelEffectRequest {});
            let answer = scope.clients().cancel_effect(&request).await?;
            let text = || changed_text(answer.call.as_ref(), &request.request_id);
            output::answer(scope.format(), || json::of(&answer), text)
        }
    }
}

fn changed_text(call: Option<&v1::EffectCall>, request_id: &str) -> String {
    let call = call.cloned().unwrap_or_default();
    format!("{}\nrequest {request_id}\n", effect::whole(&call, Timestamp::now()))
}

async fn list(scope: &SagaCommandScope<'_>, args: SagaEffectListArgs) -> Result<(), CliError> {
    let SagaEffectListArgs { effect: only, states, saga, correlation, limit } = args;
    let request = v1::ListEffectsRequest {
        tenant_id: scope.tenant_id.clone(),
        effect: only.unwrap_or_default(),
        states: states.into_iter().map(|state| v1::EffectState::from(state).into()).collect(),
        saga: saga.unwrap_or_default(),
        correlation_id: correlation.unwrap_or_default(),
        ..Default::default()
    };
    let answer = scope.clients().list_effects(request, limit).await?;
    let v1::ListEffectsResponse { calls, next_page_token } = &answer;
    let none = "there are no such calls";
    let listed = PageSummary { count: calls.len(), limit, next_page_token, none };
    output::list(scope.format(), listed, || json::of(&answer), || effect::list(calls, Timestamp::now()))
}

async fn show(scope: &SagaCommandScope<'_>, args: SagaEffectCallArgs) -> Result<(), CliError> {
    let SagaEffectCallArgs { command_id, effect: name } = args;
    let tenant_id = scope.tenant_id.clone();
    let request = v1::GetEffectRequest { tenant_id, effect: name.unwrap_or_default(), command_id };
    let answer = scope.clients().get_effect(&request).await?;
    let text = || effect::whole(&answer.call.clone().unwrap_or_default(), Timestamp::now());
    output::answer(scope.format(), || json::of(&answer), text)
}

async fn complete(scope: &SagaCommandScope<'_>, args: SagaEffectCompleteArgs) -> Result<(), CliError> {
    let SagaEffectCompleteArgs { change, token_file, succeeded: _, failed, result } = args;
    let token = service::read_secret(&token_file).map_err(|error| {
        CliError::Invalid(format!("the token in {} cannot be read: {error}", token_file.display()))
    })?;
    let result_json = result.read()?;
    let outcome = match failed {
        Some(code) => complete_effect_request::Outcome::Failed(v1::EffectFailure { code, result_json }),
        None => complete_effect_request::Outcome::Succeeded(v1::EffectSuccess { result_json }),
    };
    let request =
        changed!(scope, change, CompleteEffectRequest { token: token.to_string(), outcome: Some(outcome) });
    let answer = scope.clients().complete_effect(&request).await?;
    let text = || changed_text(answer.call.as_ref(), &request.request_id);
    output::answer(scope.format(), || json::of(&answer), text)
}

async fn resolve(scope: &SagaCommandScope<'_>, args: SagaEffectResolveArgs) -> Result<(), CliError> {
    let SagaEffectResolveArgs { change, succeeded: _, not_done, result } = args;
    let outcome = if not_done {
        resolve_effect_request::Outcome::NotDone(v1::EffectNotDone {})
    } else {
        let result_json = result.read()?;
        resolve_effect_request::Outcome::Succeeded(v1::EffectSuccess { result_json })
    };
    let request = changed!(scope, change, ResolveEffectRequest { outcome: Some(outcome) });
    let answer = scope.clients().resolve_effect(&request).await?;
    let text = || changed_text(answer.call.as_ref(), &request.request_id);
    output::answer(scope.format(), || json::of(&answer), text)
}
