//! Jobs that demand isolation, and instances that give more or less of it.

use std::time::{Duration, Instant};

use kv::Cmd;
use model::Isolation::{self, Basic, Confined, Contained};
use model::execution::Outcome;
use model::{Grants, ReasonCode};
use queue::{QueueEventKind, QueueJobStatus, UnmetIsolationDetector};
use testkit::{PATIENCE, wait_until};

use crate::setup::{QueueTestBench, events, execution, job_key, offer, take, take_one};

async fn accept(bench: &QueueTestBench, job: u32, isolation: Isolation) {
    let mut execution = execution(job);
    execution.isolation = isolation;
    bench.accept_as(execution).await;
}

#[tokio::test]
async fn who_gives_less_passes_over_and_who_gives_it_takes_in_order() {
    let bench = QueueTestBench::new();
    for (job, level) in [(1, Confined), (2, Basic), (3, Contained), (4, Basic), (5, Confined), (6, Basic)] {
        accept(&bench, job, level).await;
    }
    // What the policy demands counts like what the job does.
    let mut granted = offer(execution(7));
    granted.grants = Grants { isolation: Contained, ..granted.grants };
    bench.supervisor.accept(granted).await.expect("accepted");
    let mut first = execution(8);
    (first.isolation, first.priority) = (Contained, 0);
    bench.accept_as(first).await;

    let (_, mut basic, _basic_control) = bench.join_giving(1, Basic).await;
    assert_eq!(take(&mut basic, 1).await, [2]);
    let (_, mut contained, _contained_control) = bench.join_giving(2, Contained).await;
    assert_eq!(take(&mut contained, 4).await, [8, 1, 3, 4]);
    assert_eq!(take(&mut basic, 10).await, [6]);
    let (_, mut confined, _confined_control) = bench.join_giving(3, Confined).await;
    assert_eq!(take(&mut confined, 10).await, [5]);
    assert_eq!(take(&mut contained, 10).await, [7]);
    assert_eq!(bench.keys("hero:unclaimed:*"), "*0\r\n");
}

#[tokio::test]
async fn a_waiting_instance_is_woken_by_what_it_can_give_alone() {
    let bench = QueueTestBench::new();
    let (_, mut basic, _basic_control) = bench.join_giving(1, Basic).await;
    let (_, mut contained, _contained_control) = bench.join_giving(2, Contained).await;
    let waiting = || async {
        let clients = bench.redis.raw(15, &["CLIENT", "LIST"]);
        (clients.matches("cmd=blpop").count() == 2).then_some(())
    };
    // The one that gives less waits longest, and would be served first.
    let (plain, demanding, ()) = tokio::join!(take_one(&mut basic), take_one(&mut contained), async {
        wait_until(waiting, PATIENCE, "both wait").await;
        accept(&bench, 1, Confined).await;
        let taken =
            || async { bench.redis.raw(15, &["HGET", &job(1), "claimed_by"]).contains(":2").then_some(()) };
        wait_until(taken, PATIENCE, "it is taken").await;
        accept(&bench, 2, Basic).await;
    });
    assert_eq!((plain.execution.job_key, demanding.execution.job_key), (job_key(2), job_key(1)));
}

fn job(number: u32) -> String {
    keys::supervisor::job(job_key(number))
}

#[tokio::test]
async fn what_was_popped_is_put_back_in_its_place() {
    let bench = QueueTestBench::new();
    for (job, level) in [(1, Confined), (2, Confined), (3, Basic), (4, Confined)] {
        accept(&bench, job, level).await;
    }
    let pop = || async {
        bench.kv.database(15).cmd(Cmd::new("LPOP").arg("hero:q:work:type:shell:iso:confined")).await
    };
    pop().await.expect("a pop");
    pop().await.expect("a pop");
    assert_eq!(bench.supervisor.requeue_unclaimed().await, Ok(2));
    let (_, mut confined, _control) = bench.join_giving(1, Confined).await;
    assert_eq!(take(&mut confined, 3).await, [1, 2, 3]);
    assert_eq!(bench.supervisor.stop(job_key(4), 0).await, Ok(queue::StopOutcome::Stopped));
    assert_eq!(take(&mut confined, 3).await, [0; 0]);
}

#[tokio::test]
async fn a_job_whose_isolation_no_instance_gives_any_more_is_refused_after_a_while() {
    let bench = QueueTestBench::new();
    let mut reader = bench.supervisor.events();
    let mut watch = UnmetIsolationDetector::new(Duration::from_secs(15));
    let start = Instant::now();
    let mut look = async |bench: &QueueTestBench, secs: u64| {
        let queues = bench.supervisor.statistics().await.expect("an answer");
        let present = bench.supervisor.instances().await.expect("an answer");
        watch.check(&queues, &present, start + Duration::from_secs(secs))
    };
    accept(&bench, 1, Contained).await;
    accept(&bench, 2, Confined).await;
    accept(&bench, 3, Basic).await;
    assert!(look(&bench, 0).await.is_empty(), "there is nobody, so somebody may come");
    let (_, _intake, _control) = bench.join_giving(1, Confined).await;
    assert!(look(&bench, 100).await.is_empty(), "it may be starting anew");
    assert!(look(&bench, 114).await.is_empty());
    let hopeless = look(&bench, 115).await;
    assert_eq!(
        hopeless.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["hero:q:work:type:shell:iso:contained"]
    );
    let (giver, _intake, _control) = bench.join_giving(2, Contained).await;
    assert!(look(&bench, 116).await.is_empty(), "somebody gives it");
    giver.leave().await.expect("left");
    assert!(look(&bench, 200).await.is_empty(), "the waiting begins anew");

    assert_eq!(bench.supervisor.refuse_waiting(&hopeless[0]).await, Ok(1));
    assert_eq!(bench.supervisor.refuse_waiting(&hopeless[0]).await, Ok(0));
    let received = events(&mut reader, 1).await;
    let QueueEventKind::Ended(end) = &received[0].kind else { panic!("{received:?}") };
    assert_eq!((received[0].job_key, end.outcome, &end.instance), (job_key(1), Outcome::Failed, &None));
    let reason = end.reason.as_ref().expect("a reason");
    assert_eq!(reason.code, ReasonCode::IsolationUnavailable);
    let state = bench.supervisor.status(job_key(1)).await.expect("an answer").expect("known");
    assert_eq!(state.status, QueueJobStatus::Error);
    assert_eq!(bench.redis.raw(15, &["HGET", &job(1), "error"]), {
        let text = reason.to_string();
        format!("${}\r\n{text}\r\n", text.len())
    });
    let state = bench.supervisor.status(job_key(2)).await.expect("an answer").expect("known");
    assert_eq!(state.status, QueueJobStatus::Queued);
}
