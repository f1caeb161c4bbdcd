//! Puts the registry together, reads the records, and keeps the time.

use std::sync::Arc;

use directory::Remote;
use model::Timestamp;
use rpc::{Directory, MountBuilder};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clients::{self, RunnerStoreClient};
use crate::config::Config;
use crate::error::Error;
use crate::hub::Hub;
use crate::metrics::Metrics;
use crate::rpc::Rpc;
use crate::view::View;

/// Tells the time that people read.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What the registry needs of others.
pub struct Deps<'a> {
    /// A way to storage.
    pub storage: rpc::Channel,
    /// The wall clock.
    pub clock: Clock,
    /// Where its metrics are registered.
    pub metrics: &'a prometheus::Registry,
}

/// The service.
#[derive(Clone)]
pub struct App {
    hub: Hub,
    store: RunnerStoreClient,
    rpc: Rpc,
    /// Ends what actors watch.
    stop: CancellationToken,
    directory: Remote,
}

impl App {
    pub(crate) fn new(config: &Config, deps: Deps<'_>) -> Result<Self, Error> {
        let metrics = Metrics::new(deps.metrics).map_err(Error::Metrics)?;
        let hub = Hub::new(View::new(config.dead_after, config.linger), metrics);
        let directory = Remote::new(deps.storage.clone());
        let store = clients::runner_store(deps.storage);
        let stop = CancellationToken::new();
        let rpc = Rpc::new(hub.clone(), store.clone(), deps.clock, directory.directory(), stop.clone());
        Ok(Self { hub, store, rpc, directory, stop })
    }

    /// Adds what actors may call.
    #[must_use]
    pub fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        self.rpc.mount_public(mount)
    }

    /// Adds what only services may call.
    #[must_use]
    pub fn mount_internal(&self, mount: MountBuilder) -> MountBuilder {
        self.rpc.mount_internal(mount)
    }

    /// Who knows the actors and their roles, for the gate in front of this service.
    #[must_use]
    pub fn directory(&self) -> Arc<dyn Directory> {
        self.directory.directory()
    }

    /// True once the records were read for the first time.
    #[must_use]
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.hub.loaded()
    }

    /// Works until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.hub.keep_time() => {}
            () = self.directory.follow(shutdown.clone()) => {}
            () = clients::follow_records(self.store.clone(), self.hub.clone()) => {}
        }
        self.stop.cancel();
    }
}
