//! Calls of effects.

use model::{EffectName, TenantId};
use proto::convert::enums;
use proto::v1;
use workflow::ledger::CallRow;
use workflow::provider::Effect;

use super::{moment, tenant};

/// Provider and effect, as the catalog has them; nothing where the effect is no longer in it.
pub(crate) type Declared<'a> = Option<(&'a str, &'a Effect)>;

/// A call without its input and result.
pub(crate) fn call(
    whose: &TenantId,
    effect: &EffectName,
    row: &CallRow,
    declared: Declared<'_>,
) -> v1::EffectCall {
    let is_open = !row.state.is_end();
    let end = row.end.as_ref();
    v1::EffectCall {
        tenant_id: tenant(whose),
        effect: effect.to_string(),
        command_id: row.command.to_string(),
        provider: declared.map(|(provider, _)| provider.to_owned()).unwrap_or_default(),
        state: enums::effect_state_to_wire(row.state).into(),
        saga: row.reply_to.saga.to_string(),
        correlation_id: row.reply_to.correlation.to_string(),
        run: row.reply_to.run,
        step: row.reply_to.step.to_string(),
        attempts: row.attempts,
        accept_time: moment(row.accepted),
        due_time: moment(row.due).filter(|_| is_open),
        heartbeat_time: row.alive.filter(|_| is_open).and_then(moment),
        external_id: row.external.clone().unwrap_or_default(),
        waits_for_token: row.state == model::EffectState::Waiting && row.token.is_some(),
        unwanted: row.is_unwanted,
        last_problem: row.last.clone().unwrap_or_default(),
        outcome: end.map_or(v1::EffectOutcome::Unspecified, |end| super::input::outcome(end.outcome)).into(),
        may_have_happened: end.map_or(row.is_in_doubt, |end| end.may_have_happened),
        end_time: end.and_then(|end| moment(end.at)),
        input_json: String::new(),
        result_json: String::new(),
    }
}

/// A call with its input and result. The result is stored redacted. The input is redacted here by the provider's rules; where no
/// provider has the effect any more these are unknown, so no input is shown.
pub(crate) fn detailed(
    whose: &TenantId,
    effect: &EffectName,
    row: &CallRow,
    declared: Declared<'_>,
) -> v1::EffectCall {
    let shown = call(whose, effect, row, declared);
    let input = declared.map(|(_, effect)| effect.redacted("input", &row.input).to_string());
    let result = row.end.as_ref().map(|end| end.payload.to_string());
    v1::EffectCall { input_json: input.unwrap_or_default(), result_json: result.unwrap_or_default(), ..shown }
}
