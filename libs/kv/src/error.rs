//! Errors of this crate, by what the caller can do about them.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// A command that gave no answer, or not the one that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The command was not executed: there is no connection, or the server is not ready.
    #[error("Redis at {endpoint} cannot be reached: {reason}")]
    Unreachable {
        /// Which server, without credentials.
        endpoint: String,
        /// Failure that the attempt ran into.
        reason: String,
    },
    /// The command was sent, and its outcome is not known. The caller has to repeat the change
    /// in a way that detects "already applied".
    #[error("the outcome of a command sent to Redis at {endpoint} is unknown: {reason}")]
    UnknownOutcome {
        /// Which server, without credentials.
        endpoint: String,
        /// Timeout, or how the connection was lost.
        reason: String,
    },
    /// The change was not made: the server at hand cannot make it as durable as requested. Others may, or it may later.
    #[error("Redis at {endpoint} takes no changes: {reason}")]
    Unfit {
        /// Which server, without credentials.
        endpoint: String,
        /// Description of what the server lacks, and what helps.
        reason: String,
    },
    /// The server, or a script, refused. Scripts answer `CODE message`.
    #[error("Redis refused: {code} {message}")]
    Refused {
        /// The first word of the answer.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// The server is a replica and takes no writes.
    #[error("Redis is a read-only replica: {0}")]
    Readonly(String),
    /// The server is out of memory and takes no writes.
    #[error("Redis is out of memory: {0}")]
    Oom(String),
    /// The server cannot write to its disk, and takes no changes until it can. Nothing was changed.
    #[error("the disk of Redis takes no writes: {0}")]
    DiskFull(String),
    /// The answer has another shape than the caller expected.
    #[error("unexpected answer from Redis: {0}")]
    Protocol(String),
}

impl Error {
    /// The code of a refusal, for callers that handle refusals differently.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Returns true when the command certainly changed nothing and can simply be sent again later.
    #[must_use]
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Returns true when the server cannot be worked with for now, whatever became of the command:
    /// wait and try again what may be repeated.
    #[must_use]
    pub const fn is_connection_trouble(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::UnknownOutcome { .. } | Self::Unfit { .. } | Self::DiskFull(_)
        )
    }

    /// Converts an error of an attempt to connect: nothing was executed yet.
    pub(crate) fn of_connecting(endpoint: &str, error: &RedisError) -> Self {
        match Self::of_command(endpoint, error) {
            Self::UnknownOutcome { endpoint, reason } => Self::Unreachable { endpoint, reason },
            // A wrong database or password does not heal by itself; everything else may.
            other => other,
        }
    }

    /// Converts an error of a command that was handed to a connection.
    pub(crate) fn of_command(endpoint: &str, error: &RedisError) -> Self {
        let detail = || error.detail().unwrap_or_default().to_owned();
        match error.kind() {
            ErrorKind::Io => {
                Self::UnknownOutcome { endpoint: endpoint.to_owned(), reason: error.to_string() }
            }
            ErrorKind::Server(ServerErrorKind::ReadOnly) => Self::Readonly(detail()),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain,
            ) => Self::Unreachable {
                endpoint: endpoint.to_owned(),
                reason: format!("{} {}", error.code().unwrap_or_default(), detail()),
            },
            ErrorKind::AuthenticationFailed => {
                Self::Refused { code: "WRONGPASS".to_owned(), message: error.to_string() }
            }
            _ => match error.code() {
                Some("OOM") => Self::Oom(detail()),
                // What cannot be appended, or saved, is refused: almost always for want of room.
                Some("MISCONF") => Self::DiskFull(detail()),
                // BUSY: another script runs for too long, and ours was not begun. NOREPLICAS: too few replicas are there for a
                // write. UNBLOCKED: a waiting command was ended because the server is a replica now.
                Some("BUSY" | "NOREPLICAS" | "UNBLOCKED") => {
                    Self::Unreachable { endpoint: endpoint.to_owned(), reason: detail() }
                }
                // There are as many connections as there may be, or too little memory for one more.
                Some("ERR") if detail().starts_with("max number of clients") => {
                    Self::Unreachable { endpoint: endpoint.to_owned(), reason: detail() }
                }
                Some(code) => Self::Refused { code: code.to_owned(), message: detail() },
                None => Self::Protocol(error.to_string()),
            },
        }
    }

    /// Converts an error inside an answer.
    pub(crate) fn of_reply(endpoint: &str, error: redis::ServerError) -> Self {
        Self::of_command(endpoint, &RedisError::from(error))
    }

    pub(crate) fn shape(expected: &str, got: &crate::Value) -> Self {
        let mut shown = format!("{got:?}");
        if let Some((cut, _)) = shown.char_indices().nth(200) {
            shown.truncate(cut);
            shown.push('…');
        }
        Self::Protocol(format!("expected {expected}, got {shown}"))
    }
}
