//! Contexts and flows that are removed with everything in them, wherever it lies and whichever process dies meanwhile.

use std::collections::BTreeSet;
use std::process::Stdio;

use identity::ServiceName;
use testkit::{free_port, wait_until_blocking};

use crate::local::Processes;
use crate::operators::logs;
use crate::scene::Scene;
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
        // The caller may have received the final answer or not.
        deletion.wait().expect("it ends");
    }
    mycora(&processes, &["context", "create", "--id", "2"]);
}

/// The database of the supervisor of `up`.
const SUPERVISOR: u32 = 4095;

/// The keys of a database, without the numbers in them.
fn kinds(scene: &Scene, database: u32) -> BTreeSet<String> {
    let keys = scene.up.redis(database, &["KEYS", "*"]);
    let kind = |key: &str| {
        let parts = key.split(':').filter(|part| !part.contains('-') && part.parse::<u64>().is_err());
        parts.collect::<Vec<_>>().join(":")
    };
    keys.lines().map(kind).collect()
}

/// Streams of the coordinator that mention removed objects, by design: what happened, and who did it.
const KEPT_BY_DESIGN: [&str; 2] = ["audit", "events"];

/// Returns the bytes that all other keys of coordinator and supervisor take.
fn bytes(scene: &Scene) -> u64 {
    let of_database = |database: u32| -> u64 {
        let keys = scene.up.redis(database, &["KEYS", "*"]);
        let usage = |key: &str| {
            let usage = scene.up.redis(database, &["MEMORY", "USAGE", key, "SAMPLES", "0"]);
            usage.trim().parse::<u64>().unwrap_or_default()
        };
        keys.lines().filter(|key| !KEPT_BY_DESIGN.contains(key)).map(usage).sum()
    };
    of_database(1) + of_database(SUPERVISOR)
}

/// Also at the machine that ran it, which has just learned of its end.
#[test]
fn a_deleted_flow_leaves_nothing_but_what_is_named() {
    let scene = Scene::new(&[]);
    // The first one leaves what there is of every context that ever had one.
    let flow =
        "name: one\njobs:\n  one: { script_type: shell, script: 'echo here; echo k=v > $MYCORA_RESULT' }\n";
    let remove = |ids: &[u64]| {
        for id in ids {
            stdout(&scene.up.mycora(&["flow", "delete", &id.to_string()]), 0);
        }
        let forgotten = || {
            let records = scene.up.redis(SUPERVISOR, &["KEYS", "hero:job:*"]);
            (records.trim().is_empty() && logs(&scene.path().join("data")).is_empty()).then_some(())
        };
        wait_until_blocking(forgotten, PATIENCE, "the machine keeps nothing of them");
    };
    let (first, _) = scene.run(flow);
    remove(&[first]);
    let before = bytes(&scene);
    let ids: Vec<u64> = (0..10).map(|_| scene.run(flow).0).collect();
    let kept = bytes(&scene) - before;
    remove(&ids);
    let left = bytes(&scene) - before;
    eprintln!("a flow of one job takes {} bytes; deleted it leaves {}", kept / 10, left / 10);

    let named = ["audit", "context", "event_marks", "events", "ids", "requests", "runner", "runners"];
    let unnamed: Vec<_> = kinds(&scene, 1).into_iter().filter(|kind| !named.contains(&&**kind)).collect();
    assert_eq!(unnamed, [""; 0], "of the coordinator");
    let unnamed: Vec<_> = kinds(&scene, SUPERVISOR).into_iter().filter(|kind| kind.contains("job")).collect();
    assert_eq!(unnamed, [""; 0], "of the supervisor");
    assert_eq!(scene.up.redis(SUPERVISOR, &["KEYS", "hero:q:reply:*"]).trim(), "");
    assert!(left * 3 < kept, "of {kept} bytes {left} are left");
    scene.close();
}

/// The oldest go by themselves, and the machine that ran them learns of it.
#[test]
fn ended_flows_beyond_their_bound_leave_nothing_at_the_machine() {
    let scene = Scene::new(&[]);
    stdout(&scene.up.mycora(&["context", "update", "1", "--keep", "ended-flows-max=2"]), 0);
    let ids: Vec<u64> = (0..5).map(|_| scene.run(ONE).0).collect();
    let kept = || {
        let flows = scene.up.redis(1, &["ZRANGE", "flows", "0", "-1"]);
        let kept: Vec<u64> = flows.lines().filter_map(|id| id.trim().parse().ok()).collect();
        (kept == ids[3..]).then_some(())
    };
    wait_until_blocking(kept, PATIENCE, "the last two are left");
    let records = || {
        let records = scene.up.redis(SUPERVISOR, &["KEYS", "hero:job:*"]);
        (records.lines().filter(|key| !key.trim().is_empty()).count() == 2).then_some(())
    };
    wait_until_blocking(records, PATIENCE, "the machine keeps two");
    let usage = stdout(&scene.up.mycora(&["context", "usage", "1"]), 0);
    let ended = usage.lines().find(|line| line.starts_with("ended flows ")).expect("a row");
    assert_eq!(ended.split_whitespace().nth(2), Some("2"), "{usage}");
    assert!(usage.contains("ended flows kept"), "{usage}");
    let shown = stdout(&scene.up.mycora(&["context", "show", "1"]), 0);
    assert!(shown.lines().any(|line| line.starts_with("ended-flows-max") && line.ends_with(" 2")), "{shown}");
    scene.close();
}
