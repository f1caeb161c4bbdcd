//! A coordinator that follows a script, over real mTLS: what the command line
//! makes of lost answers, broken streams and waiting jobs.

mod actors;
mod flows;
mod messages;
mod places;
pub(crate) mod sagas;
pub(crate) mod storage;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use identity::{Identity, IssueOptions, Pki, ServiceName, SigningKey, TrustDomain};
use mycora_cli::profile::Profile;
use proto::v1::actor_service_server::ActorServiceServer;
use proto::v1::context_service_server::ContextServiceServer;
use proto::v1::flow_service_server::FlowServiceServer;
use proto::v1::gateway_service_server::GatewayServiceServer;
use proto::v1::job_service_server::JobServiceServer;
use proto::v1::message_service_server::MessageServiceServer;
use proto::v1::runner_service_server::RunnerServiceServer;
use proto::v1::saga_service_server::SagaServiceServer;
use rpc::{Allow, MethodPolicy, Mount, Server, TlsFiles};
use tokio_stream::Stream;
use tonic::Status;

/// The key of actor 1, beside the profile.
pub(crate) const ACTOR_KEY: &str = "actor-1.ed25519";

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How the script continues after the first changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CoordinatorScript {
    /// The stream breaks once, and the flow finishes when it is resumed.
    BreakAndFinish,
    /// The job waits for a runner for ever.
    Wait,
    /// The second part of a large flow is refused.
    RefusePart,
    /// Uploaded data is gone, until it is uploaded again.
    ForgetUploads,
    /// The saga service has no tenants.
    NoTenants,
}

/// Requests that the coordinator received.
#[derive(Debug, Default)]
pub(crate) struct RecordedCalls {
    pub(crate) request_ids: Vec<String>,
    pub(crate) resumed_from: Vec<String>,
    pub(crate) uploaded: Vec<Vec<u8>>,
    /// The signatures of jobs that it was given last, by the names of their nodes.
    pub(crate) signatures: std::collections::BTreeMap<String, String>,
    /// Messages that it was asked to send.
    pub(crate) sent: Vec<proto::v1::SendMessageRequest>,
    /// Other calls in a few words, in their order.
    pub(crate) calls: Vec<String>,
}

#[derive(Clone)]
struct ScriptedServices {
    script: CoordinatorScript,
    recorded: Arc<Mutex<RecordedCalls>>,
}

/// A coordinator that serves until the runtime ends.
pub(crate) struct Coordinator {
    pub(crate) profile: PathBuf,
    recorded: Arc<Mutex<RecordedCalls>>,
    _runtime: tokio::runtime::Runtime,
}

impl Coordinator {
    pub(crate) fn start(dir: &Path, script: CoordinatorScript) -> Self {
        let now = SystemTime::now();
        let pki = Pki::init(&dir.join("pki"), &TrustDomain::default(), now).expect("an authority");
        let issue = |who| pki.issue(who, &IssueOptions::from(now)).expect("issued");
        let server = issue(Identity::Service(ServiceName::Mycora));
        let actor = issue(Identity::Actor(model::ActorId(1)));
        let recorded = Arc::new(Mutex::new(RecordedCalls::default()));
        let scripted = ScriptedServices { script, recorded: recorded.clone() };
        let policy = MethodPolicy::new(&[&[
            ("/mycora.v1.FlowService/*", &[Allow::AnyActor]),
            ("/mycora.v1.JobService/*", &[Allow::AnyActor]),
            ("/mycora.v1.ContextService/*", &[Allow::AnyActor]),
            ("/mycora.v1.ActorService/*", &[Allow::AnyActor]),
            ("/mycora.v1.GatewayService/*", &[Allow::AnyActor]),
            ("/mycora.v1.MessageService/*", &[Allow::AnyActor]),
            ("/mycora.v1.SagaService/*", &[Allow::AnyActor]),
            // Listing them is what this actor may not.
            ("/mycora.v1.RunnerService/GetRunner", &[Allow::AnyActor]),
            ("/mycora.v1.RunnerService/RegisterRunner", &[Allow::AnyActor]),
            ("/mycora.v1.RunnerService/UpdateRunner", &[Allow::AnyActor]),
            ("/mycora.v1.RunnerService/DrainRunner", &[Allow::AnyActor]),
            ("/mycora.v1.RunnerService/DeleteRunner", &[Allow::AnyActor]),
            ("/mycora.v1.RunnerService/WatchRunners", &[Allow::AnyActor]),
        ]])
        .expect("a policy");
        let policy = policy.with_administrative(&["/mycora.v1.ActorService/UpdateActor"]).expect("methods");
        let key = SigningKey::load_or_make(&dir.join(ACTOR_KEY)).expect("a key").verifying_key();
        let mount = Mount::builder(policy)
            .directory(Arc::new(actors::KnownActors::new(key)))
            .service(FlowServiceServer::new(scripted.clone()))
            .service(JobServiceServer::new(scripted.clone()))
            .service(ContextServiceServer::new(scripted.clone()))
            .service(ActorServiceServer::new(scripted.clone()))
            .service(GatewayServiceServer::new(scripted.clone()))
            .service(MessageServiceServer::new(scripted.clone()))
            .service(SagaServiceServer::new(scripted.clone()))
            .service(RunnerServiceServer::new(scripted))
            .build()
            .expect("a mount");
        let mount_health = mount.health().clone();
        let tls = TlsFiles::new(&server.ca, &server.certificate, &server.key);
        let server = Server::new(mount, &tls).expect("a server");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = runtime.block_on(tokio::net::TcpListener::bind(any_port)).expect("a port");
        let served = listener.local_addr().expect("an address");
        runtime.spawn(server.serve(listener, std::future::pending()));
        let profile = dir.join("client.toml");
        Profile::local(served, &actor.ca, &actor.certificate, &actor.key, 1, 1)
            .save(&profile)
            .expect("saved");
        mount_health.set_serving(true);
        Self { profile, recorded, _runtime: runtime }
    }

    pub(crate) fn recorded<T>(&self, look: impl FnOnce(&RecordedCalls) -> T) -> T {
        look(&self.recorded.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ScriptedServices {
    fn note<T>(&self, change: impl FnOnce(&mut RecordedCalls) -> T) -> T {
        change(&mut self.recorded.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Refuses what refers to uploads that have gone.
    fn look_for_uploads(&self) -> Result<(), Status> {
        let uploads = self.note(|recorded| recorded.uploaded.len());
        if self.script == CoordinatorScript::ForgetUploads && uploads < 2 {
            return Err(refused(rpc::RpcReason::BlobMissing, "the blob is missing: put it first"));
        }
        Ok(())
    }

    /// Notes a call; gives how often it came with these words.
    fn call(&self, text: &str) -> usize {
        self.note(|recorded| {
            recorded.calls.push(text.to_owned());
            recorded.calls.iter().filter(|call| *call == text).count()
        })
    }
}

fn refused(reason: rpc::RpcReason, message: &str) -> Status {
    rpc::Error::new(rpc::ErrorKind::FailedPrecondition, reason, message).into()
}

fn answers<T: Send + 'static>(
    items: impl IntoIterator<Item = Result<T, Status>, IntoIter: Send + 'static>,
) -> Answers<T> {
    Box::pin(tokio_stream::iter(items))
}
