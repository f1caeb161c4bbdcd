//! Flows come into memory and leave it.

use flow::engine::{ActiveNodes, Engine, FlowEngineInput};
use model::{Attempt, FlowId, FlowInput, FlowStatus, FlowUid, Generation, Timestamp};

use super::step::stop_command;
use super::{Driver, SchedulerEvent};
use crate::loaded_flow::{AckTarget, FlowKey, FlowPhase, LoadedFlow};
use crate::loader::{self, FlowLoadOutcome, FlowLoadReason, StartedFlow};
use crate::replica::DueFlow;

/// A flow that only rests leaves memory when nothing is due this soon.
const REST_MIN_SECS: u64 = 10;

/// A flow that waits for a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct SleepingFlow {
    uid: FlowUid,
    due: Timestamp,
    /// Reason of the next read; the flow was ours when it was let go.
    reading: FlowLoadReason,
}

impl Driver {
    /// Takes up a flow that was created here, with this replica as its owner.
    pub(super) fn started(&mut self, started: StartedFlow) {
        let (key, uid) = ((started.flow.context_id, started.flow.id), started.flow.uid);
        if self.replicas.is_empty() {
            // The next replica with a lease lists the flow.
            return;
        }
        // The replicas may have changed since the flow was created, and its new owner may have listed its flows
        // before this one was started. This replica drives the flow until the new owner learns of it.
        self.forget_sleep(key);
        match self.flows.remove(&key) {
            None => self.enter(key, LoadedFlow::loading(uid), started),
            Some(mut run) if matches!(run.phase, FlowPhase::Loading) => {
                // Inputs that arrived meanwhile are not part of the started flow.
                run.touched = true;
                self.enter(key, run, started);
            }
            Some(run) => {
                // An earlier flow of this number is still being let go.
                self.flows.insert(key, run);
                self.read_soon(key);
            }
        }
    }

    /// Notes that an input was added to a flow's inbox.
    pub(super) fn touched(&mut self, active: DueFlow) {
        let DueFlow { key, uid, .. } = active;
        if !self.is_mine(uid) || self.touch_early(uid, active) {
            return;
        }
        match self.flows.get_mut(&key) {
            // A new flow has the number of a removed one.
            Some(run) if run.uid != uid => self.read_soon(key),
            Some(run) => {
                run.touched = true;
                self.enqueue(key);
            }
            None => self.adopt(key, uid),
        }
    }

    /// Brings a flow into memory that is not there, as its owner.
    pub(super) fn adopt(&mut self, key: FlowKey, uid: FlowUid) {
        if self.flows.contains_key(&key) {
            return;
        }
        let reading = self.forget_sleep(key).map_or(FlowLoadReason::TakeOver, |asleep| asleep.reading);
        let mut run = LoadedFlow::loading(uid);
        self.read(key, &mut run, reading);
        self.flows.insert(key, run);
    }

    /// Wakes a flow whose due time has come.
    pub(super) fn wake(&mut self, key: FlowKey) {
        if let Some(asleep) = self.asleep.get(&key) {
            self.adopt(key, asleep.uid);
        }
    }

    pub(super) fn forget_sleep(&mut self, key: FlowKey) -> Option<SleepingFlow> {
        let asleep = self.asleep.remove(&key)?;
        self.due.remove(&(asleep.due, key));
        Some(asleep)
    }

    /// Schedules a reload of a flow whose state in memory differs from the stored one.
    pub(super) fn read_soon(&mut self, key: FlowKey) {
        if let Some(run) = self.flows.get_mut(&key) {
            run.reload = true;
            self.enqueue(key);
        }
    }

    /// Lets a flow leave memory when it only waits, for others or for a time that is not near.
    pub(super) fn keep_or_rest(&mut self, key: FlowKey, mut run: LoadedFlow) {
        let near = Timestamp::now() + std::time::Duration::from_secs(REST_MIN_SECS);
        let rests = run.rests && run.is_quiet() && !run.more && matches!(run.phase, FlowPhase::Idle(_));
        if !rests || run.due.is_some_and(|due| due <= near) {
            self.flows.insert(key, run);
            return;
        }
        let due = run.due;
        self.uncount(key, &mut run);
        self.forget_due(key, &run);
        if let Some(due) = due {
            self.asleep.insert(key, SleepingFlow { uid: run.uid, due, reading: FlowLoadReason::Again });
            self.due.insert((due, key));
        }
    }

    /// Takes over the new set of live replicas: flows come and go.
    pub(super) fn replicas_changed(&mut self, names: Vec<String>) {
        if names == self.replicas {
            return;
        }
        tracing::info!(replicas = ?names, "the scheduler replicas have changed");
        self.replicas = names;
        self.replicas_sender.send_replace(self.replicas.clone());
        let others: Vec<FlowKey> =
            self.flows.iter().filter(|(_, run)| !self.is_mine(run.uid)).map(|(key, _)| *key).collect();
        for key in others {
            // Its reports were not acknowledged, so the routers resend them to the new owner.
            if let Some(run) = self.flows.remove(&key) {
                self.abandon(key, run);
            }
        }
        let others: Vec<FlowKey> =
            self.asleep.iter().filter(|(_, flow)| !self.is_mine(flow.uid)).map(|(key, _)| *key).collect();
        for key in others {
            self.forget_sleep(key);
        }
        self.resync();
    }

    /// Lists the flows that have something to do.
    pub(super) fn resync(&mut self) {
        if self.replicas.is_empty() {
            return;
        }
        if let Some(again) = &mut self.listing {
            *again = true;
            return;
        }
        self.listing = Some(false);
        tokio::spawn(loader::list_active(self.store.clone(), self.handle.clone()));
    }

    pub(super) fn listed(&mut self, active: Vec<DueFlow>, last: bool) {
        for flow in active.into_iter().filter(|flow| self.is_mine(flow.uid)).collect::<Vec<_>>() {
            match flow.due {
                None => self.touched(flow),
                Some(due) if !self.flows.contains_key(&flow.key) && !self.asleep.contains_key(&flow.key) => {
                    let asleep = SleepingFlow { uid: flow.uid, due, reading: FlowLoadReason::TakeOver };
                    self.asleep.insert(flow.key, asleep);
                    self.due.insert((due, flow.key));
                }
                Some(_) => {}
            }
        }
        if last {
            if self.listing.take() == Some(true) {
                self.resync();
            } else if !self.replicas.is_empty() {
                self.listed.met();
            }
        }
    }

    /// Discards everything in memory, since the lease was lost or Redis lost changes. Reports that were not
    /// acknowledged are resent on new streams.
    pub(super) fn invalidate(&mut self) {
        self.listed.unmet("no flows were listed since the lease was lost");
        self.replicas.clear();
        self.replicas_sender.send_replace(Vec::new());
        self.committing.clear();
        // Redis may have rolled back; ids we handed out could be issued a second time.
        self.ids.forget();
        self.queue.clear();
        self.waiting_for_ids.clear();
        self.early.clear();
        self.asleep.clear();
        self.due.clear();
        for (key, run) in std::mem::take(&mut self.flows) {
            self.abandon(key, run);
        }
        self.routers.close_all();
    }

    /// Reloads a flow that this replica owns.
    pub(super) fn read_again(&mut self, key: FlowKey, run: &mut LoadedFlow) {
        self.uncount(key, run);
        self.forget_due(key, run);
        run.reset();
        self.read(key, run, FlowLoadReason::Again);
    }

    fn read(&mut self, key: FlowKey, run: &mut LoadedFlow, reading: FlowLoadReason) {
        self.readings += 1;
        run.reading = self.readings;
        let (store, handle, owner) = (self.store.clone(), self.handle.clone(), self.me.owner);
        let (loads, number) = (std::sync::Arc::clone(&self.loads), self.readings);
        tokio::spawn(async move {
            let loaded = loader::load(store, key, reading, owner, &loads).await;
            handle.send(SchedulerEvent::Loaded(key, number, loaded)).await;
        });
    }

    /// A flow was read, by the reading of this number.
    pub(super) fn loaded(&mut self, key: FlowKey, reading: u64, loaded: FlowLoadOutcome) {
        let Some(mut run) = self.flows.remove(&key) else { return };
        if !matches!(run.phase, FlowPhase::Loading) || run.reading != reading {
            self.flows.insert(key, run);
            return;
        }
        match loaded {
            FlowLoadOutcome::Flow(started) => self.enter(key, run, *started),
            FlowLoadOutcome::Gone => self.forget_ended(key, run),
            FlowLoadOutcome::OwnedElsewhere if self.is_mine(run.uid) => {
                // Another replica took the flow, going by an older view of the live replicas.
                run.reset();
                self.read(key, &mut run, FlowLoadReason::TakeOver);
                self.flows.insert(key, run);
            }
            // The new owner has not seen these reports, so the routers must resend them.
            FlowLoadOutcome::OwnedElsewhere => {
                for link in run.take_all_acks().map(|ack| ack.0).collect::<std::collections::BTreeSet<_>>() {
                    self.routers.close(link);
                }
                self.abandon(key, run);
            }
        }
    }

    fn enter(&mut self, key: FlowKey, mut run: LoadedFlow, started: StartedFlow) {
        let StartedFlow { context_uid, flow, nodes, last_commit, signals, inputs, taken_over } = started;
        run.uid = flow.uid;
        let engine = match Engine::load(context_uid, flow, nodes, signals) {
            Ok(engine) => engine,
            Err(violations) => {
                tracing::error!(flow = %key.1, context = %key.0, %violations, "a stored flow cannot be read");
                return self.forget(key, run);
            }
        };
        run.context_uid = Some(context_uid);
        run.last_commit = last_commit;
        run.awaits_first_start = awaits_first_start(&engine);
        self.metrics.set_active(&mut run.active, engine.active_nodes());
        for (node, runner) in engine.in_flight().filter_map(|attempt| Some((attempt.node, attempt.runner?))) {
            self.load.add(key.0, runner);
            run.placed.insert(node, runner);
        }
        if taken_over {
            self.metrics.take_overs.inc();
            self.reconcile(key, &engine);
        }
        self.check_runners(key, &mut run);
        for input in inputs {
            run.push(engine_input(input), AckTarget::Inbox);
        }
        run.phase = FlowPhase::Idle(Box::new(engine));
        run.push(FlowEngineInput::Wake, AckTarget::Nothing);
        run.more = true;
        self.flows.insert(key, run);
        self.enqueue(key);
    }

    /// Reads a flow's inbox. No commit of the flow is under way meanwhile.
    pub(super) fn read_inbox(&mut self, key: FlowKey, run: &mut LoadedFlow) {
        let FlowPhase::Idle(engine) = std::mem::replace(&mut run.phase, FlowPhase::Loading) else { return };
        self.readings += 1;
        run.phase = FlowPhase::Reading(engine, self.readings);
        run.touched = false;
        run.listed_active = true;
        self.query_again(key, run);
        let (store, handle) = (self.store.clone(), self.handle.clone());
        let (uid, known, reading) = (run.uid, run.inbox_known(), self.readings);
        tokio::spawn(async move {
            let inputs = loader::read_inbox(store, key, uid, known).await;
            handle.send(SchedulerEvent::Inbox(key, reading, inputs)).await;
        });
    }

    pub(super) fn inbox(&mut self, key: FlowKey, reading: u64, inputs: Option<Vec<FlowInput>>) {
        let Some(run) = self.flows.get_mut(&key) else { return };
        if !matches!(run.phase, FlowPhase::Reading(_, of) if of == reading) {
            return;
        }
        if let FlowPhase::Reading(engine, _) = std::mem::replace(&mut run.phase, FlowPhase::Loading) {
            run.phase = FlowPhase::Idle(engine);
        }
        match inputs {
            Some(inputs) => {
                for input in inputs {
                    run.push(engine_input(input), AckTarget::Inbox);
                }
                run.more = true;
            }
            None => run.reload = true,
        }
        self.enqueue(key);
    }

    /// Queries the status of the flows that this one waits for.
    pub(super) fn query_flows(&mut self, key: FlowKey, run: &mut LoadedFlow, flows: Vec<FlowId>) {
        for awaited in flows {
            run.awaited_flows.insert(awaited);
            self.query_flow(key, run, awaited);
        }
    }

    /// Queries the awaited flows again. The answers to earlier queries may predate the end that the flow was
    /// touched for, so this waits until all of them have come.
    fn query_again(&self, key: FlowKey, run: &mut LoadedFlow) {
        run.query_again = run.open_queries > 0;
        if run.query_again {
            return;
        }
        for awaited in run.awaited_flows.clone() {
            self.query_flow(key, run, awaited);
        }
    }

    fn query_flow(&self, key: FlowKey, run: &mut LoadedFlow, awaited: FlowId) {
        run.open_queries += 1;
        let (store, handle, uid) = (self.store.clone(), self.handle.clone(), run.uid);
        tokio::spawn(async move {
            let status = loader::await_flow(store, key, uid, awaited).await;
            handle.send(SchedulerEvent::FlowState(key, awaited, status)).await;
        });
    }

    pub(super) fn flow_state(&mut self, key: FlowKey, flow: FlowId, status: Option<FlowStatus>) {
        let Some(run) = self.flows.get_mut(&key) else { return };
        run.open_queries = run.open_queries.saturating_sub(1);
        if status.is_none_or(FlowStatus::is_end) {
            run.awaited_flows.remove(&flow);
        }
        run.push(FlowEngineInput::FlowState { flow, status }, AckTarget::Nothing);
        if run.query_again && run.open_queries == 0 {
            run.touched = true;
        }
        self.enqueue(key);
    }

    /// Forgets a flow that has ended or is gone. If it was touched since, it may have been started again.
    pub(super) fn forget_ended(&mut self, key: FlowKey, run: LoadedFlow) {
        let (uid, touched) = (run.uid, run.touched);
        self.forget(key, run);
        if touched && self.is_mine(uid) {
            self.adopt(key, uid);
        }
    }

    /// Drops a flow that has ended or is gone.
    pub(super) fn forget(&mut self, key: FlowKey, mut run: LoadedFlow) {
        // An attempt that still lives was closed without its supervisor's report.
        for command in run.live_attempts().filter_map(|stop| stop_command(key, stop)) {
            self.routers.stop(command);
        }
        for ack in run.take_all_acks() {
            self.routers.acknowledge(ack);
        }
        self.abandon(key, run);
    }

    /// Releases a flow without storing its reports.
    pub(super) fn abandon(&mut self, key: FlowKey, mut run: LoadedFlow) {
        self.uncount(key, &mut run);
        self.forget_due(key, &run);
    }

    fn forget_due(&mut self, key: FlowKey, run: &LoadedFlow) {
        for time in [run.due, run.awaited].into_iter().flatten() {
            self.due.remove(&(time, key));
        }
    }

    pub(super) fn uncount(&mut self, key: FlowKey, run: &mut LoadedFlow) {
        for (_, runner) in run.placed.drain() {
            self.load.remove(key.0, runner);
        }
        self.metrics.set_active(&mut run.active, ActiveNodes::default());
    }
}

/// Returns true for a flow that was not run before, and none of whose attempts has started or ended.
fn awaits_first_start(engine: &Engine) -> bool {
    engine.flow().generation == Generation(1)
        && engine.nodes().iter().all(|node| node.attempt == Attempt(1) && node.start_time.is_none())
}

fn engine_input(input: FlowInput) -> FlowEngineInput {
    match input {
        FlowInput::Signal { name } => FlowEngineInput::Signal(name),
        FlowInput::Cancel { grace_secs } => FlowEngineInput::CancelFlow { grace_secs },
        FlowInput::CancelNode { job_id } => FlowEngineInput::CancelNode(job_id),
        FlowInput::Report(report) => FlowEngineInput::Report(report),
    }
}
