//! Traces of flows over all processes, as a collector of OTLP gets them and as scripts are told of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testkit::{CollectedSpan, TestCollector, wait_until_blocking};
use tokio::runtime::Runtime;

use crate::local::Processes;
use crate::scene::Scene;
use crate::suite::{PATIENCE, command, flow_file, stdout};

/// Two scripts that give the trace context that they were told.
const FLOW: &str = r#"
name: traced
jobs:
  first:
    script_type: shell
    script: echo "trace=$TRACEPARENT" >> "$MYCORA_RESULT"
  second:
    script_type: python
    depends: [first]
    script: |
      import os
      import mycora
      mycora.result(trace=os.environ["TRACEPARENT"])
"#;
/// Spans that each trace of that flow has: who exports them, and their names.
const HOPS: [(&str, &str); 10] = [
    ("mycora", "mycora flow submit"),
    ("scheduler", "call"),
    ("scheduler", "step"),
    ("storage", "call"),
    ("storage", "commit"),
    ("router", "deliver"),
    ("mycelium-gateway", "send"),
    ("supervisor", "accept"),
    ("runner", "script shell"),
    ("runner", "script python"),
];
/// Trace whose caller does not record it.
const UNRECORDED: &str = "0af7651916cd43dd8448eb211c80319c";

/// A collector, for as long as it is there.
struct CollectorThread {
    collector: TestCollector,
    url: String,
    _runtime: Runtime,
}

impl CollectorThread {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (runtime, collector) = (runtime.expect("a runtime"), TestCollector::default());
        let url = runtime.block_on(collector.serve());
        Self { collector, url, _runtime: runtime }
    }

    /// Spans of a trace that came so far.
    fn spans_of(&self, trace: &str) -> Vec<CollectedSpan> {
        self.collector.spans().into_iter().filter(|span| span.trace() == trace).collect()
    }

    /// Waits until the spans of a trace are all there: every hop has one, and each is below another one, or the root.
    fn whole(&self, trace: &str) -> Vec<CollectedSpan> {
        let hops = || {
            let spans = self.spans_of(trace);
            let found: BTreeSet<_> =
                spans.iter().map(|span| (span.service.as_str(), span.name.as_str())).collect();
            HOPS.iter().all(|hop| found.contains(hop)).then_some(())
        };
        wait_until_blocking(hops, PATIENCE, format!("{HOPS:?} have spans in trace {trace}"));
        let joined = || {
            let spans = self.spans_of(trace);
            let places: BTreeSet<_> = spans.iter().map(CollectedSpan::place).collect();
            let is_joined = |span: &CollectedSpan| is_root(span) || places.contains(&span.above());
            spans.iter().all(is_joined).then_some(spans)
        };
        wait_until_blocking(joined, PATIENCE, format!("each span of trace {trace} has its parent there"))
    }
}

fn is_root(span: &CollectedSpan) -> bool {
    span.above().ends_with('-')
}

/// The only span of this name.
fn only<'a>(spans: &'a [CollectedSpan], name: &str) -> &'a CollectedSpan {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    let [span] = found.as_slice() else { panic!("{name}: {spans:?}") };
    span
}

/// Runs the flow to its end; `parent` is the trace context that the command line is started in.
fn submit(profile: &Path, file: &str, collector: &str, parent: Option<&str>) -> Value {
    let mut submit = command(profile, &["--output", "json", "flow", "submit", file, "--watch"]);
    submit.env("MYCORA_OTLP_ENDPOINT", collector).env_remove("TRACEPARENT");
    submit.envs(parent.map(|parent| ("TRACEPARENT", parent)));
    let submitted: Value = serde_json::from_str(&stdout(&run(&mut submit), 0)).expect("one document");
    assert_eq!(submitted["flow"]["status"], "FLOW_STATUS_FINISHED", "{submitted}");
    let flow = submitted["flow"]["id"].as_u64().expect("an id").to_string();
    let nodes = run(&mut command(profile, &["--output", "json", "flow", "nodes", &flow]));
    serde_json::from_str(&stdout(&nodes, 0)).expect("one document")
}

fn run(command: &mut Command) -> std::process::Output {
    command.output().expect("it starts")
}

/// Trace context that the script of a node was told.
fn told(nodes: &Value, name: &str) -> String {
    let nodes = nodes["nodes"].as_array().expect("nodes");
    let node = nodes.iter().find(|node| node["name"] == name).expect("such a node");
    node["result"]["trace"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_flow_is_one_trace_from_the_command_line_to_its_scripts() {
    let (dir, collector) = (tempfile::tempdir().expect("a directory"), CollectorThread::start());
    let suite_dir = dir.path().join("suite");
    let settings = [("MYCORA_OTLP_ENDPOINT", collector.url.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "50")];
    let processes = Processes::start(&suite_dir, &settings);
    let (file, profile) = (flow_file(dir.path(), FLOW), processes.profile());

    // What its caller does not record is recorded by no service, and by no script.
    let unrecorded = format!("00-{UNRECORDED}-b7ad6b7169203331-00");
    let nodes = submit(&profile, &file, &collector.url, Some(&unrecorded));
    for name in ["first", "second"] {
        let context = told(&nodes, name);
        let is_unrecorded = context.starts_with(&format!("00-{UNRECORDED}-")) && context.ends_with("-00");
        assert!(is_unrecorded, "{name}: {context}");
    }

    let nodes = submit(&profile, &file, &collector.url, None);
    let contexts = ["first", "second"].map(|name| told(&nodes, name));
    let trace = contexts[0].split('-').nth(1).expect("a trace").to_owned();
    let spans = collector.whole(&trace);
    let roots: Vec<_> = spans.iter().filter(|span| is_root(span)).collect();
    assert_eq!(roots, [only(&spans, "mycora flow submit")]);
    let services: BTreeSet<_> = spans.iter().map(|span| span.service.as_str()).collect();
    assert!(services.len() >= 7, "{services:?}");
    for (context, script_type) in contexts.iter().zip(["shell", "python"]) {
        let script = only(&spans, &format!("script {script_type}"));
        assert_eq!(
            *context,
            format!("00-{}-01", script.place()),
            "the script's own spans are below its span"
        );
        let said = ["script_type", "exit_code", "state"].map(|what| script.attribute(what));
        assert_eq!(said, [script_type, "0", "succeeded"]);
        // Each hop of its attempt is below the step that dispatched it.
        let key = script.attribute("job_key");
        let hops = spans.iter().filter(|span| span.attribute("job_key") == key);
        let hops: BTreeSet<_> = hops.map(|span| (span.name.as_str(), span.above())).collect();
        let step = spans.iter().find(|span| span.place() == script.above()).expect("its step");
        let script_name = script.name.as_str();
        let expected = ["accept", "deliver", script_name, "send"].map(|name| (name, step.place()));
        assert_eq!((step.name.as_str(), hops), ("step", BTreeSet::from(expected)));
    }
    // Each process exports in order, and all spans of the first flow ended before those of the second.
    let stray = collector.spans_of(UNRECORDED);
    assert!(stray.is_empty(), "{stray:?}");

    let log = std::fs::read_to_string(suite_dir.join("log/scheduler.log")).expect("a log");
    for line in ["a flow has started", "a flow has ended"] {
        let is_traced =
            |known: &str| known.contains(line) && known.contains(&format!("trace_id=\"{trace}\""));
        assert!(log.lines().any(is_traced), "{line}: {log}");
    }
}

#[test]
fn without_a_collector_the_context_of_the_caller_reaches_each_run_of_a_flow() {
    let text = "name: traced\njobs:\n  only:\n    script_type: shell\n    prerequisites: [go]\n    \
                script: echo \"trace=$TRACEPARENT\" >> \"$MYCORA_RESULT\"\n";
    let contexts = [
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-5bf92f3577b34da6a3ce929d0e0e4736-10f067aa0ba902b7-01",
    ];
    let mut scene = Scene::new(&[]);
    let within = |scene: &Scene, arguments: &[&str], context: &str| {
        stdout(&run(scene.up.command(arguments).env("TRACEPARENT", context)), 0);
    };
    let file = flow_file(scene.path(), text);
    within(&scene, &["flow", "submit", &file], contexts[0]);
    // Another process goes on with the flow.
    scene.up.process.kill9();
    scene.up.restart();
    stdout(&scene.up.mycora(&["flow", "signal", "1", "go"]), 0);
    assert_eq!(scene.end(1).status, "FINISHED");
    assert_eq!(scene.node(1, "only")["result"]["trace"], contexts[0], "no span stands between the two");
    // The second run belongs to the trace of the call that began it.
    within(&scene, &["flow", "retry", "1", "--from", "only"], contexts[1]);
    assert_eq!(scene.end(1).status, "FINISHED");
    assert_eq!(scene.node(1, "only")["result"]["trace"], contexts[1]);
    // A third one is in none, and its script is told of none.
    let untraced = run(scene.up.command(&["flow", "retry", "1", "--from", "only"]).env_remove("TRACEPARENT"));
    stdout(&untraced, 0);
    assert_eq!(scene.end(1).status, "FINISHED");
    assert_eq!(scene.node(1, "only")["result"]["trace"], "");
    scene.close();
}
