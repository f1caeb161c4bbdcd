//! Old workers and instances on the same jobs.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::sync::Mutex;

use model::execution::Outcome;
use queue::{
    InstanceSession, JobConsumer, JobRecordOutcome, OLD_WORKER_PATIENCE, QueueEventKind, SupervisorQueues,
};
use tokio::sync::watch;

use crate::legacy::{ACTOR_QUEUE, with_old};
use crate::legacy_worker::{LegacyTestWorker, PopSide};
use crate::setup::{ending, execution, offer};

/// Worker that ran each script.
type Ran = Mutex<Vec<(String, &'static str)>>;

async fn until(over: &watch::Sender<bool>) {
    let mut over = over.subscribe();
    drop(over.wait_for(|over| *over).await);
}

async fn old(mut worker: LegacyTestWorker, name: &'static str, ran: &Ran, over: &watch::Sender<bool>) {
    while let Some(task) = worker.wait(until(over)).await {
        worker.write(&task, &[("status", "started")]).await;
        let script = task.fields["script"].clone();
        let result = format!("said={script}");
        ran.lock().expect("nobody panicked").push((script, name));
        worker.write(&task, &[("output", &result), ("result", &result), ("status", "finished")]).await;
    }
}

async fn new(
    worker: &InstanceSession,
    intake: &mut JobConsumer,
    name: &'static str,
    ran: &Ran,
    over: &watch::Sender<bool>,
) {
    while !*over.borrow() {
        for taken in intake.next(1, until(over)).await.expect("an answer") {
            let script = format!("echo {}", taken.execution.job_key.job);
            let mut end = ending(taken.execution.job_key, Outcome::Succeeded);
            end.end.result = BTreeMap::from([("said".to_owned(), script.clone())]);
            ran.lock().expect("nobody panicked").push((script, name));
            assert_eq!(worker.finish(&end).await, Ok(JobRecordOutcome::Recorded));
        }
    }
}

async fn sweep(supervisor: &SupervisorQueues, over: &watch::Sender<bool>) {
    while !*over.borrow() {
        supervisor.sweep_legacy(OLD_WORKER_PATIENCE).await.expect("swept");
        tokio::task::yield_now().await;
    }
}

async fn a_mixed_pool(list: &str) {
    const JOBS: u32 = 1000;
    let bench = with_old(list);
    for part in (0..JOBS).collect::<Vec<_>>().chunks(250) {
        let offers = part.iter().map(|job| offer(execution(*job))).collect();
        assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
    }
    assert_eq!(bench.redis.raw(15, &["LLEN", list]), format!(":{JOBS}\r\n"));
    let (ran, over) = (Ran::default(), watch::Sender::new(false));
    let (one, mut one_intake, _one) = bench.join(1).await;
    let (two, mut two_intake, _two) = bench.join(2).await;
    let listen = async {
        let mut reader = bench.supervisor.events();
        let mut ends: HashMap<u32, String> = HashMap::new();
        while ends.len() < JOBS as usize {
            let batch = reader.next(pending()).await.expect("an answer");
            for event in &batch {
                if let QueueEventKind::Ended(end) = &event.kind {
                    assert_eq!(end.result["said"], format!("echo {}", event.job_key.job));
                    let by = end.instance.clone().expect("somebody ran it");
                    assert_eq!(ends.insert(event.job_key.job.0, by), None, "one end each");
                }
            }
            reader.acknowledge(&batch).await.expect("acknowledged");
        }
        over.send_replace(true);
        ends
    };
    let (ends, ..) = tokio::join!(
        listen,
        old(LegacyTestWorker::new(&bench.kv, list, PopSide::Left), "old, from the left", &ran, &over),
        old(LegacyTestWorker::new(&bench.kv, list, PopSide::Right), "old, from the right", &ran, &over),
        new(&one, &mut one_intake, "instance 1", &ran, &over),
        new(&two, &mut two_intake, "instance 2", &ran, &over),
        sweep(&bench.supervisor, &over),
    );
    let ran = ran.into_inner().expect("nobody panicked");
    let mut times: HashMap<&str, u32> = HashMap::new();
    let mut by: BTreeMap<&str, u32> = BTreeMap::new();
    for (script, name) in &ran {
        *times.entry(script).or_default() += 1;
        *by.entry(name).or_default() += 1;
    }
    println!("{JOBS} jobs in {list} and in our queue: {by:?}, {} ends", ends.len());
    assert_eq!((ran.len(), times.len()), (JOBS as usize, JOBS as usize), "each ran once");
    assert_eq!(by.len(), 4, "all of them did some: {by:?}");
    let old_ends = ends.values().filter(|by| by.starts_with("legacy:")).count();
    let old_runs = ran.iter().filter(|(_, name)| name.starts_with("old")).count();
    assert_eq!(old_ends, old_runs);
    for left in ["hero:legacy*", "hero:claims:*", "hero:unclaimed:*", list, "hero:q:work:*"] {
        assert_eq!(bench.keys(left), "*0\r\n", "{left}");
    }
}

#[tokio::test]
async fn a_thousand_jobs_visible_in_both_worlds_run_once() {
    Box::pin(a_mixed_pool(ACTOR_QUEUE)).await;
}

#[tokio::test]
async fn the_same_with_numbered_entries() {
    Box::pin(a_mixed_pool("queue:shell")).await;
}
