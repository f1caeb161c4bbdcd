//! All definitions that are in force together.
//!
//! A catalog is made from all manifests at once, or not at all: their contents have to agree.

mod draft;
mod tenant;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{EffectName, SagaName, TenantId};
use yaml::{Problem, Problems, SourcePosition, did_you_mean};

use crate::definition::{Saga, TenantSet};
use crate::manifest::{DocumentOutline, ManifestDefinition, ManifestDocument};
use crate::provider::{Effect, EffectProvider};

pub use draft::ManifestDraft;

/// A manifest that was read.
#[derive(Debug)]
pub struct LoadedManifest {
    /// Name of the manifest in messages.
    pub name: String,
    /// Documents of the manifest.
    pub documents: Vec<ManifestDocument>,
}

/// All definitions that are in force.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    sagas: BTreeMap<SagaName, Arc<Saga>>,
    providers: BTreeMap<EffectName, Arc<EffectProvider>>,
    /// The provider of each effect.
    effects: BTreeMap<EffectName, Arc<EffectProvider>>,
}

impl Catalog {
    /// Makes a catalog of manifests, which follows another one. `live` are definitions that instances are pinned to.
    ///
    /// # Errors
    /// Everything that does not fit, by file.
    pub fn new(
        files: &[LoadedManifest],
        before: &Self,
        live: &[RequiredDefinition],
    ) -> Result<Self, Vec<Problems>> {
        let mut made = CatalogBuilder::default();
        made.check(&files.iter().collect::<Vec<_>>(), before, live);
        let CatalogBuilder { catalog, problems, .. } = made;
        if problems.is_empty() { Ok(catalog) } else { Err(by_file(problems)) }
    }

    /// Makes a catalog of definitions that were checked when they came in force.
    #[must_use]
    pub fn restored(
        sagas: impl IntoIterator<Item = Arc<Saga>>,
        providers: impl IntoIterator<Item = Arc<EffectProvider>>,
    ) -> Self {
        let mut catalog = Self::default();
        catalog.sagas.extend(sagas.into_iter().map(|saga| (saga.name.clone(), saga)));
        for provider in providers {
            let effects = provider.effects.iter().map(|effect| effect.name.clone());
            catalog.effects.extend(effects.map(|effect| (effect, Arc::clone(&provider))));
            catalog.providers.insert(provider.name.clone(), provider);
        }
        catalog
    }

    /// Adds sagas that were left out: the next catalog may not be older than these either.
    #[must_use]
    pub fn remembering(mut self, left_out: impl IntoIterator<Item = Arc<Saga>>) -> Self {
        for saga in left_out {
            self.sagas.entry(saga.name.clone()).or_insert(saga);
        }
        self
    }

    /// The saga of this name; its newest version.
    #[must_use]
    pub fn saga(&self, name: &SagaName) -> Option<&Arc<Saga>> {
        self.sagas.get(name)
    }

    /// Lists all sagas.
    pub fn sagas(&self) -> impl Iterator<Item = &Arc<Saga>> {
        self.sagas.values()
    }

    /// Lists all providers.
    pub fn providers(&self) -> impl Iterator<Item = &Arc<EffectProvider>> {
        self.providers.values()
    }

    /// The effect of this name and its provider, as far as a tenant may use it.
    #[must_use]
    pub fn effect(
        &self,
        name: &EffectName,
        tenant: &TenantId,
    ) -> Option<(&Arc<EffectProvider>, &Arc<Effect>)> {
        let provider = self.effects.get(name).filter(|provider| provider.tenants.contain(tenant))?;
        provider.effects.iter().find(|effect| effect.name == *name).map(|effect| (provider, effect))
    }

    /// Lists the names of all effects.
    pub fn effects(&self) -> impl Iterator<Item = &EffectName> {
        self.effects.keys()
    }
}

/// A definition that a tenant needs, independent of manifests: instances run on it, or the tenant supplied it.
#[derive(Debug, Clone)]
pub struct RequiredDefinition {
    /// The definition.
    pub saga: Arc<Saga>,
    /// The tenant.
    pub tenant: TenantId,
}

fn by_file(problems: BTreeMap<String, Vec<Problem>>) -> Vec<Problems> {
    problems.into_iter().map(|(file, list)| Problems::new(&file, list)).collect()
}

/// A catalog while it is made.
#[derive(Default)]
struct CatalogBuilder {
    catalog: Catalog,
    /// Effects of documents that are wrong by themselves.
    outlined: OutlinedEffects,
    problems: BTreeMap<String, Vec<Problem>>,
}

/// Effects that documents provide which are wrong by themselves.
#[derive(Debug, Default)]
struct OutlinedEffects {
    effects: BTreeSet<EffectName>,
    /// Set where one of these documents may provide anything.
    is_open: bool,
}

impl OutlinedEffects {
    fn of<'a>(outlines: impl IntoIterator<Item = &'a DocumentOutline>) -> Self {
        let mut outlined = Self::default();
        for outline in outlines {
            match &outline.provides {
                Some(effects) => outlined.effects.extend(effects.iter().cloned()),
                None => outlined.is_open = true,
            }
        }
        outlined
    }

    /// Returns whether one of them may provide this effect.
    fn may_have(&self, effect: &EffectName) -> bool {
        self.is_open || self.effects.contains(effect)
    }
}

impl CatalogBuilder {
    /// Checks the documents that are valid by themselves against each other.
    fn check(&mut self, files: &[&LoadedManifest], before: &Catalog, live: &[RequiredDefinition]) {
        for file in files {
            for document in &file.documents {
                match &document.definition {
                    ManifestDefinition::Saga(saga) => self.saga(file, document.place, saga, before),
                    ManifestDefinition::Provider(provider) => self.provider(file, document.place, provider),
                }
            }
        }
        for file in files {
            for document in &file.documents {
                if let ManifestDefinition::Saga(saga) = &document.definition {
                    self.orders(&file.name, Some(saga.as_ref()), &document.orders);
                }
            }
        }
        self.needed(live);
    }

    fn problem(&mut self, file: &str, place: SourcePosition, message: String) {
        self.problems.entry(file.to_owned()).or_default().push(Problem::at(place, message));
    }

    fn saga(&mut self, file: &LoadedManifest, place: SourcePosition, saga: &Arc<Saga>, before: &Catalog) {
        let (name, version) = (&saga.name, saga.version);
        if let Some(first) = self.catalog.sagas.get(name) {
            let message = match first.version == version && first.hash != saga.hash {
                true => format!("version {version} of the saga `{name}` stands twice, with other content"),
                false => {
                    format!("the saga `{name}` stands twice; keep its newest version, instances keep theirs")
                }
            };
            self.problem(&file.name, place, message);
            return;
        }
        if let Some(old) = before.sagas.get(name) {
            for message in saga.problems_behind(old) {
                self.problem(&file.name, place, message);
            }
        }
        self.catalog.sagas.insert(name.clone(), Arc::clone(saga));
    }

    fn provider(&mut self, file: &LoadedManifest, place: SourcePosition, provider: &Arc<EffectProvider>) {
        if self.catalog.providers.contains_key(&provider.name) {
            self.problem(&file.name, place, format!("the provider `{}` stands twice", provider.name));
        }
        for effect in &provider.effects {
            if let Some(other) = self.catalog.effects.get(&effect.name) {
                let (effect, other) = (&effect.name, &other.name);
                let message = format!("the effect `{effect}` is that of the provider `{other}` already");
                self.problem(&file.name, place, message);
            }
            self.catalog.effects.insert(effect.name.clone(), Arc::clone(provider));
        }
        self.catalog.providers.insert(provider.name.clone(), Arc::clone(provider));
    }

    /// Checks that the effects a saga orders exist, and for all its tenants; the tenants of an invalid saga are not known.
    fn orders(&mut self, file: &str, saga: Option<&Saga>, orders: &[(EffectName, SourcePosition)]) {
        let names = self.catalog.effects.keys().chain(&self.outlined.effects);
        let names: Vec<_> = names.map(|name| name.as_str().to_owned()).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        for (effect, place) in orders {
            let message = match self.catalog.effects.get(effect) {
                None if self.outlined.may_have(effect) => continue,
                None => {
                    let hint = did_you_mean(effect.as_str(), &names);
                    format!("no provider has the effect `{effect}`{hint}")
                }
                Some(provider) => match saga.and_then(|saga| left_out(&saga.tenants, &provider.tenants)) {
                    None => continue,
                    Some(tenants) => {
                        let provider = &provider.name;
                        format!("the effect `{effect}` of the provider `{provider}` is not for {tenants}")
                    }
                },
            };
            self.problem(file, *place, message);
        }
    }

    /// Checks that definitions which instances are pinned to still have their effects.
    fn needed(&mut self, live: &[RequiredDefinition]) {
        for RequiredDefinition { saga, tenant } in live {
            for effect in saga.effects() {
                let (name, version) = (&saga.name, saga.version);
                let message = match self.catalog.effects.get(effect) {
                    Some(provider) if provider.tenants.contain(tenant) => continue,
                    Some(provider) => format!(
                        "instances of `{name}`, version {version}, of the tenant `{tenant}` need the effect `{effect}`, which the \
                         provider `{}` has for others only",
                        provider.name
                    ),
                    None if self.outlined.may_have(effect) => continue,
                    None => format!(
                        "instances of `{name}`, version {version}, need the effect `{effect}`, which no provider has any more"
                    ),
                };
                let problems = self.problems.entry("manifests".to_owned()).or_default();
                // Several tenants may miss the same one.
                if !problems.iter().any(|known| known.message == message) {
                    problems.push(Problem { place: None, message });
                }
            }
        }
    }
}

impl Saga {
    /// Why it cannot follow another version of the same saga.
    fn problems_behind(&self, old: &Self) -> Vec<String> {
        let Self { name, version, .. } = self;
        let (in_force, is_same) = (old.version, old.hash == self.hash);
        let mut problems = Vec::new();
        if *version == in_force && !is_same {
            let next = version.saturating_add(1);
            problems.push(format!(
                "version {version} of the saga `{name}` is in force with other content; write `version: {next}`"
            ));
        } else if *version < in_force {
            problems.push(format!(
                "version {version} of the saga `{name}` is behind version {in_force}, which is in force"
            ));
        }
        if old.shards != self.shards {
            problems.push(format!(
                "the saga `{name}` has {} shards; another number of them needs all its instances ended",
                old.shards
            ));
        }
        problems
    }
}

/// Tenants that are among the first and not among the second, for people.
fn left_out(wanted: &TenantSet, given: &TenantSet) -> Option<String> {
    match (wanted, given) {
        (_, TenantSet::All) => None,
        (TenantSet::All, TenantSet::Listed(_)) => Some("all tenants, as the saga is".to_owned()),
        (TenantSet::Listed(wanted), TenantSet::Listed(given)) => {
            let missing: BTreeSet<_> = wanted.difference(given).map(TenantId::as_str).collect();
            let missing: Vec<_> = missing.into_iter().map(|tenant| format!("`{tenant}`")).collect();
            (!missing.is_empty()).then(|| missing.join(", "))
        }
    }
}
