//! Additions of `mycora up --saga`: its options, and the NATS server that it needs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use broker::JetStreamOptions;
use identity::IssuedFiles;
use saga::manifests::{BadManifests, Manifests};
use saga::nats_login::NatsLogin;
use saga::tenants::TenantRegistry;
use saga::visibility::SagaVisibility;
use workflow::catalog::Catalog;

use super::directory::DataDir;
use super::nats::{NatsAccess, NatsProgram, PrivateNats};
use super::{UpError, UpReporter};

/// Where its rows are, within the data directory.
pub(super) const FILES: &str = "saga";
/// Where secrets of providers are unless another place is named, there too.
pub(super) const SECRETS: &str = "secrets";
/// Name of its connections, for the operator of a server.
pub(super) const CONNECTION: &str = "mycora-saga";

/// How the saga service is started.
#[derive(Debug, Clone)]
pub struct SagaOptions {
    /// The operator's manifests; without them all come by request.
    pub manifests: Option<PathBuf>,
    /// File that maps tenants to contexts; without it context 1 alone, as the tenant `1`.
    pub tenants: Option<PathBuf>,
    /// Where secrets of providers are; absent: in the data directory.
    pub secrets: Option<PathBuf>,
    /// Service that takes commands of aggregates: its URL, and the path of the method.
    pub gateway: Option<(String, http::uri::PathAndQuery)>,
    /// The broker.
    pub nats: NatsOptions,
    /// Share of the work of sagas that operators are shown.
    pub seeing: SagaVisibility,
}

/// The broker of sagas.
#[derive(Debug, Clone)]
pub enum NatsOptions {
    /// A private child, by this program or by the one that is found.
    Private {
        /// The program that is named.
        program: Option<PathBuf>,
    },
    /// A server that others operate.
    Named {
        /// URL of the server.
        url: String,
        /// How it is entered.
        login: NatsLogin,
    },
}

impl SagaOptions {
    /// With a private server, these manifests and these secrets: for demonstrations and tests.
    #[must_use]
    pub fn private(manifests: &Path, secrets: &Path) -> Self {
        Self {
            manifests: Some(manifests.to_owned()),
            tenants: None,
            secrets: Some(secrets.to_owned()),
            gateway: None,
            nats: NatsOptions::Private { program: None },
            seeing: SagaVisibility::default(),
        }
    }

    /// Reads the operator's manifests and file of tenants, to report mistakes in them before a server is started.
    ///
    /// # Errors
    /// Everything that is wrong with the files by themselves.
    pub(super) fn check(&self) -> Result<(), UpError> {
        let wrong = |problems: BadManifests| UpError::SagaSettings(problems.to_string());
        if let Some(directory) = &self.manifests {
            Manifests::read(directory)
                .and_then(|read| read.catalog(&Catalog::default(), &[]))
                .map_err(wrong)?;
        }
        self.tenants().map(drop)
    }

    /// Reads whose sagas there are.
    ///
    /// # Errors
    /// When the file cannot be read, or does not have it.
    pub(super) fn tenants(&self) -> Result<TenantRegistry, UpError> {
        let wrong = |why: String| UpError::SagaSettings(why);
        let (name, text) = match &self.tenants {
            Some(file) => {
                let name = file.display().to_string();
                let text = std::fs::read_to_string(file);
                (name.clone(), text.map_err(|error| wrong(format!("{name} cannot be read: {error}")))?)
            }
            None => ("--tenants".to_owned(), "\"1\": { context: 1 }\n".to_owned()),
        };
        TenantRegistry::read(&name, &text).map_err(|problems| wrong(problems.to_string()))
    }

    /// The tenant, or a placeholder if the operator's file defines the tenants.
    pub(super) const fn tenant(&self) -> &'static str {
        if self.tenants.is_some() { "TENANT" } else { "1" }
    }
}

/// The broker, before anything is started.
pub(super) enum NatsPlan {
    /// A private child of this program.
    Private(NatsProgram),
    /// A server that others operate.
    Named(JetStreamOptions),
}

impl NatsPlan {
    /// Finds the program, or reads how the server is reached.
    ///
    /// # Errors
    /// When there is no program, or the password cannot be read.
    pub(super) fn of(options: &NatsOptions) -> Result<Self, UpError> {
        match options {
            NatsOptions::Private { program } => NatsProgram::find(program.as_deref()).map(Self::Private),
            NatsOptions::Named { url, login } => {
                let options = login.options(url, CONNECTION).map_err(UpError::SagaSettings)?;
                Ok(Self::Named(options))
            }
        }
    }
}

/// The NATS server of sagas: a child, or one that the operator names.
pub(super) enum NatsBackend {
    /// The private child.
    Private(PrivateNats),
    /// A server that others operate.
    Named(JetStreamOptions),
}

impl NatsBackend {
    /// Starts the child, if it is to be one, which shows this certificate.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) async fn start(
        dir: &Arc<DataDir>,
        plan: NatsPlan,
        shown: &IssuedFiles,
        notice: &UpReporter,
    ) -> Result<Self, UpError> {
        match plan {
            NatsPlan::Private(program) => {
                PrivateNats::start(dir, &program, shown, notice).await.map(Self::Private)
            }
            NatsPlan::Named(options) => Ok(Self::Named(options)),
        }
    }

    /// How it is reached.
    #[must_use]
    pub(super) fn options(&self) -> JetStreamOptions {
        match self {
            Self::Private(nats) => nats.access().options(CONNECTION),
            Self::Named(options) => options.clone(),
        }
    }

    /// Access to the child, for external programs; `None` for a server that others operate.
    #[must_use]
    pub(super) const fn access(&self) -> Option<&NatsAccess> {
        match self {
            Self::Private(nats) => Some(nats.access()),
            Self::Named(_) => None,
        }
    }

    /// The command that lists the streams of the child.
    #[must_use]
    pub(super) fn cli_line(&self, dir: &DataDir) -> Option<String> {
        match self {
            Self::Private(nats) => Some(nats.cli_line(dir)),
            Self::Named(_) => None,
        }
    }

    /// Returns when the child has ended by itself and cannot be started again. A server that others operate is waited for,
    /// however long it is away. Cancel safe.
    pub(super) async fn wait_until_lost(&mut self) -> UpError {
        match self {
            Self::Private(nats) => nats.wait_until_lost().await,
            Self::Named(_) => std::future::pending().await,
        }
    }

    /// Lets the child write what it has and end.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub(super) async fn stop(self) -> Result<(), UpError> {
        match self {
            Self::Private(nats) => nats.stop().await,
            Self::Named(_) => Ok(()),
        }
    }
}
