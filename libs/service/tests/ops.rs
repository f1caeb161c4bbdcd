//! What the ops port answers.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so")]

use prometheus::{IntCounter, Registry};
use service::{CertificateMetrics, Info, Limits, Ops, Readiness, Shutdown, Tasks};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

struct Port {
    address: std::net::SocketAddr,
    readiness: Readiness,
    metrics: Registry,
    shutdown: Shutdown,
    tasks: Tasks,
}

impl Port {
    async fn open() -> Self {
        let (readiness, metrics, shutdown) = (Readiness::new(), Registry::new(), Shutdown::new());
        let info = Info { name: "small", version: "1.2.3", limits: Limits::from([("slots_max", 3)]) };
        let ops = Ops::new(info, readiness.clone(), metrics.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = Tasks::new(shutdown.clone());
        let end = shutdown.begun_owned();
        tasks.spawn("ops", async move { Ok(ops.serve(listener, end).await?) });
        Self { address, readiness, metrics, shutdown, tasks }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: ops\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

#[tokio::test]
async fn readiness_says_what_is_missing() {
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
    assert_eq!(port.get("/other").await.0, 404);
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
async fn the_port_ends_with_the_shutdown() {
    let port = Port::open().await;
    assert_eq!(port.get("/livez").await.0, 200);
    port.shutdown.begin();
    assert!(port.tasks.drain(std::time::Duration::from_secs(5)).await);
    assert!(!port.tasks.have_failed());
}
