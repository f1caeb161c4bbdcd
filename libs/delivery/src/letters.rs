//! Messages that are delivered whole: chat and mail through the gateway, and jobs that were pushed to Redis,
//! which a scheduler makes a flow of.
//!
//! Each either arrives, or is refused for good, or its time is over; until then it is tried again. Whoever takes one
//! recognizes what it has taken before, so that nothing has to be found out before it is sent again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{Backoff, Timestamp};
use proto::internal::v1 as wire;
use serde::Deserialize;
use tokio::time::Instant;

use crate::lanes::{Lanes, MessageNumber, Way};
use crate::message::MessageName;

/// Between tries.
const BACKOFF: Backoff = Backoff { initial_secs: 0.2, multiplier: 2.0, max_secs: 60.0 };

/// Where a letter goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Destination {
    /// The first address of its recipient; empty: an actor of this coordinator.
    Address(Arc<str>),
    /// Any scheduler.
    Scheduler,
}

/// What is delivered.
#[derive(Debug, Clone)]
pub enum Content {
    /// Chat or mail.
    Letter {
        /// A Letter as JSON.
        json: Bytes,
        /// Where its recipient is reached, in the order in which that is tried.
        addresses: Vec<String>,
    },
    /// Jobs that become a flow.
    Jobs(Box<wire::SubmitForRequest>),
}

/// One of them on its way.
#[derive(Debug)]
pub struct Letter {
    /// Which message it is.
    pub name: MessageName,
    way: Way<Destination>,
    content: Content,
    deadline: Instant,
    failures: u32,
    last_error: String,
    /// What is under way; nothing while it waits.
    delivery: Option<u64>,
}

/// How a message ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which message it is.
    pub name: MessageName,
    /// Why it did not arrive; empty when it did.
    pub error: String,
    /// The flow that was made of it; 0 for none.
    pub flow_id: u32,
}

/// How a delivery ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It arrived; with the flow that was made of it, or 0.
    Arrived(u32),
    /// It did not, but may be tried again.
    Failed(String),
    /// It never will.
    Refused(String),
}

impl From<wire::DeliveryOutcome> for Outcome {
    fn from(outcome: wire::DeliveryOutcome) -> Self {
        let wire::DeliveryOutcome { error, lasting, .. } = outcome;
        match (&*error, lasting) {
            ("", _) => Self::Arrived(0),
            (_, true) => Self::Refused(error),
            (_, false) => Self::Failed(error),
        }
    }
}

/// What is sent now.
#[derive(Debug)]
pub enum Sending {
    /// To the gateway.
    Letter(wire::DeliverLetter),
    /// To a scheduler, with the number under which its outcome is told.
    Jobs(u64, Box<wire::SubmitForRequest>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TimerKind {
    Deadline,
    Retry,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Letters {
    letters: BTreeMap<MessageNumber, Letter>,
    lanes: Lanes<Destination>,
    deliveries: HashMap<u64, MessageNumber>,
    timers: BTreeSet<(Instant, MessageNumber, TimerKind)>,
}

/// The part of a letter that the router needs.
#[derive(Deserialize)]
struct Head {
    expires_at: Timestamp,
}

impl Letter {
    /// A letter that storage gave, at this moment of both clocks.
    ///
    /// # Errors
    /// When it is no letter.
    pub fn read(
        name: MessageName,
        held: wire::HeldLetter,
        (now, wall): (Instant, Timestamp),
    ) -> Result<Self, serde_json::Error> {
        let wire::HeldLetter { letter_json: json, addresses } = held;
        let Head { expires_at } = serde_json::from_slice(&json)?;
        let first = addresses.first().map_or_else(Arc::default, |address| Arc::from(address.as_str()));
        let way = (name.0, Destination::Address(first));
        let deadline = now + expires_at.since(wall);
        Ok(Self::new(name, way, Content::Letter { json, addresses }, deadline))
    }

    /// Jobs that are to become a flow.
    #[must_use]
    pub fn of_jobs(name: MessageName, jobs: wire::RawJobs, deadline: Instant) -> Self {
        let wire::RawJobs { caller_id, submit } = jobs;
        let message_key = name.1.clone();
        let submit = wire::SubmitForRequest { on_behalf_of: caller_id, submit, message_key };
        let way = (name.0, Destination::Scheduler);
        Self::new(name, way, Content::Jobs(Box::new(submit)), deadline)
    }

    fn new(name: MessageName, way: Way<Destination>, content: Content, deadline: Instant) -> Self {
        Self { name, way, content, deadline, failures: 0, last_error: String::new(), delivery: None }
    }

    fn sending(&self, now: Instant, delivery_id: u64, timeout: Duration) -> Sending {
        match &self.content {
            Content::Letter { json, addresses } => {
                let left = self.deadline.saturating_duration_since(now);
                let timeout = left.min(timeout).max(Duration::from_millis(1));
                Sending::Letter(wire::DeliverLetter {
                    delivery_id,
                    addresses: addresses.clone(),
                    letter_json: json.clone(),
                    timeout_millis: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
                })
            }
            Content::Jobs(submit) => Sending::Jobs(delivery_id, submit.clone()),
        }
    }
}

impl Letters {
    /// How many are on their way or waiting for it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.letters.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    /// Takes one over under a number of its own.
    pub fn take(&mut self, number: MessageNumber, letter: Letter) {
        self.timers.insert((letter.deadline, number, TimerKind::Deadline));
        self.lanes.push(letter.way.clone(), number, 1);
        self.letters.insert(number, letter);
    }

    /// What may be sent now, as far as windows allow, each under a number that `next` gives. The gateway may take
    /// `timeout` for one.
    pub fn send(
        &mut self,
        now: Instant,
        (gateway, scheduler): (bool, bool),
        timeout: Duration,
        mut next: impl FnMut() -> u64,
    ) -> Vec<Sending> {
        let taken = self.lanes.take(|(_, destination)| match destination {
            Destination::Address(_) => gateway,
            Destination::Scheduler => scheduler,
        });
        let mut sendings = Vec::with_capacity(taken.len());
        for (way, number) in taken {
            let Some(letter) = self.letters.get_mut(&number) else {
                self.lanes.finished(&way, 1);
                continue;
            };
            let delivery = next();
            letter.delivery = Some(delivery);
            self.deliveries.insert(delivery, number);
            sendings.push(letter.sending(now, delivery, timeout));
        }
        sendings
    }

    /// Whether this delivery is one of these, and not ended.
    #[must_use]
    pub fn is_under_way(&self, delivery: u64) -> bool {
        self.deliveries.contains_key(&delivery)
    }

    /// A delivery has ended. Gives the message when that has ended with it; else it is tried again. `jitter` is
    /// from 0.0..1.0.
    pub fn delivered(&mut self, now: Instant, delivery: u64, outcome: Outcome, jitter: f64) -> Option<Ended> {
        let number = self.deliveries.remove(&delivery)?;
        let letter = self.letters.get_mut(&number)?;
        letter.delivery = None;
        self.lanes.finished(&letter.way, 1);
        match outcome {
            Outcome::Arrived(flow_id) => self.end(number, String::new(), flow_id),
            Outcome::Refused(error) => self.end(number, error, 0),
            Outcome::Failed(error) => {
                letter.last_error = error;
                if letter.deadline <= now {
                    return self.give_up(number);
                }
                let delay = BACKOFF.delay(letter.failures, jitter);
                letter.failures += 1;
                let (message, error) = (&letter.name.1, &letter.last_error);
                tracing::debug!(message, error, ?delay, "a delivery failed");
                self.timers.insert((now + delay, number, TimerKind::Retry));
                None
            }
        }
    }

    /// The gateway's stream was lost, and with it the outcomes of what it was given.
    pub fn gateway_lost(&mut self, now: Instant, mut jitter: impl FnMut() -> f64) -> Vec<Ended> {
        let at_gateway = |number: &MessageNumber| {
            self.letters.get(number).is_some_and(|letter| matches!(letter.content, Content::Letter { .. }))
        };
        let lost: Vec<u64> = self
            .deliveries
            .iter()
            .filter(|(_, number)| at_gateway(number))
            .map(|(delivery, _)| *delivery)
            .collect();
        let why = || Outcome::Failed("the connection to the gateway was lost".to_owned());
        lost.into_iter().filter_map(|delivery| self.delivered(now, delivery, why(), jitter())).collect()
    }

    /// Does what is due; gives what has ended with that.
    pub fn due(&mut self, now: Instant) -> Vec<Ended> {
        let mut ended = Vec::new();
        while let Some((at, number, kind)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            let Some(letter) = self.letters.get(&number) else { continue };
            // What is under way is decided when its outcome is known.
            if letter.delivery.is_some() {
                continue;
            }
            match kind {
                TimerKind::Deadline => ended.extend(self.give_up(number)),
                TimerKind::Retry => self.lanes.push(letter.way.clone(), number, 1),
            }
        }
        ended
    }

    /// When [`Letters::due`] has something to do.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _, _)| *at)
    }

    fn give_up(&mut self, number: MessageNumber) -> Option<Ended> {
        let letter = self.letters.get(&number)?;
        self.lanes.remove(&letter.way, number);
        let error = match &*letter.last_error {
            "" => "TIMEOUT_ACK: it had to wait for its turn too long".to_owned(),
            error => format!("TIMEOUT_ACK: {error}"),
        };
        self.end(number, error, 0)
    }

    fn end(&mut self, number: MessageNumber, error: String, flow_id: u32) -> Option<Ended> {
        let letter = self.letters.remove(&number)?;
        self.timers.remove(&(letter.deadline, number, TimerKind::Deadline));
        Some(Ended { name: letter.name, error, flow_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ContextId;

    const TIMEOUT: Duration = Duration::from_secs(10);
    const BOTH: (bool, bool) = (true, true);

    struct World {
        letters: Letters,
        now: Instant,
        wall: Timestamp,
        numbers: u64,
    }

    impl World {
        fn new() -> Self {
            let wall = Timestamp::from_millis(1_800_000_000_000);
            Self { letters: Letters::default(), now: Instant::now(), wall, numbers: 100 }
        }

        fn take(&mut self, number: u64, address: &str, secs: u64) {
            let expires = serde_json::json!({ "expires_at": self.wall + Duration::from_secs(secs) });
            let held = wire::HeldLetter {
                letter_json: expires.to_string().into(),
                addresses: vec![address.to_owned()],
            };
            let name = (ContextId(1), format!("message:7:{number}"));
            let letter = Letter::read(name, held, (self.now, self.wall)).expect("a letter");
            self.letters.take(number, letter);
        }

        fn take_jobs(&mut self, number: u64) {
            let name = (ContextId(1), format!("message:7:{number}"));
            let jobs = wire::RawJobs { caller_id: 7, submit: None };
            let deadline = self.now + Duration::from_secs(60);
            self.letters.take(number, Letter::of_jobs(name, jobs, deadline));
        }

        fn send(&mut self, up: (bool, bool)) -> Vec<u64> {
            let numbers = &mut self.numbers;
            let sendings = self.letters.send(self.now, up, TIMEOUT, || {
                *numbers += 1;
                *numbers
            });
            sendings
                .into_iter()
                .map(|sending| match sending {
                    Sending::Letter(letter) => letter.delivery_id,
                    Sending::Jobs(delivery, submit) => {
                        assert_eq!((submit.on_behalf_of, &*submit.message_key), (7, "message:7:3"));
                        delivery
                    }
                })
                .collect()
        }

        fn ends(&mut self, delivery: u64, outcome: Outcome) -> Option<Ended> {
            self.letters.delivered(self.now, delivery, outcome, 1.0)
        }
    }

    fn ended(number: u64, error: &str, flow_id: u32) -> Ended {
        let name = (ContextId(1), format!("message:7:{number}"));
        Ended { name, error: error.to_owned(), flow_id }
    }

    #[test]
    fn it_arrives_or_is_refused() {
        let mut world = World::new();
        world.take(1, "", 60);
        world.take(2, "grpc://b:1", 60);
        let deliveries = world.send(BOTH);
        assert_eq!(deliveries.len(), 2);
        assert_eq!(world.ends(deliveries[0], Outcome::Arrived(0)), Some(ended(1, "", 0)));
        let refused = Outcome::Refused("UNKNOWN_RECIPIENT: nobody".to_owned());
        assert_eq!(world.ends(deliveries[1], refused), Some(ended(2, "UNKNOWN_RECIPIENT: nobody", 0)));
        assert!(world.letters.is_empty() && world.letters.next_due().is_none());
    }

    #[test]
    fn it_is_tried_again_until_its_time_is_over() {
        let mut world = World::new();
        world.take(1, "", 1);
        let first = world.send(BOTH)[0];
        assert_eq!(world.ends(first, Outcome::Failed("away".to_owned())), None);
        assert_eq!(world.send(BOTH), [0; 0], "not at once");
        world.now = world.letters.next_due().expect("a time");
        assert_eq!(world.letters.due(world.now), []);
        let second = world.send(BOTH)[0];
        assert_eq!(world.ends(second, Outcome::Failed("still away".to_owned())), None);
        world.now += Duration::from_secs(2);
        assert_eq!(world.letters.due(world.now), [ended(1, "TIMEOUT_ACK: still away", 0)]);
        assert_eq!(world.send(BOTH), [0; 0]);
        assert_eq!(world.ends(second, Outcome::Arrived(0)), None, "it has ended");
    }

    #[test]
    fn what_is_under_way_at_its_deadline_may_still_arrive() {
        let mut world = World::new();
        world.take(1, "", 1);
        let delivery = world.send(BOTH)[0];
        world.now += Duration::from_secs(2);
        assert_eq!(world.letters.due(world.now), []);
        assert!(world.letters.is_under_way(delivery));
        assert_eq!(world.ends(delivery, Outcome::Arrived(0)), Some(ended(1, "", 0)));
        world.take(2, "", 0);
        assert_eq!(world.letters.due(world.now).len(), 1, "and what waits does not");
    }

    #[test]
    fn a_lost_gateway_loses_nothing() {
        let mut world = World::new();
        world.take(1, "", 60);
        world.take_jobs(3);
        assert_eq!(world.send((false, false)), [0; 0]);
        let deliveries = world.send(BOTH);
        assert_eq!(deliveries.len(), 2);
        assert_eq!(world.letters.gateway_lost(world.now, || 1.0), []);
        let [letter, jobs] = *deliveries else { panic!("two") };
        assert!(!world.letters.is_under_way(letter) && world.letters.is_under_way(jobs));
        assert_eq!(world.ends(jobs, Outcome::Arrived(5)), Some(ended(3, "", 5)));
        world.now += Duration::from_secs(1);
        assert_eq!(world.letters.due(world.now), []);
        assert_eq!(world.send(BOTH).len(), 1);
    }
}
