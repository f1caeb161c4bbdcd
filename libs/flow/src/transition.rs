//! The tables of legal state changes. Nothing else changes a state.

use std::fmt;

use model::{FlowStatus, NodeState};

/// Event that can happen to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeTransitionEvent {
    /// The node's dependencies are satisfied, its prerequisites met, its condition true.
    Release,
    /// The node's condition is false, or its `run_if` is not satisfied.
    Skip,
    /// The node cannot run: a condition or template failed, a prerequisite became
    /// impossible, a deadline passed, before it was sent anywhere.
    Abort,
    /// The message that carries it is committed.
    Dispatch,
    /// An instance started it.
    Start,
    /// The attempt succeeded.
    Succeed,
    /// The try failed, timed out or was lost, and tries are left.
    Retry,
    /// The attempt came back unstarted: refused for a passing reason, or handed back.
    Return,
    /// The last try failed, timed out or was lost, or the attempt was refused permanently.
    Fail,
    /// The node was cancelled before it was sent anywhere.
    Cancel,
    /// The attempt of a cancelled node ended, or was given up.
    Stop,
    /// The flow is run again, and this node with it.
    RunAgain,
}

impl NodeTransitionEvent {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Release,
        Self::Skip,
        Self::Abort,
        Self::Dispatch,
        Self::Start,
        Self::Succeed,
        Self::Retry,
        Self::Return,
        Self::Fail,
        Self::Cancel,
        Self::Stop,
        Self::RunAgain,
    ];

    /// The name in `specs/`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Skip => "skip",
            Self::Abort => "abort",
            Self::Dispatch => "dispatch",
            Self::Start => "start",
            Self::Succeed => "succeed",
            Self::Retry => "retry",
            Self::Return => "return",
            Self::Fail => "fail",
            Self::Cancel => "cancel",
            Self::Stop => "stop",
            Self::RunAgain => "run_again",
        }
    }
}

impl fmt::Display for NodeTransitionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Event that can happen to a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowTransitionEvent {
    /// The flow's graph was checked, and the flow begins.
    Start,
    /// No node can move, and no failure counts.
    Finish,
    /// No node can move, and a failure counts.
    Fail,
    /// No node can move, and it was cancelled.
    Cancel,
    /// The flow is run again.
    RunAgain,
}

impl FlowTransitionEvent {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Start, Self::Finish, Self::Fail, Self::Cancel, Self::RunAgain];

    /// The name in `specs/`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Finish => "finish",
            Self::Fail => "fail",
            Self::Cancel => "cancel",
            Self::RunAgain => "run_again",
        }
    }
}

impl fmt::Display for FlowTransitionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Something happened that cannot happen in this state. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IllegalTransition {
    /// Illegal event of a node.
    #[error("`{event}` cannot happen to a node that is {state}")]
    Node {
        /// Where it stands.
        state: NodeState,
        /// The event.
        event: NodeTransitionEvent,
    },
    /// Illegal event of a flow.
    #[error("`{event}` cannot happen to a flow that is {status}")]
    Flow {
        /// Where it stands.
        status: FlowStatus,
        /// The event.
        event: FlowTransitionEvent,
    },
}

/// Where a node in `state` goes when `event` happens.
///
/// # Errors
/// The pair is not in the table.
pub const fn node(state: NodeState, event: NodeTransitionEvent) -> Result<NodeState, IllegalTransition> {
    use NodeState as S;
    use NodeTransitionEvent as E;
    Ok(match (state, event) {
        (S::Pending, E::Release) => S::Ready,
        (S::Pending, E::Skip) => S::Skipped,
        (S::Pending | S::Ready, E::Abort) => S::Failed,
        (S::Pending | S::Ready, E::Cancel) => S::Cancelled,
        (S::Ready, E::Dispatch) => S::Dispatched,
        (S::Dispatched, E::Start) => S::Running,
        (S::Dispatched | S::Running, E::Succeed) => S::Completed,
        (S::Dispatched | S::Running, E::Retry) => S::Ready,
        (S::Dispatched, E::Return) => S::Ready,
        (S::Dispatched | S::Running, E::Fail) => S::Failed,
        (S::Dispatched | S::Running, E::Stop) => S::Cancelled,
        (S::Completed | S::Failed | S::Cancelled | S::Skipped, E::RunAgain) => S::Pending,
        (state, event) => return Err(IllegalTransition::Node { state, event }),
    })
}

/// Where a flow in `status` goes when `event` happens.
///
/// # Errors
/// The pair is not in the table.
pub const fn flow(status: FlowStatus, event: FlowTransitionEvent) -> Result<FlowStatus, IllegalTransition> {
    use FlowStatus as S;
    use FlowTransitionEvent as E;
    Ok(match (status, event) {
        (S::Created, E::Start) => S::Started,
        (S::Started, E::Finish) => S::Finished,
        (S::Started, E::Fail) => S::Error,
        (S::Started, E::Cancel) => S::Cancelled,
        (S::Finished | S::Error | S::Cancelled, E::RunAgain) => S::Started,
        (status, event) => return Err(IllegalTransition::Flow { status, event }),
    })
}

/// Iterates over the legal changes of a node, for comparing the table with `specs/`.
pub fn node_table() -> impl Iterator<Item = (NodeState, NodeTransitionEvent, NodeState)> {
    NodeState::ALL.into_iter().flat_map(|state| {
        NodeTransitionEvent::ALL
            .into_iter()
            .filter_map(move |event| Some((state, event, node(state, event).ok()?)))
    })
}

/// Iterates over the legal changes of a flow, for comparing the table with `specs/`.
pub fn flow_table() -> impl Iterator<Item = (FlowStatus, FlowTransitionEvent, FlowStatus)> {
    FlowStatus::ALL.into_iter().flat_map(|status| {
        FlowTransitionEvent::ALL
            .into_iter()
            .filter_map(move |event| Some((status, event, flow(status, event).ok()?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the specification, section 5.1, row by row.
    const NODE_ROWS: [(&str, NodeTransitionEvent, &str); 21] = [
        ("pending", NodeTransitionEvent::Release, "ready"),
        ("pending", NodeTransitionEvent::Skip, "skipped"),
        ("pending", NodeTransitionEvent::Abort, "failed"),
        ("ready", NodeTransitionEvent::Abort, "failed"),
        ("ready", NodeTransitionEvent::Dispatch, "dispatched"),
        ("dispatched", NodeTransitionEvent::Start, "running"),
        ("dispatched", NodeTransitionEvent::Succeed, "completed"),
        ("running", NodeTransitionEvent::Succeed, "completed"),
        ("dispatched", NodeTransitionEvent::Retry, "ready"),
        ("running", NodeTransitionEvent::Retry, "ready"),
        ("dispatched", NodeTransitionEvent::Return, "ready"),
        ("dispatched", NodeTransitionEvent::Fail, "failed"),
        ("running", NodeTransitionEvent::Fail, "failed"),
        ("pending", NodeTransitionEvent::Cancel, "cancelled"),
        ("ready", NodeTransitionEvent::Cancel, "cancelled"),
        ("dispatched", NodeTransitionEvent::Stop, "cancelled"),
        ("running", NodeTransitionEvent::Stop, "cancelled"),
        ("completed", NodeTransitionEvent::RunAgain, "pending"),
        ("failed", NodeTransitionEvent::RunAgain, "pending"),
        ("cancelled", NodeTransitionEvent::RunAgain, "pending"),
        ("skipped", NodeTransitionEvent::RunAgain, "pending"),
    ];

    #[test]
    fn every_legal_pair_is_taken_and_every_other_refused() {
        for state in NodeState::ALL {
            for event in NodeTransitionEvent::ALL {
                let row = NODE_ROWS.iter().find(|(from, on, _)| *from == state.as_str() && *on == event);
                match (row, node(state, event)) {
                    (Some((_, _, to)), Ok(next)) => assert_eq!(*to, next.as_str(), "{state} {event}"),
                    (None, Err(error)) => assert_eq!(error, IllegalTransition::Node { state, event }),
                    (row, got) => panic!("{state} {event}: the table says {row:?}, the code {got:?}"),
                }
            }
        }
        assert_eq!(node_table().count(), NODE_ROWS.len());
    }

    #[test]
    fn flows_follow_their_table() {
        use FlowStatus as S;
        use FlowTransitionEvent as E;
        let rows = [
            (S::Created, E::Start, S::Started),
            (S::Started, E::Finish, S::Finished),
            (S::Started, E::Fail, S::Error),
            (S::Started, E::Cancel, S::Cancelled),
            (S::Finished, E::RunAgain, S::Started),
            (S::Error, E::RunAgain, S::Started),
            (S::Cancelled, E::RunAgain, S::Started),
        ];
        for status in S::ALL {
            for event in E::ALL {
                let row = rows.iter().find(|(from, on, _)| *from == status && *on == event);
                match (row, flow(status, event)) {
                    (Some((_, _, to)), Ok(next)) => assert_eq!(*to, next),
                    (None, Err(error)) => assert_eq!(error, IllegalTransition::Flow { status, event }),
                    (row, got) => panic!("{status} {event}: the table says {row:?}, the code {got:?}"),
                }
            }
        }
        assert_eq!(flow_table().count(), rows.len());
    }

    #[test]
    fn an_end_is_left_only_to_run_again() {
        for (from, event, _) in node_table() {
            assert_eq!(from.is_end(), event == NodeTransitionEvent::RunAgain);
        }
    }
}
