//! Output of flows for people: the files that jobs made, failures, and lines in the log.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::scene::Scene;
use crate::suite::{PATIENCE, flow_file, stderr, stdout};

const FILES: &str = "\
name: files
jobs:
  one: { script_type: shell, outputs: [a.txt, deep/b.bin], script: 'mkdir deep; echo one > a.txt; head -c 700000 /dev/zero > deep/b.bin' }
  two: { script_type: shell, outputs: [a.txt], script: 'echo two > a.txt' }
";

fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Changes the stored node of this name as a hostile machine might have it stored.
fn rewrite(scene: &Scene, id: u64, name: &str, change: impl FnOnce(&mut Value)) {
    let job = scene.node(id, name)["jobId"].to_string();
    let key = format!("flow:{id}:nodes");
    let mut node: Value =
        serde_json::from_str(scene.up.redis(1, &["HGET", &key, &job]).trim()).expect("JSON");
    change(&mut node);
    scene.up.redis(1, &["HSET", &key, &job, &node.to_string()]);
}

#[test]
fn files_are_fetched_whole_and_nowhere_else() {
    let scene = Scene::new(&[]);
    let (id, ended) = scene.run(FILES);
    assert_eq!(ended.status, "FINISHED", "{:?}", ended.states());
    let number = id.to_string();
    let to = scene.path().join("results");
    let dir = to.to_str().expect("a plain path");
    let listed = stdout(&scene.up.mycora(&["flow", "outputs", &number]), 0);
    assert!(listed.starts_with("JOB") && listed.contains("deep/b.bin"), "{listed}");
    assert!(!to.exists(), "listing writes nothing");

    stdout(&scene.up.mycora(&["flow", "outputs", &number, "--to", dir]), 0);
    assert_eq!(fs::read_to_string(to.join("one/a.txt")).expect("there"), "one\n");
    assert_eq!(fs::read(to.join("one/deep/b.bin")).expect("there"), vec![0; 700_000]);
    assert_eq!(fs::read_to_string(to.join("two/a.txt")).expect("there"), "two\n");
    assert_eq!(names_in(&to.join("one")), ["a.txt", "deep"], "nothing temporary is left");

    fs::write(to.join("two/a.txt"), "mine").expect("written");
    let again =
        stderr(&scene.up.mycora(&["flow", "outputs", &number, "two", "--to", &format!("{dir}/two")]), 1);
    assert!(again.contains("is there already") && again.contains("--force"), "{again}");
    assert_eq!(fs::read_to_string(to.join("two/a.txt")).expect("there"), "mine");
    let forced = ["flow", "outputs", &number, "two", "--to", &format!("{dir}/two"), "--force"];
    stdout(&scene.up.mycora(&forced), 0);
    assert_eq!(fs::read_to_string(to.join("two/a.txt")).expect("there"), "two\n");

    let unknown = stderr(&scene.up.mycora(&["flow", "outputs", &number, "tow"]), 1);
    assert!(unknown.contains("has no job `tow`") && unknown.contains("did you mean `two`?"), "{unknown}");
    scene.close();
}

#[test]
fn files_of_a_hostile_machine_are_not_written() {
    let scene = Scene::new(&[]);
    let (id, _) = scene.run(FILES);
    let number = id.to_string();
    let to = scene.path().join("results");
    let fetch = ["flow", "outputs", &number, "--to", to.to_str().expect("a plain path")];
    // A piece of the blob is exchanged: of the same size, with another hash.
    let sha256 = scene.node(id, "two")["outputs"]["a.txt"]["sha256"].as_str().expect("a hash").to_owned();
    scene.up.redis(1, &["SET", &format!("blob:{sha256}:0"), "tvo\n"]);
    let wrong = stderr(&scene.up.mycora(&fetch), 1);
    assert!(wrong.contains("did not arrive as the flow describes it"), "{wrong}");
    assert_eq!(names_in(&to.join("two")), [] as [&str; 0]);
    // A name leads elsewhere: nothing is written, not even the others.
    fs::remove_dir_all(&to).expect("removed");
    rewrite(&scene, id, "two", |node| {
        let outputs = node["outputs"].as_object_mut().expect("files");
        let blob = outputs.remove("a.txt").expect("one");
        outputs.insert("../../evil.txt".to_owned(), blob);
    });
    let refused = stderr(&scene.up.mycora(&fetch), 1);
    assert!(refused.contains("../../evil.txt") && refused.contains("nothing was written"), "{refused}");
    assert!(!to.exists() && !scene.path().join("evil.txt").exists());
    scene.close();
}

#[test]
fn a_failed_job_is_reported_last_with_the_end_of_its_output() {
    let scene = Scene::new(&[]);
    let text = "name: fails\njobs:\n  good: { script_type: shell, script: 'true' }\n  \
                bad: { script_type: shell, timeout: 5m, script: 'for n in $(seq 30); do echo line $n; done; exit 3' }\n";
    let file = flow_file(scene.path(), text);
    let printed = stderr(&scene.up.mycora(&["flow", "submit", &file, "--watch"]), 1);
    let lines: Vec<&str> = printed.lines().collect();
    let at = lines.iter().rposition(|line| line.starts_with("bad: failed")).expect("it is told of");
    assert!(lines[at].ends_with("the script exited with 3"), "{printed}");
    assert_eq!((lines[at + 1], lines[at + 10]), ("  | line 21", "  | line 30"), "{printed}");
    assert_eq!(lines[at + 11..], ["  all it printed: mycora flow logs 1 bad --context 1"], "{printed}");
    let tail = stdout(&scene.up.mycora(&["flow", "logs", "1", "bad", "--tail", "2"]), 0);
    assert_eq!(tail, "line 29\nline 30\n");
    let of_all = stdout(&scene.up.mycora(&["flow", "logs", "1", "--tail", "1", "--follow"]), 0);
    assert_eq!(of_all, "bad | line 30\n");
    scene.close();
}

#[test]
fn misspelt_jobs_are_named_with_the_nearest_match() {
    let scene = Scene::new(&[]);
    let (id, _) = scene.run("name: one\njobs:\n  gather: { script_type: shell, script: 'true' }\n");
    let number = id.to_string();
    for command in ["explain", "logs"] {
        let printed = stderr(&scene.up.mycora(&["flow", command, &number, "gathr"]), 1);
        assert!(
            printed.contains(&format!("flow {id} has no job `gathr`; did you mean `gather`?")),
            "{printed}"
        );
        assert!(printed.contains("mycora flow jobs") && !printed.contains("no role"), "{printed}");
    }
    for status in ["completed", "finished"] {
        let listed = stdout(&scene.up.mycora(&["flow", "list", "--status", status]), 0);
        assert!(listed.contains(" completed "), "{listed}");
    }
    assert_eq!(stdout(&scene.up.mycora(&["flow", "list", "--status", "failed"]), 0), "");
    scene.close();
}

#[test]
fn the_log_has_a_line_for_each_start_and_end() {
    let mut scene = Scene::new(&["--log-level", "debug"]);
    let (id, _) = scene.run("name: noted\njobs:\n  only: { script_type: shell, script: 'true' }\n");
    scene.up.process.wait_for_line("a flow has ended", PATIENCE);
    let log = scene.up.process.output();
    for what in ["a flow has started", "a flow has ended"] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(what)).collect();
        assert_eq!(lines.len(), 1, "{log}");
        for part in [format!("flow={id}"), "context=1".to_owned(), "noted".to_owned(), "INFO".to_owned()] {
            assert!(lines[0].contains(&part), "no {part}: {}", lines[0]);
        }
    }
    let of_libraries = ["h2::", "hyper", "tower", "rustls", "tonic::"];
    let noise = log.lines().find(|line| {
        line.contains("DEBUG") && of_libraries.iter().any(|library| line.contains(&format!(" {library}")))
    });
    assert_eq!(noise, None);
    scene.close();
}
