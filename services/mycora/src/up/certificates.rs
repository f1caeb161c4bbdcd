//! The certificates of an all-in-one: its own authority unless one is named. They are issued at the start, and again before they end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use envelope::{Sealer, SigningFiles};
use identity::pki::LEAF_VALIDITY;
use identity::{CertificateSummary, Identity, IssueOptions, IssuedFiles, Pki, ServiceName, TrustDomain};
use model::Timestamp;
use mycelium_gateway::SigningSource;
use rpc::TlsFiles;
use tokio::time::MissedTickBehavior;

use super::directory::DataDir;
use super::{UpError, UpReporter};
use crate::bootstrap::{ACTOR, CONTEXT};
use crate::profile::Profile;

/// Name of the key pair that signs messages to supervisors.
const SIGNING_NAME: &str = "mycelium-gateway";
/// A certificate is reissued when it has less than this left.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Time from one look at what is left to the next.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);
const SERVER: Identity = Identity::Service(ServiceName::Mycora);
const GATEWAY: Identity = Identity::Service(ServiceName::MyceliumGateway);

/// Where the certificates are.
#[derive(Debug, Clone)]
pub(super) struct Certificates {
    server: IssuedFiles,
    gateway: IssuedFiles,
    actor: IssuedFiles,
    admin: IssuedFiles,
    signing: SigningFiles,
}

/// Issuer of the certificates, from an authority of its own unless one is named.
#[derive(Debug, Clone)]
pub(super) struct CertificateIssuer {
    authority: PathBuf,
    /// Where the signing files are: always in the data directory, for several coordinators may have certificates of one authority.
    own: PathBuf,
    /// Names that the port's certificate carries beside the usual ones.
    served_as: Vec<String>,
}

impl CertificateIssuer {
    /// Names the authority, and makes one where none is named or there.
    pub(super) fn open(
        dir: &DataDir,
        pki_dir: Option<&Path>,
        served_as: Vec<String>,
    ) -> Result<Self, UpError> {
        let own = dir.private("pki")?;
        // Children run in another directory. There is no absolute path of none, which cannot be opened either.
        let named = pki_dir.map(|dir| std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()));
        let authority = named.unwrap_or_else(|| own.clone());
        if pki_dir.is_none() && !authority.join(identity::pki::CA_CERTIFICATE_FILE).exists() {
            Pki::init(&authority, &TrustDomain::default(), SystemTime::now())?;
        }
        Ok(Self { authority, own, served_as })
    }

    /// Issues what is missing or about to end, and the certificate of the signing key in any case: the root may have changed.
    pub(super) fn issue(&self, now: SystemTime) -> Result<Certificates, UpError> {
        let pki = Pki::open(&self.authority)?;
        let issue = |identity| {
            let (files, names) = (pki.files(identity), self.names_of(identity));
            if lasts(&files, names, now) { Ok(files) } else { issue(&pki, identity, names, now) }
        };
        Ok(Certificates {
            signing: self.issue_signing(now)?,
            server: issue(SERVER)?,
            gateway: issue(GATEWAY)?,
            actor: issue(Identity::Actor(ACTOR))?,
            // For the operator of the suite: actors may not drain machines, nor register actors.
            admin: issue(Identity::Admin)?,
        })
    }

    /// Names that a certificate carries beside the usual ones.
    fn names_of(&self, identity: Identity) -> &[String] {
        if identity == SERVER { &self.served_as } else { &[] }
    }

    /// Issues again what is about to end. Returns true if there was something; processes read changed files by themselves.
    fn renew(&self, certificates: &Certificates, now: SystemTime) -> Result<bool, UpError> {
        // One does not wait for the other: they need different keys.
        let (signing, tls) = (self.renew_signing(certificates, now), self.renew_tls(certificates, now));
        Ok(signing? | tls?)
    }

    fn renew_signing(&self, certificates: &Certificates, now: SystemTime) -> Result<bool, UpError> {
        let end = certificates.signing().certificate_end();
        if end.is_ok_and(|end| end > Timestamp::from(now) + RENEW_BEFORE) {
            return Ok(false);
        }
        self.issue_signing(now).map(|_| true)
    }

    fn renew_tls(&self, certificates: &Certificates, now: SystemTime) -> Result<bool, UpError> {
        let Certificates { server, gateway, actor, admin, signing: _ } = certificates;
        let all =
            [(SERVER, server), (GATEWAY, gateway), (Identity::Actor(ACTOR), actor), (Identity::Admin, admin)];
        let mut due: Vec<_> = all
            .into_iter()
            .filter(|(identity, files)| !lasts(files, self.names_of(*identity), now))
            .collect();
        // A certificate ends with its authority at the latest: one that does so already would not last longer.
        if let Ok(authority) = CertificateSummary::from_pem_file(&server.ca) {
            due.retain(|(_, files)| end_of(files).is_none_or(|end| end < authority.not_after));
        }
        if due.is_empty() {
            return Ok(false);
        }
        let pki = Pki::open(&self.authority)?;
        for (identity, _) in due {
            issue(&pki, identity, self.names_of(identity), now)?;
        }
        Ok(true)
    }

    fn issue_signing(&self, now: SystemTime) -> Result<SigningFiles, UpError> {
        let since = Timestamp::from(now);
        SigningFiles::issue(&self.own, SIGNING_NAME, since, since + LEAF_VALIDITY).map_err(UpError::Signing)
    }

    /// Renews these certificates for as long as it is polled, and calls `renewed` after each time. Time is that of `clock`.
    pub(super) async fn keep(
        self,
        certificates: Certificates,
        clock: impl Fn() -> SystemTime,
        notice: UpReporter,
        mut renewed: impl FnMut(),
    ) -> Infallible {
        let work = Arc::new((self, certificates));
        // By the clock of the machine, which can be set and goes on while the machine sleeps: no single timer meets the moment.
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let (work, now) = (Arc::clone(&work), clock());
            match tokio::task::spawn_blocking(move || work.0.renew(&work.1, now)).await {
                Ok(Ok(true)) => {
                    tracing::info!("certificates that were about to end were renewed");
                    renewed();
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    let why = service::error_chain(&error);
                    tracing::error!("certificates cannot be renewed: {why}");
                    notice.print(&format!(
                        "certificates cannot be renewed: {why}; mend that before they end, it is tried again every hour"
                    ));
                }
                Err(error) => tracing::error!("the renewal of certificates ended: {error}"),
            }
        }
    }
}

/// Issues files of an identity.
fn issue(pki: &Pki, identity: Identity, names: &[String], now: SystemTime) -> Result<IssuedFiles, UpError> {
    Ok(pki.issue(identity, &IssueOptions { names: names.to_owned(), ..IssueOptions::from(now) })?)
}

/// Returns true for files that are there, carry these names and need no renewal yet.
fn lasts(files: &IssuedFiles, names: &[String], now: SystemTime) -> bool {
    let summary = CertificateSummary::from_pem_file(&files.certificate);
    let is_good = |summary: CertificateSummary| {
        summary.not_after > Timestamp::from(now) + RENEW_BEFORE && has(&summary, names)
    };
    files.key.exists() && summary.is_ok_and(is_good)
}

/// When the certificate ends; nothing when it cannot be read.
fn end_of(files: &IssuedFiles) -> Option<Timestamp> {
    CertificateSummary::from_pem_file(&files.certificate).ok().map(|summary| summary.not_after)
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn ends(certificates: &Certificates) -> Vec<Timestamp> {
        let Certificates { server, gateway, actor, admin, signing: _ } = certificates;
        let ends = [server, gateway, actor, admin].map(|files| end_of(files).expect("a certificate"));
        let signing = certificates.signing().certificate_end().expect("a certificate");
        ends.into_iter().chain([signing]).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn certificates_are_renewed_before_they_end_for_as_long_as_it_runs() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = DataDir::open(&place.path().join("data")).expect("a data directory");
        let names = vec!["mycora.example".to_owned()];
        let issuer = CertificateIssuer::open(&dir, None, names.clone()).expect("an authority");
        let begin = SystemTime::now();
        let certificates = issuer.issue(begin).expect("issued");
        let first = ends(&certificates);
        let (sender, mut renewals) = mpsc::unbounded_channel();
        let started = Instant::now();
        let clock = move || begin + started.elapsed();
        let renewed = move || sender.send(started.elapsed()).expect("the test waits");
        let renewal =
            tokio::spawn(issuer.keep(certificates.clone(), clock, UpReporter { quiet: true }, renewed));
        let mut before = first;
        for round in 1..=3 {
            let after = renewals.recv().await.expect("it goes on");
            let due = round * (LEAF_VALIDITY - RENEW_BEFORE);
            assert!(after >= due - DAY && after <= due + DAY, "round {round}: after {after:?}, due {due:?}");
            let now = ends(&certificates);
            for (before, now) in before.iter().zip(&now) {
                assert!(*now > *before + (LEAF_VALIDITY - RENEW_BEFORE - 2 * DAY), "{before:?} {now:?}");
            }
            before = now;
        }
        let server = CertificateSummary::from_pem_file(&certificates.server.certificate).expect("there");
        assert!(has(&server, &names), "it still has its names");
        renewal.abort();
    }

    #[test]
    fn without_the_key_of_the_authority_a_renewal_names_it_once_it_is_due() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = DataDir::open(&place.path().join("data")).expect("a data directory");
        let issuer = CertificateIssuer::open(&dir, None, Vec::new()).expect("an authority");
        let now = SystemTime::now();
        let certificates = issuer.issue(now).expect("issued");
        std::fs::remove_file(issuer.authority.join(identity::pki::CA_KEY_FILE)).expect("it is there");
        assert!(!issuer.renew(&certificates, now + 59 * DAY).expect("nothing is due"));
        let error = issuer.renew(&certificates, now + 61 * DAY).expect_err("there is no key");
        assert!(service::error_chain(&error).contains("ca.key"), "{error:?}");
        // The signing key needs no authority, and jobs run on.
        let end = certificates.signing().certificate_end().expect("a certificate");
        assert!(end > Timestamp::from(now) + 150 * DAY, "{end:?}");
    }

    #[test]
    fn certificates_that_end_with_their_authority_are_not_issued_again() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = DataDir::open(&place.path().join("data")).expect("a data directory");
        let issuer = CertificateIssuer::open(&dir, None, Vec::new()).expect("an authority");
        let late = SystemTime::now() + identity::pki::CA_VALIDITY - 20 * DAY;
        let certificates = issuer.issue(late).expect("issued");
        assert!(!issuer.renew(&certificates, late + DAY).expect("nothing is due"));
    }
}
