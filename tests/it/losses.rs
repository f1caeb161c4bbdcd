//! Attempts that are lost with the process that ran them: the settings of the job decide what follows.

use serde_json::Value;
use testkit::{WitnessMark, wait_until_blocking};

use crate::scene::Scene;
use crate::suite::{PATIENCE, metric, stdout};

/// A flow of one job without retries whose first attempt never ends by itself.
fn flow(scene: &Scene, name: &str, policy: &str) -> u64 {
    let body = "[ \"$MYCORA_ATTEMPT\" -gt 1 ] || exec sleep 1000";
    let script = scene.witness().shell(name, body).replace('\n', "\n      ");
    scene.submit(&format!(
        "name: {name}\njobs:\n  {name}:\n    script_type: shell\n    retries: 0\n{policy}    script: |\n      {script}\n"
    ))
}

/// The counts of losses and of failed tries in the events of a node, each once, in order.
fn reported_counts(scene: &Scene, flow: u64) -> Vec<(u64, u64, u64)> {
    let events = scene.up.redis(1, &["XRANGE", "events", "-", "+"]);
    let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_node = events.filter(|event| event["kind"] == "node" && event["flow_id"] == flow);
    let count = |event: &Value, name: &str| event[name].as_u64().unwrap_or_default();
    let mut counts: Vec<_> = of_node
        .map(|event| (count(&event, "tries"), count(&event, "deaths"), count(&event, "losses")))
        .collect();
    counts.dedup();
    counts
}

#[test]
fn a_killed_suite_goes_on_with_what_it_lost_unless_a_job_must_not_run_twice() {
    let mut scene = Scene::new(&["--slots", "2"]);
    let again = flow(&scene, "again", "    loss_backoff: { initial: 0.1 }\n");
    let once = flow(&scene, "once", "    idempotent: false\n");
    for (id, name) in [(again, "again"), (once, "once")] {
        scene.wait_for(id, name, "RUNNING");
    }
    let both_run = || (scene.witness().lines().len() == 2).then_some(());
    wait_until_blocking(both_run, PATIENCE, "both scripts have begun");
    let explained = stdout(&scene.up.mycora(&["flow", "explain", &again.to_string(), "again"]), 0);
    assert!(explained.contains("3 of 3 losses left"), "{explained}");
    let explained = stdout(&scene.up.mycora(&["flow", "explain", &once.to_string(), "once"]), 0);
    assert!(explained.contains("not run again after a loss (`idempotent: false`)"), "{explained}");

    scene.up.process.kill9();
    scene.up.restart();

    let ended = scene.end(again);
    assert_eq!((ended.status.as_str(), ended.state("again").as_str()), ("FINISHED", "COMPLETED"));
    let node = &ended.nodes["again"];
    assert_eq!(
        (&node["attempt"], &node["deaths"], node.get("tries")),
        (&2.into(), &1.into(), None),
        "{node}"
    );
    assert_eq!(
        reported_counts(&scene, again),
        [(0, 0, 0), (0, 1, 0)],
        "the events tell a loss from a failure"
    );

    let ended = scene.end(once);
    assert_eq!((ended.status.as_str(), ended.state("once").as_str()), ("ERROR", "FAILED INSTANCE_LOST"));
    let why = ended.nodes["once"]["reason"]["detail"].as_str().unwrap_or_default();
    assert!(why.contains("not run again") && why.contains("`idempotent: false`"), "{why}");
    let starts = |name: &str| {
        let lines = scene.witness().lines();
        lines.iter().filter(|(mark, job, _)| *mark == WitnessMark::Start && job == name).count()
    };
    assert_eq!((starts("again"), starts("once")), (2, 1));

    let metric_of = "mycora_scheduler_lost_attempts_total{with=\"instance\"}";
    let counted = metric(scene.up.dir(), scene.up.port() + 100, metric_of);
    assert!(counted >= 2.0, "both losses are counted apart: {counted}");
    scene.close();
}
