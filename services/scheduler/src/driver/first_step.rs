//! First steps of flows that are not stored yet: one change creates a flow, starts it and applies its first step.
//!
//! The driver makes the step, the submitter has it stored with the flow, and the driver then takes the flow
//! up. Inputs of the flow wait meanwhile.

use flow::engine::{Engine, FlowEngineInput, FlowStepOutput};
use model::{ContextUid, Flow, FlowId, FlowUid, NodeReport, NodeState, Timestamp};
use proto::internal::v1::{FirstStep, OutgoingMessage};
use tokio::sync::oneshot;

use super::Driver;
use crate::commit;
use crate::loaded_flow::{AckTarget, FlowKey, FlowPhase, LoadedFlow, ReportAck};
use crate::replica::DueFlow;
use crate::step_span::StepSpan;

/// A flow that is not stored yet, after its first step.
#[derive(Debug)]
pub struct ProvisionalFlow {
    engine: Box<Engine>,
    run: LoadedFlow,
    step: FlowStepOutput,
    messages: Vec<OutgoingMessage>,
    now: Timestamp,
    /// Epoch of the message ids: ids from before everything was forgotten are void.
    epoch: u64,
    /// Ends when it is known what became of the flow.
    span: StepSpan,
}

/// Ids under which a flow is stored.
#[derive(Debug)]
pub struct AssignedFlowIds {
    /// The uid of its context.
    pub context_uid: ContextUid,
    /// The flow, with its jobs.
    pub flow: Flow,
    /// The change that stored it.
    pub last_commit: String,
    /// Offset added to the ids of the step's jobs.
    pub by: u32,
}

/// Inputs that came for a flow before it was known to be stored.
#[derive(Debug, Default)]
pub(super) struct EarlyInputs {
    reports: Vec<(ReportAck, NodeReport)>,
    touched: Option<DueFlow>,
}

impl ProvisionalFlow {
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
    /// Makes the first step of a flow, unless the step must wait for something, or would end the flow.
    pub(super) fn begin(
        &mut self,
        mut engine: Box<Engine>,
        answer: oneshot::Sender<Option<Box<ProvisionalFlow>>>,
    ) {
        let (uid, caller) = (engine.flow().uid, (engine.flow().context_id, engine.flow().caller_id));
        if !self.is_mine(uid) || !self.ids.has_enough(caller) {
            // Sending fails only when the submitter has gone away.
            drop(answer.send(None));
            return;
        }
        let (mut run, now) = (LoadedFlow::loading(uid), Timestamp::now());
        run.awaits_first_start = true;
        run.push(FlowEngineInput::Wake, AckTarget::Nothing);
        let step = self.run_engine(&mut run, &mut engine, now);
        if step.more || engine.is_over() || !step.refused.is_empty() || !step.stops.is_empty() {
            self.uncount(unnumbered(&engine), &mut run);
            drop(answer.send(None));
            return;
        }
        let span = StepSpan::begin(engine.flow());
        let messages = commit::messages(&mut engine, &step, (now, span.at()), &mut self.ids);
        span.sends(messages.len());
        let epoch = self.ids.epoch();
        let begun = Box::new(ProvisionalFlow { engine, run, step, messages, now, epoch, span });
        self.early.insert(uid, EarlyInputs::default());
        if let Err(Some(begun)) = answer.send(Some(begun)) {
            self.begun(*begun, None);
        }
    }

    /// Takes up a flow whose creation was answered; without numbers it is not stored here, or its fate is unknown.
    pub(super) fn begun(&mut self, mut begun: ProvisionalFlow, stored: Option<AssignedFlowIds>) {
        let early = self.early.remove(&begun.run.uid).unwrap_or_default();
        if stored.is_none() {
            begun.span.refused("not stored");
        }
        match stored {
            Some(stored) if begun.epoch == self.ids.epoch() && !self.replicas.is_empty() => {
                self.count(&mut begun.run, &begun.engine, &begun.step);
                self.metrics.commits.inc();
                self.take_up(begun, stored);
            }
            // The lease was lost meanwhile. Another replica may have owned the flow, or have listed its flows before this one was stored,
            // so the flow is read.
            Some(AssignedFlowIds { flow, .. }) if !self.replicas.is_empty() => {
                let uid = begun.run.uid;
                self.drop_begun(begun);
                self.adopt((flow.context_id, flow.id), uid);
            }
            // The next replica with a lease lists the flow.
            _ => self.drop_begun(begun),
        }
        if let Some(active) = early.touched {
            self.touched(active);
        }
        for (ack, report) in early.reports {
            self.report(ack, report);
        }
    }

    fn take_up(&mut self, begun: ProvisionalFlow, stored: AssignedFlowIds) {
        let ProvisionalFlow { mut engine, mut run, step, span, .. } = begun;
        let AssignedFlowIds { context_uid, flow, last_commit, by } = stored;
        let key = (flow.context_id, flow.id);
        span.numbered(flow.id);
        self.forget_sleep(key);
        if self.flows.contains_key(&key) {
            // An earlier flow of this number is still being let go.
            self.uncount(key, &mut run);
            return self.read_soon(key);
        }
        engine.assign_ids(context_uid, flow, by);
        run.settle().for_each(drop);
        if engine.nodes().iter().any(|node| node.state == NodeState::Ready) {
            // A runner for the waiting nodes may have appeared meanwhile.
            run.push(FlowEngineInput::Wake, AckTarget::Nothing);
        }
        (run.context_uid, run.last_commit) = (Some(context_uid), last_commit);
        run.phase = FlowPhase::Idle(engine);
        // The next step tells storage that the flow only waits.
        run.more = step.rests;
        self.set_due(key, &mut run, step.due);
        self.query_flows(key, &mut run, step.flow_queries);
        self.check_runners(key, &mut run);
        self.flows.insert(key, run);
        self.enqueue(key);
    }

    /// Takes back the counts of a flow that is not driven from its first step on.
    fn drop_begun(&mut self, mut begun: ProvisionalFlow) {
        self.uncount(unnumbered(&begun.engine), &mut begun.run);
    }

    /// Keeps a report of an attempt whose flow is being stored; gives it back when none is.
    pub(super) fn keep_early(
        &mut self,
        ack: ReportAck,
        report: NodeReport,
    ) -> Option<(ReportAck, NodeReport)> {
        match self.early.get_mut(&report.job_key.flow) {
            Some(early) => {
                early.reports.push((ack, report));
                None
            }
            None => Some((ack, report)),
        }
    }

    /// Notes an input of a flow that is being stored; returns whether it is being stored.
    pub(super) fn touch_early(&mut self, uid: FlowUid, active: DueFlow) -> bool {
        match self.early.get_mut(&uid) {
            Some(early) => {
                early.touched = Some(active);
                true
            }
            None => false,
        }
    }
}
