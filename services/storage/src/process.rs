//! Storage as a process of its own.

use std::time::Duration;

use ::rpc::Mount;
use identity::TrustDomain;
use keys::Layout;
use kv::{Durability, Kv, KvEndpoint};
use model::limits;
use service::{AddressFlags, Failure, ServiceHost, ServiceLimits};

use crate::app::{App, Deps, StorageStartError};
use crate::config::Config;
use crate::flows::commits::COMMIT_NODES_MAX;
use crate::messages::routers::{HELD_MAX, HELD_WHOLE_MAX};
use crate::rpc::{
    COMMITS_IN_FLIGHT_MAX, PIECE_SECS_MAX, UPLOAD_SECS_MAX, UPLOADS_EACH_MAX, UPLOADS_MAX, policy,
};
use crate::store::ID_TRIES;
use crate::tenants::quotas::{QuotaSetting, StorageQuotas};

/// The pause before Redis is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Addresses and settings that storage needs.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// The coordinator's Redis: redis://[user[:password]@]host[:port], unix:///path, a cluster
    /// redis+cluster://[user[:password]@]host[:port],… or what Sentinels name
    /// redis+sentinel://[user[:password]@]host[:port],…/<master>
    #[arg(
        long,
        env = "MYCORA_REDIS_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "redis://127.0.0.1:6379"
    )]
    redis_url: KvEndpoint,
    /// How contexts are kept apart: `database` or `hash-tag`; in a cluster `hash-tag` only
    #[arg(long, env = "MYCORA_LAYOUT", value_name = "LAYOUT", default_value_t = Layout::Database)]
    layout: Layout,
    /// Failures that an answered change survives: `fast` those that Redis is set up for (`appendfsync everysec` may lose
    /// two seconds when Redis is killed while its disk is slow), `synced` the end of Redis' machine, `replicated` its loss
    #[arg(long, env = "MYCORA_DURABILITY", value_name = "LEVEL", default_value_t = Durability::Fast)]
    durability: Durability,
    /// The trust domain of this suite's identities
    #[arg(long, env = "MYCORA_TRUST_DOMAIN", value_name = "NAME", default_value = TrustDomain::DEFAULT)]
    trust_domain: TrustDomain,
    /// How much of something an actor or a context may have, as in context_flows_open_max=1000; may be repeated. `/info`
    /// shows all of them
    #[arg(long = "limit", env = "MYCORA_LIMITS", value_name = "NAME=NUMBER", value_delimiter = ',')]
    limits: Vec<QuotaSetting>,
    /// Which addresses actors may give.
    #[command(flatten)]
    addresses: AddressFlags,
}

impl service::App for App {
    const NAME: &'static str = "storage";
    const ABOUT: &'static str = "Owns the coordinator's Redis";
    const GRPC_PORT: Option<u16> = Some(7701);
    const OPS_PORT: u16 = 7801;
    type Config = Flags;

    fn limits(flags: &Flags) -> ServiceLimits {
        let own = ServiceLimits::from([
            ("commit_nodes_max", COMMIT_NODES_MAX as u64),
            ("commits_in_flight_max", COMMITS_IN_FLIGHT_MAX as u64),
            ("held_messages_max", HELD_MAX as u64),
            ("id_max", u64::from(u32::MAX)),
            ("id_tries_max", u64::from(ID_TRIES)),
            ("held_whole_max", HELD_WHOLE_MAX as u64),
            ("uploads_max", UPLOADS_MAX as u64),
            ("uploads_each_max", UPLOADS_EACH_MAX as u64),
            ("upload_piece_secs_max", PIECE_SECS_MAX),
            ("upload_secs_max", UPLOAD_SECS_MAX),
            ("watch_bytes_max", limits::PAGE_BYTES_MAX as u64),
        ]);
        own.into_iter().chain(StorageQuotas::with(&flags.limits).named()).collect()
    }

    async fn start(flags: Flags, mut host: ServiceHost) -> Result<(), Failure> {
        let tls = host.tls_files()?;
        // Not ready while Redis is being waited for.
        let _waiting = host.readiness.condition("redis");
        let app = loop {
            let deps =
                Deps { kv: Kv::new(flags.redis_url.clone()), trust_domain: flags.trust_domain.clone() };
            let quotas = StorageQuotas::with(&flags.limits);
            let config = Config {
                layout: flags.layout,
                durability: flags.durability,
                quotas,
                addresses: flags.addresses.rules(),
                ..Config::default()
            };
            match config.build(deps).await {
                Ok(app) => break app,
                Err(StorageStartError::Unreachable(error)) => {
                    tracing::warn!(%error, "waiting for Redis");
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        app.register_metrics(&host.metrics)?;
        // Met while the subscription to Redis stands, unmet whenever Redis goes away.
        host.readiness.include("", &app.readiness());
        host.notices.include(&app.notices());
        let builder = Mount::builder(policy()).directory(app.directory());
        let mount = app.mount_public(app.mount_internal(builder)).descriptors(proto::DESCRIPTORS).build()?;
        host.serve(mount, &tls)?;
        host.run("hints", |stop| app.run(stop));
        Ok(())
    }
}
