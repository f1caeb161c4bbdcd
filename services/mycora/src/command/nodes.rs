//! `mycora flow jobs`.

use clap::{Args, ValueEnum};
use model::Timestamp;
use proto::v1;

use super::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, OutputFormat, json, summary};

/// Arguments of `flow jobs`.
#[derive(Debug, Args)]
pub struct FlowNodesArgs {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Only jobs in this state; may be given several times
    #[arg(long = "state", value_enum, value_name = "STATE")]
    pub states: Vec<NodeStateFilter>,
    /// Show the key of each job's attempt, as `mycora supervisor logs` takes it, and where it was sent
    #[arg(long)]
    pub keys: bool,
}

/// A node's state as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NodeStateFilter {
    /// Waits for what comes before it.
    Pending,
    /// May run as soon as there is a slot for it.
    Ready,
    /// On its way to a supervisor, or in its queue.
    #[value(alias = "dispatched")]
    Queued,
    /// An instance executes it.
    Running,
    /// Ended well.
    Completed,
    /// Ended badly.
    Failed,
    /// Cancelled on request.
    Cancelled,
    /// Will not run.
    Skipped,
}

impl From<NodeStateFilter> for v1::NodeState {
    fn from(filter: NodeStateFilter) -> Self {
        match filter {
            NodeStateFilter::Pending => Self::Pending,
            NodeStateFilter::Ready => Self::Ready,
            NodeStateFilter::Queued => Self::Dispatched,
            NodeStateFilter::Running => Self::Running,
            NodeStateFilter::Completed => Self::Completed,
            NodeStateFilter::Failed => Self::Failed,
            NodeStateFilter::Cancelled => Self::Cancelled,
            NodeStateFilter::Skipped => Self::Skipped,
        }
    }
}

pub(super) async fn run(session: &CliSession, args: &FlowNodesArgs) -> Result<(), CliError> {
    let states: Vec<v1::NodeState> = args.states.iter().map(|state| (*state).into()).collect();
    let nodes = session.clients.list_nodes(session.context()?, args.id, &states).await?;
    if session.global.output == OutputFormat::Table && nodes.is_empty() {
        output::note("there are no such jobs");
        return Ok(());
    }
    output::answer(
        session.global.output,
        || json::NodesDocument { nodes: &nodes },
        || if args.keys { summary::keys(&nodes) } else { summary::nodes(&nodes, Timestamp::now()) },
    )
}
