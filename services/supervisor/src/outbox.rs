//! What happens to jobs, told to their coordinators until they answer.
//!
//! Events stay in Redis until they were answered, so nothing is lost with this
//! process. Each coordinator has a courier of its own: one that is away holds
//! up nobody else. A courier keeps several batches under way, since an answer
//! comes only after the coordinator has stored what it was told.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::supervision::{JobEvent, JobEventKind, Origin, method};
use mycelium::json_rpc::{Call, CallError, Peer};
use queue::{Acknowledger, Event, EventKind, EventReader};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::blobs::Purpose;
use crate::intake::Supervisor;

/// Events of one batch, at most.
const BATCH_MAX: usize = 256;
/// Batches under way to one coordinator.
const UNDER_WAY_MAX: usize = 32;
/// Events that one coordinator's courier keeps in memory; the rest stays in Redis.
const WAITING_MAX: usize = 8192;
/// How long a coordinator may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Couriers by coordinator.
struct Outbox {
    supervisor: Supervisor,
    acknowledger: Acknowledger,
    couriers: HashMap<String, mpsc::Sender<Event>>,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

/// What the couriers and the reader share.
#[derive(Default)]
struct Shared {
    /// Events in memory, by id: one that is read again while it waits is not taken twice.
    known: Mutex<HashSet<String>>,
    /// Some courier was full and events were left in Redis.
    left: Mutex<bool>,
    room: Notify,
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, HashSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_left(&self, left: bool) -> bool {
        std::mem::replace(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner), left)
    }
}

/// Reads and tells until `stop`. What was not answered is told again by the next start.
pub async fn keep(supervisor: Supervisor, stop: CancellationToken) {
    let mut reader = supervisor.queue.events();
    let mut outbox = Outbox {
        acknowledger: reader.acknowledger(),
        supervisor,
        couriers: HashMap::new(),
        shared: Arc::default(),
        tasks: JoinSet::new(),
    };
    let mut pause = RETRY_MIN;
    while !stop.is_cancelled() {
        match outbox.read(&mut reader, &stop).await {
            Ok(()) => pause = RETRY_MIN,
            Err(error) => {
                tracing::warn!(%error, "events cannot be read; trying again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }
}

impl Outbox {
    async fn read(&mut self, reader: &mut EventReader, stop: &CancellationToken) -> kv::Result<()> {
        let shared = Arc::clone(&self.shared);
        let wake = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = shared.room.notified() => {}
            }
        };
        let events = reader.next(wake).await?;
        if self.shared.known().len() < WAITING_MAX / 2 && self.shared.set_left(false) {
            // What was left in Redis for want of room is pending there: read from the beginning.
            *reader = self.supervisor.queue.events();
        }
        for event in events {
            self.hand_over(event);
        }
        Ok(())
    }

    fn hand_over(&mut self, event: Event) {
        if !self.shared.known().insert(event.id.clone()) {
            return;
        }
        let courier = self.couriers.entry(event.coordinator.clone()).or_insert_with(|| {
            let (sender, events) = mpsc::channel(WAITING_MAX);
            let courier = Courier {
                coordinator: event.coordinator.clone(),
                supervisor: self.supervisor.clone(),
                acknowledger: self.acknowledger.clone(),
                shared: Arc::clone(&self.shared),
            };
            self.tasks.spawn(courier.run(events));
            sender
        });
        if let Err(full) = courier.try_send(event) {
            let event = match full {
                mpsc::error::TrySendError::Full(event) | mpsc::error::TrySendError::Closed(event) => event,
            };
            self.shared.known().remove(&event.id);
            self.shared.set_left(true);
        }
        self.supervisor
            .metrics
            .events_waiting
            .set(i64::try_from(self.shared.known().len()).unwrap_or(i64::MAX));
    }
}

/// Tells one coordinator.
#[derive(Clone)]
struct Courier {
    coordinator: String,
    supervisor: Supervisor,
    acknowledger: Acknowledger,
    shared: Arc<Shared>,
}

impl Courier {
    async fn run(self, mut events: mpsc::Receiver<Event>) {
        let mut waiting: VecDeque<Event> = VecDeque::new();
        let mut under_way: JoinSet<Vec<Event>> = JoinSet::new();
        let mut failed: Vec<Event> = Vec::new();
        let mut pause = RETRY_MIN;
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            if !failed.is_empty() {
                // Everything that is under way ends first: then what failed goes again, in its order.
                while let Some(again) = under_way.join_next().await {
                    failed.extend(again.unwrap_or_default());
                }
                failed.sort_by_key(|event| stream_order(&event.id));
                for event in failed.drain(..).rev() {
                    waiting.push_front(event);
                }
                self.pause(&mut pause).await;
            }
            if !waiting.is_empty() && under_way.len() < UNDER_WAY_MAX {
                if let Some(peer) = self.supervisor.coordinators.peer(&self.coordinator).await {
                    let part: Vec<_> = waiting.drain(..waiting.len().min(BATCH_MAX)).collect();
                    under_way.spawn(self.clone().tell(peer, part));
                    continue;
                }
                self.pause(&mut pause).await;
                continue;
            }
            tokio::select! {
                received = events.recv_many(&mut batch, BATCH_MAX), if waiting.is_empty() => {
                    if received == 0 {
                        return;
                    }
                    waiting.extend(batch.drain(..));
                }
                Some(ended) = under_way.join_next() => match ended {
                    Ok(again) if again.is_empty() => pause = RETRY_MIN,
                    Ok(again) => failed.extend(again),
                    Err(error) => tracing::error!(%error, "telling a coordinator broke off"),
                },
            }
        }
    }

    /// Waits a moment, or until some coordinator turns up.
    async fn pause(&self, pause: &mut Duration) {
        let mut arrivals = self.supervisor.coordinators.arrivals();
        arrivals.mark_unchanged();
        tokio::select! {
            _ = arrivals.changed() => {}
            () = tokio::time::sleep(*pause) => {}
        }
        *pause = (*pause * 2).min(RETRY_MAX);
    }

    /// Tells a batch; gives the events that have to be told again.
    async fn tell(self, peer: Peer, events: Vec<Event>) -> Vec<Event> {
        let mut again = Vec::new();
        let mut calls = Vec::with_capacity(events.len());
        let mut told = Vec::with_capacity(events.len());
        for event in events {
            if let Err(error) = self.push_outputs(&event, &peer).await {
                tracing::warn!(job = %event.job_key, %error, "the outputs of a job cannot be handed over yet");
                again.push(event);
                continue;
            }
            match Call::new(method::JOB_EVENT, &to_wire(&event)) {
                Ok(call) => {
                    calls.push(call);
                    told.push(event);
                }
                Err(error) => tracing::error!(job = %event.job_key, %error, "an event cannot be written"),
            }
        }
        let answers = peer.call_batch(calls, ANSWER_TIMEOUT).await;
        for (event, answer) in told.into_iter().zip(answers) {
            match answer {
                Ok(_) => self.answered(&event).await,
                Err(CallError::Refused(error)) if error.is_lasting() => {
                    tracing::warn!(job = %event.job_key, %error, "a coordinator does not want an event");
                    self.answered(&event).await;
                }
                Err(error) => {
                    tracing::debug!(job = %event.job_key, %error, "an event was not answered");
                    again.push(event);
                }
            }
        }
        again
    }

    async fn push_outputs(&self, event: &Event, peer: &Peer) -> Result<(), crate::error::BlobError> {
        let EventKind::Ended(end) = &event.kind else { return Ok(()) };
        let purpose = Purpose { job_key: event.job_key, context_id: event.origin.context_id };
        for blob in end.outputs.values() {
            self.supervisor.blobs.push(*blob, purpose, peer).await?;
        }
        Ok(())
    }

    async fn answered(&self, event: &Event) {
        let over = matches!(event.kind, EventKind::Ended(_) | EventKind::Returned).then_some(event.job_key);
        // One that stays is told again after the next start, and answered as known.
        if let Err(error) = self.acknowledger.acknowledge(&event.id, over).await {
            tracing::warn!(job = %event.job_key, %error, "an answered event could not be removed");
        }
        self.supervisor.metrics.events_answered.inc();
        let mut known = self.shared.known();
        known.remove(&event.id);
        self.supervisor.metrics.events_waiting.set(i64::try_from(known.len()).unwrap_or(i64::MAX));
        if known.len() < WAITING_MAX / 2 {
            self.shared.room.notify_one();
        }
    }
}

/// A stream id is two numbers; as text they would not sort.
fn stream_order(id: &str) -> (u64, u64) {
    let (millis, count) = id.split_once('-').unwrap_or((id, "0"));
    (millis.parse().unwrap_or_default(), count.parse().unwrap_or_default())
}

fn to_wire(event: &Event) -> JobEvent {
    let kind = match event.kind.clone() {
        EventKind::Started { instance, time } => JobEventKind::Started { instance, time },
        EventKind::Log(chunk) => JobEventKind::Log { offset: chunk.offset, text: chunk.text },
        EventKind::Ended(end) => JobEventKind::Ended(end),
        EventKind::Returned => JobEventKind::Returned,
    };
    let origin = Origin { context_id: event.origin.context_id, flow_id: event.origin.flow_id };
    JobEvent { job_key: event.job_key, origin, seq: event.number, event: kind }
}
