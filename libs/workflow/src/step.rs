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
use crate::input::{Event, Input, Verb, What};
use crate::instance::{Awaited, Entry, Instance, Kept, Record, Timer};

pub use change::{
    Change, Fate, Fault, Ignored, JournalInput, Letter, Ordered, Refusal, Row, TimerChanges, WorkItem,
};
pub use migrate::migrate;

/// Pieces of work of one change, those of kept events among them.
const WORK_OF_CHANGE_MAX: usize = 256;
/// Inputs that wait behind a letter or a pause.
pub const HELD_MAX: u64 = 1000;
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
            Change::nothing(fate, Some(record.clone()))
        }
    }
}

/// Makes a dead letter of a message that is no input of the instance.
#[must_use]
pub fn bury(record: Option<&Record>, code: &str, why: &str, parks: bool) -> Change {
    let mut record = record.cloned().unwrap_or_else(|| Record::new(Entry::Awaited(Awaited::none())));
    // Nothing of an instance that has ended waits any more.
    let parks = parks && !matches!(record.entry, Entry::Ended(_));
    let letter = record.letter(code, why.to_owned(), parks);
    if parks && record.parked_by.is_none() {
        record.parked_by = Some(letter.number);
    }
    Change::nothing(Fate::Dead(letter), Some(record))
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
        let is_next = match self.origin {
            Origin::Letter(_) => true,
            Origin::Held(number) => number == record.held.first && !record.holds_back(),
            Origin::Fresh => record.held.is_empty() && !record.holds_back(),
        };
        if is_next
            || matches!(&self.input.what, What::Verb { verb, .. } if !matches!(verb, Verb::Send { .. }))
        {
            return None;
        }
        Some(match (&self.input.what, self.origin) {
            // It is not fired before what waits was applied.
            (What::Timer { .. }, _) => Change::nothing(Fate::Later("held back"), Some(record.clone())),
            (_, Origin::Held(_)) => Change::nothing(Fate::Later("held back"), Some(record.clone())),
            _ if record.held.len() >= HELD_MAX => Change::nothing(Fate::NoRoom, Some(record.clone())),
            _ => {
                let mut record = record.clone();
                let number = record.held.next;
                record.held.next += 1;
                Change::nothing(Fate::Held(number), Some(record))
            }
        })
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
                return Change::nothing(Fate::Refused(refusal), record.unless_empty());
            }
            What::Timer { name, .. } if name == AWAITED => return self.expire(record),
            What::Result(_) | What::Timer { .. } => {
                return Change::nothing(Fate::Ignored(Ignored::NoInstance), record.unless_empty());
            }
            What::Event(event) => self.saga.missing(&event.kind),
        };
        match missing {
            Missing::Ignore => Change::nothing(Fate::Ignored(Ignored::NoInstance), record.unless_empty()),
            Missing::DeadLetter => {
                self.dead(record, "NO_INSTANCE", "there is no instance for it".to_owned(), false)
            }
            Missing::Park(length) => self.await_start(record, length),
        }
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
            return Change::nothing(Fate::Ignored(Ignored::NoInstance), record.unless_empty());
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
    fn behind(self, mut record: Record) -> Record {
        match self.origin {
            Origin::Held(number) if number == record.held.first => record.held.first += 1,
            Origin::Letter(number) if record.parked_by == Some(number) => {
                record.parked_by = None;
            }
            Origin::Fresh | Origin::Held(_) | Origin::Letter(_) => {}
        }
        record
    }

    /// Puts a record and what was applied to its instance together, and offers kept events.
    fn finish(self, record: Record, applied: Result<turn::Applied, Fault>) -> Change {
        let applied = match applied {
            Ok(applied) => applied,
            // A verb parks nobody: whoever asked is told.
            Err(fault) if matches!(self.input.what, What::Verb { .. }) => {
                let refusal = Refusal::new("SAGA_FAULT", fault.to_string());
                return Change::nothing(Fate::Refused(refusal), Some(record));
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
