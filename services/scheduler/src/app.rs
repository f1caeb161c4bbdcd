//! Puts the scheduler together, and takes up the flows that run.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::rpc::{Directory, MountBuilder};
use directory::RemoteDirectory;
use proto::internal::v1::report_intake_service_server::ReportIntakeServiceServer;
use proto::v1::flow_service_server::FlowServiceServer;
use service::{Readiness, ReadinessCondition};
use tokio_util::sync::CancellationToken;

use crate::changes::submit::Submitter;
use crate::clients::{self, FlowStoreClient};
use crate::config::Config;
use crate::driver::{self, Handle};
use crate::error::Error;
use crate::metrics::Metrics;
use crate::rpc::{FlowRpc, INTERNAL_PATIENCE, PUBLIC_PATIENCE, ReportRpc};
use crate::runners;
use crate::views::explain::Explainer;

/// How long the end of the lease may take.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Dependencies of the scheduler.
pub struct Deps<'a> {
    /// Channel to storage.
    pub storage: ::rpc::Channel,
    /// Channel to the runner-registry.
    pub registry: ::rpc::Channel,
    /// Where its metrics are registered.
    pub metrics: &'a prometheus::Registry,
}

/// Readiness conditions of the scheduler, besides the driver's.
struct SchedulerConditions {
    /// Storage, as it reports itself.
    storage: ReadinessCondition,
    /// The registry's view of runners.
    runners: ReadinessCondition,
}

/// The service.
pub struct App {
    storage: ::rpc::Channel,
    store: FlowStoreClient,
    registry: clients::SchedulerRegistryClient,
    directory: RemoteDirectory,
    driver: Handle,
    driving: Pin<Box<dyn Future<Output = ()> + Send>>,
    submitter: Submitter,
    explainer: Explainer,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    needs: SchedulerConditions,
    /// Ends streams, the lease, and with it the driver.
    stop: CancellationToken,
}

impl App {
    pub(crate) fn new(config: &Config, deps: Deps<'_>) -> Result<Self, Error> {
        let metrics = Arc::new(Metrics::new(deps.metrics).map_err(Error::Metrics)?);
        let directory = RemoteDirectory::new(deps.storage.clone());
        let store = clients::flow_store(deps.storage.clone());
        let stop = CancellationToken::new();
        let readiness = Readiness::new();
        let needs = SchedulerConditions {
            storage: readiness.condition("storage"),
            runners: readiness.condition("runners"),
        };
        let (driver, driving) =
            driver::start(config, store.clone(), Arc::clone(&metrics), &readiness, stop.clone());
        let submitter = Submitter::new(store.clone(), driver.clone(), config.identity.clone());
        Ok(Self {
            explainer: Explainer::new(store.clone()),
            storage: deps.storage,
            store,
            registry: clients::registry(deps.registry),
            directory,
            driver,
            driving: Box::pin(driving),
            submitter,
            metrics,
            readiness,
            needs,
            stop,
        })
    }

    /// Adds what actors may call.
    #[must_use]
    pub fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        let rpc = FlowRpc::new(
            self.store.clone(),
            self.submitter.clone(),
            self.explainer.clone(),
            self.driver.log_reads().clone(),
            Arc::clone(&self.metrics),
            self.directory(),
            self.stop.clone(),
        );
        mount.service(FlowServiceServer::new(rpc)).method_timeouts(PUBLIC_PATIENCE)
    }

    /// Adds what only services may call.
    #[must_use]
    pub fn mount_internal(&self, mount: MountBuilder) -> MountBuilder {
        let rpc = ReportRpc::new(
            self.driver.clone(),
            self.submitter.clone(),
            Arc::clone(&self.metrics),
            self.stop.clone(),
        );
        mount.service(ReportIntakeServiceServer::new(rpc)).method_timeouts(INTERNAL_PATIENCE)
    }

    /// Returns the directory of actors and their roles, for the gate in front of this service.
    #[must_use]
    pub fn directory(&self) -> Arc<dyn Directory> {
        self.directory.directory()
    }

    /// Ready while storage serves, the lease is held, the flows that have something to do were found under it, and the
    /// registry's view of runners is followed.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Works until `shutdown`. Other replicas, or the next start, resume unfinished work from what is stored.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { registry, driver, mut driving, explainer, directory, storage, needs, stop, .. } = self;
        let view = runners::follow(registry, driver, explainer.runners(), needs.runners);
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = &mut driving => {}
            () = directory.follow(shutdown.clone()) => {}
            // These two are followed for ever.
            () = view => {}
            () = needs.storage.while_serves(storage) => {}
        }
        stop.cancel();
        if tokio::time::timeout(LEAVE_TIMEOUT, driving).await.is_err() {
            tracing::warn!("the lease could not be given back; it runs out by itself");
        }
    }
}
