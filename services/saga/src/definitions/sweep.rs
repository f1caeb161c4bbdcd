//! Removal of versions that are not needed any more.
//!
//! A superseded version is needed while instances run on it, while ended ones can still be read, and while an instance of an earlier
//! version would migrate to the newest one through it. Unneeded versions are looked for whenever the row of their saga changes, so
//! ending instances need not report anything.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use model::{BlobHash, SagaName, SagaStatus, TenantId};
use store::RowOperation;
use workflow::definition::Saga;
use workflow::instance::decode;
use workflow::{LaneRowKey, WorkflowLane};

use super::references::LOOKED_AT_MAX;
use super::rows::{ActiveSaga, SupersededSaga};
use super::{DefinitionError, Definitions};
use crate::lane::rows::row;
use crate::sagas::{InstanceListRow, TOMBSTONE_MILLIS};

/// How long instances may still start on a version after it was replaced, in milliseconds: other replicas learn of that later.
const SETTLED_MILLIS: u64 = 3_600_000;

impl SupersededSaga {
    /// Returns whether no more instances start on this version, so that it can be checked for running ones.
    fn is_settled(&self, now: u64) -> bool {
        now >= self.replaced.saturating_add(SETTLED_MILLIS)
    }

    /// Returns whether no instance has run on this version for so long that all their rows are gone.
    fn is_over(&self, now: u64) -> bool {
        self.unpinned.is_some_and(|since| now >= since.saturating_add(TOMBSTONE_MILLIS))
    }
}

impl Definitions {
    /// Takes unneeded versions off the row of a saga. `whose` are all tenants that may have instances of it, and `newest` is the version
    /// that the row has in force.
    pub(super) async fn sweep(
        &self,
        whose: &[TenantId],
        newest: &Arc<Saga>,
        saga: &mut ActiveSaga,
        now: u64,
    ) -> Result<(), DefinitionError> {
        let needs_check = |older: &SupersededSaga| {
            older.is_settled(now) && (older.unpinned.is_none() || older.is_over(now))
        };
        if !saga.older.iter().any(needs_check) {
            return Ok(());
        }
        // If it is unknown which versions are pinned, any may be.
        let Some(pinned) = self.pinned(whose, newest).await? else { return Ok(()) };
        for older in saga.older.iter_mut().filter(|older| older.is_settled(now)) {
            match pinned.contains(&older.hash) {
                true => older.unpinned = None,
                false => drop(older.unpinned.get_or_insert(now)),
            }
        }
        let way = self.way_to(newest, saga).await?;
        let mut is_left_behind = false;
        saga.older.retain(|older| {
            let is_kept = !older.is_over(now) || (is_left_behind && way.contains(&older.hash));
            is_left_behind |= older.unpinned.is_none();
            is_kept
        });
        Ok(())
    }

    /// The definitions that instances run on; `None` where there are too many instances to check.
    async fn pinned(
        &self,
        whose: &[TenantId],
        Saga { name, shards, .. }: &Saga,
    ) -> Result<Option<HashSet<BlobHash>>, DefinitionError> {
        let mut pinned = HashSet::new();
        for tenant in whose {
            for shard in 0..*shards {
                let lane = WorkflowLane::Saga { tenant: tenant.clone(), saga: name.clone(), shard };
                for status in SagaStatus::ALL.into_iter().filter(|status| !status.is_end()) {
                    let range = LaneRowKey::by_status(status.as_str());
                    let rows = self.beside.some_of(&lane, range, LOOKED_AT_MAX).await?;
                    if rows.len() >= LOOKED_AT_MAX {
                        return Ok(None);
                    }
                    for found in rows {
                        let listed = decode::<InstanceListRow>(&found.value).ok();
                        let Some(hash) = listed.and_then(|listed| listed.definition) else { return Ok(None) };
                        pinned.insert(hash);
                    }
                }
            }
        }
        Ok(Some(pinned))
    }

    /// The earlier versions through which instances migrate to the newest one.
    async fn way_to(
        &self,
        newest: &Arc<Saga>,
        saga: &ActiveSaga,
    ) -> Result<HashSet<BlobHash>, DefinitionError> {
        let (mut way, mut at) = (HashSet::new(), Arc::clone(newest));
        while let Some(from) =
            at.migrate.as_ref().map(|migrate| migrate.from).filter(|from| *from < at.version)
            && let Some(before) = saga.older.iter().find(|older| older.version == from)
        {
            way.insert(before.hash);
            at = self.pinned_to(before.hash).await?;
        }
        Ok(way)
    }
}

/// All versions that a row names.
pub(super) fn named(sagas: &BTreeMap<SagaName, ActiveSaga>) -> impl Iterator<Item = BlobHash> {
    sagas.values().flat_map(ActiveSaga::hashes)
}

/// Removes documents that a row named `before`, and that no row names any more.
pub(super) fn removed(
    before: impl Iterator<Item = BlobHash>,
    left: impl Iterator<Item = BlobHash>,
) -> impl Iterator<Item = RowOperation> {
    let left: HashSet<_> = left.collect();
    let gone: HashSet<_> = before.filter(|hash| !left.contains(hash)).collect();
    gone.into_iter().map(|hash| RowOperation::Delete(row(&LaneRowKey::definition(hash.as_bytes()))))
}
