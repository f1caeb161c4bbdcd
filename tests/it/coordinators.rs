//! Two coordinators, one supervisor.

use serde_json::Value;
use testkit::TestProcess;

use crate::suite::{Up, command, flow_file, stdout};

/// Prints which coordinator it works for, and leaves a file that the next must not see.
fn flow(who: &str) -> String {
    format!(
        "name: {who}\njobs:\n  first:\n    script_type: shell\n    outputs: [mine.txt]\n    script: |\n      \
         test ! -e mine.txt\n      echo {who} > mine.txt\n      echo \"who={who}\" >> \"$MYCORA_RESULT\"\n  \
         second:\n    script_type: shell\n    depends: [first]\n    script: echo \"seen=$(cat mine.txt)\" >> \"$MYCORA_RESULT\"\n"
    )
}

#[test]
fn two_coordinators_share_a_supervisor_without_a_mix_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one_dir, two_dir) = (dir.path().join("one"), dir.path().join("two"));
    let one = Up::start(&one_dir, &[]);
    let address = format!("grpc://127.0.0.1:{}", one.port());
    let pki = one_dir.join("pki");
    let pki = pki.to_str().expect("a plain path");
    let two = Up::start(&two_dir, &["--no-supervisor", "--runner", &address, "--pki", pki]);

    for round in 0..2 {
        let mut running = Vec::new();
        for (who, up, place) in [("one", &one, &one_dir), ("two", &two, &two_dir)] {
            let file = flow_file(place, &flow(who));
            let mut submit = command(
                &up.profile(),
                &["--output", "json", "flow", "submit", &file, "--flow-id", "1", "--watch"],
            );
            running.push((who, up, submit.stdout(std::process::Stdio::piped()).spawn().expect("it starts")));
        }
        for (who, up, child) in running {
            let out = child.wait_with_output().expect("it ends");
            let document: Value = serde_json::from_str(&stdout(&out, 0)).expect("one document");
            assert_eq!(document["flow"]["id"], 1, "round {round}");
            assert_eq!(document["flow"]["result"]["second.seen"], who, "round {round}: {document}");
            stdout(&up.mycora(&["flow", "delete", "1"]), 0);
        }
    }
    two.stop();
    one.stop();
}

#[test]
fn a_port_in_use_and_a_directory_in_use_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let up = Up::start(&dir.path().join("data"), &[]);
    let port = up.port().to_string();
    let other = dir.path().join("other");
    let mut second =
        command(&up.profile(), &["up", "--data", other.to_str().expect("plain"), "--port", &port]);
    let out = second.output().expect("it starts");
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(3), "{err}");
    assert!(err.contains(&format!("port {port}")) && err.contains("--port"), "{err}");

    let data = dir.path().join("data");
    let mut third = command(&up.profile(), &["up", "--data", data.to_str().expect("plain"), "--port", "1"]);
    let mut third = TestProcess::spawn("a second up", &mut third);
    third.wait(crate::suite::PATIENCE);
    assert!(third.output().contains("in use by another"), "{}", third.output());
    up.stop();
}
