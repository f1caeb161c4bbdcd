//! Timers of nodes: when a node has to be checked although no input arrives.

use std::collections::BTreeSet;
use std::time::Duration;

use model::limits::TIMEOUT_GRACE_SECS;
use model::{Flow, FlowNode, NodeState, Prerequisite, ReasonCode, Timestamp};

use crate::graph::NodeIndex;

/// Kind of a node's timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeTimerKind {
    /// A time prerequisite of the node is due.
    Prerequisite,
    /// The node's back-off is over.
    BackOff,
    /// The end of a cancelled or expired attempt was not confirmed in time.
    Unconfirmed,
    /// The attempt did not start in time.
    Queue,
    /// No supervisor accepted the attempt, and its delivery was not reported as failed.
    Ack,
    /// The attempt's end did not come in time.
    Result,
    /// The attempt ran too long, and the supervisor reported no end.
    Run,
}

/// Returns the next timer of a node.
pub(super) fn next(node: &FlowNode, flow: &Flow) -> Option<(Timestamp, NodeTimerKind)> {
    match node.state {
        NodeState::Pending => next_awaited(node).map(|time| (time, NodeTimerKind::Prerequisite)),
        NodeState::Ready => {
            let back_off = node.not_before_time.filter(|_| has_reason(node, ReasonCode::BackingOff));
            let back_off = back_off.map(|time| (time, NodeTimerKind::BackOff));
            back_off.into_iter().chain(queue(node)).min()
        }
        // A node that is being ended waits only for the confirmation of that.
        NodeState::Dispatched | NodeState::Running
            if let Some(requested_at) = node.cancel_requested_time.or(node.expired_time) =>
        {
            Some((
                requested_at + Duration::from_secs(u64::from(flow.cancel_timeout_secs)),
                NodeTimerKind::Unconfirmed,
            ))
        }
        NodeState::Dispatched => {
            let unheard = node.dispatch_time.filter(|_| node.supervisor.is_none());
            let ack = after(unheard, node.policy.timeout_ack, TIMEOUT_GRACE_SECS, NodeTimerKind::Ack);
            [queue(node), ack, result(node)].into_iter().flatten().min()
        }
        NodeState::Running => {
            let run = after(node.start_time, node.policy.timeout, TIMEOUT_GRACE_SECS, NodeTimerKind::Run);
            [result(node), run].into_iter().flatten().min()
        }
        NodeState::Completed | NodeState::Failed | NodeState::Cancelled | NodeState::Skipped => None,
    }
}

/// The earliest time prerequisite of a waiting node.
fn next_awaited(node: &FlowNode) -> Option<Timestamp> {
    let times = node.prerequisites.iter().filter_map(|prerequisite| match prerequisite {
        Prerequisite::After(time) if !node.prerequisites_met.contains(prerequisite) => Some(*time),
        _ => None,
    });
    times.min().filter(|_| has_reason(node, ReasonCode::Waiting))
}

fn queue(node: &FlowNode) -> Option<(Timestamp, NodeTimerKind)> {
    after(node.ready_time.max(node.not_before_time), node.policy.timeout_queue, 0, NodeTimerKind::Queue)
}

fn result(node: &FlowNode) -> Option<(Timestamp, NodeTimerKind)> {
    after(node.dispatch_time, node.policy.timeout_result, 0, NodeTimerKind::Result)
}

/// Returns the time `secs` and a grace period after `from`; nothing without a limit.
fn after(
    from: Option<Timestamp>,
    secs: u32,
    grace_secs: u32,
    due: NodeTimerKind,
) -> Option<(Timestamp, NodeTimerKind)> {
    let length = Duration::from_secs(u64::from(secs) + u64::from(grace_secs));
    Some((from.filter(|_| secs > 0)? + length, due))
}

fn has_reason(node: &FlowNode, code: ReasonCode) -> bool {
    node.reason.as_ref().is_some_and(|reason| reason.code == code)
}

/// The next due time of every node that has one.
#[derive(Debug, Default)]
pub(super) struct NodeTimers {
    queue: BTreeSet<(Timestamp, NodeIndex)>,
    by_node: Vec<Option<Timestamp>>,
}

impl NodeTimers {
    pub(super) fn new(count: usize) -> Self {
        Self { queue: BTreeSet::new(), by_node: vec![None; count] }
    }

    /// Sets or clears the time of `node`.
    pub(super) fn set(&mut self, node: NodeIndex, time: Option<Timestamp>) {
        let before = std::mem::replace(&mut self.by_node[node.index()], time);
        if before != time {
            if let Some(before) = before {
                self.queue.remove(&(before, node));
            }
            if let Some(time) = time {
                self.queue.insert((time, node));
            }
        }
    }

    /// The earliest time.
    pub(super) fn first(&self) -> Option<Timestamp> {
        self.queue.first().map(|(time, _)| *time)
    }

    /// Takes out the node with the earliest time, if that has come.
    pub(super) fn pop(&mut self, now: Timestamp) -> Option<NodeIndex> {
        let (_, node) = self.queue.first().copied().filter(|(time, _)| *time <= now)?;
        self.set(node, None);
        Some(node)
    }
}
