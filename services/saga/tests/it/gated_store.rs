//! A store that keeps commits waiting, as long as a test wants.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use store::{
    CommitOutcome, KvStore, LaneKey, RowBatch, RowKey, StoreCapabilities, StoreError, StoreHeartbeat,
    StoreHeartbeatReply, StorePage, StoreUsage, VersionedValue,
};
use tokio::sync::watch;

/// A store whose commits wait while they are held. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct GatedStore {
    store: Arc<dyn KvStore>,
    is_held: watch::Sender<bool>,
}

impl GatedStore {
    pub(crate) fn new(store: Arc<dyn KvStore>) -> Self {
        Self { store, is_held: watch::Sender::new(false) }
    }

    pub(crate) fn hold(&self) {
        self.is_held.send_replace(true);
    }

    pub(crate) fn release(&self) {
        self.is_held.send_replace(false);
    }
}

#[async_trait]
impl KvStore for GatedStore {
    async fn commit(&self, batch: RowBatch) -> Result<CommitOutcome, StoreError> {
        self.is_held.subscribe().wait_for(|is_held| !is_held).await.expect("it is here");
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
        self.store.now().await
    }

    async fn heartbeat(&self, beat: &StoreHeartbeat) -> Result<StoreHeartbeatReply, StoreError> {
        self.store.heartbeat(beat).await
    }

    async fn measure(&self) -> Result<StoreUsage, StoreError> {
        self.store.measure().await
    }

    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }
}
