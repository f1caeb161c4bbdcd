//! The certificates of an all-in-one: its own authority unless one is named.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use envelope::{Sealer, SigningFiles};
use identity::pki::LEAF_VALIDITY;
use identity::{CertificateSummary, Identity, IssueOptions, IssuedFiles, Pki, ServiceName, TrustDomain};
use model::Timestamp;
use mycelium_gateway::SigningSource;
use rpc::TlsFiles;

use super::UpError;
use super::directory::DataDir;
use crate::bootstrap::{ACTOR, CONTEXT};
use crate::profile::Profile;

/// Name of the key pair that signs messages to supervisors.
const SIGNING_NAME: &str = "mycelium-gateway";
/// A certificate is reissued when it has less than this left.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Where the certificates are.
#[derive(Debug)]
pub(super) struct Certificates {
    server: IssuedFiles,
    gateway: IssuedFiles,
    actor: IssuedFiles,
    admin: IssuedFiles,
    signing: SigningFiles,
}

/// Opens the authority, or makes one, and issues what is missing or about to expire. What the port shows carries the
/// names in `served_as` as well.
pub(super) fn prepare(
    dir: &DataDir,
    pki_dir: Option<&Path>,
    served_as: &[String],
) -> Result<Certificates, UpError> {
    // Always its own as well: several coordinators may have certificates of one authority.
    let own = dir.private("pki")?;
    // Children run in another directory. There is no absolute path of none, which cannot be opened either.
    let named = pki_dir.map(|dir| std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()));
    let path = named.as_deref().unwrap_or(&own);
    let now = SystemTime::now();
    let exists = path.join(identity::pki::CA_CERTIFICATE_FILE).exists();
    let pki = if exists || pki_dir.is_some() {
        Pki::open(path)?
    } else {
        Pki::init(path, &TrustDomain::default(), now)?
    };
    let issue = |identity| issue(&pki, identity, &[], now);
    let since = Timestamp::from(now);
    let signing = SigningFiles::issue(&own, SIGNING_NAME, since, since + LEAF_VALIDITY);
    Ok(Certificates {
        signing: signing.map_err(UpError::Signing)?,
        server: self::issue(&pki, Identity::Service(ServiceName::Mycora), served_as, now)?,
        gateway: issue(Identity::Service(ServiceName::MyceliumGateway))?,
        actor: issue(Identity::Actor(ACTOR))?,
        // For the operator of the suite: actors may not drain machines, nor register actors.
        admin: issue(Identity::Admin)?,
    })
}

fn issue(pki: &Pki, identity: Identity, names: &[String], now: SystemTime) -> Result<IssuedFiles, UpError> {
    let files = pki.files(identity);
    let lasts = CertificateSummary::from_pem_file(&files.certificate)
        .is_ok_and(|summary| summary.not_after > Timestamp::from(now) + RENEW_BEFORE && has(&summary, names));
    if lasts && files.key.exists() {
        return Ok(files);
    }
    Ok(pki.issue(identity, &IssueOptions { names: names.to_owned(), ..IssueOptions::from(now) })?)
}

fn has(summary: &CertificateSummary, names: &[String]) -> bool {
    names.iter().all(|name| match name.parse() {
        Ok(address) => summary.ip_addresses.contains(&address),
        Err(_) => summary.dns_names.contains(name),
    })
}

impl Certificates {
    /// Returns the certificate that the port shows.
    #[must_use]
    pub(super) fn server(&self) -> TlsFiles {
        tls_files(&self.server)
    }

    /// Returns the sealer that signs messages to supervisors.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub(super) fn sealer(&self) -> Result<Sealer, UpError> {
        self.signing.sealer().map_err(UpError::Signing)
    }

    /// The files with that. Its root may be changed while it runs.
    #[must_use]
    pub(super) fn signing(&self) -> SigningSource {
        SigningSource { files: self.signing.clone(), root_change: None }
    }

    /// Returns the certificate that supervisors elsewhere see.
    #[must_use]
    pub(super) fn gateway(&self) -> TlsFiles {
        tls_files(&self.gateway)
    }

    /// The files of what the port shows, for other programs that show it.
    #[must_use]
    pub(super) const fn server_files(&self) -> &IssuedFiles {
        &self.server
    }

    /// Returns the files of the admin, who may do what actors may not.
    #[must_use]
    pub(super) const fn admin(&self) -> &IssuedFiles {
        &self.admin
    }

    /// Returns the settings in which the profile of an admin's client differs: an admin may do what actors may not.
    #[must_use]
    pub(super) fn admin_profile(&self) -> Profile {
        let (cert, key) = (Some(self.admin.certificate.clone()), Some(self.admin.key.clone()));
        Profile { cert, key, ..Profile::default() }
    }

    /// How a client on this machine reaches this all-in-one, as actor 1.
    #[must_use]
    pub(super) fn profile(&self, address: SocketAddr) -> Profile {
        let Self { actor, .. } = self;
        Profile::local(address, &actor.ca, &actor.certificate, &actor.key, CONTEXT.0, ACTOR.0)
    }
}

fn tls_files(files: &IssuedFiles) -> TlsFiles {
    TlsFiles::new(&files.ca, &files.certificate, &files.key)
}
