//! Puts the saga service together.

mod provide;
mod reload;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::{Broker, Server, Version};
use directory::Remote;
use model::{ContextId, TenantId};
use proto::internal::v1::identity_store_service_client::IdentityStoreServiceClient;
use service::{Condition, Readiness, Shutdown};
use store::KvStore;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use workflow::Lane;

use self::reload::Built;
pub use self::reload::{ReloadChange, ReloadKind};
use crate::definitions::{DefinitionError, Definitions};
use crate::effects::OpenCalls;
use crate::effects::upstreams::Upstreams;
use crate::health::{Health, Lack};
use crate::lane::backlog::OUTBOX_ROWS_MAX;
use crate::lane::bounds::Bounds;
use crate::lane::gateway::Gateway;
use crate::lane::source::ACK_WAIT;
use crate::lane::{MESSAGE_BYTES_MAX, PAUSES, Surroundings, streams};
use crate::manifests::BadManifests;
use crate::metrics::Metrics;
use crate::placement::beats::{Beats, Heard, View};
use crate::placement::{Identity, Placement, Providers, Role};
use crate::quotas::Shown;
use crate::rpc::Rpc;
use crate::seeing::Seeing;
use crate::tenants::Tenants;

/// Beats from one measuring of the store to the next.
const MEASURED_EACH: u64 = 20;

/// The service's own settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// What this replica does.
    pub role: Role,
    /// Where the operator's manifests are; none where all come by request.
    pub manifests: Option<PathBuf>,
    /// Whose lanes there are.
    pub tenants: Tenants,
    /// Where secrets are; the environment where nothing is said.
    pub secrets: Option<PathBuf>,
    /// Who this replica is among others of the same store.
    pub replica: Identity,
    /// How long calls under way may take to end when their lane is given up.
    pub grace: Duration,
    /// Share of the work that operators are shown.
    pub seeing: Seeing,
    /// Lanes that it owns at most: [`LANES_MAX`](crate::placement::LANES_MAX), or fewer in tests.
    pub lanes_max: usize,
}

/// What the service needs of others.
pub struct Deps<'a> {
    /// Where rows are kept.
    pub store: Arc<dyn KvStore>,
    /// Where messages come from and go to.
    pub broker: Arc<dyn Broker>,
    /// Where commands of aggregates go.
    pub gateway: Arc<dyn Gateway>,
    /// Where effects that are flows are run; none where there are none.
    pub flows: Option<FlowSuite>,
    /// The way to storage, which knows actors and decides about changes. Without it no actor is believed.
    pub storage: Option<rpc::Channel>,
    /// Where its metrics are registered.
    pub metrics: &'a prometheus::Registry,
}

/// Where flows are run.
#[derive(Clone)]
pub struct FlowSuite {
    /// The way to the scheduler.
    pub scheduler: rpc::Channel,
    /// The way to storage.
    pub storage: rpc::Channel,
    /// Whose servers tokens are for.
    pub trust_domain: identity::TrustDomain,
}

/// What is known of actors, and who decides about their changes.
pub(crate) struct Access {
    /// Actors, and their roles in contexts.
    pub(crate) directory: Arc<dyn rpc::Directory>,
    /// Decides about changes, and writes them down.
    pub(crate) identities: IdentityStoreServiceClient<rpc::Channel>,
    /// Hears of changes of roles.
    remote: Remote,
    storage: rpc::Channel,
}

impl Access {
    fn new(storage: rpc::Channel) -> Self {
        let remote = Remote::new(storage.clone());
        let identities = IdentityStoreServiceClient::new(storage.clone());
        Self { directory: remote.directory(), identities, remote, storage }
    }

    /// Hears of changes until `stop`, and tells how storage is.
    async fn follow(&self, is_serving: &Condition, stop: CancellationToken) {
        tokio::select! {
            () = self.remote.clone().follow(stop) => {}
            () = is_serving.clone().while_serves(self.storage.clone()) => {}
        }
    }
}

/// Why the service cannot be built, or does not take what it is given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its metrics cannot be registered.
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
    around: Surroundings,
    access: Option<Access>,
    calls: OpenCalls,
    upstreams: Upstreams,
    providers: watch::Sender<Arc<Providers>>,
    /// Providers as they were built, by the hash of their documents.
    built: Mutex<Built>,
    tenants: watch::Sender<Arc<Tenants>>,
    /// Where tenants are read again.
    tenants_file: Option<PathBuf>,
    reloading: tokio::sync::Mutex<()>,
    /// Tenants whose lanes this replica has given up.
    drained: watch::Sender<Arc<BTreeSet<TenantId>>>,
    beats: Beats,
    /// Lanes that stay away or are left out, and why.
    away: watch::Sender<Arc<BTreeMap<Lane, &'static str>>>,
    readiness: Readiness,
    needs: Needs,
}

/// What the service cannot do without, beside what its lanes see to.
struct Needs {
    broker: Condition,
    definitions: Condition,
    storage: Option<Condition>,
    store: Condition,
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
        let used = Shown::new(definitions.usage().clone(), &metrics.by_tenant).map_err(Error::Metrics)?;
        registry.register(Box::new(used)).map_err(Error::Metrics)?;
        let has_tenants = config.tenants.has_tenants;
        let beats = Beats::new(Arc::clone(&store), config.replica.clone(), config.role, &metrics);
        let (replica, cut) = (config.replica.name.as_str().into(), CancellationToken::new());
        let wake = Arc::new(Notify::new());
        let readiness = Readiness::new();
        let health = Health::new(&readiness);
        let around = Surroundings {
            store,
            broker,
            metrics,
            health,
            bounds: Bounds::default(),
            outbox_rows_max: OUTBOX_ROWS_MAX,
            ack_wait: ACK_WAIT,
            streams_made: Arc::default(),
            has_tenants,
            replica,
            cut,
            wake,
        };
        let needs = Needs {
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
            access: storage.map(Access::new),
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

    /// Has tenants read again from their file at each reload.
    #[must_use]
    pub fn with_tenants_file(mut self, file: PathBuf) -> Self {
        self.tenants_file = Some(file);
        self
    }

    /// Adds what actors and the operator may call. `shutdown` ends the service when it is drained.
    #[must_use]
    pub fn mount_public(self: &Arc<Self>, mount: rpc::MountBuilder, shutdown: Shutdown) -> rpc::MountBuilder {
        Rpc::new(Arc::clone(self), shutdown).mount_public(mount)
    }

    /// Who knows the actors and their roles, for the gate in front of this service; none without storage.
    #[must_use]
    pub fn directory(&self) -> Option<Arc<dyn rpc::Directory>> {
        self.access.as_ref().map(|access| Arc::clone(&access.directory))
    }

    /// What is known of actors; none without storage.
    pub(crate) const fn access(&self) -> Option<&Access> {
        self.access.as_ref()
    }

    /// What this replica does.
    pub(crate) const fn role(&self) -> Role {
        self.config.role
    }

    /// What lanes work with, and requests as well.
    pub(crate) const fn around(&self) -> &Surroundings {
        &self.around
    }

    /// Context that a tenant belongs to; none for an unknown one.
    pub(crate) fn context_of(&self, tenant: &TenantId) -> Option<ContextId> {
        self.tenants.borrow().get(tenant).map(|tenant| ContextId(tenant.context))
    }

    /// Ready while the broker has its streams as they are wanted, definitions are in force, and no lane stays away.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// What is in force.
    #[must_use]
    pub fn definitions(&self) -> Arc<Definitions> {
        Arc::clone(&self.definitions)
    }

    /// What an answered commit survives.
    #[must_use]
    pub fn durability(&self) -> &'static str {
        self.around.store.caps().durability
    }

    /// Version of what keeps the rows; empty while that does not answer.
    pub(crate) async fn store_version(&self) -> String {
        match self.around.store.measure().await {
            Ok(measure) => measure.version,
            Err(error) => {
                tracing::info!("the store does not tell its version: {error}");
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

    /// Gives up the lanes of a tenant, until the process is started again; says whether there is such a tenant.
    pub fn drain_tenant(&self, tenant: &TenantId) -> bool {
        let is_known = self.has_tenant(tenant);
        if is_known {
            self.drained.send_modify(|drained| {
                Arc::make_mut(drained).insert(tenant.clone());
            });
        }
        is_known
    }

    /// Returns whether a tenant is paused, as far as it was heard: for at most a second longer, or shorter, than it is.
    #[must_use]
    pub fn is_paused(&self, tenant: &TenantId) -> bool {
        self.beats.view().decided.paused_since(tenant).is_some()
    }

    /// What is heard of the other replicas now.
    pub(crate) fn view(&self) -> Arc<View> {
        self.beats.view()
    }

    /// Has this replica hear at once what was changed beside the lanes.
    pub(crate) fn hear_soon(&self) {
        self.beats.soon();
    }

    /// Lanes of this replica that stay away or are left out, and why.
    pub(crate) fn away(&self) -> Arc<BTreeMap<Lane, &'static str>> {
        Arc::clone(&self.away.borrow())
    }

    /// What is heard of the other replicas, and of rows beside the lanes: whoever follows those reads them again with each other
    /// revision.
    #[must_use]
    pub fn heard(&self) -> Heard {
        self.beats.heard()
    }

    /// Works until `shutdown`. What is under way then is finished or noted, and others, or the next start, go on with the rest.
    pub async fn run(&self, shutdown: CancellationToken) {
        let placement = Placement {
            name: self.config.replica.name.clone(),
            heard: self.beats.heard(),
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
            // Whoever sends calls here has to hear of it before anything stops.
            self.readiness.close("it is draining");
            draining.cancel();
            stop.cancel();
            std::future::pending().await
        };
        tokio::select! {
            () = placement.run(stop.clone()) => {}
            () = self.follow_definitions() => {}
            () = watched => {}
            () = measure_store(&self.around, self.beats.heard().beats) => {}
            () = self.beats.run(self.drained.subscribe(), draining.clone(), &self.needs.store) => {}
            () = drain => {}
            // It ends with the shutdown, which the lanes have to be given up at.
            () = async { access.await; std::future::pending().await } => {}
        }
        if let Err(error) = self.beats.leave().await {
            tracing::warn!("{error}; others take the lanes once this replica is lost");
        }
    }
}

/// Measures the store every ten seconds.
async fn measure_store(around: &Surroundings, mut beats: watch::Receiver<u64>) {
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

/// Makes the streams that are ours on every connection, and compares them with what is wanted.
async fn watch_streams(around: Surroundings, broker: &Condition) {
    let mut connection = around.broker.connection();
    // Tells what is wrong with the server, as long as it is.
    let mut lack: Option<Lack> = None;
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
            let told = why.map(|why| around.health.lack("nats server", &why));
            drop(std::mem::replace(&mut lack, told));
        }
        if connection.changed().await.is_err() {
            return;
        }
    }
}

/// Why a server can be used for less than is promised, where it can.
fn unfit(server: &Server) -> Option<String> {
    let Server { version_text, version, max_payload } = server;
    if version.is_some_and(|version| version < Version::OLDEST) {
        return Some(format!("nats-server {version_text} is too old: install {} or later", Version::OLDEST));
    }
    (*max_payload < MESSAGE_BYTES_MAX).then(|| {
        format!(
            "the server takes messages of {max_payload} bytes, and some of sagas have {MESSAGE_BYTES_MAX}: raise max_payload in its \
             configuration"
        )
    })
}

/// Makes the streams that are ours; gives how they are not as they are wanted. Those are read all the same.
async fn ensure_streams(around: &Surroundings) -> Result<(), String> {
    let mut differences = Vec::new();
    for stream in streams(around.has_tenants) {
        let found = around.broker.ensure_stream(&stream).await.map_err(|error| error.to_string())?;
        differences.extend(found.iter().map(ToString::to_string));
    }
    // They were made for an earlier connection where this fails.
    let _ = around.streams_made.set(());
    if differences.is_empty() { Ok(()) } else { Err(differences.join("; ")) }
}
