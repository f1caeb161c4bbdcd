//! Broker of sagas: publishing, cursors, and checks of streams.
//!
//! A broker is trusted little. The owner of a cursor keeps its position, acknowledgements only change what the server
//! displays, and anything that could bring an old message behind a newer one ends the deliveries, so that the owner
//! recreates the cursor (decisions 90 and 91).
//!
//! - [`MessageBroker`]: the interface of every broker.
//! - [`JetStream`]: NATS JetStream, version 2.9 or later.
//! - `SimulatedBroker`: a broker in memory with levers that break it, for tests (feature `simulated`).

mod cursor;
mod error;
mod inbox;
mod inspect;
mod jetstream;
mod message;
mod receipt;
#[cfg(feature = "simulated")]
mod simulated;
mod stream;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

pub use cursor::{CursorProgress, CursorSpec, CursorStart, CursorState, PullLimit, StreamDelivery};
pub use error::{BrokerError, CursorError, SettingDifference};
pub use inbox::BrokerInbox;
pub use inspect::ConsumerListing;
pub use jetstream::{JetStream, JetStreamLogin, JetStreamOptions, JetStreamTls};
pub use message::{
    HEADER_BYTES_MAX, Headers, MESSAGE_ID, Publication, PublicationAck, PublicationFuture, StoredMessage,
};
pub use receipt::ReceiptHandle;
#[cfg(feature = "simulated")]
pub use simulated::{ManualClock, RuntimeClock, SimulatedBroker, SimulationClock};
pub use stream::{StreamDiscard, StreamRetention, StreamSettings, StreamSpec, StreamState, StreamStorage};

/// State of the connection to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BrokerConnectionStatus {
    /// True while there is one.
    pub connected: bool,
    /// Number of the connection, counted from 1. Cursors and inboxes of earlier connections have ended.
    pub generation: u64,
}

/// Version of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrokerVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

impl BrokerVersion {
    /// The oldest server that lanes run on.
    pub const OLDEST: Self = Self { major: 2, minor: 9, patch: 10 };

    /// Reads `2.9.10` or `v2.12.0-RC.1`; nothing where three numbers are missing.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.trim_start_matches('v').split(['-', '+']).next()?;
        let mut numbers = numbers.split('.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Self { major: next()?, minor: next()?, patch: next()? })
    }
}

impl std::fmt::Display for BrokerVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { major, minor, patch } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Self-description of the server that is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerDescription {
    /// The version as the server writes it.
    pub version_text: String,
    /// The version, where its text can be read.
    pub version: Option<BrokerVersion>,
    /// The largest message that the server takes, in bytes of headers and payload.
    pub max_payload: usize,
}

/// A broker of messages.
#[async_trait]
pub trait MessageBroker: Send + Sync {
    /// Describes the server that is connected now.
    ///
    /// # Errors
    /// [`BrokerError::Unavailable`] when none is.
    fn server(&self) -> Result<BrokerDescription, BrokerError>;

    /// Follows the connection. Every change of the generation means that cursors and inboxes have ended.
    fn connection(&self) -> watch::Receiver<BrokerConnectionStatus>;

    /// Describes a stream; returns `None` where there is none of this name.
    ///
    /// # Errors
    /// [`BrokerError`]; may be repeated.
    async fn stream(&self, name: &str) -> Result<Option<StreamState>, BrokerError>;

    /// Creates a stream as specified. An existing stream is left alone, whatever its settings.
    ///
    /// # Errors
    /// [`BrokerError`]; may be repeated.
    async fn create_stream(&self, spec: &StreamSpec) -> Result<(), BrokerError>;

    /// Reads a message of a stream; returns `None` where there is none with this sequence.
    ///
    /// # Errors
    /// [`BrokerError::StreamNotFound`] without such a stream; may be repeated.
    async fn message(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError>;

    /// Sends a message, and returns a future of its acknowledgement. Several may be in flight: within one connection they
    /// are stored in the order of the calls, and where one is lost with the connection, so is everything sent after it on
    /// that connection.
    ///
    /// Cancel-safe: a call that is dropped before it answers has sent nothing.
    ///
    /// # Errors
    /// [`BrokerError::TooLarge`] and [`BrokerError::Refused`] for what can never be sent; [`BrokerError::Unavailable`] within a
    /// bounded time when there is no connection, or no room for more.
    async fn publish(&self, outgoing: Publication) -> Result<PublicationFuture, BrokerError>;

    /// Opens a cursor: deletes the consumer of this name, creates it again from the requested start, and compares the
    /// result with the request. The returned deliveries are the only puller of the consumer.
    ///
    /// # Errors
    /// [`BrokerError::StartBeyondEnd`] when the start lies behind the end of the stream, which means that the server rolled
    /// back; [`BrokerError::ConsumerMismatch`] when the server created another consumer, which is deleted again;
    /// [`BrokerError::StreamNotFound`] without such a stream; [`BrokerError::ConsumerLimitReached`] where the stream may
    /// have no more consumers.
    async fn open(&self, spec: &CursorSpec) -> Result<Box<dyn Deliveries>, BrokerError>;

    /// Describes a consumer; returns `None` where there is none of this name, or no such stream.
    ///
    /// # Errors
    /// [`BrokerError`]; may be repeated.
    async fn cursor(&self, stream: &str, consumer: &str) -> Result<Option<CursorState>, BrokerError>;

    /// Deletes a consumer, if it is there.
    ///
    /// # Errors
    /// [`BrokerError`]; may be repeated.
    async fn delete_cursor(&self, stream: &str, consumer: &str) -> Result<(), BrokerError>;

    /// Opens a subject of its own for replies, which ends with the connection.
    ///
    /// # Errors
    /// [`BrokerError::Unavailable`].
    async fn inbox(&self) -> Result<BrokerInbox, BrokerError>;

    /// Sends a reply to an inbox. The reply is not acknowledged, and is lost where the inbox has ended.
    ///
    /// # Errors
    /// [`BrokerError::Unavailable`], [`BrokerError::TooLarge`], and [`BrokerError::Refused`] for an invalid subject.
    async fn reply(&self, subject: &str, payload: Bytes) -> Result<(), BrokerError>;

    /// Compares a stream with a specification, and changes nothing.
    ///
    /// # Errors
    /// [`BrokerError::StreamNotFound`] without such a stream; may be repeated.
    async fn check_stream(&self, spec: &StreamSpec) -> Result<Vec<SettingDifference>, BrokerError> {
        let state = self.stream(&spec.name).await?;
        let state = state.ok_or_else(|| BrokerError::StreamNotFound { stream: spec.name.clone() })?;
        Ok(spec.differences(&state.settings))
    }

    /// Creates a stream that does not exist, and compares its settings. Never alters an existing one.
    ///
    /// # Errors
    /// [`BrokerError`]; may be repeated.
    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<Vec<SettingDifference>, BrokerError> {
        match self.check_stream(spec).await {
            Err(BrokerError::StreamNotFound { .. }) => {
                self.create_stream(spec).await?;
                self.check_stream(spec).await
            }
            checked => checked,
        }
    }
}

/// The deliveries of one cursor, in the order of the stream until they end.
#[async_trait]
pub trait Deliveries: Send {
    /// Waits for the next message. Pulls at most as much as `room` allows, once the previous pull has ended, and nothing
    /// for [`PullLimit::NONE`]: an owner that stops calling, or has no room, pulls nothing more.
    ///
    /// Cancel-safe: no message is lost by a call that is dropped.
    ///
    /// # Errors
    /// [`CursorError`] states why the deliveries have ended. The cursor has to be opened again.
    async fn next(&mut self, room: PullLimit) -> Result<StreamDelivery, CursorError>;

    /// Follows how far the server has looked while no message came. The server reports this while a pull is in flight, so
    /// no request is needed. The value changes within [`Deliveries::next`].
    fn progress(&self) -> watch::Receiver<CursorProgress>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let version = |major, minor, patch| Some(BrokerVersion { major, minor, patch });
        assert_eq!(BrokerVersion::parse("2.9.10"), version(2, 9, 10));
        assert_eq!(BrokerVersion::parse("v2.12.0-RC.1"), version(2, 12, 0));
        assert_eq!(BrokerVersion::parse("2.9"), None);
        assert_eq!(BrokerVersion::parse("two"), None);
        assert!(BrokerVersion::parse("2.10.0") > BrokerVersion::parse("2.9.10"));
    }
}
