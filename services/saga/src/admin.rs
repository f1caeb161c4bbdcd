//! Handlers of the ops port's admin routes.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::TenantId;
use serde_json::{Map, Value, json};
use service::{AdminHandlers, AdminScope, DrainError, InfoScope, ReloadError, Shutdown, UnknownTenant};
use workflow::definition::Saga;
use workflow::provider::EffectProvider;

use crate::app::{App, Error, ReloadChange};
use crate::lane::{AGGREGATE_EVENTS, streams};

/// Handlers of the admin routes.
pub(crate) struct Admin {
    /// The service.
    pub(crate) app: Arc<App>,
    /// Ends the process.
    pub(crate) shutdown: Shutdown,
}

impl AdminHandlers for Admin {
    async fn drain(&self, scope: AdminScope) -> Result<Value, DrainError> {
        let (lanes, metrics) = (self.app.lanes(), &self.app.around().metrics);
        let (inputs, calls) = (metrics.inputs_under_way(), metrics.effects.under_way());
        match scope {
            AdminScope::Process => {
                self.shutdown.begin();
                Ok(json!({ "lanes": lanes, "inputs": inputs, "calls": calls }))
            }
            AdminScope::Tenant(tenant) => {
                if !self.app.drain_tenant(&tenant) {
                    return Err(UnknownTenant.into());
                }
                Ok(json!({ "tenant": tenant.as_str() }))
            }
        }
    }

    async fn reload(&self, scope: AdminScope) -> Result<Value, ReloadError> {
        if let AdminScope::Tenant(tenant) = &scope
            && !self.app.has_tenant(tenant)
        {
            return Err(UnknownTenant.into());
        }
        let (reloaded, tenant) = match &scope {
            AdminScope::Process => (self.app.reload().await, None),
            AdminScope::Tenant(tenant) => (self.app.reload_tenant(tenant).await, Some(tenant)),
        };
        match reloaded {
            Ok(changes) => {
                let changes: Vec<_> = changes.iter().map(change).collect();
                Ok(json!({ "in_force": self.versions(tenant), "changes": changes }))
            }
            Err(Error::Definitions(error)) => Err(ReloadError::Unavailable(error.to_string())),
            Err(error) => Err(ReloadError::Problems(error.to_string())),
        }
    }

    fn info(&self, scope: &InfoScope) -> Result<Value, UnknownTenant> {
        let tenant = match scope {
            InfoScope::Tenant(tenant) if !self.app.has_tenant(tenant) => return Err(UnknownTenant),
            InfoScope::Tenant(tenant) => Some(tenant),
            InfoScope::NoTenant | InfoScope::AllTenants => None,
        };
        let (around, role, in_force) =
            (self.app.around(), self.app.role(), self.app.definitions().in_force());
        let sagas = self.sagas(tenant).into_iter().map(|saga| {
            (saga.name.to_string(), json!({ "version": saga.version, "hash": saga.hash.to_string() }))
        });
        let is_theirs =
            |provider: &&Arc<EffectProvider>| tenant.is_none_or(|tenant| provider.tenants.contain(tenant));
        let effects = in_force.catalog.providers().filter(is_theirs).flat_map(|provider| {
            let hash = in_force.active.providers.get(&provider.name).map(ToString::to_string);
            let of = json!({ "provider": provider.name.as_str(), "hash": hash });
            provider.effects.iter().map(move |effect| (effect.name.to_string(), of.clone()))
        });
        let mut read = vec![AGGREGATE_EVENTS.to_owned()];
        read.extend(streams(around.has_tenants).map(|stream| stream.name));
        let mut roles = Vec::new();
        roles.extend(role.sagas.then_some("saga"));
        roles.extend(role.effects.then_some("effect"));
        Ok(json!({
            "roles": roles,
            "sagas": sagas.collect::<Map<_, _>>(),
            "effects": effects.collect::<Map<_, _>>(),
            "streams": read,
            "broker": around.broker.server().map(|server| server.version_text).ok(),
            "store": around.store.capabilities().kind,
            "durability": self.app.durability(),
        }))
    }

    fn waits(&self, scope: &InfoScope) -> Result<Vec<(String, String)>, UnknownTenant> {
        match scope {
            InfoScope::Tenant(tenant) if !self.app.has_tenant(tenant) => Err(UnknownTenant),
            scope => Ok(self.app.waits(scope)),
        }
    }
}

/// Renders a change made by a reload as JSON.
fn change(change: &ReloadChange) -> Value {
    let ReloadChange { kind, name, before, after } = change;
    let version = |version: &u32| Some(*version).filter(|version| *version > 0);
    json!({
        "kind": kind.as_str(),
        "name": name,
        "was_in_force": before.is_some(),
        "in_force": after.is_some(),
        "old_version": before.as_ref().and_then(version),
        "new_version": after.as_ref().and_then(version),
    })
}

impl Admin {
    /// Sagas that are in force: those of the operator, or all that a tenant has and no others.
    fn sagas(&self, tenant: Option<&TenantId>) -> Vec<Arc<Saga>> {
        let in_force = self.app.definitions().in_force();
        let Some(tenant) = tenant else { return in_force.catalog.sagas().map(Arc::clone).collect() };
        let theirs = in_force.definitions_of(tenant).into_iter().filter(|definition| definition.in_force);
        theirs.map(|definition| definition.saga).collect()
    }

    /// Versions of these sagas, by name.
    fn versions(&self, tenant: Option<&TenantId>) -> BTreeMap<String, u32> {
        self.sagas(tenant).iter().map(|saga| (saga.name.to_string(), saga.version)).collect()
    }
}
