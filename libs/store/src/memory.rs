//! The model: rows in memory.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::batch_evaluation::{RowAccess, apply, evaluate};
use crate::replica::LocalReplicaRegistry;
use crate::row::{LaneFence, StoredRow};
use crate::{
    Clock, CommitOutcome, KvStore, LaneKey, RowBatch, RowKey, StoreCapabilities, StoreError, StoreHeartbeat,
    StoreHeartbeatReply, StorePage, StorePageBuilder, StoreUsage, VersionedValue, WallClock,
};

/// A store that persists nothing beyond its process.
pub struct MemoryStore<C = WallClock> {
    clock: C,
    lanes: Mutex<HashMap<LaneKey, InMemoryLane>>,
    replicas: LocalReplicaRegistry,
}

#[derive(Default)]
struct InMemoryLane {
    fence: LaneFence,
    rows: BTreeMap<RowKey, StoredRow>,
}

impl<C: Clock> MemoryStore<C> {
    /// An empty one.
    #[must_use]
    pub fn new(clock: C) -> Self {
        Self { clock, lanes: Mutex::new(HashMap::new()), replicas: LocalReplicaRegistry::default() }
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<LaneKey, InMemoryLane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RowAccess for &mut InMemoryLane {
    fn get(&self, key: &RowKey) -> Result<Option<StoredRow>, StoreError> {
        Ok(self.rows.get(key).cloned())
    }

    fn put(&mut self, key: &RowKey, row: &StoredRow) -> Result<(), StoreError> {
        self.rows.insert(key.clone(), row.clone());
        Ok(())
    }

    fn delete(&mut self, key: &RowKey) -> Result<(), StoreError> {
        self.rows.remove(key);
        Ok(())
    }
}

#[async_trait]
impl<C: Clock> KvStore for MemoryStore<C> {
    async fn commit(&self, batch: RowBatch) -> Result<CommitOutcome, StoreError> {
        batch.check()?;
        let now = self.clock.now();
        let mut lanes = self.lanes();
        let mut lane = lanes.entry(batch.lane.clone()).or_default();
        let fence = lane.fence;
        if let Some(outcome) = evaluate(&lane, &batch, fence, now)? {
            return Ok(outcome);
        }
        let fence = LaneFence { revision: fence.revision + 1, ..fence };
        apply(&mut lane, &batch, fence.revision, now)?;
        lane.fence = fence;
        Ok(CommitOutcome::Committed(fence.revision))
    }

    async fn read(&self, lane: &LaneKey, keys: &[RowKey]) -> Result<Vec<Option<VersionedValue>>, StoreError> {
        let (now, lanes) = (self.clock.now(), self.lanes());
        let row = |key: &RowKey| lanes.get(lane)?.rows.get(key).filter(|row| row.is_live(now));
        Ok(keys.iter().map(|key| row(key).map(|row| row.versioned.clone())).collect())
    }

    async fn scan(
        &self,
        lane: &LaneKey,
        range: Range<RowKey>,
        limit: usize,
    ) -> Result<StorePage, StoreError> {
        let (now, lanes) = (self.clock.now(), self.lanes());
        let mut page = StorePageBuilder::new(limit);
        if range.is_empty() {
            return Ok(page.page);
        }
        let rows = lanes.get(lane).into_iter().flat_map(|lane| lane.rows.range(range.clone()));
        let there = rows.filter(|(_, row)| row.is_live(now));
        for (key, row) in there {
            if !page.push(key.clone(), row.versioned.clone()) {
                break;
            }
        }
        Ok(page.page)
    }

    async fn acquire_lane(&self, lane: &LaneKey) -> Result<u64, StoreError> {
        let mut lanes = self.lanes();
        let lane = lanes.entry(lane.clone()).or_default();
        lane.fence = lane.fence.next_epoch(self.clock.now());
        Ok(lane.fence.epoch)
    }

    async fn heartbeat(&self, beat: &StoreHeartbeat) -> Result<StoreHeartbeatReply, StoreError> {
        let revision = self.lanes().get(&LaneKey::new("")).map_or(0, |lane| lane.fence.revision);
        self.replicas.record_heartbeat(beat, self.clock.now(), revision)
    }

    async fn now(&self) -> Result<u64, StoreError> {
        Ok(self.clock.now())
    }

    async fn measure(&self) -> Result<StoreUsage, StoreError> {
        let lanes = self.lanes();
        let rows = lanes.values().flat_map(|lane| &lane.rows);
        let bytes = rows.map(|(key, row)| (key.as_str().len() + row.versioned.value.len()) as u64).sum();
        Ok(StoreUsage { version: env!("CARGO_PKG_VERSION").to_owned(), bytes })
    }

    fn capabilities(&self) -> StoreCapabilities {
        let (kind, is_synced) = ("memory", false);
        StoreCapabilities {
            kind,
            is_synced,
            shared: false,
            durability: "nothing survives the end of this process",
        }
    }
}
