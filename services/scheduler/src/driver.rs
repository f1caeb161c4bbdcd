//! The loop: inputs → engine → commits.
//!
//! One task owns every flow that this scheduler runs. A flow has at most one
//! commit under way; what happens meanwhile goes into the next. Nothing is
//! awaited while state changes: storage is spoken to by the commit link and by
//! short tasks, whose answers come back as events.

mod flows;
mod step;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use flow::engine::{Input, StoredNode};
use model::{ContextUid, Flow, NodeReport, OwnerId, ReportKind, Timestamp};
use proto::internal::v1::{CommitResponse, ReportResponse};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::clients::FlowStoreClient;
use crate::commit_link::{self, COMMITS_IN_FLIGHT_MAX, CommitSender};
use crate::destinations::{Load, RunnerTable};
use crate::loader::{Loaded, adopt_active};
use crate::message_ids::{Caller, MessageIds};
use crate::metrics::Metrics;
use crate::routers::{LinkId, Routers};
use crate::run::{Ack, FlowKey, Run};

/// Events that may wait for the driver; whoever has more to say waits as well.
const EVENTS_MAX: usize = 4096;
/// Events taken up before the flows they touched are stepped.
const BATCH_MAX: usize = 512;
/// That a supervisor has an attempt is told by its start as well.
const ACCEPTED_PATIENCE: Duration = Duration::from_secs(1);
/// People do not see a start that is this much late.
const STARTED_PATIENCE: Duration = Duration::from_millis(5);

/// Something that the driver has to take up.
#[derive(Debug)]
pub enum Event {
    /// A flow was made here and is started.
    Started(Box<StartedFlow>),
    /// A flow runs and nobody owns it, or its owner is gone.
    Adopt(FlowKey),
    /// Somebody else changed a flow, such as by asking to cancel it.
    Changed(FlowKey),
    /// A flow was read for [`Event::Adopt`] or [`Event::Changed`].
    Loaded(FlowKey, Loaded),
    /// A router has connected.
    RouterUp(LinkId, mpsc::Sender<ReportResponse>),
    /// Word of attempts.
    Reports(Vec<(Ack, NodeReport)>),
    /// The registry's view of runners has changed.
    Runners(Vec<(model::ContextId, model::RunnerView)>),
    /// Message ids were reserved: the first of a block, or nothing after a failure.
    MessageIds(Caller, Option<u32>),
}

/// A flow as its owner begins with it.
#[derive(Debug)]
pub struct StartedFlow {
    /// The uid of its context.
    pub context_uid: ContextUid,
    /// The flow.
    pub flow: Flow,
    /// Its nodes.
    pub nodes: Vec<StoredNode>,
}

/// Talks to the driver. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle(mpsc::Sender<Event>);

impl Handle {
    /// Gives the driver something to take up. Cancel safe: when cancelled it was not given.
    pub async fn send(&self, event: Event) {
        // The driver ends last; at that point nobody waits for an effect.
        let _ = self.0.send(event).await;
    }
}

/// The loop's state.
pub(crate) struct Driver {
    owner: OwnerId,
    store: FlowStoreClient,
    handle: Handle,
    commits: CommitSender,
    committing: HashMap<String, FlowKey>,
    flows: HashMap<FlowKey, Run>,
    /// Flows to step, each once.
    queue: VecDeque<FlowKey>,
    /// Flows that wait for message ids.
    waiting_for_ids: HashMap<Caller, Vec<FlowKey>>,
    due: BTreeSet<(Timestamp, FlowKey)>,
    runners: RunnerTable,
    load: Load,
    ids: MessageIds,
    routers: Routers,
    metrics: Arc<Metrics>,
}

/// Makes the driver and the task that runs it.
pub fn start(
    owner: OwnerId,
    store: FlowStoreClient,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> (Handle, impl Future<Output = ()> + Send) {
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    // As many as there can be commits under way, so that the link never waits for the driver.
    let (answered, answers) = mpsc::channel(COMMITS_IN_FLIGHT_MAX);
    let storage_back = Arc::new(Notify::new());
    let (commits, link) =
        commit_link::start(store.clone(), answered, Arc::clone(&storage_back), stop.clone());
    let handle = Handle(sender);
    let driver = Driver {
        owner,
        store: store.clone(),
        handle: handle.clone(),
        commits,
        committing: HashMap::new(),
        flows: HashMap::new(),
        queue: VecDeque::new(),
        waiting_for_ids: HashMap::new(),
        due: BTreeSet::new(),
        runners: RunnerTable::default(),
        load: Load::default(),
        ids: MessageIds::default(),
        routers: Routers::default(),
        metrics,
    };
    let again = handle.clone();
    let task = async move {
        tokio::select! {
            () = driver.run(events, answers) => {}
            () = link => {}
            () = adopt_whenever(&storage_back, &again, store) => {}
            () = stop.cancelled() => {}
        }
    };
    (handle, task)
}

impl Driver {
    async fn run(mut self, mut events: mpsc::Receiver<Event>, mut answers: mpsc::Receiver<CommitResponse>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            let next_due = self.due.first().map(|(time, _)| *time);
            tokio::select! {
                // Answers first: they free the room for what the events ask.
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
            }
            self.step_due();
            self.step_queued();
            self.routers.flush();
            self.metrics.flows_owned.set(i64::try_from(self.flows.len()).unwrap_or(i64::MAX));
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Started(started) => self.started(*started),
            Event::Adopt(key) => self.adopt(key),
            Event::Changed(key) => self.changed(key),
            Event::Loaded(key, loaded) => self.loaded(key, loaded),
            Event::RouterUp(id, sender) => self.routers.add(id, sender),
            Event::Reports(reports) => {
                for (ack, report) in reports {
                    self.report(ack, report);
                }
            }
            Event::Runners(views) => self.runners_changed(views),
            Event::MessageIds(caller, first) => self.message_ids(caller, first),
        }
    }

    fn report(&mut self, ack: Ack, report: NodeReport) {
        let key = (report.context_id, report.flow_id);
        if !self.flows.contains_key(&key) {
            self.adopt(key);
        }
        let patience = patience_of(&report.kind);
        if let Some(run) = self.flows.get_mut(&key) {
            run.push(Input::Report(report), Some(ack));
            match patience {
                None => self.enqueue(key),
                Some(patience) => self.enqueue_within(key, patience),
            }
        }
    }

    fn runners_changed(&mut self, views: Vec<(model::ContextId, model::RunnerView)>) {
        let mut opened = BTreeSet::new();
        for (context, view) in views {
            if self.runners.update(context, view) {
                opened.insert(context);
            }
        }
        let keys: Vec<FlowKey> = self.flows.keys().copied().filter(|key| opened.contains(&key.0)).collect();
        for key in keys {
            if let Some(run) = self.flows.get_mut(&key) {
                run.push(Input::Wake, None);
                self.enqueue(key);
            }
        }
    }

    fn message_ids(&mut self, caller: Caller, first: Option<u32>) {
        match first {
            Some(first) => self.ids.add(caller, first),
            None => self.ids.failed(caller),
        }
        for key in self.waiting_for_ids.remove(&caller).unwrap_or_default() {
            self.enqueue(key);
        }
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
        if let Some(before) = before.filter(|_| run.due != before) {
            self.due.remove(&(before, key));
        }
        self.due.insert((latest, key));
    }

    fn step_due(&mut self) {
        let now = Timestamp::now();
        while let Some((time, key)) = self.due.first().copied()
            && time <= now
        {
            self.due.remove(&(time, key));
            self.enqueue(key);
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

/// How long a report may wait for the next one of its flow, so that one commit stores both: nothing
/// follows from it. Of a short job all reports arrive within this.
const fn patience_of(report: &ReportKind) -> Option<Duration> {
    match report {
        ReportKind::Accepted { .. } => Some(ACCEPTED_PATIENCE),
        ReportKind::Started { .. } => Some(STARTED_PATIENCE),
        ReportKind::Ended(_) | ReportKind::Returned | ReportKind::Rejected { .. } => None,
    }
}

/// After storage was away: a start or a cancel may have been stored although whoever asked was not told,
/// so that nobody drives the flow.
async fn adopt_whenever(back: &Notify, driver: &Handle, store: FlowStoreClient) {
    loop {
        back.notified().await;
        adopt_active(store.clone(), driver).await;
    }
}

async fn sleep_until(time: Option<Timestamp>) {
    let Some(time) = time else { return };
    tokio::time::sleep(time.since(Timestamp::now())).await;
}
