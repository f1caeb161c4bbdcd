//! Jobs that only old dispatchers know, and whatever else stands in lists that anybody may push to.

use keys::{ControlScope, LegacyQueue};
use model::execution::Outcome;
use model::id::Uid;
use model::{Attempt, ContextUid, Grants, JobId, ReasonCode, ScriptType};
use queue::{InstanceCommand, JobEndReport, JobImportCounts, JobRecordOutcome, PopBinding};
use std::future::pending;

use crate::legacy::{ACTOR_QUEUE, binding};
use crate::setup::{QueueTestBench, about, ending, execution, instance, job_key, offer, take, take_one};

const WAITING_MAX: usize = 100;
const SHARED: &str = "hero:q:work:type:shell";

fn context() -> ContextUid {
    ContextUid(Uid::from_bits(5))
}

fn pop(list: &str) -> PopBinding {
    PopBinding {
        queue: LegacyQueue::parse(list).expect("an old queue"),
        script_type: ScriptType::Shell,
        context: context(),
    }
}

fn imported(taken: u64, refused: u64) -> kv::Result<JobImportCounts> {
    Ok(JobImportCounts { taken, refused })
}

impl QueueTestBench {
    async fn import(&self, list: &str) -> kv::Result<JobImportCounts> {
        let grant = |job: &model::Execution| match job.env_vars.get("DENIED") {
            None => Ok(Grants { disk_bytes: 7, ..Grants::default() }),
            Some(why) => Err(why.clone()),
        };
        self.supervisor.import(&pop(list), grant, WAITING_MAX).await
    }

    fn dispatch(&self, list: &str, entry: &str, fields: &[&str]) {
        let hash = if list.starts_with("queue:") { entry.to_owned() } else { format!("hero:job:{entry}") };
        let mut set = vec!["HSET", &hash, "status", "dispatched"];
        set.extend(fields);
        let _ = self.redis.raw(15, &set);
        let _ = self.redis.raw(15, &["RPUSH", list, entry]);
    }

    /// The texts of an answer of several.
    fn texts(&self, args: &[&str]) -> Vec<String> {
        let answer = self.redis.raw(15, args);
        let mut lines = answer.lines().skip(1);
        let mut texts = Vec::new();
        while let Some(length) = lines.next() {
            texts.push(if length == "$-1" {
                "-".into()
            } else {
                lines.next().unwrap_or_default().to_owned()
            });
        }
        texts
    }

    fn job_fields(&self, hash: &str) -> Vec<String> {
        self.texts(&["HMGET", hash, "status", "output", "result", "error"])
    }

    fn replies(&self, id: &str) -> Vec<String> {
        ["hero:q:reply:", "hero:reply:"]
            .into_iter()
            .flat_map(|prefix| self.texts(&["LRANGE", &format!("{prefix}{id}"), "0", "-1"]))
            .collect()
    }
}

fn printed(mut ending: JobEndReport, output: &str) -> JobEndReport {
    ending.output_tail = output.to_owned();
    ending
}

#[tokio::test]
async fn our_instances_run_them_and_answer_as_old_workers_would() {
    for (list, entry, id) in [(ACTOR_QUEUE, "old-1", "old-1"), ("queue:shell", "job:12:7", "12:7")] {
        let bench = QueueTestBench::new();
        let (worker, mut intake, _control) = bench.join(1).await;
        let fields =
            ["script", "echo hi", "script_type", "shell", "env_vars", r#"{"A":"1"}"#, "timeout", "30"];
        bench.dispatch(list, entry, &[&fields[..], &["caller_id", "12"]].concat());
        assert_eq!(bench.import(list).await, imported(1, 0));
        let taken = take_one(&mut intake).await;
        let job = &taken.execution;
        assert_eq!(
            (job.job_key.context, job.job_key.job, job.job_key.attempt),
            (context(), JobId(1), Attempt(1))
        );
        assert_eq!((job.env_vars["A"].as_str(), job.timeout_secs, job.caller_id.0), ("1", 30, 12));
        assert_eq!(taken.grants.disk_bytes, 7);
        assert_eq!(job.script, model::ScriptSource::Inline("echo hi".into()));
        let hash = if list == ACTOR_QUEUE { format!("hero:job:{entry}") } else { entry.to_owned() };
        assert_eq!(bench.job_fields(&hash)[0], "started");
        let end = printed(ending(job.job_key, Outcome::Succeeded), "hi");
        assert_eq!(worker.finish(&end).await, Ok(JobRecordOutcome::Recorded));
        assert_eq!(worker.finish(&end).await, Ok(JobRecordOutcome::Recorded), "again, after a lost answer");
        assert_eq!(bench.job_fields(&hash), ["finished", "hi", r#"{"k":"v"}"#, ""]);
        assert_eq!(bench.replies(id), [r#"{"k":"v"}"#, r#"{"k":"v"}"#]);
        assert_eq!(bench.redis.raw(15, &["EXISTS", "hero:done"]), ":0\r\n", "nobody else is told");
        let ttl = bench.redis.raw(15, &["TTL", &format!("hero:job:{}", job.job_key)]);
        assert!(ttl.trim_matches([':', '\r', '\n']).parse().is_ok_and(|ttl: i64| ttl > 0), "{ttl}");
        // The same id again is another run of it.
        let _ = bench.redis.raw(15, &["RPUSH", list, entry]);
        assert_eq!(bench.import(list).await, imported(1, 0));
    }
}

#[tokio::test]
async fn each_kind_of_end_is_written_back() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, _control) = bench.join(1).await;
    let fields = ["script", "x", "script_type", "shell"];
    for id in ["failed", "lost", "stopped", "plain"] {
        bench.dispatch(ACTOR_QUEUE, id, &fields);
    }
    assert_eq!(bench.import(ACTOR_QUEUE).await, imported(4, 0));
    let taken = intake.next(2, pending()).await.expect("an answer");
    let mut failed = ending(taken[0].execution.job_key, Outcome::Failed);
    failed.end.result.clear();
    failed.end.reason = Some(model::Reason::new(ReasonCode::ExitCode, "exit code 3"));
    worker.finish(&failed).await.expect("finished");
    assert_eq!(bench.job_fields("hero:job:failed"), ["error", "", "{}", "EXIT_CODE: exit code 3"]);
    assert_eq!(bench.replies("failed")[0], "EXIT_CODE: exit code 3");

    let _ = bench.redis.raw(15, &["DEL", "hero:meta:actor:inst:shell:default:1"]);
    assert_eq!(bench.supervisor.end_lost(&instance(1)).await, Ok(1));
    let lost = bench.job_fields("hero:job:lost");
    assert!(lost[0] == "error" && lost[3].starts_with("INSTANCE_LOST"), "{lost:?}");

    let waiting = bench.texts(&["LRANGE", SHARED, "0", "0"]);
    bench.supervisor.stop(waiting[0].parse().expect("a job key"), 0).await.expect("stopped");
    assert_eq!(
        (bench.job_fields("hero:job:stopped")[0].as_str(), bench.replies("stopped")[1].as_str()),
        ("error", "stopped")
    );

    let taken = take_one(&mut intake).await;
    let mut end = printed(ending(taken.execution.job_key, Outcome::Succeeded), "42");
    end.end.result.clear();
    worker.finish(&end).await.expect("finished");
    assert_eq!(
        (bench.job_fields("hero:job:plain")[1].as_str(), bench.replies("plain")[0].as_str()),
        ("42", "42")
    );
    assert_eq!(bench.redis.raw(15, &["EXISTS", "hero:done"]), ":0\r\n");
}

#[tokio::test]
async fn what_cannot_be_run_is_refused_and_nothing_runs_twice() {
    let bench = QueueTestBench::new();
    let fields = ["script", "x", "script_type", "shell"];
    bench.dispatch(ACTOR_QUEUE, "good", &fields);
    let _ = bench.redis.raw(15, &["RPUSH", ACTOR_QUEUE, "good"]);
    bench.dispatch(ACTOR_QUEUE, "python", &["script", "x", "script_type", "python"]);
    bench.dispatch(ACTOR_QUEUE, "slow", &[&fields[..], &["timeout", "soon"]].concat());
    bench.dispatch(ACTOR_QUEUE, "vars", &[&fields[..], &["env_vars", "[1]"]].concat());
    bench.dispatch(ACTOR_QUEUE, "huge", &["script", &"x".repeat(2 << 20), "script_type", "shell"]);
    bench.accept(1).await;
    let ours = job_key(1).to_string();
    bench.dispatch(ACTOR_QUEUE, "denied", &[&fields[..], &["env_vars", r#"{"DENIED":"policy"}"#]].concat());
    let raw = kv::Cmd::new("RPUSH").arg(ACTOR_QUEUE).arg(b"\xff\xfe");
    bench.kv.database(15).cmd(raw).await.expect("pushed");
    for nothing in ["unknown", "actor_queue:shell", "a b", &ours] {
        let _ = bench.redis.raw(15, &["RPUSH", ACTOR_QUEUE, nothing]);
    }
    assert_eq!(bench.import(ACTOR_QUEUE).await, imported(1, 10));
    assert_eq!(bench.redis.raw(15, &["LLEN", ACTOR_QUEUE]), ":0\r\n");
    for (id, why) in [
        ("python", "type"),
        ("slow", "timeout"),
        ("vars", "variables"),
        ("huge", "too long"),
        ("denied", "policy"),
    ] {
        let fields = bench.job_fields(&format!("hero:job:{id}"));
        assert!(fields[0] == "error" && fields[3].contains(why), "{id}: {fields:?}");
        assert_eq!(bench.replies(id).len(), 2);
    }
    assert_eq!(bench.redis.raw(15, &["EXISTS", "hero:job:unknown"]), ":0\r\n", "nothing is made up");
    assert_eq!(bench.redis.raw(15, &["HGET", &format!("hero:job:{ours}"), "status"]), "$6\r\nqueued\r\n");
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(intake.next(9, async {}).await.map(|taken| taken.len()), Ok(2));
}

#[tokio::test]
async fn more_is_taken_in_only_when_there_is_room_and_goes_back_in_the_end() {
    let bench = QueueTestBench::new();
    for id in 0..150 {
        bench.dispatch(ACTOR_QUEUE, &format!("old-{id}"), &["script", "x", "script_type", "shell"]);
    }
    assert_eq!(bench.import(ACTOR_QUEUE).await, imported(WAITING_MAX as u64, 0));
    assert_eq!(bench.import(ACTOR_QUEUE).await, imported(0, 0));
    assert_eq!(bench.redis.raw(15, &["LLEN", ACTOR_QUEUE]), ":50\r\n");
    assert_eq!(bench.supervisor.return_waiting().await, Ok(100));
    assert_eq!(bench.redis.raw(15, &["LLEN", ACTOR_QUEUE]), ":150\r\n");
    assert_eq!(
        (bench.keys("hero:unclaimed:*"), bench.keys("hero:jobs:*")),
        ("*0\r\n".into(), "*0\r\n".into())
    );
    assert_eq!(bench.import(ACTOR_QUEUE).await, imported(WAITING_MAX as u64, 0), "and may be taken in again");
    // With its context they end.
    assert_eq!(bench.supervisor.drop_context(context(), "somebody").await, Ok(0));
    let open = |id: &u32| bench.job_fields(&format!("hero:job:old-{id}"))[0] == "dispatched";
    assert_eq!((0..150).filter(open).count(), 50);
}

#[tokio::test]
async fn foreign_entries_in_our_queues_do_nothing() {
    let supervisor_bench = QueueTestBench::new();
    let supervisor = supervisor_bench.supervisor.clone().with_legacy_workers(vec![binding(ACTOR_QUEUE)]);
    let bench = QueueTestBench { supervisor, ..supervisor_bench };
    let unknown = job_key(77).to_string();
    let own = "hero:q:work:type:shell:group:default:inst:2";
    for job in 1..=3 {
        let mut execution = execution(job);
        execution.instance = (job == 3).then_some(2);
        bench.accept_as(execution).await;
    }
    // A list behind an entry that looks like a job; nonsense; an unknown entry; ours again; ours in another's place.
    let (first, targeted) = (job_key(1).to_string(), job_key(3).to_string());
    for entry in ["actor_queue:shell", "\u{fffd}\n", "", &unknown, &first, &targeted, &first] {
        for push in ["LPUSH", "RPUSH"] {
            let _ = bench.redis.raw(15, &[push, SHARED, entry]);
        }
    }
    let (_, mut intake, _control) = bench.join(1).await;
    bench.supervisor.requeue_unclaimed().await.expect("an answer");
    assert_eq!(take(&mut intake, 10).await, [1, 2], "each once, and what was sent elsewhere not at all");
    let (_, mut second, _control) =
        queue::join(&bench.kv, 15, instance(2), about(), |_| true).await.expect("a place");
    assert_eq!(take(&mut second, 10).await, [3]);
    assert_eq!(bench.redis.raw(15, &["LLEN", SHARED]), ":0\r\n");
    assert_eq!(bench.redis.raw(15, &["LLEN", own]), ":0\r\n");
    // The same by way of the blocking pop.
    for entry in ["actor_queue:shell", &unknown, &targeted] {
        let _ = bench.redis.raw(15, &["RPUSH", SHARED, entry]);
        assert_eq!(take(&mut intake, 1).await, [0; 0]);
    }
    let _ = bench.redis.raw(15, &["RPUSH", SHARED, &unknown]);
    bench.accept(4).await;
    assert_eq!(take(&mut intake, 1).await, [4]);
    assert!(bench.supervisor.accept(offer(execution(77))).await.expect("it was never known").is_new);
}

#[tokio::test]
async fn commands_to_a_type_reach_its_instances() {
    let bench = QueueTestBench::new();
    let (_one, _, mut first) = bench.join(1).await;
    let (_two, _, mut second) = bench.join(2).await;
    let mut control = bench.supervisor.type_control();
    assert_eq!(control.next(async {}).await, Ok(None));
    let list = "hero:q:ctl:type:shell";
    let key = job_key(1);
    let stop = format!(r#"{{"command":"stop","job_key":"{key}","grace_secs":3}}"#);
    for command in ["nonsense", r#"{"command":"drain"}"#, r#"{"command":"drain","deadline_secs":7}"#, &stop] {
        let _ = bench.redis.raw(15, &["RPUSH", list, command]);
    }
    let mut passed_on = Vec::new();
    while passed_on.len() < 3 {
        if let Some((scope, command)) = control.next(pending()).await.expect("an answer") {
            assert_eq!(scope, ControlScope::Type(ScriptType::Shell));
            assert_eq!(bench.supervisor.command(&scope, &command).await, Ok(2));
            passed_on.push(command);
        }
    }
    let expected = [
        InstanceCommand::Drain { deadline_secs: None },
        InstanceCommand::Drain { deadline_secs: Some(7) },
        InstanceCommand::Stop { job_key: key, grace_secs: 3 },
    ];
    assert_eq!(passed_on, expected);
    for command in expected {
        assert_eq!(first.next(pending()).await, Ok(Some(command.clone())));
        assert_eq!(second.next(pending()).await, Ok(Some(command)));
    }
}
