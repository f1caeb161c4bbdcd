//! `mycora saga start` and `mycora saga send`.

use clap::Args;
use proto::v1;

use super::scope::{SagaCommandScope, SagaDataFlags, SagaInstanceArg, SagaRequestIdFlag};
use super::watch;
use crate::failure::CliError;
use crate::output::saga::change::{self, SagaRequestRef};
use crate::output::{self, json};

pub(super) const START_HELP: &str = "\
Needs the role executor. Starts the definition in force; the data are its `event.data`. It is an error if an instance of the same correlation runs, or has ended recently. With --watch the exit code is 0 when it completed, and 1 when it ended otherwise.

Examples:
  mycora saga start order-fulfilment order-7 --data '{\"order_id\": \"order-7\", \"email\": \"ann@example.com\", \"amount_cents\": 990}'
  mycora saga start order-fulfilment order-7 --data-file order-7.json --watch";

pub(super) const SEND_HELP: &str = "\
Needs the role executor. The event is treated as if an aggregate had sent it. An event that starts instances starts one if there is none.

Example:
  mycora saga send order-fulfilment order-7 PaymentCaptured --data '{\"amount_cents\": 990}'";

/// Arguments of `saga start`.
#[derive(Debug, Args)]
pub struct SagaStartArgs {
    /// Instance to start.
    #[command(flatten)]
    pub instance: SagaInstanceArg,
    /// Data with which the instance starts.
    #[command(flatten)]
    pub data: SagaDataFlags,
    /// Watch it until it has ended; Ctrl-C leaves it running
    #[arg(long, short)]
    pub watch: bool,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

/// Arguments of `saga send`.
#[derive(Debug, Args)]
pub struct SagaSendArgs {
    /// Instance that receives the event.
    #[command(flatten)]
    pub instance: SagaInstanceArg,
    /// Type of the event
    #[arg(value_name = "EVENT")]
    pub event_type: String,
    /// Data of the event.
    #[command(flatten)]
    pub data: SagaDataFlags,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

pub(super) async fn start(scope: &SagaCommandScope<'_>, args: SagaStartArgs) -> Result<u8, CliError> {
    let SagaStartArgs { instance, data, watch, repeat } = args;
    let request = v1::StartSagaRequest {
        request_id: repeat.id(),
        tenant_id: scope.tenant_id.clone(),
        saga: instance.saga.clone(),
        correlation_id: instance.correlation.clone(),
        data_json: data.read()?,
    };
    let id = &request.request_id;
    let answer = scope.clients().start_saga(&request).await?;
    if watch {
        return watch::until_ended(scope, instance).await;
    }
    let request_ref = SagaRequestRef { request_id: id, dry_run: false };
    let text = || change::text(&answer.change.clone().unwrap_or_default(), request_ref);
    output::answer(scope.format(), || json::of(&answer), text).map(|()| 0)
}

pub(super) async fn send(scope: &SagaCommandScope<'_>, args: SagaSendArgs) -> Result<(), CliError> {
    let SagaSendArgs { instance, event_type, data, repeat } = args;
    let request = v1::SendSagaEventRequest {
        request_id: repeat.id(),
        tenant_id: scope.tenant_id.clone(),
        saga: instance.saga,
        correlation_id: instance.correlation,
        event_type,
        data_json: data.read()?,
    };
    let id = &request.request_id;
    let answer = scope.clients().send_saga_event(&request).await?;
    let request_ref = SagaRequestRef { request_id: id, dry_run: false };
    let text = || change::text(&answer.change.clone().unwrap_or_default(), request_ref);
    output::answer(scope.format(), || json::of(&answer), text)
}
