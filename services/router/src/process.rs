//! The router as a process of its own.

use std::sync::Arc;
use std::time::Duration;

use ::rpc::{Channel, MethodPolicy, Mount};
use model::{Timestamp, limits};
use service::{Failure, ServiceHost, ServiceLimits};

use crate::app::{App, Deps};
use crate::config::Config;
use crate::rpc::PUBLIC_POLICY;
use delivery::core::STOPS_WAITING_MAX;
use delivery::log_reads::LOG_QUERIES_MAX;
use delivery::reconcile::INQUIRIES_MAX;
use delivery::send_queue::{LANE_MESSAGES_MAX, LANE_NODES_MAX, MESSAGES_MAX};

/// Command-line flags of the router.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// Name of this router: the same after a restart, different for each replica
    #[arg(long, env = "MYCORA_ROUTER_NAME", value_name = "NAME", default_value_t = Config::default().name)]
    name: String,
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
    /// The mycelium-gateway
    #[arg(
        long,
        env = "MYCORA_MYCELIUM_GATEWAY",
        value_name = "URL",
        default_value = "https://127.0.0.1:7705"
    )]
    mycelium_gateway: String,
    /// Seconds without contact after which the router gives up on a supervisor
    #[arg(
        long,
        env = "MYCORA_LOST_AFTER",
        value_name = "SECONDS",
        default_value_t = limits::LOST_AFTER_SECS
    )]
    lost_after: u32,
}

impl service::App for App {
    const NAME: &'static str = "router";
    const ABOUT: &'static str = "Gets messages delivered, and brings back what attempts report";
    const GRPC_PORT: Option<u16> = Some(7703);
    const OPS_PORT: u16 = 7803;
    type Config = Flags;

    fn limits(_: &Flags) -> ServiceLimits {
        ServiceLimits::from([
            ("lane_messages_max", LANE_MESSAGES_MAX as u64),
            ("lane_nodes_max", LANE_NODES_MAX as u64),
            ("messages_max", MESSAGES_MAX as u64),
            ("stops_waiting_max", STOPS_WAITING_MAX as u64),
            ("inquiries_max", INQUIRIES_MAX as u64),
            ("log_queries_max", LOG_QUERIES_MAX as u64),
        ])
    }

    async fn start(flags: Flags, mut host: ServiceHost) -> Result<(), Failure> {
        let tls = host.tls_files()?;
        let dialing = tls.clone();
        let deps = Deps {
            storage: Channel::remote(&flags.storage, &tls, Some("storage"))?,
            gateway: Channel::remote(&flags.mycelium_gateway, &tls, Some("mycelium-gateway"))?,
            schedulers: Arc::new(move |replica| {
                Channel::remote(&replica.address, &dialing, Some("scheduler"))
            }),
            registry: Channel::remote(&flags.runner_registry, &tls, Some("runner-registry"))?,
            clock: Arc::new(Timestamp::now),
            metrics: &host.metrics,
        };
        let app = Config { name: flags.name, lost_after: Duration::from_secs(flags.lost_after.into()) }
            .build(deps)?;
        let builder = Mount::builder(MethodPolicy::new(&[PUBLIC_POLICY])?).directory(app.directory());
        let mount = app.mount_public(builder).descriptors(proto::DESCRIPTORS).build()?;
        host.readiness.include("", &app.readiness());
        host.serve(mount, &tls)?;
        host.run("router", |stop| app.run(stop));
        Ok(())
    }
}
