//! Clocks by which a simulated broker waits.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Clock of a simulated broker, which also wakes it.
pub trait SimulationClock: Send + Sync + 'static {
    /// Milliseconds since 1970.
    fn now(&self) -> u64;

    /// Waits until this time, or later.
    fn wait_until(&self, millis: u64) -> BoxFuture<'static, ()>;
}

/// The time of this machine, as far as the runtime has let it go on: a runtime whose time is paused pauses it.
#[derive(Debug, Clone, Copy)]
pub struct RuntimeClock {
    begin: Instant,
    begin_millis: u64,
}

impl RuntimeClock {
    /// Starts with the present time.
    #[must_use]
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { begin: Instant::now(), begin_millis: u64::try_from(since.as_millis()).unwrap_or(u64::MAX) }
    }
}

impl Default for RuntimeClock {
    fn default() -> Self {
        Self::new()
    }
}

impl SimulationClock for RuntimeClock {
    fn now(&self) -> u64 {
        let passed = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.begin_millis.saturating_add(passed)
    }

    fn wait_until(&self, millis: u64) -> BoxFuture<'static, ()> {
        Box::pin(sleep_until(self.begin + Duration::from_millis(millis.saturating_sub(self.begin_millis))))
    }
}

/// A time that tests set. Cheap to clone; all clones have the same.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<watch::Sender<u64>>);

impl ManualClock {
    /// Starts with this time, in milliseconds since 1970.
    #[must_use]
    pub fn new(millis: u64) -> Self {
        Self(Arc::new(watch::Sender::new(millis)))
    }

    /// Advances by this many milliseconds, and wakes the waiters whose time has come.
    pub fn advance(&self, millis: u64) {
        self.0.send_modify(|now| *now = now.saturating_add(millis));
    }
}

impl SimulationClock for ManualClock {
    fn now(&self) -> u64 {
        *self.0.borrow()
    }

    fn wait_until(&self, millis: u64) -> BoxFuture<'static, ()> {
        let mut now = self.0.subscribe();
        Box::pin(async move {
            if now.wait_for(|now| *now >= millis).await.is_err() {
                // The clock is gone, and time with it.
                std::future::pending::<()>().await;
            }
        })
    }
}
