//! The supervisors that the gateway speaks to, and for which contexts each may speak.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use identity::VerifyingKey;
use model::{Address, ContextId, InstanceInfo, Isolation, Name, ReportSource, RunnerId, ScriptType};
use mycelium::{JsonRpcPeer, PayloadForm, PublicKey};
use proto::convert::enums::script_type_from_wire;
use proto::internal::v1 as wire;
use proto::v1::{EnvelopeForm, Runner};
use tokio::sync::{mpsc, watch};

use crate::error::PeerError;
use crate::metrics::Metrics;
use crate::node_addresses::NodeAddresses;
use crate::runner_records::{ConnectionRequirements, RunnerRecords};

/// Refusal code for a signing key other than the one in the runner record.
pub const PINNED_KEY: &str = "PINNED_KEY";

/// Error of a conversation that ends because its records now ask for another form.
pub(crate) const OTHER_FORM: &str = "its records ask for another form of envelopes";

/// State of a connection to a supervisor.
#[derive(Debug, Clone, Default)]
pub struct SupervisorConnectionState {
    /// The conversation, while it stands.
    pub peer: Option<JsonRpcPeer>,
    /// The supervisor's own name, once it is known.
    pub supervisor: String,
    /// Last error of the connection.
    pub last_error: String,
}

/// Slot in which the task that keeps a conversation notes its state.
#[derive(Debug, Clone)]
pub struct SupervisorConnectionSlot {
    state: watch::Sender<SupervisorConnectionState>,
    metrics: Metrics,
}

impl SupervisorConnectionSlot {
    /// Returns true while the conversation is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state.borrow().peer.is_some()
    }

    /// Waits until the conversation is no longer connected. Loses nothing when dropped.
    pub async fn disconnected(&self) {
        let mut state = self.state.subscribe();
        // The sender is `self`: it cannot be gone.
        drop(state.wait_for(|state| state.peer.is_none()).await);
    }

    /// Notes that the conversation is connected.
    pub fn set_connected(&self, peer: JsonRpcPeer) {
        self.change(|state| {
            state.peer = Some(peer);
            state.last_error.clear();
        });
    }

    /// Notes that the conversation is not connected; ends the old one.
    pub fn set_disconnected(&self, why: &str) {
        self.change(|state| {
            if let Some(peer) = state.peer.take() {
                peer.close();
            }
            why.clone_into(&mut state.last_error);
        });
    }

    fn change(&self, change: impl FnOnce(&mut SupervisorConnectionState)) {
        self.state.send_modify(|state| {
            let before = state.peer.is_some();
            change(state);
            let connected = i64::from(state.peer.is_some()) - i64::from(before);
            self.metrics.connected.add(connected);
        });
    }
}

/// Request to open and keep a conversation.
#[derive(Debug)]
pub struct SupervisorDialRequest {
    /// Address of the supervisor, as the records spell it.
    pub text: String,
    /// Parsed address.
    pub address: Address,
    /// Slot for the state of the connection.
    pub slot: SupervisorConnectionSlot,
}

/// All supervisors. Clones share them.
#[derive(Debug, Clone)]
pub struct SupervisorPeers(Arc<SupervisorPeersInner>);

#[derive(Debug)]
struct SupervisorPeersInner {
    table: Mutex<SupervisorPeerTable>,
    dial_requests: mpsc::UnboundedSender<SupervisorDialRequest>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct SupervisorPeerTable {
    peers: BTreeMap<String, SupervisorPeerEntry>,
    records: RunnerRecords,
    nodes: NodeAddresses,
}

#[derive(Debug)]
struct SupervisorPeerEntry {
    topic: String,
    state: watch::Sender<SupervisorConnectionState>,
    /// Last key that the supervisor signed with.
    key: Option<VerifyingKey>,
    /// Error of a node that used a key that no record accepts.
    complaint: Option<PeerError>,
}

impl SupervisorPeerTable {
    /// Returns the last key that was used at these addresses.
    fn key(&self, at: &[String]) -> Option<VerifyingKey> {
        at.iter().find_map(|address| self.peers.get(address)?.key)
    }

    fn form(&self, at: &[String]) -> PayloadForm {
        if self.records.is_plain(at) { PayloadForm::Plain } else { PayloadForm::Framed }
    }

    /// Returns the connection states of these addresses.
    fn connection_states(&self, at: &[String]) -> Vec<watch::Sender<SupervisorConnectionState>> {
        at.iter().filter_map(|address| Some(self.peers.get(address)?.state.clone())).collect()
    }
}

impl SupervisorPeers {
    /// Makes an empty table. The receiver's owner opens the requested conversations, one for each address.
    #[must_use]
    pub fn new(metrics: Metrics) -> (Self, mpsc::UnboundedReceiver<SupervisorDialRequest>) {
        let (wanted, receiver) = mpsc::unbounded_channel();
        (
            Self(Arc::new(SupervisorPeersInner { table: Mutex::default(), dial_requests: wanted, metrics })),
            receiver,
        )
    }

    /// Begins a view: supervisors that its snapshot does not name are gone.
    pub fn begin_view(&self) {
        self.lock().records.begin_view();
    }

    /// Applies a part of the registry's view: which supervisors to connect to, for which contexts. A conversation goes on
    /// after the last record that names it is gone: jobs there may have to be stopped.
    pub fn update(&self, part: wire::WatchResponse) {
        let wire::WatchResponse { runners, snapshot_end, gone } = part;
        for wire::GoneRunner { context_id, runner_id } in gone {
            self.lock().records.remove((ContextId(context_id), RunnerId(runner_id)));
        }
        for viewed in runners {
            let Some(runner) = viewed.runner else { continue };
            let key = (ContextId(viewed.context_id), RunnerId(runner.id));
            if let Ok(Address::MyceliumKey(node)) = runner.address.parse()
                && let Ok(node) = node.parse()
            {
                self.note_node(node, &runner.address);
            }
            let before = self.form(&runner.address);
            self.lock().records.put(key, &runner.address, demands(&runner));
            if let Err(error) = self.want(&runner.address, &runner.topic) {
                tracing::warn!(%error, "a runner record cannot be used");
            }
            if self.form(&runner.address) != before {
                self.disconnect(&runner.address, OTHER_FORM);
            }
            let signing_key = {
                let table = self.lock();
                table.key(&table.nodes.spellings(&runner.address))
            };
            if let Some(key) = signing_key {
                // The new record may end the conversation; `admit` logs and notes why.
                drop(self.admit(&runner.address, key));
            }
        }
        if snapshot_end {
            self.lock().records.end_snapshot();
        }
    }

    /// Finds a record of a context that names a supervisor and accepts the key that it signs with. Without such a record the
    /// supervisor may not speak for the context.
    #[must_use]
    pub fn record_of(&self, address: &str, context: ContextId) -> Option<RunnerId> {
        let table = self.lock();
        let at = table.nodes.spellings(address);
        let key = table.key(&at).map(|key| key.to_string());
        table.records.find(&at, context, key.as_deref())
    }

    /// Checks that a supervisor may receive data of a context.
    ///
    /// # Errors
    /// [`PeerError::OtherKey`] when the records of the context name another signing key.
    pub fn check_context(&self, address: &str, context: ContextId) -> Result<(), PeerError> {
        let table = self.lock();
        let at = table.nodes.spellings(address);
        let key = table.key(&at).map(|key| key.to_string());
        match table.records.other_key_for(&at, context, key.as_deref()) {
            None => Ok(()),
            Some(pinned) => Err(other_key(address, key.unwrap_or_default(), pinned)),
        }
    }

    /// Admits a signing key at an address.
    ///
    /// # Errors
    /// [`PeerError::OtherKey`] when every record that names the address names another key: the refusal has been counted, the
    /// conversation has ended, and its state holds the error.
    pub fn admit(&self, address: &str, key: VerifyingKey) -> Result<(), PeerError> {
        let admitted = {
            let mut table = self.lock();
            let at = table.nodes.spellings(address);
            let pinned = table.records.other_key(&at, &key.to_string());
            let admitted = pinned.map_or(Ok(()), |pinned| Err(other_key(address, key.to_string(), pinned)));
            for spelling in &at {
                if let Some(entry) = table.peers.get_mut(spelling) {
                    (entry.key, entry.complaint) = (admitted.is_ok().then_some(key), admitted.clone().err());
                }
            }
            admitted
        };
        if let Err(error) = &admitted {
            tracing::warn!(address, %error, "a supervisor signs with a key that its records do not name");
            self.0.metrics.envelope_refused(PINNED_KEY);
            self.disconnect(address, &error.to_string());
        }
        admitted
    }

    /// Ends the conversation with the supervisor at all of its addresses.
    pub fn disconnect(&self, address: &str, why: &str) {
        let connection_states = {
            let table = self.lock();
            table.connection_states(&table.nodes.spellings(address))
        };
        for state in connection_states {
            SupervisorConnectionSlot { state, metrics: self.0.metrics.clone() }.set_disconnected(why);
        }
    }

    /// Returns the error of an address whose last signer used another key than its records demand.
    #[must_use]
    pub fn complaint(&self, address: &str) -> Option<PeerError> {
        self.lock().peers.get(address)?.complaint.clone()
    }

    /// Returns the form of payloads to a supervisor over a bus.
    #[must_use]
    pub fn form(&self, address: &str) -> PayloadForm {
        let table = self.lock();
        table.form(&table.nodes.spellings(address))
    }

    /// Returns the instances of a supervisor that reports none, by its records: one slot each.
    #[must_use]
    pub fn offered(&self, address: &str) -> Vec<InstanceInfo> {
        let table = self.lock();
        let offered = table.records.offered(&table.nodes.spellings(address)).into_iter();
        let instance = |(script_type, group): (ScriptType, Option<Name>)| InstanceInfo {
            script_type,
            group: group.unwrap_or_else(|| "default".parse().expect("a constant that is a name")),
            number: 1,
            slots: 1,
            busy: 0,
            isolation: Isolation::Basic,
            layers: Vec::new(),
            version: String::new(),
        };
        offered.map(instance).collect()
    }

    /// Returns the names of secrets for plain requests, of one context or all, and the contexts that name them.
    #[must_use]
    pub fn secrets(&self, address: &str, context: Option<ContextId>) -> Vec<(ContextId, String)> {
        let table = self.lock();
        table.records.secrets(&table.nodes.spellings(address), context)
    }

    /// Returns every address of the supervisor at this one.
    #[must_use]
    pub fn spellings(&self, address: &str) -> Vec<String> {
        self.lock().nodes.spellings(address)
    }

    /// Returns the address by which the records of a context name the supervisor at this one.
    #[must_use]
    pub fn address_for(&self, address: &str, context: ContextId) -> String {
        let table = self.lock();
        let named = table.nodes.spellings(address).into_iter().find(|at| table.records.names(at, context));
        named.unwrap_or_else(|| address.to_owned())
    }

    /// Returns the topic of a supervisor: one topic for all of its addresses.
    #[must_use]
    pub fn topic(&self, address: &str) -> String {
        let table = self.lock();
        let spellings = table.nodes.spellings(address);
        let topic = spellings.iter().find_map(|at| table.peers.get(at).map(|entry| entry.topic.clone()));
        topic.unwrap_or_default()
    }

    /// Returns where a supervisor is reached by its records; this is the source of its reports.
    #[must_use]
    pub fn source(&self, address: &str) -> ReportSource {
        let topic = self.lock().peers.get(address).map(|entry| entry.topic.clone());
        ReportSource { address: address.to_owned(), topic: topic.unwrap_or_default() }
    }

    /// Returns a supervisor's own name; empty until it is known.
    #[must_use]
    pub fn name_of(&self, address: &str) -> String {
        let table = self.lock();
        table.peers.get(address).map(|entry| entry.state.borrow().supervisor.clone()).unwrap_or_default()
    }

    /// Returns the conversation with a supervisor. Waits a limited time for it to be connected.
    ///
    /// # Errors
    /// Any [`PeerError`].
    pub async fn connected(
        &self,
        address: &str,
        topic: &str,
        wait: Duration,
    ) -> Result<JsonRpcPeer, PeerError> {
        let mut state = self.want(address, topic)?;
        let stands = state.wait_for(|state| state.peer.as_ref().is_some_and(|p| !p.is_closed()));
        let found = match tokio::time::timeout(wait, stands).await {
            Ok(Ok(state)) => state.peer.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        found.ok_or_else(|| PeerError::NotConnected {
            address: address.to_owned(),
            last_error: state.borrow().last_error.clone(),
        })
    }

    /// Returns the conversation with a supervisor, if it is connected now; begins none.
    #[must_use]
    pub fn connected_peer(&self, address: &str) -> Option<JsonRpcPeer> {
        let peer = self.lock().peers.get(address)?.state.borrow().peer.clone();
        peer.filter(|peer| !peer.is_closed())
    }

    /// Returns all supervisors, with the states of their connections.
    #[must_use]
    pub fn all(&self) -> Vec<(String, SupervisorConnectionState)> {
        let table = self.lock();
        let peers = table.peers.iter();
        peers.map(|(address, entry)| (address.clone(), entry.state.borrow().clone())).collect()
    }

    /// Notes which node of the bus an address leads to. All addresses of a node are one supervisor, with all their records. If
    /// these together ask for another form than that of the current conversation, the conversation ends.
    pub fn note_node(&self, key: PublicKey, address: &str) {
        let changed = {
            let mut table = self.lock();
            let form = |table: &SupervisorPeerTable| {
                let known = table.nodes.address_of(key)?;
                Some(table.form(&table.nodes.spellings(known)))
            };
            let before = form(&table);
            if !table.nodes.note(key, address) {
                return;
            }
            if let Some(entry) = table.peers.get_mut(address) {
                // The key and the error belong to the node that was at this address before.
                (entry.key, entry.complaint) = (None, None);
            }
            before.is_some() && form(&table) != before
        };
        if changed {
            self.disconnect(address, OTHER_FORM);
        }
    }

    /// The address that leads to a node of the bus, when a record names it.
    #[must_use]
    pub fn address_of(&self, key: PublicKey) -> Option<String> {
        self.lock().nodes.address_of(key).cloned()
    }

    /// The node of the bus that an address leads to, once that is known.
    #[must_use]
    pub fn node_of(&self, address: &str) -> Option<PublicKey> {
        self.lock().nodes.key_of(address)
    }

    /// Notes a supervisor's own name.
    pub fn note_name(&self, address: &str, name: &str) {
        let table = self.lock();
        for state in table.connection_states(&table.nodes.spellings(address)) {
            state.send_if_modified(|state| {
                let differs = state.supervisor != name;
                if differs {
                    name.clone_into(&mut state.supervisor);
                }
                differs
            });
        }
    }

    fn want(
        &self,
        address: &str,
        topic: &str,
    ) -> Result<watch::Receiver<SupervisorConnectionState>, PeerError> {
        let mut table = self.lock();
        if let Some(entry) = table.peers.get(address) {
            return Ok(entry.state.subscribe());
        }
        let parsed: Address = address.parse()?;
        let state = watch::Sender::new(SupervisorConnectionState::default());
        let entry =
            SupervisorPeerEntry { topic: topic.to_owned(), state: state.clone(), key: None, complaint: None };
        table.peers.insert(address.to_owned(), entry);
        let receiver = state.subscribe();
        let slot = SupervisorConnectionSlot { state, metrics: self.0.metrics.clone() };
        let wanted = SupervisorDialRequest { text: address.to_owned(), address: parsed, slot };
        // The receiver lives as long as the gateway runs.
        self.0.dial_requests.send(wanted).ok();
        Ok(receiver)
    }

    fn lock(&self) -> MutexGuard<'_, SupervisorPeerTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn demands(runner: &Runner) -> ConnectionRequirements {
    ConnectionRequirements {
        signing_key: runner.signing_key.clone(),
        plain: runner.envelope() == EnvelopeForm::Plain,
        secret: runner.secret_ref.clone(),
        script_types: runner.script_types.iter().filter_map(|kind| script_type_from_wire(*kind)).collect(),
        group: runner.group.parse().ok(),
    }
}

fn other_key(address: &str, key: String, pinned: String) -> PeerError {
    PeerError::OtherKey { address: address.to_owned(), key, pinned }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::internal::v1::{GoneRunner, ViewedRunner, WatchResponse};

    fn part(runners: &[(u32, u32, &str)], gone: &[(u32, u32)], snapshot_end: bool) -> WatchResponse {
        let runners = runners.iter().map(|(context_id, id, address)| {
            let (address, topic) = ((*address).to_owned(), "t".to_owned());
            let runner = Some(Runner { id: *id, address, topic, ..Default::default() });
            ViewedRunner { context_id: *context_id, runner }
        });
        let gone = gone
            .iter()
            .map(|(context_id, runner_id)| GoneRunner { context_id: *context_id, runner_id: *runner_id });
        WatchResponse { runners: runners.collect(), snapshot_end, gone: gone.collect() }
    }

    #[test]
    fn a_supervisor_speaks_for_a_context_while_a_record_of_it_names_it() {
        const A: &str = "grpc://a:1";
        let metrics = Metrics::new(&prometheus::Registry::new()).expect("nothing registered twice");
        let (peers, _wanted) = SupervisorPeers::new(metrics);
        let works = |context| peers.record_of(A, ContextId(context)).is_some();
        peers.begin_view();
        peers.update(part(&[(1, 1, A), (1, 2, A), (2, 1, A), (3, 9, A)], &[], false));
        peers.update(part(&[], &[], true));
        assert!(works(1) && works(2) && !works(4));
        assert_eq!(peers.record_of(A, ContextId(3)), Some(RunnerId(9)));
        assert_eq!(peers.source(A), ReportSource { address: A.into(), topic: "t".into() });
        peers.update(part(&[(2, 1, "grpc://b:1")], &[(1, 1)], false));
        assert!(works(1) && !works(2), "one record of context 1 is left, that of 2 has moved");
        peers.update(part(&[], &[(1, 2)], false));
        assert!(!works(1) && works(3));
        peers.begin_view();
        peers.update(part(&[(1, 1, A)], &[], false));
        assert!(works(3), "the snapshot is not complete");
        peers.update(part(&[], &[], true));
        assert!(works(1) && !works(3));
    }

    #[test]
    fn two_spellings_of_one_node_are_one_peer() {
        let metrics = Metrics::new(&prometheus::Registry::new()).expect("nothing registered twice");
        let (peers, mut wanted) = SupervisorPeers::new(metrics);
        let (node, other) = (PublicKey::random(), PublicKey::random());
        let (by_key, by_ip) = (format!("mycelium:{node}"), "mycelium:[400::1]");
        let record = |context_id, address: &str, envelope: EnvelopeForm| {
            let (address, topic) = (address.to_owned(), format!("t{context_id}"));
            let envelope = envelope.into();
            let runner = Some(Runner { id: 1, address, topic, envelope, ..Default::default() });
            let runners = vec![ViewedRunner { context_id, runner }];
            peers.update(WatchResponse { runners, snapshot_end: false, gone: Vec::new() });
        };
        record(1, &by_key, EnvelopeForm::Signed);
        record(2, by_ip, EnvelopeForm::Plain);
        assert_eq!(
            (peers.form(&by_key), peers.form(by_ip)),
            (PayloadForm::Framed, PayloadForm::Plain),
            "not known yet"
        );
        peers.note_node(node, by_ip);
        assert_eq!((peers.form(&by_key), peers.form(by_ip)), (PayloadForm::Framed, PayloadForm::Framed));
        assert_eq!(
            (peers.topic(&by_key), peers.topic(by_ip)),
            ("t1".into(), "t1".into()),
            "one conversation"
        );
        for address in [&*by_key, by_ip] {
            assert_eq!(peers.record_of(address, ContextId(2)), Some(RunnerId(1)));
            assert_eq!(peers.address_for(address, ContextId(2)), by_ip);
            assert_eq!(peers.address_for(address, ContextId(1)), by_key);
        }
        assert_eq!(peers.address_of(node).as_ref(), Some(&by_key));

        // A conversation in a form that no record asks for any more ends, at all addresses.
        let (slot, also) = (wanted.try_recv().expect("by key").slot, wanted.try_recv().expect("by ip").slot);
        let conversation = || {
            let (outbox, payloads) = mpsc::channel(1);
            // Payloads are never read.
            let peer = JsonRpcPeer::new(outbox, Arc::new(Nobody));
            (peer, payloads)
        };
        let ((one, _one), (another, _another)) = (conversation(), conversation());
        slot.set_connected(one.clone());
        also.set_connected(another.clone());
        record(1, &by_key, EnvelopeForm::Plain);
        assert_eq!((peers.form(&by_key), peers.form(by_ip)), (PayloadForm::Plain, PayloadForm::Plain));
        assert!(one.is_closed() && another.is_closed() && !slot.is_connected() && !also.is_connected());

        peers.note_node(other, by_ip);
        assert!(peers.record_of(&by_key, ContextId(2)).is_none(), "it is somebody else's");
        assert_eq!(peers.spellings(by_ip), [by_ip]);
    }

    struct Nobody;

    impl mycelium::JsonRpcHandler for Nobody {
        fn handle(
            &self,
            _: &JsonRpcPeer,
            _: Vec<mycelium::JsonRpcRequest>,
        ) -> futures_util::future::BoxFuture<'static, Vec<mycelium::JsonRpcResult>> {
            Box::pin(std::future::ready(Vec::new()))
        }
    }
}
