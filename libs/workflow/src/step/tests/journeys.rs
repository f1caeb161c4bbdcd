//! The order of the demonstration, and events out of their place.

use super::*;

const ORDER: &str = include_str!("../../manifest/example.yaml");
const PLACED: &str = r#"{"order_id":"o-1","email":"a@b.example","amount_cents":1250}"#;
const CAPTURED: &str = r#"{"amount_cents":1250}"#;
const HALF_AN_HOUR: u64 = 30 * 60 * 1000;

fn placed() -> InstanceHarness {
    let mut world = InstanceHarness::of(ORDER);
    assert_eq!(world.event("e-1", "OrderPlaced", PLACED), InputDisposition::Applied);
    world
}

fn awaiting() -> InstanceHarness {
    let mut world = placed();
    world.succeed("reserve", r#"{"payment_id":"p-1"}"#);
    world
}

#[test]
fn an_order_is_shipped() {
    let mut world = awaiting();
    assert_eq!(
        (world.step(), world.next_timer().map(|(due, ..)| due)),
        ("await-payment", Some(world.now + HALF_AN_HOUR))
    );
    assert_eq!(world.event("e-2", "PaymentCaptured", CAPTURED), InputDisposition::Applied);
    assert_eq!((world.step(), world.next_timer()), ("ship", None));
    world.succeed("ship", r#"{"label":{"code":"L-1"}}"#);
    assert!(world.instance().is_past_pivot);
    world.succeed("mark-shipped", "{}");
    // A receipt that fails undoes nothing.
    world.fail("receipt", r#"{"code":"bounced"}"#);
    assert_eq!(world.status(), SagaStatus::Completed);
    assert_eq!(world.orders(), ["payment-reserve", "make-label", "MarkShipped", "mail-receipt"]);
    let WorkPayload::Command { aggregate, id, payload, .. } = &world.ordered[2].what else {
        panic!("no command")
    };
    assert_eq!((aggregate.as_str(), id.as_str(), payload), ("Order", "o-1", &json(r#"{"label":"L-1"}"#)));
    let state = world.journal.last().and_then(|row| row.state.clone()).expect("the end");
    assert_eq!(state.get("label"), Some(&Json::text("L-1")));
    world.assert_replays();
    let tombstone = encode(world.record.as_ref().expect("a record"));
    assert!(tombstone.len() <= 1024, "{}", tombstone.len());
}

#[test]
fn a_replay_difference_is_reported_with_its_revision() {
    let world = awaiting();
    let input = world.event_input("e-2", "PaymentCaptured", CAPTURED);
    let revision = world.instance().revision + 1;
    let differs = |what: &str, alter: fn(&mut SagaTransition)| {
        let what = what.to_owned();
        assert_eq!(world.differs(&input, alter), Err(ReplayDifference::Row { revision, what }));
    };
    assert_eq!(world.differs(&input, |_| {}), Ok(true));
    differs("the step", |change| change.journal[0].step = "refuse".parse().expect("a step"));
    differs("the instance behind it", |change| change.journal[0].chain = BlobHash::of(b"x"));
    differs("the work", |change| change.journal[0].work.clear());
    differs("what it orders", |change| change.work.clear());
    differs("the instance behind it", |change| change.record = None);
    differs("how many rows it makes", |change| change.journal.extend(change.journal.clone()));
    differs("what becomes of events that were kept", |change| change.removed.push(7));
    // A result that nobody waits for leaves no row: there is nothing to compare.
    let result = CommandResult {
        command: CommandId::from_bits(1),
        outcome: CommandOutcome::Succeeded,
        may_have_happened: false,
        payload: json("{}"),
    };
    let unasked = InstanceInput { time: input.time, what: InstanceInputKind::Result(result) };
    assert_eq!(world.differs(&unasked, |_| {}), Ok(false));
}

#[test]
fn a_declined_order_is_cancelled_and_nothing_is_undone() {
    let mut world = placed();
    world.fail("reserve", r#"{"code":"declined"}"#);
    assert_eq!(world.step(), "refuse");
    world.succeed("refuse", "{}");
    assert_eq!(
        (world.status(), world.orders()),
        (SagaStatus::Completed, vec!["payment-reserve".into(), "Cancel".into()])
    );
    world.assert_replays();
}

#[test]
fn an_order_that_is_not_paid_in_time_is_undone_at_half_past() {
    let mut world = awaiting();
    let due = world.now + HALF_AN_HOUR;
    assert_eq!(world.sleep_until(due - 1), 0);
    assert_eq!(world.status(), SagaStatus::Running);
    assert_eq!(world.sleep_until(due), 1);
    assert_eq!(world.status(), SagaStatus::Compensating);
    world.succeed("reserve", "{}");
    world.succeed("await-payment", "{}");
    assert_eq!(world.status(), SagaStatus::Compensated);
    assert_eq!(world.orders(), ["payment-reserve", "payment-release", "Cancel"]);
    let WorkPayload::Command { payload, .. } = &world.ordered[2].what else { panic!("no command") };
    assert_eq!(payload, &json(r#"{"reason":"not paid within 30 minutes"}"#));
    assert_eq!(
        world.event("e-9", "PaymentCaptured", CAPTURED),
        InputDisposition::Ignored(IgnoreReason::Ended)
    );
    world.assert_replays();
}

#[test]
fn a_reservation_with_an_unknown_outcome_is_released_as_well() {
    let mut world = placed();
    world.result(world.open("reserve"), CommandOutcome::Unknown, "{}");
    assert_eq!(world.instance().reason.as_deref(), Some("the reservation failed"));
    let WorkPayload::Effect { input, .. } = &world.ordered[1].what else { panic!("no effect") };
    assert_eq!(input, &json(r#"{"reference":"order-o-1"}"#));
    // What failed for certain is not.
    let mut world = placed();
    world.fail("reserve", r#"{"code":"upstream"}"#);
    assert_eq!(world.orders(), ["payment-reserve", "Cancel"]);
    assert_eq!(world.status(), SagaStatus::Compensating);
}

#[test]
fn a_timer_that_is_gone_fires_no_more() {
    let mut world = awaiting();
    let (due, name, generation) = world.next_timer().expect("a timer");
    world.event("e-2", "PaymentCaptured", CAPTURED);
    let late = |name: &str, generation| InstanceInput {
        time: Timestamp::from_millis(due),
        what: InstanceInputKind::Timer { name: name.to_owned(), generation },
    };
    assert_eq!(
        world.give(&late(&name, generation), InputOrigin::Fresh),
        InputDisposition::Ignored(IgnoreReason::OldTimer)
    );
    let mut world = awaiting();
    assert_eq!(
        world.give(&late(&name, generation + 1), InputOrigin::Fresh),
        InputDisposition::Ignored(IgnoreReason::OldTimer)
    );
    let early = InstanceInput { time: Timestamp::from_millis(due - 1), ..late(&name, generation) };
    assert_eq!(world.give(&early, InputOrigin::Fresh), InputDisposition::Ignored(IgnoreReason::OldTimer));
    assert_eq!(world.journal.len(), 2);
}

#[test]
fn every_order_of_events_and_results_has_the_same_end() {
    let run = |first: &[&str]| {
        let mut world = InstanceHarness::of(ORDER);
        for what in first {
            match *what {
                "placed" => drop(world.event("e-1", "OrderPlaced", PLACED)),
                "captured" => drop(world.event("e-2", "PaymentCaptured", CAPTURED)),
                "reserved" => drop(world.succeed("reserve", r#"{"payment_id":"p-1"}"#)),
                other => panic!("{other}"),
            }
        }
        world.succeed("ship", r#"{"label":{"code":"L-1"}}"#);
        world.succeed("mark-shipped", "{}");
        world.succeed("receipt", "{}");
        world.assert_replays();
        assert!(world.kept.is_empty() && world.letters.is_empty());
        (world.status(), world.ordered)
    };
    let usual = run(&["placed", "reserved", "captured"]);
    assert_eq!(usual.0, SagaStatus::Completed);
    assert_eq!(run(&["placed", "captured", "reserved"]), usual);
    assert_eq!(run(&["captured", "placed", "reserved"]), usual);
}

#[test]
fn an_event_without_an_instance_waits_for_it_so_long() {
    let mut world = InstanceHarness::of(ORDER);
    assert_eq!(world.event("e-2", "PaymentCaptured", CAPTURED), InputDisposition::Deferred);
    assert_eq!(
        world.event("e-3", "OrderCancelled", "{}"),
        InputDisposition::Ignored(IgnoreReason::NoInstance)
    );
    let due = world.now + 600_000;
    assert_eq!(world.next_timer().map(|(due, name, _)| (due, name)), Some((due, AWAITED.to_owned())));
    world.sleep_until(due);
    assert_eq!((world.kept.len(), world.letters.len(), world.next_timer()), (0, 1, None));
    assert!(!world.letters[&0].0.parks);
    // The start comes after all: it parks nobody.
    assert_eq!(world.event("e-1", "OrderPlaced", PLACED), InputDisposition::Applied);
    assert_eq!(world.status(), SagaStatus::Running);
}

#[test]
fn a_wrong_amount_parks_the_order_and_redriving_applies_all_in_order() {
    let mut world = awaiting();
    let fate = world.event("e-2", "PaymentCaptured", r#"{"amount_cents":1}"#);
    assert!(
        matches!(fate, InputDisposition::DeadLetter(DeadLetter { ref why, parks: true, .. }) if why == "captured 1 of 1250"),
        "{fate:?}"
    );
    assert_eq!(world.event("e-3", "OrderCancelled", "{}"), InputDisposition::Held(0));
    // Timers wait as well.
    let due = world.now + HALF_AN_HOUR;
    assert_eq!(world.sleep_until(due), 0);
    let (_, letter) = world.letters[&0].clone();
    // As it was, it is a letter again.
    let fate = world.give(&letter, InputOrigin::Letter(0));
    assert!(matches!(fate, InputDisposition::DeadLetter(DeadLetter { number: 0, .. })), "{fate:?}");
    assert_eq!(world.record.as_ref().map(|record| record.parked_by), Some(Some(0)));
    // With what was meant it is not.
    let edited = world.event_input("e-2", "PaymentCaptured", CAPTURED);
    assert_eq!(world.give(&edited, InputOrigin::Letter(0)), InputDisposition::Applied);
    world.drain();
    assert_eq!((world.step(), world.held.len(), world.letters.len()), ("ship", 0, 0));
    world.assert_replays();
}

#[test]
fn an_old_version_of_an_aggregate_is_ignored() {
    let mut world = awaiting();
    let versioned = |world: &InstanceHarness, id: &str, version| {
        let mut input = world.event_input(id, "PaymentCaptured", CAPTURED);
        if let InstanceInputKind::Event(event) = &mut input.what {
            event.version = Some(("Payment/p-1".to_owned(), version));
        }
        input
    };
    let mut other = versioned(&world, "e-2", 5);
    if let InstanceInputKind::Event(event) = &mut other.what {
        event.kind = "Unheard".to_owned();
    }
    assert_eq!(world.give(&other, InputOrigin::Fresh), InputDisposition::Ignored(IgnoreReason::Unwanted));
    let old = versioned(&world, "e-3", 4);
    assert_eq!(world.give(&old, InputOrigin::Fresh), InputDisposition::Ignored(IgnoreReason::OldVersion));
    let same = versioned(&world, "e-4", 5);
    assert_eq!(world.give(&same, InputOrigin::Fresh), InputDisposition::Applied);
}

#[test]
fn poison_is_a_letter_with_the_formula_that_failed() {
    let mut world = InstanceHarness::of(ORDER);
    let fate = world.event("e-1", "OrderPlaced", r#"{"order_id":7}"#);
    let InputDisposition::DeadLetter(letter) = fate else { panic!("{fate:?}") };
    assert_eq!(
        (letter.code.as_str(), letter.why.as_str()),
        ("KIND", "`state.order_id` is text, not a number")
    );
    // All that follows of this correlation waits behind it.
    assert_eq!(world.event("e-2", "OrderPlaced", PLACED), InputDisposition::Held(0));
    let mut world = InstanceHarness::of(
        &ORDER.replace("order-${{ state.order_id }}\"", "order-${{ int(state.order_id) }}\""),
    );
    let fate = world.event("e-1", "OrderPlaced", PLACED);
    assert!(
        matches!(&fate, InputDisposition::DeadLetter(letter) if letter.code == "FORMULA" && letter.why.starts_with("`int(state.order_id)`: ")),
        "{fate:?}"
    );
}

#[test]
fn ids_of_work_are_those_of_their_causes() {
    let world = awaiting();
    let ids: Vec<_> = world.ordered.iter().map(|item| item.command.to_string()).collect();
    // Streams and ledgers have them: another program has to ask under the same one.
    assert_eq!(ids, ["018bcfe5-6800-7092-b621-d4c7d9dfeada"]);
    // The same from every build, on every machine.
    let chain = "63c372ec6091a039155c6bb66de2f17af1870494e8c4747b63df7cc68b92abed";
    assert_eq!(world.instance().chain.to_string(), chain);
}
