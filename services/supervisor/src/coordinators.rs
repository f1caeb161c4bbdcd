//! The coordinators that can be spoken to now.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::supervision::COORDINATOR_TOPIC;
use mycelium::json_rpc::Peer;
use mycelium::{BusPeers, Destination, PublicKey};
use tokio::sync::watch;

/// What the name of a coordinator on a bus begins with; its key follows.
const ON_BUS: &str = "mycelium:";

/// The conversations that are open. Clones are the same.
#[derive(Debug, Clone)]
pub struct Coordinators(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    open: Mutex<HashMap<String, Peer>>,
    bus: Mutex<Option<BusPeers>>,
    /// Raised whenever a coordinator has turned up.
    arrivals: watch::Sender<u64>,
}

impl Default for Coordinators {
    fn default() -> Self {
        Self(Arc::new(Shared {
            open: Mutex::default(),
            bus: Mutex::default(),
            arrivals: watch::Sender::new(0),
        }))
    }
}

/// The name of a coordinator that speaks through a bus.
#[must_use]
pub fn name_on_bus(key: PublicKey) -> String {
    format!("{ON_BUS}{key}")
}

impl Coordinators {
    /// From now on coordinators can be spoken to through this bus as well.
    pub fn set_bus(&self, peers: BusPeers) {
        *self.0.bus.lock().unwrap_or_else(PoisonError::into_inner) = Some(peers);
    }

    /// A coordinator has turned up; a former conversation with it ends.
    pub fn arrived(&self, name: &str, peer: &Peer) {
        let before = self.open().insert(name.to_owned(), peer.clone());
        match before {
            Some(before) if before.is(peer) => return,
            Some(before) => before.close(),
            None => {}
        }
        tracing::info!(coordinator = name, "a coordinator is here");
        self.0.arrivals.send_modify(|count| *count += 1);
    }

    /// A conversation has ended.
    pub fn left(&self, name: &str, peer: &Peer) {
        let mut open = self.open();
        if open.get(name).is_some_and(|known| known.is(peer)) {
            open.remove(name);
        }
        peer.close();
    }

    /// The conversation with a coordinator; nothing while there is none.
    pub async fn peer(&self, name: &str) -> Option<Peer> {
        if let Some(peer) = self.open().get(name).filter(|peer| !peer.is_closed()) {
            return Some(peer.clone());
        }
        let key: PublicKey = name.strip_prefix(ON_BUS)?.parse().ok()?;
        let bus = self.0.bus.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        bus.peer(Destination::Key(key), COORDINATOR_TOPIC).await.ok()
    }

    /// Everyone who can be spoken to.
    #[must_use]
    pub fn all(&self) -> Vec<Peer> {
        self.open().values().filter(|peer| !peer.is_closed()).cloned().collect()
    }

    /// Changes whenever a coordinator has turned up.
    #[must_use]
    pub fn arrivals(&self) -> watch::Receiver<u64> {
        self.0.arrivals.subscribe()
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Peer>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
