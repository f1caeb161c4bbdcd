//! Answers of the ops port.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so")]

#[path = "ops/admin.rs"]
mod admin;

use prometheus::{IntCounter, Registry};
use service::{
    CertificateMetrics, OperatorNotices, Ops, OpsAccess, OpsAddress, OpsListener, Readiness,
    ServiceDescription, ServiceLimits, Shutdown, Tasks,
};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

const TOKEN: &str = "0123456789abcdef";

struct Port {
    address: String,
    token_file: PathBuf,
    readiness: Readiness,
    notices: OperatorNotices,
    metrics: Registry,
    shutdown: Shutdown,
    tasks: Tasks,
    // Goes last: the token is in it.
    dir: tempfile::TempDir,
}

impl Port {
    async fn open() -> Self {
        Self::at(&"127.0.0.1:0".parse().unwrap(), OpsAccess::Token).await
    }

    async fn at(address: &OpsAddress, access: impl FnOnce(PathBuf) -> OpsAccess) -> Self {
        Self::with(address, access, |ops| ops).await
    }

    async fn with(
        address: &OpsAddress,
        access: impl FnOnce(PathBuf) -> OpsAccess,
        more: impl FnOnce(Ops) -> Ops,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let token_file = dir.path().join("ops.token");
        std::fs::write(&token_file, format!("{TOKEN}\n")).unwrap();
        std::fs::set_permissions(&token_file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let (readiness, metrics, shutdown) = (Readiness::new(), Registry::new(), Shutdown::new());
        let info = ServiceDescription {
            name: "small",
            version: "1.2.3",
            limits: ServiceLimits::from([("slots_max", 3)]),
        };
        let notices = OperatorNotices::default();
        let ops = Ops::new(info, readiness.clone(), metrics.clone(), access(token_file.clone()));
        let ops = more(ops.with_notices(notices.clone()));
        let listener = OpsListener::bind(address).await.unwrap();
        let address = listener.address().unwrap();
        let tasks = Tasks::new(shutdown.clone());
        let end = shutdown.begun_owned();
        tasks.spawn("ops", async move { Ok(ops.serve(listener, end).await?) });
        Self { address, token_file, readiness, notices, metrics, shutdown, tasks, dir }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.get_as(&format!("Bearer {TOKEN}"), path).await
    }

    async fn get_as(&self, authorization: &str, path: &str) -> (u16, String) {
        let head = format!("GET {path} HTTP/1.1\r\nAuthorization: {authorization}\r\n");
        let answer = self.ask(&head, "").await;
        (answer.status, answer.body)
    }

    /// Sends a request with these lines in its head.
    async fn ask(&self, head: &str, body: &str) -> Answer {
        let request = format!("{head}Host: ops\r\nConnection: close\r\n\r\n{body}");
        match self.address.strip_prefix("unix:") {
            Some(socket) => answer(UnixStream::connect(socket).await.unwrap(), &request).await,
            None => answer(TcpStream::connect(&self.address).await.unwrap(), &request).await,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: u16,
    /// In lower case.
    head: String,
    body: String,
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Answer {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

#[tokio::test]
async fn readiness_names_the_unmet_condition() {
    let port = Port::open().await;
    assert_eq!(port.get("/readyz").await, (200, "ready\n".to_owned()));
    let storage = port.readiness.condition("storage");
    storage.unmet("connection refused");
    assert_eq!(port.get("/readyz").await, (503, "storage: connection refused\n".to_owned()));
    assert_eq!(port.get("/livez").await, (200, "ok\n".to_owned()));
    storage.met();
    assert_eq!(port.get("/readyz").await.0, 200);
}

#[tokio::test]
async fn every_service_answers_health_and_ready() {
    let port = Port::open().await;
    assert_eq!(port.get("/health").await, (200, "healthy\n".to_owned()));
    assert_eq!(port.get("/ready").await, (200, "ready\n".to_owned()));
    let (storage, nats) = (port.readiness.condition("storage"), port.readiness.condition("nats"));
    storage.unmet("connection refused:\n  by 127.0.0.1\r\n");
    let lines = "nats: not yet\nstorage: connection refused: by 127.0.0.1\n";
    for path in ["/health", "/ready", "/readyz"] {
        assert_eq!(port.get(path).await, (503, lines.to_owned()), "one line for each thing: {path}");
    }
    assert_eq!(port.get_as("", "/health").await, (503, "not healthy\n".to_owned()));
    assert_eq!(port.get_as("", "/ready").await, (503, "not ready\n".to_owned()));
    storage.met();
    nats.met();
    port.readiness.close("the process is ending");
    assert_eq!(port.get("/health").await, (503, "process: the process is ending\n".to_owned()));
    assert_eq!(port.get("/livez").await.0, 200, "no reason to end it");
}

#[tokio::test]
async fn probes_answer_head_as_they_answer_get() {
    let port = Port::open().await;
    let of_all = async |status| {
        for path in ["/health", "/ready", "/readyz"] {
            let answer = port.ask(&format!("HEAD {path} HTTP/1.1\r\n"), "").await;
            assert_eq!((answer.status, answer.body.as_str()), (status, ""), "{path}");
            let answer = port.ask(&format!("POST {path} HTTP/1.1\r\nContent-Length: 0\r\n"), "").await;
            assert_eq!(answer.status, 405, "{path}");
        }
    };
    of_all(200).await;
    let _storage = port.readiness.condition("storage");
    of_all(503).await;
}

#[tokio::test]
async fn metrics_and_info() {
    let port = Port::open().await;
    let jobs = IntCounter::new("mycora_jobs_created_total", "Jobs created").unwrap();
    port.metrics.register(Box::new(jobs.clone())).unwrap();
    jobs.inc_by(7);
    let (status, text) = port.get("/metrics").await;
    assert_eq!(status, 200);
    assert!(text.contains("mycora_jobs_created_total 7"), "{text}");
    assert!(text.contains(r#"mycora_build_info{service="small",version="1.2.3"} 1"#), "{text}");

    let (status, text) = port.get("/info").await;
    assert_eq!(status, 200);
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info, serde_json::json!({"name": "small", "version": "1.2.3", "limits": {"slots_max": 3}}));
    port.notices.notice("intake").set(Some("takes no jobs"));
    let info: serde_json::Value = serde_json::from_str(&port.get("/info").await.1).unwrap();
    assert_eq!(info["notices"], serde_json::json!({"intake": "takes no jobs"}));
    assert_eq!(port.get("/other").await.0, 404);
}

#[tokio::test]
async fn readiness_and_health_are_metrics() {
    let port = Port::open().await;
    let storage = port.readiness.condition("storage");
    let upstream = port.readiness.impairment("upstream");
    let shown = async |ready: u8, healthy: u8| {
        let (status, text) = port.get("/metrics").await;
        assert_eq!(status, 200);
        for line in [format!("\nmycora_ready {ready}\n"), format!("\nmycora_healthy {healthy}\n")] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    };
    shown(0, 0).await;
    storage.met();
    shown(1, 1).await;
    upstream.begin("it does not answer");
    shown(1, 0).await;
    upstream.end();
    shown(1, 1).await;
}

#[tokio::test]
async fn the_ends_of_certificates_are_metrics() {
    let port = Port::open().await;
    let dir = tempfile::tempdir().unwrap();
    let now = std::time::SystemTime::now();
    let pki = identity::Pki::init(dir.path(), &identity::TrustDomain::default(), now).unwrap();
    let issued = pki.issue(identity::Identity::Admin, &identity::IssueOptions::from(now)).unwrap();
    let files = rpc::TlsFiles::new(&issued.ca, &issued.certificate, &issued.key);
    port.metrics.register(Box::new(CertificateMetrics::of(&files))).unwrap();
    let (_, text) = port.get("/metrics").await;
    for file in [&issued.ca, &issued.certificate] {
        let end = identity::CertificateSummary::from_pem_file(file).unwrap().not_after.as_secs();
        let line = format!("mycora_tls_certificate_expiry_seconds{{file=\"{}\"}} {end}\n", file.display());
        assert!(text.contains(&line), "{text}");
    }
    assert!(text.contains("mycora_tls_reload_failures_total 0"), "{text}");
    // What cannot be read has no end, and hides nothing else.
    std::fs::remove_file(&issued.certificate).unwrap();
    let (status, text) = port.get("/metrics").await;
    assert_eq!((status, text.matches("certificate_expiry_seconds{").count()), (200, 1), "{text}");
}

#[tokio::test]
async fn a_caller_without_a_token_gets_only_ready_or_not_ready() {
    let port = Port::open().await;
    let storage = port.readiness.condition("storage");
    storage.unmet("connection refused");
    for stranger in
        ["", "Bearer", "Bearer 0123456789abcdeX", "Bearer 0123456789abcde", "Basic 0123456789abcdef"]
    {
        for path in ["/metrics", "/info"] {
            let (status, text) = port.get_as(stranger, path).await;
            assert_eq!(status, 401, "{stranger} {path}: {text}");
            assert!(text.contains("--ops-token-file") && !text.contains("mycora_build_info"), "{text}");
        }
        assert_eq!(port.get_as(stranger, "/readyz").await, (503, "not ready\n".to_owned()), "{stranger}");
        assert_eq!(port.get_as(stranger, "/livez").await.0, 200);
    }
    assert_eq!(port.get_as("bearer 0123456789abcdef", "/info").await.0, 200, "the scheme has no case");
    storage.met();
    assert_eq!(port.get_as("", "/readyz").await, (200, "ready\n".to_owned()));
}

#[tokio::test]
async fn a_token_may_be_exchanged_and_has_to_be_closed() {
    let port = Port::open().await;
    std::fs::write(&port.token_file, "another token, of today").unwrap();
    assert_eq!(port.get("/info").await.0, 401);
    assert_eq!(port.get_as("Bearer another token, of today", "/info").await.0, 200);
    let access = OpsAccess::Token(port.token_file.clone());
    access.check().unwrap();
    std::fs::set_permissions(&port.token_file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(port.get_as("Bearer another token, of today", "/info").await.0, 401, "others read it");
    access.check().unwrap_err();
    std::fs::set_permissions(&port.token_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&port.token_file, "").unwrap();
    assert_eq!(port.get_as("Bearer ", "/info").await.0, 401, "an empty token is none");
    access.check().unwrap_err();
}

#[tokio::test]
async fn without_a_token_file_no_caller_reads_a_port() {
    let port = Port::at(&"127.0.0.1:0".parse().unwrap(), |_| OpsAccess::NoOne).await;
    assert_eq!(port.get("/metrics").await.0, 401);
    assert_eq!(port.get("/livez").await.0, 200);
}

#[tokio::test]
async fn a_socket_file_is_its_owners() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ops.sock");
    let address: OpsAddress = format!("unix:{}", path.display()).parse().unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    // What an ended process left behind is replaced.
    let port = Port::at(&address, |_| OpsAccess::Everyone).await;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(port.get_as("", "/info").await.0, 200);
    // A socket on which a process answers is not.
    let taken = OpsListener::bind(&address).await.unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    let file = port.dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    OpsListener::bind(&OpsAddress::Unix(file.clone())).await.unwrap_err();
    assert!(file.exists());
    for bad in ["unix:relative", "unix:", "nowhere"] {
        bad.parse::<OpsAddress>().unwrap_err();
    }
}

#[tokio::test]
async fn the_port_ends_with_the_shutdown() {
    let port = Port::open().await;
    assert_eq!(port.get("/livez").await.0, 200);
    port.shutdown.begin();
    assert!(port.tasks.drain(std::time::Duration::from_secs(5)).await);
    assert!(!port.tasks.any_failed());
}
