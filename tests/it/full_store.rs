//! A Redis that has no room: at its `maxmemory`, and on a disk that is full.

use std::path::Path;

use mycora_cli::profile::Profile;
use proto::v1::SubmitFlowRequest;
use proto::v1::flow_service_client::FlowServiceClient;
use serde_json::Value;
use testkit::{SmallDisk, Witness, wait_until_blocking};
use tonic::Code;

use crate::limits::{flow, node};
use crate::scene::Scene;
use crate::suite::{PATIENCE, Up, flow_file, place_of_scripts, stdout};

/// A flow of two jobs, of which the first ends when there is a file of this name in `dir`.
fn waits(dir: &Path, gate: &str) -> String {
    let (gate, witness) = (dir.join(gate), Witness::new(dir));
    let script =
        witness.shell("first", &format!("while ! test -e '{}'; do sleep 0.05; done", gate.display()));
    let script = script.replace('\n', "\n      ");
    format!(
        "name: waits\njobs:\n  first:\n    script_type: shell\n    script: |\n      {script}\n  second:\n    script_type: shell\n    \
         depends: [first]\n    script: echo done=1 > $MYCORA_RESULT\n"
    )
}

/// Returns the refusal of a submission now, if there is one.
fn refusal(up: &Up) -> Option<rpc::ErrorView> {
    let profile = Profile::load(&up.profile()).expect("a profile");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let flow = Some(flow(vec![node("only", "true")]));
    let request = SubmitFlowRequest { context_id: 1, flow, ..Default::default() };
    runtime.block_on(async {
        let mut client = FlowServiceClient::new(profile.channel().expect("a channel"));
        client.submit_flow(request).await.err().map(|status| rpc::ErrorView::from(&status))
    })
}

fn bound_memory(up: &Up, bytes: &str) {
    assert_eq!(up.redis(0, &["CONFIG", "SET", "maxmemory", bytes]).trim(), "OK");
}

fn status(up: &Up, id: u64) -> Option<String> {
    let output = up.mycora(&["--output", "json", "flow", "get", &id.to_string()]);
    let document: Value = serde_json::from_slice(&output.stdout).ok()?;
    document["flow"]["status"].as_str().map(str::to_owned)
}

#[test]
fn at_its_maxmemory_what_runs_waits_and_what_frees_works() {
    let scene = Scene::new(&[]);
    let (ended, _) = scene.run("name: one\njobs:\n  only: { script_type: shell, script: 'true' }\n");
    let goes_on = scene.submit(&waits(scene.path(), "gate"));
    let cancelled = scene.submit(&waits(scene.path(), "never"));
    for id in [goes_on, cancelled] {
        scene.wait_for(id, "first", "RUNNING");
    }

    bound_memory(&scene.up, "1048576");
    let refused = refusal(&scene.up).expect("there is no room");
    assert_eq!((refused.code, &*refused.reason), (Code::ResourceExhausted, "STORE_FULL"), "{refused:?}");
    assert!(refused.retry_after.is_some(), "{refused:?}");
    // Its first job ends, which cannot be stored, and all of that waits.
    std::fs::write(scene.path().join("gate"), "").expect("a file");
    let has_ended = || scene.witness().spans().iter().any(|span| span.end.is_some()).then_some(());
    wait_until_blocking(has_ended, PATIENCE, "the first job has ended");

    stdout(&scene.up.mycora(&["flow", "cancel", &cancelled.to_string(), "--now"]), 0);
    let is_cancelled = || status(&scene.up, cancelled).filter(|status| status == "FLOW_STATUS_CANCELLED");
    wait_until_blocking(is_cancelled, PATIENCE, "the flow is cancelled");
    for id in [ended, cancelled] {
        stdout(&scene.up.mycora(&["flow", "delete", &id.to_string()]), 0);
        assert_eq!(scene.up.redis(1, &["EXISTS", &format!("flow:{id}")]).trim(), "0");
    }
    assert_eq!(status(&scene.up, goes_on).as_deref(), Some("FLOW_STATUS_STARTED"));

    bound_memory(&scene.up, "0");
    let end = scene.end(goes_on);
    assert_eq!(end.status, "FINISHED", "{end:?}");
    assert!(end.nodes.values().all(|node| node["attempt"] == 1), "{end:?}");
    assert_eq!(scene.witness().spans().len(), 2, "each first job ran once");
    let submitted = || refusal(&scene.up).is_none().then_some(());
    wait_until_blocking(submitted, PATIENCE, "there is room again");
    scene.close();
}

#[test]
fn on_a_full_disk_what_runs_waits() {
    let Some(disk) = SmallDisk::new(160) else {
        return at_its_maxmemory_what_runs_waits_and_what_frees_works();
    };
    // Scripts report to another directory: their disk is full.
    let files = tempfile::tempdir().expect("a directory");
    place_of_scripts(&files.path().join("data"));
    let writable = files.path().to_str().expect("a plain path");
    let up = Up::start(&disk.path().join("data"), &["--allow-write", writable]);
    let submitted = up.mycora(&["flow", "submit", &flow_file(files.path(), &waits(files.path(), "gate"))]);
    stdout(&submitted, 0);
    let witness = Witness::new(files.path());
    wait_until_blocking(|| (!witness.lines().is_empty()).then_some(()), PATIENCE, "the first job runs");

    disk.fill_up("other", 0);
    let refused = wait_until_blocking(|| refusal(&up), PATIENCE, "a call is refused");
    assert_eq!((refused.code, &*refused.reason), (Code::Unavailable, "DISK_FULL"), "{refused:?}");
    std::fs::write(files.path().join("gate"), "").expect("a file");
    let has_ended = || witness.spans().iter().any(|span| span.end.is_some()).then_some(());
    wait_until_blocking(has_ended, PATIENCE, "the first job has ended");
    assert_eq!(status(&up, 1).as_deref(), Some("FLOW_STATUS_STARTED"));

    disk.empty("other");
    let ended = || status(&up, 1).filter(|status| status != "FLOW_STATUS_STARTED");
    let ended = wait_until_blocking(ended, PATIENCE, "the flow ends");
    assert_eq!(ended, "FLOW_STATUS_FINISHED", "{}", up.process.output());
    assert_eq!(witness.spans().len(), 1, "the first job ran once");
    up.stop();
}
