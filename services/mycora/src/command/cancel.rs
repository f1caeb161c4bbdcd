//! `mycora flow cancel`.

use clap::Args;
use proto::v1;

use super::{Session, watch};
use crate::failure::Failure;
use crate::output::progress::is_ended;
use crate::output::{self, Format, json, words};

/// What `flow cancel` takes.
#[derive(Debug, Args)]
pub struct CancelArgs {
    /// The flow's number
    pub id: u32,
    /// Wait until everything has stopped
    #[arg(long)]
    pub watch: bool,
}

pub(super) async fn run(session: &Session, args: &CancelArgs) -> Result<u8, Failure> {
    let context = session.context()?;
    let request = v1::CancelFlowRequest {
        request_id: uuid::Uuid::new_v4().to_string(),
        context_id: context,
        flow_id: args.id,
    };
    let answer = session.clients.cancel_flow(request).await?;
    if args.watch {
        return watch::run(session, context, args.id).await;
    }
    if session.global.output == Format::Json {
        return output::print_json(&json::of(&answer)).map(|()| 0);
    }
    let flow = answer.flow.unwrap_or_default();
    let text = if is_ended(&flow) {
        format!("flow {} had ended before: {}\n", flow.id, words::flow_status(flow.status()))
    } else {
        format!("flow {} is being cancelled; see `mycora flow watch {}`\n", flow.id, flow.id)
    };
    output::print(&text).map(|()| 0)
}
