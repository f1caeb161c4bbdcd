//! Rows that hold the definitions in force.

use std::collections::BTreeMap;

use model::{BlobHash, EffectName, SagaName};
use serde::{Deserialize, Serialize};
use workflow::catalog::Catalog;
use workflow::definition::Saga;

/// Definitions of the operator, as one row.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ActiveRow {
    /// Sagas that were ever in force.
    pub sagas: BTreeMap<SagaName, ActiveSaga>,
    /// Providers of effects that are in force, by the hash of their documents.
    #[serde(default)]
    pub providers: BTreeMap<EffectName, BlobHash>,
}

/// Definitions that one tenant applied, as one row.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AppliedRow {
    /// Sagas that were ever in force for the tenant.
    pub sagas: BTreeMap<SagaName, ActiveSaga>,
}

/// A saga that was ever in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveSaga {
    /// Hash of its newest definition.
    pub hash: BlobHash,
    /// Version of that.
    pub version: u32,
    /// How many lanes each tenant has of it.
    pub shards: u8,
    /// When the saga first came into force, in milliseconds since 1970: older events start no instances.
    pub since: u64,
    /// True if the saga is retired: its instances continue, and no new one starts.
    #[serde(default)]
    pub is_retired: bool,
    /// Versions before it that instances may be pinned to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older: Vec<SupersededSaga>,
}

/// A version of a saga that a newer one has superseded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupersededSaga {
    /// Hash of the definition.
    pub hash: BlobHash,
    /// Version number of the superseded definition.
    pub version: u32,
    /// When the newer version came into force, in milliseconds since 1970.
    pub replaced: u64,
    /// When it was first seen that no instance runs on this version, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpinned: Option<u64>,
}

impl ActiveSaga {
    /// The row of a saga that comes into force at `now`, with its former versions.
    pub(super) fn behind(before: Option<&Self>, saga: &Saga, now: u64) -> Self {
        let mut older = before.map(|before| before.older.clone()).unwrap_or_default();
        if let Some(before) = before.filter(|before| before.hash != saga.hash) {
            older.push(SupersededSaga {
                hash: before.hash,
                version: before.version,
                replaced: now,
                unpinned: None,
            });
        }
        Self {
            hash: saga.hash,
            version: saga.version,
            shards: saga.shards,
            since: before.map_or(now, |before| before.since),
            is_retired: false,
            older,
        }
    }

    /// Hashes of all its versions, the newest first.
    pub(super) fn hashes(&self) -> impl Iterator<Item = BlobHash> {
        std::iter::once(self.hash).chain(self.older.iter().rev().map(|older| older.hash))
    }
}

impl ActiveRow {
    /// Returns the row that puts a catalog in force after this one.
    pub(super) fn followed_by(
        mut self,
        catalog: &Catalog,
        providers: BTreeMap<EffectName, BlobHash>,
        now: u64,
    ) -> Self {
        for saga in self.sagas.values_mut() {
            saga.is_retired = true;
        }
        for saga in catalog.sagas() {
            let active = ActiveSaga::behind(self.sagas.get(&saga.name), saga, now);
            self.sagas.insert(saga.name.clone(), active);
        }
        Self { sagas: self.sagas, providers }
    }
}
