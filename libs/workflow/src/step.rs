//! The transition function: what follows when an instance is given an input.
//!
//! [`apply`] is pure. It gives the new record and everything that has to be committed with it; whoever owns the lane makes one
//! commit of that. The same record, definition and input give the same change on every machine and every day.

mod change;
mod events;
mod migrate;
mod results;
mod timers;
mod turn;
mod undo;
mod verbs;

use std::collections::BTreeMap;

use model::{CorrelationId, TenantId, Timestamp};

use self::turn::Turn;
use crate::definition;
use crate::definition::{Missing, Saga};
use crate::input::{Event, Input, Verb, WORK_OF_CHANGE_BYTES_MAX, What};
use crate::instance::{Awaited, Entry, Instance, Kept, Record, Timer};

pub use change::{
    Change, Fate, Fault, Ignored, JournalInput, Letter, Ordered, Refusal, Row, TimerChanges, WorkItem,
};
pub use migrate::migrate;

/// Pieces of work of one change, those of kept events among them.
const WORK_OF_CHANGE_MAX: usize = 256;
/// Inputs that wait behind a letter or a pause.
pub const HELD_MAX: u64 = 1000;
/// Bytes of the rows of inputs that wait behind a letter or a pause. One may wait however large it is.
pub const HELD_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Name of the timer of events that wait for the start of their instance. No timer of a saga has it.
pub const AWAITED: &str = "%awaited";

/// Whose instance it is.
#[derive(Debug, Clone, Copy)]
pub struct Whose<'a> {
    /// The tenant.
    pub tenant: &'a TenantId,
    /// The correlation.
    pub correlation: &'a CorrelationId,
}

/// Where an input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// From its source.
    Fresh,
    /// From behind a letter or a pause: its number there.
    Held(u64),
    /// From a dead letter: its number.
    Letter(u64),
}

impl Origin {
    /// Takes an input off the place that it comes from.
    fn behind(self, mut record: Record) -> Record {
        match self {
            Self::Held(number) if number == record.held.first => record.held.first += 1,
            Self::Letter(number) if record.parked_by == Some(number) => record.parked_by = None,
            Self::Fresh | Self::Held(_) | Self::Letter(_) => {}
        }
        record
    }
}

/// Events that are kept, by their numbers.
pub type KeptEvents = BTreeMap<u64, Input>;

/// Gives an input to the record of a correlation. `kept` has the events that its record says are kept.
///
/// `saga` is the definition that the instance is pinned to; where there is none, the one that is in force.
#[must_use]
pub fn apply(
    saga: &Saga,
    whose: Whose<'_>,
    record: Option<&Record>,
    input: &Input,
    origin: Origin,
    kept: &KeptEvents,
) -> Change {
    let application = Application { saga, whose, input, origin, kept };
    match record.map(|record| (record, &record.entry)) {
        None => application.without_instance(Record::new(Entry::Awaited(Awaited::none()))),
        Some((record, Entry::Awaited(_))) => match application.held_back(record) {
            Some(change) => change,
            None => application.without_instance(record.clone()),
        },
        Some((record, Entry::Live(instance))) => application.with_instance(record, instance),
        Some((record, Entry::Ended(tombstone))) => {
            let fate = match &input.what {
                What::Verb { verb, .. } => Fate::Refused(Refusal::new(
                    "SAGA_ENDED",
                    format!("it is {}; `{}` comes too late", tombstone.status, verb.as_str()),
                )),
                _ => Fate::Ignored(Ignored::Ended),
            };
            Change::nothing(fate, Some(origin.behind(record.clone())))
        }
    }
}

/// Makes a dead letter of a message that is no input of the instance. One that parks its correlation waits for its turn where inputs
/// are held back, so that they are applied in order later.
#[must_use]
pub fn bury(record: Option<&Record>, code: &str, why: &str, parks: bool, origin: Origin) -> Change {
    let record = record.cloned().unwrap_or_else(|| Record::new(Entry::Awaited(Awaited::none())));
    // Nothing of an instance that has ended waits any more.
    let parks = parks && !matches!(record.entry, Entry::Ended(_));
    if parks && !record.is_turn_of(origin) {
        return record.hold(origin);
    }
    let mut record = origin.behind(record);
    let letter = match origin {
        Origin::Letter(number) => Letter { number, code: code.to_owned(), why: why.to_owned(), parks },
        Origin::Fresh | Origin::Held(_) => record.letter(code, why.to_owned(), parks),
    };
    if parks {
        record.parked_by = Some(letter.number);
    }
    Change::nothing(Fate::Dead(letter), Some(record))
}

/// Takes a dead letter away without applying it, and what waits behind it as well when that is not to be applied either.
#[must_use]
pub fn discard(record: Option<&Record>, letter: u64, with_held: bool) -> Change {
    let mut record = record.cloned();
    if let Some(record) = &mut record
        && record.parked_by == Some(letter)
    {
        record.parked_by = None;
        if with_held {
            (record.held.first, record.held_bytes) = (record.held.next, 0);
        }
    }
    Change::nothing(Fate::Applied, record)
}

/// One call of [`apply`].
#[derive(Clone, Copy)]
struct Application<'a> {
    saga: &'a Saga,
    whose: Whose<'a>,
    input: &'a Input,
    origin: Origin,
    kept: &'a KeptEvents,
}

impl Application<'_> {
    /// Gives the input to an instance.
    fn with_instance(self, record: &Record, instance: &Instance) -> Change {
        if let Some(change) = self.held_back(record) {
            return change;
        }
        let turn = Turn::new(self.saga, self.whose, instance.clone(), self.input);
        let applied = match &self.input.what {
            What::Event(event) => turn.event(event),
            What::Result(result) => turn.result(result),
            What::Timer { name, generation } => turn.timer(name, *generation),
            What::Verb { verb, .. } => turn.verb(verb, record),
        };
        self.finish(record.clone(), applied)
    }

    /// Keeps an input back that has to wait behind a letter or a pause; nothing where it has not.
    fn held_back(self, record: &Record) -> Option<Change> {
        // What is given back in order is not kept back again, nor is a verb: one of them ends the waiting.
        if record.is_turn_of(self.origin)
            || matches!(&self.input.what, What::Verb { verb, .. } if !matches!(verb, Verb::Send { .. }))
        {
            return None;
        }
        match &self.input.what {
            // It is not fired before what waits was applied.
            What::Timer { .. } => Some(Change::nothing(Fate::Later("held back"), Some(record.clone()))),
            _ => Some(record.hold(self.origin)),
        }
    }

    /// Decides about an input where there is no instance.
    fn without_instance(self, record: Record) -> Change {
        let missing = match &self.input.what {
            What::Event(event) if self.saga.starts_with(event) => {
                return self.start(record, event);
            }
            What::Verb { verb: Verb::Start { .. }, .. } if self.saga.is_left_out => {
                let message = format!("`{}` is in force no more: no instance of it starts", self.saga.name);
                let refusal = Refusal::new("SAGA_NOT_FOUND", message);
                return Change::nothing(Fate::Refused(refusal), record.unless_empty());
            }
            What::Verb { request, verb: Verb::Start { data } } => {
                return self.start(record, &Event::sent(request, "", data.clone()));
            }
            What::Verb { request, verb: Verb::Send { kind, data } } => {
                if self.saga.starts_on(kind) {
                    return self.start(record, &Event::sent(request, kind, data.clone()));
                }
                self.saga.missing(kind)
            }
            What::Verb { .. } => {
                let message = format!("there is no instance of `{}` with this correlation", self.saga.name);
                let refusal = Refusal::new("SAGA_NOT_FOUND", message);
                return Change::nothing(Fate::Refused(refusal), self.behind(record).unless_empty());
            }
            What::Timer { name, .. } if name == AWAITED => return self.expire(record),
            What::Result(_) | What::Timer { .. } => {
                return self.ignored(record);
            }
            What::Event(event) => self.saga.missing(&event.kind),
        };
        match missing {
            Missing::Ignore => self.ignored(record),
            Missing::DeadLetter => {
                self.dead(record, "NO_INSTANCE", "there is no instance for it".to_owned(), false)
            }
            Missing::Park(length) => self.await_start(record, length),
        }
    }

    /// Ignores an input for which there is no instance.
    fn ignored(self, record: Record) -> Change {
        Change::nothing(Fate::Ignored(Ignored::NoInstance), self.behind(record).unless_empty())
    }

    fn event(&self) -> Option<Event> {
        match &self.input.what {
            What::Event(event) => Some(event.clone()),
            What::Verb { request, verb: Verb::Send { kind, data } } => {
                Some(Event::sent(request, kind, data.clone()))
            }
            What::Verb { .. } | What::Result(_) | What::Timer { .. } => None,
        }
    }

    /// Keeps an event until its instance starts.
    fn await_start(self, mut record: Record, length: std::time::Duration) -> Change {
        let (Entry::Awaited(awaited), Some(event)) = (&mut record.entry, self.event()) else {
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
        awaited.kept.push_back(Kept { number, kind: event.kind.clone() });
        let mut change = Change::nothing(Fate::Kept, Some(self.behind(record)));
        change.kept.push((number, Input { time: self.input.time, what: What::Event(event) }));
        change
    }

    /// Makes dead letters of events whose instance has not started in time.
    fn expire(self, mut record: Record) -> Change {
        let Entry::Awaited(awaited) = &mut record.entry else {
            return Change::nothing(Fate::Ignored(Ignored::NoInstance), record.unless_empty());
        };
        if self.input.time < awaited.timer.due {
            return Change::nothing(Fate::Ignored(Ignored::OldTimer), Some(record));
        }
        let mut change = Change::nothing(Fate::Applied, None);
        for kept in std::mem::take(&mut awaited.kept) {
            change.taken.push(kept.number);
            if let Some(input) = self.kept.get(&kept.number) {
                let why = "its instance has not started in time".to_owned();
                let letter = record.letter("NO_INSTANCE", why, false);
                change.letters.push((letter, input.clone()));
            }
        }
        change.record = Some(record);
        change
    }

    /// Makes a dead letter of the input.
    fn dead(self, record: Record, code: &str, why: String, parks: bool) -> Change {
        let mut record = self.behind(record);
        let letter = match self.origin {
            Origin::Letter(number) => Letter { number, code: code.to_owned(), why, parks },
            Origin::Fresh | Origin::Held(_) => record.letter(code, why, parks),
        };
        if parks {
            record.parked_by = Some(letter.number);
        }
        Change::nothing(Fate::Dead(letter), Some(record))
    }

    /// Takes the input off the place that it comes from.
    fn behind(self, record: Record) -> Record {
        self.origin.behind(record)
    }

    /// Puts a record and what was applied to its instance together, and offers kept events.
    fn finish(self, record: Record, applied: Result<turn::Applied, Fault>) -> Change {
        let applied = match applied {
            Ok(applied) => applied,
            // A verb parks nobody: whoever asked is told.
            Err(fault) if matches!(self.input.what, What::Verb { .. }) => {
                let refusal = Refusal::new("SAGA_FAULT", fault.to_string());
                return Change::nothing(Fate::Refused(refusal), Some(self.behind(record)));
            }
            Err(fault) => return self.dead(record, fault.code(), fault.to_string(), true),
        };
        let mut record = self.behind(record);
        if !applied.fate.is_noted() {
            return Change::nothing(applied.fate, Some(record));
        }
        match &applied.verb {
            Some(Verb::Pause) => record.is_paused = true,
            Some(Verb::Resume) => record.is_paused = false,
            _ => {}
        }
        let mut change = Change::nothing(applied.fate.clone(), None);
        let instance = change.take_in(applied, self.input, None);
        let instance = self.offer(&mut change, &mut record, instance);
        record.settle(instance, &mut change);
        change.record = Some(record);
        change
    }

    /// Offers kept events as long as one of them is wanted.
    fn offer(self, change: &mut Change, record: &mut Record, mut instance: Instance) -> Instance {
        while !record.holds_back()
            && let Some(at) = instance.wanted(self.saga)
            && let Some(kept) = instance.kept.remove(at)
        {
            // What was kept in this very change is not in the store yet.
            let fresh = change.kept.iter().find(|(number, _)| *number == kept.number).map(|(_, input)| input);
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
                    change.letters.push((letter, input));
                }
            }
        }
        instance
    }

    /// Applies an event that was kept.
    fn offered(self, change: &Change, instance: &Instance, input: &Input) -> Result<turn::Applied, Fault> {
        let What::Event(event) = &input.what else { return Err(Fault::no("event in", "a kept row")) };
        let applied = Turn::new(self.saga, self.whose, instance.clone(), input).event(event)?;
        let (found, most) = (change.work.len() + applied.work.len(), WORK_OF_CHANGE_MAX);
        if found > most {
            return Err(Fault::Limit { what: "one change, in work,", most, found });
        }
        let (found, most) =
            (change.work.iter().chain(&applied.work).map(WorkItem::bytes).sum(), WORK_OF_CHANGE_BYTES_MAX);
        if found > most {
            return Err(Fault::Limit { what: "the work of one change, in bytes,", most, found });
        }
        Ok(applied)
    }
}

impl Awaited {
    /// Nothing that waits.
    fn none() -> Self {
        Self { timer: Timer::unnamed(), kept: std::collections::VecDeque::new() }
    }
}

impl Timer {
    /// One that raises nothing by itself.
    const fn unnamed() -> Self {
        Self { generation: 0, due: Timestamp::from_millis(0), raise: String::new(), is_of_step: false }
    }
}

impl Record {
    /// The record, unless there is nothing in it.
    fn unless_empty(self) -> Option<Self> {
        let is_empty = matches!(&self.entry, Entry::Awaited(awaited) if awaited.kept.is_empty());
        (!is_empty || self.letters > 0 || self.parked_by.is_some()).then_some(self)
    }

    /// Returns whether nothing has to be applied before an input that comes from there.
    fn is_turn_of(&self, origin: Origin) -> bool {
        match origin {
            Origin::Letter(number) if self.parked_by == Some(number) => true,
            Origin::Held(number) => number == self.held.first && !self.holds_back(),
            Origin::Fresh | Origin::Letter(_) => self.held.is_empty() && !self.holds_back(),
        }
    }

    /// Has an input wait behind those that are held back.
    fn hold(&self, origin: Origin) -> Change {
        let fate = match origin {
            Origin::Held(_) => Fate::Later("held back"),
            _ if self.held.len() >= HELD_MAX => Fate::NoRoom,
            Origin::Fresh | Origin::Letter(_) => {
                let mut record = self.clone();
                record.held.next += 1;
                return Change::nothing(Fate::Held(self.held.next), Some(record));
            }
        };
        Change::nothing(fate, Some(self.clone()))
    }

    /// Makes a letter with the next number.
    fn letter(&mut self, code: &str, why: String, parks: bool) -> Letter {
        let number = self.letters;
        self.letters += 1;
        Letter { number, code: code.to_owned(), why, parks }
    }

    /// Puts an instance back, or what is left of it.
    fn settle(&mut self, mut instance: Instance, change: &mut Change) {
        if !instance.status.is_end() {
            self.entry = Entry::Live(Box::new(instance));
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
        self.entry = Entry::Ended(instance.tombstone());
    }
}

#[cfg(test)]
mod tests;
