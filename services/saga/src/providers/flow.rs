//! Flows of this suite: a call submits one and waits for its end.
//!
//! The name of a flow is derived from its command, and its request id is that of the command, so a repeated submission gets the
//! existing flow. A watch of each context reports ends, so nothing polls.

mod client;
mod end;
mod file;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use flow_file::FlowFile;
use identity::TrustDomain;
use model::{ActorId, CommandId, ContextId, FlowId, TenantId, Timestamp};
use rpc::Channel;
use workflow::ledger::ProviderAnswer;
use workflow::provider::{Effect, EffectAction as CallKind, FlowCall, FlowTransport};

use self::client::{EffectFlowError, EffectFlowScope, EffectFlowSubmission, FlowClient};
use self::end::EffectFlow;
pub use self::file::{BadFlowFiles, FlowFiles};
pub(crate) use self::watch::WAITING_MAX;
use self::watch::{ContextWatch, answer_of, flow_name};
use super::http::failed;
use super::{CallProvider, ProviderCall};
use crate::effects::CallMessage;
use crate::secrets::Secrets;

/// Age of a command up to which the scheduler certainly knows its request id: it keeps them for 24 hours.
const REMEMBERED: Duration = Duration::from_secs(23 * 3600);
/// Time by which the clock that dated a command may be ahead of this one.
const SKEW: Duration = Duration::from_secs(1800);
/// Waits between tries of a submission whose answer was lost.
const SUBMIT_AGAIN: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(600), Duration::from_millis(1500)];

/// Function that sends a message to a call; returns whether the call is open in this process.
pub type CallNotifier = Arc<dyn Fn(CommandId, CallMessage) -> bool + Send + Sync>;
/// Function that looks up the context of a tenant; `None` for one that has none.
pub type TenantContextLookup = Arc<dyn Fn(&TenantId) -> Option<ContextId> + Send + Sync>;

/// Environment that flows are run in.
#[derive(Clone)]
pub struct EffectFlowEnvironment {
    /// Channel to the scheduler.
    pub scheduler: Channel,
    /// Channel to storage, which takes the files of flows.
    pub storage: Channel,
    /// Trust domain of the servers that tokens are issued for.
    pub trust_domain: TrustDomain,
    /// Source of the actors' keys.
    pub secrets: Arc<Secrets>,
    /// Look-up of the context that runs a tenant's flows.
    pub context_of: TenantContextLookup,
    /// Receiver of the ends of flows.
    pub notify: CallNotifier,
}

/// Provider of effects that are flows.
pub struct FlowProvider {
    client: FlowClient,
    files: FlowFiles,
    context_of: TenantContextLookup,
    notify: CallNotifier,
    watches: Mutex<HashMap<ContextId, Arc<ContextWatch>>>,
}

impl fmt::Debug for FlowProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowProvider").finish_non_exhaustive()
    }
}

/// Parts of a call that its submission takes.
struct EffectFlowTemplate<'a> {
    flow: &'a FlowCall,
    file: &'a FlowFile,
}

impl FlowProvider {
    /// Makes the provider, which watches a context from the first call there on. Needs a running runtime.
    #[must_use]
    pub fn new(transport: &FlowTransport, files: FlowFiles, around: EffectFlowEnvironment) -> Self {
        let EffectFlowEnvironment { scheduler, storage, trust_domain, secrets, context_of, notify } = around;
        let actor = (ActorId(transport.actor), transport.signing_key.clone());
        let client = FlowClient::new((scheduler, storage), actor, trust_domain, secrets);
        Self { client, files, context_of, notify, watches: Mutex::default() }
    }

    /// Scope of a tenant's flows, and the watch of its context.
    fn watch_of(&self, tenant: &TenantId) -> Option<(EffectFlowScope, Arc<ContextWatch>)> {
        let place = EffectFlowScope { tenant: tenant.clone(), context: (self.context_of)(tenant)? };
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(ContextWatch::new(self.client.clone(), &place, Arc::clone(&self.notify)));
        let watch = Arc::clone(watches.entry(place.context).or_insert_with(new));
        Some((place, watch))
    }

    fn wanted<'a>(&'a self, effect: &'a Effect) -> Option<EffectFlowTemplate<'a>> {
        let CallKind::Flow(flow) = &effect.call else { return None };
        Some(EffectFlowTemplate { flow, file: self.files.of(&effect.name)? })
    }

    async fn make(&self, call: &ProviderCall) -> Result<ProviderAnswer, ProviderAnswer> {
        let Some(wanted) = self.wanted(&call.effect) else {
            return Err(failed("request", "the flow file of the effect is not loaded"));
        };
        let Some((place, watch)) = self.watch_of(&call.tenant) else {
            return Err(passing(format!("the tenant `{}` has no context", call.tenant)));
        };
        let submission = EffectFlowSubmission {
            command: call.command,
            name: flow_name(call.command),
            variables: file::variables(call, wanted.flow)
                .map_err(|error| failed("formula", &error.to_string()))?,
            file: wanted.file,
            traceparent: call.traceparent.as_deref(),
        };
        watch.stands().await.map_err(passing)?;
        let noted = watch.note(call).map_err(passing)?;
        let flow = self.flow_for(call, &place, &submission).await?;
        match answer_of(&self.client, &place, &flow).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => {
                noted.wait_for(flow.id);
                Ok(ProviderAnswer::Waiting { external: Some(flow.id.to_string()) })
            }
            Err(trouble) => {
                Err(ProviderAnswer::Unknown { why: format!("the flow {} ended: {trouble}", flow.id) })
            }
        }
    }

    /// Returns the flow of a call: the existing one, or a new one.
    async fn flow_for(
        &self,
        call: &ProviderCall,
        place: &EffectFlowScope,
        submission: &EffectFlowSubmission<'_>,
    ) -> Result<EffectFlow, ProviderAnswer> {
        if !is_remembered(call.command, Timestamp::now()) {
            let found = self.client.find(place, &submission.name).await;
            if let Some(found) = found.map_err(|trouble| passing(trouble.to_string()))? {
                return Ok(found);
            }
        }
        call.sent.raise();
        match self.submit(place, submission).await {
            Ok(flow) => Ok(flow),
            // The flow was submitted before with another version of the flow file.
            Err(trouble) if trouble.is_other_body() => {
                let found = self.client.find(place, &submission.name).await;
                let found = found.map_err(|trouble| ProviderAnswer::Unknown { why: trouble.to_string() })?;
                found.ok_or_else(|| ProviderAnswer::Unknown {
                    why: "its flow was submitted and is gone".to_owned(),
                })
            }
            Err(EffectFlowError::Away(why)) => Err(ProviderAnswer::Unknown { why }),
            Err(EffectFlowError::Busy { why, after }) => Err(ProviderAnswer::Passing { why, after }),
            Err(EffectFlowError::Refused { code, why }) => Err(failed(&code.to_ascii_lowercase(), &why)),
            Err(trouble @ (EffectFlowError::Unsigned { .. } | EffectFlowError::PositionGone)) => {
                Err(passing(trouble.to_string()))
            }
        }
    }

    /// Submits a flow, and retries where the answer was lost.
    async fn submit(
        &self,
        place: &EffectFlowScope,
        submission: &EffectFlowSubmission<'_>,
    ) -> Result<EffectFlow, EffectFlowError> {
        for wait in SUBMIT_AGAIN {
            match self.client.submit(place, submission).await {
                Err(EffectFlowError::Away(_)) => tokio::time::sleep(wait).await,
                submitted => return submitted,
            }
        }
        self.client.submit(place, submission).await
    }

    async fn look_up(&self, call: &ProviderCall) -> Option<ProviderAnswer> {
        let (place, watch) = self.watch_of(&call.tenant)?;
        let looked = async {
            let Some(flow) = self.client.find(&place, &flow_name(call.command)).await? else {
                return Ok(ProviderAnswer::Passing { why: "it was never submitted".to_owned(), after: None });
            };
            if let Some(answer) = answer_of(&self.client, &place, &flow).await? {
                return Ok(answer);
            }
            watch.adopt(call, Some(flow.id));
            Ok(ProviderAnswer::Waiting { external: Some(flow.id.to_string()) })
        };
        let looked: Result<_, EffectFlowError> = looked.await;
        looked
            .inspect_err(|trouble| {
                tracing::info!(effect = %call.effect.name, command = %call.command, "its flow cannot be looked up: {trouble}");
            })
            .ok()
    }
}

#[async_trait]
impl CallProvider for FlowProvider {
    async fn call(&self, call: &ProviderCall) -> ProviderAnswer {
        self.make(call).await.unwrap_or_else(|answer| answer)
    }

    async fn ask(&self, call: &ProviderCall) -> Option<ProviderAnswer> {
        self.look_up(call).await
    }

    async fn adopt(&self, call: &ProviderCall, external: &str) {
        if let Some((_, watch)) = self.watch_of(&call.tenant) {
            watch.adopt(call, external.parse().ok().map(FlowId));
        }
    }

    async fn stop(&self, call: &ProviderCall, external: &str) {
        if let (Some((place, watch)), Ok(flow)) = (self.watch_of(&call.tenant), external.parse()) {
            watch.cancel(place, call.command, FlowId(flow));
        }
    }
}

/// Returns true if the scheduler certainly remembers the request id of a command, provided that it was ever used.
fn is_remembered(command: CommandId, now: Timestamp) -> bool {
    let ordered = command.time();
    ordered <= now + SKEW && now.since(ordered) < REMEMBERED
}

const fn passing(why: String) -> ProviderAnswer {
    ProviderAnswer::Passing { why, after: None }
}

#[cfg(test)]
mod tests;
