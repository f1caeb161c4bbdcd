//! The registry between a storage that speaks the real protocol, a gateway, and watchers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use identity::{Identity, ServiceName};
use model::{ActorId, InstanceInfo, Presence, ScriptType, Timestamp, Violations, limits};
use proto::internal::v1 as internal;
use proto::internal::v1::registry_view_service_client::RegistryViewServiceClient;
use proto::internal::v1::runner_store_service_server::{RunnerStoreService, RunnerStoreServiceServer};
use proto::v1;
use proto::v1::runner_service_client::RunnerServiceClient;
use rpc::{Allow, Channel, Error, LocalServer, MethodPolicy, Mount};
use runner_registry::{Config, Deps};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming};

mod sizes;
mod watching;

const ADDRESS: &str = "grpc://host-a:7706";

/// Storage that keeps records in memory; actor 1 is admin of every context, no other actor may do anything.
#[derive(Clone, Default)]
struct FakeStorage(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    records: BTreeMap<(u32, u32), v1::Runner>,
    watchers: Vec<mpsc::UnboundedSender<Result<internal::WatchRunnersResponse, Status>>>,
    /// Positions are counted.
    changes: u32,
    /// Responses that were sent, each with the position after it.
    sent: Vec<(u32, internal::FollowRunnersResponse)>,
    followers: Vec<Follower>,
}

type Follower = (u32, mpsc::UnboundedSender<Result<internal::FollowRunnersResponse, Status>>);

impl Kept {
    /// Tells of a change.
    fn publish(&mut self, context_id: u32, runner: &v1::Runner) {
        let record = internal::RunnerRecord { context_id, runner: Some(runner.clone()) };
        let change = internal::WatchRunnersResponse { runners: vec![record], snapshot_end: false };
        self.watchers.retain(|watcher| watcher.send(Ok(change.clone())).is_ok());
        self.changes += 1;
        let position = self.changes.to_string();
        let change = internal::FollowRunnersResponse { runner: Some(runner.clone()), position };
        self.sent.push((context_id, change.clone()));
        self.followers.retain(|(context, follower)| {
            *context != context_id || follower.send(Ok(change.clone())).is_ok()
        });
    }
}

#[tonic::async_trait]
impl RunnerStoreService for FakeStorage {
    type WatchRunnersStream = UnboundedReceiverStream<Result<internal::WatchRunnersResponse, Status>>;

    async fn put_runner(
        &self,
        request: Request<internal::PutRunnerRequest>,
    ) -> Result<Response<internal::PutRunnerResponse>, Status> {
        let internal::PutRunnerRequest { runner, on_behalf_of } = request.into_inner();
        let registration = runner.expect("always sent");
        if on_behalf_of != 1 {
            return Err(Error::not_found(format!("context {}", registration.context_id)).into());
        }
        let runner = v1::Runner {
            id: registration.runner_id,
            address: registration.address,
            topic: "supervisor.rpc".into(),
            labels: registration.labels,
            ..Default::default()
        };
        let mut kept = self.0.lock().expect("not poisoned");
        kept.records.insert((registration.context_id, runner.id), runner.clone());
        kept.publish(registration.context_id, &runner);
        Ok(Response::new(internal::PutRunnerResponse { runner: Some(runner) }))
    }

    async fn change_runner(
        &self,
        request: Request<internal::ChangeRunnerRequest>,
    ) -> Result<Response<internal::ChangeRunnerResponse>, Status> {
        use internal::change_runner_request::Change;
        let time = Some(proto::convert::time::to_wire(Timestamp::from_millis(1_000)));
        let mut kept = self.0.lock().expect("not poisoned");
        let mut change = |key: (u32, u32), change: &dyn Fn(&mut v1::Runner)| {
            let runner = kept.records.get_mut(&key).ok_or_else(|| Error::not_found("it"))?;
            change(runner);
            Ok::<_, Status>((key, runner.clone()))
        };
        let ((context, id), runner) = match request.into_inner().change.expect("always sent") {
            Change::Update(update) => change((update.context_id, update.runner_id), &|runner| {
                runner.labels.clone_from(&update.labels);
            })?,
            Change::Drain(drain) => change((drain.context_id, drain.runner_id), &|runner| {
                runner.drain_time = time.filter(|_| !drain.resume);
            })?,
            Change::Delete(delete) => {
                change((delete.context_id, delete.runner_id), &|runner| runner.delete_time = time)?
            }
        };
        if runner.delete_time.is_some() {
            kept.records.remove(&(context, id));
        }
        kept.publish(context, &runner);
        Ok(Response::new(internal::ChangeRunnerResponse { runner: Some(runner) }))
    }

    type FollowRunnersStream = UnboundedReceiverStream<Result<internal::FollowRunnersResponse, Status>>;

    async fn follow_runners(
        &self,
        request: Request<internal::FollowRunnersRequest>,
    ) -> Result<Response<Self::FollowRunnersStream>, Status> {
        let internal::FollowRunnersRequest { context_id, on_behalf_of, position } = request.into_inner();
        if on_behalf_of != 1 {
            return Err(Error::not_found(format!("context {context_id}")).into());
        }
        if position == "gone" {
            return Err(Error::new(rpc::ErrorKind::OutOfRange, rpc::RpcReason::PositionGone, "gone").into());
        }
        let (sender, stream) = mpsc::unbounded_channel();
        let mut kept = self.0.lock().expect("not poisoned");
        let position = if position.is_empty() { kept.changes.to_string() } else { position };
        let reached: usize = position.parse().expect("a position that was given");
        let first = internal::FollowRunnersResponse { runner: None, position };
        sender.send(Ok(first)).expect("held below");
        for (_, change) in kept.sent.iter().skip(reached).filter(|(context, _)| *context == context_id) {
            sender.send(Ok(change.clone())).expect("held below");
        }
        kept.followers.push((context_id, sender));
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }

    async fn read_runners(
        &self,
        request: Request<internal::ReadRunnersRequest>,
    ) -> Result<Response<internal::ReadRunnersResponse>, Status> {
        let internal::ReadRunnersRequest { context_id, on_behalf_of, page_size, page_token } =
            request.into_inner();
        if on_behalf_of != 1 {
            return Err(Error::not_found(format!("context {context_id}")).into());
        }
        let mut violations = Violations::new();
        if page_size > limits::PAGE_SIZE_MAX {
            violations.add("page_size", "too many");
        }
        // A token is the last number of the page before.
        let after = match page_token.as_str() {
            "" => Some(0),
            token => violations.take("page_token", token.parse::<u32>()),
        };
        let after = violations.into_result(after).map_err(Error::from)?;
        let kept = self.0.lock().expect("not poisoned");
        let rest = kept.records.range((context_id, after + 1)..=(context_id, u32::MAX));
        let rest: Vec<_> = rest.map(|(_, runner)| runner.clone()).collect();
        let runners = proto::pages::first(rest.iter().cloned().map(Ok::<_, Status>))?;
        let page_size = if page_size == 0 { limits::PAGE_SIZE_DEFAULT } else { page_size } as usize;
        let runners = runners[..runners.len().min(page_size)].to_vec();
        let last = runners.last().filter(|_| runners.len() < rest.len());
        let next_page_token = last.map(|last| last.id.to_string()).unwrap_or_default();
        Ok(Response::new(internal::ReadRunnersResponse { runners, next_page_token }))
    }

    async fn read_runner(
        &self,
        request: Request<internal::ReadRunnerRequest>,
    ) -> Result<Response<internal::ReadRunnerResponse>, Status> {
        let internal::ReadRunnerRequest { context_id, runner_id, on_behalf_of } = request.into_inner();
        let kept = self.0.lock().expect("not poisoned");
        let found = kept.records.get(&(context_id, runner_id)).filter(|_| on_behalf_of == 1);
        let found = found.ok_or_else(|| Error::not_found(format!("runner {runner_id}")))?;
        Ok(Response::new(internal::ReadRunnerResponse { runner: Some(found.clone()) }))
    }

    async fn watch_runners(
        &self,
        _: Request<internal::WatchRunnersRequest>,
    ) -> Result<Response<Self::WatchRunnersStream>, Status> {
        let (sender, stream) = mpsc::unbounded_channel();
        let mut kept = self.0.lock().expect("not poisoned");
        let records = kept.records.iter().map(|((context_id, _), runner)| internal::RunnerRecord {
            context_id: *context_id,
            runner: Some(runner.clone()),
        });
        for runners in proto::pages::parts(records, 1000) {
            let part = internal::WatchRunnersResponse { runners, snapshot_end: false };
            sender.send(Ok(part)).expect("held below");
        }
        let end = internal::WatchRunnersResponse { runners: Vec::new(), snapshot_end: true };
        sender.send(Ok(end)).expect("held below");
        kept.watchers.push(sender);
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
}

struct Suite {
    storage: FakeStorage,
    registry: LocalServer,
    shutdown: CancellationToken,
    _storage_server: LocalServer,
}

impl Suite {
    fn start() -> Self {
        let storage = FakeStorage::default();
        let policy = MethodPolicy::new(&[&[(
            "/mycora.internal.v1.RunnerStoreService/*",
            &[Allow::Service(ServiceName::RunnerRegistry)],
        )]])
        .expect("well-formed");
        let storage_server = LocalServer::new("storage");
        let mount = Mount::builder(policy).service(RunnerStoreServiceServer::new(storage.clone()));
        storage_server.publish(&mount.build().expect("covered"));

        let begin = tokio::time::Instant::now();
        let clock = move || Timestamp::from_millis(1_000_000) + begin.elapsed();
        let us = Identity::Service(ServiceName::RunnerRegistry);
        let deps = Deps {
            storage: Channel::local(storage_server.handle(), us),
            clock: Arc::new(clock),
            metrics: &prometheus::Registry::new(),
        };
        let app = Config::default().build(deps).expect("nothing registered twice");
        let registry = LocalServer::new("runner-registry");
        let mount = app.mount_internal(app.mount_public(Mount::builder(runner_registry::policy())));
        registry.publish(&mount.build().expect("covered"));
        let shutdown = CancellationToken::new();
        tokio::spawn(app.run(shutdown.clone()));
        Self { storage, registry, shutdown, _storage_server: storage_server }
    }

    fn channel(&self, identity: Identity) -> Channel {
        Channel::local(self.registry.handle(), identity)
    }

    fn actor(&self, id: u32) -> RunnerServiceClient<Channel> {
        RunnerServiceClient::new(self.channel(Identity::Actor(ActorId(id))))
    }

    fn service(&self, name: ServiceName) -> RegistryViewServiceClient<Channel> {
        RegistryViewServiceClient::new(self.channel(Identity::Service(name)))
    }

    async fn register(&self, context_id: u32, runner_id: u32) -> v1::Runner {
        let request = v1::RegisterRunnerRequest {
            context_id,
            runner_id,
            address: ADDRESS.into(),
            ..Default::default()
        };
        let answer = self.actor(1).register_runner(request).await.expect("admin");
        answer.into_inner().runner.expect("always given")
    }

    async fn watch(&self) -> Streaming<internal::WatchResponse> {
        let mut router = self.service(ServiceName::Router);
        router.watch(internal::WatchRequest {}).await.expect("allowed").into_inner()
    }

    async fn gateway(&self) -> Gateway {
        let (sender, outgoing) = mpsc::channel(8);
        let mut client = self.service(ServiceName::MyceliumGateway);
        let answers = client.report_presence(ReceiverStream::new(outgoing)).await.expect("allowed");
        Gateway { sender, _stands: answers.into_inner() }
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

struct Gateway {
    sender: mpsc::Sender<internal::ReportPresenceRequest>,
    // Whoever drops it is listened to no more.
    _stands: Streaming<internal::ReportPresenceResponse>,
}

impl Gateway {
    async fn send(&self, presence: Option<&Presence>) {
        let presence_json =
            presence.map(|presence| serde_json::to_vec(presence).expect("JSON").into()).unwrap_or_default();
        let report = internal::ReportPresenceRequest { address: ADDRESS.into(), presence_json };
        self.sender.send(report).await.expect("the stream stands");
    }
}

fn presence() -> Presence {
    Presence {
        supervisor: "s1".into(),
        version: "0.1.0".into(),
        instances: vec![InstanceInfo {
            script_type: ScriptType::Shell,
            group: "default".parse().expect("a name"),
            number: 1,
            slots: 4,
            busy: 0,
            isolation: model::Isolation::Basic,
            layers: Vec::new(),
            version: "0.1.0".into(),
        }],
        queued: 0,
        draining: false,
    }
}

/// The next change of a runner, past the end of the snapshot.
async fn next(watch: &mut Streaming<internal::WatchResponse>) -> Vec<(u32, v1::Runner)> {
    loop {
        let part = watch.message().await.expect("no error").expect("no end");
        if !part.runners.is_empty() {
            let runners = part.runners.into_iter();
            return runners.map(|viewed| (viewed.context_id, viewed.runner.expect("given"))).collect();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn presence_makes_all_records_of_an_address_live_and_silence_dead() {
    let suite = Suite::start();
    assert!(!suite.register(1, 1).await.live);
    suite.register(2, 5).await;
    let mut watch = suite.watch().await;
    let ids = |runners: &[(u32, v1::Runner)], live| {
        assert!(runners.iter().all(|(_, runner)| runner.live == live), "{runners:?}");
        runners.iter().map(|(context, runner)| (*context, runner.id)).collect::<Vec<_>>()
    };
    assert_eq!(ids(&next(&mut watch).await, false), [(1, 1), (2, 5)]);

    let gateway = suite.gateway().await;
    gateway.send(Some(&presence())).await;
    let now_live = next(&mut watch).await;
    assert_eq!(ids(&now_live, true), [(1, 1), (2, 5)]);
    assert_eq!(now_live[0].1.instances.len(), 1);

    let before = tokio::time::Instant::now();
    assert_eq!(ids(&next(&mut watch).await, false), [(1, 1), (2, 5)], "the clock went on by itself");
    assert_eq!(before.elapsed().as_secs(), 30);

    gateway.send(Some(&presence())).await;
    assert_eq!(ids(&next(&mut watch).await, true).len(), 2);
    gateway.send(None).await;
    assert_eq!(ids(&next(&mut watch).await, false).len(), 2);
    assert!(before.elapsed() < Duration::from_secs(31), "who is gone is dead at once");
}

#[tokio::test]
async fn runners_are_read_in_pages_by_those_who_may() {
    let suite = Suite::start();
    for id in 1..=3 {
        suite.register(1, id).await;
    }
    let mut actor = suite.actor(1);
    let request = v1::ListRunnersRequest { context_id: 1, page_size: 2, page_token: String::new() };
    let first = actor.list_runners(request.clone()).await.expect("admin").into_inner();
    let second = v1::ListRunnersRequest { page_token: first.next_page_token, ..request.clone() };
    let second = actor.list_runners(second).await.expect("admin").into_inner();
    let ids: Vec<_> = first.runners.iter().chain(&second.runners).map(|runner| runner.id).collect();
    assert_eq!((ids.as_slice(), second.next_page_token.as_str()), ([1, 2, 3].as_slice(), ""));

    let bad = v1::ListRunnersRequest { page_size: 1001, page_token: "x".into(), ..request.clone() };
    let refused = rpc::ErrorView::from(&actor.list_runners(bad).await.expect_err("two mistakes"));
    assert_eq!((refused.code, refused.violations.len()), (Code::InvalidArgument, 2));

    let found = actor.get_runner(v1::GetRunnerRequest { context_id: 1, runner_id: 2 }).await;
    assert_eq!(found.expect("registered").into_inner().runner.expect("given").id, 2);
    let missing = actor.get_runner(v1::GetRunnerRequest { context_id: 1, runner_id: 9 }).await;
    assert_eq!(missing.expect_err("not registered").code(), Code::NotFound);
    let stranger = suite.actor(2).list_runners(request).await.expect_err("no role");
    assert_eq!(rpc::ErrorView::from(&stranger).reason, "NOT_FOUND", "storage's answer is passed on");
    let actor_as_service = suite.channel(Identity::Actor(ActorId(1)));
    let denied = RegistryViewServiceClient::new(actor_as_service).watch(internal::WatchRequest {}).await;
    assert_eq!(denied.expect_err("no service").code(), Code::PermissionDenied);
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_to_storage_is_opened_again() {
    let suite = Suite::start();
    let mut watch = suite.watch().await;
    let end = watch.message().await.expect("no error").expect("no end");
    assert!(end.snapshot_end && end.runners.is_empty());
    {
        let mut kept = suite.storage.0.lock().expect("not poisoned");
        for watcher in kept.watchers.drain(..) {
            watcher.send(Err(Status::unavailable("storage restarts"))).expect("read");
        }
        let runner = v1::Runner { id: 4, address: ADDRESS.into(), ..Default::default() };
        kept.records.insert((9, 4), runner);
    }
    let changed = next(&mut watch).await;
    assert_eq!((changed[0].0, changed[0].1.id), (9, 4));
}

/// Returns the runners that are gone, from the next part that names any.
async fn gone(watch: &mut Streaming<internal::WatchResponse>) -> Vec<(u32, u32)> {
    loop {
        let part = watch.message().await.expect("no error").expect("no end");
        if !part.gone.is_empty() {
            return part.gone.into_iter().map(|gone| (gone.context_id, gone.runner_id)).collect();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn watchers_are_notified_of_removed_records() {
    let suite = Suite::start();
    for id in 1..=3 {
        suite.register(1, id).await;
    }
    let mut watch = suite.watch().await;
    assert_eq!(next(&mut watch).await.len(), 3);

    // Storage says so.
    let removed = v1::Runner { id: 2, ..Default::default() };
    let record = internal::RunnerRecord { context_id: 1, runner: Some(removed) };
    let change = internal::WatchRunnersResponse { runners: vec![record], snapshot_end: false };
    suite.storage.0.lock().expect("not poisoned").watchers[0].send(Ok(change)).expect("read");
    assert_eq!(gone(&mut watch).await, [(1, 2)]);

    // It happened while storage could not be heard.
    {
        let mut kept = suite.storage.0.lock().expect("not poisoned");
        for watcher in kept.watchers.drain(..) {
            watcher.send(Err(Status::unavailable("storage restarts"))).expect("read");
        }
        kept.records.clear();
    }
    assert_eq!(gone(&mut watch).await, [(1, 1), (1, 3)]);
}
