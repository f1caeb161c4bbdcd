//! When a script has to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rhai::{Dynamic, EvalAltResult, Position};
use tokio::sync::oneshot;

use super::functions::Outcome;
use super::memory;
use crate::interrupt::Interrupt;
use crate::runtime::Job;
use crate::{RHAI_MEMORY_BYTES_MAX, RHAI_OPERATIONS_MAX};

/// The limits of one script: its time, what it is told, its memory. Clones are the same.
#[derive(Clone)]
pub(crate) struct Limits(Arc<Inner>);

struct Inner {
    deadline: Option<Instant>,
    interrupt: Arc<Interrupt>,
    memory_bytes: u64,
    /// Its time is over, or it was told to end: what is looked at in every step.
    over: AtomicBool,
    /// Steps of functions that do more than one.
    spent: AtomicU64,
}

impl Limits {
    /// From now on.
    pub(crate) fn of(job: &Job) -> Self {
        // A time limit beyond what a clock can count is none.
        let deadline = job.time_limit.and_then(|limit| Instant::now().checked_add(limit));
        Self(Arc::new(Inner {
            deadline,
            interrupt: Arc::clone(&job.interrupt),
            memory_bytes: job.grants.memory_bytes.min(RHAI_MEMORY_BYTES_MAX),
            over: AtomicBool::new(false),
            spent: AtomicU64::new(0),
        }))
    }

    /// What the script may hold.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes
    }

    /// When its time is over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.deadline
    }

    /// Tells it to end.
    pub(crate) fn interrupt(&self) -> &Interrupt {
        &self.0.interrupt
    }

    /// Waits for its end, and sees to it that it comes.
    pub(super) async fn watch<T>(
        &self,
        mut end: oneshot::Receiver<T>,
    ) -> Result<T, oneshot::error::RecvError> {
        let out_of_time = async {
            match self.0.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            end = &mut end => return end,
            () = self.0.interrupt.raised() => {}
            () = out_of_time => {}
        }
        self.0.over.store(true, Ordering::Relaxed);
        end.await
    }

    /// Whether its time is over.
    pub(super) fn is_out_of_time(&self) -> bool {
        self.0.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Whether it has to end now, for whatever reason. On the script's thread.
    pub(crate) fn exceeded(&self) -> bool {
        self.0.over.load(Ordering::Relaxed) || memory::held() > self.0.memory_bytes
    }

    /// Ends the script if it has to end now. For functions that take their time.
    ///
    /// # Errors
    /// What scripts cannot catch.
    pub(crate) fn look(&self) -> Outcome<()> {
        if self.exceeded() || self.is_out_of_time() || self.0.interrupt.cause().is_some() {
            return Err(EvalAltResult::ErrorTerminated(Dynamic::UNIT, Position::NONE).into());
        }
        Ok(())
    }

    /// Counts steps of a function that does more than one.
    ///
    /// # Errors
    /// As [`Self::look`], and when these are too many.
    pub(crate) fn spend(&self, steps: u64) -> Outcome<()> {
        self.look()?;
        if self.0.spent.fetch_add(steps, Ordering::Relaxed).saturating_add(steps) > RHAI_OPERATIONS_MAX {
            return Err(EvalAltResult::ErrorTooManyOperations(Position::NONE).into());
        }
        Ok(())
    }

    /// Sleeps, at most as long as the script may run.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub(crate) fn sleep(&self, time: Duration) -> Outcome<()> {
        /// Longer than any job may run.
        const AT_MOST: Duration = Duration::from_secs(model::limits::TIMEOUT_SECS_MAX as u64);
        let until = Instant::now() + time.min(AT_MOST);
        let until = self.0.deadline.map_or(until, |deadline| until.min(deadline));
        self.0.interrupt.sleep_until(until);
        self.look()
    }
}
