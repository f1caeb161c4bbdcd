//! Configuration of storage.

use std::time::Duration;

use keys::Layout;
use kv::Durability;
use model::address_rules::AddressRules;
use model::limits;

use crate::app::{App, Deps, StorageStartError};
use crate::tenants::quotas::StorageQuotas;

/// The storage service's own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How contexts are kept apart.
    pub layout: Layout,
    /// Failures that an acknowledged change survives.
    pub durability: Durability,
    /// How long a scheduler replica keeps its lease without a heartbeat.
    pub lease: Duration,
    /// How much an actor and a context may have.
    pub quotas: StorageQuotas,
    /// Which addresses actors may give for runners and for mail.
    pub addresses: AddressRules,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            durability: Durability::default(),
            lease: Duration::from_secs(limits::LEASE_SECS.into()),
            quotas: StorageQuotas::default(),
            addresses: AddressRules::default(),
        }
    }
}

impl Config {
    /// Connects to Redis, learns what it has, and builds the service; nothing else runs before [`App::run`].
    ///
    /// # Errors
    /// When Redis does not answer, answers unlike a Redis of this coordinator, or cannot give the requested durability.
    pub async fn build(self, deps: Deps) -> Result<App, StorageStartError> {
        App::new(self, deps).await
    }
}
