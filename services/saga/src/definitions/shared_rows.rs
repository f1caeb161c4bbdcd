//! Rows beside all lanes, which every replica reads and writes.

use std::ops::Range;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use store::{
    CommitOutcome, KvStore, LaneKey, RowBatch, RowCondition, RowOperation, StoreError, VersionedValue,
};
use workflow::instance::decode;
use workflow::{LaneRowKey, WorkflowLane};

use super::DefinitionError;
use crate::lane::rows::{bounds, rest, row};

/// Rows that one scan asks for.
const PAGE_ROWS: usize = 256;

/// The lane of the rows that stand beside all lanes.
#[must_use]
pub fn shared_rows_lane() -> LaneKey {
    LaneKey::new("")
}

/// Rows beside the lanes.
pub(crate) struct SharedRows {
    store: Arc<dyn KvStore>,
    lane: LaneKey,
}

impl SharedRows {
    pub(crate) fn new(store: Arc<dyn KvStore>) -> Self {
        Self { store, lane: shared_rows_lane() }
    }

    /// The store's clock, in milliseconds since 1970.
    pub(crate) async fn now(&self) -> Result<u64, StoreError> {
        self.store.now().await
    }

    /// Reads rows as of one moment.
    pub(crate) async fn read(&self, keys: &[LaneRowKey]) -> Result<Vec<Option<VersionedValue>>, StoreError> {
        let keys: Vec<_> = keys.iter().map(row).collect();
        self.store.read(&self.lane, &keys).await
    }

    /// Reads one row.
    pub(crate) async fn get(&self, key: &LaneRowKey) -> Result<Option<VersionedValue>, StoreError> {
        Ok(self.read(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// Reads all rows of a range, in pages.
    pub(crate) async fn all(
        &self,
        mut range: Range<LaneRowKey>,
    ) -> Result<Vec<(LaneRowKey, VersionedValue)>, StoreError> {
        let mut all = Vec::new();
        loop {
            let page = self.store.scan(&self.lane, bounds(&range), PAGE_ROWS).await?;
            let rest = rest(&page);
            all.extend(
                page.rows.into_iter().map(|(key, found)| (LaneRowKey::of_store(key.to_string()), found)),
            );
            match rest {
                Some(rest) => range.start = rest,
                None => return Ok(all),
            }
        }
    }

    /// Reads the first rows of a range of a lane, up to about `most`.
    pub(crate) async fn some_of(
        &self,
        lane: &WorkflowLane,
        mut range: Range<LaneRowKey>,
        most: usize,
    ) -> Result<Vec<VersionedValue>, StoreError> {
        let lane = LaneKey::new(&lane.to_string());
        let mut some = Vec::new();
        loop {
            let page = self.store.scan(&lane, bounds(&range), PAGE_ROWS).await?;
            let rest = rest(&page);
            some.extend(page.rows.into_iter().map(|(_, found)| found));
            match rest {
                Some(rest) if some.len() < most => range.start = rest,
                _ => return Ok(some),
            }
        }
    }

    /// Commits a change. Other replicas write here at the same time: a commit that one of them fenced is retried.
    pub(crate) async fn commit(
        &self,
        expect: Vec<RowCondition>,
        ops: Vec<RowOperation>,
    ) -> Result<CommitOutcome, StoreError> {
        loop {
            let epoch = self.store.acquire_lane(&self.lane).await?;
            let batch =
                RowBatch { lane: self.lane.clone(), epoch, conditions: expect.clone(), ops: ops.clone() };
            match self.store.commit(batch).await? {
                CommitOutcome::Fenced { .. } => tokio::task::yield_now().await,
                outcome => return Ok(outcome),
            }
        }
    }
}

/// Decodes a row; `what` is its name in error messages.
pub(super) fn read_row<T: DeserializeOwned>(
    what: &str,
    found: &VersionedValue,
) -> Result<T, DefinitionError> {
    decode(&found.value)
        .map_err(|error| DefinitionError::Unreadable { what: what.to_owned(), why: error.to_string() })
}
