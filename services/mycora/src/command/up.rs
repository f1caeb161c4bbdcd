//! `mycora up`: every service in one process, until Ctrl-C or `mycora down`.

mod detach;
mod saga;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use kv::{Durability, KvEndpoint};
use model::{Address, ScriptType};
use mycelium::MyceliumFlags;
use mycelium_gateway::mail_policy::MailPolicy;
use service::{ActorFlags, AddressFlags, MeshFlags, Shutdown, SighupAction, TelemetryFlags, telemetry};
use storage::QuotaSetting;

pub use self::saga::SagaFlags;
use crate::command::GlobalFlags;
use crate::failure::{CliError, error_chain};
use crate::output;
use crate::profile::default_data_dir;
use crate::up::{self, PORT_DEFAULT, UpError, UpOptions};

/// Printed when stopping begins, which lasts as long as jobs are awaited.
const ENDING: &str = "stopping: no new work is accepted, running jobs have 10 s to end; flows continue after the next \
                      start. Press Ctrl-C again to stop at once";

/// Arguments of `up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Keep everything in this directory [default: $XDG_DATA_HOME/mycora, or ~/.local/share/mycora]
    #[arg(long, value_name = "DIR", env = "MYCORA_DATA")]
    pub data: Option<PathBuf>,
    /// Serve clients on this port of 127.0.0.1; /livez, /readyz, /metrics and /info are 100 above it,
    /// the last two for callers with the token in DIR/ops.token
    #[arg(long, value_name = "PORT", default_value_t = PORT_DEFAULT, env = "MYCORA_PORT",
          value_parser = clap::value_parser!(u16).range(1..=65435))]
    pub port: u16,
    /// Serve clients at this address instead, as in 0.0.0.0:7700; /livez and so on stay on 127.0.0.1, 100 above the port. Clients
    /// elsewhere need `ca.pem` and a certificate, or a token
    #[arg(long, value_name = "ADDRESS:PORT", env = "MYCORA_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// The mesh, where there is one.
    #[command(flatten)]
    pub mesh: MeshFlags,
    /// Daemon that connects to other machines.
    #[command(flatten)]
    pub mycelium: MyceliumFlags,
    /// Keep everything in this Redis instead of a private one: redis://[user[:password]@]host[:port], unix:///path or
    /// redis+sentinel://host,host,…/MASTER, or a cluster with --no-supervisor. For one `mycora up` at a time; the supervisor
    /// takes the last database
    #[arg(
        long,
        value_name = "URL",
        env = "MYCORA_REDIS_URL",
        hide_env_values = true,
        conflicts_with = "redis_memory"
    )]
    pub redis_url: Option<KvEndpoint>,
    /// Return when it serves, and leave it running without a terminal until `mycora down`; it logs to DIR/up.log
    #[arg(long)]
    pub detach: bool,
    /// Run as the process that `--detach` starts
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub detached: bool,
    /// How many jobs of each script type run at once [default: two for each core]
    #[arg(long, value_name = "COUNT", env = "MYCORA_SLOTS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub slots: Option<u32>,
    /// Start no supervisor and no runners here
    #[arg(long)]
    pub no_supervisor: bool,
    /// Let jobs of context 1 run on this supervisor as well, as grpc://host:port; may be repeated
    #[arg(long = "runner", value_name = "ADDRESS")]
    pub runners: Vec<Address>,
    /// Use the certificate authority in this directory instead of one of its own
    #[arg(long, value_name = "DIR", env = "MYCORA_PKI")]
    pub pki: Option<PathBuf>,
    /// The policy of what jobs may do, by their context: a TOML file. Read again when it changes
    #[arg(long, value_name = "FILE", env = "MYCORA_POLICY")]
    pub policy: Option<PathBuf>,
    /// Let external programs push jobs into the work queues, to be run and answered, and let their workers take jobs from them
    #[arg(long, env = "MYCORA_OPEN_QUEUES", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub open_queues: bool,
    /// Script types that external workers run from the work queues: their jobs are sent here even while no runner of ours offers
    /// them, since such a worker is not visible before it takes a job. Opens the queues
    #[arg(long, env = "MYCORA_OPEN_QUEUES_FOR", value_name = "TYPE", value_delimiter = ',')]
    pub open_queues_for: Vec<ScriptType>,
    /// Serve legacy programs: opens the work queues, and shares those that this TOML file binds, if one is
    /// named
    #[arg(long, env = "MYCORA_LEGACY", value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub legacy: Option<Option<PathBuf>>,
    /// Which addresses are dialed.
    #[command(flatten)]
    pub addresses: AddressFlags,
    /// Policy of whose mail is accepted.
    #[command(flatten)]
    pub mail: MailPolicy,
    /// How scripts are run.
    #[command(flatten)]
    pub scripts: runner::ScriptFlags,
    /// Failures that an answered change survives: `fast` the end of any process, `synced` also that of the machine; with
    /// --redis-url also `replicated`, as storage says
    #[arg(long, value_name = "LEVEL", env = "MYCORA_DURABILITY", default_value = "fast")]
    pub durability: Durability,
    /// Allow core files and debuggers, which can expose keys and secrets
    #[arg(long, env = "MYCORA_ALLOW_CORE")]
    pub allow_core: bool,
    /// How much of something an actor or a context may have, as in context_flows_open_max=1000; may be repeated. `/info`
    /// shows all of them
    #[arg(long = "limit", env = "MYCORA_LIMITS", value_name = "NAME=NUMBER", value_delimiter = ',')]
    pub limits: Vec<QuotaSetting>,
    /// How often one actor may call.
    #[command(flatten)]
    pub actors: ActorFlags,
    /// How many MiB of memory the private Redis may use; beyond that changes are refused [default: a quarter of the machine's, at
    /// most 4096]
    #[arg(long, env = "MYCORA_REDIS_MEMORY", value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    pub redis_memory: Option<u64>,
    /// Sagas.
    #[command(flatten)]
    pub saga: SagaFlags,
    /// Logs and traces.
    #[command(flatten)]
    pub telemetry: TelemetryFlags,
}

/// The private Redis has no replica.
fn check_durability(args: &UpArgs) -> Result<(), CliError> {
    if args.durability == Durability::Replicated && args.redis_url.is_none() {
        let message = "--durability: the private Redis of `mycora up` has no replica; there are fast and synced, or --redis-url";
        return Err(CliError::Invalid(message.to_owned()));
    }
    Ok(())
}

/// Runs everything until Ctrl-C or SIGTERM; a second one ends it at once. With `--detach` it is another process that runs it.
///
/// # Errors
/// When something is in the way, or a part fails while it runs.
pub async fn run(args: UpArgs, global: &GlobalFlags) -> Result<u8, CliError> {
    check_durability(&args)?;
    let data_dir = match args.data {
        Some(dir) => dir,
        None => default_data_dir()?,
    };
    if args.detach {
        return detach::run(&data_dir).await;
    }
    let log = args.detached.then(|| data_dir.join(up::LOG));
    let telemetry = if args.detached {
        detach::become_independent(&data_dir, &args.telemetry)?
    } else {
        telemetry::init("mycora", &args.telemetry).map_err(|error| CliError::Invalid(error_chain(&error)))?
    };
    let shutdown = Shutdown::new();
    shutdown
        .on_signals(SighupAction::Ends)
        .map_err(|error| CliError::Failed(format!("cannot wait for signals: {error}")))?;
    service::raise_open_files_limit();
    let options = UpOptions {
        data_dir,
        address: args.listen.map_or(Ipv4Addr::LOCALHOST.into(), |listen| listen.ip()),
        port: Some(args.listen.map_or(args.port, |listen| listen.port())),
        mesh: args.mesh.sidecar_listener(),
        mycelium: args.mycelium,
        redis_url: args.redis_url,
        slots: args.slots.unwrap_or_else(up::slots_default),
        supervisor: !args.no_supervisor,
        runners: args.runners,
        pki_dir: args.pki,
        policy: args.policy,
        open_queues: args.open_queues || args.legacy.is_some(),
        served_by_others: args.open_queues_for,
        legacy: args.legacy.flatten(),
        addresses: args.addresses.rules(),
        mail: args.mail,
        scripts: args.scripts,
        launcher: sandbox::SandboxLauncher::this_program(),
        durability: args.durability,
        limits: args.limits,
        actor_calls: args.actors.rate(),
        redis_memory: args.redis_memory.map_or_else(up::redis_memory_default, |mib| mib * 1024 * 1024),
        saga: args.saga.options(),
        quiet: global.quiet,
    };
    let running = up::start(options).await.map_err(|error| failed(&error))?;
    let banner = match log {
        Some(log) => running.banner().clone().with_log(std::path::absolute(&log).unwrap_or(log)),
        None => running.banner().clone(),
    };
    output::answer(global.output, || &banner, || if global.quiet { banner.line() } else { banner.text() })?;
    if args.detached {
        detach::ready();
    }
    let stop = running.stopper();
    let quiet = global.quiet;
    let signalled = tokio::spawn(async move {
        shutdown.begun().await;
        if !quiet {
            output::note(ENDING);
        }
        stop.cancel();
    });
    let ended = running.wait().await.map_err(|error| failed(&error));
    signalled.abort();
    telemetry.flush().await;
    ended.map(|()| 0)
}

/// Converts an error; most obstacles to a start are reported like a coordinator that cannot be reached.
fn failed(error: &UpError) -> CliError {
    let text = error_chain(error);
    match error {
        UpError::PortTooHigh { .. }
        | UpError::SocketPath { .. }
        | UpError::ClusterForSupervisor { .. }
        | UpError::SagaSettings(_) => CliError::Invalid(text),
        UpError::Task(_) | UpError::Ended { .. } | UpError::ChildLost { .. } => CliError::Failed(text),
        _ => CliError::Unreachable(text),
    }
}
