//! `mycora up` when a part of it goes away.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use mycora_cli::up::{self, Banner, UpError, UpOptions};

use crate::{mycora, stderr, stdout};

/// Longer than all tries to start Redis again, and an end without it, may take.
const END_WITHIN: Duration = Duration::from_secs(120);

fn kill_redis(data: &Path) {
    let record = std::fs::read_to_string(data.join("redis.pid")).expect("a record");
    let pid = record.split(' ').next().expect("a process id");
    let killed = Command::new("kill").args(["-KILL", pid]).status();
    assert!(killed.expect("`kill` starts").success());
}

#[test]
fn the_suite_ends_with_the_reason_if_its_redis_cannot_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ended = runtime.block_on(async {
        let launcher = sandbox::SandboxLauncher::at(env!("CARGO_BIN_EXE_mycora").into());
        let options = UpOptions { launcher, ..UpOptions::private(dir.path()) };
        let running = up::start(options).await.expect("it starts");
        // No server reads such data.
        let appended = dir.path().join("redis/appendonlydir");
        for entry in std::fs::read_dir(&appended).expect("its data").map(|entry| entry.expect("an entry")) {
            if entry.file_name().to_string_lossy().ends_with(".manifest") {
                std::fs::write(entry.path(), "nonsense\n").expect("written");
            }
        }
        kill_redis(dir.path());
        tokio::time::timeout(END_WITHIN, running.wait()).await.expect("in time")
    });
    let lost = ended.expect_err("not as asked");
    assert!(matches!(lost, UpError::ChildLost { program: "redis-server", .. }), "{lost}");
    let lost = lost.to_string();
    assert!(
        lost.contains("start again to continue") && lost.contains("Invalid AOF manifest file format"),
        "{lost}"
    );
}

/// Starts one whose data directory lies in a directory of this mode, looks at it, and ends it.
fn with_data_below(mode: u32, look: impl FnOnce(&Path, &Banner)) {
    let parent = tempfile::Builder::new().permissions(Permissions::from_mode(mode)).tempdir();
    let parent = parent.expect("a directory");
    let data = parent.path().join("data");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let launcher = sandbox::SandboxLauncher::at(env!("CARGO_BIN_EXE_mycora").into());
        let options = UpOptions { launcher, ..UpOptions::private(&data) };
        let running = up::start(options).await.expect("it starts");
        look(&data, running.banner());
        running.stop().await.expect("it ends");
    });
}

#[test]
fn scripts_have_users_of_their_own_where_others_may_pass() {
    let without_users =
        |banner: &Banner| banner.missing.iter().any(|missing| missing.starts_with("own-uid: "));
    let is_root = rustix::process::geteuid().is_root();
    with_data_below(0o711, |data, banner| {
        assert_eq!(without_users(banner), !is_root, "{:?}", banner.missing);
        for entry in std::fs::read_dir(data).expect("a directory").map(|entry| entry.expect("an entry")) {
            let open = ["work", "pki"].iter().any(|name| entry.file_name() == *name);
            let mode = entry.metadata().expect("its mode").permissions().mode();
            assert!(open || mode & 0o077 == 0, "{} has mode {mode:o}", entry.path().display());
        }
    });
    with_data_below(0o700, |data, banner| {
        let (printed, parent) = (banner.text(), data.parent().expect("a parent").display());
        assert!(without_users(banner), "{printed}");
        assert!(
            !is_root || printed.contains(&format!("own-uid: other users cannot pass through {parent}; ")),
            "{printed}"
        );
    });
}

#[test]
fn one_disk_for_scripts_and_redis_is_named_with_the_way_out() {
    let way_out = |data: &Path| format!("mount a file system of its own on {}", data.join("work").display());
    with_data_below(0o711, |data, banner| {
        let printed = banner.text();
        assert!(
            printed.contains("disk:      scripts (") && printed.contains("share one file system"),
            "{printed}"
        );
        assert!(printed.contains(&way_out(data)), "{printed}");
        let output = mycora(data).args(["doctor", "--output", "json", "--data"]).arg(data).output();
        let output = output.expect("it starts");
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let findings = document["findings"].as_array().expect("findings");
        let disk = findings.iter().find(|finding| finding["check"] == "disk").expect("it is looked at");
        assert_eq!(disk["level"], "warn", "{disk}");
        assert!(disk["advice"].as_str().is_some_and(|advice| advice.contains(&way_out(data))), "{disk}");
    });
}

#[test]
fn an_actor_may_write_to_itself_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let launcher = sandbox::SandboxLauncher::at(env!("CARGO_BIN_EXE_mycora").into());
    let options = UpOptions { launcher, supervisor: false, ..UpOptions::private(dir.path()) };
    let running = runtime.block_on(up::start(options)).expect("it starts");
    let run_command = |arguments: &[&str], code: i32| {
        let output = mycora(dir.path())
            .env("MYCORA_CONFIG", dir.path().join("client.toml"))
            .args(arguments)
            .output()
            .expect("it starts");
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {} {}",
            stdout(&output),
            stderr(&output)
        );
        output
    };
    let list = |arguments: &[&str]| -> Vec<serde_json::Value> {
        let output = run_command(&[&["--output", "json", "message"], arguments].concat(), 0);
        serde_json::from_slice(&output.stdout).expect("a list")
    };
    assert!(stdout(&run_command(&["actor", "show"], 0)).contains("home context  1\n"));
    // Actors may not register others; the admin profile of the banner may.
    let printed = running.banner().text();
    let arguments_shown =
        printed.lines().find_map(|line| line.strip_prefix("as the admin  mycora ")).expect("a line");
    let arguments_shown: Vec<&str> = arguments_shown.split(' ').collect();
    assert_eq!(arguments_shown[..4], ["actor", "register", "--new-key", "FILE"]);
    let new_key = |name| dir.path().join(name).display().to_string();
    let (refused, taken) = (new_key("refused.ed25519"), new_key("taken.ed25519"));
    run_command(&[&arguments_shown[..3], &[&refused]].concat(), 3);
    run_command(&[&arguments_shown[..3], &[&taken], &arguments_shown[4..]].concat(), 0);
    run_command(&[&["actor", "show", "2"], &arguments_shown[4..]].concat(), 0);
    assert_eq!(arguments_shown[4..], ["--as", "admin"]);
    let send = |more: &[&str], code: i32| -> serde_json::Value {
        let arguments = ["--output", "json", "message", "send", "--to", "1", "--wait"];
        let output = run_command(&[&arguments, more].concat(), code);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("a document")["message"].take()
    };
    let first = send(&["hello"], 0);
    send(&["--signing-key", "actor-1.ed25519", "it is me"], 0);

    let waiting = list(&["receive"]);
    let texts: Vec<_> = waiting.iter().map(|message| message["text"].clone()).collect();
    assert_eq!(texts, ["hello", "it is me"]);
    assert_eq!((&waiting[0]["verified"], &waiting[1]["verified"]), (&serde_json::Value::Null, &true.into()));
    assert_eq!(list(&["receive", "--acknowledge"]), waiting, "handed out until it is acknowledged");
    assert_eq!(stderr(&run_command(&["message", "receive"], 0)), "no message waits in context 1\n");
    let read = waiting[1]["key"].as_str().expect("a key");
    assert!(stdout(&run_command(&["message", "get", read], 0)).contains("status     processed\n"));

    run_command(&["actor", "update", "1", "--no-home-context"], 0);
    let dead = send(&["where to?"], 1);
    let key = dead["key"].as_str().expect("a key");
    assert!(stdout(&run_command(&["message", "dead-letters"], 0)).contains(&format!("{key}  chat  actor 1")));
    run_command(&["actor", "update", "1", "--home-context", "1"], 0);
    run_command(&["message", "resend", key], 0);
    assert!(followed(dir.path()).contains("where to?"));
    run_command(&["message", "delete", first["key"].as_str().expect("a key")], 0);
    runtime.block_on(running.stop()).expect("it ends");
}

/// The first message that a follower receives.
fn followed(dir: &Path) -> String {
    let mut follows = mycora(dir)
        .env("MYCORA_CONFIG", dir.join("client.toml"))
        .args(["message", "receive", "--follow", "--output", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(follows.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    follows.kill().and_then(|()| follows.wait()).expect("it ends");
    line
}
