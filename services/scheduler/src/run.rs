//! One flow that this scheduler owns.

use std::collections::{HashMap, VecDeque};

use flow::engine::{Engine, Input};
use flow::graph::NodeIndex;
use model::{ContextId, ContextUid, FlowId, JobKey, RunnerId, Timestamp};

use crate::routers::LinkId;

/// Which flow.
pub type FlowKey = (ContextId, FlowId);
/// Where a report's acknowledgement goes.
pub type Ack = (LinkId, u64);

/// Nodes that one step may change. Larger steps would block Redis for others;
/// smaller ones cost round trips.
pub const STEP_NODES_MAX: usize = 500;

/// Where a flow stands between storage and this scheduler.
#[derive(Debug)]
pub enum Phase {
    /// Being read; inputs wait.
    Loading,
    /// In memory, as it is stored.
    Idle(Box<Engine>),
    /// In memory, ahead of what is stored by the commit of this id.
    Committing(Box<Engine>, String),
}

/// A flow, its inputs and its commit.
#[derive(Debug)]
pub struct Run {
    /// The uid of its context; known once it is loaded.
    pub context_uid: Option<ContextUid>,
    /// Where it stands.
    pub phase: Phase,
    /// What happened and was not taken up yet, with the acknowledgement it is owed.
    inputs: VecDeque<Input>,
    acks: VecDeque<Option<Ack>>,
    /// What the commit under way took up. Taken up again when that is refused.
    committing: VecDeque<(Input, Option<Ack>)>,
    /// Where attempts are under way, to count them off when they end.
    pub placed: HashMap<NodeIndex, RunnerId>,
    /// Attempts to stop once the step that ended them is stored.
    pub stops: Vec<(JobKey, RunnerId)>,
    /// When it has to be looked at.
    pub due: Option<Timestamp>,
    /// When reports that can wait are taken up at the latest.
    pub awaited: Option<Timestamp>,
    /// Nodes that a step may change; less after a commit was too large.
    pub budget: usize,
    /// It has to be read again: somebody else changed it.
    pub reload: bool,
    /// It stands in the queue of flows to step.
    pub queued: bool,
    /// The last step left something to do.
    pub more: bool,
}

impl Run {
    /// A flow that is being read.
    #[must_use]
    pub fn loading() -> Self {
        Self {
            context_uid: None,
            phase: Phase::Loading,
            inputs: VecDeque::new(),
            acks: VecDeque::new(),
            committing: VecDeque::new(),
            placed: HashMap::new(),
            stops: Vec::new(),
            due: None,
            awaited: None,
            budget: STEP_NODES_MAX,
            reload: false,
            queued: false,
            more: true,
        }
    }

    /// Something happened.
    pub fn push(&mut self, input: Input, ack: Option<Ack>) {
        self.inputs.push_back(input);
        self.acks.push_back(ack);
    }

    /// Whether a step would have something to look at.
    #[must_use]
    pub fn has_work(&self, now: Timestamp) -> bool {
        self.more || !self.inputs.is_empty() || self.due.is_some_and(|due| due <= now)
    }

    /// Lends the inputs to a step and keeps those it took up until they are stored.
    pub fn with_inputs<T>(&mut self, step: impl FnOnce(&mut Self, &mut VecDeque<Input>) -> T) -> T {
        let mut inputs = std::mem::take(&mut self.inputs);
        // A report is small, and a commit that is refused must not lose it.
        let mut before = inputs.clone();
        let result = step(self, &mut inputs);
        let taken = before.len() - inputs.len();
        self.inputs = inputs;
        self.committing.extend(before.drain(..taken).zip(self.acks.drain(..taken)));
        result
    }

    /// The acknowledgements of inputs that are stored now, or changed nothing.
    pub fn take_committed_acks(&mut self) -> impl Iterator<Item = Ack> + use<> {
        std::mem::take(&mut self.committing).into_iter().filter_map(|(_, ack)| ack)
    }

    /// All acknowledgements, when the flow is gone and nothing about it matters any more.
    pub fn take_all_acks(&mut self) -> impl Iterator<Item = Ack> + use<> {
        self.inputs.clear();
        let waiting = std::mem::take(&mut self.acks);
        self.take_committed_acks().chain(waiting.into_iter().flatten())
    }

    /// Forgets everything that is not stored; what happened is taken up again
    /// once the flow is loaded.
    pub fn start_over(&mut self) {
        self.phase = Phase::Loading;
        for (input, ack) in std::mem::take(&mut self.committing).into_iter().rev() {
            self.inputs.push_front(input);
            self.acks.push_front(ack);
        }
        self.placed.clear();
        self.stops.clear();
        self.due = None;
        self.reload = false;
        self.more = true;
    }
}
