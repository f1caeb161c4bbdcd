//! Turns of calls: while several actors call a server, none of them has more than a share of its time.
//!
//! An actor's calls begin one after the other. Each reserves as much time as the latest calls took, and the reservation is corrected
//! when it ends. Time passes for an actor at the pace of its share (virtual scheduling, as in the GCRA of ITU-T I.371), so that
//! an actor that calls much waits for its own calls and for no other's. On a busy machine calls take longer, and fewer begin.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::ActorId;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, RpcReason};
use crate::gate::methods::RpcMethodKind;
use crate::lock::lock;
use crate::metrics::Metrics;

/// An actor counts as one who calls for so long after its latest call.
const PRESENT: Duration = Duration::from_secs(10);
/// One actor's calls may take this part of all cores' time: one in so many.
const SHARE: u32 = 10;
/// Time that an actor may use at once after it has been quiet for a while.
const AHEAD: Duration = Duration::from_millis(50);
/// One call counts so much at most: its caller may be slow, or Redis.
const COST_MAX: Duration = Duration::from_millis(50);
/// A call that waits for something, or a stream, counts so much: its time says nothing of the work.
const COST_OF_WAITING: Duration = Duration::from_micros(500);
/// Each job that a call leaves to be started counts so much, which is about what it takes of the processors.
const COST_OF_JOB: Duration = Duration::from_micros(200);
/// One call leaves so many jobs at most, as they are counted.
const JOBS_COUNTED_MAX: u32 = 5000;
/// A call whose turn has not come by then is refused.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// A refused call may be tried again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// So many actors are remembered before the quiet ones are forgotten.
const ACTORS_KEPT: usize = 1024;

/// The turns of all actors of one server.
#[derive(Debug)]
pub(crate) struct FairShareScheduler {
    actors: Arc<Mutex<FairShareState>>,
    /// The cores of this machine, which the share is a part of.
    cores: u32,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct FairShareState {
    accounts: HashMap<ActorId, FairShareAccount>,
    /// The two actors that called last, the latest first.
    latest: [Option<(ActorId, Instant)>; 2],
}

#[derive(Debug)]
struct FairShareAccount {
    /// Moment until which the actor's calls have used up its time.
    used_until: Instant,
    /// The average time of its latest calls.
    cost: Duration,
    /// Number of the actor's calls that are being carried out.
    running: u32,
    /// The time that its calls have taken: those that are carried out together share it.
    taken: Duration,
    /// The moment until which that was counted.
    counted_until: Instant,
    /// Held by the call that is next; the others wait for it in their order.
    next: Arc<tokio::sync::Mutex<()>>,
}

impl FairShareAccount {
    fn new(now: Instant) -> Self {
        let (cost, taken) = (COST_OF_WAITING, Duration::ZERO);
        Self { used_until: now, cost, running: 0, taken, counted_until: now, next: Arc::default() }
    }

    /// Counts the time until now.
    fn count(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.counted_until);
        if self.running > 0 {
            self.taken = self.taken.saturating_add(passed / self.running);
        }
        self.counted_until = now;
    }
}

/// A call that is being carried out, until it is dropped.
#[derive(Debug)]
pub(crate) struct FairShareSlot {
    actors: Arc<Mutex<FairShareState>>,
    actor: ActorId,
    cores: u32,
    /// The time that its actor's calls had taken when it began.
    began: Duration,
    reserved: Duration,
    /// A fixed cost, whatever time it takes; none for a call that counts its time.
    fixed: Option<Duration>,
    left: JobsLeft,
}

/// Jobs that a call leaves to be started. In the extensions of every request of an actor.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobsLeft(Arc<AtomicU32>);

/// Notes that a request leaves so many jobs to be started: they count as its actor's use of the server, whose next calls begin
/// later where others call as well. Of no effect for callers that are no actors.
pub fn leaves_jobs<T>(request: &tonic::Request<T>, jobs: usize) {
    if let Some(left) = request.extensions().get::<JobsLeft>() {
        left.note(jobs);
    }
}

impl JobsLeft {
    fn note(&self, jobs: usize) {
        // What a request says may be anything, until it was read.
        let jobs = u32::try_from(jobs).unwrap_or(JOBS_COUNTED_MAX).min(JOBS_COUNTED_MAX);
        self.0.store(jobs, Ordering::Relaxed);
    }

    fn cost(&self) -> Duration {
        COST_OF_JOB * self.0.load(Ordering::Relaxed)
    }
}

impl FairShareSlot {
    /// The place where the jobs that it leaves are noted.
    pub(crate) fn left(&self) -> JobsLeft {
        self.left.clone()
    }
}

impl FairShareScheduler {
    pub(crate) fn new(metrics: Metrics) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = u32::try_from(cores).unwrap_or(u32::MAX);
        Self { actors: Arc::default(), cores, metrics }
    }

    /// Waits for the turn of one more call of this actor.
    ///
    /// # Errors
    /// `OVERLOADED` when so many of its calls come before that it has not come in time.
    pub(crate) async fn take(&self, actor: ActorId, shape: RpcMethodKind) -> Result<FairShareSlot, Error> {
        let fixed = match shape {
            RpcMethodKind::Quick => None,
            RpcMethodKind::Waiting(_) | RpcMethodKind::Stream => Some(COST_OF_WAITING),
        };
        let waiting = tokio::time::timeout(WAIT_MAX, self.wait(actor, fixed));
        let (reserved, began) = waiting.await.map_err(|_| self.refuse(actor))?;
        let (actors, cores) = (Arc::clone(&self.actors), self.cores);
        Ok(FairShareSlot { actors, actor, cores, began, reserved, fixed, left: JobsLeft::default() })
    }

    /// Returns the reservation, and what the actor's calls had taken.
    async fn wait(&self, actor: ActorId, fixed: Option<Duration>) -> (Duration, Duration) {
        let next = lock(&self.actors).next(actor, Instant::now());
        let _is_next = next.lock().await;
        loop {
            // What the calls before took may be known by now.
            let begun = lock(&self.actors).begin(actor, fixed, self.cores, Instant::now());
            match begun {
                Ok(begun) => return begun,
                Err(wait) => tokio::time::sleep(wait).await,
            }
        }
    }

    fn refuse(&self, actor: ActorId) -> Error {
        self.metrics.shed.with_label_values(&["turn"]).inc();
        let message =
            format!("others call this server as well, and actor {actor} has used up its share of it");
        Error::new(ErrorKind::ResourceExhausted, RpcReason::Overloaded, message)
            .with("kind", "turn")
            .retry_after(RETRY_AFTER)
    }
}

impl FairShareState {
    /// The lock on which the calls of an actor wait for each other.
    fn next(&mut self, actor: ActorId, now: Instant) -> Arc<tokio::sync::Mutex<()>> {
        if self.accounts.len() >= ACTORS_KEPT && !self.accounts.contains_key(&actor) {
            let is_used =
                |account: &FairShareAccount| account.running > 0 || Arc::strong_count(&account.next) > 1;
            self.accounts.retain(|_, account| is_used(account) || account.used_until > now);
        }
        let account = self.accounts.entry(actor).or_insert_with(|| FairShareAccount::new(now));
        Arc::clone(&account.next)
    }

    /// Lets a call begin: returns its reservation, and what its actor's calls had taken until then.
    ///
    /// # Errors
    /// How long it is until the call's turn.
    fn begin(
        &mut self,
        actor: ActorId,
        fixed: Option<Duration>,
        cores: u32,
        now: Instant,
    ) -> Result<(Duration, Duration), Duration> {
        let crowded = self.note(actor, now);
        let account = self.accounts.entry(actor).or_insert_with(|| FairShareAccount::new(now));
        let mut reserved = Duration::ZERO;
        if crowded {
            let wait = account.used_until.saturating_duration_since(now).saturating_sub(AHEAD);
            if wait > Duration::ZERO {
                return Err(wait);
            }
            reserved = fixed.unwrap_or(account.cost);
            account.used_until = account.used_until.max(now) + of_share(reserved, cores);
        } else {
            // An actor that is alone does not wait, and nothing is held against it later.
            account.used_until = now;
        }
        account.count(now);
        account.running += 1;
        Ok((reserved, account.taken))
    }

    /// Notes that an actor calls, and says whether another one does as well.
    fn note(&mut self, actor: ActorId, now: Instant) -> bool {
        if self.latest[0].is_none_or(|(latest, _)| latest != actor) {
            self.latest.swap(0, 1);
        }
        self.latest[0] = Some((actor, now));
        self.latest[1].is_some_and(|(_, at)| now.saturating_duration_since(at) < PRESENT)
    }

    /// Corrects a reservation by what the call took.
    fn settle(&mut self, turn: &FairShareSlot, now: Instant) {
        let Some(account) = self.accounts.get_mut(&turn.actor) else { return };
        account.count(now);
        account.running = account.running.saturating_sub(1);
        let took = account.taken.saturating_sub(turn.began).min(COST_MAX);
        let cost = turn.fixed.unwrap_or(took) + turn.left.cost();
        if turn.fixed.is_none() {
            account.cost = (account.cost * 7 + cost) / 8;
        }
        if turn.reserved == Duration::ZERO {
            return;
        }
        let (cost, reserved) = (of_share(cost, turn.cores), of_share(turn.reserved, turn.cores));
        if let Some(before) = account.used_until.checked_sub(reserved) {
            account.used_until = before + cost;
        }
    }
}

impl Drop for FairShareSlot {
    fn drop(&mut self) {
        let actors = Arc::clone(&self.actors);
        lock(&actors).settle(self, Instant::now());
    }
}

/// How much of an actor's time goes by with so much work.
fn of_share(work: Duration, cores: u32) -> Duration {
    work * SHARE / cores
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::view::ErrorView;

    const GREEDY: ActorId = ActorId(1);
    const MODEST: ActorId = ActorId(2);
    const MILLI: Duration = Duration::from_millis(1);

    fn turns() -> FairShareScheduler {
        FairShareScheduler { cores: 2, ..FairShareScheduler::new(Metrics::new()) }
    }

    /// Carries out one call, and gives how long it waited for its turn.
    async fn call(turns: &FairShareScheduler, actor: ActorId, took: Duration) -> Duration {
        let requested_at = Instant::now();
        let turn = turns.take(actor, RpcMethodKind::Quick).await.expect("soon enough");
        let waited = requested_at.elapsed();
        tokio::time::advance(took).await;
        drop(turn);
        waited
    }

    #[tokio::test(start_paused = true)]
    async fn alone_an_actor_never_waits() {
        let turns = turns();
        for _ in 0..1000 {
            assert_eq!(call(&turns, GREEDY, 10 * MILLI).await, Duration::ZERO);
        }
        call(&turns, MODEST, MILLI).await;
        assert_eq!(call(&turns, GREEDY, 10 * MILLI).await, Duration::ZERO, "nothing is held against it");
    }

    #[tokio::test(start_paused = true)]
    async fn beside_another_an_actor_has_its_share_and_the_other_never_waits() {
        let turns = turns();
        let began = Instant::now();
        for _ in 0..100 {
            call(&turns, GREEDY, 10 * MILLI).await;
            assert_eq!(call(&turns, MODEST, MILLI).await, Duration::ZERO);
        }
        // 100 calls of 10 ms are 5 s of its time, of which it may be a little ahead.
        let took = began.elapsed();
        assert!((4800 * MILLI..=5200 * MILLI).contains(&took), "{took:?}");
        // When the other has gone for a while, all is its own again.
        tokio::time::advance(PRESENT).await;
        for _ in 0..100 {
            assert_eq!(call(&turns, GREEDY, 10 * MILLI).await, Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_carried_out_together_share_the_time_they_take() {
        let turns = turns();
        call(&turns, MODEST, MILLI).await;
        let mut together = Vec::new();
        for _ in 0..100 {
            together.push(turns.take(GREEDY, RpcMethodKind::Quick).await.expect("soon enough"));
        }
        tokio::time::advance(100 * MILLI).await;
        drop(together);
        call(&turns, MODEST, MILLI).await;
        let waited = call(&turns, GREEDY, MILLI).await;
        // As long as all of them were there, and not each: that were 100 times as long.
        assert!((MILLI..=Duration::from_secs(2)).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_to_do_counts_with_the_call_that_leaves_it() {
        let turns = turns();
        call(&turns, MODEST, MILLI).await;
        let turn = turns.take(GREEDY, RpcMethodKind::Quick).await.expect("the first");
        turn.left().note(1000);
        drop(turn);
        let waited = call(&turns, GREEDY, MILLI).await;
        assert!(waited >= of_share(COST_OF_JOB * 1000, 2) - AHEAD, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn whose_turn_does_not_come_is_refused_and_the_others_keep_their_order() {
        let turns = turns();
        call(&turns, MODEST, MILLI).await;
        // 1,000 jobs a call are a second of the server's time: so many have more than a minute to wait.
        let calls = (0..100).map(|n| {
            let turns = &turns;
            async move {
                let turn = turns.take(GREEDY, RpcMethodKind::Quick).await?;
                turn.left().note(1000);
                Ok::<_, Error>(n)
            }
        });
        let others = async {
            for _ in 0..600 {
                call(&turns, MODEST, 100 * MILLI).await;
            }
        };
        let (answers, ()) = tokio::join!(futures_util::future::join_all(calls), others);
        let begun: Vec<_> = answers.iter().map_while(|answer| answer.as_ref().ok().copied()).collect();
        assert!((10..60).contains(&begun.len()) && begun.is_sorted(), "{begun:?}");
        for refused in answers.into_iter().skip(begun.len()) {
            let refused = refused.expect_err("those behind are refused");
            assert_eq!(refused.reason(), RpcReason::Overloaded);
            assert!(ErrorView::from(&refused.into_status()).retry_after.is_some());
        }
        // They have left nothing behind.
        tokio::time::advance(WAIT_MAX).await;
        assert_eq!(call(&turns, GREEDY, MILLI).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn actors_that_are_quiet_are_forgotten() {
        let turns = turns();
        for actor in 0..3 * u32::try_from(ACTORS_KEPT).expect("few") {
            call(&turns, ActorId(actor), Duration::from_secs(1)).await;
        }
        assert!(lock(&turns.actors).accounts.len() <= ACTORS_KEPT);
    }
}
