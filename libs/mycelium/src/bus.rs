//! The bus: payloads to a node under a topic.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// Payloads that may wait in an inbox; beyond it senders are held back, or lose payloads where the
/// transport cannot hold back.
pub const INBOX_LEN: usize = 256;
/// By how much the clocks of two machines may differ, for everything here that holds until some moment.
pub const CLOCK_SKEW: Duration = Duration::from_secs(120);
/// A topic's length, as the daemon limits it.
pub const TOPIC_BYTES_MAX: usize = 255;

/// The public key of a node, which is its identity: 32 bytes, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Makes a key of its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the key's bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Draws a random key, for buses whose nodes need no secret key.
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

/// Destination of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BusDestination {
    /// The node with this key. Needs no lookup.
    Key(PublicKey),
    /// The node with this overlay address.
    Ip(Ipv6Addr),
}

impl fmt::Display for BusDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => key.fmt(f),
            Self::Ip(ip) => write!(f, "[{ip}]"),
        }
    }
}

/// How a payload is wrapped on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PayloadForm {
    /// With a frame: numbered, acknowledged by the bus at the other end, in parts when it is long.
    #[default]
    Framed,
    /// Without a frame, for nodes that know only JSON-RPC: begins with `{` or `[`. The bus at the other
    /// end does not acknowledge it, so it may arrive twice, and long ones not at all.
    Plain,
}

/// A payload to be sent.
#[derive(Debug, Clone)]
pub struct Datagram<'a> {
    /// Destination of the payload.
    pub to: BusDestination,
    /// Topic of the payload.
    pub topic: &'a str,
    /// Bytes to carry.
    pub payload: Bytes,
    /// How it is wrapped.
    pub form: PayloadForm,
    /// Time after which the payload is of no use; the bus's own limit when absent. A receiver that gets it
    /// later drops it, where the bus carries the deadline.
    pub deadline: Option<Instant>,
    /// Message that this payload answers, when its sender waits for a bare reply instead of one under a topic.
    pub reply_to: Option<ReplyTo>,
}

/// A plain message that came in, as its bus names it: its sender may wait for a bare reply to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyTo(pub(crate) String);

/// A payload that came in.
#[derive(Debug)]
pub struct IncomingPayload {
    /// Sender of the payload, authenticated by the transport.
    pub from: PublicKey,
    /// Bytes that were carried.
    pub payload: Bytes,
    /// How the payload was wrapped.
    pub form: PayloadForm,
    /// Signals to the bus, when it is dropped, that it need not keep the payload any longer.
    pub receipt: Receipt,
}

/// Held until an incoming payload is persisted, or needs not be. A capable bus keeps the payload for that long
/// where a crash of this process does not lose it; it may stop waiting at any time.
#[derive(Debug, Default)]
pub struct Receipt {
    #[expect(dead_code, reason = "the other end sees that it is dropped")]
    kept: Option<oneshot::Sender<()>>,
    reply_to: Option<ReplyTo>,
}

impl Receipt {
    /// Makes a receipt, and the bus's end of it, which resolves, with an error, when the receipt is dropped.
    #[must_use]
    pub fn new() -> (Self, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        (Self { kept: Some(sender), reply_to: None }, receiver)
    }

    /// Notes that the sender is answered by a bare reply.
    #[must_use]
    pub(crate) fn with_reply_to(mut self, to: Option<ReplyTo>) -> Self {
        self.reply_to = to;
        self
    }

    /// Returns the message that an answer replies to, when its sender waits for a bare reply.
    #[must_use]
    pub fn reply_to(&self) -> Option<ReplyTo> {
        self.reply_to.clone()
    }
}

/// State of a bus.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BusStatus {
    /// Payloads can be sent and received now.
    pub up: bool,
    /// Problem in words, for people; empty when there is none.
    pub problem: String,
    /// Description of this node, as last known.
    pub node: Option<BusNode>,
}

impl BusStatus {
    /// Returns this node's key, once known.
    #[must_use]
    pub fn key(&self) -> Option<PublicKey> {
        self.node.as_ref().map(|node| node.key)
    }
}

/// Follows whether a bus is up, for as long as the receiver lives. Must be called within a Tokio runtime.
#[must_use]
pub fn watch_up(bus: &dyn Bus) -> watch::Receiver<bool> {
    let mut status = bus.status();
    let up = watch::Sender::new(status.borrow().up);
    let receiver = up.subscribe();
    tokio::spawn(async move {
        tokio::select! {
            () = up.closed() => {}
            () = async {
                while status.changed().await.is_ok() {
                    let now = status.borrow_and_update().up;
                    up.send_if_modified(|before| std::mem::replace(before, now) != now);
                }
            } => {}
        }
    });
    receiver
}

/// A node of the bus, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusNode {
    /// Key of the node.
    pub key: PublicKey,
    /// Overlay address of the node; old daemons do not report it.
    pub ip: Option<Ipv6Addr>,
    /// Subnet of the node in the overlay, as written there; empty where there is none.
    pub subnet: String,
    /// Version of the transport, as it reports; empty where it does not.
    pub version: String,
    /// Unix time of its start, in seconds; old daemons do not report it.
    pub start_secs: Option<u64>,
    /// The node takes messages of any topic from any sender.
    pub takes_any_topic: bool,
    /// Neighbours that the node is linked to, or tries to be.
    pub links: Vec<BusNeighbour>,
}

/// A neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusNeighbour {
    /// Endpoint of the neighbour: `tcp 1.2.3.4:9651`.
    pub endpoint: String,
    /// There is a connection.
    pub alive: bool,
}

/// Why a payload was not handed over, or a topic not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// No such node is known, or there is no listener to the topic.
    #[error("{destination} cannot be reached under `{topic}`")]
    Unreachable {
        /// Where the payload was to go.
        destination: String,
        /// Under which topic.
        topic: String,
    },
    /// The daemon that carries the payloads was not there for as long as it was waited for.
    #[error("the Mycelium daemon is down: {0}")]
    Down(String),
    /// The payload came, or would have come, later than its deadline.
    #[error("{destination} was reached after the payload's deadline")]
    Expired {
        /// Where the payload was to go.
        destination: String,
    },
    /// The payload is longer than what can be carried.
    #[error("a payload of {bytes} bytes is too large, {bytes_max} are the limit")]
    TooLarge {
        /// Length of the payload.
        bytes: usize,
        /// Maximum length.
        bytes_max: usize,
    },
    /// A [`PayloadForm::Plain`] payload does not look like JSON-RPC.
    #[error("a plain payload begins with `{{` or `[`")]
    NotPlain,
    /// The daemon permanently refuses the payload.
    #[error("the Mycelium daemon refuses it: {0}")]
    Refused(String),
    /// The topic has a listener already.
    #[error("the topic `{0}` has a listener already")]
    TopicTaken(String),
    /// A topic is empty or longer than [`TOPIC_BYTES_MAX`].
    #[error("a topic has 1 to 255 bytes, this one has {0}")]
    BadTopic(usize),
}

/// Carries payloads between nodes.
///
/// A successful send means that the payload is in the hands of the topic's listener, not that
/// it was acted on: a sender that needs to know must wait for an answer. Nothing survives a restart of either
/// side. Order is kept where [`Bus::window`] is 1.
#[async_trait]
pub trait Bus: Send + Sync + 'static {
    /// Returns this node's own key; unknown until the bus was up once.
    fn key(&self) -> Option<PublicKey>;

    /// Returns the kind of transport, for people: `memory`, `mycelium`.
    fn kind(&self) -> &'static str;

    /// Returns the state of the bus, to follow.
    fn status(&self) -> watch::Receiver<BusStatus>;

    /// Returns true for a node in this process, for which the bus itself vouches.
    fn is_in_process(&self, _node: PublicKey) -> bool {
        false
    }

    /// Number of sends to one node that may be under way together.
    fn window(&self) -> usize {
        1
    }

    /// Looks up the node with this overlay address.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] while no route to it is known, [`BusError::Down`].
    async fn key_of(&self, ip: Ipv6Addr) -> Result<PublicKey, BusError>;

    /// Sends a payload; waits while the window is full, and until the deadline while there is no listener.
    /// Dropping the future ends the attempts; the payload may have left already.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] when no node took it in time, [`BusError::Down`], [`BusError::Expired`],
    /// [`BusError::TooLarge`], [`BusError::NotPlain`], [`BusError::Refused`], [`BusError::BadTopic`].
    async fn send(&self, parcel: Datagram<'_>) -> Result<(), BusError>;

    /// Finds out whether the topic has a listener there, without sending a payload.
    ///
    /// # Errors
    /// As [`Bus::send`].
    async fn ping(&self, to: BusDestination, topic: &str, deadline: Instant) -> Result<(), BusError>;

    /// Begins to listen to a topic, until the inbox is dropped. Bare replies to [`PayloadForm::Plain`], which have
    /// no topic, go to the inbox that has listened for longest.
    ///
    /// # Errors
    /// [`BusError::TopicTaken`], [`BusError::BadTopic`].
    fn listen(&self, topic: &str) -> Result<BusInbox, BusError>;
}

/// Function that takes in a payload where its sender is, without waiting.
pub type PayloadSink = Arc<dyn Fn(IncomingPayload) + Send + Sync>;

/// Payloads received under one topic, in the order they came. The consumer of a payload holds its
/// [`Receipt`] until it is persisted.
#[derive(Debug)]
pub struct BusInbox {
    payloads: mpsc::Receiver<IncomingPayload>,
    shortcut: InboxShortcut,
}

impl BusInbox {
    /// Makes an inbox of a channel that a bus fills.
    #[must_use]
    pub fn new(payloads: mpsc::Receiver<IncomingPayload>) -> Self {
        Self { payloads, shortcut: InboxShortcut::default() }
    }

    /// Makes an inbox of a channel that a bus fills until there is a sink, which that bus then calls.
    pub(crate) const fn with_shortcut(
        payloads: mpsc::Receiver<IncomingPayload>,
        shortcut: InboxShortcut,
    ) -> Self {
        Self { payloads, shortcut }
    }

    /// Waits for the next payload; none when the bus is gone. Loses nothing when dropped.
    pub async fn next(&mut self) -> Option<IncomingPayload> {
        self.payloads.recv().await
    }

    /// Has senders of this process call `sink` directly, so that no task is woken. Waiting payloads are handed over first. Payloads
    /// from elsewhere are given by [`BusInbox::next`] as before.
    pub fn hand_over_to(&mut self, sink: PayloadSink) {
        let mut shortcut = self.shortcut.0.write().unwrap_or_else(PoisonError::into_inner);
        while let Ok(incoming) = self.payloads.try_recv() {
            sink(incoming);
        }
        *shortcut = Some(sink);
    }
}

impl Drop for BusInbox {
    fn drop(&mut self) {
        // The sink may hold the bus, and the bus holds the sink: neither would ever be freed.
        *self.shortcut.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Bypass around the channel of an inbox, for senders of its own process. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct InboxShortcut(Arc<RwLock<Option<PayloadSink>>>);

impl InboxShortcut {
    /// Hands a payload to the sink or else to the channel, so that none overtakes an earlier one. Gives it back when the
    /// channel is full or closed.
    pub(crate) fn pass(
        &self,
        incoming: IncomingPayload,
        channel: &mpsc::Sender<IncomingPayload>,
    ) -> Result<(), mpsc::error::TrySendError<IncomingPayload>> {
        let shortcut = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(sink) = shortcut.clone() else { return channel.try_send(incoming) };
        drop(shortcut);
        sink(incoming);
        Ok(())
    }
}

impl fmt::Debug for InboxShortcut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InboxShortcut")
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
