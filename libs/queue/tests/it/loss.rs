//! Loss of instances and answers, and how it is detected.

use std::time::{Duration, Instant};

use kv::{Cmd, Kv, KvOptions};
use model::execution::Outcome;
use queue::{InstanceLossDetector, JobRecordOutcome, QueueEventKind, QueueJobStatus};
use testkit::{FaultProxy, PATIENCE, ProxyFault, ProxyTarget, RedisServer, wait_until};

use crate::setup::{
    QueueTestBench, about, ending, events, execution, instance, job_key, offer, take, take_one,
};

const SHARED: &str = "hero:q:work:type:shell";

#[tokio::test]
async fn a_pop_without_a_claim_is_put_back_in_its_place() {
    let bench = QueueTestBench::new();
    for job in 1..=4 {
        bench.accept(job).await;
    }
    let pop = || async { bench.kv.database(15).cmd(Cmd::new("LPOP").arg(SHARED)).await.expect("a pop") };
    pop().await;
    pop().await;
    assert_eq!(bench.supervisor.requeue_unclaimed().await, Ok(2));
    assert_eq!(bench.supervisor.requeue_unclaimed().await, Ok(0));
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 10).await, [1, 2, 3, 4]);

    // Also when the queue was left empty, and when there are more than one script looks after.
    let offers = (10..510).map(|job| offer(execution(job))).collect();
    assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
    bench.kv.database(15).cmd(Cmd::new("DEL").arg(SHARED)).await.expect("deleted");
    assert_eq!(bench.supervisor.requeue_unclaimed().await, Ok(500));
    assert_eq!(take(&mut intake, 1000).await, (10..510).collect::<Vec<_>>());
}

#[tokio::test]
async fn jobs_behind_any_number_of_unknown_queue_entries_are_still_taken() {
    let bench = QueueTestBench::new();
    for _ in 0..2500 {
        let _ = bench.redis.raw(15, &["RPUSH", SHARED, "nobody"]);
    }
    for job in 1..=3 {
        bench.accept(job).await;
    }
    assert_eq!(bench.supervisor.requeue_unclaimed().await, Ok(0));
    assert_eq!(bench.redis.raw(15, &["LLEN", SHARED]), ":3\r\n");
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 10).await, [1, 2, 3]);
}

#[tokio::test]
async fn put_back_while_its_claim_is_on_the_way_it_still_runs_once() {
    let bench = QueueTestBench::new();
    let key = bench.accept(1).await;
    let (_, mut one, _control) = bench.join(1).await;
    assert_eq!(take(&mut one, 1).await, [1]);
    // As if its pop had been put back before the claim came: the entry is there twice.
    bench.kv.database(15).cmd(Cmd::new("LPUSH").arg(SHARED).arg(&key.to_string())).await.expect("a push");
    let (_, mut two, _control) = bench.join(2).await;
    assert_eq!(take(&mut two, 10).await, [0; 0]);
    assert_eq!(bench.redis.raw(15, &["LLEN", SHARED]), ":0\r\n");
}

#[tokio::test]
async fn a_lost_instance_loses_what_it_had_started_and_no_more() {
    let bench = QueueTestBench::new();
    let mut reader = bench.supervisor.events();
    let (worker, mut intake, _control) = bench.join(1).await;
    let (_other, mut other_intake, _other_control) = bench.join(2).await;
    for job in 1..=3 {
        bench.accept(job).await;
    }
    assert_eq!(take(&mut intake, 1).await, [1]);
    assert_eq!(take(&mut other_intake, 1).await, [2]);
    let gone = instance(1);
    assert_eq!(bench.supervisor.end_lost(&gone).await, Ok(0), "it is present");

    let _ = bench.redis.raw(15, &["DEL", "hero:meta:actor:inst:shell:default:1"]);
    let mut watch = InstanceLossDetector::new(Duration::from_secs(15));
    let now = Instant::now();
    assert_eq!(watch.check(&bench.supervisor, now).await, Ok(vec![]), "it may come back");
    assert_eq!(watch.check(&bench.supervisor, now + Duration::from_secs(14)).await, Ok(vec![]));
    let looked = watch.check(&bench.supervisor, now + Duration::from_secs(15)).await;
    assert_eq!(looked, Ok(vec![gone.clone()]));
    assert_eq!(bench.supervisor.end_lost(&gone).await, Ok(1));
    assert_eq!(watch.check(&bench.supervisor, now + Duration::from_secs(30)).await, Ok(vec![]));

    let seen = events(&mut reader, 3).await;
    let QueueEventKind::Ended(end) = &seen[2].kind else { panic!("{seen:?}") };
    assert_eq!((seen[2].job_key, end.outcome), (job_key(1), Outcome::Lost));
    assert!(end.start_time.is_some_and(|start| start <= end.end_time));
    assert_eq!(end.instance.as_deref(), Some("shell:default:1"));
    let state = bench.supervisor.status(job_key(1)).await.expect("an answer").expect("a known job");
    assert_eq!(state.status, QueueJobStatus::Lost);

    // It was only slow: its end comes too late, and it learns which job to give up.
    assert_eq!(worker.refresh().await.map(|refreshed| refreshed.closed), Ok(vec![job_key(1)]));
    let late = worker.finish(&ending(job_key(1), Outcome::Succeeded)).await;
    assert_eq!(late, Ok(JobRecordOutcome::Closed(Some(QueueJobStatus::Lost))));
    assert_eq!(take(&mut intake, 10).await, [3]);
}

#[tokio::test]
async fn a_new_life_ends_what_the_former_had_started() {
    let bench = QueueTestBench::new();
    let mut reader = bench.supervisor.events();
    let (_, mut intake, _control) = bench.join(1).await;
    bench.accept(1).await;
    take_one(&mut intake).await;
    let (_, mut second, _control) = bench.join(1).await;
    let seen = events(&mut reader, 2).await;
    assert!(matches!(&seen[1].kind, QueueEventKind::Ended(end) if end.outcome == Outcome::Lost));
    assert_eq!(take(&mut second, 10).await, [0; 0]);
}

#[tokio::test]
async fn an_answer_that_was_lost_is_found_again() {
    let bench = QueueTestBench::new();
    let proxy = FaultProxy::start(ProxyTarget::Unix(bench.redis.socket())).await;
    let options = KvOptions { response_timeout: Duration::from_millis(300), ..KvOptions::default() };
    let endpoint = format!("redis://{}", proxy.address()).parse().expect("an endpoint");
    let through = Kv::with_options(endpoint, options);
    let (worker, mut intake, _control) =
        queue::join(&through, 15, instance(1), about(), |_| false).await.expect("a place");
    bench.accept(1).await;
    assert_eq!(take(&mut intake, 1).await, [1]);

    bench.accept(2).await;
    proxy.set(ProxyFault::SwallowAnswers);
    let lost = intake.next(2, async {}).await.expect_err("no answer came");
    assert!(lost.is_connection_trouble(), "{lost}");
    let end = ending(job_key(1), Outcome::Succeeded);
    worker.finish(&end).await.expect_err("no answer came either");
    proxy.restore();
    assert_eq!(worker.finish(&end).await, Ok(JobRecordOutcome::Recorded));
    assert_eq!(take(&mut intake, 2).await, [2], "claimed by the call whose answer was lost");
    assert_eq!(worker.busy(), 1);
}

#[tokio::test]
async fn events_are_given_again_until_they_are_acknowledged() {
    let redis = RedisServer::builder().persistent().start();
    let mut bench = QueueTestBench::on(redis);
    let mut reader = bench.supervisor.events();
    let (worker, mut intake, _control) = bench.join(1).await;
    let key = bench.accept(1).await;
    take_one(&mut intake).await;
    let first = events(&mut reader, 1).await;

    bench.redis.kill9();
    reader.next(async {}).await.expect_err("the server is dead");
    bench.redis.restart();
    let back = || async { worker.finish(&ending(key, Outcome::Succeeded)).await.ok() };
    assert_eq!(wait_until(back, PATIENCE, "the end is recorded").await, JobRecordOutcome::Recorded);
    let second = events(&mut reader, 1).await;
    assert!(matches!(second[0].kind, QueueEventKind::Ended(_)), "the first is not given twice in one life");
    reader.acknowledge(&second).await.expect("acknowledged");

    let mut next_life = bench.supervisor.events();
    assert_eq!(events(&mut next_life, 1).await, first);
    next_life.acknowledge(&first).await.expect("acknowledged");
    assert_eq!(next_life.next(async {}).await, Ok(vec![]));
}

#[tokio::test]
async fn what_cannot_be_understood_blocks_no_other() {
    let bench = QueueTestBench::new();
    let mut reader = bench.supervisor.events();
    let key = bench.accept(1).await;
    let _ = bench.redis.raw(15, &["HSET", &format!("hero:job:{key}"), "job", "{"]);
    let _ = bench.redis.raw(15, &["XADD", "hero:done", "*", "kind", "nonsense"]);
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 1).await, [0; 0]);
    let seen = events(&mut reader, 2).await;
    assert!(matches!(&seen[1].kind, QueueEventKind::Ended(end) if end.outcome == Outcome::Failed));
}
