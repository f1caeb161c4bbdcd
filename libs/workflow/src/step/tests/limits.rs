//! Limits of one input and of one change: beyond them the input is a dead letter, and nothing of it was done.

use std::fmt::Write as _;

use super::*;
use crate::definition::WORK_MAX;

/// Waits, orders a step of several branches, and waits again.
const FORK: &str = r#"
kind: Saga
name: fork
version: 1
state: { seen: optional text }
sources: [{ aggregate: A }]
start: { on: Go, goto: wait }
steps:
  wait: { on: { Next: { set: { seen: "${{ event.id }}" }, goto: first } } }
  first:
    join: all
    parallel: { FIRST }
    on_success: { goto: between }
    on_failure: { compensate: it failed }
  between: { on: { Next: { goto: second } } }
  second:
    parallel: { SECOND }
    on_done: { end: completed }
limits: { work_items: LIMIT }
"#;

fn branches(count: usize) -> String {
    let mut branches = String::new();
    for at in 0..count {
        // Writing to a text cannot fail.
        let _ = write!(branches, "b-{at}: {{ effect: do-it }}, ");
    }
    branches
}

fn forked(first: usize, second: usize, limit: usize) -> InstanceHarness {
    let text = FORK.replace("FIRST", &branches(first)).replace("SECOND", &branches(second));
    let mut world = InstanceHarness::of(&text.replace("LIMIT", &limit.to_string()));
    assert_eq!(world.event("go", "Go", "{}"), InputDisposition::Applied);
    world
}

fn limit_of(fate: &InputDisposition) -> &str {
    match fate {
        InputDisposition::DeadLetter(letter) if letter.code == "LIMIT" && letter.parks => &letter.why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_input_orders_as_much_as_its_saga_may_and_no_more() {
    let mut world = forked(2, 2, 1);
    let before = world.record.clone().and_then(|record| record.instance().cloned());
    let fate = world.event("e-1", "Next", "{}");
    assert_eq!(limit_of(&fate), "one input, in work, has at most 1, this would be 2");
    // Nothing of the input was done: no work, no row, no field.
    assert_eq!((world.orders().len(), world.journal.len(), world.step()), (0, 1, "wait"));
    assert_eq!(before.as_ref(), world.record.as_ref().and_then(CorrelationRecord::instance));
    assert_eq!(world.event("e-2", "Next", "{}"), InputDisposition::Held(0));
    world.assert_replays();
    // As much as there may be is no fault.
    let mut world = forked(2, 2, 2);
    assert_eq!(world.event("e-1", "Next", "{}"), InputDisposition::Applied);
    assert_eq!((world.orders().len(), world.step()), (2, "first"));
}

/// Only a step that waits takes an event that was kept, and one that orders something waits for its work: in one change no more than two
/// inputs order something, which stays below what a change may order.
#[test]
fn a_change_orders_no_more_than_two_inputs_may() {
    const { assert!(2 * WORK_MAX <= WORK_OF_CHANGE_MAX) };
    let mut world = forked(WORK_MAX, WORK_MAX, WORK_MAX);
    world.event("e-1", "Next", "{}");
    assert_eq!((world.orders().len(), world.step()), (WORK_MAX, "first"));
    for at in 2..9 {
        assert_eq!(world.event(&format!("e-{at}"), "Next", "{}"), InputDisposition::Deferred);
    }
    for branch in 0..WORK_MAX {
        assert_eq!(world.orders().len(), WORK_MAX);
        world.succeed(&format!("b-{branch}"), "{}");
    }
    // The last result and the first of the events that were kept are one change.
    assert_eq!((world.orders().len(), world.step()), (2 * WORK_MAX, "second"));
    world.assert_replays();
}

/// The limit on the work of one change is checked on its own, however the work got into the change.
#[test]
fn a_change_that_is_full_takes_no_kept_event() {
    let mut world = forked(2, 2, WORK_MAX);
    world.event("e-1", "Next", "{}");
    let item = world.ordered.first().expect("work was ordered").clone();
    let (instance, whose) = (
        SagaInstance { step: "wait".parse().expect("a step"), ..world.instance().clone() },
        InstanceIdentity { tenant: &world.tenant, correlation: &world.correlation },
    );
    let input = world.event_input("e-2", "Next", "{}");
    let kept = DeferredEvents::new();
    let application =
        ApplyContext { saga: &world.saga, whose, input: &input, origin: InputOrigin::Fresh, kept: &kept };
    let mut change = SagaTransition::nothing(InputDisposition::Applied, None);
    change.work = vec![item; WORK_OF_CHANGE_MAX - 2];
    assert!(application.offered(&change, &instance, &input).is_ok());
    change.work.push(change.work[0].clone());
    let fault = application.offered(&change, &instance, &input).err();
    let expected = InputFault::Limit { what: "one change, in work,", most: 256, found: 257 };
    assert_eq!(fault, Some(expected));
}

/// However large the first is, it waits; what would be beyond the bound finds no room, and changes nothing.
#[test]
fn what_waits_is_bounded_in_bytes() {
    let mut world = forked(2, 2, 2);
    assert_eq!(world.verb("r-1", Verb::Pause), InputDisposition::Applied);
    let input = world.event_input("e-1", "Next", "{}");
    let offer = |world: &InstanceHarness, bytes| {
        let whose = InstanceIdentity { tenant: &world.tenant, correlation: &world.correlation };
        let (record, kept) = (world.record.as_ref(), DeferredEvents::new());
        apply(&world.saga, whose, record, &input, InputOrigin::Fresh, &kept).weighing(record, bytes)
    };
    let held =
        |change: &SagaTransition| change.record.as_ref().map(|record| (record.held.len(), record.held_bytes));
    let first = offer(&world, HELD_BYTES_MAX + 1);
    assert_eq!((&first.fate, held(&first)), (&InputDisposition::Held(0), Some((1, HELD_BYTES_MAX + 1))));
    world.record = offer(&world, HELD_BYTES_MAX - 10).record;
    let (last, beyond) = (offer(&world, 10), offer(&world, 11));
    assert_eq!((&last.fate, held(&last)), (&InputDisposition::Held(1), Some((2, HELD_BYTES_MAX))));
    assert_eq!((&beyond.fate, &beyond.record), (&InputDisposition::NoRoom, &world.record));
}
