//! Definitions: the ones in force, their tenants, and the ones that instances are pinned to.
//!
//! Rows beside the lanes store them for all replicas. The row `active` has the operator's, `active:<tenant>` those that a tenant
//! applied. Every change writes `active` as well, so its revision says whether a replica has seen the last change. Documents are
//! stored under their hash before a row names them.

mod active;
mod apply;
mod references;
mod rows;
mod shared_rows;
mod sweep;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{BlobHash, SagaName, TenantId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use store::{CommitOutcome, KvStore, RowCondition, RowOperation, StoreError, VersionedValue};
use tokio::sync::watch;
use workflow::LaneRowKey;
use workflow::catalog::Catalog;
use workflow::definition::Saga;
use workflow::instance::encode;
use workflow::key::{RowKeyPart, StoreTable};
use workflow::manifest::{self, ManifestDocument};
use workflow::provider::EffectProvider;

use self::active::SagaVersions;
pub use self::active::{ActiveDefinitions, ActiveSagaRef, TenantDefinition};
pub use self::apply::{ApplyError, SAGA_VERSIONS_MAX, ScopedIdempotencyKey, TENANT_SAGAS_MAX};
pub use self::rows::{ActiveRow, ActiveSaga, AppliedRow, SupersededSaga};
pub(crate) use self::shared_rows::SharedRows;
use self::shared_rows::read_row;
pub use self::shared_rows::shared_rows_lane;
use crate::lane::rows::row;
use crate::quotas::QuotaUsage;
use crate::tenants::{Quotas, TenantRegistry};

/// Definitions that are kept in memory though they are not in force.
const REMEMBERED_MAX: usize = 1024;
/// How long answers to requests are kept, in milliseconds.
const ANSWERS_MILLIS: u64 = 24 * 3_600_000;
/// Bytes of documents that are written with one commit.
const COMMIT_BYTES: usize = 2 * 1024 * 1024;

/// Definitions in force, and a cache of others.
pub struct Definitions {
    beside: SharedRows,
    in_force: watch::Sender<Arc<ActiveDefinitions>>,
    known: Mutex<HashMap<BlobHash, ParsedDefinition>>,
    usage: QuotaUsage,
    /// Held while rows are read, so that an older state never replaces a newer one.
    reading: tokio::sync::Mutex<()>,
}

/// A document that was read.
#[derive(Clone)]
struct ParsedDefinition {
    definition: manifest::ManifestDefinition,
    text: Arc<str>,
}

/// Reason why a definition cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Definition or row is missing, or cannot be read.
    #[error("{what} cannot be loaded: {why}")]
    Unreadable {
        /// Name of the definition or row.
        what: String,
        /// Why.
        why: String,
    },
}

impl Definitions {
    /// Makes definitions of which none is in force.
    #[must_use]
    pub fn new(store: Arc<dyn KvStore>) -> Self {
        Self {
            beside: SharedRows::new(store),
            in_force: watch::Sender::new(Arc::default()),
            known: Mutex::default(),
            usage: QuotaUsage::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }

    /// Sagas of the operator that start, and all effects.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.in_force.borrow().catalog)
    }

    /// Returns what tenants use on this replica.
    #[must_use]
    pub const fn usage(&self) -> &QuotaUsage {
        &self.usage
    }

    /// Quotas of a tenant; unlimited where no tenants are in force.
    #[must_use]
    pub fn quotas(&self, tenant: &TenantId) -> Quotas {
        let in_force = self.in_force.borrow();
        let Some(tenants) = &in_force.tenants else { return Quotas::UNLIMITED };
        tenants.get(tenant).map(|tenant| tenant.quotas).unwrap_or_default()
    }

    /// Returns the definitions now in force, as this replica has read them.
    #[must_use]
    pub fn in_force(&self) -> Arc<ActiveDefinitions> {
        Arc::clone(&self.in_force.borrow())
    }

    /// Subscribes to the definitions in force.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<ActiveDefinitions>> {
        self.in_force.subscribe()
    }

    /// All versions of a saga that a tenant may have instances of, the newest first.
    #[must_use]
    pub fn versions(&self, tenant: &TenantId, name: &SagaName) -> Arc<[Arc<Saga>]> {
        self.in_force.borrow().versions(tenant, name)
    }

    /// Counts the lanes of a saga of a tenant: as the newest version says, or one.
    #[must_use]
    pub fn shards(&self, tenant: &TenantId, name: &SagaName) -> u8 {
        self.in_force.borrow().shards(tenant, name)
    }

    /// The saga that instances of a tenant start on.
    #[must_use]
    pub fn saga(&self, tenant: &TenantId, name: &SagaName) -> Option<Arc<Saga>> {
        self.in_force.borrow().saga(tenant, name).map(Arc::clone)
    }

    /// Reads the definitions in force, if another replica has changed them since the last read, and puts them in force here.
    ///
    /// # Errors
    /// [`DefinitionError`]; the former definitions then stay in force here.
    pub async fn refresh(&self) -> Result<Arc<ActiveDefinitions>, DefinitionError> {
        let _one_at_a_time = self.reading.lock().await;
        let found = self.beside.read(&[LaneRowKey::active(), LaneRowKey::tenants()]).await?;
        let [active, tenants] = <[_; 2]>::try_from(found).unwrap_or_default();
        let revision = active.as_ref().map_or(0, |found| found.revision);
        let before = self.in_force();
        if before.revision == revision {
            return Ok(before);
        }
        let read = |found: &VersionedValue| read_row("what is in force", found);
        let active = active.as_ref().map(read).transpose()?.unwrap_or_default();
        let read =
            |found: &VersionedValue| read_row::<TenantRegistry>("the row of tenants", found).map(Arc::new);
        let tenants = tenants.as_ref().map(read).transpose()?;
        let applied = self.applied().await?;
        let made = Arc::new(self.make(revision, active, tenants, applied).await?);
        let keep: HashSet<_> = made.hashes().collect();
        let mut room = REMEMBERED_MAX;
        self.known().retain(|hash, _| {
            let is_kept = keep.contains(hash) || room > 0;
            room -= usize::from(is_kept && !keep.contains(hash));
            is_kept
        });
        self.in_force.send_replace(Arc::clone(&made));
        Ok(made)
    }

    /// Reads the definitions that tenants applied.
    async fn applied(&self) -> Result<BTreeMap<TenantId, AppliedRow>, DefinitionError> {
        let mut applied = BTreeMap::new();
        for (key, found) in self.beside.all(StoreTable::Active.range()).await? {
            let tenant = match key.parts().as_deref() {
                Some([RowKeyPart::Text(text)]) if text.is_empty() => Some(TenantId::single()),
                Some([RowKeyPart::Text(text)]) => text.parse().ok(),
                _ => None,
            };
            match (tenant, read_row(key.as_str(), &found)) {
                (Some(tenant), Ok(row)) => drop(applied.insert(tenant, row)),
                // A bad row of one tenant must not hold up the others.
                (_, Err(error)) => tracing::error!("{error}; the tenant has none of its own sagas"),
                (None, Ok(_)) => tracing::error!(%key, "the row is of no tenant"),
            }
        }
        Ok(applied)
    }

    /// Assembles the definitions from their rows.
    async fn make(
        &self,
        revision: u64,
        active: ActiveRow,
        tenants: Option<Arc<TenantRegistry>>,
        applied: BTreeMap<TenantId, AppliedRow>,
    ) -> Result<ActiveDefinitions, DefinitionError> {
        let (mut operators, mut own) = (HashMap::new(), HashMap::new());
        for (name, saga) in &active.sagas {
            operators.extend(self.known_of(saga).await?.map(|known| (name.clone(), known)));
        }
        for (tenant, row) in &applied {
            let mut all = HashMap::new();
            for (name, saga) in &row.sagas {
                match self.known_of(saga).await {
                    Ok(known) => all.extend(known.map(|known| (name.clone(), known))),
                    Err(error @ DefinitionError::Store(_)) => return Err(error),
                    Err(error) => tracing::error!(%tenant, saga = %name, "{error}; the saga is not in force"),
                }
            }
            own.insert(tenant.clone(), all);
        }
        let mut providers = Vec::with_capacity(active.providers.len());
        for hash in active.providers.values() {
            providers.push(self.provider(*hash).await?);
        }
        let in_force = operators.values().filter(|known: &&SagaVersions| !known.is_retired);
        let in_force = in_force.filter_map(|known| known.versions.first().map(Arc::clone));
        let catalog = Arc::new(Catalog::restored(in_force, providers));
        Ok(ActiveDefinitions { catalog, active, applied, tenants, revision, operators, own })
    }

    /// All versions of a saga that its row names.
    async fn known_of(&self, saga: &ActiveSaga) -> Result<Option<SagaVersions>, DefinitionError> {
        let mut versions = Vec::new();
        for hash in saga.hashes() {
            versions.push(self.pinned_to(hash).await?);
        }
        Ok(SagaVersions::new(versions, saga.is_retired))
    }

    /// Stores the texts of documents, so that instances can be pinned to them, and puts the catalog made of them in force.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing new is in force then.
    pub async fn put_in_force(
        &self,
        documents: &[ManifestDocument],
        catalog: Catalog,
    ) -> Result<(), DefinitionError> {
        while !self
            .replace(Some((documents, &catalog)), None, self.refresh().await?.revision, Vec::new())
            .await?
        {}
        Ok(())
    }

    /// Replaces the operator's documents and catalog, and the tenants, each where it is given, in one commit together with the changes in
    /// `more`. Returns false, and changes nothing, if another change has come since `revision`.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing new is in force then.
    pub async fn replace(
        &self,
        operators: Option<(&[ManifestDocument], &Catalog)>,
        tenants: Option<&TenantRegistry>,
        revision: u64,
        more: Vec<RowOperation>,
    ) -> Result<bool, DefinitionError> {
        self.keep(operators.map_or(&[], |(documents, _)| documents)).await?;
        service::crash_point("reload.stored");
        let before = self.in_force();
        let mut active = before.active.clone();
        if let Some((documents, catalog)) = operators {
            let providers = documents.iter().filter_map(|document| match &document.definition {
                manifest::ManifestDefinition::Provider(provider) => {
                    Some((provider.name.clone(), document.hash))
                }
                manifest::ManifestDefinition::Saga(_) => None,
            });
            let now = self.beside.now().await?;
            active = active.followed_by(catalog, providers.collect(), now);
            let whose = tenants.or(before.tenants.as_deref());
            let whose = whose.map_or_else(|| vec![TenantId::single()], TenantRegistry::ever);
            for saga in catalog.sagas() {
                if let Some(row) = active.sagas.get_mut(&saga.name) {
                    self.sweep(&whose, saga, row, now).await?;
                }
            }
        }
        let has_tenants = tenants.is_none_or(|tenants| before.tenants.as_deref() == Some(tenants));
        let is_same = active == before.active && has_tenants && more.is_empty();
        if revision > 0 && before.revision == revision && is_same {
            return Ok(true);
        }
        let (key, mut ops) = (row(&LaneRowKey::active()), more);
        let others = before.applied.values().flat_map(|own| sweep::named(&own.sagas));
        ops.extend(sweep::removed(
            sweep::named(&before.active.sagas),
            sweep::named(&active.sagas).chain(others),
        ));
        ops.push(RowOperation::Put(key.clone(), encode(&active).into()));
        ops.extend(
            tenants.map(|tenants| RowOperation::Put(row(&LaneRowKey::tenants()), encode(tenants).into())),
        );
        let outcome = self.beside.commit(vec![RowCondition::Revision(key, revision)], ops).await?;
        self.refresh().await?;
        Ok(matches!(outcome, CommitOutcome::Committed(_)))
    }

    /// The row that answers repeats of a request, for a day from now.
    pub(crate) async fn answer_row<T: Serialize>(
        &self,
        id: &str,
        answer: &T,
    ) -> Result<RowOperation, DefinitionError> {
        let until = self.beside.now().await?.saturating_add(ANSWERS_MILLIS);
        Ok(RowOperation::PutUntil(row(&LaneRowKey::request(id)), encode(answer).into(), until))
    }

    /// The answer to a request that came before.
    pub(crate) async fn answer<T: DeserializeOwned>(&self, id: &str) -> Result<Option<T>, DefinitionError> {
        let found = self.beside.get(&LaneRowKey::request(id)).await?;
        found.map(|found| read_row("the answer to a request", &found)).transpose()
    }

    /// Stores documents under their hashes. Existing ones are identical.
    async fn keep(&self, documents: &[ManifestDocument]) -> Result<(), DefinitionError> {
        let key = |document: &ManifestDocument| LaneRowKey::definition(document.hash.as_bytes());
        let mut missing = Vec::new();
        for documents in documents.chunks(64) {
            let keys: Vec<_> = documents.iter().map(key).collect();
            let found = self.beside.read(&keys).await?;
            let found = documents.iter().zip(found).filter(|(_, found)| found.is_none());
            missing.extend(found.map(|(document, _)| document));
        }
        let (mut ops, mut bytes) = (Vec::new(), 0);
        for document in missing {
            if bytes + document.text.len() > COMMIT_BYTES && !ops.is_empty() {
                self.beside.commit(Vec::new(), std::mem::take(&mut ops)).await?;
                bytes = 0;
            }
            bytes += document.text.len();
            ops.push(RowOperation::Put(row(&key(document)), document.text.clone().into()));
        }
        if !ops.is_empty() {
            self.beside.commit(Vec::new(), ops).await?;
        }
        let read = documents.iter().map(|document| (document.hash, ParsedDefinition::of(document)));
        self.known().extend(read);
        Ok(())
    }

    /// The definition that an instance is pinned to.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub async fn pinned_to(&self, hash: BlobHash) -> Result<Arc<Saga>, DefinitionError> {
        match self.read(hash).await?.definition {
            manifest::ManifestDefinition::Saga(saga) => Ok(saga),
            manifest::ManifestDefinition::Provider(_) => Err(unreadable(hash, "its row has a provider")),
        }
    }

    /// The canonical text of a definition.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub async fn text(&self, hash: BlobHash) -> Result<Arc<str>, DefinitionError> {
        Ok(self.read(hash).await?.text)
    }

    async fn provider(&self, hash: BlobHash) -> Result<Arc<EffectProvider>, DefinitionError> {
        match self.read(hash).await?.definition {
            manifest::ManifestDefinition::Provider(provider) => Ok(provider),
            manifest::ManifestDefinition::Saga(_) => Err(unreadable(hash, "its row has a saga")),
        }
    }

    /// Reads a document by its hash.
    async fn read(&self, hash: BlobHash) -> Result<ParsedDefinition, DefinitionError> {
        let known = self.known().get(&hash).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = self.beside.get(&LaneRowKey::definition(hash.as_bytes())).await?;
        let found = found.ok_or_else(|| unreadable(hash, "it is not stored"))?;
        let text = std::str::from_utf8(&found.value).map_err(|error| unreadable(hash, error))?;
        let documents = manifest::read("definition", text).map_err(|problems| unreadable(hash, problems))?;
        let document = documents.into_iter().next().filter(|document| document.hash == hash);
        let read =
            ParsedDefinition::of(&document.ok_or_else(|| unreadable(hash, "its row has something else"))?);
        self.known().insert(hash, read.clone());
        Ok(read)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<BlobHash, ParsedDefinition>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ParsedDefinition {
    fn of(document: &ManifestDocument) -> Self {
        Self { definition: document.definition.clone(), text: document.text.as_str().into() }
    }
}

fn unreadable(hash: BlobHash, why: impl std::fmt::Display) -> DefinitionError {
    DefinitionError::Unreadable { what: format!("the definition {hash}"), why: format!("{why}") }
}
