//! From `main` to exit.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches as _};
use prometheus::Registry;
use rpc::{CallRate, MeshTrust, TlsMode};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::flags::{ActorFlags, AdminFlags, CommonFlags, ServingFlags, TlsFlags};
use crate::notices::OperatorNotices;
use crate::open_files::raise_open_files_limit;
use crate::ops::{
    ADMIN_LIMITS, AdminMethods, AdminRoutes, Ops, OpsAccess, OpsAddress, OpsListener, ServiceDescription,
    ServiceLimits, TokenFileError,
};
use crate::own_process::{close_memory, close_new_files};
use crate::panics::abort_on_panic;
use crate::readiness::Readiness;
use crate::shutdown::{Shutdown, SighupAction};
use crate::tasks::Tasks;
use crate::{BadConfig, Failure, error_chain, telemetry};

/// Configuration that cannot be used; clap's own status for it.
const EXIT_USAGE: u8 = 2;
/// At exit, answers of the ops port that are not taken are not waited for any longer.
const OPS_END_TIMEOUT: Duration = Duration::from_secs(1);

/// A service that is a process of its own.
///
/// `start` makes what the service needs from its configuration (channels to
/// other services, a Redis) and then calls the crate's own `build` with it. The
/// all-in-one process does not use this trait: it calls `build` itself, with
/// channels of its own.
pub trait App {
    /// The service's name, as in its identity.
    const NAME: &'static str;
    /// One line for `--help`.
    const ABOUT: &'static str;
    /// Default port for gRPC; none for a process that serves no gRPC.
    const GRPC_PORT: Option<u16>;
    /// Default port for operators' HTTP.
    const OPS_PORT: u16;
    /// gRPC methods that do the same as `/admin/drain` and `/admin/reload`, of a service that serves these on its ops port; it gives
    /// [`ServiceHost::admin`] their handlers.
    const ADMIN: Option<AdminMethods> = None;
    /// Flags of the service.
    type Config: Args + std::fmt::Debug + Send;

    /// Returns the limits of the service, for `/info`; those that all services keep are shown with them.
    fn limits(config: &Self::Config) -> ServiceLimits;

    /// Connects, builds, and spawns its tasks into [`ServiceHost::tasks`]. When it returns, the process is ready as
    /// soon as the conditions that were added to [`ServiceHost::readiness`] are met.
    ///
    /// # Errors
    /// Ends the process with its whole chain in the log; with status 2 where it is a [`BadConfig`], else with 1.
    fn start(config: Self::Config, host: ServiceHost) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Resources that a process gives to its service.
#[derive(Debug)]
pub struct ServiceHost {
    /// Bound, not yet accepting; present when the service has a gRPC port, and not only one for the sidecar of a mesh.
    pub listener: Option<TcpListener>,
    /// Connections that the gRPC port takes: TLS only, or plaintext as well.
    pub tls_mode: TlsMode,
    /// How often one actor may call.
    pub actor_calls: CallRate,
    /// The port for the sidecar, bound, and the mesh that is trusted there; only in a mesh.
    pub mesh: Option<(TcpListener, MeshTrust)>,
    /// The files to serve and to call with.
    pub tls: TlsFlags,
    /// When to end.
    pub shutdown: Shutdown,
    /// How long ending may take.
    pub drain_deadline: Duration,
    /// Where the service's tasks run.
    pub tasks: Tasks,
    /// Conditions that have to be met before calls are welcome.
    pub readiness: Readiness,
    /// Notices to operators, for `/info`.
    pub notices: OperatorNotices,
    /// Where metrics are registered.
    pub metrics: Registry,
    /// Routes that wait for their handlers; of a service that has admin routes ([`App::ADMIN`]).
    pub admin: Option<AdminRoutes>,
}

/// The whole life of a service's process, on a single-threaded runtime: with
/// several services on a machine, threads cost more than they bring.
#[must_use]
pub fn run<A: App>() -> ExitCode {
    close_new_files();
    let matches = command::<A>().get_matches();
    let (common, admin, config) = match parse::<A>(&matches) {
        Ok(parsed) => parsed,
        Err(error) => error.exit(),
    };
    if !common.allow_core
        && let Err(error) = close_memory()
    {
        eprintln!("{}: its memory cannot be closed to others: {error}", A::NAME);
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{}: cannot start a runtime: {error}", A::NAME);
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(async {
        let telemetry = match telemetry::init(A::NAME, &common.telemetry) {
            Ok(telemetry) => telemetry,
            Err(error) => {
                eprintln!("{}: {}", A::NAME, error_chain(&error));
                return ExitCode::from(EXIT_USAGE);
            }
        };
        abort_on_panic();
        let code = match live::<A>(common, admin, config, Shutdown::new()).await {
            Ok(code) => code,
            Err(error) => {
                tracing::error!("{} cannot start: {}", A::NAME, error_chain(&*error));
                if error.is::<BadConfig>() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
            }
        };
        telemetry.flush().await;
        code
    });
    // Whatever did not end in time is not waited for.
    runtime.shutdown_background();
    code
}

/// The flags of all services, those of the admin routes where there are such, and the service's own.
fn parse<A: App>(matches: &ArgMatches) -> Result<(CommonFlags, AdminFlags, A::Config), clap::Error> {
    let admin = match A::ADMIN {
        Some(_) => AdminFlags::from_arg_matches(matches)?,
        None => AdminFlags::default(),
    };
    Ok((CommonFlags::from_arg_matches(matches)?, admin, A::Config::from_arg_matches(matches)?))
}

fn command<A: App>() -> Command {
    let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
    let command = Command::new(format!("mycora-{}", A::NAME)).version(crate::version()).about(A::ABOUT);
    let command = CommonFlags::augment_args(command);
    let command = if A::ADMIN.is_some() { AdminFlags::augment_args(command) } else { command };
    let command =
        A::Config::augment_args(command).mut_arg("ops_listen", |arg| arg.default_value(local(A::OPS_PORT)));
    match A::GRPC_PORT {
        Some(port) => command.mut_arg("listen", |arg| arg.default_value(local(port))),
        None => {
            let hidden = ServingFlags::IDS.into_iter().chain(["listen"]);
            hidden.fold(command, |command, id| command.mut_arg(id, |arg| arg.hide(true)))
        }
    }
}

/// From bound ports to the end of the drain.
async fn live<A: App>(
    common: CommonFlags,
    admin: AdminFlags,
    config: A::Config,
    shutdown: Shutdown,
) -> Result<ExitCode, Failure> {
    shutdown.on_signals(SighupAction::Reloads)?;
    raise_open_files_limit();
    let drain_deadline = common.drain_deadline();
    let shutdown = shutdown.with_patience(drain_deadline);
    let access = ops_access(&common)?;
    let admin = A::ADMIN.map(|methods| AdminRoutes::new(methods, admin.admin_secret_file)).transpose()?;
    let ops_listener = match &common.ops_listen {
        Some(address) => Some(bind_ops(address).await?),
        None => None,
    };
    let (listener, mesh) = match A::GRPC_PORT {
        Some(_) => grpc_ports(&common).await?,
        None => (None, None),
    };
    let (readiness, metrics) = (Readiness::new(), Registry::new());
    let started = readiness.condition("start");
    let limits = limits::<A>(&config, common.serving.actors);
    let info = ServiceDescription { name: A::NAME, version: crate::version(), limits };
    let notices = OperatorNotices::default();
    let ops = Ops::new(info, readiness.clone(), metrics.clone(), access).with_notices(notices.clone());
    let ops = OpsPort::open(ops_listener, admin.iter().cloned().fold(ops, Ops::with_admin));

    let tasks = Tasks::new(shutdown.clone());
    let host = ServiceHost {
        listener,
        tls_mode: common.serving.tls_mode.into(),
        actor_calls: common.serving.actors.rate(),
        mesh,
        tls: common.tls,
        shutdown: shutdown.clone(),
        drain_deadline,
        tasks: tasks.clone(),
        readiness: readiness.clone(),
        notices,
        metrics,
        admin,
    };
    tokio::select! {
        result = A::start(config, host) => {
            result?;
            started.met();
            tracing::info!(version = crate::version(), "{} started", A::NAME);
            shutdown.begun().await;
        }
        () = shutdown.begun() => tracing::info!("shutdown began before the start was complete"),
    }

    readiness.close("the process is ending");
    let drained = tasks.drain(shutdown.left().unwrap_or(drain_deadline)).await;
    if !drained {
        tracing::warn!(tasks = tasks.running(), "the drain deadline passed; what is left is cut");
    }
    ops.close().await;
    tracing::info!("{} ended", A::NAME);
    Ok(if tasks.any_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The ops port of a process while it is served: probes are answered until the very end of the drain.
struct OpsPort {
    end: Shutdown,
    serving: Option<JoinHandle<std::io::Result<()>>>,
}

impl OpsPort {
    fn open(listener: Option<OpsListener>, ops: Ops) -> Self {
        let end = Shutdown::new();
        let serving = listener.map(|listener| tokio::spawn(ops.serve(listener, end.begun_owned())));
        Self { end, serving }
    }

    /// Ends the ops port. The caller that asked for the end of the process still gets its answer.
    async fn close(self) {
        self.end.begin();
        if let Some(mut serving) = self.serving
            && tokio::time::timeout(OPS_END_TIMEOUT, &mut serving).await.is_err()
        {
            serving.abort();
        }
    }
}

/// Returns who may read the ops port, after a check of the token file.
fn ops_access(common: &CommonFlags) -> Result<OpsAccess, TokenFileError> {
    let access = common.ops_access();
    access.check()?;
    if access == OpsAccess::NoOne {
        tracing::info!("/metrics and /info are closed on the ops port: no --ops-token-file is given");
    }
    Ok(access)
}

/// The limits of the service, those that all hold to, and those of serving gRPC and of the admin routes when it does.
fn limits<A: App>(config: &A::Config, actors: ActorFlags) -> ServiceLimits {
    let serving = rpc::LIMITS.into_iter().chain(actors.limits()).filter(|_| A::GRPC_PORT.is_some());
    let admin = ADMIN_LIMITS.into_iter().filter(|_| A::ADMIN.is_some());
    // What the operator chose of them stands in the place of what all hold to.
    model::limits::TABLE.into_iter().chain(serving).chain(admin).chain(A::limits(config)).collect()
}

/// The port for all callers, and the one for the sidecar. In a mesh that issues all certificates the first one would
/// have no callers.
async fn grpc_ports(
    common: &CommonFlags,
) -> Result<(Option<TcpListener>, Option<(TcpListener, MeshTrust)>), BindError> {
    let mesh = match common.serving.mesh() {
        Some((address, trust)) => Some((bind(address, "--mesh-listen").await?, trust)),
        None => None,
    };
    let listener = match common.listen {
        Some(address) if mesh.is_none() || !common.tls.is_empty() => Some(bind(address, "--listen").await?),
        _ => None,
    };
    Ok((listener, mesh))
}

async fn bind_ops(address: &OpsAddress) -> Result<OpsListener, BindError> {
    let refused = |source| BindError { address: address.to_string(), flag: "--ops-listen", source };
    let listener = OpsListener::bind(address).await.map_err(refused)?;
    if let Ok(address) = listener.address() {
        tracing::info!(%address, "--ops-listen is bound");
    }
    Ok(listener)
}

async fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, BindError> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| BindError { address: address.to_string(), flag, source })?;
    if let Ok(bound) = listener.local_addr() {
        tracing::info!(address = %bound, "{flag} is bound");
    }
    Ok(listener)
}

/// A port cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}; name another address with {flag}")]
struct BindError {
    address: String,
    flag: &'static str,
    source: std::io::Error,
}

#[cfg(test)]
mod tests;
