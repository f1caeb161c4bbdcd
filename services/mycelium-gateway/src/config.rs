//! What can be configured.

use crate::app::{App, Deps};
use crate::error::Error;

/// The gateway's own settings. There are none yet: whom to speak to is told by the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Config {}

impl Config {
    /// Builds the service; nothing runs before [`App::run`].
    ///
    /// # Errors
    /// [`Error::Bus`] when somebody listens to the coordinator's topic already, [`Error::Metrics`].
    pub fn build(self, deps: Deps<'_>) -> Result<App, Error> {
        let Self {} = self;
        App::new(deps)
    }
}
