//! Any inputs in any order, against what must always hold.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::instance::CommandPurpose;

const TEXT: &str = r#"
kind: Saga
name: any
version: 1
state: { n: int, last: optional text }
sources: [{ aggregate: A }]
on_missing: { Next: { park: 1h } }
start: { on: Go, set: { n: 0 }, goto: first }
timers: { late: { after: 2h, raise: Late } }
steps:
  first: { effect: do-1, compensate: { effect: undo-1 }, on_success: { goto: wait } }
  wait:
    timers: { soon: { after: 10m, raise: Soon } }
    on:
      Next: [{ when: event.data.n > state.n, set: { n: "${{ event.data.n }}" }, goto: both }, { dead_letter: "not more" }]
      Soon: { goto: both }
      Late: { compensate: late }
  both:
    parallel:
      a: { effect: do-a, compensate: { effect: undo-a, input: "${{ result }}" } }
      b: { command: { aggregate: B, id: b, type: DoB }, compensate: { effect: undo-b } }
    join: any
    on_success: { goto: again }
    on_failure: [{ when: 'result?.a?.code == "soft"', goto: wait }, { compensate: both failed }]
  again: { on: { Loop: { goto: first }, On: { goto: turn } } }
  turn: { pivot: true, effect: do-turn, on_success: { goto: end } }
  end: { effect: do-end, on_success: { end: completed } }
compensated: { command: { aggregate: B, id: b, type: Undone } }
"#;

#[derive(Debug, Clone)]
enum HarnessAction {
    Event(u8, u8, i8),
    /// The end of an open command: which one, how, and whether it comes twice.
    Result(prop::sample::Index, u8, bool),
    Sleep(u32),
    Verb(u8),
    Redrive(bool),
}

fn turns() -> impl Strategy<Value = Vec<HarnessAction>> {
    let turn = prop_oneof![
        6 => (0..6_u8, 0..40_u8, -2..6_i8).prop_map(|(kind, id, n)| HarnessAction::Event(kind, id, n)),
        10 => (any::<prop::sample::Index>(), 0..10_u8, any::<bool>()).prop_map(|(at, how, twice)| HarnessAction::Result(at, how, twice)),
        2 => (0..8_000_000_u32).prop_map(HarnessAction::Sleep),
        2 => (0..8_u8).prop_map(HarnessAction::Verb),
        2 => any::<bool>().prop_map(HarnessAction::Redrive),
    ];
    prop::collection::vec(turn, 0..60)
}

/// One run; events that have been seen are not given again, as the store sees to.
fn run(saga: &Arc<Saga>, turns: &[HarnessAction]) -> InstanceHarness {
    let mut world = InstanceHarness::new(saga);
    let mut seen = BTreeSet::new();
    for (at, turn) in turns.iter().enumerate() {
        match turn {
            HarnessAction::Event(kind, id, n) => {
                let kind = ["Go", "Next", "Loop", "On", "Other", "Next"][usize::from(*kind)];
                if seen.insert(*id) {
                    world.event(&format!("e-{id}"), kind, &format!("{{\"n\":{n}}}"));
                }
            }
            HarnessAction::Result(which, how, twice) => give_result(&mut world, *which, *how, *twice),
            HarnessAction::Sleep(millis) => drop(world.sleep_until(world.now + u64::from(*millis))),
            HarnessAction::Verb(verb) => {
                let reason = || "asked".to_owned();
                let verb = match verb {
                    0 => Verb::Pause,
                    1 | 2 => Verb::Resume,
                    3 => Verb::Cancel { reason: reason() },
                    4 => Verb::RetryStep,
                    5 => Verb::SkipStep { result: json("{}") },
                    6 => Verb::Start { data: json("{}") },
                    _ => Verb::Send { kind: "On".to_owned(), data: json("{}") },
                };
                world.verb(&format!("r-{at}"), verb);
            }
            HarnessAction::Redrive(is_edited) => redrive(&mut world, *is_edited),
        }
        world.drain();
        check(&world);
    }
    world
}

fn give_result(world: &mut InstanceHarness, which: prop::sample::Index, how: u8, twice: bool) {
    let Some(instance) = world.record.as_ref().and_then(CorrelationRecord::instance) else { return };
    let open: Vec<_> = instance.open.keys().copied().collect();
    if open.is_empty() {
        return;
    }
    let command = *which.get(&open);
    let (outcome, payload) = match how {
        0..6 => (CommandOutcome::Succeeded, r#"{"made":1}"#),
        6 => (CommandOutcome::Failed, r#"{"code":"soft"}"#),
        7 => (CommandOutcome::Failed, "{}"),
        8 => (CommandOutcome::Unknown, "null"),
        _ => (CommandOutcome::Cancelled, "[]"),
    };
    let first = world.result(command, outcome, payload);
    let before = world.ordered.len();
    if twice {
        let second = world.result(command, outcome, payload);
        assert!(
            matches!(second, InputDisposition::Held(_) | InputDisposition::Ignored(_)),
            "{first:?} {second:?}"
        );
        assert_eq!(world.ordered.len(), before);
    }
}

fn redrive(world: &mut InstanceHarness, is_edited: bool) {
    let Some(number) = world.record.as_ref().and_then(|record| record.parked_by) else { return };
    let (_, mut input) = world.letters[&number].clone();
    if is_edited && let InstanceInputKind::Event(event) = &mut input.what {
        *event = DomainEvent {
            id: event.id.clone(),
            ..DomainEvent::sent("x", &event.kind, json(r#"{"n":100000}"#))
        };
    }
    world.give(&input, InputOrigin::Letter(number));
}

/// Checks the invariants that hold after each input.
fn check(world: &InstanceHarness) {
    let ids: BTreeSet<_> = world.ordered.iter().map(|item| item.command).collect();
    assert_eq!(ids.len(), world.ordered.len(), "no id twice");
    let Some(record) = &world.record else { return };
    let (revision, _) = chain(record).unwrap_or((0, BlobHash::of(&[])));
    assert_eq!(revision, world.journal.len() as u64);
    assert_eq!(
        record.held.len(),
        if world.status_is_end() { record.held.len() } else { world.held.len() as u64 }
    );
    let Some(instance) = record.instance() else { return };
    let kept: BTreeSet<_> = instance.kept.iter().map(|kept| kept.number).collect();
    assert_eq!(kept, world.kept.keys().copied().collect());
    let undoing = instance.open.values().filter(|open| open.purpose == CommandPurpose::Undo).count();
    assert!(undoing <= 1, "one at a time");
    if undoing > 0 {
        let forward = instance.open.values().filter(|open| open.purpose != CommandPurpose::Undo).count();
        assert_eq!((forward, instance.status, instance.is_past_pivot), (0, SagaStatus::Compensating, false));
    }
    if instance.status == SagaStatus::Compensating {
        assert!(!instance.open.is_empty(), "somebody is waited for");
    }
    if instance.status == SagaStatus::Stuck {
        assert!(instance.stuck.is_some());
    }
}

impl InstanceHarness {
    fn status_is_end(&self) -> bool {
        matches!(self.record.as_ref().map(|record| &record.entry), Some(CorrelationEntry::Ended(_)))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_must_hold_holds_whatever_comes(turns in turns()) {
        let saga = saga(TEXT);
        let world = run(&saga, &turns);
        if !world.journal.is_empty() {
            world.assert_replays();
            // A row that is another one is found.
            let mut journal = world.journal.clone();
            let last = journal.len() - 1;
            journal[last].chain = BlobHash::of(b"another");
            let whose = InstanceIdentity { tenant: &world.tenant, correlation: &world.correlation };
            prop_assert!(replay(|_| Some(Arc::clone(&saga)), whose, &journal).is_err());
        }
        // Once more: the same bytes.
        let again = run(&saga, &turns);
        prop_assert_eq!(encode(&world.record), encode(&again.record));
        prop_assert_eq!(world.ordered, again.ordered);
    }
}
