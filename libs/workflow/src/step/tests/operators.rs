//! Tests of the requests that operators make to instances.

use super::*;

const WAITING: &str = r#"
kind: Saga
name: wait
version: 2
state: { seen: optional text, count: int }
sources: [{ aggregate: A }]
start: { on: Go, set: { count: 0 }, goto: first }
timers: { remind: { after: 1h, raise: Remind } }
steps:
  first:
    on:
      Next: { set: { seen: "${{ event.data.what }}" }, goto: work }
      Again: { set: { count: "${{ state.count + 1 }}" } }
      Remind: { set: { seen: reminded } }
  work:
    effect: do-it
    compensate: { effect: undo-it }
    on_success: { goto: last }
  last:
    on: { End: { end: completed }, Give: { end: failed, reason: "given up at ${{ state.seen }}" } }
"#;

const LATER: &str = r#"
kind: Saga
name: wait
version: 3
state: { seen: optional text, count: int, note: text }
sources: [{ aggregate: A }]
start: { on: Go, set: { count: 0, note: new }, goto: begin }
steps:
  begin: { on: { Next: { goto: work }, Remind: { set: { seen: reminded } } } }
  work:
    effect: do-it-better
    compensate: { effect: undo-it }
    on_success: { goto: last }
  last: { on: { End: { end: completed } } }
migrate: { from: 2, steps: { first: begin }, set: { note: "was ${{ state.count }}" } }
"#;

fn started() -> InstanceHarness {
    let mut world = InstanceHarness::of(WAITING);
    assert_eq!(world.event("go", "Go", "{}"), InputDisposition::Applied);
    world
}

impl InstanceHarness {
    /// Puts a later version in force.
    fn now_there_is(&mut self, later: &Arc<Saga>) {
        self.definitions.insert(later.hash, Arc::clone(later));
        self.saga = Arc::clone(later);
    }
}

fn refused(fate: &InputDisposition) -> &str {
    match fate {
        InputDisposition::Refused(refusal) => &refusal.reason,
        other => panic!("{other:?}"),
    }
}

fn reason() -> String {
    "enough".to_owned()
}

#[test]
fn what_comes_while_it_is_paused_is_applied_afterwards_in_order() {
    let mut world = started();
    assert_eq!(world.verb("r-1", Verb::Pause), InputDisposition::Applied);
    assert_eq!(refused(&world.verb("r-2", Verb::Pause)), "SAGA_PAUSED");
    assert_eq!(refused(&world.verb("r-3", Verb::Cancel { reason: reason() })), "SAGA_PAUSED");
    for (at, kind) in ["Again", "Again", "Next"].into_iter().enumerate() {
        assert_eq!(
            world.event(&format!("e-{at}"), kind, r#"{"what":"x"}"#),
            InputDisposition::Held(at as u64)
        );
    }
    assert_eq!(
        world.verb("r-4", Verb::Send { kind: "Late".to_owned(), data: Json::Null }),
        InputDisposition::Held(3)
    );
    assert_eq!(world.sleep_until(world.now + 3_600_000), 0);
    let bytes = world.held.values().map(|input| encode(input).len() as u64).sum();
    assert_eq!(world.record.as_ref().map(|record| record.held_bytes), Some(bytes));
    assert_eq!(world.verb("r-5", Verb::Resume), InputDisposition::Applied);
    assert_eq!(world.record.as_ref().map(|record| record.held_bytes), Some(0));
    assert_eq!((world.step(), world.instance().state.get("count")), ("work", Some(&Json::Int(2))));
    assert!(world.held.is_empty());
    assert_eq!(refused(&world.verb("r-6", Verb::Resume)), "SAGA_NOT_PAUSED");
    world.assert_replays();
}

#[test]
fn a_start_by_verb_is_applied_once_and_has_the_data_of_an_event() {
    let mut world = InstanceHarness::of(WAITING);
    let start = Verb::Start { data: json("{}") };
    assert_eq!(refused(&world.verb("r-0", Verb::Pause)), "SAGA_NOT_FOUND");
    assert_eq!(world.verb("r-1", start.clone()), InputDisposition::Applied);
    assert_eq!(refused(&world.verb("r-2", start.clone())), "SAGA_EXISTS");
    let sent = Verb::Send { kind: "Next".to_owned(), data: json(r#"{"what":"by hand"}"#) };
    assert_eq!(world.verb("r-3", sent), InputDisposition::Applied);
    assert_eq!(world.instance().state.get("seen"), Some(&Json::text("by hand")));
    world.verb("r-4", Verb::Kill { reason: reason() });
    assert_eq!(
        (world.status(), world.orders()),
        (SagaStatus::Killed, vec!["do-it".to_owned(), "-do-it".to_owned()])
    );
    assert_eq!(refused(&world.verb("r-5", start)), "SAGA_ENDED");
    assert_eq!(world.next_timer(), None);
    world.assert_replays();
}

#[test]
fn verbs_that_do_not_fit_are_refused_and_change_nothing() {
    let mut world = started();
    let before = world.record.clone();
    for verb in [Verb::RetryStep, Verb::SkipStep { result: Json::Null }, Verb::Complete { reason: reason() }]
    {
        assert_eq!(refused(&world.verb("r", verb)), "SAGA_NOT_STUCK");
    }
    assert_eq!(refused(&world.verb("r", Verb::Migrate)), "SAGA_NOT_MIGRATABLE");
    assert_eq!((world.record.clone(), world.journal.len()), (before, 1));
    world.event("e", "Next", r#"{"what":1}"#);
    assert_eq!(refused(&world.verb("r", Verb::Cancel { reason: reason() })), "SAGA_PARKED");
    assert_eq!(world.verb("r", Verb::Kill { reason: reason() }), InputDisposition::Applied);
}

#[test]
fn a_saga_may_end_as_failed_with_its_reason() {
    let mut world = started();
    world.event("e-1", "Next", r#"{"what":"x"}"#);
    world.succeed("work", "{}");
    world.event("e-2", "Give", "{}");
    assert_eq!(world.status(), SagaStatus::Failed);
    assert_eq!(world.journal.last().and_then(|row| row.reason.clone()).as_deref(), Some("given up at x"));
}

#[test]
fn a_timer_of_the_saga_is_kept_for_the_step_that_wants_it() {
    let mut world = started();
    world.sleep_until(world.now + 3_600_000);
    assert_eq!(world.instance().state.get("seen"), Some(&Json::text("reminded")));
    assert_eq!(world.next_timer(), None);
    world.assert_replays();
}

#[test]
fn an_instance_is_migrated_with_all_that_it_is_in_the_middle_of() {
    let mut world = started();
    let later = saga(LATER);
    world.event("e-1", "Again", "{}");
    world.now_there_is(&later);
    assert_eq!(world.verb("r-1", Verb::Migrate), InputDisposition::Applied);
    assert_eq!((world.step(), world.instance().version), ("begin", 3));
    assert_eq!(world.instance().state.get("note"), Some(&Json::text("was 1")));
    assert_eq!(refused(&world.verb("r-2", Verb::Migrate)), "SAGA_NOT_MIGRATABLE");
    world.event("e-2", "Next", "{}");
    world.succeed("work", "{}");
    assert_eq!(world.event("e-3", "End", "{}"), InputDisposition::Applied);
    assert_eq!(world.orders(), ["do-it-better"]);
    world.assert_replays();
    // What the other version does not know cannot be moved.
    for (old, new, why) in [
        ("first: begin", "last: begin", "has no step `first`"),
        ("from: 2", "from: 1", "version 3 migrates from version 1, which is before it"),
    ] {
        let mut world = started();
        world.now_there_is(&saga(&LATER.replace(old, new)));
        let fate = world.verb("r", Verb::Migrate);
        assert!(
            matches!(&fate, InputDisposition::Refused(refusal) if refusal.message.contains(why)),
            "{fate:?}"
        );
    }
    let mut world = started();
    world.event("e-1", "Next", r#"{"what":"x"}"#);
    world.now_there_is(&saga(&LATER.replace("  work:\n", "  works:\n").replace("goto: work", "goto: works")));
    let fate = world.verb("r", Verb::Migrate);
    assert!(
        matches!(&fate, InputDisposition::Refused(refusal) if refusal.message.contains("has no step `work`")),
        "{fate:?}"
    );
}

/// A version behind [`LATER`], which can follow it alone.
fn latest() -> String {
    let names = [
        ("version: 3", "version: 4"),
        ("from: 2, steps: { first: begin }", "from: 3, steps: { begin: open }"),
    ];
    let text = names.iter().fold(LATER.to_owned(), |text, (old, new)| text.replace(old, new));
    let text = text.replace("  begin: {", "  open: {").replace("goto: begin", "goto: open");
    text.replace("was ${{ state.count }}", "${{ state.note }}, then ${{ saga.version }}")
}

#[test]
fn an_instance_is_migrated_by_way_of_the_versions_between() {
    let mut world = started();
    world.event("e-1", "Again", "{}");
    // It waits for a step behind, and is offered in the newest version only.
    assert_eq!(world.event("e-2", "End", "{}"), InputDisposition::Deferred);
    world.now_there_is(&saga(LATER));
    world.now_there_is(&saga(&latest()));
    let before = world.journal.len();
    assert_eq!(world.verb("r-1", Verb::Migrate), InputDisposition::Applied);
    assert_eq!((world.step(), world.instance().version), ("open", 4));
    assert_eq!(world.instance().state.get("note"), Some(&Json::text("was 1, then 4")));
    let rows: Vec<_> = world.journal[before..].iter().map(|row| row.definition).collect();
    assert_eq!(rows, [Some(saga(LATER).hash), Some(saga(&latest()).hash)]);
    world.event("e-3", "Next", "{}");
    assert_eq!(world.orders(), ["do-it-better"]);
    world.succeed("work", "{}");
    assert_eq!(world.status(), SagaStatus::Completed);
    world.assert_replays();
    // What a version on the way cannot be given is an error of that version.
    let mut world = started();
    world.now_there_is(&saga(
        &LATER.replace("note: \"was ${{ state.count }}\"", "note: \"${{ state.gone.x }}\""),
    ));
    world.now_there_is(&saga(&latest()));
    let record = world.record.clone();
    let fate = world.verb("r", Verb::Migrate);
    assert!(
        matches!(&fate, InputDisposition::Refused(refusal) if refusal.reason == "SAGA_FAULT" && refusal.message.contains("at version 3")),
        "{fate:?}"
    );
    assert_eq!((world.record.clone(), world.journal.len()), (record, 1), "nothing of the way is kept");
}

#[test]
fn a_broken_migration_path_is_refused_with_its_missing_step() {
    let without = LATER.replace("migrate: {", "ignore: { last: \"*\" }\n# {");
    for (versions, why) in [
        (vec![latest()], "version 4 migrates from version 3, which is not kept here"),
        (vec![without, latest()], "version 3 does not say how to migrate from any version"),
        (
            vec![LATER.replace("from: 2", "from: 1"), latest()],
            "version 3 migrates from version 1, which is before it",
        ),
        (
            vec![latest().replace("from: 3", "from: 9")],
            "version 4 migrates from version 9, which is not kept here",
        ),
        // It leads nowhere, and ends.
        (
            vec![latest().replace("from: 3", "from: 4")],
            "version 4 migrates from version 4, which is not kept here",
        ),
    ] {
        let mut world = started();
        versions.iter().for_each(|text| world.now_there_is(&saga(text)));
        let fate = world.verb("r", Verb::Migrate);
        assert_eq!(refused(&fate), "SAGA_NOT_MIGRATABLE");
        let expected = format!("there is no way from version 2 of `wait` to version 4: {why}");
        assert!(
            matches!(&fate, InputDisposition::Refused(refusal) if refusal.message == expected),
            "{fate:?}"
        );
    }
}

#[test]
fn limits_are_faults() {
    let mut world =
        InstanceHarness::of(&WAITING.replace("state: {", "limits: { state_bytes: 100 }\nstate: {"));
    world.event("go", "Go", "{}");
    let fate = world.event("e", "Next", &format!("{{\"what\":\"{}\"}}", "x".repeat(100)));
    assert!(
        matches!(&fate, InputDisposition::DeadLetter(letter) if letter.code == "LIMIT" && letter.why.starts_with("the state, in bytes, has at most 100")),
        "{fate:?}"
    );
    let mut world = started();
    // Events that wait for their step.
    for at in 0..64 {
        assert_eq!(world.event(&format!("e-{at}"), "End", "{}"), InputDisposition::Deferred);
    }
    assert!(matches!(world.event("e-64", "End", "{}"), InputDisposition::DeadLetter(_)));
}
