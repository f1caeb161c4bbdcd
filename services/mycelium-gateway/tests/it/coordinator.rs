//! A gateway of a coordinator of its own: with its own root key, its own authority for TLS, and a storage that takes letters.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use envelope::{GatewayCertificate, Sealer};
use identity::{Identity, IssueOptions, Pki, ServiceName, SigningKey, TrustDomain};
use model::address_rules::AddressRules;
use model::{DirectMessage, Timestamp};
use mycelium::Bus;
use mycelium_gateway::mail_policy::{MailPolicy, StrangerMailPolicy};
use mycelium_gateway::{Config, Deps, dial};
use proto::internal::v1 as wire;
use proto::internal::v1::message_box_service_server::{MessageBoxService, MessageBoxServiceServer};
use proto::internal::v1::registry_view_service_server::RegistryViewServiceServer;
use proto::v1;
use rpc::{Channel, LocalServer, MethodPolicy, Mount, Server, TlsFiles};
use tokio::net::TcpListener;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::suite::{FakeRegistry, GATEWAY, Router, publish};

/// Certificate authority of a coordinator, for peers that write to it over gRPC.
pub(crate) struct Authority {
    dir: tempfile::TempDir,
    pki: Pki,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let pki = Pki::init(dir.path(), &TrustDomain::default(), SystemTime::now()).expect("an authority");
        Self { dir, pki }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.pki.ca_file()
    }

    fn gateway(&self) -> TlsFiles {
        let issued = self
            .pki
            .issue(Identity::Service(ServiceName::MyceliumGateway), &IssueOptions::from(SystemTime::now()))
            .expect("a certificate");
        assert!(self.dir.path().exists());
        TlsFiles::new(self.pki.ca_file(), issued.certificate, issued.key)
    }
}

/// How one is started.
#[derive(Default)]
pub(crate) struct CoordinatorOptions {
    pub(crate) bus: Option<Arc<dyn Bus>>,
    /// Authority whose certificates are accepted over gRPC.
    pub(crate) others: Option<PathBuf>,
    pub(crate) secrets_dir: Option<PathBuf>,
    pub(crate) runner: v1::Runner,
    /// Records of other contexts.
    pub(crate) also: Vec<(u32, v1::Runner)>,
    /// Which addresses it dials; nothing for those of this machine as well.
    pub(crate) addresses: Option<AddressRules>,
    /// Policy on incoming mail; absent: anyone's is taken.
    pub(crate) mail: Option<MailPolicy>,
}

pub(crate) struct Coordinator {
    pub(crate) root: SigningKey,
    pub(crate) key: SigningKey,
    pub(crate) inbox: FakeBox,
    pub(crate) registry: FakeRegistry,
    /// Where its gateway answers to everybody.
    pub(crate) address: SocketAddr,
    pub(crate) authority: Authority,
    gateway: LocalServer,
    shutdown: CancellationToken,
    _servers: [LocalServer; 2],
}

impl Coordinator {
    pub(crate) async fn start(with: CoordinatorOptions) -> Self {
        let CoordinatorOptions { bus, others, secrets_dir, runner, also, addresses, mail } = with;
        let mail = mail.unwrap_or(MailPolicy { listed: Vec::new(), strangers: StrangerMailPolicy::Any });
        let authority = Authority::new();
        let inbox = FakeBox::default();
        let storage = {
            let policy = [("/mycora.internal.v1.MessageBoxService/*", GATEWAY)];
            let policy = MethodPolicy::new(&[&policy]).expect("well-formed");
            publish("storage", Mount::builder(policy).service(MessageBoxServiceServer::new(inbox.clone())))
        };
        let registry = FakeRegistry::with(runner);
        also.into_iter().for_each(|(context, runner)| registry.add(context, runner));
        let registry_server = {
            let policy = [("/mycora.internal.v1.RegistryViewService/*", GATEWAY)];
            let policy = MethodPolicy::new(&[&policy]).expect("well-formed");
            let service = RegistryViewServiceServer::new(registry.clone());
            publish("registry", Mount::builder(policy).service(service))
        };
        let (root, key) = (SigningKey::generate(), SigningKey::generate());
        let now = Timestamp::now();
        let until = Timestamp::from_millis(now.as_millis() + 3_600_000);
        let certificate = GatewayCertificate::issue(&root, key.verifying_key(), now, until);
        let us = Identity::Service(ServiceName::MyceliumGateway);
        let tls = authority.gateway();
        let local = || AddressRules::new(vec!["127.0.0.1".parse().expect("a rule")]);
        let rules = addresses.unwrap_or_else(local);
        let others = others.map_or_else(|| tls.without_certificate(), TlsFiles::anonymous);
        let deps = Deps {
            storage: Channel::local(storage.handle(), us),
            registry: Channel::local(registry_server.handle(), us),
            bus,
            dial: dial(tls.clone(), rules.clone()),
            dial_others: dial(others, rules),
            sealer: Sealer::certified(key.clone(), &certificate).expect("its own"),
            metrics: &prometheus::Registry::new(),
        };
        let shutdown = CancellationToken::new();
        let app = Config { secrets_dir, mail, ..Config::default() }.build(deps).expect("built");
        let mount = || Mount::builder(mycelium_gateway::rpc::policy());
        let gateway = publish("mycelium-gateway", app.mount_internal(app.mount_public(mount())));
        let policy = MethodPolicy::new(&[mycelium_gateway::PUBLIC_POLICY]).expect("well-formed");
        let public = app.mount_public(Mount::builder(policy)).build().expect("covered");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let server = Server::new(public, &tls).expect("certificates");
        tokio::spawn(server.serve(listener, shutdown.clone().cancelled_owned()));
        tokio::spawn(app.run(shutdown.clone()));
        let servers = [storage, registry_server];
        Self { root, key, inbox, registry, address, authority, gateway, shutdown, _servers: servers }
    }

    pub(crate) fn root_text(&self) -> String {
        self.root.verifying_key().to_string()
    }

    /// Returns the coordinator's address for others.
    pub(crate) fn grpc(&self) -> String {
        format!("grpc://{}", self.address)
    }

    pub(crate) fn channel(&self, identity: Identity) -> Channel {
        Channel::local(self.gateway.handle(), identity)
    }

    /// Opens a channel without a certificate.
    pub(crate) fn anybody(&self) -> Channel {
        let files = TlsFiles::anonymous(self.authority.ca());
        Channel::remote(&self.address.to_string(), &files, None).expect("an address")
    }

    pub(crate) async fn router(&self) -> Router {
        Router::over(self.channel(Identity::Service(ServiceName::Router)), "").await
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Takes letters, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeBox(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    messages: Vec<(DirectMessage, bool)>,
    /// For each accepted letter: true when another coordinator has brought it.
    foreign: Vec<bool>,
    duplicates: usize,
    refusal: Option<(&'static str, bool)>,
    failure: Option<Status>,
}

impl FakeBox {
    /// Returns the accepted letters, with whether each signature was checked, and the number of duplicates.
    pub(crate) fn taken(&self) -> (Vec<(DirectMessage, bool)>, usize) {
        let taken = self.0.lock().expect("not poisoned");
        (taken.messages.clone(), taken.duplicates)
    }

    /// Returns, for each accepted letter, whether another coordinator has brought it.
    pub(crate) fn foreign(&self) -> Vec<bool> {
        self.0.lock().expect("not poisoned").foreign.clone()
    }

    /// Refuses everything from now on.
    pub(crate) fn refuse(&self, reason: &'static str, lasting: bool) {
        self.0.lock().expect("not poisoned").refusal = Some((reason, lasting));
    }

    /// Fails at everything from now on.
    pub(crate) fn fail(&self, status: Status) {
        self.0.lock().expect("not poisoned").failure = Some(status);
    }
}

#[tonic::async_trait]
impl MessageBoxService for FakeBox {
    type WatchInboxStream = UnboundedReceiverStream<Result<wire::WatchInboxResponse, Status>>;

    async fn accept_letter(
        &self,
        request: Request<wire::AcceptLetterRequest>,
    ) -> Result<Response<wire::AcceptLetterResponse>, Status> {
        let wire::AcceptLetterRequest { letter_json, verified, foreign } = request.into_inner();
        let message: DirectMessage = serde_json::from_slice(&letter_json).expect("a letter");
        let mut taken = self.0.lock().expect("not poisoned");
        if let Some(status) = &taken.failure {
            return Err(status.clone());
        }
        if let Some((reason, lasting)) = taken.refusal {
            return Ok(Response::new(wire::AcceptLetterResponse {
                refusal: "not here ".repeat(2_000),
                reason: reason.into(),
                lasting,
                ..Default::default()
            }));
        }
        let duplicate = taken.messages.iter().any(|(known, _)| known.origin == message.origin);
        if duplicate {
            taken.duplicates += 1;
        } else {
            taken.messages.push((message, verified));
            taken.foreign.push(foreign);
        }
        let message_key = format!("message:0:{}", taken.messages.len());
        Ok(Response::new(wire::AcceptLetterResponse { message_key, duplicate, ..Default::default() }))
    }

    async fn publish(
        &self,
        _: Request<wire::PublishRequest>,
    ) -> Result<Response<wire::PublishResponse>, Status> {
        Err(unasked())
    }

    async fn find_message(
        &self,
        _: Request<wire::FindMessageRequest>,
    ) -> Result<Response<wire::FindMessageResponse>, Status> {
        Err(unasked())
    }

    async fn find_messages(
        &self,
        _: Request<wire::FindMessagesRequest>,
    ) -> Result<Response<wire::FindMessagesResponse>, Status> {
        Err(unasked())
    }

    async fn find_dead_letters(
        &self,
        _: Request<wire::FindDeadLettersRequest>,
    ) -> Result<Response<wire::FindDeadLettersResponse>, Status> {
        Err(unasked())
    }

    async fn remove_message(
        &self,
        _: Request<wire::RemoveMessageRequest>,
    ) -> Result<Response<wire::RemoveMessageResponse>, Status> {
        Err(unasked())
    }

    async fn watch_inbox(
        &self,
        _: Request<wire::WatchInboxRequest>,
    ) -> Result<Response<Self::WatchInboxStream>, Status> {
        Err(unasked())
    }

    async fn acknowledge(
        &self,
        _: Request<wire::AcknowledgeRequest>,
    ) -> Result<Response<wire::AcknowledgeResponse>, Status> {
        Err(unasked())
    }

    async fn resend(
        &self,
        _: Request<wire::ResendRequest>,
    ) -> Result<Response<wire::ResendResponse>, Status> {
        Err(unasked())
    }
}

fn unasked() -> Status {
    Status::unimplemented("a gateway does not ask that")
}
