//! When a node has to be looked at though nothing happens.

use std::collections::BTreeSet;
use std::time::Duration;

use model::limits::TIMEOUT_GRACE_SECS;
use model::{Flow, FlowNode, NodeState, ReasonCode, Timestamp};

use crate::graph::NodeIndex;

/// What is due at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// Its back-off is over.
    BackOff,
    /// A cancelled attempt was not confirmed.
    Unconfirmed,
    /// It did not start in time.
    Queue,
    /// Its end did not come in time.
    Result,
    /// It ran too long, and the supervisor did not say so.
    Run,
}

/// What is due next for a node.
pub(super) fn next(node: &FlowNode, flow: &Flow) -> Option<(Timestamp, Due)> {
    let after = |from: Option<Timestamp>, secs: u32, due| {
        (secs > 0).then_some(())?;
        Some((from? + Duration::from_secs(u64::from(secs)), due))
    };
    let policy = &node.policy;
    let queue = after(node.ready_time.max(node.not_before_time), policy.timeout_queue, Due::Queue);
    let in_flight = [
        node.cancel_requested_time.map(|requested| {
            (requested + Duration::from_secs(u64::from(flow.cancel_timeout_secs)), Due::Unconfirmed)
        }),
        after(node.dispatch_time, policy.timeout_result, Due::Result),
    ];
    match node.state {
        NodeState::Ready => {
            let backs_off = node.reason.as_ref().is_some_and(|reason| reason.code == ReasonCode::BackingOff);
            let back_off = node.not_before_time.filter(|_| backs_off).map(|time| (time, Due::BackOff));
            back_off.into_iter().chain(queue).min()
        }
        NodeState::Dispatched => in_flight.into_iter().flatten().chain(queue).min(),
        NodeState::Running => {
            let run = (policy.timeout > 0)
                .then(|| after(node.start_time, policy.timeout.saturating_add(TIMEOUT_GRACE_SECS), Due::Run))
                .flatten();
            in_flight.into_iter().flatten().chain(run).min()
        }
        _ => None,
    }
}

/// The next time of every node that has one.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeSet<(Timestamp, NodeIndex)>,
    by_node: Vec<Option<Timestamp>>,
}

impl Timers {
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
