//! Contexts that share the instances of a type take turns.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use model::execution::Outcome;
use model::id::Uid;
use model::{ContextUid, Execution, JobKey};
use queue::{JobConsumer, JobOffer};

use crate::setup::{COORDINATOR, QueueTestBench, ending, execution, offer};

const SHARED: &str = "hero:q:work:type:shell";
/// Number of jobs that travel together.
const BATCH: u32 = 500;

fn context(number: u8) -> ContextUid {
    ContextUid(Uid::from_bits(number.into()))
}

fn key(number: u8, job: u32) -> JobKey {
    JobKey { context: context(number), ..crate::setup::job_key(job) }
}

/// A job of a context.
fn of(number: u8, job: u32) -> Execution {
    Execution { job_key: key(number, job), ..execution(job) }
}

async fn accept_weighing(bench: &QueueTestBench, number: u8, weight: u32, jobs: std::ops::Range<u32>) {
    let weight = NonZeroU32::new(weight).expect("a weight");
    let mut from = jobs.start;
    while from < jobs.end {
        let part = from..jobs.end.min(from + BATCH);
        from = part.end;
        let offers = part.map(|job| JobOffer { weight, ..offer(of(number, job)) }).collect();
        for accepted in bench.supervisor.accept_all(offers).await {
            assert!(accepted.expect("an accepted job").is_new);
        }
    }
}

async fn accept(bench: &QueueTestBench, number: u8, jobs: std::ops::Range<u32>) {
    accept_weighing(bench, number, 1, jobs).await;
}

/// Takes up to so many, each with the number of its context.
async fn take(intake: &mut JobConsumer, free: usize) -> Vec<(u8, u32)> {
    let taken = intake.next(free, async {}).await.expect("an answer");
    let place = |key: JobKey| {
        let number = (1..=9).find(|number| context(*number) == key.context).expect("a context of this test");
        (number, key.job.0)
    };
    taken.iter().map(|taken| place(taken.execution.job_key)).collect()
}

/// Checks that no turns are left once nothing waits, after one more job was accepted and taken.
async fn is_forgotten(bench: &QueueTestBench, intake: &mut JobConsumer) {
    accept(bench, 9, 90_000..90_001).await;
    assert_eq!(take(intake, 10).await, [(9, 90_000)]);
    for left in ["hero:turns:*", "hero:line*", "hero:unclaimed:*", "hero:q:work:*"] {
        assert_eq!(bench.keys(left), "*0\r\n", "{left}");
    }
}

#[tokio::test]
async fn one_job_is_next_though_ten_thousand_of_another_context_wait() {
    let bench = QueueTestBench::new();
    let (_instance, mut intake, _control) = bench.join(1).await;
    accept(&bench, 1, 0..10_000).await;
    assert_eq!(take(&mut intake, 2).await, [(1, 0), (1, 1)]);
    accept(&bench, 2, 7..8).await;
    assert_eq!(take(&mut intake, 1).await, [(2, 7)]);
    assert_eq!(take(&mut intake, 3).await, [(1, 2), (1, 3), (1, 4)]);
    // Also the one that comes when the first has gone.
    accept(&bench, 3, 8..9).await;
    assert_eq!(take(&mut intake, 1).await, [(3, 8)]);
}

#[tokio::test]
async fn three_to_one_is_three_to_one() {
    let bench = QueueTestBench::new();
    let (_instance, mut intake, _control) = bench.join(1).await;
    accept_weighing(&bench, 1, 3, 0..7500).await;
    accept_weighing(&bench, 2, 1, 0..7500).await;
    let mut taken: BTreeMap<u8, Vec<u32>> = BTreeMap::new();
    for part in 1..=100 {
        for (number, job) in take(&mut intake, 100).await {
            taken.entry(number).or_default().push(job);
        }
        let (heavy, light) = (taken[&1].len(), taken[&2].len());
        assert_eq!(heavy + light, part * 100);
        assert!(heavy.abs_diff(3 * light) <= 4, "{heavy} to {light} after {part} hundred");
    }
    for (number, jobs) in taken {
        assert!(jobs.iter().copied().eq(0..u32::try_from(jobs.len()).expect("few")), "context {number}");
    }
}

#[tokio::test]
async fn a_weight_holds_from_the_next_job_that_is_taken_in() {
    let bench = QueueTestBench::new();
    let (_instance, mut intake, _control) = bench.join(1).await;
    accept(&bench, 1, 0..100).await;
    accept(&bench, 2, 0..100).await;
    let twos = |taken: &[(u8, u32)]| taken.iter().filter(|(number, _)| *number == 2).count();
    assert_eq!(twos(&take(&mut intake, 20).await), 10);
    accept_weighing(&bench, 2, 4, 100..101).await;
    assert_eq!(twos(&take(&mut intake, 50).await), 40);
    accept(&bench, 2, 101..102).await;
    let taken = take(&mut intake, 20).await;
    assert!((9..=11).contains(&twos(&taken)), "{taken:?}");
}

#[tokio::test]
async fn what_goes_first_goes_first_in_its_own_context() {
    let bench = QueueTestBench::new();
    let (_instance, mut intake, _control) = bench.join(1).await;
    accept(&bench, 1, 0..3).await;
    bench.accept_as(Execution { priority: 0, ..of(1, 3) }).await;
    bench.accept_as(Execution { group: Some("default".parse().expect("a name")), ..of(1, 4) }).await;
    for job in 0..3 {
        bench.accept_as(Execution { priority: 2, ..of(2, job) }).await;
    }
    let taken = take(&mut intake, 8).await;
    let of_one: Vec<_> = taken.iter().filter(|(number, _)| *number == 1).map(|(_, job)| *job).collect();
    assert_eq!(of_one, [3, 4, 0, 1, 2]);
    let first: Vec<_> = taken[..6].iter().filter(|(number, _)| *number == 2).map(|(_, job)| *job).collect();
    assert_eq!(first, [0, 1, 2], "a context has its turns whatever others wait with: {taken:?}");
    is_forgotten(&bench, &mut intake).await;
}

#[tokio::test]
async fn who_waits_for_others_neither_holds_up_nor_saves_up_turns() {
    let bench = QueueTestBench::new();
    let (_instance, mut intake, _control) = bench.join(1).await;
    let elsewhere = |job| Execution { group: Some("elsewhere".parse().expect("a name")), ..of(1, job) };
    for job in 0..3 {
        bench.accept_as(elsewhere(job)).await;
    }
    accept(&bench, 2, 0..400).await;
    accept(&bench, 3, 0..400).await;
    let taken = take(&mut intake, 400).await;
    assert_eq!(taken.iter().filter(|(number, _)| *number == 2).count(), 200);
    // Context 1 had no turn for four hundred jobs. A context that comes new has had as few.
    accept(&bench, 1, 100..200).await;
    accept(&bench, 4, 100..200).await;
    let taken = take(&mut intake, 40).await;
    for number in 1..=4 {
        let count = taken.iter().filter(|(of, _)| *of == number).count();
        assert!((9..=12).contains(&count), "context {number} had {count} of {taken:?}");
    }
}

#[tokio::test]
async fn what_is_stopped_or_given_back_leaves_its_line() {
    let bench = QueueTestBench::new();
    let (_instance, mut intake, _control) = bench.join(1).await;
    accept(&bench, 1, 0..4).await;
    accept(&bench, 2, 0..4).await;
    for (number, job) in [(1, 0), (2, 0), (2, 1), (2, 2)] {
        bench.supervisor.stop(key(number, job), 0).await.expect("stopped");
    }
    assert_eq!(take(&mut intake, 2).await, [(2, 3), (1, 1)]);
    assert_eq!(bench.supervisor.return_waiting().await.expect("handed back"), 2);
    assert_eq!(take(&mut intake, 2).await, []);
    is_forgotten(&bench, &mut intake).await;
}

#[tokio::test]
async fn a_dropped_context_leaves_the_turns_to_the_others() {
    let bench = QueueTestBench::new();
    let (_instance, mut intake, _control) = bench.join(1).await;
    accept(&bench, 1, 0..2000).await;
    accept(&bench, 2, 0..3).await;
    assert_eq!(bench.supervisor.drop_context(context(1), COORDINATOR).await.expect("dropped"), 0);
    assert_eq!(take(&mut intake, 4).await, [(2, 0), (2, 1), (2, 2)]);
    is_forgotten(&bench, &mut intake).await;
}

#[tokio::test]
async fn an_entry_that_was_popped_and_lost_is_put_back() {
    let bench = QueueTestBench::new();
    let (_instance, mut intake, _control) = bench.join(1).await;
    accept(&bench, 1, 0..3).await;
    accept(&bench, 2, 0..3).await;
    let length = || bench.redis.raw(15, &["LLEN", SHARED]);
    assert_eq!(bench.supervisor.requeue_unclaimed().await.expect("an answer"), 0);
    let _ = bench.redis.raw(15, &["LPOP", SHARED]);
    let _ = bench.redis.raw(15, &["RPOP", SHARED]);
    assert_eq!(length(), ":4\r\n");
    assert_eq!(bench.supervisor.requeue_unclaimed().await.expect("an answer"), 2);
    assert_eq!(length(), ":6\r\n");
    assert_eq!(take(&mut intake, 4).await, [(2, 0), (1, 0), (2, 1), (1, 1)]);
    assert_eq!(length(), ":2\r\n");
    assert_eq!(bench.supervisor.requeue_unclaimed().await.expect("an answer"), 0);
    assert_eq!(take(&mut intake, 4).await, [(2, 2), (1, 2)]);
    is_forgotten(&bench, &mut intake).await;
}

#[tokio::test]
async fn a_waiting_instance_is_given_the_job_whose_turn_it_is() {
    let bench = QueueTestBench::new();
    let (instance, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 1).await, []);
    // As if its slots had been taken: nothing is handed over.
    let _ = bench.redis.raw(15, &["DEL", "hero:takers:shell"]);
    accept(&bench, 1, 0..3).await;
    accept(&bench, 2, 0..1).await;
    // It pops the first entry, then takes what is due.
    let mut order = Vec::new();
    while order.len() < 4 {
        for (number, job) in take(&mut intake, 1).await {
            order.push((number, job));
            instance.finish(&ending(key(number, job), Outcome::Succeeded)).await.expect("recorded");
        }
    }
    assert_eq!(order, [(2, 0), (1, 0), (1, 1), (1, 2)]);
    is_forgotten(&bench, &mut intake).await;
}

#[tokio::test]
async fn what_waited_before_there_were_turns_has_them() {
    let bench = QueueTestBench::new();
    let (_instance, mut intake, _control) = bench.join(1).await;
    accept(&bench, 1, 0..5).await;
    accept(&bench, 2, 0..5).await;
    // As a version left it that knew of no turns.
    for left in ["hero:alone", "hero:turns:shell"] {
        let _ = bench.redis.raw(15, &["DEL", left]);
    }
    for number in [1, 2] {
        let _ = bench.redis.raw(15, &["DEL", &format!("hero:lines:shell:{}", context(number))]);
        let _ = bench.redis.raw(15, &["DEL", &format!("hero:line:{}:{SHARED}", context(number))]);
    }
    accept(&bench, 3, 0..1).await;
    assert_eq!(take(&mut intake, 4).await, [(3, 0), (1, 0), (2, 0), (1, 1)]);
}
