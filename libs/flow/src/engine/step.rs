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
        /// `None` when there is no such flow.
        status: Option<FlowStatus>,
    },
    /// The supervisor behind this runner is lost, and every attempt there with it. Unfinished work on this input is not
    /// stored, so the caller repeats it after a crash.
    SupervisorLost(RunnerId),
    /// The runners where jobs can run have changed. (A due time needs no input: every step checks the time.)
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

/// Placement requirements of a node. Once a request is refused, equal requests are refused for the rest of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementRequest<'a> {
    /// Type of the node's script.
    pub script_type: ScriptType,
    /// Requested target, such as a runner or a group.
    pub target: &'a NodeTarget,
    /// The minimum isolation that it needs.
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
    /// Chooses a runner, and may count the node as load there.
    ///
    /// # Errors
    /// No runner is available now. [`FlowEngineInput::Wake`] retries.
    fn choose(&mut self, node: &PlacementRequest<'_>) -> Result<RunnerId, NoDestination>;

    /// Returns the runner that a report came from, if known. Called for an attempt that was found in flight although its
    /// dispatch is not stored.
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
    /// The nodes that changed, each once; the engine has their present state.
    pub changed: Vec<ChangedNode>,
    /// The flow itself changed.
    pub flow_changed: bool,
    /// The flow's changes of status, in order.
    pub flow_transitions: Vec<(FlowStatus, FlowStatus)>,
    /// Attempts to send, by runner. Their nodes are DISPATCHED once the step is stored.
    pub dispatches: Vec<Dispatch>,
    /// Attempts to stop, once the step is stored.
    pub stops: Vec<Stop>,
    /// Other flows that nodes wait for: report their state now and again when they have ended. Each flow is queried once
    /// after a load.
    pub flow_queries: Vec<FlowId>,
    /// Latest time of the next call; until then only inputs cause changes.
    pub due: Option<Timestamp>,
    /// Lost attempts, each as the reason code of its loss.
    pub losses: Vec<ReasonCode>,
    /// Attempts that are tried again, each as the reason code of its end.
    pub retries: Vec<ReasonCode>,
    /// Starts and ends of scripts that the step has learned of, by the clocks of their supervisors.
    pub times: Vec<AttemptTimes>,
    /// Reports that changed nothing.
    pub stale: Vec<StaleReport>,
    /// Set when reports that memory cannot explain are kept there: before acknowledging them, the owner must make
    /// sure that memory matches the store.
    pub has_unstored_reports: bool,
    /// Illegal requests. They changed nothing.
    pub refused: Vec<RefusedTransition>,
    /// More can be done at once, in another step.
    pub more: bool,
    /// Nothing is in flight, READY, or left to derive: the flow waits only for times, signals and other flows.
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
    /// The message that carried the attempt which this step ended; `None` when it ended no attempt that was sent.
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

/// Times of an attempt, as far as one step has learned them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptTimes {
    /// The node.
    pub node: NodeIndex,
    /// When the attempt was dispatched; present if the step has learned of its start.
    pub dispatch_time: Option<Timestamp>,
    /// When its script started.
    pub start_time: Timestamp,
    /// When its script ended; absent while it runs, and for a lost attempt.
    pub end_time: Option<Timestamp>,
}

/// Attempts that travel to one runner in one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispatch {
    /// Where to.
    pub runner: RunnerId,
    /// The nodes whose current attempts are sent.
    pub nodes: Vec<NodeIndex>,
}

/// An attempt to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The attempt.
    pub job_key: JobKey,
    /// The runner it was dispatched to.
    pub runner: Option<RunnerId>,
    /// Last known source of its reports; takes precedence over `runner`.
    pub source: Option<ReportSource>,
    /// Seconds between asking its script to end and ending it.
    pub grace_secs: u32,
}

/// Report that changed nothing: a repetition, or one on a closed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaleReport {
    /// The attempt that the report is about.
    pub job_key: JobKey,
    /// The attempt is closed here but alive there. If it can be reached, it is among [`FlowStepOutput::stops`].
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
