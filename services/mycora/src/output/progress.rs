//! State of a flow as a watcher knows it. Pure: events and the time go in, lines come out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use model::{ReasonCode, Timestamp};
use proto::convert::{enums, time as wire_time};
use proto::v1;
use proto::v1::watch_flow_response::Event;

use super::{labels, time};

/// A job that waits for this long without starting is explained.
pub const EXPLAIN_AFTER: Duration = Duration::from_secs(2);

/// Shorter times between two changes mean nothing.
const RAN_KNOWN_FROM: Duration = Duration::from_millis(10);

/// A flow as its watcher sees it.
#[derive(Debug, Default)]
pub struct FlowProgress {
    flow: Option<v1::Flow>,
    nodes: BTreeMap<u32, NodeProgress>,
    /// Those that wait and are not explained yet.
    unexplained: BTreeSet<u32>,
    in_snapshot: bool,
    /// A moment by both clocks.
    clock: Option<(Instant, Timestamp)>,
    /// When the flow's generation began, as far as known.
    began: Option<Timestamp>,
}

/// A node as its watcher sees it.
#[derive(Debug, Clone)]
pub struct NodeProgress {
    /// Name of the node.
    pub name: String,
    /// Job ids of the nodes before it.
    pub depends: Vec<u32>,
    /// Where it stands.
    pub state: v1::NodeState,
    /// The current attempt.
    pub attempt: u32,
    /// Why, when there is more to say.
    pub reason: Option<v1::Reason>,
    /// Where it runs or ran.
    pub instance: String,
    /// Since when this watcher has seen it in this state.
    pub since: Instant,
    /// When it started to run, by the server's clock.
    started: Option<Timestamp>,
    /// How long it ran, once it has ended.
    pub ran: Option<Duration>,
    /// The last try whose end was reported.
    last_reported_try: u32,
}

/// Something to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressEvent {
    /// One line.
    pub text: String,
    /// A picture of how everything stands does not show it.
    pub transient: bool,
}

/// How many nodes stand where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeCounts {
    /// All of them.
    pub total: usize,
    /// Those that have ended, however.
    pub ended: usize,
    /// Those that run.
    pub running: usize,
    /// Those that failed.
    pub failed: usize,
}

impl NodeProgress {
    fn new(now: Instant, node: v1::FlowNode) -> Self {
        let started = node.start_time.map(wire_time::from_wire);
        let ended = node.end_time.map(wire_time::from_wire);
        Self {
            last_reported_try: node.attempt.saturating_sub(1),
            state: node.state(),
            name: node.name,
            depends: node.depends,
            attempt: node.attempt,
            reason: node.reason,
            instance: node.instance,
            since: now,
            started,
            ran: started.zip(ended).map(|(start, end)| end.since(start)),
        }
    }

    fn change(&mut self, now: Instant, change: &v1::NodeChange) {
        let state = change.state();
        let time = change.time.map(wire_time::from_wire);
        if state != self.state || change.attempt != self.attempt {
            self.since = now;
        }
        match state {
            v1::NodeState::Running => self.started = time,
            _ if is_end(state) => {
                let ran = self.started.zip(time).map(|(start, end)| end.since(start));
                // A change has the time at which it was recorded, and one record may hold both start and end.
                self.ran = ran.filter(|ran| *ran >= RAN_KNOWN_FROM);
            }
            _ => (self.started, self.ran) = (None, None),
        }
        self.state = state;
        self.attempt = change.attempt;
        self.reason.clone_from(&change.reason);
        self.instance.clone_from(&change.instance);
    }

    /// Returns what to report of the step from that state and attempt. States between the end of one job
    /// and the start of the next are not reported, unless they last: then they are explained.
    fn new_events(&mut self, before: (v1::NodeState, u32)) -> Vec<ProgressEvent> {
        let between = [v1::NodeState::Pending, v1::NodeState::Ready, v1::NodeState::Dispatched];
        let mut new_events = Vec::new();
        if let Some(text) = self.ended_tries(before) {
            new_events.push(ProgressEvent { text, transient: true });
        }
        if (self.state, self.attempt) != before && !between.contains(&self.state) {
            new_events.push(ProgressEvent {
                text: format!("{}: {}", self.name, self.description()),
                transient: false,
            });
        }
        new_events
    }

    /// Tries that ended with this step and were not the last; each is reported once.
    fn ended_tries(&mut self, before: (v1::NodeState, u32)) -> Option<String> {
        let under_way = [v1::NodeState::Ready, v1::NodeState::Dispatched, v1::NodeState::Running];
        if !under_way.contains(&before.0) {
            // What had ended, or waited to be run at all, did not fail now.
            self.last_reported_try = self.attempt.saturating_sub(1);
            return None;
        }
        let failed = self.reason.as_ref().and_then(labels::failed_try);
        // The change with the reason still has the number of the try that failed.
        let back = self.state == v1::NodeState::Ready && before.0 != v1::NodeState::Ready;
        let ended_now = back && self.attempt == before.1 && failed.is_some();
        let last = if ended_now { self.attempt } else { self.attempt.saturating_sub(1) };
        let first = before.1.max(self.last_reported_try + 1);
        if first > last {
            return None;
        }
        self.last_reported_try = last;
        let tries =
            if first == last { format!("attempt {last}") } else { format!("attempts {first} to {last}") };
        let why = failed.unwrap_or_else(|| "did not succeed".to_owned());
        Some(format!("{}: {tries} {why}; it is tried again", self.name))
    }

    /// Describes the node, without its name.
    #[must_use]
    pub fn description(&self) -> String {
        let mut text = labels::node_state(self.state).to_owned();
        if self.attempt > 1 {
            text.push_str(&format!(" (attempt {})", self.attempt));
        }
        if let (true, Some(ran)) = (is_end(self.state), self.ran) {
            text.push_str(&format!(" after {}", time::duration(ran)));
        }
        if let (v1::NodeState::Running, false) = (self.state, self.instance.is_empty()) {
            text.push_str(&format!(" on {}", self.instance));
        }
        // What is merely ready is explained only when it stays so.
        if let Some(reason) = self.reason.as_ref().filter(|_| self.state != v1::NodeState::Ready) {
            text.push_str(&format!(": {}", labels::reason(reason)));
        }
        text
    }

    /// Returns true for a node that could go on, as far as the flow is concerned, and does not.
    fn waits(&self) -> bool {
        match self.state {
            v1::NodeState::Ready => true,
            v1::NodeState::Pending => self.has_reason(ReasonCode::Waiting),
            _ => false,
        }
    }

    fn has_reason(&self, code: ReasonCode) -> bool {
        self.reason.as_ref().is_some_and(|reason| reason.code == code.as_str())
    }

    /// Why it does not start, when that has taken too long.
    #[must_use]
    pub fn explanation(&self, now: Instant, context: u32) -> Option<String> {
        let waits = self.waits() && now.duration_since(self.since) >= EXPLAIN_AFTER;
        let reason = self.reason.as_ref().filter(|_| waits)?;
        let hint = if self.has_reason(ReasonCode::NoLiveRunner) {
            format!("; `mycora runner list --context {context}` shows what there is")
        } else if self.has_reason(ReasonCode::Waiting) {
            "; `mycora flow explain` shows more".to_owned()
        } else {
            String::new()
        };
        let why = labels::reason(reason);
        Some(match why.strip_prefix("it waits") {
            Some(rest) => format!("waits{rest}{hint}"),
            None => format!("waits: {why}{hint}"),
        })
    }
}

impl FlowProgress {
    /// A view that shows for how long each state has lasted, by a clock that shows `time` at this moment.
    #[must_use]
    pub fn at(now: Instant, time: Timestamp) -> Self {
        Self { clock: Some((now, time)), ..Self::default() }
    }

    /// When something was that happened at this time; not after `now`.
    fn instant_of(&self, time: Timestamp, now: Instant) -> Option<Instant> {
        let (instant, known) = self.clock?;
        let then = instant.checked_sub(known.since(time))?;
        Some((then + time.since(known)).min(now))
    }

    /// How long the flow runs, or ran, whenever it was begun to be watched.
    #[must_use]
    pub fn lasted(&self, now: Instant) -> Option<Duration> {
        let (instant, known) = self.clock?;
        let began = self.began?;
        let ended = self.ended().map(|flow| wire_time::required(flow.update_time));
        Some(ended.unwrap_or(known + now.duration_since(instant)).since(began))
    }

    /// Applies one event; returns what to show of it.
    pub fn apply(&mut self, now: Instant, event: Event) -> Vec<ProgressEvent> {
        match event {
            Event::Flow(flow) => self.apply_flow(flow).into_iter().collect(),
            Event::Node(node) => self.apply_node(now, node),
            Event::NodeChange(change) => self.apply_change(now, &change),
            Event::SnapshotEnd(_) => {
                self.in_snapshot = false;
                Vec::new()
            }
            Event::Heartbeat(_) => Vec::new(),
        }
    }

    /// A snapshot is about to begin.
    pub fn begin_snapshot(&mut self) {
        self.in_snapshot = true;
    }

    fn apply_flow(&mut self, flow: v1::Flow) -> Option<ProgressEvent> {
        let changed = self.flow.as_ref().is_none_or(|known| {
            known.status != flow.status
                || known.cancel_requested_time.is_some() != flow.cancel_requested_time.is_some()
        });
        let mut line = format!("flow {} `{}`: {}", flow.id, flow.name, labels::flow_status(flow.status()));
        if !is_ended(&flow) && flow.cancel_requested_time.is_some() {
            line.push_str(", being cancelled");
        }
        // The record of a rerun flow has no start time: the time at which its first job became ready stands in.
        let runs_again = flow.generation > 1;
        if runs_again && self.flow.as_ref().is_none_or(|known| known.generation < flow.generation) {
            self.began = None;
        } else if !runs_again {
            self.began = flow.create_time.map(wire_time::from_wire);
        }
        self.flow = Some(flow);
        changed.then_some(ProgressEvent { text: line, transient: false })
    }

    fn apply_node(&mut self, now: Instant, node: v1::FlowNode) -> Vec<ProgressEvent> {
        let job_id = node.job_id;
        // Nodes of an earlier generation are no news: their result is kept, or they are about to run again.
        let current = self.flow.as_ref().is_none_or(|flow| node.generation >= flow.generation);
        let ready = node.ready_time.or(node.start_time).map(wire_time::from_wire);
        if current && self.flow.as_ref().is_some_and(|flow| flow.generation > 1) {
            self.began = self.began.into_iter().chain(ready).min();
        }
        let mut node = NodeProgress::new(now, node);
        if node.state == v1::NodeState::Running {
            let since = node.started.and_then(|started| self.instant_of(started, now));
            node.since = since.unwrap_or(now);
        }
        let known = self.nodes.get(&job_id);
        if let Some(known) = known {
            node.last_reported_try = known.last_reported_try;
        }
        if let Some(known) = known.filter(|known| known.state == node.state) {
            node.since = known.since;
        }
        let before = known.map_or((v1::NodeState::Pending, node.attempt), |node| (node.state, node.attempt));
        let new_events = if current { node.new_events(before) } else { Vec::new() };
        self.nodes.insert(job_id, node);
        self.mark(job_id);
        new_events
    }

    fn apply_change(&mut self, now: Instant, change: &v1::NodeChange) -> Vec<ProgressEvent> {
        let Some(node) = self.nodes.get_mut(&change.job_id) else { return Vec::new() };
        let before = (node.state, node.attempt);
        node.change(now, change);
        let new_events = node.new_events(before);
        self.mark(change.job_id);
        new_events
    }

    fn mark(&mut self, job_id: u32) {
        if self.nodes.get(&job_id).is_some_and(NodeProgress::waits) {
            self.unexplained.insert(job_id);
        } else {
            self.unexplained.remove(&job_id);
        }
    }

    /// Lines about jobs that have been ready for too long. Each is shown once.
    pub fn explain(&mut self, now: Instant) -> Vec<String> {
        let (nodes, context) = (&self.nodes, self.context());
        let mut lines = Vec::new();
        self.unexplained.retain(|job_id| {
            let node = nodes.get(job_id);
            let line =
                node.and_then(|node| Some(format!("{}: {}", node.name, node.explanation(now, context)?)));
            lines.extend(line.clone());
            line.is_none()
        });
        lines
    }

    /// When [`FlowProgress::explain`] will next have something to show.
    #[must_use]
    pub fn explain_at(&self) -> Option<Instant> {
        let waiting = self.unexplained.iter().filter_map(|job_id| self.nodes.get(job_id));
        waiting.filter(|node| node.reason.is_some()).map(|node| node.since + EXPLAIN_AFTER).min()
    }

    /// The flow, once known.
    #[must_use]
    pub const fn flow(&self) -> Option<&v1::Flow> {
        self.flow.as_ref()
    }

    /// The context it runs in, once the flow is known.
    #[must_use]
    pub fn context(&self) -> u32 {
        self.flow.as_ref().map_or(0, |flow| flow.context_id)
    }

    /// The flow when it has ended and everything about it was shown.
    #[must_use]
    pub fn ended(&self) -> Option<&v1::Flow> {
        self.flow.as_ref().filter(|flow| !self.in_snapshot && is_ended(flow))
    }

    /// The nodes by job id, which is the order of the flow file.
    #[must_use]
    pub const fn nodes(&self) -> &BTreeMap<u32, NodeProgress> {
        &self.nodes
    }

    /// How many stand where.
    #[must_use]
    pub fn counts(&self) -> NodeCounts {
        let mut counts = NodeCounts { total: self.nodes.len(), ..NodeCounts::default() };
        for node in self.nodes.values() {
            counts.ended += usize::from(is_end(node.state));
            counts.running += usize::from(node.state == v1::NodeState::Running);
            counts.failed += usize::from(node.state == v1::NodeState::Failed);
        }
        counts
    }
}

/// Returns true when the flow has ended.
#[must_use]
pub fn is_ended(flow: &v1::Flow) -> bool {
    enums::flow_status_from_wire(flow.status).is_some_and(|status| status.is_end())
}

fn is_end(state: v1::NodeState) -> bool {
    enums::node_state_from_wire(state.into()).is_some_and(|state| state.is_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use v1::NodeState;

    fn node(job_id: u32, name: &str, state: NodeState) -> Event {
        Event::Node(v1::FlowNode {
            job_id,
            name: name.into(),
            state: state.into(),
            attempt: 1,
            ..Default::default()
        })
    }

    fn change(job_id: u32, state: NodeState, millis: u64) -> v1::NodeChange {
        let time = Some(wire_time::to_wire(Timestamp::from_millis(millis)));
        v1::NodeChange { job_id, state: state.into(), attempt: 1, time, ..Default::default() }
    }

    fn no_runner() -> Option<v1::Reason> {
        Some(v1::Reason { code: "NO_LIVE_RUNNER".into(), detail: String::new() })
    }

    fn texts(events: Vec<ProgressEvent>) -> Vec<String> {
        events.into_iter().map(|event| event.text).collect()
    }

    #[test]
    fn times_begin_with_the_flow_and_not_with_its_watcher() {
        let at = |secs: u64| Some(wire_time::to_wire(Timestamp::from_millis(secs * 1000)));
        let (secs, now) = (Duration::from_secs, Instant::now());
        let mut view = FlowProgress::at(now, Timestamp::from_millis(100_000));
        let status = v1::FlowStatus::Started.into();
        let mut flow = v1::Flow { id: 3, create_time: at(98), generation: 1, status, ..Default::default() };
        view.apply(now, Event::Flow(flow.clone()));
        let Event::Node(mut node) = node(1, "a", NodeState::Running) else { panic!("a node") };
        node.start_time = at(99);
        view.apply(now, Event::Node(node));
        assert_eq!(now.duration_since(view.nodes()[&1].since), secs(1));
        assert_eq!(view.lasted(now + secs(5)), Some(secs(7)));
        (flow.status, flow.update_time) = (v1::FlowStatus::Finished.into(), at(101));
        view.apply(now + secs(9), Event::Flow(flow));
        assert_eq!(view.lasted(now + secs(9)), Some(secs(3)));
    }

    #[test]
    fn each_failed_try_is_reported_once() {
        let now = Instant::now();
        let mut view = FlowProgress::default();
        view.apply(now, node(1, "a", NodeState::Running));
        let mut change_to = |state, attempt, why: &str| {
            let mut change = change(1, state, 1);
            change.attempt = attempt;
            change.reason =
                (!why.is_empty()).then(|| v1::Reason { code: "BACKING_OFF".into(), detail: why.into() });
            view.apply(now, Event::NodeChange(change))
        };
        let failed = change_to(NodeState::Ready, 1, "EXIT_CODE: exit code 3");
        assert!(failed[0].transient, "no picture shows it");
        assert_eq!(texts(failed), ["a: attempt 1 failed: exit code 3; it is tried again"]);
        assert!(change_to(NodeState::Dispatched, 2, "").is_empty());
        assert_eq!(texts(change_to(NodeState::Running, 2, "")), ["a: running (attempt 2)"]);
        assert_eq!(
            texts(change_to(NodeState::Running, 5, "")),
            ["a: attempts 2 to 4 did not succeed; it is tried again", "a: running (attempt 5)"],
            "also those that were missed"
        );
        assert_eq!(texts(change_to(NodeState::Failed, 5, "")), ["a: failed (attempt 5)"]);
        assert!(change_to(NodeState::Pending, 5, "").is_empty());
        assert!(change_to(NodeState::Ready, 6, "").is_empty(), "run again, not failed");
        assert_eq!(
            texts(change_to(NodeState::Ready, 6, "RETURNED")),
            [] as [&str; 0],
            "what was never under way has not failed"
        );
    }

    #[test]
    fn a_snapshot_after_a_gap_reports_the_failed_try() {
        let now = Instant::now();
        let mut view = FlowProgress::default();
        view.apply(now, node(1, "a", NodeState::Running));
        let Event::Node(mut again) = node(1, "a", NodeState::Ready) else { return };
        again.attempt = 2;
        again.reason = Some(v1::Reason { code: "BACKING_OFF".into(), detail: "TIMEOUT".into() });
        let texts_of_change = texts(view.apply(now, Event::Node(again)));
        assert_eq!(
            texts_of_change,
            ["a: attempt 1 failed: the script ran longer than its timeout; it is tried again"]
        );
    }

    #[test]
    fn what_waits_for_a_signal_is_explained() {
        let start = Instant::now();
        let mut view = FlowProgress::default();
        view.apply(start, node(1, "a", NodeState::Pending));
        assert_eq!(view.explain_at(), None);
        let mut waits = change(1, NodeState::Pending, 0);
        waits.reason = Some(v1::Reason { code: "WAITING".into(), detail: "for signal:go".into() });
        view.apply(start, Event::NodeChange(waits));
        assert_eq!(
            view.explain(start + EXPLAIN_AFTER),
            ["a: waits for signal:go; `mycora flow explain` shows more"]
        );
    }

    #[test]
    fn each_change_of_a_flow_is_reported_once() {
        let now = Instant::now();
        let mut view = FlowProgress::default();
        view.begin_snapshot();
        let flow = v1::Flow {
            id: 3,
            name: "f".into(),
            status: v1::FlowStatus::Started.into(),
            ..Default::default()
        };
        assert_eq!(texts(view.apply(now, Event::Flow(flow.clone()))), ["flow 3 `f`: running"]);
        assert!(view.apply(now, node(1, "a", NodeState::Pending)).is_empty());
        assert!(view.apply(now, Event::SnapshotEnd(v1::SnapshotEnd {})).is_empty());
        let mut running = change(1, NodeState::Running, 1_000);
        running.instance = "shell:default:0".into();
        assert_eq!(
            texts(view.apply(now, Event::NodeChange(running.clone()))),
            ["a: running on shell:default:0"]
        );
        assert!(view.apply(now, Event::NodeChange(running)).is_empty());
        let mut failed = change(1, NodeState::Failed, 3_500);
        failed.reason = Some(v1::Reason { code: "EXIT_CODE".into(), detail: "exit code 3".into() });
        assert_eq!(texts(view.apply(now, Event::NodeChange(failed))), ["a: failed after 2.5 s: exit code 3"]);
        assert_eq!(view.counts(), NodeCounts { total: 1, ended: 1, running: 0, failed: 1 });
        assert!(view.ended().is_none());
        let ended = v1::Flow { status: v1::FlowStatus::Error.into(), ..flow };
        assert_eq!(texts(view.apply(now, Event::Flow(ended))), ["flow 3 `f`: failed"]);
        assert!(view.ended().is_some());
    }

    #[test]
    fn a_rerun_reports_only_nodes_of_its_own_generation() {
        let now = Instant::now();
        let mut view = FlowProgress::default();
        view.begin_snapshot();
        let status = v1::FlowStatus::Started.into();
        view.apply(now, Event::Flow(v1::Flow { generation: 2, status, ..Default::default() }));
        let mut of_generation = |job_id, generation| {
            let Event::Node(node) = node(job_id, "a", NodeState::Completed) else { return Vec::new() };
            texts(view.apply(now, Event::Node(v1::FlowNode { generation, ..node })))
        };
        assert!(of_generation(1, 1).is_empty(), "kept, or not reset yet");
        assert_eq!(of_generation(2, 2), ["a: completed"]);
        view.apply(now, Event::NodeChange(change(1, NodeState::Pending, 1)));
        let events = view.apply(now, Event::NodeChange(change(1, NodeState::Completed, 2)));
        assert_eq!(texts(events), ["a: completed"], "run again");
    }

    #[test]
    fn an_end_in_a_snapshot_counts_when_the_snapshot_is_complete() {
        let mut view = FlowProgress::default();
        view.begin_snapshot();
        let flow = v1::Flow { status: v1::FlowStatus::Finished.into(), ..Default::default() };
        view.apply(Instant::now(), Event::Flow(flow));
        assert!(view.ended().is_none());
        view.apply(Instant::now(), Event::SnapshotEnd(v1::SnapshotEnd {}));
        assert!(view.ended().is_some());
    }

    #[test]
    fn a_job_that_does_not_start_is_explained_after_two_seconds() {
        let start = Instant::now();
        let mut view = FlowProgress::default();
        view.apply(start, Event::Flow(v1::Flow { context_id: 2, ..Default::default() }));
        view.apply(start, node(1, "a", NodeState::Ready));
        assert_eq!(view.explain_at(), None, "there is nothing to say yet");
        let mut waits = change(1, NodeState::Ready, 0);
        waits.reason = no_runner();
        assert!(view.apply(start + Duration::from_millis(500), Event::NodeChange(waits)).is_empty());
        assert_eq!(view.explain_at(), Some(start + EXPLAIN_AFTER));
        assert!(view.explain(start + Duration::from_millis(1999)).is_empty());
        assert_eq!(
            view.explain(start + EXPLAIN_AFTER),
            [
                "a: waits: no live runner of this context accepts it; `mycora runner list --context 2` shows what \
                 there is"
            ]
        );
        assert!(view.explain(start + EXPLAIN_AFTER).is_empty(), "once");
        assert_eq!(view.explain_at(), None);
    }

    #[test]
    fn a_job_that_starts_in_time_is_not_explained() {
        let start = Instant::now();
        let mut view = FlowProgress::default();
        let mut waits = change(1, NodeState::Ready, 0);
        waits.reason = no_runner();
        view.apply(start, node(1, "a", NodeState::Pending));
        view.apply(start, Event::NodeChange(waits));
        view.apply(start, Event::NodeChange(change(1, NodeState::Dispatched, 1)));
        assert_eq!(view.explain_at(), None);
        assert!(view.explain(start + EXPLAIN_AFTER * 2).is_empty());
    }
}
