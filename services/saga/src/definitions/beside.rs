//! Rows that stand beside all lanes, which every replica reads and writes.

use std::ops::Range;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use store::{Batch, Expect, KvStore, LaneKey, Op, Outcome, StoreError, Versioned};
use workflow::instance::decode;
use workflow::{Key, Lane};

use super::DefinitionError;
use crate::lane::rows::{bounds, rest, row};

/// Rows that one scan asks for.
const PAGE_ROWS: usize = 256;

/// The lane of the rows that stand beside all lanes.
#[must_use]
pub fn beside_lanes() -> LaneKey {
    LaneKey::new("")
}

/// Rows beside the lanes.
pub(crate) struct Beside {
    store: Arc<dyn KvStore>,
    lane: LaneKey,
}

impl Beside {
    pub(crate) fn new(store: Arc<dyn KvStore>) -> Self {
        Self { store, lane: beside_lanes() }
    }

    /// The store's clock, in milliseconds since 1970.
    pub(crate) async fn now(&self) -> Result<u64, StoreError> {
        self.store.now().await
    }

    /// Reads rows as of one moment.
    pub(crate) async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Versioned>>, StoreError> {
        let keys: Vec<_> = keys.iter().map(row).collect();
        self.store.read(&self.lane, &keys).await
    }

    /// Reads one row.
    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Versioned>, StoreError> {
        Ok(self.read(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// Reads all rows of a range, in pages.
    pub(crate) async fn all(&self, mut range: Range<Key>) -> Result<Vec<(Key, Versioned)>, StoreError> {
        let mut all = Vec::new();
        loop {
            let page = self.store.scan(&self.lane, bounds(&range), PAGE_ROWS).await?;
            let rest = rest(&page);
            all.extend(page.rows.into_iter().map(|(key, found)| (Key::of_store(key.to_string()), found)));
            match rest {
                Some(rest) => range.start = rest,
                None => return Ok(all),
            }
        }
    }

    /// Reads the first rows of a range of a lane, so many at most.
    pub(crate) async fn some_of(
        &self,
        lane: &Lane,
        mut range: Range<Key>,
        most: usize,
    ) -> Result<Vec<Versioned>, StoreError> {
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

    /// Makes a change. Other replicas write here at the same time: where one of them came first it is tried again.
    pub(crate) async fn commit(&self, expect: Vec<Expect>, ops: Vec<Op>) -> Result<Outcome, StoreError> {
        loop {
            let epoch = self.store.take(&self.lane).await?;
            let batch = Batch { lane: self.lane.clone(), epoch, expect: expect.clone(), ops: ops.clone() };
            match self.store.commit(batch).await? {
                Outcome::Fenced { .. } => tokio::task::yield_now().await,
                outcome => return Ok(outcome),
            }
        }
    }
}

/// Reads what a row says; `what` is what a message calls it.
pub(super) fn read_row<T: DeserializeOwned>(what: &str, found: &Versioned) -> Result<T, DefinitionError> {
    decode(&found.value)
        .map_err(|error| DefinitionError::Unreadable { what: what.to_owned(), why: error.to_string() })
}
