//! Puts the supervisor together.

use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;
use std::time::Duration;

use ::rpc::MountBuilder;
use bytes::Bytes;
use envelope::{Conversation, EnvelopeSigner, OverflowPolicy, ReplayWindowLimits, Sealer};
use identity::SigningKey;
use kv::Kv;
use model::supervision::COORDINATOR_TOPIC;
use mycelium::{Bus, BusPeers, Guard, PeerEndpoint, PublicKey, RejectedPayload};
use proto::v1::supervisor_service_server::SupervisorServiceServer;
use queue::{InstanceLossDetector, UnmetIsolationDetector};
use sandbox::disk_space::DiskFloors;
use service::{OperatorNotices, Readiness, ReadinessCondition, Sequencer};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::attempt_watchers::AttemptWatchers;
use crate::attempts::OperatorRequestLock;
use crate::blobs::BlobCache;
use crate::config::Config;
use crate::coordinator_requests::{CoordinatorRequestHandler, SupervisorState};
use crate::coordinators::Coordinators;
use crate::drain::DrainState;
use crate::dropped_contexts::DroppedContexts;
use crate::error::Error;
use crate::external_workers::ExternalWorkers;
use crate::legacy::{self, LegacyBindings};
use crate::logs::AttemptLogStore;
use crate::metrics::Metrics;
use crate::policy::{self, Policy};
use crate::presence::PresenceView;
use crate::refused_attempts::RefusedAttempts;
use crate::rpc::SupervisorRpc;
use crate::work_dir::WorkDir;
use crate::{maintenance, outbox, presence, root_rotation};

/// The file in the work directory with the supervisor's signing key, unless another is configured.
const SIGNING_KEY: &str = "signing.key";
/// Limits of the replay window for coordinators' messages. Anyone may send messages, so the least active roots are
/// evicted: strangers cannot keep a coordinator out. Repeated messages are recognized without this memory.
const MEMORY: ReplayWindowLimits =
    ReplayWindowLimits { messages_per_root: 500_000, roots_max: 1024, overflow: OverflowPolicy::EvictOldest };
/// The pause after the store did not answer at the start.
const STORE_RETRY: Duration = Duration::from_millis(500);

/// Dependencies of the supervisor.
pub struct Deps<'a> {
    /// Client of the supervisor's own Redis; the database is the endpoint's.
    pub kv: Kv,
    /// The bus that coordinators may reach it through.
    pub bus: Option<Arc<dyn Bus>>,
    /// Registry for the supervisor's metrics.
    pub metrics: &'a prometheus::Registry,
}

/// The service.
pub struct App {
    supervisor: SupervisorState,
    bus: Option<(Arc<dyn Bus>, mycelium::BusInbox)>,
    legacy: LegacyBindings,
    instance_patience: Duration,
    readiness: Readiness,
    notices: OperatorNotices,
    needs: SupervisorConditions,
    /// Ends the streams of coordinators.
    stop: CancellationToken,
}

/// Readiness conditions of the supervisor.
struct SupervisorConditions {
    /// Met while the store answers.
    store: ReadinessCondition,
    /// Met once the state that must be known before the supervisor listens has been read.
    known: ReadinessCondition,
}

impl App {
    pub(crate) fn new(config: &Config, deps: Deps<'_>) -> Result<Self, Error> {
        let database = deps.kv.endpoint().database();
        let work_dir = WorkDir::new(&config.work_dir);
        let signer = make_signer(config)?;
        let supervisor = SupervisorState {
            signer,
            queue: queue::SupervisorQueues::new(deps.kv, database)
                .with_legacy_workers(config.legacy.push().to_vec())
                .with_open_queues(config.open_queues || !config.served_by_others.is_empty()),
            external_workers: ExternalWorkers::new(&config.served_by_others),
            blobs: BlobCache::new(&work_dir, config.blob_bytes_max),
            logs: AttemptLogStore::new(&work_dir, config.log_retention),
            work_dir,
            policy: Policy::load(config.policy.as_deref(), config.admitted.clone()).map_err(Error::Policy)?,
            draining: DrainState::default(),
            floors: DiskFloors::new(config.work_dir.clone(), config.disk_floor),
            coordinators: Coordinators::default(),
            presence: PresenceView::default(),
            dropped_contexts: DroppedContexts::default(),
            refused_attempts: RefusedAttempts::default(),
            attempt_watchers: AttemptWatchers::default(),
            accepting: Sequencer::default(),
            requests: OperatorRequestLock::default(),
            metrics: Metrics::new(deps.metrics).map_err(Error::Metrics)?,
        };
        let bus = match deps.bus {
            None => None,
            Some(bus) => {
                let inbox = bus.listen(&config.topic).map_err(Error::Bus)?;
                Some((bus, inbox))
            }
        };
        let readiness = Readiness::new();
        let needs =
            SupervisorConditions { store: readiness.condition("store"), known: readiness.condition("roots") };
        Ok(Self {
            supervisor,
            bus,
            legacy: config.legacy.clone(),
            instance_patience: config.instance_patience,
            readiness,
            notices: OperatorNotices::default(),
            needs,
            stop: CancellationToken::new(),
        })
    }

    /// Adds what gateways and actors may call.
    #[must_use]
    pub fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        let rpc = SupervisorRpc::new(self.supervisor.clone(), self.stop.clone());
        let server = SupervisorServiceServer::new(rpc)
            .max_decoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX);
        mount.service(server)
    }

    /// Ready while the store answers, once the state that the supervisor needs has been read.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Returns the notices for this supervisor's operators.
    #[must_use]
    pub fn notices(&self) -> OperatorNotices {
        self.notices.clone()
    }

    /// Runs until `shutdown`. Queued jobs and unacknowledged events stay in the store for the next start.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { supervisor, bus, legacy, instance_patience, readiness: _, notices, needs, stop } = self;
        let SupervisorConditions { store, known } = needs;
        let (known_sender, known_receiver) = oneshot::channel();
        let serving_bus = serve_bus(supervisor.clone(), bus, known_receiver);
        let becoming_ready = async {
            supervisor.presence.known().await;
            root_rotation::restore(&supervisor).await;
            known.met();
            // Fails without a bus: then no task waits for it.
            let _ = known_sender.send(());
        };
        let work = async {
            tokio::join!(
                presence::keep(
                    supervisor.clone(),
                    InstanceLossDetector::new(instance_patience),
                    UnmetIsolationDetector::new(instance_patience),
                    &store,
                ),
                outbox::keep(supervisor.clone(), &store, stop.clone()),
                legacy::keep(supervisor.clone(), legacy),
                policy::keep(supervisor.policy.clone(), supervisor.metrics.clone(), notices.notice("intake")),
                maintenance::keep(supervisor.clone()),
                serving_bus,
                resend_started(&supervisor),
                becoming_ready,
            );
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = work => {}
        }
        stop.cancel();
    }
}

/// Reads the nodes from which coordinators sent messages before this start.
async fn restore_nodes(supervisor: &SupervisorState) {
    loop {
        match supervisor.queue.nodes().await {
            Ok(kept) => {
                let kept = kept.into_iter().filter_map(|(name, node)| Some((name, node.parse().ok()?)));
                supervisor.coordinators.restore_nodes(kept);
                return;
            }
            Err(error) => tracing::warn!(%error, "the nodes of coordinators cannot be read yet; retrying"),
        }
        tokio::time::sleep(STORE_RETRY).await;
    }
}

/// Resends the starts of running jobs whenever a coordinator connects. While it was away it may have declared them
/// lost, or closed them; it then has them stopped.
async fn resend_started(supervisor: &SupervisorState) {
    let mut arrivals = supervisor.coordinators.arrivals();
    // The sender lives as long as the supervisor.
    while arrivals.changed().await.is_ok() {
        match supervisor.queue.resend_started().await {
            Ok(count) => tracing::debug!(count, "starts of running jobs are sent again"),
            Err(error) => tracing::warn!(%error, "starts of running jobs cannot be sent again"),
        }
    }
}

/// Makes the signer of this supervisor, which is also named by its key.
fn make_signer(config: &Config) -> Result<Arc<EnvelopeSigner>, Error> {
    let dir = &config.work_dir;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| Error::WorkDir(dir.clone(), error))?;
    let path = config.signing_key.clone().unwrap_or_else(|| dir.join(SIGNING_KEY));
    let sealer = Sealer::of_root(SigningKey::load_or_make(&path).map_err(Error::SigningKey)?);
    let names = vec![sealer.root().to_string()];
    Ok(EnvelopeSigner::with_replay_limits(sealer, names, MEMORY))
}

/// Serves peers on the bus, once the supervisor knows its name and the coordinators' roots.
async fn serve_bus(
    supervisor: SupervisorState,
    bus: Option<(Arc<dyn Bus>, mycelium::BusInbox)>,
    known: oneshot::Receiver<()>,
) {
    let Some((bus, inbox)) = bus else { return };
    if known.await.is_err() {
        return;
    }
    restore_nodes(&supervisor).await;
    let accepting = supervisor.clone();
    let nodes = Arc::clone(&bus);
    let accept = move |node| {
        let mut conversation = accepting.conversation();
        if nodes.is_in_process(node) {
            conversation = conversation.in_process();
        }
        if let Some(coordinator) = accepting.coordinators.coordinator_at(node) {
            conversation = conversation.with_name(coordinator);
        }
        let conversation = Arc::new(conversation);
        let handler = CoordinatorRequestHandler::on_bus(accepting.clone(), Arc::clone(&conversation), node);
        let coordinators = accepting.coordinators.clone();
        PeerEndpoint { handler, guard: Arc::new(CoordinatorNodeGuard { conversation, coordinators, node }) }
    };
    let mut bus_status = bus.status();
    let peers = BusPeers::new(bus, Arc::new(accept));
    supervisor.coordinators.set_bus(peers.clone());
    // No message arrives before the bus was up once, and then it knows its node. A daemon may come back as another node.
    let mut known = None;
    let naming = async {
        while let Ok(bus_status) = bus_status.wait_for(|now| now.node.is_some() && now.key() != known).await {
            known = bus_status.key();
            known.iter().for_each(|key| supervisor.signer.add_name(key.to_string()));
        }
    };
    tokio::join!(naming, peers.run(inbox, COORDINATOR_TOPIC));
}

/// Guard of the conversation with the coordinator behind a node of the bus.
struct CoordinatorNodeGuard {
    conversation: Arc<Conversation>,
    coordinators: Coordinators,
    node: PublicKey,
}

impl Guard for CoordinatorNodeGuard {
    fn seal(&self, payload: Bytes) -> Result<Bytes, String> {
        self.conversation.seal(payload)
    }

    fn open(&self, payload: &Bytes) -> Result<Bytes, RejectedPayload> {
        let opened = Guard::open(&*self.conversation, payload)?;
        if let Some(root) = self.conversation.root() {
            self.coordinators.claim_node(&root.to_string(), self.node);
        }
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Timestamp;

    #[test]
    fn strangers_keep_no_coordinator_out() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let sealer = Sealer::of_root(SigningKey::generate());
        let own = sealer.root().to_string();
        let here = EnvelopeSigner::with_replay_limits(sealer, vec![own.clone()], MEMORY);
        for n in 0..=MEMORY.roots_max {
            let stranger = Sealer::of_root(SigningKey::generate());
            let envelope = stranger.seal(&own, b"{}", now, Duration::from_secs(60)).expect("JSON");
            let verified = Conversation::new(Arc::clone(&here), Arc::new(|_| {})).verify(&envelope, now);
            assert!(verified.is_ok(), "the {n}th root: {verified:?}");
        }
    }
}
