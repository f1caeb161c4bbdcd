//! Stops, in each state of a job; returned work; contexts that are dropped.

use std::future::pending;

use model::ContextUid;
use model::execution::Outcome;
use model::id::Uid;
use queue::{InstanceCommand, JobOffer, JobRecordOutcome, QueueEventKind, QueueJobStatus, StopOutcome};

use crate::setup::{COORDINATOR, QueueTestBench, ending, events, execution, job_key, offer, take, take_one};

#[tokio::test]
async fn before_it_arrives() {
    let bench = QueueTestBench::new();
    assert_eq!(bench.supervisor.stop(job_key(1), 5).await, Ok(StopOutcome::Unknown));
    let refusal = bench.supervisor.accept(offer(execution(1))).await.expect_err("it was stopped");
    assert_eq!(refusal.code(), "STOPPED");
    assert_eq!(bench.supervisor.status(job_key(1)).await, Ok(None));
}

#[tokio::test]
async fn while_it_waits() {
    let bench = QueueTestBench::new();
    let mut reader = bench.supervisor.events();
    let key = bench.accept(1).await;
    bench.accept(2).await;
    assert_eq!(bench.supervisor.stop(key, 5).await, Ok(StopOutcome::Stopped));
    assert_eq!(bench.supervisor.stop(key, 5).await, Ok(StopOutcome::Stopped), "again");
    let seen = events(&mut reader, 1).await;
    assert!(matches!(&seen[0].kind, QueueEventKind::Ended(end) if end.outcome == Outcome::Stopped));
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 10).await, [2]);
    let known = bench.supervisor.accept(offer(execution(1))).await.expect("a known job");
    assert_eq!((known.is_new, known.status), (false, QueueJobStatus::Stopped));
}

#[tokio::test]
async fn many_that_wait() {
    let bench = QueueTestBench::new();
    for from in [0, 2000] {
        let offers = (from..from + 2000).map(|job| offer(execution(job))).collect();
        assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
    }
    let stops: Vec<_> = (0..4000).filter(|job| job % 1000 != 999).map(|job| (job_key(job), 0)).collect();
    for part in stops.chunks(500) {
        let outcomes = bench.supervisor.stop_all(part).await;
        assert!(outcomes.iter().all(|outcome| *outcome == Ok(StopOutcome::Stopped)));
    }
    let left = bench.redis.raw(15, &["LLEN", "hero:q:work:type:shell"]);
    let left: usize = left.trim_matches([':', '\r', '\n']).parse().expect("a length");
    assert!((4..=1008).contains(&left), "{left} entries are left of 4 jobs that wait");
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 10).await, [999, 1999, 2999, 3999], "in their order");
}

#[tokio::test]
async fn while_it_runs() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, mut control) = bench.join(1).await;
    let key = bench.accept(1).await;
    take_one(&mut intake).await;
    let stopping = StopOutcome::Stopping { instance: "shell:default:1".into() };
    assert_eq!(bench.supervisor.stop(key, 5).await, Ok(stopping));
    let command = InstanceCommand::Stop { job_key: key, grace_secs: 5 };
    assert_eq!(control.next(pending()).await, Ok(Some(command)));
    assert_eq!(worker.refresh().await.map(|refreshed| refreshed.stops), Ok(vec![(key, 5)]), "told again");
    assert_eq!(worker.finish(&ending(key, Outcome::Stopped)).await, Ok(JobRecordOutcome::Recorded));
    assert_eq!(worker.refresh().await.map(|refreshed| refreshed.stops), Ok(vec![]));
}

#[tokio::test]
async fn after_it_ended() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, _control) = bench.join(1).await;
    let key = bench.accept(1).await;
    take_one(&mut intake).await;
    worker.finish(&ending(key, Outcome::Failed)).await.expect("finished");
    assert_eq!(bench.supervisor.stop(key, 5).await, Ok(StopOutcome::Ended(QueueJobStatus::Error)));
}

#[tokio::test]
async fn waiting_work_is_handed_back() {
    let bench = QueueTestBench::new();
    let mut reader = bench.supervisor.events();
    let offers = (0..450).map(|job| offer(execution(job))).collect();
    assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
    assert_eq!(bench.supervisor.return_waiting().await, Ok(450));
    let seen = events_of(&mut reader, 450).await;
    assert!(seen.iter().all(|event| event.kind == QueueEventKind::Returned));
    reader.acknowledge(&seen).await.expect("acknowledged");
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 10).await, [0; 0]);
    assert_eq!(bench.redis.raw(15, &["XLEN", "hero:done"]), ":0\r\n");
}

async fn events_of(reader: &mut queue::QueueEventReader, count: usize) -> Vec<queue::QueueEvent> {
    events(reader, count).await
}

#[tokio::test]
async fn a_context_is_forgotten() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, mut control) = bench.join(1).await;
    let mut reader = bench.supervisor.events();
    let running = bench.accept(1).await;
    take_one(&mut intake).await;
    let offers = (2..300).map(|job| offer(execution(job))).collect();
    assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
    let mut other = execution(1);
    other.job_key.context = ContextUid(Uid::from_bits(77));
    let other = bench.accept_as(other).await;
    let refused = bench.supervisor.drop_context(running.context, "another").await;
    assert!(refused.is_err_and(|error| error.code() == Some("CONTEXT_CLAIMED")));

    for _ in 0..2 {
        assert_eq!(bench.supervisor.drop_context(running.context, COORDINATOR).await, Ok(1), "it runs");
    }
    let command = InstanceCommand::Stop { job_key: running, grace_secs: 0 };
    assert_eq!(control.next(pending()).await, Ok(Some(command)));
    assert_eq!(
        bench.redis.raw(15, &["LLEN", "hero:q:ctl:type:shell:group:default:inst:1"]),
        ":0\r\n",
        "once"
    );
    assert_eq!(worker.refresh().await.map(|refreshed| refreshed.stops), Ok(vec![(running, 0)]), "told again");
    let late = bench.supervisor.accept(offer(execution(400))).await.expect_err("it is being dropped");
    assert_eq!((late.code(), late.is_permanent()), ("CONTEXT_DROPPED", true));
    assert_eq!(worker.finish(&ending(running, Outcome::Stopped)).await, Ok(JobRecordOutcome::Recorded));
    bench.supervisor.stop(other, 0).await.expect("stopped");
    let seen = events(&mut reader, 3).await;
    assert_eq!(bench.supervisor.drop_context(running.context, COORDINATOR).await, Ok(0));
    assert_eq!(bench.supervisor.drop_context(running.context, COORDINATOR).await, Ok(0), "again");

    assert_eq!(
        bench.keys("hero:job:*"),
        format!("*1\r\n${}\r\nhero:job:{other}\r\n", 9 + other.to_string().len())
    );
    assert_eq!(bench.keys(&format!("hero:jobs:{}", running.context)), "*0\r\n");
    assert_eq!(bench.keys(&format!("hero:q:reply:{}*", running.context)), "*0\r\n");
    assert_eq!(bench.redis.raw(15, &["XLEN", "hero:done"]), ":1\r\n", "the other context's");
    reader.acknowledge(&seen).await.expect("what is gone may be acknowledged");
    assert_eq!(bench.redis.raw(15, &["XLEN", "hero:done"]), ":0\r\n");
    assert_eq!(take(&mut intake, 10).await, [0; 0]);
    assert!(intake.stop().await.expect("an answer").is_empty(), "what comes from now on waits");

    let late = bench.supervisor.accept(offer(execution(400))).await.expect_err("it was dropped");
    assert_eq!(late.code(), "CONTEXT_DROPPED");
    let theirs = JobOffer { coordinator: "another".into(), ..offer(execution(1)) };
    assert!(bench.supervisor.accept(theirs.clone()).await.expect("theirs now").is_new);
    let binding = format!("hero:uid:{}", running.context);
    assert_eq!(bench.redis.raw(15, &["TTL", &binding]), ":-1\r\n", "bound for good");
    assert_eq!(bench.supervisor.drop_context(running.context, "another").await, Ok(0));
    assert_eq!(bench.supervisor.accept(theirs).await.expect_err("dropped").code(), "CONTEXT_DROPPED");
    assert!(bench.supervisor.accept(offer(execution(1))).await.expect("back again").is_new);
}

#[tokio::test]
async fn of_a_context_with_very_much_everything_is_forgotten() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, _control) = bench.join(1).await;
    let offers: Vec<_> = (0..900).map(|job| offer(execution(job))).collect();
    assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
    // More run than one script looks at.
    let taken = intake.next(450, async {}).await.expect("an answer");
    let context = taken[0].execution.job_key.context;
    assert_eq!(bench.supervisor.drop_context(context, COORDINATOR).await, Ok(450));
    for taken in &taken {
        worker.finish(&ending(taken.execution.job_key, Outcome::Stopped)).await.expect("finished");
    }
    assert_eq!(bench.supervisor.drop_context(context, COORDINATOR).await, Ok(0));
    assert_eq!((bench.keys("hero:job*"), bench.keys("hero:q:work*")), ("*0\r\n".into(), "*0\r\n".into()));
    assert_eq!(bench.redis.raw(15, &["XLEN", "hero:done"]), ":0\r\n");
}

#[tokio::test]
async fn events_that_a_coordinator_may_have_lost_are_sent_again() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, _control) = bench.join(1).await;
    let mut reader = bench.supervisor.events();
    let key = bench.accept(1).await;
    take_one(&mut intake).await;
    let seen = events(&mut reader, 1).await;
    reader.acknowledge(&seen).await.expect("acknowledged");

    // It asks for what runs already.
    let known = bench.supervisor.accept(offer(execution(1))).await.expect("a known job");
    assert_eq!((known.is_new, known.status), (false, QueueJobStatus::Started));
    let again = events(&mut reader, 1).await;
    assert_eq!(again[0].number, 2);
    // How long it had waited is told once.
    let QueueEventKind::Started { instance, time, queued_time: Some(_) } = &seen[0].kind else {
        panic!("{seen:?}")
    };
    let expected = QueueEventKind::Started { instance: instance.clone(), time: *time, queued_time: None };
    assert_eq!(again[0].kind, expected);
    reader.acknowledge(&again).await.expect("acknowledged");

    worker.finish(&ending(key, Outcome::Succeeded)).await.expect("finished");
    // The coordinator has not acknowledged the end: nothing has to be sent twice.
    bench.supervisor.accept(offer(execution(1))).await.expect("a known job");
    bench.supervisor.resend_end(key).await.expect("told");
    let end = events(&mut reader, 1).await;
    assert_eq!(bench.redis.raw(15, &["XLEN", "hero:done"]), ":1\r\n");
    reader.acknowledge(&end).await.expect("acknowledged");

    // It has, and asks for the job all the same.
    for _ in 0..2 {
        let known = bench.supervisor.accept(offer(execution(1))).await.expect("a known job");
        assert_eq!((known.is_new, known.status), (false, QueueJobStatus::Finished));
    }
    let again = events(&mut reader, 1).await;
    assert_eq!((&again[0].kind, &again[0].coordinator), (&end[0].kind, &end[0].coordinator));
    assert_eq!(bench.redis.raw(15, &["XLEN", "hero:done"]), ":1\r\n", "once until it is answered");
    reader.acknowledge(&again).await.expect("acknowledged");
    bench.supervisor.resend_end(key).await.expect("told");
    assert_eq!(events(&mut reader, 1).await[0].kind, end[0].kind);
    bench.supervisor.resend_end(job_key(9)).await.expect("nobody knows it");
}

/// Attempts of a deleted flow are forgotten once its coordinator knows their end; running ones go on.
#[tokio::test]
async fn attempts_of_a_flow_that_is_gone_are_forgotten() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, _control) = bench.join(1).await;
    let mut reader = bench.supervisor.events();
    let mut all = Vec::new();
    for job in 1..=3 {
        all.push(bench.accept(job).await);
        take_one(&mut intake).await;
    }
    let [known, unknown, running] = all[..] else { panic!("three attempts") };
    worker.finish(&ending(known, Outcome::Failed)).await.expect("finished");
    let seen = events(&mut reader, 4).await;
    reader.acknowledge(&seen).await.expect("acknowledged");
    worker.finish(&ending(unknown, Outcome::Failed)).await.expect("finished");
    let waiting = bench.accept(4).await;
    let nobodys = job_key(5);

    let keys = [known, unknown, running, waiting, nobodys];
    assert_eq!(bench.supervisor.forget(&keys, "another").await, Ok(vec![]));
    assert!(bench.supervisor.status(known).await.is_ok_and(|state| state.is_some()), "another has no say");
    assert_eq!(bench.supervisor.forget(&keys, COORDINATOR).await, Ok(vec![known]));
    assert_eq!(bench.supervisor.forget(&keys, COORDINATOR).await, Ok(vec![]), "again");
    // Should it come late it does not run.
    let late = bench.supervisor.accept(offer(execution(1))).await.expect_err("it was forgotten");
    assert_eq!(late.code(), "STOPPED");
    assert!(bench.keys(&format!("hero:q:reply:{known}")).starts_with("*0"));

    // Ends are delivered, and forgotten then; also of jobs that waited or ran.
    take_one(&mut intake).await;
    for key in [running, waiting] {
        assert_eq!(worker.finish(&ending(key, Outcome::Failed)).await, Ok(JobRecordOutcome::Recorded));
    }
    let seen = events(&mut reader, 4).await;
    let ends = seen.iter().filter(|event| matches!(event.kind, QueueEventKind::Ended(_)));
    assert_eq!(ends.map(|event| event.job_key).collect::<Vec<_>>(), [unknown, running, waiting]);
    reader.acknowledge(&seen).await.expect("acknowledged");
    for pattern in ["hero:job:*", "hero:jobs:*", "hero:q:reply:*", "hero:claims:*", "hero:unclaimed:*"] {
        assert_eq!(bench.keys(pattern), "*0\r\n", "{pattern}");
    }
    let marks = [known, unknown, running, waiting].map(|key| format!("hero:stop:{key}"));
    for mark in marks {
        let left = bench.redis.raw(15, &["TTL", &mark]);
        let left: u64 = left.trim_matches([':', '\r', '\n']).parse().expect("it expires");
        assert!((590..=600).contains(&left), "{mark}: {left}");
    }
}

/// Records that foreign workers may still write are not removed before their time: they would stay forever then.
#[tokio::test]
async fn attempts_that_others_may_have_are_kept_for_their_time() {
    let bench = QueueTestBench::new();
    let supervisor = bench.supervisor.clone().with_open_queues(true);
    supervisor.note_open().await.expect("noted");
    let mut reader = supervisor.events();
    let mut plain = execution(1);
    plain.env_vars.clear();
    let key = plain.job_key;
    supervisor.accept(offer(plain)).await.expect("accepted");
    assert_eq!(supervisor.stop(key, 0).await, Ok(StopOutcome::Stopped));
    let seen = events(&mut reader, 1).await;
    reader.acknowledge(&seen).await.expect("acknowledged");
    assert_eq!(supervisor.forget(&[key], COORDINATOR).await, Ok(vec![]));
    assert!(supervisor.status(key).await.is_ok_and(|state| state.is_some()));
}
