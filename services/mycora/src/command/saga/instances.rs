//! `mycora saga list`, `show`, `timers` and `explain`.

use clap::{Args, ValueEnum};
use model::{StepName, Timestamp};
use proto::convert::time as wire_time;
use proto::v1;
use yaml::duration;

use super::scope::{self, SagaCommandScope, SagaInstanceArg, SagaInstanceFilter};
use crate::command::values::{self, PointInTime};
use crate::failure::CliError;
use crate::output::saga::instance;
use crate::output::{self, PageSummary, json};

pub(super) const LIST_HELP: &str = "\
Examples:
  mycora saga list order-fulfilment --status running --step await-payment
  mycora saga list --blocked
  mycora saga list --here-for 2h --status running";

/// Arguments of `saga list`.
#[derive(Debug, Args)]
pub struct SagaListArgs {
    /// Only instances of this saga
    #[arg(value_parser = scope::saga)]
    pub saga: Option<String>,
    /// Only instances of this status; may be repeated
    #[arg(long = "status", value_enum)]
    pub statuses: Vec<SagaStatusFilter>,
    /// Only instances at this step, or that ended at it
    #[arg(long, value_name = "STEP", value_parser = step)]
    pub step: Option<String>,
    /// Only instances that started at or after this time: a time, a day (UTC), or how long ago, such as 90s, 15m, 2h or 7d
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub since: Option<PointInTime>,
    /// Only instances that started before this time
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub until: Option<PointInTime>,
    /// Only instances that reached their step, or ended, before this time: those that are there at least so long
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub here_for: Option<PointInTime>,
    /// Only instances blocked by an error: stuck, or parked by a dead letter
    #[arg(long)]
    pub blocked: bool,
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// A status as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SagaStatusFilter {
    /// Goes from step to step.
    Running,
    /// Undoes what was done.
    Compensating,
    /// Cannot go on: a person has to look.
    Stuck,
    /// Ended: has done what it was for.
    Completed,
    /// Ended otherwise, as its definition says.
    Failed,
    /// Ended: everything is undone.
    Compensated,
    /// Ended where it stood.
    Killed,
}

impl From<SagaStatusFilter> for v1::SagaStatus {
    fn from(filter: SagaStatusFilter) -> Self {
        match filter {
            SagaStatusFilter::Running => Self::Running,
            SagaStatusFilter::Compensating => Self::Compensating,
            SagaStatusFilter::Stuck => Self::Stuck,
            SagaStatusFilter::Completed => Self::Completed,
            SagaStatusFilter::Failed => Self::Failed,
            SagaStatusFilter::Compensated => Self::Compensated,
            SagaStatusFilter::Killed => Self::Killed,
        }
    }
}

/// Arguments of `saga timers`.
#[derive(Debug, Args)]
pub struct SagaTimersArgs {
    /// Saga or instance whose timers are listed.
    #[command(flatten)]
    pub instance: SagaInstanceFilter,
    /// Only timers that are due within so long, such as 90s, 15m, 2h or 7d
    #[arg(long, value_name = "TIME", value_parser = within)]
    pub within: Option<std::time::Duration>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

fn step(text: &str) -> Result<String, String> {
    scope::name::<StepName>(text)
}

fn within(text: &str) -> Result<std::time::Duration, String> {
    duration(text).ok_or_else(|| "write a time as 90s, 15m, 2h or 7d".to_owned())
}

pub(super) async fn list(scope: &SagaCommandScope<'_>, args: SagaListArgs) -> Result<(), CliError> {
    let SagaListArgs { saga, statuses, step, since, until, here_for, blocked, limit } = args;
    let now = Timestamp::now();
    let time = |moment: Option<PointInTime>| moment.map(|moment| wire_time::to_wire(moment.from(now)));
    let request = v1::ListSagasRequest {
        tenant_id: scope.tenant_id.clone(),
        saga: saga.unwrap_or_default(),
        statuses: statuses.into_iter().map(|status| v1::SagaStatus::from(status).into()).collect(),
        step: step.unwrap_or_default(),
        started_from: time(since),
        started_before: time(until),
        step_before: time(here_for),
        blocked,
        ..Default::default()
    };
    let answer = scope.clients().list_sagas(request, limit).await?;
    let v1::ListSagasResponse { sagas, next_page_token } = &answer;
    let none = "there are no such instances; `mycora saga start SAGA CORRELATION` starts one";
    let listed = PageSummary { count: sagas.len(), limit, next_page_token, none };
    output::list(scope.format(), listed, || json::of(&answer), || instance::list(sagas, now))
}

pub(super) async fn show(scope: &SagaCommandScope<'_>, instance: SagaInstanceArg) -> Result<(), CliError> {
    let answer = read(scope, instance).await?;
    let text = || instance::whole(&answer, Timestamp::now());
    output::answer(scope.format(), || json::of(&answer), text)
}

/// Reads an instance.
pub(super) async fn read(
    scope: &SagaCommandScope<'_>,
    instance: SagaInstanceArg,
) -> Result<v1::GetSagaResponse, CliError> {
    let SagaInstanceArg { saga, correlation } = instance;
    let request =
        v1::GetSagaRequest { tenant_id: scope.tenant_id.clone(), saga, correlation_id: correlation };
    scope.clients().get_saga(&request).await
}

pub(super) async fn timers(scope: &SagaCommandScope<'_>, args: SagaTimersArgs) -> Result<(), CliError> {
    let SagaTimersArgs { instance: SagaInstanceFilter { saga, correlation }, within, limit } = args;
    let now = Timestamp::now();
    let request = v1::ListSagaTimersRequest {
        tenant_id: scope.tenant_id.clone(),
        saga: saga.unwrap_or_default(),
        correlation_id: correlation.unwrap_or_default(),
        due_before: within.map(|within| wire_time::to_wire(now + within)),
        ..Default::default()
    };
    let answer = scope.clients().list_saga_timers(request, limit).await?;
    let v1::ListSagaTimersResponse { timers, next_page_token } = &answer;
    let none = "no such timer is set";
    let listed = PageSummary { count: timers.len(), limit, next_page_token, none };
    output::list(scope.format(), listed, || json::of(&answer), || instance::timers(timers, now))
}

pub(super) async fn explain(scope: &SagaCommandScope<'_>, instance: SagaInstanceArg) -> Result<(), CliError> {
    let SagaInstanceArg { saga, correlation } = instance;
    let tenant_id = scope.tenant_id.clone();
    let request = v1::ExplainSagaRequest { tenant_id, saga, correlation_id: correlation };
    let answer = scope.clients().explain_saga(&request).await?;
    output::answer(scope.format(), || json::of(&answer), || instance::explanation(&answer))
}
