//! The tasks of a process, and what happens when one of them fails.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio_util::task::TaskTracker;

use crate::shutdown::Shutdown;
use crate::{Failure, error_chain};

/// Keeps count of tasks, so that a drain can wait for them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: Shutdown,
    failed: Arc<AtomicBool>,
}

impl Tasks {
    /// A failure of one of these tasks begins this shutdown.
    #[must_use]
    pub fn new(shutdown: Shutdown) -> Self {
        Self { tracker: TaskTracker::new(), shutdown, failed: Arc::default() }
    }

    /// Runs a task that the process cannot do without: when it fails or panics, everything ends, and the process manager
    /// starts the process again. The task has to end by itself once the shutdown has begun.
    pub fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let (shutdown, failed) = (self.shutdown.clone(), self.failed.clone());
        self.tracker.spawn(async move {
            let problem = match AssertUnwindSafe(task).catch_unwind().await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error_chain(&*error),
                Err(_) => "it panicked".to_owned(),
            };
            tracing::error!(task = name, "a task failed, the process ends: {problem}");
            failed.store(true, Ordering::Release);
            shutdown.begin();
        });
    }

    /// Returns true when any task has failed.
    #[must_use]
    pub fn any_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// How many are running.
    #[must_use]
    pub fn running(&self) -> usize {
        self.tracker.len()
    }

    /// Waits until all have ended, at most until the deadline. Gives whether they have.
    pub async fn drain(&self, deadline: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok()
    }
}
