//! Configuration of the registry.

use std::time::Duration;

use model::limits;

use crate::app::{App, Deps};
use crate::error::Error;

/// Longer than the interval between two presences, and than the report of a job's end takes.
const LINGER: Duration = Duration::from_secs(60);

/// The registry's own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Silence after which a supervisor counts as dead.
    pub dead_after: Duration,
    /// Time for which a deleted runner's supervisor must have had no work before the runner is removed from the view.
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
