//! Requests to end a job before its time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Why a job has to end before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptCause {
    /// The end was requested.
    Requested,
    /// The job was ended elsewhere already, so no report is wanted.
    Closed,
    /// The runner ends.
    Drained,
}

/// An order to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InterruptRequest {
    /// Why.
    pub(crate) cause: InterruptCause,
    /// How long the script may take after it was asked.
    pub(crate) grace: Duration,
}

/// Combination of all orders so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InterruptState {
    cause: InterruptCause,
    /// When the grace of the least patient request is over.
    end: Instant,
}

/// Carries requests to end one job, to tasks and to threads. The first request determines the cause, unless a
/// later one says that the job is closed; the request whose grace is over first determines the time.
#[derive(Debug)]
pub(crate) struct Interrupt {
    state: watch::Sender<Option<InterruptState>>,
    raised: Mutex<bool>,
    wake: Condvar,
}

impl Default for Interrupt {
    fn default() -> Self {
        Self { state: watch::Sender::new(None), raised: Mutex::default(), wake: Condvar::new() }
    }
}

impl Interrupt {
    /// Raises a request; its grace begins now.
    pub(crate) fn raise(&self, order: InterruptRequest) {
        let end = Instant::now() + order.grace;
        self.state.send_if_modified(|state| {
            let merged = match *state {
                None => InterruptState { cause: order.cause, end },
                Some(first) => {
                    let cause = if order.cause == InterruptCause::Closed { order.cause } else { first.cause };
                    InterruptState { cause, end: first.end.min(end) }
                }
            };
            state.replace(merged) != Some(merged)
        });
        *self.flag() = true;
        self.wake.notify_all();
    }

    /// Returns why the job has to end, if it has to.
    pub(crate) fn cause(&self) -> Option<InterruptCause> {
        self.state.borrow().map(|state| state.cause)
    }

    /// Waits for an order. Cancel safe.
    pub(crate) async fn raised(&self) {
        if self.state.subscribe().wait_for(Option::is_some).await.is_err() {
            // The sender is `self.state`: it cannot be gone.
            std::future::pending().await
        }
    }

    /// Waits until the grace of a request is over, even if the request comes meanwhile. Cancel safe.
    pub(crate) async fn grace_over(&self) {
        wait_for_end(&self.state, |state| state.end).await;
    }

    /// Sleeps on a thread, at most until `until`; returns true if a request ended the sleep.
    pub(crate) fn sleep_until(&self, until: std::time::Instant) -> bool {
        let mut flag = self.flag();
        loop {
            let left = until.saturating_duration_since(std::time::Instant::now());
            if *flag || left.is_zero() {
                return *flag;
            }
            flag = self.wake.wait_timeout(flag, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn flag(&self) -> MutexGuard<'_, bool> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the end in the channel has come, even if it is set or changed meanwhile. Cancel safe.
pub(crate) async fn wait_for_end<T: Copy>(state: &watch::Sender<Option<T>>, end: impl Fn(T) -> Instant) {
    let mut receiver = state.subscribe();
    loop {
        let end = receiver.borrow_and_update().map(&end);
        let over = async {
            match end {
                // An end that has passed does not wait for a tick of the timer.
                Some(end) if end <= Instant::now() => {}
                Some(end) => tokio::time::sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = over => return,
            // The sender is the caller's and cannot be gone.
            Ok(()) = receiver.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn the_first_cause_counts_unless_the_job_is_closed() {
        let interrupt = Interrupt::default();
        let now = std::time::Instant::now;
        assert!(!interrupt.sleep_until(now()));
        let order = |cause| InterruptRequest { cause, grace: Duration::ZERO };
        interrupt.raise(order(InterruptCause::Requested));
        interrupt.raise(order(InterruptCause::Drained));
        interrupt.raised().await;
        assert_eq!(interrupt.cause(), Some(InterruptCause::Requested));
        interrupt.raise(order(InterruptCause::Closed));
        interrupt.raise(order(InterruptCause::Requested));
        assert_eq!(interrupt.cause(), Some(InterruptCause::Closed));
        assert!(interrupt.sleep_until(now() + LONG));
    }

    #[tokio::test]
    async fn the_earliest_end_counts() {
        let interrupt = Interrupt::default();
        let over = async || tokio::time::timeout(Duration::ZERO, interrupt.grace_over()).await.is_ok();
        let order = |cause, grace| InterruptRequest { cause, grace };
        assert!(!over().await);
        interrupt.raise(order(InterruptCause::Requested, LONG));
        assert!(!over().await);
        let hurry = async { interrupt.raise(order(InterruptCause::Drained, Duration::ZERO)) };
        tokio::join!(biased; interrupt.grace_over(), hurry);
        interrupt.raise(order(InterruptCause::Requested, LONG));
        assert!(over().await);
        assert_eq!(interrupt.cause(), Some(InterruptCause::Requested));
    }
}
