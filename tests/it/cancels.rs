//! Cancelling, wherever a node stands; and a context that goes away under its flows.

use testkit::{WitnessMark, wait_until_blocking};

use crate::scene::Scene;
use crate::suite::{PATIENCE, processes_in, stderr, stdout};

const GOOD: &str = "script_type: shell, script: \"true\"";

#[test]
fn cancelled_while_ready_dispatched_and_running() {
    let scene = Scene::new(&["--slots", "1"]);
    let witness = scene.witness();
    let script = witness.shell("running", "sleep 600").replace('\n', "\n      ");
    let id = scene.submit(&format!(
        "name: cancel\njobs:\n  running:\n    script_type: shell\n    script: |\n      {script}\n  ready: {{ script_type: v, script: x }}\n  pending: {{ {GOOD}, depends: [running] }}\n"
    ));
    scene.wait_for(id, "running", "RUNNING");
    // The only slot is taken: this one waits in the supervisor's queue.
    let queued = scene.submit(&format!("name: queued\njobs:\n  only: {{ {GOOD} }}\n"));
    scene.wait_for(queued, "only", "DISPATCHED");
    stdout(&scene.up.mycora(&["flow", "cancel", &queued.to_string()]), 0);
    let ended = scene.end(queued);
    assert_eq!(
        (ended.status.as_str(), ended.state("only").as_str()),
        ("CANCELLED", "CANCELLED FLOW_CANCELLED")
    );
    assert!(ended.nodes["only"]["unconfirmed"].is_null(), "its supervisor confirmed it");
    assert_eq!(
        scene.trail(queued, "only"),
        ["ready#1", "dispatched#1", "dispatched#1 FLOW_CANCELLED", "cancelled#1 FLOW_CANCELLED"]
    );

    stdout(&scene.up.mycora(&["flow", "cancel", &id.to_string(), "--now"]), 0);
    let ended = scene.end(id);
    assert_eq!(ended.status, "CANCELLED");
    for name in ["running", "ready", "pending"] {
        assert_eq!(ended.state(name), "CANCELLED FLOW_CANCELLED", "{name}");
    }
    assert_eq!(scene.trail(id, "pending"), ["cancelled#1 FLOW_CANCELLED"]);
    assert_eq!(scene.trail(id, "ready"), ["ready#1 NO_LIVE_RUNNER", "cancelled#1 FLOW_CANCELLED"]);
    assert_eq!(
        scene.trail(id, "running"),
        ["ready#1", "dispatched#1", "running#1", "running#1 FLOW_CANCELLED", "cancelled#1 FLOW_CANCELLED"]
    );
    let work = scene.path().join("data/work");
    assert_eq!(processes_in(&work), Vec::<String>::new(), "the script was stopped");
    scene.close();
}

#[test]
fn many_that_are_queued_are_stopped_before_the_flow_has_ended() {
    let scene = Scene::new(&["--slots", "1"]);
    let jobs: String =
        (0..3000).map(|i| format!("  n{i}: {{ script_type: shell, script: \":\" }}\n")).collect();
    let id = scene.submit(&format!("name: many\njobs:\n{jobs}"));
    scene.wait_for(id, "n0", "COMPLETED");
    stdout(&scene.up.mycora(&["flow", "cancel", &id.to_string(), "--now"]), 0);
    let ended = scene.end(id);
    assert_eq!(ended.status, "CANCELLED");
    let unconfirmed = ended.nodes.values().filter(|node| !node["unconfirmed"].is_null()).count();
    assert_eq!(unconfirmed, 0, "each is known to have stopped");
    let completed = ended.states().iter().filter(|(_, state)| state == "COMPLETED").count();
    assert!(completed < 2000, "{completed} of 3000 ran before the rest was stopped");
    // What was stopped in the queue is passed over: the next job runs.
    let (_, next) = scene.run(&format!("name: next\njobs:\n  only: {{ {GOOD} }}\n"));
    assert_eq!(next.status, "FINISHED");
    scene.close();
}

#[test]
fn one_node_is_cancelled_and_its_dependants_see_a_failure() {
    let scene = Scene::new(&[]);
    let id = scene.submit(&format!(
        "name: one\njobs:\n  slow: {{ script_type: shell, script: \"sleep 600\" }}\n  after: {{ {GOOD}, depends: [slow] }}\n  clean: {{ {GOOD}, depends: [slow], run_if: ANY_FAILED }}\n"
    ));
    scene.wait_for(id, "slow", "RUNNING");
    stdout(&scene.up.mycora(&["flow", "cancel", &id.to_string(), "--job", "slow"]), 0);
    let ended = scene.end(id);
    assert_eq!(ended.status, "FINISHED", "single cancelled nodes do not decide");
    assert_eq!(ended.state("slow"), "CANCELLED NODE_CANCELLED");
    assert_eq!(ended.state("after"), "SKIPPED UPSTREAM_FAILED");
    assert_eq!(ended.state("clean"), "COMPLETED");
    scene.close();
}

/// The supervisor of a running attempt is gone: the cancel is closed without its confirmation, and when it
/// comes back the attempts that it still has are stopped.
#[test]
fn cancelled_while_the_supervisor_is_gone() {
    let (machine, scene) = Scene::with_a_machine_elsewhere();
    let witness = scene.witness();
    let script = witness.shell("only", "sleep 600").replace('\n', "\n      ");
    let id = scene.submit(&format!(
        "name: gone\ncancel_timeout: 2\njobs:\n  only:\n    script_type: shell\n    script: |\n      {script}\n"
    ));
    scene.wait_for(id, "only", "RUNNING");
    let Scene { mut up, dir } = machine;
    up.process.kill9();
    stdout(&scene.up.mycora(&["flow", "cancel", &id.to_string()]), 0);
    let ended = scene.end(id);
    assert_eq!(
        (ended.status.as_str(), ended.state("only").as_str()),
        ("CANCELLED", "CANCELLED FLOW_CANCELLED")
    );
    assert_eq!(ended.nodes["only"]["unconfirmed"], true);
    assert_eq!(
        scene.trail(id, "only"),
        ["ready#1", "dispatched#1", "running#1", "running#1 FLOW_CANCELLED", "cancelled#1 FLOW_CANCELLED"]
    );
    up.restart();
    // The machine takes work again, and nothing of before runs.
    let (_, ended) = scene.run(&format!("name: next\njobs:\n  only: {{ {GOOD} }}\n"));
    assert_eq!(ended.status, "FINISHED");
    assert!(witness.lines().iter().all(|(mark, ..)| *mark == WitnessMark::Start), "it was not run again");
    scene.close();
    up.stop();
    drop(dir);
}

/// Cancels a flow whose message lies with the router, which cannot send it: the cancel overtakes it.
#[test]
fn cancelled_before_it_could_be_sent() {
    let (machine, scene) = Scene::with_a_machine_elsewhere();
    let Scene { mut up, dir } = machine;
    // It hangs, so that the job is sent to it, and dies before it can take it: seen to be dead it would be sent nothing.
    up.process.suspend();
    let witness = scene.witness();
    let script = witness.shell("only", ":").replace('\n', "\n      ");
    let id = scene.submit(&format!(
        "name: overtaken\njobs:\n  only:\n    script_type: shell\n    script: |\n      {script}\n"
    ));
    scene.wait_for(id, "only", "DISPATCHED");
    up.process.kill9();
    stdout(&scene.up.mycora(&["flow", "cancel", &id.to_string()]), 0);
    let ended = scene.end(id);
    assert_eq!(
        (ended.status.as_str(), ended.state("only").as_str()),
        ("CANCELLED", "CANCELLED FLOW_CANCELLED")
    );
    assert_eq!(
        scene.trail(id, "only"),
        ["ready#1", "dispatched#1", "dispatched#1 FLOW_CANCELLED", "cancelled#1 FLOW_CANCELLED"]
    );
    up.restart();
    let (_, ended) = scene.run(&format!("name: next\njobs:\n  only: {{ {GOOD} }}\n"));
    assert_eq!(ended.status, "FINISHED");
    assert_eq!(witness.lines(), [], "what was cancelled never ran");
    scene.close();
    up.stop();
    drop(dir);
}

#[test]
fn a_context_is_deleted_under_a_running_flow() {
    let scene = Scene::new(&[]);
    let witness = scene.witness();
    let script = witness.shell("slow", "sleep 600").replace('\n', "\n      ");
    let id = scene.submit(&format!(
        "name: doomed\njobs:\n  slow:\n    script_type: shell\n    script: |\n      {script}\n  waits: {{ {GOOD}, prerequisites: [never] }}\n"
    ));
    scene.wait_for(id, "slow", "RUNNING");
    let work = scene.path().join("data/work");
    // A job is reported as running when it is taken; its process starts a moment later.
    wait_until_blocking(|| (!processes_in(&work).is_empty()).then_some(()), PATIENCE, "the script runs");
    stdout(&scene.up.mycora(&["context", "delete", "1", "--yes"]), 0);
    stderr(&scene.up.mycora(&["flow", "get", &id.to_string()]), 1);
    assert_eq!(scene.up.redis(1, &["DBSIZE"]).trim(), "0", "{}", scene.up.redis(1, &["KEYS", "*"]));
    wait_until_blocking(|| processes_in(&work).is_empty().then_some(()), PATIENCE, "the script was ended");
    scene.close();
}
