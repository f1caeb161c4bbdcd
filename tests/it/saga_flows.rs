//! Sagas that order flows, over kills of the saga service: each flow is submitted once, and its end comes to its saga.

use std::path::Path;
use std::sync::Arc;

use broker::{CursorSpec, CursorStart, Deliveries, MessageBroker, PullLimit, StreamSpec};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{wait_until, wait_until_blocking};
use tokio::runtime::Runtime;
use workflow::message::FactMessage;

use crate::local::Processes;
use crate::sagas::{NO_TENANT, connect_to, publish, runtime};
use crate::suite::{PATIENCE, command, processes_in, stdout};

/// Names another number of kills.
const KILLS: &str = "MYCORA_SAGA_KILLS";
/// Every moment has its turn, three times at least.
const KILLS_USUAL: usize = 25;
/// A flow that runs on a signal, and records that it ran.
const LABEL: &str = "name: label\njobs:\n  label:\n    script_type: shell\n    prerequisites: [go]\n    script: |\n      \
                     echo \"$ORDER\" >> WITNESS\n      echo \"code=$ORDER\" >> \"$MYCORA_RESULT\"\n";
const BAD: &str = "name: bad\njobs:\n  good: { script_type: shell, script: 'true' }\n  \
                   print: { script_type: shell, script: 'exit 3', depends: [good] }\n";
/// Sagas of one step, by name: what it orders, what follows a success, and what follows a failure.
const SAGAS: [[&str; 4]; 3] = [
    [
        "labelled",
        "label",
        "[{ when: result.label.code == state.id, end: completed }, { end: failed, reason: another result }]",
        r#"{ end: failed, reason: "${{ result.code }}" }"#,
    ],
    [
        "failing",
        "bad",
        "{ end: completed }",
        r#"{ end: failed, reason: '${{ result.message }}: ${{ text(sum(pluck(result.nodes, "exit_code"))) }}' }"#,
    ],
    ["late", "short", "{ end: completed }", r#"{ end: failed, reason: "${{ result.code }}" }"#],
];
const PROVIDER: &str = r#"kind: EffectProvider
name: flows
transport: flow
flow: { actor: 1, signing_key: "secret:actor-1" }
effects:
  label: { flow_file: label.yaml, env: { ORDER: "${{ input.order }}" } }
  bad: { flow_file: bad.yaml, env: { ORDER: "${{ input.order }}" } }
  short:
    flow_file: label.yaml
    env: { ORDER: "${{ input.order }}" }
    timeouts: { start_to_close: 3s, schedule_to_close: 4s }
"#;

fn manifest() -> String {
    let mut text = String::new();
    for [name, effect, success, failure] in SAGAS {
        text.push_str(&format!(
            "kind: Saga\nname: {name}\nversion: 1\nstate: {{ id: text }}\nsources: [{{ aggregate: Order }}]\n\
             correlate: event.data.order_id\n\
             start: {{ on: Placed-{name}, set: {{ id: \"${{{{ event.data.order_id }}}}\" }}, goto: work }}\n\
             steps:\n  work:\n    effect: {effect}\n    input: {{ order: \"${{{{ state.id }}}}\" }}\n    \
             on_success: {success}\n    on_failure: {failure}\n---\n"
        ));
    }
    text + PROVIDER
}

/// When the saga service dies.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// At a crash point.
    At(&'static str),
    /// Killed while the flow waits for its signal, which comes before the service is back.
    Waiting,
    /// Killed when the flow has just got its signal.
    Running,
}

const MOMENTS: [Moment; 8] = [
    Moment::At("effect.pulled"),
    Moment::Waiting,
    Moment::At("effect.intent"),
    Moment::At("effect.submitted"),
    Moment::Running,
    Moment::At("effect.outcome"),
    Moment::At("effect.published"),
    Moment::At("event.commit_sent"),
];

/// A suite of separate processes with sagas whose effects are flows.
struct Stage {
    // Ended before the directory goes.
    processes: Processes,
    broker: Arc<dyn MessageBroker>,
    facts: Box<dyn Deliveries>,
    runtime: Runtime,
    dir: TempDir,
    kills: usize,
    /// The last fact that was read.
    read: u64,
}

impl Stage {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let suite = dir.path().join("suite");
        let manifests = suite.join("manifests");
        std::fs::create_dir_all(&manifests).expect("made");
        let witness = dir.path().join("witness");
        let label = LABEL.replace("WITNESS", witness.to_str().expect("a plain path"));
        for (name, text) in [("all.yaml", manifest().as_str()), ("label.yaml", &label), ("bad.yaml", BAD)] {
            std::fs::write(manifests.join(name), text).expect("written");
        }
        let processes = Processes::start(&suite, &[("MYCORA_SAGA", "yes")]);
        // The key is there since the suite was; a provider reads it at its first call.
        std::fs::copy(suite.join("pki/actor-1.ed25519"), suite.join("secrets/actor-1")).expect("a key");
        let runtime = runtime();
        let port = processes.storage_port() - 1 + 50;
        let password = std::fs::read_to_string(suite.join("nats.password")).expect("a password");
        let (broker, facts) = runtime.block_on(async {
            let broker = connect_to(&format!("nats://127.0.0.1:{port}"), "mycora", &password).await;
            let aggregates = StreamSpec::managed("AGGREGATE_EVENTS", &["aggregate.*.*"], PATIENCE * 60);
            assert_eq!(broker.ensure_stream(&aggregates).await.expect("a stream"), []);
            let spec =
                CursorSpec::new("WORKFLOW_EVENTS", "looks-on", "workflow_event.*.*", CursorStart::After(0));
            let open = || async { broker.open(&spec).await.ok() };
            let facts = wait_until(open, PATIENCE, "a cursor").await;
            (broker, facts)
        });
        Self { processes, broker, facts, runtime, dir, kills: 0, read: 0 }
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<_> = ["--output", "json"].iter().chain(arguments).copied().collect();
        let output = command(&self.processes.profile(), &arguments).output().expect("it starts");
        serde_json::from_str(&stdout(&output, 0)).expect("one document")
    }

    /// Has an order begin a saga.
    fn place(&self, saga: &str, order: &str) {
        let kind = format!("Placed-{saga}");
        self.runtime.block_on(publish(&*self.broker, NO_TENANT, &kind, order));
    }

    /// Flows of sagas: their ids, names and statuses.
    fn flows(&self) -> Vec<(String, String, String)> {
        let list = self.json(&["flow", "list", "--name", "saga-", "--limit", "200"]);
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        // An empty list is left out.
        let flows = list["flows"].as_array().map(Vec::as_slice).unwrap_or_default().iter();
        flows.map(|flow| (text(&flow["id"]), text(&flow["name"]), text(&flow["status"]))).collect()
    }

    /// Waits until there is one flow more than there were; gives its id.
    fn new_flow(&self, before: usize) -> String {
        let id = || {
            let flows = self.flows();
            assert!(flows.len() <= before + 1, "it is submitted once: {flows:?}");
            (flows.len() > before).then(|| newest(&flows))
        };
        wait_until_blocking(id, PATIENCE, "the flow is submitted")
    }

    fn until_status(&self, flow: &str, status: &str) {
        let is_it = || {
            let flows = self.flows();
            let found = flows.iter().find(|(id, ..)| id == flow).expect("it is there");
            (found.2 == format!("FLOW_STATUS_{status}")).then_some(())
        };
        wait_until_blocking(is_it, PATIENCE, format!("flow {flow} is {status}"));
    }

    fn signal(&self, flow: &str) {
        let output = command(&self.processes.profile(), &["flow", "signal", flow, "go"]).output();
        stdout(&output.expect("it starts"), 0);
    }

    /// Kills the service in the middle of an order.
    fn kill(&mut self) {
        self.processes.kill9("saga");
        self.kills += 1;
    }

    /// Waits for the end of an instance; returns its final status and why. Each end is reported once.
    fn end(&mut self, order: &str) -> (String, String) {
        let Self { facts, runtime, read, .. } = self;
        runtime.block_on(async {
            loop {
                let next = facts.next(PullLimit { messages: 16, bytes: 1 << 20 });
                let delivered = tokio::time::timeout(PATIENCE, next).await;
                let delivered = delivered.unwrap_or_else(|_| panic!("{order} does not end"));
                let delivered = delivered.expect("it goes on");
                delivered.receipt.ack();
                if delivered.sequence <= *read {
                    // The server had not received the acknowledgement.
                    continue;
                }
                *read = delivered.sequence;
                let fact: FactMessage = serde_json::from_slice(&delivered.payload).expect("a fact");
                if ["completed", "failed", "compensated", "stuck"].contains(&fact.kind.as_str()) {
                    assert_eq!(fact.correlation.as_str(), order, "it ended once");
                    return (fact.kind, fact.reason.unwrap_or_default());
                }
            }
        })
    }

    /// Has an order labelled while the service dies at a moment; gives what it ended as.
    fn label(&mut self, order: &str, moment: Moment) -> (String, String) {
        let before = self.flows().len();
        match moment {
            Moment::At(point) => {
                // One that has nothing to do, so that the next one knows where to die.
                self.processes.kill9("saga");
                self.processes.set("MYCORA_CRASH_AT", point);
                self.processes.script("up.sh");
                self.processes.unset("MYCORA_CRASH_AT");
                self.place("labelled", order);
                let mut is_signalled = false;
                let has_died = || {
                    let flows = self.flows();
                    if flows.len() > before && !std::mem::replace(&mut is_signalled, true) {
                        self.signal(&newest(&flows));
                    }
                    (!self.processes.runs("saga")).then_some(())
                };
                wait_until_blocking(has_died, PATIENCE, format!("it dies at {point}"));
                self.kills += 1;
                self.processes.script("up.sh");
                let flow = self.new_flow(before);
                if !is_signalled {
                    self.signal(&flow);
                }
            }
            Moment::Waiting | Moment::Running => {
                self.place("labelled", order);
                let flow = self.new_flow(before);
                if matches!(moment, Moment::Running) {
                    self.signal(&flow);
                    self.kill();
                } else {
                    self.kill();
                    self.signal(&flow);
                    self.until_status(&flow, "FINISHED");
                }
                self.processes.script("up.sh");
            }
        }
        self.end(order)
    }

    fn close(self) {
        let Self { processes, broker, facts, dir, .. } = self;
        drop((broker, facts));
        processes.script("down.sh");
        assert_eq!(processes_in(dir.path()), Vec::<String>::new(), "left running");
    }
}

/// The id of the flow that was submitted last.
fn newest(flows: &[(String, String, String)]) -> String {
    let ids = flows.iter().map(|(id, ..)| id.parse::<u64>().expect("a number"));
    ids.max().expect("there is one").to_string()
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn a_flow_is_submitted_once_however_often_the_service_that_orders_it_dies() {
    let kills = std::env::var(KILLS).ok().map_or(KILLS_USUAL, |text| text.parse().expect("a number"));
    let (mut stage, begin) = (Stage::start(), std::time::Instant::now());
    let mut orders = Vec::new();
    for moment in MOMENTS.iter().cycle() {
        if stage.kills >= kills {
            break;
        }
        let order = format!("o-{}", orders.len());
        assert_eq!(stage.label(&order, *moment), ("completed".to_owned(), String::new()), "{moment:?}");
        orders.push(order);
    }
    println!("{} kills around {} flows in {:?}", stage.kills, orders.len(), begin.elapsed());
    let flows = stage.flows();
    assert_eq!(flows.len(), orders.len());
    assert!(flows.iter().all(|(.., status)| status == "FLOW_STATUS_FINISHED"), "{flows:?}");
    // Each of them ran once.
    assert_eq!(lines(&stage.dir.path().join("witness")), orders);
    stage.close();
}

#[test]
fn flows_that_fail_or_are_given_up_end_their_sagas_and_both_show_each_other() {
    let mut stage = Stage::start();
    stage.place("failing", "bad-1");
    let flow = stage.new_flow(0);
    let reason = format!("the flow {flow} failed: `print` (EXIT_CODE): 3");
    assert_eq!(stage.end("bad-1"), ("failed".to_owned(), reason));

    // It times out before its signal comes.
    stage.place("late", "late-1");
    let flow = stage.new_flow(1);
    assert_eq!(stage.end("late-1"), ("failed".to_owned(), "timed_out".to_owned()));
    stage.until_status(&flow, "CANCELLED");

    stage.place("labelled", "kept-1");
    let flow = stage.new_flow(2);
    let waits = || {
        let list = stage.json(&["saga", "effect", "list", "--effect", "label"]);
        let call = list["calls"][0].clone();
        (call["state"] == "EFFECT_STATE_WAITING").then_some(call)
    };
    let call = wait_until_blocking(waits, PATIENCE, "the call waits for its flow");
    assert_eq!((&call["externalId"], &call["correlationId"]), (&flow.clone().into(), &"kept-1".into()));
    let flows = stage.flows();
    let (_, name, _) = flows.iter().find(|(id, ..)| *id == flow).expect("it is there");
    assert_eq!(*name, format!("saga-{}", call["commandId"].as_str().expect("an id")));
    stage.json(&["saga", "cancel", "labelled", "kept-1", "--reason", "not wanted"]);
    assert_eq!(stage.end("kept-1"), ("compensated".to_owned(), "not wanted".to_owned()));
    stage.until_status(&flow, "CANCELLED");
    assert_eq!(lines(&stage.dir.path().join("witness")), Vec::<String>::new(), "none of them ran");
    stage.close();
}
