//! Life of a job when nothing goes wrong.

use std::collections::HashSet;
use std::future::pending;

use keys::{ControlScope, WorkQueue};
use model::execution::Outcome;
use model::id::Uid;
use model::{ContextUid, ScriptSource, ScriptType, Timestamp};
use queue::{InstanceCommand, JobAcceptError, JobRecordOutcome, LogChunk, QueueEventKind, QueueJobStatus};
use testkit::{PATIENCE, wait_until};

use crate::setup::{
    COORDINATOR, QueueTestBench, ending, events, execution, instance, job_key, offer, take, take_one,
};

#[tokio::test]
async fn a_job_goes_all_the_way() {
    let bench = QueueTestBench::new();
    let mut reader = bench.supervisor.events();
    let (worker, mut intake, _control) = bench.join(1).await;
    let key = bench.accept(1).await;

    let taken = take_one(&mut intake).await;
    assert_eq!(taken.execution, execution(1), "what was offered arrives whole");
    assert_eq!(worker.busy(), 1);
    let piece =
        LogChunk {
            offset: 0, text: "héllo\n".into(), time: Some(Timestamp::from_millis(1_800_000_000_250))
        };
    assert_eq!(worker.log(key, piece.clone()).await, Ok(JobRecordOutcome::Recorded));
    assert_eq!(
        worker.log(key, piece.clone()).await,
        Ok(JobRecordOutcome::Recorded),
        "again, after a lost answer"
    );
    let last = LogChunk { offset: piece.end(), text: "bye\n".into(), time: None };
    let mut end = ending(key, Outcome::Succeeded);
    end.last_log = Some(last.clone());
    assert_eq!(worker.finish(&end).await, Ok(JobRecordOutcome::Recorded));
    assert_eq!(worker.finish(&end).await, Ok(JobRecordOutcome::Recorded), "again, after a lost answer");
    assert_eq!(worker.busy(), 0);

    let seen = events(&mut reader, 4).await;
    let numbers: Vec<_> = seen.iter().map(|event| event.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert!(seen.iter().all(|event| event.coordinator == COORDINATOR && event.origin.flow_id.0 == 7));
    let QueueEventKind::Started { instance, time, queued_time: Some(queued) } = &seen[0].kind else {
        panic!("{:?}", seen[0])
    };
    assert!(instance == "shell:default:1" && queued <= time, "{:?}", seen[0]);
    assert_eq!(seen[1].kind, QueueEventKind::Log(piece));
    assert_eq!(seen[2].kind, QueueEventKind::Log(last));
    assert_eq!(seen[3].kind, QueueEventKind::Ended(Box::new(end.end.clone())));

    let state = bench.supervisor.status(key).await.expect("an answer").expect("a known job");
    assert_eq!((state.status, state.log_offset, state.end), (QueueJobStatus::Finished, 11, Some(end.end)));
    reader.acknowledge(&seen).await.expect("acknowledged");
    assert_eq!(bench.redis.raw(15, &["XLEN", "hero:done"]), ":0\r\n");
    assert_ne!(bench.redis.raw(15, &["TTL", &format!("hero:job:{key}")]), ":-1\r\n");
    assert_eq!(bench.redis.raw(15, &["HEXISTS", &format!("hero:job:{key}"), "script"]), ":0\r\n");
    assert_eq!(bench.redis.raw(15, &["LLEN", &format!("hero:q:reply:{key}")]), ":1\r\n");
}

#[tokio::test]
async fn first_in_first_out_by_priority_and_closeness() {
    let bench = QueueTestBench::new();
    let plan = [(1, 1, None), (2, 2, None), (3, 1, None), (4, 0, None), (5, 1, Some(1)), (6, 0, None)];
    for (job, priority, number) in plan {
        let mut execution = execution(job);
        execution.priority = priority;
        execution.instance = number;
        bench.accept_as(execution).await;
    }
    let mut other = execution(7);
    other.instance = Some(2);
    bench.accept_as(other).await;

    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 2).await, [4, 6]);
    assert_eq!(take(&mut intake, 10).await, [5, 1, 3, 2], "job 7 waits for its own instance");
    assert_eq!(take(&mut intake, 10).await, [0; 0]);
    let (_, mut second, _control) = bench.join(2).await;
    assert_eq!(take(&mut second, 10).await, [7]);
}

#[tokio::test]
async fn one_key_is_one_job() {
    let bench = QueueTestBench::new();
    bench.accept(1).await;
    let again = bench.supervisor.accept(offer(execution(1))).await.expect("the same job");
    assert_eq!((again.is_new, again.status), (false, QueueJobStatus::Queued));

    let mut changed = execution(1);
    changed.script = ScriptSource::Inline("rm -rf /".into());
    let refusal = bench.supervisor.accept(offer(changed)).await.expect_err("another content");
    assert!(matches!(refusal, JobAcceptError::KeyConflict(_)) && refusal.is_permanent(), "{refusal}");

    let mut foreign = offer(execution(2));
    foreign.coordinator = "another".into();
    let refusal = bench.supervisor.accept(foreign.clone()).await.expect_err("another coordinator");
    assert_eq!(refusal.code(), "CONTEXT_CLAIMED");
    foreign.execution.job_key.context = ContextUid(Uid::from_bits(9));
    bench.supervisor.accept(foreign).await.expect("a context of its own");

    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 10).await.len(), 2);
}

#[tokio::test]
async fn offers_in_one_go_have_a_result_each() {
    let bench = QueueTestBench::new();
    let mut changed = execution(1);
    changed.timeout_secs = 1;
    let offers = vec![offer(execution(1)), offer(changed), offer(execution(2)), offer(execution(1))];
    let results = bench.supervisor.accept_all(offers).await;
    let shown: Vec<_> = results
        .iter()
        .map(|result| result.as_ref().map(|a| a.is_new).map_err(JobAcceptError::code))
        .collect();
    assert_eq!(shown, [Ok(true), Err("KEY_CONFLICT"), Ok(true), Ok(false)]);
    assert!(bench.supervisor.accept_all(Vec::new()).await.is_empty());
}

#[tokio::test]
async fn a_waiting_instance_is_woken_by_work_and_by_its_owner() {
    let bench = QueueTestBench::new();
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 1).await, [0; 0], "woken at once");
    let waiting = || async { bench.redis.raw(15, &["CLIENT", "LIST"]).contains("cmd=blpop").then_some(()) };
    let (taken, ()) = tokio::join!(take_one(&mut intake), async {
        wait_until(waiting, PATIENCE, "the instance waits").await;
        bench.accept(1).await;
    });
    assert_eq!(taken.execution.job_key, job_key(1));
}

#[tokio::test]
async fn two_instances_share_thousands_of_jobs() {
    const JOBS: u32 = 3000;
    let bench = QueueTestBench::new();
    let mut reader = bench.supervisor.events();
    let (one, mut one_intake, _one_control) = bench.join(1).await;
    let (two, mut two_intake, _two_control) = bench.join(2).await;
    let (stop, _) = tokio::sync::watch::channel(false);

    let work = async |worker: &queue::InstanceSession, intake: &mut queue::JobConsumer| {
        let mut done = Vec::new();
        let mut stopped = stop.subscribe();
        loop {
            let cancel = async { drop(stopped.wait_for(|stop| *stop).await) };
            let taken = intake.next(16, cancel).await.expect("an answer");
            if taken.is_empty() && *stop.borrow() {
                return done;
            }
            for taken in taken {
                let end = ending(taken.execution.job_key, Outcome::Succeeded);
                assert_eq!(worker.finish(&end).await, Ok(JobRecordOutcome::Recorded));
                done.push(taken.execution.job_key);
            }
        }
    };
    let feed = async {
        for part in (0..JOBS).collect::<Vec<_>>().chunks(100) {
            let offers = part.iter().map(|job| offer(execution(*job))).collect();
            assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
        }
    };
    let listen = async {
        let mut ends = HashSet::new();
        while ends.len() < JOBS as usize {
            let batch = reader.next(pending()).await.expect("an answer");
            for event in &batch {
                if matches!(event.kind, QueueEventKind::Ended(_)) {
                    assert!(ends.insert(event.job_key), "one end each");
                }
            }
            reader.acknowledge(&batch).await.expect("acknowledged");
        }
        stop.send_replace(true);
    };
    let (a, b, (), ()) = tokio::join!(work(&one, &mut one_intake), work(&two, &mut two_intake), feed, listen);
    let all: HashSet<_> = a.iter().chain(&b).collect();
    assert_eq!((all.len(), a.len() + b.len()), (JOBS as usize, JOBS as usize));
    assert!(!a.is_empty() && !b.is_empty());
    let stats = bench.supervisor.statistics().await.expect("an answer");
    assert_eq!((stats[0].depth, stats[0].taken), (0, u64::from(JOBS)));
    assert_eq!(bench.keys("hero:unclaimed:*"), "*0\r\n");
    assert_eq!(bench.keys("hero:claims:*"), "*0\r\n");
}

#[tokio::test]
async fn queues_are_measured_and_instances_listed() {
    let bench = QueueTestBench::new();
    assert!(bench.supervisor.instances().await.expect("an answer").is_empty());
    let (worker, _intake, mut control) = bench.join(1).await;
    bench.accept(1).await;
    let stats = bench.supervisor.statistics().await.expect("an answer");
    assert_eq!((stats[0].queue.clone(), stats[0].depth), (WorkQueue::shared(ScriptType::Shell), 1));
    assert!(stats[0].oldest_age_secs >= 0.0);

    let listed = bench.supervisor.instances().await.expect("an answer");
    assert_eq!(listed.len(), 1);
    let info = listed[0].1.info(&listed[0].0);
    assert_eq!((info.slots, info.busy, info.isolation), (4, 0, model::Isolation::Basic));

    let scope = ControlScope::Type(ScriptType::Shell);
    assert_eq!(
        bench.supervisor.command(&scope, &InstanceCommand::Drain { deadline_secs: None }).await,
        Ok(1)
    );
    assert_eq!(control.next(pending()).await, Ok(Some(InstanceCommand::Drain { deadline_secs: None })));
    assert_eq!(control.next(async {}).await, Ok(None));
    worker.leave().await.expect("left");
    assert!(bench.supervisor.instances().await.expect("an answer").is_empty());
    assert!(bench.supervisor.absent().await.expect("an answer").is_empty());
    assert_eq!(bench.supervisor.name().await, bench.supervisor.name().await);
}

#[tokio::test]
async fn a_name_is_taken_once() {
    let bench = QueueTestBench::new();
    let (first, _intake, _control) = bench.join(1).await;
    let refused = queue::join(&bench.kv, 15, instance(1), crate::setup::about(), |holder| {
        assert_eq!(holder.hostname, "here");
        false
    });
    let refused = refused.await.expect_err("the name is taken");
    assert!(refused.to_string().contains("shell:default:1"), "{refused}");
    first.refresh().await.expect("still there");
    let (second, _intake, _control) = bench.join(1).await;
    let replaced = first.refresh().await.expect_err("replaced");
    assert_eq!(replaced.code(), Some("REPLACED"));
    first.leave().await.expect("an answer");
    second.refresh().await.expect("the second is untouched");
}
