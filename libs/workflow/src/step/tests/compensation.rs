//! Undoing: what was done or may have been, backwards, once each.

use super::*;

const STEPS: usize = 10;

/// A saga of ten steps in a row, each with a compensation; one of them may be the pivot.
fn row_of_steps(pivot: Option<usize>) -> String {
    let mut text = "kind: Saga\nname: row\nversion: 1\nstate: { n: int }\nsources: [{ aggregate: A }]\n\
                    start: { on: Go, set: { n: 1 }, goto: s0 }\nsteps:\n"
        .to_owned();
    for at in 0..STEPS {
        let follows = match at + 1 {
            STEPS => "end: completed".to_owned(),
            next => format!("goto: s{next}"),
        };
        let undo = match pivot {
            Some(pivot) if at >= pivot => String::new(),
            _ => format!(
                "    compensate: {{ effect: undo-{at}, input: {{ was: \"${{{{ input.n }}}}\", made: \"${{{{ result?.made }}}}\" }} }}\n"
            ),
        };
        let is_pivot = if pivot == Some(at) { "    pivot: true\n" } else { "" };
        text += &format!(
            "  s{at}:\n{is_pivot}    effect: do-{at}\n    input: {{ n: \"${{{{ state.n + {at} }}}}\" }}\n{undo}    on_success: {{ {follows} }}\n"
        );
    }
    text
}

fn started(text: &str) -> InstanceHarness {
    let mut world = InstanceHarness::of(text);
    assert_eq!(world.event("go", "Go", "{}"), InputDisposition::Applied);
    world
}

fn at_step(text: &str, step: usize) -> InstanceHarness {
    let mut world = started(text);
    for done in 0..step {
        world.succeed(&format!("s{done}"), &format!("{{\"made\":{done}}}"));
    }
    world
}

/// Lets every compensation succeed, and gives what was undone.
fn undo_all(world: &mut InstanceHarness) -> Vec<String> {
    while world.status() == SagaStatus::Compensating {
        let (command, _) = world.instance().open.iter().next().expect("a compensation is open");
        world.result(*command, CommandOutcome::Succeeded, "{}");
    }
    world.orders().into_iter().filter(|order| order.starts_with("undo")).collect()
}

#[test]
fn each_step_that_fails_has_those_before_it_undone_in_reverse() {
    let text = row_of_steps(None);
    for failing in 0..STEPS {
        for (outcome, is_undone) in [
            (CommandOutcome::Failed, false),
            (CommandOutcome::Cancelled, false),
            (CommandOutcome::Unknown, true),
        ] {
            let mut world = at_step(&text, failing);
            world.result(world.open(&format!("s{failing}")), outcome, "{}");
            let undone = undo_all(&mut world);
            let behind = failing + usize::from(is_undone);
            let expected: Vec<_> = (0..behind).rev().map(|at| format!("undo-{at}")).collect();
            assert_eq!(
                (undone, world.status()),
                (expected, SagaStatus::Compensated),
                "{failing} {outcome:?}"
            );
            let reason = format!("the step `s{failing}` failed: {}", outcome.code());
            assert_eq!(world.journal.last().and_then(|row| row.reason.clone()), Some(reason));
            world.assert_replays();
        }
    }
}

#[test]
fn a_compensation_knows_what_was_given_and_what_came_of_it() {
    let mut world = at_step(&row_of_steps(None), 1);
    world.result(world.open("s1"), CommandOutcome::Unknown, "{}");
    undo_all(&mut world);
    let inputs = world.ordered.iter().filter_map(|item| match &item.what {
        WorkPayload::Effect { effect, input } if effect.as_str().starts_with("undo") => {
            Some(input.to_string())
        }
        _ => None,
    });
    assert_eq!(inputs.collect::<Vec<_>>(), [r#"{"made":null,"was":2}"#, r#"{"made":0,"was":1}"#]);
}

#[test]
fn behind_the_pivot_there_is_no_way_back() {
    let text = row_of_steps(Some(4));
    for failing in 0..STEPS {
        let mut world = at_step(&text, failing);
        let cancel = world.verb("r-1", Verb::Cancel { reason: "enough".to_owned() });
        if failing > 4 {
            assert!(
                matches!(&cancel, InputDisposition::Refused(refusal) if refusal.reason == "PAST_PIVOT"),
                "{cancel:?}"
            );
        } else {
            assert_eq!(cancel, InputDisposition::Applied);
        }
        world.result(world.open(&format!("s{failing}")), CommandOutcome::Failed, r#"{"code":"broken"}"#);
        if failing > 4 {
            assert_eq!(world.status(), SagaStatus::Stuck);
            assert!(world.orders().iter().all(|order| !order.starts_with("undo")));
            let why = &world.instance().stuck.as_ref().expect("stuck").why;
            assert_eq!(why, &format!("the step `s{failing}` failed: broken"));
        } else {
            let expected: Vec<_> = (0..failing).rev().map(|at| format!("undo-{at}")).collect();
            assert_eq!((undo_all(&mut world), world.status()), (expected, SagaStatus::Compensated));
            assert_eq!(world.journal.last().and_then(|row| row.reason.clone()).as_deref(), Some("enough"));
        }
        world.assert_replays();
    }
}

#[test]
fn a_pivot_with_an_unknown_outcome_is_not_undone() {
    let mut world = at_step(&row_of_steps(Some(4)), 4);
    world.result(world.open("s4"), CommandOutcome::Unknown, "{}");
    assert_eq!(world.status(), SagaStatus::Stuck);
    assert_eq!(
        world.instance().stuck.as_ref().map(|stuck| stuck.why.as_str()),
        Some("nobody knows whether the pivot `s4` happened: unknown")
    );
    assert_eq!(world.verb("r", Verb::SkipStep { result: json("{}") }), InputDisposition::Applied);
    assert!(world.instance().is_past_pivot);
    assert_eq!(world.step(), "s5");
}

#[test]
fn a_cancel_that_comes_while_the_pivot_is_under_way_waits_for_its_end() {
    let cancelled = || {
        let mut world = at_step(&row_of_steps(Some(4)), 4);
        assert_eq!(
            world.verb("r-1", Verb::Cancel { reason: "enough".to_owned() }),
            InputDisposition::Applied
        );
        assert_eq!(
            (world.status(), world.orders().last().cloned()),
            (SagaStatus::Running, Some("-do-4".to_owned()))
        );
        world
    };
    let mut world = cancelled();
    world.succeed("s4", "{}");
    assert_eq!(
        (world.status(), world.step(), world.instance().reason.clone()),
        (SagaStatus::Running, "s5", None)
    );
    let mut world = cancelled();
    world.result(world.open("s4"), CommandOutcome::Cancelled, "{}");
    assert_eq!(undo_all(&mut world), ["undo-3", "undo-2", "undo-1", "undo-0"]);
}

#[test]
fn what_is_under_way_is_waited_for_before_it_is_undone() {
    for (outcome, first) in [
        (CommandOutcome::Succeeded, "undo-2"),
        (CommandOutcome::Unknown, "undo-2"),
        (CommandOutcome::Cancelled, "undo-1"),
    ] {
        let mut world = at_step(&row_of_steps(None), 2);
        world.verb("r-1", Verb::Cancel { reason: "enough".to_owned() });
        assert_eq!(world.status(), SagaStatus::Compensating);
        assert_eq!(world.orders().last().map(String::as_str), Some("-do-2"));
        world.result(world.open("s2"), outcome, r#"{"made":2}"#);
        assert_eq!(undo_all(&mut world).first().map(String::as_str), Some(first), "{outcome:?}");
        world.assert_replays();
    }
}

#[test]
fn a_permanently_failed_compensation_is_stuck_until_an_operator_acts() {
    let stuck = || {
        let mut world = at_step(&row_of_steps(None), 2);
        world.fail("s2", r#"{"code":"broken"}"#);
        world.succeed("s1", "{}");
        world.fail("s0", r#"{"code":"gone"}"#);
        assert_eq!(world.status(), SagaStatus::Stuck);
        let stuck = world.instance().stuck.clone().expect("stuck");
        assert_eq!(stuck.why, "the compensation of `s0` failed: gone");
        world
    };
    let mut world = stuck();
    let before = world.ordered.len();
    assert_eq!(world.verb("r-1", Verb::RetryStep), InputDisposition::Applied);
    assert_eq!((world.status(), world.ordered.len()), (SagaStatus::Compensating, before + 1));
    // Another order of the same thing has an id of its own.
    assert_ne!(world.ordered[before].command, world.ordered[before - 1].command);
    assert_eq!(undo_all(&mut world), ["undo-1", "undo-0", "undo-0"]);
    assert_eq!(world.status(), SagaStatus::Compensated);
    world.assert_replays();
    let mut world = stuck();
    assert_eq!(world.verb("r-1", Verb::SkipStep { result: Json::Null }), InputDisposition::Applied);
    assert_eq!(
        (world.status(), undo_all(&mut world)),
        (SagaStatus::Compensated, vec!["undo-1".to_owned(), "undo-0".to_owned()])
    );
    let mut world = stuck();
    assert_eq!(world.verb("r-1", Verb::Complete { reason: "by hand".to_owned() }), InputDisposition::Applied);
    assert_eq!(world.status(), SagaStatus::Completed);
}

const PARALLEL: &str = r#"
kind: Saga
name: fan
version: 1
state: { who: optional text }
sources: [{ aggregate: A }]
start: { on: Go, goto: all }
steps:
  all:
    parallel:
      a: { effect: do-a, compensate: { effect: undo-a } }
      b: { effect: do-b, compensate: { effect: undo-b } }
      c: { effect: do-c, compensate: { effect: undo-c } }
    join: JOIN
    on_success: { set: { who: "${{ result?.a?.name ?? result?.b?.name }}" }, goto: last }
  last: { effect: do-last, on_success: { end: completed } }
"#;

fn parallel(join: &str) -> InstanceHarness {
    started(&PARALLEL.replace("JOIN", join))
}

#[test]
fn all_branches_have_to_succeed_unless_the_join_needs_fewer() {
    let mut world = parallel("all");
    assert_eq!(world.orders(), ["do-a", "do-b", "do-c"]);
    world.succeed("b", r#"{"name":"B"}"#);
    world.succeed("a", r#"{"name":"A"}"#);
    assert_eq!(world.step(), "all");
    world.succeed("c", "{}");
    assert_eq!((world.step(), world.instance().state.get("who")), ("last", Some(&Json::text("A"))));
    world.assert_replays();
}

#[test]
fn a_branch_that_fails_has_the_others_called_back_and_those_that_were_done_undone() {
    let mut world = parallel("all");
    world.succeed("a", "{}");
    world.fail("b", "{}");
    assert_eq!(world.orders()[3..], ["-do-c"]);
    assert_eq!(world.status(), SagaStatus::Running);
    world.succeed("c", "{}");
    assert_eq!(undo_all(&mut world), ["undo-c", "undo-a"]);
    assert_eq!(world.status(), SagaStatus::Compensated);
    world.assert_replays();
}

#[test]
fn branches_that_end_well_after_the_join_are_undone_before_the_saga_goes_on() {
    let mut world = parallel("any");
    world.fail("a", "{}");
    world.succeed("b", r#"{"name":"B"}"#);
    assert_eq!(world.orders()[3..], ["-do-c"]);
    world.succeed("c", "{}");
    assert_eq!((world.step(), world.orders()[4..].to_vec()), ("all", vec!["undo-c".to_owned()]));
    world.succeed("c", "{}");
    assert_eq!((world.step(), world.instance().state.get("who")), ("last", Some(&Json::text("B"))));
    // Later only what was done is undone.
    world.fail("last", "{}");
    assert_eq!(undo_all(&mut world), ["undo-c", "undo-b"]);
    world.assert_replays();
}

#[test]
fn a_quorum_is_decided_as_soon_as_it_can_be() {
    let mut world = parallel("{ quorum: 2 }");
    world.fail("a", "{}");
    world.succeed("b", "{}");
    assert_eq!(world.step(), "all");
    world.succeed("c", "{}");
    assert_eq!(world.step(), "last");
    let mut world = parallel("{ quorum: 2 }");
    world.fail("a", "{}");
    world.fail("b", "{}");
    assert_eq!(world.orders()[3..], ["-do-c"]);
    world.result(world.open("c"), CommandOutcome::Cancelled, "{}");
    assert_eq!(world.status(), SagaStatus::Compensated);
}

#[test]
fn a_branch_that_cannot_be_undone_is_stuck_where_it_is() {
    let stuck = || {
        let mut world = parallel("any");
        world.succeed("a", "{}");
        world.result(world.open("b"), CommandOutcome::Cancelled, "{}");
        world.result(world.open("c"), CommandOutcome::Unknown, "{}");
        world.fail("c", r#"{"code":"gone"}"#);
        assert_eq!((world.status(), world.step()), (SagaStatus::Stuck, "all"));
        world
    };
    let mut world = stuck();
    world.verb("r", Verb::RetryStep);
    world.succeed("c", "{}");
    assert_eq!(world.step(), "last");
    let mut world = stuck();
    world.verb("r", Verb::SkipStep { result: Json::Null });
    assert_eq!(world.step(), "last");
    world.assert_replays();
}
