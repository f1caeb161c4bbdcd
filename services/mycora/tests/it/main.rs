//! The program as it is called, as far as that needs no coordinator.

mod all_in_one;
mod bad_manifests;
mod commands;
mod coordinator;
mod deployed;
mod detached;
mod dist;
mod doctor;
mod messages;
mod moving;
mod objects;
mod operating;
mod pages;
mod places;
mod profiles;
mod rehearsals;
mod saga_service;
mod sagas;
mod served;
mod signing;
mod token;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const GOOD: &str = "name: f\njobs:\n  a: { script_type: shell, script: 'true' }\n";
/// `a` waits for `c`, `c` for `b`, `b` for `a`.
const CYCLE: &str = "name: f\njobs:\n  a: { script_type: shell, script: x, depends: [c] }\n  \
                     b: { script_type: shell, script: x, depends: [a] }\n  \
                     c: { script_type: shell, script: x, depends: [b] }\n";

/// A coordinator that never answered is given up before this has passed.
const SOON: Duration = Duration::from_secs(20);

pub(crate) fn mycora(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mycora"));
    command.env_clear().env("HOME", home).current_dir(home).stdin(Stdio::null());
    command
}

fn run(home: &Path, arguments: &[&str]) -> Output {
    mycora(home).args(arguments).output().expect("the program starts")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a directory");
    std::fs::write(home.path().join("good.yaml"), GOOD).expect("written");
    std::fs::write(home.path().join("cycle.yaml"), CYCLE).expect("written");
    home
}

#[test]
fn exit_codes_are_as_promised() {
    let home = home();
    let table: &[(&[&str], i32, &str)] = &[
        (&["--version"], 0, ""),
        (&["--help"], 0, ""),
        (&["flow", "submit", "--help"], 0, ""),
        (&["completions", "bash"], 0, ""),
        (&["completions", "cmd"], 2, "possible values: bash, elvish, fish, powershell, zsh"),
        (&["token"], 3, "start one with `mycora up`, or name a profile"),
        (&["flow", "validate", "good.yaml"], 0, ""),
        (&["flow", "schema"], 0, ""),
        (&[], 2, "Usage: mycora"),
        (&["flwo"], 2, "similar subcommand"),
        (&["flow", "get", "x"], 2, "a whole number from 1 to 4294967295 is needed"),
        (&["flow", "get", "0"], 2, "there is no 0; numbers begin with 1"),
        (&["flow", "submit", "good.yaml", "--flow-id", "0"], 2, "for '--flow-id <ID>': there is no 0"),
        (&["--context", "0", "flow", "list"], 2, "for '--context <ID>': there is no 0"),
        (&["flow", "list", "--since", "soon"], 2, "write a time as 2026-11-21T08:00:00Z"),
        (&["flow", "validate", "good.yaml", "--env", "X"], 2, "write it as NAME=VALUE"),
        (&["flow", "validate", "good.yaml", "--env", "1X=1"], 2, "good.yaml: --env 1X:"),
        (&["flow", "submit", "good.yaml", "--request-id", "x"], 2, "a UUID is needed"),
        (&["flow", "validate", "none.yaml"], 2, "none.yaml: cannot be read"),
        (
            &["flow", "validate", "cycle.yaml"],
            2,
            "cycle.yaml:3:39: jobs.a.depends: the dependencies form a cycle",
        ),
        (&["flow", "list"], 3, "start one with `mycora up`, or name a profile"),
        (&["flow", "submit", "good.yaml"], 3, "start one with `mycora up`, or name a profile"),
        (
            &["--config", "none.toml", "flow", "list"],
            2,
            "none.toml is not there\nname another profile with --config",
        ),
        (&["--address", "https://127.0.0.1:1", "flow", "list"], 2, "no certificate authority"),
        (&["pki", "change-root"], 2, "there is no root"),
        (&["pki", "root"], 2, "there is no root"),
        (&["pki", "show"], 2, "`mycora pki init` makes one"),
        (&["pki", "issue", "nobody"], 2, "expected service/<name>, actor/<id> or admin"),
    ];
    for (arguments, code, message) in table {
        let output = run(home.path(), arguments);
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {printed}");
        assert!(printed.contains(message), "{arguments:?}: {printed}");
        assert_eq!(stdout(&output).is_empty(), *code != 0, "{arguments:?}: {}", stdout(&output));
    }
}

#[test]
fn a_good_file_is_the_request_in_json() {
    let home = home();
    let output = run(home.path(), &["flow", "validate", "good.yaml", "--output", "json", "--env", "A=1"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(document["name"], "f");
    assert_eq!(document["envVars"]["A"], "1");
    assert_eq!(document["nodes"][0]["job"]["scriptType"], "SCRIPT_TYPE_SHELL");
}

#[test]
fn standard_input_is_a_file_too() {
    let home = home();
    for (text, code, printed) in
        [(GOOD, 0, ""), (CYCLE, 2, "stdin:3:39: "), ("name: [", 2, "stdin:1:7: this is not YAML")]
    {
        let mut child = mycora(home.path())
            .args(["flow", "validate", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut input = child.stdin.take().expect("piped");
        input.write_all(text.as_bytes()).expect("it reads");
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(printed), "{}", stderr(&output));
    }
}

#[test]
fn a_coordinator_that_is_not_there_is_named_with_the_way_out() {
    let home = home();
    assert!(run(home.path(), &["pki", "init", "--dir", "pki"]).status.success());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("https://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let way = ["--address", &address, "--ca", "pki/ca.pem", "--context", "1", "flow"];
    for command in [&["submit", "good.yaml"][..], &["logs", "3", "-f"], &["watch", "3"]] {
        let began = Instant::now();
        let output = run(home.path(), &[&way[..], command].concat());
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{printed}");
        assert!(printed.contains("cannot reach 127.0.0.1:") && printed.contains("mycora up"), "{printed}");
        assert!(began.elapsed() < SOON, "{command:?} took {:?}", began.elapsed());
    }
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().expect("a text").to_owned()
}

#[test]
fn certificates_are_made_issued_and_shown() {
    let home = home();
    let made = run(home.path(), &["pki", "init"]);
    assert!(made.status.success(), "{}", stderr(&made));
    assert!(home.path().join(".local/share/mycora/pki/ca.pem").exists());
    let again = run(home.path(), &["pki", "init"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("exists already"), "{}", stderr(&again));

    let issued = run(home.path(), &["pki", "issue", "actor/7", "--days", "3", "--output", "json"]);
    let document: serde_json::Value = serde_json::from_slice(&issued.stdout).expect("one document");
    assert_eq!(document["identity"], "actor/7");
    let shown = run(
        home.path(),
        &["--output", "json", "pki", "show", document["certificate"].as_str().expect("a path")],
    );
    let document: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("one document");
    assert_eq!(document[0]["identity"], "spiffe://mycora/actor/7");

    let gateway = run(home.path(), &["pki", "issue", "service/mycelium-gateway"]);
    assert!(gateway.status.success(), "{}", stderr(&gateway));
    let changed = run(home.path(), &["pki", "change-root", "--output", "json"]);
    let document: serde_json::Value = serde_json::from_slice(&changed.stdout).expect("one document");
    let path = |name: &str| std::path::PathBuf::from(document[name].as_str().expect("a path"));
    let root = |name| identity::SigningKey::load(&path(name)).expect("a key").verifying_key().to_string();
    assert_eq!((root("old_key"), root("key")), (text(&document["old_root"]), text(&document["root"])));
    let source = mycelium_gateway::SigningSource {
        files: envelope::SigningFiles { key: path("signing_key"), certificate: path("signing_certificate") },
        root_change: None,
    };
    let (sealer, changes) = source.read().expect("a gateway can use them");
    assert_eq!((sealer.root().to_string(), changes.len()), (text(&document["root"]), 1));

    std::fs::remove_file(home.path().join(".local/share/mycora/pki/mycelium-gateway.pem")).expect("issued");
    let all = stdout(&run(home.path(), &["pki", "show"]));
    let names: Vec<_> = all.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names.len(), 3, "{all}");
    assert!(all.contains("spiffe://mycora/admin") && all.contains("authority"), "{all}");
}
