//! Selection of the nodes that a rerun of an ended flow runs again; the others keep their results.

use std::collections::HashSet;

use model::{FlowNode, Generation, JobId, NodeState, ReasonCode, Rerun};

use crate::graph::Graph;

/// Selects the nodes, in the order of the graph's indexes, to run again: those that `rerun` names, and
/// everything after them. Nodes with false keep their state and result.
#[must_use]
pub fn select(graph: &Graph, nodes: &[&FlowNode], rerun: &Rerun) -> Vec<bool> {
    let named = RerunSeeds::new(rerun);
    with_all_after(graph, nodes.iter().map(|node| named.has(node)).collect())
}

/// Selects the nodes that the run of `generation` restarts: those that were reset for it, and those that
/// still will be.
#[must_use]
pub fn restarted_nodes(
    graph: &Graph,
    nodes: &[FlowNode],
    rerun: &Rerun,
    generation: Generation,
) -> Vec<bool> {
    let left = pending_resets(graph, nodes, rerun, generation);
    left.iter().zip(nodes).map(|(left, node)| *left || node.generation >= generation).collect()
}

/// Selects the nodes that are still to be reset for `generation`, which began with `rerun`.
///
/// A node that was already reset counts as a seed: the reason why it was chosen is no longer visible, but everything after
/// it was chosen with it. The result therefore depends on stored state only, wherever an owner died. No node is chosen
/// twice, because the nodes that were left out ended well or were not named.
pub(crate) fn pending_resets(
    graph: &Graph,
    nodes: &[FlowNode],
    rerun: &Rerun,
    generation: Generation,
) -> Vec<bool> {
    let is_reset = |node: &FlowNode| node.generation >= generation;
    let named = RerunSeeds::new(rerun);
    let seeds = nodes.iter().map(|node| is_reset(node) || named.has(node)).collect();
    let mut chosen = with_all_after(graph, seeds);
    for (chosen, node) in chosen.iter_mut().zip(nodes) {
        *chosen &= !is_reset(node);
    }
    chosen
}

/// Nodes that a rerun begins with.
enum RerunSeeds {
    All,
    Failed,
    Jobs(HashSet<JobId>),
}

impl RerunSeeds {
    fn new(rerun: &Rerun) -> Self {
        match rerun {
            Rerun::All => Self::All,
            Rerun::Failed => Self::Failed,
            Rerun::From { jobs } => Self::Jobs(jobs.iter().copied().collect()),
        }
    }

    fn has(&self, node: &FlowNode) -> bool {
        match (self, node.state) {
            (Self::All, _) | (Self::Failed, NodeState::Failed | NodeState::Cancelled) => true,
            // A node skipped for another reason comes after a node that is run again, or would be skipped again.
            (Self::Failed, NodeState::Skipped) => {
                node.reason.as_ref().is_some_and(|reason| reason.code == ReasonCode::UpstreamFailed)
            }
            (Self::Failed, _) => false,
            (Self::Jobs(jobs), _) => jobs.contains(&node.job_id),
        }
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
