//! Store in front of another one, in which a test changes single calls.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use store::{
    CommitOutcome, KvStore, LaneKey, RowBatch, RowKey, StoreCapabilities, StoreError, StoreHeartbeat,
    StoreHeartbeatReply, StorePage, StoreUsage, VersionedValue,
};

/// Calls of a store that a test changes; as they stand here, each passes on to the store behind.
#[async_trait]
pub(crate) trait StoreHook: Send + Sync + 'static {
    async fn commit(&self, store: &dyn KvStore, batch: RowBatch) -> Result<CommitOutcome, StoreError> {
        store.commit(batch).await
    }

    /// Lane that is read, scanned and acquired in place of this one.
    fn lane(&self, lane: &LaneKey) -> LaneKey {
        lane.clone()
    }

    async fn now(&self, store: &dyn KvStore) -> Result<u64, StoreError> {
        store.now().await
    }

    async fn heartbeat(
        &self,
        store: &dyn KvStore,
        beat: &StoreHeartbeat,
    ) -> Result<StoreHeartbeatReply, StoreError> {
        store.heartbeat(beat).await
    }
}

/// Store whose calls go through a hook.
pub(crate) struct HookedStore<H> {
    store: Arc<dyn KvStore>,
    hook: H,
}

impl<H: StoreHook> HookedStore<H> {
    /// Puts a hook in front of a store.
    pub(crate) fn over(store: Arc<dyn KvStore>, hook: H) -> Arc<dyn KvStore> {
        Arc::new(Self { store, hook })
    }
}

#[async_trait]
impl<H: StoreHook> KvStore for HookedStore<H> {
    async fn commit(&self, batch: RowBatch) -> Result<CommitOutcome, StoreError> {
        self.hook.commit(&*self.store, batch).await
    }

    async fn read(&self, lane: &LaneKey, keys: &[RowKey]) -> Result<Vec<Option<VersionedValue>>, StoreError> {
        self.store.read(&self.hook.lane(lane), keys).await
    }

    async fn scan(
        &self,
        lane: &LaneKey,
        range: Range<RowKey>,
        limit: usize,
    ) -> Result<StorePage, StoreError> {
        self.store.scan(&self.hook.lane(lane), range, limit).await
    }

    async fn acquire_lane(&self, lane: &LaneKey) -> Result<u64, StoreError> {
        self.store.acquire_lane(&self.hook.lane(lane)).await
    }

    async fn now(&self) -> Result<u64, StoreError> {
        self.hook.now(&*self.store).await
    }

    async fn heartbeat(&self, beat: &StoreHeartbeat) -> Result<StoreHeartbeatReply, StoreError> {
        self.hook.heartbeat(&*self.store, beat).await
    }

    async fn measure(&self) -> Result<StoreUsage, StoreError> {
        self.store.measure().await
    }

    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }
}
