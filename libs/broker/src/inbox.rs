//! Inboxes for replies, which are not persisted.

use std::fmt;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;

/// A private subject, and the replies that come to it. Beyond 1,024 unread replies, later ones are dropped.
pub struct BrokerInbox {
    subject: String,
    replies: BoxStream<'static, Bytes>,
}

impl BrokerInbox {
    pub(crate) fn new(subject: String, replies: BoxStream<'static, Bytes>) -> Self {
        Self { subject, replies }
    }

    /// Where replies are sent to.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Waits for the next reply; nothing once the connection is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.replies.next().await
    }
}

impl fmt::Debug for BrokerInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BrokerInbox({})", self.subject)
    }
}
