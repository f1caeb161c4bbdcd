//! Flags that every service has, each also from the environment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use model::address_rules::{AddressRule, AddressRules};
use model::limits;
use rpc::{CallRate, MeshKind, MeshTrust, TlsMode, TrustDomain};

use crate::ops::{OpsAccess, OpsAddress};

/// Flags of every service.
#[derive(Debug, Clone, Args)]
pub struct CommonFlags {
    /// Where to serve gRPC
    #[arg(long, env = "MYCORA_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Where to serve /livez, /readyz, /health, /metrics and /info (plain HTTP): a port, or a socket file of this user alone as
    /// unix:/PATH
    #[arg(long, env = "MYCORA_OPS_LISTEN", value_name = "ADDRESS:PORT|unix:PATH")]
    pub ops_listen: Option<OpsAddress>,
    /// File with the bearer token that readers of /metrics and /info show at an ops port; without it they are closed
    #[arg(long, env = "MYCORA_OPS_TOKEN_FILE", value_name = "FILE")]
    pub ops_token_file: Option<PathBuf>,
    /// How long calls, streams and tasks may go on after the first signal, in seconds
    #[arg(long, env = "MYCORA_DRAIN_SECS", value_name = "SECONDS", default_value_t = 20)]
    pub drain_secs: u64,
    /// Allow core files and debuggers, which can expose keys and secrets
    #[arg(long, env = "MYCORA_ALLOW_CORE")]
    pub allow_core: bool,
    /// Certificates of this process.
    #[command(flatten)]
    pub tls: TlsFlags,
    /// Demands of the gRPC port, and a mesh.
    #[command(flatten)]
    pub serving: ServingFlags,
    /// Logs and traces.
    #[command(flatten)]
    pub telemetry: TelemetryFlags,
}

impl CommonFlags {
    /// Returns who may read the ops port.
    #[must_use]
    pub fn ops_access(&self) -> OpsAccess {
        match (&self.ops_listen, &self.ops_token_file) {
            (_, Some(file)) => OpsAccess::Token(file.clone()),
            (Some(OpsAddress::Unix(_)), None) => OpsAccess::Everyone,
            (_, None) => OpsAccess::NoOne,
        }
    }

    /// How long a drain may take.
    #[must_use]
    pub const fn drain_deadline(&self) -> Duration {
        Duration::from_secs(self.drain_secs)
    }
}

/// Access to the admin routes of the ops port. Services without such routes do not have these flags.
#[derive(Debug, Clone, Default, Args)]
pub struct AdminFlags {
    /// File with the secret that an API gateway shows to call POST /admin/drain and /admin/reload at the ops port, and to be
    /// believed when it names a tenant by x-tenant-id; without it these routes are closed, and administrators use gRPC for the same
    #[arg(long, env = "MYCORA_ADMIN_SECRET_FILE", value_name = "FILE")]
    pub admin_secret_file: Option<PathBuf>,
}

/// Which `grpc://` addresses that actors give are dialed.
#[derive(Debug, Clone, Default, Args)]
pub struct AddressFlags {
    /// Which grpc:// addresses actors may give for runners and mail, as [!]HOST[:PORT], separated by commas; HOST is a name, an IP
    /// address, a network or *, and ! refuses. The first that fits decides. Where none does, loopback, link-local, metadata,
    /// unspecified and multicast addresses are refused, and all others are dialed
    #[arg(
        long = "runner-addresses",
        env = "MYCORA_RUNNER_ADDRESSES",
        value_name = "RULE",
        value_delimiter = ','
    )]
    pub runner_addresses: Vec<AddressRule>,
}

impl AddressFlags {
    /// The rules, in their order.
    #[must_use]
    pub fn rules(&self) -> AddressRules {
        AddressRules::new(self.runner_addresses.clone())
    }
}

/// The certificates of a process.
#[derive(Debug, Clone, Args)]
pub struct TlsFlags {
    /// Authorities to trust (PEM)
    #[arg(long = "tls-ca", env = "MYCORA_TLS_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Certificate of this service (PEM)
    #[arg(long = "tls-cert", env = "MYCORA_TLS_CERT", value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long = "tls-key", env = "MYCORA_TLS_KEY", value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// How a process serves beside plain mTLS. All of these are hidden where no gRPC is served.
#[derive(Debug, Clone, Args)]
pub struct ServingFlags {
    /// Demand TLS on the gRPC port, or take plaintext as well while callers move to TLS (they have no identity)
    #[arg(long, env = "MYCORA_TLS_MODE", value_enum, default_value_t = TlsModeFlag::Strict)]
    pub tls_mode: TlsModeFlag,
    /// The mesh, where there is one.
    #[command(flatten)]
    pub mesh: MeshFlags,
    /// How often one actor may call.
    #[command(flatten)]
    pub actors: ActorFlags,
}

/// The mesh that a process is part of.
#[derive(Debug, Clone, Args)]
pub struct MeshFlags {
    /// Behind the sidecar of this mesh, which does mTLS and says who calls; `http://` addresses are called as well
    #[arg(long, env = "MYCORA_MESH", value_enum, requires_all = ["mesh_listen", "mesh_namespace"])]
    pub mesh: Option<MeshFlag>,
    /// Where to serve gRPC in plaintext to the sidecar. All callers of it are believed, so only the sidecar may reach it
    #[arg(long, env = "MYCORA_MESH_LISTEN", value_name = "ADDRESS:PORT", requires = "mesh")]
    pub mesh_listen: Option<SocketAddr>,
    /// Kubernetes namespace whose service accounts `scheduler` or `mycora-scheduler` and so on are our services
    #[arg(long, env = "MYCORA_MESH_NAMESPACE", value_name = "NAMESPACE", requires = "mesh")]
    pub mesh_namespace: Option<String>,
    /// The mesh's own trust domain
    #[arg(long, env = "MYCORA_MESH_DOMAIN", value_name = "DOMAIN", default_value = "cluster.local")]
    pub mesh_domain: String,
    /// Our trust domain, for which the tokens of actors that come through the mesh are made
    #[arg(long, env = "MYCORA_MESH_TRUST_DOMAIN", value_name = "DOMAIN", default_value = "mycora")]
    pub mesh_trust_domain: TrustDomain,
}

/// How often one actor may call a process.
#[derive(Debug, Clone, Copy, Args)]
pub struct ActorFlags {
    /// How many calls a second one actor may make, on average; calls beyond it are refused until later
    #[arg(long, env = "MYCORA_ACTOR_CALLS_PER_SEC", value_name = "COUNT", default_value_t = limits::ACTOR_CALLS_PER_SEC,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub actor_calls_per_sec: u64,
    /// How many calls one actor may make at once, after it has been quiet for a while
    #[arg(long, env = "MYCORA_ACTOR_CALLS_BURST", value_name = "COUNT", default_value_t = limits::ACTOR_CALLS_BURST,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub actor_calls_burst: u64,
}

impl ActorFlags {
    /// Returns the rate that the gate keeps to.
    #[must_use]
    pub const fn rate(self) -> CallRate {
        CallRate { per_sec: self.actor_calls_per_sec, burst: self.actor_calls_burst }
    }

    /// For `/info`.
    #[must_use]
    pub const fn limits(self) -> [(&'static str, u64); 2] {
        [("actor_calls_per_sec", self.actor_calls_per_sec), ("actor_calls_burst", self.actor_calls_burst)]
    }
}

impl ServingFlags {
    /// Names of the flags, as clap knows them.
    pub(crate) const IDS: [&'static str; 8] = [
        "tls_mode",
        "mesh",
        "mesh_listen",
        "mesh_namespace",
        "mesh_domain",
        "mesh_trust_domain",
        "actor_calls_per_sec",
        "actor_calls_burst",
    ];

    /// Where the sidecar comes in, and what it is believed; none outside of a mesh.
    #[must_use]
    pub fn mesh(&self) -> Option<(SocketAddr, MeshTrust)> {
        self.mesh.sidecar_listener()
    }
}

impl MeshFlags {
    /// Where the sidecar comes in, and what it is believed; none outside of a mesh.
    #[must_use]
    pub fn sidecar_listener(&self) -> Option<(SocketAddr, MeshTrust)> {
        let kind = match self.mesh? {
            MeshFlag::Linkerd => MeshKind::Linkerd,
            MeshFlag::Istio => MeshKind::Istio,
        };
        let (address, namespace) = (self.mesh_listen?, self.mesh_namespace.as_ref()?);
        let ours = self.mesh_trust_domain.clone();
        Some((address, MeshTrust::new(kind, self.mesh_domain.as_str(), namespace, ours)))
    }
}

/// Demand of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TlsModeFlag {
    /// TLS and nothing else
    Strict,
    /// Plaintext as well
    Permissive,
}

impl From<TlsModeFlag> for TlsMode {
    fn from(flag: TlsModeFlag) -> Self {
        match flag {
            TlsModeFlag::Strict => Self::Strict,
            TlsModeFlag::Permissive => Self::Permissive,
        }
    }
}

/// Which mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MeshFlag {
    /// Believes `l5d-client-id`
    Linkerd,
    /// Believes the last element of `x-forwarded-client-cert`, as Envoy writes it
    Istio,
}

/// The three files of a process that has all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsPaths {
    /// Authorities to trust.
    pub ca: PathBuf,
    /// The certificate.
    pub cert: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
}

impl TlsFlags {
    /// Returns true when no file was named.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ca.is_none() && self.cert.is_none() && self.key.is_none()
    }

    /// All three files.
    ///
    /// # Errors
    /// Names every flag that is missing.
    pub fn required(&self) -> Result<TlsPaths, MissingTls> {
        if let (Some(ca), Some(cert), Some(key)) = (&self.ca, &self.cert, &self.key) {
            return Ok(TlsPaths { ca: ca.clone(), cert: cert.clone(), key: key.clone() });
        }
        let flags = [("--tls-ca", &self.ca), ("--tls-cert", &self.cert), ("--tls-key", &self.key)];
        let missing: Vec<_> =
            flags.iter().filter(|(_, path)| path.is_none()).map(|(flag, _)| *flag).collect();
        Err(MissingTls { flags: missing.join(", ") })
    }
}

/// Certificates are needed and were not named.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{flags} missing: this service speaks mTLS only; `mycora pki init` and `mycora pki issue` make the files"
)]
pub struct MissingTls {
    /// The flags.
    pub flags: String,
}

/// The address of a collector, as it was typed.
pub(crate) fn collector_url(text: &str) -> Result<String, String> {
    let address: Option<axum::http::Uri> = text.parse().ok();
    let is_one = address.is_some_and(|address| {
        matches!(address.scheme_str(), Some("http" | "https"))
            && address.host().is_some_and(|host| !host.is_empty())
            && matches!(address.path(), "" | "/")
            && address.query().is_none()
    });
    if is_one {
        Ok(text.to_owned())
    } else {
        Err("a collector that takes OTLP over gRPC is http://HOST:4317, or https://HOST:4317 over TLS, without a path".to_owned())
    }
}

/// Where logs and traces go.
#[derive(Debug, Clone, Args)]
pub struct TelemetryFlags {
    /// Send traces to this OTLP collector (gRPC), as in http://localhost:4317, or https://… over TLS [default: that of
    /// OTEL_EXPORTER_OTLP_ENDPOINT, or none]
    #[arg(long, env = "MYCORA_OTLP_ENDPOINT", value_name = "URL", value_parser = collector_url)]
    pub otlp_endpoint: Option<String>,
    /// Certificates (PEM) by which an https collector is known [default: what this machine trusts, or SSL_CERT_FILE]
    #[arg(long, env = "MYCORA_OTLP_CA", value_name = "FILE", requires = "otlp_endpoint")]
    pub otlp_ca: Option<PathBuf>,
    /// How log lines on standard error look
    #[arg(long, env = "MYCORA_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Lines to log: a level, or `level,target=level,…`. A level alone is that of Mycora's own lines; libraries say more
    /// than `info` only where their targets are named, as in `debug,h2=debug`
    #[arg(long, env = "MYCORA_LOG_LEVEL", value_name = "FILTER", default_value = "info")]
    pub log_level: String,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line, for machines.
    Json,
    /// For people.
    Text,
}
