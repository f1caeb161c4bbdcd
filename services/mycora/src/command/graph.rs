//! `mycora flow graph`.

use clap::{Args, ValueEnum};
use proto::v1;

use super::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, json};

/// Arguments of `flow graph`.
#[derive(Debug, Args)]
pub struct FlowGraphArgs {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Output format of the drawing
    #[arg(long, value_enum, default_value_t)]
    pub format: FlowGraphFormat,
}

/// A way to draw, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum FlowGraphFormat {
    /// For Graphviz.
    #[default]
    Dot,
    /// For Mermaid, as Markdown pages show it.
    Mermaid,
    /// Nodes and edges for programs.
    Json,
}

impl From<FlowGraphFormat> for v1::GraphFormat {
    fn from(drawing: FlowGraphFormat) -> Self {
        match drawing {
            FlowGraphFormat::Dot => Self::Dot,
            FlowGraphFormat::Mermaid => Self::Mermaid,
            FlowGraphFormat::Json => Self::Json,
        }
    }
}

pub(super) async fn run(session: &CliSession, args: &FlowGraphArgs) -> Result<(), CliError> {
    let format = v1::GraphFormat::from(args.format).into();
    let request = v1::GetFlowGraphRequest { context_id: session.context()?, flow_id: args.id, format };
    let answer = session.clients.flow_graph(request).await?;
    output::answer(
        session.global.output,
        || json::of(&answer),
        || {
            let mut text = answer.graph.clone();
            if !text.ends_with('\n') {
                text.push('\n');
            }
            text
        },
    )
}
