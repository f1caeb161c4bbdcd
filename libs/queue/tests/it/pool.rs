//! Many jobs, several instances: who gets what, and in which order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::pending;

use keys::InstanceRef;
use model::execution::Outcome;
use model::{Execution, ScriptType};
use queue::{InstanceSession, JobConsumer, JobRecordOutcome, QueueEventKind, WorkQueue};
use tokio::sync::watch;

use crate::setup::{QueueTestBench, about, ending, execution, offer, take};

/// Takes into `slots` and ends at once, until there is nothing more to come; gives the jobs in their order.
async fn work(
    worker: &InstanceSession,
    intake: &mut JobConsumer,
    slots: usize,
    over: &watch::Sender<bool>,
) -> Vec<u32> {
    let mut done = Vec::new();
    let mut ended = over.subscribe();
    loop {
        let cancel = async { drop(ended.wait_for(|over| *over).await) };
        let taken = intake.next(slots, cancel).await.expect("an answer");
        if taken.is_empty() && *over.borrow() {
            return done;
        }
        for taken in taken {
            let key = taken.execution.job_key;
            assert_eq!(worker.finish(&ending(key, Outcome::Succeeded)).await, Ok(JobRecordOutcome::Recorded));
            done.push(key.job.0);
        }
    }
}

/// Listens until as many jobs have ended, each once.
async fn listen(bench: &QueueTestBench, jobs: usize, over: &watch::Sender<bool>) {
    let mut reader = bench.supervisor.events();
    let (mut starts, mut ends) = (HashSet::new(), HashSet::new());
    while ends.len() < jobs {
        let batch = reader.next(pending()).await.expect("an answer");
        for event in &batch {
            match event.kind {
                QueueEventKind::Started { .. } => assert!(starts.insert(event.job_key), "one start each"),
                QueueEventKind::Ended(_) => assert!(ends.insert(event.job_key), "one end each"),
                _ => panic!("{event:?}"),
            }
        }
        reader.acknowledge(&batch).await.expect("acknowledged");
    }
    assert_eq!(starts, ends);
    over.send_replace(true);
}

async fn feed(bench: &QueueTestBench, jobs: &[Execution]) {
    for part in jobs.chunks(250) {
        let offers = part.iter().cloned().map(offer).collect();
        assert!(bench.supervisor.accept_all(offers).await.iter().all(Result::is_ok));
    }
}

fn member(group: &str, number: u32) -> InstanceRef {
    InstanceRef { script_type: ScriptType::Shell, group: group.parse().expect("a name"), number }
}

/// Where a job is sent, spread over everything there is: nowhere in particular, to a group, to an instance.
fn target(job: u32) -> Option<(&'static str, Option<u32>)> {
    match job % 10 {
        0..4 => None,
        4 | 5 => Some(("east", None)),
        6 => Some(("west", None)),
        7 => Some(("east", Some(1))),
        8 => Some(("west", Some(1 + job / 10 % 2))),
        _ => Some(("east", Some(2))),
    }
}

#[tokio::test]
async fn ten_thousand_jobs_go_where_they_were_sent() {
    const JOBS: u32 = 10_000;
    let bench = QueueTestBench::new();
    let jobs: Vec<_> = (0..JOBS)
        .map(|job| {
            let mut execution = execution(job);
            execution.priority = u8::try_from(job / 7 % 3).expect("a priority");
            if let Some((group, number)) = target(job) {
                execution.group = Some(group.parse().expect("a name"));
                execution.instance = number;
            }
            execution
        })
        .collect();
    let places = [member("east", 1), member("east", 2), member("west", 1), member("west", 2)];
    let over = watch::Sender::new(false);
    let mut members = Vec::new();
    for place in &places {
        members.push(queue::join(&bench.kv, 15, place.clone(), about(), |_| true).await.expect("a place"));
    }
    let [a, b, c, d] = &mut members[..] else { panic!("four of them") };
    let (a, b, c, d, (), ()) = tokio::join!(
        work(&a.0, &mut a.1, 4, &over),
        work(&b.0, &mut b.1, 4, &over),
        work(&c.0, &mut c.1, 4, &over),
        work(&d.0, &mut d.1, 4, &over),
        feed(&bench, &jobs),
        listen(&bench, jobs.len(), &over),
    );
    let mut ran: HashMap<u32, usize> = HashMap::new();
    for (place, done) in [a, b, c, d].iter().enumerate() {
        let mut kinds: BTreeMap<&str, u32> = BTreeMap::new();
        for job in done {
            assert_eq!(ran.insert(*job, place), None, "job {job} ran twice");
            let (group, number) = (places[place].group.as_str(), places[place].number);
            let (there, kind) = match target(*job) {
                None => (true, "for anybody"),
                Some((wanted, None)) => (wanted == group, "for the group"),
                Some((wanted, Some(one))) => (wanted == group && one == number, "for the instance"),
            };
            assert!(there, "job {job} ran on {}", places[place]);
            *kinds.entry(kind).or_default() += 1;
        }
        println!("{}: {} jobs, {kinds:?}", places[place], done.len());
        assert!(kinds.contains_key("for the instance") && kinds.contains_key("for the group"), "{kinds:?}");
    }
    assert_eq!(ran.len(), jobs.len());
    for left in ["hero:unclaimed:*", "hero:claims:*"] {
        assert_eq!(bench.keys(left), "*0\r\n");
    }
    assert_eq!(bench.redis.raw(15, &["XLEN", "hero:done"]), ":0\r\n");
    let taken: u64 =
        bench.supervisor.statistics().await.expect("an answer").iter().map(|one| one.taken).sum();
    assert_eq!(taken, u64::from(JOBS));
}

#[tokio::test]
async fn with_one_slot_a_priority_is_first_in_first_out() {
    const JOBS: u32 = 600;
    let bench = QueueTestBench::new();
    let priority = |job: u32| u8::try_from(job * 7 / 5 % 3).expect("a priority");
    let jobs = |range: std::ops::Range<u32>| -> Vec<_> {
        range.map(|job| Execution { priority: priority(job), ..execution(job) }).collect()
    };
    let (worker, mut intake, _control) = bench.join(1).await;
    feed(&bench, &jobs(0..JOBS)).await;
    let mut order = Vec::new();
    let run = async |intake: &mut JobConsumer, order: &mut Vec<u32>, count: u32| {
        for _ in 0..count {
            let [job] = take(intake, 1).await[..] else { panic!("one job") };
            let key = crate::setup::job_key(job);
            worker.finish(&ending(key, Outcome::Succeeded)).await.expect("finished");
            order.push(job);
        }
    };
    run(&mut intake, &mut order, JOBS / 2).await;
    // All that wait are of the same priorities, and these are of all three.
    feed(&bench, &jobs(JOBS..JOBS + JOBS / 2)).await;
    run(&mut intake, &mut order, JOBS).await;
    let mut expected: Vec<_> = (0..JOBS).collect();
    expected.sort_by_key(|job| (priority(*job), *job));
    let mut rest = expected.split_off(JOBS as usize / 2);
    rest.extend(JOBS..JOBS + JOBS / 2);
    rest.sort_by_key(|job| (priority(*job), *job));
    expected.extend(rest);
    assert_eq!(order, expected);
}

#[tokio::test]
async fn equal_instances_have_equal_shares() {
    const JOBS: u32 = 4000;
    let bench = QueueTestBench::new();
    let jobs: Vec<_> = (0..JOBS).map(execution).collect();
    feed(&bench, &jobs).await;
    let over = watch::Sender::new(false);
    let (a, mut a_intake, _a) = bench.join(1).await;
    let (b, mut b_intake, _b) = bench.join(2).await;
    let (c, mut c_intake, _c) = bench.join(3).await;
    let (a, b, c, ()) = tokio::join!(
        work(&a, &mut a_intake, 1, &over),
        work(&b, &mut b_intake, 1, &over),
        work(&c, &mut c_intake, 1, &over),
        listen(&bench, jobs.len(), &over),
    );
    let counts = [a.len(), b.len(), c.len()];
    println!("{JOBS} jobs, shared as {counts:?}");
    let mean = JOBS as usize / counts.len();
    assert!(counts.iter().all(|count| count.abs_diff(mean) * 4 <= mean), "{counts:?}");
}

#[tokio::test]
async fn throughput_is_measured() {
    let bench = QueueTestBench::new();
    bench.accept(1).await;
    let shared = WorkQueue::shared(ScriptType::Shell);
    let measured = async || {
        let stats = bench.supervisor.statistics().await.expect("an answer");
        let stats = stats.into_iter().find(|stats| stats.queue == shared).expect("the queue");
        (stats.depth, stats.taken, stats.taken_per_sec)
    };
    assert_eq!(measured().await, (1, 0, 0.0));
    // As if it had been measured for the first time 100 seconds ago.
    let key = format!("hero:meta:queue:stats:{shared}");
    let back = ["from_at", "next_at"].map(|field| {
        let now = bench.redis.raw(15, &["HGET", &key, field]);
        let now: f64 = now.lines().nth(1).expect("a time").parse().expect("a number");
        bench.redis.raw(15, &["HSET", &key, field, &format!("{:.3}", now - 100.0)])
    });
    assert_eq!(back, [":0\r\n", ":0\r\n"]);
    let (_, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 4).await, [1]);
    let (depth, taken, rate) = measured().await;
    assert_eq!((depth, taken), (0, 1));
    assert!((0.005..=0.01).contains(&rate), "{rate} in a second, of 1 in 100");
    let again = measured().await;
    assert!((0.005..=0.01).contains(&again.2), "the mark stays for a minute: {again:?}");
}
