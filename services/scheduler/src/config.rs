//! What can be configured.

use model::OwnerId;

use crate::app::{App, Deps};
use crate::error::Error;

/// The scheduler's own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// This start of this replica; random, so that an earlier start is fenced.
    pub owner: OwnerId,
}

impl Default for Config {
    fn default() -> Self {
        Self { owner: OwnerId::random() }
    }
}

impl Config {
    /// Builds the service; nothing runs before [`App::run`].
    ///
    /// # Errors
    /// [`Error::Metrics`] when another service of the process registered the same.
    pub fn build(self, deps: Deps<'_>) -> Result<App, Error> {
        App::new(&self, deps)
    }
}
