//! What the ops port's admin routes do here.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use service::{AdminHandlers, AdminScope, DrainError, InfoScope, ReloadError, Shutdown, UnknownTenant};

use crate::app::{App, Error, ReloadChange};

/// Handlers of the admin routes.
pub(crate) struct Admin {
    /// The service.
    pub(crate) app: Arc<App>,
    /// Ends the process.
    pub(crate) shutdown: Shutdown,
}

impl AdminHandlers for Admin {
    async fn drain(&self, scope: AdminScope) -> Result<Value, DrainError> {
        let lanes = self.app.lanes();
        match scope {
            AdminScope::Process => {
                self.shutdown.begin();
                Ok(json!({ "lanes": lanes }))
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
        let reloaded = match &scope {
            AdminScope::Process => self.app.reload().await,
            AdminScope::Tenant(tenant) => self.app.reload_tenant(tenant).await,
        };
        match reloaded {
            Ok(changes) => {
                let changes: Vec<_> = changes.iter().map(change).collect();
                Ok(json!({ "in_force": self.sagas(), "changes": changes }))
            }
            Err(Error::Definitions(error)) => Err(ReloadError::Unavailable(error.to_string())),
            Err(error) => Err(ReloadError::Problems(error.to_string())),
        }
    }

    fn info(&self, scope: &InfoScope) -> Result<Value, UnknownTenant> {
        if let InfoScope::Tenant(tenant) = scope
            && !self.app.has_tenant(tenant)
        {
            return Err(UnknownTenant);
        }
        Ok(json!({ "sagas": self.sagas(), "durability": self.app.durability() }))
    }

    fn waits(&self, scope: &InfoScope) -> Result<Vec<(String, String)>, UnknownTenant> {
        match scope {
            InfoScope::Tenant(tenant) if !self.app.has_tenant(tenant) => Err(UnknownTenant),
            scope => Ok(self.app.waits(scope)),
        }
    }
}

/// What a reload has changed.
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
    /// Sagas that are in force, with their versions.
    fn sagas(&self) -> BTreeMap<String, u32> {
        let catalog = self.app.definitions().catalog();
        catalog.sagas().map(|saga| (saga.name.to_string(), saga.version)).collect()
    }
}
