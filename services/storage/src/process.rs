//! Storage as a process of its own.

use std::time::Duration;

use ::rpc::Mount;
use identity::TrustDomain;
use keys::Layout;
use kv::{Endpoint, Kv};
use model::limits;
use service::{Failure, Host, Limits};

use crate::app::{App, Deps, StartError};
use crate::commits::COMMIT_NODES_MAX;
use crate::config::Config;
use crate::durability::Durability;
use crate::routers::{HELD_MAX, HELD_WHOLE_MAX};
use crate::rpc::{COMMITS_IN_FLIGHT_MAX, policy};

/// The pause before Redis is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Where storage finds what it needs.
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
    redis_url: Endpoint,
    /// How contexts are kept apart: `database` or `hash-tag`; in a cluster `hash-tag` only
    #[arg(long, env = "MYCORA_LAYOUT", value_name = "LAYOUT", default_value_t = Layout::Database)]
    layout: Layout,
    /// What an answered change survives: `fast`, `synced` or `replicated`
    #[arg(long, env = "MYCORA_DURABILITY", value_name = "LEVEL", default_value_t = Durability::Fast)]
    durability: Durability,
    /// The trust domain of this suite's identities
    #[arg(long, env = "MYCORA_TRUST_DOMAIN", value_name = "NAME", default_value = TrustDomain::DEFAULT)]
    trust_domain: TrustDomain,
}

impl service::App for App {
    const NAME: &'static str = "storage";
    const ABOUT: &'static str = "Owns the coordinator's Redis";
    const GRPC_PORT: Option<u16> = Some(7701);
    const OPS_PORT: u16 = 7801;
    type Config = Flags;

    fn limits(_: &Flags) -> Limits {
        Limits::from([
            ("commit_records_max", limits::COMMIT_RECORDS_MAX as u64),
            ("commit_nodes_max", COMMIT_NODES_MAX as u64),
            ("commit_bytes_max", limits::COMMIT_BYTES_MAX as u64),
            ("commits_in_flight_max", COMMITS_IN_FLIGHT_MAX as u64),
            ("held_messages_max", HELD_MAX as u64),
            ("held_whole_max", HELD_WHOLE_MAX as u64),
            ("file_bytes_max", limits::FILE_BYTES_MAX as u64),
            ("blob_chunk_bytes", limits::BLOB_CHUNK_BYTES as u64),
            ("log_tail_bytes_max", limits::LOG_TAIL_BYTES_MAX as u64),
            ("watch_buffer", limits::WATCH_BUFFER as u64),
            ("watch_bytes_max", limits::PAGE_BYTES_MAX as u64),
            ("flow_inputs_max", limits::FLOW_INPUTS_MAX as u64),
            ("flow_signals_max", limits::FLOW_SIGNALS_MAX as u64),
            ("inbox_max", limits::INBOX_MAX as u64),
            ("inbox_bytes_max", limits::INBOX_BYTES_MAX as u64),
            ("messages_done_max", limits::MESSAGES_DONE_MAX as u64),
            ("msg_in_max", limits::MSG_IN_MAX as u64),
            ("message_text_bytes_max", limits::MESSAGE_TEXT_BYTES_MAX as u64),
            ("page_size_max", u64::from(limits::PAGE_SIZE_MAX)),
            ("page_bytes_max", limits::PAGE_BYTES_MAX as u64),
        ])
    }

    async fn start(flags: Flags, mut host: Host) -> Result<(), Failure> {
        let tls = host.tls_files()?;
        // Not ready while Redis is being waited for.
        let _waiting = host.readiness.condition("redis");
        let app = loop {
            let deps =
                Deps { kv: Kv::new(flags.redis_url.clone()), trust_domain: flags.trust_domain.clone() };
            let config = Config { layout: flags.layout, durability: flags.durability, ..Config::default() };
            match config.build(deps).await {
                Ok(app) => break app,
                Err(StartError::Unreachable(error)) => {
                    tracing::warn!(%error, "waiting for Redis");
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        // Unmet again whenever Redis goes away.
        host.ready_while("redis", app.connected());
        let builder = Mount::builder(policy()).directory(app.directory());
        let mount = app.mount_public(app.mount_internal(builder)).descriptors(proto::DESCRIPTORS).build()?;
        host.serve(mount, &tls)?;
        host.run("hints", |stop| app.run(stop));
        Ok(())
    }
}
