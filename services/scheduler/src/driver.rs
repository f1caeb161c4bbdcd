//! The loop: inputs → engine → commits.
//!
//! One task owns every flow that this scheduler has in memory. A flow has at most one
//! commit under way; inputs that arrive meanwhile go into the next one. Nothing is
//! awaited while state changes: the commit link and short tasks call storage, and
//! their answers come back as events.
//!
//! - [`first_step`]: first steps of flows that are not stored yet;
//! - [`flows`]: flows enter memory and leave it;
//! - [`runners`]: runners, lost runners, and reconciling attempts;
//! - [`step`]: one step of one flow, and the answer to its commit.

mod first_step;
mod flows;
mod runners;
mod step;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flow::engine::{Engine, FlowEngineInput};
use model::{
    ContextId, FlowId, FlowInput, FlowStatus, FlowUid, NodeReport, ReportKind, RunnerView, Timestamp,
};
use proto::internal::v1::{CommitResponse, ReportResponse};
use service::{Readiness, ReadinessCondition};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::first_step::EarlyInputs;
pub use self::first_step::{AssignedFlowIds, ProvisionalFlow};
use self::flows::SleepingFlow;
use crate::clients::FlowStoreClient;
use crate::commit_link::{self, COMMITS_IN_FLIGHT_MAX, CommitSender};
use crate::config::Config;
use crate::destinations::{RunnerLoad, RunnerTable};
use crate::liveness::{Liveness, RunnerKey};
use crate::loaded_flow::{AckTarget, FlowKey, LoadedFlow, ReportAck};
use crate::loader::{FlowLoadOutcome, LOADS_MAX, StartedFlow};
use crate::log_reads::LogReadClient;
use crate::message_ids::{ContextCaller, MessageIds};
use crate::metrics::Metrics;
use crate::replica::{self, DueFlow, SchedulerIdentity};
use crate::report_streams::{ReportStreamId, ReportStreams};

/// Events that may wait for the driver; beyond it senders wait as well.
const EVENTS_MAX: usize = 4096;
/// Events taken up before the flows they touched are stepped.
const BATCH_MAX: usize = 512;
/// People do not see a start that is this much late.
const STARTED_PATIENCE: Duration = Duration::from_millis(5);

/// Something that the driver has to take up.
#[derive(Debug)]
pub enum SchedulerEvent {
    /// A flow is about to be stored, and may be with its first step.
    PrepareFirstStep(Box<Engine>, oneshot::Sender<Option<Box<ProvisionalFlow>>>),
    /// A flow that has made its first step is stored; nothing when it is not, or its fate is unknown.
    FirstStepStored(Box<ProvisionalFlow>, Option<Box<AssignedFlowIds>>),
    /// A flow was made here and is started, with this scheduler as its owner.
    Started(Box<StartedFlow>),
    /// An input was added to a flow's inbox.
    Touched(DueFlow),
    /// The scheduler replicas that live, by name.
    Replicas(Vec<String>),
    /// Touches may have been missed.
    Resync,
    /// Flows that have something to do, now or at a time; true with the last of a listing.
    Listed(Vec<DueFlow>, bool),
    /// The lease was lost, or Redis lost changes: everything in memory is void.
    Invalidate,
    /// The task that holds the lease asks whether the driver runs.
    LivenessProbe(oneshot::Sender<()>),
    /// A flow was read, by the reading of this number.
    Loaded(FlowKey, u64, FlowLoadOutcome),
    /// A flow's inbox was read, for the reading of this number; nothing after a failure.
    Inbox(FlowKey, u64, Option<Vec<FlowInput>>),
    /// Status of a flow that another one waits for; nothing when there is no such flow.
    FlowState(FlowKey, FlowId, Option<FlowStatus>),
    /// A router has connected.
    RouterUp(ReportStreamId, mpsc::Sender<ReportResponse>),
    /// Attempt reports received from a router.
    Reports(Vec<(ReportAck, NodeReport)>),
    /// The registry's view of runners has changed.
    Runners {
        /// Runners that are new or have changed.
        views: Vec<(ContextId, RunnerView)>,
        /// Runners whose records were removed.
        gone: Vec<RunnerKey>,
    },
    /// Message ids were reserved, in this epoch: the first of a block, or nothing after a failure.
    MessageIds(ContextCaller, u64, Option<u32>),
}

/// Talks to the driver. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    events: mpsc::Sender<SchedulerEvent>,
    replicas: watch::Receiver<Vec<String>>,
    log_reads: LogReadClient,
}

impl Handle {
    /// Sends the driver an event. Cancel safe: when cancelled, the event was not sent.
    pub async fn send(&self, event: SchedulerEvent) {
        // The driver ends last; at that point no caller waits for an effect.
        let _ = self.events.send(event).await;
    }

    /// Client for reading pieces of output.
    #[must_use]
    pub const fn log_reads(&self) -> &LogReadClient {
        &self.log_reads
    }

    /// The scheduler replicas that live, by name; none without a lease.
    #[must_use]
    pub fn replicas(&self) -> Vec<String> {
        self.replicas.borrow().clone()
    }
}

/// The loop's state.
pub(crate) struct Driver {
    me: SchedulerIdentity,
    /// The replicas that live; empty without a lease.
    replicas: Vec<String>,
    /// Live replicas, for the tasks that make flows.
    replicas_sender: watch::Sender<Vec<String>>,
    store: FlowStoreClient,
    handle: Handle,
    commits: CommitSender,
    /// Commits under way by their ids, each with its flow and when it was sent.
    committing: HashMap<String, (FlowKey, Instant)>,
    /// Flows in memory.
    flows: HashMap<FlowKey, LoadedFlow>,
    /// Inputs of flows that are being stored with their first steps.
    early: HashMap<FlowUid, EarlyInputs>,
    /// Flows that only wait for a time, and are not in memory until then.
    asleep: HashMap<FlowKey, SleepingFlow>,
    /// Bounds how many flows are read at the same time.
    loads: Arc<Semaphore>,
    /// Counts readings of flows and of their inboxes.
    readings: u64,
    /// Set while active flows are being listed; true when another listing must follow.
    listing: Option<bool>,
    /// Flows to step, each once.
    queue: VecDeque<FlowKey>,
    /// Flows that wait for message ids.
    waiting_for_ids: HashMap<ContextCaller, BTreeSet<FlowKey>>,
    /// Times at which flows are due, in memory or asleep.
    due: BTreeSet<(Timestamp, FlowKey)>,
    runners: RunnerTable,
    liveness: Liveness,
    load: RunnerLoad,
    ids: MessageIds,
    routers: ReportStreams,
    metrics: Arc<Metrics>,
    /// The flows that have something to do were listed since the lease was taken.
    listed: ReadinessCondition,
}

/// Makes the driver and the task that runs it. They are ready while the lease is held, and the flows that have
/// something to do were listed under it.
pub fn start(
    config: &Config,
    store: FlowStoreClient,
    metrics: Arc<Metrics>,
    readiness: &Readiness,
    stop: CancellationToken,
) -> (Handle, impl Future<Output = ()> + Send + use<>) {
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    // As many as there can be commits under way, so that the link never waits for the driver.
    let (answered, answers) = mpsc::channel(COMMITS_IN_FLIGHT_MAX);
    let storage_back = Arc::new(Notify::new());
    let (commits, link) = commit_link::start(store.clone(), answered, Arc::clone(&storage_back));
    let (replicas_sender, replicas) = watch::channel(Vec::new());
    let handle = Handle { events: sender, replicas, log_reads: LogReadClient::default() };
    let driver =
        Driver::new(config, store.clone(), handle.clone(), commits, replicas_sender, metrics, readiness);
    let (again, identity) = (handle.clone(), config.identity.clone());
    let held = readiness.condition("lease");
    let task = async move {
        let lease = replica::hold_lease(store, identity, (again.clone(), held), stop);
        tokio::select! {
            () = driver.run(events, answers) => {}
            () = link => {}
            () = resync_whenever(&storage_back, &again) => {}
            // Ends after `stop`, when storage knows that this replica has left.
            () = lease => {}
        }
    };
    (handle, task)
}

impl Driver {
    fn new(
        config: &Config,
        store: FlowStoreClient,
        handle: Handle,
        commits: CommitSender,
        replicas_sender: watch::Sender<Vec<String>>,
        metrics: Arc<Metrics>,
        readiness: &Readiness,
    ) -> Self {
        Self {
            me: config.identity.clone(),
            replicas: Vec::new(),
            replicas_sender,
            store,
            handle,
            commits,
            committing: HashMap::new(),
            flows: HashMap::new(),
            early: HashMap::new(),
            asleep: HashMap::new(),
            loads: Arc::new(Semaphore::new(LOADS_MAX)),
            readings: 0,
            listing: None,
            queue: VecDeque::new(),
            waiting_for_ids: HashMap::new(),
            due: BTreeSet::new(),
            runners: RunnerTable::default(),
            liveness: Liveness::new(config.lost_after),
            load: RunnerLoad::default(),
            ids: MessageIds::default(),
            routers: ReportStreams::default(),
            metrics,
            listed: readiness.condition("flows"),
        }
    }

    async fn run(
        mut self,
        mut events: mpsc::Receiver<SchedulerEvent>,
        mut answers: mpsc::Receiver<CommitResponse>,
    ) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            let flow_due = self.due.first().map(|(time, _)| *time);
            let next_due = [flow_due, self.liveness.next_due()].into_iter().flatten().min();
            tokio::select! {
                // Answers first: they make room for the commits that events cause.
                biased;
                Some(answer) = answers.recv() => {
                    self.committed(&answer);
                    while let Ok(answer) = answers.try_recv() {
                        self.committed(&answer);
                    }
                }
                received = events.recv_many(&mut batch, BATCH_MAX) => {
                    if received == 0 {
                        return;
                    }
                    for event in batch.drain(..) {
                        self.take(event);
                    }
                }
                () = sleep_until(next_due), if next_due.is_some() => {}
                () = self.handle.log_reads.unsent() => {}
            }
            self.go_on();
            self.routers.flush();
            self.handle.log_reads.send_unsent(|query| self.routers.read_log(query));
            self.metrics.flows_owned.set(i64::try_from(self.flows.len()).unwrap_or(i64::MAX));
            self.metrics.commits_in_flight.set(i64::try_from(self.committing.len()).unwrap_or(i64::MAX));
            self.metrics.flows_asleep.set(i64::try_from(self.asleep.len()).unwrap_or(i64::MAX));
            self.metrics.lease_held.set(i64::from(!self.replicas.is_empty()));
        }
    }

    /// Acts on the events that were taken up.
    fn go_on(&mut self) {
        self.lose_attempts();
        self.step_due();
        self.step_queued();
    }

    fn take(&mut self, event: SchedulerEvent) {
        match event {
            SchedulerEvent::PrepareFirstStep(engine, answer) => self.begin(engine, answer),
            SchedulerEvent::FirstStepStored(begun, stored) => {
                self.begun(*begun, stored.map(|stored| *stored))
            }
            SchedulerEvent::Started(started) => self.started(*started),
            SchedulerEvent::Touched(active) => self.touched(active),
            SchedulerEvent::Replicas(names) => self.replicas_changed(names),
            SchedulerEvent::Resync => self.resync(),
            SchedulerEvent::Listed(active, last) => self.listed(active, last),
            SchedulerEvent::Invalidate => self.invalidate(),
            // The caller may have given up.
            SchedulerEvent::LivenessProbe(answer) => drop(answer.send(())),
            SchedulerEvent::Loaded(key, reading, loaded) => self.loaded(key, reading, loaded),
            SchedulerEvent::Inbox(key, reading, inputs) => self.inbox(key, reading, inputs),
            SchedulerEvent::FlowState(key, flow, status) => self.flow_state(key, flow, status),
            SchedulerEvent::RouterUp(id, sender) => self.routers.add(id, sender),
            SchedulerEvent::Reports(reports) => {
                for (ack, report) in reports {
                    self.report(ack, report);
                }
            }
            SchedulerEvent::Runners { views, gone } => self.runners_changed(views, &gone),
            SchedulerEvent::MessageIds(caller, epoch, first) => self.message_ids(caller, epoch, first),
        }
    }

    /// Handles an attempt report. Its router takes this replica for the flow's owner, which is enough,
    /// even if this replica has not seen the latest change among the replicas yet.
    fn report(&mut self, ack: ReportAck, report: NodeReport) {
        if self.replicas.is_empty() {
            // Without a lease no report is accepted. The router resends it on its next stream.
            self.routers.close(ack.0);
            return;
        }
        let Some((ack, report)) = self.keep_early(ack, report) else { return };
        let key = (report.context_id, report.flow_id);
        self.adopt(key, report.job_key.flow);
        let patience = patience_of(&report.kind);
        if let Some(run) = self.flows.get_mut(&key) {
            run.push(FlowEngineInput::Report(report), AckTarget::Ack(ack));
            match patience {
                None => self.enqueue(key),
                Some(patience) => self.enqueue_within(key, patience),
            }
        }
    }

    fn message_ids(&mut self, caller: ContextCaller, epoch: u64, first: Option<u32>) {
        if epoch != self.ids.epoch() {
            return;
        }
        match first {
            Some(first) => self.ids.add(caller, first),
            None => self.ids.failed(caller),
        }
        for key in self.waiting_for_ids.remove(&caller).unwrap_or_default() {
            self.enqueue(key);
        }
    }

    /// Returns true when this replica owns flows of this uid.
    fn is_mine(&self, uid: FlowUid) -> bool {
        let owner = model::placement::owner_of(self.replicas.iter().map(String::as_str), uid);
        owner == Some(self.me.name.as_str())
    }

    /// Puts a flow into the queue of those to step.
    fn enqueue(&mut self, key: FlowKey) {
        if let Some(run) = self.flows.get_mut(&key)
            && !std::mem::replace(&mut run.queued, true)
        {
            self.queue.push_back(key);
        }
    }

    /// Puts a flow into the queue later, unless something else does before.
    fn enqueue_within(&mut self, key: FlowKey, patience: Duration) {
        let latest = Timestamp::now() + patience;
        let Some(run) = self.flows.get_mut(&key) else { return };
        if run.queued || run.awaited.is_some_and(|before| before <= latest) {
            return;
        }
        let before = run.awaited.replace(latest);
        if let Some(time) = before.filter(|_| run.due != before) {
            self.due.remove(&(time, key));
        }
        self.due.insert((latest, key));
    }

    fn step_due(&mut self) {
        let now = Timestamp::now();
        while let Some((time, key)) = self.due.first().copied()
            && time <= now
        {
            self.due.remove(&(time, key));
            if self.flows.contains_key(&key) {
                self.enqueue(key);
            } else {
                self.wake(key);
            }
        }
    }

    fn step_queued(&mut self) {
        while self.committing.len() < COMMITS_IN_FLIGHT_MAX
            && let Some(key) = self.queue.pop_front()
        {
            if let Some(run) = self.flows.get_mut(&key) {
                run.queued = false;
                let awaited = run.awaited.take();
                if let Some(time) = awaited.filter(|_| run.due != awaited) {
                    self.due.remove(&(time, key));
                }
                self.step(key);
            }
        }
    }
}

/// How long a report may wait so that others share its commit. A report that gates the next step may not wait.
const fn patience_of(report: &ReportKind) -> Option<Duration> {
    match report {
        ReportKind::Started { .. } => Some(STARTED_PATIENCE),
        // The router has already held back an acceptance, in case a later report makes it needless.
        ReportKind::Accepted { .. }
        | ReportKind::Ended(_)
        | ReportKind::Returned
        | ReportKind::Unknown
        | ReportKind::Rejected { .. } => None,
    }
}

/// Resyncs after storage was away: something may have been stored without the requester learning it, so that
/// no one drives the flow.
async fn resync_whenever(back: &Notify, driver: &Handle) {
    loop {
        back.notified().await;
        driver.send(SchedulerEvent::Resync).await;
    }
}

async fn sleep_until(time: Option<Timestamp>) {
    let Some(time) = time else { return };
    tokio::time::sleep(time.since(Timestamp::now())).await;
}
