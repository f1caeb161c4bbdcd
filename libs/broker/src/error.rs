//! Errors of a broker, and the ends of deliveries.

use std::fmt;
use std::time::Duration;

/// Reason why a broker did not carry out a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// No answer. The request may or may not have been carried out; every request may be repeated, a message under its id.
    #[error("{what}: the broker does not answer: {why}")]
    Unavailable {
        /// The request.
        what: String,
        /// The reason.
        why: String,
    },
    /// The request can never be carried out as it is.
    #[error("{what} is refused: {why}")]
    Refused {
        /// The request.
        what: String,
        /// The reason.
        why: String,
    },
    /// A part of a message is beyond its limit. It was not sent.
    #[error("{what} has {size} bytes, at most {most} are allowed")]
    TooLarge {
        /// The part, and its message.
        what: String,
        /// Size of the part in bytes.
        size: usize,
        /// The limit in bytes.
        most: usize,
    },
    /// The server has no stream of this name.
    #[error("the stream {stream} does not exist: its owner has to create it first")]
    StreamNotFound {
        /// The stream.
        stream: String,
    },
    /// No stream keeps messages of this subject, so nothing was stored.
    #[error(
        "no stream accepts the subject {subject}, so nothing was stored: check the subjects of the streams"
    )]
    UnroutedSubject {
        /// The subject.
        subject: String,
    },
    /// A stream has as many consumers as it may have.
    #[error(
        "the stream {stream} has reached its limit of consumers, so {consumer} was not created: \
         raise its max_consumers"
    )]
    ConsumerLimitReached {
        /// The stream.
        stream: String,
        /// The consumer that was requested.
        consumer: String,
    },
    /// The start of a cursor lies behind the end of its stream: the server rolled back, and its sequences will be reused.
    #[error(
        "the cursor {consumer} cannot start behind {after} in stream {stream}, which ends with {last}: \
         the server rolled back"
    )]
    StartBeyondEnd {
        /// The stream.
        stream: String,
        /// The consumer.
        consumer: String,
        /// The requested position.
        after: u64,
        /// The last sequence of the stream.
        last: u64,
    },
    /// The server created a consumer that differs from the request, without an error. The consumer was deleted again.
    #[error("the server made the consumer {consumer} differently: {}", listed(differences))]
    ConsumerMismatch {
        /// The consumer.
        consumer: String,
        /// Every setting that differs.
        differences: Vec<SettingDifference>,
    },
    /// An answer cannot be read.
    #[error("{what}: the answer of the broker cannot be read: {why}")]
    Unreadable {
        /// The request.
        what: String,
        /// The fault of the answer.
        why: String,
    },
}

/// A setting that is not as wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingDifference {
    /// The stream.
    pub stream: String,
    /// The setting, as the server calls it.
    pub field: String,
    /// The value that was wanted.
    pub wanted: String,
    /// The value that was found.
    pub found: String,
}

impl fmt::Display for SettingDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, field, wanted, found } = self;
        write!(f, "{stream}: {field} is {found}, wanted is {wanted}")
    }
}

fn listed(differences: &[SettingDifference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Reason why the deliveries of a cursor have ended. The cursor has to be opened again, which loses nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// The connection on which the cursor was opened is lost, even if there is another one by now.
    #[error("the connection of the cursor {consumer} was lost")]
    Disconnected {
        /// The consumer.
        consumer: String,
    },
    /// The consumer no longer exists.
    #[error("the consumer {consumer} was deleted")]
    Deleted {
        /// The consumer.
        consumer: String,
    },
    /// The server sent nothing for longer than two heartbeats.
    #[error("the server has sent nothing for the consumer {consumer} for {waited:?}")]
    Silent {
        /// The consumer.
        consumer: String,
        /// Time for which nothing came.
        waited: Duration,
    },
    /// The server refuses to deliver, or delivers an unreadable message.
    #[error("the server does not deliver to the consumer {consumer}: {why}")]
    Refused {
        /// The consumer.
        consumer: String,
        /// The reason, in the server's words where they are its.
        why: String,
    },
}
