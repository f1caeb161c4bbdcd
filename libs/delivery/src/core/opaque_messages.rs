//! Messages that are delivered whole: see [`crate::opaque_messages`].

use std::time::Duration;

use model::Timestamp;
use model::limits::LETTER_TIMEOUT_SECS_DEFAULT;
use proto::internal::v1 as wire;
use proto::internal::v1::held_message::Kind;
use tokio::time::Instant;

use super::{Core, DELIVERY_TIMEOUT, settlement};
use crate::message::MessageName;
use crate::opaque_messages::{DeliveryResult, FinishedMessage, OpaqueMessage, OutgoingDelivery};

impl Core {
    /// Takes chat, mail or jobs that were pushed to Redis into care.
    pub(super) fn take_opaque(
        &mut self,
        now: Instant,
        wall: Timestamp,
        name: MessageName,
        held: wire::HeldMessage,
    ) {
        let wire::HeldMessage { kind, timeout_ack_secs, created_millis, .. } = held;
        self.metrics.taken.inc();
        let message = match kind {
            Some(Kind::Letter(held)) => OpaqueMessage::read(name.clone(), held, (now, wall)),
            Some(Kind::RawJobs(jobs)) => {
                let until = |secs: u32| {
                    let due = Timestamp::from_millis(created_millis) + Duration::from_secs(secs.into());
                    now + due.since(wall)
                };
                // It ends some day, whatever its program says.
                let secs = if timeout_ack_secs > 0 { timeout_ack_secs } else { LETTER_TIMEOUT_SECS_DEFAULT };
                Ok(OpaqueMessage::of_jobs(name.clone(), jobs, until(secs)))
            }
            None => return,
        };
        match message {
            Ok(message) => {
                self.numbers += 1;
                self.names.insert(name, self.numbers);
                self.opaque_messages.take(self.numbers, message);
            }
            Err(error) => {
                tracing::error!(%error, message = name.1, "a direct message cannot be read and is given up");
                self.metrics.failed.inc();
                let error = format!("the direct message cannot be read: {error}");
                self.effects.settle.push(settlement(&name, error));
            }
        }
    }

    /// Sends what windows allow.
    pub(super) fn send_opaque(&mut self, now: Instant) {
        let up = (self.gateway_up, self.reports.is_any_up());
        let numbers = &mut self.numbers;
        let sendings = self.opaque_messages.send(now, up, DELIVERY_TIMEOUT, || {
            *numbers += 1;
            *numbers
        });
        for sending in sendings {
            match sending {
                OutgoingDelivery::DirectMessage(message) => self.effects.letters.push(message),
                OutgoingDelivery::Jobs(delivery, submit) => self.effects.submit.push((delivery, submit)),
            }
        }
    }

    /// A delivery of one of them has ended.
    pub(super) fn opaque_delivered(&mut self, now: Instant, delivery: u64, outcome: DeliveryResult) {
        if matches!(outcome, DeliveryResult::Failed(_)) {
            self.metrics.retries.inc();
        }
        let jitter = (self.jitter)();
        let ended = self.opaque_messages.delivered(now, delivery, outcome, jitter);
        self.settle_opaque(ended);
    }

    /// Settles messages that have ended. Should that be lost, a message comes and is sent again: its receiver
    /// recognizes it.
    pub(super) fn settle_opaque(&mut self, ended: impl IntoIterator<Item = FinishedMessage>) {
        for FinishedMessage { name, error, flow_id } in ended {
            self.names.remove(&name);
            match &*error {
                "" => self.metrics.acknowledged.inc(),
                _ => {
                    tracing::info!(message = name.1, context = %name.0, error, "a message will not arrive");
                    self.metrics.failed.inc();
                }
            }
            self.effects.settle.push(wire::Settlement { flow_id, ..settlement(&name, error) });
        }
    }
}
