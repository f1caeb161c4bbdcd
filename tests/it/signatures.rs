//! Jobs that their actor has signed, at a machine that runs nothing else.

use std::path::Path;

use identity::SigningKey;
use testkit::wait_until_blocking;

use crate::scene::Scene;
use crate::suite::{PATIENCE, flow_file, stderr, stdout};

/// A job that makes a file, and one that reads it and wants a variable to be right.
const FLOW: &str = "\
name: signed
env: { MODE: broken }
jobs:
  makes:
    script_type: shell
    outputs: [part.txt]
    script: echo 42 > part.txt
  reads:
    script_type: shell
    depends: [makes]
    script: |
      test \"$MODE\" = fixed && echo answer=$(cat part.txt) >> \"$MYCORA_RESULT\"
";

/// A suite whose machine runs what is signed, and the directory of its policy.
fn scene() -> (Scene, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("policy.toml");
    std::fs::write(&path, "[default]\nrequire_actor_signature = true\n").expect("a policy");
    (Scene::new(&["--policy", path.to_str().expect("a plain path")]), dir)
}

/// A file in the suite's directory.
fn file_of(scene: &Scene, name: &str) -> String {
    let path = scene.path().join("data").join(name);
    assert!(path.exists(), "{}", path.display());
    path.to_str().expect("a plain path").to_owned()
}

#[test]
fn only_signed_jobs_run_where_signatures_are_required() {
    let (scene, _policy) = scene();
    let (id, ended) = scene.run(FLOW);
    assert_eq!((ended.status.as_str(), ended.state("makes").as_str()), ("ERROR", "FAILED POLICY_REFUSED"));
    let detail = ended.nodes["makes"]["reason"]["detail"].as_str().expect("a sentence").to_owned();
    assert!(detail.contains("that their actors have signed"), "{detail}");
    let carried = scene.json(&["message", "list", "--flow", &id.to_string()], 0);
    let message = &carried["messages"][0];
    assert_eq!(message["status"], "MESSAGE_STATUS_ERROR", "{carried}");
    assert!(message["error"].as_str().is_some_and(|error| error.starts_with("POLICY_REFUSED")), "{carried}");
    let explained = stdout(&scene.up.mycora(&["flow", "explain", &id.to_string(), "makes"]), 0);
    assert!(explained.contains("policy"), "{explained}");

    let file = flow_file(scene.path(), FLOW);
    let key = file_of(&scene, "actor-1.ed25519");
    let signing = ["--signing-key", &key];
    let submitted = scene.json(&[&["flow", "submit", &file], &signing[..]].concat(), 0);
    let id = submitted["flow"]["id"].as_u64().expect("an id");
    let ended = scene.end(id);
    assert_eq!(ended.state("makes"), "COMPLETED");
    assert_eq!(ended.state("reads"), "FAILED EXIT_CODE");

    // The variables are signed as well.
    let flow = id.to_string();
    let retry = ["flow", "retry", &flow, "--env", "MODE=fixed"];
    let refused = stderr(&scene.up.mycora(&retry), 2);
    assert!(refused.contains("signatures[reads]") && refused.contains("env_vars"), "{refused}");
    assert_eq!(scene.end(id).flow["generation"], 1);
    scene.json(&[&retry[..], &signing, &["--file", &file]].concat(), 0);
    let ended = scene.end(id);
    assert_eq!((ended.status.as_str(), &ended.flow["generation"]), ("FINISHED", &serde_json::json!(2)));
    assert_eq!(ended.nodes["reads"]["result"]["answer"], "42");
    scene.close();
}

#[test]
fn a_flow_in_parts_is_signed_too_and_only_by_its_actor() {
    let (scene, _policy) = scene();
    let padding = "x".repeat(20_000);
    let jobs: String = (0..160)
        .map(|i| {
            format!("  job-{i}: {{ script_type: shell, script: 'true # {i} {padding}', outputs: [] }}\n")
        })
        .collect();
    let file = flow_file(scene.path(), &format!("name: large\njobs:\n{jobs}"));
    let submit = |key: &str, code| {
        let arguments = ["flow", "submit", &file, "--signing-key", key, "--signature-holds", "1h"];
        let output = scene.up.mycora(&[&["--output", "json"], &arguments[..]].concat());
        (stdout(&output, code), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (document, _) = submit(&file_of(&scene, "actor-1.ed25519"), 0);
    let document: serde_json::Value = serde_json::from_str(&document).expect("one document");
    let ended = scene.end(document["flow"]["id"].as_u64().expect("an id"));
    assert_eq!((ended.status.as_str(), ended.nodes.len()), ("FINISHED", 160));

    // The coordinator's own is a good key, and not the actor's.
    let (_, refused) = submit(&file_of(&scene, "pki/coordinator.key"), 2);
    assert!(refused.contains("the key in force of actor 1 is"), "{refused}");
    scene.close();
}

/// A job that runs at once, and one that waits for a signal.
const TWO: &str = "\
name: by-a-former-key
jobs:
  now: { script_type: shell, script: 'true' }
  later: { script_type: shell, prerequisites: ['signal:go'], script: 'true' }
";

#[test]
fn a_former_key_signs_until_its_end() {
    let (scene, _policy) = scene();
    let file = flow_file(scene.path(), TWO);
    let first = file_of(&scene, "actor-1.ed25519");
    let new_key = |name: &str| scene.path().join("data").join(name).display().to_string();
    let rotate = |key: &str, overlap: &str| {
        scene.json(&["actor", "rotate-key", "1", "--new-key", key, "--overlap", overlap], 0)
    };
    let submit = |key: &str| {
        let arguments = ["--output", "json", "flow", "submit", &file, "--signing-key", key];
        scene.up.mycora(&arguments)
    };
    let accepted = |key: &str| {
        let document: serde_json::Value = serde_json::from_str(&stdout(&submit(key), 0)).expect("a document");
        document["flow"]["id"].as_u64().expect("an id")
    };
    let refused = |output: &std::process::Output, next: &str| {
        let printed = stderr(output, 2);
        let next = SigningKey::load(Path::new(next)).expect("a key").verifying_key();
        for job in ["now", "later"] {
            let line_of_job =
                printed.lines().find(|line| line.contains(&format!("jobs.{job}: "))).expect("a line");
            assert!(line_of_job.ends_with(&format!("the key in force of actor 1 is {next}")), "{printed}");
        }
    };

    // While both count either may have signed.
    let second = new_key("second.ed25519");
    rotate(&second, "1h");
    let flow = accepted(&first);
    scene.wait_for(flow, "now", "COMPLETED");
    accepted(&second);

    // Revoked: both end at once. What was taken up goes on, and is not taken up again.
    let third = new_key("third.ed25519");
    rotate(&third, "0s");
    for former in [&first, &second] {
        refused(&submit(former), &third);
    }
    stdout(&scene.up.mycora(&["flow", "signal", &flow.to_string(), "go"]), 0);
    let ended = scene.end(flow);
    assert_eq!((ended.status.as_str(), ended.state("later").as_str()), ("FINISHED", "COMPLETED"));
    let printed = stderr(&scene.up.mycora(&["flow", "retry", &flow.to_string(), "--from", "now"]), 2);
    assert!(printed.contains("signatures[now]") && printed.contains("give a new one"), "{printed}");

    // One that ends by itself signs until then, and is refused from then on.
    let fourth = new_key("fourth.ed25519");
    rotate(&fourth, "5s");
    accepted(&third);
    let over = || Some(submit(&third)).filter(|output| !output.status.success());
    refused(&wait_until_blocking(over, PATIENCE, "the former key is over"), &fourth);
    accepted(&fourth);
    scene.close();
}
