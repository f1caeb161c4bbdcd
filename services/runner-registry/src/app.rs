//! Puts the registry together, reads the records, and keeps the time.

use std::sync::Arc;

use directory::Remote;
use model::Timestamp;
use rpc::{Directory, MountBuilder};
use service::{Condition, Readiness};
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

/// What the registry cannot do without.
struct Needs {
    /// Storage, as it says itself.
    storage: Condition,
    /// The stream of all records.
    records: Condition,
}

/// The service.
pub struct App {
    hub: Hub,
    storage: rpc::Channel,
    store: RunnerStoreClient,
    rpc: Rpc,
    readiness: Readiness,
    needs: Needs,
    /// Ends what others watch, and what gateways tell.
    stop: CancellationToken,
    directory: Remote,
}

impl App {
    pub(crate) fn new(config: &Config, deps: Deps<'_>) -> Result<Self, Error> {
        let metrics = Metrics::new(deps.metrics).map_err(Error::Metrics)?;
        let hub = Hub::new(View::new(config.dead_after, config.linger), metrics);
        let directory = Remote::new(deps.storage.clone());
        let store = clients::runner_store(deps.storage.clone());
        let stop = CancellationToken::new();
        let rpc = Rpc::new(hub.clone(), store.clone(), deps.clock, directory.directory(), stop.clone());
        let readiness = Readiness::new();
        let needs =
            Needs { storage: readiness.condition("storage"), records: readiness.condition("records") };
        Ok(Self { hub, storage: deps.storage, store, rpc, readiness, needs, directory, stop })
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

    /// Ready while storage serves, and the stream of its records stands and has told all of them.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Works until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let Needs { storage, records } = self.needs;
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = storage.while_serves(self.storage) => {}
            () = self.hub.keep_time() => {}
            () = self.directory.follow(shutdown.clone()) => {}
            () = clients::follow_records(self.store, self.hub.clone(), records) => {}
        }
        self.stop.cancel();
    }
}
