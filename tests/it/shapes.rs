//! Flows of typical shapes: how they end, and what led there.

use crate::scene::Scene;
use crate::suite::{stderr, stdout};

const GOOD: &str = "script_type: shell, script: \"true\"";
const BAD: &str = "script_type: shell, script: \"exit 3\"";
/// States of a node that ran well.
const RAN: [&str; 4] = ["ready#1", "dispatched#1", "running#1", "completed#1"];

#[test]
fn a_diamond() {
    let scene = Scene::new(&[]);
    let (id, ended) = scene.run(&format!(
        "name: diamond\njobs:\n  top: {{ {GOOD} }}\n  left: {{ {GOOD}, depends: [top] }}\n  right: {{ {GOOD}, depends: [top] }}\n  bottom: {{ {GOOD}, depends: [left, right] }}\n"
    ));
    assert_eq!(ended.status, "FINISHED");
    for name in ["top", "left", "right", "bottom"] {
        assert_eq!(ended.state(name), "COMPLETED");
        assert_eq!(scene.trail(id, name), RAN, "{name}");
    }
    let drawing = stdout(&scene.up.mycora(&["flow", "graph", &id.to_string(), "--format", "mermaid"]), 0);
    assert_eq!(drawing.matches("<br/>completed").count(), 4, "{drawing}");
    assert_eq!(drawing.matches(" --> ").count(), 4, "{drawing}");
    scene.close();
}

/// One job, waited for; and one that is executed outside of the suite.
#[test]
fn jobs_without_a_flow_file() {
    let scene = Scene::new(&["--slots", "1"]);
    let script = "echo rows=3 >> \"$MYCORA_RESULT\"; echo seen";
    let out = stdout(&scene.up.mycora(&["job", "run", "--type", "shell", "--script", script]), 0);
    assert!(out.contains("seen") && out.contains("rows"), "{out}");
    stdout(&scene.up.mycora(&["job", "run", "--type", "shell", "--script", "exit 4"]), 1);

    let slow = scene.submit("name: slow\njobs:\n  only: { script_type: shell, script: \"sleep 600\" }\n");
    scene.wait_for(slow, "only", "RUNNING");
    let id = scene.submit(&format!(
        "name: by-hand\njobs:\n  only: {{ {BAD} }}\n  after: {{ script_type: rhai, depends: [only], script: 'result(\"twice\", inputs.only.rows * 2)' }}\n"
    ));
    scene.wait_for(id, "only", "DISPATCHED");
    let flow = id.to_string();
    let report = ["flow", "report", &flow, "only", "completed", "--attempt", "1", "--result", "rows=21"];
    stdout(&scene.up.mycora(&report), 0);
    let ended = scene.end(id);
    assert_eq!((ended.status.as_str(), &ended.flow["result"]["after.twice"]), ("FINISHED", &"42".into()));
    stderr(&scene.up.mycora(&report), 1);
    stdout(&scene.up.mycora(&["flow", "cancel", &slow.to_string(), "--now"]), 0);
    assert_eq!(scene.end(slow).status, "CANCELLED");
    scene.close();
}

/// A branch chosen by a result, and the join that runs whichever was taken.
#[test]
fn a_branch_and_its_join() {
    let scene = Scene::new(&[]);
    let (id, ended) = scene.run(&format!(
        r#"
name: branch
jobs:
  count-rows: {{ script_type: shell, script: 'echo rows=7 >> "$MYCORA_RESULT"' }}
  many: {{ {GOOD}, depends: [count-rows], when: 'results["count-rows"].rows > 5' }}
  few: {{ {GOOD}, depends: [count-rows], when: 'results["count-rows"].rows <= 5' }}
  after-few: {{ {GOOD}, depends: [few] }}
  join: {{ {GOOD}, depends: [many, after-few], run_if: NONE_FAILED }}
"#
    ));
    assert_eq!(ended.status, "FINISHED");
    assert_eq!(
        ended.states(),
        [
            ("after-few", "SKIPPED CONDITION_NOT_MET".to_owned()),
            ("count-rows", "COMPLETED".to_owned()),
            ("few", "SKIPPED CONDITION_NOT_MET".to_owned()),
            ("join", "COMPLETED".to_owned()),
            ("many", "COMPLETED".to_owned()),
        ]
    );
    assert_eq!(scene.trail(id, "few"), ["skipped#1 CONDITION_NOT_MET"]);
    assert_eq!(scene.trail(id, "join"), RAN);
    scene.close();
}

#[test]
fn a_failure_that_is_handled() {
    let scene = Scene::new(&[]);
    let (id, ended) = scene.run(&format!(
        "name: handled\njobs:\n  risky: {{ {BAD}, allow_failure: true, retries: 1, backoff: {{ initial: 0.01 }} }}\n  plan-b: {{ {GOOD}, depends: [risky], run_if: ANY_FAILED }}\n  plan-a: {{ {GOOD}, depends: [risky] }}\n  join: {{ {GOOD}, depends: [plan-a, plan-b], run_if: ALL_DONE }}\n"
    ));
    assert_eq!(ended.status, "FINISHED");
    assert_eq!(
        ended.states(),
        [
            ("join", "COMPLETED".to_owned()),
            ("plan-a", "SKIPPED UPSTREAM_FAILED".to_owned()),
            ("plan-b", "COMPLETED".to_owned()),
            ("risky", "FAILED EXIT_CODE".to_owned()),
        ]
    );
    assert_eq!(
        scene.trail(id, "risky"),
        [
            "ready#1",
            "dispatched#1",
            "running#1",
            "ready#2 BACKING_OFF",
            "dispatched#2",
            "running#2",
            "failed#2 EXIT_CODE"
        ]
    );
    scene.close();
}

#[test]
fn a_clean_up_runs_and_the_flow_fails() {
    let scene = Scene::new(&[]);
    let (id, ended) = scene.run(&format!(
        "name: clean-up\nfail_fast: true\njobs:\n  work: {{ {BAD}, no_retry_exit_codes: [3], retries: 5 }}\n  more: {{ {GOOD}, depends: [work] }}\n  other: {{ {GOOD}, prerequisites: [never] }}\n  clean: {{ {GOOD}, depends: [work, more], run_if: ALL_DONE }}\n"
    ));
    assert_eq!(ended.status, "ERROR");
    assert_eq!(
        ended.states(),
        [
            ("clean", "COMPLETED".to_owned()),
            ("more", "CANCELLED FAIL_FAST".to_owned()),
            ("other", "CANCELLED FAIL_FAST".to_owned()),
            ("work", "FAILED EXIT_CODE".to_owned()),
        ]
    );
    assert_eq!(scene.trail(id, "work"), ["ready#1", "dispatched#1", "running#1", "failed#1 EXIT_CODE"]);
    assert_eq!(scene.trail(id, "clean"), RAN);
    assert_eq!(scene.trail(id, "other"), ["pending#1 WAITING", "cancelled#1 FAIL_FAST"]);
    scene.close();
}

#[test]
fn an_invalid_expression_is_refused_before_a_flow_is_made() {
    let scene = Scene::new(&[]);
    for (when, named) in [
        ("results.a.rows >", "when"),
        ("results.b.rows > 1", "b"),
        ("results.count-a.rows > 1", "results[\"count-a\"]"),
        ("let x = 1; x > 0", "when"),
        ("[1].len() > 0 && nothing", "nothing"),
    ] {
        let text = format!(
            "name: x\njobs:\n  a: {{ {GOOD} }}\n  count-a: {{ {GOOD} }}\n  c: {{ {GOOD}, depends: [a, count-a], when: '{when}' }}\n"
        );
        let file = crate::suite::flow_file(scene.path(), &text);
        let err = crate::suite::stderr(&scene.up.mycora(&["flow", "submit", &file]), 2);
        assert!(err.contains(named), "`{when}` does not name {named}:\n{err}");
    }
    assert_eq!(
        scene.json(&["flow", "list"], 0)["flows"].as_array().map_or(0, Vec::len),
        0,
        "nothing was made"
    );
    // What only shows when it is evaluated fails the node, by name.
    let (_, ended) = scene.run(&format!(
        r#"
name: y
jobs:
  a: {{ script_type: shell, script: 'echo text=seven >> "$MYCORA_RESULT"' }}
  number: {{ {GOOD}, depends: [a], when: 'results.a.text + 1' }}
  missing: {{ {GOOD}, depends: [a], when: 'results.a.other > 1' }}
"#
    ));
    assert_eq!(ended.state("number"), "FAILED WHEN_FAILED");
    assert_eq!(ended.state("missing"), "FAILED MISSING_RESULT");
    scene.close();
}
