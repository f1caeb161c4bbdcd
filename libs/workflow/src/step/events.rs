//! Events: how instances start, and what those that run make of them.

use std::collections::{BTreeMap, VecDeque};

use model::{BlobHash, SagaStatus, StepName};

use super::turn::{Applied, Turn};
use super::{Application, Change, Fate, Fault, Ignored};
use crate::Json;
use crate::definition::{Action, KEPT_MAX, Missing, Saga};
use crate::input::{Event, Input, What};
use crate::instance::{Entry, Instance, Progress, Purpose, Record};

/// Aggregates of an instance whose versions are remembered.
const VERSIONS_MAX: usize = 64;

impl Application<'_> {
    /// Starts an instance, unless its definition has a condition for that which does not hold.
    pub(super) fn start(self, record: Record, event: &Event) -> Change {
        let applied = match self.first(event) {
            Ok(Some(applied)) => applied,
            Ok(None) => return self.not_started(record, event),
            Err(fault) => return self.finish(record, Err(fault)),
        };
        let mut record = self.behind(record);
        record.parked_by = None;
        let awaited = match &mut record.entry {
            Entry::Awaited(awaited) => std::mem::take(&mut awaited.kept),
            Entry::Live(_) | Entry::Ended(_) => VecDeque::new(),
        };
        let mut change = Change::nothing(Fate::Applied, None);
        let mut instance = change.take_in(applied, self.input, None);
        for waiting in awaited {
            change.taken.push(waiting.number);
            let Some(input) = self.kept.get(&waiting.number).filter(|_| !instance.status.is_end()) else {
                continue;
            };
            match self.offered(&change, &instance, input) {
                Ok(applied) if applied.fate.is_noted() => instance = change.take_in(applied, input, None),
                Ok(_) => {}
                // An event that came before its time spoils no start: it is a letter of its own.
                Err(fault) => {
                    let letter = record.letter(fault.code(), fault.to_string(), false);
                    change.letters.push((letter, input.clone()));
                }
            }
            instance = self.offer(&mut change, &mut record, instance);
        }
        record.settle(instance, &mut change);
        change.record = Some(record);
        change
    }

    /// What becomes of an event that would have started an instance.
    fn not_started(self, record: Record, event: &Event) -> Change {
        match self.saga.missing(&event.kind) {
            Missing::DeadLetter => {
                let why = "its saga does not start with it".to_owned();
                self.dead(record, "NO_INSTANCE", why, false)
            }
            Missing::Ignore | Missing::Park(_) => self.ignored(record),
        }
    }

    /// Makes the first revision of an instance; nothing where the condition does not hold.
    fn first(self, event: &Event) -> Result<Option<Applied>, Fault> {
        let start = &self.saga.start;
        let mut instance = Instance::new(self.saga, self.input, &start.goto);
        instance.see(event);
        let mut turn = Turn::new(self.saga, self.whose, instance, self.input);
        let more = [("event", &event.body)];
        if let Some(when) = &start.when
            && matches!(self.input.what, What::Event(_))
            && !turn.with_scope(&more, |scope| when.is_true(scope))?
        {
            return Ok(None);
        }
        turn.assign(&start.set, &more)?;
        turn.set_timers(&self.saga.timers, false)?;
        turn.enter(&start.goto)?;
        turn.done(Fate::Applied).map(Some)
    }
}

impl Instance {
    fn new(saga: &Saga, input: &Input, step: &StepName) -> Self {
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
            progress: Progress::default(),
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

    /// Remembers the version of an event's aggregate; says whether it is not behind one that was seen.
    fn see(&mut self, event: &Event) -> bool {
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

impl Turn<'_> {
    /// Gives the instance an event.
    pub(super) fn event(mut self, event: &Event) -> Result<Applied, Fault> {
        if !self.instance.see(event) {
            return Ok(self.unchanged(Fate::Ignored(Ignored::OldVersion)));
        }
        if self.instance.status == SagaStatus::Running
            && let Action::Wait(wait) = &self.step()?.action
            && let Some(arms) = wait.on.get(&event.kind)
        {
            return match self.follow(arms, &[("event", &event.body)])? {
                true => self.done(Fate::Applied),
                false => self.done(Fate::Ignored(Ignored::Unwanted)),
            };
        }
        if !self.is_wanted_later(&event.kind) {
            return self.done(Fate::Ignored(Ignored::Unwanted));
        }
        let found = self.instance.kept.len() + 1;
        if found > KEPT_MAX {
            return Err(Fault::Limit { what: "an instance, in events kept,", most: KEPT_MAX, found });
        }
        let mut applied = self.done(Fate::Kept)?;
        applied.keep = Some(event.clone());
        Ok(applied)
    }

    /// Returns whether a step ahead names a type, and the present one does not refuse it.
    fn is_wanted_later(&self, kind: &str) -> bool {
        let (saga, step) = (self.saga, &self.instance.step);
        let goes_on = match self.instance.status {
            SagaStatus::Running => true,
            SagaStatus::Stuck => {
                self.instance.stuck.as_ref().is_none_or(|stuck| stuck.purpose == Purpose::Forward)
            }
            _ => false,
        };
        let is_refused = saga.ignore.get(step).is_some_and(|ignored| ignored.contains(kind));
        goes_on && !is_refused && saga.ahead.get(step).is_some_and(|ahead| ahead.contains(kind))
    }
}
