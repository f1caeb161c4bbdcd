//! Settings of the gateway.

use std::path::PathBuf;

use crate::app::{App, Deps};
use crate::error::Error;
use crate::mail_policy::MailPolicy;
use crate::secrets::SupervisorSecrets;
use crate::signing::SigningSource;

/// The gateway's own settings. The registry names the supervisors to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// Directory of the secrets that plain supervisors require; see [`crate::secrets`].
    pub secrets_dir: Option<PathBuf>,
    /// Signing files, which are watched for changes; absent: signs with [`Deps::sealer`] throughout.
    pub signing: Option<SigningSource>,
    /// Policy on incoming mail.
    pub mail: MailPolicy,
}

impl Config {
    /// Builds the service; nothing runs before [`App::run`].
    ///
    /// # Errors
    /// [`Error::Bus`] when the coordinator's topic has a listener already, [`Error::Signing`], [`Error::Metrics`].
    pub fn build(self, deps: Deps<'_>) -> Result<App, Error> {
        let Self { secrets_dir, signing, mail } = self;
        App::new(deps, SupervisorSecrets::new(secrets_dir), signing, mail)
    }
}
