//! Flows of this suite: a call submits one and waits for its end.
//!
//! A flow is called after its command, and its request id is the command's: whoever submits it again is given the one that there
//! is. Ends are told by a watch of each context, so nothing polls.

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
use workflow::ledger::Answer;
use workflow::provider::{Call as CallKind, Effect, FlowCall, FlowTransport};

use self::client::{FlowClient, Place, Submission, Trouble};
use self::end::Flow;
pub use self::file::{BadFlowFiles, FlowFiles};
pub(crate) use self::watch::WAITING_MAX;
use self::watch::{ContextWatch, answer_of, flow_name};
use super::http::failed;
use super::{Call, Provider};
use crate::effects::Word;
use crate::secrets::Secrets;

/// Age of a command up to which the scheduler knows its request id for certain: it keeps one for 24 hours.
const REMEMBERED: Duration = Duration::from_secs(23 * 3600);
/// Time by which the clock that dated a command may be ahead of this one.
const SKEW: Duration = Duration::from_secs(1800);
/// Waits between tries of a submission whose answer was lost.
const SUBMIT_AGAIN: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(600), Duration::from_millis(1500)];

/// Tells a call something; says whether it is open in this process.
pub type Tell = Arc<dyn Fn(CommandId, Word) -> bool + Send + Sync>;
/// The context of a tenant; nothing for one that has none.
pub type ContextOf = Arc<dyn Fn(&TenantId) -> Option<ContextId> + Send + Sync>;

/// What flows are run with.
#[derive(Clone)]
pub struct FlowSurroundings {
    /// The way to the scheduler.
    pub scheduler: Channel,
    /// The way to storage, which takes what flows carry along.
    pub storage: Channel,
    /// Whose servers tokens are for.
    pub trust_domain: TrustDomain,
    /// Where keys of actors are.
    pub secrets: Arc<Secrets>,
    /// Where tenants have their flows run.
    pub context_of: ContextOf,
    /// Where ends are told.
    pub tell: Tell,
}

/// Provider of effects that are flows.
pub struct FlowProvider {
    client: FlowClient,
    files: FlowFiles,
    context_of: ContextOf,
    tell: Tell,
    watches: Mutex<HashMap<ContextId, Arc<ContextWatch>>>,
}

impl fmt::Debug for FlowProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowProvider").finish_non_exhaustive()
    }
}

/// What a submission takes of its call.
struct Wanted<'a> {
    flow: &'a FlowCall,
    file: &'a FlowFile,
}

impl FlowProvider {
    /// Makes the provider. Watches a context from the first call there on. To be used within a runtime.
    #[must_use]
    pub fn new(transport: &FlowTransport, files: FlowFiles, around: FlowSurroundings) -> Self {
        let FlowSurroundings { scheduler, storage, trust_domain, secrets, context_of, tell } = around;
        let actor = (ActorId(transport.actor), transport.signing_key.clone());
        let client = FlowClient::new((scheduler, storage), actor, trust_domain, secrets);
        Self { client, files, context_of, tell, watches: Mutex::default() }
    }

    /// The place of a tenant's flows, and the watch there.
    fn watch_of(&self, tenant: &TenantId) -> Option<(Place, Arc<ContextWatch>)> {
        let place = Place { tenant: tenant.clone(), context: (self.context_of)(tenant)? };
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(ContextWatch::new(self.client.clone(), &place, Arc::clone(&self.tell)));
        let watch = Arc::clone(watches.entry(place.context).or_insert_with(new));
        Some((place, watch))
    }

    fn wanted<'a>(&'a self, effect: &'a Effect) -> Option<Wanted<'a>> {
        let CallKind::Flow(flow) = &effect.call else { return None };
        Some(Wanted { flow, file: self.files.of(&effect.name)? })
    }

    async fn make(&self, call: &Call) -> Result<Answer, Answer> {
        let Some(wanted) = self.wanted(&call.effect) else {
            return Err(failed("request", "the effect is no flow that was loaded"));
        };
        let Some((place, watch)) = self.watch_of(&call.tenant) else {
            return Err(passing(format!("the tenant `{}` has no context", call.tenant)));
        };
        let submission = Submission {
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
                Ok(Answer::Waiting { external: Some(flow.id.to_string()) })
            }
            Err(trouble) => Err(Answer::Unknown { why: format!("the flow {} ended: {trouble}", flow.id) }),
        }
    }

    /// The one flow of a call: the one that there is, or a new one.
    async fn flow_for(
        &self,
        call: &Call,
        place: &Place,
        submission: &Submission<'_>,
    ) -> Result<Flow, Answer> {
        if !is_remembered(call.command, Timestamp::now()) {
            let found = self.client.find(place, &submission.name).await;
            if let Some(found) = found.map_err(|trouble| passing(trouble.to_string()))? {
                return Ok(found);
            }
        }
        call.sent.raise();
        match self.submit(place, submission).await {
            Ok(flow) => Ok(flow),
            // It was submitted with another flow file, before that was changed.
            Err(trouble) if trouble.is_other_body() => {
                let found = self.client.find(place, &submission.name).await;
                let found = found.map_err(|trouble| Answer::Unknown { why: trouble.to_string() })?;
                found.ok_or_else(|| Answer::Unknown { why: "its flow was submitted and is gone".to_owned() })
            }
            Err(Trouble::Away(why)) => Err(Answer::Unknown { why }),
            Err(Trouble::Busy { why, after }) => Err(Answer::Passing { why, after }),
            Err(Trouble::Refused { code, why }) => Err(failed(&code.to_ascii_lowercase(), &why)),
            Err(trouble @ (Trouble::Unsigned { .. } | Trouble::PositionGone)) => {
                Err(passing(trouble.to_string()))
            }
        }
    }

    /// Submits a flow, again where the answer was lost.
    async fn submit(&self, place: &Place, submission: &Submission<'_>) -> Result<Flow, Trouble> {
        for wait in SUBMIT_AGAIN {
            match self.client.submit(place, submission).await {
                Err(Trouble::Away(_)) => tokio::time::sleep(wait).await,
                submitted => return submitted,
            }
        }
        self.client.submit(place, submission).await
    }

    async fn look_up(&self, call: &Call) -> Option<Answer> {
        let (place, watch) = self.watch_of(&call.tenant)?;
        let looked = async {
            let Some(flow) = self.client.find(&place, &flow_name(call.command)).await? else {
                return Ok(Answer::Passing { why: "it was never submitted".to_owned(), after: None });
            };
            if let Some(answer) = answer_of(&self.client, &place, &flow).await? {
                return Ok(answer);
            }
            watch.adopt(call, Some(flow.id));
            Ok(Answer::Waiting { external: Some(flow.id.to_string()) })
        };
        let looked: Result<_, Trouble> = looked.await;
        looked
            .inspect_err(|trouble| {
                tracing::info!(effect = %call.effect.name, command = %call.command, "its flow cannot be looked up: {trouble}");
            })
            .ok()
    }
}

#[async_trait]
impl Provider for FlowProvider {
    async fn call(&self, call: &Call) -> Answer {
        self.make(call).await.unwrap_or_else(|answer| answer)
    }

    async fn ask(&self, call: &Call) -> Option<Answer> {
        self.look_up(call).await
    }

    async fn adopt(&self, call: &Call, external: &str) {
        if let Some((_, watch)) = self.watch_of(&call.tenant) {
            watch.adopt(call, external.parse().ok().map(FlowId));
        }
    }

    async fn stop(&self, call: &Call, external: &str) {
        if let (Some((place, watch)), Ok(flow)) = (self.watch_of(&call.tenant), external.parse()) {
            watch.cancel(place, call.command, FlowId(flow));
        }
    }
}

/// Whether the request id of a command is known to the scheduler for certain, if it was ever used.
fn is_remembered(command: CommandId, now: Timestamp) -> bool {
    let ordered = command.time();
    ordered <= now + SKEW && now.since(ordered) < REMEMBERED
}

const fn passing(why: String) -> Answer {
    Answer::Passing { why, after: None }
}

#[cfg(test)]
mod tests;
