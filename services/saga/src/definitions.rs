//! Definitions: what is in force, and what instances are pinned to.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{BlobHash, SagaName};
use serde::{Deserialize, Serialize};
use store::{Batch, KvStore, LaneKey, Op, Outcome, StoreError};
use tokio::sync::watch;
use workflow::Key;
use workflow::catalog::Catalog;
use workflow::definition::Saga;
use workflow::instance::{decode, encode};
use workflow::manifest::{self, Definition, Document};

use crate::lane::rows::row;

/// What is in force, and every definition that was asked for.
pub struct Definitions {
    store: Arc<dyn KvStore>,
    in_force: watch::Sender<Arc<InForce>>,
    pinned: Mutex<HashMap<BlobHash, Arc<Saga>>>,
}

/// What is in force.
#[derive(Debug, Clone, Default)]
pub struct InForce {
    /// Sagas that start, and all effects.
    pub catalog: Arc<Catalog>,
    /// Sagas that have lanes: those that start, and those that were left out.
    pub active: ActiveRow,
}

/// Sagas that were ever in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ActiveRow {
    /// The sagas, by name.
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
    /// When it came in force first, in milliseconds since 1970: events that are older start nothing.
    pub since: u64,
    /// Whether it was left out: its instances go on, and no new one starts.
    #[serde(default)]
    pub is_retired: bool,
}

/// Why a definition cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is not there, or cannot be read.
    #[error("the definition {hash} cannot be had: {why}")]
    Unreadable {
        /// Its hash.
        hash: String,
        /// Why.
        why: String,
    },
}

/// The rows that stand beside all lanes.
#[must_use]
pub fn beside_lanes() -> LaneKey {
    LaneKey::new("")
}

impl Definitions {
    /// Nothing that is in force.
    #[must_use]
    pub fn new(store: Arc<dyn KvStore>) -> Self {
        Self { store, in_force: watch::Sender::new(Arc::default()), pinned: Mutex::default() }
    }

    /// Sagas that start, and all effects.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.in_force.borrow().catalog)
    }

    /// Follows what is in force.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<InForce>> {
        self.in_force.subscribe()
    }

    /// Keeps the texts of documents, so that instances may be pinned to them, and puts a catalog in force that was made of them.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing is in force that was not before.
    pub async fn put_in_force(
        &self,
        documents: &[Document],
        catalog: Catalog,
    ) -> Result<(), DefinitionError> {
        for document in documents {
            if let Definition::Saga(saga) = &document.definition {
                self.keep(document).await?;
                self.pinned().insert(document.hash, Arc::clone(saga));
            }
        }
        service::crash_point("reload.stored");
        let active = self.activate(&catalog).await?;
        for left_out in active.sagas.values().filter(|saga| saga.is_retired) {
            self.pinned_to(left_out.hash).await?;
        }
        self.in_force.send_replace(Arc::new(InForce { catalog: Arc::new(catalog), active }));
        Ok(())
    }

    /// Notes in one row what is in force.
    async fn activate(&self, catalog: &Catalog) -> Result<ActiveRow, DefinitionError> {
        let (lane, key) = (beside_lanes(), row(&Key::active()));
        loop {
            let found =
                self.store.read(&lane, std::slice::from_ref(&key)).await?.into_iter().next().flatten();
            let before: ActiveRow = match &found {
                Some(found) => decode(&found.value).map_err(|error| DefinitionError::Unreadable {
                    hash: "of what is in force".to_owned(),
                    why: error.to_string(),
                })?,
                None => ActiveRow::default(),
            };
            let active = before.clone().followed_by(catalog, self.store.now().await?);
            if found.is_some() && active == before {
                return Ok(active);
            }
            let epoch = self.store.take(&lane).await?;
            let revision = found.map_or(0, |found| found.revision);
            let expect = vec![store::Expect::Revision(key.clone(), revision)];
            let ops = vec![Op::Put(key.clone(), encode(&active).into())];
            if let Outcome::Committed(_) =
                self.store.commit(Batch { lane: lane.clone(), epoch, expect, ops }).await?
            {
                return Ok(active);
            }
        }
    }

    /// Keeps the text of a document under its hash. One that is there already is the same.
    async fn keep(&self, document: &Document) -> Result<(), StoreError> {
        let key = row(&Key::definition(document.hash.as_bytes()));
        let lane = beside_lanes();
        loop {
            if self.store.read(&lane, std::slice::from_ref(&key)).await?.iter().any(Option::is_some) {
                return Ok(());
            }
            let epoch = self.store.take(&lane).await?;
            let ops = vec![Op::Put(key.clone(), document.text.clone().into())];
            let batch = Batch { lane: lane.clone(), epoch, expect: Vec::new(), ops };
            match self.store.commit(batch).await? {
                // Another replica writes definitions at the same time.
                Outcome::Fenced { .. } | Outcome::Conflict { .. } => {}
                Outcome::Committed(_) | Outcome::Exists(_) => return Ok(()),
            }
        }
    }

    /// All versions of a saga that were asked for, the newest first.
    #[must_use]
    pub fn versions(&self, name: &SagaName) -> Vec<Arc<Saga>> {
        let mut versions: Vec<_> =
            self.pinned().values().filter(|saga| saga.name == *name).map(Arc::clone).collect();
        versions.sort_by_key(|saga| std::cmp::Reverse(saga.version));
        versions
    }

    /// The definition that an instance is pinned to.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub async fn pinned_to(&self, hash: BlobHash) -> Result<Arc<Saga>, DefinitionError> {
        if let Some(saga) = self.pinned().get(&hash) {
            return Ok(Arc::clone(saga));
        }
        let unreadable = |why: String| DefinitionError::Unreadable { hash: hash.to_string(), why };
        let key = row(&Key::definition(hash.as_bytes()));
        let found = self.store.read(&beside_lanes(), &[key]).await?.into_iter().next().flatten();
        let found = found.ok_or_else(|| unreadable("no row has it".to_owned()))?;
        let text = std::str::from_utf8(&found.value).map_err(|error| unreadable(error.to_string()))?;
        let documents =
            manifest::read("definition", text).map_err(|problems| unreadable(problems.to_string()))?;
        match documents.into_iter().next().map(|document| (document.hash, document.definition)) {
            Some((found, Definition::Saga(saga))) if found == hash => {
                self.pinned().insert(hash, Arc::clone(&saga));
                Ok(saga)
            }
            _ => Err(unreadable("its row has something else".to_owned())),
        }
    }

    fn pinned(&self) -> MutexGuard<'_, HashMap<BlobHash, Arc<Saga>>> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActiveRow {
    /// What is in force after a catalog was put there.
    fn followed_by(mut self, catalog: &Catalog, now: u64) -> Self {
        for saga in self.sagas.values_mut() {
            saga.is_retired = true;
        }
        for saga in catalog.sagas() {
            let since = self.sagas.get(&saga.name).map_or(now, |before| before.since);
            let (hash, version, shards) = (saga.hash, saga.version, saga.shards);
            let active = ActiveSaga { hash, version, shards, since, is_retired: false };
            self.sagas.insert(saga.name.clone(), active);
        }
        self
    }
}
