//! Why an all-in-one cannot start, or ended.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Obstacle to a start, and the way around it.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// Another process has the directory.
    #[error(
        "{0} is in use by another `mycora up`; end that one with `mycora down --data {0}`, or choose another directory with --data",
        path.display()
    )]
    DirectoryInUse {
        /// The directory.
        path: PathBuf,
    },
    /// No all-in-one was ever started on the directory.
    #[error("{} is no data directory: no `mycora up` was ever started on it; name the right one with --data", path.display())]
    NoDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The directory cannot be used.
    #[error("{} cannot be used", path.display())]
    Directory {
        /// The directory, or the file in it.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read a secret in the directory, or change what is relied upon.
    #[error("the data directory cannot be used")]
    Exposed(#[source] identity::FileExposure),
    /// A port is taken.
    #[error("port {} of {} cannot be used; choose another with --port or --listen", address.port(), address.ip())]
    Port {
        /// The address with the port.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// There is no room for the ops port.
    #[error("port {port} is too high: the ops port is 100 above it")]
    PortTooHigh {
        /// The port.
        port: u16,
    },
    /// The system does not report an address.
    #[error("the address of a bound port cannot be determined")]
    Address(#[source] io::Error),
    /// Certificates cannot be made or read.
    #[error("the certificates cannot be prepared")]
    Pki(#[from] identity::PkiError),
    /// There is no Redis on this machine.
    #[error(
        "there is no `redis-server` on this machine; install it, on Debian or Ubuntu with `apt-get install redis-server`"
    )]
    NoRedis,
    /// There is no NATS server on this machine.
    #[error(
        "there is no `nats-server` on this machine, which sagas need; install it, on Debian or Ubuntu with `apt-get install nats-server` \
         (`mycora up` also takes one that runs elsewhere: --nats-url)"
    )]
    NoNats,
    /// The NATS server that was found cannot be used.
    #[error("{} is no `nats-server` that can be used: {why}; name another one with --nats-server", path.display())]
    NatsProgram {
        /// The program.
        path: PathBuf,
        /// Reason why the program cannot be used.
        why: String,
    },
    /// The NATS server that was named cannot be used.
    #[error("the NATS server cannot be used; `mycora doctor --nats-url` looks at it more closely")]
    Nats(#[source] broker::BrokerError),
    /// Manifests, tenants or other settings of sagas are wrong.
    #[error("{0}")]
    SagaSettings(String),
    /// The socket's path is longer than the system allows.
    #[error("{} is too long for the path of a socket (107 bytes); choose a shorter directory with --data", path.display())]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// A private server cannot be started.
    #[error("{program} cannot be started")]
    ChildStart {
        /// Which.
        program: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A private server ended while it started.
    #[error("{program} ended while it started ({status}); the end of {}, which says why:\n{last}", log.display())]
    ChildEarlyEnd {
        /// Which.
        program: &'static str,
        /// How it ended.
        status: String,
        /// The last lines of its log.
        last: String,
        /// Log file with the reason.
        log: PathBuf,
    },
    /// A private server does not answer.
    #[error("{program} does not answer after {secs} s; {} may say why", log.display())]
    ChildSlow {
        /// Which.
        program: &'static str,
        /// How long it was waited for.
        secs: u64,
        /// Log file that may have the reason.
        log: PathBuf,
    },
    /// The Redis that was named cannot be used.
    #[error("{endpoint} cannot be used; `mycora doctor --redis-url` looks at it more closely")]
    NamedRedis {
        /// Which, without its password.
        endpoint: String,
        /// Why.
        source: Box<kv::Error>,
    },
    /// The supervisor cannot share a cluster.
    #[error(
        "{endpoint} is a cluster, which the supervisor of this process cannot share: start one elsewhere, and this with \
         --no-supervisor --runner grpc://HOST:PORT"
    )]
    ClusterForSupervisor {
        /// Which, without its password.
        endpoint: String,
    },
    /// A private server ended while it was needed, and does not start any more.
    #[error(
        "{program} ended and could not be started again in {starts} tries; fix the cause (its log is {}), then start again to \
         continue. The last try: {why}",
        log.display()
    )]
    ChildLost {
        /// Which.
        program: &'static str,
        /// How many tries there were.
        starts: u32,
        /// Outcome of the last try.
        why: String,
        /// Log file of the server.
        log: PathBuf,
    },
    /// A private server cannot be ended.
    #[error("{program} cannot be stopped")]
    ChildStop {
        /// Which.
        program: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Scripts of an earlier start cannot be ended.
    #[error("scripts of an earlier start cannot be ended")]
    Sweep(#[source] io::Error),
    /// A service cannot be built.
    #[error("{service} cannot be built")]
    Build {
        /// Which.
        service: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A service ended by itself.
    #[error("{service} ended unexpectedly")]
    Ended {
        /// Which.
        service: &'static str,
    },
    /// A service did not become ready.
    #[error("{service} did not become ready within {secs} s: {missing}")]
    NotReady {
        /// Which.
        service: &'static str,
        /// How long it was waited for.
        secs: u64,
        /// Description of what the service waits for, and why.
        missing: String,
    },
    /// The first actor, context or runner cannot be made.
    #[error("the first actor, context or runner is missing")]
    Bootstrap(#[from] crate::bootstrap::BootstrapError),
    /// Messages to supervisors cannot be signed.
    #[error("the keys that sign messages to supervisors cannot be used")]
    Signing(#[source] envelope::SigningFilesError),
    /// The profile cannot be written.
    #[error("the client profile cannot be written")]
    Profile(#[source] crate::profile::ProfileError),
    /// A task broke off.
    #[error("a task broke off: {0}")]
    Task(String),
}
