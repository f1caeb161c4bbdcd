//! TLS 1.3 from PEM files, read again when they change.
//!
//! A server asks for a client certificate, verifies one that is given, and lets
//! a connection without one in: what may be called without is for the policy
//! to say, and the answer is then a status that people can read.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use identity::exposure::{self, FileExposure};
use identity::{CertificateError, CertificateSummary, LeafIdentity, TrustDomain};
use model::Timestamp;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

use crate::lock::lock;

/// The only protocol that is negotiated.
pub(crate) const ALPN_H2: &[u8] = b"h2";

/// The PEM files behind a connection: whom to trust, and who we are. Clones count their failures together.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// None in a mesh that has all the certificates itself.
    ca: Option<PathBuf>,
    own: Option<OwnFiles>,
    plaintext: PlaintextPolicy,
    reload_failures: Arc<AtomicU64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnFiles {
    certificate: PathBuf,
    key: PathBuf,
}

/// Policy for calls to `http://`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlaintextPolicy {
    Refused,
    /// A sidecar takes such calls up, and makes mTLS of them.
    ToSidecar,
}

/// When what stands in a file ends.
#[derive(Debug)]
pub struct CertificateExpiry {
    /// The file.
    pub file: PathBuf,
    /// The earliest end of the certificates in it, or why that is not known.
    pub not_after: Result<Timestamp, TlsError>,
}

impl TlsFiles {
    const fn with(ca: Option<PathBuf>, own: Option<OwnFiles>, failures: Arc<AtomicU64>) -> Self {
        Self { ca, own, plaintext: PlaintextPolicy::Refused, reload_failures: failures }
    }

    /// The authorities to trust, our certificate chain and its key.
    pub fn new(ca: impl Into<PathBuf>, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        let own = OwnFiles { certificate: certificate.into(), key: key.into() };
        Self::with(Some(ca.into()), Some(own), Arc::default())
    }

    /// For a client that shows no certificate.
    pub fn anonymous(ca: impl Into<PathBuf>) -> Self {
        Self::with(Some(ca.into()), None, Arc::default())
    }

    /// For a process in a mesh that needs no certificates of its own: it can call `http://` only.
    #[must_use]
    pub fn none() -> Self {
        Self::with(None, None, Arc::default()).in_mesh()
    }

    /// Returns the same authorities, for a client that shows no certificate.
    #[must_use]
    pub fn without_certificate(&self) -> Self {
        let anonymous = Self::with(self.ca.clone(), None, self.reload_failures.clone());
        Self { plaintext: self.plaintext, ..anonymous }
    }

    /// Returns the same files for a process behind a sidecar: `http://` may be called as well, which the sidecar
    /// takes up and makes mTLS of. The mesh then checks who answers.
    #[must_use]
    pub fn in_mesh(self) -> Self {
        Self { plaintext: PlaintextPolicy::ToSidecar, ..self }
    }

    pub(crate) const fn allows_plaintext(&self) -> bool {
        matches!(self.plaintext, PlaintextPolicy::ToSidecar)
    }

    /// How often changed files could not be used, by those who serve and call with these files and clones of them.
    #[must_use]
    pub fn reload_failures(&self) -> u64 {
        self.reload_failures.load(Ordering::Relaxed)
    }

    /// When the certificates end, as the files say now. Of a bundle the one that ends first counts: authorities
    /// that are over do not belong into it.
    #[must_use]
    pub fn certificate_expiries(&self) -> Vec<CertificateExpiry> {
        let files = self.ca.iter().chain(self.own.iter().map(|own| &own.certificate));
        files.map(|file| CertificateExpiry { file: file.clone(), not_after: earliest_end(file) }).collect()
    }

    /// Checks that the authorities that are trusted here vouch for our own certificate now, as they would at a server
    /// that trusts the same ones.
    ///
    /// # Errors
    /// When a file cannot be used, key and certificate are no pair, or they do not.
    pub fn check_own(&self) -> Result<(), TlsError> {
        let own = self.own.as_ref().ok_or(TlsError::ServerNeedsCertificate)?;
        self.client_config()?;
        let chain = certificates(&own.certificate)?;
        let (leaf, between) = chain
            .split_first()
            .ok_or_else(|| TlsError::unusable(&own.certificate, "there is no certificate in it"))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots()?, provider());
        let verifier = verifier.build().map_err(|e| TlsError::unusable(&own.certificate, e))?;
        let verified = verifier.verify_client_cert(leaf, between, UnixTime::now());
        verified.map(drop).map_err(|e| TlsError::unusable(&own.certificate, e))
    }

    /// Changes when any of the files does, also when a link to it is swapped.
    fn stamp(&self) -> Vec<Option<FileStamp>> {
        let own = self.own.iter().flat_map(|own| [&own.certificate, &own.key]);
        self.ca.iter().chain(own).map(|path| FileStamp::of(path)).collect()
    }

    fn ca(&self) -> Result<&Path, TlsError> {
        self.ca.as_deref().ok_or(TlsError::NoAuthorities)
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, TlsError> {
        let ca = self.ca()?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|e| TlsError::unusable(ca, e))?;
        }
        Ok(Arc::new(roots))
    }

    fn server_config(&self) -> Result<(ServerConfig, TrustDomain), TlsError> {
        let own = self.own.as_ref().ok_or(TlsError::ServerNeedsCertificate)?;
        let ca = self.ca()?;
        let chain = certificates(&own.certificate)?;
        let trust_domain = trust_domain_of(&own.certificate, &chain)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots()?, provider())
            .allow_unauthenticated()
            .build()
            .map_err(|e| TlsError::unusable(ca, e))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| TlsError::unusable(&own.certificate, e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, private_key(&own.key)?)
            .map_err(|e| TlsError::unusable(&own.certificate, e))?;
        config.alpn_protocols = vec![ALPN_H2.to_vec()];
        // A resumed session would keep an identity that was not verified again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok((config, trust_domain))
    }

    fn client_config(&self) -> Result<ClientConfig, TlsError> {
        let ca = self.ca()?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| TlsError::unusable(ca, e))?
            .with_root_certificates(self.roots()?);
        let mut config = match &self.own {
            None => builder.with_no_client_auth(),
            Some(own) => builder
                .with_client_auth_cert(certificates(&own.certificate)?, private_key(&own.key)?)
                .map_err(|e| TlsError::unusable(&own.certificate, e))?,
        };
        config.alpn_protocols = vec![ALPN_H2.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

impl std::fmt::Display for TlsFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files = self.ca.iter().chain(self.own.iter().map(|own| &own.certificate));
        let names: Vec<_> = files.map(|file| file.display().to_string()).collect();
        f.write_str(&names.join(", "))
    }
}

/// Attributes that tell two states of a file apart.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl FileStamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = path.metadata().ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

/// A configuration made from files, made again when one of them changed.
///
/// Looked at before each handshake, so that nothing polls: three `stat` calls
/// are nothing beside the cryptography that follows. Connections that exist
/// keep what they began with.
pub(crate) struct ReloadingTlsConfig<T> {
    files: TlsFiles,
    make: fn(&TlsFiles) -> Result<T, TlsError>,
    loaded: Mutex<LoadedTlsConfig<T>>,
}

struct LoadedTlsConfig<T> {
    stamp: Vec<Option<FileStamp>>,
    value: Arc<T>,
}

impl<T> ReloadingTlsConfig<T> {
    fn new(files: &TlsFiles, make: fn(&TlsFiles) -> Result<T, TlsError>) -> Result<Self, TlsError> {
        // Read before the files are: a change in between is then noticed.
        let stamp = files.stamp();
        let value = Arc::new(make(files)?);
        Ok(Self { files: files.clone(), make, loaded: Mutex::new(LoadedTlsConfig { stamp, value }) })
    }

    /// The present configuration; the former one when the files cannot be used now.
    pub(crate) fn current(&self) -> Arc<T> {
        let stamp = self.files.stamp();
        let mut loaded = lock(&self.loaded);
        if loaded.stamp != stamp {
            loaded.stamp = stamp;
            match (self.make)(&self.files) {
                Ok(value) => {
                    loaded.value = Arc::new(value);
                    tracing::info!(files = %self.files, "certificates read again");
                }
                Err(error) => {
                    self.files.reload_failures.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(%error, "changed certificates cannot be used; the former ones stay in force");
                }
            }
        }
        loaded.value.clone()
    }
}

pub(crate) type ServerTls = ReloadingTlsConfig<(Arc<ServerConfig>, TrustDomain)>;
pub(crate) type ClientTls = ReloadingTlsConfig<Arc<ClientConfig>>;

impl ServerTls {
    pub(crate) fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        Self::new(files, |files| files.server_config().map(|(config, domain)| (Arc::new(config), domain)))
    }
}

impl ClientTls {
    pub(crate) fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        Self::new(files, |files| files.client_config().map(Arc::new))
    }
}

/// Why PEM files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be opened.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file does not contain what it should.
    #[error("{} cannot be used: {message}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Description of what is wrong.
        message: String,
    },
    /// Others can read the key, or change a file that is trusted.
    #[error("a file for TLS cannot be used")]
    Exposed(#[source] FileExposure),
    /// Our own certificate is no identity.
    #[error("{} names no identity of ours; `mycora pki issue` makes one that does", path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// Reason why the certificate has no identity.
        source: CertificateError,
    },
    /// Only a client may go without.
    #[error("a server needs a certificate and its key")]
    ServerNeedsCertificate,
    /// TLS needs an authority to trust.
    #[error("no certificate authorities are given, so no peer can be verified")]
    NoAuthorities,
    /// A certificate cannot be understood.
    #[error("{} cannot be understood", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Reason why the certificate cannot be understood.
        source: CertificateError,
    },
}

impl TlsError {
    fn unusable(path: &Path, message: impl std::fmt::Display) -> Self {
        Self::Unusable { path: path.to_owned(), message: message.to_string() }
    }

    fn pem(path: &Path, error: rustls_pki_types::pem::Error) -> Self {
        match error {
            rustls_pki_types::pem::Error::Io(source) => Self::Read { path: path.to_owned(), source },
            other => Self::unusable(path, other),
        }
    }
}

/// Named in every place: another crate that enables a second provider must not matter.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    exposure::check_trusted(path).map_err(TlsError::Exposed)?;
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(|e| TlsError::pem(path, e))?
        .collect::<Result<_, _>>()
        .map_err(|e| TlsError::pem(path, e))?;
    if certificates.is_empty() {
        return Err(TlsError::unusable(path, "there is no certificate in it"));
    }
    Ok(certificates)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    exposure::check_secret(path).map_err(TlsError::Exposed)?;
    PrivateKeyDer::from_pem_file(path).map_err(|e| TlsError::pem(path, e))
}

fn trust_domain_of(path: &Path, chain: &[CertificateDer<'_>]) -> Result<TrustDomain, TlsError> {
    let leaf = chain.first().map(CertificateDer::as_ref).unwrap_or_default();
    LeafIdentity::from_der(leaf)
        .map(|leaf| leaf.id.trust_domain)
        .map_err(|source| TlsError::Identity { path: path.to_owned(), source })
}

fn earliest_end(path: &Path) -> Result<Timestamp, TlsError> {
    let understood = |der: &CertificateDer<'_>| {
        let summary = CertificateSummary::from_der(der);
        summary
            .map(|summary| summary.not_after)
            .map_err(|source| TlsError::Certificate { path: path.to_owned(), source })
    };
    let ends: Vec<Timestamp> = certificates(path)?.iter().map(understood).collect::<Result<_, _>>()?;
    ends.into_iter().min().ok_or_else(|| TlsError::unusable(path, "there is no certificate in it"))
}
