//! Rows of a lane, as its owner in one epoch reads and writes them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use backoff::ExponentialBackoff;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use store::{
    CommitOutcome, LaneKey, RowBatch, RowCondition, RowKey, RowOperation, StoreError, StorePage,
    VersionedValue,
};
use workflow::instance::{decode, encode};
use workflow::{LaneRowKey, WorkflowLane};

use super::backlog::Backlog;
use super::{LaneEnvironment, LaneExit};
use crate::health::ImpairmentGuard;

/// Bits of an outbox number below its epoch.
const OUTBOX_BITS: u32 = 20;
/// Rows that one scan asks for.
const PAGE_ROWS: usize = 256;

/// Rows of a lane in one epoch.
pub struct LaneStore {
    /// The lane.
    pub lane: WorkflowLane,
    key: LaneKey,
    epoch: u64,
    around: LaneEnvironment,
    /// True if the answer to a commit was lost, so that it may have been made.
    is_uncertain: AtomicBool,
    /// Number of the next row of the outbox.
    outbox: AtomicU64,
    /// Rows that wait to be sent.
    backlog: Backlog,
}

/// Owner of a lane, for people and for the next owner. This row is the fence that keeps others out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRow {
    /// Name of the replica.
    pub replica: String,
    /// Epoch in which it took the lane.
    pub epoch: u64,
}

/// A key as the store takes it.
#[must_use]
pub fn row(key: &LaneRowKey) -> RowKey {
    RowKey::new(key.as_str())
}

/// The bounds of a scan as the store takes them.
pub(crate) fn bounds(range: &Range<LaneRowKey>) -> Range<RowKey> {
    row(&range.start)..row(&range.end)
}

/// The key from which the rows behind a page are read; `None` where there are none.
pub(crate) fn rest(page: &StorePage) -> Option<LaneRowKey> {
    page.rows
        .last()
        .filter(|_| page.has_more)
        .map(|(last, _)| LaneRowKey::of_store(last.to_string()).behind())
}

impl LaneStore {
    /// Takes a lane: from now on no commit of a former owner succeeds. Waits for the store as long as necessary.
    ///
    /// # Errors
    /// [`LaneExit::Fenced`], [`LaneExit::Damaged`].
    pub async fn take(lane: WorkflowLane, around: LaneEnvironment) -> Result<Self, LaneExit> {
        let key = LaneKey::new(&lane.to_string());
        let mut waits = StoreRetry::new(&lane, &around);
        let epoch = loop {
            match around.store.acquire_lane(&key).await {
                Ok(epoch) => break epoch,
                Err(error) => waits.again(error).await?,
            }
        };
        drop(waits);
        service::crash_point("lane.fenced");
        around.metrics.taken.inc();
        // Epochs are times in milliseconds, so no former owner has given out numbers this high.
        let (is_uncertain, outbox) = (AtomicBool::new(false), AtomicU64::new(epoch << OUTBOX_BITS));
        let backlog = Backlog::new(around.outbox_rows_max);
        let rows = Self { lane, key, epoch, around, is_uncertain, outbox, backlog };
        let owner = OwnerRow { replica: rows.around.replica.to_string(), epoch };
        rows.commit(Vec::new(), vec![RowOperation::Put(row(&LaneRowKey::owner()), encode(&owner).into())])
            .await?;
        Ok(rows)
    }

    /// Releases the lane. If that fails, the next owner has to wait.
    pub async fn give_up(&self) {
        let ops = vec![RowOperation::Delete(row(&LaneRowKey::owner()))];
        let batch = RowBatch { lane: self.key.clone(), epoch: self.epoch, conditions: Vec::new(), ops };
        match self.around.store.commit(batch).await {
            Ok(CommitOutcome::Fenced { .. }) => self.around.metrics.fenced_commits.inc(),
            Ok(_) => {}
            Err(error) => tracing::warn!(lane = %self.lane, "not released: {error}; the next owner waits"),
        }
    }

    /// The epoch in which the lane was taken.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the environment that the owner works in.
    #[must_use]
    pub const fn around(&self) -> &LaneEnvironment {
        &self.around
    }

    /// Returns the backlog of rows that wait to be sent.
    #[must_use]
    pub const fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    const fn waits(&self) -> StoreRetry<'_> {
        StoreRetry::new(&self.lane, &self.around)
    }

    /// Reads the store's clock.
    ///
    /// # Errors
    /// [`LaneExit::Damaged`].
    pub async fn now(&self) -> Result<u64, LaneExit> {
        let mut waits = self.waits();
        loop {
            match self.around.store.now().await {
                Ok(now) => return Ok(now),
                Err(error) => waits.again(error).await?,
            }
        }
    }

    /// Commits a change, and waits for the store as long as necessary: the same change is retried until it has an answer. If an answer
    /// was lost, the retry may fail on one of the change's own conditions, which the change itself has invalidated.
    ///
    /// # Errors
    /// [`LaneExit::Fenced`], [`LaneExit::Damaged`], [`LaneExit::TooLarge`].
    pub async fn commit(
        &self,
        expect: Vec<RowCondition>,
        ops: Vec<RowOperation>,
    ) -> Result<CommitOutcome, LaneExit> {
        let batch = RowBatch { lane: self.key.clone(), epoch: self.epoch, conditions: expect, ops };
        let mut waits = self.waits();
        loop {
            let begin = Instant::now();
            let answer = self.around.store.commit(batch.clone()).await;
            self.around.metrics.commit_took(self.around.store.capabilities().shared, begin.elapsed());
            match answer {
                Ok(CommitOutcome::Fenced { epoch }) => {
                    self.around.metrics.fenced_commits.inc();
                    return Err(LaneExit::Fenced { lane: self.lane.to_string(), epoch });
                }
                Ok(outcome) => return Ok(outcome),
                Err(error) => {
                    if matches!(error, StoreError::Indeterminate { .. }) {
                        self.is_uncertain.store(true, Ordering::Release);
                    }
                    waits.again(error).await?;
                }
            }
        }
    }

    /// Returns whether an answer was lost since the last call of this method.
    #[must_use]
    pub fn was_uncertain(&self) -> bool {
        self.is_uncertain.swap(false, Ordering::AcqRel)
    }

    /// Reads rows as of one moment.
    ///
    /// # Errors
    /// [`LaneExit::Damaged`].
    pub async fn read(&self, keys: &[LaneRowKey]) -> Result<Vec<Option<VersionedValue>>, LaneExit> {
        let keys: Vec<_> = keys.iter().map(row).collect();
        let mut waits = self.waits();
        loop {
            match self.around.store.read(&self.key, &keys).await {
                Ok(rows) => return Ok(rows),
                Err(error) => waits.again(error).await?,
            }
        }
    }

    /// Reads one row.
    ///
    /// # Errors
    /// [`LaneExit::Damaged`].
    pub async fn get(&self, key: &LaneRowKey) -> Result<Option<VersionedValue>, LaneExit> {
        Ok(self.read(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// Reads a page of rows.
    ///
    /// # Errors
    /// [`LaneExit::Damaged`].
    pub async fn page(&self, range: &Range<LaneRowKey>) -> Result<StorePage, LaneExit> {
        self.page_of(range, PAGE_ROWS).await
    }

    /// Reads the first row of a range.
    ///
    /// # Errors
    /// [`LaneExit::Damaged`].
    pub async fn first(&self, range: &Range<LaneRowKey>) -> Result<Option<VersionedValue>, LaneExit> {
        Ok(self.page_of(range, 1).await?.rows.into_iter().next().map(|(_, row)| row))
    }

    async fn page_of(&self, range: &Range<LaneRowKey>, limit: usize) -> Result<StorePage, LaneExit> {
        let mut waits = self.waits();
        loop {
            match self.around.store.scan(&self.key, bounds(range), limit).await {
                Ok(page) => return Ok(page),
                Err(error) => waits.again(error).await?,
            }
        }
    }

    /// Reads all rows of a range, in pages.
    ///
    /// # Errors
    /// [`LaneExit::Damaged`].
    pub async fn all<T: DeserializeOwned>(
        &self,
        mut range: Range<LaneRowKey>,
    ) -> Result<Vec<(LaneRowKey, T)>, LaneExit> {
        let mut all = Vec::new();
        loop {
            let page = self.page(&range).await?;
            for (key, versioned) in &page.rows {
                all.push((LaneRowKey::of_store(key.to_string()), self.decode(versioned)?));
            }
            match rest(&page) {
                Some(rest) => range.start = rest,
                None => return Ok(all),
            }
        }
    }

    /// Deletes all rows of a range, page by page, and counts them. Rows that a crash leaves are deleted by the next call.
    ///
    /// # Errors
    /// As those of [`LaneStore::commit`].
    pub async fn delete_all(&self, range: Range<LaneRowKey>) -> Result<usize, LaneExit> {
        let mut deleted = 0;
        loop {
            let page = self.page(&range).await?;
            let ops: Vec<_> = page.rows.iter().map(|(key, _)| RowOperation::Delete(key.clone())).collect();
            deleted += ops.len();
            if !ops.is_empty() {
                self.commit(Vec::new(), ops).await?;
            }
            if !page.has_more {
                return Ok(deleted);
            }
        }
    }

    /// Decodes the value of a row.
    ///
    /// # Errors
    /// [`LaneExit::Damaged`].
    pub fn decode<T: DeserializeOwned>(&self, versioned: &VersionedValue) -> Result<T, LaneExit> {
        decode(&versioned.value).map_err(|error| LaneExit::damaged(&self.lane, error))
    }

    /// Gives the next number of the outbox: higher than any given before, by this owner or a former one.
    #[must_use]
    pub fn next_outbox(&self) -> u64 {
        self.outbox.fetch_add(1, Ordering::Relaxed)
    }
}

/// Retries of one operation until the store answers.
struct StoreRetry<'a> {
    lane: &'a WorkflowLane,
    around: &'a LaneEnvironment,
    pauses: ExponentialBackoff,
    /// Reports that the store fails.
    lack: Option<ImpairmentGuard>,
}

impl<'a> StoreRetry<'a> {
    const fn new(lane: &'a WorkflowLane, around: &'a LaneEnvironment) -> Self {
        Self { lane, around, pauses: super::backoff(), lack: None }
    }

    /// Waits before the next try; gives up where a retry cannot help.
    async fn again(&mut self, error: StoreError) -> Result<(), LaneExit> {
        let lane = self.lane;
        match error {
            StoreError::Damaged { why } => return Err(LaneExit::damaged(lane, why)),
            error @ StoreError::TooLarge { .. } => {
                return Err(LaneExit::TooLarge { lane: lane.to_string(), why: error.to_string() });
            }
            StoreError::Full { .. }
            | StoreError::Indeterminate { .. }
            | StoreError::Unavailable { .. }
            | StoreError::Owned { .. } => {}
        }
        tracing::warn!(%lane, "{error}; retrying");
        // The former guard lives until the new one exists, so that the impairment does not flicker.
        let lack = self.around.health.begin_impairment("store", &error.to_string());
        self.lack.replace(lack);
        let pause = tokio::time::sleep(self.pauses.next_pause());
        tokio::select! {
            // A broken store may need people: a lane that has to be given up does not wait for that.
            () = self.around.cut.cancelled() => Err(LaneExit::Stopped { lane: lane.to_string() }),
            () = pause => Ok(()),
        }
    }
}
