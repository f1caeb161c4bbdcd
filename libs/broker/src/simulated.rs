//! A broker in memory, with fault injection for tests.
//!
//! Behaves as JetStream does where [`crate::MessageBroker`] promises nothing else: acknowledgements of recreated consumers
//! count, messages that were not acknowledged in time are redelivered behind newer ones, and sequences are reused after the
//! server has rolled back.

mod clock;
mod deliveries;
mod fault_injection;
mod server;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

pub use self::clock::{ManualClock, RuntimeClock, SimulationClock};
use self::deliveries::{SimulatedAckSink, SimulatedDeliveries};
use self::server::{SimulatedConsumer, SimulatedServer, SimulatedStream};
use crate::cursor::check_name;
use crate::message::check_subject;
use crate::{
    BrokerConnectionStatus, BrokerDescription, BrokerError, BrokerInbox, BrokerVersion, CursorSpec,
    CursorStart, CursorState, Deliveries, MessageBroker, Publication, PublicationFuture, PullLimit,
    StoredMessage, StreamSpec, StreamState,
};

/// Unread replies of an inbox; later ones are dropped.
const UNREAD_MAX: usize = 1024;

/// A broker in memory. Cheap to clone; all clones are the same broker.
#[derive(Clone)]
pub struct SimulatedBroker {
    shared: Arc<SimulatedBrokerState>,
}

/// State that a broker shares with its deliveries.
struct SimulatedBrokerState {
    clock: Box<dyn SimulationClock>,
    world: Mutex<SimulatedServer>,
    /// Counts changes, so that deliveries check again.
    changed: watch::Sender<u64>,
    connection: watch::Sender<BrokerConnectionStatus>,
}

impl SimulatedBrokerState {
    fn world(&self) -> MutexGuard<'_, SimulatedServer> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the server, and wakes everything that waits for a change.
    fn change<T>(&self, change: impl FnOnce(&mut SimulatedServer) -> T) -> T {
        let mut world = self.world();
        let changed = change(&mut world);
        let connection = world.connection;
        self.connection.send_if_modified(|before| std::mem::replace(before, connection) != connection);
        drop(world);
        self.changed.send_modify(|count| *count += 1);
        changed
    }
}

impl SimulatedBroker {
    /// Makes an empty one, which is connected.
    #[must_use]
    pub fn new(clock: impl SimulationClock) -> Self {
        let world = SimulatedServer::new();
        Self {
            shared: Arc::new(SimulatedBrokerState {
                clock: Box::new(clock),
                connection: watch::Sender::new(world.connection),
                world: Mutex::new(world),
                changed: watch::Sender::new(0),
            }),
        }
    }

    /// Runs an operation on the server, if it can be reached.
    fn ask<T>(
        &self,
        what: &str,
        ask: impl FnOnce(&mut SimulatedServer) -> Result<T, BrokerError>,
    ) -> Result<T, BrokerError> {
        self.shared
            .change(|world| if world.connection.connected { ask(world) } else { Err(unavailable(what)) })
    }
}

fn unavailable(what: &str) -> BrokerError {
    BrokerError::Unavailable { what: what.to_owned(), why: "the connection was cut".to_owned() }
}

fn state(stream: &SimulatedStream) -> StreamState {
    StreamState {
        incarnation: stream.incarnation,
        first_sequence: stream.first(),
        last_sequence: stream.last,
        messages: stream.messages.len() as u64,
        consumers: stream.consumers.len(),
        settings: stream.settings.clone(),
    }
}

#[async_trait]
impl MessageBroker for SimulatedBroker {
    fn server(&self) -> Result<BrokerDescription, BrokerError> {
        self.ask("the server's description", |world| {
            Ok(BrokerDescription {
                version_text: world.version_text.clone(),
                version: BrokerVersion::parse(&world.version_text),
                max_payload: world.max_payload,
            })
        })
    }

    fn connection(&self) -> watch::Receiver<BrokerConnectionStatus> {
        self.shared.connection.subscribe()
    }

    async fn stream(&self, name: &str) -> Result<Option<StreamState>, BrokerError> {
        check_name("the stream", name)?;
        self.ask(&format!("the state of stream {name}"), |world| Ok(world.streams.get(name).map(state)))
    }

    async fn create_stream(&self, spec: &StreamSpec) -> Result<(), BrokerError> {
        check_name("the stream", &spec.name)?;
        let now = self.shared.clock.now();
        self.ask(&format!("making stream {}", spec.name), |world| {
            let incarnation = world.next_number(now);
            let made = || SimulatedStream::new(&spec.name, incarnation, spec.settings());
            world.streams.entry(spec.name.clone()).or_insert_with(made);
            Ok(())
        })
    }

    async fn message(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError> {
        check_name("the stream", stream)?;
        self.ask(&format!("message {sequence} of stream {stream}"), |world| {
            let stream = world.streams.get(stream).ok_or_else(|| not_there(stream))?;
            Ok(stream.messages.get(&sequence).cloned())
        })
    }

    async fn publish(&self, outgoing: Publication) -> Result<PublicationFuture, BrokerError> {
        let what = format!("publishing {} to {}", outgoing.message_id, outgoing.subject);
        let now = self.shared.clock.now();
        let answer = self.ask(&what, |world| {
            let headers = outgoing.validated_headers(world.max_payload)?;
            let Publication { subject, message_id, payload, .. } = outgoing;
            let message =
                StoredMessage { subject: subject.clone(), headers, payload, sequence: 0, stored_millis: now };
            let stored = world.store(&message_id, message).ok_or(BrokerError::UnroutedSubject { subject });
            if world.lost_acknowledgements > 0 {
                world.lost_acknowledgements -= 1;
                let why = "the acknowledgement was lost".to_owned();
                return Ok(Err(BrokerError::Unavailable { what: what.clone(), why }));
            }
            Ok(stored)
        })?;
        Ok(PublicationFuture::new(std::future::ready(answer)))
    }

    async fn open(&self, spec: &CursorSpec) -> Result<Box<dyn Deliveries>, BrokerError> {
        let requested = spec.configuration()?;
        let (number, generation) = self.ask(&format!("the cursor {}", spec.consumer), |world| {
            let number = world.next_number(0);
            let made_differently = world.setting_override.take();
            let stream = world.streams.get_mut(&spec.stream).ok_or_else(|| not_there(&spec.stream))?;
            spec.check_start(&state(stream))?;
            stream.consumers.remove(&spec.consumer);
            let most = usize::try_from(stream.settings.max_consumers).unwrap_or(usize::MAX);
            if stream.consumers.len() >= most {
                return Err(spec.full());
            }
            let mut made = requested.clone();
            made.extend(made_differently);
            spec.check_created(&requested, &made)?;
            let next = match spec.start {
                CursorStart::After(sequence) => sequence.saturating_add(1),
                CursorStart::Since(millis) => {
                    let since = stream.messages.values().find(|message| message.stored_millis >= millis);
                    since.map_or(stream.last + 1, |message| message.sequence)
                }
            };
            stream.consumers.insert(spec.consumer.clone(), SimulatedConsumer::new(number, next, spec));
            Ok((number, world.connection.generation))
        })?;
        Ok(Box::new(SimulatedDeliveries {
            shared: Arc::clone(&self.shared),
            settle: Arc::new(SimulatedAckSink { shared: Arc::downgrade(&self.shared), generation }),
            stream: spec.stream.clone(),
            consumer: spec.consumer.clone(),
            number,
            generation,
            came: VecDeque::new(),
            pull: PullLimit::NONE,
            passed: watch::Sender::default(),
        }))
    }

    async fn cursor(&self, stream: &str, consumer: &str) -> Result<Option<CursorState>, BrokerError> {
        check_name("the stream", stream)?;
        check_name("the consumer", consumer)?;
        self.ask(&format!("the state of the consumer {consumer} of stream {stream}"), |world| {
            let stream = world.streams.get(stream);
            let found = stream.and_then(|stream| Some((stream.consumers.get(consumer)?, &stream.messages)));
            Ok(found.map(|(consumer, messages)| consumer.state(messages)))
        })
    }

    async fn delete_cursor(&self, stream: &str, consumer: &str) -> Result<(), BrokerError> {
        check_name("the stream", stream)?;
        check_name("the consumer", consumer)?;
        self.ask(&format!("deleting the consumer {consumer} of stream {stream}"), |world| {
            if let Some(stream) = world.streams.get_mut(stream) {
                stream.consumers.remove(consumer);
            }
            Ok(())
        })
    }

    async fn inbox(&self) -> Result<BrokerInbox, BrokerError> {
        self.ask("an inbox", |world| {
            let subject = format!("_INBOX.{}", world.next_number(0));
            let (sender, mut replies) = mpsc::channel(UNREAD_MAX);
            world.inboxes.retain(|_, inbox| !inbox.is_closed());
            world.inboxes.insert(subject.clone(), sender);
            let replies = futures_util::stream::poll_fn(move |context| replies.poll_recv(context));
            Ok(BrokerInbox::new(subject, Box::pin(replies)))
        })
    }

    async fn reply(&self, subject: &str, payload: Bytes) -> Result<(), BrokerError> {
        check_subject(subject)?;
        let what = format!("a reply to {subject}");
        self.ask(&what, |world| {
            let (size, most) = (payload.len(), world.max_payload);
            if size > most {
                return Err(BrokerError::TooLarge { what: what.clone(), size, most });
            }
            if let Some(inbox) = world.inboxes.get(subject) {
                // The reply is dropped if the inbox is full or has ended.
                let _ = inbox.try_send(payload);
            }
            Ok(())
        })
    }
}

fn not_there(stream: &str) -> BrokerError {
    BrokerError::StreamNotFound { stream: stream.to_owned() }
}
