//! Being told to end a job.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Why a job has to end before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Somebody asked for it.
    Requested,
    /// It was ended elsewhere already, so nobody wants to hear of it.
    Closed,
    /// The runner ends.
    Drained,
}

/// An order to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    /// Why.
    pub(crate) cause: Cause,
    /// How long the script may take after it was asked.
    pub(crate) grace: Duration,
}

/// Carries the order to end one job, to tasks and to threads. The first order counts, except that
/// a job that is known to be closed is closed.
#[derive(Debug)]
pub(crate) struct Interrupt {
    order: watch::Sender<Option<Order>>,
    raised: Mutex<bool>,
    wake: Condvar,
}

impl Default for Interrupt {
    fn default() -> Self {
        Self { order: watch::Sender::new(None), raised: Mutex::default(), wake: Condvar::new() }
    }
}

impl Interrupt {
    /// Gives the order.
    pub(crate) fn raise(&self, order: Order) {
        self.order.send_if_modified(|present| {
            let counts =
                present.is_none_or(|present| order.cause == Cause::Closed && present.cause != order.cause);
            if counts {
                *present = Some(order);
            }
            counts
        });
        *self.flag() = true;
        self.wake.notify_all();
    }

    /// The order, if there is one.
    pub(crate) fn order(&self) -> Option<Order> {
        *self.order.borrow()
    }

    /// Waits for an order. Cancel safe.
    pub(crate) async fn raised(&self) -> Order {
        let mut receiver = self.order.subscribe();
        match receiver.wait_for(Option::is_some).await.map(|order| *order) {
            Ok(Some(order)) => order,
            // The sender is ours and cannot be gone.
            _ => std::future::pending().await,
        }
    }

    /// Sleeps on a thread, at most until `until`; gives whether it was an order that ended it.
    pub(crate) fn sleep_until(&self, until: Instant) -> bool {
        let mut flag = self.flag();
        loop {
            let left = until.saturating_duration_since(Instant::now());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_order_counts_unless_the_job_is_closed() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.sleep_until(Instant::now()));
        let order = |cause| Order { cause, grace: Duration::ZERO };
        interrupt.raise(order(Cause::Requested));
        interrupt.raise(order(Cause::Drained));
        assert_eq!(interrupt.raised().await.cause, Cause::Requested);
        interrupt.raise(order(Cause::Closed));
        interrupt.raise(order(Cause::Requested));
        assert_eq!(interrupt.order().map(|order| order.cause), Some(Cause::Closed));
        assert!(interrupt.sleep_until(Instant::now() + Duration::from_secs(60)));
    }
}
