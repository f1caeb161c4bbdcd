//! Messages that are delivered whole: chat and mail through the gateway, and jobs that were pushed to Redis,
//! which a scheduler makes a flow of.
//!
//! Each either arrives, or is permanently refused, or its time is over; until then it is retried. Receivers recognize
//! messages that they have taken before, so a resend needs no lookup first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{BackoffPolicy, Timestamp};
use proto::internal::v1 as wire;
use serde::Deserialize;
use tokio::time::Instant;

use crate::message::MessageName;
use crate::send_queue::{DeliveryRoute, FairQueue, MessageNumber};

/// Back-off between tries.
const BACKOFF: BackoffPolicy = BackoffPolicy { initial_secs: 0.2, multiplier: 2.0, max_secs: 60.0 };

/// Destination of a message that is delivered whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DeliveryDestination {
    /// First address of the recipient of chat or mail; empty for an actor of this coordinator.
    Address(Arc<str>),
    /// Any scheduler.
    Scheduler,
}

/// Content of the message.
#[derive(Debug, Clone)]
pub enum OpaqueContent {
    /// Chat or mail.
    DirectMessage {
        /// The message as JSON.
        json: Bytes,
        /// Where its recipient is reached, in the order in which that is tried.
        addresses: Vec<String>,
    },
    /// Jobs that become a flow.
    Jobs(Box<wire::SubmitForRequest>),
}

/// Message on its way that is delivered whole.
#[derive(Debug)]
pub struct OpaqueMessage {
    /// Which message it is.
    pub name: MessageName,
    way: DeliveryRoute<DeliveryDestination>,
    content: OpaqueContent,
    deadline: Instant,
    failures: u32,
    last_error: String,
    /// Delivery under way; none while the message waits.
    delivery: Option<u64>,
}

/// How a message ended.
#[derive(Debug, PartialEq, Eq)]
pub struct FinishedMessage {
    /// Which message it is.
    pub name: MessageName,
    /// Why it did not arrive; empty when it did.
    pub error: String,
    /// The flow that was made of it; 0 for none.
    pub flow_id: u32,
}

/// How a delivery ended.
#[derive(Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    /// The message arrived; with the flow that was made of it, or 0.
    Arrived(u32),
    /// The message did not arrive, but may be tried again.
    Failed(String),
    /// The message was permanently refused.
    Refused(String),
}

impl From<wire::DeliveryOutcome> for DeliveryResult {
    fn from(outcome: wire::DeliveryOutcome) -> Self {
        let wire::DeliveryOutcome { error, lasting, .. } = outcome;
        match (&*error, lasting) {
            ("", _) => Self::Arrived(0),
            (_, true) => Self::Refused(error),
            (_, false) => Self::Failed(error),
        }
    }
}

/// Delivery to be sent now.
#[derive(Debug)]
pub enum OutgoingDelivery {
    /// To the gateway.
    DirectMessage(wire::DeliverLetter),
    /// To a scheduler, with the number under which its outcome is reported.
    Jobs(u64, Box<wire::SubmitForRequest>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum OpaqueTimerKind {
    Deadline,
    Retry,
}

/// All messages that are delivered whole.
#[derive(Debug, Default)]
pub struct OpaqueMessages {
    messages: BTreeMap<MessageNumber, OpaqueMessage>,
    queue: FairQueue<DeliveryDestination>,
    deliveries: HashMap<u64, MessageNumber>,
    timers: BTreeSet<(Instant, MessageNumber, OpaqueTimerKind)>,
}

/// The part of a chat or mail message that the router needs.
#[derive(Deserialize)]
struct DirectMessageExpiry {
    expires_at: Timestamp,
}

impl OpaqueMessage {
    /// Reads a chat or mail message that storage assigned, at this moment of both clocks.
    ///
    /// # Errors
    /// When the JSON cannot be read.
    pub fn read(
        name: MessageName,
        held: wire::HeldLetter,
        (now, wall): (Instant, Timestamp),
    ) -> Result<Self, serde_json::Error> {
        let wire::HeldLetter { letter_json: json, addresses } = held;
        let DirectMessageExpiry { expires_at } = serde_json::from_slice(&json)?;
        let first = addresses.first().map_or_else(Arc::default, |address| Arc::from(address.as_str()));
        let way = (name.0, DeliveryDestination::Address(first));
        let deadline = now + expires_at.since(wall);
        Ok(Self::new(name, way, OpaqueContent::DirectMessage { json, addresses }, deadline))
    }

    /// Jobs that are to become a flow.
    #[must_use]
    pub fn of_jobs(name: MessageName, jobs: wire::RawJobs, deadline: Instant) -> Self {
        let wire::RawJobs { caller_id, submit } = jobs;
        let message_key = name.1.clone();
        let submit = wire::SubmitForRequest { on_behalf_of: caller_id, submit, message_key };
        let way = (name.0, DeliveryDestination::Scheduler);
        Self::new(name, way, OpaqueContent::Jobs(Box::new(submit)), deadline)
    }

    fn new(
        name: MessageName,
        way: DeliveryRoute<DeliveryDestination>,
        content: OpaqueContent,
        deadline: Instant,
    ) -> Self {
        Self { name, way, content, deadline, failures: 0, last_error: String::new(), delivery: None }
    }

    fn sending(&self, now: Instant, delivery_id: u64, timeout: Duration) -> OutgoingDelivery {
        match &self.content {
            OpaqueContent::DirectMessage { json, addresses } => {
                let left = self.deadline.saturating_duration_since(now);
                let timeout = left.min(timeout).max(Duration::from_millis(1));
                OutgoingDelivery::DirectMessage(wire::DeliverLetter {
                    delivery_id,
                    addresses: addresses.clone(),
                    letter_json: json.clone(),
                    timeout_millis: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
                })
            }
            OpaqueContent::Jobs(submit) => OutgoingDelivery::Jobs(delivery_id, submit.clone()),
        }
    }
}

impl OpaqueMessages {
    /// How many are on their way or waiting for it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns true when no message is on its way or waiting for it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// How many are under way.
    #[must_use]
    pub const fn under_way(&self) -> usize {
        self.queue.under_way()
    }

    /// Takes one over under a number of its own.
    pub fn take(&mut self, number: MessageNumber, message: OpaqueMessage) {
        self.timers.insert((message.deadline, number, OpaqueTimerKind::Deadline));
        self.queue.push(message.way.clone(), number, 1);
        self.messages.insert(number, message);
    }

    /// Takes the deliveries that the windows allow now, each under a number from `next`. The gateway may
    /// take `timeout` for one.
    pub fn send(
        &mut self,
        now: Instant,
        (gateway, scheduler): (bool, bool),
        timeout: Duration,
        mut next: impl FnMut() -> u64,
    ) -> Vec<OutgoingDelivery> {
        let taken = self.queue.take(|(_, destination)| match destination {
            DeliveryDestination::Address(_) => gateway,
            DeliveryDestination::Scheduler => scheduler,
        });
        let mut sendings = Vec::with_capacity(taken.len());
        for (way, number) in taken {
            let Some(message) = self.messages.get_mut(&number) else {
                self.queue.finished(&way, 1);
                continue;
            };
            let delivery = next();
            message.delivery = Some(delivery);
            self.deliveries.insert(delivery, number);
            sendings.push(message.sending(now, delivery, timeout));
        }
        sendings
    }

    /// Returns true when this delivery is of an opaque message and has not ended.
    #[must_use]
    pub fn is_under_way(&self, delivery: u64) -> bool {
        self.deliveries.contains_key(&delivery)
    }

    /// Notes the end of a delivery. Returns the message if that has ended too; else it is retried. `jitter` is
    /// from 0.0..1.0.
    pub fn delivered(
        &mut self,
        now: Instant,
        delivery: u64,
        outcome: DeliveryResult,
        jitter: f64,
    ) -> Option<FinishedMessage> {
        let number = self.deliveries.remove(&delivery)?;
        let message = self.messages.get_mut(&number)?;
        message.delivery = None;
        self.queue.finished(&message.way, 1);
        match outcome {
            DeliveryResult::Arrived(flow_id) => self.end(number, String::new(), flow_id),
            DeliveryResult::Refused(error) => self.end(number, error, 0),
            DeliveryResult::Failed(error) => {
                message.last_error = error;
                if message.deadline <= now {
                    return self.give_up(number);
                }
                let delay = BACKOFF.delay(message.failures, jitter);
                message.failures += 1;
                let (key, error) = (&message.name.1, &message.last_error);
                tracing::debug!(message = key, error, ?delay, "a delivery failed");
                self.timers.insert((now + delay, number, OpaqueTimerKind::Retry));
                None
            }
        }
    }

    /// The gateway's stream was lost, and with it the outcomes of what it was given.
    pub fn gateway_lost(&mut self, now: Instant, mut jitter: impl FnMut() -> f64) -> Vec<FinishedMessage> {
        let at_gateway = |number: &MessageNumber| {
            self.messages
                .get(number)
                .is_some_and(|message| matches!(message.content, OpaqueContent::DirectMessage { .. }))
        };
        let lost: Vec<u64> = self
            .deliveries
            .iter()
            .filter(|(_, number)| at_gateway(number))
            .map(|(delivery, _)| *delivery)
            .collect();
        let why = || DeliveryResult::Failed("the connection to the gateway was lost".to_owned());
        lost.into_iter().filter_map(|delivery| self.delivered(now, delivery, why(), jitter())).collect()
    }

    /// Handles the timers that are due; returns the messages that ended with them.
    pub fn due(&mut self, now: Instant) -> Vec<FinishedMessage> {
        let mut ended = Vec::new();
        while let Some((at, number, kind)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            let Some(message) = self.messages.get(&number) else { continue };
            // A delivery under way is decided when its outcome is known.
            if message.delivery.is_some() {
                continue;
            }
            match kind {
                OpaqueTimerKind::Deadline => ended.extend(self.give_up(number)),
                OpaqueTimerKind::Retry => self.queue.push(message.way.clone(), number, 1),
            }
        }
        ended
    }

    /// When [`OpaqueMessages::due`] has something to do.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _, _)| *at)
    }

    fn give_up(&mut self, number: MessageNumber) -> Option<FinishedMessage> {
        let message = self.messages.get(&number)?;
        self.queue.remove(&message.way, number);
        let error = match &*message.last_error {
            "" => "TIMEOUT_ACK: it waited too long in the send queue".to_owned(),
            error => format!("TIMEOUT_ACK: {error}"),
        };
        self.end(number, error, 0)
    }

    fn end(&mut self, number: MessageNumber, error: String, flow_id: u32) -> Option<FinishedMessage> {
        let message = self.messages.remove(&number)?;
        self.timers.remove(&(message.deadline, number, OpaqueTimerKind::Deadline));
        Some(FinishedMessage { name: message.name, error, flow_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ContextId;

    const TIMEOUT: Duration = Duration::from_secs(10);
    const BOTH: (bool, bool) = (true, true);

    struct World {
        messages: OpaqueMessages,
        now: Instant,
        wall: Timestamp,
        numbers: u64,
    }

    impl World {
        fn new() -> Self {
            let wall = Timestamp::from_millis(1_800_000_000_000);
            Self { messages: OpaqueMessages::default(), now: Instant::now(), wall, numbers: 100 }
        }

        fn take(&mut self, number: u64, address: &str, secs: u64) {
            let expires = serde_json::json!({ "expires_at": self.wall + Duration::from_secs(secs) });
            let held = wire::HeldLetter {
                letter_json: expires.to_string().into(),
                addresses: vec![address.to_owned()],
            };
            let name = (ContextId(1), format!("message:7:{number}"));
            let message = OpaqueMessage::read(name, held, (self.now, self.wall)).expect("a message");
            self.messages.take(number, message);
        }

        fn take_jobs(&mut self, number: u64) {
            let name = (ContextId(1), format!("message:7:{number}"));
            let jobs = wire::RawJobs { caller_id: 7, submit: None };
            let deadline = self.now + Duration::from_secs(60);
            self.messages.take(number, OpaqueMessage::of_jobs(name, jobs, deadline));
        }

        fn send(&mut self, up: (bool, bool)) -> Vec<u64> {
            let numbers = &mut self.numbers;
            let sendings = self.messages.send(self.now, up, TIMEOUT, || {
                *numbers += 1;
                *numbers
            });
            sendings
                .into_iter()
                .map(|sending| match sending {
                    OutgoingDelivery::DirectMessage(message) => message.delivery_id,
                    OutgoingDelivery::Jobs(delivery, submit) => {
                        assert_eq!((submit.on_behalf_of, &*submit.message_key), (7, "message:7:3"));
                        delivery
                    }
                })
                .collect()
        }

        fn ends(&mut self, delivery: u64, outcome: DeliveryResult) -> Option<FinishedMessage> {
            self.messages.delivered(self.now, delivery, outcome, 1.0)
        }
    }

    fn ended(number: u64, error: &str, flow_id: u32) -> FinishedMessage {
        let name = (ContextId(1), format!("message:7:{number}"));
        FinishedMessage { name, error: error.to_owned(), flow_id }
    }

    #[test]
    fn it_arrives_or_is_refused() {
        let mut world = World::new();
        world.take(1, "", 60);
        world.take(2, "grpc://b:1", 60);
        let deliveries = world.send(BOTH);
        assert_eq!(deliveries.len(), 2);
        assert_eq!(world.ends(deliveries[0], DeliveryResult::Arrived(0)), Some(ended(1, "", 0)));
        let refused = DeliveryResult::Refused("UNKNOWN_RECIPIENT: nobody".to_owned());
        assert_eq!(world.ends(deliveries[1], refused), Some(ended(2, "UNKNOWN_RECIPIENT: nobody", 0)));
        assert!(world.messages.is_empty() && world.messages.next_due().is_none());
    }

    #[test]
    fn it_is_tried_again_until_its_time_is_over() {
        let mut world = World::new();
        world.take(1, "", 1);
        let first = world.send(BOTH)[0];
        assert_eq!(world.ends(first, DeliveryResult::Failed("away".to_owned())), None);
        assert_eq!(world.send(BOTH), [0; 0], "not at once");
        world.now = world.messages.next_due().expect("a time");
        assert_eq!(world.messages.due(world.now), []);
        let second = world.send(BOTH)[0];
        assert_eq!(world.ends(second, DeliveryResult::Failed("still away".to_owned())), None);
        world.now += Duration::from_secs(2);
        assert_eq!(world.messages.due(world.now), [ended(1, "TIMEOUT_ACK: still away", 0)]);
        assert_eq!(world.send(BOTH), [0; 0]);
        assert_eq!(world.ends(second, DeliveryResult::Arrived(0)), None, "it has ended");
    }

    #[test]
    fn what_is_under_way_at_its_deadline_may_still_arrive() {
        let mut world = World::new();
        world.take(1, "", 1);
        let delivery = world.send(BOTH)[0];
        world.now += Duration::from_secs(2);
        assert_eq!(world.messages.due(world.now), []);
        assert!(world.messages.is_under_way(delivery));
        assert_eq!(world.ends(delivery, DeliveryResult::Arrived(0)), Some(ended(1, "", 0)));
        world.take(2, "", 0);
        assert_eq!(world.messages.due(world.now).len(), 1, "and what waits does not");
    }

    #[test]
    fn a_lost_gateway_loses_nothing() {
        let mut world = World::new();
        world.take(1, "", 60);
        world.take_jobs(3);
        assert_eq!(world.send((false, false)), [0; 0]);
        let deliveries = world.send(BOTH);
        assert_eq!(deliveries.len(), 2);
        assert_eq!(world.messages.gateway_lost(world.now, || 1.0), []);
        let [message, jobs] = *deliveries else { panic!("two") };
        assert!(!world.messages.is_under_way(message) && world.messages.is_under_way(jobs));
        assert_eq!(world.ends(jobs, DeliveryResult::Arrived(5)), Some(ended(3, "", 5)));
        world.now += Duration::from_secs(1);
        assert_eq!(world.messages.due(world.now), []);
        assert_eq!(world.send(BOTH).len(), 1);
    }
}
