//! The transition function: the result of giving an input to an instance.
//!
//! [`apply`] is pure. It returns the new record and everything that has to be committed with it; the owner of the lane
//! makes one commit of that. The same record, definition and input give the same change on every machine at any time.

mod application;
mod change;
mod compensation;
mod events;
mod migrate;
mod results;
mod timers;
mod verbs;

use std::collections::BTreeMap;

use model::{CorrelationId, TenantId, Timestamp};

use self::application::InputApplication;
use crate::definition;
use crate::definition::{MissingInstancePolicy, Saga};
use crate::input::{DomainEvent, InstanceInput, InstanceInputKind, Verb, WORK_OF_CHANGE_BYTES_MAX};
use crate::instance::{
    CorrelationEntry, CorrelationRecord, DeferredEvent, SagaInstance, StartBacklog, Timer,
};

pub use change::{
    DeadLetter, IgnoreReason, InputDisposition, InputFault, JournalInput, JournalRow, RequestRefusal,
    SagaTransition, TimerChanges, WorkItem, WorkPayload,
};
pub use migrate::migrate;

/// Maximum number of pieces of work of one change, including those of kept events.
const WORK_OF_CHANGE_MAX: usize = 256;
/// Maximum number of inputs that wait behind a dead letter or a pause.
pub const HELD_MAX: u64 = 1000;
/// Bytes of the rows of inputs that wait behind a dead letter or a pause. A single one may wait whatever its size.
pub const HELD_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Name of the timer of events that wait for the start of their instance. No timer of a saga has it.
pub const AWAITED: &str = "%awaited";

/// Identity of an instance within its saga.
#[derive(Debug, Clone, Copy)]
pub struct InstanceIdentity<'a> {
    /// The tenant.
    pub tenant: &'a TenantId,
    /// The correlation.
    pub correlation: &'a CorrelationId,
}

/// Where an input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputOrigin {
    /// From its source.
    Fresh,
    /// From the queue behind a dead letter or a pause: its number there.
    Held(u64),
    /// From a dead letter: its number.
    Letter(u64),
}

impl InputOrigin {
    /// Removes an input from the place that it comes from.
    fn behind(self, mut record: CorrelationRecord) -> CorrelationRecord {
        match self {
            Self::Held(number) if number == record.held.first => record.held.first += 1,
            Self::Letter(number) if record.parked_by == Some(number) => record.parked_by = None,
            Self::Fresh | Self::Held(_) | Self::Letter(_) => {}
        }
        record
    }
}

/// Events that are kept, by their numbers.
pub type DeferredEvents = BTreeMap<u64, InstanceInput>;

/// Gives an input to the record of a correlation. `kept` has the events that its record lists as kept.
///
/// `saga` is the definition that the instance is pinned to; where there is none, the one that is in force.
#[must_use]
pub fn apply(
    saga: &Saga,
    whose: InstanceIdentity<'_>,
    record: Option<&CorrelationRecord>,
    input: &InstanceInput,
    origin: InputOrigin,
    kept: &DeferredEvents,
) -> SagaTransition {
    let application = ApplyContext { saga, whose, input, origin, kept };
    match record.map(|record| (record, &record.entry)) {
        None => application
            .without_instance(CorrelationRecord::new(CorrelationEntry::Awaited(StartBacklog::none()))),
        Some((record, CorrelationEntry::Awaited(_))) => match application.held_back(record) {
            Some(change) => change,
            None => application.without_instance(record.clone()),
        },
        Some((record, CorrelationEntry::Live(instance))) => application.with_instance(record, instance),
        Some((record, CorrelationEntry::Ended(tombstone))) => {
            let fate = match &input.what {
                InstanceInputKind::Verb { verb, .. } => InputDisposition::Refused(RequestRefusal::new(
                    "SAGA_ENDED",
                    format!("it is {}; `{}` comes too late", tombstone.status, verb.as_str()),
                )),
                _ => InputDisposition::Ignored(IgnoreReason::Ended),
            };
            SagaTransition::nothing(fate, Some(origin.behind(record.clone())))
        }
    }
}

/// Makes a dead letter of a message that is no input of the instance. One that parks its correlation waits for its turn
/// while inputs are held back, so that they are applied in order later.
#[must_use]
pub fn dead_letter(
    record: Option<&CorrelationRecord>,
    code: &str,
    why: &str,
    parks: bool,
    origin: InputOrigin,
) -> SagaTransition {
    let record = record
        .cloned()
        .unwrap_or_else(|| CorrelationRecord::new(CorrelationEntry::Awaited(StartBacklog::none())));
    // An ended instance has no waiting inputs, so nothing is parked.
    let parks = parks && !matches!(record.entry, CorrelationEntry::Ended(_));
    if parks && !record.is_turn_of(origin) {
        return record.hold(origin);
    }
    let mut record = origin.behind(record);
    let letter = match origin {
        InputOrigin::Letter(number) => {
            DeadLetter { number, code: code.to_owned(), why: why.to_owned(), parks }
        }
        InputOrigin::Fresh | InputOrigin::Held(_) => record.letter(code, why.to_owned(), parks),
    };
    if parks {
        record.parked_by = Some(letter.number);
    }
    SagaTransition::nothing(InputDisposition::DeadLetter(letter), Some(record))
}

/// Removes a dead letter without applying it, and with `with_held` also the inputs behind it.
#[must_use]
pub fn discard(record: Option<&CorrelationRecord>, letter: u64, with_held: bool) -> SagaTransition {
    let mut record = record.cloned();
    if let Some(record) = &mut record
        && record.parked_by == Some(letter)
    {
        record.parked_by = None;
        if with_held {
            (record.held.first, record.held_bytes) = (record.held.next, 0);
        }
    }
    SagaTransition::nothing(InputDisposition::Applied, record)
}

/// One call of [`apply`].
#[derive(Clone, Copy)]
struct ApplyContext<'a> {
    saga: &'a Saga,
    whose: InstanceIdentity<'a>,
    input: &'a InstanceInput,
    origin: InputOrigin,
    kept: &'a DeferredEvents,
}

impl ApplyContext<'_> {
    /// Gives the input to an instance.
    fn with_instance(self, record: &CorrelationRecord, instance: &SagaInstance) -> SagaTransition {
        if let Some(change) = self.held_back(record) {
            return change;
        }
        let turn = InputApplication::new(self.saga, self.whose, instance.clone(), self.input);
        let applied = match &self.input.what {
            InstanceInputKind::Event(event) => turn.event(event),
            InstanceInputKind::Result(result) => turn.result(result),
            InstanceInputKind::Timer { name, generation } => turn.timer(name, *generation),
            InstanceInputKind::Verb { verb, .. } => turn.verb(verb, record),
        };
        self.finish(record.clone(), applied)
    }

    /// Holds an input back that has to wait behind a dead letter or a pause; `None` for any other.
    fn held_back(self, record: &CorrelationRecord) -> Option<SagaTransition> {
        // Inputs that are released in order are not held back again, nor are verbs: a verb ends the waiting.
        if record.is_turn_of(self.origin)
            || matches!(&self.input.what, InstanceInputKind::Verb { verb, .. } if !matches!(verb, Verb::Send { .. }))
        {
            return None;
        }
        match &self.input.what {
            // A timer fires only after the waiting inputs were applied.
            InstanceInputKind::Timer { .. } => {
                Some(SagaTransition::nothing(InputDisposition::Later("held back"), Some(record.clone())))
            }
            _ => Some(record.hold(self.origin)),
        }
    }

    /// Decides about an input where there is no instance.
    fn without_instance(self, record: CorrelationRecord) -> SagaTransition {
        let missing = match &self.input.what {
            InstanceInputKind::Event(event) if self.saga.starts_with(event) => {
                return self.start(record, event);
            }
            InstanceInputKind::Verb { verb: Verb::Start { .. }, .. } if self.saga.is_retired => {
                let message = format!("`{}` is in force no more: no instance of it starts", self.saga.name);
                let refusal = RequestRefusal::new("SAGA_NOT_FOUND", message);
                return SagaTransition::nothing(InputDisposition::Refused(refusal), record.unless_empty());
            }
            InstanceInputKind::Verb { request, verb: Verb::Start { data } } => {
                return self.start(record, &DomainEvent::sent(request, "", data.clone()));
            }
            InstanceInputKind::Verb { request, verb: Verb::Send { kind, data } } => {
                if self.saga.starts_on(kind) {
                    return self.start(record, &DomainEvent::sent(request, kind, data.clone()));
                }
                self.saga.missing(kind)
            }
            InstanceInputKind::Verb { .. } => {
                let message = format!("there is no instance of `{}` with this correlation", self.saga.name);
                let refusal = RequestRefusal::new("SAGA_NOT_FOUND", message);
                return SagaTransition::nothing(
                    InputDisposition::Refused(refusal),
                    self.behind(record).unless_empty(),
                );
            }
            InstanceInputKind::Timer { name, .. } if name == AWAITED => return self.expire(record),
            InstanceInputKind::Result(_) | InstanceInputKind::Timer { .. } => {
                return self.ignored(record);
            }
            InstanceInputKind::Event(event) => self.saga.missing(&event.kind),
        };
        match missing {
            MissingInstancePolicy::Ignore => self.ignored(record),
            MissingInstancePolicy::DeadLetter => {
                self.dead(record, "NO_INSTANCE", "there is no instance for it".to_owned(), false)
            }
            MissingInstancePolicy::Park(length) => self.await_start(record, length),
        }
    }

    /// Ignores an input for which there is no instance.
    fn ignored(self, record: CorrelationRecord) -> SagaTransition {
        SagaTransition::nothing(
            InputDisposition::Ignored(IgnoreReason::NoInstance),
            self.behind(record).unless_empty(),
        )
    }

    fn event(&self) -> Option<DomainEvent> {
        match &self.input.what {
            InstanceInputKind::Event(event) => Some(event.clone()),
            InstanceInputKind::Verb { request, verb: Verb::Send { kind, data } } => {
                Some(DomainEvent::sent(request, kind, data.clone()))
            }
            InstanceInputKind::Verb { .. }
            | InstanceInputKind::Result(_)
            | InstanceInputKind::Timer { .. } => None,
        }
    }

    /// Keeps an event until its instance starts.
    fn await_start(self, mut record: CorrelationRecord, length: std::time::Duration) -> SagaTransition {
        let (CorrelationEntry::Awaited(awaited), Some(event)) = (&mut record.entry, self.event()) else {
            return self.ignored(record);
        };
        if awaited.kept.len() >= definition::KEPT_MAX {
            let why = format!("{} events wait for the start already", definition::KEPT_MAX);
            return self.dead(record, "LIMIT", why, false);
        }
        let due = self.input.time + length;
        if awaited.kept.is_empty() || due < awaited.timer.due {
            awaited.timer = Timer { generation: awaited.timer.generation + 1, due, ..Timer::unnamed() };
        }
        let number = record.awaited;
        record.awaited += 1;
        awaited.kept.push_back(DeferredEvent { number, kind: event.kind.clone() });
        let mut change = SagaTransition::nothing(InputDisposition::Deferred, Some(self.behind(record)));
        change
            .deferred
            .push((number, InstanceInput { time: self.input.time, what: InstanceInputKind::Event(event) }));
        change
    }

    /// Makes dead letters of events whose instance has not started in time.
    fn expire(self, mut record: CorrelationRecord) -> SagaTransition {
        let CorrelationEntry::Awaited(awaited) = &mut record.entry else {
            return SagaTransition::nothing(
                InputDisposition::Ignored(IgnoreReason::NoInstance),
                record.unless_empty(),
            );
        };
        if self.input.time < awaited.timer.due {
            return SagaTransition::nothing(InputDisposition::Ignored(IgnoreReason::OldTimer), Some(record));
        }
        let mut change = SagaTransition::nothing(InputDisposition::Applied, None);
        for kept in std::mem::take(&mut awaited.kept) {
            change.removed.push(kept.number);
            if let Some(input) = self.kept.get(&kept.number) {
                let why = "its instance has not started in time".to_owned();
                let letter = record.letter("NO_INSTANCE", why, false);
                change.dead_letters.push((letter, input.clone()));
            }
        }
        change.record = Some(record);
        change
    }

    /// Makes a dead letter of the input.
    fn dead(self, record: CorrelationRecord, code: &str, why: String, parks: bool) -> SagaTransition {
        let mut record = self.behind(record);
        let letter = match self.origin {
            InputOrigin::Letter(number) => DeadLetter { number, code: code.to_owned(), why, parks },
            InputOrigin::Fresh | InputOrigin::Held(_) => record.letter(code, why, parks),
        };
        if parks {
            record.parked_by = Some(letter.number);
        }
        SagaTransition::nothing(InputDisposition::DeadLetter(letter), Some(record))
    }

    /// Removes the input from the place that it comes from.
    fn behind(self, record: CorrelationRecord) -> CorrelationRecord {
        self.origin.behind(record)
    }

    /// Combines a record with the result of its instance, and offers kept events.
    fn finish(
        self,
        record: CorrelationRecord,
        applied: Result<application::AppliedInput, InputFault>,
    ) -> SagaTransition {
        let applied = match applied {
            Ok(applied) => applied,
            // A failed verb parks nothing: the caller gets the refusal.
            Err(fault) if matches!(self.input.what, InstanceInputKind::Verb { .. }) => {
                let refusal = RequestRefusal::new("SAGA_FAULT", fault.to_string());
                return SagaTransition::nothing(
                    InputDisposition::Refused(refusal),
                    Some(self.behind(record)),
                );
            }
            Err(fault) => return self.dead(record, fault.code(), fault.to_string(), true),
        };
        let mut record = self.behind(record);
        if !applied.fate.is_noted() {
            return SagaTransition::nothing(applied.fate, Some(record));
        }
        match &applied.verb {
            Some(Verb::Pause) => record.is_paused = true,
            Some(Verb::Resume) => record.is_paused = false,
            _ => {}
        }
        let mut change = SagaTransition::nothing(applied.fate.clone(), None);
        let instance = change.take_in(applied, self.input, None);
        let instance = self.offer(&mut change, &mut record, instance);
        record.settle(instance, &mut change);
        change.record = Some(record);
        change
    }

    /// Offers kept events while one of them is wanted.
    fn offer(
        self,
        change: &mut SagaTransition,
        record: &mut CorrelationRecord,
        mut instance: SagaInstance,
    ) -> SagaInstance {
        while !record.holds_back()
            && let Some(at) = instance.wanted(self.saga)
            && let Some(kept) = instance.kept.remove(at)
        {
            // Events kept in this very change are not in the store yet.
            let fresh =
                change.deferred.iter().find(|(number, _)| *number == kept.number).map(|(_, input)| input);
            let input = fresh.or_else(|| self.kept.get(&kept.number)).cloned();
            change.forget(kept.number);
            // Without its row nothing is left to be applied.
            let Some(input) = input else { continue };
            match self.offered(change, &instance, &input) {
                Ok(applied) if applied.fate.is_noted() => {
                    instance = change.take_in(applied, &input, Some(kept.number));
                }
                Ok(_) => {}
                Err(fault) => {
                    let letter = record.letter(fault.code(), fault.to_string(), true);
                    record.parked_by = Some(letter.number);
                    change.dead_letters.push((letter, input));
                }
            }
        }
        instance
    }

    /// Applies an event that was kept.
    fn offered(
        self,
        change: &SagaTransition,
        instance: &SagaInstance,
        input: &InstanceInput,
    ) -> Result<application::AppliedInput, InputFault> {
        let InstanceInputKind::Event(event) = &input.what else {
            return Err(InputFault::no("event in", "a kept row"));
        };
        let applied = InputApplication::new(self.saga, self.whose, instance.clone(), input).event(event)?;
        let (found, most) = (change.work.len() + applied.work.len(), WORK_OF_CHANGE_MAX);
        if found > most {
            return Err(InputFault::Limit { what: "one change, in work,", most, found });
        }
        let (found, most) =
            (change.work.iter().chain(&applied.work).map(WorkItem::bytes).sum(), WORK_OF_CHANGE_BYTES_MAX);
        if found > most {
            return Err(InputFault::Limit { what: "the work of one change, in bytes,", most, found });
        }
        Ok(applied)
    }
}

impl StartBacklog {
    /// Nothing that waits.
    fn none() -> Self {
        Self { timer: Timer::unnamed(), kept: std::collections::VecDeque::new() }
    }
}

impl Timer {
    /// A timer that raises no event.
    const fn unnamed() -> Self {
        Self { generation: 0, due: Timestamp::from_millis(0), raise: String::new(), is_of_step: false }
    }
}

impl CorrelationRecord {
    /// Returns the record, unless it is empty.
    fn unless_empty(self) -> Option<Self> {
        let is_empty = matches!(&self.entry, CorrelationEntry::Awaited(awaited) if awaited.kept.is_empty());
        (!is_empty || self.letters > 0 || self.parked_by.is_some()).then_some(self)
    }

    /// Returns whether nothing has to be applied before an input of this origin.
    fn is_turn_of(&self, origin: InputOrigin) -> bool {
        match origin {
            InputOrigin::Letter(number) if self.parked_by == Some(number) => true,
            InputOrigin::Held(number) => number == self.held.first && !self.holds_back(),
            InputOrigin::Fresh | InputOrigin::Letter(_) => self.held.is_empty() && !self.holds_back(),
        }
    }

    /// Queues an input behind those that are held back.
    fn hold(&self, origin: InputOrigin) -> SagaTransition {
        let fate = match origin {
            InputOrigin::Held(_) => InputDisposition::Later("held back"),
            _ if self.held.len() >= HELD_MAX => InputDisposition::NoRoom,
            InputOrigin::Fresh | InputOrigin::Letter(_) => {
                let mut record = self.clone();
                record.held.next += 1;
                return SagaTransition::nothing(InputDisposition::Held(self.held.next), Some(record));
            }
        };
        SagaTransition::nothing(fate, Some(self.clone()))
    }

    /// Makes a letter with the next number.
    fn letter(&mut self, code: &str, why: String, parks: bool) -> DeadLetter {
        let number = self.letters;
        self.letters += 1;
        DeadLetter { number, code: code.to_owned(), why, parks }
    }

    /// Stores the instance in the record, or its tombstone if it has ended.
    fn settle(&mut self, mut instance: SagaInstance, change: &mut SagaTransition) {
        if !instance.status.is_end() {
            self.entry = CorrelationEntry::Live(Box::new(instance));
            return;
        }
        for kept in std::mem::take(&mut instance.kept) {
            change.forget(kept.number);
        }
        if let Some(row) = change.journal.last_mut() {
            row.state = Some(instance.state.clone());
        }
        self.is_paused = false;
        self.parked_by = None;
        self.entry = CorrelationEntry::Ended(instance.tombstone());
    }
}

#[cfg(test)]
mod tests;
