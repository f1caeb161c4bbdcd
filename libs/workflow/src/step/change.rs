//! Transition that follows from an input.

use model::{BlobHash, CommandId, EffectName, SagaStatus, StepName, Timestamp};
use serde::{Deserialize, Serialize};

use super::{HELD_BYTES_MAX, application, timers};
use crate::Json;
use crate::formula::FormulaValueError;
use crate::input::{InstanceInput, InstanceInputKind};
use crate::instance::{CorrelationRecord, DeferredEvent, SagaInstance, Timer};
use crate::transition::ImpossibleTransition;

/// Transition that follows from an input. All of it is committed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SagaTransition {
    /// Disposition of the input.
    pub fate: InputDisposition,
    /// The record; `None` where none is left.
    pub record: Option<CorrelationRecord>,
    /// Rows of the journal that record what happened to the instance, in order.
    pub journal: Vec<JournalRow>,
    /// Work that is ordered, in order.
    pub work: Vec<WorkItem>,
    /// Events that are no longer kept: to be removed before others are written.
    pub removed: Vec<u64>,
    /// Events that are kept.
    pub deferred: Vec<(u64, InstanceInput)>,
    /// Kept events that have become dead letters.
    pub dead_letters: Vec<(DeadLetter, InstanceInput)>,
}

/// Disposition of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputDisposition {
    /// The input changed the instance.
    Applied,
    /// The input changed nothing and never will, for this reason.
    Ignored(IgnoreReason),
    /// The input waits for its step.
    Deferred,
    /// The input waits behind a dead letter or a pause, under this number.
    Held(u64),
    /// The input is to be offered again later, and is not stored.
    Later(&'static str),
    /// There is no room for it: reading of the source has to stop.
    NoRoom,
    /// The input is a dead letter.
    DeadLetter(DeadLetter),
    /// The input was a verb that is refused.
    Refused(RequestRefusal),
}

/// Why an input is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnoreReason {
    /// There is no instance, and it starts none.
    NoInstance,
    /// The instance has ended.
    Ended,
    /// A result of a command that is not open.
    NotOpen,
    /// A timer that was replaced or is gone.
    OldTimer,
    /// An event of an aggregate that had a later version before.
    OldVersion,
    /// An event that no step ahead wants.
    Unwanted,
}

impl IgnoreReason {
    /// The name in journals and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoInstance => "no_instance",
            Self::Ended => "ended",
            Self::NotOpen => "not_open",
            Self::OldTimer => "old_timer",
            Self::OldVersion => "old_version",
            Self::Unwanted => "unwanted",
        }
    }

    /// Returns whether the journal has a row of it. An input that could be wanted in a later state has one, so that it is
    /// not applied then should it come again.
    const fn is_noted(self) -> bool {
        matches!(self, Self::Unwanted)
    }
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Number of the dead letter.
    pub number: u64,
    /// The kind of its reason.
    pub code: String,
    /// Why.
    pub why: String,
    /// True if the dead letter parks its correlation.
    pub parks: bool,
}

/// Why a verb is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RequestRefusal {
    /// The reason, as in `specs/errors.md`.
    pub reason: String,
    /// The reason, for people.
    pub message: String,
}

impl RequestRefusal {
    pub(super) fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }
}

/// Why an input could not be applied. The same input fails in the same way for ever.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputFault {
    /// A formula had no answer.
    #[error(transparent)]
    Formula(#[from] FormulaValueError),
    /// A value is not of its field's kind.
    #[error("`state.{field}` is {wanted}, not {found}")]
    Kind {
        /// The field.
        field: String,
        /// Kind of value that the field holds.
        wanted: String,
        /// Kind of value that it was given.
        found: &'static str,
    },
    /// A limit was reached.
    #[error("{what} has at most {most}, this would be {found}")]
    Limit {
        /// Name of the limited quantity.
        what: &'static str,
        /// The limit.
        most: usize,
        /// Amount that was requested.
        found: usize,
    },
    /// The definition declares it.
    #[error("{0}")]
    Declared(String),
    /// The definition lacks this item.
    #[error("the definition has no {what} `{name}`")]
    Definition {
        /// Kind of thing that is missing.
        what: &'static str,
        /// Name of the missing thing.
        name: String,
    },
    /// The table of states has no such change.
    #[error(transparent)]
    Impossible(#[from] ImpossibleTransition),
}

impl InputFault {
    /// The kind, for lists and metrics.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Formula(_) => "FORMULA",
            Self::Kind { .. } => "KIND",
            Self::Limit { .. } => "LIMIT",
            Self::Declared(_) => "DECLARED",
            Self::Definition { .. } => "DEFINITION",
            Self::Impossible(_) => "IMPOSSIBLE",
        }
    }

    pub(super) fn no(what: &'static str, name: impl std::fmt::Display) -> Self {
        Self::Definition { what, name: name.to_string() }
    }
}

/// A row of the journal: an input, and what followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalRow {
    /// The revision that the instance has since.
    pub revision: u64,
    /// The input; for an event that was kept before, its number then.
    pub input: JournalInput,
    /// Hash of the definition, where it is another than before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<BlobHash>,
    /// The instance's time.
    pub now: Timestamp,
    /// Disposition of the input.
    pub fate: String,
    /// Where the instance stands.
    pub status: SagaStatus,
    /// The step that it is at.
    pub step: StepName,
    /// Why it is undone, stuck or ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Work that was ordered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<CommandId>,
    /// Hash over everything that happened to the instance.
    pub chain: BlobHash,
    /// The state with which it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Json>,
}

/// The input of a row of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalInput {
    /// The input as it came.
    Came(Box<InstanceInput>),
    /// An event that an earlier row kept under this number.
    Kept(u64),
}

/// A piece of work that an instance orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkItem {
    /// Id of the work's command.
    pub command: CommandId,
    /// The step that orders it.
    pub step: StepName,
    /// Kind and content of the work.
    pub what: WorkPayload,
}

impl WorkItem {
    /// Counts the bytes of its payload.
    pub(super) fn bytes(&self) -> usize {
        match &self.what {
            WorkPayload::Effect { input: payload, .. } | WorkPayload::Command { payload, .. } => {
                payload.bytes()
            }
            WorkPayload::Cancel { .. } => 0,
        }
    }
}

/// Kind and content of work that is ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkPayload {
    /// An effect.
    Effect {
        /// Which.
        effect: EffectName,
        /// Input of the effect.
        input: Json,
    },
    /// A command for an aggregate.
    Command {
        /// Type of the aggregate.
        aggregate: String,
        /// Id of the aggregate.
        id: String,
        /// Type of the command.
        kind: String,
        /// Payload of the command.
        payload: Json,
    },
    /// An effect is no longer wanted.
    Cancel {
        /// Which.
        effect: EffectName,
        /// Command that is cancelled.
        of: CommandId,
    },
}

impl WorkPayload {
    /// The kind, as used in keys.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Effect { .. } => "effect",
            Self::Command { .. } => "command",
            Self::Cancel { .. } => "cancel",
        }
    }
}

impl InputDisposition {
    /// Returns whether the journal has a row of the input.
    pub(super) fn is_noted(&self) -> bool {
        match self {
            Self::Applied | Self::Deferred => true,
            Self::Ignored(why) => why.is_noted(),
            Self::Held(_) | Self::Later(_) | Self::NoRoom | Self::DeadLetter(_) | Self::Refused(_) => false,
        }
    }
}

impl SagaTransition {
    /// A change that commits nothing of an instance.
    #[must_use]
    pub fn nothing(fate: InputDisposition, record: Option<CorrelationRecord>) -> Self {
        Self {
            fate,
            record,
            journal: Vec::new(),
            work: Vec::new(),
            removed: Vec::new(),
            deferred: Vec::new(),
            dead_letters: Vec::new(),
        }
    }

    /// Records an input and its row of the journal; returns the instance. `kept` is the number under which the input was
    /// kept before.
    pub(super) fn take_in(
        &mut self,
        applied: application::AppliedInput,
        input: &InstanceInput,
        kept: Option<u64>,
    ) -> SagaInstance {
        let application::AppliedInput { mut instance, work, keep, fate, .. } = applied;
        if let Some(event) = keep {
            // The row that keeps the event has this revision.
            let number = instance.revision + 1;
            instance.kept.push_back(DeferredEvent { number, kind: event.kind.clone() });
            self.deferred
                .push((number, InstanceInput { time: input.time, what: InstanceInputKind::Event(event) }));
        }
        let input = kept.map_or_else(|| JournalInput::Came(Box::new(input.clone())), JournalInput::Kept);
        self.journal.push(application::note(&mut instance, input, &fate, &work));
        self.work.extend(work);
        instance
    }

    /// Notes that an event is no longer kept.
    pub(super) fn forget(&mut self, number: u64) {
        let before = self.deferred.len();
        self.deferred.retain(|(kept, _)| *kept != number);
        if self.deferred.len() == before {
            self.removed.push(number);
        }
    }

    /// Counts a row of this size that starts to wait behind a dead letter or a pause with this change, or stops waiting.
    /// Beyond [`HELD_BYTES_MAX`] there is no room, except for a single row of any size.
    #[must_use]
    pub fn weighing(mut self, before: Option<&CorrelationRecord>, bytes: u64) -> Self {
        let Some(record) = &mut self.record else { return self };
        let (held, held_bytes) = before.map(|before| (before.held, before.held_bytes)).unwrap_or_default();
        if record.held.next > held.next {
            let total = held_bytes.saturating_add(bytes);
            if !held.is_empty() && total > HELD_BYTES_MAX {
                return Self::nothing(InputDisposition::NoRoom, before.cloned());
            }
            record.held_bytes = total;
        } else if record.held.is_empty() {
            record.held_bytes = 0;
        } else if record.held.first > held.first {
            record.held_bytes = held_bytes.saturating_sub(bytes);
        }
        self
    }

    /// Compares its timers with those of the record before it.
    #[must_use]
    pub fn timers<'a>(&'a self, before: Option<&'a CorrelationRecord>) -> TimerChanges<'a> {
        let old = before.map(timers::of).unwrap_or_default();
        let new = self.record.as_ref().map(timers::of).unwrap_or_default();
        let set = new.iter().filter(|(name, timer)| old.get(*name) != Some(timer));
        let dropped = old.iter().filter(|(name, timer)| new.get(*name) != Some(timer));
        TimerChanges {
            dropped: dropped.map(|(name, timer)| (*name, timer.due)).collect(),
            set: set.map(|(name, timer)| (*name, *timer)).collect(),
        }
    }
}

/// Timers that a change sets and drops, by name. A replaced one is in both.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TimerChanges<'a> {
    /// Timers that are no longer set, and when they would have fired.
    pub dropped: Vec<(&'a str, Timestamp)>,
    /// Timers that are set.
    pub set: Vec<(&'a str, &'a Timer)>,
}
