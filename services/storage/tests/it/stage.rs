//! A storage service over a private Redis, and what tests say to it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use identity::{Identity, ServiceName, SigningKey, TrustDomain};
use keys::{ContextKeys, GlobalKeys, Layout};
use kv::{Cmd, Kv, KvConnection, Value};
use model::id::Uid;
use model::{
    ActorId, ContextId, FlowInput, FlowNode, JobId, JobSpec, NodePolicy, NodeSpec, NodeTarget, OwnerId,
    RunIf, ScriptSource, ScriptType, Timestamp,
};
use proto::internal::v1 as wire;
use proto::internal::v1::blob_store_service_client::BlobStoreServiceClient;
use proto::internal::v1::flow_store_service_client::FlowStoreServiceClient;
use proto::internal::v1::identity_store_service_client::IdentityStoreServiceClient;
use proto::internal::v1::message_box_service_client::MessageBoxServiceClient;
use proto::internal::v1::message_store_service_client::MessageStoreServiceClient;
use proto::internal::v1::runner_store_service_client::RunnerStoreServiceClient;
use proto::v1;
use proto::v1::actor_service_client::ActorServiceClient;
use proto::v1::context_service_client::ContextServiceClient;
use proto::v1::job_service_client::JobServiceClient;
use rpc::{Channel, Directory, ErrorView, LocalServer, Mount};
use storage::{App, Config, Deps, StorageSweepReport};
use testkit::{PATIENCE, RedisServer, wait_until};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::places::Redis;

/// Admin of the context of a stage.
pub(crate) const ADMIN: u32 = 1;
/// Executor there.
pub(crate) const EXECUTOR: u32 = 2;
/// Reader there.
pub(crate) const READER: u32 = 3;
/// Has no role there.
pub(crate) const STRANGER: u32 = 4;
/// The context of a stage.
pub(crate) const CONTEXT: u32 = 1;

/// The public key of an actor of a stage.
pub(crate) fn key_of(id: u32) -> String {
    static KEYS: [LazyLock<SigningKey>; 4] = [const { LazyLock::new(SigningKey::generate) }; 4];
    KEYS[usize::try_from(id - 1).unwrap()].verifying_key().to_string()
}

pub(crate) struct Stage<R = RedisServer> {
    pub(crate) redis: R,
    pub(crate) kv: Kv,
    pub(crate) layout: Layout,
    pub(crate) config: Config,
    pub(crate) context_uid: String,
    pub(crate) connected: watch::Receiver<bool>,
    app: Option<App>,
    local: LocalServer,
    stop: CancellationToken,
    /// Closed when no service of this stage runs any more.
    running: Option<mpsc::Receiver<()>>,
    runs: mpsc::Sender<()>,
}

impl<R> Drop for Stage<R> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Stage {
    /// Four actors and one context.
    pub(crate) async fn new(layout: Layout) -> Self {
        Self::over(RedisServer::start(), layout).await
    }

    /// Stage with four actors and one context over this Redis.
    pub(crate) async fn over(redis: RedisServer, layout: Layout) -> Self {
        Self::with(redis, Config { layout, ..Config::default() }).await
    }
}

impl<R: Redis> Stage<R> {
    /// Stage with these settings over this Redis.
    pub(crate) async fn with(redis: R, config: Config) -> Self {
        let layout = config.layout;
        let kv = Kv::new(redis.url().parse().unwrap());
        let (runs, running) = mpsc::channel(1);
        let mut stage = Self {
            redis,
            kv,
            layout,
            config,
            context_uid: String::new(),
            connected: watch::channel(false).1,
            app: None,
            local: LocalServer::new("storage"),
            stop: CancellationToken::new(),
            running: Some(running),
            runs,
        };
        stage.start().await;
        for id in [ADMIN, EXECUTOR, READER, STRANGER] {
            let request = v1::RegisterActorRequest { id, pubkey: key_of(id), ..Default::default() };
            stage.actors(Identity::Admin).register_actor(request).await.unwrap();
        }
        let request = v1::CreateContextRequest {
            id: CONTEXT,
            admins: vec![ADMIN],
            executors: vec![EXECUTOR],
            readers: vec![READER],
            ..Default::default()
        };
        let made = stage.contexts(Identity::Admin).create_context(request).await.unwrap().into_inner();
        stage.context_uid = made.context.unwrap().uid;
        stage
    }

    /// (Re)starts the service over the same Redis.
    pub(crate) async fn start(&mut self) {
        self.stop.cancel();
        self.stop = CancellationToken::new();
        let deps =
            Deps { kv: Kv::new(self.redis.url().parse().unwrap()), trust_domain: TrustDomain::default() };
        let config = Config { layout: self.layout, ..self.config.clone() };
        let app: App = config.build(deps).await.unwrap();
        self.connected = app.readiness().subscribe();
        let builder = Mount::builder(storage::policy());
        let mount =
            app.mount_public(app.mount_internal(builder)).descriptors(proto::DESCRIPTORS).build().unwrap();
        self.local.publish(&mount);
        self.app = Some(app.clone());
        let (runs, stop) = (self.runs.clone(), self.stop.clone());
        tokio::spawn(async move {
            app.run(stop).await;
            drop(runs);
        });
    }

    /// Comes when the stage was dropped and nothing of it runs any more.
    pub(crate) fn ended(&mut self) -> impl Future<Output = ()> + use<R> {
        let mut running = self.running.take().unwrap();
        async move { while running.recv().await.is_some() {} }
    }

    /// Removes what is too old at this moment.
    pub(crate) async fn sweep(&self, now: Timestamp) -> StorageSweepReport {
        self.app.as_ref().unwrap().sweep(now).await.unwrap()
    }

    pub(crate) fn channel(&self, identity: Identity) -> Channel {
        Channel::local(self.local.handle(), identity)
    }

    pub(crate) fn actors(&self, identity: Identity) -> ActorServiceClient<Channel> {
        ActorServiceClient::new(self.channel(identity))
    }

    pub(crate) fn contexts(&self, identity: Identity) -> ContextServiceClient<Channel> {
        ContextServiceClient::new(self.channel(identity))
    }

    pub(crate) fn jobs(&self, actor: u32) -> JobServiceClient<Channel> {
        JobServiceClient::new(self.channel(Identity::Actor(ActorId(actor))))
    }

    pub(crate) fn flows(&self) -> FlowStoreServiceClient<Channel> {
        FlowStoreServiceClient::new(self.channel(Identity::Service(ServiceName::Scheduler)))
    }

    pub(crate) fn messages(&self) -> MessageStoreServiceClient<Channel> {
        MessageStoreServiceClient::new(self.channel(Identity::Service(ServiceName::Router)))
    }

    /// Chat and mail, for the router.
    pub(crate) fn message_box(&self) -> MessageBoxServiceClient<Channel> {
        MessageBoxServiceClient::new(self.channel(Identity::Service(ServiceName::Router)))
    }

    pub(crate) fn runners(&self) -> RunnerStoreServiceClient<Channel> {
        RunnerStoreServiceClient::new(self.channel(Identity::Service(ServiceName::RunnerRegistry)))
    }

    pub(crate) fn blobs(&self) -> BlobStoreServiceClient<Channel> {
        BlobStoreServiceClient::new(self.channel(Identity::Service(ServiceName::MyceliumGateway)))
    }

    pub(crate) fn identities(&self) -> IdentityStoreServiceClient<Channel> {
        IdentityStoreServiceClient::new(self.channel(Identity::Service(ServiceName::Scheduler)))
    }

    /// Directory that the gate in front of the service asks.
    pub(crate) fn directory(&self) -> Arc<dyn Directory> {
        self.app.as_ref().unwrap().directory()
    }

    pub(crate) fn keys(&self) -> ContextKeys {
        ContextKeys::new(self.layout, ContextId(CONTEXT))
    }

    pub(crate) fn connection(&self) -> KvConnection {
        self.kv.at(self.keys().database(), &self.keys().tag())
    }

    /// To what belongs to no context.
    pub(crate) fn global(&self) -> (GlobalKeys, KvConnection) {
        let keys = GlobalKeys::new(self.layout);
        let connection = self.kv.at(keys.database(), &keys.tag());
        (keys, connection)
    }

    /// The key in Redis of what has this name in the context.
    pub(crate) fn key_of(&self, name: &str) -> String {
        format!("{}{name}", self.keys().prefix())
    }

    /// Says something to the server that has the keys of the context, as a program does that knows nothing of this one.
    pub(crate) fn raw(&self, args: &[&str]) -> String {
        let server = self.redis.server_of(&self.keys().context());
        server.raw(self.keys().database(), args)
    }

    pub(crate) async fn command(&self, cmd: Cmd) -> Value {
        self.connection().cmd(cmd).await.unwrap()
    }

    pub(crate) async fn hash(&self, key: &str) -> BTreeMap<String, String> {
        self.command(Cmd::new("HGETALL").arg(key)).await.hash().unwrap()
    }

    pub(crate) async fn revision(&self) -> u64 {
        self.command(Cmd::new("HGET").arg(&self.keys().ids()).arg("revision")).await.uint().unwrap()
    }

    /// How much of something the context is counted to have.
    pub(crate) async fn counted(&self, what: &str) -> u64 {
        self.command(Cmd::new("HGET").arg(&self.keys().ids()).arg(what)).await.uint().unwrap_or(0)
    }

    /// Creates a flow of the executor with `count` nodes, and starts it.
    pub(crate) async fn started(&self, count: u32) -> Running {
        let created = self.created(count).await;
        self.start_flow(created).await
    }

    /// Starts a flow that has its nodes.
    pub(crate) async fn start_flow(&self, created: Running) -> Running {
        let owner = OwnerId::random().to_string();
        let request = wire::StartFlowRequest {
            context_id: CONTEXT,
            flow_id: created.id,
            flow_uid: created.uid.clone(),
            owner: owner.clone(),
            ..Default::default()
        };
        let flow = self.flows().start_flow(request).await.unwrap().into_inner().flow.unwrap();
        let (epoch, last_commit) = (flow.epoch, flow.last_commit);
        Running { owner, epoch, last_commit, revision: flow.flow.unwrap().revision, ..created }
    }

    /// Creates a flow of the executor with `count` nodes.
    pub(crate) async fn created(&self, count: u32) -> Running {
        self.created_by(create(count)).await
    }

    /// Creates a flow by this request, with its nodes.
    pub(crate) async fn created_by(&self, request: wire::CreateFlowRequest) -> Running {
        let count = request.node_count;
        let answer = self.flows().create_flow(request).await.unwrap().into_inner();
        let flow = answer.flow.unwrap().flow.unwrap();
        let running = Running {
            id: flow.id,
            uid: flow.uid,
            context_uid: self.context_uid.clone(),
            first_job: answer.first_job_id,
            count,
            owner: String::new(),
            epoch: 0,
            last_commit: String::new(),
            revision: 0,
        };
        let request = running.add_nodes(&script("true"));
        self.flows().add_nodes(request).await.unwrap();
        running
    }

    /// Applies a step of a flow, which then knows it as its last.
    pub(crate) async fn apply(&self, flow: &mut Running, request: wire::CommitRequest) -> u64 {
        let last_commit = request.commit_id.clone();
        let answer = self.commit(request).await;
        assert_eq!(answer.refusal(), wire::CommitRefusal::Unspecified, "{}", answer.detail);
        (flow.last_commit, flow.revision) = (last_commit, answer.revision);
        answer.revision
    }

    /// Brings something for the owner of a flow, for the executor.
    pub(crate) async fn push(&self, flow: &Running, input: &FlowInput) -> bool {
        let request = flow.push(input);
        self.flows().push_input(request).await.unwrap().into_inner().unchanged
    }

    /// Sends one commit on a stream of its own.
    pub(crate) async fn commit(&self, request: wire::CommitRequest) -> wire::CommitResponse {
        let mut answers = self.flows().commit(tokio_stream::iter([request])).await.unwrap().into_inner();
        answers.message().await.unwrap().unwrap()
    }

    /// Settles a flow's message with nodes, which is a change without an event. Returns the revision before it.
    pub(crate) async fn settle_one(&self, flow: &mut Running) -> u64 {
        let mut router = self.router("r").await;
        let step = wire::CommitRequest { messages: vec![flow.message(1)], ..flow.step() };
        let before = self.apply(flow, step).await;
        let taken = router.take(1).await;
        router.settle(&taken, "").await;
        let settled = || async { (self.revision().await > before).then_some(()) };
        wait_until(settled, PATIENCE, "the message is settled").await;
        before
    }

    /// Connects a router.
    pub(crate) async fn router(&self, name: &str) -> Router {
        let (frames, stream) = mpsc::channel(16);
        let hello = wire::TakeHello { router: name.to_owned() };
        let hello = wire::TakeRequest { frame: Some(wire::take_request::Frame::Hello(hello)) };
        frames.send(hello).await.unwrap();
        let answers = self.messages().take(ReceiverStream::new(stream)).await.unwrap().into_inner();
        Router { frames, answers }
    }
}

/// A connected router.
pub(crate) struct Router {
    frames: mpsc::Sender<wire::TakeRequest>,
    pub(crate) answers: Streaming<wire::TakeResponse>,
}

impl Router {
    /// The next `count` messages.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<wire::HeldMessage> {
        let mut messages = Vec::new();
        while messages.len() < count {
            messages.extend(self.answers.message().await.unwrap().unwrap().messages);
        }
        messages
    }

    /// Ends its half of the stream, and comes when storage knows no such router any more.
    pub(crate) async fn leave(self) {
        let Self { frames, mut answers } = self;
        drop(frames);
        while let Ok(Some(_)) = answers.message().await {}
    }

    pub(crate) async fn dropped(&self, context_uid: &str, runner_id: u32) {
        let dropped = wire::ContextDropped { context_uid: context_uid.to_owned(), runner_id };
        let frame = wire::TakeRequest { frame: Some(wire::take_request::Frame::Dropped(dropped)) };
        self.frames.send(frame).await.unwrap();
    }

    /// A message of the context of the stage became a flow.
    pub(crate) async fn becomes(&self, message_key: &str, flow_id: u32) {
        let settlement = wire::Settlement {
            context_id: CONTEXT,
            message_key: message_key.to_owned(),
            error: String::new(),
            flow_id,
        };
        let settle = wire::Settle { settlements: vec![settlement] };
        let frame = wire::TakeRequest { frame: Some(wire::take_request::Frame::Settle(settle)) };
        self.frames.send(frame).await.unwrap();
    }

    pub(crate) async fn settle(&self, messages: &[wire::HeldMessage], error: &str) {
        let settlement = |message: &wire::HeldMessage| wire::Settlement {
            context_id: message.context_id,
            message_key: message.message_key.clone(),
            error: error.to_owned(),
            flow_id: 0,
        };
        let settle = wire::Settle { settlements: messages.iter().map(settlement).collect() };
        let frame = wire::TakeRequest { frame: Some(wire::take_request::Frame::Settle(settle)) };
        self.frames.send(frame).await.unwrap();
    }
}

/// A flow as its owner knows it.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub(crate) id: u32,
    pub(crate) uid: String,
    pub(crate) context_uid: String,
    pub(crate) first_job: u32,
    pub(crate) count: u32,
    pub(crate) owner: String,
    pub(crate) epoch: u64,
    pub(crate) last_commit: String,
    pub(crate) revision: u64,
}

impl Running {
    /// Output of the first attempt of its first job.
    pub(crate) fn log_chunk(&self) -> wire::LogChunk {
        wire::LogChunk {
            job_key: format!("{}-{}-{}-1", self.context_uid, self.uid, self.first_job),
            context_id: CONTEXT,
            flow_id: self.id,
            data: vec![b'x'; 500].into(),
            ..Default::default()
        }
    }

    pub(crate) fn node(&self, place: u32) -> FlowNode {
        let spec = NodeSpec {
            name: format!("node-{place}").parse().unwrap(),
            depends: Vec::new(),
            prerequisites: Vec::new(),
            run_if: RunIf::default(),
            when: None,
            allow_failure: false,
            target: NodeTarget::default(),
            policy: NodePolicy::default(),
            job: script("true"),
        };
        FlowNode::new(JobId(self.first_job + place), &spec, Vec::new())
    }

    pub(crate) fn add_nodes(&self, job: &JobSpec) -> wire::AddNodesRequest {
        let node = |place| {
            let node = self.node(place);
            wire::StoredNode { job_id: node.job_id.0, node_json: json(&node), job_json: json(job) }
        };
        wire::AddNodesRequest {
            context_id: CONTEXT,
            flow_id: self.id,
            flow_uid: self.uid.clone(),
            nodes: (0..self.count).map(node).collect(),
            on_behalf_of: EXECUTOR,
            ..Default::default()
        }
    }

    /// How others name it.
    pub(crate) fn member(&self) -> String {
        format!("{}-{}", self.id, self.uid)
    }

    pub(crate) fn push(&self, input: &FlowInput) -> wire::PushInputRequest {
        wire::PushInputRequest {
            context_id: CONTEXT,
            flow_id: self.id,
            on_behalf_of: EXECUTOR,
            input_json: json(input),
            ..Default::default()
        }
    }

    /// A flow that one call has made, with as many nodes as this one, in the same context.
    pub(crate) fn made(&self, record: wire::FlowRecord, first_job: u32) -> Self {
        let flow = record.flow.unwrap();
        Self {
            id: flow.id,
            uid: flow.uid,
            first_job,
            owner: record.owner,
            epoch: record.epoch,
            last_commit: record.last_commit,
            ..self.clone()
        }
    }

    /// A step that changes nothing yet.
    pub(crate) fn step(&self) -> wire::CommitRequest {
        wire::CommitRequest {
            commit_id: Uid::random().to_string(),
            context_id: CONTEXT,
            context_uid: self.context_uid.clone(),
            flow_id: self.id,
            flow_uid: self.uid.clone(),
            owner: self.owner.clone(),
            epoch: self.epoch,
            last_commit: self.last_commit.clone(),
            ..Default::default()
        }
    }

    /// A step that ends the flow.
    pub(crate) fn end(&self) -> wire::CommitRequest {
        let change = wire::FlowChange {
            status: v1::FlowStatus::Finished.into(),
            result: BTreeMap::from([("a.b".to_owned(), "1".to_owned())]),
            result_truncated: false,
        };
        wire::CommitRequest { flow: Some(change), ..self.step() }
    }

    /// All of it once more, after its first run.
    pub(crate) fn restart(&self) -> wire::RestartFlowRequest {
        wire::RestartFlowRequest {
            context_id: CONTEXT,
            flow_id: self.id,
            flow_uid: self.uid.clone(),
            on_behalf_of: EXECUTOR,
            rerun_json: r#"{"scope":"all"}"#.to_owned(),
            generation: 1,
            ..Default::default()
        }
    }

    /// A message with the node at `place`.
    pub(crate) fn message(&self, id: u32) -> wire::OutgoingMessage {
        wire::OutgoingMessage {
            caller_id: EXECUTOR,
            message_id: id,
            runner_id: 7,
            timeout_ack_secs: 60,
            nodes: vec![Bytes::from(format!(r#"{{"n":{id}}}"#)), Bytes::from_static(br#"{"m": 1}"#)],
            created_millis: 1_763_690_000_125,
        }
    }
}

pub(crate) fn create(count: u32) -> wire::CreateFlowRequest {
    wire::CreateFlowRequest {
        context_id: CONTEXT,
        caller_id: EXECUTOR,
        on_behalf_of: EXECUTOR,
        flow: Some(v1::FlowSpec {
            name: "flow".to_owned(),
            env_vars: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
            deadline_secs: 60,
            ..Default::default()
        }),
        node_count: count,
        ..Default::default()
    }
}

pub(crate) fn script(text: &str) -> JobSpec {
    JobSpec {
        script_type: ScriptType::Shell,
        script: ScriptSource::Inline(text.to_owned()),
        env_vars: BTreeMap::new(),
        files: BTreeMap::new(),
        outputs: Vec::new(),
        signature: None,
    }
}

pub(crate) fn json<T: serde::Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value).unwrap().into()
}

/// Code and reason of a failure.
pub(crate) fn failure<T>(result: Result<T, Status>) -> (tonic::Code, String) {
    let view = ErrorView::from(&result.err().unwrap());
    (view.code, view.reason)
}
