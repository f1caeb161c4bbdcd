//! A clock that tests set forward.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use store::Clock;

/// This machine's clock, which tests set forward.
#[derive(Debug, Clone, Default)]
pub(crate) struct SetForward(Arc<AtomicU64>);

impl SetForward {
    pub(crate) fn forward(&self, length: Duration) {
        let millis = u64::try_from(length.as_millis()).expect("not for ever");
        self.0.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Clock for SetForward {
    fn now(&self) -> u64 {
        store::MachineClock.now() + self.0.load(Ordering::Relaxed)
    }
}
