use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::instance::{decode, encode};
use crate::manifest::{Definition, read};

const EXAMPLE: &str = include_str!("../manifest/example.yaml");
const EPOCH: u64 = 5;

fn effect(unknown: &str) -> Effect {
    let text = EXAMPLE.replace("request: { method: POST", "callback: true\n    request: { method: POST");
    let documents = read("t", &text).unwrap_or_else(|problems| panic!("{problems}"));
    let Definition::Provider(provider) = &documents[1].definition else { panic!("no provider") };
    let mut effect = Effect::clone(&provider.effects[0]);
    effect.timeouts.heartbeat = Some(Duration::from_secs(60));
    match unknown {
        "retry" => effect.unknown = Unknown::Retry,
        "fail" => effect.unknown = Unknown::Fail,
        "manual" => effect.unknown = Unknown::Manual,
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
        reply_to: ReplyTo {
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
    assert_eq!(row.look(effect, EPOCH, at(0)), Ok(Todo::Call));
    row.intend(effect, EPOCH).expect("its turn");
    row
}

#[test]
fn a_result_that_its_row_has_no_room_for_is_told_as_one_that_may_have_happened() {
    let effect = effect("retry");
    let end_of = |answer| {
        let mut row = calling(&effect);
        row.answered(&effect, answer, 0, at(1)).expect("it was asked");
        (row.state, row.end.expect("an end"))
    };
    let text = |bytes: usize| Json::text("x".repeat(bytes - 2));
    // Its input is `1`.
    let (state, end) = end_of(Answer::Succeeded(text(CALL_BYTES_MAX - 1)));
    assert_eq!(
        (state, end.outcome, end.may_have_happened),
        (EffectState::Succeeded, Outcome::Succeeded, false)
    );
    let (state, end) = end_of(Answer::Succeeded(text(CALL_BYTES_MAX)));
    assert_eq!((state, end.outcome, end.may_have_happened), (EffectState::Failed, Outcome::Failed, true));
    let shown = end.payload.to_string();
    assert!(
        shown.contains("result_too_large") && shown.contains("983040 bytes") && shown.contains("983039"),
        "{shown}"
    );
    let (_, end) = end_of(Answer::Failed { code: "no".to_owned(), payload: text(CALL_BYTES_MAX) });
    assert_eq!((end.outcome, end.may_have_happened), (Outcome::Failed, false));
    assert!(end.payload.bytes() < 1000);
}

fn lost() -> Answer {
    Answer::Unknown { why: "no answer".to_owned() }
}

fn end(row: &CallRow) -> (Outcome, bool, String) {
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
        assert_eq!(row.look(&effect, EPOCH, at(1)), Ok(Todo::Nothing));
        let todo = row.look(&effect, EPOCH + 1, at(1)).expect("legal");
        (row, todo)
    };
    assert_eq!(adopted("query").1, Todo::Ask);
    assert_eq!(adopted("retry").1, Todo::Call);
    let (row, todo) = adopted("fail");
    assert_eq!(
        (todo, row.state, end(&row)),
        (Todo::Nothing, EffectState::Failed, (Outcome::Unknown, true, "unknown".to_owned()))
    );
    let (mut row, todo) = adopted("manual");
    assert_eq!((todo, row.state), (Todo::Nothing, EffectState::Manual));
    row.resolve(Some(Json::object([])), at(9)).expect("a person knows");
    assert_eq!(row.state, EffectState::Succeeded);
    assert!(row.resolve(None, at(9)).is_err());
}

#[test]
fn an_upstream_is_asked_until_it_answers() {
    let effect = effect("query");
    let mut row = calling(&effect);
    row.answered(&effect, lost(), 0, at(1)).expect("legal");
    assert_eq!(row.look(&effect, EPOCH, at(1)), Ok(Todo::Ask));
    row.found(&effect, None, u32::MAX, at(1)).expect("legal");
    assert_eq!(row.look(&effect, EPOCH, at(1)), Ok(Todo::Nothing));
    assert_eq!(row.look(&effect, EPOCH, at(2)), Ok(Todo::Ask));
    // It never happened: that costs no attempt of its own.
    row.found(&effect, Some(Answer::Passing { why: "absent".to_owned(), after: None }), 0, at(2))
        .expect("legal");
    assert_eq!((row.look(&effect, EPOCH, at(2)), row.attempts), (Ok(Todo::Call), 1));
    row.intend(&effect, EPOCH).expect("its turn");
    row.answered(&effect, lost(), 0, at(3)).expect("legal");
    row.found(&effect, Some(Answer::Succeeded(Json::Null)), 0, at(3)).expect("legal");
    assert_eq!((row.state, row.attempts), (EffectState::Succeeded, 2));
}

#[test]
fn an_upstream_that_says_that_a_call_runs_is_waited_for() {
    let effect = effect("query");
    let runs = || Some(Answer::Waiting { external: Some("9".to_owned()) });
    let mut row = calling(&effect);
    row.answered(&effect, lost(), 0, at(1)).expect("legal");
    row.found(&effect, runs(), 0, at(2)).expect("legal");
    assert_eq!((row.state, row.external.as_deref(), row.attempts), (EffectState::Waiting, Some("9"), 1));
    assert_eq!(row.due, at(62), "its signs of life are waited for");
    row.answered(&effect, Answer::Succeeded(Json::Null), 0, at(3)).expect("legal");
    assert_eq!(row.state, EffectState::Succeeded);
    // One that nobody wants any more is still to be stopped.
    let mut row = calling(&effect);
    row.answered(&effect, lost(), 0, at(1)).expect("legal");
    assert_eq!(row.cancel(at(1)), Ok(false));
    row.found(&effect, runs(), 0, at(2)).expect("legal");
    assert_eq!((row.state, row.is_unwanted), (EffectState::Waiting, true));
}

#[test]
fn what_ran_elsewhere_and_is_gone_is_not_made_again() {
    for unknown in ["retry", "query", "fail", "manual"] {
        let effect = effect(unknown);
        let mut row = calling(&effect);
        row.answered(&effect, Answer::Waiting { external: Some("9".to_owned()) }, 0, at(0)).expect("legal");
        row.answered(&effect, lost(), 0, at(1)).expect("legal");
        if unknown == "manual" {
            assert_eq!(row.state, EffectState::Manual);
        } else {
            assert_eq!(end(&row), (Outcome::Unknown, true, "unknown".to_owned()), "{unknown}");
        }
    }
}

#[test]
fn what_may_have_happened_stays_in_doubt_until_somebody_knows() {
    let effect = effect("retry");
    let doubtful = || {
        let mut row = calling(&effect);
        row.answered(&effect, lost(), 0, at(1)).expect("legal");
        assert_eq!((row.state, row.is_in_doubt), (EffectState::Backoff, true));
        row
    };
    let mut row = doubtful();
    row.cancel(at(2)).expect("legal");
    assert_eq!(end(&row), (Outcome::Cancelled, true, "cancelled".to_owned()));
    let mut row = doubtful();
    row.look(&effect, EPOCH, at(600)).expect("legal");
    assert_eq!(end(&row), (Outcome::TimedOut, true, "timed_out".to_owned()));
    // An answer to the same key is one to all calls.
    let mut row = doubtful();
    row.intend(&effect, EPOCH).expect("its turn");
    let refused = Answer::Failed { code: "declined".to_owned(), payload: Json::object([]) };
    row.answered(&effect, refused, 0, at(2)).expect("legal");
    assert_eq!(end(&row), (Outcome::Failed, false, "declined".to_owned()));
}

#[test]
fn passing_failures_wait_longer_each_time_and_end_with_their_attempts() {
    let effect = effect("retry");
    let mut row = accepted();
    let (mut now, mut pauses) = (0, Vec::new());
    while !row.state.is_end() {
        assert_eq!(row.look(&effect, EPOCH, at(now)), Ok(Todo::Call));
        row.intend(&effect, EPOCH).expect("its turn");
        let passing = Answer::Passing { why: "503".to_owned(), after: None };
        row.answered(&effect, passing, u32::MAX, at(now)).expect("legal");
        if !row.state.is_end() {
            pauses.push(row.due.since(at(now)).as_millis());
            now += row.due.since(at(now)).as_secs() + 1;
        }
    }
    assert_eq!(pauses, [499, 999, 1999, 3999, 7999, 15999, 31999]);
    assert_eq!((row.attempts, end(&row)), (8, (Outcome::Failed, false, "unavailable".to_owned())));
    let mut row = calling(&effect);
    let told = Answer::Passing { why: "429".to_owned(), after: Some(Duration::from_secs(9)) };
    row.answered(&effect, told, 0, at(0)).expect("legal");
    assert_eq!(row.due, at(9));
}

#[test]
fn what_takes_too_long_ends_by_the_time_that_is_over() {
    let effect = effect("query");
    let mut row = accepted();
    assert_eq!(row.look(&effect, EPOCH, at(119)), Ok(Todo::Call));
    row.look(&effect, EPOCH, at(120)).expect("legal");
    assert_eq!(end(&row), (Outcome::TimedOut, false, "timed_out".to_owned()));
    // It is being made: it has its policy's answer first.
    let mut row = calling(&effect);
    assert_eq!(row.look(&effect, EPOCH, at(1000)), Ok(Todo::Nothing));
    assert_eq!(row.state, EffectState::Calling);
    row.answered(&effect, lost(), 0, at(1000)).expect("legal");
    row.look(&effect, EPOCH, at(1000)).expect("legal");
    assert_eq!(end(&row), (Outcome::TimedOut, true, "timed_out".to_owned()));
    // An answer that comes later has to show that it will.
    let mut row = calling(&effect);
    row.answered(&effect, Answer::Waiting { external: None }, 0, at(0)).expect("legal");
    assert_eq!(row.due, at(60));
    row.beat(&effect, at(50));
    // A sign that comes soon after one that was noted is not.
    row.beat(&effect, at(64));
    assert_eq!((row.look(&effect, EPOCH, at(65)), row.due), (Ok(Todo::Nothing), at(110)));
    row.look(&effect, EPOCH, at(110)).expect("legal");
    assert_eq!(end(&row).0, Outcome::TimedOut);
}

#[test]
fn what_runs_elsewhere_is_stopped_before_it_is_given_up() {
    let effect = effect("retry");
    let mut row = calling(&effect);
    row.answered(&effect, Answer::Waiting { external: Some("flow 9".to_owned()) }, 0, at(0)).expect("legal");
    assert_eq!(row.look(&effect, EPOCH, at(600)), Ok(Todo::Stop));
    assert_eq!((row.state, row.is_unwanted), (EffectState::Waiting, true));
    let mut silent = row.clone();
    assert_eq!(row.look(&effect, EPOCH, at(600)), Ok(Todo::Nothing), "its end is waited for");
    row.answered(&effect, Answer::Cancelled, 0, at(601)).expect("legal");
    assert_eq!(end(&row), (Outcome::TimedOut, false, "timed_out".to_owned()));
    // Signs of life do not give it longer.
    silent.beat(&effect, at(602));
    assert_eq!(silent.look(&effect, EPOCH, at(605)), Ok(Todo::Nothing));
    assert_eq!(end(&silent), (Outcome::TimedOut, true, "timed_out".to_owned()));
    // Nor do they where it was stopped for want of them.
    let mut row = calling(&effect);
    row.answered(&effect, Answer::Waiting { external: Some("flow 9".to_owned()) }, 0, at(0)).expect("legal");
    assert_eq!(row.look(&effect, EPOCH, at(60)), Ok(Todo::Stop));
    row.beat(&effect, at(61));
    row.answered(&effect, Answer::Cancelled, 0, at(62)).expect("legal");
    assert_eq!(end(&row), (Outcome::TimedOut, false, "timed_out".to_owned()));
    // One that its saga does not want has been cancelled.
    let mut row = calling(&effect);
    row.answered(&effect, Answer::Waiting { external: Some("flow 9".to_owned()) }, 0, at(0)).expect("legal");
    assert_eq!(row.cancel(at(1)), Ok(true));
    row.answered(&effect, Answer::Cancelled, 0, at(2)).expect("legal");
    assert_eq!(end(&row), (Outcome::Cancelled, false, "cancelled".to_owned()));
    let mut row = calling(&effect);
    row.answered(&effect, Answer::Waiting { external: Some("flow 9".to_owned()) }, 0, at(0)).expect("legal");
    assert_eq!(row.cancel(at(1)), Ok(true));
    assert_eq!(row.cancel(at(2)), Ok(false));
    row.answered(&effect, Answer::Succeeded(Json::Null), 0, at(3)).expect("legal");
    assert_eq!(end(&row).0, Outcome::Succeeded);
}

#[test]
fn what_is_not_wanted_any_more_is_not_begun() {
    let effect = effect("retry");
    let mut row = accepted();
    assert_eq!(row.cancel(at(1)), Ok(false));
    assert_eq!(end(&row), (Outcome::Cancelled, false, "cancelled".to_owned()));
    let mut row = calling(&effect);
    assert_eq!(row.cancel(at(1)), Ok(false));
    row.answered(&effect, Answer::Passing { why: "503".to_owned(), after: None }, 0, at(1)).expect("legal");
    assert_eq!(end(&row), (Outcome::Cancelled, false, "cancelled".to_owned()));
    let mut row = calling(&effect);
    row.cancel(at(1)).expect("legal");
    row.answered(&effect, lost(), 0, at(1)).expect("legal");
    assert_eq!(row.look(&effect, EPOCH, at(1)), Ok(Todo::Nothing));
    assert_eq!(row.state, EffectState::Cancelled);
}

#[derive(Debug, Clone)]
enum Turn {
    Look(u16),
    Answer(u8, u32),
    Cancel,
    Take,
    Person(bool),
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        4 => (0..40_u16).prop_map(Turn::Look),
        5 => (0..6_u8, any::<u32>()).prop_map(|(how, share)| Turn::Answer(how, share)),
        1 => Just(Turn::Cancel),
        1 => Just(Turn::Take),
        1 => any::<bool>().prop_map(Turn::Person),
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
        let (mut todo, mut end, mut retried_after_loss) = (Todo::Nothing, None, false);
        for turn in turns {
            let before = row.state;
            match turn {
                Turn::Look(secs) => {
                    now += u64::from(secs);
                    todo = row.look(&effect, epoch, at(now)).expect("legal");
                    if todo == Todo::Call {
                        prop_assert!(matches!(row.state, EffectState::Accepted | EffectState::Backoff));
                        row.intend(&effect, epoch).expect("its turn");
                    }
                }
                Turn::Answer(how, share) => {
                    let answer = match how {
                        0 => Answer::Succeeded(Json::Null),
                        1 => Answer::Failed { code: "no".to_owned(), payload: Json::object([]) },
                        2 => Answer::Passing { why: String::new(), after: None },
                        3 => Answer::Waiting { external: share.is_multiple_of(2).then(String::new) },
                        4 => Answer::Cancelled,
                        _ => lost(),
                    };
                    let is_asked = row.state == EffectState::Unknown && todo == Todo::Ask;
                    if is_asked {
                        row.found(&effect, Some(answer), share, at(now)).expect("legal");
                    } else if row.state == EffectState::Calling {
                        retried_after_loss |= matches!(answer, Answer::Unknown { .. });
                        row.answered(&effect, answer, share, at(now)).expect("legal");
                    }
                }
                Turn::Cancel => drop(row.cancel(at(now)).expect("legal")),
                Turn::Take => epoch += 1,
                Turn::Person(happened) => {
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
