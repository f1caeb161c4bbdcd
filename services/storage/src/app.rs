//! Puts the service together.

use std::collections::BTreeSet;
use std::sync::Arc;

use identity::TrustDomain;
use kv::{Confirmation, Durability, Kv, SetupError};
use model::Timestamp;
use rpc::{Directory, MountBuilder};
use service::{OperatorNotices, Readiness};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::error::Error;
use crate::flows::replicas::ReplicaLeases;
use crate::layout;
use crate::messages::routers::StorageRouters;
use crate::rpc::{BlobUploadLimiter, Identities, StorageRpc, invalidate_identities};
use crate::store::Store;
use crate::sweeps::StorageSweepReport;
use crate::tenants::context_removal::ContextRemovals;
use crate::watch::events::EventHub;

/// Name of the notice about the failures that an answered change survives.
pub const DURABILITY: &str = "durability";

/// External dependencies of storage.
#[derive(Debug, Clone)]
pub struct Deps {
    /// The coordinator's Redis.
    pub kv: Kv,
    /// Trust domain that certifies callers, as `WhoAmI` reports it.
    pub trust_domain: TrustDomain,
}

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct App {
    hub: EventHub,
    rpc: StorageRpc,
    notices: OperatorNotices,
    stop: CancellationToken,
}

impl App {
    pub(crate) async fn new(config: Config, deps: Deps) -> Result<Self, StorageStartError> {
        let Config { layout, durability: requested, lease, addresses, quotas } = config;
        layout::check(layout, &deps.kv).await?;
        let (confirmation, servers) = Confirmation::of(requested, &deps.kv).await?;
        let store =
            Store::open(deps.kv, layout, confirmation, quotas).await.map_err(|error| match error {
                Error::Store(error) if error.is_connection_trouble() => StorageStartError::Unreachable(error),
                error => StorageStartError::Unusable(Box::new(error)),
            })?;
        let promises: BTreeSet<String> = servers.iter().map(|server| server.guarantee(requested)).collect();
        let promises: Vec<String> = promises.into_iter().collect();
        let notices = OperatorNotices::default();
        notices.notice(DURABILITY).set(Some(&promises.join("; ")));
        for doubt in servers.iter().filter_map(|server| server.shortfall(requested)) {
            match requested {
                // `fast` promises no more than this; the line is for those who expect more.
                Durability::Fast => tracing::info!("{doubt}"),
                _ => tracing::warn!("{doubt}"),
            }
        }
        let replicas = ReplicaLeases::new(store.clone(), lease);
        let identities = Identities::new(store.clone());
        let hub = EventHub::new(store);
        let stop = CancellationToken::new();
        let rpc = StorageRpc {
            hub: hub.clone(),
            routers: StorageRouters::default(),
            replicas,
            removals: ContextRemovals::new(hub.clone()),
            identities,
            trust_domain: Arc::new(deps.trust_domain),
            uploads: BlobUploadLimiter::default(),
            addresses: Arc::new(addresses),
            stop: stop.clone(),
        };
        Ok(Self { hub, rpc, notices, stop })
    }

    /// Adds what actors and the bootstrap identity may call.
    #[must_use]
    pub fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        self.rpc.mount_public(mount)
    }

    /// Adds what only services may call.
    #[must_use]
    pub fn mount_internal(&self, mount: MountBuilder) -> MountBuilder {
        self.rpc.mount_internal(mount)
    }

    /// The id of this coordinator: 32 hex digits, made at the first start.
    #[must_use]
    pub fn coordinator(&self) -> &str {
        self.hub.store().coordinator()
    }

    /// Directory of actors and their roles, for the gate in front of this service.
    #[must_use]
    pub fn directory(&self) -> Arc<dyn Directory> {
        self.rpc.identities.directory()
    }

    /// Ready while Redis is there, as far as is known.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.hub.readiness().clone()
    }

    /// Notices for operators: [`DURABILITY`] says what an acknowledged change survives, with Redis as it was
    /// configured when the service was built.
    #[must_use]
    pub fn notices(&self) -> OperatorNotices {
        self.notices.clone()
    }

    /// Shows its metrics in this registry.
    ///
    /// # Errors
    /// When it has metrics of such names already.
    pub fn register_metrics(&self, registry: &prometheus::Registry) -> Result<(), prometheus::Error> {
        self.hub.store().metrics().register(registry)
    }

    /// Removes what is too old at this moment, in all contexts: unreferenced blobs, events, audit records, and what is beyond the bounds of
    /// contexts. A running service does so by itself, at least every hour.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn sweep(&self, now: Timestamp) -> Result<StorageSweepReport, StorageStartError> {
        self.hub.store().sweep(&self.rpc.routers, now).await.map_err(|error| match error {
            Error::Store(error) if error.is_connection_trouble() => StorageStartError::Unreachable(error),
            error => StorageStartError::Unusable(Box::new(error)),
        })
    }

    /// Listens to the hints of Redis until `shutdown`; then ends every stream.
    pub async fn run(self, shutdown: CancellationToken) {
        let replicas = self.rpc.replicas.clone().run(self.hub.clone(), shutdown.clone());
        let removals = self.rpc.removals.clone().run(shutdown.clone());
        let reconnects = self.hub.clone().check_reconnects(shutdown.clone());
        let routers = self.rpc.routers.clone();
        // Boxed, since these futures are large and exist only once.
        let sweeps = Box::pin(self.hub.store().clone().sweep_always(routers.clone(), shutdown.clone()));
        let retention = Box::pin(self.hub.store().clone().retain_always(routers, shutdown.clone()));
        let room = self.hub.store().clone().watch_free_memory(shutdown.clone());
        // Subscribed before the first hint can arrive.
        let identities =
            invalidate_identities(self.rpc.identities.clone(), self.hub.identity_changes(), shutdown.clone());
        tokio::join!(
            self.hub.clone().run(shutdown),
            replicas,
            removals,
            reconnects,
            sweeps,
            retention,
            room,
            identities
        );
        self.stop.cancel();
    }
}

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StorageStartError {
    /// Redis does not answer; it may later.
    #[error("Redis cannot be reached")]
    Unreachable(#[source] kv::Error),
    /// Redis answers, but in a way that storage cannot work with.
    #[error("Redis cannot be used")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<SetupError> for StorageStartError {
    fn from(error: SetupError) -> Self {
        match error {
            SetupError::Unknown(error) if error.is_connection_trouble() => Self::Unreachable(error),
            error => Self::Unusable(Box::new(error)),
        }
    }
}
