//! Commands against a coordinator.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::coordinator::{Coordinator, CoordinatorScript};
use crate::{home, mycora, stderr, stdout};

pub(crate) fn run(home: &tempfile::TempDir, coordinator: &Coordinator, arguments: &[&str]) -> Output {
    mycora(home.path())
        .env("MYCORA_CONFIG", &coordinator.profile)
        .args(arguments)
        .output()
        .expect("it starts")
}

#[test]
fn a_submission_survives_a_lost_answer_and_a_broken_stream() {
    let home = home();
    let coordinator = Coordinator::start(home.path(), CoordinatorScript::BreakAndFinish);
    let input = vec![7; 700_000];
    std::fs::write(home.path().join("input.bin"), &input).expect("written");
    let text = "name: f\njobs:\n  a: { script_type: shell, script: x, files: { i: input.bin } }\n";
    std::fs::write(home.path().join("f.yaml"), text).expect("written");

    let output = run(&home, &coordinator, &["flow", "submit", "f.yaml", "--watch", "--output", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(document["flow"]["status"], "FLOW_STATUS_FINISHED");
    assert_eq!(document["flow"]["result"]["a.answer"], "42");
    assert_eq!(document["nodes"][0]["state"], "NODE_STATE_COMPLETED");
    assert_eq!(stderr(&output), "flow 5 `f`: running\na: completed\nflow 5 `f`: completed\n");
    coordinator.recorded(|recorded| {
        assert_eq!(recorded.uploaded, [input]);
        assert_eq!(recorded.resumed_from, ["", "2"]);
        assert_eq!(recorded.request_ids.len(), 2);
        assert_eq!(recorded.request_ids[0], recorded.request_ids[1], "the same submission, so one flow");
    });
}

#[test]
fn a_job_that_waits_is_explained_and_ctrl_c_leaves_the_flow_running() {
    let home = home();
    let coordinator = Coordinator::start(home.path(), CoordinatorScript::Wait);
    let mut child = mycora(home.path())
        .env("MYCORA_CONFIG", &coordinator.profile)
        .args(["flow", "watch", "5", "--output", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let explained = lines.by_ref().map_while(Result::ok).find(|line| line.contains("no live runner"));
    assert!(explained.is_some_and(|line| line.contains("mycora runner list")));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("`kill` starts").success());
    let rest: Vec<_> = lines.map_while(Result::ok).collect();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(rest, ["flow 5 continues; watch it again with `mycora flow watch 5 --context 1`"]);
    assert!(output.stdout.is_empty(), "{}", stdout(&output));
}

#[test]
fn answers_and_refusals_have_their_exit_codes() {
    let home = home();
    let coordinator = Coordinator::start(home.path(), CoordinatorScript::Wait);
    let run_command = |arguments: &[&str], code: i32| {
        let output = run(&home, &coordinator, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        output
    };
    assert!(stderr(&run_command(&["flow", "get", "6"], 1)).contains("was not found"));
    assert!(stderr(&run_command(&["flow", "delete", "5"], 3)).contains("actor 1 may not"));
    assert!(stderr(&run_command(&["runner", "list"], 3)).contains("`actor/1` may not call"));
    assert!(stdout(&run_command(&["flow", "cancel", "5"], 0)).contains("had ended before: cancelled"));

    let listed = run_command(&["flow", "list", "--limit", "2", "--output", "json"], 0);
    let document: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("one document");
    assert_eq!(document["flows"].as_array().map(Vec::len), Some(2), "of two pages");
    let table = stdout(&run_command(&["flow", "list", "--limit", "1"], 0));
    assert!(table.starts_with("ID  NAME  STATUS   JOBS  ACTOR"), "{table}");

    assert_eq!(stdout(&run_command(&["flow", "logs", "5"], 0)), "a | one\na | two\n");
    assert_eq!(stdout(&run_command(&["flow", "logs", "5", "a"], 0)), "one\ntwo\n");
    let logs = run_command(&["flow", "logs", "5", "--output", "json"], 0);
    let document: serde_json::Value = serde_json::from_slice(&logs.stdout).expect("one document");
    assert_eq!(document[1]["data"], "d28K", "base64, as proto JSON has it");

    let yaml = stdout(&run_command(&["flow", "list", "--limit", "1", "--output", "yaml"], 0));
    let document: serde_json::Value = serde_saphyr::from_str(&yaml).expect(&yaml);
    assert_eq!(document["flows"][0]["status"], "FLOW_STATUS_STARTED");
}

#[test]
fn a_missing_certificate_is_distinguished_from_one_of_another_authority() {
    let home = home();
    let coordinator = Coordinator::start(home.path(), CoordinatorScript::Wait);
    let text = std::fs::read_to_string(&coordinator.profile).expect("a profile");
    let without: String = text
        .lines()
        .filter(|line| !line.starts_with("cert") && !line.starts_with("key"))
        .map(|l| format!("{l}\n"))
        .collect();
    let other = home.path().join("other.toml");
    std::fs::write(&other, without).expect("written");
    let config = other.to_str().expect("a plain path");
    let output = run(&home, &coordinator, &["--config", config, "flow", "list"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("`mycora pki issue actor/1`"), "{}", stderr(&output));

    assert!(run(&home, &coordinator, &["pki", "init", "--dir", "stranger"]).status.success());
    let issued =
        run(&home, &coordinator, &["pki", "issue", "actor/1", "--dir", "stranger", "--output", "json"]);
    let issued: serde_json::Value = serde_json::from_slice(&issued.stdout).expect("one document");
    let file = |which: &str| issued[which].as_str().expect("a path");
    let cert = file("certificate");
    let output = run(&home, &coordinator, &["--cert", cert, "--key", file("key"), "flow", "list"]);
    assert_eq!(output.status.code(), Some(3));
    let shown = format!("`mycora pki show {cert}` shows the one that was used");
    assert!(stderr(&output).contains(&shown), "{}", stderr(&output));
    let output = run(&home, &coordinator, &["--ca", "stranger/ca.pem", "flow", "list"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stderr(&output).contains("issued by another authority than the profile's"),
        "{}",
        stderr(&output)
    );
}
