//! `mycora flow explain`.

use clap::Args;
use proto::v1;

use super::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, json, summary};

/// Arguments of `flow explain`.
#[derive(Debug, Args)]
pub struct FlowExplainArgs {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// The job's name
    #[arg(value_name = "JOB")]
    pub node: String,
}

pub(super) async fn run(session: &CliSession, args: FlowExplainArgs) -> Result<(), CliError> {
    let FlowExplainArgs { id, node } = args;
    let request = v1::ExplainNodeRequest { context_id: session.context()?, flow_id: id, node };
    let answer = session.clients.explain_node(&request).await?;
    output::answer(session.global.output, || json::of(&answer), || summary::explanation(&answer))
}
