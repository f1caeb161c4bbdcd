//! The registry as a process of its own.

use std::sync::Arc;

use ::rpc::{Channel, Mount};
use model::Timestamp;
use service::{Failure, ServiceHost, ServiceLimits};

use crate::app::{App, Deps};
use crate::config::Config;
use crate::hub::PART_LEN_MAX;
use crate::rpc::policy;

/// Command-line flags of the registry.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// The storage service
    #[arg(long, env = "MYCORA_STORAGE", value_name = "URL", default_value = "https://127.0.0.1:7701")]
    storage: String,
}

impl service::App for App {
    const NAME: &'static str = "runner-registry";
    const ABOUT: &'static str = "Knows where jobs can run, and which of these places are alive";
    const GRPC_PORT: Option<u16> = Some(7704);
    const OPS_PORT: u16 = 7804;
    type Config = Flags;

    fn limits(_: &Flags) -> ServiceLimits {
        ServiceLimits::from([("part_len_max", PART_LEN_MAX as u64)])
    }

    async fn start(flags: Flags, mut host: ServiceHost) -> Result<(), Failure> {
        let tls = host.tls_files()?;
        let deps = Deps {
            storage: Channel::remote(&flags.storage, &tls, Some("storage"))?,
            clock: Arc::new(Timestamp::now),
            metrics: &host.metrics,
        };
        let app = Config::default().build(deps)?;
        let builder = Mount::builder(policy()).directory(app.directory());
        let mount = app.mount_internal(app.mount_public(builder));
        let mount = mount.descriptors(proto::DESCRIPTORS).build()?;
        host.readiness.include("", &app.readiness());
        host.serve(mount, &tls)?;
        host.run("registry", |stop| app.run(stop));
        Ok(())
    }
}
