//! `mycora flow signal`.

use clap::Args;
use proto::v1;
use uuid::Uuid;

use super::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, json};

/// Arguments of `flow signal`.
#[derive(Debug, Args)]
pub struct FlowSignalArgs {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// The signal: what stands after `signal:` in a job's prerequisites
    pub name: String,
    /// A text stored with the signal, for people and programs to read; at most 4 KiB
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub payload: String,
}

pub(super) async fn run(session: &CliSession, args: FlowSignalArgs) -> Result<(), CliError> {
    let FlowSignalArgs { id, name, payload } = args;
    let request = v1::SignalFlowRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id: session.context()?,
        flow_id: id,
        name,
        payload,
    };
    let answer = session.clients.signal_flow(&request).await?;
    output::answer(
        session.global.output,
        || json::of(&answer),
        || {
            let name = &request.name;
            if answer.already_given {
                format!("flow {id} had been given `{name}` before; nothing has changed\n")
            } else {
                format!("flow {id} has been given `{name}`\n")
            }
        },
    )
}
