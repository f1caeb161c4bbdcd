//! What can be configured.

use std::path::PathBuf;

use crate::app::{App, Deps};
use crate::error::Error;
use crate::mail_policy::MailPolicy;
use crate::secrets::Secrets;
use crate::signing::SigningSource;

/// The gateway's own settings. Whom to speak to is told by the registry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// Where the secrets are that plain supervisors ask for; see [`crate::secrets`].
    pub secrets_dir: Option<PathBuf>,
    /// The files that it signs with, which are followed; absent: it signs as [`Deps::sealer`] says for good.
    pub signing: Option<SigningSource>,
    /// Whose mail is taken.
    pub mail: MailPolicy,
}

impl Config {
    /// Builds the service; nothing runs before [`App::run`].
    ///
    /// # Errors
    /// [`Error::Bus`] when somebody listens to the coordinator's topic already, [`Error::Signing`], [`Error::Metrics`].
    pub fn build(self, deps: Deps<'_>) -> Result<App, Error> {
        let Self { secrets_dir, signing, mail } = self;
        App::new(deps, Secrets::new(secrets_dir), signing, mail)
    }
}
