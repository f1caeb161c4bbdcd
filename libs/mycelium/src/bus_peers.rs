//! Many conversations over one topic of a bus.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::bus::{
    Bus, BusDestination, BusError, BusInbox, Datagram, IncomingPayload, PayloadForm, PublicKey,
};
use crate::guard::{Guard, RejectedPayload};
use crate::json_rpc::{
    DirectSender, JsonRpcHandler, JsonRpcPeer, OutgoingPayload, PayloadSendResult, WeakJsonRpcPeer,
};

/// Payloads that may wait to be sent to one node.
const OUTBOX_LEN: usize = 64;

/// Peers of one node, at most. Payloads of further nodes are ignored.
pub const PEERS_MAX: usize = 4096;

/// One side of a conversation with a node.
#[derive(Clone)]
pub struct PeerEndpoint {
    /// Handler of the node's requests.
    pub handler: Arc<dyn JsonRpcHandler>,
    /// Guard that signs outgoing payloads, and checks incoming ones.
    pub guard: Arc<dyn Guard>,
}

/// Function that decides who answers a node.
pub type PeerAcceptor = Arc<dyn Fn(PublicKey) -> PeerEndpoint + Send + Sync>;

/// The conversations of one node. Clones are the same.
#[derive(Clone)]
pub struct BusPeers(Arc<BusPeersInner>);

struct BusPeersInner {
    bus: Arc<dyn Bus>,
    accept: PeerAcceptor,
    admission: PeerAdmission,
    peers: Mutex<HashMap<PublicKey, BusConversation>>,
}

/// Admission policy when there are too many conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerAdmission {
    /// Newcomers are ignored.
    RefuseNew,
    /// Beyond so many the one that was silent for longest ends.
    EvictIdle(usize),
}

/// A conversation with one node.
#[derive(Clone)]
struct BusConversation {
    options: ChannelOptions,
    peer: JsonRpcPeer,
    guard: Arc<dyn Guard>,
    /// Time of the last payload, in either direction.
    used: Instant,
}

/// Topic and form of a conversation's payloads.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ChannelOptions {
    topic: String,
    form: PayloadForm,
}

impl std::fmt::Debug for BusPeers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BusPeers({:?})", self.0.bus.key())
    }
}

impl BusPeers {
    /// Makes the conversations over `bus`; incoming ones are answered by the endpoint that `accept` gives.
    #[must_use]
    pub fn new(bus: Arc<dyn Bus>, accept: PeerAcceptor) -> Self {
        Self::with(bus, accept, PeerAdmission::RefuseNew)
    }

    /// Makes the conversations of a public topic: at most `peers_max`, of which the one that was silent for
    /// longest ends when another begins. Callers that wait in it for an answer get an error.
    #[must_use]
    pub fn evicting(bus: Arc<dyn Bus>, accept: PeerAcceptor, peers_max: usize) -> Self {
        Self::with(bus, accept, PeerAdmission::EvictIdle(peers_max))
    }

    fn with(bus: Arc<dyn Bus>, accept: PeerAcceptor, crowd: PeerAdmission) -> Self {
        Self(Arc::new(BusPeersInner { bus, accept, admission: crowd, peers: Mutex::default() }))
    }

    /// Returns the bus of the conversations.
    #[must_use]
    pub fn bus(&self) -> &Arc<dyn Bus> {
        &self.0.bus
    }

    /// Returns the conversation with a node whose requests use `topic`; begins it if need be. There is
    /// one conversation with a node: another topic or form begins a new one.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] when the node of the address is not known, [`BusError::Down`].
    pub async fn peer(&self, to: BusDestination, topic: &str) -> Result<JsonRpcPeer, BusError> {
        self.peer_in(to, topic, PayloadForm::Framed).await
    }

    /// Returns the conversation in a form: [`PayloadForm::Plain`] with nodes that know nothing but JSON-RPC.
    ///
    /// # Errors
    /// As [`BusPeers::peer`].
    pub async fn peer_in(
        &self,
        to: BusDestination,
        topic: &str,
        form: PayloadForm,
    ) -> Result<JsonRpcPeer, BusError> {
        let key = match to {
            BusDestination::Key(key) => key,
            BusDestination::Ip(ip) => self.0.bus.key_of(ip).await?,
        };
        let manner = ChannelOptions { topic: topic.to_owned(), form };
        self.open(key, manner).map(|conversation| conversation.peer).ok_or_else(|| BusError::Unreachable {
            destination: key.to_string(),
            topic: format!("{topic} (there are {PEERS_MAX} conversations already)"),
        })
    }

    /// Ends the conversation with a node.
    pub fn close(&self, key: PublicKey) {
        if let Some(conversation) = self.peers().remove(&key) {
            conversation.peer.close();
        }
    }

    /// Receives under a topic until the inbox ends. A payload of an unknown node opens a
    /// conversation in which it is answered under `their_topic`, in the form that it uses.
    pub async fn run(&self, mut inbox: BusInbox, their_topic: &str) {
        let (peers, topic) = (self.clone(), their_topic.to_owned());
        inbox.hand_over_to(Arc::new(move |incoming| peers.take_in(incoming, &topic)));
        while let Some(incoming) = inbox.next().await {
            self.take_in(incoming, their_topic);
        }
    }

    fn take_in(&self, incoming: IncomingPayload, their_topic: &str) {
        let IncomingPayload { from, payload, form, receipt } = incoming;
        if let Some(BusConversation { peer, guard, .. }) = self.known(from) {
            peer.receive_opened(guard.open(&payload), receipt);
            return;
        }
        let side = (self.0.accept)(from);
        match side.guard.open(&payload) {
            // Only an accepted payload opens a conversation.
            Ok(payload) => {
                let manner = ChannelOptions { topic: their_topic.to_owned(), form };
                if let Some(begun) = self.begin(from, manner, side) {
                    begun.peer.receive_with(&payload, receipt);
                }
            }
            Err(RejectedPayload { error, .. }) => {
                tracing::warn!(%from, reason = error.reason(), "a payload of a node is rejected");
            }
        }
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<PublicKey, BusConversation>> {
        self.0.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The conversation with a node that goes on, in whatever manner.
    fn known(&self, key: PublicKey) -> Option<BusConversation> {
        let mut peers = self.peers();
        let known = peers.get_mut(&key).filter(|known| !known.peer.is_closed())?;
        known.used = Instant::now();
        Some(known.clone())
    }

    /// The conversation with a node in this manner; one in another ends.
    fn open(&self, key: PublicKey, manner: ChannelOptions) -> Option<BusConversation> {
        if let Some(known) = self.known(key) {
            if known.options == manner {
                return Some(known);
            }
            known.peer.close();
        }
        let side = (self.0.accept)(key);
        self.begin(key, manner, side)
    }

    /// Begins a conversation, unless there is one by now.
    fn begin(&self, key: PublicKey, manner: ChannelOptions, side: PeerEndpoint) -> Option<BusConversation> {
        let mut peers = self.peers();
        if let Some(known) = peers.get(&key).filter(|known| !known.peer.is_closed()) {
            return Some(known.clone());
        }
        if !self.make_room(&mut peers) {
            tracing::warn!(%key, "a node was ignored: there are {PEERS_MAX} conversations already");
            return None;
        }
        let PeerEndpoint { handler, guard } = side;
        let bus = Arc::clone(&self.0.bus);
        let is_near = bus.is_in_process(key);
        let leaving = PeerSender { bus, to: key, options: manner.clone(), guard: Arc::clone(&guard) };
        let peer = if is_near {
            JsonRpcPeer::with_direct_sender(Box::new(leaving), handler)
        } else {
            let (outbox, payloads) = mpsc::channel(OUTBOX_LEN);
            let peer = JsonRpcPeer::timed(outbox, handler);
            tokio::spawn(send_all(leaving, peer.downgrade(), payloads));
            peer
        };
        let conversation = BusConversation { options: manner, peer, guard, used: Instant::now() };
        peers.insert(key, conversation.clone());
        Some(conversation)
    }

    /// Returns true if there is room for one more conversation, after those that are over have gone.
    fn make_room(&self, peers: &mut HashMap<PublicKey, BusConversation>) -> bool {
        let max = match self.0.admission {
            PeerAdmission::RefuseNew => PEERS_MAX,
            PeerAdmission::EvictIdle(max) => max,
        };
        if peers.len() < max {
            return true;
        }
        peers.retain(|_, conversation| !conversation.peer.is_closed());
        if peers.len() < max || self.0.admission == PeerAdmission::RefuseNew {
            return peers.len() < max;
        }
        let silent = peers.iter().min_by_key(|(_, conversation)| conversation.used).map(|(key, _)| *key);
        if let Some(ended) = silent.and_then(|key| peers.remove(&key)) {
            ended.peer.close();
        }
        true
    }
}

/// Everything that a payload needs to leave a conversation: the bus, its destination, and how it is wrapped and signed.
struct PeerSender {
    bus: Arc<dyn Bus>,
    to: PublicKey,
    options: ChannelOptions,
    guard: Arc<dyn Guard>,
}

#[async_trait]
impl DirectSender for PeerSender {
    /// Sends a payload. When that fails, callers that wait for an answer of the node get an error at once: waiting for the
    /// time limit would not help. A payload that was not taken within its own time limit concerns no other caller.
    async fn send(&self, outgoing: OutgoingPayload) -> PayloadSendResult {
        let OutgoingPayload { payload, deadline, context, reply_to, batch } = outgoing;
        let (to, ChannelOptions { topic, form }) = (self.to, &self.options);
        let payload = match self.guard.seal_of(payload, context) {
            Ok(payload) => payload,
            Err(why) => {
                tracing::warn!(%to, why, "a payload cannot be signed");
                return PayloadSendResult::Unreachable;
            }
        };
        let parcel =
            Datagram { to: BusDestination::Key(to), topic, payload, form: *form, deadline, reply_to };
        let Err(error) = self.bus.send(parcel).await else { return PayloadSendResult::Sent(batch) };
        tracing::debug!(%to, %topic, %error, "a payload was not sent");
        let is_late = deadline.is_some_and(|deadline| deadline <= Instant::now());
        match form {
            // A plain node answers calls whenever they are done, so its calls are not repeated.
            PayloadForm::Plain => PayloadSendResult::Lost(batch),
            PayloadForm::Framed if is_late => PayloadSendResult::Stale,
            PayloadForm::Framed => PayloadSendResult::Unreachable,
        }
    }
}

/// Sends in order, as many together as the bus allows, for as long as the conversation has an owner.
async fn send_all(leaving: PeerSender, peer: WeakJsonRpcPeer, mut payloads: mpsc::Receiver<OutgoingPayload>) {
    let mut sends = FuturesUnordered::new();
    let mut ended = false;
    while !(ended && sends.is_empty()) {
        tokio::select! {
            next = payloads.recv(), if !ended && sends.len() < leaving.bus.window() => match next {
                Some(outgoing) => sends.push(leaving.send(outgoing)),
                None => ended = true,
            },
            Some(fate) = sends.next(), if !sends.is_empty() => {
                if let Some(peer) = peer.upgrade() {
                    peer.note_send_result(fate);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Unguarded;
    use crate::json_rpc::{CallError, JsonRpcRequest, JsonRpcResult};
    use crate::memory::MemoryNetwork;
    use futures_util::future::BoxFuture;
    use std::time::Duration;

    struct Echo;

    impl JsonRpcHandler for Echo {
        fn handle(
            &self,
            _: &JsonRpcPeer,
            requests: Vec<JsonRpcRequest>,
        ) -> BoxFuture<'static, Vec<JsonRpcResult>> {
            Box::pin(async move { requests.into_iter().map(|request| Ok(request.params)).collect() })
        }
    }

    fn node(network: &MemoryNetwork) -> BusPeers {
        let side = |_| PeerEndpoint { handler: Arc::new(Echo), guard: Arc::new(Unguarded) };
        BusPeers::new(Arc::new(network.node(PublicKey::random())), Arc::new(side))
    }

    fn listen(peers: &BusPeers, own: &str, theirs: &'static str) {
        let inbox = peers.bus().listen(own).expect("free");
        let peers = peers.clone();
        tokio::spawn(async move { peers.run(inbox, theirs).await });
    }

    #[tokio::test]
    async fn both_sides_call_over_their_topics() {
        for network in [MemoryNetwork::default(), MemoryNetwork::within_one_program()] {
            let (coordinator, supervisor) = (node(&network), node(&network));
            listen(&coordinator, "coordinator.rpc", "supervisor.rpc");
            listen(&supervisor, "supervisor.rpc", "coordinator.rpc");
            let wait = Duration::from_secs(20);
            for (from, to, topic) in [
                (&coordinator, &supervisor, "supervisor.rpc"),
                (&supervisor, &coordinator, "coordinator.rpc"),
            ] {
                let key = BusDestination::Key(to.bus().key().expect("known"));
                let peer = from.peer(key, topic).await.expect("known");
                assert_eq!(peer.call("echo", &[1], wait).await.expect("answered").get(), "[1]");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn where_anybody_may_speak_the_most_silent_one_goes() {
        let network = MemoryNetwork::default();
        let bus = || Arc::new(network.node(PublicKey::random()));
        let side = |_| PeerEndpoint { handler: Arc::new(Echo), guard: Arc::new(Unguarded) };
        let open = BusPeers::evicting(bus(), Arc::new(side), 2);
        let mut peers = Vec::new();
        for _ in 0..2 {
            let to = BusDestination::Key(PublicKey::random());
            peers.push((to, open.peer(to, "gateway.rpc").await.expect("room")));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        open.peer(peers[0].0, "gateway.rpc").await.expect("known");
        tokio::time::advance(Duration::from_secs(1)).await;
        open.peer(BusDestination::Key(PublicKey::random()), "gateway.rpc").await.expect("room is made");
        assert!(!peers[0].1.is_closed() && peers[1].1.is_closed());
    }

    #[tokio::test]
    async fn who_is_not_there_is_noticed_at_once() {
        for network in [MemoryNetwork::default(), MemoryNetwork::within_one_program()] {
            let lonely = node(&network);
            let to = BusDestination::Key(PublicKey::random());
            let peer = lonely.peer(to, "supervisor.rpc").await.expect("any key may be tried");
            let called = peer.call("echo", &[1], Duration::from_secs(3600)).await;
            assert_eq!(called.err(), Some(CallError::Closed));
        }
    }
}
