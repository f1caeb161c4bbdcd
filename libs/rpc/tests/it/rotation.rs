//! Certificates and authorities that change under load.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use identity::{CertificateSummary, Identity, IssueOptions, Pki, ServiceName, TrustDomain};
use prometheus::Registry;
use rpc::{Channel, TlsFiles, server_certificate};
use tokio::task::JoinSet;

use crate::stage::{Authority, Running, SCHEDULER, who_am_i};

const CALLS_PER_SEC: u64 = 200;
const SECS: u64 = 20;
/// Every so many calls something changes.
const CALLS_PER_STEP: u64 = 80;
/// Every so many calls one is made over a new connection.
const CALLS_PER_CONNECTION: u64 = 20;

const STORAGE: Identity = Identity::Service(ServiceName::Storage);

/// A server's and a client's files in one directory, and the authorities that sign them in turn.
struct Rotation {
    dir: tempfile::TempDir,
    signer: Pki,
    signer_dir: tempfile::TempDir,
    former_ca: String,
    /// How often everything was changed.
    rounds: u64,
}

fn authority() -> (tempfile::TempDir, Pki) {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::init(dir.path(), &TrustDomain::default(), SystemTime::now()).unwrap();
    (dir, pki)
}

impl Rotation {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (signer_dir, signer) = authority();
        let former_ca = signer.ca_pem().to_owned();
        let rotation = Self { dir, signer, signer_dir, former_ca, rounds: 0 };
        rotation.put("ca.pem", rotation.signer.ca_pem());
        rotation.renew("server", STORAGE);
        rotation.renew("client", SCHEDULER);
        rotation
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn files(&self, name: &str) -> TlsFiles {
        let certificate = self.path(&format!("{name}.pem"));
        TlsFiles::new(self.path("ca.pem"), certificate, self.path(&format!("{name}.key")))
    }

    /// Replaces a file atomically, which is how a file that others read has to be replaced.
    fn put(&self, name: &str, text: &str) {
        let draft = self.path("draft");
        std::fs::write(&draft, text).unwrap();
        std::fs::set_permissions(&draft, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::rename(&draft, self.path(name)).unwrap();
    }

    fn renew(&self, name: &str, identity: Identity) {
        let issued = self.signer.sign(identity, &IssueOptions::from(SystemTime::now())).unwrap();
        self.put(&format!("{name}.key"), &issued.key_pem);
        self.put(&format!("{name}.pem"), &issued.certificate_pem);
    }

    /// A new authority signs, in the order in which every peer always has a certificate that all trust.
    fn step(&mut self, step: u64) {
        match step % 5 {
            0 => {
                self.former_ca = self.signer.ca_pem().to_owned();
                (self.signer_dir, self.signer) = authority();
                self.put("ca.pem", &format!("{}{}", self.former_ca, self.signer.ca_pem()));
            }
            // An operator writes in place, and the server reads half of it.
            1 => std::fs::write(self.path("server.pem"), "-----BEGIN CERTIFICATE-----\nMIIB").unwrap(),
            2 => self.renew("server", STORAGE),
            3 => self.renew("client", SCHEDULER),
            _ => {
                self.put("ca.pem", self.signer.ca_pem());
                self.rounds += 1;
            }
        }
    }
}

fn fingerprint(path: &Path) -> String {
    CertificateSummary::from_pem_file(path).unwrap().fingerprint
}

fn connections(registry: &Registry) -> u64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == "mycora_connections_total").unwrap();
    family.get_metric().iter().map(|metric| metric.get_counter().get_value() as u64).sum()
}

#[tokio::test]
async fn certificates_change_under_load_and_no_call_fails() {
    let mut rotation = Rotation::new();
    let (server_files, client_files) = (rotation.files("server"), rotation.files("client"));
    let server = Running::start_on("127.0.0.1:0".parse().unwrap(), &server_files).await;
    let (metrics, address) = (Registry::new(), format!("https://{}", server.address));
    server.mount.metrics().register(&metrics).unwrap();

    let kept = server.channel(&client_files);
    let (mut calls, mut opened, mut steps, mut shown) = (JoinSet::new(), 1, 0, Vec::new());
    let mut pace = tokio::time::interval(Duration::from_secs(1) / u32::try_from(CALLS_PER_SEC).unwrap());
    for call in 1..=CALLS_PER_SEC * SECS {
        pace.tick().await;
        let is_new = call % CALLS_PER_CONNECTION == 0;
        let channel: Channel = if is_new { server.channel(&client_files) } else { kept.clone() };
        opened += u64::from(is_new);
        calls.spawn(async move { who_am_i(&channel).await });
        if call % CALLS_PER_STEP == 0 {
            rotation.step(steps);
            steps += 1;
            let seen = server_certificate(&address, &client_files, None).await.unwrap().fingerprint;
            opened += 1;
            if steps % 5 != 2 {
                assert_eq!(seen, fingerprint(&rotation.path("server.pem")), "the file as it is now");
            }
            shown.push(seen);
        }
    }
    let (mut answered, all) = (0, CALLS_PER_SEC * SECS);
    while let Some(call) = calls.join_next().await {
        assert_eq!(call.unwrap().expect("no call fails"), "service/scheduler");
        answered += 1;
    }
    shown.dedup();
    assert_eq!(answered, all);
    assert_eq!(rotation.rounds, 10);
    assert_eq!(shown.len(), 11, "the first certificate and each new one");
    assert_eq!(connections(&metrics), opened, "nobody had to connect anew");
    assert!(server_files.reload_failures() >= rotation.rounds, "{}", server_files.reload_failures());
    assert_eq!(client_files.reload_failures(), 0);
}

#[tokio::test]
async fn whose_authority_went_is_not_believed_any_more() {
    let mut rotation = Rotation::new();
    let server = Running::start_on("127.0.0.1:0".parse().unwrap(), &rotation.files("server")).await;
    let client = Authority::new();
    // Both authorities are in the bundle, one after the other is taken out.
    rotation.put("ca.pem", &format!("{}{}", rotation.signer.ca_pem(), client.pki.ca_pem()));
    let issued = client.pki.issue(SCHEDULER, &IssueOptions::from(SystemTime::now())).unwrap();
    let files = TlsFiles::new(rotation.path("ca.pem"), issued.certificate, issued.key);
    who_am_i(&server.channel(&files)).await.unwrap();
    who_am_i(&server.channel(&rotation.files("client"))).await.unwrap();
    for step in [0, 2, 3, 4] {
        rotation.step(step);
    }
    who_am_i(&server.channel(&files)).await.unwrap_err();
    who_am_i(&server.channel(&rotation.files("client"))).await.unwrap();
}

#[tokio::test]
async fn ends_are_those_of_the_files() {
    let (dir, pki) = authority();
    let options =
        IssueOptions { validity: Duration::from_secs(3600), ..IssueOptions::from(SystemTime::now()) };
    let issued = pki.issue(STORAGE, &options).unwrap();
    let files = TlsFiles::new(&issued.ca, &issued.certificate, &issued.key);
    let ends = files.certificate_expiries();
    let own = CertificateSummary::from_pem_file(&issued.certificate).unwrap().not_after;
    let ca = CertificateSummary::from_pem_file(&issued.ca).unwrap().not_after;
    let expiries: Vec<_> =
        ends.iter().map(|end| (end.file.as_path(), *end.not_after.as_ref().unwrap())).collect();
    assert_eq!(expiries, [(issued.ca.as_path(), ca), (issued.certificate.as_path(), own)]);
    std::fs::write(&issued.certificate, "nothing").unwrap();
    assert!(files.certificate_expiries()[1].not_after.is_err());
    drop(dir);
}
