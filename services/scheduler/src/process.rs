//! The scheduler as a process of its own.

use std::time::Duration;

use ::rpc::{Channel, MethodPolicy, Mount};
use model::limits;
use service::{Failure, ServiceHost, ServiceLimits};

use crate::app::{App, Deps};
use crate::commit_link::COMMITS_IN_FLIGHT_MAX;
use crate::config::Config;
use crate::loaded_flow::STEP_NODES_MAX;
use crate::loader::LOADS_MAX;
use crate::log_reads::READS_AT_ONCE_MAX;
use crate::rpc::{INTERNAL_POLICY, PUBLIC_POLICY};

/// Where the scheduler finds what it needs.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// The storage service
    #[arg(long, env = "MYCORA_STORAGE", value_name = "URL", default_value = "https://127.0.0.1:7701")]
    storage: String,
    /// The runner-registry
    #[arg(
        long,
        env = "MYCORA_RUNNER_REGISTRY",
        value_name = "URL",
        default_value = "https://127.0.0.1:7704"
    )]
    runner_registry: String,
    /// Where routers and other replicas reach this one; different for each replica [default: its own
    /// port on this host]
    #[arg(long, env = "MYCORA_ADVERTISE", value_name = "URL")]
    advertise: Option<String>,
    /// Seconds after which the attempts of a supervisor that is away are lost
    #[arg(long, env = "MYCORA_LOST_AFTER", value_name = "SECONDS", default_value_t = limits::LOST_AFTER_SECS)]
    lost_after: u32,
}

impl service::App for App {
    const NAME: &'static str = "scheduler";
    const ABOUT: &'static str = "Runs flows: owns them, steps them, commits each step";
    const GRPC_PORT: Option<u16> = Some(7702);
    const OPS_PORT: u16 = 7802;
    type Config = Flags;

    fn limits(_: &Flags) -> ServiceLimits {
        ServiceLimits::from([
            ("step_nodes_max", STEP_NODES_MAX as u64),
            ("commits_in_flight_max", COMMITS_IN_FLIGHT_MAX as u64),
            ("loads_at_once_max", LOADS_MAX as u64),
            ("log_asks_at_once_max", READS_AT_ONCE_MAX as u64),
        ])
    }

    async fn start(flags: Flags, mut host: ServiceHost) -> Result<(), Failure> {
        let tls = host.tls_files()?;
        let deps = Deps {
            storage: Channel::remote(&flags.storage, &tls, Some("storage"))?,
            registry: Channel::remote(&flags.runner_registry, &tls, Some("runner-registry"))?,
            metrics: &host.metrics,
        };
        let address = match flags.advertise {
            Some(address) => address,
            None => own_address(&host)?,
        };
        let mut config = Config::new(address.clone(), address);
        config.lost_after = Duration::from_secs(flags.lost_after.into());
        let app = config.build(deps)?;
        let policy = MethodPolicy::new(&[PUBLIC_POLICY, INTERNAL_POLICY])?;
        let builder = Mount::builder(policy).directory(app.directory());
        let mount = app.mount_public(app.mount_internal(builder)).descriptors(proto::DESCRIPTORS).build()?;
        host.readiness.include("", &app.readiness());
        host.serve(mount, &tls)?;
        host.run("driver", |stop| app.run(stop));
        Ok(())
    }
}

/// Where this process is reached on its host.
fn own_address(host: &ServiceHost) -> Result<String, Failure> {
    let listener = host.listener.as_ref();
    let listener =
        listener.ok_or("behind a sidecar no address can be advertised: give one with --advertise")?;
    let address = listener.local_addr()?;
    if address.ip().is_unspecified() {
        return Err("listening on every address, none can be advertised: give one with --advertise".into());
    }
    Ok(format!("https://{address}"))
}
