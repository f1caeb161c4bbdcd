//! The supervisors that the gateway speaks to, and for which contexts each may speak.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{Address, ContextId, ReportSource, RunnerId};
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
    peers: BTreeMap<String, Entry>,
    /// The records, with the address that each names.
    records: BTreeMap<(ContextId, RunnerId), String>,
    /// The records that name an address.
    by_address: HashMap<String, BTreeSet<(ContextId, RunnerId)>>,
    /// Addresses on the bus by the node behind them.
    nodes: HashMap<PublicKey, String>,
}

#[derive(Debug)]
struct Entry {
    topic: String,
    standing: watch::Sender<Standing>,
}

impl Table {
    fn put(&mut self, key: (ContextId, RunnerId), address: &str) {
        self.remove(key);
        self.records.insert(key, address.to_owned());
        self.by_address.entry(address.to_owned()).or_default().insert(key);
    }

    fn remove(&mut self, key: (ContextId, RunnerId)) {
        let Some(address) = self.records.remove(&key) else { return };
        if let Some(keys) = self.by_address.get_mut(&address) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }
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
            self.lock().put((ContextId(viewed.context_id), RunnerId(runner.id)), &runner.address);
            if let Err(error) = self.want(&runner.address, &runner.topic) {
                tracing::warn!(%error, "a runner record is of no use");
            }
        }
    }

    /// Whether a supervisor may speak of a context: a record of the context names it.
    #[must_use]
    pub fn works_for(&self, address: &str, context: ContextId) -> bool {
        let of_context = (context, RunnerId(0))..=(context, RunnerId(u32::MAX));
        let table = self.lock();
        table.by_address.get(address).is_some_and(|keys| keys.range(of_context).next().is_some())
    }

    /// Where a supervisor is reached, as the records say; what it says comes from there.
    #[must_use]
    pub fn source(&self, address: &str) -> ReportSource {
        let topic = self.lock().peers.get(address).map(|entry| entry.topic.clone());
        ReportSource { address: address.to_owned(), topic: topic.unwrap_or_default() }
    }

    /// A supervisor's own name; empty until it was heard.
    #[must_use]
    pub fn name_of(&self, address: &str) -> String {
        let table = self.lock();
        table.peers.get(address).map(|entry| entry.standing.borrow().supervisor.clone()).unwrap_or_default()
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
        let peers = table.peers.iter();
        peers.map(|(address, entry)| (address.clone(), entry.standing.borrow().clone())).collect()
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
        if let Some(Entry { standing, .. }) = self.lock().peers.get(address) {
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
        if let Some(entry) = table.peers.get(address) {
            return Ok(entry.standing.subscribe());
        }
        let parsed: Address = address.parse()?;
        let standing = watch::Sender::new(Standing::default());
        let entry = Entry { topic: topic.to_owned(), standing: standing.clone() };
        table.peers.insert(address.to_owned(), entry);
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
