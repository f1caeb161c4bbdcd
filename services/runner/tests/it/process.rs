//! The runner as a process, killed in the middle.

use std::process::Command;
use std::time::Duration;

use kv::Kv;
use model::execution::Outcome as Kind;
use queue::{EventKind, Offer, Supervisor};
use testkit::{PATIENCE, Process, RedisServer, wait_until};

use crate::setup::{job, shell};

fn runner(redis: &RedisServer, dir: &std::path::Path) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mycora-runner"));
    command
        .args(["--redis-url", &redis.url(), "--types", "shell", "--ops-listen", "127.0.0.1:0"])
        .arg("--work-dir")
        .arg(dir.join("work"));
    let mut process = Process::spawn("runner", &mut command);
    let _ = process.wait_for_line("take jobs", PATIENCE);
    process
}

fn count(dir: &std::path::Path, file: &str) -> usize {
    std::fs::read_to_string(dir.join(file)).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn the_next_life_ends_what_the_last_one_left() {
    let redis = RedisServer::start();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let kv = Kv::new(redis.url().parse().expect("a url"));
    let supervisor = Supervisor::new(kv, 0);
    let mut reader = supervisor.events();
    let mut first = runner(&redis, dir.path());

    let here = dir.path().display();
    // A child in the session, and one that has left it: neither dies with the runner.
    let script = format!(
        "sh -c 'echo $$ >> {here}/pids; exec sleep 600' &\nsetsid sh -c 'echo $$ >> {here}/pids; exec sleep 600' &\nwait"
    );
    let execution = shell(&script);
    let key = execution.job_key;
    let offer = Offer { hash: execution.content_hash(), execution, coordinator: "c".into() };
    supervisor.accept(offer).await.expect("an accepted job");
    let started = || async { (count(dir.path(), "pids") == 2).then_some(()) };
    wait_until(started, PATIENCE, "both children run").await;
    // One that has nothing to do with it, though it looks a little like it.
    let mut bystander = Process::spawn(
        "bystander",
        Command::new("sleep").arg("600").env("MYCORA_RESULT", dir.path().join("workshop/result")),
    );
    first.kill9();
    let pids = std::fs::read_to_string(dir.path().join("pids")).expect("the script wrote them");
    let lives = |pid: &str| std::path::Path::new("/proc").join(pid).join("exe").exists();
    assert!(pids.lines().all(lives), "they outlive the runner");

    let mut second = runner(&redis, dir.path());
    assert!(second.output().contains("ended a script of an earlier runner"), "{}", second.output());
    let gone = || async { (!pids.lines().any(lives)).then_some(()) };
    wait_until(gone, PATIENCE, "they are gone").await;
    assert!(lives(&bystander.pid().to_string()));
    bystander.kill9();
    let end = loop {
        let events = reader.next(std::future::pending()).await.expect("events");
        let end = events.into_iter().find_map(|event| match event.kind {
            EventKind::Ended(end) => Some((event.job_key, end)),
            _ => None,
        });
        if let Some(end) = end {
            break end;
        }
    };
    assert_eq!((end.0, end.1.outcome), (key, Kind::Lost));

    second.terminate();
    assert!(second.wait(Duration::from_secs(30)).success(), "{}", second.output());
}

#[tokio::test]
async fn a_rhai_job_is_not_for_a_runner_without_it() {
    let redis = RedisServer::start();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let _runner = runner(&redis, dir.path());
    let supervisor = Supervisor::new(Kv::new(redis.url().parse().expect("a url")), 0);
    let instances = supervisor.instances().await.expect("an answer");
    let types: Vec<_> = instances.iter().map(|(instance, _)| instance.to_string()).collect();
    assert_eq!(types, ["shell:default:1"]);
    let execution = job(model::ScriptType::Rhai, "");
    let offer = Offer { hash: execution.content_hash(), execution, coordinator: "c".into() };
    supervisor.accept(offer).await.expect("an accepted job");
    let stats = supervisor.statistics().await.expect("an answer");
    assert_eq!(stats.iter().map(|queue| queue.depth).collect::<Vec<_>>(), [1]);
}
