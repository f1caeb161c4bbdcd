//! A program that knows nothing but Redis: it pushes jobs, and finds what became of them there.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testkit::wait_until_blocking;

use crate::scene::Scene;
use crate::suite::{PATIENCE, Up};

/// The hash of a key in the context.
fn hash(up: &Up, key: &str) -> BTreeMap<String, String> {
    let fields: BTreeMap<_, _> =
        serde_json::from_str(&up.redis(1, &["--json", "HGETALL", key])).expect("a hash");
    fields
}

/// Waits until the message has ended, and returns it with the answer to its sender in `msg_in`.
fn ended(up: &Up, key: &str) -> (BTreeMap<String, String>, Value) {
    let status = || {
        let message = hash(up, key);
        let status = message.get("status").map(String::as_str);
        matches!(status, Some("processed" | "error")).then_some(message)
    };
    let message = wait_until_blocking(status, PATIENCE, format!("{key} has ended"));
    let answer = up.redis(1, &["RPOP", "msg_in"]);
    let answer = hash(up, answer.trim());
    assert_eq!((&*answer["topic"], &*answer["to"]), (key, "1"));
    (message, serde_json::from_str(&answer["message"]).expect("JSON"))
}

/// A suite whose context 1 takes what programs push.
fn open_scene() -> Scene {
    let scene = Scene::new(&[]);
    scene.json(&["context", "update", "1", "--set", "raw-publish=true"], 0);
    scene
}

#[test]
fn the_first_context_takes_nothing_that_was_pushed() {
    let scene = Scene::new(&[]);
    let up = &scene.up;
    let shown = scene.json(&["context", "show", "1"], 0);
    assert_eq!(shown["context"]["settings"].get("rawPublish"), None, "{shown}");
    let job = json!({"id": 1, "script_type": "shell", "script": "true"}).to_string();
    up.redis(1, &["HSET", "message:1:101", "job", &job]);
    up.redis(1, &["LPUSH", "msg_out", "message:1:101"]);
    // A message of ours makes a router look at the list.
    let (_, ours) = scene.run("name: ours\njobs:\n  one: { script_type: shell, script: 'true' }\n");
    assert_eq!(ours.status, "FINISHED");
    let refused = || Some(hash(up, "message:1:101")).filter(|message| message.contains_key("error"));
    let message = wait_until_blocking(refused, PATIENCE, "the pushed message is refused");
    assert_eq!(message["status"], "error");
    assert!(message["error"].contains("raw_publish is off in this context"), "{message:?}");
    let flows = scene.json(&["flow", "list"], 0);
    assert_eq!(flows["flows"].as_array().map(Vec::len), Some(1), "it became no flow: {flows}");
    scene.close();
}

#[test]
fn jobs_that_were_pushed_run_and_report_how_they_ended() {
    let scene = open_scene();
    let up = &scene.up;
    let jobs = json!([
        {"id": 2001, "caller_id": 1, "script_type": "python", "script": "import os; print('answer=42', file=open(os.environ['MYCORA_RESULT'], 'a'))",
         "timeout": 60, "status": "dispatched", "result": {}},
        {"id": 2002, "script_type": "shell", "script": "true", "dependends": [2001]},
    ])
    .to_string();
    let fields = ["id", "101", "caller_id", "1", "message_type", "job", "timeout_ack", "60", "job", &jobs];
    up.redis(1, &[&["HSET", "message:1:101"][..], &fields].concat());
    up.redis(1, &["LPUSH", "msg_out", "message:1:101"]);
    let (message, answer) = ended(up, "message:1:101");
    assert_eq!((&*message["status"], &*message["error"]), ("processed", ""), "{message:?}");
    assert_eq!((&answer["message"], &answer["status"]), (&json!("message:1:101"), &json!("finished")));
    assert_eq!(answer["flow_id"].to_string(), message["flow_id"]);
    let first = answer["jobs"]["2001"]["job"].as_str().expect("a job");
    let job = hash(up, first);
    assert_eq!((&*job["status"], &*job["script_type"]), ("finished", "python"));
    assert_eq!(
        (&answer["jobs"]["2001"]["result"], &*job["result"]),
        (&json!({"answer": "42"}), r#"{"answer":"42"}"#)
    );
    assert_eq!(answer["jobs"]["2002"]["status"], "finished");

    // A failure is reported, and an invalid graph is refused by name.
    let failing = json!({"id": 1, "script_type": "shell", "script": "exit 3"}).to_string();
    up.redis(1, &["HSET", "message:1:102", "job", &failing]);
    let circle = json!([
        {"id": 1, "script_type": "shell", "script": "true", "depends": [2]},
        {"id": 2, "script_type": "shell", "script": "true", "depends": [1]},
    ]);
    up.redis(1, &["HSET", "message:1:103", "jobs", &circle.to_string()]);
    up.redis(1, &["LPUSH", "msg_out", "message:1:102", "message:1:103"]);
    let refused = || {
        let message = hash(up, "message:1:103");
        (message.get("status").map(String::as_str) == Some("error")).then_some(message)
    };
    let refused = wait_until_blocking(refused, PATIENCE, "the circle is refused");
    assert!(refused["error"].contains("flow.nodes"), "{refused:?}");
    let dead = up.redis(1, &["ZRANGE", "dead_letters", "0", "-1"]);
    assert_eq!(dead.trim(), "message:1:103");
    let (failed, answer) = ended(up, "message:1:102");
    assert_eq!((&*failed["status"], answer["status"].as_str()), ("error", Some("error")));
    scene.close();
}

#[test]
fn a_pushed_message_is_acknowledged_before_it_is_processed() {
    let scene = open_scene();
    let up = &scene.up;
    let gate = scene.path().join("gate");
    let script = format!(
        "while [ ! -e '{}' ]; do sleep 0.05; done; echo gone=on >> \"$MYCORA_RESULT\"",
        gate.display()
    );
    let job = json!({"id": 1, "script_type": "shell", "script": script}).to_string();
    up.redis(1, &["HSET", "message:1:7", "job", &job]);
    up.redis(1, &["LPUSH", "msg_out", "message:1:7"]);
    let acknowledged = || {
        let message = hash(up, "message:1:7");
        (message.get("status").map(String::as_str) == Some("acknowledged")).then_some(message)
    };
    let message = wait_until_blocking(acknowledged, PATIENCE, "its flow is made");
    assert!(message["flow_id"].parse::<u32>().is_ok_and(|flow| flow > 0), "{message:?}");
    std::fs::write(&gate, "").expect("a file");
    let (message, answer) = ended(up, "message:1:7");
    assert_eq!(&*message["status"], "processed");
    assert_eq!(answer["jobs"]["1"]["result"], json!({"gone": "on"}));
    scene.close();
}
