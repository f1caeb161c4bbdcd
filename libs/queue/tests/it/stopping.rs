//! Stops, in each state of a job; returned work; contexts that are dropped.

use std::future::pending;

use model::execution::Outcome;
use queue::{Command, EventKind, JobStatus, Standing, StopOutcome};

use crate::setup::{Bench, COORDINATOR, ending, events, execution, job_key, offer, take, take_one};

#[tokio::test]
async fn before_it_arrives() {
    let bench = Bench::new();
    assert_eq!(bench.supervisor.stop(job_key(1), 5).await, Ok(StopOutcome::Unknown));
    let refusal = bench.supervisor.accept(offer(execution(1))).await.expect_err("it was stopped");
    assert_eq!(refusal.code(), "STOPPED");
    assert_eq!(bench.supervisor.status(job_key(1)).await, Ok(None));
}

#[tokio::test]
async fn while_it_waits() {
    let bench = Bench::new();
    let mut reader = bench.supervisor.events();
    let key = bench.accept(1).await;
    bench.accept(2).await;
    assert_eq!(bench.supervisor.stop(key, 5).await, Ok(StopOutcome::Stopped));
    assert_eq!(bench.supervisor.stop(key, 5).await, Ok(StopOutcome::Stopped), "again");
    let seen = events(&mut reader, 1).await;
    assert!(matches!(&seen[0].kind, EventKind::Ended(end) if end.outcome == Outcome::Stopped));
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 10).await, [2]);
    let known = bench.supervisor.accept(offer(execution(1))).await.expect("a known job");
    assert_eq!((known.fresh, known.status), (false, JobStatus::Stopped));
}

#[tokio::test]
async fn while_it_runs() {
    let bench = Bench::new();
    let (worker, mut intake, mut control) = bench.join(1).await;
    let key = bench.accept(1).await;
    take_one(&mut intake).await;
    let stopping = StopOutcome::Stopping { instance: "shell:default:1".into() };
    assert_eq!(bench.supervisor.stop(key, 5).await, Ok(stopping));
    let command = Command::Stop { job_key: key, grace_secs: 5 };
    assert_eq!(control.next(pending()).await, Ok(Some(command)));
    assert_eq!(worker.refresh().await.map(|refreshed| refreshed.stops), Ok(vec![(key, 5)]), "told again");
    assert_eq!(worker.finish(&ending(key, Outcome::Stopped)).await, Ok(Standing::Recorded));
    assert_eq!(worker.refresh().await.map(|refreshed| refreshed.stops), Ok(vec![]));
}

#[tokio::test]
async fn after_it_ended() {
    let bench = Bench::new();
    let (worker, mut intake, _control) = bench.join(1).await;
    let key = bench.accept(1).await;
    take_one(&mut intake).await;
    worker.finish(&ending(key, Outcome::Failed)).await.expect("finished");
    assert_eq!(bench.supervisor.stop(key, 5).await, Ok(StopOutcome::Ended(JobStatus::Error)));
}

#[tokio::test]
async fn waiting_work_is_handed_back() {
    let bench = Bench::new();
    let mut reader = bench.supervisor.events();
    let offers = (0..450).map(|job| offer(execution(job))).collect();
    assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
    assert_eq!(bench.supervisor.hand_back().await, Ok(450));
    let seen = events_of(&mut reader, 450).await;
    assert!(seen.iter().all(|event| event.kind == EventKind::Returned));
    reader.acknowledge(&seen).await.expect("acknowledged");
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 10).await, [0; 0]);
    assert_eq!(bench.redis.raw(15, &["XLEN", "hero:done"]), ":0\r\n");
}

async fn events_of(reader: &mut queue::EventReader, count: usize) -> Vec<queue::Event> {
    events(reader, count).await
}

#[tokio::test]
async fn a_context_is_forgotten() {
    let bench = Bench::new();
    let (worker, mut intake, mut control) = bench.join(1).await;
    let running = bench.accept(1).await;
    take_one(&mut intake).await;
    let offers = (2..300).map(|job| offer(execution(job))).collect();
    assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
    let refused = bench.supervisor.drop_context(running.context, "another").await;
    assert!(refused.is_err_and(|error| error.code() == Some("CONTEXT_CLAIMED")));

    bench.supervisor.drop_context(running.context, COORDINATOR).await.expect("dropped");
    let command = Command::Stop { job_key: running, grace_secs: 0 };
    assert_eq!(control.next(pending()).await, Ok(Some(command)));
    assert_eq!(worker.refresh().await.map(|refreshed| refreshed.closed), Ok(vec![running]));
    assert_eq!(worker.finish(&ending(running, Outcome::Stopped)).await, Ok(Standing::Closed(None)));
    assert_eq!(bench.keys("hero:job:*"), "*0\r\n");
    assert_eq!(bench.keys("hero:uid:*"), "*0\r\n");
    assert_eq!(take(&mut intake, 10).await, [0; 0]);
}
