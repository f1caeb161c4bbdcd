//! The supervisor as a process of its own.

use std::path::PathBuf;

use ::rpc::{MethodPolicy, Mount};
use kv::{Endpoint, Kv};
use model::limits;
use service::{Failure, Host, Limits};

use crate::app::{App, Deps};
use crate::config::Config;
use crate::legacy::Bindings;
use crate::rpc::PUBLIC_POLICY;

/// What the supervisor is told.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// The supervisor's own Redis, which it shares with its instances
    #[arg(
        long,
        env = "MYCORA_REDIS_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "redis://127.0.0.1:6379"
    )]
    redis_url: Endpoint,
    /// Where scripts, files and outputs of jobs are kept
    #[arg(long, env = "MYCORA_WORK_DIR", value_name = "DIR", default_value = "/var/lib/mycora/work")]
    work_dir: PathBuf,
    /// Queues shared with old workers and old dispatchers: a file of TOML tables
    #[arg(long, env = "MYCORA_LEGACY", value_name = "FILE")]
    legacy: Option<PathBuf>,
}

impl service::App for App {
    const NAME: &'static str = "supervisor";
    const ABOUT: &'static str = "Accepts jobs on a machine, owns its work queues, answers for the results";
    const GRPC_PORT: Option<u16> = Some(7706);
    const OPS_PORT: u16 = 7806;
    type Config = Flags;

    fn limits(_: &Flags) -> Limits {
        Limits::from([
            ("queue_len_max", queue::QUEUE_LEN_MAX as u64),
            ("file_bytes_max", limits::FILE_BYTES_MAX as u64),
            ("inline_bytes_max", limits::INLINE_BYTES_MAX as u64),
        ])
    }

    async fn start(flags: Flags, mut host: Host) -> Result<(), Failure> {
        let tls = host.tls_files()?;
        let deps = Deps { kv: Kv::new(flags.redis_url), bus: None, metrics: &host.metrics };
        let legacy = flags.legacy.as_deref().map(Bindings::load).transpose()?.unwrap_or_default();
        let app = Config { legacy, ..Config::new(flags.work_dir) }.build(deps)?;
        let builder = Mount::builder(MethodPolicy::new(&[PUBLIC_POLICY])?);
        let mount = app.mount_public(builder).descriptors(proto::DESCRIPTORS).build()?;
        host.ready_while("store", app.ready());
        host.serve(mount, &tls)?;
        host.run("supervisor", |stop| app.run(stop));
        Ok(())
    }
}
