//! Services that end while others listen to them: each stream continues, or ends with UNAVAILABLE, and never with an
//! internal error.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use identity::ServiceName;
use prost_reflect::MethodDescriptor;
use rpc::{Channel, TlsFiles};
use serde_json::{Value, json};
use testkit::{TestProcess, wait_until, wait_until_blocking};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::{Code, Status, Streaming};

use crate::local::Processes;
use crate::matrix::wire::{self, Methods};
use crate::suite::{PATIENCE, command, flow_file, stdout};

/// All processes that are ended; the runner serves no calls.
const VICTIMS: [&str; 7] =
    ["storage", "runner-registry", "scheduler", "mycelium-gateway", "router", "supervisor", "runner"];

/// Streams that go on by themselves while storage is away, rather than ask their listeners to come again.
const KEPT_WITHOUT_STORAGE: [&str; 6] = [
    "FlowService/WatchFlow",
    "FlowService/WatchFlows",
    "FlowService/StreamFlowLogs",
    "FlowService/RunJob",
    "RunnerService/WatchRunners",
    "MessageService/ReceiveMessages",
];

/// One kind of stream: its server, its client, the method and the request.
type Kind = (ServiceName, &'static str, &'static str, Value);

/// Every kind of stream that clients keep open, about this flow and this attempt.
fn kinds(flow: u64, attempt: &Value) -> Vec<Kind> {
    let of_flow = json!({"contextId": 1, "flowId": flow});
    let of_context = json!({"contextId": 1});
    let script = json!({"scriptType": "SCRIPT_TYPE_SHELL", "script": {"text": "exec sleep 600"}});
    let job = json!({
        "requestId": "2b0d9b1c-6f0e-4b0e-9d3e-0c6a3f1d7a55", "contextId": 1, "node": {"job": script}, "waitSecs": 600
    });
    let logs = json!({"contextId": 1, "flowId": flow, "follow": true});
    let attempt = json!({"jobKey": attempt, "follow": true});
    let events = json!({"contextId": 1, "flowId": flow, "onBehalfOf": 1});
    let runners = json!({"contextId": 1, "onBehalfOf": 1});
    let inbox = json!({"receive": of_context, "onBehalfOf": 1});
    vec![
        (ServiceName::Scheduler, "actor-1", "FlowService/WatchFlow", of_flow),
        (ServiceName::Scheduler, "actor-1", "FlowService/WatchFlows", of_context.clone()),
        (ServiceName::Scheduler, "actor-1", "FlowService/StreamFlowLogs", logs),
        (ServiceName::Scheduler, "actor-1", "FlowService/RunJob", job),
        (ServiceName::RunnerRegistry, "actor-1", "RunnerService/WatchRunners", of_context.clone()),
        (ServiceName::Router, "actor-1", "MessageService/ReceiveMessages", of_context),
        (ServiceName::Supervisor, "admin", "SupervisorService/StreamAttemptLogs", attempt),
        (ServiceName::RunnerRegistry, "scheduler", "RegistryViewService/Watch", json!({})),
        (ServiceName::Storage, "scheduler", "FlowStoreService/WatchEvents", events),
        (ServiceName::Storage, "router", "MessageStoreService/WatchSchedulers", json!({})),
        (ServiceName::Storage, "router", "MessageBoxService/WatchInbox", inbox),
        (ServiceName::Storage, "runner-registry", "RunnerStoreService/WatchRunners", json!({})),
        (ServiceName::Storage, "runner-registry", "RunnerStoreService/FollowRunners", runners),
        (ServiceName::Storage, "scheduler", "IdentityStoreService/WatchIdentities", json!({})),
    ]
}

/// A way to a service with the certificate of this caller.
fn channel(pki: &Path, caller: &str, (service, port): (ServiceName, u16)) -> Channel {
    let file = |end: &str| pki.join(format!("{caller}.{end}"));
    let tls = TlsFiles::new(pki.join("ca.pem"), file("pem"), file("key"));
    let address = format!("https://127.0.0.1:{port}");
    Channel::remote(&address, &tls, Some(service.as_str())).expect("a way there")
}

/// State of a stream so far.
#[derive(Debug, Clone, Default)]
struct StreamHealth {
    /// True while the stream is open.
    stands: bool,
    /// True after an answer since the stream was opened.
    has_answered: bool,
    /// True when the stream came to its end.
    is_over: bool,
    /// How often it broke.
    breaks: usize,
    /// First message of each status code with which it broke.
    errors: BTreeMap<&'static str, String>,
}

/// A stream that is reopened whenever it breaks, until it comes to its end.
struct Kept {
    service: ServiceName,
    method: &'static str,
    health: watch::Receiver<StreamHealth>,
}

impl Kept {
    /// Must be called within a runtime.
    fn open(processes: &Processes, (service, caller, method, body): Kind) -> Self {
        let at = (service, processes.port_of(service));
        let channel = channel(&processes.dir().join("pki"), caller, at);
        let (health, health_receiver) = watch::channel(StreamHealth::default());
        tokio::spawn(keep(channel, method, body, health));
        Self { service, method, health: health_receiver }
    }

    /// Waits until the stream is in such a state.
    async fn until(&mut self, is_reached: impl Fn(&StreamHealth) -> bool, what: &str) {
        let waiting = tokio::time::timeout(PATIENCE, self.health.wait_for(|now| is_reached(now)));
        let waited = waiting.await.map(|known| known.is_ok());
        assert_eq!(waited, Ok(true), "{} {what}: {:?}", self.method, self.health.borrow());
    }
}

async fn keep(channel: Channel, method: &'static str, body: Value, health: watch::Sender<StreamHealth>) {
    let description = Methods::new().get(method);
    // Its one answer comes at the end.
    let waits = method == "FlowService/RunJob";
    loop {
        let opened = wait_until(
            || async {
                health.send_modify(|now| now.stands = waits);
                let opened = wire::open(channel.clone(), &description, &body).await;
                opened.map_err(|status| note(&health, &status)).ok()
            },
            PATIENCE,
            format!("{method} is answered again"),
        );
        let mut answers = opened.await;
        health.send_modify(|now| now.stands = true);
        let ended = loop {
            match answers.message().await {
                Ok(Some(_)) => health.send_modify(|now| now.has_answered = true),
                Ok(None) => break None,
                Err(status) => break Some(status),
            }
        };
        match ended {
            None => return health.send_modify(|now| now.is_over = true),
            Some(status) => note(&health, &status),
        }
    }
}

fn note(health: &watch::Sender<StreamHealth>, status: &Status) {
    health.send_modify(|now| {
        now.breaks += usize::from(now.stands);
        (now.stands, now.has_answered) = (false, false);
        now.errors.entry(rpc::code_name(status.code())).or_insert_with(|| status.message().to_owned());
    });
}

/// All kinds of streams, kept open.
struct Listeners {
    runtime: Runtime,
    kept: Vec<Kept>,
    flow: u64,
}

impl Listeners {
    fn begin(processes: &Processes) -> Self {
        let text =
            "name: heard\njobs:\n  waits: { script_type: shell, script: 'exit 0', prerequisites: [go] }\n";
        let file = flow_file(processes.dir(), text);
        let submit = ["--output", "json", "flow", "submit", &file];
        let submitted = stdout(&command(&processes.profile(), &submit).output().expect("it starts"), 0);
        let submitted: Value = serde_json::from_str(&submitted).expect("one document");
        let flow = submitted["flow"]["id"].as_u64().expect("a flow");
        let runtime = Runtime::new().expect("a runtime");
        let kept = runtime.block_on(async {
            let at = (ServiceName::Supervisor, processes.port_of(ServiceName::Supervisor));
            let admin = channel(&processes.dir().join("pki"), "admin", at);
            let run = json!({"scriptType": "SCRIPT_TYPE_SHELL", "script": "echo hello; exec sleep 600"});
            let method = Methods::new().get("SupervisorService/RunAttempt");
            let answer = wire::call(admin, None, &method, &run).await.expect("it is taken");
            let kinds = kinds(flow, &answer["attempt"]["jobKey"]);
            kinds.into_iter().map(|kind| Kept::open(processes, kind)).collect()
        });
        let mut listeners = Self { runtime, kept, flow };
        listeners.all_stand();
        listeners
    }

    fn all_stand(&mut self) {
        self.runtime.block_on(async {
            for kept in &mut self.kept {
                kept.until(|now| now.stands || now.is_over, "stands").await;
            }
        });
    }

    /// Waits until all streams that continue without storage are able to: each has sent something, if only a heartbeat, and the
    /// job runs whose answer one of them waits for.
    fn all_are_kept(&mut self, processes: &Processes) {
        self.runtime.block_on(async {
            for kept in &mut self.kept {
                if KEPT_WITHOUT_STORAGE.contains(&kept.method) && kept.method != "FlowService/RunJob" {
                    kept.until(|now| now.has_answered, "says something").await;
                }
            }
        });
        let job = (self.flow + 1).to_string();
        let nodes = ["--output", "json", "flow", "nodes", &job];
        let runs = || {
            let listed = command(&processes.profile(), &nodes).output().expect("it starts");
            String::from_utf8_lossy(&listed.stdout).contains("NODE_STATE_RUNNING").then_some(())
        };
        wait_until_blocking(runs, PATIENCE, "the job that is waited for runs");
    }

    /// Ends a service, waits until all of its streams have broken, starts it again, and waits for all to stand.
    fn over_the_end_of(&mut self, processes: &Processes, victim: &str, end: impl FnOnce()) {
        if victim == "storage" {
            self.all_are_kept(processes);
        }
        let breaks: Vec<_> = self.kept.iter().map(|kept| kept.health.borrow().breaks).collect();
        end();
        self.runtime.block_on(async {
            for (kept, before) in self.kept.iter_mut().zip(&breaks) {
                if kept.service.as_str() == victim {
                    kept.until(|now| now.breaks > *before || now.is_over, "breaks").await;
                }
            }
        });
        processes.script("up.sh");
        self.all_stand();
        for (kept, before) in self.kept.iter().zip(breaks) {
            if victim == "storage" && KEPT_WITHOUT_STORAGE.contains(&kept.method) {
                let health = kept.health.borrow();
                assert_eq!(health.breaks, before, "{} goes on: {health:?}", kept.method);
            }
        }
    }

    /// Ends the flow, checks that its watcher gets the end, and that no stream got another error than UNAVAILABLE.
    fn end(mut self, processes: &Processes) {
        let signal = ["flow", "signal", &self.flow.to_string(), "go"];
        stdout(&command(&processes.profile(), &signal).output().expect("it starts"), 0);
        let watching = self.kept.iter_mut().find(|kept| kept.method == "FlowService/WatchFlow");
        let watching = watching.expect("it is one of them");
        self.runtime.block_on(watching.until(|now| now.is_over, "is told of the end"));
        let unavailable = rpc::code_name(Code::Unavailable);
        let mut wrong = Vec::new();
        for Kept { method, health, .. } in &self.kept {
            let errors = health.borrow().errors.clone().into_iter().filter(|(code, _)| *code != unavailable);
            wrong.extend(errors.map(|(code, message)| format!("{method}: {code}: {message}")));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn streams_of_other_services_go_on_or_are_unavailable_when_one_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let processes = Processes::start(&dir.path().join("suite"), &[]);
    let mut listeners = Listeners::begin(&processes);
    for victim in VICTIMS {
        listeners.over_the_end_of(&processes, victim, || processes.kill9(victim));
    }
    listeners.end(&processes);
}

#[test]
fn a_service_that_stops_ends_its_streams_and_cuts_none() {
    let dir = tempfile::tempdir().expect("a directory");
    // Streams that are not ended would hold a process up for longer than this test waits.
    let processes = Processes::start(&dir.path().join("suite"), &[("MYCORA_DRAIN_SECS", "600")]);
    let mut listeners = Listeners::begin(&processes);
    // A runner that is stopped lets its scripts end.
    for victim in VICTIMS.into_iter().filter(|victim| *victim != "runner") {
        listeners.over_the_end_of(&processes, victim, || {
            processes.signal(victim, "-TERM");
            let ended = || (!processes.runs(victim)).then_some(());
            wait_until_blocking(ended, PATIENCE, format!("{victim} has ended"));
        });
    }
    listeners.end(&processes);
    processes.kill9("runner");
}

/// Stream of answers to one call of actor 1.
struct AnswerStream {
    method: MethodDescriptor,
    answers: Streaming<Bytes>,
}

impl AnswerStream {
    async fn open(actor: &Channel, method: &str) -> Self {
        let method = Methods::new().get(method);
        let answers = wire::open(actor.clone(), &method, &json!({"contextId": 1})).await.expect("a reader");
        Self { method, answers }
    }

    /// The next part of an answer that has something there.
    async fn next(&mut self, field: &str) -> Value {
        let listening = async {
            loop {
                let answer = self.answers.message().await.expect("it goes on").expect("no end");
                let mut answer = wire::read(&self.method, answer);
                if !answer[field].is_null() {
                    return answer[field].take();
                }
            }
        };
        tokio::time::timeout(PATIENCE, listening).await.unwrap_or_else(|_| panic!("there is no {field}"))
    }

    /// The texts of the next messages.
    async fn texts(&mut self) -> Vec<Value> {
        let messages = self.next("messages").await;
        messages.as_array().expect("a list").iter().map(|message| message["text"].clone()).collect()
    }
}

#[test]
fn runners_and_messages_are_sent_once_across_a_crash_of_storage() {
    let dir = tempfile::tempdir().expect("a directory");
    let processes = Processes::start(&dir.path().join("suite"), &[]);
    let way =
        |service| channel(&processes.dir().join("pki"), "actor-1", (service, processes.port_of(service)));
    Runtime::new().expect("a runtime").block_on(async {
        let (registry, router) = (way(ServiceName::RunnerRegistry), way(ServiceName::Router));
        let mut runners = AnswerStream::open(&registry, "RunnerService/WatchRunners").await;
        let mut messages = AnswerStream::open(&router, "MessageService/ReceiveMessages").await;
        let send = |text: &'static str, request: &'static str| {
            let method = Methods::new().get("MessageService/SendMessage");
            let body = json!({
                "requestId": request, "contextId": 1, "callerId": 1, "to": "1", "messageType": "MESSAGE_TYPE_MAIL", "text": text
            });
            let router = router.clone();
            async move { wire::call(router, None, &method, &body).await.expect("it is sent") }
        };
        let mut record = runners.next("runner").await;
        send("first", "2b0d9b1c-6f0e-4b0e-9d3e-0c6a3f1d7a01").await;
        assert_eq!(messages.texts().await, ["first"]);

        processes.kill9("storage");
        processes.script("up.sh");
        send("second", "2b0d9b1c-6f0e-4b0e-9d3e-0c6a3f1d7a02").await;
        assert_eq!(messages.texts().await, ["second"], "the first was told, and is not acknowledged");
        let drain = json!({
            "requestId": "2b0d9b1c-6f0e-4b0e-9d3e-0c6a3f1d7a03", "contextId": 1, "runnerId": record["id"]
        });
        let method = Methods::new().get("RunnerService/DrainRunner");
        wire::call(registry, None, &method, &drain).await.expect("an admin");
        while record["drainTime"].is_null() {
            let next = runners.next("runner").await;
            assert_ne!(next, record, "it was told");
            record = next;
        }
    });
}

#[test]
fn a_flow_is_watched_to_its_end_over_the_deaths_of_storage_and_scheduler() {
    let dir = tempfile::tempdir().expect("a directory");
    let processes = Processes::start(&dir.path().join("suite"), &[]);
    let text = "name: watched\njobs:\n  first: { script_type: shell, script: 'exit 0', prerequisites: [one] }\n  \
                then: { script_type: shell, script: 'exit 0', depends: [first], prerequisites: [two] }\n";
    let file = flow_file(dir.path(), text);
    let submit = ["flow", "submit", &file, "--watch"];
    let mut watching = TestProcess::spawn("flow submit", &mut command(&processes.profile(), &submit));
    watching.wait_for_line("flow 1 `watched`: running", PATIENCE);
    let signal = |name: &str| {
        stdout(
            &command(&processes.profile(), &["flow", "signal", "1", name]).output().expect("it starts"),
            0,
        );
    };

    processes.kill9("storage");
    processes.script("up.sh");
    signal("one");
    watching.wait_for_line("first: completed", PATIENCE);
    processes.kill9("scheduler");
    watching.wait_for_line("the coordinator is away", PATIENCE);
    processes.script("up.sh");
    watching.wait_for_line("the coordinator is back", PATIENCE);
    signal("two");
    let status = watching.wait(PATIENCE);
    assert!(status.success(), "{status}: {}", watching.output());
    assert!(watching.output().contains("flow 1 `watched`: completed"), "{}", watching.output());
}
