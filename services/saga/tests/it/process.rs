//! Processes of the service, and the outside world that they call.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::SystemTime;

use identity::{Identity, IssueOptions, Pki, ServiceName, TrustDomain};
use proto::v1;
use proto::v1::command_service_server::{CommandService, CommandServiceServer};
use proto::v1::saga_service_client::SagaServiceClient;
use rpc::{Allow, Channel, MethodPolicy, Mount, Server, TlsFiles};
use testkit::{NatsServer, PATIENCE, TestProcess, wait_until};

use crate::world::TENANT;

/// Secret that opens the admin routes of a process that is alone.
pub(crate) const SECRET: &str = "the secret of these tests";

/// A call as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) key: String,
    pub(crate) path: String,
    pub(crate) body: String,
    /// The token by which it is answered later, where it came with one.
    pub(crate) token: String,
}

/// An upstream that logs each call, and answers when it may. A clone is the same one.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) address: String,
    calls: Arc<Mutex<Vec<Request>>>,
    held: Arc<(Mutex<BTreeSet<String>>, Condvar)>,
    unknown: Arc<Mutex<BTreeSet<String>>>,
    cut: Arc<Mutex<BTreeSet<String>>>,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1:0")
    }

    /// Starts one at an address.
    pub(crate) fn start_at(address: &str) -> Self {
        Self::answering_at(address, r#"{"id":"p-1"}"#)
    }

    /// One that answers each call with this body.
    pub(crate) fn answering(body: &'static str) -> Self {
        Self::answering_at("127.0.0.1:0", body)
    }

    fn answering_at(address: &str, body: &'static str) -> Self {
        let listener = TcpListener::bind(address).expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let upstream = Self {
            address,
            calls: Arc::default(),
            held: Arc::default(),
            unknown: Arc::default(),
            cut: Arc::default(),
        };
        let (calls, held) = (Arc::clone(&upstream.calls), Arc::clone(&upstream.held));
        let (unknown, cut) = (Arc::clone(&upstream.unknown), Arc::clone(&upstream.cut));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (calls, held, unknown) = (Arc::clone(&calls), Arc::clone(&held), Arc::clone(&unknown));
                let cut = Arc::clone(&cut);
                std::thread::spawn(move || {
                    let Some((stream, request)) = read(stream) else { return };
                    let path = request.path.clone();
                    calls.lock().expect("no panic").push(request);
                    if cut.lock().expect("no panic").contains(&path) {
                        return;
                    }
                    let (paths, changed) = &*held;
                    let paths = paths.lock().expect("no panic");
                    drop(changed.wait_while(paths, |paths| paths.contains(&path)).expect("no panic"));
                    let is_unknown = unknown.lock().expect("no panic").contains(&path);
                    answer(stream, if is_unknown { "404 Not Found" } else { "200 OK" }, body);
                });
            }
        });
        upstream
    }

    /// Holds answers to calls of this path.
    pub(crate) fn hold(&self, path: &str) {
        self.held.0.lock().expect("no panic").insert(path.to_owned());
    }

    /// Answers requests of this path with 404 from now on.
    pub(crate) fn forget(&self, path: &str) {
        self.unknown.lock().expect("no panic").insert(path.to_owned());
    }

    /// Loses its answers to calls of this path from now on.
    pub(crate) fn cut(&self, path: &str) {
        self.cut.lock().expect("no panic").insert(path.to_owned());
    }

    /// Answers everything that is held.
    pub(crate) fn release(&self) {
        self.held.0.lock().expect("no panic").clear();
        self.held.1.notify_all();
    }

    /// All calls, in the order in which they came.
    pub(crate) fn calls(&self) -> Vec<Request> {
        self.calls.lock().expect("no panic").clone()
    }

    /// Number of calls of a path.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.count_of(path, "")
    }

    /// Number of calls of a path with this in their payload.
    pub(crate) fn count_of(&self, path: &str, part: &str) -> usize {
        let calls = self.calls.lock().expect("no panic");
        calls.iter().filter(|call| call.path == path && call.body.contains(part)).count()
    }

    /// Returns what was called, by its key: the path and the payload, and how often.
    pub(crate) fn by_key(&self) -> BTreeMap<String, (String, String, usize)> {
        let mut by_key: BTreeMap<String, (String, String, usize)> = BTreeMap::new();
        for Request { key, path, body, .. } in self.calls() {
            let call = by_key.entry(key.clone()).or_insert_with(|| (path.clone(), body.clone(), 0));
            assert_eq!((&call.0, &call.1), (&path, &body), "one payload for {key}");
            call.2 += 1;
        }
        by_key
    }
}

/// A command of an aggregate, but for its id and its trace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Submitted {
    /// Type and id of the aggregate.
    pub(crate) aggregate: (String, String),
    pub(crate) kind: String,
    pub(crate) payload: String,
    pub(crate) correlation: String,
}

/// A gateway that logs each command of an aggregate under its id, and takes it.
#[derive(Clone, Default)]
pub(crate) struct Commands(Arc<Mutex<Vec<(String, Submitted)>>>);

impl Commands {
    /// Serves it over TLS, by the authority of what was prepared; gives its URL.
    pub(crate) async fn serve(&self, dir: &Path) -> String {
        let pki = Pki::open(&dir.join("pki")).expect("an authority");
        let whose = Identity::Service(ServiceName::Storage);
        let issued = pki.issue(whose, &IssueOptions::from(SystemTime::now())).expect("issued");
        let tls = TlsFiles::new(pki.ca_file(), issued.certificate, issued.key);
        let policy = MethodPolicy::new(&[&[("/mycora.v1.CommandService/*", &[Allow::AnyService])]]);
        let mount =
            Mount::builder(policy.expect("a policy")).service(CommandServiceServer::new(self.clone()));
        let mount = mount.descriptors(proto::DESCRIPTORS).build().expect("a mount");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let server = Server::new(mount, &tls).expect("certificates");
        tokio::spawn(server.serve(listener, std::future::pending()));
        format!("https://{address}")
    }

    /// Returns what was submitted, by its id, under which it has one payload.
    pub(crate) fn by_id(&self) -> BTreeMap<String, Submitted> {
        let mut by_id = BTreeMap::new();
        for (id, submitted) in self.0.lock().expect("no panic").iter() {
            let first = by_id.entry(id.clone()).or_insert_with(|| submitted.clone());
            assert_eq!(first, submitted, "one payload for {id}");
        }
        by_id
    }
}

#[tonic::async_trait]
impl CommandService for Commands {
    async fn submit_command(
        &self,
        request: tonic::Request<v1::SubmitCommandRequest>,
    ) -> Result<tonic::Response<v1::SubmitCommandResponse>, tonic::Status> {
        let v1::SubmitCommandRequest {
            command_id,
            aggregate_id,
            aggregate_type,
            payload_json,
            metadata,
            command_type,
            ..
        } = request.into_inner();
        let correlation = metadata.get("correlation_id").cloned().unwrap_or_default();
        let aggregate = (aggregate_type, aggregate_id);
        let submitted = Submitted { aggregate, kind: command_type, payload: payload_json, correlation };
        let mut all = self.0.lock().expect("no panic");
        let is_known = all.iter().any(|(id, _)| *id == command_id);
        all.push((command_id, submitted));
        let receipt = if is_known { v1::CommandReceipt::Duplicate } else { v1::CommandReceipt::Accepted };
        Ok(tonic::Response::new(v1::SubmitCommandResponse { receipt: receipt.into() }))
    }
}

/// Reads one request; one that is cut off is none.
fn read(mut stream: TcpStream) -> Option<(TcpStream, Request)> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    let (head, length) = loop {
        let Ok(read @ 1..) = stream.read(&mut buffer) else { return None };
        bytes.extend_from_slice(&buffer[..read]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = header(&head, "content-length").parse::<usize>().unwrap_or(0);
        if bytes.len() >= end + 4 + length {
            break (head, length);
        }
    };
    let body = String::from_utf8_lossy(&bytes[bytes.len() - length..]).into_owned();
    let path = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let of = |name| header(&head, name).to_owned();
    Some((stream, Request { key: of("idempotency-key"), path, body, token: of("x-token") }))
}

fn answer(mut stream: TcpStream, status: &str, answer: &str) {
    // The caller may be gone.
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
        answer.len()
    );
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_default()
}

/// Writes what a process reads: a manifest, a tenants file, certificates.
pub(crate) fn prepare(dir: &Path, manifest: &str, upstream: &Upstream) {
    std::fs::create_dir(dir.join("manifests")).expect("made");
    let manifest = manifest.replace("ADDRESS", &upstream.address);
    std::fs::write(dir.join("manifests/order.yaml"), manifest).expect("written");
    std::fs::write(dir.join("tenants.yaml"), format!("{TENANT}: {{ context: 1 }}\n")).expect("written");
    let now = SystemTime::now();
    let pki = Pki::init(&dir.join("pki"), &TrustDomain::default(), now).expect("an authority");
    pki.issue(Identity::Service(ServiceName::Saga), &IssueOptions::from(now)).expect("issued");
}

/// The command of a process that reads what was prepared; where it keeps rows is added.
pub(crate) fn command(dir: &Path, nats: &NatsServer) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mycora-saga"));
    let pki = Pki::open(&dir.join("pki")).expect("an authority");
    let files = pki.files(Identity::Service(ServiceName::Saga));
    command
        .args(["--listen", "127.0.0.1:0", "--storage", "none", "--nats-url", &nats.url()])
        .arg("--tls-ca")
        .arg(files.ca)
        .arg("--tls-cert")
        .arg(files.certificate)
        .arg("--tls-key")
        .arg(files.key)
        .arg("--tenants")
        .arg(dir.join("tenants.yaml"));
    let manifests = dir.join("manifests");
    if manifests.is_dir() {
        command.arg("--manifests").arg(manifests);
    }
    command
}

/// A file with what opens the admin routes, as an argument.
pub(crate) fn admin_secret(dir: &Path) -> String {
    let secret = dir.join("admin.secret");
    std::fs::write(&secret, SECRET).expect("written");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("closed");
    format!("--admin-secret-file={}", secret.display())
}

/// Header lines of the gateway, which asks for this tenant where it is no empty text.
pub(crate) fn gateway(tenant: &str) -> String {
    let tenant = if tenant.is_empty() { String::new() } else { format!("x-tenant-id: {tenant}\r\n") };
    format!("authorization: Bearer {SECRET}\r\n{tenant}")
}

/// Kibibytes of memory that a process has: now, and at most so far.
pub(crate) fn memory_kib(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it is told");
        line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    };
    (of("VmRSS:"), of("VmHWM:"))
}

/// One of several processes over one Redis.
pub(crate) struct ReplicaProcess {
    pub(crate) name: String,
    pub(crate) process: TestProcess,
    ops: PathBuf,
}

impl ReplicaProcess {
    /// Starts one, and waits until it has what it needs.
    pub(crate) fn start(dir: &Path, nats: &NatsServer, redis: &str, name: &str, drain_secs: u32) -> Self {
        Self::over(dir, nats, &["--redis-url", redis, "--replica", name], name, drain_secs)
    }

    /// Starts one that keeps its rows as these arguments say, and waits until it has what it needs.
    pub(crate) fn over(dir: &Path, nats: &NatsServer, rows: &[&str], name: &str, drain_secs: u32) -> Self {
        let ops = dir.join(format!("{name}.sock"));
        let mut command = command(dir, nats);
        command
            .args(rows)
            .args(["--drain-secs", &drain_secs.to_string()])
            .arg("--ops-listen")
            .arg(format!("unix:{}", ops.display()));
        let mut process = TestProcess::spawn(name, &mut command);
        process.wait_for_line("saga started", PATIENCE);
        Self { name: name.to_owned(), process, ops }
    }

    /// Starts one that keeps rows in a directory of its own, and logs all that it can.
    pub(crate) fn start_alone(dir: &Path, nats: &NatsServer, role: &str) -> Self {
        let ops = dir.join("alone.sock");
        let mut command = command(dir, nats);
        command
            .args(["--role", role, "--drain-secs", "5", "--log-level", "trace", &admin_secret(dir)])
            .arg("--store-dir")
            .arg(dir.join("store"))
            .arg("--ops-listen")
            .arg(format!("unix:{}", ops.display()));
        let mut process = TestProcess::spawn("alone", &mut command);
        process.wait_for_line("saga started", PATIENCE);
        Self { name: "alone".to_owned(), process, ops }
    }

    /// Starts one by a command of its own, and waits until it has what it needs.
    pub(crate) fn spawn(dir: &Path, command: &mut Command, name: &str) -> Self {
        let ops = dir.join(format!("{name}.sock"));
        command.arg("--ops-listen").arg(format!("unix:{}", ops.display()));
        let mut process = TestProcess::spawn(name, command);
        process.wait_for_line("saga started", PATIENCE);
        Self { name: name.to_owned(), process, ops }
    }

    /// Asks the ops port; returns the status and the body, or `None` without an answer.
    pub(crate) fn ask(&self, path: &str) -> Option<(u16, String)> {
        self.ask_with(path, "")
    }

    /// Asks the ops port with these header lines.
    pub(crate) fn ask_with(&self, path: &str, headers: &str) -> Option<(u16, String)> {
        self.send("GET", path, headers)
    }

    /// Sends the ops port a request without a body.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &str) -> Option<(u16, String)> {
        let mut stream = UnixStream::connect(&self.ops).ok()?;
        let headers = format!("{headers}host: ops\r\ncontent-length: 0\r\nconnection: close\r\n");
        write!(stream, "{method} {path} HTTP/1.1\r\n{headers}\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split_whitespace().nth(1)?.parse().ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        Some((status, body.to_owned()))
    }

    /// A way to it for the operator, by the authority of what was prepared in this directory.
    pub(crate) fn operator(&self, dir: &Path) -> SagaServiceClient<Channel> {
        let pki = Pki::open(&dir.join("pki")).expect("an authority");
        let issued = pki.issue(Identity::Admin, &IssueOptions::from(SystemTime::now())).expect("issued");
        let tls = TlsFiles::new(pki.ca_file(), issued.certificate, issued.key);
        let output = self.process.output();
        let bound = output.lines().find(|line| line.contains("--listen is bound")).expect("it listens");
        let (_, address) = bound.split_once("address=").expect("it says where");
        let url = format!("https://{}", address.split_whitespace().next().expect("an address"));
        SagaServiceClient::new(Channel::remote(&url, &tls, None).expect("a way"))
    }

    /// Returns the impairments that `/health` reports.
    pub(crate) fn troubles(&self) -> String {
        self.ask("/health").filter(|(status, _)| *status == 503).map(|(_, body)| body).unwrap_or_default()
    }

    /// Sum of a metric over its labels.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let (_, body) = self.ask("/metrics")?;
        let of = |line: &str| {
            let rest = line.strip_prefix("mycora_saga_")?.strip_prefix(name)?;
            rest.starts_with([' ', '{']).then(|| rest.rsplit_once(' ')?.1.parse::<f64>().ok()).flatten()
        };
        Some(body.lines().filter_map(of).sum())
    }

    /// Number of lanes that it owns.
    pub(crate) fn lanes(&self) -> usize {
        self.metric("lanes_owned").map_or(0, |lanes| lanes as usize)
    }

    /// Waits until it owns so many lanes.
    pub(crate) async fn until_lanes(&self, wanted: impl Fn(usize) -> bool, what: &str) {
        let owned = async || wanted(self.lanes()).then_some(());
        wait_until(owned, PATIENCE, format!("{}: {what}", self.name)).await;
    }
}
