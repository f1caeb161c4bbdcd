//! The development PKI: one certificate authority in a directory.
//!
//! `ca.pem` and `ca.key`, and for every identity `<name>.pem` and `<name>.key`.
//! Everything is ECDSA P-256. What other languages' TLS libraries insist on is
//! there: distinct names of issuer and subject, key identifiers, key usages,
//! host names beside the SPIFFE id, and a validity that means something.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use model::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};

use zeroize::Zeroizing;

use crate::certificate::{CertificateError, CertificateSummary};
use crate::exposure::{self, FileExposure};
use crate::file;
use crate::spiffe::{Identity, SpiffeId, TrustDomain};

/// The authority's certificate within the directory.
pub const CA_CERTIFICATE_FILE: &str = "ca.pem";
/// The authority's key within the directory.
pub const CA_KEY_FILE: &str = "ca.key";
/// How long a new authority lasts: ten years.
pub const CA_VALIDITY: Duration = Duration::from_secs(3650 * DAY_SECS);
/// How long a certificate lasts by default: 90 days.
pub const LEAF_VALIDITY: Duration = Duration::from_secs(90 * DAY_SECS);

const DAY_SECS: u64 = 24 * 3600;

/// A certificate authority that can issue.
pub struct Pki {
    dir: PathBuf,
    trust_domain: TrustDomain,
    ca_pem: String,
    ca_not_after: Timestamp,
    issuer: Issuer<'static, KeyPair>,
}

/// Contents of a certificate beside the identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssueOptions {
    /// Host names and IP addresses at which it serves, beside its own name, `localhost` and the loopback addresses.
    pub names: Vec<String>,
    /// First moment at which the certificate holds.
    pub not_before: SystemTime,
    /// How long it lasts; it never outlives the authority.
    pub validity: Duration,
}

impl IssueOptions {
    /// From `now` on for [`LEAF_VALIDITY`], without additional names.
    #[must_use]
    pub const fn from(now: SystemTime) -> Self {
        Self { names: Vec::new(), not_before: now, validity: LEAF_VALIDITY }
    }
}

/// A certificate and its key, in PEM.
pub struct IssuedCertificate {
    /// The certificate.
    pub certificate_pem: String,
    /// Private key of the certificate (PKCS#8), which is wiped when it is dropped.
    pub key_pem: Zeroizing<String>,
}

/// Where an issued certificate was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedFiles {
    /// The authority that signed it; what the other side has to trust.
    pub ca: PathBuf,
    /// The certificate.
    pub certificate: PathBuf,
    /// Private key of the certificate, readable by the owner only.
    pub key: PathBuf,
}

impl Pki {
    /// Makes a new authority in `dir`, which is created for its owner alone when it is not there.
    ///
    /// # Errors
    /// [`PkiError::Exists`] when there is one already; others when it cannot be written.
    pub fn init(dir: &Path, trust_domain: &TrustDomain, now: SystemTime) -> Result<Self, PkiError> {
        file::private_dir(dir).map_err(|source| PkiError::Write { path: dir.to_owned(), source })?;
        exposure::check_trusted(dir)?;
        // The certificate is written last: an authority exists when `ca.pem` does.
        for name in [CA_CERTIFICATE_FILE, CA_KEY_FILE] {
            let path = dir.join(name);
            if path.symlink_metadata().is_ok() {
                return Err(PkiError::Exists { path });
            }
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(sign_error)?;
        let certificate = ca_params(trust_domain, now).self_signed(&key).map_err(sign_error)?;
        write_new(&dir.join(CA_KEY_FILE), &Zeroizing::new(key.serialize_pem()), file::SECRET)?;
        write_new(&dir.join(CA_CERTIFICATE_FILE), &certificate.pem(), file::PUBLIC)?;
        Self::open(dir)
    }

    /// Opens the authority in `dir`. Its trust domain is the one in its certificate.
    ///
    /// # Errors
    /// When there is none, it cannot be read, others can read its key or change anything in it, or key and certificate
    /// are no pair.
    pub fn open(dir: &Path) -> Result<Self, PkiError> {
        check_closed(dir)?;
        let ca_pem = read(&dir.join(CA_CERTIFICATE_FILE))?;
        let key_path = dir.join(CA_KEY_FILE);
        let key_pem = Zeroizing::new(read(&key_path)?);
        let summary = CertificateSummary::from_pem_file(&dir.join(CA_CERTIFICATE_FILE))?;
        let trust_domain = summary
            .authority_of()
            .ok_or_else(|| PkiError::NoAuthority { path: dir.join(CA_CERTIFICATE_FILE) })?;
        let key = KeyPair::from_pem(&key_pem)
            .map_err(|e| PkiError::Key { path: key_path, message: e.to_string() })?;
        let issuer = Issuer::from_ca_cert_pem(&ca_pem, key).map_err(sign_error)?;
        Ok(Self { dir: dir.to_owned(), trust_domain, ca_pem, ca_not_after: summary.not_after, issuer })
    }

    /// The trust domain of the authority.
    #[must_use]
    pub const fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The authority's certificate, in PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The file with the authority's certificate.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.dir.join(CA_CERTIFICATE_FILE)
    }

    /// Where [`Pki::issue`] puts what it makes for `identity`.
    #[must_use]
    pub fn files(&self, identity: Identity) -> IssuedFiles {
        let stem = identity.file_stem();
        IssuedFiles {
            ca: self.ca_file(),
            certificate: self.dir.join(format!("{stem}.pem")),
            key: self.dir.join(format!("{stem}.key")),
        }
    }

    /// Makes a certificate without writing it anywhere.
    ///
    /// # Errors
    /// When a name is neither a host name nor an address, or the authority has ended.
    pub fn sign(&self, identity: Identity, options: &IssueOptions) -> Result<IssuedCertificate, PkiError> {
        let params = self.leaf_params(identity, options)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(sign_error)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(sign_error)?;
        Ok(IssuedCertificate { certificate_pem: certificate.pem(), key_pem: key.serialize_pem().into() })
    }

    /// Makes a certificate and writes it and its key beside the authority,
    /// replacing earlier files of the same identity.
    ///
    /// # Errors
    /// As [`Pki::sign`], and when the files cannot be written.
    pub fn issue(&self, identity: Identity, options: &IssueOptions) -> Result<IssuedFiles, PkiError> {
        let issued = self.sign(identity, options)?;
        let files = self.files(identity);
        for (path, text, mode) in [
            (&files.key, &*issued.key_pem, file::SECRET),
            (&files.certificate, &issued.certificate_pem, file::PUBLIC),
        ] {
            file::write(path, text, mode).map_err(|source| PkiError::Write { path: path.clone(), source })?;
        }
        Ok(files)
    }

    fn leaf_params(&self, identity: Identity, options: &IssueOptions) -> Result<CertificateParams, PkiError> {
        let not_before = Timestamp::from(options.not_before);
        if not_before >= self.ca_not_after {
            return Err(PkiError::Ended { path: self.ca_file() });
        }
        let wanted_end = options.not_before + options.validity;
        let authority_end = SystemTime::UNIX_EPOCH + Duration::from_secs(self.ca_not_after.as_secs());

        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(&identity.to_string());
        params.not_before = options.not_before.into();
        params.not_after = wanted_end.min(authority_end).into();
        params.subject_alt_names = self.leaf_names(identity, &options.names)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }

    fn leaf_names(&self, identity: Identity, additional: &[String]) -> Result<Vec<SanType>, PkiError> {
        let id = SpiffeId::new(self.trust_domain.clone(), identity).to_string();
        let uri = id.as_str().try_into().map_err(|_| PkiError::Name { name: id.clone() })?;
        let mut names = vec![SanType::URI(uri)];
        if let Identity::Service(service) = identity {
            names.push(dns_name(service.as_str())?);
            names.push(dns_name("localhost")?);
            names.push(SanType::IpAddress(Ipv4Addr::LOCALHOST.into()));
            names.push(SanType::IpAddress(Ipv6Addr::LOCALHOST.into()));
        }
        for name in additional {
            let parsed = match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => dns_name(name)?,
            };
            if !names.contains(&parsed) {
                names.push(parsed);
            }
        }
        Ok(names)
    }
}

/// Errors of the development PKI.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// An authority is never replaced.
    #[error("{} exists already; everything it signed would be lost: use it, or choose another directory", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// There is no authority in the directory.
    #[error("{} is not there; `mycora pki init` makes a certificate authority", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The certificate is no authority of a trust domain.
    #[error(
        "{} is not an authority made by `mycora pki init`: it has to be a CA with spiffe://<trust domain> as its only URI name",
        path.display()
    )]
    NoAuthority {
        /// The file.
        path: PathBuf,
    },
    /// The authority's certificate has ended.
    #[error("the certificate authority {} has ended; make a new one in another directory", path.display())]
    Ended {
        /// The file.
        path: PathBuf,
    },
    /// Others can read a key, or change a file that is trusted.
    #[error("the certificate authority cannot be used")]
    Exposed(#[source] FileExposure),
    /// A private key cannot be understood.
    #[error("{} holds no private key in PEM (PKCS#8): {message}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Message of the reader.
        message: String,
    },
    /// A certificate cannot be understood.
    #[error("the authority's certificate cannot be used")]
    Certificate(#[source] CertificateError),
    /// A name cannot stand in a certificate.
    #[error("`{name}` is neither a host name nor an IP address")]
    Name {
        /// The name.
        name: String,
    },
    /// Making or signing failed.
    #[error("cannot make the certificate: {0}")]
    Sign(String),
}

impl From<CertificateError> for PkiError {
    fn from(source: CertificateError) -> Self {
        Self::Certificate(source)
    }
}

impl From<FileExposure> for PkiError {
    fn from(source: FileExposure) -> Self {
        Self::Exposed(source)
    }
}

/// Checks the directory and what is in it: keys are closed to others, and others can change nothing. Entries
/// that are neither certificates nor keys are not ours, and are ignored.
fn check_closed(dir: &Path) -> Result<(), PkiError> {
    exposure::check_trusted(dir)?;
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("key" | "ed25519") => exposure::check_secret(&path)?,
            Some("pem" | "json") => exposure::check_trusted(&path)?,
            _ => {}
        }
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "it is the argument of map_err")]
fn sign_error(error: rcgen::Error) -> PkiError {
    PkiError::Sign(error.to_string())
}

fn ca_params(trust_domain: &TrustDomain, now: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    // Two authorities of one trust domain need different names: with equal ones, a peer that trusts the wrong one
    // would get "bad signature" instead of "unknown issuer".
    let number: u32 = rand::random();
    params.distinguished_name =
        distinguished_name(&format!("{trust_domain} certificate authority {number:08x}"));
    params.not_before = now.into();
    params.not_after = (now + CA_VALIDITY).into();
    // SPIFFE X.509-SVID 4.1: an authority names its trust domain, without a path.
    let uri = format!("spiffe://{trust_domain}");
    params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("a trust domain is ASCII"))];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn distinguished_name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Mycora");
    name.push(DnType::CommonName, common_name);
    name
}

fn dns_name(name: &str) -> Result<SanType, PkiError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '*');
    let refused = || PkiError::Name { name: name.to_owned() };
    if name.is_empty() || name.len() > 253 || !name.chars().all(allowed) {
        return Err(refused());
    }
    name.try_into().map(SanType::DnsName).map_err(|_| refused())
}

fn read(path: &Path) -> Result<String, PkiError> {
    std::fs::read_to_string(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => PkiError::Missing { path: path.to_owned() },
        _ => PkiError::Read { path: path.to_owned(), source },
    })
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    file::write_new(path, text, mode).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => PkiError::Exists { path: path.to_owned() },
        _ => PkiError::Write { path: path.to_owned(), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::LeafIdentity;
    use crate::spiffe::ServiceName;
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;
    use std::os::unix::fs::PermissionsExt;

    const NOW_SECS: u64 = 1_800_000_000;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(NOW_SECS)
    }

    fn new_pki() -> (tempfile::TempDir, Pki) {
        let dir = tempfile::tempdir().expect("a directory");
        let pki = Pki::init(dir.path(), &TrustDomain::default(), now()).expect("an authority");
        (dir, pki)
    }

    #[test]
    fn an_authority_is_never_replaced() {
        let (dir, pki) = new_pki();
        let before = pki.ca_pem().to_owned();
        let again = Pki::init(dir.path(), &TrustDomain::default(), now());
        assert!(matches!(again, Err(PkiError::Exists { .. })));
        assert_eq!(Pki::open(dir.path()).expect("still there").ca_pem(), before);
    }

    #[test]
    fn keys_are_readable_by_their_owner_only() {
        let (dir, pki) = new_pki();
        let files = pki.issue(Identity::Admin, &IssueOptions::from(now())).expect("issued");
        for path in [dir.path().join(CA_KEY_FILE), files.key] {
            assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn an_exposed_authority_is_refused() {
        let outer = tempfile::tempdir().expect("a directory");
        let path = outer.path().join("pki");
        let pki = Pki::init(&path, &TrustDomain::default(), now()).expect("an authority");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o700);
        let dir = path.as_path();
        let files = pki.issue(Identity::Admin, &IssueOptions::from(now())).expect("issued");
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
        };
        let refused = |path: &Path, open: u32, closed: u32| {
            set(path, open);
            let error = Pki::open(dir).err().expect("refused");
            set(path, closed);
            let PkiError::Exposed(exposed) = error else { panic!("{error}") };
            assert!(exposed.to_string().contains(&path.display().to_string()), "{exposed}");
        };
        refused(&dir.join(CA_KEY_FILE), 0o644, 0o600);
        refused(&dir.join(CA_CERTIFICATE_FILE), 0o646, 0o644);
        refused(&files.key, 0o604, 0o600);
        refused(&files.certificate, 0o666, 0o644);
        refused(dir, 0o777, 0o700);
        Pki::open(dir).expect("closed again");
    }

    #[test]
    fn a_service_certificate_names_its_issuer_identity_hosts_and_validity() {
        let (_dir, pki) = new_pki();
        let service = Identity::Service(ServiceName::Storage);
        let options = IssueOptions {
            names: vec!["storage.example".into(), "10.1.2.3".into(), "localhost".into()],
            ..IssueOptions::from(now())
        };
        let files = pki.issue(service, &options).expect("issued");
        let ca = CertificateSummary::from_pem_file(&files.ca).expect("the authority");
        let leaf = CertificateSummary::from_pem_file(&files.certificate).expect("the leaf");
        assert!(ca.is_ca && !leaf.is_ca);
        assert_eq!(leaf.issuer, ca.subject);
        assert_ne!(leaf.subject, ca.subject);
        assert_eq!(leaf.identity, Some(SpiffeId::new(TrustDomain::default(), service)));
        assert_eq!(leaf.dns_names, ["storage", "localhost", "storage.example"]);
        assert_eq!(leaf.ip_addresses.len(), 3);
        assert_eq!(leaf.not_before, Timestamp::from_millis(NOW_SECS * 1000));
        assert_eq!(leaf.not_after.since(leaf.not_before), LEAF_VALIDITY);
    }

    #[test]
    fn a_leaf_never_outlives_its_authority() {
        let (_dir, pki) = new_pki();
        let options = IssueOptions { validity: CA_VALIDITY * 2, ..IssueOptions::from(now()) };
        let issued = pki.sign(Identity::Admin, &options).expect("signed");
        let der = CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes()).expect("PEM");
        let leaf = LeafIdentity::from_der(&der).expect("an identity");
        assert_eq!(leaf.not_after.since(leaf.not_before), CA_VALIDITY);
        let late = IssueOptions::from(now() + CA_VALIDITY);
        assert!(matches!(pki.sign(Identity::Admin, &late), Err(PkiError::Ended { .. })));
    }

    #[test]
    fn an_authority_is_no_identity() {
        let (_dir, pki) = new_pki();
        let der = CertificateDer::from_pem_slice(pki.ca_pem().as_bytes()).expect("PEM");
        assert!(LeafIdentity::from_der(&der).is_err());
    }

    #[test]
    fn exactly_one_uri_name_counts() {
        let key = KeyPair::generate().expect("a key");
        let uri = |text: &str| SanType::URI(text.try_into().expect("ASCII"));
        for (uris, good) in [
            (vec![], false),
            (vec!["spiffe://mycora/admin"], true),
            (vec!["spiffe://mycora/admin", "spiffe://mycora/actor/1"], false),
            (vec!["https://example.org"], false),
        ] {
            let mut params = CertificateParams::default();
            params.subject_alt_names = uris.iter().map(|text| uri(text)).collect();
            let certificate = params.self_signed(&key).expect("signed");
            assert_eq!(LeafIdentity::from_der(certificate.der()).is_ok(), good, "{uris:?}");
        }
        assert!(LeafIdentity::from_der(b"nonsense").is_err());
    }

    #[test]
    fn a_bundle_is_read_as_a_whole() {
        let ((one, first), (_two, second)) = (new_pki(), new_pki());
        let bundle = one.path().join("bundle.pem");
        std::fs::write(&bundle, format!("{}{}", first.ca_pem(), second.ca_pem())).expect("written");
        let read = CertificateSummary::all_from_pem_file(&bundle).expect("two authorities");
        assert_eq!(
            read.iter().map(CertificateSummary::authority_of).collect::<Vec<_>>(),
            [Some(first.trust_domain().clone()), Some(second.trust_domain().clone())]
        );
        std::fs::write(&bundle, "nothing").expect("written");
        let refused = CertificateSummary::all_from_pem_file(&bundle).expect_err("none in it").to_string();
        assert!(refused.contains("there is no certificate in it"), "{refused}");
    }

    #[test]
    fn errors_name_the_file_and_the_way_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let missing = Pki::open(dir.path()).err().expect("nothing there").to_string();
        assert!(missing.contains("ca.pem") && missing.contains("mycora pki init"), "{missing}");
        let (_dir, pki) = new_pki();
        let options = IssueOptions { names: vec!["no name".into()], ..IssueOptions::from(now()) };
        let refused = pki.issue(Identity::Admin, &options).expect_err("no name").to_string();
        assert!(refused.contains("no name"), "{refused}");
    }
}
