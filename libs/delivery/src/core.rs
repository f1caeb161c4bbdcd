//! Decides what happens to messages, reports, logs and context drops. Pure: time and randomness come in, and
//! the effects go out as values.
//!
//! Here: messages with nodes on their way. [`opaque_messages`]: messages that are delivered whole. [`attempts`]: reports, stops and
//! queries of single attempts. [`abandonment`]: messages whose time is over.

mod abandonment;
mod attempts;
mod opaque_messages;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use model::{BackoffPolicy, JobKey, ReasonCode, RunnerId, Timestamp};
use proto::internal::v1 as wire;
use tokio::time::Instant;

use crate::acceptances::HeldAcceptances;
use crate::context_drops::{ContextDropResult, ContextDrops};
use crate::log_reads::RouterLogReads;
use crate::message::{MessageName, NodeMessage};
use crate::metrics::Metrics;
use crate::opaque_messages::{DeliveryResult, OpaqueMessages};
use crate::reconcile::AttemptReconciler;
use crate::reports::{GatewayEpoch, ReportOrigin, ReportsByOwner, UnacknowledgedReports};
use crate::runners::RunnerEndpoints;
use crate::send_queue::{FairQueue, MessageNumber, RunnerRoute};
use crate::settled_messages::SettledMessages;

/// How long the gateway may try one delivery.
pub const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a message waits for a runner that the complete view does not know.
pub const UNKNOWN_RUNNER_PATIENCE: Duration = Duration::from_secs(5);
/// Stops that wait for the gateway; beyond it they are dropped, and the scheduler repeats them.
pub const STOPS_WAITING_MAX: usize = 10_000;
/// Attempts in one status query.
pub const QUERY_ATTEMPTS_MAX: usize = 500;
/// A message that is younger than this when it comes was held by no other router: holds last longer.
const FRESH_AGE: Duration = Duration::from_secs(20);
/// How far the clocks of storage and of this router may differ.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(5);
/// How long effects that are not urgent may wait: an "accepted" report for a further one; a message that has arrived for
/// others, to be settled together with them: most jobs have ended by then, and with the last of its jobs storage has settled it.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Settlements of arrived messages that may wait; beyond it they are sent at once.
const SETTLE_TOGETHER_MAX: usize = 500;
/// Back-off between tries of a delivery.
const BACKOFF: BackoffPolicy = BackoffPolicy { initial_secs: 0.1, multiplier: 2.0, max_secs: 10.0 };

/// Event that the core handles.
#[derive(Debug)]
pub enum Input {
    /// Storage assigned messages to this router, and contexts to be forgotten; some perhaps again.
    Taken(wire::TakeResponse),
    /// A view of the registry begins.
    RegistryUp,
    /// The registry reported runners.
    Runners(wire::WatchResponse),
    /// A stream to the gateway stands.
    GatewayUp,
    /// The stream to the gateway was lost.
    GatewayDown,
    /// The gateway sent a message.
    Gateway(wire::ExchangeResponse),
    /// These scheduler replicas live.
    Schedulers(BTreeSet<String>),
    /// A stream to this scheduler replica is open.
    SchedulerUp(String),
    /// The stream to this scheduler replica was lost.
    SchedulerDown(String),
    /// The scheduler replica of this name sent a message.
    Scheduler(String, wire::ReportResponse),
    /// How the submission of jobs that were to become a flow ended, by the number of their delivery.
    Submitted(u64, DeliveryResult),
    /// Storage has kept pieces of output.
    LogsKept(Vec<(GatewayEpoch, u64)>),
    /// The time that [`Core::next_due`] gave has come.
    Due,
}

/// Effects that the caller must carry out.
#[derive(Debug, Default)]
pub struct Effects {
    /// For the gateway.
    pub deliver: Vec<wire::Deliver>,
    /// For the gateway.
    pub letters: Vec<wire::DeliverLetter>,
    /// For any scheduler, each with the number under which its outcome is to be reported.
    pub submit: Vec<(u64, Box<wire::SubmitForRequest>)>,
    /// For the gateway.
    pub stop: Vec<wire::StopAttempt>,
    /// For the gateway.
    pub query: Vec<wire::QueryAttempts>,
    /// For the gateway.
    pub drop: Vec<wire::DropContext>,
    /// For the gateway.
    pub forget: Vec<wire::ForgetAttempts>,
    /// For the gateway.
    pub read_log: Vec<wire::ReadAttemptLog>,
    /// For the gateway: its reports that need no repeating.
    pub handled: Vec<u64>,
    /// For storage.
    pub settle: Vec<wire::Settlement>,
    /// For storage: contexts that were forgotten.
    pub dropped: Vec<wire::ContextDropped>,
    /// For the schedulers, by their names.
    pub report: ReportsByOwner,
    /// For the schedulers, by their names: answers to their log queries.
    pub log_answers: BTreeMap<String, Vec<wire::LogAnswer>>,
    /// For storage: pieces of output, each with the gateway stream to acknowledge to.
    pub logs: Vec<(GatewayEpoch, wire::NumberedLog)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DeliveryTimerKind {
    /// The message must be accepted by now.
    Deadline,
    /// The back-off is over.
    Retry,
    /// The runner should be known by now.
    Unknown,
}

/// Settings of the core.
#[derive(Debug, Clone, Copy)]
pub struct DeliverySettings {
    /// When this router started: older messages may have been sent before.
    pub started: Timestamp,
    /// A supervisor that does not answer for this long is given up.
    pub lost_after: Duration,
    /// How long effects that are not urgent may wait: [`PATIENCE`], except in tests.
    pub patience: Duration,
}

/// The whole state.
pub struct Core {
    metrics: Metrics,
    settings: DeliverySettings,
    jitter: Box<dyn FnMut() -> f64 + Send>,
    numbers: u64,
    messages: BTreeMap<MessageNumber, NodeMessage>,
    names: HashMap<MessageName, MessageNumber>,
    /// Attempts that are not known to be delivered, to find those that are spoken of.
    attempts: HashMap<JobKey, MessageNumber>,
    deliveries: HashMap<u64, MessageNumber>,
    queue: FairQueue<RunnerId>,
    opaque_messages: OpaqueMessages,
    runners: RunnerEndpoints,
    reports: UnacknowledgedReports,
    acceptances: HeldAcceptances,
    reconciler: AttemptReconciler,
    log_reads: RouterLogReads,
    drops: ContextDrops,
    settled: SettledMessages,
    /// Settlements of messages that have arrived; `settle_at` is when storage gets them.
    arrived: Vec<wire::Settlement>,
    settle_at: Option<Instant>,
    stops: BTreeMap<String, wire::StopAttempt>,
    timers: BTreeSet<(Instant, MessageNumber, DeliveryTimerKind)>,
    gateway_epoch: GatewayEpoch,
    gateway_up: bool,
    effects: Effects,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Core({} messages, {} reports)", self.messages.len(), self.reports.len())
    }
}

impl Core {
    /// Nothing is known and no stream stands. `jitter` gives numbers from 0.0..1.0.
    #[must_use]
    pub fn new(metrics: Metrics, jitter: Box<dyn FnMut() -> f64 + Send>, settings: DeliverySettings) -> Self {
        Self {
            metrics,
            settings,
            jitter,
            numbers: 0,
            messages: BTreeMap::new(),
            names: HashMap::new(),
            attempts: HashMap::new(),
            deliveries: HashMap::new(),
            queue: FairQueue::default(),
            opaque_messages: OpaqueMessages::default(),
            runners: RunnerEndpoints::default(),
            reports: UnacknowledgedReports::default(),
            acceptances: HeldAcceptances::default(),
            reconciler: AttemptReconciler::default(),
            log_reads: RouterLogReads::default(),
            drops: ContextDrops::new(settings.lost_after),
            settled: SettledMessages::default(),
            arrived: Vec::new(),
            settle_at: None,
            stops: BTreeMap::new(),
            timers: BTreeSet::new(),
            gateway_epoch: 0,
            gateway_up: false,
            effects: Effects::default(),
        }
    }

    /// Handles an event. Timers that are due by then fire as well: a message whose time is over must not
    /// be sent any more.
    pub fn handle(&mut self, now: Instant, wall: Timestamp, input: Input) {
        match input {
            Input::Taken(wire::TakeResponse { messages, drops, forgets }) => {
                for held in messages {
                    self.take_over(now, wall, held);
                }
                for request in drops {
                    self.effects.dropped.extend(self.drops.take(now, request));
                }
                forgets.into_iter().for_each(|request| self.forget_attempts(request));
            }
            Input::RegistryUp => self.runners.begin_view(),
            Input::Runners(part) => self.runners_changed(now, part),
            Input::GatewayUp => {
                self.gateway_epoch += 1;
                self.gateway_up = true;
                self.effects.stop.extend(std::mem::take(&mut self.stops).into_values());
                self.reconciler.ask_all_now(now);
            }
            Input::GatewayDown => self.gateway_lost(now),
            Input::Gateway(wire::ExchangeResponse { frame }) => self.gateway_frame(now, frame),
            Input::Schedulers(names) => self.reports.set_replicas(names, &mut self.effects.report),
            Input::SchedulerUp(name) => self.reports.up(name, &mut self.effects.report),
            Input::SchedulerDown(name) => self.scheduler_lost(&name),
            Input::Scheduler(name, response) => self.scheduler_response(now, wall, &name, response),
            Input::Submitted(delivery, outcome) => self.opaque_delivered(now, delivery, outcome),
            Input::LogsKept(kept) => {
                let epoch = self.gateway_epoch;
                let ours = kept.into_iter().filter(|(of, _)| *of == epoch && self.gateway_up);
                self.effects.handled.extend(ours.map(|(_, id)| id));
            }
            Input::Due => {}
        }
        self.due(now);
    }

    /// Takes the effects of everything that was handled.
    pub fn effects(&mut self, now: Instant) -> Effects {
        if self.gateway_up {
            let runners = &self.runners;
            for (lane, number) in self.queue.take(|lane| runners.is_live(*lane)) {
                self.send(now, lane, number);
            }
            self.reconcile(now);
            self.effects.read_log.extend(self.log_reads.take_unsent(now));
            let numbers = &mut self.numbers;
            self.effects.drop.extend(self.drops.send_due(now, || {
                *numbers += 1;
                *numbers
            }));
        }
        self.send_opaque(now);
        self.settle_arrived(now);
        self.show();
        std::mem::take(&mut self.effects)
    }

    /// Shows in the metrics what is held, what is under way and what waits.
    fn show(&self) {
        let held = self.messages.len() + self.opaque_messages.len();
        let oldest = self.messages.first_key_value().map_or(0, |(_, message)| message.created_millis / 1000);
        self.metrics.held.set(whole(held));
        self.metrics.under_way.set(whole(self.queue.under_way()));
        self.metrics.opaque_under_way.set(whole(self.opaque_messages.under_way()));
        self.metrics.windows_full.set(whole(self.queue.full_windows()));
        self.metrics.oldest_message.set(i64::try_from(oldest).unwrap_or(i64::MAX));
        self.metrics.reports_open.set(whole(self.reports.len()));
    }

    /// When [`Input::Due`] is wanted.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _, _)| *at);
        let timer = timer.into_iter().chain(self.opaque_messages.next_due()).chain(self.settle_at);
        let timer = timer.chain(self.acceptances.next_due()).min();
        // Without a gateway no supervisor can be asked.
        let gateway_due = [self.reconciler.next_due(), self.drops.next_due()].into_iter().flatten().min();
        timer.into_iter().chain(gateway_due.filter(|_| self.gateway_up)).min()
    }

    // Messages.

    fn take_over(&mut self, now: Instant, wall: Timestamp, held: wire::HeldMessage) {
        let name = (model::ContextId(held.context_id), held.message_key.clone());
        if self.names.contains_key(&name) {
            return;
        }
        if held.kind.is_some() {
            return self.take_opaque(now, wall, name, held);
        }
        if let Some(error) = self.settled.error(&name, held.created_millis) {
            // It was settled, and that was lost on the way.
            self.effects.settle.push(settlement(&name, error.to_owned()));
            return;
        }
        self.metrics.taken.inc();
        let deadline = (held.timeout_ack_secs > 0).then(|| {
            let due = Timestamp::from_millis(held.created_millis)
                + Duration::from_secs(held.timeout_ack_secs.into());
            now + due.since(wall)
        });
        let mut message = match NodeMessage::read(held, deadline) {
            Ok(message) => message,
            Err(error) => {
                tracing::error!(%error, source = %error.source, "a message is given up");
                self.effects.settle.push(settlement(&name, error.to_string()));
                self.metrics.failed.inc();
                return;
            }
        };
        let created = Timestamp::from_millis(message.created_millis);
        message.is_fresh =
            created >= self.settings.started + CLOCKS_DIFFER_MAX && wall.since(created) < FRESH_AGE;
        message.made_at = now.checked_sub(wall.since(created));
        self.numbers += 1;
        let number = self.numbers;
        self.timers.extend(deadline.map(|at| (at, number, DeliveryTimerKind::Deadline)));
        self.names.insert(name, number);
        self.attempts.extend(message.nodes.iter().map(|node| (node.key, number)));
        self.wait_for_turn(now, number, &mut message);
        self.messages.insert(number, message);
        self.hand_back_if_closed(now, number);
        self.settle_if_through(number);
    }

    fn wait_for_turn(&mut self, now: Instant, number: MessageNumber, message: &mut NodeMessage) {
        message.window_nodes = message.nodes.len();
        self.queue.push(message.route, number, message.nodes.len());
        if self.runners.is_complete() && self.runners.get(message.route).is_none() {
            self.timers.insert((now + UNKNOWN_RUNNER_PATIENCE, number, DeliveryTimerKind::Unknown));
        }
    }

    fn runners_changed(&mut self, now: Instant, part: wire::WatchResponse) {
        let was_complete = self.runners.is_complete();
        self.runners.update(part);
        if !was_complete && self.runners.is_complete() {
            let runners = &self.runners;
            let unknown = self.messages.iter().filter(|(_, message)| runners.get(message.route).is_none());
            let at = now + UNKNOWN_RUNNER_PATIENCE;
            self.timers.extend(unknown.map(|(number, _)| (at, *number, DeliveryTimerKind::Unknown)));
        }
        let closed = self.messages.iter().filter(|(_, message)| self.runners.is_closed(message.route));
        let closed: Vec<MessageNumber> = closed.map(|(number, _)| *number).collect();
        for number in closed {
            self.hand_back_if_closed(now, number);
        }
    }

    fn send(&mut self, now: Instant, lane: RunnerRoute, number: MessageNumber) {
        let (Some(message), Some(place)) = (self.messages.get_mut(&number), self.runners.get(lane)) else {
            self.queue.finished(&lane, 0);
            return;
        };
        message.sent_to = Some(place.clone());
        // A message whose time is over was given up before anything is sent.
        let left = message.deadline.map_or(DELIVERY_TIMEOUT, |deadline| deadline - now);
        let timeout = left.min(DELIVERY_TIMEOUT).max(Duration::from_millis(1));
        for part in message.take_parts() {
            self.numbers += 1;
            let delivery_id = self.numbers;
            self.deliveries.insert(delivery_id, number);
            self.effects.deliver.push(wire::Deliver {
                delivery_id,
                address: place.address.clone(),
                topic: place.topic.clone(),
                context_id: lane.0.0,
                context_uid: message.context_uid.clone(),
                nodes: part.iter().map(|node| node.json.clone()).collect(),
                timeout_millis: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            });
            message.parts.insert(delivery_id, part);
        }
    }

    /// A delivery has ended, well when its error is empty.
    fn delivered(&mut self, now: Instant, outcome: wire::DeliveryOutcome) {
        let wire::DeliveryOutcome { delivery_id, error, lasting: _, refused_count, refusal } = outcome;
        let Some(number) = self.deliveries.remove(&delivery_id) else { return };
        let Some(message) = self.messages.get_mut(&number) else { return };
        let nodes = message.parts.remove(&delivery_id).unwrap_or_default();
        if error.is_empty() {
            message.note_answer(nodes.len(), refused_count, refusal);
            for node in nodes {
                self.attempts.remove(&node.key);
            }
        } else {
            message.last_error = error;
            message.nodes.extend(nodes);
        }
        if !message.parts.is_empty() {
            return;
        }
        self.queue.finished(&message.route, message.window_nodes);
        if message.nodes.is_empty() {
            let made_at = message.made_at.take();
            self.metrics.delivered(made_at.map(|made_at| now.saturating_duration_since(made_at)));
            self.settle_if_through(number);
            return;
        }
        let late = message.deadline.is_some_and(|deadline| deadline <= now);
        if late {
            self.give_up(now, number, ReasonCode::TimeoutAck);
            return;
        }
        let delay = BACKOFF.delay(message.failures, (self.jitter)());
        message.failures += 1;
        self.metrics.retries.inc();
        tracing::debug!(message = message.name.1, error = message.last_error, ?delay, "a delivery failed");
        self.timers.insert((now + delay, number, DeliveryTimerKind::Retry));
    }

    fn gateway_lost(&mut self, now: Instant) {
        self.gateway_up = false;
        self.reports.forget_gateway();
        self.acceptances.clear();
        self.effects.handled.clear();
        self.drops.gateway_lost(now);
        self.log_reads.gateway_lost();
        let lost: Vec<u64> = self.deliveries.keys().copied().collect();
        for delivery in lost {
            let error = "the connection to the gateway was lost".to_owned();
            self.delivered(now, wire::DeliveryOutcome { delivery_id: delivery, error, ..Default::default() });
        }
        let ended = self.opaque_messages.gateway_lost(now, &mut self.jitter);
        self.settle_opaque(ended);
    }

    fn due(&mut self, now: Instant) {
        let ended = self.opaque_messages.due(now);
        self.settle_opaque(ended);
        for (key, acceptance) in self.acceptances.take_due(now) {
            let source = ReportOrigin::Gateway(self.gateway_epoch, acceptance.report_id);
            self.reports.add(source, key.flow, acceptance.json, &mut self.effects.report);
        }
        while let Some((at, number, kind)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            let Some(message) = self.messages.get(&number) else { continue };
            // Parts under way are decided when their outcome is known.
            let idle = message.parts.is_empty() && !message.nodes.is_empty();
            match kind {
                DeliveryTimerKind::Deadline if idle => self.give_up(now, number, ReasonCode::TimeoutAck),
                DeliveryTimerKind::Unknown if idle && self.runners.get(message.route).is_none() => {
                    self.give_up(now, number, ReasonCode::Undeliverable);
                }
                DeliveryTimerKind::Retry if idle => {
                    if let Some(mut message) = self.messages.remove(&number) {
                        self.wait_for_turn(now, number, &mut message);
                        self.messages.insert(number, message);
                        self.hand_back_if_closed(now, number);
                    }
                }
                DeliveryTimerKind::Deadline | DeliveryTimerKind::Unknown | DeliveryTimerKind::Retry => {}
            }
        }
    }

    fn settle_if_through(&mut self, number: MessageNumber) {
        if !self.messages.get(&number).is_some_and(NodeMessage::is_finished) {
            return;
        }
        let Some(message) = self.messages.remove(&number) else { return };
        self.names.remove(&message.name);
        if let Some(deadline) = message.deadline {
            self.timers.remove(&(deadline, number, DeliveryTimerKind::Deadline));
        }
        let error = message.verdict();
        let settlement = settlement(&message.name, error.clone());
        if error.is_empty() {
            self.metrics.acknowledged.inc();
            self.arrived.push(settlement);
        } else {
            self.metrics.failed.inc();
            self.effects.settle.push(settlement);
        }
        self.settled.note(message.name, message.created_millis, error);
    }

    /// Settles messages that have arrived, once the first of them has waited long enough for others.
    fn settle_arrived(&mut self, now: Instant) {
        if self.arrived.is_empty() {
            return;
        }
        let at = *self.settle_at.get_or_insert(now + self.settings.patience);
        if at <= now || self.arrived.len() >= SETTLE_TOGETHER_MAX {
            self.effects.settle.append(&mut self.arrived);
            self.settle_at = None;
        }
    }

    fn scheduler_response(&mut self, now: Instant, wall: Timestamp, name: &str, sent: wire::ReportResponse) {
        let wire::ReportResponse { handled, stops, queries, log_queries } = sent;
        for report in handled {
            self.report_handled(report);
        }
        for stop in stops {
            self.stop(wall, stop);
        }
        for query in queries {
            self.query(now, query);
        }
        for query in log_queries {
            self.log_query(now, name, query);
        }
    }

    fn scheduler_lost(&mut self, name: &str) {
        self.reports.down(name);
        self.log_reads.scheduler_lost(name);
        // Drops unsent effects for its stream: the reports are sent again to the next owner, the queries are asked again.
        self.effects.report.remove(name);
        self.effects.log_answers.remove(name);
    }

    fn context_dropped(&mut self, now: Instant, outcome: &wire::DropOutcome) {
        let wire::DropOutcome { drop_id, error } = outcome;
        let jitter = (self.jitter)();
        match self.drops.ended(now, *drop_id, error, jitter) {
            None => {}
            Some(ContextDropResult::Dropped(dropped)) => {
                self.metrics.contexts_dropped.inc();
                self.effects.dropped.push(dropped);
            }
            Some(ContextDropResult::Abandoned(dropped)) => {
                let (context, runner) = (&dropped.context_uid, dropped.runner_id);
                tracing::warn!(
                    context,
                    runner,
                    error,
                    "a supervisor was not told to forget a context: given up"
                );
                self.metrics.contexts_given_up.inc();
                self.effects.dropped.push(dropped);
            }
        }
    }
}

/// A number of messages or reports, for a gauge.
fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn settlement(name: &MessageName, error: String) -> wire::Settlement {
    wire::Settlement { context_id: name.0.0, message_key: name.1.clone(), error, flow_id: 0 }
}

#[cfg(test)]
mod tests;
