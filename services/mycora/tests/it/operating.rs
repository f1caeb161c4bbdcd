//! Tasks of platform engineers at the command line, with everything real behind it.

use std::path::{Path, PathBuf};
use std::process::Output;

use identity::SigningKey;
use mycora_cli::profile::Profile;
use mycora_cli::up::{self, AllInOneHandle, UpOptions};

use crate::{mycora, stderr, stdout};

/// All services in this process.
struct Machine {
    dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    running: AllInOneHandle,
}

impl Machine {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let launcher = sandbox::SandboxLauncher::at(env!("CARGO_BIN_EXE_mycora").into());
        let options = UpOptions { launcher, ..UpOptions::private(dir.path()) };
        let running = runtime.block_on(up::start(options)).expect("it starts");
        Self { dir, runtime, running }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run_command(&self, arguments: &[&str], code: i32) -> Output {
        run_command_with(self.dir.path(), &self.path("client.toml"), arguments, code)
    }

    /// Runs a command as the admin.
    fn admin(&self, arguments: &[&str], code: i32) -> Output {
        self.run_command(&[&["--cert", "pki/admin.pem", "--key", "pki/admin.key"], arguments].concat(), code)
    }

    fn attempt(&self, arguments: &[&str], code: i32) -> serde_json::Value {
        let output = self.admin(&[&["--output", "json", "attempt"], arguments].concat(), code);
        let mut document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
        document["attempt"].take()
    }

    fn stop(self) {
        self.runtime.block_on(self.running.stop()).expect("it ends");
    }
}

fn run_command_with(dir: &Path, profile: &Path, arguments: &[&str], code: i32) -> Output {
    let output = mycora(dir).env("MYCORA_CONFIG", profile).args(arguments).output().expect("it starts");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {} {}", stdout(&output), stderr(&output));
    output
}

#[test]
fn a_flow_file_names_a_job_that_is_kept() {
    let machine = Machine::start();
    let script = "echo ran=$WHO >> \"$MYCORA_RESULT\"";
    let create = ["job", "create", "--type", "shell", "--script", script, "--env", "WHO=kept"];
    let created = machine.run_command(&[&["--output", "json"], &create[..]].concat(), 0);
    let created: serde_json::Value = serde_json::from_slice(&created.stdout).expect("one document");
    let kept = created["job"]["id"].as_u64().expect("a number");
    let file = |job: u64| {
        let text = format!(
            "name: f\njobs:\n  a: {{ created_job: {job} }}\n  b: {{ created_job: {job}, depends: [a] }}\n"
        );
        std::fs::write(machine.path("f.yaml"), text).expect("written");
    };
    file(kept);
    machine.run_command(&["flow", "validate", "f.yaml"], 0);
    let watched = stdout(&machine.run_command(&["flow", "submit", "f.yaml", "--watch"], 0));
    assert!(watched.contains("b.ran") && watched.contains("kept"), "{watched}");
    let signed = ["flow", "submit", "f.yaml", "--signing-key", "actor-1.ed25519"];
    let refused = stderr(&machine.run_command(&signed, 2));
    assert!(
        refused.contains("f.yaml:3:21: jobs.a.created_job: a stored job is defined at the coordinator"),
        "{refused}"
    );
    file(999);
    let refused = stderr(&machine.run_command(&["flow", "submit", "f.yaml"], 1));
    assert!(refused.contains("job 1:999"), "{refused}");
    machine.stop();
}

#[test]
fn a_machine_runs_single_attempts_and_reports_them() {
    let machine = Machine::start();
    let script = ["--type", "shell", "--script", "echo here; echo a=1 >> \"$MYCORA_RESULT\""];
    let ran = machine.admin(&[&["attempt", "run"], &script[..]].concat(), 0);
    assert!(stdout(&ran).starts_with("here\n") && stdout(&ran).contains("RESULT"), "{}", stdout(&ran));
    assert!(stderr(&ran).contains(": completed after "), "{}", stderr(&ran));
    let id = ["--request-id", "d2719f3e-6f0c-4f5c-9d3b-6b7c2c1f0a55"];
    let ended = machine.attempt(&[&["run"], &script[..], &id[..]].concat(), 0);
    assert_eq!((&ended["state"], &ended["result"]["a"]), (&"ATTEMPT_STATE_FINISHED".into(), &"1".into()));
    let again = machine.attempt(&[&["run"], &script[..], &id[..], &["--detach"]].concat(), 0);
    assert_eq!(again["jobKey"], ended["jobKey"], "one attempt");
    let key = ended["jobKey"].as_str().expect("a key");
    assert_eq!(machine.attempt(&["show", key], 0), ended);
    assert_eq!(machine.attempt(&["wait", key], 0), ended);
    assert_eq!(stdout(&machine.admin(&["attempt", "logs", key], 0)), "here\n");
    assert_eq!(stdout(&machine.admin(&["supervisor", "logs", key, "--offset", "2"], 0)), "re\n");
    let shown = stdout(&machine.admin(&["attempt", "show", key], 0));
    assert!(shown.contains("sent by    an operator") && shown.contains("printed    5 bytes"), "{shown}");

    let failing = ["--type", "shell", "--script", "exit 3"];
    let failed = machine.attempt(&[&["run"], &failing[..]].concat(), 1);
    assert_eq!(failed["exitCode"], 3);
    let long = ["--type", "shell", "--script", "sleep 1000", "--detach"];
    let long = machine.attempt(&[&["run"], &long[..]].concat(), 0);
    let key = long["jobKey"].as_str().expect("a key");
    let waited = machine.admin(&["attempt", "wait", key, "--within", "0"], 1);
    assert!(stderr(&waited).contains("has not ended after 0 s"), "{}", stderr(&waited));
    machine.attempt(&["stop", key, "--grace", "0"], 0);
    assert_eq!(machine.attempt(&["wait", key], 1)["state"], "ATTEMPT_STATE_STOPPED");

    let unknown = key.replace(|letter: char| letter.is_ascii_hexdigit() && !letter.is_ascii_digit(), "0");
    assert!(stderr(&machine.admin(&["attempt", "show", &unknown], 1)).contains("does not exist"));
    let denied = stderr(&machine.run_command(&["attempt", "show", key], 3));
    assert!(denied.contains("`actor/1` may not call") && denied.contains("mycora pki show"), "{denied}");
    machine.admin(&["attempt", "stop", key, "--grace", "3601"], 2);
    machine.stop();
}

#[test]
fn another_key_is_given_and_the_profile_follows() {
    let machine = Machine::start();
    let profile = machine.path("client.toml");
    let text = std::fs::read_to_string(&profile).expect("a profile");
    let lines = text.lines().filter(|line| {
        !["cert", "key", "signing_key"].iter().any(|key| line.starts_with(&format!("{key} =")))
    });
    let rest: String = lines.map(|line| format!("{line}\n")).collect();
    let with_key = |key: &str| format!("# who we are\nsigning_key = \"{key}\" # ours\n{rest}");
    let first = with_key("actor-1.ed25519");
    std::fs::write(&profile, &first).expect("written");
    let shown = |code: i32| machine.run_command(&["actor", "show"], code);
    shown(0);

    let rotate = ["actor", "rotate-key", "1", "--new-key", "next.ed25519"];
    let note = stderr(&machine.run_command(&rotate, 0));
    assert!(note.contains("client.toml names next.ed25519 now"), "{note}");
    assert_eq!(std::fs::read_to_string(&profile).expect("a profile"), with_key("next.ed25519"));
    assert!(!machine.path("next.ed25519.rotation").exists(), "there is nothing left to go on with");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &machine.path("next.ed25519").metadata().expect("there").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    shown(0);
    assert!(stderr(&machine.run_command(&rotate, 2)).contains("never overwritten"));

    // The answer was lost: the key in force is the new one, and the profile names the one before.
    std::fs::write(&profile, &first).expect("written");
    assert!(stderr(&shown(3)).contains("mycora doctor"));
    let key = SigningKey::load(&machine.path("next.ed25519")).expect("a key").verifying_key();
    let begun = serde_json::json!({
        "request_id": "r", "id": 1, "expected_revision": 1, "pubkey": key.to_string(), "overlap_secs": 0,
        "revoke_certificates": false
    });
    std::fs::write(machine.path("next.ed25519.rotation"), begun.to_string()).expect("written");
    machine.run_command(&rotate, 0);
    assert_eq!(std::fs::read_to_string(&profile).expect("a profile"), with_key("next.ed25519"));
    assert!(!machine.path("next.ed25519.rotation").exists());
    shown(0);

    // A key that was not accepted yet is sent again, from the file that is there.
    let third = SigningKey::generate();
    third.write(&machine.path("third.ed25519")).expect("written");
    let (was, key) = (begun["request_id"].clone(), third.verifying_key().to_string());
    let actor = machine.run_command(&["--output", "json", "actor", "show", "1"], 0);
    let actor: serde_json::Value = serde_json::from_slice(&actor.stdout).expect("one document");
    let revision: u64 =
        actor["actor"]["revision"].as_str().and_then(|text| text.parse().ok()).expect("a number");
    let begun = serde_json::json!({
        "request_id": was, "id": 1, "expected_revision": revision, "pubkey": key, "overlap_secs": 60,
        "revoke_certificates": false
    });
    std::fs::write(machine.path("third.ed25519.rotation"), begun.to_string()).expect("written");
    let rotate = ["actor", "rotate-key", "1", "--new-key", "third.ed25519"];
    assert!(stderr(&machine.run_command(&rotate, 2)).contains("its arguments differ from these"));
    machine.run_command(&[&rotate[..], &["--overlap", "60s"]].concat(), 0);
    let written = Profile::load(&profile).expect("a profile");
    assert_eq!(written.signing_key, Some(machine.path("third.ed25519")));
    let refused = ["actor", "rotate-key", "7", "--new-key", "none.ed25519"];
    machine.run_command(&refused, 1);
    assert!(!machine.path("none.ed25519").exists() && !machine.path("none.ed25519.rotation").exists());
    machine.stop();
}
