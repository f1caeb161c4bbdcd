//! Settings of the scheduler.

use std::time::Duration;

use model::{OwnerId, limits};

use crate::app::{App, Deps};
use crate::error::Error;
use crate::replica::SchedulerIdentity;

/// The scheduler's own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Identity under which other replicas and routers know this one.
    pub identity: SchedulerIdentity,
    /// Absence after which a supervisor's attempts are lost.
    pub lost_after: Duration,
}

impl Config {
    /// A replica of this name, which must be the same after a restart and different for each replica,
    /// reached at `address` (empty: in this process).
    #[must_use]
    pub fn new(name: impl Into<String>, address: impl Into<String>) -> Self {
        let identity =
            SchedulerIdentity { name: name.into(), owner: OwnerId::random(), address: address.into() };
        Self { identity, lost_after: Duration::from_secs(limits::LOST_AFTER_SECS.into()) }
    }

    /// Builds the service; nothing runs before [`App::run`].
    ///
    /// # Errors
    /// [`Error::Metrics`] when another service of the process registered the same.
    pub fn build(self, deps: Deps<'_>) -> Result<App, Error> {
        App::new(&self, deps)
    }
}
