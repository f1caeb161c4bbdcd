//! Answers to verbs, as they are kept and sent.

use model::{CommandId, EffectName, StepName};
use serde::{Deserialize, Serialize};
use workflow::Json;
use workflow::instance::{CommandPurpose, CorrelationRecord};
use workflow::step::{InputDisposition, RequestRefusal, SagaTransition, WorkItem, WorkPayload};

use super::summary::InstanceSummary;

/// Limit of the work's inputs in one answer, in bytes of JSON; further inputs are left out.
const PAYLOADS_BYTES_MAX: usize = 256 * 1024;

/// Answer to a verb.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbAnswerRow {
    /// Hash of the request and its caller.
    #[serde(default)]
    pub request_hash: String,
    /// Outcome of the verb.
    pub outcome: VerbOutcome,
    /// The instance, as it is since.
    pub instance: Option<InstanceSummary>,
    /// Work that was ordered, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<OrderedWork>,
}

/// Outcome of a verb.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerbOutcome {
    /// Verb changed the instance.
    Applied,
    /// Verb waits behind a letter or a pause.
    Held,
    /// Verb waits for its step, or for the start.
    Kept,
    /// Verb is a dead letter.
    DeadLetter,
    /// Verb changed nothing: why.
    Ignored(String),
    /// Verb was refused.
    Refused(RequestRefusal),
}

/// Work that was ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedWork {
    /// Id of the command.
    pub command: CommandId,
    /// The step that ordered it.
    pub step: StepName,
    /// The branch of the step, where it is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<StepName>,
    /// Purpose of the work, where it is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<CommandPurpose>,
    /// The effect; none for a command of an aggregate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<EffectName>,
    /// The command that is not wanted any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancels: Option<CommandId>,
    /// Type and id of the aggregate, and type of its command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<(String, String, String)>,
    /// Payload of the work, as JSON; none where it is given nothing, and where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
}

impl VerbAnswerRow {
    /// The answer that follows from a transition; `None` where the input has to be offered again.
    pub(super) fn of(change: &SagaTransition, request_hash: &str) -> Option<Self> {
        let outcome = match &change.fate {
            InputDisposition::Applied => VerbOutcome::Applied,
            InputDisposition::Held(_) => VerbOutcome::Held,
            InputDisposition::Deferred => VerbOutcome::Kept,
            InputDisposition::DeadLetter(_) => VerbOutcome::DeadLetter,
            InputDisposition::Ignored(why) => VerbOutcome::Ignored(why.as_str().to_owned()),
            InputDisposition::Refused(refusal) => VerbOutcome::Refused(refusal.clone()),
            InputDisposition::Later(_) | InputDisposition::NoRoom => return None,
        };
        let record = change.record.as_ref();
        let mut room = PAYLOADS_BYTES_MAX;
        let work = change.work.iter().map(|item| OrderedWork::of(item, record, &mut room)).collect();
        let request_hash = request_hash.to_owned();
        Some(Self { request_hash, outcome, instance: record.and_then(InstanceSummary::of), work })
    }

    /// The refusal of a request whose id was used for another one, or so long ago that its answer is gone.
    pub(super) fn reused(request_hash: &str, why: &str) -> Self {
        let refusal = RequestRefusal { reason: "REQUEST_ID_REUSED".to_owned(), message: why.to_owned() };
        let outcome = VerbOutcome::Refused(refusal);
        Self { request_hash: request_hash.to_owned(), outcome, instance: None, work: Vec::new() }
    }

    /// The refusal, where it is one.
    #[must_use]
    pub const fn refusal(&self) -> Option<&RequestRefusal> {
        match &self.outcome {
            VerbOutcome::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl OrderedWork {
    fn of(item: &WorkItem, record: Option<&CorrelationRecord>, room: &mut usize) -> Self {
        let open = record
            .and_then(CorrelationRecord::instance)
            .and_then(|instance| instance.open.get(&item.command));
        let mut payload = |value: &Json| {
            let text = value.to_string();
            *room = room.checked_sub(text.len())?;
            Some(text)
        };
        let (mut effect, mut cancels, mut aggregate) = (None, None, None);
        let payload = match &item.what {
            WorkPayload::Effect { effect: name, input } => {
                effect = Some(name.clone());
                payload(input)
            }
            WorkPayload::Cancel { effect: name, of } => {
                (effect, cancels) = (Some(name.clone()), Some(*of));
                None
            }
            WorkPayload::Command { aggregate: kind, id, kind: command, payload: given } => {
                aggregate = Some((kind.clone(), id.clone(), command.clone()));
                payload(given)
            }
        };
        Self {
            command: item.command,
            step: item.step.clone(),
            branch: open.map(|open| open.branch.clone()),
            purpose: open.map(|open| open.purpose),
            effect,
            cancels,
            aggregate,
            payload,
        }
    }
}
