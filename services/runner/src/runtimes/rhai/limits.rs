//! When the functions that the runner serves for a script have to give up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::functions::{ScriptFunctionError, ScriptFunctionResult};
use crate::RHAI_OPERATIONS_MAX;
use crate::interrupt::Interrupt;
use crate::runtime::ScriptJob;

/// The limits of one script: its time, what it is told. Clones are the same.
#[derive(Clone)]
pub(crate) struct ScriptLimits(Arc<ScriptLimitsInner>);

struct ScriptLimitsInner {
    deadline: Option<Instant>,
    interrupt: Arc<Interrupt>,
    /// Steps of functions that do more than one.
    spent: AtomicU64,
}

impl ScriptLimits {
    /// From now on.
    pub(super) fn of(job: &ScriptJob) -> Self {
        // A time limit beyond what a clock can count is none.
        let deadline = job.time_limit.and_then(|limit| Instant::now().checked_add(limit));
        let interrupt = Arc::clone(&job.interrupt);
        Self(Arc::new(ScriptLimitsInner { deadline, interrupt, spent: AtomicU64::new(0) }))
    }

    /// When its time is over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.deadline
    }

    /// Tells it to end.
    pub(crate) fn interrupt(&self) -> &Interrupt {
        &self.0.interrupt
    }

    /// Waits until its time is over. Cancel safe.
    pub(super) async fn out_of_time(&self) {
        match self.0.deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Returns true if the script's time is over.
    pub(super) fn is_out_of_time(&self) -> bool {
        self.0.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Looks whether the script has to end.
    ///
    /// # Errors
    /// [`ScriptFunctionError::Ends`], which scripts cannot catch.
    pub(crate) fn look(&self) -> ScriptFunctionResult<()> {
        if self.is_out_of_time() || self.0.interrupt.cause().is_some() {
            Err(ScriptFunctionError::Ends)
        } else {
            Ok(())
        }
    }

    /// Counts steps of a function that does more than one.
    ///
    /// # Errors
    /// As [`Self::look`], and when these are too many.
    pub(crate) fn spend(&self, steps: u64) -> ScriptFunctionResult<()> {
        self.look()?;
        if self.0.spent.fetch_add(steps, Ordering::Relaxed).saturating_add(steps) > RHAI_OPERATIONS_MAX {
            return Err(ScriptFunctionError::TooManySteps);
        }
        Ok(())
    }

    /// Waits on a thread, at most as long as the script may run.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub(crate) fn wait(&self, time: Duration) -> ScriptFunctionResult<()> {
        let until = Instant::now() + time;
        let until = self.0.deadline.map_or(until, |deadline| until.min(deadline));
        self.0.interrupt.sleep_until(until);
        self.look()
    }
}
