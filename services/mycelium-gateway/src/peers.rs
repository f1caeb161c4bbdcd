//! The supervisors that the gateway speaks to, and for which contexts each may speak.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{Address, ContextId};
use mycelium::{Peer, PublicKey};
use proto::internal::v1::WatchResponse;
use tokio::sync::{mpsc, watch};

use crate::error::PeerError;
use crate::metrics::Metrics;

/// Where a conversation stands.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    /// The conversation, while it stands.
    pub peer: Option<Peer>,
    /// The supervisor's own name, once it was heard.
    pub supervisor: String,
    /// What went wrong last.
    pub last_error: String,
}

/// Where whoever keeps a conversation notes how it stands.
#[derive(Debug, Clone)]
pub struct Seat {
    standing: watch::Sender<Standing>,
    metrics: Metrics,
}

impl Seat {
    /// Whether the conversation stands.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.standing.borrow().peer.is_some()
    }

    /// The conversation stands.
    pub fn take(&self, peer: Peer) {
        self.change(|standing| {
            standing.peer = Some(peer);
            standing.last_error.clear();
        });
    }

    /// It does not; ends what stood.
    pub fn leave(&self, why: &str) {
        self.change(|standing| {
            if let Some(peer) = standing.peer.take() {
                peer.close();
            }
            why.clone_into(&mut standing.last_error);
        });
    }

    fn change(&self, change: impl FnOnce(&mut Standing)) {
        self.standing.send_modify(|standing| {
            let before = standing.peer.is_some();
            change(standing);
            let connected = i64::from(standing.peer.is_some()) - i64::from(before);
            self.metrics.connected.add(connected);
        });
    }
}

/// A conversation that has to be opened and kept.
#[derive(Debug)]
pub struct Wanted {
    /// With whom, as the records spell it.
    pub text: String,
    /// The same, understood.
    pub address: Address,
    /// The topic its requests travel under.
    pub topic: String,
    /// Where to note how it stands.
    pub seat: Seat,
}

/// All of them. Clones are the same.
#[derive(Debug, Clone)]
pub struct Peers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    wanted: mpsc::UnboundedSender<Wanted>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Table {
    peers: BTreeMap<String, watch::Sender<Standing>>,
    /// The contexts whose records name an address.
    contexts: HashMap<String, BTreeSet<ContextId>>,
    /// Addresses on the bus by the node behind them.
    nodes: HashMap<PublicKey, String>,
}

impl Peers {
    /// Nobody yet. Whoever holds the receiver opens what is wanted; there is one entry for each address.
    #[must_use]
    pub fn new(metrics: Metrics) -> (Self, mpsc::UnboundedReceiver<Wanted>) {
        let (wanted, receiver) = mpsc::unbounded_channel();
        (Self(Arc::new(Shared { table: Mutex::default(), wanted, metrics })), receiver)
    }

    /// Takes over what the registry says: whom to speak to, and for whom they work.
    pub fn update(&self, part: WatchResponse) {
        for viewed in part.runners {
            let Some(runner) = viewed.runner else { continue };
            let contexts = ContextId(viewed.context_id);
            self.lock().contexts.entry(runner.address.clone()).or_default().insert(contexts);
            if let Err(error) = self.want(&runner.address, &runner.topic) {
                tracing::warn!(%error, "a runner record is of no use");
            }
        }
    }

    /// Whether a supervisor may speak of a context: a record of the context names it.
    #[must_use]
    pub fn works_for(&self, address: &str, context: ContextId) -> bool {
        self.lock().contexts.get(address).is_some_and(|contexts| contexts.contains(&context))
    }

    /// The conversation with a supervisor. Waits for it to stand, but not for long.
    ///
    /// # Errors
    /// Any [`PeerError`].
    pub async fn connected(&self, address: &str, topic: &str, wait: Duration) -> Result<Peer, PeerError> {
        let mut standing = self.want(address, topic)?;
        let stands = standing.wait_for(|standing| standing.peer.as_ref().is_some_and(|p| !p.is_closed()));
        let found = match tokio::time::timeout(wait, stands).await {
            Ok(Ok(standing)) => standing.peer.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        found.ok_or_else(|| PeerError::NotConnected {
            address: address.to_owned(),
            last_error: standing.borrow().last_error.clone(),
        })
    }

    /// Everybody, with how it stands.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Standing)> {
        let table = self.lock();
        table.peers.iter().map(|(address, standing)| (address.clone(), standing.borrow().clone())).collect()
    }

    /// Notes which node of the bus an address leads to.
    pub fn note_node(&self, key: PublicKey, address: &str) {
        self.lock().nodes.insert(key, address.to_owned());
    }

    /// The address that leads to a node of the bus, when a record names it.
    #[must_use]
    pub fn address_of(&self, key: PublicKey) -> Option<String> {
        self.lock().nodes.get(&key).cloned()
    }

    /// Notes a supervisor's own name.
    pub fn note_name(&self, address: &str, name: &str) {
        if let Some(standing) = self.lock().peers.get(address) {
            standing.send_if_modified(|standing| {
                let differs = standing.supervisor != name;
                if differs {
                    name.clone_into(&mut standing.supervisor);
                }
                differs
            });
        }
    }

    fn want(&self, address: &str, topic: &str) -> Result<watch::Receiver<Standing>, PeerError> {
        let mut table = self.lock();
        if let Some(standing) = table.peers.get(address) {
            return Ok(standing.subscribe());
        }
        let parsed: Address = address.parse()?;
        let standing = watch::Sender::new(Standing::default());
        table.peers.insert(address.to_owned(), standing.clone());
        let receiver = standing.subscribe();
        let seat = Seat { standing, metrics: self.0.metrics.clone() };
        let wanted = Wanted { text: address.to_owned(), address: parsed, topic: topic.to_owned(), seat };
        // The receiving end lives as long as the gateway runs.
        self.0.wanted.send(wanted).ok();
        Ok(receiver)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
