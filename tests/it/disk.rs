//! A disk that one tenant fills, with everything of a suite on it.

use std::path::Path;

use mycora_cli::profile::Profile;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::{CancelFlowRequest, SubmitFlowRequest};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{SmallDisk, wait_until_blocking};
use tonic::Code;

use crate::limits::{flow, node};
use crate::suite::{PATIENCE, Up, flow_file, stdout};

/// The size of the disk in mebibytes. Its floor is a twentieth, and a quarter of that the lower one.
const DISK_MIB: u32 = 160;
const LOWER_FLOOR: u64 = ((DISK_MIB as u64) << 20) / 80;

/// Writes into a file that has no name, and keeps what it has when there is no more room.
const GREEDY: &str = r#"
name: greedy
jobs:
  takes:
    script_type: shell
    script: |
      exec 3>f; rm f
      while :; do head -c 1M /dev/zero >&3 2>/dev/null || sleep 0.05; done
"#;

const MODEST: &str = r#"
name: modest
jobs:
  before:
    script_type: shell
    script: echo before > out; sleep 3
  after:
    script_type: shell
    depends: [before]
    script: head -c 1M /dev/zero > out; echo done=1 > $MYCORA_RESULT
"#;

const ONE: &str = r#"
name: one
jobs:
  only: { script_type: shell, script: "true" }
"#;

fn json(up: &Up, arguments: &[&str]) -> Value {
    let arguments: Vec<&str> = ["--output", "json"].into_iter().chain(arguments.iter().copied()).collect();
    let output = up.mycora(&arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

/// Submits a flow in a context, and gives its number.
fn submit(up: &Up, dir: &Path, context: &str, text: &str) -> String {
    let file = flow_file(dir, text);
    let document = json(up, &["--context", context, "flow", "submit", &file]);
    document["flow"]["id"].as_u64().expect("an id").to_string()
}

/// Waits for the end of a flow, and gives how it ended and its nodes.
fn end(up: &Up, context: &str, id: &str) -> (String, Vec<Value>) {
    let document = json(up, &["--context", context, "flow", "watch", id]);
    let status = document["flow"]["status"].as_str().unwrap_or_default().to_owned();
    (status, document["nodes"].as_array().cloned().unwrap_or_default())
}

fn only_node(up: &Up, id: &str) -> Value {
    json(up, &["flow", "nodes", id])["nodes"][0].clone()
}

/// Waits until the only node of a flow is put off for want of room.
fn wait_until_put_off(up: &Up, id: &str) {
    let put_off = || {
        let node = only_node(up, id);
        let reason = &node["reason"];
        let says = reason["detail"].as_str().is_some_and(|detail| {
            detail.starts_with("DISK_FULL: the disk of the scripts has ")
                && detail.contains("less than its floor")
        });
        (node["state"] == "NODE_STATE_READY" && reason["code"] == "BACKING_OFF" && says).then_some(())
    };
    wait_until_blocking(put_off, PATIENCE, "the node waits for room, by name");
}

/// Another tenant beside context 1, on the same machine.
fn second_tenant(up: &Up) {
    stdout(&up.mycora(&["context", "create", "--id", "2"]), 0);
    let runner = json(up, &["runner", "show", "1"]);
    let address = runner["runner"]["address"].as_str().or(runner["address"].as_str());
    let address = address.unwrap_or_else(|| panic!("no address in {runner}")).to_owned();
    stdout(&up.mycora(&["--context", "2", "runner", "register", &address]), 0);
}

/// Returns the refusal of a call that has to keep something now, if there is one.
fn refusal(up: &Up) -> Option<rpc::ErrorView> {
    let profile = Profile::load(&up.profile()).expect("a profile");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut client = FlowServiceClient::new(profile.channel().expect("a channel"));
        let flow = Some(flow(vec![node("only", "true")]));
        let request = SubmitFlowRequest { context_id: 1, flow, ..Default::default() };
        match client.submit_flow(request).await {
            Err(status) => Some(rpc::ErrorView::from(&status)),
            Ok(taken) => {
                let flow_id = taken.into_inner().flow.expect("a flow").id;
                let cancel = CancelFlowRequest { context_id: 1, flow_id, ..Default::default() };
                // It only was to be refused.
                let _ = client.cancel_flow(cancel).await;
                None
            }
        }
    })
}

#[test]
fn one_tenant_fills_the_disk_and_the_others_go_on() {
    let Some(disk) = SmallDisk::new(DISK_MIB) else { return below_a_configured_floor() };
    let files = tempfile::tempdir().expect("a directory");
    let up = Up::start(&disk.path().join("data"), &[]);
    second_tenant(&up);
    let modest = submit(&up, files.path(), "2", MODEST);
    let greedy = submit(&up, files.path(), "1", GREEDY);
    let (status, nodes) = end(&up, "1", &greedy);
    let reason = &nodes[0]["reason"];
    assert_eq!(
        (status.as_str(), &reason["code"]),
        ("FLOW_STATUS_ERROR", &"QUOTA_EXCEEDED".into()),
        "{nodes:?}"
    );
    let detail = reason["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("less than its floor") && detail.contains("it held the most"), "{detail}");
    let (status, nodes) = end(&up, "2", &modest);
    assert_eq!(status, "FLOW_STATUS_FINISHED", "{nodes:?}");

    // Less than the lower floor is left, and Redis has room still.
    disk.fill_up("other", LOWER_FLOOR / 2);
    let waits = submit(&up, files.path(), "1", ONE);
    wait_until_put_off(&up, &waits);
    // Now it has none either.
    disk.empty("other");
    disk.fill_up("other", 0);
    let refused = wait_until_blocking(|| refusal(&up), PATIENCE, "a call is refused");
    assert_eq!((refused.code, refused.reason.as_str()), (Code::Unavailable, "DISK_FULL"), "{refused:?}");
    assert!(refused.retry_after.is_some(), "{refused:?}");

    disk.empty("other");
    let (status, nodes) = end(&up, "1", &waits);
    assert_eq!((status.as_str(), &nodes[0]["tries"]), ("FLOW_STATUS_FINISHED", &Value::Null), "{nodes:?}");
    let next = submit(&up, files.path(), "2", ONE);
    assert_eq!(end(&up, "2", &next).0, "FLOW_STATUS_FINISHED");
    up.stop();
}

/// Without a disk of its own: the floor lies above what is free.
fn below_a_configured_floor() {
    let dir = TempDir::new().expect("a directory");
    let data = dir.path().join("data");
    let up = Up::start(&data, &["--disk-floor", "9000000000000000000"]);
    let waits = submit(&up, dir.path(), "1", ONE);
    wait_until_put_off(&up, &waits);
    up.stop();
    let up = Up::start(&data, &["--disk-floor", "0"]);
    assert_eq!(end(&up, "1", &waits).0, "FLOW_STATUS_FINISHED");
    up.stop();
}

#[test]
fn nothing_starts_below_a_configured_floor() {
    below_a_configured_floor();
}
