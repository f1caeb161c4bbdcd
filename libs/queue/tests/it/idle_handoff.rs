//! A job that comes to an instance with nothing to do is handed to it.

use std::collections::BTreeSet;
use std::future::pending;

use model::execution::Outcome;
use model::{ActorId, Execution, Isolation, ScriptSource};
use queue::{JobConsumer, QueueEventKind, QueueJobStatus};

use crate::setup::{QueueTestBench, ending, events, execution, instance, offer, take};

const HANDED: &str = "hero:handed:shell:default:1";

/// Is handed what comes from now on.
async fn waits(intake: &mut JobConsumer) {
    assert_eq!(take(intake, 4).await, [0; 0]);
}

/// So many jobs were handed to the first instance.
fn is_handed(bench: &QueueTestBench, count: usize) {
    assert_eq!(bench.redis.raw(15, &["LLEN", HANDED]), format!(":{count}\r\n"));
}

#[tokio::test]
async fn what_comes_to_an_instance_with_nothing_to_do_is_its_own_at_once() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, _control) = bench.join(1).await;
    waits(&mut intake).await;
    let accepted = bench.supervisor.accept(offer(execution(1))).await.expect("accepted");
    assert_eq!((accepted.is_new, accepted.status), (true, QueueJobStatus::Started));
    for list in ["hero:unclaimed:*", "hero:q:work:*", "hero:alone"] {
        assert_eq!(bench.keys(list), "*0\r\n", "{list}");
    }
    let again = bench.supervisor.accept(offer(execution(1))).await.expect("accepted");
    assert_eq!((again.is_new, again.status), (false, QueueJobStatus::Started));
    is_handed(&bench, 1);

    let taken = intake.next(4, pending()).await.expect("an answer");
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].execution, execution(1));
    assert_eq!(worker.busy(), 1);
    worker.finish(&ending(taken[0].execution.job_key, Outcome::Succeeded)).await.expect("finished");
    let mut queued = Vec::new();
    let kinds: Vec<_> = events(&mut bench.supervisor.events(), 3)
        .await
        .into_iter()
        .map(|event| match event.kind {
            QueueEventKind::Started { time, queued_time, .. } => {
                assert_eq!(time, taken[0].started_at);
                queued.push(queued_time);
                "started"
            }
            QueueEventKind::Ended(_) => "ended",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["started", "started", "ended"], "told again, since it was offered again");
    assert_eq!(queued, [Some(taken[0].started_at), None], "it did not wait, and that is said once");
    for left in ["hero:handed:*", "hero:claims:*"] {
        assert_eq!(bench.keys(left), "*0\r\n", "{left}");
    }
}

#[tokio::test]
async fn what_comes_together_is_fetched_together_and_in_its_order() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, _control) = bench.join(1).await;
    waits(&mut intake).await;
    let offers = (1..=6).map(|job| offer(execution(job))).collect();
    assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
    is_handed(&bench, 3);
    assert_eq!(take(&mut intake, 2).await, [1, 2]);
    assert_eq!(take(&mut intake, 1).await, [3]);
    // Nothing is handed over for the last slot, and while anything waits.
    for job in [1, 2] {
        worker.finish(&ending(crate::setup::job_key(job), Outcome::Succeeded)).await.expect("finished");
    }
    bench.accept(7).await;
    is_handed(&bench, 0);
    assert_eq!(take(&mut intake, 3).await, [4, 5, 6]);
    assert_eq!(take(&mut intake, 1).await, [7]);
}

#[tokio::test]
async fn no_job_is_handed_over_past_one_that_waits() {
    let bench = QueueTestBench::new();
    let (_worker, mut intake, _control) = bench.join(1).await;
    let (_other, mut other, _control) = bench.join(2).await;
    waits(&mut intake).await;
    waits(&mut other).await;
    bench.accept_as(Execution { instance: Some(3), ..execution(1) }).await;
    for job in 2..=3 {
        bench.accept(job).await;
        is_handed(&bench, 0);
    }
    assert_eq!(take(&mut intake, 1).await, [2]);
    assert_eq!(take(&mut intake, 2).await, [3], "a part of what it has room for");
    assert_eq!(take(&mut intake, 2).await, [0; 0]);
    bench.accept(4).await;
    assert_eq!(take(&mut intake, 1).await, [4]);
}

#[tokio::test]
async fn the_least_busy_instance_is_handed_the_next() {
    let bench = QueueTestBench::new();
    let (_one, mut one, _control) = bench.join(1).await;
    let (_two, mut two, _control) = bench.join(2).await;
    waits(&mut one).await;
    waits(&mut two).await;
    for job in 1..=4 {
        bench.accept(job).await;
    }
    let (mut of_one, of_two) = (take(&mut one, 4).await, take(&mut two, 4).await);
    assert_eq!((of_one.len(), of_two.len()), (2, 2));
    of_one.extend(of_two);
    assert_eq!(of_one.into_iter().collect::<BTreeSet<_>>(), (1..=4).collect());
}

#[tokio::test]
async fn an_instance_is_handed_what_it_takes_and_nothing_else() {
    for gives in Isolation::ALL {
        let bench = QueueTestBench::new();
        let (worker, mut intake, _control) = bench.join_giving(1, gives).await;
        let mut job_number = 0;
        for group in [None, Some("default"), Some("other"), Some("closed")] {
            for number in [None, Some(1), Some(11)] {
                for isolation in Isolation::ALL {
                    for priority in 0..=2 {
                        waits(&mut intake).await;
                        let job = Execution {
                            group: group.map(|group| group.parse().expect("a name")),
                            instance: number,
                            isolation,
                            priority,
                            ..execution(job_number)
                        };
                        let (queue, key) = (offer(job.clone()).queue(), job.job_key);
                        bench.accept_as(job).await;
                        let takes = instance(1).queues(gives).contains(&queue);
                        is_handed(&bench, usize::from(takes));
                        assert_eq!(
                            take(&mut intake, 4).await.len(),
                            usize::from(takes),
                            "{queue} of {gives}"
                        );
                        bench.supervisor.stop(key, 0).await.expect("stopped");
                        worker.finish(&ending(key, Outcome::Stopped)).await.expect("an answer");
                        job_number += 1;
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_job_of_many_bytes_waits_as_ever() {
    let bench = QueueTestBench::new();
    let (_worker, mut intake, _control) = bench.join(1).await;
    waits(&mut intake).await;
    let script = ScriptSource::Inline("x".repeat(70_000));
    bench.accept_as(Execution { script, ..execution(1) }).await;
    is_handed(&bench, 0);
    assert_eq!(take(&mut intake, 1).await, [1]);
}

#[tokio::test]
async fn where_others_pop_nothing_is_handed_over() {
    let bench = QueueTestBench::new();
    let _ = bench.redis.raw(15, &["HSET", "hero:supervisor", "open_queues", "1"]);
    let (_worker, mut intake, _control) = bench.join(1).await;
    waits(&mut intake).await;
    bench.accept(1).await;
    is_handed(&bench, 0);
    assert_eq!(take(&mut intake, 1).await, [1]);
}

#[tokio::test]
async fn what_a_dead_instance_was_handed_is_lost_with_it() {
    let bench = QueueTestBench::new();
    let (dead, mut intake, _control) = bench.join(1).await;
    waits(&mut intake).await;
    for job in 1..=4 {
        bench.accept(job).await;
    }
    assert_eq!(take(&mut intake, 1).await, [1]);
    let _ = bench.redis.raw(15, &["DEL", &format!("hero:meta:actor:inst:{}", dead.who())]);
    assert_eq!(bench.supervisor.end_lost(dead.who()).await, Ok(3), "also those that it had not fetched");
    is_handed(&bench, 0);
    bench.accept(5).await;
    is_handed(&bench, 0);
    let (_worker, mut other, _control) = bench.join(2).await;
    assert_eq!(take(&mut other, 4).await, [4, 5]);
}

#[tokio::test]
async fn who_does_not_fetch_is_handed_nothing_more() {
    let bench = QueueTestBench::new();
    let (_silent, mut silent, _control) = bench.join(1).await;
    waits(&mut silent).await;
    let _ = bench.redis.raw(15, &["RPUSH", HANDED, "0-0-1-1 1.000 0 0\n"]);
    bench.accept(1).await;
    is_handed(&bench, 1);
    let (_worker, mut intake, _control) = bench.join(2).await;
    assert_eq!(take(&mut intake, 4).await, [1]);
}

#[tokio::test]
async fn who_stops_taking_gives_what_it_was_handed_and_is_handed_nothing_more() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, _control) = bench.join(1).await;
    waits(&mut intake).await;
    bench.accept(1).await;
    let handed = intake.stop().await.expect("an answer");
    assert_eq!(handed.len(), 1);
    assert_eq!((handed[0].execution.job_key, worker.busy()), (crate::setup::job_key(1), 1));
    bench.accept(2).await;
    is_handed(&bench, 0);
    assert!(intake.stop().await.expect("an answer").is_empty());
    assert_eq!(take(&mut intake, 3).await, [2], "when it takes again");
    waits(&mut intake).await;
    bench.accept(3).await;
    is_handed(&bench, 1);
    // Without having stopped before: what it holds is looked for, and nothing more is handed to it.
    worker.leave().await.expect("left");
    bench.accept(4).await;
    is_handed(&bench, 1);
    assert_eq!(bench.supervisor.absent().await, Ok(vec![instance(1)]));
    assert_eq!(bench.supervisor.end_lost(worker.who()).await, Ok(3));
    assert_eq!(bench.supervisor.absent().await, Ok(Vec::new()));
    let (_other, mut other, _control) = bench.join(2).await;
    assert_eq!(take(&mut other, 3).await, [4]);
}

#[tokio::test]
async fn no_instance_stops_for_another_life() {
    let bench = QueueTestBench::new();
    let (_old, mut old_intake, _control) = bench.join(1).await;
    let (_worker, mut intake, _control) = bench.join(1).await;
    waits(&mut intake).await;
    bench.accept(1).await;
    assert!(old_intake.stop().await.expect("an answer").is_empty());
    is_handed(&bench, 1);
    assert_eq!(take(&mut intake, 1).await, [1]);
}

#[tokio::test]
async fn one_that_was_set_aside_is_not_passed_by_others() {
    let bench = QueueTestBench::new();
    let (_one, mut one, _control) = bench.join(1).await;
    let (_two, mut two, _control) = bench.join(2).await;
    // Two owners, of whom one has as many slots of the second instance as it may have.
    bench.accept_as(Execution { caller_id: ActorId(9), ..execution(1) }).await;
    for job in 2..=4 {
        bench.accept_as(Execution { instance: Some(2), ..execution(job) }).await;
    }
    assert_eq!(take(&mut one, 1).await, [1]);
    assert_eq!(take(&mut two, 3).await, [2, 3, 4]);
    let popped = bench.accept(5).await;
    let _ = bench.redis.raw(15, &["LPOP", "hero:q:work:type:shell"]);
    waits(&mut one).await;
    // As if the second had popped it before: it comes to it now.
    let _ = bench.redis.raw(15, &["RPUSH", "hero:q:work:type:shell", &popped.to_string()]);
    assert_eq!(take(&mut two, 1).await, [0; 0]);
    bench.accept(6).await;
    is_handed(&bench, 0);
    assert_eq!(take(&mut one, 3).await, [5, 6]);
}

#[tokio::test]
async fn what_was_fetched_by_an_answer_that_was_lost_is_found() {
    let bench = QueueTestBench::new();
    let (_worker, mut intake, _control) = bench.join(1).await;
    waits(&mut intake).await;
    for job in 1..=3 {
        bench.accept(job).await;
    }
    let _ = bench.redis.raw(15, &["LPOP", HANDED]);
    {
        let mut dropped = std::pin::pin!(intake.next(1, pending()));
        tokio::select! {
            biased;
            _ = &mut dropped => panic!("it takes a round trip"),
            () = std::future::ready(()) => {}
        }
    }
    let mut found = take(&mut intake, 4).await;
    found.sort_unstable();
    assert_eq!(found, [1, 2, 3], "also those that nobody fetched, once");
    assert_eq!(take(&mut intake, 1).await, [0; 0]);
}

#[tokio::test]
async fn what_went_to_a_line_that_had_broken_is_found() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, _control) = bench.join(1).await;
    waits(&mut intake).await;
    bench.accept(1).await;
    // As a pop of a connection that the server does not know to be gone.
    let _ = bench.redis.raw(15, &["LPOP", HANDED]);
    worker.refresh().await.expect("refreshed");
    assert_eq!(take(&mut intake, 1).await, [0; 0], "its answer may be on the way");
    // Also by an intake that waits already.
    let (found, refreshed) = tokio::join!(wait_for_one(&mut intake), worker.refresh());
    refreshed.expect("refreshed");
    assert_eq!(found, [1]);
    worker.refresh().await.expect("refreshed");
    worker.refresh().await.expect("refreshed");
    assert_eq!(take(&mut intake, 1).await, [0; 0], "once");
}

/// Waits for jobs with one free slot, and returns the numbers of those that are taken.
async fn wait_for_one(intake: &mut JobConsumer) -> Vec<u32> {
    loop {
        let taken = intake.next(1, pending()).await.expect("an answer");
        if !taken.is_empty() {
            return taken.iter().map(|taken| taken.execution.job_key.job.0).collect();
        }
    }
}
