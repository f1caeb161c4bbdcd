//! One instance at work: takes jobs into free slots, executes commands, sends heartbeats.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backoff::ExponentialBackoff;
use model::{JobKey, Timestamp};
use queue::{
    ClaimedJob, InstanceCommand, InstanceCommandReader, InstanceSession, JobConsumer, PRESENCE_INTERVAL,
};
use service::Shutdown;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::attempt;
use crate::attempt_journal::AttemptStartLog;
use crate::interrupt::{self, Interrupt, InterruptCause, InterruptRequest};
use crate::isolation::Isolator;
use crate::runtime::ScriptRuntime;

/// Pauses after a Redis error, the first and the longest.
const RETRY: ExponentialBackoff =
    ExponentialBackoff::between(Duration::from_millis(50), Duration::from_secs(1));

/// Interval at which a full disk is checked for room.
const ROOM_LOOK: Duration = Duration::from_millis(500);

/// Tries of a draining instance to stop its intake. Jobs that it is handed after the last one end as lost once it has left.
const STOP_TRIES: u32 = 3;

/// Number of begun attempts that an instance remembers: more than can begin in the time whose changes a store rollback may lose.
const BEGUN_MAX: usize = 16_384;

/// Why an instance stopped working.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    /// Another process runs under the name of this instance.
    #[error("instance {0} was taken over by another process")]
    Replaced(String),
}

/// Running jobs, each with its interrupt.
#[derive(Debug, Default)]
struct RunningJobs {
    running: Mutex<HashMap<JobKey, Arc<Interrupt>>>,
    /// Interrupt of all jobs; also applies to jobs that come later.
    order_to_all: Mutex<Option<InterruptRequest>>,
    recent_attempts: Mutex<RecentAttemptKeys>,
    /// Number of running jobs, for those that wait for a free slot.
    count: watch::Sender<usize>,
}

/// Attempts that began at this instance recently, the oldest first; those of the machine are in [`AttemptStartLog`]. A store
/// that rolled back hands them out again, and they would run twice under one number.
#[derive(Debug, Default)]
struct RecentAttemptKeys {
    keys: HashSet<JobKey>,
    order: VecDeque<JobKey>,
}

impl RecentAttemptKeys {
    /// Notes that an attempt begins; returns true the first time.
    fn begin(&mut self, key: JobKey) -> bool {
        if !self.keys.insert(key) {
            return false;
        }
        self.order.push_back(key);
        if self.order.len() > BEGUN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
        true
    }
}

/// Decision on a job that was taken.
enum JobStartDecision {
    /// The job runs, and can be interrupted.
    First(Arc<Interrupt>),
    /// The job runs already, and goes on.
    Runs,
    /// The attempt ran here before, under the same number.
    Ran,
}

impl RunningJobs {
    fn begin(&self, key: JobKey) -> JobStartDecision {
        if self.recent_attempts.lock().unwrap_or_else(PoisonError::into_inner).begin(key) {
            return JobStartDecision::First(self.add(key));
        }
        if self.lock().contains_key(&key) { JobStartDecision::Runs } else { JobStartDecision::Ran }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Arc<Interrupt>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, key: JobKey) -> Arc<Interrupt> {
        let interrupt = Arc::new(Interrupt::default());
        let mut running = self.lock();
        if let Some(order) = *self.order_to_all.lock().unwrap_or_else(PoisonError::into_inner) {
            interrupt.raise(order);
        }
        running.insert(key, Arc::clone(&interrupt));
        self.count.send_replace(running.len());
        interrupt
    }

    fn remove(&self, key: JobKey) {
        let mut running = self.lock();
        running.remove(&key);
        self.count.send_replace(running.len());
    }

    fn raise(&self, key: JobKey, order: InterruptRequest) {
        if let Some(interrupt) = self.lock().get(&key) {
            interrupt.raise(order);
        }
    }

    fn raise_all(&self, order: InterruptRequest) {
        let running = self.lock();
        *self.order_to_all.lock().unwrap_or_else(PoisonError::into_inner) = Some(order);
        for interrupt in running.values() {
            interrupt.raise(order);
        }
    }
}

/// One instance with its resources.
pub(crate) struct Worker {
    pub(crate) instance: InstanceSession,
    pub(crate) intake: JobConsumer,
    pub(crate) control: InstanceCommandReader,
    pub(crate) runtime: Arc<dyn ScriptRuntime>,
    pub(crate) isolator: Arc<Isolator>,
    pub(crate) root: Arc<PathBuf>,
    pub(crate) begun: AttemptStartLog,
    pub(crate) slots: usize,
    pub(crate) drain_deadline: Duration,
}

impl Worker {
    /// Works until the shutdown begins, then drains: takes no more jobs, lets running ones end until the deadline,
    /// kills the rest, and leaves.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub(crate) async fn run(self, shutdown: Shutdown) -> Result<(), WorkerError> {
        let Self { instance, intake, control, runtime, isolator, root, begun, slots, drain_deadline } = self;
        let jobs = Arc::new(RunningJobs::default());
        let script_type = instance.who().script_type;
        let places = SlotPool::new((0..slots).map(|number| isolator.slot(script_type, number)));
        // A child, because a command may drain one instance of several; it ends only the intake.
        let drain = shutdown.child();
        let with = AttemptSpawner {
            instance: instance.clone(),
            jobs: Arc::clone(&jobs),
            runtime,
            isolator,
            root,
            begun,
            slot_pool: places,
        };
        let taking = take_jobs(with, intake, slots, &drain);
        let ended = Shutdown::new();
        let deadline = DrainDeadline::new(drain_deadline);
        let served = async {
            tokio::select! {
                result = stay_present(&instance, &jobs) => result,
                () = obey(control, &jobs, &drain, &deadline) => Ok(()),
                () = ended.begun() => Ok(()),
            }
        };
        let worked = async {
            let mut attempts = taking.await;
            let all = async { while attempts.join_next().await.is_some() {} };
            tokio::select! {
                () = all => {}
                () = deadline.passed(&shutdown) => {
                    jobs.raise_all(InterruptRequest { cause: InterruptCause::Drained, grace: Duration::ZERO });
                }
            }
            while attempts.join_next().await.is_some() {}
            ended.begin();
        };
        let replaced = async {
            let result = served.await;
            if result.is_err() {
                jobs.raise_all(InterruptRequest { cause: InterruptCause::Closed, grace: Duration::ZERO });
                drain.begin();
            }
            result
        };
        let ((), result) = tokio::join!(worked, replaced);
        if let Err(error) = instance.leave().await {
            tracing::debug!(
                instance = %instance.who(), %error,
                "the instance could not sign off; its presence will expire"
            );
        }
        result
    }
}

/// Deadline for jobs that run when a drain begins.
struct DrainDeadline {
    usual: Duration,
    /// Deadline that commands have set; the earliest counts.
    commanded: watch::Sender<Option<Instant>>,
}

impl DrainDeadline {
    fn new(usual: Duration) -> Self {
        Self { usual, commanded: watch::Sender::new(None) }
    }

    /// Sets the deadline of a command: this much time from now on, or the usual.
    fn set(&self, time: Option<Duration>) {
        // A time beyond the range of the clock means no deadline.
        let Some(end) = Instant::now().checked_add(time.unwrap_or(self.usual)) else { return };
        self.commanded.send_modify(|set| *set = Some(set.map_or(end, |before| before.min(end))));
    }

    /// Waits until the deadline has passed, even if it is set meanwhile. The shutdown of the whole runner has its own deadline.
    async fn passed(&self, shutdown: &Shutdown) {
        let ending = async {
            shutdown.begun().await;
            tokio::time::sleep(self.usual).await;
        };
        tokio::select! {
            () = ending => {}
            () = interrupt::wait_for_end(&self.commanded, |end| end) => {}
        }
    }
}

/// Takes jobs until a drain begins, and returns those that still run.
async fn take_jobs(
    with: AttemptSpawner,
    mut intake: JobConsumer,
    slots: usize,
    drain: &Shutdown,
) -> JoinSet<()> {
    let mut attempts = JoinSet::new();
    let mut busy = with.jobs.count.subscribe();
    let mut backoff = RETRY;
    while !drain.has_begun() {
        with.wait_for_room(drain, &mut attempts, &mut intake).await;
        while attempts.try_join_next().is_some() {}
        let full = intake.full();
        let running = tokio::select! {
            count = busy.wait_for(|count| *count < slots) => count.map_or(slots, |count| *count),
            () = drain.begun() => break,
        };
        drop(full);
        match intake.next(slots - running, drain.begun()).await {
            Ok(taken) => {
                backoff.reset();
                for taken in taken {
                    with.start(&mut attempts, taken);
                }
            }
            Err(error) => {
                tracing::warn!(instance = %with.instance.who(), %error, "no jobs can be taken now; retrying");
                tokio::select! {
                    () = backoff.pause() => {}
                    () = drain.begun() => {}
                }
            }
        }
    }
    for _ in 0..STOP_TRIES {
        if with.stop_taking(&mut attempts, &mut intake).await {
            break;
        }
        backoff.pause().await;
    }
    attempts
}

/// Spawner of attempts, with all that they need. Cheap to clone.
#[derive(Clone)]
struct AttemptSpawner {
    instance: InstanceSession,
    jobs: Arc<RunningJobs>,
    runtime: Arc<dyn ScriptRuntime>,
    isolator: Arc<Isolator>,
    root: Arc<PathBuf>,
    begun: AttemptStartLog,
    slot_pool: SlotPool,
}

impl AttemptSpawner {
    /// Returns true if the disk has no room to start a job.
    fn is_short(&self) -> bool {
        self.isolator.disk_quotas().floors().shortage().is_some()
    }

    /// Stops the intake, and starts jobs that were handed out already: they count as started. Returns true on success.
    async fn stop_taking(&self, attempts: &mut JoinSet<()>, intake: &mut JobConsumer) -> bool {
        match intake.stop().await {
            Ok(handed) => {
                handed.into_iter().for_each(|taken| self.start(attempts, taken));
                true
            }
            Err(error) => {
                tracing::warn!(
                    instance = %self.instance.who(), %error,
                    "the intake cannot be stopped: jobs may still come"
                );
                false
            }
        }
    }

    /// Waits while the disk has no room to start a job. Meanwhile jobs wait in their queues, or the supervisor gives them
    /// back.
    async fn wait_for_room(&self, drain: &Shutdown, attempts: &mut JoinSet<()>, intake: &mut JobConsumer) {
        let (mut is_reported, mut has_stopped) = (false, false);
        while let Some(shortage) = self.isolator.disk_quotas().floors().shortage() {
            if !std::mem::replace(&mut is_reported, true) {
                tracing::warn!(instance = %self.instance.who(), %shortage, "no jobs are taken: DISK_FULL");
            }
            if !has_stopped {
                has_stopped = self.stop_taking(attempts, intake).await;
            }
            tokio::select! {
                () = tokio::time::sleep(ROOM_LOOK) => {}
                () = drain.begun() => return,
            }
        }
        if is_reported {
            tracing::info!(instance = %self.instance.who(), "there is room: jobs are taken again");
        }
    }

    /// Starts a job in a slot of its own. Jobs that are taken together with an end follow in the same slot.
    fn start(&self, attempts: &mut JoinSet<()>, taken: ClaimedJob) {
        let key = taken.execution.job_key;
        let mut interrupt = match self.jobs.begin(key) {
            JobStartDecision::First(interrupt) => interrupt,
            again => {
                let with = self.clone();
                attempts.spawn(async move { with.begun_before(&again, &taken).await });
                return;
            }
        };
        // Freed even if the attempt panics.
        let mut slot = SlotGuard { spawner: self.clone(), key, number: None };
        attempts.spawn(async move {
            let mut taken = taken;
            // A slot is free, or will be at once: its last job has ended and is about to leave.
            let (place, number) = slot.spawner.slot_pool.enter().await;
            slot.number = Some(number);
            while let Some(next) = slot.spawner.run(taken, interrupt, place.clone()).await {
                interrupt = match slot.spawner.jobs.begin(next.execution.job_key) {
                    JobStartDecision::First(interrupt) => interrupt,
                    again => return slot.spawner.begun_before(&again, &next).await,
                };
                slot.go_on(next.execution.job_key);
                taken = next;
            }
        });
    }

    /// Runs one attempt. Returns the job that was taken together with its end.
    async fn run(
        &self,
        taken: ClaimedJob,
        interrupt: Arc<Interrupt>,
        place: Option<Arc<sandbox::CgroupSlot>>,
    ) -> Option<ClaimedJob> {
        let key = taken.execution.job_key;
        if !self.begins_first(key).await {
            self.lose(key, taken.started_at).await;
            return None;
        }
        let context = attempt::AttemptContext {
            root: &self.root,
            instance: &self.instance,
            runtime: &*self.runtime,
            isolator: &self.isolator,
            slot: place,
            goes_on: &|| !self.is_short(),
        };
        Box::pin(attempt::run(context, taken, interrupt)).await
    }

    /// Handles a job that was handed out a second time: it is not run twice.
    async fn begun_before(&self, beginning: &JobStartDecision, taken: &ClaimedJob) {
        let key = taken.execution.job_key;
        if let JobStartDecision::Runs = beginning {
            tracing::error!(%key, "the store rolled back: a running job was handed out again; it goes on");
        } else {
            self.lose(key, taken.started_at).await;
        }
    }

    /// Notes that an attempt begins. Returns true if no runner of this machine is known to have begun it before.
    async fn begins_first(&self, key: JobKey) -> bool {
        let begun = self.begun.clone();
        let noted = tokio::task::spawn_blocking(move || begun.begin(key, Timestamp::now())).await;
        noted.unwrap_or_else(|error| Err(error.into())).unwrap_or_else(|error| {
            tracing::warn!(
                %key, %error,
                "the start of an attempt cannot be recorded: after a store rollback it may run again"
            );
            true
        })
    }

    /// Ends an attempt as lost that ran on this machine before; the next attempt has its own number.
    async fn lose(&self, key: JobKey, started_at: Timestamp) {
        tracing::error!(
            %key,
            "the store rolled back: an attempt that ran was handed out again; it is not run again"
        );
        attempt::lose(&self.instance, key, started_at).await;
    }
}

/// Pool of slots, each with a cgroup that bounds the processes of one job at a time.
#[derive(Debug, Clone)]
struct SlotPool(Arc<(Mutex<Vec<PoolSlot>>, Notify)>);

#[derive(Debug)]
struct PoolSlot {
    bounds: Option<Arc<sandbox::CgroupSlot>>,
    taken: bool,
}

impl SlotPool {
    fn new(bounds: impl Iterator<Item = Option<Arc<sandbox::CgroupSlot>>>) -> Self {
        let places = bounds.map(|bounds| PoolSlot { bounds, taken: false }).collect();
        Self(Arc::new((Mutex::new(places), Notify::new())))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PoolSlot>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free slot; waits until there is one.
    async fn enter(&self) -> (Option<Arc<sandbox::CgroupSlot>>, usize) {
        loop {
            if let Some(entered) = self.try_enter() {
                return entered;
            }
            self.0.1.notified().await;
        }
    }

    fn try_enter(&self) -> Option<(Option<Arc<sandbox::CgroupSlot>>, usize)> {
        let mut places = self.lock();
        let number = places.iter().position(|place| !place.taken)?;
        places[number].taken = true;
        if places.iter().any(|place| !place.taken) {
            // Two slots that were freed together may have sent only one notification.
            self.0.1.notify_one();
        }
        Some((places[number].bounds.clone(), number))
    }

    fn leave(&self, number: usize) {
        self.lock()[number].taken = false;
        // The notification is kept for a task that is about to wait.
        self.0.1.notify_one();
    }
}

/// A slot in use.
struct SlotGuard {
    spawner: AttemptSpawner,
    key: JobKey,
    number: Option<usize>,
}

impl SlotGuard {
    /// Puts the next job into the slot. The last one is removed only then, so that the slot never counts as free in between.
    fn go_on(&mut self, next: JobKey) {
        let last = std::mem::replace(&mut self.key, next);
        self.spawner.jobs.remove(last);
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.spawner.slot_pool.leave(number);
        }
        self.spawner.jobs.remove(self.key);
    }
}

/// Executes commands, for ever.
async fn obey(
    mut control: InstanceCommandReader,
    jobs: &RunningJobs,
    drain: &Shutdown,
    deadline: &DrainDeadline,
) {
    let mut backoff = RETRY;
    loop {
        match control.next(std::future::pending()).await {
            Ok(Some(InstanceCommand::Stop { job_key, grace_secs })) => {
                jobs.raise(job_key, requested(grace_secs))
            }
            Ok(Some(InstanceCommand::Drain { deadline_secs })) => {
                deadline.set(deadline_secs.map(|secs| Duration::from_secs(secs.into())));
                drain.begin();
            }
            Ok(None) => backoff.reset(),
            Err(error) => {
                tracing::debug!(%error, "no commands can be read now; retrying");
                backoff.pause().await;
            }
        }
    }
}

fn requested(grace_secs: u32) -> InterruptRequest {
    InterruptRequest { cause: InterruptCause::Requested, grace: Duration::from_secs(grace_secs.into()) }
}

/// Sends heartbeats of the instance, for ever, and acts on their answers.
async fn stay_present(instance: &InstanceSession, jobs: &RunningJobs) -> Result<(), WorkerError> {
    let mut interval = tokio::time::interval(PRESENCE_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        match instance.refresh().await {
            Ok(refreshed) => {
                for (key, grace_secs) in refreshed.stops {
                    jobs.raise(key, requested(grace_secs));
                }
                for key in refreshed.closed {
                    jobs.raise(
                        key,
                        InterruptRequest { cause: InterruptCause::Closed, grace: Duration::ZERO },
                    );
                }
            }
            Err(error) if error.code() == Some("REPLACED") => {
                return Err(WorkerError::Replaced(instance.who().to_string()));
            }
            Err(error) => tracing::warn!(instance = %instance.who(), %error, "presence cannot be refreshed"),
        }
    }
}
