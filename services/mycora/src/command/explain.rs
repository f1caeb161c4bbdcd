//! `mycora flow explain`.

use clap::Args;
use proto::v1;

use super::{Session, values};
use crate::failure::Failure;
use crate::output::{self, json, summary};

/// What `flow explain` takes.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// The job's name
    #[arg(value_name = "JOB")]
    pub node: String,
}

pub(super) async fn run(session: &Session, args: ExplainArgs) -> Result<(), Failure> {
    let ExplainArgs { id, node } = args;
    let request = v1::ExplainNodeRequest { context_id: session.context()?, flow_id: id, node };
    let answer = session.clients.explain_node(&request).await?;
    output::answer(session.global.output, || json::of(&answer), || summary::explanation(&answer))
}
