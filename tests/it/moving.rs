//! A context that is exported from a suite and imported into an empty one: what it has is the same there, and goes on.

use std::process::Stdio;

use serde_json::Value;
use testkit::wait_until_blocking;

use crate::local::Processes;
use crate::scene::Scene;
use crate::suite::{PATIENCE, Up, command, flow_file, stderr, stdout};

const WAITS: &str = "\
name: waits
jobs:
  before: { script_type: shell, script: 'echo printed here; echo half=1 >> \"$MYCORA_RESULT\"' }
  after:
    script_type: shell
    depends: [before]
    prerequisites: ['signal:go']
    script: 'echo whole=2 >> \"$MYCORA_RESULT\"'
";
/// Nothing of it changes until somebody signals.
const RESTS: &str =
    "name: rests\njobs:\n  only: { script_type: shell, prerequisites: ['signal:go'], script: 'true' }\n";
const ENDED: &str =
    "name: ended\njobs:\n  only: { script_type: shell, script: 'echo \"n=7\" >> \"$MYCORA_RESULT\"' }\n";

/// Runs a command in context 2.
fn in_two(scene: &Scene, arguments: &[&str]) -> Value {
    scene.json(&[&["--context", "2"], arguments].concat(), 0)
}

/// Has jobs of context 2 run on the suite's own machine.
fn register_runner(scene: &Scene) {
    let runner = scene.json(&["runner", "show", "1"], 0);
    let address = runner["runner"]["address"].as_str().expect("an address");
    in_two(scene, &["runner", "register", address]);
}

/// Flows, their results, and what they printed.
fn told(scene: &Scene, flows: &[&str]) -> Vec<Value> {
    let mut told = vec![in_two(scene, &["flow", "list"])];
    for flow in flows {
        told.push(in_two(scene, &["flow", "get", flow]));
        told.push(in_two(scene, &["flow", "logs", flow]));
    }
    told
}

#[test]
fn what_a_context_has_is_the_same_elsewhere_and_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let here = Scene::new(&[]);
    stdout(&here.up.mycora(&["context", "create", "--id", "2"]), 0);
    register_runner(&here);
    let submit = |text: &str, more: &[&str]| {
        let file = flow_file(here.path(), text);
        in_two(&here, &[&["flow", "submit", &file], more].concat())["flow"]["id"].to_string()
    };
    let (ended, waits) = (submit(ENDED, &["--watch"]), submit(WAITS, &[]));
    let half_done = || {
        let nodes = in_two(&here, &["flow", "jobs", &waits]);
        let nodes = nodes["nodes"].as_array().expect("nodes");
        nodes.iter().any(|node| node["state"] == "NODE_STATE_COMPLETED").then_some(())
    };
    wait_until_blocking(half_done, PATIENCE, "the first job has ended");

    let file = dir.path().join("two.mycora");
    let file = file.to_str().expect("a plain path");
    let exported = here.json(&["context", "export", "2", file], 0);
    assert_eq!(exported["contextId"], 2, "{exported}");
    let before = told(&here, &[&ended, &waits]);
    let again = stderr(&here.up.mycora(&["context", "export", "2", file]), 2);
    assert!(again.contains("--force"), "{again}");
    // Everything goes but the authority, as it is backed up.
    let pki = dir.path().join("pki");
    let copied =
        std::process::Command::new("cp").arg("-a").arg(here.path().join("data/pki")).arg(&pki).status();
    assert!(copied.expect("it starts").success());
    here.close();

    let data = dir.path().join("data");
    let up = Up::start(&data, &["--pki", pki.to_str().expect("a plain path")]);
    let there = Scene { up, dir };
    let import = ["context", "import", file, "--as", "admin"];
    let refused = stderr(&there.up.mycora(&import), 1);
    assert!(refused.contains("--accept-actor 1"), "the new suite has made a key: {refused}");
    let accepting = [&import[..], &["--accept-actor", "1"]].concat();
    let imported = there.json(&accepting, 0);
    assert_eq!(imported["contextUid"], exported["contextUid"]);
    assert_eq!(imported["digest"], exported["digest"]);
    assert_eq!(told(&there, &[&ended, &waits]), before);

    in_two(&there, &["runner", "delete", "1"]);
    register_runner(&there);
    in_two(&there, &["flow", "signal", &waits, "go"]);
    let end = in_two(&there, &["flow", "watch", &waits]);
    assert_eq!(end["flow"]["status"], "FLOW_STATUS_FINISHED", "{end}");
    assert_eq!(end["flow"]["result"]["after.whole"], "2", "{end}");

    // A file that lost its end, or a byte, is refused with the frame's number.
    let bytes = std::fs::read(file).expect("the file");
    let damaged = there.path().join("damaged.mycora");
    let damaged = damaged.to_str().expect("a plain path");
    for (content, says) in
        [(bytes[..bytes.len() - 1].to_vec(), "is cut off after frame"), (flipped(&bytes), "is altered")]
    {
        std::fs::write(damaged, content).expect("written");
        let refused = stderr(&there.up.mycora(&["context", "import", damaged, "--as", "admin"]), 2);
        assert!(refused.contains(says), "{refused}");
    }
    there.close();
}

#[test]
fn an_import_goes_on_when_storage_dies_at_any_step_of_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut processes = Processes::start(&dir.path().join("suite"), &[]);
    let profile = processes.profile();
    let mycora = |arguments: &[&str]| stdout(&command(&profile, arguments).output().expect("it starts"), 0);
    mycora(&["context", "create", "--id", "2"]);
    mycora(&["--context", "2", "flow", "submit", &flow_file(dir.path(), RESTS)]);
    let file = dir.path().join("two.mycora");
    let file = file.to_str().expect("a plain path");
    mycora(&["context", "export", "2", file]);
    let flows = mycora(&["--context", "2", "--output", "json", "flow", "list"]);
    for point in ["storage.import.frame", "storage.import.ended", "storage.import.published"] {
        mycora(&["context", "delete", "2", "--yes"]);
        processes.kill9("storage");
        processes.set("MYCORA_CRASH_AT", point);
        processes.script("up.sh");
        processes.unset("MYCORA_CRASH_AT");
        let mut import = command(&profile, &["context", "import", file, "--as", "admin"]);
        let mut import = import.stdout(Stdio::null()).spawn().expect("it starts");
        wait_until_blocking(|| (!processes.runs("storage")).then_some(()), PATIENCE, point);
        processes.script("up.sh");
        assert!(import.wait().expect("it ends").success(), "{point}");
        assert_eq!(mycora(&["--context", "2", "--output", "json", "flow", "list"]), flows, "{point}");
        let mark = processes.redis(0, &["HGET", "ids", "importing:2"]);
        assert_eq!(mark.trim(), "", "{point}");
    }
}

/// The bytes with another one at the end of the last frame.
fn flipped(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    bytes
}
