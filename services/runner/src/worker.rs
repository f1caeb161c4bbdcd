//! One instance at work: takes jobs into free slots, obeys commands, shows that it is there.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backoff::Backoff;
use model::{JobKey, Timestamp};
use queue::{Command, Control, Instance, Intake, PRESENCE_INTERVAL, Taken};
use service::Shutdown;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::attempt;
use crate::begun::BegunAttempts;
use crate::interrupt::{self, Cause, Interrupt, Order};
use crate::isolation::Isolator;
use crate::runtime::Runtime;

/// The pauses after trouble with Redis, the first and the longest.
const RETRY: Backoff = Backoff::between(Duration::from_millis(50), Duration::from_secs(1));

/// How often is looked whether a full disk has room again.
const ROOM_LOOK: Duration = Duration::from_millis(500);

/// How often an instance that is drained asks to be handed nothing more. What it is handed after that ends as lost when it has left.
const STOP_TRIES: u32 = 3;

/// Attempts of which an instance remembers that they began: more than it can begin while a store that goes back loses changes.
const BEGUN_MAX: usize = 16_384;

/// Why an instance stopped working.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    /// Another process works under its name.
    #[error("instance {0} was taken over by another process")]
    Replaced(String),
}

/// Jobs that run, each with what tells it to end.
#[derive(Debug, Default)]
struct Jobs {
    running: Mutex<HashMap<JobKey, Arc<Interrupt>>>,
    /// What all were told, which holds for those that come later too.
    told: Mutex<Option<Order>>,
    begun: Mutex<Begun>,
    /// How many, for whoever waits for a free slot.
    count: watch::Sender<usize>,
}

/// Attempts that began at this instance lately, the oldest first; those of the machine are in [`BegunAttempts`]. A store that went back gives them to be run once more, which would be
/// twice under one number.
#[derive(Debug, Default)]
struct Begun {
    keys: HashSet<JobKey>,
    order: VecDeque<JobKey>,
}

impl Begun {
    /// Says whether this is the first time.
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

/// What becomes of a job that was taken.
enum Beginning {
    /// It runs, and can be told to end.
    First(Arc<Interrupt>),
    /// It runs already, and goes on.
    Runs,
    /// It ran here before, under the same number.
    Ran,
}

impl Jobs {
    fn begin(&self, key: JobKey) -> Beginning {
        if self.begun.lock().unwrap_or_else(PoisonError::into_inner).begin(key) {
            return Beginning::First(self.add(key));
        }
        if self.lock().contains_key(&key) { Beginning::Runs } else { Beginning::Ran }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Arc<Interrupt>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, key: JobKey) -> Arc<Interrupt> {
        let interrupt = Arc::new(Interrupt::default());
        let mut running = self.lock();
        if let Some(order) = *self.told.lock().unwrap_or_else(PoisonError::into_inner) {
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

    fn raise(&self, key: JobKey, order: Order) {
        if let Some(interrupt) = self.lock().get(&key) {
            interrupt.raise(order);
        }
    }

    fn raise_all(&self, order: Order) {
        let running = self.lock();
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(order);
        for interrupt in running.values() {
            interrupt.raise(order);
        }
    }
}

/// One instance and what it works with.
pub(crate) struct Worker {
    pub(crate) instance: Instance,
    pub(crate) intake: Intake,
    pub(crate) control: Control,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) isolator: Arc<Isolator>,
    pub(crate) root: Arc<PathBuf>,
    pub(crate) begun: BegunAttempts,
    pub(crate) slots: usize,
    pub(crate) drain_deadline: Duration,
}

impl Worker {
    /// Works until the shutdown begins, then drains: takes no more, lets what runs end until the deadline,
    /// kills the rest, leaves.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub(crate) async fn run(self, shutdown: Shutdown) -> Result<(), WorkerError> {
        let Self { instance, intake, control, runtime, isolator, root, begun, slots, drain_deadline } = self;
        let jobs = Arc::new(Jobs::default());
        let script_type = instance.who().script_type;
        let places = Places::new((0..slots).map(|number| isolator.slot(script_type, number)));
        // Ends the intake only: a command may drain one instance of several.
        let drain = shutdown.child();
        let with = With {
            instance: instance.clone(),
            jobs: Arc::clone(&jobs),
            runtime,
            isolator,
            root,
            begun,
            places,
        };
        let taking = take_jobs(with, intake, slots, &drain);
        let ended = Shutdown::new();
        let deadline = Deadline::new(drain_deadline);
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
                    jobs.raise_all(Order { cause: Cause::Drained, grace: Duration::ZERO });
                }
            }
            while attempts.join_next().await.is_some() {}
            ended.begin();
        };
        let replaced = async {
            let result = served.await;
            if result.is_err() {
                jobs.raise_all(Order { cause: Cause::Closed, grace: Duration::ZERO });
                drain.begin();
            }
            result
        };
        let ((), result) = tokio::join!(worked, replaced);
        if let Err(error) = instance.leave().await {
            tracing::debug!(instance = %instance.who(), %error, "left without a word; presence expires");
        }
        result
    }
}

/// Until when jobs may go on that run when a drain begins.
struct Deadline {
    usual: Duration,
    /// What a command has said; the least patient counts.
    told: watch::Sender<Option<Instant>>,
}

impl Deadline {
    fn new(usual: Duration) -> Self {
        Self { usual, told: watch::Sender::new(None) }
    }

    /// A command gives this much time from now on, or the usual.
    fn tell(&self, time: Option<Duration>) {
        // Beyond what a clock can count there is no deadline to be told.
        let Some(end) = Instant::now().checked_add(time.unwrap_or(self.usual)) else { return };
        self.told.send_modify(|told| *told = Some(told.map_or(end, |before| before.min(end))));
    }

    /// Waits until it has passed, also one that is told meanwhile. The end of the whole runner has one of its own.
    async fn passed(&self, shutdown: &Shutdown) {
        let ending = async {
            shutdown.begun().await;
            tokio::time::sleep(self.usual).await;
        };
        tokio::select! {
            () = ending => {}
            () = interrupt::come(&self.told, |end| end) => {}
        }
    }
}

/// Takes jobs until told to drain, and gives those that still run.
async fn take_jobs(with: With, mut intake: Intake, slots: usize, drain: &Shutdown) -> JoinSet<()> {
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
                tracing::warn!(instance = %with.instance.who(), %error, "no jobs can be taken for now");
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

/// What attempts are started with. Cheap to clone.
#[derive(Clone)]
struct With {
    instance: Instance,
    jobs: Arc<Jobs>,
    runtime: Arc<dyn Runtime>,
    isolator: Arc<Isolator>,
    root: Arc<PathBuf>,
    begun: BegunAttempts,
    places: Places,
}

impl With {
    /// Whether the disk has no room for anything to start.
    fn is_short(&self) -> bool {
        self.isolator.areas().floors().shortage().is_some()
    }

    /// Is handed nothing more, and starts what it was handed: that counts as started. Says whether that has come about.
    async fn stop_taking(&self, attempts: &mut JoinSet<()>, intake: &mut Intake) -> bool {
        match intake.stop().await {
            Ok(handed) => {
                handed.into_iter().for_each(|taken| self.start(attempts, taken));
                true
            }
            Err(error) => {
                tracing::warn!(instance = %self.instance.who(), %error, "it may still be handed jobs");
                false
            }
        }
    }

    /// Waits while the disk has no room for anything to start: what is not taken waits in its queue, or is given back by the
    /// supervisor.
    async fn wait_for_room(&self, drain: &Shutdown, attempts: &mut JoinSet<()>, intake: &mut Intake) {
        let (mut is_told, mut has_stopped) = (false, false);
        while let Some(shortage) = self.isolator.areas().floors().shortage() {
            if !std::mem::replace(&mut is_told, true) {
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
        if is_told {
            tracing::info!(instance = %self.instance.who(), "there is room: jobs are taken again");
        }
    }

    /// Starts a job in a slot of its own, in which those follow that are taken along with an end.
    fn start(&self, attempts: &mut JoinSet<()>, taken: Taken) {
        let key = taken.execution.job_key;
        let mut interrupt = match self.jobs.begin(key) {
            Beginning::First(interrupt) => interrupt,
            again => {
                let with = self.clone();
                attempts.spawn(async move { with.begun_before(&again, &taken).await });
                return;
            }
        };
        // Freed even if the attempt panics.
        let mut slot = InUse { with: self.clone(), key, number: None };
        attempts.spawn(async move {
            let mut taken = taken;
            // There is one, or will be: the last job there has ended and not left yet.
            let (place, number) = slot.with.places.enter().await;
            slot.number = Some(number);
            while let Some(next) = slot.with.run(taken, interrupt, place.clone()).await {
                interrupt = match slot.with.jobs.begin(next.execution.job_key) {
                    Beginning::First(interrupt) => interrupt,
                    again => return slot.with.begun_before(&again, &next).await,
                };
                slot.go_on(next.execution.job_key);
                taken = next;
            }
        });
    }

    /// Runs one attempt. Gives the job that was taken along with its end.
    async fn run(
        &self,
        taken: Taken,
        interrupt: Arc<Interrupt>,
        place: Option<Arc<sandbox::Slot>>,
    ) -> Option<Taken> {
        let key = taken.execution.job_key;
        if !self.begins_first(key).await {
            self.lose(key, taken.started_at).await;
            return None;
        }
        let context = attempt::Context {
            root: &self.root,
            instance: &self.instance,
            runtime: &*self.runtime,
            isolator: &self.isolator,
            slot: place,
            goes_on: &|| !self.is_short(),
        };
        Box::pin(attempt::run(context, taken, interrupt)).await
    }

    /// What was given out once more is not run twice.
    async fn begun_before(&self, beginning: &Beginning, taken: &Taken) {
        let key = taken.execution.job_key;
        if let Beginning::Runs = beginning {
            tracing::error!(%key, "the store went back: a job that runs was given out once more; it goes on");
        } else {
            self.lose(key, taken.started_at).await;
        }
    }

    /// Notes that an attempt begins. Says whether nobody on this machine began it before, as far as can be told.
    async fn begins_first(&self, key: JobKey) -> bool {
        let begun = self.begun.clone();
        let noted = tokio::task::spawn_blocking(move || begun.begin(key, Timestamp::now())).await;
        noted.unwrap_or_else(|error| Err(error.into())).unwrap_or_else(|error| {
            tracing::warn!(%key, %error, "it cannot be noted that an attempt begins: should the store go back, it may run again");
            true
        })
    }

    /// Ends an attempt as lost that ran on this machine before: its next one has a number of its own.
    async fn lose(&self, key: JobKey, started_at: Timestamp) {
        tracing::error!(%key, "the store went back: an attempt that ran was given out once more; it is not run again");
        attempt::lose(&self.instance, key, started_at).await;
    }
}

/// What bounds the processes of one job at a time, for each slot.
#[derive(Debug, Clone)]
struct Places(Arc<(Mutex<Vec<Place>>, Notify)>);

#[derive(Debug)]
struct Place {
    bounds: Option<Arc<sandbox::Slot>>,
    taken: bool,
}

impl Places {
    fn new(bounds: impl Iterator<Item = Option<Arc<sandbox::Slot>>>) -> Self {
        let places = bounds.map(|bounds| Place { bounds, taken: false }).collect();
        Self(Arc::new((Mutex::new(places), Notify::new())))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Place>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one that is free; waits until there is one.
    async fn enter(&self) -> (Option<Arc<sandbox::Slot>>, usize) {
        loop {
            if let Some(entered) = self.try_enter() {
                return entered;
            }
            self.0.1.notified().await;
        }
    }

    fn try_enter(&self) -> Option<(Option<Arc<sandbox::Slot>>, usize)> {
        let mut places = self.lock();
        let number = places.iter().position(|place| !place.taken)?;
        places[number].taken = true;
        if places.iter().any(|place| !place.taken) {
            // Two that were left count as one for those who wait.
            self.0.1.notify_one();
        }
        Some((places[number].bounds.clone(), number))
    }

    fn leave(&self, number: usize) {
        self.lock()[number].taken = false;
        // Who asks meanwhile finds this kept.
        self.0.1.notify_one();
    }
}

/// A slot in use.
struct InUse {
    with: With,
    key: JobKey,
    number: Option<usize>,
}

impl InUse {
    /// The next job is in it; the last one goes behind it, so that the slot never counts as free between them.
    fn go_on(&mut self, next: JobKey) {
        let last = std::mem::replace(&mut self.key, next);
        self.with.jobs.remove(last);
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.with.places.leave(number);
        }
        self.with.jobs.remove(self.key);
    }
}

/// Obeys commands, for ever.
async fn obey(mut control: Control, jobs: &Jobs, drain: &Shutdown, deadline: &Deadline) {
    let mut backoff = RETRY;
    loop {
        match control.next(std::future::pending()).await {
            Ok(Some(Command::Stop { job_key, grace_secs })) => jobs.raise(job_key, requested(grace_secs)),
            Ok(Some(Command::Drain { deadline_secs })) => {
                deadline.tell(deadline_secs.map(|secs| Duration::from_secs(secs.into())));
                drain.begin();
            }
            Ok(None) => backoff.reset(),
            Err(error) => {
                tracing::debug!(%error, "no commands can be read for now");
                backoff.pause().await;
            }
        }
    }
}

fn requested(grace_secs: u32) -> Order {
    Order { cause: Cause::Requested, grace: Duration::from_secs(grace_secs.into()) }
}

/// Shows that the instance is there, for ever, and does what it learns by that.
async fn stay_present(instance: &Instance, jobs: &Jobs) -> Result<(), WorkerError> {
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
                    jobs.raise(key, Order { cause: Cause::Closed, grace: Duration::ZERO });
                }
            }
            Err(error) if error.code() == Some("REPLACED") => {
                return Err(WorkerError::Replaced(instance.who().to_string()));
            }
            Err(error) => tracing::warn!(instance = %instance.who(), %error, "presence cannot be refreshed"),
        }
    }
}
