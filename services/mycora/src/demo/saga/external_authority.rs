//! The authority of the world outside, by which its stand-ins prove who they are.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use identity::pki::IssueOptions;
use identity::{Identity, Pki, ServiceName, TrustDomain};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;

use super::failed;
use crate::failure::CliError;

/// An authority beside the suite's, and TLS of a server that has a certificate of it for `localhost`.
pub(super) struct ExternalAuthority {
    ca: String,
    acceptor: TlsAcceptor,
}

impl ExternalAuthority {
    /// Makes the authority in this directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn new(dir: &Path) -> Result<Self, CliError> {
        let cannot = |error: identity::PkiError| failed("the authority of the stand-ins", &error);
        let now = SystemTime::now();
        let pki = Pki::init(dir, &TrustDomain::default(), now).map_err(cannot)?;
        // The service name does not matter: clients verify the host name.
        let issued =
            pki.sign(Identity::Service(ServiceName::Mycora), &IssueOptions::from(now)).map_err(cannot)?;
        let unusable = |error: &dyn std::fmt::Display| CliError::Failed(format!("a certificate: {error}"));
        let certificate = CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes());
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.map_err(|error| unusable(&error))?],
                key.map_err(|error| unusable(&error))?,
            )
            .map_err(|error| unusable(&error))?;
        Ok(Self { ca: pki.ca_pem().to_owned(), acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// The authority, in PEM.
    pub(super) fn ca(&self) -> &str {
        &self.ca
    }

    /// TLS of a server.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }
}

/// Writes a file that only its owner may read.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write_private(path: &Path, text: &str) -> Result<(), CliError> {
    let file = std::fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| failed(&path.display().to_string(), &error))
}
