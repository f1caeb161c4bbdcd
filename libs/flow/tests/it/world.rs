//! A small world around an engine: a store that keeps what steps change, a
//! place to run, and a witness that checks the invariants after each step.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use flow::{
    Destinations, Engine, Input, NoDestination, NodeEvent, NodeIndex, NodeView, Outside, Step, StoredNode,
    transition,
};
use model::execution::Outcome;
use model::id::Uid;
use model::job::JobSpec;
use model::limits::STOP_GRACE_SECS;
use model::{
    ActorId, Attempt, AttemptEnd, ContextId, ContextUid, Epoch, Flow, FlowId, FlowNode, FlowStatus, FlowUid,
    Generation, JobId, JobKey, Name, NodePolicy, NodeReport, NodeSpec, NodeState, Reason, ReasonCode,
    ReportKind, Revision, RunIf, RunnerId, ScriptSource, ScriptType, Target, Timestamp,
};

pub(crate) const CONTEXT: ContextUid = ContextUid(Uid::from_bits(1));
pub(crate) const RUNNER: RunnerId = RunnerId(9);

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A node that says nothing special.
pub(crate) fn spec(text: &str, depends: &[&str]) -> NodeSpec {
    NodeSpec {
        name: name(text),
        depends: depends.iter().map(|d| name(d)).collect(),
        run_if: RunIf::AllSucceeded,
        allow_failure: false,
        target: Target::default(),
        policy: NodePolicy::default(),
        prerequisites: Vec::new(),
        when: None,
        job: JobSpec {
            script_type: ScriptType::Shell,
            script: ScriptSource::Inline("true".into()),
            env_vars: BTreeMap::new(),
            files: BTreeMap::new(),
            outputs: Vec::new(),
        },
    }
}

pub(crate) fn flow(count: usize) -> Flow {
    Flow {
        id: FlowId(1),
        uid: FlowUid(Uid::from_bits(2)),
        name: name("test"),
        caller_id: ActorId(1),
        context_id: ContextId(1),
        jobs: (1..).take(count).map(JobId).collect(),
        env_vars: BTreeMap::new(),
        result: BTreeMap::new(),
        result_truncated: false,
        fail_fast: false,
        deadline: None,
        cancel_requested_time: None,
        cancel_timeout_secs: 30,
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
        status: FlowStatus::Created,
        generation: Generation(1),
        revision: Revision(1),
        owner: None,
        epoch: Epoch(0),
        rerun: None,
        cancel_grace_secs: STOP_GRACE_SECS,
    }
}

/// One place to run, alive or not.
pub(crate) struct Place {
    pub(crate) live: bool,
}

impl Destinations for Place {
    fn choose(&mut self, _: &NodeView<'_>) -> Result<RunnerId, NoDestination> {
        if self.live { Ok(RUNNER) } else { Err(NoDestination { why: "nobody is there".into() }) }
    }
}

/// What was seen so far, to check each step against.
#[derive(Default)]
struct Witness {
    dispatched: BTreeSet<(JobId, Attempt)>,
    closed: BTreeSet<(JobId, Attempt)>,
    ended: BTreeSet<JobId>,
    released: BTreeSet<JobId>,
}

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) place: Place,
    pub(crate) now: Timestamp,
    pub(crate) budget: usize,
    pub(crate) due: Option<Timestamp>,
    /// The attempts sent out, in order.
    pub(crate) sent: Vec<JobKey>,
    /// The attempts to stop, in order.
    pub(crate) stops: Vec<JobKey>,
    pub(crate) stale: usize,
    flow: Flow,
    nodes: BTreeMap<JobId, String>,
    jobs: HashMap<JobId, Arc<JobSpec>>,
    witness: Witness,
}

impl World {
    pub(crate) fn new(flow: Flow, specs: &[NodeSpec]) -> Self {
        let engine = Engine::new(CONTEXT, flow.clone(), specs).unwrap();
        let nodes = engine.nodes().iter().map(|n| (n.job_id, json(n))).collect();
        let jobs = flow.jobs.iter().copied().zip(specs.iter().map(|s| Arc::new(s.job.clone()))).collect();
        Self {
            engine,
            place: Place { live: true },
            now: Timestamp::from_millis(1_000_000),
            budget: 500,
            due: None,
            sent: Vec::new(),
            stops: Vec::new(),
            stale: 0,
            flow,
            nodes,
            jobs,
            witness: Witness::default(),
        }
    }

    /// A flow of these nodes, started.
    pub(crate) fn started(specs: &[NodeSpec]) -> Self {
        let mut world = Self::new(flow(specs.len()), specs);
        world.feed([Input::Start]);
        world
    }

    /// One step, stored and checked.
    pub(crate) fn step(&mut self, inputs: &mut VecDeque<Input>) -> Step {
        let mut outside = Outside { destinations: &mut self.place, jitter: &mut || 0.5 };
        let step = self.engine.step(self.now, inputs, &mut outside, self.budget);
        self.commit(&step);
        self.due = step.due;
        self.stale += step.stale.len();
        self.stops.extend(step.stops.iter().map(|stop| stop.job_key));
        for dispatch in &step.dispatches {
            self.sent.extend(dispatch.nodes.iter().map(|&node| self.engine.job_key(node)));
        }
        step
    }

    /// Steps until nothing more is to do at once.
    pub(crate) fn feed(&mut self, inputs: impl IntoIterator<Item = Input>) {
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
        // Not in the order they were made: a hash has none.
        let nodes = self.nodes.iter().rev().map(|(id, text)| StoredNode {
            node: serde_json::from_str(text).unwrap(),
            job: self.jobs[id].clone(),
        });
        self.engine = Engine::load(CONTEXT, self.flow.clone(), nodes.collect(), BTreeSet::new()).unwrap();
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

    pub(crate) fn report(&self, text: &str, kind: ReportKind) -> Input {
        Input::Report(report(self.engine.job_key(self.index(text)), kind))
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
    fn commit(&mut self, step: &Step) {
        assert!(step.changed.len() <= self.budget, "I10: the budget holds");
        let mut seen = BTreeSet::new();
        for change in &step.changed {
            assert!(seen.insert(change.node), "a node is listed once");
            let node = self.engine.node(change.node).clone();
            let stored: FlowNode = serde_json::from_str(&self.nodes[&node.job_id]).unwrap();
            assert_eq!(change.before, stored.state);
            let mut state = stored.state;
            for t in &change.transitions {
                assert_eq!((t.from, transition::node(t.from, t.event)), (state, Ok(t.to)));
                self.witness(&node, t.event, t.attempt, t.to);
                state = t.to;
            }
            assert_eq!(state, node.state, "every change of state is listed");
            self.nodes.insert(node.job_id, json(&node));
        }
        if step.flow_changed {
            self.flow = self.engine.flow().clone();
        }
        assert_eq!(&self.flow, self.engine.flow(), "every change of the flow is listed");
        if self.nodes.len() < 50 {
            for node in self.engine.nodes() {
                assert_eq!(self.nodes[&node.job_id], json(node), "every changed node is listed");
            }
        }
        if self.flow.status.is_end() {
            assert_eq!(self.witness.ended.len(), self.nodes.len(), "I1: every node has its end");
        }
    }

    fn witness(&mut self, node: &FlowNode, event: NodeEvent, attempt: Attempt, to: NodeState) {
        let id = node.job_id;
        if to.is_end() {
            assert!(self.witness.ended.insert(id), "I1: {} ends once", node.name);
        }
        let closes = matches!(
            event,
            NodeEvent::Succeed | NodeEvent::Retry | NodeEvent::Return | NodeEvent::Fail | NodeEvent::Stop
        );
        if closes {
            assert!(self.witness.dispatched.contains(&(id, attempt)));
            assert!(self.witness.closed.insert((id, attempt)), "I2: an attempt of {} ends once", node.name);
        }
        if event == NodeEvent::Dispatch {
            let closed_before =
                attempt == Attempt(1) || self.witness.closed.contains(&(id, Attempt(attempt.0 - 1)));
            assert!(closed_before, "I3: the attempt before is closed");
            assert!(self.witness.dispatched.insert((id, attempt)), "an attempt is sent once");
        }
        if event == NodeEvent::Release {
            assert!(self.witness.released.insert(id), "I4: {} is released once", node.name);
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
    NodeReport { job_key, context_id: ContextId(1), flow_id: FlowId(1), source: None, kind }
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

pub(crate) fn stopped() -> ReportKind {
    ReportKind::Ended(Box::new(ended(Outcome::Stopped, None)))
}

pub(crate) fn rejected(lasting: bool, counts: bool) -> ReportKind {
    ReportKind::Rejected { reason: Reason::new(ReasonCode::Refused, "QUEUE_FULL"), lasting, counts }
}
