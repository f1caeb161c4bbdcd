//! The suite as separate processes, each with its own certificate.

use std::path::Path;

use serde_json::Value;
use testkit::{Witness, WitnessMark, wait_until_blocking};

use crate::flows::fan_out;
use crate::local::Processes;
use crate::suite::{PATIENCE, command, flow_file, processes_in, stderr, stdout};

/// Nodes one after the other; every script records when it began and ended.
fn chain(dir: &Path, witness: &Witness, length: usize) -> (String, Vec<String>) {
    let mut text = String::from("name: chain\njobs:\n");
    let names: Vec<String> = (0..length).map(|i| format!("n{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        let depends = if i == 0 { "" } else { &names[i - 1] };
        let script = witness.shell(name, "sleep 0.2").replace('\n', "\n      ");
        text.push_str(&format!(
            "  {name}:\n    script_type: shell\n    depends: [{depends}]\n    script: |\n      {script}\n      echo \"last={i}\" >> \"$MYCORA_RESULT\"\n"
        ));
    }
    (flow_file(dir, &text), names)
}

#[test]
fn a_scheduler_that_is_killed_in_mid_flow_goes_on_from_redis() {
    let dir = tempfile::tempdir().expect("a directory");
    let suite_dir = dir.path().join("suite");
    let processes = Processes::start(&suite_dir, &[]);
    let witness = Witness::new(dir.path());
    let (file, names) = chain(dir.path(), &witness, 6);
    stdout(&command(&processes.profile(), &["flow", "submit", &file]).output().expect("it starts"), 0);
    wait_until_blocking(
        || {
            (witness.lines().iter().filter(|(mark, ..)| *mark == WitnessMark::Start).count() >= 3)
                .then_some(())
        },
        PATIENCE,
        "the third script has started",
    );
    processes.kill9("scheduler");
    // What is missing is started again, nothing else.
    processes.script("up.sh");
    let watch = ["--output", "json", "flow", "watch", "1"];
    let out = command(&processes.profile(), &watch).output().expect("it starts");
    let document: Value = serde_json::from_str(&stdout(&out, 0)).expect("one document");
    assert_eq!(document["flow"]["status"], "FLOW_STATUS_FINISHED", "{document}");
    assert_eq!(document["flow"]["result"]["n5.last"], "5");
    witness.assert_each_once(&names.iter().map(String::as_str).collect::<Vec<_>>());

    // The flow that one process runs gives the same here.
    let file = flow_file(dir.path(), &fan_out());
    let submit = ["--output", "json", "flow", "submit", &file, "--watch"];
    let out = command(&processes.profile(), &submit).output().expect("it starts");
    let document: Value = serde_json::from_str(&stdout(&out, 0)).expect("one document");
    assert_eq!(document["flow"]["status"], "FLOW_STATUS_FINISHED");
    assert_eq!(document["flow"]["result"]["join.total"], "78");

    // A client without a certificate, or with one of another authority, is refused.
    let profile = std::fs::read_to_string(processes.profile()).expect("a profile");
    let anonymous: String = profile
        .lines()
        .filter(|line| !line.starts_with("cert") && !line.starts_with("key"))
        .fold(String::new(), |text, line| text + line + "\n");
    // Beside the other one, whose files it names.
    let path = suite_dir.join("anonymous.toml");
    std::fs::write(&path, anonymous).expect("a profile");
    let err = stderr(&command(&path, &["flow", "list"]).output().expect("it starts"), 3);
    assert!(err.contains("client certificate"), "{err}");
    let other = dir.path().join("other-pki");
    let other = other.to_str().expect("a plain path");
    stdout(&command(&path, &["pki", "init", "--dir", other]).output().expect("it starts"), 0);
    stdout(&command(&path, &["pki", "issue", "actor/1", "--dir", other]).output().expect("it starts"), 0);
    let stranger = profile.replace("pki/actor-1", &format!("{other}/actor-1"));
    std::fs::write(&path, stranger).expect("a profile");
    stderr(&command(&path, &["flow", "list"]).output().expect("it starts"), 3);

    drop(processes);
    assert_eq!(processes_in(&suite_dir), Vec::<String>::new(), "left running");
}

/// A supervisor that stays away has lost what it had; when it comes back, what still runs is stopped.
#[test]
fn a_supervisor_that_stays_away_has_lost_its_attempts() {
    let dir = tempfile::tempdir().expect("a directory");
    let suite_dir = dir.path().join("suite");
    let processes = Processes::start(&suite_dir, &[("MYCORA_LOST_AFTER", "1")]);
    let witness = Witness::new(dir.path());
    let script = witness.shell("only", "sleep 600").replace('\n', "\n      ");
    let text = format!("name: lost\njobs:\n  only:\n    script_type: shell\n    script: |\n      {script}\n");
    let file = flow_file(dir.path(), &text);
    stdout(&command(&processes.profile(), &["flow", "submit", &file]).output().expect("it starts"), 0);
    wait_until_blocking(|| (!witness.lines().is_empty()).then_some(()), PATIENCE, "the script has started");
    // The runner lives on, and the script with it.
    processes.kill9("supervisor");
    let node = || {
        let nodes = ["--output", "json", "flow", "nodes", "1"];
        let out = command(&processes.profile(), &nodes).output().expect("it starts");
        let document: Value = serde_json::from_str(&stdout(&out, 0)).expect("one document");
        document["nodes"][0].clone()
    };
    let lost = || (node()["losses"] == 1).then(node);
    let lost = wait_until_blocking(lost, PATIENCE, "the attempt is lost");
    assert_eq!((&lost["state"], lost.get("tries")), (&"NODE_STATE_READY".into(), None), "{lost}");
    let work = suite_dir.join("work");
    let scripts = processes_in(&work);
    assert!(!scripts.is_empty(), "the script runs while nobody knows of it");
    processes.script("up.sh");
    let stopped = || (!processes_in(&work).iter().any(|script| scripts.contains(script))).then_some(());
    wait_until_blocking(stopped, PATIENCE, "the script was stopped");
    // Though it has no retries: a machine that was lost is no failure of its jobs.
    let again = || (witness.lines().len() == 2).then_some(());
    wait_until_blocking(again, PATIENCE, "the next attempt has started");
    let numbers: Vec<_> = witness.lines().into_iter().map(|(mark, _, attempt)| (mark, attempt)).collect();
    assert_eq!(
        numbers,
        [(WitnessMark::Start, "1".to_owned()), (WitnessMark::Start, "2".to_owned())],
        "none came to an end"
    );
    let cancel = ["flow", "cancel", "1", "--grace", "0"];
    stdout(&command(&processes.profile(), &cancel).output().expect("it starts"), 0);
    wait_until_blocking(|| processes_in(&work).is_empty().then_some(()), PATIENCE, "it is cancelled");
}

/// SIGHUP means the same to every service: files are read again, and nothing ends.
#[test]
fn a_hangup_reads_the_policy_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (suite_dir, policy) = (dir.path().join("suite"), dir.path().join("policy.toml"));
    std::fs::write(&policy, "").expect("a file");
    let policy = policy.to_str().expect("a plain path");
    let processes = Processes::start(&suite_dir, &[("MYCORA_POLICY", policy)]);
    processes.signal("supervisor", "-HUP");
    let policy_was_read = || {
        let log = std::fs::read_to_string(suite_dir.join("log/supervisor.log")).expect("a log");
        log.contains("the policy file has not changed").then_some(())
    };
    wait_until_blocking(policy_was_read, PATIENCE, "the supervisor has looked at its policy");
    let file = flow_file(dir.path(), "name: one\njobs:\n  one: { script_type: shell, script: 'exit 0' }\n");
    let submit = ["flow", "submit", &file, "--watch"];
    stdout(&command(&processes.profile(), &submit).output().expect("it starts"), 0);
}
