//! `mycora flow graph`.

use clap::{Args, ValueEnum};
use proto::v1;

use super::{Session, values};
use crate::failure::Failure;
use crate::output::{self, json};

/// What `flow graph` takes.
#[derive(Debug, Args)]
pub struct GraphArgs {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// How it is drawn
    #[arg(long, value_enum, default_value_t)]
    pub format: Drawing,
}

/// A way to draw, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Drawing {
    /// For Graphviz.
    #[default]
    Dot,
    /// For Mermaid, as Markdown pages show it.
    Mermaid,
    /// Nodes and edges for programs.
    Json,
}

impl From<Drawing> for v1::GraphFormat {
    fn from(drawing: Drawing) -> Self {
        match drawing {
            Drawing::Dot => Self::Dot,
            Drawing::Mermaid => Self::Mermaid,
            Drawing::Json => Self::Json,
        }
    }
}

pub(super) async fn run(session: &Session, args: &GraphArgs) -> Result<(), Failure> {
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
