//! One step under way: the order of its parts, and the only places where a
//! node or the flow changes.

use std::collections::{HashMap, VecDeque};

use model::flow::ResultMap;
use model::limits::FLOW_RESULT_BYTES_MAX;
use model::{FlowNode, JobKey, NodeState, Reason, ReasonCode, RunnerId, Timestamp};

use super::step::{Change, Dispatch, Input, NoDestination, Outside, Refused, Stale, Step, Transition};
use super::{Cause, Engine, fails_flow, is_in_flight, timers};
use crate::graph::NodeIndex;
use crate::size;
use crate::transition::{self, FlowEvent, NodeEvent};

/// A step under way.
pub(super) struct Pass<'e, 'o, 'd> {
    pub(super) engine: &'e mut Engine,
    pub(super) now: Timestamp,
    pub(super) outside: &'o mut Outside<'d>,
    pub(super) step: Step,
    /// Kinds of node for which there was no place in this step.
    pub(super) placeless: HashMap<u32, NoDestination>,
    budget: usize,
    dispatch_to: HashMap<RunnerId, usize>,
}

impl<'e, 'o, 'd> Pass<'e, 'o, 'd> {
    pub(super) fn new(
        engine: &'e mut Engine,
        now: Timestamp,
        outside: &'o mut Outside<'d>,
        budget: usize,
    ) -> Self {
        Self {
            engine,
            now,
            outside,
            step: Step::default(),
            placeless: HashMap::new(),
            budget,
            dispatch_to: HashMap::new(),
        }
    }

    /// Reports come before what is overdue, so that an end that arrived is not
    /// taken for missing; what ends comes before what begins.
    pub(super) fn run(mut self, inputs: &mut VecDeque<Input>) -> Step {
        self.step.stops.append(&mut self.engine.stops_due);
        while self.has_room()
            && let Some(input) = inputs.pop_front()
        {
            self.take(input);
        }
        if self.engine.is_started() {
            self.check_deadline();
            self.expire();
            self.sweep();
            self.derive();
            self.place_waiting();
            self.finish();
        }
        for change in &self.step.changed {
            self.engine.slots[change.node.index()] = None;
        }
        self.step.due = self.next_due();
        self.step.more = !inputs.is_empty() || self.has_more();
        self.step
    }

    /// Whether another node may change in this step.
    pub(super) fn has_room(&self) -> bool {
        self.step.changed.len() < self.budget
    }

    fn has_more(&self) -> bool {
        let engine = &*self.engine;
        engine.is_started()
            && (!engine.work.queue.is_empty()
                || engine.sweep.is_some()
                || !engine.waiting.to_try.is_empty()
                || self.step.due.is_some_and(|due| due <= self.now))
    }

    fn next_due(&self) -> Option<Timestamp> {
        let engine = &*self.engine;
        let deadline = engine.flow.deadline.filter(|_| engine.cause < Some(Cause::Deadline));
        let times = [deadline, engine.timers.first()];
        times.into_iter().flatten().min().filter(|_| engine.is_started())
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Start => {
                self.flow_event(FlowEvent::Start);
            }
            Input::Report(report) => self.report(report),
            Input::CancelFlow { grace_secs } => self.cancel_flow(grace_secs),
            Input::CancelNode(job) => {
                if let Some(node) = self.engine.find(job) {
                    self.cancel_node(node);
                }
            }
            Input::Signal(name) => {
                self.engine.signals.insert(name);
            }
            Input::FlowState { .. } | Input::SupervisorLost(_) => {}
            Input::Wake => {
                let waiting = &mut self.engine.waiting;
                waiting
                    .to_try
                    .extend((0..).zip(&waiting.nodes).filter(|(_, n)| !n.is_empty()).map(|(k, _)| k));
            }
        }
    }

    fn cancel_flow(&mut self, grace_secs: u32) {
        if self.engine.flow.cancel_requested_time.is_some() && !self.engine.is_over() {
            return;
        }
        if let Err(error) = transition::flow(self.engine.flow.status, FlowEvent::Cancel) {
            self.step.refused.push(Refused { node: None, error });
            return;
        }
        let flow = &mut self.engine.flow;
        flow.cancel_requested_time = Some(self.now);
        flow.cancel_grace_secs = grace_secs;
        self.flow_touched();
        self.engine.raise(Cause::FlowCancelled);
    }

    fn cancel_node(&mut self, node: NodeIndex) {
        if is_in_flight(self.engine.node(node).state) {
            self.request_cancel(node, Reason::new(ReasonCode::NodeCancelled, ""));
        } else {
            self.cancel_unsent(node, ReasonCode::NodeCancelled);
        }
    }

    /// Cancels a node that was not sent anywhere.
    pub(super) fn cancel_unsent(&mut self, node: NodeIndex, code: ReasonCode) {
        let now = self.now;
        self.apply(node, NodeEvent::Cancel, |node| {
            node.cancel_requested_time = Some(now);
            node.end_time = Some(now);
            node.reason = Some(Reason::new(code, ""));
        });
    }

    /// Asks the supervisor to stop the attempt; it ends as cancelled however it ends.
    pub(super) fn request_cancel(&mut self, node: NodeIndex, reason: Reason) {
        if self.engine.node(node).cancel_requested_time.is_some() {
            // The time it may stay unconfirmed can have changed with the flow's.
            self.reset_timer(node);
            return;
        }
        let now = self.now;
        self.touch(node, |node| {
            node.cancel_requested_time = Some(now);
            node.reason = Some(reason);
        });
        self.stop(node);
    }

    /// Has the current attempt stopped.
    pub(super) fn stop(&mut self, node: NodeIndex) {
        self.step.stops.push(self.engine.stop_of(node));
    }

    pub(super) fn stale(&mut self, job_key: JobKey, alive: bool) {
        self.step.stale.push(Stale { job_key, alive });
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
        event: NodeEvent,
        edit: impl FnOnce(&mut FlowNode),
    ) -> bool {
        let node = &self.engine.nodes[index.index()];
        let (from, attempt) = (node.state, node.attempt);
        let to = match transition::node(from, event) {
            Ok(to) => to,
            Err(error) => {
                self.step.refused.push(Refused { node: Some(index), error });
                return false;
            }
        };
        let slot = self.slot(index);
        let node = &mut self.engine.nodes[index.index()];
        edit(node);
        node.state = to;
        let reason = node.reason.clone();
        self.step.changed[slot].transitions.push(Transition { event, from, to, attempt, reason });
        self.reset_timer(index);
        if to.is_end() {
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
        self.step.changed.push(Change { node: index, before, transitions: Vec::new() });
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
            result_bytes[index.index()] = size::result(&node.result);
        }
        for dependant in plan.graph().dependants(index) {
            let upstream = &mut upstream[dependant.index()];
            upstream.count_end(node);
            if upstream.waiting == 0 && nodes[dependant.index()].state == NodeState::Pending {
                work.push(dependant);
            }
        }
        self.engine.open -= 1;
        if fails_flow(&self.engine.nodes[index.index()]) {
            self.engine.failures += 1;
            if self.engine.flow.fail_fast {
                self.engine.raise(Cause::FailFast);
            }
        }
    }

    fn flow_touched(&mut self) {
        self.engine.flow.updated_at = self.now;
        self.step.flow_changed = true;
    }

    /// Lets `event` happen to the flow: the one place where its status changes.
    fn flow_event(&mut self, event: FlowEvent) {
        let from = self.engine.flow.status;
        match transition::flow(from, event) {
            Ok(to) => {
                self.engine.flow.status = to;
                self.step.flow_transitions.push((from, to));
                self.flow_touched();
            }
            Err(error) => self.step.refused.push(Refused { node: None, error }),
        }
    }

    /// Ends the flow when no node can move.
    fn finish(&mut self) {
        if self.engine.open > 0 {
            return;
        }
        let event = if self.engine.flow.cancel_requested_time.is_some() {
            FlowEvent::Cancel
        } else if self.engine.failures > 0 {
            FlowEvent::Fail
        } else {
            FlowEvent::Finish
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
                let with = bytes + size::member(&key, size::text(value));
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
