//! What can be configured.

use std::path::PathBuf;

use crate::app::{App, Deps};
use crate::error::Error;
use crate::secrets::Secrets;

/// The gateway's own settings. Whom to speak to is told by the registry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// Where the secrets are that plain supervisors ask for; see [`crate::secrets`].
    pub secrets_dir: Option<PathBuf>,
}

impl Config {
    /// Builds the service; nothing runs before [`App::run`].
    ///
    /// # Errors
    /// [`Error::Bus`] when somebody listens to the coordinator's topic already, [`Error::Metrics`].
    pub fn build(self, deps: Deps<'_>) -> Result<App, Error> {
        let Self { secrets_dir } = self;
        App::new(deps, Secrets::new(secrets_dir))
    }
}
