//! A bus within one process: bounded, ordered, and nothing gets lost on it.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::bus::{
    Bus, BusDestination, BusError, BusInbox, BusNode, BusStatus, Datagram, INBOX_LEN, InboxShortcut,
    IncomingPayload, PublicKey, Receipt, check_topic,
};

/// Joins nodes of one process. Clones are the same network.
#[derive(Debug, Clone, Default)]
pub struct MemoryNetwork {
    nodes: Arc<Mutex<MemoryNodes>>,
    is_one_program: bool,
}

type MemoryNodes = HashMap<PublicKey, HashMap<String, MemoryListener>>;

/// Receiver of the payloads of a topic.
#[derive(Debug, Clone)]
struct MemoryListener {
    channel: mpsc::Sender<IncomingPayload>,
    shortcut: InboxShortcut,
}

impl MemoryNetwork {
    /// One on which everybody is a part of this very program, and is believed to be who it says.
    #[must_use]
    pub fn within_one_program() -> Self {
        Self { is_one_program: true, ..Self::default() }
    }

    /// Joins, or joins again, as the node with this key. A node that joins again takes the place of
    /// the former one, whose inboxes end.
    #[must_use]
    pub fn node(&self, key: PublicKey) -> MemoryBus {
        self.nodes().insert(key, HashMap::new());
        MemoryBus { key, network: self.clone() }
    }

    /// Takes a node away, as when its machine vanishes: its inboxes end.
    pub fn remove(&self, key: PublicKey) {
        self.nodes().remove(&key);
    }

    fn nodes(&self) -> MutexGuard<'_, MemoryNodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listener(&self, to: BusDestination, topic: &str) -> Option<MemoryListener> {
        let nodes = self.nodes();
        let topics = match to {
            BusDestination::Key(key) => nodes.get(&key),
            BusDestination::Ip(ip) => {
                nodes.iter().find(|(key, _)| overlay_ip(key) == ip).map(|(_, node)| node)
            }
        }?;
        topics.get(topic).cloned()
    }
}

/// A node of a [`MemoryNetwork`].
#[derive(Debug, Clone)]
pub struct MemoryBus {
    key: PublicKey,
    network: MemoryNetwork,
}

impl MemoryBus {
    /// Returns this node's address in `400::/7`.
    #[must_use]
    pub fn ip(&self) -> Ipv6Addr {
        overlay_ip(&self.key)
    }

    /// Returns this node's own key.
    #[must_use]
    pub const fn key(&self) -> PublicKey {
        self.key
    }

    /// Returns true when the destination is a node of this network.
    pub(crate) fn leads_to(&self, to: BusDestination) -> bool {
        let nodes = self.network.nodes();
        match to {
            BusDestination::Key(key) => nodes.contains_key(&key),
            BusDestination::Ip(ip) => nodes.keys().any(|key| overlay_ip(key) == ip),
        }
    }

    /// Begins to listen to a topic through a channel of the caller's, until that is closed. Gives the way around it.
    ///
    /// # Errors
    /// [`BusError::TopicTaken`], [`BusError::BadTopic`].
    pub(crate) fn listen_through(
        &self,
        topic: &str,
        channel: mpsc::Sender<IncomingPayload>,
    ) -> Result<InboxShortcut, BusError> {
        check_topic(topic)?;
        let mut nodes = self.network.nodes();
        let topics = nodes.entry(self.key).or_default();
        if topics.get(topic).is_some_and(|listener| !listener.channel.is_closed()) {
            return Err(BusError::TopicTaken(topic.to_owned()));
        }
        let shortcut = InboxShortcut::default();
        topics.insert(topic.to_owned(), MemoryListener { channel, shortcut: shortcut.clone() });
        Ok(shortcut)
    }

    fn find(&self, to: BusDestination, topic: &str) -> Result<MemoryListener, BusError> {
        check_topic(topic)?;
        let listener = self.network.listener(to, topic).filter(|listener| !listener.channel.is_closed());
        listener.ok_or_else(|| unreachable(to, topic))
    }
}

fn unreachable(to: BusDestination, topic: &str) -> BusError {
    BusError::Unreachable { destination: to.to_string(), topic: topic.to_owned() }
}

/// A place in `400::/7` that follows from the key. The real overlay hashes the key first; within one
/// process it only has to be the same everywhere.
fn overlay_ip(key: &PublicKey) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&key.as_bytes()[..16]);
    octets[0] = 0x04 | (octets[0] & 1);
    Ipv6Addr::from(octets)
}

#[async_trait]
impl Bus for MemoryBus {
    fn key(&self) -> Option<PublicKey> {
        Some(self.key)
    }

    fn kind(&self) -> &'static str {
        "memory"
    }

    fn is_in_process(&self, _: PublicKey) -> bool {
        self.network.is_one_program
    }

    fn status(&self) -> watch::Receiver<BusStatus> {
        let node = BusNode {
            key: self.key,
            ip: Some(self.ip()),
            subnet: String::new(),
            version: String::new(),
            start_secs: None,
            takes_any_topic: true,
            links: Vec::new(),
        };
        watch::Sender::new(BusStatus { up: true, problem: String::new(), node: Some(node) }).subscribe()
    }

    async fn key_of(&self, ip: Ipv6Addr) -> Result<PublicKey, BusError> {
        self.network
            .nodes()
            .keys()
            .find(|key| overlay_ip(key) == ip)
            .copied()
            .ok_or_else(|| BusError::Unreachable { destination: format!("[{ip}]"), topic: String::new() })
    }

    async fn send(&self, parcel: Datagram<'_>) -> Result<(), BusError> {
        let Datagram { to, topic, payload, form, deadline: _, reply_to: _ } = parcel;
        let MemoryListener { channel, shortcut } = self.find(to, topic)?;
        let mut incoming = IncomingPayload { from: self.key, payload, form, receipt: Receipt::default() };
        loop {
            match shortcut.pass(incoming, &channel) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(back)) => incoming = back,
                Err(TrySendError::Closed(_)) => return Err(unreachable(to, topic)),
            }
            // Only room is awaited: by then a sink may have taken the earlier payloads.
            channel.reserve().await.map(drop).map_err(|_| unreachable(to, topic))?;
        }
    }

    async fn ping(&self, to: BusDestination, topic: &str, _: Instant) -> Result<(), BusError> {
        self.find(to, topic).map(drop)
    }

    fn listen(&self, topic: &str) -> Result<BusInbox, BusError> {
        let (channel, payloads) = mpsc::channel(INBOX_LEN);
        Ok(BusInbox::with_shortcut(payloads, self.listen_through(topic, channel)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::PayloadForm;
    use bytes::Bytes;

    fn parcel(to: BusDestination, payload: &'static str) -> Datagram<'static> {
        Datagram {
            to,
            topic: "t",
            payload: Bytes::from(payload),
            form: PayloadForm::Framed,
            deadline: None,
            reply_to: None,
        }
    }

    fn two() -> (MemoryBus, MemoryBus, MemoryNetwork) {
        let network = MemoryNetwork::default();
        (network.node(PublicKey::random()), network.node(PublicKey::random()), network)
    }

    #[tokio::test]
    async fn payloads_arrive_in_order_by_key_and_by_address() {
        let (a, b, _network) = two();
        let mut inbox = b.listen("t").expect("free");
        a.send(parcel(BusDestination::Key(b.key()), "1")).await.expect("sent");
        a.send(parcel(BusDestination::Ip(b.ip()), "2")).await.expect("sent");
        for expected in ["1", "2"] {
            let incoming = inbox.next().await.expect("still joined");
            assert_eq!((incoming.from, &incoming.payload[..]), (a.key(), expected.as_bytes()));
        }
        assert_eq!(a.key_of(b.ip()).await, Ok(b.key()));
    }

    #[tokio::test]
    async fn who_is_not_there_cannot_be_reached() {
        let (a, b, network) = two();
        let nobody = a.send(parcel(BusDestination::Key(b.key()), "")).await;
        assert!(matches!(nobody, Err(BusError::Unreachable { .. })), "{nobody:?}");
        let inbox = b.listen("t").expect("free");
        assert_eq!(b.listen("t").err(), Some(BusError::TopicTaken("t".into())));
        drop(inbox);
        let gone = a.send(parcel(BusDestination::Key(b.key()), "")).await;
        assert!(matches!(gone, Err(BusError::Unreachable { .. })), "{gone:?}");
        let mut inbox = b.listen("t").expect("free again");
        network.remove(b.key());
        assert!(inbox.next().await.is_none());
    }

    #[tokio::test]
    async fn a_full_inbox_holds_the_sender_back() {
        let (a, b, _network) = two();
        let mut inbox = b.listen("t").expect("free");
        let to = BusDestination::Key(b.key());
        for _ in 0..INBOX_LEN {
            a.send(parcel(to, "")).await.expect("room");
        }
        let mut held = std::pin::pin!(a.send(parcel(to, "last")));
        assert!(futures_util::poll!(&mut held).is_pending());
        inbox.next().await.expect("the first");
        held.await.expect("room again");
    }

    #[tokio::test]
    async fn a_sink_takes_in_what_waited_and_then_what_comes_until_its_inbox_is_gone() {
        let (a, b, _network) = two();
        let mut inbox = b.listen("t").expect("free");
        let to = BusDestination::Key(b.key());
        a.send(parcel(to, "first")).await.expect("it waits");
        let (took, taken) = std::sync::mpsc::channel();
        inbox.hand_over_to(Arc::new(move |incoming: IncomingPayload| {
            took.send(incoming.payload).expect("somebody looks");
        }));
        // More than an inbox holds, and the inbox is not read.
        for _ in 0..=INBOX_LEN {
            a.send(parcel(to, "next")).await.expect("taken");
        }
        a.send(parcel(to, "last")).await.expect("taken");
        drop(inbox);
        let gone = a.send(parcel(to, "")).await;
        assert!(matches!(gone, Err(BusError::Unreachable { .. })), "{gone:?}");
        let taken: Vec<Bytes> = taken.into_iter().collect();
        assert_eq!(taken.len(), INBOX_LEN + 3);
        assert_eq!((&*taken[0], &*taken[INBOX_LEN + 2]), (&b"first"[..], &b"last"[..]));
    }
}
