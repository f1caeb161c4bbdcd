//! Stores of rows for sagas.
//!
//! Rows belong to lanes. One process at a time owns a lane; every new owner gets a higher epoch. One [`RowBatch`] changes
//! rows of one lane, all of them or none, and its conditions are checked in the same transaction: the epoch, the revisions
//! of rows, rows that must be absent. Correctness depends on nothing else.
//!
//! - [`KvStore`]: the interface of every store.
//! - [`EmbeddedStore`]: a directory of one process, by MDBX.
//! - [`StoreHeartbeat`]: how a replica reports that it is alive, and learns which others are.
//! - [`SharedStore`]: Redis, one server or a cluster, for several processes.
//! - [`MemoryStore`]: the reference model for the others; it persists nothing.

mod batch;
mod batch_evaluation;
mod clock;
mod embedded;
mod error;
mod memory;
mod replica;
mod row;
mod shared;

use std::ops::Range;

use async_trait::async_trait;

pub use batch::{
    CommitOutcome, KEY_BYTES_MAX, LaneKey, ROWS_MAX, RowBatch, RowCondition, RowKey, RowOperation,
    VALUE_BYTES_MAX,
};
pub use clock::{Clock, WallClock};
pub use embedded::EmbeddedStore;
pub use error::StoreError;
pub use memory::MemoryStore;
pub use replica::{
    REPLICA_ANNOUNCEMENT_BYTES_MAX, REPLICA_NAME_BYTES_MAX, Replica, StoreHeartbeat, StoreHeartbeatReply,
};
pub use row::VersionedValue;
pub use shared::SharedStore;

/// A page ends with the row that brings it to this size in bytes.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Properties of a store, for the placement of lanes and for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreCapabilities {
    /// Backend that keeps the rows: `mdbx`, `redis` or `memory`.
    pub kind: &'static str,
    /// True if an answered commit survives everything but the loss of disks.
    pub is_synced: bool,
    /// True if several processes may own lanes of the store.
    pub shared: bool,
    /// Failures that an answered commit survives.
    pub durability: &'static str,
}

/// Version and size of a store, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreUsage {
    /// Version of the backend; for Redis that of its first server.
    pub version: String,
    /// Bytes that are used: of the file of a directory without the pages that are free, of Redis the memory of all its servers that
    /// take writes.
    pub bytes: u64,
}

/// Some rows, in the order of their keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StorePage {
    /// The rows.
    pub rows: Vec<(RowKey, VersionedValue)>,
    /// True if there are more rows after the last one.
    pub has_more: bool,
}

/// A page that is being read.
struct StorePageBuilder {
    page: StorePage,
    limit: usize,
    bytes: usize,
}

impl StorePageBuilder {
    /// An empty page for at most `limit` rows.
    fn new(limit: usize) -> Self {
        Self { page: StorePage::default(), limit: limit.min(ROWS_MAX), bytes: 0 }
    }

    /// Adds a row, unless the page is full: then it notes that there are more, and returns `false`.
    fn push(&mut self, key: RowKey, row: VersionedValue) -> bool {
        self.page.has_more = self.remaining() == 0 || self.bytes >= PAGE_BYTES;
        if !self.page.has_more {
            self.bytes += row.value.len();
            self.page.rows.push((key, row));
        }
        !self.page.has_more
    }

    /// Counts the rows that it may still take.
    const fn remaining(&self) -> usize {
        self.limit - self.page.rows.len()
    }
}

/// A store of rows.
#[async_trait]
pub trait KvStore: Send + Sync {
    /// Makes a change, or none of it. Not cancel-safe: a call that is dropped may have been carried out. Resubmitting the same batch is
    /// safe as long as its conditions fail once it has been applied.
    ///
    /// # Errors
    /// [`StoreError::Indeterminate`] when the change may have been made; with any other error it was not.
    async fn commit(&self, batch: RowBatch) -> Result<CommitOutcome, StoreError>;

    /// Reads rows of a lane, all as of one moment; nothing where there is none.
    ///
    /// # Errors
    /// [`StoreError`]; may be repeated.
    async fn read(&self, lane: &LaneKey, keys: &[RowKey]) -> Result<Vec<Option<VersionedValue>>, StoreError>;

    /// Reads at most `limit` rows of a lane from the first key on, in the order of their keys, as far as the second; fewer when they
    /// are large.
    ///
    /// # Errors
    /// [`StoreError`]; may be repeated.
    async fn scan(&self, lane: &LaneKey, range: Range<RowKey>, limit: usize)
    -> Result<StorePage, StoreError>;

    /// Acquires a lane: from now on no former owner can commit to it. Returns the epoch, which is higher than every one
    /// before, even if the store has forgotten the last one.
    ///
    /// # Errors
    /// [`StoreError`]; may be repeated.
    async fn acquire_lane(&self, lane: &LaneKey) -> Result<u64, StoreError>;

    /// Records that a replica is alive, and returns the live replicas. A store of one process knows the replicas of that
    /// process only. Correctness does not depend on heartbeats: they place lanes, and the fence protects them.
    ///
    /// # Errors
    /// [`StoreError`]; may be repeated.
    async fn heartbeat(&self, beat: &StoreHeartbeat) -> Result<StoreHeartbeatReply, StoreError>;

    /// Reads the clock by which rows expire, in milliseconds since 1970. Timers of lanes follow this clock, not that of
    /// their owner.
    ///
    /// # Errors
    /// [`StoreError`]; may be repeated.
    async fn now(&self) -> Result<u64, StoreError>;

    /// Measures the store. Too slow for a request path: it may walk the list of free pages.
    ///
    /// # Errors
    /// [`StoreError`]; may be repeated.
    async fn measure(&self) -> Result<StoreUsage, StoreError>;

    /// Returns the properties of the store.
    fn capabilities(&self) -> StoreCapabilities;
}
