//! A clock that tests set forward, and stop.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use store::{
    Clock, CommitOutcome, KvStore, LaneKey, RowBatch, RowKey, StoreCapabilities, StoreError, StoreHeartbeat,
    StoreHeartbeatReply, StorePage, StoreUsage, VersionedValue,
};

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

/// A store with a clock of its own, in whose place lanes and replicas see that of tests. Rows expire by the store's.
pub(crate) struct ByHand {
    pub(crate) store: Arc<dyn KvStore>,
    pub(crate) clock: SetForward,
}

#[async_trait]
impl KvStore for ByHand {
    async fn commit(&self, batch: RowBatch) -> Result<CommitOutcome, StoreError> {
        self.store.commit(batch).await
    }

    async fn read(&self, lane: &LaneKey, keys: &[RowKey]) -> Result<Vec<Option<VersionedValue>>, StoreError> {
        self.store.read(lane, keys).await
    }

    async fn scan(
        &self,
        lane: &LaneKey,
        range: Range<RowKey>,
        limit: usize,
    ) -> Result<StorePage, StoreError> {
        self.store.scan(lane, range, limit).await
    }

    async fn acquire_lane(&self, lane: &LaneKey) -> Result<u64, StoreError> {
        self.store.acquire_lane(lane).await
    }

    async fn now(&self) -> Result<u64, StoreError> {
        self.store.now().await.map(|now| self.clock.show(now))
    }

    async fn heartbeat(&self, beat: &StoreHeartbeat) -> Result<StoreHeartbeatReply, StoreError> {
        let living = self.store.heartbeat(beat).await?;
        Ok(StoreHeartbeatReply { now: self.clock.show(living.now), ..living })
    }

    async fn measure(&self) -> Result<StoreUsage, StoreError> {
        self.store.measure().await
    }

    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }
}
