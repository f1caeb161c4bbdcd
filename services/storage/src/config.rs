//! What can be configured.

use std::time::Duration;

use keys::Layout;
use kv::Durability;
use model::dialing::AddressRules;
use model::limits;

use crate::app::{App, Deps, StartError};
use crate::tenants::quotas::Quotas;

/// The storage service's own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How contexts are kept apart.
    pub layout: Layout,
    /// What an answered change survives.
    pub durability: Durability,
    /// How long a scheduler replica holds its lease without a word.
    pub lease: Duration,
    /// How much an actor and a context may have.
    pub quotas: Quotas,
    /// Which addresses actors may give for runners and for mail.
    pub addresses: AddressRules,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            durability: Durability::default(),
            lease: Duration::from_secs(limits::LEASE_SECS.into()),
            quotas: Quotas::default(),
            addresses: AddressRules::default(),
        }
    }
}

impl Config {
    /// Connects to Redis, learns what it has, and builds the service; nothing else runs before [`App::run`].
    ///
    /// # Errors
    /// When Redis does not answer, not as one of ours, or cannot give the durability that is asked for.
    pub async fn build(self, deps: Deps) -> Result<App, StartError> {
        App::new(self, deps).await
    }
}
