//! The services of an all-in-one, wired through in-memory connections.

mod machine;
mod saga;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use identity::{Identity, ServiceName, TrustDomain};
use kv::Kv;
use model::Timestamp;
use model::address_rules::AddressRules;
use mycelium::{Bus, JoinedBus, MemoryNetwork, PublicKey};
use mycelium_gateway::dial;
use prometheus::Registry;
use rpc::{Channel, LocalServer, MethodPolicy, Mount, MountBuilder, Server};
use sandbox::IsolationSupport;
use service::{
    CertificateMetrics, OperatorNotices, Ops, OpsAccess, OpsListener, Readiness, ServiceDescription,
    ServiceLimits,
};
use storage::StorageQuotas;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use self::machine::{end_scripts, runner_addresses};
use super::certificates::Certificates;
use super::directory::DataDir;
use super::info::limits;
use super::redis_backend::RedisBackend;
use super::saga::NatsBackend;
use super::{SuiteListeners, UpError, UpOptions, WORK_DIR};
use crate::bootstrap::{self, ACTOR};

/// How long the services may take to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long open calls, and scripts that run, may go on after the stop was requested.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// How long scripts may go on when Redis is lost: their ends cannot be recorded.
const JOBS_WITHOUT_REDIS: Duration = Duration::from_secs(5);
/// Time that services may take to end when Redis is lost: they cannot write anything either.
const SERVICES_WITHOUT_REDIS: Duration = Duration::from_secs(2);
/// The name of the one scheduler: its lease is taken over at once after a restart.
const SCHEDULER_NAME: &str = "local";
/// The name of the one router: what it held is given back to it after a restart.
const ROUTER_NAME: &str = "local";
/// The Ed25519 key of actor 1.
pub(super) const ACTOR_KEY: &str = "actor-1.ed25519";
/// The group of the runners that are started here.
const GROUP: &str = "default";
/// Files that hold the keys of the two nodes on the in-memory bus.
const GATEWAY_NODE: &str = "gateway.node";
const SUPERVISOR_NODE: &str = "supervisor.node";

/// Parts that a suite is made from.
pub(super) struct SuiteParts<'a> {
    pub(super) dir: &'a DataDir,
    pub(super) redis: &'a RedisBackend,
    pub(super) nats: Option<&'a NatsBackend>,
    pub(super) certificates: &'a Certificates,
    pub(super) options: &'a UpOptions,
    /// Where clients are served.
    pub(super) served: SocketAddr,
}

/// Everything that runs.
pub(super) struct Suite {
    tasks: JoinSet<&'static str>,
    runner: Option<runner::RunnerHandle>,
    /// Arguments that start the runners, also again after their machine was drained.
    runner_start: Option<(runner::RunnerSettings, Kv, u32)>,
    /// Ends the services, after the runners have ended.
    stop: CancellationToken,
    /// Ends storage, after everyone who leans on it.
    stop_storage: CancellationToken,
    storage: Option<JoinHandle<()>>,
    /// Ends what comes in from outside, at once.
    serving: CancellationToken,
    readiness: Readiness,
    notices: OperatorNotices,
}

/// Where each service is put once it is built.
struct LocalServers {
    storage: LocalServer,
    scheduler: LocalServer,
    registry: LocalServer,
    gateway: LocalServer,
}

impl Suite {
    /// Builds every service, starts it, and returns when all are ready and the port serves.
    pub(super) async fn start(
        parts: SuiteParts<'_>,
        listeners: SuiteListeners,
        serving: CancellationToken,
    ) -> Result<Self, UpError> {
        let metrics = Registry::new();
        let mut suite = Self {
            tasks: JoinSet::new(),
            runner: None,
            runner_start: None,
            stop: CancellationToken::new(),
            stop_storage: CancellationToken::new(),
            storage: None,
            serving,
            readiness: Readiness::new(),
            notices: OperatorNotices::default(),
        };
        let started = suite.readiness.condition("start");
        let access = OpsAccess::Token(super::ops_token(parts.dir)?);
        let SuiteListeners { port: listener, ops, mesh } = listeners;
        suite.serve_ops(ops, metrics.clone(), limits(parts.options), access);
        let mount = suite.build(&parts, &metrics).await?;
        mount.bound_actors(parts.options.actor_calls);
        let tls = parts.certificates.server();
        let server = Server::new(mount.clone(), &tls).map_err(build_error("the port"))?;
        mount.metrics().register(&metrics).map_err(build_error("the metrics"))?;
        metrics.register(Box::new(CertificateMetrics::of(&tls))).map_err(build_error("the metrics"))?;
        let server = match mesh {
            Some((sidecar, trust)) => server.mesh(sidecar, trust),
            None => server,
        };
        let serving = suite.serving.clone();
        suite.tasks.spawn(async move {
            let served =
                server.drain_deadline(DRAIN_DEADLINE).serve(listener, serving.cancelled_owned()).await;
            if let Err(error) = served {
                tracing::error!(%error, "the port cannot be served any more");
            }
            "the port"
        });
        tokio::spawn(mount.health().clone().follow(suite.readiness.subscribe()));
        started.met();
        wait_ready("mycora", &suite.readiness).await?;
        Ok(suite)
    }

    /// Returns the isolation of this machine's scripts from everything else; nothing where none run.
    pub(super) fn isolation(&self) -> Option<&IsolationSupport> {
        self.runner.as_ref().map(runner::RunnerHandle::isolation_support)
    }

    /// Waits until a part has ended by itself. Runners that ended because their machine was drained are restarted:
    /// the supervisor decides whether they get jobs.
    pub(super) async fn wait_until_failed(&mut self) -> UpError {
        loop {
            if let Some(error) = self.part_ended().await {
                return error;
            }
            tracing::info!("restarting the runners, which ended because they were drained");
            if let Err(error) = self.start_runner().await {
                return error;
            }
        }
    }

    /// Waits for a part to end, and returns its error; nothing for runners that were drained.
    async fn part_ended(&mut self) -> Option<UpError> {
        let runner = async {
            match &mut self.runner {
                Some(runner) => runner.ended().await,
                None => std::future::pending().await,
            }
        };
        let storage = async {
            match &mut self.storage {
                Some(storage) => storage.await,
                None => std::future::pending().await,
            }
        };
        Some(tokio::select! {
            ended = storage => match ended {
                Ok(()) => UpError::Ended { service: "storage" },
                Err(error) => UpError::Task(format!("storage: {error}")),
            },
            Some(ended) = self.tasks.join_next() => match ended {
                Ok(service) => UpError::Ended { service },
                Err(error) => UpError::Task(error.to_string()),
            },
            ended = runner => match ended {
                Ok(()) => return None,
                Err(error) => UpError::Task(format!("runner: {error}")),
            },
        })
    }

    /// Ends the runners first, so that what they report is still taken up, and the services then. Without
    /// Redis nothing can be reported any more: then all of it is cut after a short while.
    pub(super) async fn drain(mut self, redis: &mut RedisBackend, dir: &DataDir) {
        self.readiness.close("ending");
        self.serving.cancel();
        if let Some(runner) = self.runner.take() {
            let cut = async {
                redis.wait_until_lost().await;
                tokio::time::sleep(JOBS_WITHOUT_REDIS).await;
            };
            let drained = tokio::select! {
                () = runner.drain() => true,
                () = cut => false,
            };
            if !drained {
                end_scripts(dir.join(WORK_DIR)).await;
            }
        }
        self.stop.cancel();
        let deadline = if redis.is_lost() { SERVICES_WITHOUT_REDIS } else { DRAIN_DEADLINE };
        let (stop_storage, storage) = (self.stop_storage.clone(), self.storage.take());
        let ended = async {
            while self.tasks.join_next().await.is_some() {}
            stop_storage.cancel();
            if let Some(storage) = storage {
                // Whether it panicked does not matter any more.
                let _ = storage.await;
            }
        };
        if tokio::time::timeout(deadline, ended).await.is_err() {
            tracing::warn!("some services did not end in time and are cut");
            self.tasks.abort_all();
        }
    }

    fn serve_ops(
        &mut self,
        listener: TcpListener,
        metrics: Registry,
        limits: ServiceLimits,
        access: OpsAccess,
    ) {
        let info = ServiceDescription { name: "mycora", version: service::version(), limits };
        let ops = Ops::new(info, self.readiness.clone(), metrics, access).with_notices(self.notices.clone());
        let listener = OpsListener::Tcp(listener);
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            if let Err(error) = ops.serve(listener, stop.cancelled_owned()).await {
                tracing::error!(%error, "the ops port cannot be served any more");
            }
            "the ops port"
        });
    }

    /// Runs a service until `stop`; that it ends before is a failure.
    fn spawn(&mut self, name: &'static str, service: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            service.await;
            name
        });
    }

    /// Builds every service in the order of who needs whom, and gives what the port offers.
    async fn build(&mut self, parts: &SuiteParts<'_>, metrics: &Registry) -> Result<Mount, UpError> {
        let places = LocalServers {
            storage: LocalServer::new("storage"),
            scheduler: LocalServer::new("scheduler"),
            registry: LocalServer::new("runner-registry"),
            gateway: LocalServer::new("mycelium-gateway"),
        };
        // Both of its nodes are in this program, so their messages to each other are not signed.
        let network = MemoryNetwork::within_one_program();
        let policy = MethodPolicy::new(&[
            storage::PUBLIC_POLICY,
            scheduler::rpc::PUBLIC_POLICY,
            runner_registry::rpc::PUBLIC_POLICY,
            mycelium_gateway::rpc::PUBLIC_POLICY,
            supervisor::rpc::PUBLIC_POLICY,
            router::rpc::PUBLIC_POLICY,
            ::saga::rpc::PUBLIC_POLICY,
        ]);
        let policy = policy
            .and_then(|policy| policy.with_administrative(storage::ADMINISTRATIVE))
            .and_then(|policy| policy.with_administrative(runner_registry::rpc::ADMINISTRATIVE));
        let mount = Mount::builder(policy.map_err(build_error("the method policy"))?);
        let mount = self.storage(&places, parts, metrics, mount).await?;
        let admin = Channel::local(places.storage.handle(), Identity::Admin);
        bootstrap::create_actor_and_context(&parts.dir.join(ACTOR_KEY), admin).await?;
        let mount = self.registry(&places, metrics, mount).await?;
        let mount = self.machine(parts, metrics, &network, mount).await?;
        let actor = Channel::local(places.registry.handle(), Identity::Actor(ACTOR));
        bootstrap::register_runners(actor.clone(), &runner_addresses(parts)?).await?;
        let mount = self.gateway(&places, parts, metrics, &network, mount)?;
        self.runner_seen(actor, parts).await?;
        let mount = self.scheduler(&places, metrics, mount).await?;
        let mount = self.router(&places, metrics, mount)?;
        let mount = self.saga(&places, parts, metrics, mount).await?;
        mount.descriptors(proto::DESCRIPTORS).build().map_err(build_error("the port"))
    }

    async fn storage(
        &mut self,
        places: &LocalServers,
        parts: &SuiteParts<'_>,
        metrics: &Registry,
        mount: MountBuilder,
    ) -> Result<MountBuilder, UpError> {
        let deps =
            storage::Deps { kv: Kv::new(parts.redis.endpoint()), trust_domain: TrustDomain::default() };
        let quotas = StorageQuotas::with(&parts.options.limits);
        let (durability, addresses) = (parts.options.durability, addresses(parts.options));
        let layout = parts.redis.layout();
        let config = storage::Config { layout, durability, addresses, quotas, ..storage::Config::default() };
        let app = config.build(deps).await.map_err(build_error("storage"))?;
        app.register_metrics(metrics).map_err(build_error("the metrics"))?;
        let mount = app.mount_public(mount).directory(app.directory());
        let readiness = app.readiness();
        self.readiness.include("storage", &readiness);
        match parts.redis.promise(durability) {
            Some(promise) => self.notices.notice(storage::DURABILITY).set(Some(promise)),
            None => self.notices.include(&app.notices()),
        }
        let tables = [storage::PUBLIC_POLICY, storage::INTERNAL_POLICY];
        publish(&places.storage, &readiness, &tables, |all| app.mount_public(app.mount_internal(all)))?;
        self.storage = Some(tokio::spawn(app.run(self.stop_storage.clone())));
        Ok(mount)
    }

    async fn registry(
        &mut self,
        places: &LocalServers,
        metrics: &Registry,
        mount: MountBuilder,
    ) -> Result<MountBuilder, UpError> {
        let deps = runner_registry::Deps {
            storage: channel(&places.storage, ServiceName::RunnerRegistry),
            clock: clock(),
            metrics,
        };
        let app = runner_registry::Config::default().build(deps).map_err(build_error("runner-registry"))?;
        let mount = app.mount_public(mount);
        let tables = [runner_registry::rpc::PUBLIC_POLICY, runner_registry::rpc::INTERNAL_POLICY];
        let readiness = app.readiness();
        self.readiness.include("runner-registry", &readiness);
        publish(&places.registry, &readiness, &tables, |all| app.mount_public(app.mount_internal(all)))?;
        self.spawn("runner-registry", app.run(self.stop.clone()));
        wait_ready("runner-registry", &readiness).await?;
        Ok(mount)
    }

    fn gateway(
        &mut self,
        places: &LocalServers,
        parts: &SuiteParts<'_>,
        metrics: &Registry,
        network: &MemoryNetwork,
        mount: MountBuilder,
    ) -> Result<MountBuilder, UpError> {
        let near = network.node(node_key(parts.dir, GATEWAY_NODE)?);
        let bus: Arc<dyn Bus> =
            match parts.options.mycelium.bus(metrics).map_err(build_error("the Mycelium bus"))? {
                Some(far) => Arc::new(JoinedBus::new(near, far)),
                None => Arc::new(near),
            };
        let deps = mycelium_gateway::Deps {
            storage: channel(&places.storage, ServiceName::MyceliumGateway),
            registry: channel(&places.registry, ServiceName::MyceliumGateway),
            bus: Some(bus),
            dial: dial(parts.certificates.gateway(), addresses(parts.options)),
            dial_others: dial(parts.certificates.gateway().without_certificate(), addresses(parts.options)),
            sealer: parts.certificates.sealer()?,
            metrics,
        };
        let signing = Some(parts.certificates.signing());
        let mail = parts.options.mail.clone();
        let config = mycelium_gateway::Config { signing, mail, ..mycelium_gateway::Config::default() };
        let app = config.build(deps).map_err(build_error("mycelium-gateway"))?;
        let mount = app.mount_public(mount);
        let tables = [mycelium_gateway::rpc::PUBLIC_POLICY, mycelium_gateway::rpc::INTERNAL_POLICY];
        let readiness = app.readiness();
        self.readiness.include("mycelium-gateway", &readiness);
        publish(&places.gateway, &readiness, &tables, |all| app.mount_public(app.mount_internal(all)))?;
        self.spawn("mycelium-gateway", app.run(self.stop.clone()));
        Ok(mount)
    }

    async fn scheduler(
        &mut self,
        places: &LocalServers,
        metrics: &Registry,
        mount: MountBuilder,
    ) -> Result<MountBuilder, UpError> {
        let deps = scheduler::Deps {
            storage: channel(&places.storage, ServiceName::Scheduler),
            registry: channel(&places.registry, ServiceName::Scheduler),
            metrics,
        };
        // Without an address: this process has no other replica.
        let config = scheduler::Config::new(SCHEDULER_NAME, "");
        let app = config.build(deps).map_err(build_error("scheduler"))?;
        let mount = app.mount_public(mount);
        let tables = [scheduler::rpc::PUBLIC_POLICY, scheduler::rpc::INTERNAL_POLICY];
        let readiness = app.readiness();
        self.readiness.include("scheduler", &readiness);
        publish(&places.scheduler, &readiness, &tables, |all| app.mount_public(app.mount_internal(all)))?;
        self.spawn("scheduler", app.run(self.stop.clone()));
        wait_ready("scheduler", &readiness).await?;
        Ok(mount)
    }

    fn router(
        &mut self,
        places: &LocalServers,
        metrics: &Registry,
        mount: MountBuilder,
    ) -> Result<MountBuilder, UpError> {
        let deps = router::Deps {
            storage: channel(&places.storage, ServiceName::Router),
            gateway: channel(&places.gateway, ServiceName::Router),
            schedulers: dial_scheduler(&places.scheduler),
            registry: channel(&places.registry, ServiceName::Router),
            clock: clock(),
            metrics,
        };
        let config = router::Config { name: ROUTER_NAME.to_owned(), ..router::Config::default() };
        let app = config.build(deps).map_err(build_error("router"))?;
        let mount = app.mount_public(mount);
        self.readiness.include("router", &app.readiness());
        self.spawn("router", app.run(self.stop.clone()));
        Ok(mount)
    }
}

/// A way to a service, as another one.
fn channel(place: &LocalServer, caller: ServiceName) -> Channel {
    Channel::local(place.handle(), Identity::Service(caller))
}

/// The way to the one scheduler of this process, whatever its name.
fn dial_scheduler(place: &LocalServer) -> router::DialScheduler {
    let channel = channel(place, ServiceName::Router);
    Arc::new(move |_| Ok(channel.clone()))
}

/// Offers a service to the others of this process, and reports its own health to them; clients from outside see the
/// health of all services together.
fn publish(
    place: &LocalServer,
    readiness: &Readiness,
    tables: &[rpc::PolicyTable<'_>],
    add: impl FnOnce(MountBuilder) -> MountBuilder,
) -> Result<(), UpError> {
    let mount = mounted(tables, add)?;
    // Nothing is lost with this task, so its end is not awaited.
    tokio::spawn(mount.health().clone().follow(readiness.subscribe()));
    place.publish(&mount);
    Ok(())
}

/// The mount of a service. The gate must know which of its methods have one answer, as it does where the service is a process.
fn mounted(
    tables: &[rpc::PolicyTable<'_>],
    add: impl FnOnce(MountBuilder) -> MountBuilder,
) -> Result<Mount, UpError> {
    let policy = MethodPolicy::new(tables).map_err(build_error("a method policy"))?;
    add(Mount::builder(policy)).descriptors(proto::DESCRIPTORS).build().map_err(build_error("a service"))
}

/// Which addresses are dialed: those that the options name always are.
fn addresses(options: &UpOptions) -> AddressRules {
    options.addresses.clone().with_addresses(&options.runners)
}

fn clock() -> Arc<dyn Fn() -> Timestamp + Send + Sync> {
    Arc::new(Timestamp::now)
}

/// The key of a node on the in-memory bus: made once, since runner records and
/// unanswered events name it.
fn node_key(dir: &DataDir, name: &str) -> Result<PublicKey, UpError> {
    let text = dir.read_or_create(name, || PublicKey::random().to_string())?;
    text.parse().map_err(build_error("the in-memory bus"))
}

async fn wait_ready(service: &'static str, readiness: &Readiness) -> Result<(), UpError> {
    let patience = tokio::time::timeout(READY_TIMEOUT, readiness.ready()).await;
    patience.map_err(|_| {
        let missing = readiness.missing().into_iter().map(|(name, why)| format!("{name}: {why}"));
        let missing = missing.collect::<Vec<_>>().join("; ");
        UpError::NotReady { service, secs: READY_TIMEOUT.as_secs(), missing }
    })
}

fn build_error<E>(service: &'static str) -> impl FnOnce(E) -> UpError
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |source| UpError::Build { service, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use proto::internal::v1::blob_store_service_server::{BlobStoreService, BlobStoreServiceServer};
    use proto::internal::v1::{ReadBlobRequest, ReadBlobResponse, WriteBlobRequest, WriteBlobResponse};
    use rpc::Allow;
    use tonic::{Request, Response, Status};

    use super::*;

    struct UnimplementedBlobStore;

    #[tonic::async_trait]
    impl BlobStoreService for UnimplementedBlobStore {
        async fn read_blob(&self, _: Request<ReadBlobRequest>) -> Result<Response<ReadBlobResponse>, Status> {
            Err(Status::unimplemented("nobody reads"))
        }

        async fn write_blob(
            &self,
            _: Request<WriteBlobRequest>,
        ) -> Result<Response<WriteBlobResponse>, Status> {
            Err(Status::unimplemented("nobody writes"))
        }
    }

    #[test]
    fn the_gate_knows_the_methods_of_services_of_this_process() {
        let mounted = |method: &str| {
            let all = "/mycora.internal.v1.BlobStoreService/*";
            let table = [(all, &[Allow::AnyService][..]), (method, &[Allow::AnyService])];
            mounted(&[&table], |mount| mount.service(BlobStoreServiceServer::new(UnimplementedBlobStore)))
                .map(drop)
        };
        mounted("/mycora.internal.v1.BlobStoreService/ReadBlob").expect("it is there");
        mounted("/mycora.internal.v1.BlobStoreService/Other").expect_err("no such method, as is known");
    }
}
