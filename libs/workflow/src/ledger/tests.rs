use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::instance::{decode, encode};
use crate::manifest::{ManifestDefinition, read};

const EXAMPLE: &str = include_str!("../manifest/example.yaml");
const EPOCH: u64 = 5;

fn effect(unknown: &str) -> Effect {
    let text = EXAMPLE.replace("request: { method: POST", "callback: true\n    request: { method: POST");
    let documents = read("t", &text).unwrap_or_else(|problems| panic!("{problems}"));
    let ManifestDefinition::Provider(provider) = &documents[1].definition else { panic!("no provider") };
    let mut effect = Effect::clone(&provider.effects[0]);
    effect.timeouts.heartbeat = Some(Duration::from_secs(60));
    match unknown {
        "retry" => effect.unknown = UnknownOutcomePolicy::Retry,
        "fail" => effect.unknown = UnknownOutcomePolicy::Fail,
        "manual" => effect.unknown = UnknownOutcomePolicy::Manual,
        _ => {}
    }
    effect
}

fn command(payload: Json) -> EffectCommand {
    EffectCommand {
        tenant_id: String::new(),
        command_id: CommandId::from_bits(7),
        effect_name: "payment-reserve".parse().expect("a name"),
        payload,
        cancel: false,
        reply_to: ResultRecipient {
            saga: "order".parse().expect("a name"),
            correlation: "c".parse().expect("a correlation"),
            run: 0,
            step: "s".parse().expect("a step"),
        },
        metadata: BTreeMap::new(),
    }
}

const fn at(secs: u64) -> Timestamp {
    Timestamp::from_millis(1_000_000 + secs * 1000)
}

fn accepted() -> CallRow {
    CallRow::accept(command(Json::Int(1)), at(0))
}

fn calling(effect: &Effect) -> CallRow {
    let mut row = accepted();
    assert_eq!(row.next_directive(effect, EPOCH, at(0)), Ok(CallDirective::Call));
    row.record_attempt(effect, EPOCH).expect("its turn");
    row
}

#[test]
fn a_result_too_large_for_its_row_fails_as_one_that_may_have_happened() {
    let effect = effect("retry");
    let end_of = |answer| {
        let mut row = calling(&effect);
        row.record_answer(&effect, answer, 0, at(1)).expect("it was asked");
        (row.state, row.end.expect("an end"))
    };
    let text = |bytes: usize| Json::text("x".repeat(bytes - 2));
    // Its input is `1`.
    let (state, end) = end_of(ProviderAnswer::Succeeded(text(CALL_BYTES_MAX - 1)));
    assert_eq!(
        (state, end.outcome, end.may_have_happened),
        (EffectState::Succeeded, CommandOutcome::Succeeded, false)
    );
    let (state, end) = end_of(ProviderAnswer::Succeeded(text(CALL_BYTES_MAX)));
    assert_eq!(
        (state, end.outcome, end.may_have_happened),
        (EffectState::Failed, CommandOutcome::Failed, true)
    );
    let shown = end.payload.to_string();
    assert!(
        shown.contains("result_too_large") && shown.contains("983040 bytes") && shown.contains("983039"),
        "{shown}"
    );
    let (_, end) = end_of(ProviderAnswer::Failed { code: "no".to_owned(), payload: text(CALL_BYTES_MAX) });
    assert_eq!((end.outcome, end.may_have_happened), (CommandOutcome::Failed, false));
    assert!(end.payload.bytes() < 1000);
}

fn lost() -> ProviderAnswer {
    ProviderAnswer::Unknown { why: "no answer".to_owned() }
}

fn end(row: &CallRow) -> (CommandOutcome, bool, String) {
    let end = row.end.as_ref().expect("an end");
    let code = end.payload.get("code").and_then(Json::as_text).unwrap_or_default();
    (end.outcome, end.may_have_happened, code.to_owned())
}

#[test]
fn one_command_has_one_payload() {
    let row = accepted();
    assert!(row.is_same(&command(Json::Int(1))) && !row.is_same(&command(Json::text("1"))));
    assert!(row.is_same(&EffectCommand { cancel: true, ..command(Json::Null) }));
}

#[test]
fn a_call_of_a_process_that_died_goes_by_its_policy() {
    let adopted = |unknown: &str| {
        let effect = effect(unknown);
        let mut row = calling(&effect);
        assert_eq!(row.next_directive(&effect, EPOCH, at(1)), Ok(CallDirective::Nothing));
        let todo = row.next_directive(&effect, EPOCH + 1, at(1)).expect("legal");
        (row, todo)
    };
    assert_eq!(adopted("query").1, CallDirective::Ask);
    assert_eq!(adopted("retry").1, CallDirective::Call);
    let (row, todo) = adopted("fail");
    assert_eq!(
        (todo, row.state, end(&row)),
        (CallDirective::Nothing, EffectState::Failed, (CommandOutcome::Unknown, true, "unknown".to_owned()))
    );
    let (mut row, todo) = adopted("manual");
    assert_eq!((todo, row.state), (CallDirective::Nothing, EffectState::Manual));
    row.resolve(Some(Json::object([])), at(9)).expect("a person knows");
    assert_eq!(row.state, EffectState::Succeeded);
    assert!(row.resolve(None, at(9)).is_err());
}

#[test]
fn an_upstream_is_queried_until_it_answers() {
    let effect = effect("query");
    let mut row = calling(&effect);
    row.record_answer(&effect, lost(), 0, at(1)).expect("legal");
    assert_eq!(row.next_directive(&effect, EPOCH, at(1)), Ok(CallDirective::Ask));
    row.record_query_answer(&effect, None, u32::MAX, at(1)).expect("legal");
    assert_eq!(row.next_directive(&effect, EPOCH, at(1)), Ok(CallDirective::Nothing));
    assert_eq!(row.next_directive(&effect, EPOCH, at(2)), Ok(CallDirective::Ask));
    // It never happened: that costs no attempt of its own.
    row.record_query_answer(
        &effect,
        Some(ProviderAnswer::Passing { why: "absent".to_owned(), after: None }),
        0,
        at(2),
    )
    .expect("legal");
    assert_eq!((row.next_directive(&effect, EPOCH, at(2)), row.attempts), (Ok(CallDirective::Call), 1));
    row.record_attempt(&effect, EPOCH).expect("its turn");
    row.record_answer(&effect, lost(), 0, at(3)).expect("legal");
    row.record_query_answer(&effect, Some(ProviderAnswer::Succeeded(Json::Null)), 0, at(3)).expect("legal");
    assert_eq!((row.state, row.attempts), (EffectState::Succeeded, 2));
}

#[test]
fn a_call_that_its_upstream_reports_as_running_is_waited_for() {
    let effect = effect("query");
    let runs = || Some(ProviderAnswer::Waiting { external: Some("9".to_owned()) });
    let mut row = calling(&effect);
    row.record_answer(&effect, lost(), 0, at(1)).expect("legal");
    row.record_query_answer(&effect, runs(), 0, at(2)).expect("legal");
    assert_eq!((row.state, row.external.as_deref(), row.attempts), (EffectState::Waiting, Some("9"), 1));
    assert_eq!(row.due, at(62), "its signs of life are waited for");
    row.record_answer(&effect, ProviderAnswer::Succeeded(Json::Null), 0, at(3)).expect("legal");
    assert_eq!(row.state, EffectState::Succeeded);
    // One that nobody wants any more is still to be stopped.
    let mut row = calling(&effect);
    row.record_answer(&effect, lost(), 0, at(1)).expect("legal");
    assert_eq!(row.cancel(at(1)), Ok(false));
    row.record_query_answer(&effect, runs(), 0, at(2)).expect("legal");
    assert_eq!((row.state, row.is_unwanted), (EffectState::Waiting, true));
}

#[test]
fn what_ran_elsewhere_and_is_gone_is_not_made_again() {
    for unknown in ["retry", "query", "fail", "manual"] {
        let effect = effect(unknown);
        let mut row = calling(&effect);
        row.record_answer(&effect, ProviderAnswer::Waiting { external: Some("9".to_owned()) }, 0, at(0))
            .expect("legal");
        row.record_answer(&effect, lost(), 0, at(1)).expect("legal");
        if unknown == "manual" {
            assert_eq!(row.state, EffectState::Manual);
        } else {
            assert_eq!(end(&row), (CommandOutcome::Unknown, true, "unknown".to_owned()), "{unknown}");
        }
    }
}

#[test]
fn a_lost_call_stays_in_doubt_until_an_answer_decides_it() {
    let effect = effect("retry");
    let doubtful = || {
        let mut row = calling(&effect);
        row.record_answer(&effect, lost(), 0, at(1)).expect("legal");
        assert_eq!((row.state, row.is_in_doubt), (EffectState::Backoff, true));
        row
    };
    let mut row = doubtful();
    row.cancel(at(2)).expect("legal");
    assert_eq!(end(&row), (CommandOutcome::Cancelled, true, "cancelled".to_owned()));
    let mut row = doubtful();
    row.next_directive(&effect, EPOCH, at(600)).expect("legal");
    assert_eq!(end(&row), (CommandOutcome::TimedOut, true, "timed_out".to_owned()));
    // An answer to the same key is one to all calls.
    let mut row = doubtful();
    row.record_attempt(&effect, EPOCH).expect("its turn");
    let refused = ProviderAnswer::Failed { code: "declined".to_owned(), payload: Json::object([]) };
    row.record_answer(&effect, refused, 0, at(2)).expect("legal");
    assert_eq!(end(&row), (CommandOutcome::Failed, false, "declined".to_owned()));
}

#[test]
fn passing_failures_wait_longer_each_time_and_end_with_their_attempts() {
    let effect = effect("retry");
    let mut row = accepted();
    let (mut now, mut pauses) = (0, Vec::new());
    while !row.state.is_end() {
        assert_eq!(row.next_directive(&effect, EPOCH, at(now)), Ok(CallDirective::Call));
        row.record_attempt(&effect, EPOCH).expect("its turn");
        let passing = ProviderAnswer::Passing { why: "503".to_owned(), after: None };
        row.record_answer(&effect, passing, u32::MAX, at(now)).expect("legal");
        if !row.state.is_end() {
            pauses.push(row.due.since(at(now)).as_millis());
            now += row.due.since(at(now)).as_secs() + 1;
        }
    }
    assert_eq!(pauses, [499, 999, 1999, 3999, 7999, 15999, 31999]);
    assert_eq!((row.attempts, end(&row)), (8, (CommandOutcome::Failed, false, "unavailable".to_owned())));
    let mut row = calling(&effect);
    let answer = ProviderAnswer::Passing { why: "429".to_owned(), after: Some(Duration::from_secs(9)) };
    row.record_answer(&effect, answer, 0, at(0)).expect("legal");
    assert_eq!(row.due, at(9));
}

#[test]
fn what_takes_too_long_ends_by_the_time_that_is_over() {
    let effect = effect("query");
    let mut row = accepted();
    assert_eq!(row.next_directive(&effect, EPOCH, at(119)), Ok(CallDirective::Call));
    row.next_directive(&effect, EPOCH, at(120)).expect("legal");
    assert_eq!(end(&row), (CommandOutcome::TimedOut, false, "timed_out".to_owned()));
    // It is being made: it has its policy's answer first.
    let mut row = calling(&effect);
    assert_eq!(row.next_directive(&effect, EPOCH, at(1000)), Ok(CallDirective::Nothing));
    assert_eq!(row.state, EffectState::Calling);
    row.record_answer(&effect, lost(), 0, at(1000)).expect("legal");
    row.next_directive(&effect, EPOCH, at(1000)).expect("legal");
    assert_eq!(end(&row), (CommandOutcome::TimedOut, true, "timed_out".to_owned()));
    // An answer that comes later has to show that it will.
    let mut row = calling(&effect);
    row.record_answer(&effect, ProviderAnswer::Waiting { external: None }, 0, at(0)).expect("legal");
    assert_eq!(row.due, at(60));
    row.record_heartbeat(&effect, at(50));
    // A sign that comes soon after one that was noted is not.
    row.record_heartbeat(&effect, at(64));
    assert_eq!((row.next_directive(&effect, EPOCH, at(65)), row.due), (Ok(CallDirective::Nothing), at(110)));
    row.next_directive(&effect, EPOCH, at(110)).expect("legal");
    assert_eq!(end(&row).0, CommandOutcome::TimedOut);
}

#[test]
fn what_runs_elsewhere_is_stopped_before_it_is_given_up() {
    let effect = effect("retry");
    let mut row = calling(&effect);
    row.record_answer(&effect, ProviderAnswer::Waiting { external: Some("flow 9".to_owned()) }, 0, at(0))
        .expect("legal");
    assert_eq!(row.next_directive(&effect, EPOCH, at(600)), Ok(CallDirective::Stop));
    assert_eq!((row.state, row.is_unwanted), (EffectState::Waiting, true));
    let mut silent = row.clone();
    assert_eq!(
        row.next_directive(&effect, EPOCH, at(600)),
        Ok(CallDirective::Nothing),
        "its end is waited for"
    );
    row.record_answer(&effect, ProviderAnswer::Cancelled, 0, at(601)).expect("legal");
    assert_eq!(end(&row), (CommandOutcome::TimedOut, false, "timed_out".to_owned()));
    // Signs of life do not give it longer.
    silent.record_heartbeat(&effect, at(602));
    assert_eq!(silent.next_directive(&effect, EPOCH, at(605)), Ok(CallDirective::Nothing));
    assert_eq!(end(&silent), (CommandOutcome::TimedOut, true, "timed_out".to_owned()));
    // Nor do they where it was stopped for want of them.
    let mut row = calling(&effect);
    row.record_answer(&effect, ProviderAnswer::Waiting { external: Some("flow 9".to_owned()) }, 0, at(0))
        .expect("legal");
    assert_eq!(row.next_directive(&effect, EPOCH, at(60)), Ok(CallDirective::Stop));
    row.record_heartbeat(&effect, at(61));
    row.record_answer(&effect, ProviderAnswer::Cancelled, 0, at(62)).expect("legal");
    assert_eq!(end(&row), (CommandOutcome::TimedOut, false, "timed_out".to_owned()));
    // One that its saga does not want has been cancelled.
    let mut row = calling(&effect);
    row.record_answer(&effect, ProviderAnswer::Waiting { external: Some("flow 9".to_owned()) }, 0, at(0))
        .expect("legal");
    assert_eq!(row.cancel(at(1)), Ok(true));
    row.record_answer(&effect, ProviderAnswer::Cancelled, 0, at(2)).expect("legal");
    assert_eq!(end(&row), (CommandOutcome::Cancelled, false, "cancelled".to_owned()));
    let mut row = calling(&effect);
    row.record_answer(&effect, ProviderAnswer::Waiting { external: Some("flow 9".to_owned()) }, 0, at(0))
        .expect("legal");
    assert_eq!(row.cancel(at(1)), Ok(true));
    assert_eq!(row.cancel(at(2)), Ok(false));
    row.record_answer(&effect, ProviderAnswer::Succeeded(Json::Null), 0, at(3)).expect("legal");
    assert_eq!(end(&row).0, CommandOutcome::Succeeded);
}

#[test]
fn what_is_not_wanted_any_more_is_not_begun() {
    let effect = effect("retry");
    let mut row = accepted();
    assert_eq!(row.cancel(at(1)), Ok(false));
    assert_eq!(end(&row), (CommandOutcome::Cancelled, false, "cancelled".to_owned()));
    let mut row = calling(&effect);
    assert_eq!(row.cancel(at(1)), Ok(false));
    row.record_answer(&effect, ProviderAnswer::Passing { why: "503".to_owned(), after: None }, 0, at(1))
        .expect("legal");
    assert_eq!(end(&row), (CommandOutcome::Cancelled, false, "cancelled".to_owned()));
    let mut row = calling(&effect);
    row.cancel(at(1)).expect("legal");
    row.record_answer(&effect, lost(), 0, at(1)).expect("legal");
    assert_eq!(row.next_directive(&effect, EPOCH, at(1)), Ok(CallDirective::Nothing));
    assert_eq!(row.state, EffectState::Cancelled);
}

#[derive(Debug, Clone)]
enum LedgerAction {
    Look(u16),
    Answer(u8, u32),
    Cancel,
    Take,
    Person(bool),
}

fn turns() -> impl Strategy<Value = Vec<LedgerAction>> {
    let turn = prop_oneof![
        4 => (0..40_u16).prop_map(LedgerAction::Look),
        5 => (0..6_u8, any::<u32>()).prop_map(|(how, share)| LedgerAction::Answer(how, share)),
        1 => Just(LedgerAction::Cancel),
        1 => Just(LedgerAction::Take),
        1 => any::<bool>().prop_map(LedgerAction::Person),
    ];
    prop::collection::vec(turn, 0..60)
}

proptest! {
    /// Calls are made only after they were noted, one result comes of each, and with `fail` it is made once at most.
    #[test]
    fn every_call_has_one_end(turns in turns(), policy in 0..4_usize) {
        let policy = ["retry", "query", "fail", "manual"][policy];
        let effect = effect(policy);
        let (mut row, mut epoch, mut now) = (accepted(), EPOCH, 0);
        let (mut todo, mut end, mut retried_after_loss) = (CallDirective::Nothing, None, false);
        for turn in turns {
            let before = row.state;
            match turn {
                LedgerAction::Look(secs) => {
                    now += u64::from(secs);
                    todo = row.next_directive(&effect, epoch, at(now)).expect("legal");
                    if todo == CallDirective::Call {
                        prop_assert!(matches!(row.state, EffectState::Accepted | EffectState::Backoff));
                        row.record_attempt(&effect, epoch).expect("its turn");
                    }
                }
                LedgerAction::Answer(how, share) => {
                    let answer = match how {
                        0 => ProviderAnswer::Succeeded(Json::Null),
                        1 => ProviderAnswer::Failed { code: "no".to_owned(), payload: Json::object([]) },
                        2 => ProviderAnswer::Passing { why: String::new(), after: None },
                        3 => ProviderAnswer::Waiting { external: share.is_multiple_of(2).then(String::new) },
                        4 => ProviderAnswer::Cancelled,
                        _ => lost(),
                    };
                    let is_asked = row.state == EffectState::Unknown && todo == CallDirective::Ask;
                    if is_asked {
                        row.record_query_answer(&effect, Some(answer), share, at(now)).expect("legal");
                    } else if row.state == EffectState::Calling {
                        retried_after_loss |= matches!(answer, ProviderAnswer::Unknown { .. });
                        row.record_answer(&effect, answer, share, at(now)).expect("legal");
                    }
                }
                LedgerAction::Cancel => drop(row.cancel(at(now)).expect("legal")),
                LedgerAction::Take => epoch += 1,
                LedgerAction::Person(happened) => {
                    if row.state == EffectState::Manual {
                        row.resolve(happened.then_some(Json::Null), at(now)).expect("legal");
                    }
                }
            }
            prop_assert_eq!(&decode::<CallRow>(&encode(&row)).expect("as written"), &row);
            prop_assert_eq!(row.state.is_end(), row.end.is_some());
            if before.is_end() {
                prop_assert_eq!(&end, &row.end);
            }
            end.clone_from(&row.end);
            if policy == "fail" && retried_after_loss {
                prop_assert!(row.state.is_end() && end.as_ref().is_some_and(|end| end.may_have_happened));
            }
            prop_assert!(row.attempts <= 2 * effect.retry.attempts + 60);
        }
    }
}
