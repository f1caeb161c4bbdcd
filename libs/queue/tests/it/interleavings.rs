//! Whatever happens between supervisor, instances and old workers, in whichever order: no job is lost, none is
//! taken twice, each ends once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kv::Cmd;
use model::execution::Outcome;
use model::id::Uid;
use model::{ContextUid, Execution, Isolation, JobKey};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use queue::{InstanceCommandReader, InstanceSession, JobConsumer, OLD_WORKER_PATIENCE};

use crate::attempt_states::{AttemptChange, StoredAttempt, lead, written_changes};
use crate::legacy::{ACTOR_QUEUE, binding};
use crate::legacy_worker::{LegacyTestTask, LegacyTestWorker, PopSide};
use crate::setup::{COORDINATOR, QueueTestBench, ending, execution, instance, job_key, offer};

const CASES: u32 = 200;
const JOBS: u32 = 8;
const SHARED: &str = "hero:q:work:type:shell";
const DEMANDING: &str = "hero:q:work:type:shell:iso:confined";
/// Isolation that each instance gives; some jobs demand a level that only the second one gives.
const GIVEN: [Isolation; 2] = [Isolation::Basic, Isolation::Contained];

/// One action of a participant. Numbers choose among what there is.
#[derive(Debug, Clone)]
enum Step {
    Accept(u32),
    Take { by: usize, free: usize },
    Finish { by: usize, which: usize },
    FinishAndTake { by: usize, which: usize, lost: bool },
    PopWithoutClaim(&'static str),
    LoseAnswer(usize),
    StopTaking(usize),
    Refuse,
    OldPop(PopSide),
    OldStart(usize),
    OldFinish { which: usize, well: bool },
    OldTakesTooLong(u32),
    Sweep,
    PutBack,
    Stop(u32),
    Vanish(usize),
    NewLife(usize),
    HandBack,
    Drop,
    Foreign(u32),
}

impl Step {
    /// The events of an attempt that the step may be, as `specs/states/attempt.md` names them.
    const fn events(&self) -> &'static [&'static str] {
        match self {
            Self::Accept(_) => &["accept", "hand_over"],
            Self::Take { .. } | Self::LoseAnswer(_) => &["take", "take_elsewhere"],
            Self::Finish { .. } => &["succeed"],
            Self::FinishAndTake { .. } => &["succeed", "take", "take_elsewhere"],
            Self::Refuse => &["refuse", "take_elsewhere"],
            Self::Sweep => &["take_elsewhere", "succeed", "fail", "give_up"],
            Self::Stop(_) => &["stop", "ask_to_stop", "take_elsewhere"],
            Self::Vanish(_) | Self::NewLife(_) => &["lose"],
            Self::HandBack => &["hand_back", "take_elsewhere"],
            Self::Drop => &["drop", "ask_to_stop", "take_elsewhere"],
            Self::PopWithoutClaim(_)
            | Self::StopTaking(_)
            | Self::OldPop(_)
            | Self::OldStart(_)
            | Self::OldFinish { .. }
            | Self::OldTakesTooLong(_)
            | Self::PutBack
            | Self::Foreign(_) => &[],
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..JOBS).prop_map(Step::Accept),
        4 => (0_usize..2, 1_usize..4).prop_map(|(by, free)| Step::Take { by, free }),
        3 => (0_usize..2, 0_usize..4).prop_map(|(by, which)| Step::Finish { by, which }),
        2 => (0_usize..2, 0_usize..4, proptest::bool::weighted(0.2))
            .prop_map(|(by, which, lost)| Step::FinishAndTake { by, which, lost }),
        2 => Just(Step::PopWithoutClaim(SHARED)),
        1 => Just(Step::PopWithoutClaim(DEMANDING)),
        1 => (0_usize..2).prop_map(Step::LoseAnswer),
        1 => (0_usize..2).prop_map(Step::StopTaking),
        1 => Just(Step::Refuse),
        4 => prop_oneof![Just(PopSide::Left), Just(PopSide::Right)].prop_map(Step::OldPop),
        2 => (0_usize..4).prop_map(Step::OldStart),
        3 => (0_usize..4, any::<bool>()).prop_map(|(which, well)| Step::OldFinish { which, well }),
        1 => (0..JOBS).prop_map(Step::OldTakesTooLong),
        3 => Just(Step::Sweep),
        2 => Just(Step::PutBack),
        2 => (0..JOBS).prop_map(Step::Stop),
        1 => (0_usize..2).prop_map(Step::Vanish),
        1 => (0_usize..2).prop_map(Step::NewLife),
        1 => Just(Step::HandBack),
        1 => proptest::bool::weighted(0.2).prop_map(|drop| if drop { Step::Drop } else { Step::Sweep }),
        2 => (0..JOBS).prop_map(Step::Foreign),
    ];
    prop::collection::vec(step, 1..60)
}

/// Jobs of three contexts, the first of which old workers may have.
fn key(job: u32) -> JobKey {
    JobKey { context: ContextUid(Uid::from_bits(1 + u128::from(job % 3))), ..job_key(job) }
}

fn demanding(job: u32) -> Execution {
    let mut execution = Execution { job_key: key(job), ..execution(job) };
    if job % 4 == 3 {
        execution.isolation = Isolation::Confined;
    }
    execution
}

/// Where each job stands.
async fn stored_attempts(bench: &QueueTestBench) -> Vec<StoredAttempt> {
    let keys: Vec<_> = (0..JOBS).map(key).collect();
    StoredAttempt::of(&bench.kv.database(15), &keys).await
}

struct World<'a> {
    bench: &'a QueueTestBench,
    list: &'a str,
    members: Vec<(InstanceSession, JobConsumer, InstanceCommandReader)>,
    /// Jobs that each instance runs.
    running: Vec<Vec<JobKey>>,
    /// Jobs that legacy workers run.
    tasks: Vec<LegacyTestTask>,
    accepted: BTreeSet<JobKey>,
    takers: BTreeMap<JobKey, String>,
    dropped: bool,
    /// Changes that attempts may make.
    written: &'a BTreeSet<AttemptChange>,
    /// Where each job stood after the last step.
    stored_attempts: Vec<StoredAttempt>,
}

impl<'a> World<'a> {
    async fn new(bench: &'a QueueTestBench, list: &'a str, written: &'a BTreeSet<AttemptChange>) -> Self {
        let _ = bench.redis.raw(15, &["FLUSHDB"]);
        let members = vec![bench.join_giving(1, GIVEN[0]).await, bench.join_giving(2, GIVEN[1]).await];
        Self {
            bench,
            list,
            members,
            running: vec![Vec::new(); 2],
            tasks: Vec::new(),
            accepted: BTreeSet::new(),
            takers: BTreeMap::new(),
            dropped: false,
            written,
            stored_attempts: stored_attempts(bench).await,
        }
    }

    /// Takes a step, after which no attempt stands where its events do not lead.
    async fn step_as_written(&mut self, step: &Step) {
        self.step(step).await;
        let before = std::mem::replace(&mut self.stored_attempts, stored_attempts(self.bench).await);
        for (before, after) in before.iter().zip(&self.stored_attempts) {
            let is_written = lead(self.written, step.events(), &before.state, &after.state);
            assert!(is_written, "{step:?}: {before:?} to {after:?}");
        }
    }

    /// How often each job ended, or was given back, by its events.
    async fn ends(&self) -> BTreeMap<JobKey, u32> {
        let all = Cmd::new("XRANGE").arg("hero:done").arg("-").arg("+");
        let entries =
            self.bench.kv.database(15).cmd(all).await.and_then(|all| all.entries()).expect("a stream");
        let mut ends = BTreeMap::new();
        for entry in entries {
            if matches!(entry.text("kind"), Ok("ended" | "returned")) {
                let key = entry.text("key").expect("a key").parse().expect("a job key");
                *ends.entry(key).or_default() += 1;
            }
        }
        ends
    }

    async fn taken(&mut self, key: JobKey, by: String) {
        assert!(self.accepted.contains(&key), "{key} was never accepted");
        assert_eq!(self.ends().await.get(&key), None, "{key} had ended before {by} took it");
        assert_eq!(self.takers.insert(key, by), None, "{key} was taken before");
    }

    async fn take(&mut self, by: usize, free: usize) -> usize {
        let taken = self.members[by].1.next(free, async {}).await.expect("an answer");
        for taken in &taken {
            assert!(taken.execution.isolation <= GIVEN[by], "it cannot give that");
            self.taken(taken.execution.job_key, format!("instance {by}")).await;
            self.running[by].push(taken.execution.job_key);
        }
        taken.len()
    }

    /// Loses the answer of a fetch together with the fetched jobs.
    async fn lose_answer(&mut self, by: usize) {
        let _ = self.bench.redis.raw(15, &["LPOP", &format!("hero:handed:{}", self.members[by].0.who())]);
        let mut dropped = std::pin::pin!(self.members[by].1.next(1, std::future::pending()));
        tokio::select! {
            biased;
            _ = &mut dropped => panic!("it takes a round trip"),
            () = std::future::ready(()) => {}
        }
    }

    async fn stop_taking(&mut self, by: usize) {
        for taken in self.members[by].1.stop().await.expect("an answer") {
            self.taken(taken.execution.job_key, format!("instance {by}, which stopped")).await;
            self.running[by].push(taken.execution.job_key);
        }
    }

    async fn finish(&mut self, by: usize, which: usize) {
        let running = &mut self.running[by];
        if !running.is_empty() {
            let key = running.remove(which % running.len());
            self.members[by].0.finish(&ending(key, Outcome::Succeeded)).await.expect("an answer");
        }
    }

    /// An end that takes the next job along; after a lost answer the jobs are asked for again.
    async fn finish_and_take(&mut self, by: usize, which: usize, lost: bool) {
        let running = &mut self.running[by];
        if running.is_empty() {
            return;
        }
        let key = running.remove(which % running.len());
        let (instance, ending) = (self.members[by].0.clone(), ending(key, Outcome::Succeeded));
        let _full = self.members[by].1.full();
        if lost {
            let mut dropped = std::pin::pin!(instance.finish_and_take(&ending));
            tokio::select! {
                biased;
                _ = &mut dropped => panic!("it takes a round trip"),
                () = std::future::ready(()) => {}
            }
            let _ = instance.finish(&ending).await.expect("an answer");
            return;
        }
        if let Some(next) = instance.finish_and_take(&ending).await.expect("an answer").1 {
            assert!(next.execution.isolation <= GIVEN[by], "it cannot give that");
            self.taken(next.execution.job_key, format!("an end of instance {by}")).await;
            self.running[by].push(next.execution.job_key);
        }
    }

    async fn old_pop(&mut self, side: PopSide) -> bool {
        let Some(task) = LegacyTestWorker::new(&self.bench.kv, self.list, side).pop().await else {
            return false;
        };
        let job = task.fields["script"].strip_prefix("echo ").expect("a script").parse().expect("a number");
        self.taken(key(job), "an old worker".into()).await;
        self.tasks.push(task);
        true
    }

    async fn old_write(&mut self, which: usize, status: &str) {
        if !self.tasks.is_empty() {
            let worker = LegacyTestWorker::new(&self.bench.kv, self.list, PopSide::Left);
            let which = which % self.tasks.len();
            if status == "started" {
                worker.write(&self.tasks[which], &[("status", status)]).await;
            } else {
                let task = self.tasks.remove(which);
                worker.write(&task, &[("status", status), ("output", "x"), ("error", "y")]).await;
            }
        }
    }

    fn field(&self, job: u32, name: &str) -> String {
        self.bench.redis.raw(15, &["HGET", &format!("hero:job:{}", key(job)), name])
    }

    async fn step(&mut self, step: &Step) {
        let supervisor = &self.bench.supervisor;
        match *step {
            Step::Accept(job) => match supervisor.accept(offer(demanding(job))).await {
                Ok(_) => drop(self.accepted.insert(key(job))),
                Err(refusal) => assert!(refusal.is_permanent(), "{refusal}"),
            },
            Step::Take { by, free } => drop(self.take(by, free).await),
            Step::Finish { by, which } => self.finish(by, which).await,
            Step::FinishAndTake { by, which, lost } => self.finish_and_take(by, which, lost).await,
            Step::PopWithoutClaim(queue) => drop(self.bench.redis.raw(15, &["LPOP", queue])),
            Step::LoseAnswer(by) => self.lose_answer(by).await,
            Step::StopTaking(by) => self.stop_taking(by).await,
            Step::Refuse => {
                let queue = DEMANDING.parse().expect("a queue");
                supervisor.refuse_waiting(&queue).await.expect("refused");
            }
            Step::OldPop(side) => drop(self.old_pop(side).await),
            Step::OldStart(which) => self.old_write(which, "started").await,
            Step::OldFinish { which, well } => {
                self.old_write(which, if well { "finished" } else { "error" }).await;
            }
            Step::OldTakesTooLong(job) => {
                let theirs = self.field(job, "claimed_by").contains("legacy:");
                if theirs && self.field(job, "state").contains("started") {
                    let hash = format!("hero:job:{}", key(job));
                    let _ = self.bench.redis.raw(15, &["HSET", &hash, "started_at", "1.000"]);
                }
            }
            Step::Sweep => drop(supervisor.sweep_legacy(OLD_WORKER_PATIENCE).await.expect("swept")),
            Step::PutBack => drop(supervisor.requeue_unclaimed().await.expect("put back")),
            Step::Stop(job) => drop(supervisor.stop(key(job), 0).await.expect("an answer")),
            Step::Vanish(by) => {
                let presence =
                    format!("hero:meta:actor:inst:{}", instance(u32::try_from(by).unwrap_or(0) + 1));
                let _ = self.bench.redis.raw(15, &["DEL", &presence]);
                supervisor.end_lost(self.members[by].0.who()).await.expect("ended");
                self.members[by].0.refresh().await.expect("it lives after all");
            }
            Step::NewLife(by) => {
                self.members[by] =
                    self.bench.join_giving(u32::try_from(by).unwrap_or(0) + 1, GIVEN[by]).await;
                self.running[by].clear();
            }
            Step::HandBack => drop(supervisor.return_waiting().await.expect("handed back")),
            Step::Drop => {
                supervisor.drop_context(key(0).context, COORDINATOR).await.expect("an answer");
                self.dropped = true;
            }
            Step::Foreign(job) => {
                let key = key(job).to_string();
                for entry in [key.as_str(), "actor_queue:shell", "nonsense"] {
                    let push = if job % 2 == 0 { "LPUSH" } else { "RPUSH" };
                    for queue in [SHARED, DEMANDING] {
                        let _ = self.bench.redis.raw(15, &[push, queue, entry]);
                    }
                }
            }
        }
    }

    /// Every party does what is left to do.
    async fn settle(&mut self) {
        for _ in 0..100 {
            self.bench.supervisor.requeue_unclaimed().await.expect("put back");
            let mut moved = self.take(0, 100).await > 0;
            moved |= self.take(1, 100).await > 0;
            for by in 0..2 {
                while !self.running[by].is_empty() {
                    self.finish(by, 0).await;
                }
            }
            while self.old_pop(PopSide::Left).await {
                moved = true;
            }
            while !self.tasks.is_empty() {
                self.old_write(0, "finished").await;
            }
            let swept = self.bench.supervisor.sweep_legacy(Duration::ZERO).await.expect("swept");
            if !moved && swept == queue::LegacySweepCounts::default() {
                return;
            }
        }
        panic!("there is always something left to do");
    }

    async fn check(&self) {
        let ends = self.ends().await;
        for key in &self.accepted {
            let count = ends.get(key).copied().unwrap_or_default();
            assert!(count <= 1, "{key} ended {count} times");
            assert!(count == 1 || self.dropped, "{key}, taken by {:?}, never ended", self.takers.get(key));
        }
        assert!(ends.keys().all(|key| self.accepted.contains(key)));
        for left in
            ["hero:handed:*", "hero:line*", "hero:legacy*", "hero:claims:*", "hero:unclaimed:*", self.list]
        {
            assert_eq!(self.bench.keys(left), "*0\r\n", "{left}");
        }
    }
}

fn in_any_order(list: &'static str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut jobs, mut by_instances, mut by_old) = (0, 0, 0);
    let bench = runtime.block_on(async { QueueTestBench::new() });
    let supervisor = bench.supervisor.clone().with_legacy_workers(vec![binding(list)]);
    let bench = QueueTestBench { supervisor, ..bench };
    let written = written_changes();
    let mut runner = TestRunner::new(Config { source_file: Some(file!()), ..Config::with_cases(CASES) });
    let counts = std::cell::RefCell::new((&mut jobs, &mut by_instances, &mut by_old));
    let checked = runner.run(&steps(), |steps| {
        runtime.block_on(async {
            let mut world = World::new(&bench, list, &written).await;
            for step in &steps {
                world.step_as_written(step).await;
            }
            world.settle().await;
            world.check().await;
            let mut counts = counts.borrow_mut();
            *counts.0 += world.accepted.len();
            let old = world.takers.values().filter(|by| by.contains("old")).count();
            *counts.1 += world.takers.len() - old;
            *counts.2 += old;
        });
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
    println!("{list}: {jobs} jobs, {by_instances} taken by instances, {by_old} by old workers");
    assert!(by_instances > 0 && by_old > 0);
}

#[test]
fn nothing_is_lost_or_done_twice() {
    in_any_order(ACTOR_QUEUE);
}

#[test]
fn nothing_is_lost_or_done_twice_with_numbered_entries() {
    in_any_order("queue:shell");
}
