//! Scripts that break the engine they run in: the suite stands.

use std::process::Command;

use testkit::wait_until_blocking;

use crate::scene::Scene;
use crate::suite::PATIENCE;

/// The two sorts that once ended the whole process, and the process again with each retry.
const SORTS: [&str; 2] = [
    "let a = []; for n in 0..80 { a.push(if n % 3 == 0 { 0.0 / 0.0 } else { (n * 7919 % 101).to_float() }); } a.sort();",
    "let a = []; for n in 0..80 { a.push(n); } a.sort(|x, y| if (x*7+y*13)%5 < 2 {-1} else {1});",
];

/// The parent of a process, and its name; nothing when it is gone.
fn parent_and_name(pid: u32) -> Option<(u32, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (before, rest) = stat.rsplit_once(')')?;
    let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
    Some((parent, before.split_once('(')?.1.to_owned()))
}

/// The engines of a suite: each is below its init, which is below the suite's process.
fn engines(scene: &Scene) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    all.filter(|pid| {
        parent_and_name(*pid).is_some_and(|(init, name)| {
            name == "mycora-engine"
                && parent_and_name(init).is_some_and(|(suite, _)| suite == scene.up.process.pid())
        })
    })
    .collect()
}

#[test]
fn sorts_that_ended_everything_end_one_job_or_none() {
    let scene = Scene::new(&[]);
    let mut text = "name: sorts\njobs:\n".to_owned();
    for script_type in ["rhai", "osis", "sal"] {
        for (number, script) in SORTS.iter().enumerate() {
            text.push_str(&format!(
                "  {script_type}-{number}:\n    script_type: {script_type}\n    retries: 3\n    backoff: {{ initial: 0.01 }}\n    \
                 script: |\n      {script} result(\"n\", a.len());\n"
            ));
        }
    }
    let (_, ended) = scene.run(&text);
    assert_eq!(ended.status, "FINISHED", "{:?}", ended.states());
    // By the process that was started, since another would have another number; it gets a stop signal and ends.
    scene.close();
}

#[test]
fn an_engine_that_is_killed_each_time_ends_its_job_by_name() {
    let scene = Scene::new(&[]);
    let id = scene.submit(
        "name: killed\njobs:\n  \
         victim:\n    script_type: rhai\n    retries: 1\n    backoff: { initial: 0.01 }\n    script: |\n      loop { sleep(0.05); }\n",
    );
    let mut killed = Vec::new();
    while killed.len() < 2 {
        let other = || engines(&scene).into_iter().find(|pid| !killed.contains(pid));
        let pid = wait_until_blocking(other, PATIENCE, "an attempt has an engine");
        let status = Command::new("kill").args(["-ABRT", &pid.to_string()]).status().expect("`kill` starts");
        assert!(status.success());
        killed.push(pid);
    }
    let ended = scene.end(id);
    assert_eq!(ended.state("victim"), "FAILED RUNTIME_ERROR");
    let detail = ended.nodes["victim"]["reason"]["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.contains("the engine ended by signal 6 (SIGABRT)"), "{detail}");
    let good = "name: next\njobs:\n  next: { script_type: rhai, script: 'result(\"a\", 1)' }\n";
    assert_eq!(scene.run(good).1.status, "FINISHED");
    scene.close();
}
