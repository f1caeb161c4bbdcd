//! Providers, built from their definitions.

use std::sync::Arc;

use egress::TrustAnchors;
use model::{BlobHash, ContextId, TenantId};
use workflow::provider::{EffectProvider as Definition, ProviderTransport};

use super::{App, FlowSuite};
use crate::providers::CallProvider;
use crate::providers::flow::{EffectFlowEnvironment, FlowFiles, FlowProvider};
use crate::providers::http::HttpProvider;
use crate::providers::smtp::SmtpProvider;
use crate::secrets::Secrets;

/// A provider as it was built.
#[derive(Clone)]
pub(super) struct BuiltProvider {
    /// Hash of the document that describes it.
    pub(super) hash: BlobHash,
    /// Flow files of its effects, as of that time.
    files: FlowFiles,
    pub(super) provider: Arc<dyn CallProvider>,
}

impl App {
    /// Returns the source of secrets.
    pub(super) fn secrets(&self) -> Secrets {
        match &self.config.secrets {
            Some(directory) => Secrets::in_directory(directory),
            None => Secrets::in_environment(),
        }
    }

    /// Builds a provider from its definition; returns why it cannot be used. An unchanged provider is kept: replacing it would restart
    /// its lanes, and might cut off calls under way.
    pub(super) fn build(
        &self,
        (definition, hash): (&Definition, BlobHash),
        before: Option<&BuiltProvider>,
        secrets: &Arc<Secrets>,
        trust: &TrustAnchors,
    ) -> Result<BuiltProvider, String> {
        let files = match &definition.transport {
            ProviderTransport::Flow(_) => {
                let directory = self.config.manifests.clone().unwrap_or_default();
                FlowFiles::read(&definition.effects, &directory).map_err(|error| error.to_string())?
            }
            ProviderTransport::Http(_) | ProviderTransport::Smtp(_) => FlowFiles::default(),
        };
        if let Some(before) = before.filter(|before| before.hash == hash && before.files.is_same(&files)) {
            return Ok(before.clone());
        }
        let provider = self.provider(definition, files.clone(), secrets, trust)?;
        Ok(BuiltProvider { hash, files, provider })
    }

    fn provider(
        &self,
        definition: &Definition,
        files: FlowFiles,
        secrets: &Arc<Secrets>,
        trust: &TrustAnchors,
    ) -> Result<Arc<dyn CallProvider>, String> {
        Ok(match &definition.transport {
            ProviderTransport::Http(http) => {
                let provider = HttpProvider::new(http, Arc::clone(secrets), trust.clone());
                Arc::new(provider.map_err(|error| error.to_string())?)
            }
            ProviderTransport::Smtp(smtp) => {
                let provider = SmtpProvider::new(smtp, Arc::clone(secrets), trust.clone());
                Arc::new(provider.map_err(|error| error.to_string())?)
            }
            ProviderTransport::Flow(flow) => {
                let suite = self.flows.clone();
                let FlowSuite { scheduler, storage, trust_domain } =
                    suite.ok_or("name the suite that runs flows with --scheduler")?;
                let (tenants, calls) = (self.tenants.subscribe(), self.calls.clone());
                let context_of = move |tenant: &TenantId| {
                    tenants.borrow().get(tenant).map(|tenant| ContextId(tenant.context))
                };
                let around = EffectFlowEnvironment {
                    scheduler,
                    storage,
                    trust_domain,
                    secrets: Arc::clone(secrets),
                    context_of: Arc::new(context_of),
                    notify: Arc::new(move |command, message| calls.notify(command, message)),
                };
                Arc::new(FlowProvider::new(flow, files, around))
            }
        })
    }
}
