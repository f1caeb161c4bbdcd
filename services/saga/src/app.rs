//! Assembly of the saga service from its parts.

mod provider_builder;
mod reload;
mod wait_reasons;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::{BrokerDescription, BrokerVersion, MessageBroker};
use directory::RemoteDirectory;
use model::{ContextId, TenantId};
use proto::internal::v1::identity_store_service_client::IdentityStoreServiceClient;
use service::{Readiness, ReadinessCondition, Shutdown};
use store::KvStore;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use workflow::WorkflowLane;

use self::reload::BuiltProviders;
pub use self::reload::{ReloadChange, ReloadKind};
use crate::definitions::{DefinitionError, Definitions};
use crate::effects::OpenCalls;
use crate::effects::upstreams::Upstreams;
use crate::health::{ImpairmentGuard, SagaHealth};
use crate::lane::backlog::OUTBOX_ROWS_MAX;
use crate::lane::gateway::Gateway;
use crate::lane::in_flight::InFlightLimits;
use crate::lane::source::ACK_WAIT;
use crate::lane::{LaneEnvironment, MESSAGE_BYTES_MAX, PAUSES, streams};
use crate::manifests::BadManifests;
use crate::metrics::Metrics;
use crate::placement::heartbeats::{SagaHeartbeats, SagaReplicaFeed, SagaReplicaView};
use crate::placement::{CallProviders, LanePlacement, SagaReplicaIdentity, SagaReplicaRole};
use crate::quotas::TenantQuotaMetrics;
use crate::rpc::SagaRpc;
use crate::tenants::TenantRegistry;
use crate::visibility::SagaVisibility;

/// Heartbeats from one measurement of the store to the next.
const MEASURED_EACH: u64 = 20;

/// The service's own settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Role of this replica: owner of saga lanes, of effect lanes, or of both.
    pub role: SagaReplicaRole,
    /// Directory of the operator's manifests; `None` where all come by request.
    pub manifests: Option<PathBuf>,
    /// Tenants that have lanes.
    pub tenants: TenantRegistry,
    /// Directory of secrets; `None` for the environment.
    pub secrets: Option<PathBuf>,
    /// Identity of this replica among others of the same store.
    pub replica: SagaReplicaIdentity,
    /// How long calls under way may take to end when their lane is given up.
    pub grace: Duration,
    /// Visibility of the work in traces, logs and metrics.
    pub seeing: SagaVisibility,
    /// Largest number of lanes to own: [`LANES_MAX`](crate::placement::LANES_MAX), or fewer in tests.
    pub lanes_max: usize,
}

/// Dependencies that the service is built with.
pub struct Deps<'a> {
    /// Where rows are kept.
    pub store: Arc<dyn KvStore>,
    /// Where messages come from and go to.
    pub broker: Arc<dyn MessageBroker>,
    /// Where commands of aggregates go.
    pub gateway: Arc<dyn Gateway>,
    /// Suite that runs effects that are flows; `None` where there are none.
    pub flows: Option<FlowSuite>,
    /// Channel to storage, which knows actors and decides about changes. Without it every actor is refused.
    pub storage: Option<rpc::Channel>,
    /// Registry of the service's metrics.
    pub metrics: &'a prometheus::Registry,
}

/// Suite that runs flows.
#[derive(Clone)]
pub struct FlowSuite {
    /// Channel to the scheduler.
    pub scheduler: rpc::Channel,
    /// Channel to storage.
    pub storage: rpc::Channel,
    /// Trust domain of the servers that tokens are issued for.
    pub trust_domain: identity::TrustDomain,
}

/// Access to actors: their directory, and the service that decides about their changes.
pub(crate) struct ActorAccess {
    /// Actors, and their roles in contexts.
    pub(crate) directory: Arc<dyn rpc::Directory>,
    /// Client of the service that decides about changes and records them.
    pub(crate) identities: IdentityStoreServiceClient<rpc::Channel>,
    /// Follower of role changes.
    remote: RemoteDirectory,
    storage: rpc::Channel,
}

impl ActorAccess {
    fn new(storage: rpc::Channel) -> Self {
        let remote = RemoteDirectory::new(storage.clone());
        let identities = IdentityStoreServiceClient::new(storage.clone());
        Self { directory: remote.directory(), identities, remote, storage }
    }

    /// Follows role changes until `stop`, and reports whether storage serves.
    async fn follow(&self, is_serving: &ReadinessCondition, stop: CancellationToken) {
        tokio::select! {
            () = self.remote.clone().follow(stop) => {}
            () = is_serving.clone().while_serves(self.storage.clone()) => {}
        }
    }
}

/// Reason why the service cannot be built, or refuses manifests or definitions.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Metrics of the service cannot be registered.
    #[error("the metrics of the saga service cannot be registered")]
    Metrics(#[source] prometheus::Error),
    /// Manifests are wrong.
    #[error(transparent)]
    Manifests(#[from] BadManifests),
    /// Definitions cannot be kept.
    #[error(transparent)]
    Definitions(#[from] DefinitionError),
}

/// The service.
pub struct App {
    config: Config,
    definitions: Arc<Definitions>,
    gateway: Arc<dyn Gateway>,
    flows: Option<FlowSuite>,
    around: LaneEnvironment,
    access: Option<ActorAccess>,
    calls: OpenCalls,
    upstreams: Upstreams,
    providers: watch::Sender<Arc<CallProviders>>,
    /// Providers as they were built, by the hash of their documents.
    built: Mutex<BuiltProviders>,
    tenants: watch::Sender<Arc<TenantRegistry>>,
    /// File from which tenants are read again.
    tenants_file: Option<PathBuf>,
    reloading: tokio::sync::Mutex<()>,
    /// Tenants whose lanes this replica has given up.
    drained: watch::Sender<Arc<BTreeSet<TenantId>>>,
    beats: SagaHeartbeats,
    /// Lanes that stay away or are left out, and why.
    away: watch::Sender<Arc<BTreeMap<WorkflowLane, &'static str>>>,
    readiness: Readiness,
    needs: SagaDependencies,
}

/// Readiness conditions of the service's dependencies, except those that its lanes watch over.
struct SagaDependencies {
    broker: ReadinessCondition,
    definitions: ReadinessCondition,
    storage: Option<ReadinessCondition>,
    store: ReadinessCondition,
}

impl App {
    /// Builds the service; nothing runs before [`App::run`].
    ///
    /// # Errors
    /// [`Error::Metrics`] when another service of the process registered the same.
    pub fn new(config: Config, deps: Deps<'_>) -> Result<Self, Error> {
        let Deps { store, broker, gateway, flows, storage, metrics: registry } = deps;
        let metrics = Arc::new(Metrics::new(registry, config.seeing).map_err(Error::Metrics)?);
        let definitions = Arc::new(Definitions::new(Arc::clone(&store)));
        let used = TenantQuotaMetrics::new(definitions.usage().clone(), &metrics.by_tenant)
            .map_err(Error::Metrics)?;
        registry.register(Box::new(used)).map_err(Error::Metrics)?;
        let has_tenants = config.tenants.has_tenants;
        let beats = SagaHeartbeats::new(Arc::clone(&store), config.replica.clone(), config.role, &metrics);
        let (replica, cut) = (config.replica.name.as_str().into(), CancellationToken::new());
        let wake = Arc::new(Notify::new());
        let readiness = Readiness::new();
        let health = SagaHealth::new(&readiness);
        let around = LaneEnvironment {
            store,
            broker,
            metrics,
            health,
            bounds: InFlightLimits::default(),
            outbox_rows_max: OUTBOX_ROWS_MAX,
            ack_wait: ACK_WAIT,
            streams_made: Arc::default(),
            has_tenants,
            replica,
            cut,
            wake,
        };
        let needs = SagaDependencies {
            broker: readiness.condition("nats"),
            definitions: readiness.condition("definitions"),
            storage: storage.is_some().then(|| readiness.condition("storage")),
            store: readiness.condition("store"),
        };
        Ok(Self {
            tenants: watch::Sender::new(Arc::new(config.tenants.clone())),
            config,
            definitions,
            gateway,
            flows,
            around,
            access: storage.map(ActorAccess::new),
            calls: OpenCalls::default(),
            upstreams: Upstreams::default(),
            providers: watch::Sender::new(Arc::default()),
            built: Mutex::default(),
            tenants_file: None,
            reloading: tokio::sync::Mutex::default(),
            drained: watch::Sender::new(Arc::default()),
            beats,
            away: watch::Sender::default(),
            readiness,
            needs,
        })
    }

    /// Makes each reload read tenants again from this file.
    #[must_use]
    pub fn with_tenants_file(mut self, file: PathBuf) -> Self {
        self.tenants_file = Some(file);
        self
    }

    /// Mounts the methods that actors and the operator may call. `shutdown` ends the service when it is drained.
    #[must_use]
    pub fn mount_public(self: &Arc<Self>, mount: rpc::MountBuilder, shutdown: Shutdown) -> rpc::MountBuilder {
        SagaRpc::new(Arc::clone(self), shutdown).mount_public(mount)
    }

    /// Returns the directory of actors and their roles, for the gate in front of this service; none without storage.
    #[must_use]
    pub fn directory(&self) -> Option<Arc<dyn rpc::Directory>> {
        self.access.as_ref().map(|access| Arc::clone(&access.directory))
    }

    /// Returns the access to actors; none without storage.
    pub(crate) const fn access(&self) -> Option<&ActorAccess> {
        self.access.as_ref()
    }

    /// Returns the role of this replica.
    pub(crate) const fn role(&self) -> SagaReplicaRole {
        self.config.role
    }

    /// Returns the environment that lanes and requests work in.
    pub(crate) const fn around(&self) -> &LaneEnvironment {
        &self.around
    }

    /// Context that a tenant belongs to; none for an unknown one.
    pub(crate) fn context_of(&self, tenant: &TenantId) -> Option<ContextId> {
        self.tenants.borrow().get(tenant).map(|tenant| ContextId(tenant.context))
    }

    /// Readiness of the service: the broker's streams are as required, definitions are in force, and no lane stays away.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Returns the definitions in force.
    #[must_use]
    pub fn definitions(&self) -> Arc<Definitions> {
        Arc::clone(&self.definitions)
    }

    /// Returns what an answered commit survives, as the store declares it.
    #[must_use]
    pub fn durability(&self) -> &'static str {
        self.around.store.capabilities().durability
    }

    /// Version of the store; empty while it does not answer.
    pub(crate) async fn store_version(&self) -> String {
        match self.around.store.measure().await {
            Ok(measure) => measure.version,
            Err(error) => {
                tracing::info!("the version of the store is unknown: {error}");
                String::new()
            }
        }
    }

    /// Counts the lanes that this replica owns.
    #[must_use]
    pub fn lanes(&self) -> i64 {
        self.around.metrics.lanes_owned.get()
    }

    /// Returns whether there is a tenant of this name.
    #[must_use]
    pub fn has_tenant(&self, tenant: &TenantId) -> bool {
        self.tenants.borrow().get(tenant).is_some()
    }

    /// Gives up the lanes of a tenant until the process restarts; returns whether there is such a tenant.
    pub fn drain_tenant(&self, tenant: &TenantId) -> bool {
        let is_known = self.has_tenant(tenant);
        if is_known {
            self.drained.send_modify(|drained| {
                Arc::make_mut(drained).insert(tenant.clone());
            });
        }
        is_known
    }

    /// Returns whether a tenant is paused, as of the last heartbeat: at most a second late.
    #[must_use]
    pub fn is_paused(&self, tenant: &TenantId) -> bool {
        self.beats.view().decided.paused_since(tenant).is_some()
    }

    /// Returns the current view of the other replicas.
    pub(crate) fn view(&self) -> Arc<SagaReplicaView> {
        self.beats.view()
    }

    /// Makes this replica read changes of the rows beside the lanes at once.
    pub(crate) fn refresh_now(&self) {
        self.beats.beat_now();
    }

    /// Lanes of this replica that stay away or are left out, and why.
    pub(crate) fn away(&self) -> Arc<BTreeMap<WorkflowLane, &'static str>> {
        Arc::clone(&self.away.borrow())
    }

    /// Returns the feed of the other replicas and of the rows beside the lanes. Followers of those rows read them again at each new
    /// revision.
    #[must_use]
    pub fn feed(&self) -> SagaReplicaFeed {
        self.beats.feed()
    }

    /// Works until `shutdown`. Work under way is then finished or recorded; other replicas, or the next start, continue with the rest.
    pub async fn run(&self, shutdown: CancellationToken) {
        let placement = LanePlacement {
            name: self.config.replica.name.clone(),
            feed: self.beats.feed(),
            tenants: self.tenants.subscribe(),
            drained: self.drained.subscribe(),
            definitions: Arc::clone(&self.definitions),
            providers: self.providers.subscribe(),
            gateway: Arc::clone(&self.gateway),
            calls: self.calls.clone(),
            upstreams: self.upstreams.clone(),
            around: self.around.clone(),
            grace: self.config.grace,
            lanes_max: self.config.lanes_max,
            away: self.away.clone(),
            lanes: self.readiness.condition("lanes"),
        };
        let watched = watch_streams(self.around.clone(), &self.needs.broker);
        let access = async {
            match (&self.access, &self.needs.storage) {
                (Some(access), Some(is_serving)) => access.follow(is_serving, shutdown.clone()).await,
                _ => std::future::pending().await,
            }
        };
        let (draining, stop) = (CancellationToken::new(), CancellationToken::new());
        let drain = async {
            shutdown.cancelled().await;
            // Callers learn of the drain by the readiness, which therefore closes before anything stops.
            self.readiness.close("it is draining");
            draining.cancel();
            stop.cancel();
            std::future::pending().await
        };
        tokio::select! {
            () = placement.run(stop.clone()) => {}
            () = self.follow_definitions() => {}
            () = watched => {}
            () = measure_store(&self.around, self.beats.feed().beats) => {}
            () = self.beats.run(self.drained.subscribe(), draining.clone(), &self.needs.store) => {}
            () = drain => {}
            // This ends with the shutdown, when lanes still have to be given up.
            () = async { access.await; std::future::pending().await } => {}
        }
        if let Err(error) = self.beats.leave().await {
            tracing::warn!("{error}; others take the lanes once this replica is lost");
        }
    }
}

/// Measures the store every ten seconds.
async fn measure_store(around: &LaneEnvironment, mut beats: watch::Receiver<u64>) {
    loop {
        match around.store.measure().await {
            Ok(measure) => around.metrics.store_bytes.set(i64::try_from(measure.bytes).unwrap_or(i64::MAX)),
            Err(error) => tracing::debug!("the store is not measured: {error}"),
        }
        let next = *beats.borrow() + MEASURED_EACH;
        if beats.wait_for(|beats| *beats >= next).await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Creates this service's streams on every connection, and compares them with the required settings.
async fn watch_streams(around: LaneEnvironment, broker: &ReadinessCondition) {
    let mut connection = around.broker.connection();
    // Reports what is wrong with the server, as long as it is.
    let mut lack: Option<ImpairmentGuard> = None;
    loop {
        if !connection.borrow_and_update().connected {
            broker.unmet("not connected");
        } else if let Err(why) = ensure_streams(&around).await {
            broker.unmet(why);
            tokio::time::sleep(PAUSES.1).await;
            continue;
        } else {
            broker.met();
            let why = around.broker.server().ok().and_then(|server| unfit(&server));
            if let Some(why) = &why {
                tracing::error!("{why}");
            }
            let impairment = why.map(|why| around.health.begin_impairment("nats server", &why));
            drop(std::mem::replace(&mut lack, impairment));
        }
        if connection.changed().await.is_err() {
            return;
        }
    }
}

/// Reason why a server does not support everything that is promised; `None` where it does.
fn unfit(server: &BrokerDescription) -> Option<String> {
    let BrokerDescription { version_text, version, max_payload } = server;
    if version.is_some_and(|version| version < BrokerVersion::OLDEST) {
        return Some(format!(
            "nats-server {version_text} is too old: install {} or later",
            BrokerVersion::OLDEST
        ));
    }
    (*max_payload < MESSAGE_BYTES_MAX).then(|| {
        format!(
            "the server takes messages of {max_payload} bytes, and some of sagas have {MESSAGE_BYTES_MAX}: raise max_payload in its \
             configuration"
        )
    })
}

/// Creates this service's streams; returns how existing ones differ from the required settings. They are read all the same.
async fn ensure_streams(around: &LaneEnvironment) -> Result<(), String> {
    let mut differences = Vec::new();
    for stream in streams(around.has_tenants) {
        let found = around.broker.ensure_stream(&stream).await.map_err(|error| error.to_string())?;
        differences.extend(found.iter().map(ToString::to_string));
    }
    // This fails if an earlier connection has set it.
    let _ = around.streams_made.set(());
    if differences.is_empty() { Ok(()) } else { Err(differences.join("; ")) }
}
