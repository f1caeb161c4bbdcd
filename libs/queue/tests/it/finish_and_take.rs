//! An end takes the next job along.

use std::future::pending;

use model::execution::Outcome;
use queue::{InstanceSession, JobConsumer, JobRecordOutcome};

use crate::setup::{QueueTestBench, ending, job_key, take};

/// A full instance, and so many jobs that wait.
async fn full(bench: &QueueTestBench, waiting: u32) -> (InstanceSession, JobConsumer, queue::SlotsFullGuard) {
    for job in 1..=4 + waiting {
        bench.accept(job).await;
    }
    let (worker, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 4).await, [1, 2, 3, 4]);
    assert!(!worker.wants_next(), "it has not said that it is full");
    let full = intake.full();
    assert!(worker.wants_next());
    (worker, intake, full)
}

async fn end(worker: &InstanceSession, job: u32) -> (JobRecordOutcome, Option<u32>) {
    let ended = worker.finish_and_take(&ending(job_key(job), Outcome::Succeeded)).await.expect("an answer");
    (ended.0, ended.1.map(|next| next.execution.job_key.job.0))
}

#[tokio::test]
async fn an_end_takes_the_next_until_nothing_waits() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, full) = full(&bench, 2).await;
    assert_eq!(end(&worker, 2).await, (JobRecordOutcome::Recorded, Some(5)));
    assert_eq!(end(&worker, 5).await, (JobRecordOutcome::Recorded, Some(6)));
    assert_eq!(worker.busy(), 4);
    assert_eq!(end(&worker, 1).await, (JobRecordOutcome::Recorded, None));
    drop(full);
    assert!(!worker.wants_next());
    let full = intake.full();
    assert!(!worker.wants_next(), "nothing waits");
    drop(full);
    bench.accept(7).await;
    assert_eq!(take(&mut intake, 1).await, [7]);
    for job in [3, 4, 6, 7] {
        assert_eq!(end(&worker, job).await, (JobRecordOutcome::Recorded, None));
    }
    for left in ["hero:claims:*", "hero:handed:*", "hero:unclaimed:*"] {
        assert_eq!(bench.keys(left), "*0\r\n", "{left}");
    }
}

#[tokio::test]
async fn an_end_that_comes_too_late_takes_the_next_as_well() {
    let bench = QueueTestBench::new();
    let (worker, _intake, _full) = full(&bench, 1).await;
    assert_eq!(end(&worker, 1).await, (JobRecordOutcome::Recorded, Some(5)));
    assert_eq!(end(&worker, 1).await, (JobRecordOutcome::Recorded, None), "the same again");
    let stopped = worker.finish_and_take(&ending(job_key(1), Outcome::Failed)).await.expect("an answer");
    assert!(matches!(stopped, (JobRecordOutcome::Closed(Some(_)), None)), "{stopped:?}");
}

#[tokio::test]
async fn where_there_is_no_room_an_end_is_recorded_and_nothing_is_taken() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, _full) = full(&bench, 1).await;
    let _ = bench.redis.raw(0, &["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(end(&worker, 1).await, (JobRecordOutcome::Recorded, None));
    let _ = bench.redis.raw(0, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(take(&mut intake, 1).await, [5]);
}

#[tokio::test]
async fn what_was_taken_by_an_end_whose_answer_was_lost_is_found_once() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, full) = full(&bench, 1).await;
    let last = ending(job_key(1), Outcome::Succeeded);
    {
        let mut dropped = std::pin::pin!(worker.finish_and_take(&last));
        tokio::select! {
            biased;
            _ = &mut dropped => panic!("it takes a round trip"),
            () = std::future::ready(()) => {}
        }
    }
    // Whatever has become of it.
    assert_eq!(worker.finish(&last).await, Ok(JobRecordOutcome::Recorded));
    drop(full);
    let found = intake.next(1, pending()).await.expect("an answer");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].execution.job_key, job_key(5));
    assert_eq!(take(&mut intake, 1).await, [0; 0]);
}
