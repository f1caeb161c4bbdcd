//! Trust in servers, and encrypted connections to them.

use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::connect::bare;

/// Where systems keep the certificates that they trust.
const CERTIFICATES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Authorities that requests trust.
#[derive(Clone)]
pub struct TrustAnchors(Option<TlsConnector>);

impl TrustAnchors {
    /// The authorities that the machine trusts; `SSL_CERT_FILE` names another file.
    #[must_use]
    pub fn from_system() -> Self {
        let named = std::env::var_os("SSL_CERT_FILE");
        let places = named.iter().map(Path::new).chain(CERTIFICATES.iter().map(Path::new));
        for place in places {
            let Ok(certificates) = CertificateDer::pem_file_iter(place) else { continue };
            let mut roots = RootCertStore::empty();
            let (added, _) = roots.add_parsable_certificates(certificates.flatten());
            if added > 0 {
                return Self::with(roots);
            }
        }
        Self(None)
    }

    /// Trusts only the authorities of a text in PEM.
    ///
    /// # Errors
    /// The text has no certificate, or an invalid one.
    pub fn from_pem(pem: &str) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.map_err(|_| "it is not PEM")?;
            roots.add(certificate).map_err(|error| format!("it contains an invalid certificate: {error}"))?;
        }
        if roots.is_empty() {
            return Err("it has no certificate".to_owned());
        }
        Ok(Self::with(roots))
    }

    /// Returns `true` where no certificate is trusted, so that no request over https succeeds.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Encrypts a connection to a host, which has to prove its name (or its address, where the host is one).
    ///
    /// # Errors
    /// No authority is trusted, the host is not who it should be, or the handshake broke off.
    pub async fn encrypt<S>(
        &self,
        host: &str,
        stream: S,
    ) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<S>, String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let connector = self.0.as_ref().ok_or("this machine has no certificates to trust")?;
        let name = ServerName::try_from(bare(host).to_owned()).map_err(|error| error.to_string())?;
        connector.connect(name, stream).await.map_err(|error| error.to_string())
    }

    fn with(roots: RootCertStore) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map(|config| config.with_root_certificates(roots).with_no_client_auth());
        Self(config.ok().map(|config| TlsConnector::from(Arc::new(config))))
    }
}
