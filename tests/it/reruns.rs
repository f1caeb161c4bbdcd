//! Running an ended flow again.

use crate::scene::Scene;
use crate::suite::{stderr, stdout};

#[test]
fn from_the_failed_node_with_a_changed_environment() {
    let scene = Scene::new(&[]);
    let witness = scene.witness();
    let first = witness.shell("first", "echo given=1 >> \"$MYCORA_RESULT\"").replace('\n', "\n      ");
    let text = format!(
        "name: again\nenv: {{ MODE: broken }}\njobs:\n  first:\n    script_type: shell\n    script: |\n      {first}\n  decides:\n    script_type: shell\n    depends: [first]\n    script: |\n      test \"$MODE\" = fixed && echo mode=$MODE >> \"$MYCORA_RESULT\"\n  last: {{ script_type: shell, depends: [decides], script: \"true\" }}\n  beside: {{ script_type: shell, depends: [first], script: \"true\" }}\n"
    );
    let (id, ended) = scene.run(&text);
    assert_eq!(ended.status, "ERROR");
    assert_eq!(ended.state("last"), "SKIPPED UPSTREAM_FAILED");
    let flow = id.to_string();

    let dry = scene.json(&["flow", "retry", &flow, "--dry-run"], 0);
    assert_eq!(dry["runAgain"], serde_json::json!(["decides", "last"]));
    assert_eq!(dry["reused"], serde_json::json!(["first", "beside"]));
    assert_eq!(scene.end(id).flow["generation"], 1, "a dry run changes nothing");

    scene.json(&["flow", "retry", &flow, "--env", "MODE=fixed"], 0);
    let ended = scene.end(id);
    assert_eq!(ended.status, "FINISHED");
    assert_eq!(ended.flow["generation"], 2);
    assert_eq!(ended.flow["envVars"]["MODE"], "fixed");
    assert_eq!(ended.nodes["decides"]["result"]["mode"], "fixed");
    for (name, generation) in [("first", 1), ("beside", 1), ("decides", 2), ("last", 2)] {
        assert_eq!(ended.nodes[name]["generation"], generation, "{name}");
    }
    assert_eq!(
        scene.trail(id, "decides"),
        [
            "ready#1",
            "dispatched#1",
            "running#1",
            "failed#1 EXIT_CODE",
            "pending#2",
            "ready#2",
            "dispatched#2",
            "running#2",
            "completed#2"
        ]
    );
    assert_eq!(
        scene.trail(id, "last"),
        ["skipped#1 UPSTREAM_FAILED", "pending#1", "ready#1", "dispatched#1", "running#1", "completed#1"]
    );
    witness.assert_each_once(&["first"]);

    // Nothing failed any more; from a node on, everything after it runs again.
    stderr(&scene.up.mycora(&["flow", "retry", &flow]), 1);
    stdout(&scene.up.mycora(&["flow", "retry", &flow, "--from", "first", "--watch"]), 0);
    let ended = scene.end(id);
    assert_eq!((ended.status.as_str(), &ended.flow["generation"]), ("FINISHED", &serde_json::json!(3)));
    assert_eq!(ended.nodes["beside"]["attempt"], 2);
    witness.assert_one_end_each(&[]);
    assert_eq!(witness.spans().len(), 2);
    scene.close();
}
