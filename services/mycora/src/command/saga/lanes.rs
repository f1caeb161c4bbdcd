//! `mycora saga lanes` and `mycora saga move-lane`.

use clap::Args;
use model::EffectName;
use proto::v1;

use super::scope::{self, SagaCommandScope, SagaRequestIdFlag};
use crate::failure::CliError;
use crate::output::saga::lane;
use crate::output::{self, PageSummary, json};

pub(super) const MOVE_HELP: &str = "\
Needs the admin's certificate, and a store that replicas share. If that replica ends, another one takes the lane.

Examples:
  mycora saga move-lane s:acme:order-fulfilment:0 --to saga-2 --tenant acme --as admin
  mycora saga move-lane s:acme:order-fulfilment:0 --tenant acme --as admin";

/// Arguments of `saga lanes`.
#[derive(Debug, Args)]
pub struct SagaLanesArgs {
    /// Only lanes of this saga
    #[arg(value_parser = scope::saga)]
    pub saga: Option<String>,
    /// Only the lane of this effect
    #[arg(long, value_name = "EFFECT", value_parser = effect_name, conflicts_with = "saga")]
    pub effect: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// Arguments of `saga move-lane`.
#[derive(Debug, Args)]
pub struct SagaMoveLaneArgs {
    /// Name of the lane, as `saga lanes` gives it
    pub lane: String,
    /// Name of the replica, as `saga server` gives it [default: the one that its place assigns]
    #[arg(long = "to", value_name = "REPLICA", default_value = "", hide_default_value = true)]
    pub replica: String,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

fn effect_name(text: &str) -> Result<String, String> {
    scope::name::<EffectName>(text)
}

pub(super) async fn list(scope: &SagaCommandScope<'_>, args: SagaLanesArgs) -> Result<(), CliError> {
    let SagaLanesArgs { saga, effect, limit } = args;
    let request = v1::ListLanesRequest {
        tenant_id: scope.tenant_id.clone(),
        saga: saga.unwrap_or_default(),
        effect: effect.unwrap_or_default(),
        ..Default::default()
    };
    let answer = scope.clients().list_lanes(request, limit).await?;
    let v1::ListLanesResponse { lanes, next_page_token } = &answer;
    let none = "there are no such lanes; each saga and effect in force has some";
    let listed = PageSummary { count: lanes.len(), limit, next_page_token, none };
    output::list(scope.format(), listed, || json::of(&answer), || lane::list(lanes))
}

pub(super) async fn move_lane(scope: &SagaCommandScope<'_>, args: SagaMoveLaneArgs) -> Result<(), CliError> {
    let SagaMoveLaneArgs { lane: name, replica, repeat } = args;
    let request = v1::MoveLaneRequest {
        request_id: repeat.id(),
        tenant_id: scope.tenant_id.clone(),
        lane: name,
        replica,
    };
    let answer = scope.clients().move_lane(&request).await?;
    let text = || lane::moved(&answer.lane.clone().unwrap_or_default(), &request.request_id);
    output::answer(scope.format(), || json::of(&answer), text)
}
