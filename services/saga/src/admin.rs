//! What the ops port's admin routes do here.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use service::{AdminHandlers, AdminScope, DrainError, InfoScope, ReloadError, Shutdown, UnknownTenant};

use crate::app::{App, Error};

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
        match self.app.reload().await {
            Ok(()) => Ok(json!({ "in_force": self.sagas() })),
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
}

impl Admin {
    /// Sagas that are in force, with their versions.
    fn sagas(&self) -> BTreeMap<String, u32> {
        let catalog = self.app.definitions().catalog();
        catalog.sagas().map(|saga| (saga.name.to_string(), saga.version)).collect()
    }
}
