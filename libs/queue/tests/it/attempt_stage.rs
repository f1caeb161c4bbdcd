//! An attempt at its supervisor, from each of those that attempts come from, and everything that can be done to it.

use std::future::pending;

use keys::supervisor as k;
use keys::{LegacyQueue, WorkQueue};
use kv::{Cmd, Value};
use model::execution::Outcome;
use model::id::Uid;
use model::{ContextUid, Execution, Grants, Isolation, JobId, JobKey, ScriptType};
use queue::{
    AcceptCondition, InstanceSession, JobAcceptError, JobConsumer, JobOffer, LogChunk, OLD_WORKER_PATIENCE,
    PopBinding, RotationAuthority, SupervisorQueues,
};

use crate::attempt_states::{AttemptPlace, StoredAttempt};
use crate::legacy::{ACTOR_QUEUE, binding};
use crate::legacy_worker::{LegacyTestTask, LegacyTestWorker, PopSide};
use crate::setup::{COORDINATOR, QueueTestBench, ending, execution, instance, job_key, offer};

/// Isolation that instances give, and that what our coordinator sends to them alone demands.
const GIVEN: Isolation = Isolation::Confined;
/// Name under which a dispatcher of others knows its job.
const OLD_ID: &str = "old-1";
/// Another coordinator.
const ANOTHER: &str = "another";
/// The root key that comes after that of our coordinator.
const NEXT_ROOT: &str = "decaf";
/// Instances that wait for jobs.
const TAKERS: &str = "hero:takers:shell";
/// How many jobs may wait for an old dispatcher's.
const WAITING_MAX: usize = 100;

/// Where an attempt comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptOrigin {
    /// Our coordinator; for instances alone.
    Coordinator,
    /// Our coordinator; an old queue shows it to old workers.
    ShownCoordinator,
    /// Our coordinator; its queue is open.
    OpenCoordinator,
    /// An old dispatcher, who pushed it to an old queue.
    Dispatcher,
    /// A dispatcher of others, who pushed it to an open queue.
    OpenDispatcher,
}

impl AttemptOrigin {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [
        Self::Coordinator,
        Self::ShownCoordinator,
        Self::OpenCoordinator,
        Self::Dispatcher,
        Self::OpenDispatcher,
    ];

    const fn is_open(self) -> bool {
        matches!(self, Self::OpenCoordinator | Self::OpenDispatcher)
    }

    const fn is_dispatcher(self) -> bool {
        matches!(self, Self::Dispatcher | Self::OpenDispatcher)
    }

    /// Returns true if workers of others may take the attempt.
    const fn has_others(self) -> bool {
        matches!(self, Self::ShownCoordinator | Self::OpenCoordinator)
    }

    fn offer(self) -> JobOffer {
        let isolation = if self == Self::Coordinator { GIVEN } else { Isolation::Basic };
        offer(Execution { isolation, ..execution(1) })
    }

    /// The queue that it waits in. What dispatchers push to an open queue is for instances alone when it is adopted.
    fn queue(self) -> WorkQueue {
        let queue = self.offer().queue();
        if self == Self::OpenDispatcher { queue.closed() } else { queue }
    }
}

/// Something that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptCall {
    Accept,
    Import,
    Stop,
    /// The time is over of whatever is kept for a time only.
    Expire,
    Take,
    TakeAtEnd,
    /// An entry is popped, and nothing is said of it: by workers of others where there are any, else by an instance.
    Pop,
    OthersStart,
    OthersEnd(Outcome),
    /// The time is over in which others may be silent.
    OthersAreSilent,
    Sweep,
    HandBack,
    Refuse,
    Drop,
    Finish(Outcome),
    Vanish,
    JoinAnew,
    Keep,
    Forget,
    // Those below change no state.
    FinishOfAnother,
    Log,
    Refresh,
    PutBack,
    PutBackOpen,
    AcceptKnown,
    AcceptOtherContent,
    AcceptFromAnother,
    ForgetForAnother,
    DropForAnother,
    Resend,
    Measure,
    Index,
    FindForeign,
    StopTaking,
    Leave,
    Expel,
    RotateRoot,
}

/// Calls that change no state, in an order in which each finds what it is about.
pub(crate) const IDLE_CALLS: [AttemptCall; 18] = [
    AttemptCall::FinishOfAnother,
    AttemptCall::Log,
    AttemptCall::Refresh,
    AttemptCall::PutBackOpen,
    AttemptCall::PutBack,
    AttemptCall::AcceptKnown,
    AttemptCall::AcceptOtherContent,
    AttemptCall::AcceptFromAnother,
    AttemptCall::ForgetForAnother,
    AttemptCall::DropForAnother,
    AttemptCall::Resend,
    AttemptCall::Measure,
    AttemptCall::Index,
    AttemptCall::FindForeign,
    AttemptCall::StopTaking,
    AttemptCall::Leave,
    AttemptCall::Expel,
    AttemptCall::RotateRoot,
];

impl AttemptCall {
    /// Calls that may change the state.
    pub(crate) const ALL: [Self; 24] = [
        Self::Accept,
        Self::Import,
        Self::Stop,
        Self::Expire,
        Self::Take,
        Self::TakeAtEnd,
        Self::Pop,
        Self::OthersStart,
        Self::OthersEnd(Outcome::Succeeded),
        Self::OthersEnd(Outcome::Failed),
        Self::OthersAreSilent,
        Self::Sweep,
        Self::HandBack,
        Self::Refuse,
        Self::Drop,
        Self::Finish(Outcome::Succeeded),
        Self::Finish(Outcome::Failed),
        Self::Finish(Outcome::TimedOut),
        Self::Finish(Outcome::Stopped),
        Self::Finish(Outcome::Lost),
        Self::Vanish,
        Self::JoinAnew,
        Self::Keep,
        Self::Forget,
    ];

    /// The event that a call is, beside that the attempt may be taken by it; empty for one that is no other event.
    pub(crate) const fn event(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Import => "import",
            Self::Stop | Self::Finish(Outcome::Stopped) => "stop",
            Self::Expire => "expire",
            Self::HandBack => "hand_back",
            Self::Refuse => "refuse",
            Self::Drop => "drop",
            Self::Finish(Outcome::Succeeded) | Self::OthersEnd(Outcome::Succeeded) => "succeed",
            Self::Finish(Outcome::Failed) | Self::OthersEnd(_) => "fail",
            Self::Finish(Outcome::TimedOut) => "time_out",
            Self::Finish(Outcome::Lost) => "report_loss",
            Self::Vanish | Self::JoinAnew => "lose",
            Self::OthersAreSilent => "give_up",
            Self::Keep => "keep",
            Self::Forget => "forget",
            _ => "",
        }
    }
}

/// A supervisor, an instance and those that the attempt comes from.
pub(crate) struct AttemptStage<'a> {
    bench: &'a QueueTestBench,
    supervisor: SupervisorQueues,
    origin: AttemptOrigin,
    one: (InstanceSession, JobConsumer),
    /// Nothing before a dispatcher's job is imported.
    key: Option<JobKey>,
    /// Entry that was popped.
    popped: Option<LegacyTestTask>,
    calls: Vec<AttemptCall>,
}

impl<'a> AttemptStage<'a> {
    /// A stage on which these calls have been made.
    pub(crate) async fn after(
        bench: &'a QueueTestBench,
        origin: AttemptOrigin,
        path: &[AttemptCall],
    ) -> Self {
        bench.kv.database(15).cmd(Cmd::new("FLUSHDB")).await.expect("emptied");
        let supervisor = SupervisorQueues::new(bench.kv.clone(), 15).with_open_queues(origin.is_open());
        let shown = (origin == AttemptOrigin::ShownCoordinator).then(|| binding(ACTOR_QUEUE));
        let supervisor = supervisor.with_legacy_workers(shown.into_iter().collect());
        supervisor.note_open().await.expect("noted");
        let (one, intake, _) = bench.join_giving(1, GIVEN).await;
        let one = (one, intake);
        let key = (!origin.is_dispatcher()).then(|| job_key(1));
        let mut stage = Self { bench, supervisor, origin, one, key, popped: None, calls: Vec::new() };
        if origin.is_dispatcher() {
            stage.write(&format!("hero:job:{OLD_ID}"), "script", "echo").await;
        }
        if origin == AttemptOrigin::OpenDispatcher {
            stage.cmd(Cmd::new("RPUSH").arg(&origin.offer().queue().to_string()).arg(OLD_ID)).await;
            assert!(stage.one.1.next(1, async {}).await.expect("an answer").is_empty(), "it is put aside");
        }
        for call in path {
            stage.call(*call).await;
        }
        stage
    }

    /// The calls that were made.
    pub(crate) fn calls(&self) -> &[AttemptCall] {
        &self.calls
    }

    async fn stored(&self) -> StoredAttempt {
        let key = self.key.unwrap_or_else(|| job_key(1));
        StoredAttempt::of(&self.bench.kv.database(15), &[key]).await.remove(0)
    }

    /// Where the attempt stands, and what decides what follows.
    pub(crate) async fn place(&self) -> AttemptPlace {
        let stored = self.stored().await;
        let exists = async |key: &str| self.cmd(Cmd::new("EXISTS").arg(key)).await.uint() == Ok(1);
        let is_handed = exists(&k::handed(&instance(1))).await;
        let is_awaited = exists(TAKERS).await;
        AttemptPlace {
            is_popped: self.popped.is_some() && (stored.state == "queued" || self.origin.has_others()),
            is_handed: stored.state == "started" && is_handed,
            is_awaited: stored.state == "none" && is_awaited,
            stored,
        }
    }

    async fn cmd(&self, cmd: Cmd) -> Value {
        self.bench.kv.database(15).cmd(cmd).await.expect("an answer")
    }

    async fn write(&self, key: &str, field: &str, value: &str) {
        self.cmd(Cmd::new("HSET").arg(key).arg(field).arg(value)).await;
    }

    /// Makes a call. Those about an attempt that nobody can name yet do nothing.
    pub(crate) async fn call(&mut self, call: AttemptCall) {
        self.calls.push(call);
        let supervisor = self.supervisor.clone();
        match call {
            AttemptCall::Import => self.import().await,
            AttemptCall::Take => drop(self.one.1.next(4, async {}).await.expect("an answer")),
            AttemptCall::Pop => self.pop().await,
            AttemptCall::OthersStart => self.others_write(&[("status", "started")]).await,
            AttemptCall::OthersEnd(Outcome::Succeeded) => {
                self.others_write(&[("status", "finished"), ("output", "x")]).await;
            }
            AttemptCall::OthersEnd(_) => self.others_write(&[("status", "error"), ("error", "x")]).await,
            AttemptCall::Sweep => self.sweep().await,
            AttemptCall::HandBack => drop(supervisor.return_waiting().await.expect("handed back")),
            AttemptCall::Refuse => {
                supervisor.refuse_waiting(&self.origin.queue()).await.map(drop).expect("refused");
            }
            AttemptCall::Vanish => {
                self.cmd(Cmd::new("DEL").arg(&k::presence(&instance(1)))).await;
                supervisor.end_lost(&instance(1)).await.map(drop).expect("ended");
                self.one.0.refresh().await.map(drop).expect("it lives after all");
            }
            AttemptCall::JoinAnew => {
                let (one, intake, _) = self.bench.join_giving(1, GIVEN).await;
                self.one = (one, intake);
            }
            AttemptCall::Keep => self.keep().await,
            _ => {
                if let Some(key) = self.key {
                    self.call_about(call, key).await;
                }
            }
        }
    }

    async fn call_about(&mut self, call: AttemptCall, key: JobKey) {
        let supervisor = self.supervisor.clone();
        match call {
            AttemptCall::Accept => self.accept(self.origin.offer()).await,
            AttemptCall::Stop => drop(supervisor.stop(key, 5).await.expect("an answer")),
            AttemptCall::Expire => self.expire(key).await,
            AttemptCall::TakeAtEnd => self.take_at_end(key).await,
            AttemptCall::OthersAreSilent => {
                if self.stored().await.state == "started" {
                    self.write(&k::job(key), "started_at", "1.000").await;
                }
                self.sweep().await;
            }
            AttemptCall::Drop => {
                supervisor.drop_context(key.context, COORDINATOR).await.map(drop).expect("an answer");
            }
            AttemptCall::Finish(outcome) => {
                self.one.0.finish(&ending(key, outcome)).await.map(drop).expect("an answer");
            }
            AttemptCall::Forget => {
                supervisor.forget(&[key], COORDINATOR).await.map(drop).expect("an answer");
            }
            _ => self.idle_call(call, key).await,
        }
    }

    /// Calls that change no state.
    async fn idle_call(&mut self, call: AttemptCall, key: JobKey) {
        let supervisor = self.supervisor.clone();
        let is_known = self.stored().await.state != "none";
        match call {
            AttemptCall::FinishOfAnother => {
                let (another, ..) = self.bench.join_giving(2, GIVEN).await;
                another.finish(&ending(key, Outcome::Succeeded)).await.map(drop).expect("an answer");
            }
            AttemptCall::Log => {
                let piece = LogChunk { offset: 0, text: "x".into(), time: None };
                self.one.0.log(key, piece).await.map(drop).expect("an answer");
            }
            AttemptCall::Refresh => drop(self.one.0.refresh().await.expect("an answer")),
            AttemptCall::PutBack => drop(supervisor.requeue_unclaimed().await.expect("put back")),
            AttemptCall::PutBackOpen => {
                if self.stored().await.state == "queued" {
                    self.write(&k::job(key), "missing_since", "1").await;
                }
                supervisor.sweep_open().await.expect("swept");
            }
            AttemptCall::AcceptKnown => {
                self.accept(JobOffer { condition: AcceptCondition::Known, ..self.origin.offer() }).await;
            }
            AttemptCall::AcceptOtherContent if is_known => {
                let changed = Execution { timeout_secs: 1, ..self.origin.offer().execution };
                self.accept(offer(changed)).await;
            }
            AttemptCall::AcceptFromAnother if is_known => {
                self.accept(JobOffer { coordinator: ANOTHER.into(), ..self.origin.offer() }).await;
            }
            AttemptCall::ForgetForAnother => {
                supervisor.forget(&[key], ANOTHER).await.map(drop).expect("an answer");
            }
            // Contexts of dispatchers are nobody's.
            AttemptCall::DropForAnother if is_known && !self.origin.is_dispatcher() => {
                drop(supervisor.drop_context(key.context, ANOTHER).await);
            }
            AttemptCall::Resend => {
                supervisor.resend_end(key).await.expect("told");
                supervisor.resend_started().await.map(drop).expect("told");
            }
            AttemptCall::Measure => drop(supervisor.statistics().await.expect("measured")),
            AttemptCall::Index => {
                supervisor.index_contexts().await.expect("indexed");
                supervisor.note_node(COORDINATOR, "a node").await.map(drop).expect("noted");
            }
            AttemptCall::FindForeign => {
                supervisor.find_foreign([ScriptType::Shell].into_iter()).await.expect("looked");
            }
            AttemptCall::StopTaking => drop(self.one.1.stop().await.expect("an answer")),
            AttemptCall::Leave => self.one.0.leave().await.expect("left"),
            AttemptCall::Expel => {
                let present = supervisor.instances().await.expect("instances");
                let (who, record) = present.first().expect("one is left");
                supervisor.expel(who, record).await.map(drop).expect("an answer");
            }
            AttemptCall::RotateRoot => {
                let by = RotationAuthority::Root;
                drop(supervisor.begin_root_rotation(COORDINATOR, NEXT_ROOT, by).await);
                drop(supervisor.transfer_bindings(COORDINATOR, NEXT_ROOT).await);
            }
            _ => {}
        }
    }

    /// Offers an attempt under the key of this one.
    async fn accept(&self, mut offered: JobOffer) {
        let Some(key) = self.key else { return };
        offered.execution.job_key = key;
        if let Err(refusal) = self.supervisor.accept(offered).await {
            assert!(refusal.is_permanent() || matches!(refusal, JobAcceptError::Forgotten(_)), "{refusal}");
        }
    }

    /// A dispatcher's job is taken in, and is an attempt of its own each time.
    async fn import(&mut self) {
        if !self.origin.is_dispatcher() {
            return;
        }
        let is_new = self.stored().await.state == "none";
        let from = PopBinding {
            queue: LegacyQueue::parse(ACTOR_QUEUE).expect("an old queue"),
            script_type: ScriptType::Shell,
            context: ContextUid(Uid::from_bits(5)),
        };
        if self.origin == AttemptOrigin::Dispatcher {
            self.cmd(Cmd::new("RPUSH").arg(ACTOR_QUEUE).arg(OLD_ID)).await;
        }
        let grant = |_: &Execution| Ok(Grants::default());
        self.supervisor.import(&from, grant, WAITING_MAX).await.map(drop).expect("imported");
        self.supervisor.settle_foreign(grant).await.map(drop).expect("settled");
        if is_new {
            let name = Cmd::new("HGET").arg(&format!("hero:job:{OLD_ID}")).arg("taken_as");
            let name = self.cmd(name).await.optional_text().expect("a text or nothing");
            self.key = name.map(|name| name.parse().expect("a job key"));
        }
    }

    /// The store's own means: what would go later goes now.
    async fn expire(&self, key: JobKey) {
        for name in [k::job(key), k::stop_mark(key)] {
            if self.cmd(Cmd::new("PTTL").arg(&name)).await.int().expect("a number") > 0 {
                self.cmd(Cmd::new("PEXPIRE").arg(&name).arg(0)).await;
            }
        }
    }

    /// The first instance ends another job, and takes the next one with the same call.
    async fn take_at_end(&mut self, key: JobKey) {
        let job_key = JobKey { job: JobId(99), ..key };
        let before = Execution { job_key, instance: Some(1), priority: 0, ..execution(99) };
        // Nothing more is accepted for a context that was dropped.
        if self.supervisor.accept(offer(before)).await.is_err() {
            return;
        }
        // This job goes before the attempt, which is left in its queue.
        let free = if self.stored().await.state == "queued" { 1 } else { 4 };
        let (one, intake) = &mut self.one;
        let taken = intake.next(free, pending()).await.expect("an answer");
        assert!(taken.iter().any(|taken| taken.execution.job_key == job_key), "{taken:?}");
        let _full = intake.full();
        one.finish_and_take(&ending(job_key, Outcome::Succeeded)).await.map(drop).expect("an answer");
    }

    fn workers(&self) -> LegacyTestWorker {
        let own = self.origin.queue().to_string();
        let list = if self.origin == AttemptOrigin::ShownCoordinator { ACTOR_QUEUE } else { &own };
        LegacyTestWorker::new(&self.bench.kv, list, PopSide::Left)
    }

    async fn pop(&mut self) {
        if self.popped.is_none() {
            self.popped = self.workers().pop().await;
        }
    }

    /// The worker of others that has popped the entry writes to its job; the supervisor looks.
    async fn others_write(&self, fields: &[(&str, &str)]) {
        if let Some(task) = &self.popped
            && self.origin.has_others()
        {
            self.workers().write(task, fields).await;
            self.sweep().await;
        }
    }

    async fn sweep(&self) {
        self.supervisor.sweep_open().await.expect("swept");
        self.supervisor.sweep_legacy(OLD_WORKER_PATIENCE).await.map(drop).expect("swept");
    }

    /// The coordinator answers every event.
    async fn keep(&self) {
        if self.cmd(Cmd::new("XLEN").arg(k::DONE)).await.uint().expect("a number") > 0 {
            let mut reader = self.supervisor.events();
            let events = reader.next(pending()).await.expect("events");
            reader.acknowledge(&events).await.expect("acknowledged");
        }
    }
}
