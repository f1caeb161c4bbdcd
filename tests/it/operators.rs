//! Work of an operator on a machine: emptying it, and reading what its scripts printed.

use std::path::{Path, PathBuf};

use serde_json::Value;
use testkit::wait_until_blocking;

use crate::suite::{PATIENCE, Up, stderr, stdout};

/// More than the coordinator keeps.
const PRINTED: usize = 200_000;

/// The first try runs until it is ended, the second prints.
const FLOW: &str = r#"
name: long
jobs:
  long:
    script_type: shell
    retries: 1
    backoff: { initial: 0 }
    script: |
      [ "$MYCORA_ATTEMPT" -gt 1 ] || exec sleep 1000
      head -c 200000 /dev/zero | tr '\0' x
"#;

/// The admin of a suite.
pub(crate) struct Operator<'a> {
    up: &'a Up,
    certificate: [String; 2],
}

impl<'a> Operator<'a> {
    pub(crate) fn new(up: &'a Up, dir: &Path) -> Self {
        let pki = dir.join("pki");
        let pki = pki.to_str().expect("a plain path");
        stdout(&up.mycora(&["pki", "issue", "admin", "--dir", pki]), 0);
        Self { up, certificate: ["pem", "key"].map(|extension| format!("{pki}/admin.{extension}")) }
    }

    pub(crate) fn supervisor(&self, arguments: &[&str], code: i32) -> String {
        let [certificate, key] = &self.certificate;
        let way = ["--cert", certificate, "--key", key, "supervisor"];
        stdout(&self.up.mycora(&[&way[..], arguments].concat()), code)
    }

    fn show(&self) -> Value {
        let shown = self.supervisor(&["show", "--output", "json"], 0);
        serde_json::from_str(&shown).expect("one document")
    }
}

/// The logs that are kept on the machine, by job key.
pub(crate) fn logs(data: &Path) -> Vec<(String, PathBuf)> {
    let mut logs = Vec::new();
    for context in std::fs::read_dir(data.join("work/logs")).into_iter().flatten().flatten() {
        for log in std::fs::read_dir(context.path()).into_iter().flatten().flatten() {
            let name = log.file_name().into_string().expect("plain");
            logs.push((name.trim_end_matches(".log").to_owned(), log.path()));
        }
    }
    logs
}

#[test]
fn a_machine_is_emptied_goes_on_and_gives_its_logs() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let file = dir.path().join("flow.yaml");
    std::fs::write(&file, FLOW).expect("written");
    let up = Up::start(&data, &[]);
    let operator = Operator::new(&up, &data);
    stdout(&up.mycora(&["flow", "submit", file.to_str().expect("a plain path")]), 0);
    let started = || (operator.show()["running"] == "1").then_some(());
    wait_until_blocking(started, PATIENCE, "it runs");

    let printed = stderr(&up.mycora(&["supervisor", "drain"]), 3);
    assert!(printed.contains("`actor/1` may not call"), "{printed}");
    let drained = operator.supervisor(&["drain", "--deadline", "0", "--wait", "--output", "json"], 0);
    let drained: Value = serde_json::from_str(&drained).expect("one document");
    assert_eq!((&drained["draining"], drained.get("running")), (&Value::Bool(true), None));
    // Its instances have ended and come back, with nothing to do.
    let back = || operator.supervisor(&["instances"], 0).contains("shell").then_some(());
    wait_until_blocking(back, PATIENCE, "the instances are started again");
    let explained = || {
        let printed = stdout(&up.mycora(&["flow", "explain", "1", "long"]), 0);
        printed.contains("no live runner").then_some(())
    };
    wait_until_blocking(explained, PATIENCE, "the second try waits for the machine");
    assert!(stdout(&up.mycora(&["runner", "list"]), 0).contains("drained"));

    assert!(operator.supervisor(&["resume"], 0).contains("takes jobs"));
    let finished = stdout(&up.mycora(&["--output", "json", "flow", "watch", "1"]), 0);
    let finished: Value = serde_json::from_str(&finished).expect("one document");
    assert_eq!(finished["flow"]["status"], "FLOW_STATUS_FINISHED");
    let node = &finished["nodes"][0];
    let (losses, attempt) = (&node["losses"], &node["attempt"]);
    assert_eq!(losses, 1, "it was ended by the drain once, and to be refused while it drains is no loss");
    assert_eq!((node.get("tries"), node.get("deaths")), (None, None), "a drain is neither try nor death");

    let attempt_text = attempt.to_string();
    let logs_of_it = ["flow", "logs", "1", "long", "--attempt", &attempt_text];
    let tail = stdout(&up.mycora(&[&logs_of_it[..], &["--tail"]].concat()), 0);
    assert!(tail.len() < PRINTED, "the coordinator keeps {} bytes", tail.len());
    assert_eq!(stdout(&up.mycora(&logs_of_it), 0), "x".repeat(PRINTED), "and asks for the rest");
    let [(key, _)] = &logs(&data)[..] else { panic!("only the second try printed: {:?}", logs(&data)) };
    assert_eq!(finished["nodes"][0]["jobKey"], key.as_str());
    assert_eq!(operator.supervisor(&["logs", key], 0), "x".repeat(PRINTED));
    let rest = operator.supervisor(&["logs", key, "--offset", "199990", "--output", "json"], 0);
    let rest: Value = serde_json::from_str(&rest).expect("one document");
    assert_eq!(rest[0]["text"], "x".repeat(10));
    assert_eq!((&rest[0]["size"], &rest[0]["complete"]), (&"200000".into(), &Value::Bool(true)));
    up.stop();
}
