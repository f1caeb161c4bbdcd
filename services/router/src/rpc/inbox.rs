//! Inbox of an actor, read over as many storage streams as needed.
//!
//! An inbox has no positions: a new reader receives every message that was not acknowledged. Messages handed out before
//! a stream broke off are therefore filtered out of the next one.

use std::collections::{HashSet, VecDeque};

use model::limits::INBOX_MAX;
use proto::internal::v1::message_box_service_client::MessageBoxServiceClient;
use proto::internal::v1::{WatchInboxRequest, WatchInboxResponse};
use proto::v1;
use rpc::Resumable;
use tonic::Status;
use tonic::codegen::BoxStream;

/// An inbox that is read.
pub(super) struct ResumableInbox {
    store: MessageBoxServiceClient<rpc::Channel>,
    request: WatchInboxRequest,
    handed_out: DeliveredMessages,
}

impl ResumableInbox {
    /// Creates a reader that starts with a new stream.
    pub(super) fn new(store: MessageBoxServiceClient<rpc::Channel>, request: WatchInboxRequest) -> Self {
        Self { store, request, handed_out: DeliveredMessages::default() }
    }
}

impl Resumable for ResumableInbox {
    type Answer = WatchInboxResponse;

    async fn open(&mut self) -> Result<BoxStream<WatchInboxResponse>, Status> {
        let answers = self.store.watch_inbox(self.request).await?.into_inner();
        self.handed_out.begin_again();
        Ok(Box::pin(answers))
    }

    fn note(&mut self, answer: &mut WatchInboxResponse) {
        if let Some(received) = &mut answer.received {
            self.handed_out.pass(&mut received.messages);
        }
    }
}

/// A message's number and creation time: a store that rolled back issues numbers a second time.
type InboxMessageKey = (u32, i64, i32);

/// Messages that were handed out, as many as an inbox can hold.
#[derive(Debug, Default)]
struct DeliveredMessages {
    /// Oldest first.
    known: VecDeque<InboxMessageKey>,
    /// Messages that the current stream may bring a second time.
    again: HashSet<InboxMessageKey>,
}

impl DeliveredMessages {
    /// Begins another stream, which brings every unacknowledged message again.
    fn begin_again(&mut self) {
        self.again = self.known.iter().copied().collect();
    }

    /// Keeps only messages that were not handed out before. Storage resends messages whose acknowledgement it has lost:
    /// a message that one stream brings twice passes.
    fn pass(&mut self, messages: &mut Vec<v1::Message>) {
        messages.retain(|message| {
            let time = message.create_time.unwrap_or_default();
            let known = (message.message_id, time.seconds, time.nanos);
            let is_new = !self.again.remove(&known);
            if is_new {
                self.known.push_back(known);
            }
            is_new
        });
        let beyond = self.known.len().saturating_sub(INBOX_MAX);
        self.known.drain(..beyond);
    }
}

#[cfg(test)]
mod tests {
    use model::Timestamp;

    use super::*;

    fn message(message_id: u32, millis: u64) -> v1::Message {
        let create_time = Some(proto::convert::time::to_wire(Timestamp::from_millis(millis)));
        v1::Message { message_id, create_time, ..Default::default() }
    }

    fn passed(handed_out: &mut DeliveredMessages, messages: &[(u32, u64)]) -> Vec<u32> {
        let mut messages = messages.iter().map(|(id, millis)| message(*id, *millis)).collect();
        handed_out.pass(&mut messages);
        messages.iter().map(|message| message.message_id).collect()
    }

    #[test]
    fn what_was_handed_out_before_a_break_is_not_handed_out_again() {
        let mut handed_out = DeliveredMessages::default();
        assert_eq!(passed(&mut handed_out, &[(1, 10), (2, 20)]), [1, 2]);
        assert_eq!(passed(&mut handed_out, &[(3, 30)]), [3]);
        for _ in 0..2 {
            handed_out.begin_again();
            // The second message was acknowledged; the store lost the third, and issued its number again.
            assert_eq!(passed(&mut handed_out, &[(1, 10)]), [0; 0]);
        }
        assert_eq!(passed(&mut handed_out, &[(3, 31), (4, 40)]), [3, 4]);
        assert_eq!(passed(&mut handed_out, &[(1, 10)]), [1], "storage hands it out again by itself");
    }

    #[test]
    fn no_more_is_remembered_than_an_inbox_holds() {
        let mut handed_out = DeliveredMessages::default();
        let count = u32::try_from(INBOX_MAX).expect("a small number") + 5;
        for id in 0..count {
            assert_eq!(passed(&mut handed_out, &[(id, 1)]), [id]);
        }
        handed_out.begin_again();
        assert_eq!(handed_out.again.len(), INBOX_MAX);
        assert_eq!(passed(&mut handed_out, &[(count - 1, 1), (count, 1)]), [count]);
    }
}
