//! One flow that this scheduler has in memory.

use std::collections::{BTreeSet, HashMap, VecDeque};

use flow::engine::{ActiveNodes, Engine, EngineInputQueue, FlowEngineInput, Stop};
use flow::graph::NodeIndex;
use model::limits::STOP_GRACE_SECS;
use model::{ContextId, ContextUid, FlowId, FlowUid, NodeReport, ReportKind, RunnerId, Timestamp};

use crate::report_streams::ReportStreamId;
use crate::step_span::StepSpan;

/// Key of a flow.
pub type FlowKey = (ContextId, FlowId);
/// Where a report's acknowledgement goes.
pub type ReportAck = (ReportStreamId, u64);

/// Nodes that one step may change, or one call may add. Redis serves nobody else while it stores them, for some 15 µs each. Smaller
/// steps would cost round trips.
pub const STEP_NODES_MAX: usize = 200;

/// State of a flow between storage and this scheduler.
#[derive(Debug)]
pub enum FlowPhase {
    /// Being read; inputs wait.
    Loading,
    /// In memory, as it is stored.
    Idle(Box<Engine>),
    /// In memory, as it is stored, while the read of this number reads its inbox: a commit would shift the
    /// positions in it.
    Reading(Box<Engine>, u64),
    /// In memory, ahead of the stored state by the commit of this id.
    Committing(Box<Engine>, String),
}

/// How to acknowledge an input once the commit that consumed it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckTarget {
    /// No acknowledgement: a reload finds the input again.
    Nothing,
    /// An acknowledgement to the router that brought it.
    Ack(ReportAck),
    /// Removal from the flow's inbox, where the input stays until a commit says that it was taken up.
    Inbox,
}

/// A flow, its inputs and its commit.
#[derive(Debug)]
pub struct LoadedFlow {
    /// Uid of the flow.
    pub uid: FlowUid,
    /// Uid of the flow's context; known once the flow is loaded.
    pub context_uid: Option<ContextUid>,
    /// State of the flow.
    pub phase: FlowPhase,
    /// The last step that was applied, or the change of owner: what the next commit builds on.
    pub last_commit: String,
    /// Inputs that no step has taken up yet, with their acknowledgements.
    inputs: VecDeque<(FlowEngineInput, AckTarget)>,
    /// Inputs that the commit under way took up. They are taken up again when it is refused.
    committing: Vec<(FlowEngineInput, AckTarget)>,
    /// Runners of the attempts under way, to count them off when they end.
    pub placed: HashMap<NodeIndex, RunnerId>,
    /// The flow's part in the metrics of active nodes.
    pub active: ActiveNodes,
    /// No script of the flow has started yet.
    pub awaits_first_start: bool,
    /// Attempts to stop once the step that ended them is stored.
    pub stops: Vec<Stop>,
    /// Other flows that it waits for.
    pub awaited_flows: BTreeSet<FlowId>,
    /// Queries of other flows that were not answered yet.
    pub open_queries: usize,
    /// The status queries must be repeated once they are answered.
    pub query_again: bool,
    /// Number of the reading that the flow waits for while it is being loaded.
    pub reading: u64,
    /// Time at which the flow is due.
    pub due: Option<Timestamp>,
    /// Latest time at which reports that can wait are taken up.
    pub awaited: Option<Timestamp>,
    /// Nodes that a step may change; less after a commit was too large.
    pub budget: usize,
    /// The flow must be read again: memory does not match the stored state.
    pub reload: bool,
    /// The inbox has new entries and must be read.
    pub touched: bool,
    /// The flow counts as active in storage, though it may only rest.
    pub listed_active: bool,
    /// The last step left it with nothing to do but wait for others or for a time.
    pub rests: bool,
    /// The flow is in the queue of flows to step.
    pub queued: bool,
    /// The last step left something to do.
    pub more: bool,
    /// Span of the step whose commit is under way.
    pub span: StepSpan,
}

impl LoadedFlow {
    /// A flow that is being read.
    #[must_use]
    pub fn loading(uid: FlowUid) -> Self {
        Self {
            uid,
            context_uid: None,
            phase: FlowPhase::Loading,
            last_commit: String::new(),
            inputs: VecDeque::new(),
            committing: Vec::new(),
            placed: HashMap::new(),
            active: ActiveNodes::default(),
            awaits_first_start: false,
            stops: Vec::new(),
            awaited_flows: BTreeSet::new(),
            open_queries: 0,
            query_again: false,
            reading: 0,
            due: None,
            awaited: None,
            budget: STEP_NODES_MAX,
            reload: false,
            touched: false,
            listed_active: true,
            rests: false,
            queued: false,
            more: true,
            span: StepSpan::none(),
        }
    }

    /// Adds an input.
    pub fn push(&mut self, input: FlowEngineInput, owed: AckTarget) {
        self.inputs.push_back((input, owed));
    }

    /// Returns true when a step would have something to look at.
    #[must_use]
    pub fn has_work(&self, now: Timestamp) -> bool {
        self.more || !self.inputs.is_empty() || self.due.is_some_and(|due| due <= now)
    }

    /// Returns true when all that is known was stored, and no question is open.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.inputs.is_empty()
            && self.committing.is_empty()
            && self.open_queries == 0
            && !self.touched
            && !self.reload
    }

    /// Lends the inputs to a step; inputs that the step takes up are kept until it is stored.
    pub fn with_inputs<T>(&mut self, step: impl FnOnce(&mut dyn EngineInputQueue) -> T) -> T {
        step(&mut LentInputs { waiting: &mut self.inputs, taken: &mut self.committing })
    }

    /// Takes the acknowledgements of the step under way, which is stored, or changed nothing.
    pub fn settle(&mut self) -> impl Iterator<Item = ReportAck> + use<> {
        acks(std::mem::take(&mut self.committing))
    }

    /// How many entries of the inbox are taken up once the step under way is stored.
    #[must_use]
    pub fn inbox_taken(&self) -> usize {
        in_inbox(&self.committing)
    }

    /// Returns true when an entry of the inbox is known that no step took up yet.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        in_inbox(&self.inputs) > 0
    }

    /// How many entries of the inbox are known, taken up or not.
    #[must_use]
    pub fn inbox_known(&self) -> usize {
        in_inbox(&self.committing) + in_inbox(&self.inputs)
    }

    /// Stops for the attempts that are alive according to reports, when the flow has ended or is gone.
    pub fn live_attempts(&self) -> impl Iterator<Item = Stop> + '_ {
        let inputs = self.committing.iter().chain(&self.inputs);
        inputs.filter_map(|(input, _)| match input {
            FlowEngineInput::Report(NodeReport {
                job_key,
                source,
                kind: ReportKind::Accepted { .. } | ReportKind::Started { .. },
                ..
            }) => {
                let (job_key, source) = (*job_key, source.clone());
                Some(Stop { job_key, runner: None, source, grace_secs: STOP_GRACE_SECS })
            }
            _ => None,
        })
    }

    /// All acknowledgements, when the flow is gone and nothing about it matters any more.
    pub fn take_all_acks(&mut self) -> impl Iterator<Item = ReportAck> + use<> {
        let mut all = std::mem::take(&mut self.committing);
        all.extend(std::mem::take(&mut self.inputs));
        acks(all)
    }

    /// Discards everything that is not stored. Reports from routers are taken up again once the flow is
    /// loaded; everything else comes with the flow.
    pub fn reset(&mut self) {
        self.phase = FlowPhase::Loading;
        let mut kept = std::mem::take(&mut self.committing);
        kept.extend(std::mem::take(&mut self.inputs));
        self.inputs.extend(kept.into_iter().filter(|(_, owed)| matches!(owed, AckTarget::Ack(_))));
        self.placed.clear();
        self.stops.clear();
        self.awaited_flows.clear();
        self.query_again = false;
        self.due = None;
        self.reload = false;
        self.touched = false;
        self.listed_active = true;
        self.rests = false;
        self.more = true;
        self.span = StepSpan::none();
    }
}

/// Inputs that a step may take.
struct LentInputs<'a> {
    waiting: &'a mut VecDeque<(FlowEngineInput, AckTarget)>,
    taken: &'a mut Vec<(FlowEngineInput, AckTarget)>,
}

impl EngineInputQueue for LentInputs<'_> {
    fn next(&mut self) -> Option<FlowEngineInput> {
        let (input, owed) = self.waiting.pop_front()?;
        // A commit that is refused must not lose it.
        self.taken.push((input.clone(), owed));
        Some(input)
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

fn in_inbox<'a>(inputs: impl IntoIterator<Item = &'a (FlowEngineInput, AckTarget)>) -> usize {
    inputs.into_iter().filter(|(_, owed)| *owed == AckTarget::Inbox).count()
}

fn acks(settled: Vec<(FlowEngineInput, AckTarget)>) -> impl Iterator<Item = ReportAck> {
    settled.into_iter().filter_map(|(_, owed)| match owed {
        AckTarget::Ack(ack) => Some(ack),
        AckTarget::Nothing | AckTarget::Inbox => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inbox_is_counted_until_it_is_stored() {
        let mut run = LoadedFlow::loading(FlowUid::random());
        run.push(FlowEngineInput::Wake, AckTarget::Inbox);
        run.push(FlowEngineInput::Wake, AckTarget::Ack((ReportStreamId(1), 7)));
        run.push(FlowEngineInput::Wake, AckTarget::Inbox);
        run.with_inputs(|inputs| (inputs.next(), inputs.next()));
        assert_eq!((run.inbox_taken(), run.inbox_known()), (1, 2));
        assert_eq!(run.settle().collect::<Vec<_>>(), [(ReportStreamId(1), 7)]);
        assert_eq!((run.inbox_taken(), run.inbox_known()), (0, 1));
        run.with_inputs(|inputs| inputs.next());
        assert_eq!((run.inbox_taken(), run.inbox_known()), (1, 1));
        assert_eq!(run.settle().count(), 0);
        assert_eq!(run.inbox_known(), 0);
        assert!(run.is_quiet());
    }

    #[test]
    fn only_what_routers_brought_survives_a_new_start() {
        let mut run = LoadedFlow::loading(FlowUid::random());
        run.push(FlowEngineInput::Wake, AckTarget::Ack((ReportStreamId(1), 1)));
        run.push(FlowEngineInput::Wake, AckTarget::Inbox);
        run.push(FlowEngineInput::Wake, AckTarget::Ack((ReportStreamId(1), 2)));
        run.with_inputs(|inputs| (inputs.next(), inputs.next()));
        run.reset();
        assert_eq!(run.inbox_known(), 0);
        assert_eq!(run.take_all_acks().collect::<Vec<_>>(), [(ReportStreamId(1), 1), (ReportStreamId(1), 2)]);
    }
}
