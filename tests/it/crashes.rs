//! `kill -9` in the middle of a flow.

use std::path::Path;

use serde_json::Value;
use testkit::{Witness, WitnessMark, wait_until_blocking};

use crate::local::Processes;
use crate::suite::{PATIENCE, Up, command, flow_file, processes_in, stdout};

/// Where a message may lose one of those who carry it, in its order.
const CRASH_POINTS: [(&str, &str); 11] = [
    ("storage", "storage.commit.after"),
    ("router", "router.taken"),
    ("router", "router.sent"),
    ("mycelium-gateway", "gateway.delivering"),
    ("mycelium-gateway", "gateway.sent"),
    ("supervisor", "supervisor.received"),
    ("supervisor", "supervisor.kept"),
    ("mycelium-gateway", "gateway.answered"),
    ("router", "router.delivered"),
    ("router", "router.before_settle"),
    ("storage", "storage.settle.after"),
];

/// Three layers of four nodes each; every script records when it began and ended.
fn layers(dir: &Path, witness: &Witness) -> (String, Vec<String>) {
    let mut text = String::from("name: layers\njobs:\n");
    let mut names = Vec::new();
    for layer in 0..3 {
        for i in 0..4 {
            let name = format!("n{layer}-{i}");
            let depends: Vec<String> =
                if layer == 0 { Vec::new() } else { (0..4).map(|j| format!("n{}-{j}", layer - 1)).collect() };
            let script = witness.shell(&name, "sleep 0.5").replace('\n', "\n      ");
            text.push_str(&format!(
                "  {name}:\n    script_type: shell\n    retries: 3\n    backoff: {{ initial: 0.1 }}\n    depends: [{}]\n    script: |\n      {script}\n",
                depends.join(", ")
            ));
            names.push(name);
        }
    }
    (flow_file(dir, &text), names)
}

#[test]
fn up_is_killed_and_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let witness = Witness::new(dir.path());
    let mut up = Up::start(&data, &[]);
    let (file, names) = layers(dir.path(), &witness);
    stdout(&up.mycora(&["flow", "submit", &file]), 0);
    // Then the first layer is in the record, and the second one is in the middle of its scripts.
    wait_until_blocking(
        || {
            (witness.lines().iter().filter(|(mark, ..)| *mark == WitnessMark::Start).count() >= 6)
                .then_some(())
        },
        PATIENCE,
        "scripts of the second layer have started",
    );
    let work = data.join("work");
    let scripts = processes_in(&work);
    assert!(!scripts.is_empty(), "no script runs when it is killed");
    up.process.kill9();
    up.restart();
    let left: Vec<_> = processes_in(&work).into_iter().filter(|script| scripts.contains(script)).collect();
    assert_eq!(left, Vec::<String>::new(), "scripts of the first life");
    let out = up.mycora(&["--output", "json", "flow", "watch", "1"]);
    let document: Value = serde_json::from_str(&stdout(&out, 0)).expect("one document");
    assert_eq!(document["flow"]["status"], "FLOW_STATUS_FINISHED", "{document}");
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    witness.assert_one_end_each(&names);
    // What the kill cut off has a beginning and no end: it must not have run on.
    witness.assert_no_overlap(|span| span.end.is_none());
    up.stop();
    assert_eq!(processes_in(&data), Vec::<String>::new(), "left running");
}

#[test]
fn each_carrier_of_a_message_may_die_anywhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut processes = Processes::start(&dir.path().join("suite"), &[]);
    let witness = Witness::new(dir.path());
    for (i, (service, point)) in CRASH_POINTS.into_iter().enumerate() {
        processes.kill9(service);
        processes.set("MYCORA_CRASH_AT", point);
        processes.script("up.sh");
        processes.unset("MYCORA_CRASH_AT");
        let name = format!("n{i}");
        let script = witness.shell(&name, ":").replace('\n', "\n      ");
        let text =
            format!("name: crash\njobs:\n  {name}:\n    script_type: shell\n    script: |\n      {script}\n");
        let file = flow_file(dir.path(), &text);
        let mycora =
            |arguments: &[&str]| command(&processes.profile(), arguments).output().expect("it starts");
        stdout(&mycora(&["flow", "submit", &file]), 0);
        wait_until_blocking(|| (!processes.runs(service)).then_some(()), PATIENCE, point);
        processes.script("up.sh");
        let watched = mycora(&["--output", "json", "flow", "watch", &(i + 1).to_string()]);
        let document: Value = serde_json::from_str(&stdout(&watched, 0)).expect("one document");
        assert_eq!(document["flow"]["status"], "FLOW_STATUS_FINISHED", "{point}: {document}");
        // Nothing is left on its way: everything was settled.
        let settled = || (processes.redis(1, &["ZCARD", "msg_out_coordinator"]).trim() == "0").then_some(());
        wait_until_blocking(settled, PATIENCE, "every message is settled");
        assert_eq!(processes.redis(1, &["LLEN", "msg_out"]).trim(), "0", "{point}");
    }
    let names: Vec<String> = (0..CRASH_POINTS.len()).map(|i| format!("n{i}")).collect();
    witness.assert_each_once(&names.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Where a storage may die that creates a flow: before its script, before a router is sent what it carries, and before its answer.
const CREATION_POINTS: [&str; 3] = ["storage.create.before", "storage.create.stored", "storage.create.after"];

/// The change that creates a flow starts it too, and sends its first job: it runs, whether or not the caller got the answer.
#[test]
fn a_flow_runs_whose_creation_was_never_answered() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut processes = Processes::start(&dir.path().join("suite"), &[]);
    let witness = Witness::new(dir.path());
    let flow_of = |name: &str| {
        let script = witness.shell(name, ":").replace('\n', "\n      ");
        flow_file(
            dir.path(),
            &format!(
                "name: {name}\njobs:\n  {name}:\n    script_type: shell\n    script: |\n      {script}\n"
            ),
        )
    };
    // From then on the scheduler has ids for messages, and makes first steps before flows are stored.
    let first = command(&processes.profile(), &["flow", "submit", &flow_of("first"), "--watch"]).output();
    stdout(&first.expect("it starts"), 0);
    let mut names = vec!["first".to_owned()];
    for (number, point) in (2..).zip(CREATION_POINTS) {
        processes.kill9("storage");
        processes.set("MYCORA_CRASH_AT", point);
        processes.script("up.sh");
        processes.unset("MYCORA_CRASH_AT");
        let name = point.replace('.', "-");
        let (file, request) = (flow_of(&name), format!("00000000-0000-4000-8000-{number:012}"));
        let submit = || command(&processes.profile(), &["flow", "submit", &file, "--request-id", &request]);
        let mut unanswered = submit().spawn().expect("it starts");
        wait_until_blocking(|| (!processes.runs("storage")).then_some(()), PATIENCE, point);
        processes.script("up.sh");
        // The client may have retried, or have given up.
        unanswered.wait().expect("it ends");
        if point == "storage.create.before" {
            stdout(&submit().output().expect("it starts"), 0);
        }
        let watch = ["--output", "json", "flow", "watch", &number.to_string()];
        let watched = command(&processes.profile(), &watch).output().expect("it starts");
        let document: Value = serde_json::from_str(&stdout(&watched, 0)).expect("one document");
        assert_eq!(document["flow"]["status"], "FLOW_STATUS_FINISHED", "{point}: {document}");
        names.push(name);
        let created = processes.redis(1, &["HGET", "ids", "flow"]);
        assert_eq!(created.trim(), number.to_string(), "{point}: asked twice, it was created once");
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    witness.assert_each_once(&names);
    // What was started was sent by the same change.
    let events = processes.redis(1, &["XRANGE", "events", "-", "+"]);
    let lines: Vec<&str> = events.lines().collect();
    let revision_of = |kind: &str, state: &str| {
        let event = lines.iter().position(|line| {
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            event["kind"] == kind
                && event["flow_id"] == 4
                && (event["status"] == state || event["state"] == state)
        });
        let id = lines[event.expect("it is told") - 2];
        id.split_once('-').map(|(revision, _)| revision)
    };
    assert_eq!(revision_of("node", "dispatched"), revision_of("flow", "started"));
}
