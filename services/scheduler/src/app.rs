//! Puts the scheduler together, and takes up the flows that run.

use std::sync::Arc;

use ::rpc::MountBuilder;
use proto::internal::v1::report_intake_service_server::ReportIntakeServiceServer;
use proto::v1::flow_service_server::FlowServiceServer;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clients::{self, FlowStoreClient};
use crate::config::Config;
use crate::driver::{self, Handle};
use crate::error::Error;
use crate::loader::adopt_active;
use crate::metrics::Metrics;
use crate::rpc::{FlowRpc, ReportRpc};
use crate::runners;
use crate::submit::Submitter;

/// What the scheduler needs of others.
pub struct Deps<'a> {
    /// A way to storage.
    pub storage: ::rpc::Channel,
    /// A way to the runner-registry.
    pub registry: ::rpc::Channel,
    /// Where its metrics are registered.
    pub metrics: &'a prometheus::Registry,
}

/// The service.
pub struct App {
    store: FlowStoreClient,
    registry: clients::RegistryClient,
    driver: Handle,
    driving: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>,
    submitter: Submitter,
    metrics: Arc<Metrics>,
    ready: watch::Sender<bool>,
    /// Ends streams and the driver.
    stop: CancellationToken,
}

impl App {
    pub(crate) fn new(config: &Config, deps: Deps<'_>) -> Result<Self, Error> {
        let metrics = Arc::new(Metrics::new(deps.metrics).map_err(Error::Metrics)?);
        let store = clients::flow_store(deps.storage);
        let stop = CancellationToken::new();
        let (driver, driving) =
            driver::start(config.owner, store.clone(), Arc::clone(&metrics), stop.clone());
        let submitter = Submitter { store: store.clone(), driver: driver.clone(), owner: config.owner };
        Ok(Self {
            store,
            registry: clients::registry(deps.registry),
            driver,
            driving: Box::pin(driving),
            submitter,
            metrics,
            ready: watch::Sender::new(false),
            stop,
        })
    }

    /// Adds what actors may call.
    #[must_use]
    pub fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        let rpc = FlowRpc::new(
            self.store.clone(),
            self.driver.clone(),
            self.submitter.clone(),
            Arc::clone(&self.metrics),
            self.stop.clone(),
        );
        mount.service(FlowServiceServer::new(rpc))
    }

    /// Adds what only services may call.
    #[must_use]
    pub fn mount_internal(&self, mount: MountBuilder) -> MountBuilder {
        let rpc = ReportRpc::new(self.driver.clone(), self.stop.clone());
        mount.service(ReportIntakeServiceServer::new(rpc))
    }

    /// True once the flows that run were found for the first time.
    #[must_use]
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Works until `shutdown`. What is under way then is taken up again by the
    /// next start, from what is stored.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { store, registry, driver, driving, ready, stop, .. } = self;
        let adopting = async {
            adopt_active(store, &driver).await;
            ready.send_replace(true);
            // The view is followed for ever.
            runners::follow(registry, driver.clone()).await;
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = driving => {}
            () = adopting => {}
        }
        stop.cancel();
    }
}
