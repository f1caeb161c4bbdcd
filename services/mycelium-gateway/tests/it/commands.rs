//! Commands from routers beside running jobs: status queries and context drops.

use model::execution::Outcome;
use model::job::BlobRef;
use model::{AttemptEnd, BlobHash, ReportKind};
use queue::{JobEndReport, QueueJobStatus};
use testkit::{PATIENCE, wait_until};

use crate::conversation::{accepted, all_answered, end, ended, started};
use crate::suite::{Front, Received, Suite, Worker, execution, key};

async fn finish(worker: &Worker, job: u32, end: AttemptEnd) {
    let ending = JobEndReport { job_key: key(job), end, last_log: None, output_tail: String::new() };
    worker.instance.finish(&ending).await.expect("finished");
}

fn unknown(kind: &ReportKind) -> Option<()> {
    (*kind == ReportKind::Unknown).then_some(())
}

async fn attempts_are_reported(front: Front) {
    let (suite, mut worker) = Suite::start(front).await;
    let mut router = suite.router().await;
    // 1 ends, 2 runs, 3 waits, 4 never came, 5 was handed back.
    router.says(suite.deliver(1, &[execution(1), execution(2)])).await;
    assert_eq!(router.outcome(1).await, "");
    assert_eq!(worker.take(2).await.len(), 2);
    finish(&worker, 1, end(Outcome::Failed)).await;
    for job in [1, 2] {
        router.report(key(job), accepted).await;
        router.report(key(job), started).await;
    }
    router.report(key(1), ended).await;
    all_answered(&suite).await;
    let supervisor = queue::SupervisorQueues::new(suite.kv.clone(), suite.kv.endpoint().database());
    router.says(suite.deliver(2, &[execution(5)])).await;
    assert_eq!(router.outcome(2).await, "");
    assert_eq!(supervisor.return_waiting().await, Ok(1));
    let returned = |kind: &ReportKind| (*kind == ReportKind::Returned).then_some(());
    router.report(key(5), accepted).await;
    router.report(key(5), returned).await;
    router.says(suite.deliver(3, &[execution(3)])).await;
    assert_eq!(router.outcome(3).await, "");
    router.report(key(3), accepted).await;

    router.says(suite.query(&[1, 2, 3, 4, 5].map(key))).await;
    assert_eq!(router.report(key(1), ended).await, end(Outcome::Failed), "as it was stored");
    let began = router
        .report(key(2), |kind| match kind {
            ReportKind::Started { instance, time } => Some((instance.clone(), *time)),
            _ => None,
        })
        .await;
    let state = supervisor.status(key(2)).await.expect("an answer").expect("known");
    assert_eq!((Some(began.0), Some(began.1)), (state.instance, state.started_at));
    let named = |kind: &ReportKind| match kind {
        ReportKind::Accepted { supervisor } => Some(supervisor.clone()),
        _ => None,
    };
    assert_eq!(Ok(router.report(key(3), named).await), supervisor.name().await);
    router.report(key(4), unknown).await;
    router.report(key(5), returned).await;
    all_answered(&suite).await;
}

#[tokio::test]
async fn attempts_are_reported_over_a_stream() {
    attempts_are_reported(Front::Stream).await;
}

#[tokio::test]
async fn attempts_are_reported_over_the_bus() {
    attempts_are_reported(Front::Bus).await;
}

#[tokio::test]
async fn very_many_attempts_are_queried_in_parts() {
    let (suite, _worker) = Suite::start(Front::Stream).await;
    let mut router = suite.router().await;
    let count = u32::try_from(2 * mycelium_gateway::commands::QUERY_ATTEMPTS_MAX + 7).expect("small");
    router.says(suite.query(&(0..count).map(key).collect::<Vec<_>>())).await;
    for job in 0..count {
        router.report(key(job), unknown).await;
    }
}

#[tokio::test]
async fn an_end_with_outputs_is_reported_after_them() {
    let (suite, mut worker) = Suite::start(Front::Stream).await;
    let mut router = suite.router().await;
    router.says(suite.deliver(1, &[execution(1)])).await;
    assert_eq!(router.outcome(1).await, "");
    worker.take(1).await;
    let bytes = b"made".to_vec();
    let made = BlobRef { sha256: BlobHash::of(&bytes), size: 4 };
    let blobs = suite.work_dir.path().join("blobs").join(key(1).context.to_string());
    std::fs::create_dir_all(&blobs).expect("a directory");
    std::fs::write(blobs.join(made.sha256.to_string()), &bytes).expect("written");
    let mut how = end(Outcome::Succeeded);
    how.outputs.insert("out.txt".into(), made);
    finish(&worker, 1, how.clone()).await;
    router.report(key(1), started).await;
    assert_eq!(router.report(key(1), ended).await, how);
    all_answered(&suite).await;

    // The coordinator's store goes back: both the end and the output are gone.
    suite.storage.clear();
    router.says(suite.query(&[key(1)])).await;
    assert_eq!(router.report(key(1), ended).await, how);
    assert_eq!(suite.storage.get(made), Some(bytes.clone()), "handed over again, and before");
    all_answered(&suite).await;

    // It may also send the job again.
    suite.storage.clear();
    router.says(suite.deliver(2, &[execution(1)])).await;
    assert_eq!(router.outcome(2).await, "");
    assert_eq!(router.report(key(1), ended).await, how);
    assert_eq!(suite.storage.get(made), Some(bytes));
    all_answered(&suite).await;
}

#[tokio::test]
async fn nothing_is_reported_of_an_unreachable_supervisor() {
    let (suite, _worker) = Suite::start(Front::Bus).await;
    let mut router = suite.router().await;
    let nobody = proto::internal::v1::QueryAttempts {
        address: format!("mycelium:{}", "ab".repeat(32)),
        topic: "supervisor.rpc".into(),
        context_id: 1,
        flow_id: 7,
        job_keys: vec![key(1).to_string()],
    };
    router.says(proto::internal::v1::exchange_request::Frame::Query(nobody)).await;
    router.says(suite.query(&[key(2)])).await;
    router.report(key(2), unknown).await;
    assert!(router.is_silent_of(key(1)));
}

async fn contexts_are_forgotten(front: Front) {
    let (suite, mut worker) = Suite::start(front).await;
    let mut router = suite.router().await;
    router.says(suite.deliver(1, &[execution(1), execution(2)])).await;
    assert_eq!(router.outcome(1).await, "");
    assert_eq!(worker.take(1).await[0].execution.job_key, key(1));
    router.report(key(1), started).await;
    let uid = key(1).context.to_string();
    let dirs = ["blobs", "logs", "contexts"].map(|part| suite.work_dir.path().join(part).join(&uid));
    for dir in &dirs {
        std::fs::create_dir_all(dir.join("something")).expect("a directory");
    }

    router.says(suite.drop_context(1)).await;
    let error = router.dropped(1).await;
    assert!(error.contains("1 attempts of the context are still being stopped"), "{error}");
    let update = worker.instance.refresh().await.expect("an answer");
    assert_eq!(update.stops, [(key(1), 0)], "its process tree is ended");
    assert!(dirs.iter().all(|dir| dir.exists()), "not while something runs there");
    finish(&worker, 1, end(Outcome::Stopped)).await;

    for drop_id in [2, 3] {
        router.says(suite.drop_context(drop_id)).await;
        assert_eq!(router.dropped(drop_id).await, "", "it may be wished again");
    }
    assert!(dirs.iter().all(|dir| !dir.exists()));
    // What was on its way to the router when the context went is not told again.
    all_answered(&suite).await;
    let database = suite.kv.endpoint().database();
    for pattern in ["hero:job:*", "hero:jobs:*", "hero:q:work*"] {
        assert_eq!(suite.redis.raw(database, &["KEYS", pattern]), "*0\r\n");
    }

    // A job that was still on its way is refused.
    router.says(suite.deliver(4, &[execution(3)])).await;
    let refused = |kind: &ReportKind| match kind {
        ReportKind::Rejected { reason, lasting, .. } => Some((reason.detail.clone(), *lasting)),
        _ => None,
    };
    let (detail, lasting) = router.report(key(3), refused).await;
    assert!(lasting && detail.contains("CONTEXT_DROPPED"), "{detail}");
    assert_eq!(router.outcome(4).await, "");

    // Another coordinator may have the context now, and then it is not ours to forget.
    let supervisor = queue::SupervisorQueues::new(suite.kv.clone(), database);
    let theirs = queue::JobOffer {
        execution: execution(1),
        coordinator: "another".into(),
        grants: model::Grants::default(),
        condition: queue::AcceptCondition::None,
        weight: std::num::NonZeroU32::MIN,
    };
    assert_eq!(supervisor.accept(theirs).await.expect("accepted").status, QueueJobStatus::Queued);
    router.says(suite.drop_context(5)).await;
    assert_eq!(router.dropped(5).await, "", "nothing of ours is there");
    assert!(supervisor.status(key(1)).await.expect("an answer").is_some(), "theirs");
}

#[tokio::test]
async fn contexts_are_forgotten_over_a_stream() {
    contexts_are_forgotten(Front::Stream).await;
}

#[tokio::test]
async fn contexts_are_forgotten_over_the_bus() {
    contexts_are_forgotten(Front::Bus).await;
}

#[tokio::test]
async fn events_of_a_forgotten_context_are_not_repeated() {
    let (suite, mut worker) = Suite::start(Front::Stream).await;
    {
        let mut router = suite.router().await;
        router.says(suite.deliver(1, &[execution(1)])).await;
        assert_eq!(router.outcome(1).await, "");
        worker.take(1).await;
        finish(&worker, 1, end(Outcome::Succeeded)).await;
        router.report(key(1), started).await;
        // The end is heard and not acknowledged: the supervisor keeps it and says it again.
        router.next_matching(|item| item.is_end_of(key(1)).then_some(())).await;
    }
    let mut router = suite.router().await;
    router.says(suite.drop_context(1)).await;
    assert_eq!(router.dropped(1).await, "");
    let database = suite.kv.endpoint().database();
    let gone = || async { (suite.redis.raw(database, &["XLEN", "hero:done"]) == ":0\r\n").then_some(()) };
    wait_until(gone, PATIENCE, "nothing is left to be told").await;
}

async fn attempts_of_flows_that_are_gone_are_forgotten(front: Front) {
    let (suite, mut worker) = Suite::start(front).await;
    let mut router = suite.router().await;
    router.says(suite.deliver(1, &[execution(1), execution(2)])).await;
    assert_eq!(router.outcome(1).await, "");
    worker.take(1).await;
    finish(&worker, 1, end(Outcome::Succeeded)).await;
    let logs = suite.work_dir.path().join("logs").join(key(1).context.to_string());
    std::fs::create_dir_all(&logs).expect("a directory");
    let log = |job| logs.join(format!("{}.log", key(job)));
    for job in [1, 2] {
        std::fs::write(log(job), "printed").expect("written");
    }
    // The one has ended, and this is not known yet; the other waits.
    router.says(suite.forget(&[key(1), key(2)])).await;
    router.report(key(1), started).await;
    let end_id = router.next_matching(|item| match item {
        Received::Report(id, _) if item.is_end_of(key(1)) => Some(*id),
        _ => None,
    });
    let end_id = end_id.await;
    let database = suite.kv.endpoint().database();
    let record = |job| suite.redis.raw(database, &["EXISTS", &format!("hero:job:{}", key(job))]);
    let is_to_be_forgotten = || async {
        let field = ["HEXISTS", &format!("hero:job:{}", key(2)), "forget"];
        (suite.redis.raw(database, &field) == ":1\r\n").then_some(())
    };
    wait_until(is_to_be_forgotten, PATIENCE, "it is told").await;
    assert_eq!(record(1), ":1\r\n", "its end is to be known first");
    router.handled(vec![end_id]).await;
    let forgotten = || async { (record(1) == ":0\r\n" && !log(1).exists()).then_some(()) };
    wait_until(forgotten, PATIENCE, "nothing is kept").await;
    assert!(record(2) == ":1\r\n" && log(2).exists(), "it goes on");
    assert_eq!(worker.take(1).await[0].execution.job_key, key(2));
}

#[tokio::test]
async fn attempts_of_flows_that_are_gone_are_forgotten_over_a_stream() {
    attempts_of_flows_that_are_gone_are_forgotten(Front::Stream).await;
}

#[tokio::test]
async fn attempts_of_flows_that_are_gone_are_forgotten_over_the_bus() {
    attempts_of_flows_that_are_gone_are_forgotten(Front::Bus).await;
}
