//! Deliveries of a simulated broker.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::SimulatedBrokerState;
use super::server::SimulatedServer;
use crate::cursor::PULL_MESSAGES_MAX;
use crate::receipt::AckSink;
use crate::{CursorError, CursorProgress, Deliveries, PullLimit, ReceiptHandle, StreamDelivery};

/// Deliveries over one connection.
pub(super) struct SimulatedDeliveries {
    pub(super) shared: Arc<SimulatedBrokerState>,
    pub(super) settle: Arc<dyn AckSink>,
    pub(super) stream: String,
    pub(super) consumer: String,
    pub(super) number: u64,
    pub(super) generation: u64,
    /// Deliveries that came and were not read yet: they can be read when the connection is gone.
    pub(super) came: VecDeque<StreamDelivery>,
    /// Rest of the pull that is under way.
    pub(super) pull: PullLimit,
    pub(super) passed: watch::Sender<CursorProgress>,
}

/// Delivery that came, or the moment until which nothing can come by itself.
enum DeliveryPoll {
    Came(Box<StreamDelivery>),
    Nothing { due: Option<u64> },
}

impl SimulatedDeliveries {
    fn turn(&mut self, room: PullLimit) -> Result<DeliveryPoll, CursorError> {
        if let Some(delivered) = self.came.pop_front() {
            return Ok(DeliveryPoll::Came(Box::new(delivered)));
        }
        let shared = Arc::clone(&self.shared);
        let now = shared.clock.now();
        let mut world = shared.world();
        let due = self.fill(&mut world, room, now)?;
        Ok(self
            .came
            .pop_front()
            .map_or(DeliveryPoll::Nothing { due }, |delivered| DeliveryPoll::Came(Box::new(delivered))))
    }

    /// Delivers messages while the pull has room; returns when the next redelivery is due.
    fn fill(
        &mut self,
        world: &mut SimulatedServer,
        room: PullLimit,
        now: u64,
    ) -> Result<Option<u64>, CursorError> {
        if !world.connection.connected || world.connection.generation != self.generation {
            return Err(CursorError::Disconnected { consumer: self.consumer.clone() });
        }
        let deleted = || CursorError::Deleted { consumer: self.consumer.clone() };
        let stream = world.streams.get_mut(&self.stream).ok_or_else(deleted)?;
        let consumer = stream.consumers.get_mut(&self.consumer).ok_or_else(deleted)?;
        if consumer.number != self.number {
            return Err(deleted());
        }
        if !self.pull.is_open() {
            self.pull = PullLimit { messages: room.messages.min(PULL_MESSAGES_MAX), ..room };
        }
        while self.pull.is_open() {
            // The first message is delivered whatever its size.
            let bytes = if self.came.is_empty() { usize::MAX } else { self.pull.bytes };
            let Some(taken) = consumer.take(&stream.messages, now, bytes) else { break };
            let message = taken.message;
            self.pull.messages -= 1;
            self.pull.bytes = self.pull.bytes.saturating_sub(message.payload.len());
            if taken.is_lost {
                continue;
            }
            let token = format!("{}/{}/{}", self.stream, self.consumer, message.sequence);
            self.came.push_back(StreamDelivery {
                subject: message.subject,
                headers: message.headers,
                payload: message.payload,
                sequence: message.sequence,
                count: taken.count,
                attempt: taken.attempt,
                stored_millis: message.stored_millis,
                pending: taken.pending,
                receipt: ReceiptHandle::new(Arc::clone(&self.settle), &token),
            });
        }
        if let Some(passed) =
            consumer.scan_progress(&stream.messages, stream.last).filter(|_| self.came.is_empty())
        {
            self.passed.send_if_modified(|progress| std::mem::replace(progress, passed) != passed);
        }
        Ok(consumer.due())
    }
}

#[async_trait]
impl Deliveries for SimulatedDeliveries {
    async fn next(&mut self, room: PullLimit) -> Result<StreamDelivery, CursorError> {
        loop {
            let mut changed = self.shared.changed.subscribe();
            let due = match self.turn(room)? {
                DeliveryPoll::Came(delivered) => return Ok(*delivered),
                DeliveryPoll::Nothing { due } => due.filter(|_| self.pull.is_open()),
            };
            let repeat = async {
                match due {
                    Some(due) => self.shared.clock.wait_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // An error means that the broker was dropped, but `self` holds a part of it.
                _ = changed.changed() => {}
                () = repeat => {}
            }
        }
    }

    fn progress(&self) -> watch::Receiver<CursorProgress> {
        self.passed.subscribe()
    }
}

/// Acknowledgements of what came over one connection.
pub(super) struct SimulatedAckSink {
    pub(super) shared: std::sync::Weak<SimulatedBrokerState>,
    pub(super) generation: u64,
}

impl SimulatedAckSink {
    fn settle(&self, token: &str, how: impl FnOnce(&mut super::server::SimulatedConsumer, u64, u64)) {
        let Some(shared) = self.shared.upgrade() else { return };
        let now = shared.clock.now();
        shared.change(|world| {
            let mut parts = token.split('/');
            let (Some(stream), Some(consumer), Some(sequence)) = (parts.next(), parts.next(), parts.next())
            else {
                return;
            };
            let is_open = world.connection.connected && world.connection.generation == self.generation;
            let stream = world.streams.get_mut(stream).filter(|_| is_open);
            // A consumer that was recreated under the same name receives it as well.
            let consumer = stream.and_then(|stream| stream.consumers.get_mut(consumer));
            if let Some((consumer, sequence)) = consumer.zip(sequence.parse().ok()) {
                how(consumer, sequence, now);
            }
        });
    }
}

impl AckSink for SimulatedAckSink {
    fn ack(&self, token: &str) {
        self.settle(token, |consumer, sequence, _| consumer.ack(sequence));
    }

    fn progress(&self, token: &str) {
        self.settle(token, |consumer, sequence, now| consumer.progress(sequence, now));
    }
}
