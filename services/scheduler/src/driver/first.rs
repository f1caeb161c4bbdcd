//! First steps of flows that nobody has stored yet: one change creates a flow, starts it and applies its first step.
//!
//! The driver makes the step, whoever submits the flow has it stored with the flow, and the driver takes the flow up once
//! it is. What is said of the flow meanwhile waits.

use flow::engine::{Engine, Input, Step};
use model::{ContextUid, Flow, FlowId, FlowUid, NodeReport, NodeState, Timestamp};
use proto::internal::v1::{FirstStep, OutgoingMessage};
use tokio::sync::oneshot;

use super::Driver;
use crate::commit;
use crate::replica::Active;
use crate::run::{Ack, FlowKey, Owed, Phase, Run};

/// A flow that nobody has stored yet, after its first step.
#[derive(Debug)]
pub struct Begun {
    engine: Box<Engine>,
    run: Run,
    step: Step,
    messages: Vec<OutgoingMessage>,
    now: Timestamp,
    /// When its messages were numbered: what was numbered before everything was forgotten is nobody's.
    epoch: u64,
}

/// Under which numbers a flow is stored.
#[derive(Debug)]
pub struct Stored {
    /// The uid of its context.
    pub context_uid: ContextUid,
    /// The flow, with its jobs.
    pub flow: Flow,
    /// The change that stored it.
    pub last_commit: String,
    /// What is added to the ids of the step's jobs.
    pub by: u32,
}

/// What came for a flow before it was known to be stored.
#[derive(Debug, Default)]
pub(super) struct Early {
    reports: Vec<(Ack, NodeReport)>,
    touched: Option<Active>,
}

impl Begun {
    /// The step for storage. Its messages are taken out.
    pub fn take_step(&mut self) -> FirstStep {
        let messages = std::mem::take(&mut self.messages);
        commit::first_step(&self.engine, &self.step, messages, self.now)
    }
}

/// The key of a flow whose number is not known.
fn unnumbered(engine: &Engine) -> FlowKey {
    (engine.flow().context_id, FlowId(0))
}

impl Driver {
    /// Makes the first step of a flow, unless it has to wait for something, or would end the flow.
    pub(super) fn begin(&mut self, mut engine: Box<Engine>, answer: oneshot::Sender<Option<Box<Begun>>>) {
        let (uid, caller) = (engine.flow().uid, (engine.flow().context_id, engine.flow().caller_id));
        if !self.is_mine(uid) || !self.ids.has_enough(caller) {
            // Whoever has gone away wants nothing.
            drop(answer.send(None));
            return;
        }
        let (mut run, now) = (Run::loading(uid), Timestamp::now());
        run.push(Input::Wake, Owed::Nothing);
        let step = self.run_engine(&mut run, &mut engine, now);
        if step.more || engine.is_over() || !step.refused.is_empty() || !step.stops.is_empty() {
            self.uncount(unnumbered(&engine), &mut run);
            drop(answer.send(None));
            return;
        }
        let messages = commit::messages(&mut engine, &step, now, &mut self.ids);
        let begun = Box::new(Begun { engine, run, step, messages, now, epoch: self.ids.epoch() });
        self.early.insert(uid, Early::default());
        if let Err(Some(begun)) = answer.send(Some(begun)) {
            self.begun(*begun, None);
        }
    }

    /// Takes up a flow whose creation was answered; without numbers it is not stored here, or its fate is unknown.
    pub(super) fn begun(&mut self, begun: Begun, stored: Option<Stored>) {
        let early = self.early.remove(&begun.run.uid).unwrap_or_default();
        match stored {
            Some(stored) if begun.epoch == self.ids.epoch() && !self.replicas.is_empty() => {
                self.count(&begun.step);
                self.metrics.commits.inc();
                self.take_up(begun, stored);
            }
            // The lease was lost meanwhile, and others may have had the flow, or have listed theirs before it was stored: it is read.
            Some(Stored { flow, .. }) if !self.replicas.is_empty() => {
                let uid = begun.run.uid;
                self.drop_begun(begun);
                self.adopt((flow.context_id, flow.id), uid);
            }
            // Whoever has a lease next lists it.
            _ => self.drop_begun(begun),
        }
        if let Some(active) = early.touched {
            self.touched(active);
        }
        for (ack, report) in early.reports {
            self.report(ack, report);
        }
    }

    fn take_up(&mut self, begun: Begun, stored: Stored) {
        let Begun { mut engine, mut run, step, .. } = begun;
        let Stored { context_uid, flow, last_commit, by } = stored;
        let key = (flow.context_id, flow.id);
        self.forget_sleep(key);
        if self.flows.contains_key(&key) {
            // An earlier flow of this number is still being let go.
            self.uncount(key, &mut run);
            return self.read_soon(key);
        }
        engine.number(context_uid, flow, by);
        run.settle().for_each(drop);
        if engine.nodes().iter().any(|node| node.state == NodeState::Ready) {
            // The place that it waits for may have come meanwhile.
            run.push(Input::Wake, Owed::Nothing);
        }
        (run.context_uid, run.last_commit) = (Some(context_uid), last_commit);
        run.phase = Phase::Idle(engine);
        // That it only waits is stored by the next step.
        run.more = step.rests;
        self.set_due(key, &mut run, step.due);
        self.ask(key, &mut run, step.asks);
        self.look_for_runners(key, &mut run);
        self.flows.insert(key, run);
        self.enqueue(key);
    }

    /// What was counted for a flow that is not driven from its first step on counts no more.
    fn drop_begun(&mut self, mut begun: Begun) {
        self.uncount(unnumbered(&begun.engine), &mut begun.run);
    }

    /// Keeps word of an attempt whose flow is being stored; gives it back when none is.
    pub(super) fn keep_early(&mut self, ack: Ack, report: NodeReport) -> Option<(Ack, NodeReport)> {
        match self.early.get_mut(&report.job_key.flow) {
            Some(early) => {
                early.reports.push((ack, report));
                None
            }
            None => Some((ack, report)),
        }
    }

    /// Notes that somebody brought something for a flow that is being stored; says whether it is.
    pub(super) fn touch_early(&mut self, uid: FlowUid, active: Active) -> bool {
        match self.early.get_mut(&uid) {
            Some(early) => {
                early.touched = Some(active);
                true
            }
            None => false,
        }
    }
}
