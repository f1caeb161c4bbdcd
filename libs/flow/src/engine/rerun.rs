//! Reruns of a flow: its nodes are reset in pieces.
//!
//! Stored state alone decides which nodes are still to be reset (see [`crate::rerun`]), so an owner that dies between two
//! pieces loses nothing and no node is reset twice. Nothing else happens before the last piece, so that a node still to be
//! reset is not mistaken for one that has ended.

use std::collections::VecDeque;

use model::{FlowNode, FlowStatus, Generation, NodeState};

use super::Engine;
use super::pass::Pass;
use crate::graph::NodeIndex;
use crate::rerun;
use crate::transition::NodeTransitionEvent;

impl Engine {
    /// The nodes that are still to be reset for the flow's generation.
    pub(super) fn find_resets(&self) -> VecDeque<NodeIndex> {
        let generation = self.flow.generation;
        let (Some(rerun), FlowStatus::Started) = (&self.flow.rerun, self.flow.status) else {
            return VecDeque::new();
        };
        let left = rerun::pending_resets(self.plan.graph(), &self.nodes, rerun, generation);
        (0..).map(NodeIndex::new).zip(left).filter(|(_, left)| *left).map(|(node, _)| node).collect()
    }
}

impl Pass<'_, '_, '_> {
    /// Resets nodes while there is room; returns true once all are.
    pub(super) fn reset(&mut self) -> bool {
        if self.engine.resets.is_empty() {
            return true;
        }
        let generation = self.engine.flow.generation;
        while self.has_room()
            && let Some(index) = self.engine.resets.pop_front()
        {
            self.apply(index, NodeTransitionEvent::RunAgain, |node| begin_anew(node, generation));
        }
        let done = self.engine.resets.is_empty();
        if done {
            self.engine.derive_from_stored();
        }
        done
    }
}

/// Resets everything that the previous generation left in a node. The attempt number is reused only when that attempt was
/// never sent.
fn begin_anew(node: &mut FlowNode, generation: Generation) {
    if node.dispatch_time.is_some() {
        node.attempt.0 += 1;
    }
    node.generation = generation;
    node.tries = 0;
    node.deaths = 0;
    node.losses = 0;
    node.state = NodeState::Pending;
    node.reason = None;
    node.cancel_requested_time = None;
    node.unconfirmed = false;
    node.expired_time = None;
    node.not_before_time = None;
    node.ready_time = None;
    node.dispatch_time = None;
    node.start_time = None;
    node.end_time = None;
    node.runner = None;
    node.supervisor = None;
    node.instance = None;
    node.result.clear();
    node.outputs.clear();
    node.output_bytes = 0;
    node.exit_code = None;
    node.message_key = None;
    node.prerequisites_met.clear();
}
