//! `mycora flow cancel`.

use clap::Args;
use proto::v1;
use uuid::Uuid;

use super::{CliSession, values, watch};
use crate::failure::CliError;
use crate::output::progress::is_ended;
use crate::output::{self, json, labels};

/// Arguments of `flow cancel`.
#[derive(Debug, Args)]
pub struct FlowCancelArgs {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// End scripts at once instead of asking them first
    #[arg(long, conflicts_with = "grace")]
    pub now: bool,
    /// Seconds between asking a script to end and ending it [default: 5]
    #[arg(long, value_name = "SECS")]
    pub grace: Option<u32>,
    /// Only this job; what depends on it sees a failure
    #[arg(long = "job", alias = "node", value_name = "NAME", conflicts_with_all = ["now", "grace"])]
    pub node: Option<String>,
    /// Watch the flow until it has ended
    #[arg(long, short)]
    pub watch: bool,
}

pub(super) async fn run(session: &CliSession, args: &FlowCancelArgs) -> Result<u8, CliError> {
    let context = session.context()?;
    match &args.node {
        Some(node) => cancel_node(session, context, args, node).await,
        None => cancel_flow(session, context, args).await,
    }
}

async fn cancel_flow(session: &CliSession, context: u32, args: &FlowCancelArgs) -> Result<u8, CliError> {
    let request = v1::CancelFlowRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id: context,
        flow_id: args.id,
        grace_secs: if args.now { Some(0) } else { args.grace },
    };
    let answer = session.clients.cancel_flow(&request).await?;
    if args.watch {
        return watch::run(session, context, args.id).await;
    }
    output::answer(
        session.global.output,
        || json::of(&answer),
        || {
            let flow = answer.flow.clone().unwrap_or_default();
            let id = flow.id;
            if is_ended(&flow) {
                format!("flow {id} had ended before: {}\n", labels::flow_status(flow.status()))
            } else {
                format!("flow {id} is being cancelled; see `mycora flow watch {id} --context {context}`\n")
            }
        },
    )?;
    Ok(0)
}

async fn cancel_node(
    session: &CliSession,
    context: u32,
    args: &FlowCancelArgs,
    node: &str,
) -> Result<u8, CliError> {
    let request = v1::CancelNodeRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id: context,
        flow_id: args.id,
        node: node.to_owned(),
    };
    let answer = session.clients.cancel_node(&request).await?;
    let id = args.id;
    if args.watch {
        return watch::run(session, context, args.id).await;
    }
    output::answer(
        session.global.output,
        || json::of(&answer),
        || {
            format!(
                "`{node}` of flow {id} is being cancelled; see `mycora flow explain {id} {node} --context {context}`\n"
            )
        },
    )?;
    Ok(0)
}
