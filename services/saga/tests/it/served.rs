//! The service behind its gate: served over TLS, with the real storage beside it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use broker::MessageBroker;
use identity::{Identity, IssueOptions, Pki, ServiceName, SigningKey, TrustDomain};
use kv::Kv;
use model::{ActorId, CorrelationId, TenantId};
use proto::v1;
use proto::v1::actor_service_client::ActorServiceClient;
use proto::v1::context_service_client::ContextServiceClient;
use proto::v1::saga_service_client::SagaServiceClient;
use rpc::{Channel, ErrorView, Mount, Server, TlsFiles};
use saga::health::SagaHealth;
use saga::lane::LaneEnvironment;
use saga::lane::backlog::OUTBOX_ROWS_MAX;
use saga::lane::gateway::{AggregateCommand, Gateway, GatewayAnswer};
use saga::metrics::Metrics;
use saga::placement::{LANES_MAX, SagaReplicaRole};
use saga::sagas::{SAGA_DEAD_LETTERS_MAX, SagaLane};
use saga::tenants::TenantRegistry;
use saga::visibility::SagaVisibility;
use saga::{App, Config, Deps};
use service::Shutdown;
use store::{EmbeddedStore, KvStore, LaneKey, RowKey, SharedStore, WallClock};
use tempfile::TempDir;
use testkit::{NatsServer, PATIENCE, RedisServer, TestProcess, free_port, wait_until};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use workflow::Json;

use crate::crashes::Kept;
use crate::streams::connect;

pub(crate) const ADMIN: u32 = 1;
pub(crate) const EXECUTOR: u32 = 2;
pub(crate) const READER: u32 = 3;
/// Has no role anywhere.
pub(crate) const STRANGER: u32 = 4;
/// Admin of the context of the other tenant.
pub(crate) const ELSEWHERE: u32 = 5;
/// Tenant of the first context.
pub(crate) const ACME: &str = "acme";
/// Tenant of the second one.
pub(crate) const OTHER: &str = "other";

/// Fake gateway of aggregates: refuses commands of the type `Fail` until told otherwise, and counts the others.
#[derive(Clone, Default)]
pub(crate) struct Aggregates(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// By their ids: the type, and whose it was.
    done: BTreeMap<String, (String, String)>,
    takes_all: bool,
    submitted: usize,
}

impl Aggregates {
    /// Lists what was done for a correlation, each command once.
    pub(crate) fn done(&self, correlation: &str) -> Vec<String> {
        let state = self.0.lock().expect("no test panicked with it");
        let of = state.done.values().filter(|(_, whose)| whose == correlation);
        of.map(|(kind, _)| kind.clone()).collect()
    }

    /// How often it was asked, each time counted.
    pub(crate) fn submitted(&self) -> usize {
        self.0.lock().expect("no test panicked with it").submitted
    }

    /// Refuses nothing from now on.
    pub(crate) fn take_all(&self) {
        self.0.lock().expect("no test panicked with it").takes_all = true;
    }
}

#[async_trait]
impl Gateway for Aggregates {
    async fn submit(&self, command: &AggregateCommand) -> GatewayAnswer {
        let mut state = self.0.lock().expect("no test panicked with it");
        state.submitted += 1;
        if command.command_type == "Fail" && !state.takes_all {
            return GatewayAnswer::Refused { code: "no".to_owned(), message: "it is refused".to_owned() };
        }
        let done = (command.command_type.clone(), command.correlation_id.clone());
        state.done.insert(command.command_id.to_string(), done);
        GatewayAnswer::Done(Json::object([]))
    }
}

/// Storage over a private Redis, served over TLS: two contexts, and an actor of each kind.
pub(crate) struct Suite {
    pub(crate) pki: Pki,
    storage: SocketAddr,
    shutdown: Shutdown,
    pub(crate) nats: NatsServer,
    _redis: RedisServer,
    // Goes last: the others have their files in it.
    dir: TempDir,
}

impl Drop for Suite {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

impl Suite {
    pub(crate) async fn start() -> Self {
        let (dir, redis) = (tempfile::tempdir().expect("a directory"), RedisServer::start());
        let pki = Pki::init(&dir.path().join("pki"), &TrustDomain::default(), SystemTime::now());
        let pki = pki.expect("an authority");
        let (kv, shutdown) = (Kv::new(redis.url().parse().expect("a URL")), Shutdown::new());
        let deps = storage::Deps { kv, trust_domain: TrustDomain::default() };
        let durability = kv::Durability::Fast;
        let app = storage::Config { durability, ..storage::Config::default() }.build(deps).await;
        let app = app.expect("storage");
        let builder = Mount::builder(storage::policy()).directory(app.directory());
        let mount = app.mount_public(app.mount_internal(builder));
        let tls = files(&pki, Identity::Service(ServiceName::Storage));
        let address =
            serve(mount.descriptors(proto::DESCRIPTORS).build().expect("a mount"), &tls, &shutdown).await;
        tokio::spawn(app.run(shutdown.token()));
        let suite = Self { pki, storage: address, shutdown, nats: NatsServer::start(), _redis: redis, dir };
        suite.register().await;
        suite
    }

    async fn register(&self) {
        let channel = self.channel(self.storage, Identity::Admin);
        for id in [ADMIN, EXECUTOR, READER, STRANGER, ELSEWHERE] {
            let pubkey = SigningKey::generate().verifying_key().to_string();
            let request = v1::RegisterActorRequest { id, pubkey, ..Default::default() };
            ActorServiceClient::new(channel.clone()).register_actor(request).await.expect("an actor");
        }
        let contexts = [
            v1::CreateContextRequest {
                id: 1,
                admins: vec![ADMIN],
                executors: vec![EXECUTOR],
                readers: vec![READER],
                ..Default::default()
            },
            v1::CreateContextRequest { id: 2, admins: vec![ELSEWHERE], ..Default::default() },
        ];
        for request in contexts {
            ContextServiceClient::new(channel.clone()).create_context(request).await.expect("a context");
        }
    }

    /// Says who may look at the first context.
    pub(crate) async fn set_readers(&self, ids: &[u32]) {
        let readers = Some(v1::ActorList { ids: ids.to_vec() });
        let request = v1::UpdateContextRequest { context_id: 1, readers, ..Default::default() };
        let channel = self.channel(self.storage, Identity::Actor(ActorId(ADMIN)));
        ContextServiceClient::new(channel).update_context(request).await.expect("changed");
    }

    /// A certificate that is in force.
    pub(crate) fn files(&self, identity: Identity) -> TlsFiles {
        files(&self.pki, identity)
    }

    /// Starts the service as a process over a directory, which dies at a crash point where one is named.
    pub(crate) fn process(&self, crash_at: Option<&str>) -> ServedProcess {
        self.process_over(&Kept::new(self.dir(), Rows::Directory), crash_at)
    }

    /// Starts it over these rows.
    pub(crate) fn process_over(&self, kept: &Kept, crash_at: Option<&str>) -> ServedProcess {
        let (mut command, address) = self.command(kept, ORDER, TENANTS, "saga");
        command.args(["--ops-listen", "127.0.0.1:0"]);
        if let Some(place) = crash_at {
            command.env("MYCORA_CRASH_AT", place);
        }
        let mut process = TestProcess::spawn("mycora-saga", &mut command);
        process.wait_for_line("saga started", PATIENCE);
        ServedProcess { process, address }
    }

    /// The command of a process over these rows that reads this manifest and this tenants file, and the address at which it will listen.
    pub(crate) fn command(
        &self,
        kept: &Kept,
        manifest: &str,
        tenants: &str,
        role: &str,
    ) -> (Command, SocketAddr) {
        let manifests = self.dir().join("manifests");
        std::fs::create_dir_all(&manifests).expect("made");
        std::fs::write(manifests.join("order.yaml"), manifest).expect("written");
        std::fs::write(self.dir().join("tenants.yaml"), tenants).expect("written");
        let us = Identity::Service(ServiceName::Saga);
        let issued = self.pki.issue(us, &IssueOptions::from(SystemTime::now())).expect("a certificate");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_mycora-saga"));
        command
            .args(["--role", role, "--drain-secs", "5"])
            .args(["--listen", &address.to_string(), "--nats-url", &self.nats.url()])
            .args(["--storage", &format!("https://{}", self.storage)])
            .arg("--tls-ca")
            .arg(self.pki.ca_file())
            .arg("--tls-cert")
            .arg(issued.certificate)
            .arg("--tls-key")
            .arg(issued.key)
            .args(kept.arguments())
            .arg("--manifests")
            .arg(manifests)
            .arg("--tenants")
            .arg(self.dir().join("tenants.yaml"));
        (command, address)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn channel(&self, address: SocketAddr, identity: Identity) -> Channel {
        let tls = self.files(identity);
        Channel::remote(&format!("https://{address}"), &tls, None).expect("a way")
    }

    /// Lists the audit records of sagas in the first context: the method with what it was for, the oldest first.
    pub(crate) async fn audit(&self) -> Vec<String> {
        let channel = self.channel(self.storage, Identity::Actor(ActorId(ADMIN)));
        let request = v1::ListAuditEntriesRequest { context_id: 1, page_size: 1000, ..Default::default() };
        let page = ContextServiceClient::new(channel).list_audit_entries(request).await.expect("entries");
        let entries = page.into_inner().entries.into_iter().rev();
        entries.filter(|entry| entry.action.starts_with("saga.")).map(|entry| entry.object).collect()
    }
}

fn files(pki: &Pki, identity: Identity) -> TlsFiles {
    let issued = pki.issue(identity, &IssueOptions::from(SystemTime::now())).expect("a certificate");
    TlsFiles::new(pki.ca_file(), issued.certificate, issued.key)
}

/// Serves a mount on a port of its own until the shutdown.
async fn serve(mount: Mount, tls: &TlsFiles, shutdown: &Shutdown) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    mount.health().set_serving(true);
    let server = Server::new(mount, tls).expect("certificates");
    let end = shutdown.begun_owned();
    tokio::spawn(async move { server.drain_deadline(Duration::ZERO).serve(listener, end).await });
    address
}

/// A store in Redis, or in a directory of the suite.
async fn open(suite: &Suite, redis: Option<&RedisServer>) -> Arc<dyn KvStore> {
    let Some(redis) = redis else {
        let store = EmbeddedStore::open(&suite.dir().join("store"), STORE_BYTES_MAX, WallClock);
        return Arc::new(store.expect("a new store"));
    };
    let kv = Kv::new(redis.url().parse().expect("a URL"));
    let store = SharedStore::open(kv, kv::Durability::Fast, &saga::lane::UNSCANNED).await;
    Arc::new(store.expect("a store"))
}

/// The service as a process.
pub(crate) struct ServedProcess {
    pub(crate) process: TestProcess,
    address: SocketAddr,
}

impl ServedProcess {
    pub(crate) fn client(&self, suite: &Suite, identity: Identity) -> SagaServiceClient<Channel> {
        SagaServiceClient::new(suite.channel(self.address, identity))
    }

    pub(crate) fn actor(&self, suite: &Suite, id: u32) -> SagaServiceClient<Channel> {
        self.client(suite, Identity::Actor(ActorId(id)))
    }
}

/// Puts something between the service and what it stands on, which is of the suite's server or as it was opened.
pub(crate) type Between<T> = Box<dyn FnOnce(&NatsServer, Arc<T>) -> Arc<T> + Send>;

/// Where rows are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// In a directory of the process.
    Directory,
    /// In Redis.
    Redis,
}

/// How a saga service is started.
pub(crate) struct ServiceOptions<'a> {
    /// The manifest.
    pub(crate) manifest: &'a str,
    /// True if there are tenants.
    pub(crate) tenants: bool,
    /// True if the service has the way to storage.
    pub(crate) storage: bool,
    /// Role of the service.
    pub(crate) role: SagaReplicaRole,
    /// Content of the tenants file, where there are tenants.
    pub(crate) tenants_file: &'a str,
    /// Where rows are kept.
    pub(crate) rows: Rows,
    /// Lanes that it owns at most.
    pub(crate) lanes_max: usize,
    /// Layer between the service and its broker.
    pub(crate) broker: Option<Between<dyn MessageBroker>>,
    /// Layer between the service and its store.
    pub(crate) store: Option<Between<dyn KvStore>>,
}

impl Default for ServiceOptions<'_> {
    fn default() -> Self {
        let role = SagaReplicaRole { sagas: true, effects: false };
        Self {
            manifest: ORDER,
            tenants: true,
            storage: true,
            role,
            tenants_file: TENANTS,
            rows: Rows::Directory,
            lanes_max: LANES_MAX,
            broker: None,
            store: None,
        }
    }
}

/// The service, served over TLS.
pub(crate) struct Served {
    pub(crate) app: Arc<App>,
    pub(crate) aggregates: Aggregates,
    pub(crate) broker: Arc<dyn MessageBroker>,
    pub(crate) store: Arc<dyn KvStore>,
    /// Registry of the service's metrics.
    pub(crate) registry: prometheus::Registry,
    /// Begun where the service was drained, which its process would end by.
    pub(crate) drained: Shutdown,
    shutdown: Shutdown,
    pub(crate) address: SocketAddr,
    _redis: Option<RedisServer>,
    pub(crate) suite: Suite,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

impl Served {
    pub(crate) async fn start() -> Self {
        Self::with(ServiceOptions::default()).await
    }

    pub(crate) async fn with(with: ServiceOptions<'_>) -> Self {
        let suite = Suite::start().await;
        let manifests = suite.dir().join("manifests");
        std::fs::create_dir(&manifests).expect("made");
        std::fs::write(manifests.join("order.yaml"), with.manifest).expect("written");
        let redis = (with.rows == Rows::Redis).then(RedisServer::start);
        let store = open(&suite, redis.as_ref()).await;
        let (broker, aggregates) = (connect(&suite.nats).await, Aggregates::default());
        let broker =
            with.broker.map_or_else(|| Arc::clone(&broker), |between| between(&suite.nats, broker.clone()));
        let store =
            with.store.map_or_else(|| Arc::clone(&store), |between| between(&suite.nats, store.clone()));
        for stream in [crate::streams::aggregates()] {
            broker.ensure_stream(&stream).await.expect("a stream");
        }
        let tenants = if with.tenants {
            TenantRegistry::read("tenants", with.tenants_file).expect("good")
        } else {
            TenantRegistry::single(1)
        };
        let config = Config {
            role: with.role,
            manifests: Some(manifests),
            tenants,
            secrets: None,
            replica: saga::placement::SagaReplicaIdentity::new(REPLICA, 1).expect("a name"),
            grace: Duration::ZERO,
            seeing: SagaVisibility::default(),
            lanes_max: with.lanes_max,
        };
        let us = Identity::Service(ServiceName::Saga);
        let registry = prometheus::Registry::new();
        let deps = Deps {
            store: Arc::clone(&store),
            broker: Arc::clone(&broker),
            gateway: Arc::new(aggregates.clone()),
            flows: None,
            storage: with.storage.then(|| suite.channel(suite.storage, us)),
            metrics: &registry,
        };
        let app = Arc::new(App::new(config, deps).expect("the service"));
        app.reload().await.expect("manifests");
        let (drained, shutdown) = (Shutdown::new(), Shutdown::new());
        let builder = Mount::builder(saga::rpc::policy()).descriptors(proto::DESCRIPTORS);
        let builder = match app.directory() {
            Some(directory) => builder.directory(directory),
            None => builder,
        };
        let mount = app.mount_public(builder, drained.clone()).build().expect("a mount");
        let address = serve(mount, &suite.files(us), &shutdown).await;
        let (running, stop) = (Arc::clone(&app), shutdown.token());
        tokio::spawn(async move { running.run(stop).await });
        tokio::time::timeout(PATIENCE, app.readiness().ready()).await.expect("it is ready");
        Self { app, aggregates, broker, store, registry, drained, shutdown, address, _redis: redis, suite }
    }

    /// Sum of a metric over its labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == format!("mycora_saga_{name}"));
        let metrics = family.unwrap_or_else(|| panic!("there is no {name}")).get_metric();
        metrics.iter().map(|metric| metric.get_counter().get_value()).sum()
    }

    /// All rows of a lane.
    pub(crate) async fn rows_of(&self, lane: &str) -> Vec<(String, bytes::Bytes)> {
        let range = RowKey::new("")..RowKey::new("\u{7f}");
        let mut page = self.store.scan(&LaneKey::new(lane), range, 10_000).await.expect("rows");
        assert!(!page.has_more);
        page.rows.drain(..).map(|(key, row)| (key.to_string(), row.value)).collect()
    }

    /// Puts another manifest into the operator's directory.
    pub(crate) fn write(&self, manifest: &str) {
        std::fs::write(self.suite.dir().join("manifests/order.yaml"), manifest).expect("written");
    }

    pub(crate) fn client(&self, identity: Identity) -> SagaServiceClient<Channel> {
        SagaServiceClient::new(self.suite.channel(self.address, identity))
    }

    /// One without a certificate.
    pub(crate) fn anonymous(&self) -> Channel {
        let tls = TlsFiles::anonymous(self.suite.pki.ca_file());
        Channel::remote(&format!("https://{}", self.address), &tls, None).expect("a way")
    }

    pub(crate) fn actor(&self, id: u32) -> SagaServiceClient<Channel> {
        self.client(Identity::Actor(ActorId(id)))
    }

    /// Starts an instance of the first tenant.
    pub(crate) async fn start_order(&self, correlation: &str) -> v1::SagaChange {
        let request = v1::StartSagaRequest {
            tenant_id: ACME.to_owned(),
            saga: "order".to_owned(),
            correlation_id: correlation.to_owned(),
            data_json: format!("{{\"id\":\"{correlation}\"}}"),
            ..Default::default()
        };
        let answer = self.actor(EXECUTOR).start_saga(request).await.expect("started").into_inner();
        answer.change.expect("always given")
    }

    /// Gives an instance of the first tenant an event.
    pub(crate) async fn send(&self, correlation: &str, kind: &str) -> Result<v1::SagaChange, Status> {
        let request = v1::SendSagaEventRequest {
            tenant_id: ACME.to_owned(),
            saga: "order".to_owned(),
            correlation_id: correlation.to_owned(),
            event_type: kind.to_owned(),
            ..Default::default()
        };
        let answer = self.actor(EXECUTOR).send_saga_event(request).await?.into_inner();
        Ok(answer.change.expect("always given"))
    }

    /// Waits until an instance of the first tenant is at a step and of a status.
    pub(crate) async fn wait_at(&self, correlation: &str, step: &str, status: model::SagaStatus) {
        let wanted = || async {
            let found = self.summary(correlation).await?;
            (found.step.as_str() == step && found.status == status).then_some(())
        };
        wait_until(wanted, PATIENCE, &format!("{correlation} is {status} at {step}")).await;
    }

    /// All rows of the lanes of the first tenant.
    pub(crate) async fn rows(&self) -> Vec<(String, bytes::Bytes)> {
        let mut all = Vec::new();
        for shard in 0..SHARDS {
            all.extend(self.rows_of(&format!("s:{ACME}:order:{shard}")).await);
        }
        all
    }

    /// Owns the lanes of the first tenant, as another process would, until the token is cancelled.
    pub(crate) fn own_lanes(&self) -> CancellationToken {
        let stop = CancellationToken::new();
        for shard in 0..SHARDS {
            let lane = SagaLane {
                tenant: ACME.parse().expect("a tenant"),
                saga: "order".parse().expect("a name"),
                shard,
                since: None,
                definitions: self.app.definitions(),
                letters_max: SAGA_DEAD_LETTERS_MAX,
                gateway: Arc::new(self.aggregates.clone()),
                around: LaneEnvironment {
                    store: Arc::clone(&self.store),
                    broker: Arc::clone(&self.broker),
                    metrics: Arc::new(
                        Metrics::new(&prometheus::Registry::new(), SagaVisibility::default())
                            .expect("new names"),
                    ),
                    health: SagaHealth::default(),
                    bounds: saga::lane::in_flight::InFlightLimits::default(),
                    outbox_rows_max: OUTBOX_ROWS_MAX,
                    ack_wait: saga::lane::source::ACK_WAIT,
                    streams_made: crate::streams::made(),
                    has_tenants: true,
                    replica: "another".into(),
                    cut: CancellationToken::new(),
                    wake: Arc::default(),
                },
            };
            tokio::spawn(lane.own(stop.clone()));
        }
        stop
    }

    /// Returns the stored summary of an instance of the first tenant.
    pub(crate) async fn summary(&self, correlation: &str) -> Option<saga::sagas::InstanceSummary> {
        let correlation: CorrelationId = correlation.parse().expect("a correlation");
        let tenant: TenantId = ACME.parse().expect("a tenant");
        let shard = workflow::lane::shard(&tenant, &correlation, SHARDS);
        let lane = LaneKey::new(&format!("s:{tenant}:order:{shard}"));
        let key = RowKey::new(workflow::LaneRowKey::saga(&correlation).as_str());
        let rows = self.store.read(&lane, &[key]).await.expect("it can be read");
        let row = rows.into_iter().next().flatten()?;
        let record = workflow::instance::decode(&row.value).expect("a record");
        saga::sagas::InstanceSummary::of(&record)
    }
}

/// The reason of a refusal, with its code.
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Code, String) {
    let status = answer.expect_err("refused");
    let view = ErrorView::from(&status);
    (status.code(), view.reason)
}

/// Bytes that a store in a directory may have: as much as 10,000 instances with their journals need, and some more.
const STORE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Name of the service among replicas.
pub(crate) const REPLICA: &str = "one";
/// Both tenants, each with a context of its own.
pub(crate) const TENANTS: &str = "acme: { context: 1 }\nother: { context: 2 }\n";
/// Lanes of the saga of these tests.
pub(crate) const SHARDS: u8 = 2;

/// Waits for events, and can be stuck behind its pivot.
pub(crate) const ORDER: &str = r#"
kind: Saga
name: order
version: 1
shards: 2
state: { id: text, count: optional int }
sources: [{ aggregate: Order }]
on_missing: { Early: { park: 10m }, Poison: dead_letter, default: ignore }
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: wait }
steps:
  wait:
    on:
      Counted: { set: { count: "${{ event.data.count }}" }, goto: wait-on }
      Go: { goto: act }
  wait-on:
    on: { Go: { goto: act } }
  act:
    command: { aggregate: Order, id: "${{ state.id }}", type: Act, payload: { n: 1 } }
    on_success: { goto: hold }
    compensate: { command: { aggregate: Order, id: "${{ state.id }}", type: Undo, payload: {} } }
  hold:
    on: { Ship: { goto: ship }, Late: { goto: late } }
  late:
    on: { Early: { goto: ship }, Poison: { goto: ship } }
  ship:
    pivot: true
    command: { aggregate: Order, id: "${{ state.id }}", type: Ship, payload: {} }
    on_success: { goto: shipped }
  shipped:
    on: { Tell: { goto: tell } }
  tell:
    command: { aggregate: Order, id: "${{ state.id }}", type: Fail, payload: {} }
    on_success: { end: completed }
"#;
