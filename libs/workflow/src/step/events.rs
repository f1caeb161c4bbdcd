//! Events: how they start instances, and how running instances handle them.

use std::collections::{BTreeMap, VecDeque};

use model::{BlobHash, SagaStatus, StepName};

use super::application::{AppliedInput, InputApplication};
use super::{ApplyContext, IgnoreReason, InputDisposition, InputFault, SagaTransition};
use crate::Json;
use crate::definition::{KEPT_MAX, MissingInstancePolicy, Saga, StepAction};
use crate::input::{DomainEvent, InstanceInput, InstanceInputKind};
use crate::instance::{CommandPurpose, CorrelationEntry, CorrelationRecord, SagaInstance, StepProgress};

/// Aggregates of an instance whose versions are remembered.
const VERSIONS_MAX: usize = 64;

impl ApplyContext<'_> {
    /// Starts an instance, unless its definition has a condition for that which does not hold.
    pub(super) fn start(self, record: CorrelationRecord, event: &DomainEvent) -> SagaTransition {
        let applied = match self.first(event) {
            Ok(Some(applied)) => applied,
            Ok(None) => return self.not_started(record, event),
            Err(fault) => return self.finish(record, Err(fault)),
        };
        let mut record = self.behind(record);
        record.parked_by = None;
        let awaited = match &mut record.entry {
            CorrelationEntry::Awaited(awaited) => std::mem::take(&mut awaited.kept),
            CorrelationEntry::Live(_) | CorrelationEntry::Ended(_) => VecDeque::new(),
        };
        let mut change = SagaTransition::nothing(InputDisposition::Applied, None);
        let mut instance = change.take_in(applied, self.input, None);
        for waiting in awaited {
            change.removed.push(waiting.number);
            let Some(input) = self.kept.get(&waiting.number).filter(|_| !instance.status.is_end()) else {
                continue;
            };
            match self.offered(&change, &instance, input) {
                Ok(applied) if applied.fate.is_noted() => instance = change.take_in(applied, input, None),
                Ok(_) => {}
                // An early event does not spoil the start: it becomes a dead letter of its own.
                Err(fault) => {
                    let letter = record.letter(fault.code(), fault.to_string(), false);
                    change.dead_letters.push((letter, input.clone()));
                }
            }
            instance = self.offer(&mut change, &mut record, instance);
        }
        record.settle(instance, &mut change);
        change.record = Some(record);
        change
    }

    /// Makes the transition of an event that did not start an instance.
    fn not_started(self, record: CorrelationRecord, event: &DomainEvent) -> SagaTransition {
        match self.saga.missing(&event.kind) {
            MissingInstancePolicy::DeadLetter => {
                let why = "its saga does not start with it".to_owned();
                self.dead(record, "NO_INSTANCE", why, false)
            }
            MissingInstancePolicy::Ignore | MissingInstancePolicy::Park(_) => self.ignored(record),
        }
    }

    /// Makes the first revision of an instance; nothing where the condition does not hold.
    fn first(self, event: &DomainEvent) -> Result<Option<AppliedInput>, InputFault> {
        let start = &self.saga.start;
        let mut instance = SagaInstance::new(self.saga, self.input, &start.goto);
        instance.see(event);
        let mut turn = InputApplication::new(self.saga, self.whose, instance, self.input);
        let more = [("event", &event.body)];
        if let Some(when) = &start.when
            && matches!(self.input.what, InstanceInputKind::Event(_))
            && !turn.with_scope(&more, |scope| when.is_true(scope))?
        {
            return Ok(None);
        }
        turn.assign(&start.set, &more)?;
        turn.set_timers(&self.saga.timers, false)?;
        turn.enter(&start.goto)?;
        turn.done(InputDisposition::Applied).map(Some)
    }
}

impl SagaInstance {
    fn new(saga: &Saga, input: &InstanceInput, step: &StepName) -> Self {
        Self {
            definition: saga.hash,
            version: saga.version,
            run: 0,
            revision: 0,
            status: SagaStatus::Running,
            started: input.time,
            now: input.time,
            step: step.clone(),
            entered: input.time,
            state: Json::Map(saga.state.keys().map(|field| (field.clone(), Json::Null)).collect()),
            stack: Vec::new(),
            is_past_pivot: false,
            open: BTreeMap::new(),
            progress: StepProgress::default(),
            reason: None,
            cancelled: None,
            stuck: None,
            timers: BTreeMap::new(),
            generations: 0,
            versions: BTreeMap::new(),
            kept: VecDeque::new(),
            chain: BlobHash::of(&[]),
        }
    }

    /// Notes the version of an event's aggregate; returns false if a later version was seen already.
    fn see(&mut self, event: &DomainEvent) -> bool {
        let Some((aggregate, version)) = &event.version else { return true };
        if let Some(seen) = self.versions.get_mut(aggregate) {
            let is_new = *version >= *seen;
            *seen = (*seen).max(*version);
            return is_new;
        }
        if self.versions.len() < VERSIONS_MAX {
            self.versions.insert(aggregate.clone(), *version);
        }
        true
    }
}

impl InputApplication<'_> {
    /// Gives the instance an event.
    pub(super) fn event(mut self, event: &DomainEvent) -> Result<AppliedInput, InputFault> {
        if !self.instance.see(event) {
            return Ok(self.unchanged(InputDisposition::Ignored(IgnoreReason::OldVersion)));
        }
        if self.instance.status == SagaStatus::Running
            && let StepAction::Wait(wait) = &self.step()?.action
            && let Some(arms) = wait.on.get(&event.kind)
        {
            return match self.follow(arms, &[("event", &event.body)])? {
                true => self.done(InputDisposition::Applied),
                false => self.done(InputDisposition::Ignored(IgnoreReason::Unwanted)),
            };
        }
        if !self.is_wanted_later(&event.kind) {
            return self.done(InputDisposition::Ignored(IgnoreReason::Unwanted));
        }
        let found = self.instance.kept.len() + 1;
        if found > KEPT_MAX {
            return Err(InputFault::Limit { what: "an instance, in events kept,", most: KEPT_MAX, found });
        }
        let mut applied = self.done(InputDisposition::Deferred)?;
        applied.keep = Some(event.clone());
        Ok(applied)
    }

    /// Returns whether a step ahead names a type, and the present one does not refuse it.
    fn is_wanted_later(&self, kind: &str) -> bool {
        let (saga, step) = (self.saga, &self.instance.step);
        let goes_on = match self.instance.status {
            SagaStatus::Running => true,
            SagaStatus::Stuck => {
                self.instance.stuck.as_ref().is_none_or(|stuck| stuck.purpose == CommandPurpose::Forward)
            }
            _ => false,
        };
        let is_refused = saga.ignore.get(step).is_some_and(|ignored| ignored.contains(kind));
        goes_on && !is_refused && saga.upcoming_events.get(step).is_some_and(|ahead| ahead.contains(kind))
    }
}
