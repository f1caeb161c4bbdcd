//! Explanation of an instance's state, for the person on call.

use ::rpc::Error;
use model::{CommandId, EffectState, SagaStatus, TenantId, Timestamp};
use proto::convert::enums::effect_state_to_wire;
use proto::convert::saga::{InstanceName, instance as instance_name};
use proto::required::missing;
use proto::v1::{ExplainSagaRequest, ExplainSagaResponse, SagaFinding, SagaFindingKind};
use tonic::{Code, Status};
use workflow::definition::{Saga, StepAction};
use workflow::instance::{CorrelationEntry, OpenCommand, SagaInstance, Tombstone};
use workflow::ledger::CallRow;
use workflow::placement::owner_of;
use workflow::{LaneRowKey, WorkflowLane};

use super::instances::{FoundInstance, no_instance};
use super::lists::failed;
use super::wire::{self, moment};
use super::{SagaApi, SagaCaller};
use crate::lane::dead_letter_name::DeadLetterName;
use crate::placement::unowned;
use crate::reads::{RowReadError, RowReader};
use crate::sagas::{StarvedRow, sources};

/// Number of an instance's open calls that are looked at.
const CALLS_MAX: usize = 64;
/// Types of events that are named in a sentence.
const TYPES_SHOWN: usize = 5;

/// Explains why an instance is where it is.
pub(super) async fn explain(
    api: &SagaApi,
    caller: &SagaCaller,
    request: ExplainSagaRequest,
) -> Result<ExplainSagaResponse, Status> {
    let mut violations = missing(&request);
    let ExplainSagaRequest { tenant_id, saga, correlation_id } = request;
    let name = instance_name((&tenant_id, &saga, &correlation_id), api.has_tenants(), &mut violations);
    let name = violations.into_result(name).map_err(Error::from)?;
    api.read(caller, &name.tenant).await?;
    let found = match api.reads().instance(name.clone()).await {
        Ok(found) => found,
        Err(status) if status.code() == Code::NotFound => {
            return starved(api, &name).await?.ok_or(status);
        }
        Err(status) => return Err(status),
    };
    let looked = InstanceExplainer { api, reads: api.reads(), found: &found };
    let findings = match &found.record.entry {
        CorrelationEntry::Live(instance) => looked.live(instance).await.map_err(failed)?,
        CorrelationEntry::Ended(tombstone) => vec![ended(tombstone)],
        CorrelationEntry::Awaited(_) => return Err(no_instance(&found.name.saga, &found.name.correlation)),
    };
    let cause = findings.iter().find(|finding| finding.blocks);
    Ok(ExplainSagaResponse {
        saga: wire::saga::saga(found.whose(), &found.record),
        summary: summary(&found, &findings, cause),
        cause: cause.map_or(SagaFindingKind::Unspecified, SagaFinding::kind).into(),
        findings,
    })
}

/// Explains why an instance may not have started although its event has come: starts of its lane wait for a quota. `None` where none
/// does.
async fn starved(api: &SagaApi, name: &InstanceName) -> Result<Option<ExplainSagaResponse>, Status> {
    let reads = api.reads();
    let Some(lane) = reads.lane_of(&name.tenant, &name.saga, &name.correlation) else { return Ok(None) };
    let row: Option<StarvedRow> = reads.row(&lane, LaneRowKey::starved()).await.map_err(failed)?;
    let Some(StarvedRow { quota, most, found, since }) = row else { return Ok(None) };
    let detail = format!(
        "starts of its lane {lane} wait since {} for the quota `{quota}`: the tenant has {found}, and may have {most}; they go on \
         when instances, timers and calls end, or with a higher quota in the tenants file",
        since.rfc3339()
    );
    let quota = SagaFinding { lane: lane.to_string(), ..finding(SagaFindingKind::Tenant, true, detail) };
    let tenant = paused(api, &name.tenant);
    let unowned = unowned::why(&api.app.view().members, &lane).map(|why| without_owner(&lane, &why));
    let findings: Vec<_> = tenant.into_iter().chain(unowned).chain([quota]).collect();
    let cause = findings.first();
    let why = cause.map(|cause| cause.detail.clone()).unwrap_or_default();
    Ok(Some(ExplainSagaResponse {
        saga: None,
        summary: format!("It has not started, whether or not its event has come: {why}."),
        cause: cause.map_or(SagaFindingKind::Unspecified, SagaFinding::kind).into(),
        findings,
    }))
}

/// Reports since when a tenant is paused.
fn paused(api: &SagaApi, tenant: &TenantId) -> Option<SagaFinding> {
    let since = api.app.view().decided.paused_since(tenant)?;
    let detail = format!("its tenant is paused since {}; ResumeTenant lets it go on", since.rfc3339());
    Some(finding(SagaFindingKind::Tenant, true, detail))
}

fn without_owner(lane: &WorkflowLane, why: &str) -> SagaFinding {
    let detail = format!("its lane {lane} has no owner: {why}");
    SagaFinding { lane: lane.to_string(), ..finding(SagaFindingKind::Lane, true, detail) }
}

fn finding(kind: SagaFindingKind, blocks: bool, detail: String) -> SagaFinding {
    SagaFinding { kind: kind.into(), blocks, detail, ..SagaFinding::default() }
}

fn ended(tombstone: &Tombstone) -> SagaFinding {
    let reason = tombstone.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let (status, step, at) = (tombstone.status, &tombstone.step, tombstone.ended.rfc3339());
    finding(SagaFindingKind::Status, true, format!("it is {status} since {at}, at the step `{step}`{reason}"))
}

/// The answer in one sentence: the instance's step, what it waits for, and when that changes on its own.
fn summary(found: &FoundInstance, findings: &[SagaFinding], cause: Option<&SagaFinding>) -> String {
    let place = match &found.record.entry {
        CorrelationEntry::Live(instance) => {
            let (status, step) = (instance.status, &instance.step);
            format!("It is {status} at the step `{step}` since {}", instance.entered.rfc3339())
        }
        _ => return findings.first().map(|finding| sentence(&finding.detail)).unwrap_or_default(),
    };
    let kept =
        cause.map_or_else(|| "nothing keeps it from going on".to_owned(), |cause| cause.detail.clone());
    let timer = findings.iter().find(|finding| finding.kind() == SagaFindingKind::Timer);
    // The timer that wakes the instance if nothing else does, unless the cause names it already.
    let timer = timer
        .filter(|timer| !timer.blocks && cause.is_some_and(|cause| cause.kind() == SagaFindingKind::Event));
    let timer = timer.map(|timer| format!("; {}", timer.detail)).unwrap_or_default();
    format!("{place}: {kept}{timer}.")
}

fn sentence(detail: &str) -> String {
    let mut chars = detail.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", chars.as_str())
}

/// Explainer of one instance.
struct InstanceExplainer<'a> {
    api: &'a SagaApi,
    reads: RowReader,
    found: &'a FoundInstance,
}

impl InstanceExplainer<'_> {
    /// Collects all findings about an instance that has not ended, in order of precedence.
    async fn live(&self, instance: &SagaInstance) -> Result<Vec<SagaFinding>, RowReadError> {
        let (mut findings, sources) = (Vec::new(), self.sources().await);
        findings.extend(paused(self.api, &self.found.name.tenant));
        findings.extend(self.lane(&sources));
        let definition = match self.reads.definition(instance.definition).await {
            Ok(definition) => Some(definition),
            Err(error @ RowReadError::Store(_)) => return Err(error),
            Err(error) => {
                tracing::error!("{error}");
                None
            }
        };
        findings.extend(self.definition(instance, definition.as_deref()));
        findings.push(status(instance));
        findings.extend(self.letter().await?);
        if self.found.record.is_paused {
            let held = self.found.record.held.len();
            let detail = format!("it is paused, and {held} inputs are held back; ResumeSaga lets it go on");
            findings.push(finding(SagaFindingKind::Pause, true, detail));
        }
        if let Some(definition) = &definition {
            findings.extend(waits(instance, definition));
        }
        findings.extend(timers(instance, definition.as_deref()));
        findings.extend(self.open(instance).await?);
        findings.extend(sources.into_iter().filter_map(|source| source.finding));
        Ok(findings)
    }

    /// Reports why the lane has no owner, or that no replica reads its sources.
    fn lane(&self, sources: &[SourceDiagnosis]) -> Option<SagaFinding> {
        let (app, lane) = (&self.api.app, &self.found.lane);
        let (view, is_unread) = (app.view(), sources.iter().any(|source| source.is_unread));
        // Lanes of a paused tenant have no owner, which the finding about the tenant says.
        let is_paused = view.decided.paused_since(lane.tenant()).is_some();
        // A replica without a view of the others can only judge by the broker.
        let why = unowned::why(&view.members, lane);
        if let Some(why) = why.filter(|_| !is_paused && !view.members.is_empty()) {
            return Some(without_owner(lane, &why));
        }
        let detail = match app.away().get(lane) {
            Some(why) => format!("its lane {lane} stays away from this replica: {why}"),
            None if !is_unread => return None,
            None => match owner_of(&view.members, lane, view.decided.moved_to(lane)) {
                Some(owner) if !is_paused => {
                    format!(
                        "no replica reads for its lane {lane}: `{}` is to take it, and has not yet",
                        owner.name
                    )
                }
                _ => format!("no replica reads for its lane {lane}: it has no owner, or that has just begun"),
            },
        };
        Some(SagaFinding { lane: lane.to_string(), ..finding(SagaFindingKind::Lane, true, detail) })
    }

    fn definition(&self, instance: &SagaInstance, found: Option<&Saga>) -> Option<SagaFinding> {
        let (version, hash) = (instance.version, instance.definition);
        if found.is_none() {
            let detail = format!("its definition, version {version}, cannot be loaded ({hash})");
            return Some(finding(SagaFindingKind::Definition, true, detail));
        }
        let newer = self.reads.definitions().saga(&self.found.name.tenant, &self.found.name.saga);
        let newer = newer.filter(|saga| saga.hash != hash)?.version;
        let detail = format!("it runs version {version}; instances that start now run version {newer}");
        Some(finding(SagaFindingKind::Definition, false, detail))
    }

    async fn letter(&self) -> Result<Option<SagaFinding>, RowReadError> {
        let Some(number) = self.found.record.parked_by else { return Ok(None) };
        let key = LaneRowKey::dead(&self.found.name.correlation, number);
        let name = DeadLetterName { lane: self.found.lane.clone(), key };
        let held = self.found.record.held.len();
        let why = match self.reads.letter(&name).await? {
            Some(letter) => format!(" ({}: {})", letter.row.letter.code, letter.row.letter.why),
            None => String::new(),
        };
        let detail = format!(
            "a dead letter stands in front of {held} inputs{why}; redrive it, or purge it with what is behind it"
        );
        let dead_letter_key = name.to_string();
        Ok(Some(SagaFinding { dead_letter_key, ..finding(SagaFindingKind::DeadLetter, true, detail) }))
    }

    /// Reports commands and calls that the instance waits for.
    async fn open(&self, instance: &SagaInstance) -> Result<Vec<SagaFinding>, RowReadError> {
        let mut findings = Vec::new();
        for (id, open) in instance.open.iter().take(CALLS_MAX) {
            if open.effect.is_none() {
                let detail = format!("the command {id} of the step `{}` has no answer yet", open.step);
                let command_id = id.to_string();
                findings.push(SagaFinding { command_id, ..finding(SagaFindingKind::Command, true, detail) });
            }
        }
        for (id, open) in instance.open.iter().take(CALLS_MAX) {
            let Some(effect) = &open.effect else { continue };
            let lane =
                WorkflowLane::Effect { tenant: self.found.name.tenant.clone(), effect: effect.clone() };
            let row = self.reads.call(&lane, *id).await?;
            findings.push(call(*id, open, effect.as_str(), row.as_ref()));
        }
        Ok(findings)
    }

    /// Asks the broker about the sources of the lane.
    async fn sources(&self) -> Vec<SourceDiagnosis> {
        let (name, lane) = (&self.found.name, &self.found.lane);
        let versions = self.reads.definitions().versions(&name.tenant, &name.saga);
        let broker = &self.api.app.around().broker;
        let mut all = Vec::new();
        for (source, stream) in sources(&name.saga, &versions) {
            let about = |detail: String| {
                let source = source.to_string();
                Some(SagaFinding { source, ..finding(SagaFindingKind::Source, true, detail) })
            };
            match broker.cursor(stream, &source.consumer(lane)).await {
                Ok(Some(state)) if state.pending > 0 => {
                    let pending = state.pending;
                    let detail = format!("the source {source} is behind by {pending} messages");
                    all.push(SourceDiagnosis { is_unread: false, finding: about(detail) });
                }
                Ok(Some(_)) => {}
                Ok(None) => all.push(SourceDiagnosis { is_unread: true, finding: None }),
                Err(error) => {
                    tracing::info!("{error}");
                    let detail = "the broker does not answer: nothing comes in".to_owned();
                    all.push(SourceDiagnosis { is_unread: false, finding: about(detail) });
                    break;
                }
            }
        }
        all
    }
}

/// Diagnosis of one source.
struct SourceDiagnosis {
    /// True if no replica reads the source.
    is_unread: bool,
    finding: Option<SagaFinding>,
}

fn status(instance: &SagaInstance) -> SagaFinding {
    let reason = instance.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let step = &instance.step;
    let (blocks, detail) = match (&instance.stuck, instance.status) {
        (Some(stuck), _) => {
            let why = &stuck.why;
            (true, format!("it is stuck: {why}; RetrySagaStep, SkipSagaStep or CompleteSaga takes it on"))
        }
        (None, SagaStatus::Compensating) => (false, format!("it undoes what was done{reason}")),
        (None, status) if instance.cancelled.is_some() => {
            (false, format!("it is {status} at `{step}`, and will be undone unless its pivot succeeds"))
        }
        (None, status) => (false, format!("it is {status} at `{step}`")),
    };
    finding(SagaFindingKind::Status, blocks, detail)
}

/// Reports the events that the step waits for; `None` where it waits for timers only.
fn waits(instance: &SagaInstance, saga: &Saga) -> Option<SagaFinding> {
    let is_running = instance.status == SagaStatus::Running;
    let StepAction::Wait(wait) = &saga.steps.get(&instance.step).filter(|_| is_running)?.action else {
        return None;
    };
    let types = wait.on.keys().filter(|kind| !saga.is_raised(wait, kind));
    let event_types: Vec<String> = types.cloned().collect();
    if event_types.is_empty() {
        return None;
    }
    let mut shown = event_types.iter().take(TYPES_SHOWN).cloned().collect::<Vec<_>>().join(" or ");
    if event_types.len() > TYPES_SHOWN {
        shown.push_str(" or others");
    }
    let detail = format!("it waits for an event: {shown}");
    Some(SagaFinding { event_types, ..finding(SagaFindingKind::Event, true, detail) })
}

/// Reports the timers that are set, the earliest first. The earliest one blocks if the instance waits for nothing else.
fn timers(instance: &SagaInstance, saga: Option<&Saga>) -> Vec<SagaFinding> {
    let is_alone = instance.open.is_empty() && saga.is_some_and(|saga| waits(instance, saga).is_none());
    let mut timers: Vec<_> = instance.timers.iter().collect();
    timers.sort_by_key(|(_, timer)| timer.due);
    let about = |(place, (name, timer)): (usize, (&model::TimerName, &workflow::instance::Timer))| {
        let detail = format!("the timer `{name}` fires at {}", timer.due.rfc3339());
        let blocks = is_alone && place == 0 && instance.status == SagaStatus::Running;
        SagaFinding {
            timer: name.to_string(),
            event_types: vec![timer.raise.clone()],
            until_time: moment(timer.due),
            ..finding(SagaFindingKind::Timer, blocks, detail)
        }
    };
    timers.into_iter().enumerate().map(about).collect()
}

/// Describes what is known of a call whose end the instance waits for.
fn call(id: CommandId, open: &OpenCommand, effect: &str, row: Option<&CallRow>) -> SagaFinding {
    let step = &open.step;
    let at = |time: Timestamp| time.rfc3339();
    let base = |detail: String| SagaFinding {
        command_id: id.to_string(),
        effect: effect.to_owned(),
        ..finding(SagaFindingKind::Effect, true, detail)
    };
    let Some(row) = row else {
        return base(format!("the call of `{effect}` for the step `{step}` was not taken up yet"));
    };
    let last = row.last.as_ref().map(|last| format!(" ({last})")).unwrap_or_default();
    let attempts = row.attempts;
    let (detail, until) = match row.state {
        EffectState::Accepted => (format!("the call of `{effect}` is to be made{last}"), None),
        EffectState::Calling => (format!("the call of `{effect}` is being made, attempt {attempts}"), None),
        EffectState::Backoff => {
            let due = at(row.due);
            (
                format!("the call of `{effect}` is tried again at {due}, after {attempts} times{last}"),
                Some(row.due),
            )
        }
        EffectState::Waiting => {
            let due = at(row.due);
            (format!("`{effect}` was begun and has not ended; it is given up at {due}"), Some(row.due))
        }
        EffectState::Unknown => {
            (format!("whether the call of `{effect}` happened is being found out{last}"), Some(row.due))
        }
        EffectState::Manual => (
            format!("whether the call of `{effect}` happened is unknown{last}; settle it with ResolveEffect"),
            None,
        ),
        state => (format!("the call of `{effect}` is {state}, and its result is on its way"), None),
    };
    SagaFinding {
        effect_state: effect_state_to_wire(row.state).into(),
        until_time: until.and_then(moment),
        ..base(detail)
    }
}
