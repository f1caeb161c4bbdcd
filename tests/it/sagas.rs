//! `mycora up --saga`: the private NATS server and what it is for, over the death of either.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::{
    CursorSpec, CursorStart, Deliveries, Headers, JetStream, JetStreamLogin, JetStreamOptions, JetStreamTls,
    MessageBroker, Publication, PullLimit, StreamSpec,
};
use testkit::{wait_until, wait_until_blocking};
use workflow::message::FactMessage;

use crate::local::Processes;
use crate::suite::{PATIENCE, Up, free_port_pair, processes_in, program, started_at, stderr};

/// A saga that waits for longer than it takes to kill a suite.
const WAITS: &str = "kind: Saga\nname: waits\nversion: 1\ntenants: all\nstate: { order_id: text }\n\
    sources: [ { aggregate: Order } ]\ncorrelate: event.data.order_id\n\
    start:\n  on: OrderPlaced\n  set: { order_id: \"${{ event.data.order_id }}\" }\n  goto: wait\n\
    steps:\n  wait:\n    timers: { over: { after: 3s, raise: Over } }\n    on: { Over: { end: completed } }\n";

/// A saga that pays: its call is in the middle when its suite is killed, and is made again under the same key.
const PAYS: &str = "kind: Saga\nname: waits\nversion: 1\ntenants: all\nstate: { order_id: text }\n\
    sources: [ { aggregate: Order } ]\ncorrelate: event.data.order_id\n\
    start:\n  on: OrderPlaced\n  set: { order_id: \"${{ event.data.order_id }}\" }\n  goto: pay\n\
    steps:\n  pay:\n    effect: pay\n    input: { order: \"${{ state.order_id }}\" }\n    \
    on_success: [ { when: result.paid == state.order_id, end: completed }, { end: failed, reason: another result } ]\n    \
    on_failure: { end: failed, reason: \"${{ result.code }}\" }\n---\n\
    kind: EffectProvider\nname: upstream\ntransport: http\n\
    http: { base_url: \"http://ADDRESS\", allow_hosts: [\"ADDRESS\"], private: true }\n\
    effects:\n  pay: { request: { method: POST, path: /pay, body: \"${{ input }}\" }, unknown_outcome: retry, \
    timeouts: { start_to_close: 10m, schedule_to_close: 30m } }\n";

/// How subjects begin that are of the tenant of context 1; and where there are no tenants.
const TENANT: &str = "tenant.1.";
pub(crate) const NO_TENANT: &str = "";

/// The process in a record of a data directory, and when it began.
fn recorded(data: &Path, record: &str) -> (String, String) {
    let text = std::fs::read_to_string(data.join(record)).expect("a record");
    let mut fields = text.split_whitespace().map(str::to_owned);
    (fields.next().expect("a process id"), fields.next().expect("its start"))
}

fn runs((pid, since): &(String, String)) -> bool {
    started_at(pid).as_ref() == Some(since)
}

fn kill(pid: &str) {
    let killed = Command::new("kill").args(["-KILL", pid]).status();
    assert!(killed.expect("`kill` starts").success());
}

/// A connection to the private server, as an external program has it.
async fn connect(data: &Path) -> Arc<dyn MessageBroker> {
    let text = |name: &str| std::fs::read_to_string(data.join(name)).expect(name);
    let tls = JetStreamTls { ca: Some(data.join("pki/ca.pem")), identity: None };
    let url = JetStreamOptions { tls: Some(tls), ..JetStreamOptions::new(&text("nats.url")) };
    connected(url, &text("nats.user"), &text("nats.password")).await
}

/// A connection to a server that requires a password.
pub(crate) async fn connect_to(url: &str, user: &str, password: &str) -> Arc<dyn MessageBroker> {
    connected(JetStreamOptions::new(url), user, password).await
}

async fn connected(options: JetStreamOptions, user: &str, password: &str) -> Arc<dyn MessageBroker> {
    let login = JetStreamLogin::Password { user: user.to_owned(), password: password.to_owned() };
    let options = JetStreamOptions { login: Some(login), ..options };
    let broker = JetStream::start(options).expect("options");
    let mut connection = broker.connection();
    let connected = connection.wait_for(|connection| connection.connected);
    tokio::time::timeout(PATIENCE, connected).await.expect("in time").expect("it goes on");
    Arc::new(broker)
}

async fn place(broker: &dyn MessageBroker, whose: &str, order: &str) {
    publish(broker, whose, "OrderPlaced", order).await;
}

/// Publishes an event of an order, of this type.
pub(crate) async fn publish(broker: &dyn MessageBroker, whose: &str, kind: &str, order: &str) {
    let body = format!(
        "{{\"event_id\":\"placed-{order}\",\"type\":\"{kind}\",\"data\":{{\"order_id\":\"{order}\"}},\"metadata\":{{}}}}"
    );
    let outgoing = Publication {
        subject: format!("{whose}aggregate.Order.{order}"),
        message_id: format!("placed-{order}"),
        headers: Headers::new(),
        payload: body.into(),
    };
    let publish = || async { broker.publish(outgoing.clone()).await.ok()?.await.ok() };
    wait_until(publish, PATIENCE, "it is stored").await;
}

/// Opens a cursor over the facts of instances, from the beginning.
async fn facts(broker: &dyn MessageBroker, whose: &str) -> Box<dyn Deliveries> {
    let filter = format!("{whose}workflow_event.waits.*");
    let spec = CursorSpec::new("WORKFLOW_EVENTS", "looks-on", &filter, CursorStart::After(0));
    let open = || async { broker.open(&spec).await.ok() };
    wait_until(open, PATIENCE, "a cursor").await
}

/// Kinds of facts of an order, up to this one.
async fn kinds_until(facts: &mut dyn Deliveries, order: &str, last: &str) -> Vec<String> {
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind| kind != last) {
        let next = facts.next(PullLimit { messages: 16, bytes: 1 << 20 });
        let delivered = tokio::time::timeout(PATIENCE, next).await.expect("in time").expect("it goes on");
        let fact: FactMessage = serde_json::from_slice(&delivered.payload).expect("a fact");
        if fact.correlation.as_str() == order {
            kinds.push(fact.kind);
        }
    }
    kinds
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// An upstream that notes the key and the body of each call, and answers none before it is released.
struct HeldUpstream {
    address: String,
    calls: Arc<Mutex<Vec<(String, String)>>>,
    is_open: Arc<AtomicBool>,
}

impl HeldUpstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let held = Self { address, calls: Arc::default(), is_open: Arc::default() };
        let (calls, is_open) = (Arc::clone(&held.calls), Arc::clone(&held.is_open));
        std::thread::spawn(move || {
            // Those that are not answered stay open.
            let mut unanswered = Vec::new();
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream);
                let Some((key, body)) = read_call(&mut reader) else { continue };
                calls.lock().expect("no panic").push((key, body.clone()));
                if !is_open.load(Ordering::SeqCst) {
                    unanswered.push(reader);
                    continue;
                }
                let order: serde_json::Value = serde_json::from_str(&body).expect("JSON");
                let answer = serde_json::json!({ "paid": order["order"] }).to_string();
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    answer.len()
                );
                // The caller may be gone.
                let _ = reader.get_mut().write_all(format!("{head}{answer}").as_bytes());
            }
        });
        held
    }

    fn calls(&self) -> Vec<(String, String)> {
        self.calls.lock().expect("no panic").clone()
    }
}

/// The key and the body of a request; nothing of one that breaks off.
fn read_call(reader: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let (mut key, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            if line.trim_end().is_empty() {
                break;
            }
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "idempotency-key" => value.clone_into(&mut key),
            "content-length" => length = value.parse().expect("a length"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((key, String::from_utf8(body).expect("JSON")))
}

#[test]
fn a_killed_suite_goes_on_with_its_sagas_and_ends_the_server_that_was_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, manifests) = (dir.path().join("data"), dir.path().join("manifests"));
    let upstream = HeldUpstream::start();
    std::fs::create_dir(&manifests).expect("made");
    let manifest = PAYS.replace("ADDRESS", &upstream.address);
    std::fs::write(manifests.join("pays.yaml"), manifest).expect("written");
    let arguments = ["--saga", "--no-supervisor", "--manifests", manifests.to_str().expect("a plain path")];
    let mut up = Up::start(&data, &arguments);
    // It is ready with its first line, and prints the others after that.
    up.process.wait_for_line("sagas         mycora saga list --tenant 1", PATIENCE);
    let runtime = runtime();
    let before = runtime.block_on(async {
        let broker = connect(&data).await;
        place(&*broker, TENANT, "1001").await;
        kinds_until(&mut *facts(&*broker, TENANT).await, "1001", "started").await
    });
    assert_eq!(before, ["started"]);
    let is_called = || (!upstream.calls().is_empty()).then_some(());
    wait_until_blocking(is_called, PATIENCE, "the call is under way");

    // A second start while it runs is refused, with the owner of the directory.
    let mut second = Command::new(program("mycora"));
    second.args(["up", "--saga", "--port", "1"]).arg("--data").arg(&data);
    let refused = stderr(&second.output().expect("it starts"), 3);
    assert!(refused.contains(&format!("{} is in use by another `mycora up`", data.display())), "{refused}");

    let left = recorded(&data, "nats.pid");
    up.process.kill9();
    assert!(runs(&left), "it was to outlive the kill");
    assert_eq!(upstream.calls().len(), 1, "nobody was answered");
    upstream.is_open.store(true, Ordering::SeqCst);
    up.restart();
    assert!(!runs(&left), "it was ended");
    let printed = up.process.output();
    assert!(printed.contains(&format!("stopping nats-server {} of an earlier start", left.0)), "{printed}");
    let all = runtime.block_on(async {
        let broker = connect(&data).await;
        kinds_until(&mut *facts(&*broker, TENANT).await, "1001", "completed").await
    });
    assert_eq!(all.first().map(String::as_str), Some("started"));
    let once = |kind: &str| all.iter().filter(|found| *found == kind).count() == 1;
    assert!(once("started") && once("completed"), "once each: {all:?}");
    let calls = upstream.calls();
    assert_eq!(calls.len(), 2, "the call in the middle was made again, once");
    assert_eq!(calls[0], calls[1], "one key and one payload");
    assert_eq!(calls[0].1, r#"{"order":"1001"}"#);
    assert_eq!(calls[0].0.len(), 36, "the id of the command");

    up.stop();
    assert_eq!(processes_in(&data), Vec::<String>::new(), "left running");
}

#[test]
fn a_server_that_is_killed_is_started_again_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, manifests) = (dir.path().join("data"), dir.path().join("manifests"));
    std::fs::create_dir(&manifests).expect("made");
    std::fs::write(manifests.join("waits.yaml"), WAITS).expect("written");
    let arguments = ["--saga", "--no-supervisor", "--manifests", manifests.to_str().expect("a plain path")];
    let mut up = Up::start(&data, &arguments);
    let first = recorded(&data, "nats.pid");
    runtime().block_on(async {
        let broker = connect(&data).await;
        place(&*broker, TENANT, "1001").await;
        kinds_until(&mut *facts(&*broker, TENANT).await, "1001", "started").await;
        kill(&first.0);
        let mut connection = broker.connection();
        let again = connection.wait_for(|connection| connection.connected && connection.generation > 1);
        tokio::time::timeout(PATIENCE, again).await.expect("in time").expect("it goes on");
        let all = kinds_until(&mut *facts(&*broker, TENANT).await, "1001", "completed").await;
        assert_eq!(all, ["started", "completed"], "once each");
    });
    assert_ne!(recorded(&data, "nats.pid"), first);
    for line in ["nats-server ended", "nats-server runs again"] {
        up.process.wait_for_line(line, PATIENCE);
    }
    // Its password is in its configuration.
    for name in ["nats/nats.conf", "nats.password", "secrets/actor-1"] {
        let mode = data.join(name).metadata().expect(name).permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name} has mode {mode:o}");
    }
    up.stop();
    assert_eq!(processes_in(&data), Vec::<String>::new(), "left running");
}

#[test]
fn obstacles_to_sagas_are_reported_before_anything_is_created() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let run_up = |arguments: &[&str]| {
        let mut command = Command::new(program("mycora"));
        command.args(["up", "--saga", "--port", "1"]).arg("--data").arg(&data).args(arguments);
        command.output().expect("it starts")
    };
    let none = dir.path().join("none");
    let printed = stderr(&run_up(&["--nats-server", none.to_str().expect("a plain path")]), 3);
    assert!(printed.contains("none is no `nats-server` that can be used"), "{printed}");
    let printed = stderr(
        &run_up(&["--nats-url", "nats://127.0.0.1:1", "--nats-user", "x", "--nats-password-file", "none"]),
        2,
    );
    assert!(printed.contains("the password in none cannot be read"), "{printed}");
    assert!(!data.exists(), "nothing was made");
}

/// Starts services with `deploy/local/up.sh`; the stream of aggregates is made by the test, as its owner would.
#[test]
fn separate_processes_run_sagas_among_the_others() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(dir.path().join("manifests")).expect("made");
    std::fs::write(dir.path().join("manifests/waits.yaml"), WAITS).expect("written");
    let processes = Processes::start(dir.path(), &[("MYCORA_SAGA", "yes")]);
    assert!(processes.runs("saga") && processes.runs("nats"));
    let port = processes.storage_port() - 1 + 50;
    let password = std::fs::read_to_string(dir.path().join("nats.password")).expect("a password");
    runtime().block_on(async {
        let broker = connect_to(&format!("nats://127.0.0.1:{port}"), "mycora", &password).await;
        let aggregates =
            StreamSpec::managed("AGGREGATE_EVENTS", &["aggregate.*.*"], Duration::from_secs(24 * 3600));
        assert_eq!(broker.ensure_stream(&aggregates).await.expect("a stream"), []);
        place(&*broker, NO_TENANT, "1001").await;
        let mut facts = facts(&*broker, NO_TENANT).await;
        assert_eq!(kinds_until(&mut *facts, "1001", "completed").await, ["started", "completed"]);
    });
    processes.script("down.sh");
    assert!(!processes.runs("saga") && !processes.runs("nats"));
    assert_eq!(processes_in(dir.path()), Vec::<String>::new(), "left running");
}

#[test]
fn bad_manifests_are_reported_with_line_and_column() {
    let dir = tempfile::tempdir().expect("a directory");
    let manifests = dir.path().join("manifests");
    std::fs::create_dir(&manifests).expect("made");
    std::fs::write(manifests.join("bad.yaml"), WAITS.replace("name: waits", "name: a_b")).expect("written");
    let data = dir.path().join("data");
    let mut command = Command::new(program("mycora"));
    command.args(["up", "--saga", "--no-supervisor", "--port", &free_port_pair().to_string()]);
    command.arg("--data").arg(&data).arg("--manifests").arg(&manifests);
    let printed = stderr(&command.output().expect("it starts"), 2);
    assert!(printed.contains("bad.yaml:2:7: "), "{printed}");
    assert!(!data.exists(), "nothing was made");
}
