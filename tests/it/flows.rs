//! Flows through a whole suite in one process.

use serde_json::Value;
use testkit::{Witness, wait_until_blocking};

use crate::suite::{PATIENCE, Up, flow_file, processes_in, stderr, stdout};

/// A root, twelve nodes after it, and a join that adds up what they gave.
pub(crate) fn fan_out() -> String {
    let mut text = String::from("name: fan-out\njobs:\n  root: { script_type: shell, script: \"true\" }\n");
    for i in 1..=12 {
        text.push_str(&format!(
            "  n{i}: {{ script_type: shell, depends: [root], script: 'echo value={i} >> \"$MYCORA_RESULT\"' }}\n"
        ));
    }
    let names: Vec<String> = (1..=12).map(|i| format!("n{i}")).collect();
    text.push_str(&format!(
        "  join:\n    script_type: python\n    depends: [{}]\n    script: |\n      import mycora\n      mycora.result(total=sum(node['value'] for node in mycora.inputs().values()))\n",
        names.join(", ")
    ));
    text
}

#[test]
fn a_fan_out_of_twelve_and_a_join() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let up = Up::start(&data, &[]);
    let file = flow_file(dir.path(), &fan_out());
    let out = up.mycora(&["--output", "json", "flow", "submit", &file, "--watch"]);
    let document: Value = serde_json::from_str(&stdout(&out, 0)).expect("one JSON document and nothing else");
    assert_eq!(document["flow"]["status"], "FLOW_STATUS_FINISHED");
    assert_eq!(document["flow"]["result"]["join.total"], "78");
    assert_eq!(document["nodes"].as_array().map(Vec::len), Some(14));

    let id = document["flow"]["id"].as_u64().expect("an id");
    let fields = up.redis(1, &["HKEYS", &format!("flow:{id}")]);
    for field in
        "id uid name caller_id context_id jobs env_vars result fail_fast deadline cancel_requested_time \
                  cancel_timeout created_at updated_at status generation revision owner epoch"
            .split_whitespace()
    {
        assert!(fields.lines().any(|line| line == field), "flow:{id} has no field `{field}`: {fields}");
    }
    let nodes = up.redis(1, &["HVALS", &format!("flow:{id}:nodes")]);
    let node: Value = serde_json::from_str(nodes.lines().next().expect("a node")).expect("JSON");
    for field in [
        "job_id",
        "name",
        "depends",
        "run_if",
        "policy",
        "attempt",
        "tries",
        "generation",
        "state",
        "message_key",
    ] {
        assert!(node.get(field).is_some(), "a node has no `{field}`: {node}");
    }
    assert_eq!(nodes.lines().count(), 14);

    up.stop();
    assert_eq!(processes_in(&data), Vec::<String>::new(), "left running");
}

#[test]
fn what_goes_wrong_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let up = Up::start(&dir.path().join("data"), &[]);
    let job = "script_type: shell, script: \"true\"";
    let invalid = [
        (
            format!(
                "name: x\njobs:\n  a: {{ {job}, depends: [c] }}\n  b: {{ {job}, depends: [a] }}\n  c: {{ {job}, depends: [b] }}\n"
            ),
            "a -> ",
        ),
        (format!("name: x\njobs:\n  a: {{ {job}, depends: [nowhere] }}\n"), "nowhere"),
        ("name: x\njobs:\n  a: [\n".to_owned(), "flow.yaml:"),
        (format!("name: x\njobs:\n  a: {{ {job}, dependz: [a] }}\n"), "dependz"),
        ("name: x\njobs:\n  a: { script_type: cobol, script: x }\n".to_owned(), "cobol"),
    ];
    for (text, named) in &invalid {
        let file = flow_file(dir.path(), text);
        let err = stderr(&up.mycora(&["flow", "submit", &file, "--watch"]), 2);
        assert!(err.contains(named), "{named} is not named:\n{err}");
        let place = err.split("flow.yaml:").nth(1).unwrap_or_default();
        assert!(place.starts_with(|c: char| c.is_ascii_digit()), "no line is named:\n{err}");
    }

    let file = flow_file(dir.path(), "name: x\njobs:\n  bad: { script_type: shell, script: \"exit 3\" }\n");
    let out = up.mycora(&["--output", "json", "flow", "submit", &file, "--watch"]);
    let document: Value = serde_json::from_str(&stdout(&out, 1)).expect("one document");
    assert_eq!(document["flow"]["status"], "FLOW_STATUS_ERROR");
    assert_eq!(document["nodes"][0]["exitCode"], 3);
    assert_eq!(document["nodes"][0]["reason"]["code"], "EXIT_CODE");

    let witness = Witness::new(dir.path());
    let script = format!("echo $$ > {}.pid; sleep 600 & wait", witness.path().display());
    let file = flow_file(
        dir.path(),
        &format!("name: x\njobs:\n  slow: {{ script_type: shell, timeout: 1, script: '{script}' }}\n"),
    );
    let out = up.mycora(&["--output", "json", "flow", "submit", &file, "--watch"]);
    let document: Value = serde_json::from_str(&stdout(&out, 1)).expect("one document");
    assert_eq!(document["nodes"][0]["reason"]["code"], "TIMEOUT");
    let pid = std::fs::read_to_string(format!("{}.pid", witness.path().display())).expect("the script began");
    let stat = format!("/proc/{}", pid.trim());
    assert!(!std::path::Path::new(&stat).exists(), "the script still runs");
    up.stop();
}

#[test]
fn a_job_of_a_type_that_no_runner_offers_waits_with_its_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let up = Up::start(&dir.path().join("data"), &[]);
    let file =
        flow_file(dir.path(), "name: waits\njobs:\n  only: { script_type: v, script: \"fn main() {}\" }\n");
    let mut watching = testkit::TestProcess::spawn(
        "mycora flow submit",
        &mut up.command(&["flow", "submit", &file, "--watch"]),
    );
    watching.wait_for_line("no live runner of context 1 offers v", PATIENCE);
    watching.interrupt();
    assert_eq!(watching.wait(PATIENCE).code(), Some(130), "{}", watching.output());
    assert!(
        watching.output().contains("flow watch 1"),
        "it does not say how to go on:\n{}",
        watching.output()
    );
    let flow = |code| -> Value {
        serde_json::from_str(&stdout(&up.mycora(&["--output", "json", "flow", "get", "1"]), code))
            .expect("one document")
    };
    assert_eq!(flow(0)["flow"]["status"], "FLOW_STATUS_STARTED");
    stdout(&up.mycora(&["flow", "cancel", "1"]), 0);
    wait_until_blocking(
        || (flow(0)["flow"]["status"] == "FLOW_STATUS_CANCELLED").then_some(()),
        PATIENCE,
        "the flow is cancelled",
    );
    up.stop();
}

#[test]
fn files_outputs_results_and_logs() {
    let dir = tempfile::tempdir().expect("a directory");
    let up = Up::start(&dir.path().join("data"), &[]);
    std::fs::write(dir.path().join("words.txt"), "one two\nthree\n").expect("a file");
    let file = flow_file(
        dir.path(),
        r#"
name: words
jobs:
  split:
    script_type: shell
    files: { words.txt: words.txt }
    outputs: [part.txt]
    script: |
      head -n 1 words.txt > part.txt
      echo "split has run"
  count:
    script_type: python
    depends: [split]
    script: |
      import mycora
      mycora.result(total=len(open("part.txt").read().split()))
  report:
    script_type: rhai
    depends: [count]
    env: { TOTAL: "${{ results.count.total }}" }
    script: |
      print("total is " + env.TOTAL);
      result("twice", inputs.count.total * 2);
"#,
    );
    let out = up.mycora(&["--output", "json", "flow", "submit", &file, "--watch"]);
    let document: Value = serde_json::from_str(&stdout(&out, 0)).expect("one document");
    assert_eq!(document["flow"]["result"]["report.twice"], "4");
    let logs = stdout(&up.mycora(&["flow", "logs", "1", "-f"]), 0);
    assert!(logs.contains("split has run") && logs.contains("total is 2"), "{logs}");
    up.stop();
}

/// `count` nodes side by side that each give so many bytes, and one after them.
fn heavy(count: usize, bytes: usize) -> String {
    let mut text = String::from("name: heavy\njobs:\n");
    let names: Vec<String> = (0..count).map(|i| format!("n{i}")).collect();
    for name in &names {
        text.push_str(&format!(
            "  {name}: {{ script_type: shell, script: 'echo \"big=$(head -c {bytes} /dev/zero | tr \"\\0\" x)\" >> \"$MYCORA_RESULT\"' }}\n"
        ));
    }
    text.push_str(&format!(
        "  join: {{ script_type: shell, depends: [{}], script: 'echo \"bytes=$(wc -c < \"$MYCORA_INPUTS\")\" >> \"$MYCORA_RESULT\"' }}\n",
        names.join(", ")
    ));
    text
}

#[test]
fn large_results_do_not_hold_up_other_flows() {
    let dir = tempfile::tempdir().expect("a directory");
    let up = Up::start(&dir.path().join("data"), &[]);
    let submit = |text: &str, code: i32| -> Value {
        let file = flow_file(dir.path(), text);
        let out = up.mycora(&["--output", "json", "flow", "submit", &file, "--watch"]);
        serde_json::from_str(&stdout(&out, code)).expect("one document")
    };
    // Together more than one commit may hold; what the join is given still fits.
    let document = submit(&heavy(14, 200_000), 0);
    let bytes: usize =
        document["flow"]["result"]["join.bytes"].as_str().expect("a size").trim().parse().expect("a number");
    assert!(bytes > 14 * 200_000, "{bytes}");
    let document = submit(&heavy(24, 200_000), 1);
    let join = document["nodes"].as_array().expect("nodes").last().expect("the join");
    assert_eq!(join["reason"]["code"], "INPUTS_TOO_LARGE", "{join}");
    // Others go on.
    submit("name: small\njobs:\n  only: { script_type: shell, script: \"true\" }\n", 0);
    up.stop();
}

/// Submits a flow that guesses its own number, which is not known before the flow is stored.
#[test]
fn a_flow_that_waits_for_itself_fails_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let up = Up::start(&dir.path().join("data"), &[]);
    let submit = |text: &str, code| {
        let file = flow_file(dir.path(), text);
        stdout(&up.mycora(&["--output", "json", "flow", "submit", &file, "--watch"]), code)
    };
    // From the second one on flows may be stored with their first steps.
    for _ in 0..2 {
        submit("name: plain\njobs:\n  only: { script_type: rhai, script: '1' }\n", 0);
    }
    let waits = "name: waits\njobs:\n  only: { script_type: rhai, script: '1', prerequisites: ['flow:3'] }\n";
    let document: Value = serde_json::from_str(&submit(waits, 1)).expect("one document");
    assert_eq!(document["flow"]["id"], 3, "{document}");
    assert_eq!(document["nodes"][0]["reason"]["code"], "PREREQUISITE_IMPOSSIBLE", "{document}");
}
