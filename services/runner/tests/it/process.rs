//! The runner as a process, killed in the middle.

use std::process::Command;
use std::time::Duration;

use kv::Kv;
use model::JobKey;
use model::execution::{Grants, Outcome as Kind};
use queue::{JobOffer, QueueEventKind, SupervisorQueues};
use sandbox::processes;
use testkit::{PATIENCE, RedisServer, TestProcess, wait_until};

use crate::setup::{job, place, seen, shell};

fn runner(redis: &RedisServer, dir: &std::path::Path) -> TestProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mycora-runner"));
    command
        .args(["--redis-url", &redis.url(), "--types", "shell", "--ops-listen", "127.0.0.1:0"])
        .arg("--work-dir")
        .arg(dir.join("work"))
        .arg("--allow-write")
        .arg(seen(dir));
    let mut process = TestProcess::spawn("runner", &mut command);
    let _ = process.wait_for_line("take jobs", PATIENCE);
    process
}

fn count(dir: &std::path::Path, file: &str) -> usize {
    std::fs::read_to_string(dir.join(file)).unwrap_or_default().lines().count()
}

/// A shell job with a child in its session, and one that has left it; both tell their numbers.
async fn job_with_children(supervisor: &SupervisorQueues, dir: &std::path::Path) -> (JobKey, Vec<u32>) {
    let seen = seen(dir);
    let here = seen.display();
    let script = format!(
        "sh -c 'echo $$ >> {here}/pids; exec sleep 600' &\nsetsid sh -c 'echo $$ >> {here}/pids; exec sleep 600' &\n\
         echo $$ >> {here}/pids\nwait"
    );
    let execution = shell(&script);
    let key = execution.job_key;
    let offer = JobOffer {
        grants: Grants::default(),
        execution,
        coordinator: "c".into(),
        condition: queue::AcceptCondition::None,
        weight: std::num::NonZeroU32::MIN,
    };
    supervisor.accept(offer).await.expect("an accepted job");
    let started = || async { (count(&seen, "pids") == 3).then_some(()) };
    wait_until(started, PATIENCE, "both children run").await;
    let pids = std::fs::read_to_string(seen.join("pids")).expect("the script wrote them");
    (key, pids.lines().map(|pid| pid.parse().expect("a number")).collect())
}

fn lives(pid: u32) -> bool {
    processes::observe(pid).is_ok()
}

async fn are_gone(pids: &[u32]) {
    let gone = || async { (!pids.iter().any(|pid| lives(*pid))).then_some(()) };
    wait_until(gone, PATIENCE, "they are gone").await;
}

#[tokio::test]
async fn nothing_outlives_a_runner_that_is_killed() {
    let redis = RedisServer::start();
    let dir = place();
    let supervisor = SupervisorQueues::new(Kv::new(redis.url().parse().expect("a url")), 0);
    let mut runner = runner(&redis, dir.path());
    let (_, pids) = job_with_children(&supervisor, dir.path()).await;
    runner.kill9();
    are_gone(&pids).await;
}

/// The runner is killed together with the init, which should have ended everything.
#[tokio::test]
async fn the_next_life_ends_what_the_last_one_left() {
    let redis = RedisServer::start();
    let dir = place();
    let kv = Kv::new(redis.url().parse().expect("a url"));
    let supervisor = SupervisorQueues::new(kv, 0);
    let mut reader = supervisor.events();
    let mut first = runner(&redis, dir.path());
    let (key, pids) = job_with_children(&supervisor, dir.path()).await;
    let init = pids.iter().map(|pid| processes::observe(*pid).expect("it runs").parent);
    let init = init.into_iter().find(|parent| processes::name(*parent).starts_with("mycora"));
    let init = init.expect("the first process of the job");
    let signal = |signal: &str, pid: u32| {
        let sent = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill starts");
        assert!(sent.success(), "{signal} {pid}");
    };
    // In this order, so that nobody can do anything about it.
    signal("-STOP", first.pid());
    signal("-KILL", init);
    // One that has nothing to do with it, though it looks a little like it.
    let mut bystander = TestProcess::spawn(
        "bystander",
        Command::new("sleep").arg("600").env("MYCORA_RESULT", dir.path().join("workshop/result")),
    );
    first.kill9();
    let left = pids.iter().filter(|pid| lives(**pid)).count();
    assert!(left >= 2, "the children outlive the runner, {left} of them");

    let mut second = runner(&redis, dir.path());
    assert!(second.output().contains("ended a script of an earlier runner"), "{}", second.output());
    are_gone(&pids).await;
    assert!(!lives(init) && lives(bystander.pid()));
    bystander.kill9();
    let end = loop {
        let events = reader.next(std::future::pending()).await.expect("events");
        let end = events.into_iter().find_map(|event| match event.kind {
            QueueEventKind::Ended(end) => Some((event.job_key, end)),
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
    let dir = place();
    let _runner = runner(&redis, dir.path());
    let supervisor = SupervisorQueues::new(Kv::new(redis.url().parse().expect("a url")), 0);
    let instances = supervisor.instances().await.expect("an answer");
    let types: Vec<_> = instances.iter().map(|(instance, _)| instance.to_string()).collect();
    assert_eq!(types, ["shell:default:1"]);
    let execution = job(model::ScriptType::Rhai, "");
    let offer = JobOffer {
        execution,
        coordinator: "c".into(),
        grants: model::Grants::default(),
        condition: queue::AcceptCondition::None,
        weight: std::num::NonZeroU32::MIN,
    };
    supervisor.accept(offer).await.expect("an accepted job");
    let stats = supervisor.statistics().await.expect("an answer");
    assert_eq!(stats.iter().map(|queue| queue.depth).collect::<Vec<_>>(), [1]);
}
