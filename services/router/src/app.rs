//! Puts the router together.

use std::sync::Arc;

use ::rpc::{Directory, MountBuilder};
use directory::RemoteDirectory;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use model::Timestamp;
use proto::internal::v1::SchedulerReplica;
use service::{Readiness, ReadinessCondition};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clients::{self, ExclusiveRouterName, GatewayClient, MessageStoreClient, RouterRegistryClient};
use crate::config::Config;
use crate::driver::{EVENTS_WAITING_MAX, EffectSenders, RouterDriver, RouterEvent, RouterStreams};
use crate::error::Error;
use crate::rpc::RouterRpc;
use crate::schedulers::SchedulerStreams;
use crate::submissions::{self, RouterSubmission};
use delivery::core::{Core, DeliverySettings, PATIENCE};
use delivery::metrics::Metrics;

/// Wall clock.
pub type RouterClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Opens a channel to a scheduler replica.
pub type DialScheduler =
    Arc<dyn Fn(&SchedulerReplica) -> Result<::rpc::Channel, ::rpc::ChannelError> + Send + Sync>;

/// Dependencies of the router.
pub struct Deps<'a> {
    /// Channel to storage.
    pub storage: ::rpc::Channel,
    /// Channel to the gateway.
    pub gateway: ::rpc::Channel,
    /// Opens channels to the scheduler replicas that storage names.
    pub schedulers: DialScheduler,
    /// Channel to the registry.
    pub registry: ::rpc::Channel,
    /// The wall clock.
    pub clock: RouterClock,
    /// Registry for the router's metrics.
    pub metrics: &'a prometheus::Registry,
}

/// The service.
pub struct App {
    name: String,
    /// Readiness as storage reports it, and the channel to storage.
    storage_serves: (ReadinessCondition, ::rpc::Channel),
    readiness: Readiness,
    storage: MessageStoreClient,
    gateway: GatewayClient,
    schedulers: SchedulerStreams,
    name_conflicts: prometheus::IntCounter,
    registry: RouterRegistryClient,
    rpc: RouterRpc,
    directory: RemoteDirectory,
    driver: RouterDriver,
    events: mpsc::Sender<RouterEvent>,
    logs: mpsc::UnboundedReceiver<(u64, proto::internal::v1::NumberedLog)>,
    submits: mpsc::UnboundedReceiver<RouterSubmission>,
    /// Ends what actors receive.
    stop: CancellationToken,
}

impl App {
    pub(crate) fn new(config: Config, deps: Deps<'_>) -> Result<Self, Error> {
        let metrics = Metrics::new(deps.metrics).map_err(Error::Metrics)?;
        let (events, incoming) = mpsc::channel(EVENTS_WAITING_MAX);
        let (log_sender, logs) = mpsc::unbounded_channel();
        let (submit_sender, submits) = mpsc::unbounded_channel();
        let name_conflicts = metrics.name_conflicts.clone();
        let settings =
            DeliverySettings { started: (deps.clock)(), lost_after: config.lost_after, patience: PATIENCE };
        let readiness = Readiness::new();
        let storage_serves = (readiness.condition("storage"), deps.storage.clone());
        let driver = RouterDriver {
            core: Core::new(metrics, Box::new(rand::random::<f64>), settings),
            clock: deps.clock,
            events: incoming,
            outlets: EffectSenders { logs: log_sender, submits: submit_sender },
            links: RouterStreams::new(&readiness),
        };
        let directory = RemoteDirectory::new(deps.storage.clone());
        let stop = CancellationToken::new();
        Ok(Self {
            name: config.name,
            storage_serves,
            readiness,
            rpc: RouterRpc::new(deps.storage.clone(), directory.directory(), stop.clone()),
            stop,
            directory,
            storage: clients::message_store(deps.storage),
            gateway: clients::gateway(deps.gateway),
            schedulers: SchedulerStreams::new(deps.schedulers),
            name_conflicts,
            registry: clients::registry(deps.registry),
            driver,
            events,
            logs,
            submits,
        })
    }

    /// Adds what actors may call.
    #[must_use]
    pub fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        self.rpc.mount_public(mount)
    }

    /// Returns the directory of actors and their roles, for the gate in front of this service.
    #[must_use]
    pub fn directory(&self) -> Arc<dyn Directory> {
        self.directory.directory()
    }

    /// Ready while storage serves, its streams to storage, gateway and registry stand, and one to a scheduler.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Runs until `shutdown`. Storage gives messages that are then still in flight to a router again.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self {
            name,
            storage_serves: (serves, way),
            storage,
            gateway,
            schedulers,
            name_conflicts,
            registry,
            driver,
            events,
            logs,
            submits,
            directory,
            stop,
            ..
        } = self;
        let streams = {
            let (storage, sole) = (storage.clone(), ExclusiveRouterName { name, conflicts: name_conflicts });
            ::rpc::producer_stream(EVENTS_WAITING_MAX, |events| {
                let kept = FuturesUnordered::from_iter([
                    clients::run_storage_stream(storage.clone(), sole, events.clone()).boxed(),
                    clients::run_gateway_stream(gateway, events.clone()).boxed(),
                    schedulers.follow(storage, events).boxed(),
                ]);
                kept.collect()
            })
        };
        // The tasks end with this future, also when it is dropped.
        let mut tasks = JoinSet::new();
        tasks.spawn(driver.run(streams));
        tasks.spawn(serves.while_serves(way));
        tasks.spawn(directory.follow(shutdown.clone()));
        tasks.spawn(clients::run_registry_stream(registry, events.clone()));
        tasks.spawn(submissions::submit_all(submits, events.clone()));
        tasks.spawn(clients::keep_logs(storage, logs, events));
        shutdown.cancelled().await;
        stop.cancel();
        tasks.shutdown().await;
    }
}
