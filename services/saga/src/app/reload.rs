//! Reload of the operator's files: manifests, providers and tenants come into force together, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use egress::TrustAnchors;
use model::{BlobHash, EffectName, TenantId};
use serde::{Deserialize, Serialize};
use workflow::catalog::Catalog;
use workflow::manifest::{self, ManifestDocument};
use yaml::{Problem, Problems};

use super::provider_builder::BuiltProvider;
use super::{App, Error};
use crate::definitions::{ActiveDefinitions, ScopedIdempotencyKey};
use crate::manifests::{BadManifests, Manifests};
use crate::placement::CallProviders;
use crate::providers::CallProvider;
use crate::tenants::{Tenant, TenantRegistry};

/// Providers as they were built.
pub(super) type BuiltProviders = BTreeMap<EffectName, BuiltProvider>;

/// Kind of an object in the operator's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReloadKind {
    /// A saga.
    Saga,
    /// A provider of effects.
    Provider,
    /// A tenant.
    Tenant,
}

impl ReloadKind {
    /// The name in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Saga => "saga",
            Self::Provider => "provider",
            Self::Tenant => "tenant",
        }
    }
}

/// Change of one object that is in force, or was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadChange {
    /// Kind.
    pub kind: ReloadKind,
    /// Name.
    pub name: String,
    /// Version before, 0 for objects without versions; `None` where the object was not in force.
    pub before: Option<u32>,
    /// Version since, 0 for objects without versions; `None` where the object is not in force.
    pub after: Option<u32>,
}

/// Stored answer to a request, for its repeats.
#[derive(Serialize, Deserialize)]
struct ReloadAnswerRow {
    hash: BlobHash,
    changes: Vec<ReloadChange>,
}

/// Operator's files, checked against what is in force.
struct CheckedReload {
    /// Documents with the catalog that they make; `None` where this replica has no directory of manifests.
    operators: Option<(Vec<ManifestDocument>, Catalog)>,
    built: BuiltProviders,
    tenants: Option<TenantRegistry>,
    changes: Vec<ReloadChange>,
    /// Revision of the definitions that the files were checked against.
    revision: u64,
}

impl App {
    /// Reads the operator's files again and puts all of them in force with one commit. Returns what has changed.
    ///
    /// # Errors
    /// Everything that is wrong with the files; the former definitions then stay in force.
    pub async fn reload(&self) -> Result<Vec<ReloadChange>, Error> {
        Ok(self.reload_of(None, None).await?.unwrap_or_default())
    }

    /// Reads the operator's files again and puts in force their entry of one tenant.
    ///
    /// # Errors
    /// As [`App::reload`].
    pub async fn reload_tenant(&self, tenant: &TenantId) -> Result<Vec<ReloadChange>, Error> {
        Ok(self.reload_of(Some(tenant), None).await?.unwrap_or_default())
    }

    /// Reloads as [`App::reload`] and [`App::reload_tenant`] do, once for each request id. `None` where the id came before with another
    /// body.
    ///
    /// # Errors
    /// As [`App::reload`].
    pub async fn reload_once(
        &self,
        of: Option<&TenantId>,
        request: &ScopedIdempotencyKey,
    ) -> Result<Option<Vec<ReloadChange>>, Error> {
        self.reload_of(of, Some(request)).await
    }

    /// Reads the operator's files, and returns what a reload of them, or of one tenant, would change.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub async fn check_reload(&self, of: Option<&TenantId>) -> Result<Vec<ReloadChange>, Error> {
        Ok(self.check(of).await?.changes)
    }

    async fn reload_of(
        &self,
        of: Option<&TenantId>,
        request: Option<&ScopedIdempotencyKey>,
    ) -> Result<Option<Vec<ReloadChange>>, Error> {
        let _one_at_a_time = self.reloading.lock().await;
        loop {
            if let Some(request) = request
                && let Some(answer) = self.definitions.answer::<ReloadAnswerRow>(&request.id).await?
            {
                return Ok(Some(answer.changes).filter(|_| answer.hash == request.hash));
            }
            let CheckedReload { operators, built, tenants, changes, revision } = self.check(of).await?;
            // Other replicas build providers from the documents; here they are built already.
            *self.built.lock().unwrap_or_else(PoisonError::into_inner) = built;
            let operators = operators.as_ref().map(|(documents, catalog)| (&**documents, catalog));
            let mut more = Vec::new();
            if let Some(ScopedIdempotencyKey { id, hash }) = request {
                let answer = ReloadAnswerRow { hash: *hash, changes: changes.clone() };
                more.push(self.definitions.answer_row(id, &answer).await?);
            }
            if self.definitions.replace(operators, tenants.as_ref(), revision, more).await? {
                let now = self.definitions.in_force();
                self.take_over(&now);
                let (sagas, effects) = (now.catalog.sagas().count(), now.catalog.effects().count());
                tracing::info!(sagas, effects, "definitions are in force");
                return Ok(Some(changes));
            }
        }
    }

    /// Reads everything and checks everything.
    async fn check(&self, of: Option<&TenantId>) -> Result<CheckedReload, Error> {
        let now = self.definitions.refresh().await?;
        let mut problems = Vec::new();
        let tenants = self.read_tenants(&now, of).unwrap_or_else(|found| {
            problems.push(found);
            None
        });
        // Manifests are the same for all tenants.
        let directory = self.config.manifests.as_ref().filter(|_| of.is_none());
        let manifests = directory.map(|directory| Manifests::read(directory)).transpose();
        let manifests = manifests.unwrap_or_else(|BadManifests(found)| {
            problems.extend(found);
            None
        });
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut operators = None;
        if let Some(manifests) = manifests {
            let (found, wrong) = self.check_manifests(&now, &manifests, &built).await?;
            problems.extend(wrong);
            if let Some((catalog, found)) = found {
                built = found;
                operators = Some((manifests.documents(), catalog));
            }
        }
        if !problems.is_empty() {
            return Err(BadManifests(problems).into());
        }
        let changes = changes(&now, operators.as_ref(), tenants.as_ref());
        Ok(CheckedReload { operators, built, tenants, changes, revision: now.revision })
    }

    /// Checks manifests together, and builds providers that differ from `before`; returns everything that is wrong as well.
    async fn check_manifests(
        &self,
        now: &ActiveDefinitions,
        manifests: &Manifests,
        before: &BuiltProviders,
    ) -> Result<(Option<(Catalog, BuiltProviders)>, Vec<Problems>), Error> {
        let tenants = self.tenants.borrow().ids();
        let live = self.definitions.left_without(&manifests.documents(), &tenants).await?;
        let (catalog, mut problems) = match manifests.catalog(&now.remembered(), &live) {
            Ok(catalog) => (Some(catalog), Vec::new()),
            Err(BadManifests(found)) => (None, found),
        };
        let (secrets, trust) = (Arc::new(self.secrets()), TrustAnchors::from_system());
        let mut built = BuiltProviders::new();
        for (file, document) in manifests.by_file() {
            let manifest::ManifestDefinition::Provider(definition) = &document.definition else { continue };
            let made = before.get(&definition.name);
            match self.build((definition, document.hash), made, &secrets, &trust) {
                Ok(made) => drop(built.insert(definition.name.clone(), made)),
                Err(why) => {
                    let message = format!("the provider `{}` cannot be used: {why}", definition.name);
                    problems.push(Problems::new(file, vec![Problem::at(document.place, message)]));
                }
            }
        }
        Ok((catalog.map(|catalog| (catalog, built)), problems))
    }

    /// Reads the tenants file, or only its entry of one tenant; `None` where there is no file.
    fn read_tenants(
        &self,
        now: &ActiveDefinitions,
        of: Option<&TenantId>,
    ) -> Result<Option<TenantRegistry>, Problems> {
        let Some(file) = &self.tenants_file else { return Ok(None) };
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|error| {
            Problems::new(&name, vec![Problem { place: None, message: format!("cannot be read: {error}") }])
        })?;
        let before = now.tenants.as_deref();
        let read = TenantRegistry::read_behind(&name, &text, before)?;
        Ok(Some(match (of, before) {
            (Some(tenant), Some(before)) => before.with(tenant, &read),
            _ => read,
        }))
    }

    /// Applies the definitions in force, whether this replica or another one put them there.
    pub(super) fn take_over(&self, now: &ActiveDefinitions) {
        self.around.metrics.forget_sagas(|label| now.has_label(label));
        if let Some(tenants) = now.tenants.as_ref().filter(|_| self.around.has_tenants) {
            self.tenants.send_if_modified(|known| {
                let is_new = known != tenants;
                if is_new {
                    *known = Arc::clone(tenants);
                }
                is_new
            });
        }
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let unusable = self.build_missing(now, &mut built);
        let mut providers = CallProviders::new();
        for definition in now.catalog.providers() {
            if let Some(made) = built.get(&definition.name) {
                let effects = definition.effects.iter().map(|effect| effect.name.clone());
                providers.extend(effects.map(|effect| (effect, Arc::clone(&made.provider))));
            }
        }
        drop(built);
        let address = |provider: &Arc<dyn CallProvider>| Arc::as_ptr(provider).cast::<()>();
        self.providers.send_if_modified(|known| {
            let mut pairs = known.iter().zip(&providers);
            let is_same = known.len() == providers.len()
                && pairs.all(|(one, other)| one.0 == other.0 && address(one.1) == address(other.1));
            if !is_same {
                *known = Arc::new(providers);
            }
            !is_same
        });
        match unusable.into_iter().next() {
            Some(why) => self.needs.definitions.unmet(why),
            None => self.needs.definitions.met(),
        }
    }

    /// Builds providers that another replica put in force; returns why some cannot be used here.
    fn build_missing(&self, now: &ActiveDefinitions, built: &mut BuiltProviders) -> Vec<String> {
        let mut unusable = Vec::new();
        built.retain(|name, made| now.active.providers.get(name) == Some(&made.hash));
        for definition in now.catalog.providers() {
            let Some(hash) = now.active.providers.get(&definition.name) else { continue };
            if built.contains_key(&definition.name) {
                continue;
            }
            match self.build(
                (definition, *hash),
                None,
                &Arc::new(self.secrets()),
                &TrustAnchors::from_system(),
            ) {
                Ok(made) => drop(built.insert(definition.name.clone(), made)),
                Err(why) => {
                    let why = format!("the provider `{}` cannot be used: {why}", definition.name);
                    tracing::error!("{why}");
                    unusable.push(why);
                }
            }
        }
        unusable
    }

    /// Follows the definitions that other replicas put in force, as heartbeats report them.
    pub(super) async fn follow_definitions(&self) {
        let (mut feed, mut in_force) = (self.beats.feed(), self.definitions.subscribe());
        loop {
            let read = self.definitions.refresh().await;
            let changed = match read {
                Ok(_) => {
                    let now = Arc::clone(&in_force.borrow_and_update());
                    if now.revision > 0 {
                        self.take_over(&now);
                    }
                    tokio::select! {
                        changed = feed.view.changed() => changed,
                        changed = in_force.changed() => changed,
                    }
                }
                Err(error) => {
                    tracing::error!("definitions of another replica are not in force here: {error}");
                    feed.beats.changed().await
                }
            };
            if changed.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// Lists the differences from what is in force.
fn changes(
    now: &ActiveDefinitions,
    operators: Option<&(Vec<ManifestDocument>, Catalog)>,
    tenants: Option<&TenantRegistry>,
) -> Vec<ReloadChange> {
    let mut changes = Vec::new();
    if let Some((documents, catalog)) = operators {
        let sagas = |catalog: &Catalog| -> BTreeMap<String, (u32, BlobHash)> {
            catalog.sagas().map(|saga| (saga.name.to_string(), (saga.version, saga.hash))).collect()
        };
        differences(ReloadKind::Saga, &sagas(&now.catalog), &sagas(catalog), &mut changes);
        let before = now.active.providers.iter().map(|(name, hash)| (name.to_string(), (0, *hash)));
        let after = documents.iter().filter_map(|document| match &document.definition {
            manifest::ManifestDefinition::Provider(provider) => {
                Some((provider.name.to_string(), (0, document.hash)))
            }
            manifest::ManifestDefinition::Saga(_) => None,
        });
        differences(ReloadKind::Provider, &before.collect(), &after.collect(), &mut changes);
    }
    if let Some(tenants) = tenants {
        let of = |tenants: &TenantRegistry| -> BTreeMap<String, (u32, Tenant)> {
            tenants.iter().map(|(id, tenant)| (id.to_string(), (0, *tenant))).collect()
        };
        let before = now.tenants.as_deref().map(of).unwrap_or_default();
        differences(ReloadKind::Tenant, &before, &of(tenants), &mut changes);
    }
    changes
}

/// Adds the objects that are in force on one side only, or that differ.
fn differences<T: PartialEq>(
    kind: ReloadKind,
    before: &BTreeMap<String, (u32, T)>,
    after: &BTreeMap<String, (u32, T)>,
    changes: &mut Vec<ReloadChange>,
) {
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    for name in names {
        let (one, other) = (before.get(name), after.get(name));
        if one != other {
            let version = |found: Option<&(u32, T)>| found.map(|(version, _)| *version);
            let (before, after) = (version(one), version(other));
            changes.push(ReloadChange { kind, name: name.clone(), before, after });
        }
    }
}
