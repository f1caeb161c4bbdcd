//! Definitions in force, prepared for look-ups per message.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use model::{BlobHash, SagaName, TenantId};
use workflow::catalog::Catalog;
use workflow::definition::Saga;
use workflow::subject::ConsumerSource;

use super::rows::{ActiveRow, ActiveSaga, AppliedRow};
use crate::tenants::TenantRegistry;

/// Name in metrics of all sagas that tenants applied.
pub(crate) const OWN: &str = "own";
/// Name in metrics of all retired sagas. No saga has it.
const LEFT_OUT: &str = "left_out";

/// Definitions in force, with the tenants that are kept beside them.
#[derive(Debug, Clone, Default)]
pub struct ActiveDefinitions {
    /// Sagas of the operator that start, and all effects.
    pub catalog: Arc<Catalog>,
    /// Definitions of the operator, including retired ones.
    pub active: ActiveRow,
    /// Manifests that tenants applied.
    pub applied: BTreeMap<TenantId, AppliedRow>,
    /// Tenants, where they are stored with the definitions.
    pub tenants: Option<Arc<TenantRegistry>>,
    /// Revision of the row `active`, which changes with all of this; 0 before it exists.
    pub revision: u64,
    pub(super) operators: HashMap<SagaName, SagaVersions>,
    pub(super) own: HashMap<TenantId, HashMap<SagaName, SagaVersions>>,
}

/// Versions of a saga that may have instances.
#[derive(Debug, Clone)]
pub(super) struct SagaVersions {
    /// The newest first.
    pub(super) versions: Arc<[Arc<Saga>]>,
    /// The newest version, changed so that it starts no instances.
    pub(super) closed: Arc<Saga>,
    pub(super) is_retired: bool,
}

/// A definition as a tenant has it.
#[derive(Debug, Clone)]
pub struct TenantDefinition {
    /// The definition.
    pub saga: Arc<Saga>,
    /// True if new instances start on the definition.
    pub in_force: bool,
    /// True if the tenant applied it; otherwise it is the operator's.
    pub is_applied: bool,
}

/// Saga in force, as its lanes are made from it.
#[derive(Debug, Clone, Copy)]
pub struct ActiveSagaRef<'a> {
    /// The saga.
    pub name: &'a SagaName,
    /// Row of the saga's versions.
    pub active: &'a ActiveSaga,
}

impl SagaVersions {
    pub(super) fn new(versions: Vec<Arc<Saga>>, is_retired: bool) -> Option<Self> {
        let closed = Arc::new(versions.first()?.retired());
        Some(Self { versions: versions.into(), closed, is_retired })
    }

    fn newest(&self) -> Option<&Arc<Saga>> {
        self.versions.first()
    }

    /// The version on which new instances of this tenant start, if any.
    fn starting(&self, tenant: &TenantId) -> Option<&Arc<Saga>> {
        self.newest().filter(|saga| !self.is_retired && saga.tenants.contain(tenant))
    }
}

impl ActiveDefinitions {
    /// Returns the versions of a saga for a tenant. A name that the tenant has applied always means the tenant's own saga.
    fn known(&self, tenant: &TenantId, name: &SagaName) -> Option<&SagaVersions> {
        let own = self.own.get(tenant).and_then(|own| own.get(name));
        own.or_else(|| {
            let known = self.operators.get(name)?;
            known.versions.iter().any(|saga| saga.tenants.contain(tenant)).then_some(known)
        })
    }

    /// Name of a tenant's saga in metrics: the saga's own name if the operator has it in force, since manifests bound their number; one
    /// name for all sagas that tenants applied, and one for all retired sagas.
    #[must_use]
    pub fn label<'a>(&self, tenant: &TenantId, name: &'a SagaName) -> &'a str {
        if self.own.get(tenant).is_some_and(|own| own.contains_key(name)) {
            return OWN;
        }
        match self.operators.get(name) {
            Some(known) if !known.is_retired => name.as_str(),
            Some(_) | None => LEFT_OUT,
        }
    }

    /// Names of a tenant's saga and one of its sources in metrics; for sagas that tenants applied only the kind of the source.
    #[must_use]
    pub fn source_label<'a>(
        &self,
        tenant: &TenantId,
        name: &'a SagaName,
        source: &ConsumerSource,
    ) -> (&'a str, String) {
        match (self.label(tenant, name), source) {
            (OWN, ConsumerSource::Aggregate(_)) => (OWN, "aggregate".to_owned()),
            (OWN, ConsumerSource::Commands(_)) => (OWN, "commands".to_owned()),
            (OWN, ConsumerSource::Results(_)) => (OWN, "results".to_owned()),
            (OWN, ConsumerSource::Verbs(_)) => (OWN, "verbs".to_owned()),
            (_, source) => (name.as_str(), source.to_string()),
        }
    }

    /// Returns whether metrics have this name of a saga: see [`ActiveDefinitions::label`].
    #[must_use]
    pub fn has_label(&self, label: &str) -> bool {
        let is_in_force =
            |(name, known): (&SagaName, &SagaVersions)| name.as_str() == label && !known.is_retired;
        [OWN, LEFT_OUT].contains(&label) || self.operators.iter().any(is_in_force)
    }

    /// The saga that instances of a tenant start on.
    #[must_use]
    pub fn saga(&self, tenant: &TenantId, name: &SagaName) -> Option<&Arc<Saga>> {
        self.known(tenant, name)?.starting(tenant)
    }

    /// The saga by which inputs without an instance are judged: the one in force, or one that starts no instances.
    #[must_use]
    pub fn without_instance(&self, tenant: &TenantId, name: &SagaName) -> Option<&Arc<Saga>> {
        let known = self.known(tenant, name)?;
        Some(known.starting(tenant).unwrap_or(&known.closed))
    }

    /// All versions that a tenant may have instances of, the newest first; none of a saga that it does not have.
    #[must_use]
    pub fn versions(&self, tenant: &TenantId, name: &SagaName) -> Arc<[Arc<Saga>]> {
        self.known(tenant, name).map_or_else(|| Arc::from([]), |known| Arc::clone(&known.versions))
    }

    /// Counts the lanes of a saga of a tenant: as the newest version says, or one.
    #[must_use]
    pub fn shards(&self, tenant: &TenantId, name: &SagaName) -> u8 {
        let versions = self.known(tenant, name).map(|known| &known.versions);
        versions.and_then(|versions| versions.first()).map_or(1, |saga| saga.shards)
    }

    /// Sagas of which a tenant has lanes: those in force, and retired ones.
    pub fn sagas_of(&self, tenant: &TenantId) -> impl Iterator<Item = ActiveSagaRef<'_>> {
        let own = self.applied.get(tenant);
        let is_own = move |name: &SagaName| own.is_some_and(|own| own.sagas.contains_key(name));
        let tenant = tenant.clone();
        let operators = self.active.sagas.iter().filter(move |(name, _)| {
            let is_for =
                |known: &SagaVersions| known.versions.iter().any(|saga| saga.tenants.contain(&tenant));
            !is_own(name) && self.operators.get(*name).is_some_and(is_for)
        });
        let own = own.into_iter().flat_map(|own| &own.sagas);
        own.chain(operators).map(|(name, active)| ActiveSagaRef { name, active })
    }

    /// Definitions that a tenant has, by name and then by version, the newest first.
    #[must_use]
    pub fn definitions_of(&self, tenant: &TenantId) -> Vec<TenantDefinition> {
        let mut names: Vec<_> = self.sagas_of(tenant).map(|saga| saga.name).collect();
        names.sort_unstable();
        let of_name = |name| self.definitions_named(tenant, name);
        names.into_iter().flat_map(of_name).collect()
    }

    /// Definitions that a tenant has of one name, the newest first.
    #[must_use]
    pub fn definitions_named(&self, tenant: &TenantId, name: &SagaName) -> Vec<TenantDefinition> {
        let Some(known) = self.known(tenant, name) else { return Vec::new() };
        let starting = known.starting(tenant).map(|saga| saga.hash);
        let is_applied = self.own.get(tenant).is_some_and(|own| own.contains_key(name));
        let is_theirs = |saga: &&Arc<Saga>| is_applied || saga.tenants.contain(tenant);
        let definition = |saga: &Arc<Saga>| TenantDefinition {
            saga: Arc::clone(saga),
            in_force: starting == Some(saga.hash),
            is_applied,
        };
        known.versions.iter().filter(is_theirs).map(definition).collect()
    }

    /// The newest versions of the sagas that a tenant applied, including retired ones.
    #[must_use]
    pub fn own_sagas(&self, tenant: &TenantId) -> BTreeMap<SagaName, Arc<Saga>> {
        let own = self.own.get(tenant).into_iter().flatten();
        own.filter_map(|(name, known)| Some((name.clone(), Arc::clone(known.newest()?)))).collect()
    }

    /// The operator's catalog with the retired sagas: a later version must not be older than theirs.
    #[must_use]
    pub fn remembered(&self) -> Catalog {
        let left_out = self.operators.values().filter(|known| known.is_retired);
        let left_out = left_out.filter_map(|known| known.newest().map(Arc::clone));
        Catalog::clone(&self.catalog).remembering(left_out)
    }

    /// Every definition by its hash, to be kept in memory.
    pub(super) fn hashes(&self) -> impl Iterator<Item = BlobHash> {
        let applied = self.applied.values().flat_map(|own| own.sagas.values());
        let sagas = self.active.sagas.values().chain(applied).flat_map(ActiveSaga::hashes);
        sagas.chain(self.active.providers.values().copied())
    }
}
