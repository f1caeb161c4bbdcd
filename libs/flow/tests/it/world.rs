//! A small world around an engine: a store that keeps what steps change, a
//! place to run, and a witness that checks the invariants after each step.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::case::BEGIN;
use flow::{
    Destinations, Engine, FlowEngineInput, FlowStepOutput, FlowTransitionEvent, NoDestination, NodeIndex,
    NodeTransition, NodeTransitionEvent, PlacementRequest, StepEnvironment, Stop, StoredNode, transition,
};
use model::execution::Outcome;
use model::id::Uid;
use model::job::JobSpec;
use model::limits::{DEATHS_MAX, STOP_GRACE_SECS};
use model::{
    ActorId, Attempt, AttemptEnd, ContextId, ContextUid, Flow, FlowId, FlowNode, FlowStatus, FlowUid,
    Generation, JobId, JobKey, Name, NodeReport, NodeSpec, NodeState, Reason, ReasonCode, ReportKind,
    ReportSource, Rerun, Revision, RunnerId, ScriptType, SignalName, Timestamp,
};

pub(crate) const CONTEXT: ContextUid = ContextUid(Uid::from_bits(1));
pub(crate) const RUNNER: RunnerId = RunnerId(9);

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A node that says nothing special.
pub(crate) fn spec(text: &str, depends: &[&str]) -> NodeSpec {
    NodeSpec {
        depends: depends.iter().map(|d| name(d)).collect(),
        ..NodeSpec::new(name(text), JobSpec::inline(ScriptType::Shell, "true"))
    }
}

pub(crate) fn flow(count: usize) -> Flow {
    let (id, uid, now) = (FlowId(1), FlowUid(Uid::from_bits(2)), Timestamp::default());
    Flow {
        jobs: (1..).take(count).map(JobId).collect(),
        revision: Revision(1),
        cancel_grace_secs: STOP_GRACE_SECS,
        ..Flow::new(id, uid, name("test"), ContextId(1), ActorId(1), now)
    }
}

/// One place to run, alive or not.
pub(crate) struct OneRunner {
    pub(crate) live: bool,
}

/// Source at an address: the one runner of this world is at a known address, all others are not.
pub(crate) fn source(address: &str) -> ReportSource {
    ReportSource { address: address.to_owned(), topic: "supervisor.rpc".into() }
}

impl Destinations for OneRunner {
    fn locate(&self, source: &ReportSource) -> Option<RunnerId> {
        (source.address == "grpc://known").then_some(RUNNER)
    }

    fn choose(&mut self, _: &PlacementRequest<'_>) -> Result<RunnerId, NoDestination> {
        if self.live { Ok(RUNNER) } else { Err(NoDestination { why: "nobody is there".into() }) }
    }
}

/// Observations so far, to check each step against.
#[derive(Default, Clone)]
struct Witness {
    dispatched: BTreeSet<(JobId, Attempt)>,
    closed: BTreeSet<(JobId, Attempt)>,
    ended: BTreeSet<(JobId, Generation)>,
    released: BTreeSet<(JobId, Generation)>,
    /// Attempts that were closed since their instance vanished, by the engine's own words.
    deaths: BTreeMap<(JobId, Generation), u32>,
}

/// A store as it was after some step.
#[derive(Clone)]
struct Stored {
    flow: Flow,
    nodes: BTreeMap<JobId, String>,
    witness: Witness,
}

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) place: OneRunner,
    pub(crate) now: Timestamp,
    pub(crate) budget: usize,
    pub(crate) due: Option<Timestamp>,
    /// The attempts sent out, in order.
    pub(crate) sent: Vec<JobKey>,
    /// The attempts to stop, in order.
    pub(crate) stops: Vec<Stop>,
    pub(crate) asks: Vec<FlowId>,
    pub(crate) rests: bool,
    pub(crate) stale: usize,
    /// Attempts that were found under way, though the store did not know it.
    pub(crate) found: usize,
    /// Steps that left a node quarantined.
    pub(crate) quarantined: usize,
    /// Every change of state that was made, of nodes and of the flow.
    pub(crate) taken: BTreeSet<(String, String)>,
    /// Signals as the store keeps them.
    pub(crate) signals: BTreeSet<SignalName>,
    stored: Stored,
    /// The store after each step, while that is asked for.
    pub(crate) keeps_past: bool,
    past: Vec<Stored>,
    crashes: usize,
    jobs: HashMap<JobId, Arc<JobSpec>>,
}

impl World {
    pub(crate) fn new(flow: Flow, specs: &[NodeSpec]) -> Self {
        let engine = Engine::new(CONTEXT, flow.clone(), specs).unwrap();
        let nodes = engine.nodes().iter().map(|n| (n.job_id, json(n))).collect();
        let jobs = flow.jobs.iter().copied().zip(specs.iter().map(|s| Arc::new(s.job.clone()))).collect();
        Self {
            engine,
            place: OneRunner { live: true },
            now: BEGIN,
            budget: 500,
            due: None,
            sent: Vec::new(),
            stops: Vec::new(),
            asks: Vec::new(),
            rests: false,
            stale: 0,
            found: 0,
            quarantined: 0,
            taken: BTreeSet::new(),
            signals: BTreeSet::new(),
            stored: Stored { flow, nodes, witness: Witness::default() },
            keeps_past: false,
            past: Vec::new(),
            crashes: 0,
            jobs,
        }
    }

    /// A flow of these nodes, started.
    pub(crate) fn started(specs: &[NodeSpec]) -> Self {
        let mut world = Self::new(flow(specs.len()), specs);
        world.feed([FlowEngineInput::Start]);
        world
    }

    fn run_step(&mut self, inputs: &mut VecDeque<FlowEngineInput>) -> FlowStepOutput {
        let mut outside = StepEnvironment { destinations: &mut self.place, jitter: &mut || 0.5 };
        self.engine.step(self.now, inputs, &mut outside, self.budget)
    }

    /// One step, stored and checked.
    pub(crate) fn step(&mut self, inputs: &mut VecDeque<FlowEngineInput>) -> FlowStepOutput {
        let step = self.run_step(inputs);
        for &node in step.dispatches.iter().flat_map(|dispatch| &dispatch.nodes) {
            let carrier = format!("message of {}", self.engine.job_key(node));
            self.engine.set_message_key(node, carrier);
        }
        self.commit(&step);
        self.due = step.due;
        self.rests = step.rests;
        self.stale += step.stale.len();
        self.stops.extend(step.stops.iter().cloned());
        self.asks.extend(&step.flow_queries);
        let before = self.sent.len();
        for dispatch in &step.dispatches {
            self.sent.extend(dispatch.nodes.iter().map(|&node| self.engine.job_key(node)));
        }
        let begun = step.changed.iter().flat_map(|change| &change.transitions);
        let begun = begun.filter(|transition| transition.event == NodeTransitionEvent::Dispatch).count();
        self.found += begun - (self.sent.len() - before);
        step
    }

    /// One step whose commit never reaches the store: another owner goes on without it.
    pub(crate) fn step_in_vain(&mut self, inputs: &VecDeque<FlowEngineInput>) {
        self.run_step(&mut inputs.clone());
        self.crash();
    }

    /// Steps until nothing more is to do at once.
    pub(crate) fn feed(&mut self, inputs: impl IntoIterator<Item = FlowEngineInput>) {
        let mut inputs = inputs.into_iter().collect();
        loop {
            let step = self.step(&mut inputs);
            assert_eq!(step.refused, [], "nothing is asked here that is not legal");
            if !step.more {
                return;
            }
        }
    }

    /// Lets time pass, and the engine act on it.
    pub(crate) fn pass(&mut self, secs: f64) {
        self.now = self.now + Duration::from_secs_f64(secs);
        self.feed([]);
    }

    /// The owner dies; another one loads what was stored.
    pub(crate) fn crash(&mut self) {
        let mut nodes: Vec<StoredNode> = self
            .stored
            .nodes
            .iter()
            .map(|(id, text)| StoredNode {
                node: serde_json::from_str(text).unwrap(),
                job: self.jobs[id].clone(),
            })
            .collect();
        // Not always in the order they were made: a hash has none.
        self.crashes += 1;
        if self.crashes % 2 == 1 {
            nodes.reverse();
        }
        let (flow, signals) = (self.stored.flow.clone(), self.signals.clone());
        self.engine = Engine::load(CONTEXT, flow, nodes, signals).unwrap();
    }

    /// The store loses its last `steps`, and the owner everything it had in memory.
    pub(crate) fn go_back(&mut self, steps: usize) {
        let at = self.past.len().saturating_sub(steps.max(1));
        if let Some(stored) = self.past.get(at).cloned() {
            self.past.truncate(at);
            self.stored = stored;
        }
        self.crash();
    }

    /// The store cannot lose what it has now.
    pub(crate) fn forget_past(&mut self) {
        self.past.clear();
    }

    /// The ended flow is run again, as its store begins it; what it says is kept beside it.
    pub(crate) fn run_again(&mut self, rerun: Rerun, edit: impl FnOnce(&mut Flow)) {
        let flow = &mut self.stored.flow;
        let from = flow.status;
        flow.status = transition::flow(from, FlowTransitionEvent::RunAgain).unwrap();
        self.taken.insert((format!("flow {from}"), FlowTransitionEvent::RunAgain.to_string()));
        flow.generation.0 += 1;
        flow.rerun = Some(rerun);
        flow.cancel_requested_time = None;
        flow.deadline = None;
        flow.result.clear();
        flow.result_truncated = false;
        edit(flow);
        self.crash();
    }

    /// How many nodes are stored with this generation.
    pub(crate) fn count_of_generation(&self, generation: u32) -> usize {
        self.engine.nodes().iter().filter(|node| node.generation.0 == generation).count()
    }

    pub(crate) fn index(&self, text: &str) -> NodeIndex {
        let position = self.engine.nodes().iter().position(|node| node.name.as_str() == text);
        NodeIndex::new(position.unwrap())
    }

    pub(crate) fn node(&self, text: &str) -> &FlowNode {
        self.engine.node(self.index(text))
    }

    pub(crate) fn state(&self, text: &str) -> NodeState {
        self.node(text).state
    }

    pub(crate) fn code(&self, text: &str) -> Option<ReasonCode> {
        self.node(text).reason.as_ref().map(|reason| reason.code)
    }

    pub(crate) fn status(&self) -> FlowStatus {
        self.engine.flow().status
    }

    pub(crate) fn report(&self, text: &str, kind: ReportKind) -> FlowEngineInput {
        FlowEngineInput::Report(report(self.engine.job_key(self.index(text)), kind))
    }

    pub(crate) fn start(&mut self, text: &str) {
        let input = self.report(text, started(self.now));
        self.feed([input]);
    }

    pub(crate) fn end(&mut self, text: &str, kind: ReportKind) {
        let input = self.report(text, kind);
        self.feed([input]);
    }

    pub(crate) fn succeed(&mut self, text: &str) {
        self.end(text, succeeded(&[]));
    }

    /// Checks a step against everything before it, then stores it.
    fn commit(&mut self, step: &FlowStepOutput) {
        if self.keeps_past && !step.is_unchanged() {
            self.past.push(self.stored.clone());
        }
        assert!(step.changed.len() <= self.budget, "I10: the budget holds");
        let mut seen = BTreeSet::new();
        for change in &step.changed {
            assert!(seen.insert(change.node), "a node is listed once");
            let node = self.engine.node(change.node).clone();
            let stored: FlowNode = serde_json::from_str(&self.stored.nodes[&node.job_id]).unwrap();
            assert_eq!(change.before, stored.state);
            let mut state = stored.state;
            for t in &change.transitions {
                assert_eq!((t.from, transition::node(t.from, t.event)), (state, Ok(t.to)));
                self.taken.insert((format!("node {}", t.from), t.event.to_string()));
                self.witness(&node, t);
                state = t.to;
            }
            assert_eq!(state, node.state, "every change of state is listed");
            let under_way = |state| matches!(state, NodeState::Dispatched | NodeState::Running);
            let has_left = change.transitions.iter().any(|t| under_way(t.from) && !under_way(t.to));
            let carrier = stored.message_key.filter(|_| under_way(stored.state) && has_left);
            assert_eq!(change.ended_message, carrier, "the message of an attempt that has ended is named");
            assert!(node.tries <= node.policy.retries, "tries are those that the policy allows");
            self.check_budgets(&node);
            self.stored.nodes.insert(node.job_id, json(&node));
        }
        for (from, to) in &step.flow_transitions {
            let event =
                FlowTransitionEvent::ALL.into_iter().find(|event| transition::flow(*from, *event) == Ok(*to));
            self.taken.insert((format!("flow {from}"), event.unwrap().to_string()));
        }
        if step.flow_changed {
            self.stored.flow = self.engine.flow().clone();
        }
        assert_eq!(&self.stored.flow, self.engine.flow(), "every change of the flow is listed");
        if self.stored.nodes.len() < 50 {
            for node in self.engine.nodes() {
                assert_eq!(self.stored.nodes[&node.job_id], json(node), "every changed node is listed");
            }
        }
        self.check_rest(step);
        if self.stored.flow.status.is_end() {
            let nodes = self.engine.nodes();
            assert!(nodes.iter().all(|node| node.state.is_end()), "I1: every node has its end");
        }
    }

    /// A quarantine is the third death and nothing else, and no budget is overdrawn.
    fn check_budgets(&mut self, node: &FlowNode) {
        let quarantined = node.reason.as_ref().is_some_and(|reason| reason.code == ReasonCode::Quarantined);
        let (lost, allowed) = (node.deaths + node.losses, node.policy.losses_allowed());
        assert!(node.deaths <= DEATHS_MAX && lost <= allowed + 1, "{node:?}");
        assert_eq!(quarantined, node.deaths == DEATHS_MAX, "the third death ends in quarantine: {node:?}");
        assert!(!quarantined || node.state == NodeState::Failed, "{node:?}");
        assert!(lost <= allowed || node.state == NodeState::Failed, "{node:?}");
        let witnessed = self.stored.witness.deaths.get(&(node.job_id, node.generation));
        assert_eq!(witnessed.copied().unwrap_or_default(), node.deaths, "each death counts once: {node:?}");
        self.quarantined += usize::from(quarantined);
    }

    fn check_rest(&self, step: &FlowStepOutput) {
        assert!(!(step.rests && step.more), "who rests has nothing to do");
        let idle = |node: &FlowNode| node.state.is_end() || node.state == NodeState::Pending;
        assert!(!step.rests || self.engine.nodes().iter().all(idle), "nothing is READY or under way");
    }

    fn witness(&mut self, node: &FlowNode, transition: &NodeTransition) {
        let NodeTransition { event, attempt, to, reason, .. } = transition;
        let (id, generation) = (node.job_id, node.generation);
        let (event, attempt) = (*event, *attempt);
        let witness = &mut self.stored.witness;
        if to.is_end() {
            assert!(witness.ended.insert((id, generation)), "I1: {} ends once", node.name);
        }
        let closes = matches!(
            event,
            NodeTransitionEvent::Succeed
                | NodeTransitionEvent::Retry
                | NodeTransitionEvent::Return
                | NodeTransitionEvent::Fail
                | NodeTransitionEvent::Stop
        );
        if closes {
            assert!(witness.dispatched.contains(&(id, attempt)));
            assert!(witness.closed.insert((id, attempt)), "I2: an attempt of {} ends once", node.name);
            let died = reason.as_ref().is_some_and(|reason| reason.detail.contains("death "));
            *witness.deaths.entry((id, generation)).or_default() += u32::from(died);
        }
        if event == NodeTransitionEvent::Dispatch {
            let mut earlier = witness.dispatched.range((id, Attempt(0))..(id, attempt));
            assert!(earlier.all(|attempt| witness.closed.contains(attempt)), "I3: those before are closed");
            let later = witness.dispatched.range((id, attempt)..=(id, Attempt(u32::MAX))).next();
            assert_eq!(later, None, "attempts are counted up, and each is sent once");
            witness.dispatched.insert((id, attempt));
        }
        if event == NodeTransitionEvent::Release {
            assert!(witness.released.insert((id, generation)), "I4: {} is released once", node.name);
            let met = node.prerequisites.iter().all(|wanted| node.prerequisites_met.contains(wanted));
            assert!(met, "I4: its prerequisites are met");
            let before: Vec<&FlowNode> = node
                .depends
                .iter()
                .map(|dependency| self.engine.node(self.engine.find(*dependency).unwrap()))
                .collect();
            assert!(before.iter().all(|d| d.state.is_end()), "I4: what comes before has ended");
            assert!(crate::reference::runs(node.run_if, &before), "I4: `run_if` lets it run");
        }
    }
}

fn json(node: &FlowNode) -> String {
    serde_json::to_string(node).unwrap()
}

pub(crate) fn report(job_key: JobKey, kind: ReportKind) -> NodeReport {
    NodeReport {
        job_key,
        context_id: ContextId(1),
        flow_id: FlowId(1),
        source: Some(source("grpc://known")),
        kind,
    }
}

pub(crate) fn started(time: Timestamp) -> ReportKind {
    ReportKind::Started { instance: "shell:default:1".into(), time }
}

pub(crate) fn ended(outcome: Outcome, exit_code: Option<i32>) -> AttemptEnd {
    AttemptEnd {
        outcome,
        exit_code,
        reason: None,
        result: BTreeMap::new(),
        outputs: BTreeMap::new(),
        output_bytes: 0,
        ended: Vec::new(),
        instance: None,
        start_time: None,
        end_time: Timestamp::default(),
    }
}

pub(crate) fn succeeded(result: &[(&str, &str)]) -> ReportKind {
    let mut end = ended(Outcome::Succeeded, Some(0));
    end.result = result.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    ReportKind::Ended(Box::new(end))
}

pub(crate) fn failed(exit_code: i32) -> ReportKind {
    ReportKind::Ended(Box::new(ended(Outcome::Failed, Some(exit_code))))
}

/// The attempt was lost with its instance.
pub(crate) fn vanished() -> ReportKind {
    ReportKind::Ended(Box::new(ended(Outcome::Lost, None)))
}

/// The attempt was ended by a drain.
pub(crate) fn drained() -> ReportKind {
    let mut end = ended(Outcome::Lost, None);
    end.reason = Some(Reason::new(ReasonCode::Drained, "the runner ended before the script did"));
    ReportKind::Ended(Box::new(end))
}

pub(crate) fn stopped() -> ReportKind {
    ReportKind::Ended(Box::new(ended(Outcome::Stopped, None)))
}

pub(crate) fn rejected(lasting: bool, counts: bool) -> ReportKind {
    ReportKind::Rejected { reason: Reason::new(ReasonCode::Refused, "QUEUE_FULL"), lasting, counts }
}
