//! Rows of lanes, read without owning them: any replica can answer readers.
//!
//! Readers see committed rows. They neither wait for a lane's owner nor affect it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use model::{BlobHash, CommandId, CorrelationId, EffectName, SagaName, TenantId};
use serde::de::DeserializeOwned;
use store::{KvStore, LaneKey, StoreError, VersionedValue};
use workflow::definition::Saga;
use workflow::instance::{CorrelationRecord, decode};
use workflow::ledger::CallRow;
use workflow::step::JournalRow;
use workflow::{LaneRowKey, WorkflowLane, lane};

use crate::definitions::{DefinitionError, Definitions};
use crate::lane::dead_letter_name::DeadLetterName;
use crate::lane::rows::{bounds, row};
use crate::sagas::DeadLetterRow;

/// Rows that one read asks for.
const ROWS_MAX: usize = 256;

/// Why rows cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowReadError {
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A definition cannot be loaded.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// A row cannot be read.
    #[error("the row {key} of the lane {lane} cannot be read: {why}")]
    Damaged {
        /// The lane.
        lane: String,
        /// The row.
        key: String,
        /// Fault of the row.
        why: String,
    },
}

/// Some rows of a lane, in the order of their keys.
#[derive(Debug, Clone, Default)]
pub struct RowPage {
    /// The rows.
    pub rows: Vec<(LaneRowKey, VersionedValue)>,
    /// True if there are more rows behind the last of them.
    pub has_more: bool,
}

impl RowPage {
    /// The key from which the rows behind these are read; `None` where there are none.
    #[must_use]
    pub fn rest(&self) -> Option<LaneRowKey> {
        self.rows.last().filter(|_| self.has_more).map(|(key, _)| key.behind())
    }
}

/// Reader of rows. Cheap to clone.
#[derive(Clone)]
pub struct RowReader {
    store: Arc<dyn KvStore>,
    definitions: Arc<Definitions>,
}

impl RowReader {
    /// Makes a reader of this store.
    #[must_use]
    pub fn new(store: Arc<dyn KvStore>, definitions: Arc<Definitions>) -> Self {
        Self { store, definitions }
    }

    /// Definitions, those in force and others.
    #[must_use]
    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// Store that is read.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn KvStore> {
        &self.store
    }

    /// Finds the lane of an instance; `None` for a saga that the tenant does not have.
    #[must_use]
    pub fn lane_of(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        correlation: &CorrelationId,
    ) -> Option<WorkflowLane> {
        let shards = self.definitions.versions(tenant, saga).first()?.shards;
        let shard = lane::shard(tenant, correlation, shards);
        Some(WorkflowLane::Saga { tenant: tenant.clone(), saga: saga.clone(), shard })
    }

    /// Lists the lanes of a tenant's sagas, or of one of them, by saga and shard.
    #[must_use]
    pub fn saga_lanes(&self, tenant: &TenantId, only: Option<&SagaName>) -> Vec<WorkflowLane> {
        let in_force = self.definitions.in_force();
        let sagas = in_force.sagas_of(tenant).filter(|saga| only.is_none_or(|only| only == saga.name));
        let mut sagas: Vec<_> = sagas.map(|saga| (saga.name, saga.active.shards)).collect();
        sagas.sort_unstable();
        let lane =
            |saga: &SagaName, shard| WorkflowLane::Saga { tenant: tenant.clone(), saga: saga.clone(), shard };
        sagas.into_iter().flat_map(|(saga, shards)| (0..shards).map(move |shard| lane(saga, shard))).collect()
    }

    /// Lists the lanes of effects that a tenant may use, or whose calls its sagas order, or of one of them, by name.
    #[must_use]
    pub fn effect_lanes(&self, tenant: &TenantId, only: Option<&EffectName>) -> Vec<WorkflowLane> {
        let lane =
            |effect: &EffectName| WorkflowLane::Effect { tenant: tenant.clone(), effect: effect.clone() };
        if let Some(only) = only {
            return vec![lane(only)];
        }
        let in_force = self.definitions.in_force();
        let catalog = &in_force.catalog;
        let mut effects: BTreeSet<EffectName> =
            catalog.effects().filter(|name| catalog.effect(name, tenant).is_some()).cloned().collect();
        for saga in in_force.sagas_of(tenant) {
            let versions = in_force.versions(tenant, saga.name);
            effects.extend(versions.iter().flat_map(|saga| saga.effects()).cloned());
        }
        effects.iter().map(lane).collect()
    }

    /// Reads and decodes rows of a lane as of one moment.
    ///
    /// # Errors
    /// [`RowReadError`].
    pub async fn rows<T: DeserializeOwned>(
        &self,
        lane: &WorkflowLane,
        keys: &[LaneRowKey],
    ) -> Result<Vec<Option<T>>, RowReadError> {
        let rows: Vec<_> = keys.iter().map(row).collect();
        let found = self.store.read(&LaneKey::new(&lane.to_string()), &rows).await?;
        let read = |(key, found): (&LaneRowKey, Option<VersionedValue>)| {
            found.map(|found| read(lane, key, &found)).transpose()
        };
        keys.iter().zip(found).map(read).collect()
    }

    /// Reads one row.
    ///
    /// # Errors
    /// [`RowReadError`].
    pub async fn row<T: DeserializeOwned>(
        &self,
        lane: &WorkflowLane,
        key: LaneRowKey,
    ) -> Result<Option<T>, RowReadError> {
        Ok(self.rows(lane, &[key]).await?.pop().flatten())
    }

    /// Reads some rows of a range: at most this many, and fewer where they are large.
    ///
    /// # Errors
    /// [`RowReadError`].
    pub async fn scan(
        &self,
        lane: &WorkflowLane,
        range: &Range<LaneRowKey>,
        most: usize,
    ) -> Result<RowPage, RowReadError> {
        let key = LaneKey::new(&lane.to_string());
        let page = self.store.scan(&key, bounds(range), most.min(ROWS_MAX)).await?;
        let rows = page.rows.into_iter().map(|(key, row)| (LaneRowKey::of_store(key.to_string()), row));
        Ok(RowPage { rows: rows.collect(), has_more: page.has_more })
    }

    /// Reads the record of a correlation.
    ///
    /// # Errors
    /// [`RowReadError`].
    pub async fn record(
        &self,
        lane: &WorkflowLane,
        correlation: &CorrelationId,
    ) -> Result<Option<CorrelationRecord>, RowReadError> {
        self.row(lane, LaneRowKey::saga(correlation)).await
    }

    /// Reads the journal row of an instance at a revision.
    ///
    /// # Errors
    /// [`RowReadError`].
    pub async fn journal(
        &self,
        lane: &WorkflowLane,
        correlation: &CorrelationId,
        revision: u64,
    ) -> Result<Option<JournalRow>, RowReadError> {
        self.row(lane, LaneRowKey::journal(correlation, revision)).await
    }

    /// Reads a call; `None` where it does not exist, or no longer.
    ///
    /// # Errors
    /// [`RowReadError`].
    pub async fn call(
        &self,
        lane: &WorkflowLane,
        command: CommandId,
    ) -> Result<Option<CallRow>, RowReadError> {
        self.row(lane, LaneRowKey::effect(command)).await
    }

    /// Reads a dead letter, and how many inputs wait behind it where it parks its correlation.
    ///
    /// # Errors
    /// [`RowReadError`].
    pub async fn letter(&self, name: &DeadLetterName) -> Result<Option<DeadLetterEntry>, RowReadError> {
        let Some(row) = self.row(&name.lane, name.key.clone()).await? else { return Ok(None) };
        let behind = self.behind(&name.lane, std::slice::from_ref(&row)).await?.pop().flatten();
        Ok(Some(DeadLetterEntry { name: name.clone(), row, behind }))
    }

    /// Counts for each of these letters of a lane the inputs that wait behind it; `None` for one that parks no correlation.
    ///
    /// # Errors
    /// [`RowReadError`].
    pub async fn behind(
        &self,
        lane: &WorkflowLane,
        letters: &[DeadLetterRow],
    ) -> Result<Vec<Option<u64>>, RowReadError> {
        let parking: Vec<_> = letters
            .iter()
            .map(|letter| letter.correlation.as_ref().filter(|_| letter.letter.parks).map(LaneRowKey::saga))
            .collect();
        let keys: Vec<_> = parking.iter().flatten().cloned().collect();
        let mut records =
            if keys.is_empty() { Vec::new() } else { self.rows::<CorrelationRecord>(lane, &keys).await? }
                .into_iter();
        let behind = letters.iter().zip(&parking).map(|(letter, parking)| {
            let record = parking.as_ref().and_then(|_| records.next().flatten())?;
            (record.parked_by == Some(letter.letter.number)).then(|| record.held.len())
        });
        Ok(behind.collect())
    }

    /// Reads the definition of this hash.
    ///
    /// # Errors
    /// [`RowReadError`].
    pub async fn definition(&self, hash: BlobHash) -> Result<Arc<Saga>, RowReadError> {
        Ok(self.definitions.pinned_to(hash).await?)
    }
}

/// A dead letter with its name and the number of inputs behind it.
#[derive(Debug, Clone)]
pub struct DeadLetterEntry {
    /// Name of the letter.
    pub name: DeadLetterName,
    /// Row of the letter.
    pub row: DeadLetterRow,
    /// Number of inputs that wait behind the letter; `None` where it parks no correlation.
    pub behind: Option<u64>,
}

/// Decodes a row of a lane.
///
/// # Errors
/// [`RowReadError::Damaged`].
pub fn read<T: DeserializeOwned>(
    lane: &WorkflowLane,
    key: &LaneRowKey,
    found: &VersionedValue,
) -> Result<T, RowReadError> {
    decode(&found.value).map_err(|error| RowReadError::Damaged {
        lane: lane.to_string(),
        key: key.to_string(),
        why: error.to_string(),
    })
}
