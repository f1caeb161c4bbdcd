//! Contents of certificates.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use model::Timestamp;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::spiffe::{SpiffeError, SpiffeId, TrustDomain};

/// Identity of a leaf certificate, and since when it is valid.
///
/// Means nothing unless the chain was verified before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafIdentity {
    /// The certificate's only URI name.
    pub id: SpiffeId,
    /// When it was issued; an actor's certificate that is older than a revocation does not count.
    pub not_before: Timestamp,
    /// When it ends.
    pub not_after: Timestamp,
}

impl LeafIdentity {
    /// Reads it from a leaf certificate.
    ///
    /// # Errors
    /// When the bytes are no certificate, it has no URI name or several, or the
    /// name is no SPIFFE id of ours.
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        let certificate = parse(der)?;
        let names = SubjectAltNames::of(&certificate)?;
        let [uri] = names.uris.as_slice() else {
            return Err(CertificateError::UriNames(names.uris.len()));
        };
        Ok(Self {
            id: uri.parse()?,
            not_before: timestamp(certificate.validity().not_before.timestamp()),
            not_after: timestamp(certificate.validity().not_after.timestamp()),
        })
    }
}

/// A certificate as people want to see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateSummary {
    /// Distinguished name of the certificate.
    pub subject: String,
    /// Distinguished name of the issuer.
    pub issuer: String,
    /// True when the certificate may sign others.
    pub is_ca: bool,
    /// The URI names, as they stand in it.
    pub uris: Vec<String>,
    /// The identity, when there is exactly one URI name and it is one of ours.
    pub identity: Option<SpiffeId>,
    /// The host names.
    pub dns_names: Vec<String>,
    /// The addresses.
    pub ip_addresses: Vec<IpAddr>,
    /// The first moment at which it counts.
    pub not_before: Timestamp,
    /// The last one.
    pub not_after: Timestamp,
    /// SHA-256 of its DER form, 64 lower-case hex digits.
    pub fingerprint: String,
}

impl CertificateSummary {
    /// Reads it from DER.
    ///
    /// # Errors
    /// When the bytes are no certificate.
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        let certificate = parse(der)?;
        let names = SubjectAltNames::of(&certificate)?;
        let identity = match names.uris.as_slice() {
            [uri] => uri.parse().ok(),
            _ => None,
        };
        Ok(Self {
            subject: certificate.subject().to_string(),
            issuer: certificate.issuer().to_string(),
            is_ca: certificate.is_ca(),
            identity,
            uris: names.uris,
            dns_names: names.dns,
            ip_addresses: names.ips,
            not_before: timestamp(certificate.validity().not_before.timestamp()),
            not_after: timestamp(certificate.validity().not_after.timestamp()),
            fingerprint: hex::encode(Sha256::digest(der)),
        })
    }

    /// The trust domain of one of our authorities; nothing for leaves, and for authorities of others.
    #[must_use]
    pub fn authority_of(&self) -> Option<TrustDomain> {
        match self.uris.as_slice() {
            [uri] if self.is_ca => uri.strip_prefix("spiffe://")?.parse().ok(),
            _ => None,
        }
    }

    /// Reads the first certificate of a PEM file.
    ///
    /// # Errors
    /// When the file cannot be read or its first certificate cannot be understood.
    pub fn from_pem_file(path: &Path) -> Result<Self, CertificateError> {
        let der = CertificateDer::from_pem_file(path).map_err(|source| CertificateError::PemFile {
            path: path.display().to_string(),
            message: source.to_string(),
        })?;
        Self::from_der(&der)
    }

    /// Reads every certificate of a PEM file.
    ///
    /// # Errors
    /// When the file cannot be read, has none in it, or one of them cannot be understood.
    pub fn all_from_pem_file(path: &Path) -> Result<Vec<Self>, CertificateError> {
        let refused =
            |message: String| CertificateError::PemFile { path: path.display().to_string(), message };
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| refused(error.to_string()))?;
        let mut summaries = Vec::new();
        for der in certificates {
            summaries.push(Self::from_der(&der.map_err(|error| refused(error.to_string()))?)?);
        }
        if summaries.is_empty() {
            return Err(refused("there is no certificate in it".to_owned()));
        }
        Ok(summaries)
    }
}

/// Why a certificate is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// A PEM file could not be read or has no certificate in it.
    #[error("{path} is no PEM file with a certificate: {message}")]
    PemFile {
        /// The file.
        path: String,
        /// Message of the reader.
        message: String,
    },
    /// The bytes are no X.509 certificate.
    #[error("not an X.509 certificate: {0}")]
    Der(String),
    /// One that counts as an identity has exactly one URI name.
    #[error("a certificate needs exactly one URI name (its SPIFFE id), this one has {0}")]
    UriNames(usize),
    /// The URI name is no id of ours.
    #[error("the certificate's URI name is not an identity of this suite")]
    Identity(#[source] SpiffeError),
}

impl From<SpiffeError> for CertificateError {
    fn from(source: SpiffeError) -> Self {
        Self::Identity(source)
    }
}

/// The alternative names, by kind.
#[derive(Default)]
struct SubjectAltNames {
    uris: Vec<String>,
    dns: Vec<String>,
    ips: Vec<IpAddr>,
}

impl SubjectAltNames {
    fn of(certificate: &X509Certificate<'_>) -> Result<Self, CertificateError> {
        // Two such extensions are an error here, so that a second name cannot be hidden.
        let extension =
            certificate.subject_alternative_name().map_err(|e| CertificateError::Der(e.to_string()))?;
        let mut names = Self::default();
        for name in extension.iter().flat_map(|e| &e.value.general_names) {
            match name {
                GeneralName::URI(uri) => names.uris.push((*uri).to_owned()),
                GeneralName::DNSName(dns) => names.dns.push((*dns).to_owned()),
                GeneralName::IPAddress(bytes) => names.ips.extend(ip_address(bytes)),
                _ => {}
            }
        }
        Ok(names)
    }
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, CertificateError> {
    let (rest, certificate) =
        X509Certificate::from_der(der).map_err(|e| CertificateError::Der(e.to_string()))?;
    if !rest.is_empty() {
        return Err(CertificateError::Der(format!("{} bytes follow it", rest.len())));
    }
    Ok(certificate)
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Certificates count in whole seconds, and may begin before 1970.
fn timestamp(unix_secs: i64) -> Timestamp {
    Timestamp::default() + Duration::from_secs(u64::try_from(unix_secs).unwrap_or(0))
}
