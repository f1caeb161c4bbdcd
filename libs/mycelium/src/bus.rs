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

/// Payloads that may wait in an inbox; whoever sends more is held back, or loses them where the
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

/// How a payload is wrapped on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// As the bus likes it: numbered, answered by the bus at the other end, in parts when it is long.
    #[default]
    Framed,
    /// As it is, for nodes that know nothing but JSON-RPC: it has to begin with `{` or `[`. Nobody
    /// answers for the bus at the other end, so it may arrive twice, and long ones not at all.
    Plain,
}

/// A payload to be sent.
#[derive(Debug, Clone)]
pub struct Parcel<'a> {
    /// Where it goes.
    pub to: Destination,
    /// Under which topic.
    pub topic: &'a str,
    /// What it carries.
    pub payload: Bytes,
    /// How it is wrapped.
    pub form: Form,
    /// When nobody wants it any more; the bus's own limit when absent. Whoever receives it later than
    /// that drops it, where the bus can tell.
    pub deadline: Option<Instant>,
    /// What it answers, when whoever sent that waits for a bare reply instead of something under the topic.
    pub reply_to: Option<ReplyTo>,
}

/// A plain message that came in, as its bus names it: its sender may wait for a bare reply to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyTo(pub(crate) String);

/// A payload that came in.
#[derive(Debug)]
pub struct Incoming {
    /// Who sent it. Authenticated by the transport.
    pub from: PublicKey,
    /// What it carries.
    pub payload: Bytes,
    /// How it came.
    pub form: Form,
    /// Tells the bus, when it is dropped, that it need not keep the payload any longer.
    pub receipt: Receipt,
}

/// Kept until what came in is persisted, or needs not be. A bus that can keeps the payload for that long
/// where a crash of this process does not lose it; it may stop waiting at any time.
#[derive(Debug, Default)]
pub struct Receipt {
    #[expect(dead_code, reason = "the other end sees that it is dropped")]
    kept: Option<oneshot::Sender<()>>,
    reply_to: Option<ReplyTo>,
}

impl Receipt {
    /// One that a bus waits for by the other end, which resolves, with an error, when it is dropped.
    #[must_use]
    pub fn new() -> (Self, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        (Self { kept: Some(sender), reply_to: None }, receiver)
    }

    /// Notes that the sender is answered by a bare reply.
    #[must_use]
    pub(crate) fn answered_by_reply(mut self, to: Option<ReplyTo>) -> Self {
        self.reply_to = to;
        self
    }

    /// What an answer replies to, when its sender waits for that.
    #[must_use]
    pub fn reply_to(&self) -> Option<ReplyTo> {
        self.reply_to.clone()
    }
}

/// How a bus fares.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// Whether payloads can be sent and received now.
    pub up: bool,
    /// What is wrong, for people; empty when nothing is.
    pub problem: String,
    /// This node, as it was when it was last heard of.
    pub node: Option<Node>,
}

impl Standing {
    /// This node's key, once it was heard of.
    #[must_use]
    pub fn key(&self) -> Option<PublicKey> {
        self.node.as_ref().map(|node| node.key)
    }
}

/// Follows whether a bus carries anything, for as long as somebody listens. Has to be called within a Tokio runtime.
#[must_use]
pub fn is_up(bus: &dyn Bus) -> watch::Receiver<bool> {
    let mut standing = bus.standing();
    let up = watch::Sender::new(standing.borrow().up);
    let receiver = up.subscribe();
    tokio::spawn(async move {
        tokio::select! {
            () = up.closed() => {}
            () = async {
                while standing.changed().await.is_ok() {
                    let now = standing.borrow_and_update().up;
                    up.send_if_modified(|before| std::mem::replace(before, now) != now);
                }
            } => {}
        }
    });
    receiver
}

/// A node of the bus, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its key.
    pub key: PublicKey,
    /// Its own overlay address; old daemons do not tell.
    pub ip: Option<Ipv6Addr>,
    /// Its part of the overlay, as it is written there; empty where there is no such thing.
    pub subnet: String,
    /// The version of what carries its messages, as it says; empty where it does not.
    pub version: String,
    /// Unix time of its start, in seconds; old daemons do not tell.
    pub start_secs: Option<u64>,
    /// Whether it takes messages of any topic from anybody.
    pub takes_any_topic: bool,
    /// The neighbours it is linked to, or tries to be.
    pub links: Vec<Link>,
}

/// A neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Where it is: `tcp 1.2.3.4:9651`.
    pub endpoint: String,
    /// Whether there is a connection.
    pub alive: bool,
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
    /// The daemon that carries the payloads was not there for as long as it was waited for.
    #[error("the Mycelium daemon is down: {0}")]
    Down(String),
    /// It came, or would have come, later than its deadline.
    #[error("{destination} was reached after the payload's deadline")]
    Expired {
        /// Where the payload was to go.
        destination: String,
    },
    /// Longer than what can be carried.
    #[error("a payload of {bytes} bytes is too large, {bytes_max} are the limit")]
    TooLarge {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        bytes_max: usize,
    },
    /// What is sent [`Form::Plain`] has to look like JSON-RPC.
    #[error("a plain payload begins with `{{` or `[`")]
    NotPlain,
    /// The daemon will never take this.
    #[error("the Mycelium daemon refuses it: {0}")]
    Refused(String),
    /// Somebody listens to the topic already.
    #[error("the topic `{0}` has a listener already")]
    TopicTaken(String),
    /// A topic is empty or longer than [`TOPIC_BYTES_MAX`].
    #[error("a topic has 1 to 255 bytes, this one has {0}")]
    BadTopic(usize),
}

/// Carries payloads between nodes.
///
/// That a send succeeded means that the payload is in the hands of whoever listens there, not that
/// anybody acted on it: whoever needs to know has to be answered. Nothing survives a restart of either
/// side. Order is kept where [`Bus::window`] is 1.
#[async_trait]
pub trait Bus: Send + Sync + 'static {
    /// This node's own key; unknown until the bus was up once.
    fn key(&self) -> Option<PublicKey>;

    /// What carries the payloads, for people: `memory`, `mycelium`.
    fn kind(&self) -> &'static str;

    /// How the bus fares.
    fn standing(&self) -> watch::Receiver<Standing>;

    /// Whether this node is a part of this program, so that the bus says of itself who speaks.
    fn is_within_one_program(&self, _node: PublicKey) -> bool {
        false
    }

    /// Sends to one node that may be under way together.
    fn window(&self) -> usize {
        1
    }

    /// Looks up whose overlay address this is.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] while no route to it is known, [`BusError::Down`].
    async fn key_of(&self, ip: Ipv6Addr) -> Result<PublicKey, BusError>;

    /// Hands a payload over; waits while the way is full, and until the deadline while nobody is there.
    /// Dropping the future ends the attempts; the payload may have left already.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] when nobody took it in time, [`BusError::Down`], [`BusError::Expired`],
    /// [`BusError::TooLarge`], [`BusError::NotPlain`], [`BusError::Refused`], [`BusError::BadTopic`].
    async fn send(&self, parcel: Parcel<'_>) -> Result<(), BusError>;

    /// Finds out whether somebody listens there, without handing anything over.
    ///
    /// # Errors
    /// As [`Bus::send`].
    async fn ping(&self, to: Destination, topic: &str, deadline: Instant) -> Result<(), BusError>;

    /// Begins to listen to a topic, until the inbox is dropped. Bare replies to [`Form::Plain`], which have no
    /// topic, come to the one of those that listen that began first.
    ///
    /// # Errors
    /// [`BusError::TopicTaken`], [`BusError::BadTopic`].
    fn listen(&self, topic: &str) -> Result<Inbox, BusError>;
}

/// Function that takes in a payload where its sender is, without waiting.
pub type Sink = Arc<dyn Fn(Incoming) + Send + Sync>;

/// What comes in under one topic, in the order it came. Whoever takes something out holds its
/// [`Receipt`] until it is persisted.
#[derive(Debug)]
pub struct Inbox {
    payloads: mpsc::Receiver<Incoming>,
    shortcut: Shortcut,
}

impl Inbox {
    /// From a channel that a bus fills.
    #[must_use]
    pub fn new(payloads: mpsc::Receiver<Incoming>) -> Self {
        Self { payloads, shortcut: Shortcut::default() }
    }

    /// Makes an inbox of a channel that a bus fills until there is a sink, which that bus then calls.
    pub(crate) const fn with_shortcut(payloads: mpsc::Receiver<Incoming>, shortcut: Shortcut) -> Self {
        Self { payloads, shortcut }
    }

    /// Waits for the next payload; none when the bus is gone. Loses nothing when dropped.
    pub async fn next(&mut self) -> Option<Incoming> {
        self.payloads.recv().await
    }

    /// Has senders of this program call `sink` where they are, so that nobody has to be woken. What waits is handed over first. What comes
    /// from elsewhere is given by [`Inbox::next`] as before.
    pub fn hand_over_to(&mut self, sink: Sink) {
        let mut shortcut = self.shortcut.0.write().unwrap_or_else(PoisonError::into_inner);
        while let Ok(incoming) = self.payloads.try_recv() {
            sink(incoming);
        }
        *shortcut = Some(sink);
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // The sink may hold the bus, and the bus holds the sink: neither would ever be freed.
        *self.shortcut.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Way around the channel of an inbox, for senders of its own program. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Shortcut(Arc<RwLock<Option<Sink>>>);

impl Shortcut {
    /// Hands a payload to the sink or else to the channel, so that none overtakes what was sent before. Gives it back when the
    /// channel is full or closed.
    pub(crate) fn pass(
        &self,
        incoming: Incoming,
        channel: &mpsc::Sender<Incoming>,
    ) -> Result<(), mpsc::error::TrySendError<Incoming>> {
        let shortcut = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(sink) = shortcut.clone() else { return channel.try_send(incoming) };
        drop(shortcut);
        sink(incoming);
        Ok(())
    }
}

impl fmt::Debug for Shortcut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shortcut")
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
