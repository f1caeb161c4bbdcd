//! `mycora up`: every service in one process, on a data directory.
//!
//! The services speak to each other through in-memory connections; the one
//! port that is open speaks mTLS and offers what clients may call, nothing
//! internal. Redis is a private child that listens on a socket in the
//! directory; so is the NATS server that sagas need, where they are run, on a port
//! of the loopback interface.

mod banner;
mod certificates;
mod child;
mod directory;
pub(crate) mod disk;
mod error;
mod info;
mod nats;
mod process;
mod redis;
mod redis_backend;
mod saga;
mod servers;
mod suite;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use kv::{Durability, KvEndpoint};
use model::address_rules::AddressRules;
use model::id::Uid;
use model::{Address, ScriptType};
use mycelium::MyceliumFlags;
use mycelium_gateway::mail_policy::MailPolicy;
use rpc::{CallRate, MeshTrust};
use service::LogFile;
use storage::QuotaSetting;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use self::banner::Banner;
use self::certificates::{CertificateIssuer, Certificates};
use self::directory::DataDir;
pub(crate) use self::directory::{DataDirOwner, owner};
pub use self::error::UpError;
pub use self::nats::{NatsAccess, NatsProgram};
use self::saga::NatsPlan;
pub use self::saga::{NatsOptions, SagaOptions};
use self::servers::BackingServers;
use self::suite::Suite;
use crate::profile::Profile;

/// The default port.
pub const PORT_DEFAULT: u16 = 7700;
/// Where jobs run, within the data directory.
pub(crate) const WORK_DIR: &str = "work";
/// Where its Redis writes, there too.
pub(crate) const REDIS_DIR: &str = redis::FILES;
/// Where it logs when it has no terminal, there too.
pub(crate) const LOG: &str = "up.log";
/// The token that readers of the ops port show, within the data directory.
const OPS_TOKEN: &str = "ops.token";
/// The ops port lies this far above the port.
pub const OPS_PORT_OFFSET: u16 = 100;

/// Bounds of the default memory limit of the private Redis.
const REDIS_MEMORY_MIN: u64 = 256 * 1024 * 1024;
const REDIS_MEMORY_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// How an all-in-one is started.
#[derive(Debug, Clone)]
pub struct UpOptions {
    /// Where everything is kept. Made when it is not there.
    pub data_dir: PathBuf,
    /// Where clients are served.
    pub address: IpAddr,
    /// The port; `None` lets the system choose one, and one for operations.
    pub port: Option<u16>,
    /// Address to which the sidecar of a mesh connects, and how far it is trusted.
    pub mesh: Option<(SocketAddr, MeshTrust)>,
    /// The daemon that leads to other machines.
    pub mycelium: MyceliumFlags,
    /// The Redis to use instead of a private child.
    pub redis_url: Option<KvEndpoint>,
    /// Jobs that run at once, per script type.
    pub slots: u32,
    /// Start a supervisor and a pool of runners here.
    pub supervisor: bool,
    /// Supervisors elsewhere whose runners take jobs of context 1 as well.
    pub runners: Vec<Address>,
    /// The authority whose certificates are used; its own in the data directory when absent.
    pub pki_dir: Option<PathBuf>,
    /// Operator's policy on what jobs may do; absent: everything.
    pub policy: Option<PathBuf>,
    /// True when others may push jobs into work queues and take from them.
    pub open_queues: bool,
    /// Script types that workers of others run from the work queues, which are open then.
    pub served_by_others: Vec<ScriptType>,
    /// Queues that are shared with old workers and old dispatchers: a file of TOML tables.
    pub legacy: Option<PathBuf>,
    /// Which addresses actors may give; `runners` are always dialed.
    pub addresses: AddressRules,
    /// Policy of whose mail is accepted.
    pub mail: MailPolicy,
    /// How scripts are run.
    pub scripts: runner::ScriptFlags,
    /// Program that becomes the first process of each job: this one, which `main` has to know of.
    pub launcher: sandbox::SandboxLauncher,
    /// Failures that an answered change survives: the private Redis is set up for them.
    pub durability: Durability,
    /// How much an actor and a context may have, where that is not the default.
    pub limits: Vec<QuotaSetting>,
    /// How often one actor may call.
    pub actor_calls: CallRate,
    /// How much memory the private Redis may use, in bytes.
    pub redis_memory: u64,
    /// How sagas are run; absent: not at all.
    pub saga: Option<SagaOptions>,
    /// Print no progress.
    pub quiet: bool,
}

impl UpOptions {
    /// On free ports, with a supervisor, quiet, and without a bound on calls: for demonstrations, tests and measurements.
    #[must_use]
    pub fn private(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            address: Ipv4Addr::LOCALHOST.into(),
            port: None,
            mesh: None,
            mycelium: MyceliumFlags::default(),
            redis_url: None,
            slots: slots_default(),
            supervisor: true,
            runners: Vec::new(),
            pki_dir: None,
            policy: None,
            open_queues: false,
            served_by_others: Vec::new(),
            legacy: None,
            addresses: AddressRules::default(),
            mail: MailPolicy::default(),
            scripts: runner::ScriptFlags::default(),
            launcher: sandbox::SandboxLauncher::this_program(),
            durability: Durability::Fast,
            limits: Vec::new(),
            actor_calls: CallRate { per_sec: u64::from(u32::MAX), burst: u64::from(u32::MAX) },
            redis_memory: redis_memory_default(),
            saga: None,
            quiet: true,
        }
    }
}

/// Two jobs for each core: scripts wait as often as they compute.
#[must_use]
pub fn slots_default() -> u32 {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    u32::try_from(cores * 2).unwrap_or(4).max(4)
}

/// A quarter of the machine's memory, and no more than 4 GiB: jobs want the rest.
#[must_use]
pub fn redis_memory_default() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    memory_share(machine.as_deref().and_then(memory_of))
}

/// The machine's memory in bytes, from `/proc/meminfo`.
fn memory_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn memory_share(machine: Option<u64>) -> u64 {
    machine.map_or(REDIS_MEMORY_MIN, |bytes| (bytes / 4).clamp(REDIS_MEMORY_MIN, REDIS_MEMORY_MAX))
}

/// Prints progress, unless quiet.
#[derive(Debug, Clone, Copy)]
pub struct UpReporter {
    quiet: bool,
}

impl UpReporter {
    /// One line on standard error.
    pub fn print(&self, line: &str) {
        if !self.quiet {
            crate::output::note(line);
        }
    }
}

/// An all-in-one that runs.
pub struct AllInOneHandle {
    profile: Profile,
    banner: Banner,
    nats: Option<NatsAccess>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), UpError>>,
}

impl AllInOneHandle {
    /// How clients reach it.
    #[must_use]
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns what a person has to know to use the all-in-one: addresses, and lines to copy.
    #[must_use]
    pub const fn banner(&self) -> &Banner {
        &self.banner
    }

    /// The way to its private NATS server; none where it has none.
    #[must_use]
    pub const fn nats(&self) -> Option<&NatsAccess> {
        self.nats.as_ref()
    }

    /// A handle that ends it from elsewhere.
    #[must_use]
    pub fn stopper(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Waits until it ends: on request, or because something failed.
    ///
    /// # Errors
    /// What failed.
    pub async fn wait(self) -> Result<(), UpError> {
        self.task.await.map_err(|error| UpError::Task(error.to_string()))?
    }

    /// Ends it: takes nothing new, lets what runs end for a while, stops its servers.
    ///
    /// # Errors
    /// What failed on the way down; everything is stopped all the same.
    pub async fn stop(self) -> Result<(), UpError> {
        self.stop.cancel();
        self.wait().await
    }
}

/// The log of an all-in-one without a terminal, in a data directory that no other process uses. The directory is made when it
/// is not there, and unlocked again when this returns.
///
/// # Errors
/// When another process has the directory, or it cannot be used.
pub fn log_file(data_dir: &Path) -> Result<(PathBuf, LogFile), UpError> {
    let dir = DataDir::open(data_dir)?;
    let path = dir.join(LOG);
    let file = LogFile::open(&path).map_err(|source| UpError::Directory { path: path.clone(), source })?;
    Ok((path, file))
}

/// Starts an all-in-one and returns when it serves.
///
/// Not cancel safe: a start that is dropped may leave servers running, which the
/// next start finds and stops.
///
/// # Errors
/// Names the obstacle: the directory is in use, a port is taken, there is
/// no `redis-server`, or no `nats-server` where sagas are to be run.
pub async fn start(options: UpOptions) -> Result<AllInOneHandle, UpError> {
    let notice = UpReporter { quiet: options.quiet };
    // Report missing or wrong settings before creating anything.
    options.saga.as_ref().map(SagaOptions::check).transpose()?;
    let nats = options.saga.as_ref().map(|saga| NatsPlan::of(&saga.nats)).transpose()?;
    let dir = Arc::new(DataDir::open(&options.data_dir)?);
    dir.record_owner()?;
    let listeners = SuiteListeners::bind(&options).await?;
    let served = listeners.port.local_addr().map_err(UpError::Address)?;
    let issuer = CertificateIssuer::open(&dir, options.pki_dir.as_deref(), served_as(served.ip()))?;
    let certificates = issuer.issue(SystemTime::now())?;
    let work_dir = dir.join(WORK_DIR);
    for ended in runner::sweep(&work_dir).map_err(UpError::Sweep)? {
        notice.print(&format!("ended a script of an earlier start: {ended}"));
    }
    let servers = BackingServers::start(&dir, &options, nats, certificates.server_files(), &notice).await?;
    let stop = CancellationToken::new();
    let (redis, nats) = (&servers.redis, servers.nats.as_ref());
    let parts =
        suite::SuiteParts { dir: &dir, redis, nats, certificates: &certificates, options: &options, served };
    let suite = match Suite::start(parts, listeners, stop.clone()).await {
        Ok(suite) => suite,
        Err(error) => {
            servers.stop().await?;
            return Err(error);
        }
    };
    let signing_key = Some(dir.join(suite::ACTOR_KEY));
    let profile = Profile { signing_key, ..certificates.profile(dialed(served)) };
    let profiles = BTreeMap::from([("admin".to_owned(), certificates.admin_profile())]);
    let written = Profile { profiles, ..profile.clone() };
    written.save(&dir.join("client.toml")).map_err(UpError::Profile)?;
    let scripts = options.supervisor.then_some((work_dir.as_path(), options.scripts.disk_floor));
    let shared = scripts.and_then(|(work_dir, floor)| redis.shared_disk(&dir, work_dir, floor));
    let banner = Banner::new(&dir, redis, &profile, certificates.admin(), served.port(), suite.isolation())
        .with_disk(shared.as_ref());
    let banner = match (&options.saga, nats) {
        (Some(saga), Some(nats)) => banner.with_sagas(saga.tenant(), nats.cli_line(&dir)),
        _ => banner,
    };
    let nats = nats.and_then(|nats| nats.access().cloned());
    let renewal = renew_certificates(Arc::clone(&dir), (issuer, certificates.clone()), notice);
    let task = tokio::spawn(supervise(dir, servers, suite, stop.clone(), notice, renewal));
    Ok(AllInOneHandle { profile, banner, nats, stop, task })
}

/// Renews certificates for as long as it is polled, and has the private NATS server show its new one. Everything else reads changed
/// files by itself.
async fn renew_certificates(
    dir: Arc<DataDir>,
    (issuer, certificates): (CertificateIssuer, Certificates),
    notice: UpReporter,
) -> Infallible {
    let renewed = || {
        if let Err(error) = nats::reload(&dir) {
            tracing::error!("nats-server cannot be told to read its certificate again: {error}");
        }
    };
    issuer.keep(certificates, SystemTime::now, notice, renewed).await
}

/// Runs until stopped, or until a part ends by itself; then ends the rest. Renews certificates meanwhile.
async fn supervise(
    dir: Arc<DataDir>,
    mut servers: BackingServers,
    mut suite: Suite,
    stop: CancellationToken,
    notice: UpReporter,
    renewal: impl Future<Output = Infallible>,
) -> Result<(), UpError> {
    let ended = tokio::select! {
        () = stop.cancelled() => Ok(()),
        error = servers.wait_until_lost() => Err(error),
        error = suite.wait_until_failed() => Err(error),
        never = renewal => match never {},
    };
    // Once a stop was requested, parts that end are no failure, whichever of both was seen first.
    let result = if stop.is_cancelled() { Ok(()) } else { ended };
    if let Err(error) = &result {
        // At once: the end may take a while.
        notice.print(&format!("{error}\nending what runs"));
    }
    stop.cancel();
    suite.drain(&mut servers.redis, &dir).await;
    servers.stop().await?;
    // The lock is the last thing that is given up.
    drop(dir);
    result
}

/// The file with the token for the ops port, which is made with the first start.
fn ops_token(dir: &DataDir) -> Result<PathBuf, UpError> {
    dir.read_or_create(OPS_TOKEN, || format!("{}{}", Uid::random(), Uid::random()))?;
    Ok(dir.join(OPS_TOKEN))
}

/// Sockets to listen on, bound before anything starts.
struct SuiteListeners {
    /// For clients.
    port: TcpListener,
    /// For operators.
    ops: TcpListener,
    /// For the sidecar of a mesh, and how far it is trusted.
    mesh: Option<(TcpListener, MeshTrust)>,
}

impl SuiteListeners {
    async fn bind(options: &UpOptions) -> Result<Self, UpError> {
        let listen = async |address: SocketAddr| {
            TcpListener::bind(address).await.map_err(|source| UpError::Port { address, source })
        };
        let ops_port = match options.port {
            Some(port) => port.checked_add(OPS_PORT_OFFSET).ok_or(UpError::PortTooHigh { port })?,
            None => 0,
        };
        Ok(Self {
            port: listen((options.address, options.port.unwrap_or(0)).into()).await?,
            ops: listen((Ipv4Addr::LOCALHOST, ops_port).into()).await?,
            mesh: match &options.mesh {
                Some((address, trust)) => Some((listen(*address).await?, trust.clone())),
                None => None,
            },
        })
    }
}

/// Names beside the usual ones under which clients reach what is served on this address: the address itself, or, where it
/// stands for all of them, this machine's name.
fn served_as(address: IpAddr) -> Vec<String> {
    // Every certificate of a service has these two.
    if [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].contains(&address) {
        return Vec::new();
    }
    if !address.is_unspecified() {
        return vec![address.to_string()];
    }
    let hostname = sandbox::processes::hostname();
    let is_name =
        !hostname.is_empty() && hostname.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
    is_name.then_some(hostname).into_iter().collect()
}

/// Where clients on this machine reach what is served on this address.
const fn dialed(served: SocketAddr) -> SocketAddr {
    match served.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), served.port())
        }
        IpAddr::V6(ip) if ip.is_unspecified() => {
            SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), served.port())
        }
        _ => served,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_gets_a_share_of_the_machine() {
        const GIB: u64 = 1024 * 1024 * 1024;
        let machine = memory_of("MemTotal:        8388608 kB\nMemFree:          123 kB\n");
        assert_eq!(machine, Some(8 * GIB));
        assert_eq!(memory_share(machine), 2 * GIB);
        assert_eq!(memory_share(Some(512 * GIB)), 4 * GIB);
        assert_eq!(memory_share(Some(GIB / 2)), GIB / 4);
        assert_eq!(memory_of("MemTotal: much"), None);
        assert_eq!(memory_share(None), GIB / 4);
    }

    #[test]
    fn clients_of_this_machine_dial_what_is_served() {
        let dialed = |served: &str| dialed(served.parse().expect("an address")).to_string();
        assert_eq!(dialed("0.0.0.0:7700"), "127.0.0.1:7700");
        assert_eq!(dialed("[::]:7700"), "[::1]:7700");
        assert_eq!(dialed("10.0.0.7:1"), "10.0.0.7:1");
        let named = |address: &str| served_as(address.parse().expect("an address"));
        assert_eq!(named("127.0.0.1"), Vec::<String>::new());
        assert_eq!(named("10.0.0.7"), ["10.0.0.7"]);
    }
}
