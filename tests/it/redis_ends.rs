//! The private Redis of `mycora up`, killed while flows run.

use std::collections::BTreeSet;
use std::process::Command;

use testkit::wait_until_blocking;

use crate::scene::{Scene, redis_pid};
use crate::suite::PATIENCE;

/// Kills the private Redis, and waits until another one is recorded.
fn kill_redis(scene: &Scene) {
    let before = redis_pid(scene).expect("a record");
    let killed = Command::new("kill").args(["-KILL", &before]).status();
    assert!(killed.expect("`kill` starts").success());
    let another = || redis_pid(scene).filter(|now| *now != before);
    wait_until_blocking(another, PATIENCE, "Redis is started again");
}

/// Submits a flow again and again until that is answered; each time as the same request.
fn submit(scene: &Scene, file: &str) -> u64 {
    let request = model::id::Uid::random().to_string();
    let arguments = ["--output", "json", "flow", "submit", file, "--request-id", &request];
    let answered = || {
        let output = scene.up.mycora(&arguments);
        let document: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        document.filter(|_| output.status.success())?["flow"]["id"].as_u64()
    };
    wait_until_blocking(answered, PATIENCE, format!("{file} is acknowledged"))
}

fn write(scene: &Scene, name: &str, script: &str) -> String {
    let path = scene.path().join(format!("{name}.yaml"));
    let script = script.replace('\n', "\n      ");
    let text =
        format!("name: {name}\njobs:\n  {name}:\n    script_type: shell\n    script: |\n      {script}\n");
    std::fs::write(&path, text).expect("a flow file");
    path.to_str().expect("a plain path").to_owned()
}

#[test]
fn up_starts_its_redis_again_and_what_runs_reports_afterwards() {
    let mut scene = Scene::new(&[]);
    let witness = scene.witness();
    let gate = scene.path().join("gate");
    let waits = format!("while ! test -e '{}'; do sleep 0.05; done", gate.display());
    let long = write(&scene, "long", &witness.shell("long", &waits));
    let long = submit(&scene, &long);
    scene.wait_for(long, "long", "RUNNING");

    // Each one is in flight while Redis is killed, and is acknowledged before or after.
    let mut flows = vec![long];
    for round in 0..3 {
        std::thread::scope(|scope| {
            let submitted = (0..4).map(|n| {
                let (scene, name) = (&scene, format!("f{round}-{n}"));
                let file = write(scene, &name, &witness.shell(&name, "true"));
                scope.spawn(move || submit(scene, &file))
            });
            let submitted: Vec<_> = submitted.collect();
            kill_redis(&scene);
            flows.extend(submitted.into_iter().map(|flow| flow.join().expect("it is acknowledged")));
        });
    }
    std::fs::write(&gate, "").expect("a file");

    let after = write(&scene, "after", &witness.shell("after", "true"));
    flows.push(submit(&scene, &after));
    for flow in &flows {
        let status = || {
            let output = scene.up.mycora(&["--output", "json", "flow", "get", &flow.to_string()]);
            let document: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
            let status = document["flow"]["status"].as_str().or(document["status"].as_str())?.to_owned();
            matches!(&*status, "FLOW_STATUS_FINISHED" | "FLOW_STATUS_ERROR").then_some((status, document))
        };
        let (status, document) = wait_until_blocking(status, PATIENCE, format!("flow {flow} has ended"));
        assert_eq!(status, "FLOW_STATUS_FINISHED", "{document}\n{}", scene.up.process.output());
    }
    // The one that ran all the time ran once.
    let spans = witness.spans();
    let runs: Vec<_> = spans.iter().filter(|span| span.job == "long").collect();
    assert!(runs.len() == 1 && runs[0].end.is_some(), "{runs:?}");
    let attempts: BTreeSet<_> = spans.iter().map(|span| (&span.job, &span.attempt)).collect();
    assert_eq!(attempts.len(), spans.len(), "an attempt ran twice: {spans:?}");
    scene.up.process.wait_for_line("redis-server ended (signal: 9", PATIENCE);
    scene.up.process.wait_for_line("redis-server runs again, with the same data", PATIENCE);
    scene.close();
}
