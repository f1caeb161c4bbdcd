//! Delivery of job events to their coordinators, repeated until acknowledged.
//!
//! Events stay in Redis until they are acknowledged, so nothing is lost with this process. Each coordinator has an
//! event sender of its own, so one that is away delays no other. A sender keeps several batches in flight, since a
//! coordinator answers only after it has stored them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backoff::ExponentialBackoff;
use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use model::execution::Outcome;
use model::supervision::{AttemptOrigin, JobEvent, JobEventKind, JobOutput, method};
use model::{ContextId, JobKey, Reason, ReasonCode};
use mycelium::json_rpc::{CallError, JsonRpcCall, JsonRpcPeer};
use queue::{LogChunk, OPERATOR, QueueEvent, QueueEventAcknowledger, QueueEventKind, QueueEventReader};
use service::ReadinessCondition;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::blobs::BlobPurpose;
use crate::coordinator_requests::SupervisorState;
use crate::delayed_starts::DelayedStarts;
use crate::error::BlobError;
use crate::retry_queue::{RETRY_MAX, RetryQueue};

/// Events of one batch, at most.
const BATCH_MAX: usize = 256;
/// Batches in flight to one coordinator, at most.
const UNDER_WAY_MAX: usize = 32;
/// Events that one coordinator's sender keeps in memory; the rest stays in Redis.
const WAITING_MAX: usize = 8192;
/// How long a coordinator may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Jobs of one batch whose outputs are handed over at once.
const PUSHES_MAX: usize = 4;
/// How long acknowledged events wait for others, to be removed in one batch; nothing depends on the removal.
const REMOVAL_PATIENCE: Duration = Duration::from_millis(25);
/// Number of acknowledged events that are removed at once, without the wait.
const REMOVED_MAX: usize = 512;

/// Event senders by coordinator.
struct EventOutbox {
    supervisor: SupervisorState,
    senders: HashMap<String, mpsc::Sender<QueueEvent>>,
    /// Channel for acknowledged events, which the remover deletes.
    answered: mpsc::Sender<Vec<QueueEvent>>,
    shared: Arc<EventOutboxShared>,
    /// Tasks of the event senders, which are polled beside the reader.
    work: FuturesUnordered<BoxFuture<'static, ()>>,
}

/// State that the event senders and the reader share.
#[derive(Default)]
struct EventOutboxShared {
    /// Pending events by coordinator: one that is away must not stop the reader for others.
    waiting: Mutex<HashMap<String, PendingEvents>>,
    room: Notify,
}

/// Events that wait for one coordinator.
#[derive(Default)]
struct PendingEvents {
    /// Events in memory, by id: an event that is read again while it waits is not added twice.
    known: HashSet<String>,
    /// Set when the sender's channel was full, and events were left in Redis.
    left: bool,
}

impl PendingEvents {
    /// Returns true if there is room again for events that were left in Redis.
    fn wants_more(&self) -> bool {
        self.left && self.known.len() < WAITING_MAX / 2
    }
}

impl EventOutboxShared {
    fn waiting(&self) -> MutexGuard<'_, HashMap<String, PendingEvents>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event to memory; returns true if it was not there before.
    fn enter(&self, event: &QueueEvent) -> bool {
        let mut waiting = self.waiting();
        let waiting = waiting.entry(event.coordinator.clone()).or_default();
        waiting.known.insert(event.id.clone())
    }

    /// Notes that an event stays in Redis for want of room.
    fn leave(&self, event: &QueueEvent) {
        let mut waiting = self.waiting();
        let waiting = waiting.entry(event.coordinator.clone()).or_default();
        waiting.known.remove(&event.id);
        waiting.left = true;
    }

    /// Removes an event from memory.
    fn forget(&self, event: &QueueEvent) {
        let mut waiting = self.waiting();
        let Some(waiting) = waiting.get_mut(&event.coordinator) else { return };
        waiting.known.remove(&event.id);
        if waiting.wants_more() {
            self.room.notify_one();
        }
    }

    /// Returns true, once, if a coordinator has room again for events that were left in Redis.
    fn take_room(&self) -> bool {
        let mut found = false;
        for waiting in self.waiting().values_mut().filter(|waiting| waiting.wants_more()) {
            waiting.left = false;
            found = true;
        }
        found
    }

    /// Returns the number of events in memory.
    fn len(&self) -> usize {
        self.waiting().values().map(|waiting| waiting.known.len()).sum()
    }
}

/// Reads events and sends them until `stop`. Events without an answer, or with a very recent one, are sent again after the next
/// start. A lost store is noticed here first, since a read always waits on it; its return is noticed by the next presence check.
pub async fn keep(supervisor: SupervisorState, store: &ReadinessCondition, stop: CancellationToken) {
    let reader = supervisor.queue.events();
    let (answered, removed) = mpsc::channel(UNDER_WAY_MAX);
    let shared = Arc::<EventOutboxShared>::default();
    let remover = EventRemover {
        acknowledger: reader.acknowledger(),
        supervisor: supervisor.clone(),
        shared: Arc::clone(&shared),
    };
    let work = FuturesUnordered::new();
    let outbox = EventOutbox { supervisor, senders: HashMap::new(), answered, shared, work };
    tokio::join!(outbox.run(reader, store, stop), remover.run(removed));
}

impl EventOutbox {
    /// Reads events until `stop`, and hands them to the senders.
    async fn run(
        mut self,
        mut reader: QueueEventReader,
        store: &ReadinessCondition,
        stop: CancellationToken,
    ) {
        let mut backoff = ExponentialBackoff::up_to(RETRY_MAX);
        while !stop.is_cancelled() {
            match self.read(&mut reader, &stop).await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    store.unmet(error.to_string());
                    tracing::warn!(%error, "events cannot be read; trying again");
                    self.beside_senders(backoff.pause()).await;
                }
            }
        }
    }

    /// Waits for a future while the event senders go on.
    async fn beside_senders<T>(&mut self, waited_for: impl Future<Output = T>) -> T {
        let mut waited_for = pin!(waited_for);
        loop {
            tokio::select! {
                come = &mut waited_for => return come,
                Some(()) = self.work.next(), if !self.work.is_empty() => {}
            }
        }
    }

    async fn read(&mut self, reader: &mut QueueEventReader, stop: &CancellationToken) -> kv::Result<()> {
        let shared = Arc::clone(&self.shared);
        let wake = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = shared.room.notified() => {}
            }
        };
        let events = self.beside_senders(reader.next(wake)).await?;
        if self.shared.take_room() {
            // Events left in Redis for want of room are pending there: read from the beginning.
            *reader = self.supervisor.queue.events();
        }
        for event in events {
            // Watchers read the stored state, which was written together with the event.
            self.supervisor.attempt_watchers.notify(event.job_key);
            if event.coordinator == OPERATOR {
                // An operator's attempt has no coordinator: the event counts as acknowledged.
                if self.shared.enter(&event) {
                    self.supervisor.metrics.jobs.event(&event.kind);
                    // The event senders must go on meanwhile: the free place in the channel may be reserved for one of them.
                    let answered = self.answered.clone();
                    let _ = self.beside_senders(answered.send(vec![event])).await;
                }
            } else {
                self.hand_over(event);
            }
        }
        Ok(())
    }

    fn hand_over(&mut self, event: QueueEvent) {
        if !self.shared.enter(&event) {
            return;
        }
        // Events of a retired root go to its successor.
        let coordinator = self.supervisor.coordinators.current_root(&event.coordinator);
        let sender = self.senders.entry(coordinator.clone()).or_insert_with(|| {
            let (sender, events) = mpsc::channel(WAITING_MAX);
            let event_sender = EventSender {
                coordinator,
                supervisor: self.supervisor.clone(),
                answered: self.answered.clone(),
            };
            self.work.push(event_sender.run(events).boxed());
            sender
        });
        match sender.try_reserve() {
            Ok(permit) => {
                self.supervisor.metrics.jobs.event(&event.kind);
                permit.send(event);
            }
            // Measured when it is read again.
            Err(_) => self.shared.leave(&event),
        }
        self.supervisor.metrics.events_waiting.set(i64::try_from(self.shared.len()).unwrap_or(i64::MAX));
    }
}

/// Sends events to one coordinator.
#[derive(Clone)]
struct EventSender {
    coordinator: String,
    supervisor: SupervisorState,
    answered: mpsc::Sender<Vec<QueueEvent>>,
}

/// Result of sending one batch to a coordinator.
struct EventBatchOutcome {
    /// Jobs of the batch that had failed before.
    retried: Vec<JobKey>,
    /// Events to send again, each with the turn at which it failed.
    failed: Vec<(usize, QueueEvent)>,
}

impl EventBatchOutcome {
    /// Notes failures, and puts events that need no longer wait in front of `waiting`.
    fn take_back(
        self,
        turns: &mut ConnectionCursor,
        held: &mut RetryQueue,
        waiting: &mut VecDeque<QueueEvent>,
    ) {
        let Self { retried, failed } = self;
        failed.iter().for_each(|(turn, event)| turns.failed(*turn, event));
        let failed = failed.into_iter().map(|(_, event)| event).collect();
        let free = held.record_results(&retried, failed, Instant::now());
        free.into_iter().rev().for_each(|event| waiting.push_front(event));
    }
}

/// Cursor over a coordinator's connections. The supervisor cannot tell which of them serves a context, so after a failure it
/// moves on to the next.
#[derive(Default)]
struct ConnectionCursor(HashMap<ContextId, usize>);

impl ConnectionCursor {
    fn of(&self, event: &QueueEvent) -> usize {
        self.0.get(&event.origin.context_id).copied().unwrap_or_default()
    }

    fn failed(&mut self, turn: usize, event: &QueueEvent) {
        if self.0.len() >= WAITING_MAX {
            self.0.clear();
        }
        // Batches that failed at the same turn together advance the cursor by one.
        let next = self.0.entry(event.origin.context_id).or_default();
        *next = (*next).max(turn.wrapping_add(1));
    }
}

impl EventSender {
    async fn run(self, mut events: mpsc::Receiver<QueueEvent>) {
        let mut waiting: VecDeque<QueueEvent> = VecDeque::new();
        let (mut held, mut starts) = (RetryQueue::default(), DelayedStarts::default());
        let mut turns = ConnectionCursor::default();
        let mut under_way = FuturesUnordered::new();
        let mut arrivals = self.supervisor.coordinators.arrivals();
        let mut away = ExponentialBackoff::up_to(RETRY_MAX);
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            // Starts wait for their ends only while a batch is in flight.
            waiting.extend(if under_way.is_empty() { starts.all() } else { starts.due(Instant::now()) });
            let next_due = held.next_due();
            let due = next_due.is_some_and(|due| due <= Instant::now());
            if (due || !waiting.is_empty()) && under_way.len() < UNDER_WAY_MAX {
                let peers = self.supervisor.coordinators.peers(&self.coordinator).await;
                if peers.is_empty() {
                    // Batches in flight are still polled: they may have been answered, and others wait for their places in the channel.
                    tokio::select! {
                        _ = arrivals.changed() => {}
                        () = away.pause() => {}
                        Some(outcome) = under_way.next(), if !under_way.is_empty() => {
                            EventBatchOutcome::take_back(outcome, &mut turns, &mut held, &mut waiting);
                        }
                    }
                    continue;
                }
                away.reset();
                let mut part = held.due(Instant::now(), BATCH_MAX);
                let retried: HashSet<_> = part.iter().map(|event| event.job_key).collect();
                let fresh = waiting.drain(..waiting.len().min(BATCH_MAX - part.len()));
                part.extend(fresh.filter_map(|event| held.defer(event)));
                if part.is_empty() {
                    continue;
                }
                let part = part.into_iter().map(|event| (turns.of(&event), event)).collect();
                under_way.push(self.clone().send(peers, retried.into_iter().collect(), part));
                continue;
            }
            let room = under_way.len() < UNDER_WAY_MAX;
            let takes_more = waiting.is_empty() && held.len() < WAITING_MAX && starts.len() < WAITING_MAX;
            let starts_due = starts.next_due();
            tokio::select! {
                received = events.recv_many(&mut batch, BATCH_MAX), if takes_more => {
                    if received == 0 {
                        return;
                    }
                    let now = Instant::now();
                    batch.drain(..).for_each(|event| starts.sort(event, now, &mut waiting));
                }
                Some(outcome) = under_way.next(), if !under_way.is_empty() => {
                    EventBatchOutcome::take_back(outcome, &mut turns, &mut held, &mut waiting);
                }
                Ok(()) = arrivals.changed() => held.retry_now(Instant::now()),
                () = until(next_due), if room && next_due.is_some() => {}
                () = until(starts_due), if starts_due.is_some() => {}
            }
        }
    }

    /// Sends a batch, each event over the connection whose turn it is.
    async fn send(
        self,
        peers: Vec<JsonRpcPeer>,
        retried: Vec<JobKey>,
        events: Vec<(usize, QueueEvent)>,
    ) -> EventBatchOutcome {
        let mut by_turn: BTreeMap<usize, Vec<QueueEvent>> = BTreeMap::new();
        let coordinator = self.supervisor.coordinators.current_root(&self.coordinator);
        // Events of dropped contexts are acknowledged without being sent.
        let is_dropped = |(_, event): &(usize, QueueEvent)| {
            self.supervisor.dropped_contexts.contains(&coordinator, event.job_key.context)
        };
        let (dropped, events): (Vec<_>, Vec<_>) = events.into_iter().partition(is_dropped);
        self.answered(dropped.into_iter().map(|(_, event)| event).collect()).await;
        for (turn, event) in events {
            by_turn.entry(turn).or_default().push(event);
        }
        let sending = by_turn.into_iter().map(|(turn, events)| {
            let peer = &peers[turn % peers.len()];
            let failed = self.send_over(peer, events);
            async move { failed.await.into_iter().map(|event| (turn, event)).collect::<Vec<_>>() }
        });
        let failed = join_all(sending).await.into_iter().flatten().collect();
        EventBatchOutcome { retried, failed }
    }

    /// Sends events over one conversation; returns those to be sent again. Jobs with outputs go one by one,
    /// so that none waits for the bytes of others.
    async fn send_over(&self, peer: &JsonRpcPeer, events: Vec<QueueEvent>) -> Vec<QueueEvent> {
        let heavy: HashSet<_> =
            events.iter().filter(|event| has_outputs(event)).map(|event| event.job_key).collect();
        let mut jobs: HashMap<JobKey, Vec<QueueEvent>> = HashMap::new();
        let mut light = Vec::with_capacity(events.len());
        for event in events {
            if heavy.contains(&event.job_key) {
                jobs.entry(event.job_key).or_default().push(event);
            } else {
                light.push(event);
            }
        }
        let pushing = stream::iter(jobs.into_values().map(|events| self.send_job(peer, events)))
            .buffer_unordered(PUSHES_MAX)
            .collect::<Vec<_>>();
        let (mut failed, of_jobs) = tokio::join!(self.call(peer, light), pushing);
        failed.extend(of_jobs.into_iter().flatten());
        failed
    }

    /// Sends the events of one job: first those before its outputs, then the outputs, then the rest.
    async fn send_job(&self, peer: &JsonRpcPeer, mut events: Vec<QueueEvent>) -> Vec<QueueEvent> {
        let rest = events.split_off(events.iter().position(has_outputs).unwrap_or(events.len()));
        if !events.is_empty() {
            let mut failed = self.call(peer, events).await;
            if !failed.is_empty() {
                failed.extend(rest);
                return failed;
            }
        }
        let (mut ready, mut failed) = (Vec::with_capacity(rest.len()), Vec::new());
        for mut event in rest {
            match self.push_outputs(&event, peer).await {
                Ok(()) => ready.push(event),
                Err((name, error)) if error.is_lasting() => {
                    tracing::warn!(job = %event.job_key, output = name, %error, "an output is lost: the job fails");
                    fail(&mut event, format!("output `{name}` cannot be handed over: {error}"));
                    ready.push(event);
                }
                Err((name, error)) => {
                    tracing::warn!(job = %event.job_key, output = name, %error, "an output cannot be handed over yet");
                    failed.push(event);
                }
            }
        }
        failed.extend(self.call(peer, ready).await);
        failed
    }

    /// Sends events as one batch; returns those that must be sent again.
    async fn call(&self, peer: &JsonRpcPeer, events: Vec<QueueEvent>) -> Vec<QueueEvent> {
        let mut calls = Vec::with_capacity(events.len());
        let mut sent = Vec::with_capacity(events.len());
        for event in events {
            match JsonRpcCall::new(method::JOB_EVENT, &to_wire(&event)) {
                Ok(call) => {
                    calls.push(call);
                    sent.push(event);
                }
                Err(error) => tracing::error!(job = %event.job_key, %error, "an event cannot be written"),
            }
        }
        let (mut answered, mut again) = (Vec::with_capacity(sent.len()), Vec::new());
        let answers = peer.call_batch(calls, ANSWER_TIMEOUT).await;
        for (event, answer) in sent.into_iter().zip(answers) {
            match answer {
                Ok(_) => answered.push(event),
                Err(CallError::Refused(error)) if error.is_lasting() => {
                    tracing::warn!(job = %event.job_key, %error, "a coordinator rejected an event");
                    answered.push(event);
                }
                Err(error) => {
                    tracing::debug!(job = %event.job_key, %error, "an event was not answered");
                    again.push(event);
                }
            }
        }
        self.answered(answered).await;
        again
    }

    async fn push_outputs(&self, event: &QueueEvent, peer: &JsonRpcPeer) -> Result<(), (String, BlobError)> {
        let QueueEventKind::Ended(end) = &event.kind else { return Ok(()) };
        let purpose = BlobPurpose { job_key: event.job_key, context_id: event.origin.context_id };
        for (name, blob) in &end.outputs {
            let pushed = self.supervisor.blobs.push(*blob, purpose, peer).await;
            pushed.map_err(|error| (name.clone(), error))?;
        }
        Ok(())
    }

    /// Hands acknowledged events to the remover.
    async fn answered(&self, events: Vec<QueueEvent>) {
        if !events.is_empty() {
            // The remover lives as long as the event senders.
            let _ = self.answered.send(events).await;
        }
    }
}

/// Removes acknowledged events; those acknowledged at about the same time go in one batch.
struct EventRemover {
    acknowledger: QueueEventAcknowledger,
    supervisor: SupervisorState,
    shared: Arc<EventOutboxShared>,
}

impl EventRemover {
    async fn run(self, mut answered: mpsc::Receiver<Vec<QueueEvent>>) {
        while let Some(mut events) = answered.recv().await {
            let until = Instant::now() + REMOVAL_PATIENCE;
            while events.len() < REMOVED_MAX
                && let Ok(Some(others)) = tokio::time::timeout_at(until.into(), answered.recv()).await
            {
                events.extend(others);
            }
            self.remove(&events).await;
        }
    }

    async fn remove(&self, events: &[QueueEvent]) {
        // Events that stay are sent again after the next start, and acknowledged as duplicates.
        match self.acknowledger.acknowledge(events).await {
            Ok(forgotten) if forgotten.is_empty() => {}
            Ok(forgotten) => self.supervisor.remove_attempt_logs(&forgotten).await,
            Err(error) => {
                tracing::warn!(events = events.len(), %error, "acknowledged events could not be removed");
            }
        }
        self.supervisor.metrics.events_answered.inc_by(events.len() as u64);
        events.iter().for_each(|event| self.shared.forget(event));
        self.supervisor.metrics.events_waiting.set(i64::try_from(self.shared.len()).unwrap_or(i64::MAX));
    }
}

fn has_outputs(event: &QueueEvent) -> bool {
    matches!(&event.kind, QueueEventKind::Ended(end) if !end.outputs.is_empty())
}

/// Turns an end whose outputs are lost into a failure.
fn fail(event: &mut QueueEvent, detail: String) {
    if let QueueEventKind::Ended(end) = &mut event.kind {
        end.outcome = Outcome::Failed;
        end.reason = Some(Reason::new(ReasonCode::RuntimeError, detail));
        end.result.clear();
        end.outputs.clear();
    }
}

/// Waits for a time; for ever when there is none.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

fn to_wire(event: &QueueEvent) -> JobEvent {
    let kind = match event.kind.clone() {
        QueueEventKind::Started { instance, time, queued_time: _ } => {
            JobEventKind::Started { instance, time }
        }
        QueueEventKind::Log(LogChunk { offset, text, time }) => {
            JobEventKind::Log(JobOutput { offset, text, time })
        }
        QueueEventKind::Ended(end) => JobEventKind::Ended(end),
        QueueEventKind::Returned => JobEventKind::Returned,
    };
    let origin = AttemptOrigin { context_id: event.origin.context_id, flow_id: event.origin.flow_id };
    JobEvent { job_key: event.job_key, origin, seq: event.number, event: kind }
}
