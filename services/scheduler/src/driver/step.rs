//! One step of one flow, and the answer to its commit.

use std::time::{Duration, Instant};

use flow::engine::{
    Destinations, Engine, FlowStepOutput, NoDestination, PlacementRequest, StepEnvironment, Stop,
};
use model::{Flow, NodeState, ReportSource, RunnerId, Timestamp, TraceParent, limits};
use prost::Message as _;
use proto::internal::v1::{CommitRefusal, CommitResponse, ReserveMessageIdsRequest, StopCommand};

use super::{Driver, SchedulerEvent};
use crate::commit::{self, CommitHeader};
use crate::destinations::{ContextRunners, RunnerLoad};
use crate::loaded_flow::{FlowKey, FlowPhase, LoadedFlow, STEP_NODES_MAX};
use crate::message_ids::{self, MessageIdSupply};
use crate::step_span::StepSpan;

/// Pause between two tries to store a step while its context is exported.
const FROZEN_PATIENCE: Duration = Duration::from_secs(1);

impl Destinations for ContextRunners<'_> {
    fn choose(&mut self, node: &PlacementRequest<'_>) -> Result<RunnerId, NoDestination> {
        self.select_runner(node.script_type, node.target, node.isolation).map_err(|why| NoDestination { why })
    }

    fn locate(&self, source: &ReportSource) -> Option<RunnerId> {
        self.runner_at(&source.address, &source.topic)
    }
}

impl Driver {
    /// Steps a flow until it has a commit under way or nothing left to do.
    pub(super) fn step(&mut self, key: FlowKey) {
        let Some(mut run) = self.flows.remove(&key) else { return };
        let now = Timestamp::now();
        if matches!(run.phase, FlowPhase::Idle(_)) && run.reload {
            self.read_again(key, &mut run);
        }
        self.read_if_touched(key, &mut run);
        while matches!(run.phase, FlowPhase::Idle(_))
            && run.has_work(now)
            && let FlowPhase::Idle(mut engine) = std::mem::replace(&mut run.phase, FlowPhase::Loading)
        {
            if !self.has_message_ids(key, &engine) {
                run.phase = FlowPhase::Idle(engine);
                break;
            }
            let mut step = self.run_engine(&mut run, &mut engine, now);
            self.count(&mut run, &engine, &step);
            self.set_due(key, &mut run, step.due);
            self.query_flows(key, &mut run, std::mem::take(&mut step.flow_queries));
            run.stops.append(&mut step.stops);
            run.more = step.more;
            // A flow may leave memory only if the flows that it waits for are sure to touch it.
            run.rests =
                step.rests && run.open_queries == 0 && run.awaited_flows.len() <= limits::AWAITED_FLOWS_MAX;
            // Inputs that were taken up must leave the inbox, and storage must know that a flow only rests. Only
            // storage can confirm that memory matches the store, which it does by accepting a commit.
            let changes_nothing = step.is_unchanged()
                && !step.has_unstored_reports
                && run.inbox_taken() == 0
                && !(run.rests && run.listed_active);
            if changes_nothing {
                self.send_stops(key, &mut run);
                for ack in run.settle() {
                    self.routers.acknowledge(ack);
                }
                run.phase = FlowPhase::Idle(engine);
            } else if let Some(phase) = self.commit(key, &mut run, engine, &step, now) {
                run.phase = phase;
            } else {
                break;
            }
        }
        self.read_if_touched(key, &mut run);
        self.keep_or_rest(key, run);
    }

    /// Reads the inbox, unless entries read before are still to be taken up: a stream of touches must not
    /// keep the flow from its steps.
    fn read_if_touched(&mut self, key: FlowKey, run: &mut LoadedFlow) {
        if matches!(run.phase, FlowPhase::Idle(_)) && run.touched && !run.has_unread() {
            self.read_inbox(key, run);
        }
    }

    /// Sends a step to storage. Returns nothing when the flow is read again instead.
    fn commit(
        &mut self,
        key: FlowKey,
        run: &mut LoadedFlow,
        mut engine: Box<Engine>,
        step: &FlowStepOutput,
        now: Timestamp,
    ) -> Option<FlowPhase> {
        let span = StepSpan::begin(engine.flow());
        let frame = CommitHeader {
            context_uid: run.context_uid?,
            now,
            last_commit: &run.last_commit,
            inputs_taken: run.inbox_taken(),
            rests: run.rests,
            awaited_flows: &run.awaited_flows,
            trace: span.at(),
        };
        let commit = commit::build(&mut engine, step, frame, &mut self.ids);
        if commit.encoded_len() > limits::COMMIT_BYTES_MAX && run.budget > 1 {
            // Nothing of the step is stored: the flow is read again and taken in smaller steps.
            span.refused("too large");
            run.budget = (run.budget / 8).max(1);
            self.read_again(key, run);
            return None;
        }
        span.sends(commit.messages.len());
        run.span = span;
        let id = commit.commit_id.clone();
        self.committing.insert(id.clone(), (key, Instant::now()));
        self.commits.send(commit);
        Some(FlowPhase::Committing(engine, id))
    }

    fn has_message_ids(&mut self, key: FlowKey, engine: &Engine) -> bool {
        let caller = (engine.flow().context_id, engine.flow().caller_id);
        let supply = self.ids.supply(caller);
        if supply == MessageIdSupply::Enough {
            return true;
        }
        self.waiting_for_ids.entry(caller).or_default().insert(key);
        if supply == MessageIdSupply::Request {
            let (mut store, handle) = (self.store.clone(), self.handle.clone());
            let epoch = self.ids.epoch();
            tokio::spawn(async move {
                let request = ReserveMessageIdsRequest {
                    context_id: caller.0.0,
                    caller_id: caller.1.0,
                    count: message_ids::BLOCK,
                };
                let first = match store.reserve_message_ids(request).await {
                    Ok(answer) => Some(answer.into_inner().first_message_id),
                    Err(status) => {
                        tracing::warn!(%status, "message ids could not be reserved");
                        tokio::time::sleep(crate::loader::RETRY_DELAY).await;
                        None
                    }
                };
                handle.send(SchedulerEvent::MessageIds(caller, epoch, first)).await;
            });
        }
        false
    }

    pub(super) fn run_engine(
        &mut self,
        run: &mut LoadedFlow,
        engine: &mut Engine,
        now: Timestamp,
    ) -> FlowStepOutput {
        let context = engine.flow().context_id;
        let budget = run.budget;
        let mut runners = self.runners.of(context, &mut self.load);
        let step = run.with_inputs(|inputs| {
            let mut jitter = || rand::random::<f64>();
            let mut outside = StepEnvironment { destinations: &mut runners, jitter: &mut jitter };
            engine.step(now, inputs, &mut outside, budget)
        });
        for refused in &step.refused {
            tracing::error!(flow = %engine.flow().id, error = %refused.error, "an illegal transition was refused");
        }
        count_off(run, &mut self.load, engine, &step);
        self.metrics.set_active(&mut run.active, engine.active_nodes());
        step
    }

    /// Counts what a step has changed.
    pub(super) fn count(&self, run: &mut LoadedFlow, engine: &Engine, step: &FlowStepOutput) {
        self.metrics.stale_reports.inc_by(step.stale.len() as u64);
        for code in &step.losses {
            self.metrics.lost(*code);
        }
        for code in &step.retries {
            self.metrics.retried(*code);
        }
        for change in &step.changed {
            for transition in &change.transitions {
                self.metrics.transition(transition);
            }
        }
        for times in &step.times {
            self.metrics.attempt(engine.job(times.node).script_type, times);
            let is_first = times.dispatch_time.is_some() && std::mem::take(&mut run.awaits_first_start);
            // A job that waits for a signal or a time starts late because it was asked to.
            if is_first && engine.node(times.node).prerequisites.is_empty() {
                self.metrics.first_start(times.start_time.since(engine.flow().created_at));
            }
        }
    }

    pub(super) fn set_due(&mut self, key: FlowKey, run: &mut LoadedFlow, due: Option<Timestamp>) {
        if run.due == due {
            return;
        }
        if let Some(before) = run.due {
            self.due.remove(&(before, key));
        }
        self.due.extend(due.map(|due| (due, key)));
        run.due = due;
    }

    /// Sends the stops that are due now that their step is stored.
    fn send_stops(&mut self, key: FlowKey, run: &mut LoadedFlow) {
        for command in run.stops.drain(..).filter_map(|stop| stop_command(key, stop)) {
            self.routers.stop(command);
        }
    }

    /// Handles the answer to a commit.
    pub(super) fn committed(&mut self, answer: &CommitResponse) {
        let refusal = answer.refusal();
        if matches!(refusal, CommitRefusal::Fenced) {
            // Counted also for a flow that has left memory: the commit had no effect.
            self.metrics.fenced_commits.inc();
        }
        let Some((key, sent)) = self.committing.remove(&answer.commit_id) else { return };
        self.metrics.commit_took(sent.elapsed());
        let Some(mut run) = self.flows.remove(&key) else { return };
        let engine = match std::mem::replace(&mut run.phase, FlowPhase::Loading) {
            FlowPhase::Committing(engine, id) if id == answer.commit_id => engine,
            other => {
                run.phase = other;
                self.flows.insert(key, run);
                return;
            }
        };
        let span = std::mem::replace(&mut run.span, StepSpan::none());
        if refusal != CommitRefusal::Unspecified {
            span.refused(refusal.as_str_name());
        }
        drop(span);
        let is_over = engine.is_over();
        if is_over && refusal == CommitRefusal::Unspecified {
            log_end(&engine);
        }
        run.phase = FlowPhase::Idle(engine);
        match refusal {
            CommitRefusal::Unspecified => {
                self.stored(key, &mut run, answer.commit_id.clone());
                if is_over && !run.reload {
                    return self.forget_ended(key, run);
                }
            }
            CommitRefusal::Fenced | CommitRefusal::UnknownOutcome => run.reload = true,
            // Nothing of the step is stored. The flow leaves room in the window of commits for those of other contexts.
            CommitRefusal::Frozen => {
                run.reload = true;
                self.flows.insert(key, run);
                return self.enqueue_within(key, FROZEN_PATIENCE);
            }
            // A new flow may have been made under its number meanwhile.
            CommitRefusal::Gone if run.reload => {}
            CommitRefusal::Gone | CommitRefusal::ContextDeleting => return self.forget(key, run),
            CommitRefusal::Invalid if run.budget > 1 => {
                run.budget = (run.budget / 8).max(1);
                run.reload = true;
            }
            CommitRefusal::Invalid => {
                tracing::error!(flow = %key.1, context = %key.0, detail = answer.detail, "a flow cannot be stored");
                return self.abandon(key, run);
            }
        }
        self.flows.insert(key, run);
        self.enqueue(key);
    }

    fn stored(&mut self, key: FlowKey, run: &mut LoadedFlow, commit_id: String) {
        self.metrics.commits.inc();
        run.last_commit = commit_id;
        run.listed_active = !run.rests;
        run.budget = (run.budget * 2).min(STEP_NODES_MAX);
        self.send_stops(key, run);
        for ack in run.settle() {
            self.routers.acknowledge(ack);
        }
    }
}

/// Command to stop an attempt; nothing when its runner is not known.
pub(super) fn stop_command((context, flow): FlowKey, stop: Stop) -> Option<StopCommand> {
    let Stop { job_key, runner, source, grace_secs } = stop;
    if runner.is_none() && source.is_none() {
        return None;
    }
    let (address, topic) = source.map(|source| (source.address, source.topic)).unwrap_or_default();
    Some(StopCommand {
        context_id: context.0,
        flow_id: flow.0,
        runner_id: runner.map_or(0, |runner| runner.0),
        job_key: job_key.to_string(),
        grace_secs,
        address,
        topic,
    })
}

/// Logs how a flow has ended, and how long its generation took.
fn log_end(engine: &Engine) {
    let Flow { id, context_id, name, status, generation, created_at, trace, .. } = engine.flow();
    // The record does not say when a rerun began; its first job was ready then.
    let again = || engine.nodes().iter().filter(|node| node.generation == *generation);
    let began =
        if generation.0 > 1 { again().filter_map(|node| node.ready_time).min() } else { Some(*created_at) };
    let took = began.map_or(0.0, |began| Timestamp::now().since(began).as_secs_f64());
    tracing::info!(
        flow = %id, context = %context_id, name = %name, status = %status, generation = generation.0, took_secs = took,
        trace_id = trace.map(TraceParent::trace_id), "a flow has ended"
    );
}

/// Keeps the number of attempts under way at each runner.
fn count_off(run: &mut LoadedFlow, load: &mut RunnerLoad, engine: &Engine, step: &FlowStepOutput) {
    let context = engine.flow().context_id;
    let under_way = |state| matches!(state, NodeState::Dispatched | NodeState::Running);
    for change in &step.changed {
        let left = change.transitions.iter().any(|t| under_way(t.from) && !under_way(t.to));
        if left && let Some(runner) = run.placed.remove(&change.node) {
            load.remove(context, runner);
        }
    }
    for dispatch in &step.dispatches {
        run.placed.extend(dispatch.nodes.iter().map(|node| (*node, dispatch.runner)));
    }
    // Dispatched attempts were counted when their runner was selected; attempts found under way were not.
    for change in &step.changed {
        let node = engine.node(change.node);
        if let (true, Some(runner)) = (under_way(node.state), node.runner)
            && !run.placed.contains_key(&change.node)
        {
            load.add(context, runner);
            run.placed.insert(change.node, runner);
        }
    }
}
