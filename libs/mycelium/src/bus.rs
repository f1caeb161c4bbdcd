//! The bus: payloads to a node under a topic.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

/// Payloads that may wait in an inbox; whoever sends more is held back, or loses them where the
/// transport cannot hold back.
pub const INBOX_LEN: usize = 256;
/// A topic's length, as the daemon limits it.
pub const TOPIC_BYTES_MAX: usize = 255;

/// The public key of a node, which is its identity: 32 bytes, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// From its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Draws one that nobody has; for buses whose nodes need no secret key.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }
}

/// The text is no public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a node's public key is written as 64 lower-case hex digits")]
pub struct BadPublicKey;

impl FromStr for PublicKey {
    type Err = BadPublicKey;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(BadPublicKey);
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| BadPublicKey)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where a payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Destination {
    /// The node with this key. Needs no look-up.
    Key(PublicKey),
    /// The node with this overlay address.
    Ip(Ipv6Addr),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => key.fmt(f),
            Self::Ip(ip) => write!(f, "[{ip}]"),
        }
    }
}

/// A payload that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    /// Who sent it. Authenticated by the transport.
    pub from: PublicKey,
    /// What it carries.
    pub payload: Bytes,
}

/// Why a payload was not handed over, or a topic not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// No such node is known, or nobody there listens to the topic.
    #[error("{destination} cannot be reached under `{topic}`")]
    Unreachable {
        /// Where the payload was to go.
        destination: String,
        /// Under which topic.
        topic: String,
    },
    /// Somebody listens to the topic already.
    #[error("the topic `{0}` has a listener already")]
    TopicTaken(String),
    /// A topic is empty or longer than [`TOPIC_BYTES_MAX`].
    #[error("a topic has 1 to 255 bytes, this one has {0}")]
    BadTopic(usize),
}

/// Carries payloads between nodes: fire and forget.
///
/// That a send succeeded means that the payload left, not that it arrived, still less that anybody
/// acted on it: whoever needs to know has to be answered. Nothing survives a restart of either side.
#[async_trait]
pub trait Bus: Send + Sync + 'static {
    /// This node's own key.
    fn key(&self) -> PublicKey;

    /// What carries the payloads, for people: `memory`.
    fn kind(&self) -> &'static str;

    /// Looks up whose overlay address this is.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] while no route to it is known.
    async fn key_of(&self, ip: Ipv6Addr) -> Result<PublicKey, BusError>;

    /// Hands a payload over; waits while the way is full. Dropping the future sends nothing.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] where the transport knows at once, [`BusError::BadTopic`].
    async fn send(&self, to: Destination, topic: &str, payload: Bytes) -> Result<(), BusError>;

    /// Begins to listen to a topic, until the inbox is dropped.
    ///
    /// # Errors
    /// [`BusError::TopicTaken`], [`BusError::BadTopic`].
    fn listen(&self, topic: &str) -> Result<Inbox, BusError>;
}

/// What comes in under one topic, in the order it came.
#[derive(Debug)]
pub struct Inbox(mpsc::Receiver<Incoming>);

impl Inbox {
    /// From a channel that a bus fills.
    #[must_use]
    pub const fn new(payloads: mpsc::Receiver<Incoming>) -> Self {
        Self(payloads)
    }

    /// Waits for the next payload; none when the bus is gone. Loses nothing when dropped.
    pub async fn next(&mut self) -> Option<Incoming> {
        self.0.recv().await
    }
}

/// Refuses what the daemon would refuse.
pub(crate) fn check_topic(topic: &str) -> Result<(), BusError> {
    if topic.is_empty() || topic.len() > TOPIC_BYTES_MAX {
        return Err(BusError::BadTopic(topic.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_spelling() {
        let key = PublicKey::random();
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(key.to_string().replace(char::is_numeric, "A").parse::<PublicKey>(), Err(BadPublicKey));
        assert_eq!("ab".parse::<PublicKey>(), Err(BadPublicKey));
    }
}
