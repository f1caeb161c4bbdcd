//! Logs on standard error or in a file, and traces over OTLP when a collector is named.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opentelemetry::global;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use rpc::traces::{self, SpanIdGenerator};
use tracing::Subscriber;
use tracing_subscriber::filter::{Filtered, LevelFilter};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layered, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::collector::{OtlpCollector, environment};
use crate::flags::{LogFormat, TelemetryFlags};
use crate::log_file::LogFile;

/// At exit, a collector that does not answer is not waited for any longer.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Where systems keep the certificates that they trust.
const CERTIFICATES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Writes lines.
type LogLayer = Box<dyn Layer<Registry> + Send + Sync>;
/// Subscriber that writes the lines that the filter lets through.
type LoggingSubscriber = Layered<Filtered<LogLayer, EnvFilter, Registry>, Registry>;

/// Our crates, as the targets of log lines name them: levels below INFO are theirs.
const OURS: [&str; 34] = [
    "addresses",
    "archive",
    "backoff",
    "broker",
    "delivery",
    "directory",
    "egress",
    "envelope",
    "expression",
    "flow",
    "flow_file",
    "identity",
    "keys",
    "kv",
    "model",
    "mycelium",
    "mycelium_gateway",
    "mycora_cli",
    "proto",
    "queue",
    "rehearsal",
    "router",
    "rpc",
    "runner",
    "runner_registry",
    "saga",
    "sandbox",
    "scheduler",
    "service",
    "storage",
    "store",
    "supervisor",
    "workflow",
    "yaml",
];

/// Keeps the NATS client from logging each connection, which we log ourselves.
const NATS_QUIET: &str = "async_nats=warn";

/// Telemetry that has to be flushed before the process ends.
#[derive(Debug)]
#[must_use = "traces that were not sent are lost unless this is flushed"]
pub struct Telemetry {
    tracer: Option<SdkTracerProvider>,
}

/// Why there is no telemetry.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error(
        "`{filter}` is no log filter: write a level (error, warn, info, debug, trace) or `level,target=level`"
    )]
    Filter {
        /// The text.
        filter: String,
        /// Description of what is wrong.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The collector's address cannot be used.
    #[error("traces cannot be sent to {endpoint}: {message}")]
    Exporter {
        /// The address.
        endpoint: String,
        /// Description of what is wrong.
        message: String,
    },
    /// Something else in this process has set a logger already.
    #[error("logging was set up twice in this process")]
    Twice,
}

/// Sets up logging and tracing for the whole process. Has to be called within a
/// runtime when a collector is named, and at most once.
///
/// # Errors
/// When a flag cannot be used, or logging is set up already.
pub fn init(service: &'static str, flags: &TelemetryFlags) -> Result<Telemetry, TelemetryError> {
    init_to(service, flags, std::io::stderr, std::io::stderr().is_terminal())
}

/// Does what [`init`] does, for a process without a terminal: lines go to this file.
///
/// # Errors
/// As [`init`].
pub fn init_to_file(
    service: &'static str,
    flags: &TelemetryFlags,
    file: LogFile,
) -> Result<Telemetry, TelemetryError> {
    init_to(service, flags, file, false)
}

fn init_to(
    service: &'static str,
    flags: &TelemetryFlags,
    writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static,
    colors: bool,
) -> Result<Telemetry, TelemetryError> {
    let filter = EnvFilter::try_new(directives(&flags.log_level))
        .map_err(|source| TelemetryError::Filter { filter: flags.log_level.clone(), source })?;
    let logs: LogLayer = match flags.log_format {
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(writer).boxed(),
        LogFormat::Text => fmt::layer().with_ansi(colors).with_writer(writer).boxed(),
    };
    let (collector, unusable) = match OtlpCollector::of_service(flags, environment) {
        Ok(collector) => (collector, None),
        Err(error) => (None, Some(error)),
    };
    let tracer = collector.map(|collector| tracer_provider(service, &collector)).transpose()?;
    let traces =
        tracer.as_ref().map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer(service)));
    composed(logs, filter, traces).try_init().map_err(|_| TelemetryError::Twice)?;
    global::set_text_map_propagator(TraceContextPropagator::new());
    if let Some(error) = unusable {
        // Variables that the whole machine has must not keep a service from its work.
        tracing::warn!(%error, "no traces are sent");
    }
    Ok(Telemetry { tracer })
}

/// The filter that a flag means: a level that stands alone is that of our own lines. Those of the libraries below us (each
/// frame, each handshake) come when their targets are named.
fn directives(flag: &str) -> String {
    // Spans for collectors are nothing for the log, and without a collector not even begun.
    let mut directives = vec![format!("{}=off", traces::TARGET)];
    for part in flag.split(',').map(str::trim) {
        let level = part.to_ascii_lowercase();
        if ["info", "debug", "trace"].contains(&level.as_str()) {
            // First, so that a directive of the operator's for it wins.
            directives.insert(0, NATS_QUIET.to_owned());
        }
        match level.as_str() {
            level @ ("debug" | "trace") => {
                directives.push("info".to_owned());
                directives.extend(OURS.map(|target| format!("{target}={level}")));
            }
            _ => directives.push(part.to_owned()),
        }
    }
    directives.join(",")
}

/// Combines log lines, which pass the filter, with traces, which are of every call, also where only warnings are logged.
fn composed(
    logs: LogLayer,
    filter: EnvFilter,
    traces: Option<impl Layer<LoggingSubscriber> + Send + Sync>,
) -> Box<dyn Subscriber + Send + Sync> {
    match traces {
        // One filter for everything is the cheaper one: a disabled span is not even begun.
        None => Box::new(Registry::default().with(logs).with(filter)),
        Some(traces) => {
            let traces = traces.with_filter(LevelFilter::INFO);
            Box::new(Registry::default().with(logs.with_filter(filter)).with(traces))
        }
    }
}

/// Makes the exporter of a program's spans, which are sent in batches.
///
/// # Errors
/// When the collector's address or its certificates cannot be used.
pub(crate) fn tracer_provider(
    service: &'static str,
    collector: &OtlpCollector,
) -> Result<SdkTracerProvider, TelemetryError> {
    let OtlpCollector { url, ca } = collector;
    let failed = |message: String| TelemetryError::Exporter { endpoint: url.clone(), message };
    let mut exporter = SpanExporter::builder().with_tonic().with_endpoint(url);
    if url.starts_with("https:") {
        let trusted = trusted(ca.as_deref()).map_err(failed)?;
        exporter =
            exporter.with_tls_config(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(trusted)));
    }
    let exporter = exporter.build().map_err(|error| failed(error.to_string()))?;
    let resource = Resource::builder().with_service_name(service).build();
    let provider =
        SdkTracerProvider::builder().with_id_generator(SpanIdGenerator::default()).with_resource(resource);
    Ok(provider.with_batch_exporter(exporter).build())
}

/// The certificates by which a collector is known: those of the file, or those that the machine trusts.
fn trusted(ca: Option<&Path>) -> Result<Vec<u8>, String> {
    let read = |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    if let Some(path) = ca {
        return read(path);
    }
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let places = named.into_iter().chain(CERTIFICATES.iter().map(PathBuf::from));
    let found = places.filter(|place| place.is_file()).map(|place| read(&place)).next();
    found.unwrap_or_else(|| Err("this machine trusts no certificates: name some with --otlp-ca".to_owned()))
}

impl Telemetry {
    /// Spans of a process that logs nothing.
    pub(crate) const fn of(tracer: SdkTracerProvider) -> Self {
        Self { tracer: Some(tracer) }
    }

    /// Nothing to send.
    pub(crate) const fn none() -> Self {
        Self { tracer: None }
    }

    /// Sends the remaining spans, within three seconds.
    pub async fn flush(self) {
        let Some(tracer) = self.tracer else { return };
        // It waits for an export that needs this runtime, so it must not hold the runtime's only thread.
        let flushed = tokio::task::spawn_blocking(move || tracer.shutdown_with_timeout(FLUSH_TIMEOUT)).await;
        if let Ok(Err(error)) = flushed {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id};
    use tracing_subscriber::layer::Context;

    use super::*;

    /// A collector that serves TLS with this certificate; returns the first bytes of its first caller.
    fn collector(files: &identity::IssuedFiles) -> (u16, std::thread::JoinHandle<Vec<u8>>) {
        use rustls::pki_types::pem::PemObject as _;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};
        let chain = CertificateDer::pem_file_iter(&files.certificate).expect("a file");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificates");
        let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
        let mut config = config.with_single_cert(chain, key).expect("a certificate");
        config.alpn_protocols = vec![b"h2".to_vec()];
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let server = std::thread::spawn(move || {
            let (socket, _) = listener.accept().expect("a caller");
            let session = rustls::ServerConnection::new(Arc::new(config)).expect("a session");
            let mut begin = vec![0; 24];
            let mut stream = rustls::StreamOwned::new(session, socket);
            std::io::Read::read_exact(&mut stream, &mut begin).expect("what it says first");
            begin
        });
        (port, server)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_collector_is_spoken_to_over_tls() {
        use opentelemetry::trace::Tracer as _;
        let dir = tempfile::tempdir().expect("a directory");
        let now = std::time::SystemTime::now();
        let domain = "test".parse().expect("a trust domain");
        let pki = identity::Pki::init(&dir.path().join("pki"), &domain, now).expect("an authority");
        let service = identity::Identity::Service(identity::ServiceName::Storage);
        let files = pki.issue(service, &identity::IssueOptions::from(now)).expect("issued");
        let (port, server) = collector(&files);
        let url = format!("https://localhost:{port}");
        let known_by = |ca: &Path| OtlpCollector { url: url.clone(), ca: Some(ca.to_owned()) };
        let provider = tracer_provider("test", &known_by(&files.ca)).expect("an exporter");
        drop(provider.tracer("test").start("span"));
        let received = tokio::task::spawn_blocking(move || server.join()).await.expect("a thread");
        assert_eq!(received.expect("it was called"), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        // Whether its answer is missed in time is of no interest.
        let ends = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_TIMEOUT)).await;
        let _ = ends.expect("a thread");

        let nowhere = tracer_provider("test", &known_by(Path::new("/nowhere"))).expect_err("no such file");
        assert!(nowhere.to_string().starts_with(&format!("traces cannot be sent to {url}: /nowhere: ")));
    }

    #[test]
    fn what_is_no_collector_is_refused() {
        #[derive(Debug, clap::Parser)]
        struct Typed {
            #[command(flatten)]
            flags: TelemetryFlags,
        }
        let typed = |url: &str| <Typed as clap::Parser>::try_parse_from(["x", "--otlp-endpoint", url]);
        for good in ["http://localhost:4317", "https://collector.example.com", "http://[::1]:4317/"] {
            assert_eq!(typed(good).expect("an address").flags.otlp_endpoint.as_deref(), Some(good));
        }
        for bad in
            ["nonsense", "localhost:4317", "grpc://localhost:4317", "http://", "http://h:4318/v1/traces", ""]
        {
            let refused = typed(bad).expect_err(bad).to_string();
            assert!(refused.contains("http://HOST:4317"), "{bad}: {refused}");
        }
    }

    /// Counts spans.
    #[derive(Default, Clone)]
    struct Counted(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Counted {
        fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_level_is_that_of_our_own_lines() {
        use tracing::{Level, event_enabled};
        let with = |flag: &str, check: &dyn Fn()| {
            let filter = EnvFilter::new(directives(flag));
            let lines = composed(fmt::layer().with_writer(std::io::sink).boxed(), filter, None::<Counted>);
            tracing::subscriber::with_default(lines, check);
        };
        with("debug", &|| {
            assert!(event_enabled!(target: "scheduler::driver", Level::DEBUG));
            assert!(!event_enabled!(target: "scheduler::driver", Level::TRACE));
            assert!(!event_enabled!(target: "h2::codec::framed_read", Level::DEBUG));
            assert!(!event_enabled!(target: "rustls::client::hs", Level::DEBUG));
            assert!(event_enabled!(target: "tower::buffer", Level::INFO));
        });
        with("DEBUG,h2=trace", &|| {
            assert!(event_enabled!(target: "h2::codec::framed_read", Level::TRACE), "it was asked for");
            assert!(!event_enabled!(target: "hyper_util::client", Level::DEBUG));
        });
        with("info", &|| {
            assert!(!event_enabled!(target: "async_nats::connection", Level::INFO));
            assert!(event_enabled!(target: "async_nats::connection", Level::WARN));
        });
        with("async_nats=debug,info", &|| {
            assert!(event_enabled!(target: "async_nats::connection", Level::DEBUG), "it was asked for");
        });
        with("error", &|| assert!(!event_enabled!(target: "async_nats::connection", Level::WARN)));
        with("warn,rpc=debug", &|| {
            assert!(event_enabled!(target: "rpc::server", Level::DEBUG));
            assert!(!event_enabled!(target: "storage", Level::INFO));
        });
    }

    #[test]
    fn spans_for_collectors_cost_nothing_without_one_and_are_in_no_line() {
        let logs = || fmt::layer().with_writer(std::io::sink).boxed();
        let filter = |flag: &str| EnvFilter::new(directives(flag));
        for level in ["info", "trace", "debug,h2=trace"] {
            let lines = composed(logs(), filter(level), None::<Counted>);
            tracing::subscriber::with_default(lines, || {
                assert!(tracing::info_span!(target: traces::TARGET, "one").is_disabled(), "{level}");
            });
        }
        let counted = Counted::default();
        let both = composed(logs(), filter("trace"), Some(counted.clone()));
        tracing::subscriber::with_default(both, || {
            assert!(!tracing::info_span!(target: traces::TARGET, "one").is_disabled());
        });
        assert_eq!(counted.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn our_crates_are_those_of_the_workspace() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut names = std::collections::BTreeSet::new();
        for folder in ["libs", "services"] {
            for member in std::fs::read_dir(root.join(folder)).expect("a folder") {
                let manifest = member.expect("an entry").path().join("Cargo.toml");
                let Ok(text) = std::fs::read_to_string(manifest) else { continue };
                let lib = text.split("[lib]").nth(1).and_then(|rest| rest.split('"').nth(1));
                names.extend(lib.map(str::to_owned));
            }
        }
        // Tests have no log of their own.
        names.remove("testkit");
        assert_eq!(names, OURS.map(str::to_owned).into());
    }

    #[test]
    fn calls_are_traced_also_where_only_warnings_are_logged() {
        let logs = || fmt::layer().with_writer(std::io::sink).boxed();
        let counted = Counted::default();
        let both = composed(logs(), EnvFilter::new("warn"), Some(counted.clone()));
        tracing::subscriber::with_default(both, || {
            assert!(!tracing::info_span!("call").is_disabled());
            assert!(tracing::debug_span!("detail").is_disabled());
        });
        assert_eq!(counted.0.load(Ordering::Relaxed), 1);
        let lines = composed(logs(), EnvFilter::new("warn"), None::<Counted>);
        tracing::subscriber::with_default(lines, || {
            assert!(tracing::info_span!("call").is_disabled(), "nobody wants it");
        });
    }
}
