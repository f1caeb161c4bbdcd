//! The client profile: where the coordinator is, and who we are there.

mod named_profiles;
mod paths;
pub mod switch;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use identity::{CertificateSummary, SigningKey, TrustDomain, exposure};
use model::ActorId;
use rpc::{Channel, TlsFiles};
use serde::{Deserialize, Serialize};

use crate::failure::{CliError, error_chain};
use crate::token::TokenSigner;

/// The profile's name within a data directory.
pub const PROFILE_FILE: &str = "client.toml";

/// One service's part of the coordinator's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiService {
    /// Flows.
    Scheduler,
    /// Actors, contexts and blobs.
    Storage,
    /// Runners.
    RunnerRegistry,
    /// Messages.
    Router,
    /// The conversation with other machines.
    MyceliumGateway,
    /// A machine that runs jobs.
    Supervisor,
    /// Sagas.
    Saga,
}

impl ApiService {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::Scheduler,
        Self::Storage,
        Self::RunnerRegistry,
        Self::Router,
        Self::MyceliumGateway,
        Self::Supervisor,
        Self::Saga,
    ];

    /// Returns true for a service that a profile may omit: not every suite has one, and only some commands need it.
    #[must_use]
    pub const fn is_optional(self) -> bool {
        matches!(self, Self::Router | Self::MyceliumGateway | Self::Supervisor | Self::Saga)
    }

    /// Returns the service's name as it stands below `[addresses]`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Storage => "storage",
            Self::RunnerRegistry => "runner-registry",
            Self::Router => "router",
            Self::MyceliumGateway => "mycelium-gateway",
            Self::Supervisor => "supervisor",
            Self::Saga => "saga",
        }
    }
}

/// Content of `client.toml`. Paths are relative to the file until it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// Where every service is reached that has no address of its own, as `https://host:port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The certificate authority to trust, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Our certificate, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// The certificate's private key, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// The name that the servers' certificates carry, when it is not the host of the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// The actor's Ed25519 key, in PEM. `mycora token` signs with it; where there is no certificate, every call does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_key: Option<PathBuf>,
    /// Audience of tokens, if the certificate authority's certificate does not name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_domain: Option<String>,
    /// The context of commands and flow files that name none; 0: there is none.
    #[serde(skip_serializing_if = "is_zero")]
    pub context: u32,
    /// In whose name flows are submitted, and whose the signing key is; 0: the certificate's actor.
    #[serde(skip_serializing_if = "is_zero")]
    pub actor: u32,
    /// Tenant for commands about sagas that name none; absent: the context determines it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Addresses of single services, where they are separate processes.
    #[serde(skip_serializing_if = "ServiceAddresses::is_empty")]
    pub addresses: ServiceAddresses,
    /// Named profiles: the settings that each overrides. Empty once one of them, or none, was chosen.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub profiles: BTreeMap<String, Profile>,
}

/// Addresses of single services.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServiceAddresses {
    /// Where flows are run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// Where actors, contexts and blobs are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// Where runners are registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_registry: Option<String>,
    /// Where messages are sent and handed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router: Option<String>,
    /// Where other machines are spoken to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mycelium_gateway: Option<String>,
    /// The supervisor that `mycora supervisor` is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<String>,
    /// Where sagas are run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saga: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_zero(id: &u32) -> bool {
    *id == 0
}

impl ServiceAddresses {
    /// Takes over those that others name.
    fn replace(&mut self, others: Self) {
        let Self { scheduler, storage, runner_registry, router, mycelium_gateway, supervisor, saga } = others;
        for (own, other) in [
            (&mut self.scheduler, scheduler),
            (&mut self.storage, storage),
            (&mut self.runner_registry, runner_registry),
            (&mut self.router, router),
            (&mut self.mycelium_gateway, mycelium_gateway),
            (&mut self.supervisor, supervisor),
            (&mut self.saga, saga),
        ] {
            if other.is_some() {
                *own = other;
            }
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The profile is not there.
    #[error("{} is not there", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The profile cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file has no profile of that name.
    #[error("{} has no profile `{name}`; {}", path.display(), named_profiles::known(names))]
    Name {
        /// The file.
        path: PathBuf,
        /// The name that was looked for.
        name: String,
        /// Those that it has.
        names: Vec<String>,
    },
    /// The profile's content is wrong.
    #[error("{}: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Description of the mistake, with line and column.
        message: String,
    },
}

impl Profile {
    /// The profile of a coordinator that is one process on this machine.
    #[must_use]
    pub fn local(at: SocketAddr, ca: &Path, cert: &Path, key: &Path, context: u32, actor: u32) -> Self {
        Self {
            address: Some(format!("https://{at}")),
            ca: Some(ca.to_owned()),
            cert: Some(cert.to_owned()),
            key: Some(key.to_owned()),
            context,
            actor,
            ..Self::default()
        }
    }

    /// Reads the unnamed profile, as [`Profile::load_as`] does.
    ///
    /// # Errors
    /// When it is not there, cannot be read, or is not a valid profile.
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        Self::load_as(path, None)
    }

    /// Reads a profile, or the one of that name in the same file, and makes its paths absolute: they are relative to the file.
    ///
    /// # Errors
    /// When it is not there, cannot be read, is not a valid profile, or has no profile of that name.
    pub fn load_as(path: &Path, name: Option<&str>) -> Result<Self, ProfileError> {
        let mut profile = Self::read(path)?.chosen(path, name)?;
        let failed = |source| ProfileError::Io { path: path.to_owned(), source };
        let path = std::path::absolute(path).map_err(failed)?;
        let dir = path.parent().unwrap_or(Path::new("/"));
        for file in profile.files() {
            *file = dir.join(&*file);
        }
        Ok(profile)
    }

    /// Reads the whole file as it stands, with its named profiles.
    fn read(path: &Path) -> Result<Self, ProfileError> {
        let failed = |source| ProfileError::Io { path: path.to_owned(), source };
        // It names the authority to trust and the address to call.
        exposure::check_trusted(path).map_err(|exposed| failed(exposed.into()))?;
        let text = std::fs::read_to_string(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ProfileError::Missing { path: path.to_owned() },
            _ => failed(source),
        })?;
        toml::from_str(&text).map_err(|error| ProfileError::Content {
            path: path.to_owned(),
            message: what_is_wrong(&text, &error),
        })
    }

    /// The files that it names.
    fn files(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        [&mut self.ca, &mut self.cert, &mut self.key, &mut self.signing_key].into_iter().flatten()
    }

    /// Writes it, so that a reader sees the old text or the new one. Files below its directory are named relative to it, so that the
    /// directory can be moved.
    ///
    /// # Errors
    /// When the directory is not there or cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), ProfileError> {
        let failed = |source| ProfileError::Io { path: path.to_owned(), source };
        let mut written = self.clone();
        let named = written.profiles.values_mut().flat_map(Self::files).collect::<Vec<_>>();
        named.into_iter().for_each(|file| *file = paths::as_seen_from(path, file));
        written.files().for_each(|file| *file = paths::as_seen_from(path, file));
        let text = toml::to_string(&written).map_err(|error| failed(io::Error::other(error)))?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut draft = tempfile::NamedTempFile::new_in(dir).map_err(failed)?;
        draft.write_all(text.as_bytes()).map_err(failed)?;
        draft.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Channel to the coordinator as a whole. Must be created within a runtime.
    ///
    /// # Errors
    /// When it has no address, or a certificate file cannot be used.
    pub fn channel(&self) -> Result<Channel, CliError> {
        let address = self.address.as_deref().ok_or_else(|| {
            CliError::Invalid("the profile has no `address`; add one, as https://host:port".to_owned())
        })?;
        self.channel_at(address)
    }

    /// Channel to one service. Must be created within a runtime.
    ///
    /// # Errors
    /// When neither it nor the coordinator as a whole has an address, or a certificate file cannot be used.
    pub fn channel_to(&self, host: ApiService) -> Result<Channel, CliError> {
        self.channel_at(self.address_of(host)?)
    }

    /// Returns true when calls show tokens: there is a key that signs them, and no certificate.
    #[must_use]
    pub const fn shows_tokens(&self) -> bool {
        self.signing_key.is_some() && self.cert.is_none() && self.key.is_none()
    }

    /// Returns the signer of tokens.
    ///
    /// # Errors
    /// When it names no key or no actor, a file cannot be used, or the audience of tokens is not known.
    pub fn token_signer(&self) -> Result<TokenSigner, CliError> {
        let path = self.signing_key.as_deref().ok_or_else(|| {
            CliError::Invalid(
                "no signing key for tokens is named; give --token-key FILE, or write `signing_key = \"FILE\"` into the \
                 profile"
                    .to_owned(),
            )
        })?;
        if self.actor == 0 {
            return Err(CliError::Invalid(format!(
                "the actor that owns the key {} is not named; give --token-actor ID, or write `actor = ID` into the \
                 profile",
                path.display()
            )));
        }
        let key = SigningKey::load(path).map_err(|error| CliError::Invalid(error_chain(&error)))?;
        Ok(TokenSigner::new(key, ActorId(self.actor), self.trust_domain()?))
    }

    /// The trust domain of the coordinator: from the profile, else from the authority's certificate.
    pub(crate) fn trust_domain(&self) -> Result<TrustDomain, CliError> {
        if let Some(text) = &self.trust_domain {
            return text.parse().map_err(|error| CliError::Invalid(format!("`trust_domain`: {error}")));
        }
        let Some(ca) = &self.ca else { return Ok(TrustDomain::default()) };
        let summary =
            CertificateSummary::from_pem_file(ca).map_err(|error| CliError::Invalid(error_chain(&error)))?;
        summary.authority_of().ok_or_else(|| {
            CliError::Invalid(format!(
                "{} names no trust domain; write `trust_domain = \"NAME\"` into the profile",
                ca.display()
            ))
        })
    }

    fn channel_at(&self, address: &str) -> Result<Channel, CliError> {
        let refused = |text: &str| Err(CliError::Invalid(text.to_owned()));
        let tls = match (&self.ca, &self.cert, &self.key) {
            (Some(ca), Some(cert), Some(key)) => TlsFiles::new(ca, cert, key),
            (Some(ca), None, None) => TlsFiles::anonymous(ca),
            (None, _, _) => {
                return refused(
                    "the profile names no certificate authority; add `ca`, the path of a PEM file",
                );
            }
            (Some(_), _, _) => return refused("`cert` and `key` belong together; give both"),
        };
        Channel::remote(address, &tls, self.server_name.as_deref())
            .map_err(|error| CliError::Invalid(error_chain(&error)))
    }

    /// Where a service is.
    ///
    /// # Errors
    /// When neither it nor the coordinator as a whole has an address.
    pub fn address_of(&self, host: ApiService) -> Result<&str, CliError> {
        let own = match host {
            ApiService::Scheduler => &self.addresses.scheduler,
            ApiService::Storage => &self.addresses.storage,
            ApiService::RunnerRegistry => &self.addresses.runner_registry,
            ApiService::Router => &self.addresses.router,
            ApiService::MyceliumGateway => &self.addresses.mycelium_gateway,
            ApiService::Supervisor => &self.addresses.supervisor,
            ApiService::Saga => &self.addresses.saga,
        };
        own.as_deref().or(self.address.as_deref()).ok_or_else(|| {
            CliError::Invalid(format!(
                "the profile has neither `address` nor an address for {} below [addresses]; add one",
                host.as_str()
            ))
        })
    }
}

/// At its line and column, in the words of profiles.
fn what_is_wrong(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let message = error.message();
    let what = if let Some(rest) = message.strip_prefix("unknown field ") {
        rest.replacen(", expected", " is no key of a profile; expected", 1)
    } else if message.starts_with("invalid type") || message.starts_with("invalid value") {
        "a value of another kind belongs here: `context` and `actor` are numbers, the others texts".to_owned()
    } else {
        message.to_owned()
    };
    format!("line {line}, column {column}: {what}")
}

/// Default data directory: `$XDG_DATA_HOME/mycora`, else `~/.local/share/mycora`.
///
/// # Errors
/// When the environment names no home directory.
pub fn default_data_dir() -> Result<PathBuf, CliError> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_DATA_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local/share")))
        .map(|base| base.join("mycora"))
        .ok_or_else(|| CliError::Invalid("neither XDG_DATA_HOME nor HOME is set; set one of them".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(PROFILE_FILE);
        std::fs::write(&path, text).expect("written");
        (dir, path)
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(PROFILE_FILE);
        let pki = Path::new("/pki");
        let local = Profile::local(
            SocketAddr::from(([127, 0, 0, 1], 7700)),
            &pki.join("ca.pem"),
            &pki.join("actor-1.pem"),
            &pki.join("actor-1.key"),
            1,
            1,
        );
        let profile = Profile {
            server_name: Some("mycora".into()),
            addresses: ServiceAddresses {
                runner_registry: Some("https://r:1".into()),
                ..ServiceAddresses::default()
            },
            ..local
        };
        profile.save(&path).expect("saved");
        assert_eq!(Profile::load(&path).expect("loaded"), profile);
    }

    #[test]
    fn what_lies_below_the_profile_moves_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (before, after) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::create_dir(&before).expect("a directory");
        let cert = |dir: &Path| Some(dir.join("pki/admin.pem"));
        let admin = Profile { cert: cert(&before), ..Profile::default() };
        let profiles = BTreeMap::from([("admin".to_owned(), admin)]);
        let profile = Profile { ca: Some(before.join("ca.pem")), profiles, ..Profile::default() };
        profile.save(&before.join(PROFILE_FILE)).expect("saved");
        std::fs::rename(&before, &after).expect("moved");
        let loaded = Profile::load_as(&after.join(PROFILE_FILE), Some("admin")).expect("loaded");
        assert_eq!((loaded.ca, loaded.cert), (Some(after.join("ca.pem")), cert(&after)));
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let (dir, path) = written("address = \"https://h:1\"\nca = \"pki/ca.pem\"\n");
        let profile = Profile::load(&path).expect("loaded");
        assert_eq!(profile.ca, Some(dir.path().join("pki/ca.pem")));
    }

    #[test]
    fn single_services_may_have_addresses_of_their_own() {
        let (_dir, path) = written(
            "address = \"https://h:1\"\n[addresses]\nrunner-registry = \"https://r:2\"\nrouter = \"https://m:3\"\n\
             mycelium-gateway = \"https://g:5\"\n",
        );
        let profile = Profile::load(&path).expect("loaded");
        assert_eq!(profile.address_of(ApiService::RunnerRegistry), Ok("https://r:2"));
        assert_eq!(profile.address_of(ApiService::Router), Ok("https://m:3"));
        assert_eq!(profile.address_of(ApiService::MyceliumGateway), Ok("https://g:5"));
        assert_eq!(profile.address_of(ApiService::Scheduler), Ok("https://h:1"));
        assert!(
            Profile::default()
                .address_of(ApiService::Storage)
                .is_err_and(|e| e.to_string().contains("storage"))
        );
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_line() {
        let (_dir, path) = written("address = \"https://h:1\"\nserver-name = \"x\"\n");
        let error = Profile::load(&path).expect_err("a wrong key").to_string();
        assert!(error.contains("line 2, column 1: `server-name` is no key of a profile"), "{error}");
        let (_dir, path) = written("context = \"x\"\n");
        let error = Profile::load(&path).expect_err("a wrong kind").to_string();
        assert!(error.contains("line 1, column 11: a value of another kind"), "{error}");
        let missing = Profile::load(Path::new("/nowhere/client.toml")).expect_err("not there");
        assert!(matches!(missing, ProfileError::Missing { .. }));
    }
}
