//! Jobs that do not end by themselves.

use std::time::{Duration, Instant};

use model::execution::Outcome as Kind;
use model::{ReasonCode, ScriptType};
use queue::StopOutcome;
use runner::{RunnerSettings, RunnerStartError};
use service::Shutdown;
use testkit::{PATIENCE, Witness, wait_until};

use crate::setup::{RunnerTestBench, job, place, seen, settings, shell};

/// Returns true while a process runs; one that ended and was not waited for does not.
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

#[tokio::test]
async fn a_time_limit_ends_everything_that_was_started() {
    let mut bench = RunnerTestBench::new().await;
    let pids = bench.seen().join("pids");
    let mut execution = shell(&format!(
        "trap '' TERM\nsleep 600 & echo $! >> {0}\nsetsid sh -c 'echo $$ >> {0}; exec sleep 600' >/dev/null 2>&1 &\n\
         (sh -c 'echo $$ >> {0}; exec sleep 600' &)\nwhile [ $(wc -l < {0}) -lt 3 ]; do :; done\necho ready\nwait\nsleep 600",
        pids.display()
    ));
    execution.timeout_secs = 1;
    let outcome = bench.run(execution).await;
    assert_eq!(outcome.end.outcome, Kind::TimedOut, "{outcome:?}");
    assert_eq!(outcome.end.reason.map(|reason| reason.code), Some(ReasonCode::Timeout));
    assert_eq!(outcome.log, "ready\n");
    let pids = std::fs::read_to_string(pids).expect("the script wrote them");
    assert_eq!(pids.lines().count(), 3);
    assert!(!pids.lines().any(lives), "{pids}");
    assert_eq!(bench.attempts(), [""; 0]);
}

#[tokio::test]
async fn a_polite_script_has_time_to_clean_up() {
    let mut bench = RunnerTestBench::new().await;
    let key = bench
        .accept(shell("trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.01; done"))
        .await;
    bench.printed(key, "ready").await;
    let stopping = bench.supervisor.stop(key, 30).await.expect("an answer");
    assert_eq!(stopping, StopOutcome::Stopping { instance: "shell:default:1".into() });
    let outcome = bench.end_of(key).await;
    assert_eq!((outcome.end.outcome, outcome.end.reason), (Kind::Stopped, None));
    assert!(outcome.log.ends_with("cleaned\n"), "{}", outcome.log);
}

#[tokio::test]
async fn a_repeated_stop_with_a_shorter_grace_takes_effect() {
    let mut bench = RunnerTestBench::new().await;
    for (script_type, script) in [
        (ScriptType::Shell, "trap 'echo asked' TERM; echo ready; while :; do :; done"),
        (
            ScriptType::Python,
            "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('asked'))\nprint('ready')\nwhile True: pass",
        ),
    ] {
        let mut execution = job(script_type, script);
        execution.timeout_secs = 0;
        let key = bench.accept(execution).await;
        bench.printed(key, "ready").await;
        bench.supervisor.stop(key, 3600).await.expect("an answer");
        bench.printed(key, "asked").await;
        bench.supervisor.stop(key, 0).await.expect("an answer");
        let outcome = tokio::time::timeout(PATIENCE, bench.end_of(key)).await.expect("an end without delay");
        assert_eq!((outcome.end.outcome, outcome.end.reason), (Kind::Stopped, None), "{script}");
    }
}

#[tokio::test]
async fn every_language_can_be_stopped_and_runs_out_of_time() {
    let mut bench = RunnerTestBench::new().await;
    for (script_type, script) in [
        (ScriptType::Shell, "echo ready; while :; do :; done"),
        (ScriptType::Python, "print('ready')\nwhile True: pass"),
        (ScriptType::Rhai, "print(\"ready\"); loop { }"),
        (ScriptType::Rhai, "print(\"ready\"); sleep(600);"),
    ] {
        let key = bench.accept(job(script_type, script)).await;
        bench.printed(key, "ready").await;
        bench.supervisor.stop(key, 0).await.expect("an answer");
        assert_eq!(bench.end_of(key).await.end.outcome, Kind::Stopped, "{script}");
        let mut execution = job(script_type, script);
        execution.timeout_secs = 1;
        assert_eq!(bench.run(execution).await.end.outcome, Kind::TimedOut, "{script}");
    }
}

#[tokio::test]
async fn what_a_successful_script_leaves_behind_does_not_hold_it_up() {
    let mut bench = RunnerTestBench::new().await;
    let begin = Instant::now();
    let outcome = bench.run(shell("sleep 600 &\nsetsid sleep 600 &\necho done")).await;
    assert_eq!((outcome.end.outcome, outcome.log.as_str()), (Kind::Succeeded, "done\n"));
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn jobs_share_the_slots() {
    let mut bench = RunnerTestBench::new().await;
    let witness = Witness::new(&bench.seen());
    let names: Vec<_> = (0..20).map(|n| format!("job-{n}")).collect();
    for name in &names {
        bench.accept(shell(&witness.shell(name, "true"))).await;
    }
    let mut ends = 0;
    while ends < names.len() {
        let events = bench.reader.next(std::future::pending()).await.expect("events");
        ends += events.iter().filter(|event| matches!(event.kind, queue::QueueEventKind::Ended(_))).count();
        bench.reader.acknowledge(&events).await.expect("acknowledged");
    }
    witness.assert_each_once(&names.iter().map(String::as_str).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_drain_lets_jobs_end_until_its_deadline() {
    let RunnerTestBench { dir, supervisor, mut reader, runner, kv, redis: _redis, .. } =
        RunnerTestBench::new().await;
    assert!(runner.instances().len() >= 3, "shell, python and rhai are here");
    runner.drain().await;
    assert!(supervisor.instances().await.expect("an answer").is_empty(), "they have left");

    let hurried = RunnerSettings {
        drain_deadline: Duration::ZERO,
        types: vec![ScriptType::Shell],
        ..settings(dir.path())
    };
    let runner = runner::start(hurried, &kv, 0, &Shutdown::new()).await.expect("a runner");
    let execution = shell("sleep 600");
    let offer = queue::JobOffer {
        execution,
        coordinator: "c".into(),
        grants: model::Grants::default(),
        condition: queue::AcceptCondition::None,
        weight: std::num::NonZeroU32::MIN,
    };
    supervisor.accept(offer).await.expect("an accepted job");
    assert_eq!(reader.next(std::future::pending()).await.expect("events").len(), 1, "it is started");
    runner.drain().await;
    let end = loop {
        // It may have printed something when it was cut off.
        let events = reader.next(std::future::pending()).await.expect("events");
        let end = events.into_iter().find_map(|event| match event.kind {
            queue::QueueEventKind::Ended(end) => Some(end),
            _ => None,
        });
        if let Some(end) = end {
            break end;
        }
    };
    assert_eq!(end.outcome, Kind::Lost);
    assert_eq!(end.reason.as_ref().map(|reason| reason.code), Some(ReasonCode::Drained));
}

#[tokio::test]
async fn a_work_directory_has_one_runner_and_types_have_to_be_there() {
    let bench = RunnerTestBench::new().await;
    let second = runner::start(settings(bench.dir.path()), &bench.kv, 0, &Shutdown::new()).await;
    assert!(matches!(second, Err(RunnerStartError::InUse { .. })), "{second:?}");
    let dir = place();
    let unknown = RunnerSettings { types: vec![ScriptType::V], ..settings(dir.path()) };
    let refused = runner::start(unknown, &bench.kv, 0, &Shutdown::new()).await.expect_err("no such runtime");
    assert!(refused.to_string().contains("executes v scripts"), "{refused}");
}

#[tokio::test]
async fn redis_may_restart_in_the_middle() {
    let dir = place();
    let mut redis = testkit::RedisServer::builder().persistent().start();
    let kv = kv::Kv::new(redis.url().parse().expect("a url"));
    let runner = runner::start(settings(dir.path()), &kv, 0, &Shutdown::new()).await.expect("a runner");
    let supervisor = queue::SupervisorQueues::new(kv.clone(), 0);
    let go = seen(dir.path()).join("go");
    let execution =
        shell(&format!("while [ ! -e {} ]; do sleep 0.01; done; echo a=1 > $MYCORA_RESULT", go.display()));
    let key = execution.job_key;
    let offer = queue::JobOffer {
        execution,
        coordinator: "c".into(),
        grants: model::Grants::default(),
        condition: queue::AcceptCondition::None,
        weight: std::num::NonZeroU32::MIN,
    };
    supervisor.accept(offer).await.expect("an accepted job");
    let status = async |wanted: queue::QueueJobStatus| {
        let look = || async {
            let state = supervisor.status(key).await.ok().flatten()?;
            (state.status == wanted).then_some(state)
        };
        wait_until(look, PATIENCE, format!("the job is {wanted:?}")).await
    };
    status(queue::QueueJobStatus::Started).await;
    redis.kill9();
    std::fs::write(&go, "").expect("a file");
    redis.restart();
    let state = status(queue::QueueJobStatus::Finished).await;
    assert_eq!(state.end.and_then(|end| end.result.get("a").cloned()).as_deref(), Some("1"));

    let next = shell("exit 0");
    let next_key = next.job_key;
    let offer = queue::JobOffer {
        execution: next,
        coordinator: "c".into(),
        grants: model::Grants::default(),
        condition: queue::AcceptCondition::None,
        weight: std::num::NonZeroU32::MIN,
    };
    supervisor.accept(offer).await.expect("an accepted job");
    let look = || async { supervisor.status(next_key).await.ok().flatten()?.end };
    wait_until(look, PATIENCE, "the next job is taken as well").await;
    runner.drain().await;
}

#[tokio::test]
async fn an_attempt_that_the_store_forgot_is_not_run_twice_under_one_number() {
    let mut bench = RunnerTestBench::new().await;
    let (witness, gate) = (Witness::new(&bench.seen()), bench.seen().join("gate"));
    let wait = format!("while ! test -e '{}'; do sleep 0.05; done", gate.display());
    let execution = shell(&witness.shell("job", &wait));
    let key = bench.accept(execution.clone()).await;
    let started = || async { (!witness.lines().is_empty()).then_some(()) };
    wait_until(started, PATIENCE, "it has started").await;

    // The store goes back to before it was accepted, and its coordinator sends it again while it runs.
    assert_eq!(bench.redis.raw(0, &["FLUSHALL"]), "+OK\r\n");
    bench.reader = bench.supervisor.events();
    bench.accept(execution.clone()).await;
    std::fs::write(&gate, "").expect("a file");
    let outcome = bench.end_of(key).await;
    let ran = (outcome.end.outcome, outcome.end.exit_code);
    // It goes on, or was stopped since it was the instance's no more: that one is lost.
    assert!([(Kind::Succeeded, Some(0)), (Kind::Lost, None)].contains(&ran), "{outcome:?}");

    // Once more, after its end.
    assert_eq!(bench.redis.raw(0, &["FLUSHALL"]), "+OK\r\n");
    bench.reader = bench.supervisor.events();
    bench.accept(execution).await;
    let outcome = bench.end_of(key).await;
    let reason = outcome.end.reason.as_ref().map(|reason| reason.code);
    assert_eq!((outcome.end.outcome, reason), (Kind::Lost, Some(ReasonCode::SupervisorLost)), "{outcome:?}");
    assert!(outcome.reason().contains("the store of its supervisor rolled back"), "{outcome:?}");
    assert_eq!(witness.spans().len(), 1, "it ran once");
}

/// Nor does a runner that was started since, or another one of the same machine.
#[tokio::test]
async fn an_attempt_that_the_store_forgot_is_not_run_by_others_either() {
    let mut bench = RunnerTestBench::new().await;
    let witness = Witness::new(&bench.seen());
    let execution = shell(&witness.shell("job", "true"));
    let outcome = bench.run(execution.clone()).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
    bench.runner.drain().await;

    for number in [1, 2] {
        let settings = settings(bench.dir.path());
        let settings = RunnerSettings { instance: number, ..settings };
        // The store goes back to before it was accepted.
        assert_eq!(bench.redis.raw(0, &["FLUSHALL"]), "+OK\r\n");
        bench.reader = bench.supervisor.events();
        let runner = runner::start(settings, &bench.kv, 0, &Shutdown::new()).await;
        bench.runner = runner.expect("a runner");
        let outcome = bench.run(execution.clone()).await;
        let reason = outcome.end.reason.as_ref().map(|reason| reason.code);
        assert_eq!(
            (outcome.end.outcome, reason),
            (Kind::Lost, Some(ReasonCode::SupervisorLost)),
            "{outcome:?}"
        );
        // Others run.
        let other = bench.run(shell("exit 0")).await;
        assert_eq!(other.end.outcome, Kind::Succeeded, "{other:?}");
        bench.runner.drain().await;
    }
    assert_eq!(witness.spans().len(), 1, "it ran once");
}
