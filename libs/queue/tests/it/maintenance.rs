//! Queries that a supervisor needs to maintain its machine.

use std::collections::{BTreeMap, HashSet};

use keys::supervisor as k;
use kv::Cmd;
use model::execution::Outcome;
use model::job::BlobRef;
use model::{BlobHash, FileSource, ScriptSource, Timestamp};
use queue::{QueueEventKind, SupervisorDrain};

use crate::setup::{COORDINATOR, QueueTestBench, ending, events, execution, instance, job_key, take};

fn blob(text: &str) -> BlobRef {
    BlobRef { sha256: BlobHash::of(text.as_bytes()), size: text.len() as u64 }
}

#[tokio::test]
async fn a_drain_is_remembered() {
    let bench = QueueTestBench::new();
    assert_eq!(bench.supervisor.drain().await, Ok(None));
    for deadline in [None, Some(Timestamp::from_millis(2))] {
        let drain = SupervisorDrain { since: Timestamp::from_millis(1), deadline };
        bench.supervisor.set_drain(Some(drain)).await.expect("written");
        assert_eq!(bench.supervisor.drain().await, Ok(Some(drain)));
    }
    bench.supervisor.set_drain(None).await.expect("removed");
    assert_eq!(bench.supervisor.drain().await, Ok(None));
}

#[tokio::test]
async fn blobs_are_in_use_until_the_end_is_acknowledged() {
    let bench = QueueTestBench::new();
    let mut job = execution(1);
    let context = job.job_key.context;
    job.script = ScriptSource::Blob(blob("script"));
    job.files = BTreeMap::from([("a".into(), FileSource { blob: blob("file"), inline: None })]);
    let used = |names: &[&str]| Ok(names.iter().map(|name| blob(name).sha256).collect::<HashSet<_>>());
    assert_eq!(bench.supervisor.blobs_in_use(context).await, used(&[]));
    assert_eq!(bench.supervisor.coordinator_of(context).await, Ok(None));
    let key = bench.accept_as(job).await;
    assert_eq!(bench.supervisor.coordinator_of(context).await, Ok(Some(COORDINATOR.into())));
    assert_eq!(bench.supervisor.blobs_in_use(context).await, used(&["script", "file"]));

    let (worker, mut intake, _control) = bench.join(1).await;
    assert_eq!(bench.supervisor.running().await, Ok(Vec::new()));
    assert_eq!(take(&mut intake, 1).await, [1]);
    assert_eq!(bench.supervisor.running().await, Ok(vec![key]));
    assert_eq!(bench.supervisor.claims_of(&instance(1)).await, Ok(vec![key]));
    let mut end = ending(key, Outcome::Succeeded);
    end.end.outputs = BTreeMap::from([("o".into(), blob("output"))]);
    worker.finish(&end).await.expect("recorded");
    assert_eq!(bench.supervisor.running().await, Ok(Vec::new()));
    assert_eq!(bench.supervisor.blobs_in_use(context).await, used(&["script", "file", "output"]));

    let mut reader = bench.supervisor.events();
    let received = events(&mut reader, 2).await;
    assert!(matches!(received[1].kind, QueueEventKind::Ended(_)));
    reader.acknowledge(&received).await.expect("acknowledged");
    assert_eq!(bench.supervisor.blobs_in_use(context).await, used(&[]));
}

#[tokio::test]
async fn only_the_life_that_is_dead_is_expelled() {
    let bench = QueueTestBench::new();
    let (_first, mut intake, _control) = bench.join(1).await;
    bench.accept(1).await;
    assert_eq!(take(&mut intake, 1).await, [1]);
    let (_, dead) = bench.supervisor.instances().await.expect("read").remove(0);
    let (_second, ..) = bench.join(1).await;
    assert_eq!(bench.supervisor.expel(&instance(1), &dead).await, Ok(false), "another life is there");
    let (_, dead) = bench.supervisor.instances().await.expect("read").remove(0);
    for _ in 0..2 {
        assert_eq!(bench.supervisor.expel(&instance(1), &dead).await, Ok(true));
    }
    assert_eq!(bench.supervisor.absent().await, Ok(vec![instance(1)]));
    bench.supervisor.end_lost(&instance(1)).await.expect("ended");
    assert_eq!(bench.supervisor.absent().await, Ok(Vec::new()));
}

#[tokio::test]
async fn of_ended_jobs_the_oldest_are_forgotten() {
    let bench = QueueTestBench::new();
    let (worker, mut intake, _control) = bench.join(1).await;
    let (mut reader, db) = (bench.supervisor.events(), bench.kv.database(15));
    for job in 1..=2 {
        let key = bench.accept(job).await;
        assert_eq!(take(&mut intake, 1).await, [job]);
        worker.finish(&ending(key, Outcome::Succeeded)).await.expect("recorded");
        let received = events(&mut reader, 2).await;
        if job == 2 {
            // So many jobs have ended since the first that there is room for one more.
            let jobs = k::context_jobs(key.context);
            let fill = "for n = 1, ARGV[1] do redis.call('ZADD', KEYS[1], 1e10 + n, 'later:' .. n) end";
            let fill = Cmd::new("EVAL").arg(fill).arg(1).arg(&jobs).arg(queue::ENDED_MAX - 1);
            db.cmd(fill).await.expect("filled");
        }
        reader.acknowledge(&received).await.expect("acknowledged");
    }
    let of = |job| Cmd::new("EXISTS").arg(&k::job(job_key(job)));
    let kept = [db.cmd(of(1)).await.and_then(|n| n.int()), db.cmd(of(2)).await.and_then(|n| n.int())];
    assert_eq!(kept, [Ok(0), Ok(1)], "the oldest went for the newest");
    let count = db.cmd(Cmd::new("ZCARD").arg(&k::context_jobs(job_key(1).context))).await;
    assert_eq!(count.and_then(|n| n.uint()), Ok(queue::ENDED_MAX as u64));
}
