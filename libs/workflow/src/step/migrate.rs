//! Migration of instances to another version.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use model::StepName;

use super::application::{AppliedInput, InputApplication};
use super::{
    ApplyContext, DeferredEvents, InputDisposition, InputFault, InputOrigin, InstanceIdentity,
    RequestRefusal, SagaTransition,
};
use crate::Json;
use crate::definition::{Saga, StepAction};
use crate::input::{InstanceInput, InstanceInputKind, Verb};
use crate::instance::{CommandPurpose, CorrelationEntry, CorrelationRecord, SagaInstance};

/// Migrates an instance to the newest of these versions, through those between. The newest comes first.
///
/// Each version on the way is a row of the journal, and all of them are one change: an instance becomes one of the newest,
/// or stays unchanged. A parked or paused instance may be migrated as well, and stays so.
#[must_use]
pub fn migrate(
    versions: &[Arc<Saga>],
    whose: InstanceIdentity<'_>,
    record: &CorrelationRecord,
    input: &InstanceInput,
    kept: &DeferredEvents,
) -> SagaTransition {
    let refused = |refusal: RequestRefusal| {
        SagaTransition::nothing(InputDisposition::Refused(refusal), Some(record.clone()))
    };
    let (CorrelationEntry::Live(instance), InstanceInputKind::Verb { verb: Verb::Migrate, .. }) =
        (&record.entry, &input.what)
    else {
        return refused(RequestRefusal::new(
            "SAGA_NOT_RUNNING",
            "there is no instance that could be migrated",
        ));
    };
    match migrated_along(versions, whose, record, instance, input, kept) {
        Ok(change) => change,
        Err(refusal) => refused(refusal),
    }
}

/// Migrates version by version.
fn migrated_along(
    versions: &[Arc<Saga>],
    whose: InstanceIdentity<'_>,
    record: &CorrelationRecord,
    instance: &SagaInstance,
    input: &InstanceInput,
    kept: &DeferredEvents,
) -> Result<SagaTransition, RequestRefusal> {
    let (way, last) = way(versions, instance.version)?;
    // Collects the intermediate versions; their journal rows precede that of the last version.
    let mut before = SagaTransition::nothing(InputDisposition::Applied, None);
    let mut instance = instance.clone();
    for saga in way {
        let turn = InputApplication::new(saga, whose, moved(saga, &instance)?, input);
        let applied = turn.migrated().map_err(|fault| {
            let (name, version) = (&saga.name, saga.version);
            RequestRefusal::new(
                "SAGA_FAULT",
                format!("on the way, at version {version} of `{name}`: {fault}"),
            )
        })?;
        instance = before.take_in(applied, input, None);
    }
    let application = ApplyContext { saga: last, whose, input, origin: InputOrigin::Fresh, kept };
    let turn = InputApplication::new(last, whose, moved(last, &instance)?, input);
    let mut change = application.finish(record.clone(), turn.migrated());
    if change.fate == InputDisposition::Applied {
        change.journal.splice(0..0, before.journal);
    }
    Ok(change)
}

/// Finds the way from a version to the newest: the versions between, the oldest first, and the newest.
fn way(versions: &[Arc<Saga>], from: u32) -> Result<(Vec<&Saga>, &Saga), RequestRefusal> {
    let refuse = |message: String| RequestRefusal::new("SAGA_NOT_MIGRATABLE", message);
    let Some(last) = versions.first() else {
        return Err(refuse("there is no version of its saga".to_owned()));
    };
    if last.version == from {
        return Err(refuse(format!("it is of version {from} already")));
    }
    let (mut between, mut at): (Vec<&Saga>, &Saga) = (Vec::new(), last);
    loop {
        let (name, version) = (&last.name, at.version);
        let missing = |why: String| {
            refuse(format!(
                "there is no way from version {from} of `{name}` to version {}: {why}",
                last.version
            ))
        };
        let Some(before) = at.migrate.as_ref().map(|migrate| migrate.from) else {
            return Err(missing(format!("version {version} does not say how to migrate from any version")));
        };
        match before.cmp(&from) {
            Ordering::Equal => break,
            Ordering::Less => {
                let why = format!("version {version} migrates from version {before}, which is before it");
                return Err(missing(why));
            }
            Ordering::Greater => {}
        }
        let found = versions.iter().find(|saga| saga.version == before && before < version);
        let Some(found) = found else {
            let why = format!("version {version} migrates from version {before}, which is not kept here");
            return Err(missing(why));
        };
        between.push(found);
        at = found;
    }
    between.reverse();
    Ok((between, last))
}

impl InputApplication<'_> {
    /// Applies the assignments of the migration, once everything has its new name.
    fn migrated(mut self) -> Result<AppliedInput, InputFault> {
        let saga = self.saga;
        if let Some(migrate) = &saga.migrate {
            self.assign(&migrate.set, &[])?;
        }
        if let Json::Map(state) = &mut self.instance.state {
            state.retain(|field, _| saga.state.contains_key(field));
        }
        for (field, kind) in &saga.state {
            let value = self.instance.state.get(field).unwrap_or(&Json::Null);
            // A field that was never set is null, whatever its kind.
            if *value != Json::Null && !kind.kind.holds(value) {
                let wanted = kind.kind.as_str().to_owned();
                return Err(InputFault::Kind { field: field.clone(), wanted, found: value.kind() });
            }
        }
        self.done(InputDisposition::Applied)
    }
}

/// The instance with the names of the other definition.
fn moved(saga: &Saga, instance: &SagaInstance) -> Result<SagaInstance, RequestRefusal> {
    let refuse = |message: String| Err(RequestRefusal::new("SAGA_NOT_MIGRATABLE", message));
    let Some(migrate) = saga.migrate.as_ref().filter(|migrate| migrate.from == instance.version) else {
        return refuse(format!(
            "version {} of `{}` does not say how to migrate from version {}",
            saga.version, saga.name, instance.version
        ));
    };
    let renamed = |step: &StepName| migrate.steps.get(step).unwrap_or(step).clone();
    let mut moved = instance.clone();
    moved.definition = saga.hash;
    moved.version = saga.version;
    moved.step = renamed(&instance.step);
    for done in &mut moved.stack {
        done.step = renamed(&done.step);
    }
    for open in moved.open.values_mut() {
        open.step = renamed(&open.step);
        // A step with one branch shares its name with it.
        open.branch = renamed(&open.branch);
    }
    for done in &mut moved.stack {
        done.branch = renamed(&done.branch);
    }
    let ended = std::mem::take(&mut moved.progress.ended);
    moved.progress.ended = ended.into_iter().map(|(branch, ended)| (renamed(&branch), ended)).collect();
    fits(saga, &moved).map(|()| SagaInstance { state: with_all_fields(saga, moved.state.clone()), ..moved })
}

/// Checks that the definition has everything that the instance is in the middle of.
fn fits(saga: &Saga, moved: &SagaInstance) -> Result<(), RequestRefusal> {
    let refuse = |message: String| Err(RequestRefusal::new("SAGA_NOT_MIGRATABLE", message));
    let has_branch = |step: &StepName, branch: &StepName| match saga.steps.get(step).map(|step| &step.action)
    {
        Some(StepAction::Work(work)) => work.branches.iter().any(|known| known.name == *branch),
        _ => false,
    };
    let Some(step) = saga.steps.get(&moved.step) else {
        return refuse(format!(
            "version {} has no step `{}`; say which one it becomes",
            saga.version, moved.step
        ));
    };
    let forward = moved.open.values().filter(|open| open.purpose == CommandPurpose::Forward);
    let stacked = moved.stack.iter().map(|done| (&done.step, &done.branch));
    for (step, branch) in forward.map(|open| (&open.step, &open.branch)).chain(stacked) {
        if !has_branch(step, branch) {
            return refuse(format!(
                "version {} has no work `{step}/{branch}`, which is under way or done",
                saga.version
            ));
        }
    }
    if let StepAction::Wait(wait) = &step.action {
        for (name, timer) in moved.timers.iter().filter(|(_, timer)| timer.is_of_step) {
            if !wait.on.contains_key(&timer.raise) {
                let (step, raise) = (&moved.step, &timer.raise);
                return refuse(format!(
                    "the step `{step}` does not wait for `{raise}` of the timer `{name}`"
                ));
            }
        }
    }
    Ok(())
}

/// A state with every field of the definition.
fn with_all_fields(saga: &Saga, state: Json) -> Json {
    let Json::Map(mut fields) = state else { return Json::Map(BTreeMap::new()) };
    for field in saga.state.keys() {
        fields.entry(field.clone()).or_insert(Json::Null);
    }
    Json::Map(fields)
}
