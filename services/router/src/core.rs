//! Decides what happens to messages, reports, logs and stops. Pure: time and randomness come in, and
//! what is to be done goes out as values.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use model::{
    AttemptEnd, Backoff, JobKey, NodeReport, Reason, ReasonCode, ReportKind, Timestamp, execution::Outcome,
};
use proto::internal::v1 as wire;
use tokio::time::Instant;

use crate::lanes::{LaneKey, Lanes, MessageNumber};
use crate::message::{Message, MessageName, Node};
use crate::metrics::Metrics;
use crate::reports::{GatewayEpoch, Reports, Source};
use crate::runners::{Place, Runners};
use crate::settled::Settled;

/// How long the gateway may try one delivery.
pub const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a message waits for a runner that the complete view does not know.
pub const UNKNOWN_RUNNER_PATIENCE: Duration = Duration::from_secs(5);
/// Stops that wait for the gateway; beyond it they are dropped, and the scheduler repeats them.
pub const STOPS_WAITING_MAX: usize = 10_000;
/// What a running attempt gets to end by itself, when its message was given up.
const GIVEN_UP_GRACE_SECS: u32 = 5;
/// Between tries of a delivery.
const BACKOFF: Backoff = Backoff { initial_secs: 0.1, multiplier: 2.0, max_secs: 10.0 };

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// Storage gave messages into our care, some perhaps again.
    Held(Vec<wire::HeldMessage>),
    /// The registry told of runners.
    Runners(wire::WatchResponse),
    /// A stream to the gateway stands.
    GatewayUp,
    /// It was lost.
    GatewayDown,
    /// The gateway said something.
    Gateway(wire::ExchangeResponse),
    /// A stream to the scheduler stands.
    SchedulerUp,
    /// The scheduler said something.
    Scheduler(wire::ReportResponse),
    /// Storage has kept pieces of output.
    LogsKept(Vec<(GatewayEpoch, u64)>),
    /// A time that was asked for has come.
    Due,
}

/// What is to be done.
#[derive(Debug, Default)]
pub struct Effects {
    /// For the gateway.
    pub deliver: Vec<wire::Deliver>,
    /// For the gateway.
    pub stop: Vec<wire::StopAttempt>,
    /// For the gateway: its reports that need no repeating.
    pub handled: Vec<u64>,
    /// For storage.
    pub settle: Vec<wire::Settlement>,
    /// For the scheduler.
    pub report: Vec<wire::IncomingReport>,
    /// For storage: pieces of output, each with whom to tell.
    pub logs: Vec<(GatewayEpoch, wire::NumberedLog)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TimerKind {
    /// The message must be accepted by now.
    Deadline,
    /// The back-off is over.
    Retry,
    /// The runner should be known by now.
    Unknown,
}

/// The whole state.
pub struct Core {
    metrics: Metrics,
    jitter: Box<dyn FnMut() -> f64 + Send>,
    numbers: u64,
    messages: BTreeMap<MessageNumber, Message>,
    names: HashMap<MessageName, MessageNumber>,
    /// Attempts that are not known to be delivered, to find those that are spoken of.
    attempts: HashMap<JobKey, MessageNumber>,
    deliveries: HashMap<u64, MessageNumber>,
    lanes: Lanes,
    runners: Runners,
    reports: Reports,
    settled: Settled,
    stops: BTreeMap<String, wire::StopAttempt>,
    timers: BTreeSet<(Instant, MessageNumber, TimerKind)>,
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
    pub fn new(metrics: Metrics, jitter: Box<dyn FnMut() -> f64 + Send>) -> Self {
        Self {
            metrics,
            jitter,
            numbers: 0,
            messages: BTreeMap::new(),
            names: HashMap::new(),
            attempts: HashMap::new(),
            deliveries: HashMap::new(),
            lanes: Lanes::default(),
            runners: Runners::default(),
            reports: Reports::default(),
            settled: Settled::default(),
            stops: BTreeMap::new(),
            timers: BTreeSet::new(),
            gateway_epoch: 0,
            gateway_up: false,
            effects: Effects::default(),
        }
    }

    /// Takes in what happened. What is due by then is done as well: a message whose time is over must not
    /// be sent any more.
    pub fn handle(&mut self, now: Instant, wall: Timestamp, input: Input) {
        match input {
            Input::Held(messages) => {
                for held in messages {
                    self.take_over(now, wall, held);
                }
            }
            Input::Runners(part) => self.runners_changed(now, part),
            Input::GatewayUp => {
                self.gateway_epoch += 1;
                self.gateway_up = true;
                self.effects.stop.extend(std::mem::take(&mut self.stops).into_values());
            }
            Input::GatewayDown => self.gateway_lost(now, wall),
            Input::Gateway(wire::ExchangeResponse { frame }) => self.gateway_said(now, wall, frame),
            Input::SchedulerUp => self.effects.report.extend(self.reports.again()),
            Input::Scheduler(wire::ReportResponse { handled, stops, queries: _ }) => {
                for report in handled {
                    self.report_handled(report);
                }
                for stop in stops {
                    self.stop(wall, stop);
                }
            }
            Input::LogsKept(kept) => {
                let epoch = self.gateway_epoch;
                let ours = kept.into_iter().filter(|(of, _)| *of == epoch && self.gateway_up);
                self.effects.handled.extend(ours.map(|(_, id)| id));
            }
            Input::Due => {}
        }
        self.due(now, wall);
    }

    /// What is to be done after everything that was taken in.
    pub fn effects(&mut self, now: Instant) -> Effects {
        if self.gateway_up {
            let runners = &self.runners;
            for (lane, number) in self.lanes.take(|lane| runners.is_live(lane)) {
                self.send(now, lane, number);
            }
        }
        self.metrics.held.set(i64::try_from(self.messages.len()).unwrap_or(i64::MAX));
        self.metrics.reports_open.set(i64::try_from(self.reports.len()).unwrap_or(i64::MAX));
        std::mem::take(&mut self.effects)
    }

    /// When [`Input::Due`] is wanted.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _, _)| *at)
    }

    // Messages.

    fn take_over(&mut self, now: Instant, wall: Timestamp, held: wire::HeldMessage) {
        let name = (model::ContextId(held.context_id), held.message_key.clone());
        if self.names.contains_key(&name) {
            return;
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
        let mut message = match Message::read(held, deadline) {
            Ok(message) => message,
            Err(error) => {
                tracing::error!(%error, source = %error.source, "a message is given up");
                self.effects.settle.push(settlement(&name, error.to_string()));
                self.metrics.failed.inc();
                return;
            }
        };
        self.numbers += 1;
        let number = self.numbers;
        self.timers.extend(deadline.map(|at| (at, number, TimerKind::Deadline)));
        self.names.insert(name, number);
        self.attempts.extend(message.nodes.iter().map(|node| (node.key, number)));
        self.wait_for_turn(now, number, &mut message);
        self.messages.insert(number, message);
        self.settle_if_through(number);
    }

    fn wait_for_turn(&mut self, now: Instant, number: MessageNumber, message: &mut Message) {
        message.window_nodes = message.nodes.len();
        self.lanes.push(message.lane, number, message.nodes.len());
        if self.runners.is_complete() && self.runners.get(message.lane).is_none() {
            self.timers.insert((now + UNKNOWN_RUNNER_PATIENCE, number, TimerKind::Unknown));
        }
    }

    fn runners_changed(&mut self, now: Instant, part: wire::WatchResponse) {
        let was_complete = self.runners.is_complete();
        self.runners.update(part.runners, part.snapshot_end);
        if !was_complete && self.runners.is_complete() {
            let runners = &self.runners;
            let unknown = self.messages.iter().filter(|(_, message)| runners.get(message.lane).is_none());
            let at = now + UNKNOWN_RUNNER_PATIENCE;
            self.timers.extend(unknown.map(|(number, _)| (at, *number, TimerKind::Unknown)));
        }
    }

    fn send(&mut self, now: Instant, lane: LaneKey, number: MessageNumber) {
        let (Some(message), Some(place)) = (self.messages.get_mut(&number), self.runners.get(lane)) else {
            self.lanes.finished(lane, 0);
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

    /// A delivery has ended, well when `error` is empty.
    fn delivered(&mut self, now: Instant, wall: Timestamp, delivery_id: u64, error: String) {
        let Some(number) = self.deliveries.remove(&delivery_id) else { return };
        let Some(message) = self.messages.get_mut(&number) else { return };
        let nodes = message.parts.remove(&delivery_id).unwrap_or_default();
        if error.is_empty() {
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
        self.lanes.finished(message.lane, message.window_nodes);
        if message.nodes.is_empty() {
            self.settle_if_through(number);
            return;
        }
        let late = message.deadline.is_some_and(|deadline| deadline <= now);
        if late {
            self.give_up(wall, number, ReasonCode::TimeoutAck);
            return;
        }
        let delay = BACKOFF.delay(message.failures, (self.jitter)());
        message.failures += 1;
        self.metrics.retries.inc();
        tracing::debug!(message = message.name.1, error = message.last_error, ?delay, "a delivery failed");
        self.timers.insert((now + delay, number, TimerKind::Retry));
    }

    fn gateway_lost(&mut self, now: Instant, wall: Timestamp) {
        self.gateway_up = false;
        self.reports.forget_gateway();
        self.effects.handled.clear();
        let lost: Vec<u64> = self.deliveries.keys().copied().collect();
        for delivery in lost {
            self.delivered(now, wall, delivery, "the connection to the gateway was lost".to_owned());
        }
    }

    fn due(&mut self, now: Instant, wall: Timestamp) {
        while let Some((at, number, kind)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            let Some(message) = self.messages.get(&number) else { continue };
            // What is under way is decided when its outcome is known.
            let idle = message.parts.is_empty() && !message.nodes.is_empty();
            match kind {
                TimerKind::Deadline if idle => self.give_up(wall, number, ReasonCode::TimeoutAck),
                TimerKind::Unknown if idle && self.runners.get(message.lane).is_none() => {
                    self.give_up(wall, number, ReasonCode::Undeliverable);
                }
                TimerKind::Retry if idle => {
                    if let Some(mut message) = self.messages.remove(&number) {
                        self.wait_for_turn(now, number, &mut message);
                        self.messages.insert(number, message);
                    }
                }
                TimerKind::Deadline | TimerKind::Unknown | TimerKind::Retry => {}
            }
        }
    }

    /// Reports every node that is left as undelivered, and stops it where it may have arrived; the message is
    /// settled once the reports are known.
    fn give_up(&mut self, wall: Timestamp, number: MessageNumber, code: ReasonCode) {
        let Some(message) = self.messages.get_mut(&number) else { return };
        let (context, runner) = message.lane;
        let detail = match (&*message.last_error, self.runners.get(message.lane)) {
            ("", None) => format!("context {context} has no runner {runner}"),
            ("", Some(place)) if !place.live => format!("runner {runner} is not alive"),
            ("", Some(_)) => "it had to wait for its turn too long".to_owned(),
            (error, _) => error.to_owned(),
        };
        self.lanes.remove(message.lane, number);
        let (flow, sent_to) = (message.flow, message.sent_to.take());
        let nodes = std::mem::take(&mut message.nodes);
        // What was heard to run has arrived.
        let (arrived, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| node.started);
        if !nodes.is_empty() {
            tracing::info!(message = message.name.1, %context, %runner, detail, "a message was given up");
            message.error = Some(format!("{}: {detail}", code.as_str()));
        }
        for node in arrived {
            self.attempts.remove(&node.key);
        }
        let kind = ReportKind::Rejected { reason: Reason::new(code, detail), lasting: false, counts: true };
        for node in nodes {
            if let Some(place) = &sent_to {
                self.stop_at(stop_attempt(place, node.key.to_string(), GIVEN_UP_GRACE_SECS, context, flow));
            }
            self.report_own(wall, number, &node, kind.clone());
        }
        self.settle_if_through(number);
    }

    fn settle_if_through(&mut self, number: MessageNumber) {
        if !self.messages.get(&number).is_some_and(Message::is_through) {
            return;
        }
        let Some(message) = self.messages.remove(&number) else { return };
        self.names.remove(&message.name);
        if let Some(deadline) = message.deadline {
            self.timers.remove(&(deadline, number, TimerKind::Deadline));
        }
        match &message.error {
            None => self.metrics.acknowledged.inc(),
            Some(_) => self.metrics.failed.inc(),
        }
        let error = message.error.unwrap_or_default();
        self.effects.settle.push(settlement(&message.name, error.clone()));
        self.settled.note(message.name, message.created_millis, error);
    }

    // Reports, logs, stops.

    fn gateway_said(&mut self, now: Instant, wall: Timestamp, frame: Option<wire::exchange_response::Frame>) {
        use wire::exchange_response::Frame;
        match frame {
            Some(Frame::Outcome(wire::DeliveryOutcome { delivery_id, error })) => {
                self.delivered(now, wall, delivery_id, error);
            }
            Some(Frame::Reports(wire::Reports { reports })) => {
                for wire::NumberedReport { report_id, report_json } in reports {
                    self.note_started(&report_json);
                    let source = Source::Gateway(self.gateway_epoch, report_id);
                    let report = self.reports.add(source, report_json);
                    self.effects.report.push(report);
                }
            }
            Some(Frame::Logs(wire::Logs { logs })) => {
                let bytes: usize = logs.iter().map(|log| log.data.len()).sum();
                self.metrics.log_bytes.inc_by(bytes as u64);
                self.effects.logs.extend(logs.into_iter().map(|log| (self.gateway_epoch, log)));
            }
            Some(Frame::Dropped(_)) | None => {}
        }
    }

    /// Notes that an attempt runs whose delivery is not known to have arrived: it must not be stopped when its
    /// message is given up.
    fn note_started(&mut self, report_json: &[u8]) {
        if self.attempts.is_empty() {
            return;
        }
        // What cannot be read is the scheduler's to judge.
        let Ok(NodeReport { job_key, kind: ReportKind::Started { .. }, .. }) =
            serde_json::from_slice(report_json)
        else {
            return;
        };
        let message = self.attempts.get(&job_key).and_then(|number| self.messages.get_mut(number));
        if let Some(node) = message.and_then(|message| message.node_mut(job_key)) {
            node.started = true;
        }
    }

    fn report_own(&mut self, wall: Timestamp, number: MessageNumber, node: &Node, kind: ReportKind) {
        self.attempts.remove(&node.key);
        let Some(message) = self.messages.get_mut(&number) else { return };
        let report = NodeReport {
            job_key: node.key,
            context_id: message.lane.0,
            flow_id: message.flow,
            source: None,
            kind,
        };
        match serde_json::to_vec(&report) {
            Ok(json) => {
                message.reports_open += 1;
                let report = self.reports.add(Source::Message(number), Bytes::from(json));
                self.effects.report.push(report);
            }
            Err(error) => tracing::error!(%error, %wall, "a report cannot be written"),
        }
    }

    fn report_handled(&mut self, report: u64) {
        match self.reports.handled(report) {
            Some(Source::Gateway(epoch, id)) if epoch == self.gateway_epoch && self.gateway_up => {
                self.effects.handled.push(id);
            }
            Some(Source::Message(number)) => {
                if let Some(message) = self.messages.get_mut(&number) {
                    message.reports_open -= 1;
                }
                self.settle_if_through(number);
            }
            Some(Source::Gateway(..)) | None => {}
        }
    }

    /// Stops an attempt: here, when it has not been sent yet, else at its supervisor.
    fn stop(&mut self, wall: Timestamp, command: wire::StopCommand) {
        let wire::StopCommand { context_id, flow_id, runner_id, job_key, grace_secs, address: _, topic: _ } =
            command;
        let Ok(key) = job_key.parse::<JobKey>() else {
            tracing::error!(job_key, "a stop names no attempt");
            return;
        };
        let lane = (model::ContextId(context_id), model::RunnerId(runner_id));
        if let Some(place) = self.runners.get(lane) {
            // It goes to the supervisor also when its run waits here: an earlier try may have arrived.
            self.stop_at(stop_attempt(place, job_key, grace_secs, lane.0, model::FlowId(flow_id)));
        }
        let Some(number) = self.attempts.get(&key).copied() else { return };
        let Some(message) = self.messages.get_mut(&number) else { return };
        let never_sent = message.sent_to.is_none();
        let Some(at) = message.nodes.iter().position(|node| node.key == key) else { return };
        let node = message.nodes.remove(at);
        if message.nodes.is_empty() {
            self.lanes.remove(message.lane, number);
        }
        if never_sent {
            self.report_own(wall, number, &node, stopped(wall));
        } else {
            // Whether an earlier try arrived is for the supervisor to say, which has been told to stop.
            self.attempts.remove(&key);
        }
        self.settle_if_through(number);
    }

    /// Sends a stop to its supervisor, or lets it wait for the gateway.
    fn stop_at(&mut self, stop: wire::StopAttempt) {
        if self.gateway_up {
            self.effects.stop.push(stop);
        } else if self.stops.len() < STOPS_WAITING_MAX {
            self.stops.insert(stop.job_key.clone(), stop);
        }
    }
}

fn stop_attempt(
    place: &Place,
    job_key: String,
    grace_secs: u32,
    context: model::ContextId,
    flow: model::FlowId,
) -> wire::StopAttempt {
    wire::StopAttempt {
        address: place.address.clone(),
        topic: place.topic.clone(),
        job_key,
        grace_secs,
        context_id: context.0,
        flow_id: flow.0,
    }
}

fn stopped(wall: Timestamp) -> ReportKind {
    ReportKind::Ended(Box::new(AttemptEnd {
        outcome: Outcome::Stopped,
        exit_code: None,
        reason: None,
        result: BTreeMap::new(),
        outputs: BTreeMap::new(),
        output_bytes: 0,
        instance: None,
        start_time: None,
        end_time: wall,
    }))
}

fn settlement(name: &MessageName, error: String) -> wire::Settlement {
    wire::Settlement { context_id: name.0.0, message_key: name.1.clone(), error }
}

#[cfg(test)]
mod tests;
