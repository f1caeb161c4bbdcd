//! The saga service as a process of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::rpc::{Channel, Mount, TlsFiles};
use broker::JetStream;
use http::uri::PathAndQuery;
use identity::TrustDomain;
use kv::{Durability, Kv, KvEndpoint};
use service::{AdminMethods, BadConfig, Failure, ServiceHost, ServiceLimits};
use store::{EmbeddedStore, KvStore, SharedStore, WallClock};
use tokio::signal::unix::{Signal, SignalKind, signal};
use workflow::catalog::Catalog;
use workflow::definition::{KEPT_MAX, STATE_BYTES_MAX, STEPS_MAX, TIMERS_MAX, WORK_MAX};
use workflow::input::{CALL_BYTES_MAX, INPUT_BYTES_MAX, WORK_BYTES_MAX};
use workflow::manifest::MANIFEST_BYTES_MAX;
use workflow::provider::HEARTBEAT_MIN;
use workflow::step::{HELD_BYTES_MAX, HELD_MAX};
use yaml::{Problem, Problems};

use crate::admin::Admin;
use crate::app::{App, Config, Deps, Error, FlowSuite};
use crate::command_service::{CommandService, NoGateway, SUBMIT_COMMAND};
use crate::definitions::{SAGA_VERSIONS_MAX, TENANT_SAGAS_MAX};
use crate::facts::ALONE_MAX;
use crate::lane::UNSCANNED;
use crate::lane::backlog::{OUTBOX_BYTES_MAX, OUTBOX_ROWS_MAX};
use crate::lane::gateway::Gateway;
use crate::lane::in_flight::{IN_FLIGHT_BYTES_MAX, TENANT_COMMANDS_MAX};
use crate::manifests::{BadManifests, Manifests};
use crate::nats_login::NatsLogin;
use crate::placement::{LANES_MAX, SagaReplicaIdentity, SagaReplicaRole};
use crate::providers::flow::WAITING_MAX;
use crate::quotas::{LANE_CALL_BYTES_MAX, LANE_CALLS_MAX};
use crate::rpc::{DATA_BYTES_MAX, LOOKED_AT_MAX, SCANS_MAX, policy};
use crate::sagas::{ROOM, SAGA_DEAD_LETTERS_MAX, TOMBSTONE_MILLIS};
use crate::tenants::TenantRegistry;
use crate::visibility::SagaVisibilityFlags;

/// The value of `--storage` that stands for none.
const NO_STORAGE: &str = "none";
const MIB: usize = 1024 * 1024;

/// Largest part of a drain that is left to commit and send the outcomes of calls.
const COMMIT_WITHIN: Duration = Duration::from_secs(3);

/// Flags of the service.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// Role of this process: sagas, effects, or both
    #[arg(long, env = "MYCORA_ROLE", value_enum, default_value = "combined")]
    role: RoleFlag,
    /// The operator's manifests: all `.yaml` files of this directory. Read again on SIGHUP
    #[arg(long, env = "MYCORA_MANIFESTS", value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// Tenants that have sagas: a file that maps them to their contexts. Without it there are no tenants
    #[arg(long, env = "MYCORA_TENANTS", value_name = "FILE")]
    tenants: Option<PathBuf>,
    /// The context that everything belongs to where there are no tenants
    #[arg(long, env = "MYCORA_CONTEXT", value_name = "NUMBER", default_value_t = 1)]
    context: u32,
    /// Secrets that providers name: a file for each, those of a tenant in a directory of its name [default: the environment, as
    /// MYCORA_SECRET_<NAME>]
    #[arg(long, env = "MYCORA_SECRETS", value_name = "DIR")]
    secrets: Option<PathBuf>,
    /// Where rows are kept, by this process alone
    #[arg(long, env = "MYCORA_STORE_DIR", value_name = "DIR", default_value = "/var/lib/mycora/saga")]
    store_dir: PathBuf,
    /// Room for rows in that directory
    #[arg(long, env = "MYCORA_STORE_MAX_MIB", value_name = "MIB", default_value_t = 16 * 1024)]
    store_max_mib: usize,
    /// Keep rows in this Redis instead of a directory
    #[arg(long, env = "MYCORA_REDIS_URL", hide_env_values = true, value_name = "URL")]
    redis_url: Option<KvEndpoint>,
    /// Name of this process among those that share that Redis: the same after a restart, different for each [default: the name of
    /// the machine and the number of the process]
    #[arg(long, env = "MYCORA_REPLICA", value_name = "NAME")]
    replica: Option<String>,
    /// Share of lanes that this process owns beside others of that Redis
    #[arg(long, env = "MYCORA_REPLICA_WEIGHT", value_name = "NUMBER", default_value_t = 1)]
    replica_weight: u32,
    /// The NATS server, with JetStream
    #[arg(long, env = "MYCORA_NATS_URL", value_name = "URL", default_value = "nats://127.0.0.1:4222")]
    nats_url: String,
    #[command(flatten)]
    nats: NatsLogin,
    #[command(flatten)]
    seeing: SagaVisibilityFlags,
    /// Where effects that are flows are run: the scheduler
    #[arg(long, env = "MYCORA_SCHEDULER", value_name = "URL")]
    scheduler: Option<String>,
    /// The storage service, which knows actors and their roles, and takes what flows carry along. `none`: no actor is let in
    #[arg(long, env = "MYCORA_STORAGE", value_name = "URL", default_value = "https://127.0.0.1:7701")]
    storage: String,
    /// The trust domain of that suite
    #[arg(long, env = "MYCORA_TRUST_DOMAIN", value_name = "NAME", default_value = TrustDomain::DEFAULT)]
    trust_domain: TrustDomain,
    /// Gateway that takes commands of aggregates
    #[arg(long, env = "MYCORA_GATEWAY", value_name = "URL")]
    gateway: Option<String>,
    /// The method that takes them
    #[arg(long, env = "MYCORA_GATEWAY_METHOD", value_name = "PATH", default_value = SUBMIT_COMMAND)]
    gateway_method: PathAndQuery,
}

/// Role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RoleFlag {
    /// Sagas
    Saga,
    /// Effects
    Effect,
    /// Both
    Combined,
}

impl Flags {
    async fn store(&self) -> Result<Arc<dyn KvStore>, Failure> {
        let Some(url) = &self.redis_url else {
            std::fs::create_dir_all(&self.store_dir)?;
            let bytes = self.store_max_mib.saturating_mul(MIB);
            return Ok(Arc::new(EmbeddedStore::open(&self.store_dir, bytes, WallClock)?));
        };
        let store = SharedStore::open(Kv::new(url.clone()), Durability::Synced, &UNSCANNED).await?;
        Ok(Arc::new(store))
    }

    /// Returns the identity of this process among those that share its store.
    fn identity(&self) -> Result<SagaReplicaIdentity, Failure> {
        let is_placed = self.replica.is_some() || self.replica_weight != 1;
        if self.redis_url.is_none() && is_placed {
            let why = "--replica and --replica-weight place lanes over several processes, and the store in --store-dir belongs to \
                one: name a Redis with --redis-url";
            return Err(BadConfig(why.into()).into());
        }
        let identity = match &self.replica {
            Some(name) => SagaReplicaIdentity::new(name, self.replica_weight),
            None => SagaReplicaIdentity::of_process(self.replica_weight),
        };
        Ok(identity.map_err(|why| BadConfig(why.into()))?)
    }

    /// How long calls may take to end, so that the rest of the drain is enough to commit their outcomes.
    fn grace(drain_deadline: Duration) -> Duration {
        drain_deadline.saturating_sub((drain_deadline / 4).min(COMMIT_WITHIN))
    }

    /// Channel to storage; `None` where it is not wanted.
    fn storage(&self, tls: &TlsFiles) -> Result<Option<Channel>, Failure> {
        if self.storage == NO_STORAGE {
            return Ok(None);
        }
        Ok(Some(Channel::remote(&self.storage, tls, Some("storage"))?))
    }

    /// Suite that runs flows; `None` where that is not wanted.
    fn flows(&self, tls: &TlsFiles, storage: Option<&Channel>) -> Result<Option<FlowSuite>, Failure> {
        let Some(url) = &self.scheduler else { return Ok(None) };
        let storage = storage.ok_or("flows need the storage of their suite: name it with --storage")?.clone();
        let scheduler = Channel::remote(url, tls, Some("scheduler"))?;
        Ok(Some(FlowSuite { scheduler, storage, trust_domain: self.trust_domain.clone() }))
    }

    fn broker(&self) -> Result<JetStream, Failure> {
        let options = self.nats.options(&self.nats_url, "mycora-saga")?;
        Ok(JetStream::start(options)?)
    }

    /// Reads the tenants. If that fails, the error has everything that is wrong with the manifests as well.
    fn tenants(&self) -> Result<TenantRegistry, BadManifests> {
        let Some(file) = &self.tenants else { return Ok(TenantRegistry::single(self.context)) };
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|error| {
            Problems::new(&name, vec![Problem { place: None, message: format!("cannot be read: {error}") }])
        });
        text.and_then(|text| TenantRegistry::read(&name, &text)).map_err(|found| {
            let mut all = vec![found];
            let manifests = self
                .manifests
                .as_deref()
                .map(|directory| Manifests::read(directory)?.catalog(&Catalog::default(), &[]).map(drop));
            if let Some(Err(BadManifests(more))) = manifests {
                all.extend(more);
            }
            BadManifests(all)
        })
    }
}

/// Returns the bounds of definitions, instances and requests, under the names that `/info` gives.
#[must_use]
pub fn limits() -> ServiceLimits {
    ServiceLimits::from([
        ("saga_steps_max", STEPS_MAX as u64),
        ("saga_state_bytes_max", STATE_BYTES_MAX as u64),
        ("saga_input_bytes_max", INPUT_BYTES_MAX as u64),
        ("saga_data_bytes_max", DATA_BYTES_MAX as u64),
        ("saga_work_max", WORK_MAX as u64),
        ("saga_work_bytes_max", WORK_BYTES_MAX as u64),
        ("saga_call_bytes_max", CALL_BYTES_MAX as u64),
        ("saga_timers_max", TIMERS_MAX as u64),
        ("saga_events_kept_max", KEPT_MAX as u64),
        ("saga_inputs_held_max", HELD_MAX),
        ("saga_input_bytes_held_max", HELD_BYTES_MAX),
        ("saga_outbox_rows_max", OUTBOX_ROWS_MAX as u64),
        ("saga_outbox_bytes_max", OUTBOX_BYTES_MAX as u64),
        ("replica_lanes_max", LANES_MAX as u64),
        ("saga_in_flight_bytes_max", IN_FLIGHT_BYTES_MAX as u64),
        ("lane_in_flight_max", ROOM.items as u64),
        ("lane_in_flight_bytes_max", ROOM.bytes as u64),
        ("saga_instance_in_flight_max", ROOM.per_correlation as u64),
        ("tenant_commands_at_once_max", TENANT_COMMANDS_MAX as u64),
        ("effect_calls_open_max", LANE_CALLS_MAX),
        ("effect_calls_open_bytes_max", LANE_CALL_BYTES_MAX),
        ("manifest_bytes_max", MANIFEST_BYTES_MAX as u64),
        ("saga_versions_max", SAGA_VERSIONS_MAX as u64),
        ("tenant_sagas_max", TENANT_SAGAS_MAX as u64),
        ("saga_ended_keep_secs", TOMBSTONE_MILLIS / 1000),
        ("saga_letters_max", SAGA_DEAD_LETTERS_MAX),
        ("saga_list_rows_max", LOOKED_AT_MAX as u64),
        ("saga_list_reads_max", SCANS_MAX as u64),
        ("saga_watches_behind_max", ALONE_MAX as u64),
        ("flow_heartbeat_secs_min", HEARTBEAT_MIN.as_secs()),
        ("tenant_flows_waiting_max", WAITING_MAX as u64),
    ])
}

impl service::App for App {
    const NAME: &'static str = "saga";
    const ABOUT: &'static str =
        "Runs sagas: waits for events, orders work and undoes it, and makes the calls";
    const GRPC_PORT: Option<u16> = Some(7708);
    const OPS_PORT: u16 = 7808;
    const ADMIN: Option<AdminMethods> =
        Some(AdminMethods { drain: "mycora.v1.SagaService/Drain", reload: "mycora.v1.SagaService/Reload" });
    type Config = Flags;

    fn limits(_: &Flags) -> ServiceLimits {
        limits()
    }

    async fn start(flags: Flags, mut host: ServiceHost) -> Result<(), Failure> {
        let tls = host.tls_files()?;
        let gateway: Arc<dyn Gateway> = match &flags.gateway {
            Some(url) => {
                let channel = Channel::remote(url, &tls, None)?;
                Arc::new(CommandService::new(channel, flags.gateway_method.clone()))
            }
            None => Arc::new(NoGateway),
        };
        let config = Config {
            role: SagaReplicaRole {
                sagas: flags.role != RoleFlag::Effect,
                effects: flags.role != RoleFlag::Saga,
            },
            manifests: flags.manifests.clone(),
            tenants: flags.tenants().map_err(unusable)?,
            secrets: flags.secrets.clone(),
            replica: flags.identity()?,
            grace: Flags::grace(host.drain_deadline),
            seeing: flags.seeing.seeing(),
            lanes_max: LANES_MAX,
        };
        let storage = flags.storage(&tls)?;
        let flows = flags.flows(&tls, storage.as_ref())?;
        let (store, broker) = (flags.store().await?, Arc::new(flags.broker()?));
        let deps = Deps { store, broker, gateway, flows, storage, metrics: &host.metrics };
        let app = App::new(config, deps)?;
        let app = Arc::new(match &flags.tenants {
            Some(file) => app.with_tenants_file(file.clone()),
            None => app,
        });
        app.reload().await.map_err(|error| match error {
            Error::Manifests(found) => unusable(found),
            error => error.into(),
        })?;
        let builder = Mount::builder(policy()).descriptors(proto::DESCRIPTORS);
        let builder = match app.directory() {
            Some(directory) => builder.directory(directory),
            None => builder,
        };
        host.serve(app.mount_public(builder, host.shutdown.clone()).build()?, &tls)?;
        host.readiness.include("", &app.readiness());
        if let Some(admin) = &host.admin {
            admin.handle_with(Admin { app: Arc::clone(&app), shutdown: host.shutdown.clone() });
        }
        let hangups = signal(SignalKind::hangup())?;
        host.run("lanes", |stop| async move {
            tokio::select! {
                () = app.run(stop) => {}
                () = reload_at(hangups, &app) => {}
            }
        });
        Ok(())
    }
}

/// Failure of a start whose manifests or tenants are wrong.
fn unusable(found: BadManifests) -> Failure {
    BadConfig(found.into()).into()
}

/// Reads the operator's files again at each hangup.
async fn reload_at(mut hangups: Signal, app: &App) {
    while hangups.recv().await.is_some() {
        match app.reload().await {
            Ok(changes) => tracing::info!(changes = changes.len(), "manifests and tenants were read again"),
            Err(error) => tracing::error!("reload refused, the former files stay in force: {error}"),
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_as_written() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../specs/limits.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let (_, sagas) = page.split_once("\n## Sagas\n").expect("a part about sagas");
        let rows: Vec<_> = sagas.lines().filter(|line| line.contains("| `")).collect();
        let is_written = |(name, value): &(&str, u64)| {
            rows.iter().any(|row| row.starts_with(&format!("| {value} | `{name}` |")))
        };
        let missing: Vec<_> = limits().into_iter().filter(|limit| !is_written(limit)).collect();
        assert!(missing.is_empty(), "not in specs/limits.md: {missing:#?}");
        assert_eq!(rows.len(), limits().len(), "the page has others");
    }
}
