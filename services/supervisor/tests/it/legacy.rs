//! Old workers, old dispatchers and commands to types, with a whole supervisor between.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::PathBuf;

use kv::{Cmd, Kv, KvConnection};
use model::execution::{AttemptEnd, Outcome};
use model::id::Uid;
use model::{ContextUid, Execution, Grants, JobKey, ScriptType, Timestamp};
use queue::{
    InstanceCommand, InstanceCommandReader, InstanceDescriptor, InstanceRef, InstanceSession, JobConsumer,
    JobEndReport, JobOffer, QueueJobStatus,
};
use supervisor::legacy::LegacyBindings;
use testkit::{PATIENCE, RedisServer, wait_until};
use tokio_util::sync::CancellationToken;

use crate::backlog::execution;

struct Suite {
    redis: RedisServer,
    kv: Kv,
    db: KvConnection,
    shutdown: CancellationToken,
    _files: tempfile::TempDir,
}

impl Drop for Suite {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn context() -> ContextUid {
    ContextUid(Uid::from_bits(1))
}

/// A supervisor with these tables, and a store that was read.
async fn suite(tables: &str) -> (Suite, LegacyBindings) {
    let files = tempfile::tempdir().expect("a directory");
    let path: PathBuf = files.path().join("legacy.toml");
    std::fs::write(&path, tables.replace("CONTEXT", &context().to_string())).expect("written");
    let bindings = LegacyBindings::load(&path).expect("bindings");
    let redis = RedisServer::start();
    let kv = Kv::new(redis.url().parse().expect("the url of a test server"));
    let metrics = prometheus::Registry::new();
    let deps = supervisor::Deps { kv: kv.clone(), bus: None, metrics: &metrics };
    let config =
        supervisor::Config { legacy: bindings.clone(), ..supervisor::Config::new(files.path().join("work")) };
    let app = config.build(deps).expect("built");
    let (mut ready, shutdown) = (app.readiness().subscribe(), CancellationToken::new());
    tokio::spawn(app.run(shutdown.clone()));
    ready.wait_for(|ready| *ready).await.expect("it runs");
    let db = kv.default_database();
    (Suite { redis, kv, db, shutdown, _files: files }, bindings)
}

impl Suite {
    async fn join(&self) -> (InstanceSession, JobConsumer, InstanceCommandReader) {
        let group = "default".parse().expect("a name");
        let who = InstanceRef { script_type: ScriptType::Shell, group, number: 1 };
        let about = InstanceDescriptor {
            hostname: "here".into(),
            pid: 1,
            process_start: 1,
            slots: 1,
            isolation: model::Isolation::Basic,
            layers: Vec::new(),
            version: "0".into(),
        };
        queue::join(&self.kv, self.kv.endpoint().database(), who, about, |_| true).await.expect("a place")
    }

    async fn texts(&self, cmd: Cmd) -> Vec<String> {
        let answer = self.db.cmd(cmd).await.and_then(|answer| answer.array()).expect("an answer");
        answer.into_iter().map(|text| text.optional_text().expect("a text").unwrap_or_default()).collect()
    }
}

fn job() -> Execution {
    Execution { script_type: ScriptType::Shell, timeout_secs: 60, ..execution(1, 1) }
}

fn ending(job_key: JobKey) -> JobEndReport {
    let end = AttemptEnd {
        outcome: Outcome::Succeeded,
        exit_code: Some(0),
        reason: None,
        result: BTreeMap::from([("answer".into(), "42".into())]),
        outputs: BTreeMap::new(),
        output_bytes: 0,
        ended: Vec::new(),
        instance: None,
        start_time: None,
        end_time: Timestamp::now(),
    };
    JobEndReport { job_key, end, last_log: None, output_tail: "so".into() }
}

#[tokio::test]
async fn an_old_worker_ends_a_job() {
    let tables = "[[legacy]]\npush = 'hero:work_queue:w'\nscript_type = 'shell'\ncontext = 'CONTEXT'\n";
    let (suite, bindings) = suite(tables).await;
    let database = suite.kv.endpoint().database();
    let queue = queue::SupervisorQueues::new(suite.kv.clone(), database)
        .with_legacy_workers(bindings.push().to_vec());
    let job = job();
    let key = job.job_key;
    let offer = JobOffer {
        execution: job,
        coordinator: "c".into(),
        grants: Grants::default(),
        condition: queue::AcceptCondition::None,
        weight: std::num::NonZeroU32::MIN,
    };
    assert!(queue.accept(offer).await.expect("accepted").is_new);
    let popped = suite.texts(Cmd::new("BLPOP").arg("hero:work_queue:w").arg(0)).await;
    assert_eq!(popped[1], key.to_string());
    let hash = format!("hero:job:{key}");
    suite.db.cmd(Cmd::new("HSET").arg(&hash).args(["status", "started"])).await.expect("written");
    let started = async || {
        let state = queue.status(key).await.expect("an answer").expect("a known job");
        (state.instance.as_deref() == Some("legacy:hero:work_queue:w")).then_some(())
    };
    wait_until(started, PATIENCE, "the sweep has noticed").await;
    let record_fields = ["status", "finished", "result", "answer=42"];
    suite.db.cmd(Cmd::new("HSET").arg(&hash).args(record_fields)).await.expect("written");
    let ended = async || {
        let state = queue.status(key).await.expect("an answer").expect("a known job");
        (state.status == QueueJobStatus::Finished).then_some(state.end)
    };
    let end = wait_until(ended, PATIENCE, "the sweep has read the end").await.expect("an end");
    assert_eq!(end.result["answer"], "42");
}

#[tokio::test]
async fn a_job_of_an_old_dispatcher_is_run() {
    let tables = "[[legacy]]\npop = 'queue:shell'\nscript_type = 'shell'\ncontext = 'CONTEXT'\n";
    let (suite, _) = suite(tables).await;
    let fields = ["script", "echo so", "script_type", "shell", "status", "dispatched"];
    suite.db.cmd(Cmd::new("HSET").arg("job:12:1").args(fields)).await.expect("written");
    suite.db.cmd(Cmd::new("LPUSH").arg("queue:shell").arg("job:12:1")).await.expect("pushed");
    // Only now is anybody there who could run it.
    let (worker, mut intake, _control) = suite.join().await;
    let mut taken = Vec::new();
    while taken.is_empty() {
        taken = intake.next(1, pending()).await.expect("an answer");
    }
    assert_eq!(taken[0].execution.job_key.context, context());
    worker.finish(&ending(taken[0].execution.job_key)).await.expect("finished");
    let record_fields =
        suite.texts(Cmd::new("HMGET").arg("job:12:1").args(["status", "output", "result"])).await;
    assert_eq!(record_fields, ["finished", "so", r#"{"answer":"42"}"#]);
    let reply = suite.texts(Cmd::new("LRANGE").arg("hero:q:reply:12:1").arg(0).arg(-1)).await;
    assert_eq!(reply, [r#"{"answer":"42"}"#]);
}

#[tokio::test]
async fn a_command_to_a_type_is_passed_on() {
    let (suite, _) = suite("").await;
    let (_worker, _intake, mut control) = suite.join().await;
    let list = "hero:q:ctl:type:shell";
    let _ = suite.redis.raw(suite.kv.endpoint().database(), &["RPUSH", list, r#"{"command":"drain"}"#]);
    let mut command = None;
    while command.is_none() {
        command = control.next(pending()).await.expect("an answer");
    }
    assert_eq!(command, Some(InstanceCommand::Drain { deadline_secs: None }));
}
