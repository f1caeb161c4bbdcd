//! Instances.

use model::{CommandId, CorrelationId, SagaName, TenantId, Timestamp};
use proto::convert::saga::InstanceName;
use proto::v1;
use workflow::instance::{CorrelationEntry, CorrelationRecord, OpenCommand, Timer};

use super::super::convert;
use super::{json, moment};
use crate::lane::dead_letter_name::DeadLetterName;
use crate::sagas::InstanceSummary;

/// Reference to an instance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SagaInstanceRef<'a> {
    /// The tenant.
    pub(crate) tenant: &'a TenantId,
    /// The saga.
    pub(crate) saga: &'a SagaName,
    /// The correlation.
    pub(crate) correlation: &'a CorrelationId,
}

impl SagaInstanceRef<'_> {
    fn name(self) -> InstanceName {
        let Self { tenant, saga, correlation } = self;
        InstanceName { tenant: tenant.clone(), saga: saga.clone(), correlation: correlation.clone() }
    }
}

/// An instance without its state; `None` where events wait for its start.
pub(crate) fn saga(whose: SagaInstanceRef<'_>, record: &CorrelationRecord) -> Option<v1::Saga> {
    Some(convert::saga(&whose.name(), &InstanceSummary::of(record)?))
}

/// An instance with everything that is stored of it, except the last state of an ended one, which is in its journal.
pub(crate) fn detailed(
    whose: SagaInstanceRef<'_>,
    record: &CorrelationRecord,
    letter: Option<&DeadLetterName>,
) -> Option<v1::GetSagaResponse> {
    let base = v1::GetSagaResponse { saga: Some(saga(whose, record)?), ..Default::default() };
    let instance = match &record.entry {
        CorrelationEntry::Live(instance) => instance,
        CorrelationEntry::Ended(tombstone) => {
            return Some(v1::GetSagaResponse { chain_hash: tombstone.chain.to_string(), ..base });
        }
        CorrelationEntry::Awaited(_) => return None,
    };
    let ended = instance.progress.ended.iter().map(|(name, ended)| v1::SagaBranch {
        name: name.to_string(),
        succeeded: ended.is_success,
        may_have_happened: ended.is_uncertain,
        result_json: ended.result.to_string(),
    });
    let undo = instance.stack.iter().map(|done| v1::SagaUndo {
        step: done.step.to_string(),
        branch: done.branch.to_string(),
        command_id: done.command.to_string(),
        input_json: json(done.input.as_ref()),
        result_json: json(done.result.as_ref()),
    });
    let kept = instance
        .kept
        .iter()
        .map(|kept| v1::SagaKeptEvent { revision: kept.number, event_type: kept.kind.clone() });
    let stuck = instance.stuck.as_ref().map(|stuck| v1::SagaStuck {
        purpose: convert::purpose(stuck.purpose).into(),
        reason: stuck.why.clone(),
    });
    let timers = instance.timers.iter().map(|(name, set)| timer(whose, name.as_str(), set));
    Some(v1::GetSagaResponse {
        state_json: instance.state.to_string(),
        open_commands: instance.open.iter().map(|(id, open)| open_command(*id, open)).collect(),
        undo_stack: undo.collect(),
        ended_branches: ended.collect(),
        timers: timers.collect(),
        kept_events: kept.collect(),
        stuck,
        cancel_reason: instance.cancelled.clone().unwrap_or_default(),
        aggregate_versions: instance.versions.clone().into_iter().collect(),
        chain_hash: instance.chain.to_string(),
        dead_letter_key: letter.map(ToString::to_string).unwrap_or_default(),
        ..base
    })
}

/// A command whose end is waited for.
pub(crate) fn open_command(id: CommandId, open: &OpenCommand) -> v1::SagaCommand {
    v1::SagaCommand {
        command_id: id.to_string(),
        step: open.step.to_string(),
        branch: open.branch.to_string(),
        purpose: convert::purpose(open.purpose).into(),
        effect: open.effect.as_ref().map(ToString::to_string).unwrap_or_default(),
        ..Default::default()
    }
}

/// A timer that is set.
pub(crate) fn timer(whose: SagaInstanceRef<'_>, name: &str, timer: &Timer) -> v1::SagaTimer {
    v1::SagaTimer {
        saga: whose.saga.to_string(),
        correlation_id: whose.correlation.to_string(),
        name: name.to_owned(),
        due_time: moment(timer.due),
        event_type: timer.raise.clone(),
        generation: timer.generation,
        of_step: timer.is_of_step,
    }
}

/// Time at which an instance came to its step, or ended.
pub(crate) fn place_since(record: &CorrelationRecord) -> Option<Timestamp> {
    match &record.entry {
        CorrelationEntry::Live(instance) => Some(instance.entered),
        CorrelationEntry::Ended(tombstone) => Some(tombstone.ended),
        CorrelationEntry::Awaited(_) => None,
    }
}
