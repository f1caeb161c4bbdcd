//! The supervisor as a process of its own.

use std::path::PathBuf;
use std::time::Duration;

use ::rpc::{MethodPolicy, Mount};
use identity::VerifyingKey;
use kv::{Kv, KvEndpoint};
use model::ScriptType;
use mycelium::MyceliumFlags;
use service::{Failure, ServiceHost, ServiceLimits};

use crate::app::{App, Deps};
use crate::config::{BLOB_BYTES_DEFAULT, Config};
use crate::legacy::LegacyBindings;
use crate::logs::LogRetention;
use crate::policy::DefaultCoordinators;
use crate::rpc::PUBLIC_POLICY;

/// Command-line flags of the supervisor.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// The supervisor's own Redis, which it shares with its instances
    #[arg(
        long,
        env = "MYCORA_REDIS_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "redis://127.0.0.1:6379",
        value_parser = queue::parse_endpoint
    )]
    redis_url: KvEndpoint,
    /// Where scripts, files and outputs of jobs are kept
    #[arg(long, env = "MYCORA_WORK_DIR", value_name = "DIR", default_value = "/var/lib/mycora/work")]
    work_dir: PathBuf,
    /// Ed25519 key that the supervisor signs with; made if it does not exist [default: signing.key in the work directory]
    #[arg(long, env = "MYCORA_SIGNING_KEY", value_name = "FILE")]
    signing_key: Option<PathBuf>,
    /// The daemon that coordinators may reach it through.
    #[command(flatten)]
    mycelium: MyceliumFlags,
    /// Queues shared with old workers and old dispatchers: a file of TOML tables
    #[arg(long, env = "MYCORA_LEGACY", value_name = "FILE")]
    legacy: Option<PathBuf>,
    /// Let others push jobs into the work queues, which are run and answered, and let external workers take jobs from them. Without
    /// it, jobs that others push there are refused: their records and replies say so
    #[arg(long, env = "MYCORA_OPEN_QUEUES", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    open_queues: bool,
    /// Script types that external workers run from the work queues: coordinators send jobs of these types here even while no runner
    /// offers them, since an external worker is invisible until it takes a job. Opens the queues
    #[arg(long, env = "MYCORA_OPEN_QUEUES_FOR", value_name = "TYPE", value_delimiter = ',')]
    open_queues_for: Vec<ScriptType>,
    /// TOML file with the policy: what jobs may do, by context. Read again when it changes, and on SIGHUP
    #[arg(long, env = "MYCORA_POLICY", value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Root keys of coordinators whose jobs are accepted where the policy names none: 64 hex digits, as `mycora pki root` shows
    /// them. Without any, and without a policy that names some, no jobs are accepted
    #[arg(long = "coordinator", env = "MYCORA_COORDINATOR", value_name = "KEY", value_delimiter = ',')]
    coordinators: Vec<VerifyingKey>,
    /// Free bytes that the work directory's file system should keep, the same as for its instances: below a quarter of it no job is
    /// accepted; 0 accepts always [default: 1 GiB, or 5 % of a file system where that is less]
    #[arg(long, env = "MYCORA_DISK_FLOOR", value_name = "BYTES")]
    disk_floor: Option<u64>,
    /// Maximum size of kept scripts, files and outputs, beside those in use
    #[arg(long, env = "MYCORA_BLOBS_MAX_MIB", value_name = "MIB", default_value_t = BLOB_BYTES_DEFAULT / MIB)]
    blobs_max_mib: u64,
    /// How long logs are kept
    #[arg(long, env = "MYCORA_LOGS_MAX_DAYS", value_name = "DAYS", default_value_t = 7)]
    logs_max_days: u32,
    /// Maximum size of all kept logs
    #[arg(long, env = "MYCORA_LOGS_MAX_MIB", value_name = "MIB", default_value_t = 2048)]
    logs_max_mib: u64,
    /// Maximum size of kept logs of one context
    #[arg(long, env = "MYCORA_CONTEXT_LOGS_MAX_MIB", value_name = "MIB", default_value_t = 256)]
    context_logs_max_mib: u64,
}

const MIB: u64 = 1024 * 1024;

impl Flags {
    const fn blob_bytes_max(&self) -> u64 {
        self.blobs_max_mib.saturating_mul(MIB)
    }

    const fn log_retention(&self) -> LogRetention {
        LogRetention {
            age: Duration::from_secs(self.logs_max_days as u64 * 24 * 3600),
            bytes: self.logs_max_mib.saturating_mul(MIB),
            context_bytes: self.context_logs_max_mib.saturating_mul(MIB),
        }
    }
}

impl service::App for App {
    const NAME: &'static str = "supervisor";
    const ABOUT: &'static str = "Accepts jobs on a machine, owns its work queues, answers for the results";
    const GRPC_PORT: Option<u16> = Some(7706);
    const OPS_PORT: u16 = 7806;
    type Config = Flags;

    fn limits(flags: &Flags) -> ServiceLimits {
        let logs = flags.log_retention();
        ServiceLimits::from([
            ("queue_len_max", queue::QUEUE_LEN_MAX as u64),
            ("log_bytes_max", logs.bytes),
            ("context_log_bytes_max", logs.context_bytes),
            ("log_secs_max", logs.age.as_secs()),
            ("blob_bytes_max", flags.blob_bytes_max()),
        ])
    }

    async fn start(flags: Flags, mut host: ServiceHost) -> Result<(), Failure> {
        let tls = host.tls_files()?;
        let (blob_bytes_max, log_retention) = (flags.blob_bytes_max(), flags.log_retention());
        let bus = flags.mycelium.bus(&host.metrics)?;
        let deps = Deps { kv: Kv::new(flags.redis_url), bus, metrics: &host.metrics };
        let legacy = flags.legacy.as_deref().map(LegacyBindings::load).transpose()?.unwrap_or_default();
        let config = Config {
            signing_key: flags.signing_key,
            legacy,
            open_queues: flags.open_queues,
            served_by_others: flags.open_queues_for,
            policy: flags.policy,
            admitted: DefaultCoordinators::Only(flags.coordinators.iter().map(ToString::to_string).collect()),
            disk_floor: flags.disk_floor,
            blob_bytes_max,
            log_retention,
            ..Config::new(flags.work_dir)
        };
        let app = config.build(deps)?;
        let builder = Mount::builder(MethodPolicy::new(&[PUBLIC_POLICY])?);
        let mount = app.mount_public(builder).descriptors(proto::DESCRIPTORS).build()?;
        host.readiness.include("", &app.readiness());
        host.notices.include(&app.notices());
        host.serve(mount, &tls)?;
        host.run("supervisor", |stop| app.run(stop));
        Ok(())
    }
}
