//! Puts the service together.

use std::sync::Arc;

use identity::TrustDomain;
use kv::Kv;
use rpc::MountBuilder;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::error::Error;
use crate::events::Hub;
use crate::routers::Routers;
use crate::rpc::Rpc;
use crate::store::Store;

/// What storage needs of others.
#[derive(Debug, Clone)]
pub struct Deps {
    /// The coordinator's Redis.
    pub kv: Kv,
    /// Who vouches for callers, as `WhoAmI` tells them.
    pub trust_domain: TrustDomain,
}

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct App {
    hub: Hub,
    rpc: Rpc,
    stop: CancellationToken,
}

impl App {
    pub(crate) async fn new(config: Config, deps: Deps) -> Result<Self, StartError> {
        let store = Store::open(deps.kv, config.layout).await.map_err(|error| match error {
            Error::Store(error) if error.is_connection_trouble() => StartError::Unreachable(error),
            error => StartError::Unusable(Box::new(error)),
        })?;
        let hub = Hub::new(store);
        let stop = CancellationToken::new();
        let rpc = Rpc {
            hub: hub.clone(),
            routers: Routers::default(),
            trust_domain: Arc::new(deps.trust_domain),
            stop: stop.clone(),
        };
        Ok(Self { hub, rpc, stop })
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

    /// Listens to the hints of Redis until `shutdown`; then ends every stream.
    pub async fn run(self, shutdown: CancellationToken) {
        self.hub.clone().run(shutdown).await;
        self.stop.cancel();
    }
}

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Redis does not answer; it may later.
    #[error("Redis cannot be reached")]
    Unreachable(#[source] kv::Error),
    /// What Redis answers cannot be worked with.
    #[error("Redis cannot be used")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
}
