//! Timeouts by their names, and conditions outside the flow.

use crate::scene::Scene;
use crate::suite::{stderr, stdout};

const GOOD: &str = "script_type: shell, script: \"true\"";
const SLOW: &str = "script_type: shell, script: \"sleep 600\"";

#[test]
fn each_timeout_by_its_name() {
    let scene = Scene::new(&["--slots", "1"]);
    let running = scene.submit(&format!("name: run\njobs:\n  only: {{ {SLOW}, timeout: 2 }}\n"));
    scene.wait_for(running, "only", "RUNNING");
    // The only slot is taken.
    let queued = scene.submit(&format!(
        "name: queue\njobs:\n  only: {{ {GOOD}, timeout_queue: 1 }}\n  nowhere: {{ script_type: v, script: x, timeout_queue: 1 }}\n"
    ));
    let ended = scene.end(queued);
    assert_eq!(ended.state("only"), "FAILED TIMEOUT_QUEUE");
    assert_eq!(scene.trail(queued, "only").last().map(String::as_str), Some("failed#1 TIMEOUT_QUEUE"));
    assert_eq!(ended.state("nowhere"), "FAILED TIMEOUT_QUEUE");
    assert_eq!(scene.trail(queued, "nowhere"), ["ready#1 NO_LIVE_RUNNER", "failed#1 TIMEOUT_QUEUE"]);
    let ended = scene.end(running);
    assert_eq!(ended.state("only"), "FAILED TIMEOUT");

    let (id, ended) =
        scene.run(&format!("name: result\njobs:\n  only: {{ {SLOW}, timeout_result: 1, retries: 1, backoff: {{ initial: 0.01 }} }}\n"));
    assert_eq!(ended.state("only"), "FAILED TIMEOUT_RESULT");
    let trail = scene.trail(id, "only");
    let expected = [
        "ready#1",
        "dispatched#1",
        "running#1",
        "running#1 TIMEOUT_RESULT",
        "ready#2 BACKING_OFF",
        "dispatched#2",
        "running#2",
        "running#2 TIMEOUT_RESULT",
        "failed#2 TIMEOUT_RESULT",
    ];
    assert_eq!(trail, expected);

    let (id, ended) = scene.run(&format!(
        "name: deadline\ndeadline: 1\njobs:\n  only: {{ {SLOW}, retries: 3 }}\n  after: {{ {GOOD}, depends: [only] }}\n"
    ));
    assert_eq!(ended.status, "ERROR");
    assert_eq!(ended.state("only"), "FAILED DEADLINE");
    assert_eq!(ended.state("after"), "FAILED DEADLINE");
    assert_eq!(scene.trail(id, "after"), ["failed#1 DEADLINE"]);
    scene.close();
}

#[test]
fn what_cleans_up_has_its_turn_after_the_deadline() {
    let scene = Scene::new(&[]);
    let (id, ended) = scene.run(&format!(
        "name: late\ndeadline: 1\njobs:\n  work: {{ {SLOW} }}\n  more: {{ {GOOD}, depends: [work] }}\n  alarm: {{ {GOOD}, depends: [work], run_if: ANY_FAILED }}\n  clean: {{ {GOOD}, depends: [more, alarm], run_if: ALL_DONE }}\n"
    ));
    assert_eq!(ended.status, "ERROR");
    let states = [
        ("alarm", "COMPLETED"),
        ("clean", "COMPLETED"),
        ("more", "FAILED DEADLINE"),
        ("work", "FAILED DEADLINE"),
    ];
    assert_eq!(ended.states(), states.map(|(name, state)| (name, state.to_owned())));
    assert_eq!(scene.trail(id, "clean"), ["ready#1", "dispatched#1", "running#1", "completed#1"]);
    scene.close();
}

#[test]
fn a_misspelt_signal_is_refused_by_name() {
    let scene = Scene::new(&[]);
    let id = scene.submit(&format!(
        "name: signals\njobs:\n  a: {{ {GOOD}, prerequisites: [\"signal:approve\"] }}\n  b: {{ {GOOD}, depends: [a], prerequisites: [\"signal:go\"] }}\n"
    ));
    let quiet = scene.submit(&format!("name: quiet\njobs:\n  only: {{ {SLOW} }}\n"));
    let give = |flow: u64, name: &str, code: i32| {
        stderr(&scene.up.mycora(&["flow", "signal", &flow.to_string(), name]), code)
    };
    let refused = give(id, "aprove", 2);
    assert!(
        refused.contains("no job of flow 1 waits for the signal `aprove`; its jobs wait for `approve`, `go`"),
        "{refused}"
    );
    let refused = give(quiet, "go", 2);
    assert!(refused.contains("its jobs wait for no signals"), "{refused}");
    assert_eq!(scene.up.redis(1, &["HLEN", &format!("flow:{id}:signals")]).trim(), "0", "nothing was kept");
    for name in ["go", "approve", "approve"] {
        give(id, name, 0);
    }
    assert_eq!(scene.end(id).status, "FINISHED");
    give(id, "approve", 0);
    give(id, "later", 2);
    stdout(&scene.up.mycora(&["flow", "cancel", &quiet.to_string(), "--grace", "0"]), 0);
    scene.close();
}

/// The supervisor is away, and was alive a moment ago.
#[test]
fn a_job_that_no_supervisor_accepts() {
    let (machine, scene) = Scene::with_a_machine_elsewhere();
    let Scene { mut up, dir } = machine;
    // It hangs, so that the job is sent to it, and dies before it can take it: seen to be dead it would be sent nothing.
    up.process.suspend();
    let id = scene.submit(&format!("name: ack\njobs:\n  only: {{ {GOOD}, timeout_ack: 1 }}\n"));
    scene.wait_for(id, "only", "DISPATCHED");
    up.process.kill9();
    let ended = scene.end(id);
    assert_eq!(ended.state("only"), "FAILED TIMEOUT_ACK");
    assert_eq!(scene.trail(id, "only"), ["ready#1", "dispatched#1", "failed#1 TIMEOUT_ACK"]);
    scene.close();
    // What the kill left behind is ended by the next start.
    up.restart();
    up.stop();
    drop(dir);
}

#[test]
fn signals_before_and_after_the_wait_began() {
    let scene = Scene::new(&[]);
    let id = scene.submit(&format!(
        "name: signals\njobs:\n  first: {{ {GOOD}, prerequisites: [\"signal:go\"] }}\n  second: {{ {GOOD}, depends: [first], prerequisites: [\"signal:early\"] }}\n"
    ));
    let waiting = scene.wait_for(id, "first", "PENDING");
    assert_eq!(waiting["prerequisites"][0], "signal:go");
    let flow = id.to_string();
    // Nothing waits for it yet.
    stdout(&scene.up.mycora(&["flow", "signal", &flow, "early"]), 0);
    let explained = scene.json(&["flow", "explain", &flow, "first"], 0);
    assert!(explained["summary"].as_str().is_some_and(|text| text.contains("`go`")), "{explained}");
    stdout(&scene.up.mycora(&["flow", "signal", &flow, "go"]), 0);
    let ended = scene.end(id);
    assert_eq!(ended.status, "FINISHED");
    let ran = ["ready#1", "dispatched#1", "running#1", "completed#1"];
    assert_eq!(scene.trail(id, "first"), [&["pending#1 WAITING"], &ran[..]].concat());
    assert_eq!(scene.trail(id, "second"), ran);
    assert_eq!(ended.nodes["second"]["prerequisitesMet"][0], "signal:early");
    scene.close();
}

#[test]
fn times_and_other_flows() {
    let scene = Scene::new(&[]);
    let (_, ended) = scene.run(&format!(
        "name: past\njobs:\n  only: {{ {GOOD}, prerequisites: [\"after:2020-01-01T00:00:00Z\"] }}\n"
    ));
    assert_eq!(ended.status, "FINISHED");

    let awaited = scene.submit(&format!("name: awaited\njobs:\n  only: {{ {GOOD}, prerequisites: [go] }}\n"));
    let failing = scene.submit(
        "name: failing\njobs:\n  only: { script_type: shell, script: \"exit 1\", prerequisites: [go] }\n",
    );
    let waits = |flow: u64| {
        scene.submit(&format!("name: waits\njobs:\n  only: {{ {GOOD}, prerequisites: [\"flow:{flow}\"] }}\n"))
    };
    let (good, bad, nothing) = (waits(awaited), waits(failing), waits(4_000_000));
    scene.wait_for(good, "only", "PENDING");
    for flow in [awaited, failing] {
        stdout(&scene.up.mycora(&["flow", "signal", &flow.to_string(), "go"]), 0);
    }
    assert_eq!(scene.end(good).status, "FINISHED");
    assert_eq!(scene.trail(good, "only")[0], "pending#1 WAITING");
    let ended = scene.end(bad);
    assert_eq!(
        (ended.status.as_str(), ended.state("only").as_str()),
        ("ERROR", "FAILED PREREQUISITE_IMPOSSIBLE")
    );
    assert_eq!(scene.end(nothing).state("only"), "FAILED PREREQUISITE_IMPOSSIBLE");
    scene.close();
}
