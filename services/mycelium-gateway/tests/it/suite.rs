//! A gateway with everything around it: a supervisor on a Redis of its own, and a storage, a registry
//! and a router that speak the real protocols.

use std::collections::HashMap;
use std::future::pending;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use envelope::SigningFiles;
use identity::{Identity, ServiceName};
use keys::InstanceRef;
use kv::Kv;
use model::id::Uid;
use model::job::BlobRef;
use model::limits::BLOB_CHUNK_BYTES;
use model::{
    ActorId, Attempt, BlobHash, ContextId, ContextUid, Execution, FlowId, FlowUid, JobId, JobKey, NodeReport,
    Presence, ReportSource, ScriptSource, ScriptType, Timestamp,
};
use mycelium::{Bus, MemoryNetwork, PublicKey};
use mycelium_gateway::{Config, Deps, Dial, SigningSource};
use proto::internal::v1 as wire;
use proto::internal::v1::blob_store_service_server::{BlobStoreService, BlobStoreServiceServer};
use proto::internal::v1::exchange_request::Frame;
use proto::internal::v1::exchange_response::Frame as Answer;
use proto::internal::v1::gateway_link_service_client::GatewayLinkServiceClient;
use proto::internal::v1::registry_view_service_server::{RegistryViewService, RegistryViewServiceServer};
use proto::v1;
use queue::{ClaimedJob, InstanceDescriptor, InstanceSession, JobConsumer};
use rpc::{Allow, Channel, Error, LocalServer, MethodPolicy, Mount};
use testkit::RedisServer;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

pub(crate) const GATEWAY: &[Allow] = &[Allow::Service(ServiceName::MyceliumGateway)];

/// How the gateway and the supervisor speak.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Front {
    Stream,
    Bus,
}

pub(crate) struct Suite {
    pub(crate) redis: RedisServer,
    pub(crate) kv: Kv,
    pub(crate) work_dir: tempfile::TempDir,
    pub(crate) storage: FakeStorage,
    pub(crate) registry: FakeRegistry,
    pub(crate) address: String,
    /// The coordinator's root key.
    pub(crate) coordinator: String,
    /// Where the root is, and what the gateway signs with.
    pub(crate) pki: tempfile::TempDir,
    /// Metrics of the gateway.
    pub(crate) metrics: prometheus::Registry,
    gateway: LocalServer,
    shutdown: CancellationToken,
    _servers: [LocalServer; 3],
}

impl Suite {
    /// Starts everything; returns when the gateway has an instance's presence.
    pub(crate) async fn start(front: Front) -> (Self, Worker) {
        let redis = RedisServer::start();
        let kv = Kv::new(redis.url().parse().expect("the url of a test server"));
        let work_dir = tempfile::tempdir().expect("a directory");
        let network = MemoryNetwork::default();
        let shutdown = CancellationToken::new();

        let supervisor_key = PublicKey::random();
        let (address, supervisor_bus): (_, Option<Arc<dyn Bus>>) = match front {
            Front::Stream => ("grpc://host-a:7706".to_owned(), None),
            Front::Bus => {
                (format!("mycelium:{supervisor_key}"), Some(Arc::new(network.node(supervisor_key))))
            }
        };
        let deps =
            supervisor::Deps { kv: kv.clone(), bus: supervisor_bus, metrics: &prometheus::Registry::new() };
        let app = supervisor::Config::new(work_dir.path().to_owned()).build(deps).expect("built");
        let policy = MethodPolicy::new(&[supervisor::rpc::PUBLIC_POLICY]).expect("well-formed");
        let supervisor = publish("supervisor", app.mount_public(Mount::builder(policy)));
        tokio::spawn(app.run(shutdown.clone()));
        let worker = Worker::join(&kv).await;

        let storage = FakeStorage::default();
        let storage_server = {
            let policy = [("/mycora.internal.v1.BlobStoreService/*", GATEWAY)];
            let policy = MethodPolicy::new(&[&policy]).expect("well-formed");
            publish("storage", Mount::builder(policy).service(BlobStoreServiceServer::new(storage.clone())))
        };
        let registry = FakeRegistry::new(&address);
        let registry_server = {
            let policy = [("/mycora.internal.v1.RegistryViewService/*", GATEWAY)];
            let policy = MethodPolicy::new(&[&policy]).expect("well-formed");
            publish(
                "registry",
                Mount::builder(policy).service(RegistryViewServiceServer::new(registry.clone())),
            )
        };

        let pki = tempfile::tempdir().expect("a directory");
        let source = SigningSource { files: issue(pki.path()), root_change: None };
        let (sealer, _) = source.read().expect("issued just now");
        let (coordinator, metrics) = (sealer.root().to_string(), prometheus::Registry::new());
        let us = Identity::Service(ServiceName::MyceliumGateway);
        let to_supervisor = supervisor.handle();
        let dial: Dial = Arc::new(move |_, _| Ok(Channel::local(to_supervisor.clone(), us)));
        let deps = Deps {
            storage: Channel::local(storage_server.handle(), us),
            registry: Channel::local(registry_server.handle(), us),
            bus: Some(Arc::new(network.node(PublicKey::random()))),
            dial_others: Arc::clone(&dial),
            dial,
            sealer,
            metrics: &metrics,
        };
        let app = Config { signing: Some(source), ..Config::default() }.build(deps).expect("built");
        let mount = Mount::builder(mycelium_gateway::rpc::policy());
        let gateway = publish("mycelium-gateway", app.mount_internal(app.mount_public(mount)));
        tokio::spawn(app.run(shutdown.clone()));
        let servers = [supervisor, storage_server, registry_server];
        let suite = Self {
            redis,
            kv,
            work_dir,
            storage,
            registry,
            address,
            coordinator,
            pki,
            metrics,
            gateway,
            shutdown,
            _servers: servers,
        };
        suite.registry.wait_for_an_instance().await;
        (suite, worker)
    }

    pub(crate) fn channel(&self, identity: Identity) -> Channel {
        Channel::local(self.gateway.handle(), identity)
    }

    pub(crate) async fn router(&self) -> Router {
        Router::over(self.channel(Identity::Service(ServiceName::Router)), &self.address).await
    }

    pub(crate) fn deliver(&self, delivery_id: u64, executions: &[Execution]) -> Frame {
        Frame::Deliver(wire::Deliver {
            delivery_id,
            address: self.address.clone(),
            topic: "supervisor.rpc".into(),
            context_id: 1,
            context_uid: key(1).context.to_string(),
            nodes: executions.iter().map(|job| serde_json::to_vec(job).expect("JSON").into()).collect(),
            timeout_millis: 30_000,
        })
    }

    pub(crate) fn query(&self, jobs: &[JobKey]) -> Frame {
        Frame::Query(wire::QueryAttempts {
            address: self.address.clone(),
            topic: "supervisor.rpc".into(),
            context_id: 1,
            flow_id: 7,
            job_keys: jobs.iter().map(ToString::to_string).collect(),
        })
    }

    pub(crate) fn read_log(&self, read_id: u64, job: JobKey, offset: u64, limit: u32) -> Frame {
        Frame::ReadLog(wire::ReadAttemptLog {
            read_id,
            address: self.address.clone(),
            topic: "supervisor.rpc".into(),
            job_key: job.to_string(),
            offset,
            limit,
            context_id: 1,
        })
    }

    pub(crate) fn drop_context(&self, drop_id: u64) -> Frame {
        Frame::Drop(wire::DropContext {
            drop_id,
            address: self.address.clone(),
            topic: "supervisor.rpc".into(),
            context_uid: key(1).context.to_string(),
            context_id: 1,
        })
    }

    pub(crate) fn forget(&self, jobs: &[JobKey]) -> Frame {
        Frame::Forget(wire::ForgetAttempts {
            address: self.address.clone(),
            topic: "supervisor.rpc".into(),
            context_id: 1,
            job_keys: jobs.iter().map(ToString::to_string).collect(),
        })
    }

    pub(crate) fn stop(&self, job: JobKey) -> Frame {
        Frame::Stop(wire::StopAttempt {
            address: self.address.clone(),
            topic: "supervisor.rpc".into(),
            job_key: job.to_string(),
            grace_secs: 1,
            context_id: 1,
            flow_id: 7,
        })
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Has the root in a directory vouch for the gateway's key.
pub(crate) fn issue(dir: &Path) -> SigningFiles {
    let now = Timestamp::now();
    SigningFiles::issue(dir, "gateway", now, now + Duration::from_secs(3600)).expect("issued")
}

pub(crate) fn publish(name: &'static str, mount: rpc::MountBuilder) -> LocalServer {
    let server = LocalServer::new(name);
    server.publish(&mount.build().expect("covered"));
    server
}

/// A router that does what it is told.
pub(crate) struct Router {
    sender: mpsc::Sender<wire::ExchangeRequest>,
    answers: mpsc::UnboundedReceiver<Result<Option<wire::ExchangeResponse>, Status>>,
    unread: Vec<Received>,
    address: String,
    /// Reads all the time, as routers do: what the gateway does for one is done where its answers are read.
    _reading: JoinSet<()>,
}

/// Item that the gateway sends to a router.
#[derive(Debug)]
pub(crate) enum Received {
    Outcome(wire::DeliveryOutcome),
    Report(u64, Box<NodeReport>),
    Log(wire::NumberedLog),
    Dropped(wire::DropOutcome),
    LogRead(wire::LogOutcome),
}

impl Received {
    pub(crate) fn is_end_of(&self, job: JobKey) -> bool {
        matches!(self, Self::Report(_, report)
            if report.job_key == job && matches!(report.kind, model::ReportKind::Ended(_)))
    }
}

impl Router {
    /// Connects to a gateway, whose reports are of the supervisor at this address.
    pub(crate) async fn over(channel: Channel, address: &str) -> Self {
        let (sender, outgoing) = mpsc::channel(16);
        let answers = GatewayLinkServiceClient::new(channel).exchange(ReceiverStream::new(outgoing)).await;
        let mut stream = answers.expect("allowed").into_inner();
        let (read, answers) = mpsc::unbounded_channel();
        let mut reading = JoinSet::new();
        reading.spawn(async move {
            loop {
                let answer = stream.message().await;
                let is_last = !matches!(answer, Ok(Some(_)));
                if read.send(answer).is_err() || is_last {
                    return;
                }
            }
        });
        Self { sender, answers, unread: Vec::new(), address: address.to_owned(), _reading: reading }
    }

    /// Returns true when nothing was heard of a job so far.
    pub(crate) fn is_silent_of(&self, job: JobKey) -> bool {
        !self.unread.iter().any(|item| matches!(item, Received::Report(_, report) if report.job_key == job))
    }

    pub(crate) async fn says(&self, frame: Frame) {
        self.sender.send(wire::ExchangeRequest { frame: Some(frame) }).await.expect("the stream stands");
    }

    pub(crate) async fn handled(&self, report_ids: Vec<u64>) {
        self.says(Frame::Handled(wire::ReportsHandled { report_ids })).await;
    }

    /// The next that `wanted` accepts. What comes before it stays for later.
    pub(crate) async fn next_matching<T>(&mut self, wanted: impl Fn(&Received) -> Option<T>) -> T {
        if let Some(at) = self.unread.iter().position(|item| wanted(item).is_some()) {
            return wanted(&self.unread.remove(at)).expect("found just now");
        }
        loop {
            let answer = tokio::time::timeout(testkit::PATIENCE, self.answers.recv()).await;
            let answer = answer.unwrap_or_else(|_| panic!("nothing came; unread: {:#?}", self.unread));
            let frame =
                answer.expect("no end before").expect("no error").expect("no end").frame.expect("always one");
            match frame {
                Answer::Outcome(outcome) => self.unread.push(Received::Outcome(outcome)),
                Answer::Dropped(dropped) => self.unread.push(Received::Dropped(dropped)),
                Answer::LogRead(outcome) => self.unread.push(Received::LogRead(outcome)),
                Answer::Reports(reports) => {
                    for wire::NumberedReport { report_id, report_json } in reports.reports {
                        let report: NodeReport = serde_json::from_slice(&report_json).expect("a report");
                        let source =
                            ReportSource { address: self.address.clone(), topic: "supervisor.rpc".into() };
                        assert_eq!(report.source, Some(source), "where its attempt can be stopped");
                        self.unread.push(Received::Report(report_id, Box::new(report)));
                    }
                }
                Answer::Logs(logs) => self.unread.extend(logs.logs.into_iter().map(Received::Log)),
            }
            if let Some(at) = self.unread.iter().position(|item| wanted(item).is_some()) {
                return wanted(&self.unread.remove(at)).expect("found just now");
            }
        }
    }

    /// The error of an outcome; empty when it went well.
    pub(crate) async fn outcome(&mut self, of: u64) -> String {
        self.delivered(of).await.error
    }

    /// How a delivery ended.
    pub(crate) async fn delivered(&mut self, of: u64) -> wire::DeliveryOutcome {
        self.next_matching(|item| match item {
            Received::Outcome(outcome) if outcome.delivery_id == of => Some(outcome.clone()),
            _ => None,
        })
        .await
    }

    /// Waits for the error of a context drop; empty when the context is forgotten.
    pub(crate) async fn dropped(&mut self, of: u64) -> String {
        self.next_matching(|item| match item {
            Received::Dropped(dropped) if dropped.drop_id == of => Some(dropped.error.clone()),
            _ => None,
        })
        .await
    }

    /// Waits for the outcome of a log read: the piece, or why there is none.
    pub(crate) async fn log_read(&mut self, of: u64) -> Result<wire::LogPiece, wire::LogRefusal> {
        use wire::log_reading::Result as Reading;
        let reading = self
            .next_matching(|item| match item {
                Received::LogRead(outcome) if outcome.read_id == of => outcome.reading.clone()?.result,
                _ => None,
            })
            .await;
        match reading {
            Reading::Piece(piece) => Ok(piece),
            Reading::Refusal(refusal) => Err(refusal),
        }
    }

    /// The next report about a job that `wanted` accepts; acknowledges it.
    pub(crate) async fn report<T>(
        &mut self,
        job: JobKey,
        wanted: impl Fn(&model::ReportKind) -> Option<T>,
    ) -> T {
        let (id, found) = self
            .next_matching(|item| match item {
                Received::Report(id, report) if report.job_key == job => Some((*id, wanted(&report.kind)?)),
                _ => None,
            })
            .await;
        self.handled(vec![id]).await;
        found
    }
}

/// An instance without scripts.
pub(crate) struct Worker {
    pub(crate) instance: InstanceSession,
    intake: JobConsumer,
}

impl Worker {
    async fn join(kv: &Kv) -> Self {
        let who = InstanceRef {
            script_type: ScriptType::Shell,
            group: "default".parse().expect("a name"),
            number: 1,
        };
        let about = InstanceDescriptor {
            hostname: "here".into(),
            pid: std::process::id(),
            process_start: 1,
            slots: 4,
            isolation: model::Isolation::Basic,
            layers: Vec::new(),
            version: "0.1.0".into(),
        };
        let database = kv.endpoint().database();
        let (instance, intake, _) = queue::join(kv, database, who, about, |_| true).await.expect("joined");
        Self { instance, intake }
    }

    pub(crate) async fn take(&mut self, count: usize) -> Vec<ClaimedJob> {
        let mut taken = Vec::new();
        while taken.len() < count {
            taken.extend(self.intake.next(count - taken.len(), pending()).await.expect("an answer"));
        }
        taken
    }
}

/// Keeps blobs of context 1 in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeStorage(Arc<Mutex<HashMap<String, Vec<u8>>>>);

impl FakeStorage {
    pub(crate) fn put(&self, bytes: &[u8]) -> BlobRef {
        let blob = BlobRef { sha256: BlobHash::of(bytes), size: bytes.len() as u64 };
        self.0.lock().expect("not poisoned").insert(blob.sha256.to_string(), bytes.to_vec());
        blob
    }

    pub(crate) fn clear(&self) {
        self.0.lock().expect("not poisoned").clear();
    }

    pub(crate) fn get(&self, blob: BlobRef) -> Option<Vec<u8>> {
        self.0.lock().expect("not poisoned").get(&blob.sha256.to_string()).cloned()
    }
}

#[tonic::async_trait]
impl BlobStoreService for FakeStorage {
    async fn read_blob(
        &self,
        request: Request<wire::ReadBlobRequest>,
    ) -> Result<Response<wire::ReadBlobResponse>, Status> {
        let request = request.into_inner();
        let blobs = self.0.lock().expect("not poisoned");
        let bytes = blobs.get(&request.sha256).ok_or_else(|| Error::not_found("the blob"))?;
        let begin = usize::try_from(request.offset).expect("small");
        let end = bytes.len().min(begin + BLOB_CHUNK_BYTES);
        let data = bytes[begin..end].to_vec().into();
        Ok(Response::new(wire::ReadBlobResponse { data, size: bytes.len() as u64 }))
    }

    async fn write_blob(
        &self,
        request: Request<wire::WriteBlobRequest>,
    ) -> Result<Response<wire::WriteBlobResponse>, Status> {
        let request = request.into_inner();
        let mut blobs = self.0.lock().expect("not poisoned");
        let bytes = blobs.entry(request.sha256).or_default();
        bytes.truncate(usize::try_from(request.offset).expect("small"));
        bytes.extend_from_slice(&request.data);
        Ok(Response::new(wire::WriteBlobResponse {}))
    }
}

/// Knows runners, the first of them of context 1, and what it was told of them.
#[derive(Debug, Clone)]
pub(crate) struct FakeRegistry {
    /// Their records, as they are now, with their contexts.
    runners: Arc<tokio::sync::watch::Sender<Vec<(u32, v1::Runner)>>>,
    last_presence: Arc<tokio::sync::watch::Sender<Option<Presence>>>,
    /// All that was heard, in its order.
    history: Arc<Mutex<Vec<Presence>>>,
}

impl FakeRegistry {
    /// With a record that says no more than where its supervisor is.
    pub(crate) fn new(address: &str) -> Self {
        Self::with(v1::Runner {
            id: 1,
            address: address.to_owned(),
            topic: "supervisor.rpc".into(),
            ..Default::default()
        })
    }

    /// With this record; with none when it has no address.
    pub(crate) fn with(runner: v1::Runner) -> Self {
        let last_presence = Arc::new(tokio::sync::watch::Sender::new(None));
        let runners = Arc::new(tokio::sync::watch::Sender::new(vec![(1, runner)]));
        Self { runners, last_presence, history: Arc::default() }
    }

    /// The first record is another now.
    pub(crate) fn change(&self, change: impl FnOnce(&mut v1::Runner)) {
        self.runners.send_modify(|runners| change(&mut runners[0].1));
    }

    /// There is a record more.
    pub(crate) fn add(&self, context_id: u32, runner: v1::Runner) {
        self.runners.send_modify(|runners| runners.push((context_id, runner)));
    }

    /// Returns the last presence that was heard.
    pub(crate) fn last_presence(&self) -> Option<Presence> {
        self.last_presence.borrow().clone()
    }

    /// Everything that was heard, in its order.
    pub(crate) fn history(&self) -> Vec<Presence> {
        self.history.lock().expect("not poisoned").clone()
    }

    async fn wait_for_an_instance(&self) {
        let mut last_presence = self.last_presence.subscribe();
        let there = last_presence
            .wait_for(|last_presence| last_presence.as_ref().is_some_and(|p| !p.instances.is_empty()));
        tokio::time::timeout(testkit::PATIENCE, there).await.expect("a presence").expect("kept here");
    }
}

#[tonic::async_trait]
impl RegistryViewService for FakeRegistry {
    type WatchStream = UnboundedReceiverStream<Result<wire::WatchResponse, Status>>;
    type ReportPresenceStream = UnboundedReceiverStream<Result<wire::ReportPresenceResponse, Status>>;

    async fn watch(&self, _: Request<wire::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, stream) = mpsc::unbounded_channel();
        let mut known = self.runners.subscribe();
        tokio::spawn(async move {
            loop {
                let now = known.borrow_and_update().clone();
                let runners = now.into_iter().filter(|(_, runner)| !runner.address.is_empty());
                let runners = runners
                    .map(|(context_id, runner)| wire::ViewedRunner { context_id, runner: Some(runner) });
                let part =
                    wire::WatchResponse { runners: runners.collect(), snapshot_end: true, gone: Vec::new() };
                tokio::select! {
                    () = sender.closed() => return,
                    changed = async { sender.send(Ok(part)).ok(); known.changed().await } => {
                        if changed.is_err() { return }
                    }
                }
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }

    async fn report_presence(
        &self,
        request: Request<Streaming<wire::ReportPresenceRequest>>,
    ) -> Result<Response<Self::ReportPresenceStream>, Status> {
        let (sender, stream) = mpsc::unbounded_channel();
        let (mut incoming, last_presence) = (request.into_inner(), Arc::clone(&self.last_presence));
        let history = Arc::clone(&self.history);
        tokio::spawn(async move {
            while let Ok(Some(report)) = incoming.message().await {
                let presence: Option<Presence> = serde_json::from_slice(&report.presence_json).ok();
                history.lock().expect("not poisoned").extend(presence.clone());
                last_presence.send_replace(presence);
            }
            drop(sender);
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
}

pub(crate) fn key(job: u32) -> JobKey {
    JobKey {
        context: ContextUid(Uid::from_bits(1)),
        flow: FlowUid(Uid::from_bits(2)),
        job: JobId(job),
        attempt: Attempt(1),
    }
}

pub(crate) fn execution(job: u32) -> Execution {
    Execution {
        context_id: ContextId(1),
        flow_id: FlowId(7),
        caller_id: ActorId(1),
        timeout_secs: 60,
        ..Execution::of_script(
            key(job),
            "flow".parse().expect("a name"),
            format!("node-{job}").parse().expect("a name"),
            ScriptType::Shell,
            ScriptSource::Inline(format!("echo {job}")),
        )
    }
}
