//! Checks of a saga's steps together: where they lead, what can be undone, which events are awaited.

use std::collections::{BTreeMap, BTreeSet};

use model::StepName;
use yaml::{SourcePosition, YamlFields, did_you_mean};

use crate::definition::{Continuation, IgnoredEventTypes, Saga, SagaStep, StepAction, StepArm};

/// Steps that a step leads to, by its outcome.
struct StepSuccessors<'a> {
    /// After it has succeeded, or after an event.
    on_success: Vec<&'a StepName>,
    on_failure: Vec<&'a StepName>,
}

impl SagaStep {
    fn ways(&self) -> StepSuccessors<'_> {
        match &self.action {
            StepAction::Work(work) => StepSuccessors {
                on_success: targets(&work.on_success),
                on_failure: targets(&work.on_failure),
            },
            StepAction::Wait(wait) => {
                let on_success = wait.on.values().flat_map(|arms| targets(arms)).collect();
                StepSuccessors { on_success, on_failure: Vec::new() }
            }
        }
    }

    fn arms(&self) -> impl Iterator<Item = &StepArm> {
        let (work, wait) = match &self.action {
            StepAction::Work(work) => (Some(work.on_success.iter().chain(&work.on_failure)), None),
            StepAction::Wait(wait) => (None, Some(wait.on.values().flatten())),
        };
        work.into_iter().flatten().chain(wait.into_iter().flatten())
    }
}

fn targets(arms: &[StepArm]) -> Vec<&StepName> {
    arms.iter()
        .filter_map(|arm| if let Continuation::Goto(step) = &arm.then { Some(step) } else { None })
        .collect()
}

/// Returns the steps that can be reached from `from`, including those, along `ways`.
fn reachable<'a>(
    saga: &'a Saga,
    from: impl IntoIterator<Item = &'a StepName>,
    ways: impl Fn(&'a SagaStep) -> Vec<&'a StepName>,
) -> BTreeSet<&'a StepName> {
    let mut found = BTreeSet::new();
    let mut open: Vec<_> = from.into_iter().collect();
    while let Some(name) = open.pop() {
        if let Some(step) = saga.steps.get(name)
            && found.insert(name)
        {
            open.extend(ways(step));
        }
    }
    found
}

fn all_ways(step: &SagaStep) -> Vec<&StepName> {
    let StepSuccessors { mut on_success, on_failure } = step.ways();
    on_success.extend(on_failure);
    on_success
}

/// Types of events that steps ahead of each step name.
pub(super) fn types_ahead(saga: &Saga) -> BTreeMap<StepName, BTreeSet<String>> {
    let types_of = |name: &&StepName| match saga.steps.get(*name).map(|step| &step.action) {
        Some(StepAction::Wait(wait)) => wait.on.keys().cloned().collect::<Vec<_>>(),
        _ => Vec::new(),
    };
    let ahead =
        |step: &SagaStep| reachable(saga, all_ways(step), all_ways).iter().flat_map(types_of).collect();
    saga.steps.iter().map(|(name, step)| (name.clone(), ahead(step))).collect()
}

/// Where things of a saga are written.
pub(super) struct SagaSourceMap<'a> {
    /// Positions of the steps.
    pub(super) steps: BTreeMap<StepName, SourcePosition>,
    /// Steps that something goes to.
    pub(super) targets: Vec<(StepName, SourcePosition)>,
    /// Keys of the saga itself.
    pub(super) fields: &'a YamlFields<'a>,
}

/// Checks the steps together, and notes problems.
pub(super) fn check(saga: &Saga, written: &SagaSourceMap<'_>, reader: &mut yaml::YamlReader) {
    let places = &written.steps;
    let place_of = |key: &str| written.fields.get(key).map_or(SourcePosition::START, |entry| entry.place);
    dangling(saga, &written.targets, reader);
    unreachable(saga, places, reader);
    pivots(saga, places, reader);
    for (name, step) in &saga.steps {
        let StepAction::Work(work) = &step.action else { continue };
        if targets(&work.on_failure).contains(&name) && !targets(&work.on_success).contains(&name) {
            let message = format!(
                "the step `{name}` goes to itself when it failed: a retry around a retry; the provider of the effect retries it"
            );
            reader.problem(place(places, name), message);
        }
    }
    names_elsewhere(saga, place_of, reader);
    if !saga.start.on.is_empty() && saga.sources.is_empty() {
        reader.problem(
            place_of("start"),
            "an event starts this saga, and it reads none; write `sources: [{ aggregate: Order }]`",
        );
    }
    if saga.start.on.is_empty() && saga.start.when.is_some() {
        reader.problem(place_of("start"), "`when` is for events; `on` names none");
    }
}

fn place(places: &BTreeMap<StepName, SourcePosition>, name: &StepName) -> SourcePosition {
    places.get(name).copied().unwrap_or(SourcePosition::START)
}

/// Notes targets that do not exist, each where it is named.
fn dangling(saga: &Saga, targets: &[(StepName, SourcePosition)], reader: &mut yaml::YamlReader) {
    let names: Vec<_> = saga.steps.keys().map(StepName::as_str).collect();
    for (target, place) in targets.iter().filter(|(target, _)| !saga.steps.contains_key(target)) {
        let hint = did_you_mean(target.as_str(), &names);
        reader.problem(*place, format!("there is no step `{target}`{hint}"));
    }
}

fn unreachable(saga: &Saga, places: &BTreeMap<StepName, SourcePosition>, reader: &mut yaml::YamlReader) {
    // Without the first step, every other step would be reported too.
    if !saga.steps.contains_key(&saga.start.goto) {
        return;
    }
    let reached = reachable(saga, [&saga.start.goto], all_ways);
    for name in saga.steps.keys().filter(|name| !reached.contains(name)) {
        reader.problem(place(places, name), format!("nothing leads to the step `{name}`"));
    }
}

/// Steps that are reached while everything can be undone.
pub(crate) fn before_pivot(saga: &Saga) -> BTreeSet<&StepName> {
    reachable(saga, [&saga.start.goto], |step| {
        let StepSuccessors { mut on_success, on_failure } = step.ways();
        if step.is_pivot {
            on_success.clear();
        }
        on_success.extend(on_failure);
        on_success
    })
}

fn pivots(saga: &Saga, places: &BTreeMap<StepName, SourcePosition>, reader: &mut yaml::YamlReader) {
    let is_pivot = |name: &&StepName| saga.steps.get(*name).is_some_and(|step| step.is_pivot);
    let before = before_pivot(saga);
    for (name, step) in saga.steps.iter().filter(|(_, step)| step.is_pivot) {
        let behind = reachable(saga, step.ways().on_success, all_ways);
        for second in behind.iter().filter(|name| is_pivot(name)) {
            let message = format!(
                "the step `{second}` is a pivot behind the pivot `{name}`; a saga has one on each way"
            );
            reader.problem(place(places, second), message);
        }
        let StepAction::Work(work) = &step.action else { continue };
        if work.branches.iter().any(|branch| branch.compensate.is_some()) {
            let message = format!("the step `{name}` is a pivot: it is never compensated");
            reader.problem(place(places, name), message);
        }
        for name in behind.iter().filter(|name| !before.contains(*name)) {
            if let Some(step) = saga.steps.get(*name) {
                check_behind_pivot(name, step, place(places, name), reader);
            }
        }
    }
}

/// Notes compensations of a step that is reached only behind the pivot.
fn check_behind_pivot(
    name: &StepName,
    step: &SagaStep,
    place: SourcePosition,
    reader: &mut yaml::YamlReader,
) {
    if step.arms().any(|arm| matches!(arm.then, Continuation::Compensate(_))) {
        reader.problem(place, format!("the step `{name}` compensates, and is reached only behind the pivot"));
    }
    let has_compensation = match &step.action {
        StepAction::Work(work) => work.branches.iter().any(|branch| branch.compensate.is_some()),
        StepAction::Wait(_) => false,
    };
    if has_compensation {
        let message = format!("the step `{name}` has a compensation, and is reached only behind the pivot");
        reader.problem(place, message);
    }
}

/// Notes unknown steps and types that other keys name.
fn names_elsewhere(saga: &Saga, place_of: impl Fn(&str) -> SourcePosition, reader: &mut yaml::YamlReader) {
    let steps: Vec<_> = saga.steps.keys().map(StepName::as_str).collect();
    let types: BTreeSet<&str> = saga
        .steps
        .values()
        .filter_map(|step| if let StepAction::Wait(wait) = &step.action { Some(wait) } else { None })
        .flat_map(|wait| wait.on.keys().map(String::as_str))
        .chain(saga.start.on.iter().map(String::as_str))
        .collect();
    let known: Vec<_> = types.iter().copied().collect();
    let mut check_type = |kind: &str, key: &str| {
        if !types.contains(kind) {
            let hint = did_you_mean(kind, &known);
            reader.problem(place_of(key), format!("`{key}` names `{kind}`, for which no step waits{hint}"));
        }
    };
    for kind in saga.on_missing.keys() {
        check_type(kind, "on_missing");
    }
    for kinds in saga.ignore.values() {
        if let IgnoredEventTypes::Listed(kinds) = kinds {
            kinds.iter().for_each(|kind| check_type(kind, "ignore"));
        }
    }
    for timer in &saga.timers {
        check_type(&timer.raise, "timers");
    }
    let migrated =
        saga.migrate.iter().flat_map(|migrate| migrate.steps.values().map(|step| ("migrate", step)));
    for (key, step) in saga.ignore.keys().map(|step| ("ignore", step)).chain(migrated) {
        if !saga.steps.contains_key(step) {
            let hint = did_you_mean(step.as_str(), &steps);
            reader
                .problem(place_of(key), format!("`{key}` names the step `{step}`, which there is not{hint}"));
        }
    }
}
