//! Dead letters.

use model::TenantId;
use proto::v1;
use workflow::WorkflowLane;

use super::{count, moment, tenant};
use crate::reads::DeadLetterEntry;

/// A dead letter; in full with its input, or the message as it came.
pub(crate) fn letter(whose: &TenantId, letter: &DeadLetterEntry, in_full: bool) -> v1::SagaDeadLetter {
    let DeadLetterEntry { name, row, behind } = letter;
    let (saga, effect) = match &name.lane {
        WorkflowLane::Saga { saga, .. } => (saga.to_string(), String::new()),
        WorkflowLane::Effect { effect, .. } => (String::new(), effect.to_string()),
    };
    let message = row.raw.as_ref().filter(|_| in_full && row.input.is_none());
    v1::SagaDeadLetter {
        key: name.to_string(),
        tenant_id: tenant(whose),
        saga,
        effect,
        correlation_id: row.correlation.as_ref().map(ToString::to_string).unwrap_or_default(),
        code: row.letter.code.clone(),
        detail: row.letter.why.clone(),
        parks: behind.is_some(),
        held_count: count(behind.unwrap_or_default()),
        time: moment(row.time),
        input: row.input.as_ref().map(|input| super::input::input(input, in_full)),
        message: message.map(|raw| raw.body.clone().into()).unwrap_or_default(),
    }
}
