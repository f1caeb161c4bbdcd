//! Network between the nodes of one process.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::identity::{Identity, ip_of};
use crate::node::Node;
use crate::packet::Packet;

/// Carries packets between the nodes that joined it. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Overlay(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    nodes: HashMap<IpAddr, Node>,
    cut: HashSet<IpAddr>,
}

impl Overlay {
    /// A node is there, or there again.
    pub fn join(&self, node: Node) {
        self.state().nodes.insert(node.identity().ip.into(), node);
    }

    /// A node is gone.
    pub fn leave(&self, identity: Identity) {
        self.state().nodes.remove(&identity.ip.into());
    }

    /// Nothing reaches this node, and nothing that it sends reaches others.
    pub fn cut(&self, identity: Identity) {
        self.state().cut.insert(identity.ip.into());
    }

    /// Joins a node that was cut off.
    pub fn restore(&self, identity: Identity) {
        self.state().cut.remove(&identity.ip.into());
    }

    pub(crate) fn carry(&self, packet: Packet) {
        let node = {
            let state = self.state();
            let from = IpAddr::from(ip_of(&packet.from));
            let cut = state.cut.contains(&from) || state.cut.contains(&packet.to);
            state.nodes.get(&packet.to).filter(|_| !cut).cloned()
        };
        if let Some(node) = node {
            node.take(packet);
        }
    }

    /// The key behind an address, while there is a way to it.
    pub(crate) fn key_of(&self, ip: IpAddr) -> Option<[u8; 32]> {
        let state = self.state();
        state.nodes.get(&ip).filter(|_| !state.cut.contains(&ip)).map(|node| node.identity().key)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
