//! Texts of scripts, labels and flow files on a real terminal: they never steer it.

use std::process::{Command, Output};

use crate::scene::Scene;
use crate::suite::{PATIENCE, flow_file, program, stdout};

/// Sets the window's title, clears the screen (in one byte and in two), and turns the direction of the text.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}";
/// The hostile text as it is shown.
const SHOWN: &str = r"\x1b]0;owned\x07\x9b2J\u{202e}";
/// The hostile text as YAML and JSON write it.
const WRITTEN: &str = r"\u001b]0;owned\u0007\u009b2J\u202e";
/// Runs a command on a terminal of its own, passes on what is shown there, and ends as it does.
const ON_A_TERMINAL: &str =
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";

/// A command on a terminal without colors, and what is shown there.
fn on_a_terminal(scene: &Scene, arguments: &[&str]) -> Output {
    let mut command = Command::new("python3");
    command.args(["-c", ON_A_TERMINAL]).arg(program("mycora")).args(arguments);
    command.env("MYCORA_CONFIG", scene.up.profile()).env("NO_COLOR", "1").env("TERM", "xterm");
    command.stdin(std::process::Stdio::null()).output().expect("python3 starts")
}

/// Returns the terminal output of a command that ends with `code`: nothing of it steers the terminal.
fn shown(scene: &Scene, arguments: &[&str], code: i32) -> String {
    let text = stdout(&on_a_terminal(scene, arguments), code);
    let steers = |c: char| model::printable::is_hidden(c) && !matches!(c, '\n' | '\r' | '\t');
    assert!(!text.contains(steers), "{text:?}");
    text
}

#[test]
fn scripts_do_not_steer_the_terminal() {
    let scene = Scene::new(&[]);
    let script = r"printf '\033]0;owned\007\302\2332J\342\200\256\n'";
    let flow = format!("name: says\njobs:\n  says:\n    script_type: shell\n    script: {script:?}\n");
    let (id, _) = scene.run(&flow);
    let id = id.to_string();
    assert!(shown(&scene, &["flow", "logs", &id], 0).contains(SHOWN));
    assert!(shown(&scene, &["flow", "logs", &id, "says"], 0).contains(SHOWN));
    // A pipe gets the raw bytes, and so does a terminal with `--raw`.
    let printed = stdout(&scene.up.mycora(&["flow", "logs", &id, "says"]), 0);
    assert_eq!(printed, format!("{HOSTILE}\n"));
    let raw = stdout(&on_a_terminal(&scene, &["--raw", "flow", "logs", &id, "says"]), 0);
    assert!(raw.contains(HOSTILE), "{raw:?}");

    let path = scene.path().join("says.sh");
    std::fs::write(&path, script).expect("written");
    let run = shown(&scene, &["--quiet", "job", "run", path.to_str().expect("a plain path")], 0);
    assert!(run.contains(SHOWN), "{run}");
    scene.close();
}

#[test]
fn labels_and_flow_files_do_not_steer_the_terminal() {
    let mut scene = Scene::new(&[]);
    // A flow file that is refused here.
    let wrong = flow_file(scene.path(), &format!("name: a\n\"{WRITTEN}\": 1\njobs: {{}}\n"));
    let printed = shown(&scene, &["flow", "validate", &wrong], 2);
    assert!(printed.contains(r"\x1b"), "{printed}");
    // And one that the coordinator refuses.
    let label = format!("zone={HOSTILE}");
    let refused = shown(&scene, &["runner", "register", "grpc://127.0.0.1:1", "--label", &label], 2);
    assert!(refused.contains("labels[zone]") && refused.contains(r"\x1b"), "{refused}");
    let name = format!("a{HOSTILE}");
    let refused = shown(&scene, &["flow", "signal", "99", &name], 2);
    assert!(refused.contains("control character"), "{refused}");
    // One that was taken before such labels were refused.
    let list = scene.json(&["runner", "list"], 0);
    let runner = list["runners"][0]["id"].as_u64().expect("the runner of this machine").to_string();
    let labels = format!("{{\"zone\":\"{WRITTEN}\"}}");
    scene.up.redis(1, &["HSET", &format!("runner:{runner}"), "labels", &labels]);
    scene.up.process.interrupt();
    assert!(scene.up.process.wait(PATIENCE).success());
    scene.up.restart();
    let show = shown(&scene, &["runner", "show", &runner], 0);
    assert!(show.contains(SHOWN), "{show}");
    let json = shown(&scene, &["--output", "json", "runner", "show", &runner], 0);
    assert!(json.contains(WRITTEN), "{json}");
    scene.close();
}
