//! Requests of single commands, and how they handle the answers.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use crate::coordinator::{Coordinator, CoordinatorScript};
use crate::served::run;
use crate::{home, mycora, stderr, stdout};

/// A home, and a coordinator there.
pub(crate) struct CommandFixture {
    pub(crate) home: tempfile::TempDir,
    pub(crate) coordinator: Coordinator,
}

impl CommandFixture {
    pub(crate) fn new(script: CoordinatorScript) -> Self {
        let home = home();
        let coordinator = Coordinator::start(home.path(), script);
        Self { home, coordinator }
    }

    pub(crate) fn run_command(&self, arguments: &[&str], code: i32) -> Output {
        let output = run(&self.home, &self.coordinator, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        output
    }

    pub(crate) fn document(&self, arguments: &[&str], code: i32) -> serde_json::Value {
        let output = self.run_command(&[&["--output", "json"], arguments].concat(), code);
        serde_json::from_slice(&output.stdout).expect("one document")
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.coordinator.recorded(|recorded| recorded.calls.clone())
    }
}

/// A flow file that is too large for one call: 1201 jobs, each with a script of its own.
fn large(place: &CommandFixture) -> &'static str {
    let script = "x".repeat(3000);
    let mut text = "name: large\njobs:\n".to_owned();
    for i in 0..1201 {
        text.push_str(&format!("  j{i}: {{script_type: shell, script: '{script}{i}', timeout: 5}}\n"));
    }
    std::fs::write(place.home.path().join("large.yaml"), text).expect("written");
    "large.yaml"
}

#[test]
fn a_large_flow_is_sent_in_parts_and_an_unanswered_part_is_resent() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let document = place.document(&["flow", "submit", large(&place)], 0);
    assert_eq!(document["flow"]["status"], "FLOW_STATUS_STARTED");
    let calls = place.calls();
    let first: u32 = calls[1].split(' ').nth(1).and_then(|count| count.parse().ok()).expect("a count");
    let rest = 1201 - first;
    assert_eq!(
        calls,
        [
            "create `large` 0 of 1201".to_owned(),
            format!("add {first} at 0"),
            format!("add {rest} at {first}"),
            format!("add {rest} at {first}"),
            "start".to_owned(),
        ]
    );
}

#[test]
fn what_went_before_anything_referred_to_it_is_uploaded_again() {
    let script = "# long\n".repeat(4000);
    let long =
        |place: &CommandFixture| std::fs::write(place.home.path().join("long.py"), &script).expect("written");
    let flow = "name: f\njobs:\n  a: {script_type: python, script_file: long.py}\n";
    for command in [
        &["job", "run", "long.py", "--detach"][..],
        &["job", "create", "long.py"],
        &["flow", "submit", "flow.yaml"],
    ] {
        let place = CommandFixture::new(CoordinatorScript::ForgetUploads);
        long(&place);
        std::fs::write(place.home.path().join("flow.yaml"), flow).expect("written");
        place.run_command(command, 0);
        place.coordinator.recorded(|recorded| {
            assert_eq!(recorded.uploaded.len(), 2, "{command:?}");
            assert!(recorded.uploaded.iter().all(|bytes| *bytes == script.as_bytes()), "{command:?}");
        });
    }
    // A large one that is sent in parts goes on with the part that was refused.
    let place = CommandFixture::new(CoordinatorScript::ForgetUploads);
    long(&place);
    let path = place.home.path().join(large(&place));
    let mut text = std::fs::read_to_string(&path).expect("written just now");
    text.push_str("  last: {script_type: python, script_file: long.py}\n");
    std::fs::write(&path, text).expect("written");
    place.run_command(&["flow", "submit", "large.yaml"], 0);
    place.coordinator.recorded(|recorded| assert_eq!(recorded.uploaded.len(), 2));
    assert_eq!(place.calls().iter().filter(|call| call.starts_with("create")).count(), 1);
}

#[test]
fn a_large_flow_that_is_refused_leaves_nothing() {
    let place = CommandFixture::new(CoordinatorScript::RefusePart);
    let output = place.run_command(&["flow", "submit", large(&place)], 2);
    let printed = stderr(&output);
    let calls = place.calls();
    let first: usize = calls[1].split(' ').nth(1).and_then(|count| count.parse().ok()).expect("a count");
    // The third job of the second part; jobs begin on the third line.
    let line = first + 2 + 3;
    assert!(
        printed.contains(&format!("large.yaml:{line}:")) && printed.contains("timeout: not today"),
        "{printed}"
    );
    assert!(printed.contains("flow 5 was not complete and is deleted"), "{printed}");
    assert_eq!(calls[calls.len() - 2..], ["cancel 5 Some(0)".to_owned(), "delete 5".to_owned()]);
}

#[test]
fn filters_reach_the_coordinator() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    place.run_command(
        &[
            "flow",
            "list",
            "--status",
            "error",
            "--caller",
            "7",
            "--name",
            "night-",
            "--since",
            "2027-01-15",
            "--until",
            "2027-01-15T08:00:00Z",
            "--limit",
            "1",
        ],
        0,
    );
    let nodes = place.document(&["flow", "nodes", "5", "--state", "failed", "--state", "cancelled"], 0);
    assert_eq!(nodes["nodes"][0]["name"], "a");
    assert_eq!(place.calls(), ["list 4 7 night- 1799971200 1800000000", "nodes [6, 7]"]);
    let table = stdout(&place.run_command(&["flow", "nodes", "5"], 0));
    assert!(table.starts_with("JOB  STATE      ATTEMPT") && table.contains("a    completed  1"), "{table}");
}

#[test]
fn a_cancel_carries_its_grace_period() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    place.run_command(&["flow", "cancel", "5"], 0);
    place.run_command(&["flow", "cancel", "5", "--now"], 0);
    place.run_command(&["flow", "cancel", "5", "--grace", "30"], 0);
    let printed = stdout(&place.run_command(&["flow", "cancel", "5", "--node", "a", "--context", "2"], 0));
    assert_eq!(printed, "`a` of flow 5 is being cancelled; see `mycora flow explain 5 a --context 2`\n");
    assert_eq!(place.calls(), ["cancel 5 None", "cancel 5 Some(0)", "cancel 5 Some(30)", "cancel node a"]);
    assert!(
        stderr(&place.run_command(&["flow", "cancel", "5", "--now", "--grace", "3"], 2)).contains("--grace")
    );
    assert!(
        stderr(&place.run_command(&["flow", "cancel", "5", "--now", "--node", "a"], 2)).contains("--job")
    );
}

#[test]
fn a_retry_selects_jobs_and_reports_them() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let printed = stdout(&place.run_command(&["flow", "retry", "5", "--dry-run"], 0));
    assert_eq!(
        printed,
        "flow 5 would start generation 2: 1002 jobs run again, 1 keeps what it has\n\
         run again: a, b … and 1000 more\nkept: split\n"
    );
    let printed = stdout(&place.run_command(&["flow", "retry", "5", "--all"], 0));
    assert!(printed.starts_with("flow 5 runs again, generation 2: 1002 jobs"), "{printed}");
    let arguments = ["flow", "retry", "5", "--from", "a", "b", "--env", "A=1", "--unset", "B"];
    assert_eq!(place.document(&arguments, 0)["runAgainCount"], 1002);
    assert_eq!(
        place.calls(),
        [
            "retry RETRY_SCOPE_FAILED [] {} [] true",
            "retry RETRY_SCOPE_ALL [] {} [] false",
            "retry RETRY_SCOPE_FROM [\"a\", \"b\"] {\"A\": \"1\"} [\"B\"] false",
        ]
    );
    place.run_command(&["flow", "retry", "5", "--all", "--from", "a"], 2);
}

#[test]
fn a_retry_that_is_refused_names_the_ways_out() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    for arguments in [&["flow", "retry", "8"][..], &["flow", "retry", "8", "--dry-run"]] {
        let printed = stderr(&place.run_command(arguments, 1));
        assert!(printed.starts_with("nothing of flow 8 failed"), "{printed}");
        assert!(printed.contains("--all") && printed.contains("--from JOB"), "{printed}");
    }
    let printed = stderr(&place.run_command(&["flow", "retry", "10"], 1));
    assert!(printed.starts_with("flow 10 is started\n"), "{printed}");
    assert!(printed.contains("`mycora flow cancel 10 --context 1`"), "{printed}");
}

#[test]
fn signals_drawings_explanations_and_reports() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let signal = ["flow", "signal", "5", "go", "--payload", "by Anna"];
    assert_eq!(stdout(&place.run_command(&signal, 0)), "flow 5 has been given `go`\n");
    assert!(stdout(&place.run_command(&signal, 0)).contains("had been given `go` before"));
    assert_eq!(place.document(&signal, 0), serde_json::json!({"alreadyGiven": true}));

    assert_eq!(stdout(&place.run_command(&["flow", "graph", "5"], 0)), "GRAPH_FORMAT_DOT\n");
    let drawn = place.run_command(&["flow", "graph", "5", "--format", "mermaid"], 0);
    assert_eq!(stdout(&drawn), "GRAPH_FORMAT_MERMAID\n");

    let explained = stdout(&place.run_command(&["flow", "explain", "5", "a"], 0));
    assert_eq!(
        explained,
        "`a` is pending: it waits for signal:go\n\n\
         ABOUT                  FOUND\n\
         dependencies   -       all 2 before it completed\n\
         prerequisites  blocks  signal:go was not given\n"
    );
    let document = place.document(&["flow", "explain", "5", "a"], 0);
    assert_eq!(document["findings"][1]["kind"], "FINDING_KIND_PREREQUISITES");

    place.run_command(&["flow", "report", "5", "a", "completed", "--attempt", "2", "--result", "x=1"], 0);
    assert!(place.calls().contains(&"report a 2 NODE_STATE_COMPLETED {\"x\": \"1\"}".to_owned()));
}

#[test]
fn several_flows_are_deleted_as_far_as_allowed() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let output = place.run_command(&["flow", "delete", "4", "5", "6", "4", "5"], 3);
    assert_eq!(stdout(&output), "flow 4 is deleted\nflow 6 is deleted\n");
    let printed = stderr(&output);
    assert!(printed.starts_with("flow 5: actor 1 may not"), "{printed}");
    assert_eq!(place.calls(), ["delete 4", "delete 5", "delete 6"], "each once");
    assert_eq!(place.document(&["flow", "delete", "4"], 0), serde_json::json!({"deleted": [4]}));
}

#[test]
fn logs_from_a_place_on() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let from = ["flow", "logs", "5", "a", "--attempt", "1", "--offset", "5"];
    assert_eq!(stdout(&place.run_command(&from, 0)), "wo\n");
    assert_eq!(stdout(&place.run_command(&["flow", "logs", "5", "--node", "a"], 0)), "one\ntwo\n");
    assert_eq!(place.calls(), ["logs a 1 5", "logs a 0 0"]);
    let tail = place.run_command(&["flow", "logs", "5", "a", "--tail"], 0);
    assert_eq!(stdout(&tail), "two\n", "a line whose beginning is missing is left out");
    assert_eq!(stderr(&tail), "a: bytes 0 to 9 of attempt 1 are not shown: only the tail was asked for\n");
    let pieces = place.document(&["flow", "logs", "5", "--tail"], 0);
    assert_eq!(pieces[0]["gap"]["reason"], "LOG_GAP_REASON_TAIL_ONLY");
    assert_eq!((&pieces[0]["gap"]["end"], &pieces[1]["offset"]), (&"9".into(), &"9".into()));
    assert_eq!(place.calls()[2..], ["logs a 0 0 tail", "logs  0 0 tail"]);
    let printed = stderr(&place.run_command(&["flow", "logs", "5", "--attempt", "1"], 2));
    assert!(printed.contains("mycora flow logs 5 JOB --attempt 1"), "{printed}");
    let printed = stderr(&place.run_command(&["flow", "logs", "5", "a", "--offset", "1"], 2));
    assert!(printed.contains("--offset needs an attempt"), "{printed}");

    let printed = stderr(&place.run_command(&["flow", "logs", "5", "a", "--attempt", "9"], 1));
    assert_eq!(printed, "`a` of flow 5 has no attempt 9; it has 1 attempt\n");

    let yaml = stdout(&place.run_command(&["--output", "yaml", "flow", "logs", "5"], 0));
    let pieces: Vec<serde_json::Value> = serde_saphyr::from_str(&yaml).expect(&yaml);
    assert_eq!((pieces.len(), &pieces[1]["data"]), (2, &serde_json::json!("d28K")));
}

/// Follows something, interrupts it when the last line was printed.
pub(crate) fn interrupted(place: &CommandFixture, arguments: &[&str], last_line: &str) -> (String, String) {
    let mut child = mycora(place.home.path())
        .env("MYCORA_CONFIG", &place.coordinator.profile)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut text = String::new();
    while !text.contains(last_line) {
        assert_ne!(out.read_line(&mut text).expect("a line"), 0, "{text}");
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("`kill` starts").success());
    out.read_to_string(&mut text).expect("the rest");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    (text, stderr(&output))
}

#[test]
fn ctrl_c_ends_a_log_and_prints_the_command_to_continue() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let (text, printed) = interrupted(&place, &["flow", "logs", "7", "a", "-f"], "two");
    assert_eq!(text, "one\ntwo\n");
    assert_eq!(
        printed,
        "flow 7 continues; read on with `mycora flow logs 7 a --attempt 1 --offset 8 -f --context 1`\n"
    );
    let (text, _) = interrupted(&place, &["flow", "logs", "7", "-f", "--output", "json"], "d28K");
    let offsets: Vec<_> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a document")["offset"].clone())
        .collect();
    assert_eq!(offsets, [serde_json::Value::Null, "5".into()], "a line for each piece");
}

#[test]
fn a_job_shows_its_log_and_result_and_ends_as_it_did() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let job = |name: &'static str| ["job", "run", "--type", "shell", "--script", "true", "--name", name];
    let output = place.run_command(&job("good"), 0);
    assert_eq!(stdout(&output), "one\ntwo\nRESULT  VALUE\nanswer  42\n");
    assert_eq!(stderr(&output), "a: completed\n");

    let output = place.run_command(&job("bad"), 1);
    assert_eq!(stderr(&output), "a: failed: exit code 3\n");

    let output = place.run_command(&[&job("good")[..], &["--output", "json"]].concat(), 0);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(document["node"]["result"]["answer"], "42");
    assert_eq!(document["flow"]["status"], "FLOW_STATUS_FINISHED");
    assert_eq!(stderr(&output), "one\ntwo\n", "what it prints stands beside the document");

    let output = place.run_command(&[&job("slow")[..], &["--wait", "1"]].concat(), 1);
    assert!(
        stderr(&output).contains("flow 10 has not ended after 1 s; see `mycora flow watch 10"),
        "{}",
        stderr(&output)
    );

    let output = place.run_command(&[&job("good")[..], &["--detach"]].concat(), 0);
    assert!(stdout(&output).starts_with("flow 8 `good` is started"), "{}", stdout(&output));

    std::fs::write(place.home.path().join("long.py"), "# long\n".repeat(4000)).expect("written");
    place.run_command(&["job", "run", "long.py", "--detach"], 0);
    place.coordinator.recorded(|recorded| assert_eq!(recorded.uploaded[0].len(), 28_000));
    assert!(stderr(&place.run_command(&["job", "run", "good.yaml"], 2)).contains("give --type"));
    place.run_command(&["job", "run"], 2);
}

#[test]
fn a_context_is_removed_when_it_is_meant() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    assert!(stderr(&place.run_command(&["context", "delete", "3"], 2)).contains("confirm with --yes"));
    assert!(place.calls().is_empty());
    let output = place.run_command(&["context", "delete", "3", "--yes"], 0);
    assert_eq!(stdout(&output), "context 3 is deleted\n");
    assert_eq!(place.calls(), ["delete context 3", "delete context 3"]);
    assert!(stderr(&place.run_command(&["context", "delete", "4", "--yes"], 1)).contains("was not found"));
}
