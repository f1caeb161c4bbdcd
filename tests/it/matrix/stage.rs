//! A suite of separate processes, the actors in it, and what they call about.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use identity::{Identity, IssueOptions, Pki, ServiceName, SigningKey, TrustDomain};
use model::ActorId;
use rpc::{Channel, TlsFiles};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Status;

use super::wire::{self, Methods};
use crate::local::Processes;
use crate::suite::write_secret;

/// The context that everything is about.
pub(crate) const CONTEXT: u32 = 1;
/// Admin of the context, whom `up.sh` makes.
pub(crate) const ADMIN: u32 = 1;
pub(crate) const EXECUTOR: u32 = 2;
pub(crate) const READER: u32 = 3;
pub(crate) const STRANGER: u32 = 4;
/// Admin of another context.
pub(crate) const ADMIN_ELSEWHERE: u32 = 5;

const HOUR: Duration = Duration::from_secs(3600);

/// A certificate with its key, made for a test.
pub(crate) struct Issued {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Our own servers are trusted with it, regardless of its signer.
    pub(crate) files: TlsFiles,
}

pub(crate) struct Stage {
    processes: Processes,
    pub(crate) methods: Methods,
    pki: Pki,
    /// Trusted by no server.
    other_pki: Pki,
    /// Where certificates are put.
    certificates: PathBuf,
    pub(crate) keys: BTreeMap<u32, SigningKey>,
    made: Mutex<u32>,
    /// By who is called, and the files.
    channels: Mutex<BTreeMap<(ServiceName, String), Channel>>,
    issued: Mutex<Vec<(Identity, TlsFiles)>>,
    // Goes last: the processes run in it.
    _dir: TempDir,
}

impl Stage {
    /// Two contexts and an actor for each role in the first.
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let suite = dir.path().join("suite");
        let processes = Processes::start(&suite, &[]);
        let pki = Pki::open(&suite.join("pki")).expect("up.sh makes one");
        let other = Pki::init(&dir.path().join("other"), &TrustDomain::default(), SystemTime::now());
        let certificates = dir.path().join("certificates");
        std::fs::create_dir(&certificates).expect("a directory");
        let mut stage = Self {
            processes,
            methods: Methods::new(),
            pki,
            other_pki: other.expect("another authority"),
            certificates,
            keys: BTreeMap::new(),
            made: Mutex::new(0),
            channels: Mutex::default(),
            issued: Mutex::default(),
            _dir: dir,
        };
        for id in [EXECUTOR, READER, STRANGER, ADMIN_ELSEWHERE] {
            let key = SigningKey::generate();
            let body = json!({"id": id, "pubkey": key.verifying_key().to_string()});
            stage.ask("ActorService/RegisterActor", body).await;
            stage.keys.insert(id, key);
        }
        let elsewhere = json!({"id": 2, "admins": [ADMIN_ELSEWHERE]});
        stage.ask("ContextService/CreateContext", elsewhere).await;
        let members =
            json!({"contextId": CONTEXT, "executors": {"ids": [EXECUTOR]}, "readers": {"ids": [READER]}});
        stage.ask("ContextService/UpdateContext", members).await;
        stage
    }

    /// Where the machine is that runs the jobs.
    pub(crate) fn supervisor_address(&self) -> String {
        format!("grpc://127.0.0.1:{}", self.processes.port_of(ServiceName::Supervisor))
    }

    /// Where the suite has its files.
    pub(crate) fn dir(&self) -> &Path {
        self.processes.dir()
    }

    pub(crate) fn port_of(&self, service: ServiceName) -> u16 {
        self.processes.port_of(service)
    }

    /// Returns the certificate authority of the servers.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.pki.ca_file()
    }

    /// Files of a certificate that was made for this test.
    fn issue(&self, pki: &Pki, identity: Identity, options: &IssueOptions) -> Issued {
        let number = {
            let mut made = self.made.lock().expect("nobody panicked");
            *made += 1;
            *made
        };
        let issued = pki.sign(identity, options).expect("signed");
        let path = |kind: &str| self.certificates.join(format!("{number}.{kind}"));
        let (certificate, key) = (path("pem"), path("key"));
        std::fs::write(&certificate, issued.certificate_pem).expect("written");
        write_secret(&key, &issued.key_pem);
        let files = TlsFiles::new(self.ca_file(), &certificate, &key);
        Issued { certificate, key, files }
    }

    /// A certificate that is in force.
    pub(crate) fn certificate(&self, identity: Identity) -> TlsFiles {
        let mut issued = self.issued.lock().expect("nobody panicked");
        if let Some((_, known)) = issued.iter().find(|(of, _)| *of == identity) {
            return known.clone();
        }
        let files = self.issue(&self.pki, identity, &IssueOptions::from(SystemTime::now())).files;
        issued.push((identity, files.clone()));
        files
    }

    pub(crate) fn actor(&self, id: u32) -> TlsFiles {
        self.certificate(Identity::Actor(ActorId(id)))
    }

    /// A certificate that ended an hour ago.
    pub(crate) fn expired(&self, identity: Identity) -> Issued {
        let options = IssueOptions { validity: HOUR, ..IssueOptions::from(SystemTime::now() - 2 * HOUR) };
        self.issue(&self.pki, identity, &options)
    }

    /// A certificate of an authority that is not ours.
    pub(crate) fn foreign(&self, identity: Identity) -> Issued {
        self.issue(&self.other_pki, identity, &IssueOptions::from(SystemTime::now()))
    }

    /// None at all.
    pub(crate) fn anonymous(&self) -> TlsFiles {
        TlsFiles::anonymous(self.pki.ca_file())
    }

    /// A channel to the host of each service of the API, one for each certificate.
    pub(crate) fn channel(&self, service: &str, tls: &TlsFiles) -> Channel {
        let host = host_of(service);
        let address = format!("https://127.0.0.1:{}", self.processes.port_of(host));
        let mut channels = self.channels.lock().expect("nobody panicked");
        let way = channels.entry((host, format!("{tls:?}")));
        way.or_insert_with(|| Channel::remote(&address, tls, None).expect("a way")).clone()
    }

    /// Calls as the bootstrap identity, which must succeed.
    pub(crate) async fn ask(&self, method: &str, body: Value) -> Value {
        self.ask_as(Identity::Admin, method, body).await
    }

    /// Calls as a caller for whom it must succeed.
    pub(crate) async fn ask_as(&self, identity: Identity, method: &str, body: Value) -> Value {
        let answer = self.try_as(identity, method, &body).await;
        answer.unwrap_or_else(|status| panic!("{method} as {identity}: {status:?}\n{body}"))
    }

    pub(crate) async fn try_as(
        &self,
        identity: Identity,
        method: &str,
        body: &Value,
    ) -> Result<Value, Status> {
        let method = self.methods.get(method);
        let channel = self.channel(method.parent_service().name(), &self.certificate(identity));
        wire::call(channel, None, &method, body).await
    }
}

/// Certificates of all kinds of callers, and none, for a suite that is no stage.
pub(crate) fn everybody(pki: &Pki, dir: &Path) -> Vec<(String, TlsFiles)> {
    let actor = Identity::Actor(ActorId(ADMIN));
    let services = ServiceName::ALL.iter().map(|name| Identity::Service(*name));
    let known = services.chain([Identity::Admin, actor]).enumerate().map(|(number, identity)| {
        let issued = pki.sign(identity, &IssueOptions::from(SystemTime::now())).expect("signed");
        let path = |kind: &str| dir.join(format!("{number}.{kind}"));
        std::fs::write(path("pem"), issued.certificate_pem).expect("written");
        write_secret(&path("key"), &issued.key_pem);
        (identity.to_string(), TlsFiles::new(pki.ca_file(), path("pem"), path("key")))
    });
    known.chain([("nobody".to_owned(), TlsFiles::anonymous(pki.ca_file()))]).collect()
}

/// Returns the server that hosts a service of the API.
pub(crate) fn host_of(service: &str) -> ServiceName {
    match service {
        "FlowService" | "ReportIntakeService" => ServiceName::Scheduler,
        "MessageService" => ServiceName::Router,
        "RunnerService" | "RegistryViewService" => ServiceName::RunnerRegistry,
        "GatewayService" | "GatewayLinkService" => ServiceName::MyceliumGateway,
        "SupervisorService" => ServiceName::Supervisor,
        // All others are about what is kept.
        _ => ServiceName::Storage,
    }
}
