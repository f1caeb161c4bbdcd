//! A supervisor that knows nothing but JSON-RPC, as the documents have it.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use stand_in::Program;
use testkit::{TestProcess, wait_until_blocking};

use crate::sites::Sites;
use crate::suite::{PATIENCE, flow_file, program, stdout};

/// The example of `specs/protocols.md`, as it stands there.
fn example(dir: &Path) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../specs/protocols.md");
    let page = std::fs::read_to_string(page).expect("a page");
    let (_, section) = page.split_once("## Plain supervisors").expect("its section");
    let (_, code) = section.split_once("```python\n").expect("an example");
    let (code, _) = code.split_once("```").expect("its end");
    let path = dir.join("supervisor.py");
    std::fs::write(&path, code).expect("written");
    path.to_str().expect("a plain path").to_owned()
}

/// The key of a daemon's node.
fn key_of(daemon: &Program, python: &str) -> String {
    let ask = "import json, sys, urllib.request as u\n\
               body = json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': 'getInfo', 'params': []}).encode()\n\
               answer = u.urlopen(u.Request(sys.argv[1], body, {'content-type': 'application/json'}))\n\
               print(json.load(answer)['result']['nodePubkey'])";
    let output =
        Command::new(python).args(["-c", ask, &daemon.url("http")]).output().expect("python3 starts");
    stdout(&output, 0).trim().to_owned()
}

#[test]
fn the_example_of_the_documents_runs_jobs_over_the_bus() {
    let dir = tempfile::tempdir().expect("a directory");
    let sites = Sites::start(&dir.path().join("sites"));
    let binary = Program::real().unwrap_or_else(|| program("mycelium-stand-in"));
    let home = tempfile::tempdir().expect("a directory");
    let daemon = Program::start(&binary, home.path(), &[sites.daemon_port("a")]);
    let address = format!("mycelium:{}", key_of(&daemon, "python3"));
    let register = ["runner", "register", &address, "--plain", "--script-type", "shell", "--group", "plain"];
    stdout(&sites.mycora("a", &register), 0);
    let supervisor = [example(home.path()), daemon.url("http")];
    let mut supervisor = TestProcess::spawn("a plain supervisor", Command::new("python3").args(supervisor));

    // It knows no `supervisor.info`, and counts as alive with the settings of its record.
    let live = || {
        let runners = sites.json("a", &["runner", "list"]);
        let runners = runners["runners"].as_array().cloned().unwrap_or_default();
        let is_live = |runner: &&Value| {
            runner["runner"]["address"] == address.as_str() || runner["address"] == address.as_str()
        };
        runners.iter().find(is_live).filter(|runner| runner["live"] == json!(true)).map(|_| ())
    };
    wait_until_blocking(live, PATIENCE, "the plain supervisor is alive");
    let ran = dir.path().join("ran");
    let flow = format!(
        "name: plain\njobs:\n  one:\n    script_type: shell\n    target: {{ group: plain }}\n    env: {{ WHO: me }}\n    script: |\n      \
         echo ran >> '{}'\n      echo \"who=$WHO\" >> \"$MYCORA_RESULT\"\n      echo printed\n",
        ran.display()
    );
    let file = flow_file(dir.path(), &flow);
    let document = sites.json("a", &["flow", "submit", &file, "--watch"]);
    assert_eq!(document["flow"]["status"], "FLOW_STATUS_FINISHED", "{document}");
    assert_eq!(document["flow"]["result"]["one.who"], "me", "{document}");
    assert_eq!(std::fs::read_to_string(&ran).expect("it ran"), "ran\n", "once");
    let logs = || {
        let logs = stdout(&sites.mycora("a", &["flow", "logs", "1"]), 0);
        logs.contains("printed").then_some(())
    };
    wait_until_blocking(logs, PATIENCE, "its output is kept");
    supervisor.kill9();
}
