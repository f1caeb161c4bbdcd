//! One step under way: the order of its parts, and the only places where a
//! node or the flow changes.

use std::collections::HashMap;

use model::flow::ResultMap;
use model::limits::{FLOW_RESULT_BYTES_MAX, STOP_GRACE_SECS};
use model::{FlowNode, JobKey, NodeReport, NodeState, RunnerId, Timestamp};

use super::step::{
    ChangedNode, Dispatch, EngineInputQueue, FlowEngineInput, FlowStepOutput, NoDestination, NodeTransition,
    RefusedTransition, StaleReport, StepEnvironment, Stop,
};
use super::{Engine, HaltCause, fails_flow, is_in_flight, report, size_of_result, timers};
use crate::graph::NodeIndex;
use crate::json_size;
use crate::retry::RetryCounters;
use crate::transition::{self, FlowTransitionEvent, NodeTransitionEvent};

/// A step under way.
pub(super) struct Pass<'e, 'o, 'd> {
    pub(super) engine: &'e mut Engine,
    pub(super) now: Timestamp,
    pub(super) outside: &'o mut StepEnvironment<'d>,
    pub(super) step: FlowStepOutput,
    /// Kinds of node for which there was no place in this step.
    pub(super) placeless: HashMap<u32, NoDestination>,
    budget: usize,
    dispatch_to: HashMap<RunnerId, usize>,
}

impl<'e, 'o, 'd> Pass<'e, 'o, 'd> {
    pub(super) fn new(
        engine: &'e mut Engine,
        now: Timestamp,
        outside: &'o mut StepEnvironment<'d>,
        budget: usize,
    ) -> Self {
        Self {
            engine,
            now,
            outside,
            step: FlowStepOutput::default(),
            placeless: HashMap::new(),
            budget,
            dispatch_to: HashMap::new(),
        }
    }

    /// Reports are handled before expired timers, so that an end that has arrived is not counted as missing; endings are
    /// handled before starts. A rerun resets its nodes before anything else.
    pub(super) fn run(mut self, inputs: &mut dyn EngineInputQueue) -> FlowStepOutput {
        self.step.stops.append(&mut self.engine.stops_due);
        if self.reset() {
            while self.has_room()
                && let Some(input) = inputs.next()
            {
                self.take(input);
            }
            if self.engine.is_started() {
                self.advance();
            }
        }
        for change in &self.step.changed {
            self.engine.slots[change.node.index()] = None;
        }
        self.step.due = self.next_due();
        self.step.more = !inputs.is_empty() || self.has_more();
        self.step.rests = !self.step.more && self.engine.rests();
        self.step
    }

    fn advance(&mut self) {
        self.lose();
        self.check_deadline();
        self.expire();
        self.sweep();
        // Nodes that have waited for a place go before those that become ready now.
        self.place_waiting();
        self.derive();
        self.place_waiting();
        self.finish();
    }

    /// Returns true if another node may change in this step.
    pub(super) fn has_room(&self) -> bool {
        self.step.changed.len() < self.budget
    }

    fn has_more(&self) -> bool {
        let engine = &*self.engine;
        engine.is_started()
            && (!engine.work.queue.is_empty()
                || !engine.resets.is_empty()
                || !engine.lost.is_empty()
                || engine.sweep.is_some()
                || !engine.waiting.to_try.is_empty()
                || self.step.due.is_some_and(|due| due <= self.now))
    }

    fn next_due(&self) -> Option<Timestamp> {
        let engine = &*self.engine;
        let times = [engine.next_deadline(), engine.timers.first()];
        times.into_iter().flatten().min().filter(|_| engine.is_started())
    }

    fn take(&mut self, input: FlowEngineInput) {
        match input {
            FlowEngineInput::Start => {
                self.flow_event(FlowTransitionEvent::Start);
            }
            FlowEngineInput::Report(report) => self.report(report),
            FlowEngineInput::CancelFlow { grace_secs } => self.cancel_flow(grace_secs),
            FlowEngineInput::CancelNode(job) => {
                if let Some(node) = self.engine.find(job) {
                    self.cancel_node(node);
                }
            }
            FlowEngineInput::Signal(name) => self.signal(name),
            FlowEngineInput::FlowState { flow, status } => self.flow_state(flow, status),
            FlowEngineInput::SupervisorLost(runner) => self.engine.note_lost(runner),
            FlowEngineInput::Wake => {
                let waiting = &mut self.engine.waiting;
                waiting
                    .to_try
                    .extend((0..).zip(&waiting.nodes).filter(|(_, n)| !n.is_empty()).map(|(k, _)| k));
            }
        }
    }

    /// Has the current attempt stopped.
    pub(super) fn stop(&mut self, node: NodeIndex) {
        self.step.stops.push(self.engine.stop_of(node));
    }

    /// Stops an attempt where it runs although it should not.
    pub(super) fn stop_at_source(&mut self, report: &NodeReport) {
        if let Some(source) = &report.source {
            self.step.stops.push(Stop {
                job_key: report.job_key,
                runner: None,
                source: Some(source.clone()),
                grace_secs: STOP_GRACE_SECS,
            });
        }
    }

    /// Counts a report that changes nothing, and stops its attempt if the report shows it alive.
    pub(super) fn stale(&mut self, report: &NodeReport) {
        let key = report.job_key;
        let ours = key.flow == self.engine.flow.uid && key.context == self.engine.context;
        let alive = ours && report::reports_alive(&report.kind);
        if alive {
            self.stop_at_source(report);
        }
        self.step.stale.push(StaleReport { job_key: key, alive });
    }

    /// Counts a report that tells nothing new about the current attempt.
    pub(super) fn repeated(&mut self, job_key: JobKey) {
        self.step.stale.push(StaleReport { job_key, alive: false });
    }

    /// Adds a node to what travels to `runner`.
    pub(super) fn send(&mut self, runner: RunnerId, node: NodeIndex) {
        let dispatches = &mut self.step.dispatches;
        let at = *self.dispatch_to.entry(runner).or_insert_with(|| {
            dispatches.push(Dispatch { runner, nodes: Vec::new() });
            dispatches.len() - 1
        });
        dispatches[at].nodes.push(node);
    }

    /// Lets `event` happen to a node: the one place where a state changes.
    /// Gives false, and changes nothing, when the table does not know it.
    pub(super) fn apply(
        &mut self,
        index: NodeIndex,
        event: NodeTransitionEvent,
        edit: impl FnOnce(&mut FlowNode),
    ) -> bool {
        let node = &self.engine.nodes[index.index()];
        let (from, attempt) = (node.state, node.attempt);
        let to = match transition::node(from, event) {
            Ok(to) => to,
            Err(error) => {
                self.step.refused.push(RefusedTransition { node: Some(index), error });
                return false;
            }
        };
        let slot = self.slot(index);
        let node = &mut self.engine.nodes[index.index()];
        let leaves = is_in_flight(from) && !is_in_flight(to);
        // `edit` may clear the message key.
        if leaves && node.message_key.is_some() {
            self.step.changed[slot].ended_message.clone_from(&node.message_key);
        }
        edit(node);
        node.state = to;
        let (reason, spent) = (node.reason.clone(), RetryCounters::of(node));
        self.step.changed[slot].transitions.push(NodeTransition { event, from, to, attempt, reason, spent });
        self.engine.counts.moved(from, to);
        self.reset_timer(index);
        if leaves {
            self.engine.sources.remove(&index);
        }
        if to.is_end() {
            self.drop_kept(index);
            self.ended(index);
        }
        true
    }

    /// Changes fields of a node without a change of state.
    pub(super) fn touch(&mut self, index: NodeIndex, edit: impl FnOnce(&mut FlowNode)) {
        self.slot(index);
        edit(&mut self.engine.nodes[index.index()]);
        self.reset_timer(index);
    }

    /// The place of a node among this step's changes.
    fn slot(&mut self, index: NodeIndex) -> usize {
        if let Some(slot) = self.engine.slots[index.index()] {
            return slot as usize;
        }
        let slot = self.step.changed.len();
        self.engine.slots[index.index()] = u32::try_from(slot).ok();
        let before = self.engine.nodes[index.index()].state;
        self.step.changed.push(ChangedNode {
            node: index,
            before,
            transitions: Vec::new(),
            ended_message: None,
        });
        slot
    }

    fn reset_timer(&mut self, index: NodeIndex) {
        let due = timers::next(&self.engine.nodes[index.index()], &self.engine.flow);
        self.engine.timers.set(index, due.map(|(time, _)| time));
    }

    /// Counts an end, and finds the nodes that waited for it only.
    fn ended(&mut self, index: NodeIndex) {
        let Engine { plan, nodes, upstream, work, result_bytes, .. } = &mut *self.engine;
        let node = &nodes[index.index()];
        if node.state == NodeState::Completed {
            result_bytes[index.index()] = size_of_result(node);
        }
        for dependant in plan.graph().dependants(index) {
            let upstream = &mut upstream[dependant.index()];
            upstream.count_end(node);
            if upstream.waiting == 0 && nodes[dependant.index()].state == NodeState::Pending {
                work.push(dependant);
            }
        }
        if fails_flow(&self.engine.nodes[index.index()]) {
            self.engine.failures += 1;
            if self.engine.flow.fail_fast {
                self.engine.raise(HaltCause::FailFast);
            }
        }
    }

    pub(super) fn flow_touched(&mut self) {
        self.engine.flow.updated_at = self.now;
        self.step.flow_changed = true;
    }

    /// Lets `event` happen to the flow: the one place where its status changes.
    fn flow_event(&mut self, event: FlowTransitionEvent) {
        let from = self.engine.flow.status;
        match transition::flow(from, event) {
            Ok(to) => {
                self.engine.flow.status = to;
                self.step.flow_transitions.push((from, to));
                self.flow_touched();
            }
            Err(error) => self.step.refused.push(RefusedTransition { node: None, error }),
        }
    }

    /// Ends the flow when no node can move.
    fn finish(&mut self) {
        if self.engine.counts.open > 0 {
            return;
        }
        let event = if self.engine.flow.cancel_requested_time.is_some() {
            FlowTransitionEvent::Cancel
        } else if self.engine.failures > 0 {
            FlowTransitionEvent::Fail
        } else {
            FlowTransitionEvent::Finish
        };
        (self.engine.flow.result, self.engine.flow.result_truncated) = self.gather_result();
        self.flow_event(event);
        self.engine.sweep = None;
    }

    /// The results of the nodes that nothing depends on. What does not fit is left out.
    fn gather_result(&self) -> (ResultMap, bool) {
        let engine = &*self.engine;
        let mut gathered = ResultMap::new();
        let mut truncated = false;
        let mut bytes = 2;
        for (i, node) in engine.nodes.iter().enumerate() {
            if node.result.is_empty() || !engine.graph().is_sink(NodeIndex::new(i)) {
                continue;
            }
            for (key, value) in &node.result {
                let key = format!("{}.{key}", node.name);
                let with = bytes + json_size::member(&key, json_size::text(value));
                if with > FLOW_RESULT_BYTES_MAX {
                    truncated = true;
                } else {
                    bytes = with;
                    gathered.insert(key, value.clone());
                }
            }
        }
        (gathered, truncated)
    }
}
