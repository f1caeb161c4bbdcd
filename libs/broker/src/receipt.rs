//! Acknowledgements, which are sent and never believed.

use std::fmt;
use std::sync::Arc;

/// Carrier of acknowledgements, which drops those that it cannot send at once.
pub(crate) trait AckSink: Send + Sync {
    /// Says that the message is settled.
    fn ack(&self, token: &str);

    /// Says that the message is being worked on.
    fn progress(&self, token: &str);
}

/// Handle with which a delivery is acknowledged. Cheap to clone, and without effect once its connection is gone.
#[derive(Clone)]
pub struct ReceiptHandle {
    settle: Arc<dyn AckSink>,
    token: Arc<str>,
}

impl ReceiptHandle {
    pub(crate) fn new(settle: Arc<dyn AckSink>, token: &str) -> Self {
        Self { settle, token: token.into() }
    }

    /// Tells the server that the message is settled, so that it sends others. Whether the server hears it is never known.
    pub fn ack(&self) {
        self.settle.ack(&self.token);
    }

    /// Tells the server that the message is being worked on, so that it does not send it again within another `ack_wait`. Whether
    /// the server hears it is never known.
    pub fn progress(&self) {
        self.settle.progress(&self.token);
    }
}

impl fmt::Debug for ReceiptHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiptHandle({})", self.token)
    }
}
