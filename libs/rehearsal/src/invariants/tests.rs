//! Planted violations, each of which has to be found.

use std::sync::Arc;

use model::{CorrelationId, TenantId, Timestamp};
use workflow::Json;
use workflow::input::DomainEvent;
use workflow::manifest::{ManifestDefinition, read};
use workflow::step::{DeadLetter, DeferredEvents, InputOrigin, InstanceIdentity, WorkItem, apply};

use super::*;

const TEXT: &str = r#"
kind: Saga
name: trip
version: 1
sources: [{ aggregate: Trip }]
start: { on: Booked, goto: flight }
steps:
  flight: { effect: flight, compensate: { effect: no-flight }, on_success: { goto: hotel } }
  hotel: { effect: hotel, compensate: { effect: no-hotel }, on_success: { goto: wait } }
  wait: { on: { Called: { compensate: called off } } }
"#;

/// One instance, whose changes may be spoiled before the laws see them.
struct Trip {
    saga: Arc<Saga>,
    record: Option<CorrelationRecord>,
    laws: InvariantChecker,
}

impl Trip {
    fn new() -> Self {
        let documents = read("trip.yaml", TEXT).unwrap_or_else(|problems| panic!("{problems}"));
        let ManifestDefinition::Saga(saga) = &documents[0].definition else { panic!("a provider") };
        Self { saga: Arc::clone(saga), record: None, laws: InvariantChecker::default() }
    }

    fn give(&mut self, what: InstanceInputKind, spoil: impl FnOnce(&mut SagaTransition)) {
        let tenant: TenantId = "acme".parse().expect("a tenant");
        let correlation: CorrelationId = "c".parse().expect("a correlation");
        let whose = InstanceIdentity { tenant: &tenant, correlation: &correlation };
        let input = InstanceInput { time: Timestamp::from_millis(1_700_000_000_000), what };
        let record = self.record.as_ref();
        let mut change = apply(&self.saga, whose, record, &input, InputOrigin::Fresh, &DeferredEvents::new());
        spoil(&mut change);
        self.laws.observe(&self.saga, self.record.as_ref(), &input, &change);
        self.record = change.record;
    }

    fn event(&mut self, kind: &str, spoil: impl FnOnce(&mut SagaTransition)) {
        self.give(InstanceInputKind::Event(DomainEvent::sent(kind, kind, Json::Null)), spoil);
    }

    fn succeed(&mut self, spoil: impl FnOnce(&mut SagaTransition)) {
        let instance = self.record.as_ref().and_then(CorrelationRecord::instance).expect("an instance");
        let command = *instance.open.keys().next().expect("open work");
        let payload = Json::object([]);
        let result =
            CommandResult { command, outcome: CommandOutcome::Succeeded, may_have_happened: false, payload };
        self.give(InstanceInputKind::Result(result), spoil);
    }

    /// Until both are booked.
    fn booked() -> Self {
        let mut trip = Self::new();
        trip.event("Booked", |_| ());
        trip.succeed(|_| ());
        trip.succeed(|_| ());
        trip
    }

    fn broken(mut self) -> Vec<String> {
        self.laws.conclude(&self.saga, self.record.as_ref());
        self.laws.into_violations()
    }
}

/// The open command of a change, for a change of it.
fn open(change: &mut SagaTransition) -> &mut OpenCommand {
    let Some(CorrelationEntry::Live(instance)) = change.record.as_mut().map(|record| &mut record.entry)
    else {
        panic!("no instance")
    };
    instance.open.values_mut().next().expect("open work")
}

#[track_caller]
fn assert_found(trip: Trip, expected: &str) {
    let broken = trip.broken();
    assert!(broken.iter().any(|law| law.contains(expected)), "{expected}: {broken:?}");
}

#[test]
fn a_saga_that_is_undone_breaks_nothing() {
    let mut trip = Trip::booked();
    trip.event("Called", |_| ());
    trip.succeed(|_| ());
    trip.succeed(|_| ());
    assert!(matches!(trip.record.as_ref().map(|record| &record.entry), Some(CorrelationEntry::Ended(_))));
    assert_eq!(trip.broken(), Vec::<String>::new());
}

#[test]
fn compensation_in_another_order_is_found() {
    let mut trip = Trip::booked();
    trip.event("Called", |change| {
        let name: StepName = "flight".parse().expect("a step");
        let open = open(change);
        (open.step, open.branch) = (name.clone(), name);
    });
    assert_found(trip, "the step `flight` is undone before the step `hotel`, which came after it");
}

#[test]
fn compensation_that_is_left_out_is_found() {
    let mut trip = Trip::booked();
    trip.event("Called", |_| ());
    // The end comes one compensation too early.
    trip.succeed(|change| {
        change.work.clear();
        let record = change.record.as_mut().expect("a record");
        let instance = record.instance().expect("an instance").clone();
        record.entry =
            CorrelationEntry::Ended(SagaInstance { status: SagaStatus::Compensated, ..instance }.tombstone());
    });
    assert_found(trip, "it is compensated, and the step `flight` is not undone");
}

#[test]
fn compensation_behind_the_pivot_or_of_nothing_is_found() {
    let mut trip = Trip::booked();
    if let Some(CorrelationEntry::Live(instance)) = trip.record.as_mut().map(|record| &mut record.entry) {
        instance.is_past_pivot = true;
        instance.stack.clear();
    }
    trip.event("Called", |_| ());
    // The core itself is stuck there.
    assert_eq!(trip.broken(), Vec::<String>::new());
    let mut trip = Trip::booked();
    trip.event("Called", |_| ());
    if let Some(CorrelationEntry::Live(instance)) = trip.record.as_mut().map(|record| &mut record.entry) {
        instance.is_past_pivot = true;
    }
    trip.succeed(|_| ());
    assert_found(trip, "the step `flight` is undone behind the pivot");
    let mut trip = Trip::new();
    trip.event("Booked", |change| open(change).purpose = CommandPurpose::Undo);
    assert_found(trip, "the step `flight` is undone, and there is nothing to undo");
}

#[test]
fn the_same_work_under_other_ids_is_found() {
    let mut trip = Trip::new();
    trip.event("Booked", |change| {
        let open = open(change).clone();
        let other = CommandId::from_bits(7);
        change.work.push(WorkItem { command: other, ..change.work[0].clone() });
        if let Some(CorrelationEntry::Live(instance)) = change.record.as_mut().map(|record| &mut record.entry)
        {
            instance.open.insert(other, open);
        }
    });
    assert_found(trip, "work of the step `flight` is ordered twice, under other ids");
    let mut trip = Trip::new();
    trip.event("Booked", |change| change.work.push(change.work[0].clone()));
    assert_found(trip, "has an id that other work has");
}

#[test]
fn a_fault_and_an_instance_that_waits_for_nothing_are_found() {
    let fault = |change: &mut SagaTransition| {
        let (code, why) = ("FORMULA".to_owned(), "no answer".to_owned());
        change.fate = InputDisposition::DeadLetter(DeadLetter { number: 0, code, why, parks: true });
    };
    let mut trip = Trip::new();
    trip.event("Booked", fault);
    assert_found(trip, "a fault parks the instance: FORMULA: no answer");
    let mut trip = Trip::new();
    trip.laws.expect_dead_letters(["FORMULA"]);
    trip.event("Booked", fault);
    assert_eq!(trip.broken(), Vec::<String>::new());
    let mut trip = Trip::new();
    trip.event("Booked", |change| {
        if let Some(CorrelationEntry::Live(instance)) = change.record.as_mut().map(|record| &mut record.entry)
        {
            instance.open.clear();
        }
    });
    assert_found(trip, "it is running at the step `flight`, and waits for nothing");
}
