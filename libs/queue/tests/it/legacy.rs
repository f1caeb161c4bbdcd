//! Jobs that old workers may take.

use std::time::Duration;

use keys::LegacyQueue;
use model::execution::{AttemptEnd, Outcome};
use model::{BlobHash, Execution, Grants, Isolation, ReasonCode, ScriptSource, ScriptType};
use queue::{
    JobOffer, LegacySweepCounts, OLD_WORKER_PATIENCE, PushBinding, QueueEvent, QueueEventKind,
    QueueEventReader, QueueJobStatus, StopOutcome,
};

use crate::legacy_worker::{LegacyTestWorker, PopSide};
use crate::setup::{COORDINATOR, QueueTestBench, events, execution, job_key, offer, take};

pub(crate) const ACTOR_QUEUE: &str = "hero:job:actor_queue:shell";
const FORMS: [&str; 4] = [ACTOR_QUEUE, "hero:job:old_actor", "hero:work_queue:old_actor", "queue:shell"];

pub(crate) fn with_old(list: &str) -> QueueTestBench {
    let bench = QueueTestBench::new();
    let supervisor = bench.supervisor.clone().with_legacy_workers(vec![binding(list)]);
    QueueTestBench { supervisor, ..bench }
}

pub(crate) fn binding(list: &str) -> PushBinding {
    let queue = LegacyQueue::parse(list).expect("an old queue");
    PushBinding { queue, script_type: ScriptType::Shell, context: job_key(1).context }
}

fn swept(taken: u64, ended: u64, lost: u64) -> kv::Result<LegacySweepCounts> {
    Ok(LegacySweepCounts { taken, ended, lost })
}

async fn end_of(reader: &mut QueueEventReader, count: usize) -> (Vec<QueueEvent>, AttemptEnd) {
    let mut seen = events(reader, count).await;
    let QueueEventKind::Ended(end) = seen.pop().expect("an event").kind else { panic!("{seen:?}") };
    (seen, *end)
}

impl QueueTestBench {
    async fn sweep(&self) -> kv::Result<LegacySweepCounts> {
        self.supervisor.sweep_legacy(OLD_WORKER_PATIENCE).await
    }

    fn len(&self, list: &str) -> String {
        self.redis.raw(15, &["LLEN", list])
    }
}

#[tokio::test]
async fn each_form_of_queue_is_served() {
    for list in FORMS {
        let bench = with_old(list);
        let mut reader = bench.supervisor.events();
        let old = LegacyTestWorker::new(&bench.kv, list, PopSide::Left);
        let (_, mut intake, _control) = bench.join(1).await;
        bench.accept(1).await;
        bench.accept(2).await;
        assert_eq!(bench.len(list), ":2\r\n");
        let task = old.pop().await.expect("a job");
        assert_eq!(
            (task.fields["script"].as_str(), task.fields["script_type"].as_str()),
            ("echo 1", "shell")
        );
        assert_eq!((task.fields["timeout"].as_str(), task.fields["status"].as_str()), ("60", "dispatched"));
        assert_eq!(task.fields["env_vars"], r#"{"A":"\"b\"\n"}"#);
        assert_eq!(take(&mut intake, 10).await, [2], "job 1 is passed over");
        assert_eq!(
            (bench.len(list), bench.len("hero:q:work:type:shell")),
            (":0\r\n".into(), ":0\r\n".into())
        );

        old.write(&task, &[("status", "started")]).await;
        assert_eq!(bench.sweep().await, swept(0, 0, 0), "the taking was noticed");
        let result = r#"{"a":"x","n":1.50}"#;
        old.write(&task, &[("status", "finished"), ("output", "héllo\n"), ("result", result)]).await;
        assert_eq!(bench.sweep().await, swept(0, 1, 0));
        let (seen, end) = end_of(&mut reader, 4).await;
        let of_it: Vec<_> = seen.iter().filter(|event| event.job_key == job_key(1)).collect();
        let worker = format!("legacy:{list}");
        assert!(matches!(&of_it[0].kind, QueueEventKind::Started { instance, .. } if *instance == worker));
        let QueueEventKind::Log(log) = &of_it[1].kind else { panic!("{seen:?}") };
        assert_eq!((log.offset, log.text.as_str()), (0, "héllo\n"));
        assert_eq!((end.outcome, end.instance.as_deref()), (Outcome::Succeeded, Some(worker.as_str())));
        assert_eq!((end.result["a"].as_str(), end.result["n"].as_str(), end.output_bytes), ("x", "1.50", 7));
        assert!(end.start_time.is_some_and(|start| start <= end.end_time));
        let state = bench.supervisor.status(job_key(1)).await.expect("an answer").expect("a known job");
        assert_eq!(
            (state.status, state.instance, state.end),
            (QueueJobStatus::Finished, Some(worker), Some(end))
        );
        assert_eq!(bench.sweep().await, swept(0, 0, 0));
        assert_eq!(bench.keys("hero:legacy*"), "*0\r\n", "{list}");
        assert_eq!(bench.keys("hero:claims:legacy*"), "*0\r\n", "{list}");
    }
}

#[tokio::test]
async fn the_sweep_notices_what_is_taken_from_either_end() {
    for list in [ACTOR_QUEUE, "queue:shell"] {
        let bench = with_old(list);
        let mut reader = bench.supervisor.events();
        for job in 1..=6 {
            bench.accept(job).await;
        }
        let (left, right) = (
            LegacyTestWorker::new(&bench.kv, list, PopSide::Left),
            LegacyTestWorker::new(&bench.kv, list, PopSide::Right),
        );
        let tasks = [left.pop().await.expect("a job"), right.pop().await.expect("a job")];
        assert_eq!(bench.sweep().await, swept(2, 0, 0));
        let seen = events(&mut reader, 2).await;
        assert_eq!(seen.iter().map(|event| event.job_key.job.0).collect::<Vec<_>>(), [1, 6]);
        left.write(&tasks[0], &[("status", "error"), ("error", "no such file")]).await;
        right.write(&tasks[1], &[("status", "finished")]).await;
        assert_eq!(bench.sweep().await, swept(0, 1, 0), "the other may be about to say what came of it");
        assert_eq!(bench.sweep().await, swept(0, 1, 0), "it is not");
        let seen = events(&mut reader, 2).await;
        let QueueEventKind::Ended(failed) = &seen[0].kind else { panic!("{seen:?}") };
        let QueueEventKind::Ended(silent) = &seen[1].kind else { panic!("{seen:?}") };
        let reason = failed.reason.as_ref().map(ToString::to_string);
        assert_eq!(
            (failed.outcome, reason.as_deref()),
            (Outcome::Failed, Some("RUNTIME_ERROR: no such file"))
        );
        assert_eq!((silent.outcome, silent.result.len()), (Outcome::Succeeded, 0));

        // Others use the same queue, and the entries of ours are behind theirs.
        for _ in 0..1500 {
            let _ = bench.redis.raw(15, &["LPUSH", list, "theirs"]);
        }
        let (_, mut intake, _control) = bench.join(1).await;
        let task = right.pop().await.expect("a job");
        right.write(&task, &[("status", "started")]).await;
        assert_eq!(bench.sweep().await, swept(1, 0, 0));
        assert_eq!(take(&mut intake, 10).await, [2, 3, 4]);
        assert_eq!(bench.len(list), ":1500\r\n");
    }
}

#[tokio::test]
async fn what_an_old_worker_could_not_run_as_well_is_not_shown_to_it() {
    let list = ACTOR_QUEUE;
    let bench = with_old(list);
    let mut jobs: Vec<Execution> = (1..=9).map(execution).collect();
    jobs[0].group = Some("default".parse().expect("a name"));
    jobs[1].instance = Some(1);
    jobs[2].outputs = vec!["out".into()];
    jobs[3].isolation = Isolation::Confined;
    jobs[4].env_vars.insert("B".into(), "${{ needs.a.result }}".into());
    let blob = model::job::BlobRef { sha256: BlobHash::of(b"x"), size: 1 };
    jobs[5].script = ScriptSource::Blob(blob);
    jobs[6].job_key.context = model::ContextUid(model::id::Uid::from_bits(99));
    jobs[7].script_type = ScriptType::Python;
    for job in jobs {
        let kept = job.node.as_str() != "node-9";
        bench.accept_as(job).await;
        assert_eq!(bench.len(list), if kept { ":0\r\n" } else { ":1\r\n" });
    }
    let strict = Grants { isolation: Isolation::Contained, ..Grants::default() };
    let offered = bench.supervisor.accept(JobOffer { grants: strict.clone(), ..offer(execution(10)) }).await;
    assert!(offered.expect("accepted").is_new);
    assert_eq!(bench.len(list), ":1\r\n");

    // What a list of that name is not, is left alone; and grants arrive.
    let _ = bench.redis.raw(15, &["DEL", list]);
    let _ = bench.redis.raw(15, &["SET", list, "theirs"]);
    bench.accept(11).await;
    let (_, mut intake, _control) = bench.join_giving(1, Isolation::Contained).await;
    let taken = intake.next(10, async {}).await.expect("an answer");
    let last = taken.iter().find(|taken| taken.execution.job_key == job_key(10)).expect("job 10");
    assert_eq!((taken.len(), &last.grants), (10, &strict), "all but the one of another type");
    assert_eq!(taken[0].grants, Grants::default());
}

#[tokio::test]
async fn a_stop_reaches_the_queue_and_not_the_worker() {
    for list in [ACTOR_QUEUE, "queue:shell"] {
        let bench = with_old(list);
        let mut reader = bench.supervisor.events();
        let old = LegacyTestWorker::new(&bench.kv, list, PopSide::Left);
        for job in 1..=3 {
            bench.accept(job).await;
        }
        assert_eq!(bench.supervisor.stop(job_key(2), 5).await, Ok(StopOutcome::Stopped), "in the middle");
        assert_eq!(bench.len(list), ":2\r\n");
        let task = old.pop().await.expect("a job");
        assert_eq!(bench.supervisor.stop(job_key(1), 5).await, Ok(StopOutcome::Stopped), "not noticed yet");
        let other = old.pop().await.expect("job 3");
        assert_eq!(bench.sweep().await, swept(1, 0, 0));
        assert_eq!(bench.supervisor.stop(job_key(3), 5).await, Ok(StopOutcome::Stopped), "noticed");
        for task in [&task, &other] {
            old.write(task, &[("status", "finished"), ("output", "late"), ("result", "a=1")]).await;
        }
        assert_eq!(bench.sweep().await, swept(0, 0, 0));
        assert_eq!(
            bench.supervisor.stop(job_key(3), 5).await,
            Ok(StopOutcome::Ended(QueueJobStatus::Stopped))
        );

        let seen = events(&mut reader, 5).await;
        let ends: Vec<_> = seen
            .iter()
            .filter_map(|event| match &event.kind {
                QueueEventKind::Ended(end) => Some((event.job_key.job.0, end.clone())),
                _ => None,
            })
            .collect();
        assert_eq!(ends.iter().map(|(job, _)| *job).collect::<Vec<_>>(), [2, 1, 3]);
        assert!(ends.iter().all(|(_, end)| end.outcome == Outcome::Stopped && end.result.is_empty()));
        let reason = ends[2].1.reason.clone().expect("a reason");
        assert!(reason.code == ReasonCode::Stopped && reason.detail.contains("old worker"), "{reason}");
        let state = bench.supervisor.status(job_key(3)).await.expect("an answer").expect("a known job");
        assert_eq!((state.status, state.end.as_ref()), (QueueJobStatus::Stopped, Some(&*ends[2].1)));
        let (_, mut intake, _control) = bench.join(1).await;
        assert_eq!(take(&mut intake, 10).await, [0; 0]);
        assert_eq!(bench.keys("hero:claims:*"), "*0\r\n");
    }
}

#[tokio::test]
async fn what_is_never_ended_is_lost() {
    let bench = with_old(ACTOR_QUEUE);
    let mut reader = bench.supervisor.events();
    let old = LegacyTestWorker::new(&bench.kv, ACTOR_QUEUE, PopSide::Left);
    bench.accept(1).await;
    bench.accept_as(Execution { timeout_secs: 0, ..execution(2) }).await;
    let task = old.pop().await.expect("a job");
    old.pop().await.expect("another");
    assert_eq!(bench.sweep().await, swept(2, 0, 0));
    let begin = |job: u32, secs: f64| {
        let hash = format!("hero:job:{}", job_key(job));
        let now = model::Timestamp::now().as_millis() as f64 / 1000.0;
        bench.redis.raw(15, &["HSET", &hash, "started_at", &format!("{:.3}", now - secs)])
    };
    assert_eq!((begin(1, 110.0), begin(2, 1e8)), (":0\r\n".into(), ":0\r\n".into()));
    assert_eq!(bench.sweep().await, swept(0, 0, 0), "60 s and 60 s are not over");
    assert_eq!(bench.supervisor.sweep_legacy(Duration::from_secs(10)).await, swept(0, 0, 1));
    let (_, end) = end_of(&mut reader, 3).await;
    let reason = end.reason.expect("a reason");
    assert_eq!((end.outcome, reason.code), (Outcome::Lost, ReasonCode::InstanceLost));
    old.write(&task, &[("status", "finished"), ("result", "a=1")]).await;
    assert_eq!(bench.sweep().await, swept(0, 0, 0), "too late; and one without a limit is waited for");
    let state = bench.supervisor.status(job_key(1)).await.expect("an answer").expect("a known job");
    assert_eq!(state.status, QueueJobStatus::Lost);
    assert_eq!(bench.supervisor.resend_started().await, Ok(1));
    assert!(matches!(events(&mut reader, 1).await[0].kind, QueueEventKind::Started { .. }));
}

#[tokio::test]
async fn a_context_with_old_workers_is_forgotten() {
    for list in [ACTOR_QUEUE, "queue:shell"] {
        let bench = with_old(list);
        let old = LegacyTestWorker::new(&bench.kv, list, PopSide::Left);
        for job in 1..=4 {
            bench.accept(job).await;
        }
        let noticed = old.pop().await.expect("a job");
        assert_eq!(bench.sweep().await, swept(1, 0, 0));
        let unnoticed = old.pop().await.expect("a job");
        assert_eq!(bench.supervisor.drop_context(job_key(1).context, COORDINATOR).await, Ok(0));
        assert_eq!(bench.len(list), ":0\r\n");
        for task in [&noticed, &unnoticed] {
            old.write(task, &[("status", "finished"), ("output", "late")]).await;
        }
        assert_eq!(bench.sweep().await, swept(0, 0, 0));
        assert_eq!(bench.redis.raw(15, &["XLEN", "hero:done"]), ":0\r\n");
        for job in [1, 2] {
            let ttl = bench.redis.raw(15, &["TTL", &format!("hero:job:{}", job_key(job))]);
            assert!(ttl.trim_matches([':', '\r', '\n']).parse().is_ok_and(|ttl: i64| ttl > 0), "{ttl}");
            assert_eq!(bench.supervisor.status(job_key(job)).await, Ok(None));
        }
        assert_eq!(
            (bench.keys("hero:claims:*"), bench.keys("hero:unclaimed:*")),
            ("*0\r\n".into(), "*0\r\n".into())
        );
        // Another coordinator may use context and keys.
        let theirs = JobOffer { coordinator: "another".into(), ..offer(execution(1)) };
        assert!(bench.supervisor.accept(theirs).await.expect("accepted").is_new);
        assert_eq!(bench.redis.raw(15, &["TTL", &format!("hero:job:{}", job_key(1))]), ":-1\r\n");
        assert_eq!(
            bench.redis.raw(15, &["HEXISTS", &format!("hero:job:{}", job_key(1)), "output"]),
            ":0\r\n"
        );
        assert_eq!(bench.len(list), ":1\r\n");
    }
}

#[tokio::test]
async fn a_context_with_much_in_an_old_queue_is_forgotten_too() {
    let bench = with_old(ACTOR_QUEUE);
    let (worker, mut intake, _control) = bench.join(1).await;
    let mut other = execution(1);
    other.job_key.context = model::ContextUid(model::id::Uid::from_bits(99));
    let theirs = PushBinding { context: other.job_key.context, ..binding(ACTOR_QUEUE) };
    let rebound = bench.supervisor.clone().with_legacy_workers(vec![theirs]);
    let mut taken = Vec::new();
    for part in [0..450, 450..900] {
        let offers = part.map(|job| offer(execution(job))).collect();
        assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
        if taken.is_empty() {
            taken = take(&mut intake, 3).await;
        }
        // The binding was another one for a while: the queue has jobs of two contexts.
        let theirs = (0..300).map(|job| {
            let mut theirs = other.clone();
            theirs.job_key.job = model::JobId(job + other.job_key.job.0);
            offer(theirs)
        });
        assert!(rebound.accept_all(theirs.collect()).await.iter().all(Result::is_ok));
        other.job_key.job.0 += 300;
    }
    assert_eq!(taken, [0, 1, 2]);
    let context = job_key(1).context;
    assert_eq!(bench.supervisor.drop_context(context, COORDINATOR).await, Ok(3));
    for job in 0..3 {
        worker.finish(&crate::setup::ending(job_key(job), Outcome::Stopped)).await.expect("finished");
    }
    assert_eq!(bench.supervisor.drop_context(context, COORDINATOR).await, Ok(0));
    assert_eq!(bench.len(ACTOR_QUEUE), ":600\r\n", "the other context's");
    assert_eq!(bench.keys(&format!("hero:job:{context}*")), "*0\r\n");
    assert_eq!(bench.supervisor.drop_context(other.job_key.context, COORDINATOR).await, Ok(0));
    assert_eq!((bench.len(ACTOR_QUEUE), bench.keys("hero:job:*")), (":0\r\n".into(), "*0\r\n".into()));
    assert_eq!(bench.keys("hero:unclaimed:*"), "*0\r\n");
}

#[tokio::test]
async fn waiting_work_is_handed_back_from_both_queues() {
    let bench = with_old(ACTOR_QUEUE);
    let mut reader = bench.supervisor.events();
    let offers = (0..300).map(|job| offer(execution(job))).collect();
    assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
    let old = LegacyTestWorker::new(&bench.kv, ACTOR_QUEUE, PopSide::Left);
    for _ in 0..3 {
        old.pop().await.expect("a job");
    }
    assert_eq!(bench.supervisor.return_waiting().await, Ok(297), "what old workers have is not given back");
    assert_eq!(bench.len(ACTOR_QUEUE), ":0\r\n");
    let seen = events(&mut reader, 300).await;
    let count = |kind: fn(&QueueEventKind) -> bool| seen.iter().filter(|event| kind(&event.kind)).count();
    assert_eq!(count(|kind| *kind == QueueEventKind::Returned), 297);
    assert_eq!(count(|kind| matches!(kind, QueueEventKind::Started { .. })), 3);
    assert_eq!(bench.sweep().await, swept(0, 0, 0));
}

#[tokio::test]
async fn a_pop_of_ours_without_a_claim_leaves_the_old_entry_in_charge() {
    let bench = with_old(ACTOR_QUEUE);
    for job in 1..=3 {
        bench.accept(job).await;
    }
    let old = LegacyTestWorker::new(&bench.kv, ACTOR_QUEUE, PopSide::Left);
    for _ in 0..2 {
        let _ = bench.redis.raw(15, &["LPOP", "hero:q:work:type:shell"]);
    }
    let task = old.pop().await.expect("job 1");
    assert_eq!(task.entry, job_key(1).to_string());
    assert_eq!(bench.supervisor.requeue_unclaimed().await, Ok(2));
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 10).await, [2, 3]);
    assert_eq!((bench.len(ACTOR_QUEUE), old.pop().await.is_none()), (":0\r\n".into(), true));
}

#[tokio::test]
async fn much_output_and_large_results_are_bounded() {
    let bench = with_old(ACTOR_QUEUE);
    let mut reader = bench.supervisor.events();
    let old = LegacyTestWorker::new(&bench.kv, ACTOR_QUEUE, PopSide::Left);
    bench.accept(1).await;
    bench.accept(2).await;
    let (chatty, generous) = (old.pop().await.expect("a job"), old.pop().await.expect("another"));
    old.write(&chatty, &[("status", "finished"), ("output", &"x".repeat(1_000_000))]).await;
    old.write(&generous, &[("status", "finished"), ("result", &"y".repeat(1_000_000))]).await;
    assert_eq!(bench.sweep().await, swept(2, 2, 0));
    let seen = events(&mut reader, 5).await;
    let mut ends = Vec::new();
    for event in &seen {
        match &event.kind {
            QueueEventKind::Log(log) => assert_eq!((log.offset, log.end()), (1_000_000 - 65_536, 1_000_000)),
            QueueEventKind::Ended(end) => ends.push(end),
            _ => {}
        }
    }
    assert_eq!(
        (ends[0].output_bytes, ends[0].result["output"].len()),
        (1_000_000, queue::OUTPUT_TAIL_BYTES_MAX)
    );
    assert_eq!(ends[1].reason.as_ref().map(|reason| reason.code), Some(ReasonCode::ResultTooLarge));
}
