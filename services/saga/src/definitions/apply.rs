//! Manifests that one tenant applies: checked, put in force, taken out of force.

use std::sync::Arc;

use model::{BlobHash, SagaName, TenantId};
use serde::{Deserialize, Serialize};
use store::{CommitOutcome, RowCondition, RowOperation, StoreError};
use workflow::LaneRowKey;
use workflow::catalog::{LoadedManifest, ManifestDraft};
use workflow::definition::Saga;
use workflow::instance::encode;
use workflow::manifest;
use yaml::Problems;

use super::rows::{ActiveSaga, AppliedRow};
use super::{ActiveDefinitions, DefinitionError, Definitions, TenantDefinition, sweep};
use crate::lane::rows::row;

/// Sagas that a tenant may have applied, including those that it has retired.
pub const TENANT_SAGAS_MAX: usize = 100;
/// Versions of one saga that instances may be pinned to.
pub const SAGA_VERSIONS_MAX: usize = 64;

/// Idempotency key of a request, with its scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopedIdempotencyKey {
    /// Id of the request, with its scope.
    pub id: String,
    /// Hash of the request's content.
    pub hash: BlobHash,
}

/// Reason why a tenant's change is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Definitions in force cannot be read or changed.
    #[error(transparent)]
    Definitions(#[from] DefinitionError),
    /// The manifest is wrong, or does not fit.
    #[error("{0}")]
    Problems(Problems),
    /// The tenant has no such saga.
    #[error("there is no saga `{0}`")]
    NotFound(SagaName),
    /// The saga comes from the operator's directory.
    #[error("the saga `{0}` comes from the operator's directory, and is retired there")]
    Operators(SagaName),
    /// Another version is in force than the caller expects.
    #[error("version {found} of the saga `{saga}` is in force, not version {expected}")]
    OtherVersion {
        /// The saga.
        saga: SagaName,
        /// The version in force.
        found: u32,
        /// The one that was expected.
        expected: u32,
    },
    /// The id of the request was used with another body.
    #[error("the id of the request was used with another body")]
    Reused,
    /// A limit would be exceeded.
    #[error("{what} has at most {most}, this would make {found}")]
    Limit {
        /// The limit, as `/info` has it.
        limit: &'static str,
        /// Owner of the things that are too many, and their kind.
        what: String,
        /// How many there may be.
        most: usize,
        /// How many there would be.
        found: usize,
    },
}

impl From<StoreError> for ApplyError {
    fn from(error: StoreError) -> Self {
        Self::Definitions(error.into())
    }
}

/// Stored answer to a request, for its repeats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ApplyAnswerRow {
    hash: BlobHash,
    in_force: bool,
    definitions: Vec<BlobHash>,
}

impl Definitions {
    /// Checks a manifest against a tenant's definitions in force, and stores nothing.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn validate(
        &self,
        tenant: &TenantId,
        name: &str,
        text: &str,
    ) -> Result<Vec<TenantDefinition>, Problems> {
        let (in_force, draft) = (self.in_force(), ManifestDraft::read(name, text));
        let own = in_force.own_sagas(tenant);
        in_force.remembered().check_draft_for(tenant, &draft, &own, true)?;
        Ok(sagas(draft.file())
            .map(|saga| TenantDefinition {
                saga: Arc::clone(saga),
                in_force: in_force.saga(tenant, &saga.name).is_some_and(|found| found.hash == saga.hash),
                is_applied: own.contains_key(&saga.name),
            })
            .collect())
    }

    /// Puts the sagas of a manifest in force for one tenant, with one commit. Returns them in the order of the file.
    ///
    /// # Errors
    /// [`ApplyError`], and then nothing has changed.
    pub async fn apply(
        &self,
        tenant: &TenantId,
        name: &str,
        text: &str,
        request: Option<&ScopedIdempotencyKey>,
    ) -> Result<Vec<TenantDefinition>, ApplyError> {
        let draft = ManifestDraft::read(name, text);
        let file = draft.file();
        loop {
            let now = self.refresh().await?;
            if let Some(answer) = self.answered(request).await? {
                return Ok(answer);
            }
            now.remembered()
                .check_draft_for(tenant, &draft, &now.own_sagas(tenant), false)
                .map_err(ApplyError::Problems)?;
            let before = now.applied.get(tenant).cloned().unwrap_or_default();
            let (mut applied, time) = (before.clone(), self.beside.now().await?);
            for saga in sagas(file) {
                let mut active = ActiveSaga::behind(applied.sagas.get(&saga.name), saga, time);
                self.sweep(std::slice::from_ref(tenant), saga, &mut active, time).await?;
                let what = format!("the saga `{}`, in versions that are kept,", saga.name);
                check("saga_versions_max", what, SAGA_VERSIONS_MAX, active.older.len() + 1)?;
                applied.sagas.insert(saga.name.clone(), active);
            }
            let what = "a tenant, in sagas of its own,".to_owned();
            check("tenant_sagas_max", what, TENANT_SAGAS_MAX, applied.sagas.len())?;
            self.keep(&file.documents).await?;
            let hashes = sagas(file).map(|saga| saga.hash).collect();
            if self.change(tenant, &now, (&before, &applied), request, (true, hashes)).await? {
                let in_force = true;
                let definition = |saga: &Arc<Saga>| TenantDefinition {
                    saga: Arc::clone(saga),
                    in_force,
                    is_applied: true,
                };
                return Ok(sagas(file).map(definition).collect());
            }
        }
    }

    /// Takes a saga that a tenant applied out of force. `expected` is its version; 0 for any.
    ///
    /// # Errors
    /// [`ApplyError`], and then nothing has changed.
    pub async fn retire(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        expected: u32,
        request: Option<&ScopedIdempotencyKey>,
    ) -> Result<TenantDefinition, ApplyError> {
        loop {
            let now = self.refresh().await?;
            if let Some(answer) = self.answered(request).await?.and_then(|answer| answer.into_iter().next()) {
                return Ok(answer);
            }
            let before = now.applied.get(tenant).cloned().unwrap_or_default();
            let mut applied = before.clone();
            let Some(found) = applied.sagas.get_mut(saga) else {
                let is_operators = now.without_instance(tenant, saga).is_some();
                let refused = if is_operators { ApplyError::Operators } else { ApplyError::NotFound };
                return Err(refused(saga.clone()));
            };
            if expected != 0 && expected != found.version {
                let (saga, found) = (saga.clone(), found.version);
                return Err(ApplyError::OtherVersion { saga, found, expected });
            }
            found.is_retired = true;
            let hash = found.hash;
            if self.change(tenant, &now, (&before, &applied), request, (false, vec![hash])).await? {
                let saga = self.pinned_to(hash).await?;
                return Ok(TenantDefinition { saga, in_force: false, is_applied: true });
            }
        }
    }

    /// Writes the definitions in force for a tenant. Returns false, and changes nothing, if another change came first.
    async fn change(
        &self,
        tenant: &TenantId,
        now: &ActiveDefinitions,
        (before, after): (&AppliedRow, &AppliedRow),
        request: Option<&ScopedIdempotencyKey>,
        (in_force, definitions): (bool, Vec<BlobHash>),
    ) -> Result<bool, ApplyError> {
        let mut ops = Vec::new();
        let key = row(&LaneRowKey::active());
        if before != after {
            ops.push(RowOperation::Put(row(&LaneRowKey::applied(tenant)), encode(after).into()));
            // Written unchanged: its new revision makes the other replicas read again.
            ops.push(RowOperation::Put(key.clone(), encode(&now.active).into()));
            let others = now.applied.iter().filter(|(other, _)| *other != tenant);
            let others =
                others.flat_map(|(_, own)| sweep::named(&own.sagas)).chain(sweep::named(&now.active.sagas));
            ops.extend(sweep::removed(sweep::named(&before.sagas), sweep::named(&after.sagas).chain(others)));
        }
        if let Some(request) = request {
            let answer = ApplyAnswerRow { hash: request.hash, in_force, definitions };
            ops.push(self.answer_row(&request.id, &answer).await?);
        }
        if ops.is_empty() {
            return Ok(true);
        }
        let outcome = self.beside.commit(vec![RowCondition::Revision(key, now.revision)], ops).await?;
        self.refresh().await?;
        Ok(matches!(outcome, CommitOutcome::Committed(_)))
    }

    /// The first answer to a repeated request.
    async fn answered(
        &self,
        request: Option<&ScopedIdempotencyKey>,
    ) -> Result<Option<Vec<TenantDefinition>>, ApplyError> {
        let Some(request) = request else { return Ok(None) };
        let Some(answer) = self.answer::<ApplyAnswerRow>(&request.id).await? else { return Ok(None) };
        if answer.hash != request.hash {
            return Err(ApplyError::Reused);
        }
        let mut definitions = Vec::with_capacity(answer.definitions.len());
        for hash in answer.definitions {
            let (saga, in_force) = (self.pinned_to(hash).await?, answer.in_force);
            definitions.push(TenantDefinition { saga, in_force, is_applied: true });
        }
        Ok(Some(definitions))
    }
}

fn sagas(file: &LoadedManifest) -> impl Iterator<Item = &Arc<Saga>> {
    file.documents.iter().filter_map(|document| match &document.definition {
        manifest::ManifestDefinition::Saga(saga) => Some(saga),
        manifest::ManifestDefinition::Provider(_) => None,
    })
}

fn check(limit: &'static str, what: String, most: usize, found: usize) -> Result<(), ApplyError> {
    if found > most { Err(ApplyError::Limit { limit, what, most, found }) } else { Ok(()) }
}
