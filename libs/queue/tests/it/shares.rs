//! Shares of an instance: no party has all slots while others wait.

use std::time::Duration;

use model::{ActorId, Execution, JobKey};
use queue::InstanceSession;
use testkit::{PATIENCE, wait_until};

use crate::setup::{QueueTestBench, ending, execution, instance, job_key, take};

/// A job of another actor.
fn of(actor: u32, job: u32) -> Execution {
    Execution { caller_id: ActorId(actor), ..execution(job) }
}

async fn finish(instance: &InstanceSession, job: u32) {
    let ending = ending(job_key(job), model::execution::Outcome::Succeeded);
    instance.finish(&ending).await.expect("recorded");
}

/// Jobs of one actor, in their order.
async fn accept(bench: &QueueTestBench, actor: u32, jobs: std::ops::Range<u32>) -> Vec<JobKey> {
    let mut keys = Vec::new();
    for job in jobs {
        keys.push(bench.accept_as(of(actor, job)).await);
    }
    keys
}

#[tokio::test]
async fn who_is_alone_has_all_slots() {
    let bench = QueueTestBench::new();
    let (_instance, mut intake, _control) = bench.join(1).await;
    accept(&bench, 1, 1..10).await;
    assert_eq!(take(&mut intake, 4).await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_slot_is_left_to_others_however_much_one_has_waiting() {
    let bench = QueueTestBench::new();
    let (instance, mut intake, _control) = bench.join(1).await;
    accept(&bench, 2, 5000..5001).await;
    accept(&bench, 1, 1..2000).await;
    assert_eq!(take(&mut intake, 4).await, [5000, 1, 2, 3]);
    // The slot that the other context gives back is not for the one that has three of four.
    finish(&instance, 5000).await;
    assert_eq!(take(&mut intake, 1).await, [] as [u32; 0]);
    accept(&bench, 2, 5001..5003).await;
    assert_eq!(take(&mut intake, 1).await, [5001], "1,996 jobs wait before it");
    // What ends makes room for the next of the same, in their order.
    finish(&instance, 2).await;
    let mut next = Vec::new();
    while next.is_empty() {
        next = take(&mut intake, 1).await;
    }
    assert_eq!(next, [4]);
}

#[tokio::test]
async fn what_was_set_aside_is_taken_in_its_order_and_once() {
    let bench = QueueTestBench::new();
    let (instance, mut intake, _control) = bench.join(1).await;
    accept(&bench, 2, 500..501).await;
    accept(&bench, 1, 1..31).await;
    assert_eq!(take(&mut intake, 4).await, [500, 1, 2, 3]);
    let mut seen = vec![1, 2, 3];
    // The supervisor looks for pops that were lost: none was.
    for ended in 1..=27 {
        finish(&instance, ended).await;
        assert_eq!(bench.supervisor.requeue_unclaimed().await.expect("an answer"), 0, "after {ended}");
        let taken = take(&mut intake, 1).await;
        assert_eq!(taken.len(), 1, "after {ended}");
        seen.extend(taken);
    }
    assert_eq!(seen, (1..=30).collect::<Vec<_>>());
    for ended in 28..=30 {
        finish(&instance, ended).await;
    }
    assert_eq!(bench.keys("hero:unclaimed:*"), "*0\r\n");
}

#[tokio::test]
async fn a_waiting_instance_gets_a_job_set_aside_when_another_job_ends() {
    let bench = QueueTestBench::new();
    let (instance, mut intake, _control) = bench.join(1).await;
    accept(&bench, 2, 500..501).await;
    accept(&bench, 1, 1..8).await;
    assert_eq!(take(&mut intake, 4).await, [500, 1, 2, 3]);
    finish(&instance, 500).await;
    // The free slot waits for another context; then one of the others ends.
    let waiting = tokio::spawn(async move {
        let taken = loop {
            let taken = intake.next(1, std::future::pending()).await.expect("an answer");
            if !taken.is_empty() {
                break taken;
            }
        };
        taken[0].execution.job_key.job.0
    });
    let is_aside = || async { bench.keys("hero:aside").contains("hero:aside").then_some(()) };
    wait_until(is_aside, PATIENCE, "somebody was set aside").await;
    finish(&instance, 1).await;
    let taken = tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it is heard of");
    assert_eq!(taken.expect("no panic"), 4);
}

#[tokio::test]
async fn what_was_set_aside_can_be_stopped_and_handed_back() {
    let bench = QueueTestBench::new();
    let (joined, mut intake, _control) = bench.join(1).await;
    accept(&bench, 2, 500..501).await;
    accept(&bench, 1, 1..8).await;
    assert_eq!(take(&mut intake, 4).await, [500, 1, 2, 3]);
    finish(&joined, 500).await;
    assert_eq!(take(&mut intake, 1).await, [] as [u32; 0]);
    bench.supervisor.stop(job_key(4), 0).await.expect("stopped");
    finish(&joined, 1).await;
    let mut taken = Vec::new();
    while taken.is_empty() {
        taken = take(&mut intake, 1).await;
    }
    assert_eq!(taken, [5]);
    assert_eq!(bench.supervisor.return_waiting().await.expect("handed back"), 2);
    finish(&joined, 2).await;
    assert_eq!(take(&mut intake, 1).await, [] as [u32; 0]);
    assert!(bench.keys("hero:claims:*").contains(&instance(1).to_string()));
}
