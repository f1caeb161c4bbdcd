//! Conversion of stored values to messages.

use proto::convert::enums;
use proto::convert::saga::InstanceName;
use proto::convert::time::to_wire;
use proto::v1;
use workflow::instance::CommandPurpose;

use crate::sagas::{InstanceSummary, OrderedWork};

/// An instance without its state.
pub(super) fn saga(name: &InstanceName, summary: &InstanceSummary) -> v1::Saga {
    let InstanceSummary {
        run,
        status,
        is_paused,
        is_parked,
        held,
        step,
        reason,
        is_past_pivot,
        revision,
        version,
        definition,
        started,
        entered,
        updated,
        ended,
    } = summary;
    v1::Saga {
        tenant_id: name.tenant.to_string(),
        saga: name.saga.to_string(),
        correlation_id: name.correlation.to_string(),
        run: *run,
        status: enums::saga_status_to_wire(*status).into(),
        paused: *is_paused,
        parked: *is_parked,
        held_count: u32::try_from(*held).unwrap_or(u32::MAX),
        step: step.to_string(),
        reason: reason.clone().unwrap_or_default(),
        past_pivot: *is_past_pivot,
        revision: *revision,
        version: *version,
        definition_hash: definition.to_string(),
        start_time: Some(to_wire(*started)),
        step_time: entered.map(to_wire),
        update_time: Some(to_wire(*updated)),
        end_time: ended.map(to_wire),
    }
}

/// The purpose of a command within its saga.
pub(super) const fn purpose(purpose: CommandPurpose) -> v1::SagaCommandPurpose {
    match purpose {
        CommandPurpose::Forward => v1::SagaCommandPurpose::Forward,
        CommandPurpose::Tidy => v1::SagaCommandPurpose::Tidy,
        CommandPurpose::Undo => v1::SagaCommandPurpose::Undo,
        CommandPurpose::Last => v1::SagaCommandPurpose::Last,
    }
}

/// Work that was ordered just now.
pub(super) fn command(work: &OrderedWork) -> v1::SagaCommand {
    let OrderedWork { command, step, branch, purpose: wanted, effect, cancels, aggregate, payload } = work;
    let (aggregate_type, aggregate_id, command_type) = aggregate.clone().unwrap_or_default();
    v1::SagaCommand {
        command_id: command.to_string(),
        step: step.to_string(),
        branch: branch.as_ref().unwrap_or(step).to_string(),
        purpose: wanted.map_or(v1::SagaCommandPurpose::Unspecified, purpose).into(),
        effect: effect.as_ref().map(ToString::to_string).unwrap_or_default(),
        cancels_command_id: cancels.map(|cancels| cancels.to_string()).unwrap_or_default(),
        aggregate_type,
        aggregate_id,
        command_type,
        payload_json: payload.clone().unwrap_or_default(),
    }
}
