//! Configuration of the registry.

use std::time::Duration;

use model::limits;

use crate::app::{App, Deps};
use crate::error::Error;

/// Longer than between two presences, and than the end of a job takes to be told.
const LINGER: Duration = Duration::from_secs(60);

/// The registry's own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// A supervisor that was not heard for this long is taken for dead.
    pub dead_after: Duration,
    /// A runner that was deleted is listened to until its supervisor had nothing to do for this long.
    pub linger: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { dead_after: Duration::from_secs(limits::PRESENCE_DEAD_AFTER_SECS.into()), linger: LINGER }
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
