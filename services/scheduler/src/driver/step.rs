//! One step of one flow, and the answer to its commit.

use flow::engine::{Destinations, Engine, NoDestination, NodeView, Outside, Step};
use model::{JobKey, NodeState, RunnerId, Timestamp, limits};
use prost::Message as _;
use proto::internal::v1::{CommitRefusal, CommitResponse, ReserveMessageIdsRequest, StopCommand};

use super::{Driver, Event};
use crate::commit::{self, Frame};
use crate::destinations::{ContextRunners, Load};
use crate::message_ids::{self, Supply};
use crate::run::{FlowKey, Phase, Run, STEP_NODES_MAX};

/// Seconds between asking a script to end and ending it, when a flow is cancelled.
const STOP_GRACE_SECS: u32 = 5;

impl Destinations for ContextRunners<'_> {
    fn choose(&mut self, node: &NodeView<'_>) -> Result<RunnerId, NoDestination> {
        self.place(node.script_type, node.target).map_err(|why| NoDestination { why })
    }
}

impl Driver {
    /// Steps a flow until it has a commit under way or nothing left to do.
    pub(super) fn step(&mut self, key: FlowKey) {
        let Some(mut run) = self.flows.remove(&key) else { return };
        let now = Timestamp::now();
        if matches!(run.phase, Phase::Idle(_)) && run.reload {
            self.read_again(key, &mut run);
        }
        while matches!(run.phase, Phase::Idle(_))
            && run.has_work(now)
            && let Phase::Idle(mut engine) = std::mem::replace(&mut run.phase, Phase::Loading)
        {
            if !self.has_message_ids(key, &engine) {
                run.phase = Phase::Idle(engine);
                break;
            }
            let step = self.run_engine(&mut run, &mut engine, now);
            self.set_due(key, &mut run, step.due);
            run.stops.extend(stops(&engine, &step));
            run.more = step.more;
            if step.is_unchanged() {
                self.send_stops(key, &mut run);
                for ack in run.take_committed_acks() {
                    self.routers.handled(ack);
                }
                run.phase = Phase::Idle(engine);
                continue;
            }
            let Some(context_uid) = run.context_uid else { break };
            let commit = commit::build(&mut engine, &step, Frame { context_uid, now }, &mut self.ids);
            if commit.encoded_len() > limits::COMMIT_BYTES_MAX && run.budget > 1 {
                // Nothing of the step is stored: the flow is read again and taken in smaller steps.
                run.budget = (run.budget / 8).max(1);
                self.read_again(key, &mut run);
                break;
            }
            self.committing.insert(commit.commit_id.clone(), key);
            run.phase = Phase::Committing(engine, commit.commit_id.clone());
            self.commits.send(commit);
        }
        self.flows.insert(key, run);
    }

    fn has_message_ids(&mut self, key: FlowKey, engine: &Engine) -> bool {
        let caller = (engine.flow().context_id, engine.flow().caller_id);
        let supply = self.ids.supply(caller);
        if supply == Supply::Enough {
            return true;
        }
        self.waiting_for_ids.entry(caller).or_default().push(key);
        if supply == Supply::Ask {
            let (mut store, handle) = (self.store.clone(), self.handle.clone());
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
                handle.send(Event::MessageIds(caller, first)).await;
            });
        }
        false
    }

    fn run_engine(&mut self, run: &mut Run, engine: &mut Engine, now: Timestamp) -> Step {
        let context = engine.flow().context_id;
        let budget = run.budget;
        let mut runners = self.runners.of(context, &mut self.load);
        let step = run.with_inputs(|_, inputs| {
            let mut jitter = || rand::random::<f64>();
            let mut outside = Outside { destinations: &mut runners, jitter: &mut jitter };
            engine.step(now, inputs, &mut outside, budget)
        });
        self.metrics.stale_reports.inc_by(step.stale.len() as u64);
        for refused in &step.refused {
            tracing::error!(flow = %engine.flow().id, error = %refused.error, "an illegal transition was refused");
        }
        count_off(run, &mut self.load, engine, &step);
        for change in &step.changed {
            for transition in &change.transitions {
                self.metrics.transition(transition.to);
            }
        }
        step
    }

    fn set_due(&mut self, key: FlowKey, run: &mut Run, due: Option<Timestamp>) {
        if run.due == due {
            return;
        }
        if let Some(before) = run.due {
            self.due.remove(&(before, key));
        }
        self.due.extend(due.map(|due| (due, key)));
        run.due = due;
    }

    /// Sends the stops that follow from what is stored.
    fn send_stops(&mut self, key: FlowKey, run: &mut Run) {
        for (job_key, runner) in run.stops.drain(..) {
            self.routers.stop(stop_command(key, job_key, runner));
        }
    }

    /// Takes up the answer to a commit.
    pub(super) fn committed(&mut self, answer: &CommitResponse) {
        let Some(key) = self.committing.remove(&answer.commit_id) else { return };
        let Some(mut run) = self.flows.remove(&key) else { return };
        let (mut engine, id) = match std::mem::replace(&mut run.phase, Phase::Loading) {
            Phase::Committing(engine, id) => (engine, id),
            other => {
                run.phase = other;
                self.flows.insert(key, run);
                return;
            }
        };
        debug_assert_eq!(id, answer.commit_id, "a flow has one commit under way");
        match answer.refusal() {
            CommitRefusal::Unspecified => {
                let flow = engine.flow();
                if let Some(owner) = flow.owner {
                    let epoch = flow.epoch;
                    engine.set_fence(owner, epoch, model::Revision(answer.revision));
                }
                self.metrics.commits.inc();
                self.send_stops(key, &mut run);
                run.budget = (run.budget * 2).min(STEP_NODES_MAX);
                for ack in run.take_committed_acks() {
                    self.routers.handled(ack);
                }
                if engine.is_over() && !run.reload {
                    self.forget(key, run);
                    return;
                }
                run.phase = Phase::Idle(engine);
            }
            CommitRefusal::Fenced | CommitRefusal::UnknownOutcome => {
                self.metrics.fenced_commits.inc();
                run.reload = true;
                run.phase = Phase::Idle(engine);
            }
            // A new flow may have been made under its number meanwhile.
            CommitRefusal::Gone if run.reload => run.phase = Phase::Idle(engine),
            CommitRefusal::Gone | CommitRefusal::ContextDeleting => {
                self.forget(key, run);
                return;
            }
            CommitRefusal::Invalid => {
                if run.budget == 1 {
                    tracing::error!(flow = %key.1, context = %key.0, detail = answer.detail, "a flow cannot be stored");
                    self.abandon(key, run);
                    return;
                }
                run.budget = (run.budget / 8).max(1);
                run.reload = true;
                run.phase = Phase::Idle(engine);
            }
        }
        self.flows.insert(key, run);
        self.enqueue(key);
    }
}

/// The attempts to stop: those that the step ended, and those that live although they are closed.
fn stops(engine: &Engine, step: &Step) -> Vec<(JobKey, RunnerId)> {
    let live_but_closed = step.stale.iter().filter(|stale| stale.alive).map(|stale| {
        let runner = engine.find(stale.job_key.job).and_then(|node| engine.node(node).runner);
        (stale.job_key, runner)
    });
    let stops = step.stops.iter().map(|stop| (stop.job_key, stop.runner)).chain(live_but_closed);
    stops.filter_map(|(job_key, runner)| Some((job_key, runner?))).collect()
}

fn stop_command((context, flow): FlowKey, job_key: JobKey, runner: RunnerId) -> StopCommand {
    StopCommand {
        context_id: context.0,
        flow_id: flow.0,
        runner_id: runner.0,
        job_key: job_key.to_string(),
        grace_secs: STOP_GRACE_SECS,
    }
}

/// Keeps the number of attempts under way at each runner.
fn count_off(run: &mut Run, load: &mut Load, engine: &Engine, step: &Step) {
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
}
