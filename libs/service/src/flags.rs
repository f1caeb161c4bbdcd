//! Flags that every service has, each also from the environment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// What every service is told.
#[derive(Debug, Clone, Args)]
pub struct CommonFlags {
    /// Where to serve gRPC
    #[arg(long, env = "MYCORA_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Where to serve /livez, /readyz, /metrics and /info (plain HTTP)
    #[arg(long, env = "MYCORA_OPS_LISTEN", value_name = "ADDRESS:PORT")]
    pub ops_listen: Option<SocketAddr>,
    /// How long calls, streams and tasks may go on after the first signal, in seconds
    #[arg(long, env = "MYCORA_DRAIN_SECS", value_name = "SECONDS", default_value_t = 20)]
    pub drain_secs: u64,
    /// Certificates of this process.
    #[command(flatten)]
    pub tls: TlsFlags,
    /// Logs and traces.
    #[command(flatten)]
    pub telemetry: TelemetryFlags,
}

impl CommonFlags {
    /// How long a drain may take.
    #[must_use]
    pub const fn drain_deadline(&self) -> Duration {
        Duration::from_secs(self.drain_secs)
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

/// The three files of a process that has all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsPaths {
    /// Authorities to trust.
    pub ca: PathBuf,
    /// The certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl TlsFlags {
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

/// Where logs and traces go.
#[derive(Debug, Clone, Args)]
pub struct TelemetryFlags {
    /// Send traces to this OTLP collector (gRPC), as in http://localhost:4317
    #[arg(long, env = "MYCORA_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// How log lines on standard error look
    #[arg(long, env = "MYCORA_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// What is logged: a level, or `level,target=level,…`
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
