//! Calls of effects.

use model::Timestamp;
use proto::v1;

use super::{ago, json_below, moment, or_dash, outcome, pairs, state, until};
use crate::output::table;

/// A list of calls.
#[must_use]
pub fn list(calls: &[v1::EffectCall], now: Timestamp) -> String {
    let rows: Vec<_> = calls
        .iter()
        .map(|call| {
            vec![
                call.command_id.clone(),
                call.effect.clone(),
                state(call.state()).to_owned(),
                call.saga.clone(),
                call.correlation_id.clone(),
                call.step.clone(),
                call.attempts.to_string(),
                ago(now, call.accept_time),
                call.last_problem.clone(),
            ]
        })
        .collect();
    let heading =
        ["COMMAND", "EFFECT", "STATE", "SAGA", "CORRELATION", "STEP", "ATTEMPTS", "ACCEPTED", "PROBLEM"];
    table::render(&heading, &rows)
}

/// A call with its input and its result.
#[must_use]
pub fn whole(call: &v1::EffectCall, now: Timestamp) -> String {
    let yes = |is_so: bool, text: &str| if is_so { text.to_owned() } else { String::new() };
    let next = call.due_time.map(|due| format!("{}, {}", until(now, Some(due)), moment(Some(due))));
    let rows = vec![
        ("command", call.command_id.clone()),
        ("effect", call.effect.clone()),
        ("provider", or_dash(&call.provider)),
        ("state", state(call.state()).to_owned()),
        ("saga", call.saga.clone()),
        ("correlation", call.correlation_id.clone()),
        ("step", call.step.clone()),
        ("attempts", call.attempts.to_string()),
        ("waits", yes(call.waits_for_token, "for its answer by a token")),
        ("unwanted", yes(call.unwanted, "its end changes nothing any more")),
        ("problem", call.last_problem.clone()),
        ("elsewhere", call.external_id.clone()),
        ("accepted", moment(call.accept_time)),
        ("next", next.unwrap_or_default()),
        ("last sign", moment(call.heartbeat_time)),
        (
            "outcome",
            format!("{}{}", outcome(call.outcome()), yes(call.may_have_happened, ", may have happened")),
        ),
        ("ended", moment(call.end_time)),
    ];
    [pairs(rows), json_below("input", &call.input_json), json_below("result", &call.result_json)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effect_call_shows_its_problem_and_its_next_try() {
        let mut call = v1::EffectCall {
            command_id: "018f".into(),
            effect: "payment-reserve".into(),
            saga: "order".into(),
            correlation_id: "o-1".into(),
            step: "reserve".into(),
            attempts: 3,
            accept_time: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 }),
            due_time: Some(prost_types::Timestamp { seconds: 1_800_000_060, nanos: 0 }),
            last_problem: "503\u{7}".into(),
            input_json: "{\"amount_cents\":990}".into(),
            ..Default::default()
        };
        call.set_state(v1::EffectState::Backoff);
        let now = Timestamp::from_millis(1_800_000_030_000);
        let text = whole(&call, now);
        for part in [
            "provider     -\n",
            "state        backoff\n",
            "problem      503\\x07\n",
            "next         in 30 s, 2027-01-15 08:01:00 UTC\n",
            "\ninput\n{\n  \"amount_cents\": 990\n}\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("outcome") && !text.contains("result"), "{text}");
        let text = list(&[call], now);
        assert!(text.contains("018f     payment-reserve  backoff  order  o-1          reserve  3         30 s ago  503\\x07\n"), "{text}");
    }
}
