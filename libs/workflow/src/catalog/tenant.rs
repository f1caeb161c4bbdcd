//! Manifests of one tenant, checked against the definitions in force for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{EffectName, SagaName, TenantId};
use yaml::{Problem, Problems, SourcePosition, did_you_mean};

use super::{Catalog, LoadedManifest, OutlinedEffects};
use crate::definition::Saga;
use crate::manifest::{DocumentOutline, ManifestDefinition};
use crate::provider::EffectProvider;

impl Catalog {
    /// Checks a file that a tenant brings. `own` are the newest sagas that the tenant brought before; `may_provide` is whether
    /// providers of effects are looked at, in place of being refused: they are the operator's.
    ///
    /// Definitions of other tenants are treated as if they did not exist.
    ///
    /// # Errors
    /// Everything that does not fit.
    pub fn check_for(
        &self,
        tenant: &TenantId,
        file: &LoadedManifest,
        own: &BTreeMap<SagaName, Arc<Saga>>,
        may_provide: bool,
    ) -> Result<(), Problems> {
        let problems = self.misfits(tenant, (file, &[]), own, may_provide);
        if problems.is_empty() { Ok(()) } else { Err(Problems::new(&file.name, problems)) }
    }

    /// Returns every conflict of a file, some of whose documents may be invalid by themselves.
    pub(super) fn misfits(
        &self,
        tenant: &TenantId,
        (file, others): (&LoadedManifest, &[DocumentOutline]),
        own: &BTreeMap<SagaName, Arc<Saga>>,
        may_provide: bool,
    ) -> Vec<Problem> {
        let mut check = TenantManifestChecker {
            operators: self,
            tenant,
            own,
            may_provide,
            provided: BTreeMap::new(),
            outlined: OutlinedEffects::of(others),
            problems: Vec::new(),
        };
        let mut names = BTreeMap::new();
        for document in &file.documents {
            match &document.definition {
                ManifestDefinition::Provider(provider) => check.provider(document.place, provider),
                ManifestDefinition::Saga(saga) => {
                    if names.insert(saga.name.clone(), ()).is_some() {
                        check.problem(document.place, format!("the saga `{}` stands twice", saga.name));
                    } else {
                        check.saga(document.place, saga);
                    }
                }
            }
        }
        let orders = file.documents.iter().map(|document| &document.orders);
        for orders in orders.chain(others.iter().map(|outline| &outline.orders)) {
            check.orders(orders);
        }
        check.problems
    }

    /// The saga of this name that the operator has for a tenant, in force or left out.
    fn operators(&self, name: &SagaName, tenant: &TenantId) -> Option<&Arc<Saga>> {
        self.saga(name).filter(|saga| saga.tenants.contain(tenant))
    }
}

/// A file that is being checked.
struct TenantManifestChecker<'a> {
    operators: &'a Catalog,
    tenant: &'a TenantId,
    own: &'a BTreeMap<SagaName, Arc<Saga>>,
    may_provide: bool,
    /// Effects that the file provides.
    provided: BTreeMap<EffectName, &'a EffectProvider>,
    /// Effects that documents of the file provide with which something is wrong.
    outlined: OutlinedEffects,
    problems: Vec<Problem>,
}

impl<'a> TenantManifestChecker<'a> {
    fn problem(&mut self, place: SourcePosition, message: String) {
        self.problems.push(Problem::at(place, message));
    }

    fn saga(&mut self, place: SourcePosition, saga: &Saga) {
        let name = &saga.name;
        if !saga.tenants.contain(self.tenant) {
            let message = format!("the saga `{name}` is not for the tenant that it is applied for");
            self.problem(place, message);
        }
        let before = match (self.own.get(name), self.operators.operators(name, self.tenant)) {
            (Some(own), _) => own,
            (None, Some(_)) if !self.may_provide => {
                let message = format!(
                    "the saga `{name}` comes from the operator's directory; give this one another name"
                );
                return self.problem(place, message);
            }
            (None, Some(operators)) => operators,
            (None, None) => return,
        };
        for message in saga.problems_behind(before) {
            self.problem(place, message);
        }
    }

    fn provider(&mut self, place: SourcePosition, provider: &'a EffectProvider) {
        let name = &provider.name;
        if !self.may_provide {
            let message = format!(
                "the provider `{name}` cannot be applied: providers of effects stand in the operator's directory alone"
            );
            // The refused provider's effects still count as known for the rest of the file.
            self.provided.extend(provider.effects.iter().map(|effect| (effect.name.clone(), provider)));
            return self.problem(place, message);
        }
        for effect in &provider.effects {
            let here = self.provided.get(&effect.name).copied();
            let there = self.operators.effect(&effect.name, self.tenant).map(|(provider, _)| &**provider);
            if let Some(other) = here.or(there.filter(|there| there.name != *name)) {
                let (effect, other) = (&effect.name, &other.name);
                let message = format!("the effect `{effect}` is that of the provider `{other}` already");
                self.problem(place, message);
            }
            self.provided.insert(effect.name.clone(), provider);
        }
    }

    /// Checks that the ordered effects exist for the tenant.
    fn orders(&mut self, orders: &[(EffectName, SourcePosition)]) {
        for (effect, place) in orders {
            let is_provided =
                self.provided.get(effect).is_some_and(|provider| provider.tenants.contain(self.tenant));
            let is_there = self.operators.effect(effect, self.tenant).is_some();
            if is_provided || is_there || self.outlined.may_have(effect) {
                continue;
            }
            let there = self.operators.effects();
            let there = there.filter(|name| self.operators.effect(name, self.tenant).is_some());
            let names: Vec<_> = there.chain(self.provided.keys()).map(EffectName::as_str).collect();
            let message =
                format!("no provider has the effect `{effect}`{}", did_you_mean(effect.as_str(), &names));
            self.problem(*place, message);
        }
    }
}
