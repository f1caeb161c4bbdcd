//! A clock that tests set forward, and stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use store::{Clock, KvStore, StoreError, StoreHeartbeat, StoreHeartbeatReply};

use crate::hooked_store::StoreHook;

/// Clock of this machine, which tests set forward or stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct SetForward(Arc<Hands>);

#[derive(Debug, Default)]
struct Hands {
    forward: AtomicU64,
    back: AtomicU64,
    /// The moment at which it stands still; 0 while it runs.
    stopped: AtomicU64,
    looks: AtomicU64,
}

impl SetForward {
    pub(crate) fn forward(&self, length: Duration) {
        let millis = u64::try_from(length.as_millis()).expect("not for ever");
        self.0.forward.fetch_add(millis, Ordering::Relaxed);
    }

    /// Sets the clock back, as time synchronization of a machine may do.
    pub(crate) fn back(&self, length: Duration) {
        let millis = u64::try_from(length.as_millis()).expect("not for ever");
        self.0.back.fetch_add(millis, Ordering::Relaxed);
    }

    /// Sets it to a moment, in milliseconds since 1970, at which it stays.
    pub(crate) fn stop_at(&self, millis: u64) {
        self.0.stopped.store(millis, Ordering::Relaxed);
    }

    /// Counts how often it was looked at.
    pub(crate) fn looks(&self) -> u64 {
        self.0.looks.load(Ordering::Relaxed)
    }

    /// Returns the time that this clock shows when another one shows `now`.
    fn show(&self, now: u64) -> u64 {
        self.0.looks.fetch_add(1, Ordering::Relaxed);
        let Hands { forward, back, stopped, .. } = &*self.0;
        match stopped.load(Ordering::Relaxed) {
            0 => now + forward.load(Ordering::Relaxed) - back.load(Ordering::Relaxed),
            stopped => stopped,
        }
    }
}

impl Clock for SetForward {
    fn now(&self) -> u64 {
        self.show(store::WallClock.now())
    }
}

/// Has lanes and replicas see the clock of tests in place of the store's own. Rows expire by the store's.
pub(crate) struct ClockByHand(pub(crate) SetForward);

#[async_trait]
impl StoreHook for ClockByHand {
    async fn now(&self, store: &dyn KvStore) -> Result<u64, StoreError> {
        store.now().await.map(|now| self.0.show(now))
    }

    async fn heartbeat(
        &self,
        store: &dyn KvStore,
        beat: &StoreHeartbeat,
    ) -> Result<StoreHeartbeatReply, StoreError> {
        let living = store.heartbeat(beat).await?;
        Ok(StoreHeartbeatReply { now: self.0.show(living.now), ..living })
    }
}
