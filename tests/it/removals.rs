//! Contexts that are removed with everything in them, wherever it lies and whoever dies meanwhile.

use std::process::Stdio;

use identity::ServiceName;
use testkit::{free_port, wait_until_blocking};

use crate::local::Processes;
use crate::operators::logs;
use crate::suite::{PATIENCE, command, flow_file, stdout};

const ONE: &str = "name: one\njobs:\n  one: { script_type: shell, script: 'echo here' }\n";

fn mycora(processes: &Processes, arguments: &[&str]) -> String {
    stdout(&command(&processes.profile(), arguments).output().expect("it starts"), 0)
}

/// Also at machines that take no jobs of it any more. Of one that is not reached nothing more is expected after a while.
#[test]
fn the_machine_of_a_deleted_runner_forgets_a_context_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let suite_dir = dir.path().join("suite");
    let processes = Processes::start(&suite_dir, &[("MYCORA_LOST_AFTER", "1")]);
    let nobody = format!("grpc://127.0.0.1:{}", free_port());
    mycora(&processes, &["runner", "register", &nobody]);
    mycora(&processes, &["flow", "submit", &flow_file(dir.path(), ONE), "--watch"]);
    assert_eq!(logs(&suite_dir).len(), 1, "the machine keeps what was printed");
    for runner in ["1", "2"] {
        mycora(&processes, &["runner", "delete", runner]);
    }
    mycora(&processes, &["context", "delete", "1", "--yes"]);
    assert_eq!(logs(&suite_dir), [], "it keeps nothing of what is gone");
    assert_eq!(processes.redis(1, &["DBSIZE"]).trim(), "0", "{}", processes.redis(1, &["KEYS", "*"]));
    let router = std::fs::read_to_string(suite_dir.join("log/router.log")).expect("a log");
    let given_up: Vec<&str> = router.lines().filter(|line| line.contains("given up")).collect();
    assert!(given_up.len() == 1 && given_up[0].contains("runner=2"), "{given_up:?}");
}

#[test]
fn a_storage_that_dies_while_it_removes_a_context_goes_on_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut processes = Processes::start(&dir.path().join("suite"), &[]);
    let runner = format!("grpc://127.0.0.1:{}", processes.port_of(ServiceName::Supervisor));
    let file = flow_file(dir.path(), ONE);
    // Whether it is found at that moment, and what is left of it: its record.
    for (point, is_found) in [("storage.context.emptied", "1"), ("storage.context.unpublished", "0")] {
        processes.kill9("storage");
        processes.set("MYCORA_CRASH_AT", point);
        processes.script("up.sh");
        processes.unset("MYCORA_CRASH_AT");
        mycora(&processes, &["context", "create", "--id", "2"]);
        mycora(&processes, &["--context", "2", "runner", "register", &runner]);
        mycora(&processes, &["--context", "2", "flow", "submit", &file, "--watch"]);
        let mut deletion = command(&processes.profile(), &["context", "delete", "2", "--yes"]);
        let mut deletion = deletion.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        wait_until_blocking(|| (!processes.runs("storage")).then_some(()), PATIENCE, point);
        let found = processes.redis(0, &["SISMEMBER", "contexts", "2"]);
        let left = processes.redis(2, &["KEYS", "*"]);
        assert_eq!((found.trim(), left.trim()), (is_found, "context:2"), "{point}");
        processes.script("up.sh");
        let gone = || (processes.redis(2, &["DBSIZE"]).trim() == "0").then_some(());
        wait_until_blocking(gone, PATIENCE, format!("{point}: it is removed"));
        assert_eq!(processes.redis(0, &["SISMEMBER", "contexts", "2"]).trim(), "0", "{point}");
        let unmarked =
            || (processes.redis(0, &["HGET", "ids", "removing:2"]).trim().is_empty()).then_some(());
        wait_until_blocking(unmarked, PATIENCE, format!("{point}: nothing more is to do"));
        // Whoever had it removed may have heard of the end or not.
        deletion.wait().expect("it ends");
    }
    mycora(&processes, &["context", "create", "--id", "2"]);
}
