//! Inputs as sources of a saga's lane bring them: queued behind their correlation, or settled.

use model::{CorrelationId, Timestamp};
use workflow::cursor::DeliveryClass;
use workflow::message::MessagePosition;
use workflow::subject::ConsumerSource;

use super::intake::{SagaIncomingMessage, SagaRoutedMessage};
use super::{QueuedInput, SagaLaneOwner};
use crate::lane::LaneExit;
use crate::lane::in_flight::{InFlightGuard, OpenReceipt};
use crate::lane::source::{SourceEvent, SourceReaderCommand};
use crate::spans;

impl SagaLaneOwner {
    /// Takes in what a source brought.
    pub(super) fn take_in(&mut self, number: usize, brought: SourceEvent) -> Result<(), LaneExit> {
        let Some(state) = self.sources.get_mut(number) else { return Ok(()) };
        match brought {
            SourceEvent::Opened(checkpoint) => state.opened(checkpoint),
            SourceEvent::Passed(passed) => state.pass(passed),
            SourceEvent::Lost => {
                state.lost();
                self.forget(number);
                self.is_lost[number] = true;
                self.open_again(number);
            }
            SourceEvent::Message(message, in_flight) => match state.deliver(&message) {
                // A late delivery of a cursor that was given up.
                None => {}
                Some(DeliveryClass::InFlight) => message.receipt.progress(),
                Some(DeliveryClass::Anew(disorder)) => {
                    tracing::info!(lane = %self.shared.rows.lane, source = %state.source, why = disorder.as_str(), "deliveries are out of order");
                    state.lost();
                    self.forget(number);
                    self.command_reader(number, SourceReaderCommand::Drop);
                }
                Some(DeliveryClass::Next) => {
                    self.sort(number, &message, in_flight)?;
                    self.look_behind_sources();
                }
            },
        }
        Ok(())
    }

    /// Has a new cursor opened for a source that lost its own, once no input of the old one is worked on.
    pub(super) fn open_again(&mut self, number: usize) {
        if self.is_lost[number] && self.working_of[number] == 0 && !self.is_target(number) {
            self.is_lost[number] = false;
            self.command_reader(number, SourceReaderCommand::Open);
        }
    }

    pub(super) fn command_reader(&self, number: usize, command: SourceReaderCommand) {
        if self.readers[number].try_send(command).is_err() {
            // Either the reader has ended, and the lane with it, or earlier commands that say the same are still unread.
            tracing::debug!(lane = %self.shared.rows.lane, number, word = ?command, "the reader of a source does not hear");
        }
    }

    /// Forgets where waiting messages of a source came from, since their positions belong to another cursor. They are delivered again,
    /// and are recognised then.
    pub(super) fn forget(&mut self, number: usize) {
        self.queues.each_waiting(|item| {
            if item.from.is_some_and(|(source, _)| source == number) {
                item.from = None;
                item.receipt = None;
            }
        });
        let stalled = self.stalled.iter_mut().map(|(_, item, _)| item);
        let blocked = self.blocked.items().chain(self.starved.items());
        for item in
            stalled.chain(blocked).filter(|item| item.from.is_some_and(|(source, _)| source == number))
        {
            item.from = None;
            item.receipt = None;
        }
    }

    /// Puts a message into the queue of its correlation, or settles it.
    pub(super) fn sort(
        &mut self,
        number: usize,
        message: &broker::StreamDelivery,
        in_flight: InFlightGuard,
    ) -> Result<(), LaneExit> {
        let Some(state) = self.sources.get(number) else { return Ok(()) };
        let came = SagaIncomingMessage {
            subject: &message.subject,
            payload: &message.payload,
            time: Timestamp::from_millis(message.stored_millis),
            at: MessagePosition { incarnation: state.incarnation(), sequence: message.sequence },
        };
        match self.shared.intake(&state.source, came) {
            Err(ended) => {
                self.shared.rows.around().metrics.foreign_messages.inc();
                Err(ended)
            }
            Ok(SagaRoutedMessage::Nothing) => {
                self.settle(number, message.sequence, false);
                message.receipt.ack();
                Ok(())
            }
            Ok(SagaRoutedMessage::SetBack(setting)) => {
                self.begin_set_back(setting, number, message);
                Ok(())
            }
            Ok(SagaRoutedMessage::Of(correlation, what)) => {
                let from = Some((number, message.sequence));
                let is_result = matches!(state.source, ConsumerSource::Results(_));
                let cause = if is_result { spans::cause_of(&message.payload) } else { None };
                let receipt = Some(OpenReceipt::new(message.receipt.clone(), in_flight));
                let item = QueuedInput { what, from, receipt, cause };
                self.push(correlation, item, message.payload.len());
                Ok(())
            }
        }
    }

    pub(super) fn push(&mut self, correlation: CorrelationId, item: QueuedInput, bytes: usize) {
        // No input overtakes one of its correlation that waits for room.
        if self.stalled.iter().any(|(stalled, ..)| *stalled == correlation) {
            self.stalled.push_back((correlation, item, bytes));
            return;
        }
        if let Err(item) = self.queues.push(&correlation, item, bytes) {
            self.stalled.push_back((correlation, item, bytes));
        }
    }

    /// Moves inputs that found no room into their queues, once there is some.
    pub(super) fn unstall(&mut self) {
        for (correlation, item, bytes) in std::mem::take(&mut self.stalled) {
            self.push(correlation, item, bytes);
        }
    }

    pub(super) fn settle(&mut self, number: usize, sequence: u64, is_noted: bool) {
        if let Some(state) = self.sources.get_mut(number) {
            state.settle(sequence, is_noted);
            state.tidy();
        }
    }
}
