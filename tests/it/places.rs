//! Taking a place out of a context while jobs wait for it and run there.

use std::path::Path;

use serde_json::Value;
use testkit::wait_until_blocking;

use crate::suite::{PATIENCE, Up, flow_file, stderr, stdout};

/// Submits a flow of one job under this name.
fn submit(up: &Up, dir: &Path, name: &str, script: &str) {
    let text = format!("name: {name}\njobs:\n  {name}: {{ script_type: shell, script: \"{script}\" }}\n");
    stdout(&up.mycora(&["flow", "submit", &flow_file(dir, &text)]), 0);
}

/// Waits until it is explained so why a job does not run.
fn is_explained(up: &Up, flow: &str, job: &str, why: &str) {
    let explained = || stdout(&up.mycora(&["flow", "explain", flow, job]), 0).contains(why).then_some(());
    wait_until_blocking(explained, PATIENCE, why);
}

fn status(up: &Up, flow: &str) -> Value {
    let watched = stdout(&up.mycora(&["--output", "json", "flow", "watch", flow]), 0);
    let watched: Value = serde_json::from_str(&watched).expect("one document");
    watched["flow"]["status"].clone()
}

#[test]
fn a_runner_is_drained_resumed_and_deleted_under_its_jobs() {
    let dir = tempfile::tempdir().expect("a directory");
    let up = Up::start(&dir.path().join("data"), &[]);
    stdout(&up.mycora(&["runner", "drain", "1"]), 0);
    submit(&up, dir.path(), "waits", "echo done");
    is_explained(&up, "1", "waits", "are drained, runner 1 since");
    assert!(stdout(&up.mycora(&["runner", "list"]), 0).contains("drained"));
    let watched = stdout(&up.mycora(&["runner", "watch", "--once", "--output", "json"]), 0);
    let first = watched.lines().next().expect("a runner");
    let first: Value = serde_json::from_str(first).expect("a document on each line");
    assert!(first["runner"]["drainTime"].is_string(), "{first}");
    stdout(&up.mycora(&["runner", "resume", "1"]), 0);
    assert_eq!(status(&up, "1"), "FLOW_STATUS_FINISHED");

    submit(&up, dir.path(), "runs", "sleep 3");
    is_explained(&up, "2", "runs", "runs on shell:");
    stdout(&up.mycora(&["runner", "delete", "1"]), 0);
    is_explained(&up, "2", "runs", "which was deleted at");
    assert!(stderr(&up.mycora(&["runner", "list"]), 0).contains("there are no runners"));
    assert_eq!(status(&up, "2"), "FLOW_STATUS_FINISHED", "what it had accepted ended there");
    submit(&up, dir.path(), "stays", "echo never");
    is_explained(&up, "3", "stays", "context 1 has no runner");
    up.stop();
}
