//! Which nodes of an ended flow are run again, and which keep what they gave.

use model::{FlowNode, NodeState, ReasonCode, Rerun};

use crate::graph::Graph;

/// Which of `nodes`, in the order of the graph's indexes, are run again: what `rerun` names, and
/// everything that comes after it. What is false keeps its state and its result.
#[must_use]
pub fn select(graph: &Graph, nodes: &[&FlowNode], rerun: &Rerun) -> Vec<bool> {
    with_all_after(graph, nodes.iter().map(|node| is_named(node, rerun)).collect())
}

fn is_named(node: &FlowNode, rerun: &Rerun) -> bool {
    match rerun {
        Rerun::All => true,
        Rerun::From { jobs } => jobs.contains(&node.job_id),
        Rerun::Failed => match node.state {
            NodeState::Failed | NodeState::Cancelled => true,
            NodeState::Skipped => {
                node.reason.as_ref().is_some_and(|reason| reason.code == ReasonCode::UpstreamFailed)
            }
            _ => false,
        },
    }
}

fn with_all_after(graph: &Graph, mut chosen: Vec<bool>) -> Vec<bool> {
    for &node in graph.order() {
        if chosen[node.index()] {
            for after in graph.dependants(node) {
                chosen[after.index()] = true;
            }
        }
    }
    chosen
}
