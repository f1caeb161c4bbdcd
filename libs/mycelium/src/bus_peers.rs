//! Many conversations over one topic of a bus.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::bus::{Bus, BusError, Destination, Inbox, PublicKey};
use crate::json_rpc::{Handler, Peer, WeakPeer};

/// Payloads that may wait to be sent to one node.
const OUTBOX_LEN: usize = 64;

/// Nodes that one node speaks with. What strangers beyond it send is ignored.
pub const PEERS_MAX: usize = 4096;

/// Decides who answers a node's requests.
pub type Accept = Arc<dyn Fn(PublicKey) -> Arc<dyn Handler> + Send + Sync>;

/// The conversations of one node. Clones are the same.
#[derive(Clone)]
pub struct BusPeers(Arc<Shared>);

struct Shared {
    bus: Arc<dyn Bus>,
    accept: Accept,
    peers: Mutex<HashMap<PublicKey, (String, Peer)>>,
}

impl std::fmt::Debug for BusPeers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BusPeers({})", self.0.bus.key())
    }
}

impl BusPeers {
    /// Speaks through `bus`; whoever speaks to it is answered by the handler that `accept` gives.
    #[must_use]
    pub fn new(bus: Arc<dyn Bus>, accept: Accept) -> Self {
        Self(Arc::new(Shared { bus, accept, peers: Mutex::default() }))
    }

    /// The bus it speaks through.
    #[must_use]
    pub fn bus(&self) -> &Arc<dyn Bus> {
        &self.0.bus
    }

    /// The conversation with a node whose requests travel under `topic`; begins it if need be. There is
    /// one conversation with a node: under another topic it begins anew.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] when nobody knows whose address that is.
    pub async fn peer(&self, to: Destination, topic: &str) -> Result<Peer, BusError> {
        let key = match to {
            Destination::Key(key) => key,
            Destination::Ip(ip) => self.0.bus.key_of(ip).await?,
        };
        self.open(key, Some(topic), topic).ok_or_else(|| BusError::Unreachable {
            destination: key.to_string(),
            topic: format!("{topic} (there are {PEERS_MAX} conversations already)"),
        })
    }

    /// Ends the conversation with a node.
    pub fn close(&self, key: PublicKey) {
        if let Some((_, peer)) = self.peers().remove(&key) {
            peer.close();
        }
    }

    /// Takes in what comes under a topic until the inbox ends. With a node that was not spoken to before a
    /// conversation begins in which it is answered under `their_topic`.
    pub async fn run(&self, mut inbox: Inbox, their_topic: &str) {
        while let Some(incoming) = inbox.next().await {
            if let Some(peer) = self.open(incoming.from, None, their_topic) {
                peer.receive(&incoming.payload);
            }
        }
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<PublicKey, (String, Peer)>> {
        self.0.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The conversation with a node; `asked` is the topic it must have, `topic` the one of a new one.
    fn open(&self, key: PublicKey, asked: Option<&str>, topic: &str) -> Option<Peer> {
        let mut peers = self.peers();
        if let Some((known, peer)) = peers.get(&key)
            && !peer.is_closed()
        {
            if asked.is_none_or(|asked| asked == known) {
                return Some(peer.clone());
            }
            peer.close();
        }
        if peers.len() >= PEERS_MAX {
            peers.retain(|_, (_, peer)| !peer.is_closed());
            if peers.len() >= PEERS_MAX {
                tracing::warn!(%key, "a node was ignored: there are {PEERS_MAX} conversations already");
                return None;
            }
        }
        let (outbox, payloads) = mpsc::channel(OUTBOX_LEN);
        let peer = Peer::new(outbox, (self.0.accept)(key));
        tokio::spawn(send_all(Arc::clone(&self.0.bus), key, topic.to_owned(), payloads, peer.downgrade()));
        peers.insert(key, (topic.to_owned(), peer.clone()));
        Some(peer)
    }
}

/// Sends in order. When a payload cannot be sent, whoever waits for an answer of that node learns so
/// at once: waiting for its time limit would not make it come.
async fn send_all(
    bus: Arc<dyn Bus>,
    to: PublicKey,
    topic: String,
    mut payloads: mpsc::Receiver<Bytes>,
    peer: WeakPeer,
) {
    while let Some(payload) = payloads.recv().await {
        if let Err(error) = bus.send(Destination::Key(to), &topic, payload).await {
            tracing::debug!(%to, %topic, %error, "a payload was not sent");
            if let Some(peer) = peer.upgrade() {
                peer.fail_waiting();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_rpc::{Answer, CallError, Request};
    use crate::memory::MemoryNetwork;
    use futures_util::future::BoxFuture;
    use std::time::Duration;

    struct Echo;

    impl Handler for Echo {
        fn handle(&self, _: &Peer, requests: Vec<Request>) -> BoxFuture<'static, Vec<Answer>> {
            Box::pin(async move { requests.into_iter().map(|request| Ok(request.params)).collect() })
        }
    }

    fn node(network: &MemoryNetwork) -> BusPeers {
        BusPeers::new(Arc::new(network.node(PublicKey::random())), Arc::new(|_| Arc::new(Echo)))
    }

    fn listen(peers: &BusPeers, own: &str, theirs: &'static str) {
        let inbox = peers.bus().listen(own).expect("free");
        let peers = peers.clone();
        tokio::spawn(async move { peers.run(inbox, theirs).await });
    }

    #[tokio::test]
    async fn both_sides_call_over_their_topics() {
        let network = MemoryNetwork::default();
        let (coordinator, supervisor) = (node(&network), node(&network));
        listen(&coordinator, "coordinator.rpc", "supervisor.rpc");
        listen(&supervisor, "supervisor.rpc", "coordinator.rpc");
        let wait = Duration::from_secs(20);
        for (from, to, topic) in
            [(&coordinator, &supervisor, "supervisor.rpc"), (&supervisor, &coordinator, "coordinator.rpc")]
        {
            let key = Destination::Key(to.bus().key());
            let peer = from.peer(key, topic).await.expect("known");
            assert_eq!(peer.call("echo", &[1], wait).await.expect("answered").get(), "[1]");
        }
    }

    #[tokio::test]
    async fn who_is_not_there_is_noticed_at_once() {
        let network = MemoryNetwork::default();
        let lonely = node(&network);
        let to = Destination::Key(PublicKey::random());
        let peer = lonely.peer(to, "supervisor.rpc").await.expect("any key may be tried");
        let called = peer.call("echo", &[1], Duration::from_secs(3600)).await;
        assert_eq!(called.err(), Some(CallError::Closed));
    }
}
