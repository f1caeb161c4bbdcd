//! The gateway as a process of its own.

use std::path::PathBuf;

use ::rpc::{Channel, Mount, TlsFiles};
use envelope::SigningFiles;
use mycelium::MyceliumFlags;
use service::{AddressFlags, Failure, ServiceHost, ServiceLimits};

use crate::app::{App, Deps};
use crate::config::Config;
use crate::dialing::dial;
use crate::mail::{CORRESPONDENTS_MAX, MESSAGES_AT_ONCE_MAX};
use crate::mail_policy::{
    LISTED_MESSAGES_PER_MINUTE_MAX, MailPolicy, RECIPIENT_MESSAGES_PER_MINUTE_MAX,
    STRANGER_MESSAGES_PER_MINUTE_MAX, STRANGERS_MESSAGES_PER_MINUTE_MAX,
};
use crate::routers::UNACKNOWLEDGED_MAX;
use crate::rpc::policy;
use crate::secrets::SECRET_BYTES_MAX;
use crate::signing::SigningSource;

/// Name of the daemon in `grpc.health.v1`.
const BUS_HEALTH: &str = "mycelium";

/// Command-line flags of the gateway.
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
    /// The daemon that carries `mycelium:` addresses.
    #[command(flatten)]
    mycelium: MyceliumFlags,
    /// Ed25519 key that the gateway signs with; `mycora pki issue service/mycelium-gateway` makes one
    #[arg(long, env = "MYCORA_SIGNING_KEY", value_name = "FILE")]
    signing_key: PathBuf,
    /// The certificate of the coordinator's root for that key, made together with it
    #[arg(long, env = "MYCORA_SIGNING_CERTIFICATE", value_name = "FILE")]
    signing_certificate: PathBuf,
    /// How the coordinator came to its root, signed by the one before: `mycora pki change-root` writes it [default:
    /// coordinator.changes beside the certificate, if it is there]. The three files are read again when they change, and on SIGHUP
    #[arg(long, env = "MYCORA_ROOT_CHANGE", value_name = "FILE")]
    root_change: Option<PathBuf>,
    /// Secrets of supervisors that are spoken to in plain JSON-RPC: a file for each, not readable by everybody
    #[arg(long, env = "MYCORA_SECRETS_DIR", value_name = "DIR")]
    secrets_dir: Option<PathBuf>,
    /// Authorities of other coordinators' certificates, for letters to grpc:// addresses; ours when absent
    #[arg(long, env = "MYCORA_OTHERS_CA", value_name = "FILE")]
    others_ca: Option<PathBuf>,
    /// Which addresses are dialed.
    #[command(flatten)]
    addresses: AddressFlags,
    /// Policy on incoming mail.
    #[command(flatten)]
    mail: MailPolicy,
}

impl service::App for App {
    const NAME: &'static str = "mycelium-gateway";
    const ABOUT: &'static str = "Speaks for its coordinator to other machines";
    const GRPC_PORT: Option<u16> = Some(7705);
    const OPS_PORT: u16 = 7805;
    type Config = Flags;

    fn limits(_: &Flags) -> ServiceLimits {
        ServiceLimits::from([
            ("unacknowledged_max", UNACKNOWLEDGED_MAX as u64),
            ("letters_at_once_max", MESSAGES_AT_ONCE_MAX as u64),
            ("correspondents_max", CORRESPONDENTS_MAX as u64),
            ("listed_letters_per_minute_max", LISTED_MESSAGES_PER_MINUTE_MAX.into()),
            ("stranger_letters_per_minute_max", STRANGER_MESSAGES_PER_MINUTE_MAX.into()),
            ("strangers_letters_per_minute_max", STRANGERS_MESSAGES_PER_MINUTE_MAX.into()),
            ("recipient_letters_per_minute_max", RECIPIENT_MESSAGES_PER_MINUTE_MAX.into()),
            ("secret_bytes_max", SECRET_BYTES_MAX as u64),
        ])
    }

    async fn start(flags: Flags, mut host: ServiceHost) -> Result<(), Failure> {
        let tls = host.tls_files()?;
        let rules = flags.addresses.rules();
        let others = flags.others_ca.map_or_else(|| tls.without_certificate(), TlsFiles::anonymous);
        let signing = SigningFiles { key: flags.signing_key, certificate: flags.signing_certificate };
        let sealer = signing.sealer()?;
        let signing = SigningSource { files: signing, root_change: flags.root_change };
        let config = Config { secrets_dir: flags.secrets_dir, signing: Some(signing), mail: flags.mail };
        let deps = Deps {
            storage: Channel::remote(&flags.storage, &tls, Some("storage"))?,
            registry: Channel::remote(&flags.runner_registry, &tls, Some("runner-registry"))?,
            bus: flags.mycelium.bus(&host.metrics)?,
            dial: dial(tls.clone(), rules.clone()),
            dial_others: dial(others, rules),
            sealer,
            metrics: &host.metrics,
        };
        let app = config.build(deps)?;
        let mount = app.mount_internal(app.mount_public(Mount::builder(policy())));
        // Peers with gRPC addresses do not need the bus: the gateway serves without its daemon.
        let mount = match app.bus_up() {
            Some(up) => mount.part(BUS_HEALTH, up),
            None => mount,
        };
        let mount = mount.descriptors(proto::DESCRIPTORS).build()?;
        host.readiness.include("", &app.readiness());
        host.serve(mount, &tls)?;
        host.run("gateway", |stop| app.run(stop));
        Ok(())
    }
}
