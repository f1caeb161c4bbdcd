//! Replay of journals.
//!
//! The journal has every input of an instance, and everything else is computed from them: a replayed journal gives the same
//! rows, byte by byte. A row that differs means that a program, a definition or a store has changed.

use std::sync::Arc;

use model::BlobHash;

use crate::definition::Saga;
use crate::input::{InstanceInputKind, Verb};
use crate::instance::{
    CorrelationEntry, CorrelationRecord, RowError, RowNumberRange, SagaInstance, Tombstone, decode, encode,
};
use crate::step::{
    self, DeferredEvents, InputOrigin, InstanceIdentity, JournalInput, JournalRow, SagaTransition,
};

/// Difference between a journal and its replay.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayDifference {
    /// The first rows of the journal are no longer kept.
    #[error("the journal begins with revision {first}: what was before it is not kept any more")]
    Cut {
        /// The first revision that is there.
        first: u64,
    },
    /// A definition is missing.
    #[error("revision {revision} is of the definition {definition}, which is not there")]
    NoDefinition {
        /// The revision.
        revision: u64,
        /// The hash of the definition.
        definition: String,
    },
    /// A row is another one.
    #[error("revision {revision} differs: {what}")]
    Row {
        /// The revision.
        revision: u64,
        /// In what.
        what: String,
    },
}

/// Replays a journal from its first revision; returns the record that it leads to.
///
/// # Errors
/// The first difference.
pub fn replay(
    definition: impl Fn(BlobHash) -> Option<Arc<Saga>>,
    whose: InstanceIdentity<'_>,
    rows: &[JournalRow],
) -> Result<Option<CorrelationRecord>, ReplayDifference> {
    let first = rows.first().map_or(1, |row| row.revision);
    if first != 1 {
        return Err(ReplayDifference::Cut { first });
    }
    let (mut record, mut kept, mut rest) = (None::<CorrelationRecord>, DeferredEvents::new(), rows);
    let mut saga: Option<Arc<Saga>> = None;
    while let Some(row) = rest.first() {
        let differs = |what: &str| ReplayDifference::Row { revision: row.revision, what: what.to_owned() };
        // A migration has a row of each version on its way.
        let of_input = rest.iter().take_while(|next| next.input == row.input);
        let mut versions =
            of_input.filter_map(|row| found(&definition, row)).collect::<Result<Vec<_>, _>>()?;
        versions.reverse();
        saga = versions.first().cloned().or(saga);
        let (Some(saga), JournalInput::Came(input)) = (&saga, &row.input) else {
            return Err(differs("an event is applied that would not have been"));
        };
        // The journal does not record what held inputs back, only that they were applied in the end.
        let verb = if let InstanceInputKind::Verb { verb, .. } = &input.what { Some(verb) } else { None };
        if let Some(record) = &mut record {
            record.let_through(matches!(verb, Some(Verb::Resume)));
        }
        let change = match (verb, &record) {
            (Some(Verb::Migrate), Some(record)) => step::migrate(&versions, whose, record, input, &kept),
            _ => step::apply(saga, whose, record.as_ref(), input, InputOrigin::Fresh, &kept),
        };
        let made = change.journal.len();
        if made == 0 {
            return Err(differs("the input is not applied any more"));
        }
        for (row, again) in rest.iter().zip(&change.journal) {
            if row != again {
                let what = difference(row, again);
                return Err(ReplayDifference::Row { revision: row.revision, what: what.to_owned() });
            }
        }
        let Some(left) = rest.get(made..) else { return Err(differs("rows behind it are missing")) };
        rest = left;
        for number in &change.removed {
            kept.remove(number);
        }
        kept.extend(change.deferred);
        record = change.record;
    }
    Ok(record)
}

/// A transition that was just computed, and its inputs.
#[derive(Debug, Clone, Copy)]
pub struct ComputedTransition<'a> {
    /// Definitions that it was made by, the newest first: more than one only for a migration.
    pub versions: &'a [Arc<Saga>],
    /// Identity of the instance.
    pub whose: InstanceIdentity<'a>,
    /// The record that it began with.
    pub record: Option<&'a CorrelationRecord>,
    /// Where its input came from.
    pub origin: InputOrigin,
    /// Events that were kept.
    pub kept: &'a DeferredEvents,
    /// The change that was made.
    pub change: &'a SagaTransition,
}

/// Recomputes a transition from the input that its first journal row has and from the record as stored, and compares
/// everything to be committed byte by byte. Returns whether there was something to compare: a change without a journal row
/// has nothing.
///
/// # Errors
/// The first difference.
pub fn verify_transition(made: ComputedTransition<'_>) -> Result<bool, ReplayDifference> {
    let ComputedTransition { versions, whose, record, origin, kept, change } = made;
    let Some(first) = change.journal.first() else { return Ok(false) };
    let differs = |row: &JournalRow, what: &str| ReplayDifference::Row {
        revision: row.revision,
        what: what.to_owned(),
    };
    let unreadable = |_: RowError| differs(first, "its rows cannot be read");
    let read: JournalRow = decode(&encode(first)).map_err(unreadable)?;
    let record =
        record.map(|record| decode::<CorrelationRecord>(&encode(record))).transpose().map_err(unreadable)?;
    let kept: DeferredEvents = decode(&encode(kept)).map_err(unreadable)?;
    let (Some(saga), JournalInput::Came(input)) = (versions.first(), &read.input) else {
        return Err(differs(first, "an event is applied that would not have been"));
    };
    let again = match (&input.what, &record) {
        (InstanceInputKind::Verb { verb: Verb::Migrate, .. }, Some(record))
            if record.instance().is_some() =>
        {
            step::migrate(versions, whose, record, input, &kept)
        }
        _ => step::apply(saga, whose, record.as_ref(), input, origin, &kept),
    };
    let rows = change.journal.iter().zip(&again.journal);
    if let Some((row, other)) = rows.into_iter().find(|(row, other)| encode(*row) != encode(*other)) {
        return Err(differs(row, difference(row, other)));
    }
    let last = change.journal.last().unwrap_or(first);
    let what = match () {
        () if change.journal.len() != again.journal.len() => "how many rows it makes",
        () if encode(&change.record) != encode(&again.record) => "the instance behind it",
        () if encode(&change.work) != encode(&again.work) => "what it orders",
        () if *change != again => "what becomes of events that were kept",
        () => return Ok(true),
    };
    Err(differs(last, what))
}

/// Finds the definition that a row names; nothing where it names none.
fn found(
    definition: impl Fn(BlobHash) -> Option<Arc<Saga>>,
    row: &JournalRow,
) -> Option<Result<Arc<Saga>, ReplayDifference>> {
    let hash = row.definition?;
    let missing = || ReplayDifference::NoDefinition { revision: row.revision, definition: hash.to_string() };
    Some(definition(hash).ok_or_else(missing))
}

/// Names the first difference between two rows, for people.
fn difference(row: &JournalRow, again: &JournalRow) -> &'static str {
    match () {
        () if row.revision != again.revision => "its number",
        () if row.input != again.input => "the input",
        () if row.fate != again.fate => "what became of the input",
        () if row.step != again.step => "the step",
        () if row.status != again.status => "the status",
        () if row.work != again.work => "the work",
        () if row.now != again.now => "the time",
        () if row.state != again.state => "the state at the end",
        () => "the instance behind it",
    }
}

impl CorrelationRecord {
    /// Removes everything that holds inputs back, except the pause that is about to end.
    fn let_through(&mut self, is_paused: bool) {
        self.parked_by = None;
        (self.held, self.held_bytes) = (RowNumberRange::default(), 0);
        self.is_paused = is_paused;
    }
}

/// The revision and the chain of a record.
#[must_use]
pub fn chain(record: &CorrelationRecord) -> Option<(u64, BlobHash)> {
    match &record.entry {
        CorrelationEntry::Live(instance) => {
            let SagaInstance { revision, chain, .. } = **instance;
            Some((revision, chain))
        }
        CorrelationEntry::Ended(Tombstone { revision, chain, .. }) => Some((*revision, *chain)),
        CorrelationEntry::Awaited(_) => None,
    }
}
