//! Health reports the truth: a service that has lost a dependency does not serve, and serves again when it is back.

use std::path::Path;

use identity::ServiceName;
use rpc::{Channel, TlsFiles};
use tokio::runtime::Runtime;
use tonic::Streaming;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::local::Processes;
use crate::suite::{PATIENCE, Up, command, get, stdout};

/// All services with a port for gRPC, storage first: the others depend on it.
const ALL: [ServiceName; 6] = [
    ServiceName::Storage,
    ServiceName::RunnerRegistry,
    ServiceName::Scheduler,
    ServiceName::MyceliumGateway,
    ServiceName::Router,
    ServiceName::Supervisor,
];

/// Watch of a server's health.
struct Watch(Streaming<HealthCheckResponse>);

impl Watch {
    async fn begin(pki: &Path, port: u16, name: &str) -> Self {
        let tls = TlsFiles::new(pki.join("ca.pem"), pki.join("actor-1.pem"), pki.join("actor-1.key"));
        let channel = Channel::remote(&format!("https://127.0.0.1:{port}"), &tls, Some(name));
        let mut client = HealthClient::new(channel.expect("a way there"));
        let responses = client.watch(HealthCheckRequest::default()).await.expect("health is open to all");
        Self(responses.into_inner())
    }

    /// Waits until the server reports this.
    async fn until(&mut self, name: &str, wanted: ServingStatus) {
        let waiting = async {
            while let Some(response) = self.0.message().await.expect("the server lives") {
                if response.status() == wanted {
                    return;
                }
            }
            panic!("{name} has ended its watch");
        };
        let reported = tokio::time::timeout(PATIENCE, waiting).await;
        reported.unwrap_or_else(|_| panic!("{name} never said {wanted:?}"));
    }
}

/// Ends a process, waits until these do not serve for want of it, starts it again, and waits until they do.
fn lose(
    runtime: &Runtime,
    processes: &Processes,
    lost: &str,
    want: &[ServiceName],
    meanwhile: impl FnOnce(),
) {
    let pki = processes.dir().join("pki");
    let mut watches = runtime.block_on(async {
        let mut watches = Vec::new();
        for &service in want {
            let mut watch = Watch::begin(&pki, processes.port_of(service), service.as_str()).await;
            watch.until(service.as_str(), ServingStatus::Serving).await;
            watches.push((service.as_str(), watch));
        }
        watches
    });
    processes.kill9(lost);
    runtime.block_on(async {
        for (name, watch) in &mut watches {
            watch.until(name, ServingStatus::NotServing).await;
        }
    });
    meanwhile();
    processes.script("up.sh");
    runtime.block_on(async {
        for (name, watch) in &mut watches {
            watch.until(name, ServingStatus::Serving).await;
        }
    });
}

#[test]
fn a_service_that_has_lost_what_it_needs_does_not_serve() {
    let dir = tempfile::tempdir().expect("a directory");
    let processes = Processes::start(&dir.path().join("suite"), &[]);
    let runtime = Runtime::new().expect("a runtime");
    let readyz = |service| get(processes.dir(), processes.port_of(service) + 100, "/readyz");

    // Everything that the suite remembers: also the supervisor's.
    lose(&runtime, &processes, "redis", &ALL, || {
        assert!(readyz(ServiceName::Storage).contains("redis: "), "{}", readyz(ServiceName::Storage));
    });
    lose(&runtime, &processes, "storage", &ALL[1..5], || {
        let scheduler = readyz(ServiceName::Scheduler);
        assert!(scheduler.contains("503") && scheduler.contains("storage: "), "{scheduler}");
        assert!(readyz(ServiceName::Supervisor).contains("200"), "it has a store of its own");
    });
    lose(&runtime, &processes, "runner-registry", &ALL[2..5], || {
        assert!(readyz(ServiceName::Storage).contains("200"), "storage needs no registry");
        // It is information: what can be answered is answered.
        let list = command(&processes.profile(), &["flow", "list"]).output().expect("it starts");
        stdout(&list, 0);
    });
}

#[test]
fn one_process_serves_while_all_of_it_can() {
    let dir = tempfile::tempdir().expect("a directory");
    let suite = dir.path().join("suite");
    let up = Up::start(&suite, &[]);
    let runtime = Runtime::new().expect("a runtime");
    let mut watch = runtime.block_on(Watch::begin(&suite.join("pki"), up.port(), "localhost"));
    runtime.block_on(watch.until("mycora", ServingStatus::Serving));

    // Clients that listen to Redis are disconnected and not admitted again.
    let password = std::fs::read_to_string(suite.join("redis.password")).expect("`up` keeps the password");
    let change = |from: &str, to: &str| {
        up.redis_with(from, 0, &["ACL", "SETUSER", "default", "resetpass", &format!(">{to}")]);
    };
    change(password.trim(), "another");
    up.redis_with("another", 0, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    runtime.block_on(watch.until("mycora", ServingStatus::NotServing));
    let readyz = get(up.dir(), up.port() + 100, "/readyz");
    assert!(readyz.contains("503") && readyz.contains("storage redis: "), "{readyz}");
    change("another", password.trim());
    runtime.block_on(watch.until("mycora", ServingStatus::Serving));
    up.stop();
}
