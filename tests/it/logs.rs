//! Logs of scripts, read back whole: also the part that the coordinator does not keep.

use std::path::PathBuf;

use model::Timestamp;
use serde_json::Value;
use testkit::wait_until_blocking;

use crate::operators::{Operator, logs};
use crate::scene::Scene;
use crate::suite::{PATIENCE, stderr, stdout};

/// Numbered, of 15 bytes each: a bit more than a mebibyte.
const LINES: usize = 75_000;
/// Bytes of a log that the coordinator keeps.
const TAIL: usize = 64 * 1024;
/// Bytes that one piece may hold.
const PIECE: u64 = 128 * 1024;

/// Prints the lines, and does `then`.
fn flow(then: &str) -> String {
    format!(
        "name: long\njobs:\n  long:\n    script_type: shell\n    script: |\n      \
         seq -f 'line %09.0f' {LINES}\n      {then}\n"
    )
}

fn printed() -> String {
    (1..=LINES).map(|i| format!("line {i:09}\n")).collect()
}

/// Where each piece begins, and its gap if it is one. They follow each other up to the end.
fn pieces(scene: &Scene, arguments: &[&str], from: u64) -> Vec<(u64, Value)> {
    let document = scene.json(&[&["flow", "logs"], arguments].concat(), 0);
    let mut pieces = Vec::new();
    let mut end = from;
    for piece in document.as_array().expect("a list") {
        let number = |value: &Value| value.as_str().map_or(0, |text| text.parse::<u64>().expect("a number"));
        assert_eq!(number(&piece["offset"]), end, "each follows the one before");
        let data = piece["data"].as_str().unwrap_or_default();
        let length = (data.len() / 4 * 3 - data.bytes().filter(|byte| *byte == b'=').count()) as u64;
        assert!(length <= PIECE, "{length}");
        pieces.push((end, piece["gap"].clone()));
        end = if piece["gap"].is_null() { end + length } else { number(&piece["gap"]["end"]) };
    }
    assert_eq!(end, printed().len() as u64);
    pieces
}

/// The log of the only attempt that printed, by its key.
fn only_log(scene: &Scene) -> (String, PathBuf) {
    let mut logs = logs(&scene.path().join("data"));
    assert_eq!(logs.len(), 1, "{logs:?}");
    logs.remove(0)
}

/// The tail as people are shown it: from the first whole line on.
fn whole_lines(tail: &str) -> &str {
    &tail[tail.find('\n').expect("lines") + 1..]
}

#[test]
fn a_log_is_read_whole_and_from_any_offset_and_gaps_are_reported() {
    let scene = Scene::new(&[]);
    let (id, ended) = scene.run(&flow("true"));
    assert_eq!(ended.status, "FINISHED");
    let (id, all) = (id.to_string(), printed());
    let text = |arguments: &[&str]| {
        let out = scene.up.mycora(&[&["flow", "logs", id.as_str()], arguments].concat());
        (stdout(&out, 0), stderr(&out, 0))
    };
    assert!(text(&["long"]) == (all.clone(), String::new()), "whole");
    assert!(text(&["long", "--follow"]).0 == all, "also for those who follow");
    let prefixed: String = all.lines().map(|line| format!("long | {line}\n")).collect();
    assert!(text(&[]).0 == prefixed);
    let from = 500_003;
    let rest = text(&["long", "--attempt", "1", "--offset", &from.to_string()]);
    assert!(rest == (all[from..].to_owned(), String::new()), "from before the tail");
    assert!(pieces(&scene, &[&id], 0).iter().all(|(_, gap)| gap.is_null()));
    let from_there = [id.as_str(), "long", "--attempt", "1", "--offset", "1000001"];
    assert!(pieces(&scene, &from_there, 1_000_001).len() > 1, "over the begin of the tail");

    // Of all of it is known when it was printed, also of what the coordinator does not keep.
    let stamped = text(&["long", "--timestamps"]).0;
    assert!(stamped.lines().map(|line| line.split_at(25).1).eq(all.lines()), "the time is all that is added");
    assert!(stamped.lines().all(|line| Timestamp::from_rfc3339(&line[..24]).is_some()), "{}", &stamped[..80]);

    // Only the tail, and that it is only that.
    let begin = all.len() - TAIL;
    let (shown, note) = text(&["long", "--tail"]);
    assert_eq!(shown, whole_lines(&all[begin..]));
    let left_out = |why: &str| format!("long: bytes 0 to {begin} of attempt 1 are not shown: {why}\n");
    assert_eq!(note, left_out("only the tail was asked for"));

    // The key by which operators read it.
    let (key, file) = only_log(&scene);
    assert_eq!(scene.node(id.parse().expect("a number"), "long")["jobKey"], key.as_str());
    assert_eq!(scene.json(&["flow", "get", &id], 0)["nodes"][0]["jobKey"], key.as_str());
    assert_eq!(scene.json(&["flow", "explain", &id, "long"], 0)["node"]["jobKey"], key.as_str());
    for command in [&["flow", "nodes", &id, "--keys"][..], &["flow", "explain", &id, "long"]] {
        let shown = stdout(&scene.up.mycora(command), 0);
        assert!(shown.contains(&key), "{shown}");
    }
    let operator = Operator::new(&scene.up, &scene.path().join("data"));
    assert!(operator.supervisor(&["logs", &key], 0) == all);

    // Its time is over: the rest is sent all the same.
    std::fs::remove_file(file).expect("removed");
    let (shown, note) = text(&["long"]);
    assert_eq!(shown, whole_lines(&all[begin..]));
    assert_eq!(note, left_out(&format!("the log of attempt {key} is not kept any more")));
    let pieces_of_log = pieces(&scene, &[&id], 0);
    assert_eq!(
        (pieces_of_log[0].1["reason"].as_str(), pieces_of_log.len()),
        (Some("LOG_GAP_REASON_NOT_KEPT"), 2)
    );
    assert_eq!(pieces_of_log[1], (begin as u64, Value::Null));
    scene.close();
}

#[test]
fn a_log_is_read_while_it_grows_and_its_machine_may_be_away() {
    let (mut machine, scene) = Scene::with_a_machine_elsewhere();
    let id = scene.submit(&flow("sleep 1000"));
    scene.wait_for(id, "long", "RUNNING");
    let (id, all) = (id.to_string(), printed());
    let read = || stdout(&scene.up.mycora(&["flow", "logs", &id, "long"]), 0);
    let whole = || Some(read()).filter(|text| text.len() == all.len());
    assert!(wait_until_blocking(whole, PATIENCE, "all of it was printed") == all);

    machine.up.process.kill9();
    let begin = all.len() - TAIL;
    let pieces_of_log = pieces(&scene, &[&id], 0);
    assert_eq!(
        (pieces_of_log[0].1["reason"].as_str(), pieces_of_log.len()),
        (Some("LOG_GAP_REASON_UNREACHABLE"), 2)
    );
    let out = scene.up.mycora(&["flow", "logs", &id, "long"]);
    assert_eq!(stdout(&out, 0), whole_lines(&all[begin..]));
    let note = stderr(&out, 0);
    assert!(note.contains("the supervisor at grpc://127.0.0.1") && note.contains("be reached"), "{note}");

    // It comes back, and sends everything. What was lost with it runs again there before long as an attempt of its own,
    // and may have printed by then.
    machine.up.restart();
    let first = || stdout(&scene.up.mycora(&["flow", "logs", &id, "long", "--attempt", "1"]), 0);
    let whole_again = || Some(first()).filter(|text| text.len() == all.len());
    assert!(wait_until_blocking(whole_again, PATIENCE, "the machine is back") == all);
    scene.close();
    machine.close();
}

/// Two jobs, with a signal between them.
const EARLY_AND_LATE: &str = "name: twice
jobs:
  early: { script_type: shell, script: 'echo one; echo two >&2' }
  late: { script_type: shell, depends: [early], prerequisites: ['signal:go'], script: 'echo three' }
";

#[test]
fn printed_lines_are_shown_with_their_time_and_since_a_time() {
    let scene = Scene::new(&[]);
    let began = Timestamp::now();
    let id = scene.submit(EARLY_AND_LATE);
    scene.wait_for(id, "early", "COMPLETED");
    let between = Timestamp::now();
    let id_text = id.to_string();
    let text = |arguments: &[&str]| {
        let out = scene.up.mycora(&[&["flow", "logs", id_text.as_str()], arguments].concat());
        assert_eq!(stderr(&out, 0), "");
        stdout(&out, 0)
    };
    stdout(&scene.up.mycora(&["flow", "signal", &id_text, "go"]), 0);
    assert_eq!(scene.end(id).status, "FINISHED");
    let ended = Timestamp::now();
    let since = between.rfc3339();

    let times: Vec<(Timestamp, String)> = text(&["--timestamps"])
        .lines()
        .map(|line| {
            let (time, line_text) = line.split_once(' ').expect("a time");
            (Timestamp::from_rfc3339(time).expect("RFC 3339"), line_text.to_owned())
        })
        .collect();
    let texts: Vec<&str> = times.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["early | one", "early | two", "late | three"]);
    assert!(began <= times[0].0 && times[1].0 <= between, "{times:?} between {began} and {between}");
    assert!(between <= times[2].0 && times[2].0 <= ended, "{times:?} between {between} and {ended}");

    assert_eq!(text(&["--since", &since]), "late | three\n");
    assert_eq!(text(&["--since", &since, "--follow"]), "late | three\n");
    assert_eq!(text(&["--since", "1d"]), "early | one\nearly | two\nlate | three\n");
    assert_eq!(text(&["early", "--since", &since]), "");
    let after = (ended + std::time::Duration::from_secs(3600)).rfc3339();
    assert_eq!(text(&["--since", &after]), "");
    let pieces = scene.json(&["flow", "logs", &id_text, "late", "--since", &since], 0);
    let time = pieces[0]["times"][0]["time"].as_str().and_then(Timestamp::from_rfc3339);
    assert_eq!(time, Some(times[2].0), "{pieces}");
    scene.close();
}
