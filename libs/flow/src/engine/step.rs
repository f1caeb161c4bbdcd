//! Inputs and outputs of a step.

use std::collections::VecDeque;

use model::{
    Attempt, FlowId, FlowStatus, Isolation, JobId, JobKey, NodeReport, NodeState, NodeTarget, Reason,
    ReasonCode, ReportSource, RunnerId, ScriptType, SignalName, Timestamp,
};

use crate::graph::NodeIndex;
use crate::retry::RetryCounters;
use crate::transition::{IllegalTransition, NodeTransitionEvent};

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum FlowEngineInput {
    /// The flow begins.
    Start,
    /// Reports on an attempt.
    Report(NodeReport),
    /// Cancels the flow.
    CancelFlow {
        /// Seconds between asking a script to end and ending it.
        grace_secs: u32,
    },
    /// Cancels one node.
    CancelNode(JobId),
    /// Gives the flow this signal.
    Signal(SignalName),
    /// Where another flow stands: the answer to one of [`FlowStepOutput::flow_queries`].
    FlowState {
        /// Which flow.
        flow: FlowId,
        /// Nothing when there is no such flow.
        status: Option<FlowStatus>,
    },
    /// The supervisor behind this runner is lost, and every attempt there with it. The caller repeats
    /// this after a crash: unfinished work on it is not stored.
    SupervisorLost(RunnerId),
    /// The places where jobs can run have changed. (That a time has come needs
    /// no input: every step looks at the time.)
    Wake,
}

/// Inputs in their order, of which a step takes as many as it has room for.
pub trait EngineInputQueue {
    /// Takes the next one.
    fn next(&mut self) -> Option<FlowEngineInput>;

    /// Tells whether all were taken.
    fn is_empty(&self) -> bool;
}

impl EngineInputQueue for VecDeque<FlowEngineInput> {
    fn next(&mut self) -> Option<FlowEngineInput> {
        self.pop_front()
    }

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

/// Placement requirements of a node. Nodes with equal requests get the same answer within a step, once
/// it is no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementRequest<'a> {
    /// Type of the node's script.
    pub script_type: ScriptType,
    /// Where it wants to run.
    pub target: &'a NodeTarget,
    /// The isolation that it needs at least.
    pub isolation: Isolation,
}

/// There is no live place for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoDestination {
    /// The missing requirement, for people.
    pub why: String,
}

/// Knows where jobs can run.
pub trait Destinations {
    /// Chooses a place, and may count what it chose as load.
    ///
    /// # Errors
    /// There is none now. [`FlowEngineInput::Wake`] asks again.
    fn choose(&mut self, node: &PlacementRequest<'_>) -> Result<RunnerId, NoDestination>;

    /// The runner that a report came from, when it is known: asked for an attempt that was found under
    /// way though its dispatch is not stored.
    fn locate(&self, _source: &ReportSource) -> Option<RunnerId> {
        None
    }
}

/// Services that a step needs besides its inputs.
pub struct StepEnvironment<'a> {
    /// Where jobs can run.
    pub destinations: &'a mut dyn Destinations,
    /// Draws from 0.0..1.0, for back-off.
    pub jitter: &'a mut dyn FnMut() -> f64,
}

/// Changes to store and messages to send.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FlowStepOutput {
    /// The nodes that changed, each once; their present state is the engine's.
    pub changed: Vec<ChangedNode>,
    /// The flow itself changed.
    pub flow_changed: bool,
    /// The flow's changes of status, in order.
    pub flow_transitions: Vec<(FlowStatus, FlowStatus)>,
    /// Attempts to send, by runner. Their nodes are DISPATCHED once the step is stored.
    pub dispatches: Vec<Dispatch>,
    /// Attempts to stop, once the step is stored.
    pub stops: Vec<Stop>,
    /// Other flows that nodes wait for: tell where they stand, now and when they have ended. Each is
    /// asked for once after a load.
    pub flow_queries: Vec<FlowId>,
    /// When to call again at the latest; nothing happens before but by inputs.
    pub due: Option<Timestamp>,
    /// Attempts that were lost, each as the code that says what it was lost with.
    pub losses: Vec<ReasonCode>,
    /// Reports that changed nothing.
    pub stale: Vec<StaleReport>,
    /// Set when reports that memory cannot explain are kept there: before acknowledging them, the owner must make
    /// sure that memory matches the store.
    pub has_unstored_reports: bool,
    /// Requests that were not legal. They changed nothing.
    pub refused: Vec<RefusedTransition>,
    /// There is more to do at once.
    pub more: bool,
    /// Nothing is under way, READY, or left to derive: only times, signals and other flows are waited for.
    pub rests: bool,
}

impl FlowStepOutput {
    /// Returns true if there is nothing to store.
    #[must_use]
    pub const fn is_unchanged(&self) -> bool {
        self.changed.is_empty() && !self.flow_changed
    }
}

/// A node that changed.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangedNode {
    /// The node.
    pub node: NodeIndex,
    /// State of the node before the step.
    pub before: NodeState,
    /// The states it went through, in order. Empty when only other fields changed.
    pub transitions: Vec<NodeTransition>,
    /// The message that carried the attempt which this step has ended; nothing when it has ended none that
    /// was sent.
    pub ended_message: Option<String>,
}

/// One change of a node's state.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeTransition {
    /// Event that caused the transition.
    pub event: NodeTransitionEvent,
    /// The state before.
    pub from: NodeState,
    /// The state after.
    pub to: NodeState,
    /// The attempt it happened to: after a retry, the one that is closed.
    pub attempt: Attempt,
    /// Why, when there is more to say.
    pub reason: Option<Reason>,
    /// Attempts of this generation that did not succeed, as they are counted after it.
    pub spent: RetryCounters,
}

/// Attempts that travel to one runner in one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispatch {
    /// Where to.
    pub runner: RunnerId,
    /// The nodes, whose present attempts are meant.
    pub nodes: Vec<NodeIndex>,
}

/// An attempt to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The attempt.
    pub job_key: JobKey,
    /// The runner it was dispatched to.
    pub runner: Option<RunnerId>,
    /// Where it was heard of last; goes before `runner`.
    pub source: Option<ReportSource>,
    /// Seconds between asking its script to end and ending it.
    pub grace_secs: u32,
}

/// Report that changed nothing: a repetition, or one on a closed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaleReport {
    /// The attempt it is of.
    pub job_key: JobKey,
    /// The attempt is closed here but lives there. Where it can be reached it is among [`FlowStepOutput::stops`].
    pub alive: bool,
}

/// Something that is not legal where the node or the flow stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedTransition {
    /// The node; absent when it is about the flow.
    pub node: Option<NodeIndex>,
    /// The illegal transition.
    pub error: IllegalTransition,
}
