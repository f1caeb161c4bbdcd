//! Acknowledgements, which are sent and never believed.

use std::fmt;
use std::sync::Arc;

/// Sender of acknowledgements, which drops those that it cannot send at once.
pub(crate) trait AckSink: Send + Sync {
    /// Acknowledges the message as settled.
    fn ack(&self, token: &str);

    /// Reports that the message is still being worked on.
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

    /// Acknowledges the message as settled, so that the server sends others. The acknowledgement may be lost unnoticed.
    pub fn ack(&self) {
        self.settle.ack(&self.token);
    }

    /// Reports that the message is still being worked on, so that the server does not redeliver it within another
    /// `ack_wait`. The report may be lost unnoticed.
    pub fn progress(&self) {
        self.settle.progress(&self.token);
    }
}

impl fmt::Debug for ReceiptHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiptHandle({})", self.token)
    }
}
