//! Rows of a lane, as its owner in one epoch reads and writes them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use store::{Batch, Expect, LaneKey, Op, Outcome, Page, RowKey, StoreError, Versioned};
use workflow::instance::{decode, encode};
use workflow::{Key, Lane};

use super::backlog::Backlog;
use super::{Ended, Pauses, Surroundings};
use crate::health::Lack;

/// Room in the numbers of the outbox between one epoch and the next, in bits.
const OUTBOX_BITS: u32 = 20;
/// Rows that one scan asks for.
const PAGE_ROWS: usize = 256;

/// Rows of a lane in one epoch.
pub struct Rows {
    /// The lane.
    pub lane: Lane,
    key: LaneKey,
    epoch: u64,
    around: Surroundings,
    /// Whether a commit may have been made whose answer was lost.
    is_uncertain: AtomicBool,
    /// The number of the next row of the outbox.
    outbox: AtomicU64,
    /// What waits to be sent.
    backlog: Backlog,
}

/// Who owns a lane, for people and for whoever owns it next. It is the fence that keeps others out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRow {
    /// Name of the replica.
    pub replica: String,
    /// Epoch in which it took the lane.
    pub epoch: u64,
}

/// A key as the store takes it.
#[must_use]
pub fn row(key: &Key) -> RowKey {
    RowKey::new(key.as_str())
}

/// The bounds of a scan as the store takes them.
pub(crate) fn bounds(range: &Range<Key>) -> Range<RowKey> {
    row(&range.start)..row(&range.end)
}

/// The key from which the rows behind a page are read; nothing where there are none.
pub(crate) fn rest(page: &Page) -> Option<Key> {
    page.rows.last().filter(|_| page.has_more).map(|(last, _)| Key::of_store(last.to_string()).behind())
}

impl Rows {
    /// Takes a lane: from now on nothing of a former owner is committed. Waits for the store as long as it has to.
    ///
    /// # Errors
    /// [`Ended::Fenced`], [`Ended::Damaged`].
    pub async fn take(lane: Lane, around: Surroundings) -> Result<Self, Ended> {
        let key = LaneKey::new(&lane.to_string());
        let mut waits = Waits::new(&lane, &around);
        let epoch = loop {
            match around.store.take(&key).await {
                Ok(epoch) => break epoch,
                Err(error) => waits.again(error).await?,
            }
        };
        drop(waits);
        service::crash_point("lane.fenced");
        around.metrics.taken.inc();
        // Epochs are times in milliseconds, so that no owner before has come as far.
        let (is_uncertain, outbox) = (AtomicBool::new(false), AtomicU64::new(epoch << OUTBOX_BITS));
        let backlog = Backlog::new(around.outbox_rows_max);
        let rows = Self { lane, key, epoch, around, is_uncertain, outbox, backlog };
        let owner = OwnerRow { replica: rows.around.replica.to_string(), epoch };
        rows.commit(Vec::new(), vec![Op::Put(row(&Key::owner()), encode(&owner).into())]).await?;
        Ok(rows)
    }

    /// Tells that the lane has no owner any more. Where that fails others hear of it later.
    pub async fn give_up(&self) {
        let ops = vec![Op::Delete(row(&Key::owner()))];
        let batch = Batch { lane: self.key.clone(), epoch: self.epoch, expect: Vec::new(), ops };
        match self.around.store.commit(batch).await {
            Ok(Outcome::Fenced { .. }) => self.around.metrics.fenced_commits.inc(),
            Ok(_) => {}
            Err(error) => tracing::warn!(lane = %self.lane, "{error}; the next owner has to wait"),
        }
    }

    /// The epoch in which it was taken.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What the owner works with.
    #[must_use]
    pub const fn around(&self) -> &Surroundings {
        &self.around
    }

    /// What waits to be sent.
    #[must_use]
    pub const fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    const fn waits(&self) -> Waits<'_> {
        Waits::new(&self.lane, &self.around)
    }

    /// Reads the store's clock.
    ///
    /// # Errors
    /// [`Ended::Damaged`].
    pub async fn now(&self) -> Result<u64, Ended> {
        let mut waits = self.waits();
        loop {
            match self.around.store.now().await {
                Ok(now) => return Ok(now),
                Err(error) => waits.again(error).await?,
            }
        }
    }

    /// Commits a change, and waits for the store as long as it has to: the same change is sent again until it has an answer. Where an
    /// answer was lost, the change may be answered by one of its own conditions that does not hold any more.
    ///
    /// # Errors
    /// [`Ended::Fenced`], [`Ended::Damaged`], [`Ended::TooLarge`].
    pub async fn commit(&self, expect: Vec<Expect>, ops: Vec<Op>) -> Result<Outcome, Ended> {
        let batch = Batch { lane: self.key.clone(), epoch: self.epoch, expect, ops };
        let mut waits = self.waits();
        loop {
            let begin = Instant::now();
            let answer = self.around.store.commit(batch.clone()).await;
            self.around.metrics.commit_took(self.around.store.caps().shared, begin.elapsed());
            match answer {
                Ok(Outcome::Fenced { epoch }) => {
                    self.around.metrics.fenced_commits.inc();
                    return Err(Ended::Fenced { lane: self.lane.to_string(), epoch });
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

    /// Says whether an answer was lost since it was asked last.
    #[must_use]
    pub fn was_uncertain(&self) -> bool {
        self.is_uncertain.swap(false, Ordering::AcqRel)
    }

    /// Reads rows as of one moment.
    ///
    /// # Errors
    /// [`Ended::Damaged`].
    pub async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Versioned>>, Ended> {
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
    /// [`Ended::Damaged`].
    pub async fn get(&self, key: &Key) -> Result<Option<Versioned>, Ended> {
        Ok(self.read(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// Reads a page of rows.
    ///
    /// # Errors
    /// [`Ended::Damaged`].
    pub async fn page(&self, range: &Range<Key>) -> Result<Page, Ended> {
        self.page_of(range, PAGE_ROWS).await
    }

    /// Reads the first row of a range.
    ///
    /// # Errors
    /// [`Ended::Damaged`].
    pub async fn first(&self, range: &Range<Key>) -> Result<Option<Versioned>, Ended> {
        Ok(self.page_of(range, 1).await?.rows.into_iter().next().map(|(_, row)| row))
    }

    async fn page_of(&self, range: &Range<Key>, limit: usize) -> Result<Page, Ended> {
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
    /// [`Ended::Damaged`].
    pub async fn all<T: DeserializeOwned>(&self, mut range: Range<Key>) -> Result<Vec<(Key, T)>, Ended> {
        let mut all = Vec::new();
        loop {
            let page = self.page(&range).await?;
            for (key, versioned) in &page.rows {
                all.push((Key::of_store(key.to_string()), self.decode(versioned)?));
            }
            match rest(&page) {
                Some(rest) => range.start = rest,
                None => return Ok(all),
            }
        }
    }

    /// Deletes all rows of a range, page by page, and counts them. What a crash leaves is deleted by the next call.
    ///
    /// # Errors
    /// As those of [`Rows::commit`].
    pub async fn delete_all(&self, range: Range<Key>) -> Result<usize, Ended> {
        let mut deleted = 0;
        loop {
            let page = self.page(&range).await?;
            let ops: Vec<_> = page.rows.iter().map(|(key, _)| Op::Delete(key.clone())).collect();
            deleted += ops.len();
            if !ops.is_empty() {
                self.commit(Vec::new(), ops).await?;
            }
            if !page.has_more {
                return Ok(deleted);
            }
        }
    }

    /// Reads what a row says.
    ///
    /// # Errors
    /// [`Ended::Damaged`].
    pub fn decode<T: DeserializeOwned>(&self, versioned: &Versioned) -> Result<T, Ended> {
        decode(&versioned.value).map_err(|error| Ended::damaged(&self.lane, error))
    }

    /// Gives the next number of the outbox: higher than all that were given before, by this owner and by others.
    #[must_use]
    pub fn next_outbox(&self) -> u64 {
        self.outbox.fetch_add(1, Ordering::Relaxed)
    }
}

/// One thing that is asked of the store until it answers.
struct Waits<'a> {
    lane: &'a Lane,
    around: &'a Surroundings,
    pauses: Pauses,
    /// Tells that the store does not do it.
    lack: Option<Lack>,
}

impl<'a> Waits<'a> {
    const fn new(lane: &'a Lane, around: &'a Surroundings) -> Self {
        Self { lane, around, pauses: Pauses::new(), lack: None }
    }

    /// Waits before the store is asked again; gives up where that is of no use.
    async fn again(&mut self, error: StoreError) -> Result<(), Ended> {
        let lane = self.lane;
        match error {
            StoreError::Damaged { why } => return Err(Ended::damaged(lane, why)),
            error @ StoreError::TooLarge { .. } => {
                return Err(Ended::TooLarge { lane: lane.to_string(), why: error.to_string() });
            }
            StoreError::Full { .. }
            | StoreError::Indeterminate { .. }
            | StoreError::Unavailable { .. }
            | StoreError::Owned { .. } => {}
        }
        tracing::warn!(%lane, "{error}; it is asked again");
        // The former one is kept until there is another, so that nobody looks in between.
        let lack = self.around.health.lack("store", &error.to_string());
        self.lack.replace(lack);
        let pause = tokio::time::sleep(self.pauses.next());
        tokio::select! {
            // Stores are mended by people: a lane that has to be given up does not wait for them.
            () = self.around.cut.cancelled() => Err(Ended::Stopped { lane: lane.to_string() }),
            () = pause => Ok(()),
        }
    }
}
