//! The coordinators that can be reached now.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::supervision::COORDINATOR_TOPIC;
use mycelium::json_rpc::JsonRpcPeer;
use mycelium::{BusDestination, BusPeers, BusStatus, PublicKey};
use tokio::sync::watch;

/// The open conversations. Clones share them.
#[derive(Debug, Clone)]
pub struct Coordinators(Arc<CoordinatorsInner>);

#[derive(Debug)]
struct CoordinatorsInner {
    /// Connections by coordinator, the newest last: a coordinator may connect over several addresses, or restart
    /// before its former process is gone.
    open: Mutex<HashMap<String, Vec<JsonRpcPeer>>>,
    bus: Mutex<Option<BusPeers>>,
    /// The nodes through which coordinators last sent messages.
    nodes: Mutex<HashMap<String, PublicKey>>,
    /// Roots that were succeeded, each with the last one after it.
    successors: Mutex<HashMap<String, String>>,
    /// Incremented whenever a coordinator has connected.
    arrivals: watch::Sender<u64>,
}

impl Default for Coordinators {
    fn default() -> Self {
        Self(Arc::new(CoordinatorsInner {
            open: Mutex::default(),
            bus: Mutex::default(),
            nodes: Mutex::default(),
            successors: Mutex::default(),
            arrivals: watch::Sender::new(0),
        }))
    }
}

impl Coordinators {
    /// Sets the bus through which coordinators can be reached as well.
    pub fn set_bus(&self, peers: BusPeers) {
        *self.0.bus.lock().unwrap_or_else(PoisonError::into_inner) = Some(peers);
    }

    /// Returns the status of the bus; the default before the bus was set.
    #[must_use]
    pub fn bus_status(&self) -> BusStatus {
        let bus = self.0.bus.lock().unwrap_or_else(PoisonError::into_inner);
        bus.as_ref().map(|peers| peers.bus().status().borrow().clone()).unwrap_or_default()
    }

    /// Returns the current root of the coordinator that had this root once.
    #[must_use]
    pub fn current_root(&self, name: &str) -> String {
        self.successors().get(name).cloned().unwrap_or_else(|| name.to_owned())
    }

    /// Returns true for a root that has been succeeded by another.
    #[must_use]
    pub fn is_retired(&self, name: &str) -> bool {
        self.successors().contains_key(name)
    }

    /// Sets which roots were succeeded, each with its last successor. The nodes of succeeded roots become those of their successors.
    pub fn set_successors(&self, successors: HashMap<String, String>) {
        let mut nodes = self.nodes();
        for (old, new) in &successors {
            if let Some(node) = nodes.remove(old) {
                nodes.entry(new.clone()).or_insert(node);
            }
        }
        *self.successors() = successors;
    }

    /// Ends the conversations with a coordinator, and wakes all tasks that wait for arrivals.
    pub fn end(&self, name: &str) {
        let ended = self.open().remove(name);
        ended.iter().flatten().for_each(JsonRpcPeer::close);
        self.0.arrivals.send_modify(|count| *count += 1);
    }

    /// Notes the node of a coordinator, once it is stored.
    pub fn note_node(&self, name: &str, node: PublicKey) {
        self.nodes().insert(name.to_owned(), node);
    }

    /// Returns true if the coordinator is noted at this node.
    #[must_use]
    pub fn is_at(&self, name: &str, node: PublicKey) -> bool {
        self.nodes().get(name) == Some(&node)
    }

    /// Claims a node for a coordinator that sent a message through it: any other that was noted there is removed.
    pub fn claim_node(&self, name: &str, node: PublicKey) {
        self.nodes().retain(|known, of| *of != node || known == name);
    }

    /// Adds stored nodes; nodes that were noted since take precedence.
    pub fn restore_nodes(&self, kept: impl IntoIterator<Item = (String, PublicKey)>) {
        let mut nodes = self.nodes();
        for (name, node) in kept {
            nodes.entry(name).or_insert(node);
        }
    }

    /// Returns the coordinator at a node.
    #[must_use]
    pub fn coordinator_at(&self, node: PublicKey) -> Option<String> {
        self.nodes().iter().find(|(_, known)| **known == node).map(|(name, _)| name.clone())
    }

    /// Adds a conversation with a coordinator that has connected; other conversations with it go on. Does nothing when this
    /// one is known or closed, or the coordinator has another root by now.
    pub fn connected(&self, name: &str, peer: &JsonRpcPeer) {
        {
            let mut open = self.open();
            if peer.is_closed() || self.is_retired(name) {
                return;
            }
            if open.get(name).is_some_and(|peers| peers.iter().any(|known| known.is(peer))) {
                return;
            }
            // Anyone can be a coordinator: nothing is kept of those that are gone.
            open.retain(|_, peers| {
                peers.retain(|known| !known.is_closed());
                !peers.is_empty()
            });
            open.entry(name.to_owned()).or_default().push(peer.clone());
        }
        tracing::info!(coordinator = name, "a coordinator has connected");
        self.0.arrivals.send_modify(|count| *count += 1);
    }

    /// Removes a conversation that has ended.
    pub fn disconnected(&self, name: &str, peer: &JsonRpcPeer) {
        // Closed first, so that it cannot be added again.
        peer.close();
        let mut open = self.open();
        if let Some(peers) = open.get_mut(name) {
            peers.retain(|known| !known.is(peer));
            if peers.is_empty() {
                open.remove(name);
            }
        }
    }

    /// Returns the conversations with a coordinator, the newest first; empty while there is none. For a retired root, returns those
    /// of its successor.
    pub async fn peers(&self, name: &str) -> Vec<JsonRpcPeer> {
        let name = &self.current_root(name);
        let mut peers: Vec<JsonRpcPeer> = self.open().get(name).cloned().unwrap_or_default();
        peers.retain(|peer| !peer.is_closed());
        peers.reverse();
        if peers.is_empty() {
            peers.extend(self.peer_on_bus(name).await);
        }
        peers
    }

    async fn peer_on_bus(&self, name: &str) -> Option<JsonRpcPeer> {
        let key = self.nodes().get(name).copied()?;
        let bus = self.0.bus.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        bus.peer(BusDestination::Key(key), COORDINATOR_TOPIC).await.ok()
    }

    /// Returns every open conversation.
    #[must_use]
    pub fn all(&self) -> Vec<JsonRpcPeer> {
        self.open().values().flatten().filter(|peer| !peer.is_closed()).cloned().collect()
    }

    /// Returns a receiver that changes whenever a coordinator has connected.
    #[must_use]
    pub fn arrivals(&self) -> watch::Receiver<u64> {
        self.0.arrivals.subscribe()
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<String, PublicKey>> {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn successors(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.0.successors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Vec<JsonRpcPeer>>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures_util::future::BoxFuture;
    use mycelium::json_rpc::{JsonRpcHandler, JsonRpcRequest, JsonRpcResult};
    use tokio::sync::mpsc;

    struct Silent;

    impl JsonRpcHandler for Silent {
        fn handle(&self, _: &JsonRpcPeer, _: Vec<JsonRpcRequest>) -> BoxFuture<'static, Vec<JsonRpcResult>> {
            Box::pin(async { Vec::new() })
        }
    }

    fn peer() -> (JsonRpcPeer, mpsc::Receiver<Bytes>) {
        let (outbox, payloads) = mpsc::channel(4);
        (JsonRpcPeer::new(outbox, Arc::new(Silent)), payloads)
    }

    #[tokio::test]
    async fn two_streams_of_one_coordinator_live_side_by_side() {
        let coordinators = Coordinators::default();
        let (first, mut first_out) = peer();
        let (second, mut second_out) = peer();
        for _ in 0..3 {
            coordinators.connected("a", &first);
            coordinators.connected("a", &second);
        }
        let open = coordinators.peers("a").await;
        assert_eq!(open.len(), 2);
        assert!(open[0].is(&second) && open[1].is(&first), "the newest first");
        assert_eq!((coordinators.all().len(), *coordinators.arrivals().borrow()), (2, 2));
        for peer in coordinators.all() {
            peer.notify("test", &[1]).await.expect("an open conversation");
        }
        assert!(first_out.recv().await.is_some() && second_out.recv().await.is_some());

        coordinators.disconnected("a", &second);
        coordinators.connected("a", &second);
        let open = coordinators.peers("a").await;
        assert!(open.len() == 1 && open[0].is(&first), "only the one that left is gone, and for good");
        drop(first_out);
        assert!(coordinators.peers("a").await.is_empty() && coordinators.all().is_empty());
    }
}
