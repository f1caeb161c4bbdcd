//! Why jobs are not accepted.

use kv::Error;

/// Why a job was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobAcceptError {
    /// The key is known with other content. Lasting.
    #[error("KEY_CONFLICT: {0}")]
    KeyConflict(String),
    /// The job was stopped before it arrived. Permanent.
    #[error("STOPPED: {0}")]
    Stopped(String),
    /// The job's context belongs to another coordinator. Permanent.
    #[error("CONTEXT_CLAIMED: {0}")]
    ContextClaimed(String),
    /// The job's coordinator has deleted the context. Permanent.
    #[error("CONTEXT_DROPPED: {0}")]
    ContextDropped(String),
    /// The signature of the job's actor belongs to another job. Permanent.
    #[error("SIGNATURE_REFUSED: {0}")]
    SignatureRefused(String),
    /// The job was known when it was looked up, and is known no longer. Transient: offered again, it is a new job.
    #[error("FORGOTTEN: {0}")]
    Forgotten(String),
    /// The job's coordinator has another root key now. Transient: the holder of that key may offer the job.
    #[error("ROOT_SUCCEEDED: {0}")]
    RootSucceeded(String),
    /// There is no room. Transient.
    #[error("QUEUE_FULL: {0}")]
    QueueFull(String),
    /// Redis gave trouble; the same offer may be made again.
    #[error("the queue cannot be reached")]
    Store(#[source] Error),
}

impl JobAcceptError {
    /// The code that coordinators get.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::KeyConflict(_) => "KEY_CONFLICT",
            Self::Stopped(_) => "STOPPED",
            Self::ContextClaimed(_) => "CONTEXT_CLAIMED",
            Self::ContextDropped(_) => "CONTEXT_DROPPED",
            Self::SignatureRefused(_) => "SIGNATURE_REFUSED",
            Self::QueueFull(_) => "QUEUE_FULL",
            Self::RootSucceeded(_) => "ROOT_SUCCEEDED",
            Self::Store(Error::DiskFull(_)) => "DISK_FULL",
            Self::Store(Error::Oom(_)) => "STORE_FULL",
            Self::Forgotten(_) | Self::Store(_) => "UNAVAILABLE",
        }
    }

    /// Returns true for an error that offering the job again cannot resolve.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        match self {
            Self::KeyConflict(_)
            | Self::Stopped(_)
            | Self::ContextClaimed(_)
            | Self::ContextDropped(_)
            | Self::SignatureRefused(_) => true,
            Self::Forgotten(_) | Self::QueueFull(_) | Self::RootSucceeded(_) | Self::Store(_) => false,
        }
    }

    pub(crate) fn of(error: Error) -> Self {
        match error {
            Error::Refused { code, message } => match code.as_str() {
                "KEY_CONFLICT" => Self::KeyConflict(message),
                "STOPPED" => Self::Stopped(message),
                "CONTEXT_CLAIMED" => Self::ContextClaimed(message),
                "CONTEXT_DROPPED" => Self::ContextDropped(message),
                "SIGNATURE_REFUSED" => Self::SignatureRefused(message),
                "FORGOTTEN" => Self::Forgotten(message),
                "QUEUE_FULL" => Self::QueueFull(message),
                "ROOT_SUCCEEDED" => Self::RootSucceeded(message),
                _ => Self::Store(Error::Refused { code, message }),
            },
            other => Self::Store(other),
        }
    }
}
