//! Cancelling: one node, or everything that is left.

use model::limits::STOP_GRACE_SECS;
use model::{NodeState, Reason, ReasonCode};

use super::pass::Pass;
use super::{HaltCause, is_in_flight};
use crate::graph::NodeIndex;
use crate::transition::{self, FlowTransitionEvent, NodeTransitionEvent};

use super::step::RefusedTransition;

impl Pass<'_, '_, '_> {
    /// Cancels the flow. The first request counts; a later one can only shorten the grace period. Cancelling a flow that
    /// has already ended is no error: the caller could not know.
    pub(super) fn cancel_flow(&mut self, grace_secs: u32) {
        if self.engine.is_over() {
            return;
        }
        if let Err(error) = transition::flow(self.engine.flow.status, FlowTransitionEvent::Cancel) {
            self.step.refused.push(RefusedTransition { node: None, error });
            return;
        }
        let flow = &mut self.engine.flow;
        let faster = flow.cancel_requested_time.is_some() && grace_secs < flow.cancel_grace_secs;
        if flow.cancel_requested_time.is_none() || faster {
            flow.cancel_requested_time.get_or_insert(self.now);
            flow.cancel_grace_secs = grace_secs;
            self.flow_touched();
        }
        if faster {
            self.stop_again();
        }
        self.engine.raise(HaltCause::FlowCancelled);
    }

    /// Resends the stop of every attempt that is being stopped for a cancellation, with the present grace period.
    fn stop_again(&mut self) {
        let cancelled: Vec<NodeIndex> = self
            .engine
            .in_flight()
            .map(|attempt| attempt.node)
            .filter(|node| self.engine.node(*node).cancel_requested_time.is_some())
            .collect();
        for node in cancelled {
            self.stop(node);
        }
    }

    /// Cancels one node. A node that has already ended does not change, nor does one that the flow's deadline is ending:
    /// that node has to fail the flow.
    pub(super) fn cancel_node(&mut self, index: NodeIndex) {
        let node = self.engine.node(index);
        let deadline = node.expired_time.is_some()
            && node.reason.as_ref().is_some_and(|reason| reason.code == ReasonCode::Deadline);
        if node.state.is_end() || deadline {
            return;
        }
        if is_in_flight(node.state) {
            self.request_cancel(index, Reason::new(ReasonCode::NodeCancelled, ""));
        } else {
            self.cancel_unsent(index, ReasonCode::NodeCancelled);
        }
    }

    /// Cancels a node that was not sent anywhere.
    fn cancel_unsent(&mut self, node: NodeIndex, code: ReasonCode) {
        let now = self.now;
        self.apply(node, NodeTransitionEvent::Cancel, |node| {
            node.cancel_requested_time = Some(now);
            node.end_time = Some(now);
            node.reason = Some(Reason::new(code, ""));
        });
    }

    /// Asks the supervisor to stop the attempt; it ends as cancelled however it ends, also when it had
    /// expired before.
    fn request_cancel(&mut self, index: NodeIndex, reason: Reason) {
        if self.engine.node(index).cancel_requested_time.is_some() {
            let flow = &self.engine.flow;
            if flow.cancel_requested_time.is_some() && flow.cancel_grace_secs < STOP_GRACE_SECS {
                self.stop(index);
            }
            return;
        }
        let now = self.now;
        self.touch(index, |node| {
            node.cancel_requested_time = Some(now);
            node.reason = Some(reason);
        });
        self.stop(index);
    }

    /// Continues to end every node that has not ended, when there is a cause to.
    pub(super) fn sweep(&mut self) {
        while self.has_room()
            && let (Some(cause), Some(next)) = (self.engine.cause, self.engine.sweep)
        {
            if next == self.engine.nodes.len() {
                self.engine.sweep = None;
                return;
            }
            self.engine.sweep = Some(next + 1);
            let node = NodeIndex::new(next);
            if self.engine.is_halted(node) {
                self.end_for(cause, node);
            }
        }
    }

    fn end_for(&mut self, cause: HaltCause, index: NodeIndex) {
        let code = match cause {
            HaltCause::FailFast => ReasonCode::FailFast,
            HaltCause::Deadline | HaltCause::Overdue => ReasonCode::Deadline,
            HaltCause::FlowCancelled => ReasonCode::FlowCancelled,
        };
        let by_deadline = code == ReasonCode::Deadline;
        let node = self.engine.node(index);
        match node.state {
            NodeState::Pending | NodeState::Ready if by_deadline => {
                self.abort(index, Reason::new(code, ""));
            }
            NodeState::Pending | NodeState::Ready => self.cancel_unsent(index, code),
            // A node that is already being cancelled ends as cancelled.
            NodeState::Dispatched | NodeState::Running
                if by_deadline && node.cancel_requested_time.is_none() =>
            {
                self.expire_attempt(index, Reason::new(code, ""));
            }
            NodeState::Dispatched | NodeState::Running => {
                self.request_cancel(index, Reason::new(code, ""));
            }
            NodeState::Completed | NodeState::Failed | NodeState::Cancelled | NodeState::Skipped => {}
        }
    }
}
