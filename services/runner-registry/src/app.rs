//! Puts the registry together, reads the records, and expires silent supervisors.

use std::sync::Arc;

use directory::RemoteDirectory;
use model::Timestamp;
use rpc::{Directory, MountBuilder};
use service::{Readiness, ReadinessCondition};
use tokio_util::sync::CancellationToken;

use crate::clients::{self, RunnerStoreClient};
use crate::config::Config;
use crate::error::Error;
use crate::hub::RunnerHub;
use crate::metrics::Metrics;
use crate::rpc::RegistryRpc;
use crate::view::RegistryView;

/// Wall clock.
pub type RegistryClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Dependencies of the registry.
pub struct Deps<'a> {
    /// Channel to storage.
    pub storage: rpc::Channel,
    /// The wall clock.
    pub clock: RegistryClock,
    /// Registry for the registry's metrics.
    pub metrics: &'a prometheus::Registry,
}

/// Readiness conditions of the registry.
struct RegistryConditions {
    /// Storage, by its own health report.
    storage: ReadinessCondition,
    /// The stream of all records.
    records: ReadinessCondition,
}

/// The service.
pub struct App {
    hub: RunnerHub,
    storage: rpc::Channel,
    store: RunnerStoreClient,
    rpc: RegistryRpc,
    readiness: Readiness,
    needs: RegistryConditions,
    /// Ends the streams of watchers and gateways.
    stop: CancellationToken,
    directory: RemoteDirectory,
}

impl App {
    pub(crate) fn new(config: &Config, deps: Deps<'_>) -> Result<Self, Error> {
        let metrics = Metrics::new(deps.metrics).map_err(Error::Metrics)?;
        let hub = RunnerHub::new(RegistryView::new(config.dead_after, config.linger), metrics);
        let directory = RemoteDirectory::new(deps.storage.clone());
        let store = clients::runner_store(deps.storage.clone());
        let stop = CancellationToken::new();
        let rpc =
            RegistryRpc::new(hub.clone(), store.clone(), deps.clock, directory.directory(), stop.clone());
        let readiness = Readiness::new();
        let needs = RegistryConditions {
            storage: readiness.condition("storage"),
            records: readiness.condition("records"),
        };
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

    /// Returns the directory of actors and their roles, for the gate in front of this service.
    #[must_use]
    pub fn directory(&self) -> Arc<dyn Directory> {
        self.directory.directory()
    }

    /// Ready while storage serves, and the stream of its records is open and has sent all of them.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Works until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let RegistryConditions { storage, records } = self.needs;
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = storage.while_serves(self.storage) => {}
            () = self.hub.run_expiry() => {}
            () = self.directory.follow(shutdown.clone()) => {}
            () = clients::follow_records(self.store, self.hub.clone(), records) => {}
        }
        self.stop.cancel();
    }
}
