//! A running flow.
//!
//! [`Engine::step`] takes inputs, changes the nodes, and returns what to store and what to send. The engine does no I/O:
//! the time, the runners where jobs can run and the jitter are arguments.
//!
//! Consequences of a change (a join that becomes ready, a skip that propagates, a cancellation that reaches every node) are
//! derived from the stored state of the nodes and the flow alone, in pieces of at most `budget` nodes. [`Engine::load`]
//! finds every consequence that was not derived yet, so an owner that dies between two pieces loses nothing.
//!
//! - `pass`: the order of a step's parts, and the only functions that change state;
//! - `report`, `unstored_attempts`: reports on attempts, including attempts that the store does not know;
//! - `expiry`, `timers`: expired timers, and when the next one is due;
//! - `cancel`: cancels one node, or everything that has not ended;
//! - `derive`, `prerequisites`: which nodes start, wait or are skipped;
//! - `rerun`: resets the nodes of a flow that is run again;
//! - `execution`: the JSON that a supervisor receives.

mod cancel;
mod derive;
mod execution;
mod expiry;
mod pass;
mod prerequisites;
mod report;
mod rerun;
mod step;
mod timers;
mod unstored_attempts;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::id::Uid;
use model::limits::{CLEAN_UP_SECS, STOP_GRACE_SECS};
use model::{
    Attempt, ContextUid, Flow, FlowNode, FlowStatus, JobId, JobKey, JobSpec, NodeReport, NodeSpec, NodeState,
    ReasonCode, ReportSource, RunnerId, SignalName, Timestamp, Violations,
};

use self::pass::Pass;
use self::prerequisites::PrerequisiteState;
pub use self::step::{
    AttemptTimes, ChangedNode, Destinations, Dispatch, EngineInputQueue, FlowEngineInput, FlowStepOutput,
    NoDestination, NodeTransition, PlacementRequest, RefusedTransition, StaleReport, StepEnvironment, Stop,
};
use self::timers::NodeTimers;
use crate::graph::{Graph, NodeIndex};
use crate::json_size;
use crate::plan::Plan;

/// A node as it is stored, with the job it carries.
#[derive(Debug, Clone)]
pub struct StoredNode {
    /// Where it stands.
    pub node: FlowNode,
    /// Job that the node executes. Shared, since jobs are large and never change.
    pub job: Arc<JobSpec>,
}

/// An attempt that a supervisor has, or is about to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlightAttempt {
    /// The node.
    pub node: NodeIndex,
    /// The attempt.
    pub job_key: JobKey,
    /// The runner that it was dispatched to.
    pub runner: Option<RunnerId>,
}

/// Why everything that is left has to end. Ordered: a later one goes further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HaltCause {
    FailFast,
    Deadline,
    /// The deadline passed, and the time for cleaning up after it.
    Overdue,
    FlowCancelled,
}

/// How the dependencies of one node ended so far.
#[derive(Debug, Clone, Copy, Default)]
struct UpstreamCounts {
    waiting: u32,
    completed: u32,
    failed: u32,
    skipped_by_failure: u32,
}

impl UpstreamCounts {
    /// Counts one dependency that ended.
    fn count_end(&mut self, dependency: &FlowNode) {
        let code = dependency.reason.as_ref().map(|reason| reason.code);
        self.waiting -= 1;
        match (dependency.state, code) {
            (NodeState::Completed, _) => self.completed += 1,
            (NodeState::Failed, _)
            | (NodeState::Cancelled, Some(ReasonCode::NodeCancelled | ReasonCode::FailFast)) => {
                self.failed += 1;
            }
            (NodeState::Skipped, Some(ReasonCode::UpstreamFailed)) => self.skipped_by_failure += 1,
            _ => {}
        }
    }
}

/// Nodes to look at, each once.
#[derive(Debug, Default)]
struct Worklist {
    queue: VecDeque<NodeIndex>,
    queued: Vec<bool>,
}

impl Worklist {
    fn push(&mut self, node: NodeIndex) {
        if !std::mem::replace(&mut self.queued[node.index()], true) {
            self.queue.push_back(node);
        }
    }

    fn pop(&mut self) -> Option<NodeIndex> {
        let node = self.queue.pop_front()?;
        self.queued[node.index()] = false;
        Some(node)
    }
}

/// READY nodes without a place, by what they ask for.
#[derive(Debug, Default)]
struct UnplacedNodes {
    /// Kind number of each node's placement request; nodes with equal requests share one.
    kind: Vec<u32>,
    /// By kind, in the order they came. May hold nodes that are READY no more.
    nodes: Vec<VecDeque<NodeIndex>>,
    /// Kinds for which a place may have turned up.
    to_try: BTreeSet<u32>,
}

/// Nodes that wait for a runner, or are at one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActiveNodes {
    /// Nodes that are READY.
    pub ready: usize,
    /// Nodes that are DISPATCHED.
    pub dispatched: usize,
    /// Nodes that are RUNNING.
    pub running: usize,
}

/// How many nodes stand where.
#[derive(Debug, Default)]
struct EngineNodeCounts {
    /// Nodes that have not ended.
    open: usize,
    active: ActiveNodes,
}

impl EngineNodeCounts {
    fn of(nodes: &[FlowNode]) -> Self {
        let mut counts = Self::default();
        for node in nodes {
            counts.open += usize::from(!node.state.is_end());
            if let Some(count) = counts.active_mut(node.state) {
                *count += 1;
            }
        }
        counts
    }

    /// The count of active nodes in this state; nothing for a state that is not active.
    fn active_mut(&mut self, state: NodeState) -> Option<&mut usize> {
        match state {
            NodeState::Ready => Some(&mut self.active.ready),
            NodeState::Dispatched => Some(&mut self.active.dispatched),
            NodeState::Running => Some(&mut self.active.running),
            _ => None,
        }
    }

    /// A node went from one state to another.
    fn moved(&mut self, from: NodeState, to: NodeState) {
        let one = usize::from;
        self.open = self.open + one(!to.is_end()) - one(!from.is_end());
        if let Some(count) = self.active_mut(to) {
            *count += 1;
        }
        if let Some(count) = self.active_mut(from) {
            *count -= 1;
        }
    }
}

/// A running flow, as the one owner of it holds it.
#[derive(Debug)]
pub struct Engine {
    context: ContextUid,
    flow: Flow,
    plan: Plan,
    nodes: Vec<FlowNode>,
    jobs: Vec<Arc<JobSpec>>,
    by_job: HashMap<JobId, NodeIndex>,
    upstream: Vec<UpstreamCounts>,
    /// Size as JSON of each completed node's result.
    result_bytes: Vec<u32>,
    counts: EngineNodeCounts,
    /// Nodes whose failure fails the flow.
    failures: usize,
    work: Worklist,
    waiting: UnplacedNodes,
    timers: NodeTimers,
    cause: Option<HaltCause>,
    /// While everything that is left is being ended: the next node to look at.
    sweep: Option<usize>,
    /// Stops that an owner before this one may not have sent.
    stops_due: Vec<Stop>,
    /// Index of each node among the changes of the current step.
    slots: Vec<Option<u32>>,
    waits: PrerequisiteState,
    /// Nodes that are still to be reset, since the flow is run again.
    resets: VecDeque<NodeIndex>,
    /// Attempts whose supervisor is lost.
    lost: VecDeque<(NodeIndex, Attempt)>,
    /// Reports on attempts of PENDING nodes that the store does not know to be in flight.
    kept: HashMap<NodeIndex, Vec<NodeReport>>,
    /// Where attempts are that are under way at no known runner.
    sources: HashMap<NodeIndex, ReportSource>,
}

impl Engine {
    /// A flow that was just made; `flow.jobs` are the job ids of `specs`, in their order.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn new(context: ContextUid, flow: Flow, specs: &[NodeSpec]) -> Result<Self, Violations> {
        let plan = Plan::of_specs(&flow.env_vars, specs)?;
        let mut violations = Violations::new();
        if flow.jobs.len() != specs.len() {
            let (ids, nodes) = (flow.jobs.len(), specs.len());
            violations.add("jobs", format_args!("there are {ids} job ids for {nodes} nodes"));
            return Err(violations);
        }
        let ids: HashMap<&str, JobId> =
            specs.iter().map(|spec| spec.name.as_str()).zip(flow.jobs.iter().copied()).collect();
        let nodes = specs
            .iter()
            .zip(&flow.jobs)
            .map(|(spec, id)| {
                let depends = spec.depends.iter().map(|name| ids[name.as_str()]).collect();
                StoredNode { node: FlowNode::new(*id, spec, depends), job: Arc::new(spec.job.clone()) }
            })
            .collect();
        Ok(Self::assemble(context, flow, plan, nodes, BTreeSet::new()))
    }

    /// A flow as it is stored, wherever it stands, with the `signals` it was given. The order of
    /// `nodes` is the order of indexes, of violations and of dispatching.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(
        context: ContextUid,
        flow: Flow,
        nodes: Vec<StoredNode>,
        signals: BTreeSet<SignalName>,
    ) -> Result<Self, Violations> {
        let plan = Plan::of_stored(&flow.env_vars, nodes.iter().map(|stored| (&stored.node, &*stored.job)))?;
        Ok(Self::assemble(context, flow, plan, nodes, signals))
    }

    /// Makes a flow that is not stored yet, checked as `plan`: its jobs are those of `nodes`, numbered from 1 on. The flow
    /// must get its own numbers from [`Engine::assign_ids`] before anything about it is published.
    #[must_use]
    pub fn unstored(flow: Flow, plan: Plan, nodes: Vec<StoredNode>) -> Self {
        Self::assemble(ContextUid(Uid::from_bits(0)), flow, plan, nodes, BTreeSet::new())
    }

    /// Gives a flow that was made by [`Engine::unstored`] the numbers under which it is stored: as `flow`, whose jobs have ids that are `by`
    /// more.
    pub fn assign_ids(&mut self, context: ContextUid, flow: Flow, by: u32) {
        self.nodes.iter_mut().for_each(|node| node.renumber(by));
        self.by_job = by_job(&self.nodes);
        (self.context, self.flow) = (context, flow);
    }

    fn assemble(
        context: ContextUid,
        flow: Flow,
        plan: Plan,
        stored: Vec<StoredNode>,
        signals: BTreeSet<SignalName>,
    ) -> Self {
        let count = stored.len();
        let (nodes, jobs): (Vec<_>, Vec<_>) = stored.into_iter().map(|s| (s.node, s.job)).unzip();
        let mut engine = Self {
            context,
            by_job: by_job(&nodes),
            upstream: vec![UpstreamCounts::default(); count],
            result_bytes: vec![0; count],
            counts: EngineNodeCounts::default(),
            failures: 0,
            work: Worklist { queue: VecDeque::new(), queued: vec![false; count] },
            waiting: UnplacedNodes::default(),
            timers: NodeTimers::new(count),
            cause: None,
            sweep: None,
            stops_due: Vec::new(),
            slots: vec![None; count],
            waits: PrerequisiteState::new(signals),
            resets: VecDeque::new(),
            lost: VecDeque::new(),
            kept: HashMap::new(),
            sources: HashMap::new(),
            flow,
            plan,
            nodes,
            jobs,
        };
        engine.group_by_target();
        engine.resets = engine.find_resets();
        if engine.resets.is_empty() {
            engine.derive_from_stored();
        }
        engine
    }

    fn group_by_target(&mut self) {
        let mut kinds = HashMap::new();
        for (node, job) in self.nodes.iter().zip(&self.jobs) {
            let next = u32::try_from(kinds.len()).expect("a flow has fewer nodes than that");
            self.waiting.kind.push(*kinds.entry((job.script_type, &node.target)).or_insert(next));
        }
        self.waiting.nodes.resize(kinds.len(), VecDeque::new());
    }

    /// Finds everything that follows from the stored state but is not in it yet.
    fn derive_from_stored(&mut self) {
        self.counts = EngineNodeCounts::of(&self.nodes);
        self.failures = self.nodes.iter().filter(|node| fails_flow(node)).count();
        for i in 0..self.nodes.len() {
            let node = NodeIndex::new(i);
            let mut upstream = UpstreamCounts::default();
            for dependency in self.plan.graph().dependencies(node) {
                let dependency = &self.nodes[dependency.index()];
                upstream.waiting += 1;
                if dependency.state.is_end() {
                    upstream.count_end(dependency);
                }
            }
            self.upstream[i] = upstream;
            let stored = &self.nodes[i];
            match stored.state {
                NodeState::Pending if upstream.waiting == 0 => self.work.push(node),
                NodeState::Ready => self.work.push(node),
                NodeState::Dispatched | NodeState::Running if self.is_being_ended(node) => {
                    self.stops_due.push(self.stop_of(node));
                }
                NodeState::Completed => self.result_bytes[i] = size_of_result(stored),
                _ => {}
            }
            self.timers.set(node, timers::next(&self.nodes[i], &self.flow).map(|(time, _)| time));
        }
        if self.flow.cancel_requested_time.is_some() {
            self.raise(HaltCause::FlowCancelled);
        } else if self.flow.fail_fast && self.has_failed() {
            self.raise(HaltCause::FailFast);
        }
    }

    /// Takes up `inputs`, in their order, and what follows from them and from the time.
    ///
    /// At most `budget` nodes (at least one) change; inputs beyond that stay in the queue. When [`FlowStepOutput::more`] is
    /// set, call again, with or without further inputs, once this step is stored: the changes of each step build on those
    /// of the steps before it.
    pub fn step(
        &mut self,
        now: Timestamp,
        inputs: &mut dyn EngineInputQueue,
        outside: &mut StepEnvironment<'_>,
        budget: usize,
    ) -> FlowStepOutput {
        Pass::new(self, now, outside, budget.max(1)).run(inputs)
    }

    /// The flow itself.
    #[must_use]
    pub const fn flow(&self) -> &Flow {
        &self.flow
    }

    /// The graph of its nodes.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        self.plan.graph()
    }

    /// A node.
    #[must_use]
    pub fn node(&self, node: NodeIndex) -> &FlowNode {
        &self.nodes[node.index()]
    }

    /// All nodes, by their indexes.
    #[must_use]
    pub fn nodes(&self) -> &[FlowNode] {
        &self.nodes
    }

    /// Returns the job that a node executes.
    #[must_use]
    pub fn job(&self, node: NodeIndex) -> &Arc<JobSpec> {
        &self.jobs[node.index()]
    }

    /// The node that carries a job.
    #[must_use]
    pub fn find(&self, job: JobId) -> Option<NodeIndex> {
        self.by_job.get(&job).copied()
    }

    /// The name of a node's current attempt.
    #[must_use]
    pub fn job_key(&self, node: NodeIndex) -> JobKey {
        let FlowNode { job_id, attempt, .. } = self.nodes[node.index()];
        JobKey { context: self.context, flow: self.flow.uid, job: job_id, attempt }
    }

    /// Returns true if the flow has ended and nothing is left to do.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.flow.status.is_end()
    }

    /// How many nodes wait for a runner, or are at one.
    #[must_use]
    pub const fn active_nodes(&self) -> ActiveNodes {
        self.counts.active
    }

    /// Every attempt that is under way: what a new owner reconciles, and what
    /// is lost with a supervisor.
    pub fn in_flight(&self) -> impl Iterator<Item = InFlightAttempt> + '_ {
        self.nodes.iter().enumerate().filter(|(_, node)| is_in_flight(node.state)).map(|(i, node)| {
            let index = NodeIndex::new(i);
            InFlightAttempt { node: index, job_key: self.job_key(index), runner: node.runner }
        })
    }

    /// Notes the message that carries a node's current attempt, before the step
    /// that dispatched it is stored.
    pub fn set_message_key(&mut self, node: NodeIndex, message_key: String) {
        self.nodes[node.index()].message_key = Some(message_key);
    }

    /// Returns true if a failure of this generation counts. A rerun keeps failures of earlier generations on purpose.
    fn has_failed(&self) -> bool {
        let generation = self.flow.generation;
        self.failures > 0 && self.nodes.iter().any(|node| fails_flow(node) && node.generation == generation)
    }

    /// Returns true if only time, a signal or another flow can make the flow go on.
    fn rests(&self) -> bool {
        self.is_started() && self.active_nodes() == ActiveNodes::default() && self.kept.is_empty()
    }

    /// Returns true if the node's attempt in flight was cancelled or has expired.
    fn is_being_ended(&self, node: NodeIndex) -> bool {
        let node = &self.nodes[node.index()];
        node.cancel_requested_time.is_some() || node.expired_time.is_some()
    }

    /// When everything that has not ended must end, by the flow's deadline and the cause raised for it already.
    fn next_deadline(&self) -> Option<Timestamp> {
        let deadline = self.flow.deadline?;
        match self.cause {
            None | Some(HaltCause::FailFast) => Some(deadline),
            Some(HaltCause::Deadline) => Some(deadline + Duration::from_secs(u64::from(CLEAN_UP_SECS))),
            Some(HaltCause::Overdue | HaltCause::FlowCancelled) => None,
        }
    }

    /// Notes the attempts that are lost with a supervisor.
    fn note_lost(&mut self, runner: RunnerId) {
        for (i, node) in self.nodes.iter().enumerate() {
            if is_in_flight(node.state) && node.runner == Some(runner) {
                self.lost.push_back((NodeIndex::new(i), node.attempt));
            }
        }
    }

    /// Returns the stop for the node's current attempt.
    fn stop_of(&self, node: NodeIndex) -> Stop {
        let cancelled = self.flow.cancel_requested_time.is_some();
        let grace_secs = if cancelled { self.flow.cancel_grace_secs } else { STOP_GRACE_SECS };
        let runner = self.nodes[node.index()].runner;
        let source = self.sources.get(&node).cloned();
        Stop { job_key: self.job_key(node), runner, source, grace_secs }
    }

    /// Lets everything that is left end, unless it does already for a cause that goes as far.
    fn raise(&mut self, cause: HaltCause) {
        if self.cause < Some(cause) {
            self.cause = Some(cause);
            self.sweep = Some(0);
        }
    }

    /// Returns true if `node` must not begin anything any more.
    fn is_halted(&self, node: NodeIndex) -> bool {
        match self.cause {
            None => false,
            Some(HaltCause::FailFast) => !self.is_spared(node),
            // A job without dependencies has nothing to clean up after, so it does not start after the deadline.
            Some(HaltCause::Deadline) => !self.is_spared(node) || self.nodes[node.index()].depends.is_empty(),
            Some(HaltCause::Overdue | HaltCause::FlowCancelled) => true,
        }
    }

    /// Returns true for a node that `fail_fast` and a deadline leave alone: a job that cleans up has to run.
    fn is_spared(&self, node: NodeIndex) -> bool {
        use model::RunIf;
        matches!(self.nodes[node.index()].run_if, RunIf::AnyFailed | RunIf::AllDone)
    }

    fn is_started(&self) -> bool {
        self.flow.status == FlowStatus::Started
    }
}

/// Where each job's node is.
fn by_job(nodes: &[FlowNode]) -> HashMap<JobId, NodeIndex> {
    nodes.iter().enumerate().map(|(i, node)| (node.job_id, NodeIndex::new(i))).collect()
}

/// Returns true if a supervisor has an attempt in this state, or is about to get it.
const fn is_in_flight(state: NodeState) -> bool {
    matches!(state, NodeState::Dispatched | NodeState::Running)
}

/// Returns true if a node's failure fails its flow. The deadline belongs to the flow, so `allow_failure` does not excuse
/// missing it.
fn fails_flow(node: &FlowNode) -> bool {
    let deadline = node.reason.as_ref().is_some_and(|reason| reason.code == ReasonCode::Deadline);
    node.state == NodeState::Failed && (!node.allow_failure || deadline)
}

/// How large a node's result is as JSON.
fn size_of_result(node: &FlowNode) -> u32 {
    // Results are within `RESULT_BYTES_MAX`, far below `u32::MAX`.
    u32::try_from(json_size::result(&node.result)).unwrap_or(u32::MAX)
}
