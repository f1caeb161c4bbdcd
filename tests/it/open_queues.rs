//! Programs that know nothing but the names of the work queues: they push jobs there, and take some.

use testkit::wait_until_blocking;

use crate::scene::Scene;
use crate::suite::{PATIENCE, get, stdout};

/// The database of the supervisor within `mycora up`.
const SUPERVISOR: u32 = 4095;
const SHELL: &str = "hero:q:work:type:shell";

/// Waits for the reply to a job, as its dispatcher would.
fn reply(scene: &Scene, id: &str) -> String {
    let secs = PATIENCE.as_secs().to_string();
    let popped = scene.up.redis(SUPERVISOR, &["BLPOP", &format!("hero:q:reply:{id}"), &secs]);
    popped.lines().nth(1).unwrap_or_else(|| panic!("no reply to {id}: {popped}")).to_owned()
}

fn field(scene: &Scene, key: &str, field: &str) -> String {
    scene.up.redis(SUPERVISOR, &["HGET", key, field]).trim_end().to_owned()
}

/// Writes a job as the old world does, and pushes it.
fn push(scene: &Scene, queue: &str, id: &str, fields: &[&str]) {
    let key = format!("hero:job:{id}");
    scene.up.redis(SUPERVISOR, &[&["HSET", &key, "status", "dispatched"], fields].concat());
    scene.up.redis(SUPERVISOR, &["LPUSH", queue, id]);
}

/// Waits until so many jobs of others had this outcome.
fn counted(scene: &Scene, outcome: &str, count: u32) {
    let line = format!("mycora_supervisor_foreign_total{{outcome=\"{outcome}\"}} {count}");
    let reported = || get(scene.up.dir(), scene.up.port() + 100, "/metrics").lines().any(|one| one == line);
    wait_until_blocking(|| reported().then_some(()), PATIENCE, line.as_str());
}

#[test]
fn what_others_push_is_refused_by_name_where_queues_are_closed() {
    let mut scene = Scene::new(&[]);
    push(&scene, SHELL, "abc", &["script", "echo hi", "script_type", "shell"]);
    let why = reply(&scene, "abc");
    assert!(why.starts_with("QUEUES_CLOSED") && why.contains("--open-queues"), "{why}");
    assert_eq!(field(&scene, "hero:job:abc", "status"), "error");
    assert_eq!(field(&scene, "hero:job:abc", "error"), why);
    scene.up.process.wait_for_line("a job that others pushed into a work queue is refused", PATIENCE);
    // By its id and by its hash; at another priority.
    push(&scene, SHELL, "named", &["script", "true"]);
    scene.up.redis(SUPERVISOR, &["RPUSH", SHELL, "hero:job:named"]);
    assert!(reply(&scene, "named").starts_with("QUEUES_CLOSED"));
    push(&scene, "hero:q:work:type:python:prio:0", "early", &["script", "1"]);
    assert!(reply(&scene, "early").starts_with("QUEUES_CLOSED"));
    counted(&scene, "refused", 4);
    // Ours go on.
    let (_, ended) = scene.run("name: ours\njobs:\n  one: { script_type: shell, script: 'true' }\n");
    assert_eq!(ended.status, "FINISHED");
    scene.close();
}

/// Takes a job as a worker of others does, by a plain pop from this queue; gives its hash.
fn pop(scene: &Scene, queue: &str) -> String {
    let pop = || {
        let popped = scene.up.redis(SUPERVISOR, &["LPOP", queue]);
        Some(popped.trim().to_owned()).filter(|key| !key.is_empty())
    };
    format!("hero:job:{}", wait_until_blocking(pop, PATIENCE, "a job for a worker of others"))
}

#[test]
fn others_push_and_take_where_queues_are_open() {
    let scene = Scene::new(&["--legacy", "--slots", "1"]);
    // An external job: adopted, run and answered.
    let fields =
        ["script", "echo \"$A\"", "script_type", "shell", "env_vars", r#"{"A":"hi"}"#, "timeout", "60"];
    push(&scene, SHELL, "abc", &fields);
    assert_eq!(reply(&scene, "abc"), "hi");
    assert_eq!(field(&scene, "hero:job:abc", "status"), "finished");
    assert_eq!(field(&scene, "hero:job:abc", "output"), "hi");
    push(&scene, SHELL, "bad", &["script", "exit 3", "script_type", "shell"]);
    assert!(reply(&scene, "bad").starts_with("EXIT_CODE"));
    assert_eq!(field(&scene, "hero:job:bad", "status"), "error");
    counted(&scene, "adopted", 2);

    // An external worker takes a job of ours while the one slot is busy; a job that it could not run stays hidden from it.
    let gate = scene.path().join("gate");
    let wait = format!("while [ ! -e '{}' ]; do sleep 0.05; done", gate.display());
    let busy =
        scene.submit(&format!("name: busy\njobs:\n  waits: {{ script_type: shell, script: \"{wait}\" }}\n"));
    scene.wait_for(busy, "waits", "RUNNING");
    let flow = "name: ours\njobs:\n  \
                needs: { script_type: shell, outputs: [a.txt], script: 'echo kept > a.txt' }\n  \
                plain: { script_type: shell, script: 'echo theirs' }\n";
    let id = scene.submit(flow);
    let key = pop(&scene, SHELL);
    assert_eq!(field(&scene, &key, "script"), "echo theirs");
    scene.up.redis(SUPERVISOR, &["HSET", &key, "status", "started"]);
    let node = scene.wait_for(id, "plain", "RUNNING");
    assert!(node.to_string().contains("legacy:hero:q:work:type:shell"), "{node}");
    scene.up.redis(SUPERVISOR, &["HSET", &key, "status", "finished", "result", r#"{"answer":"42"}"#]);
    scene.wait_for(id, "plain", "COMPLETED");
    std::fs::write(&gate, "").expect("a file");
    let ended = scene.end(id);
    assert_eq!((ended.status.as_str(), &ended.flow["result"]["plain.answer"]), ("FINISHED", &"42".into()));
    scene.close();
}

/// No instance of ours runs `v` here: only the operator knows that an external worker does.
#[test]
fn others_take_jobs_of_a_type_that_only_they_run() {
    let scene = Scene::new(&["--open-queues-for", "v"]);
    let flow = "name: theirs\njobs:\n  \
                plain: { script_type: v, script: 'print(1)' }\n  \
                needs: { script_type: v, script: 'print(2)', outputs: [a.txt] }\n";
    let id = scene.submit(flow);
    let key = pop(&scene, "hero:q:work:type:v");
    assert_eq!(field(&scene, &key, "script"), "print(1)");
    scene.up.redis(SUPERVISOR, &["HSET", &key, "status", "started"]);
    scene.wait_for(id, "plain", "RUNNING");
    scene.up.redis(SUPERVISOR, &["HSET", &key, "status", "finished", "output", "1"]);
    scene.wait_for(id, "plain", "COMPLETED");

    // A job that they cannot run waits for a worker that can, and explains so.
    let why = "only workers of others run `v` jobs";
    let refused = || scene.node(id, "needs").to_string().contains(why).then_some(());
    wait_until_blocking(refused, PATIENCE, "the other job is refused by name");
    stdout(&scene.up.mycora(&["flow", "cancel", &id.to_string()]), 0);
    assert_eq!(scene.end(id).state("needs"), "CANCELLED FLOW_CANCELLED");
    assert_eq!(scene.up.redis(SUPERVISOR, &["EXISTS", "hero:q:work:type:v:closed"]).trim(), "0");
    scene.close();
}
