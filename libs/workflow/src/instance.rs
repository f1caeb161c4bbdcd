//! Instances of sagas, as they are stored.

use std::collections::{BTreeMap, VecDeque};

use model::{BlobHash, CommandId, SagaStatus, StepName, TimerName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Json;
use crate::definition::Saga;

/// The form of the rows that this program writes.
const FORM: u8 = 1;
/// An instance, in bytes of its row.
pub const INSTANCE_BYTES_MAX: usize = 512 * 1024;
/// The reason of an end, in characters.
pub const REASON_CHARS_MAX: usize = 300;

/// Everything that is stored about a correlation under its own key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorrelationRecord {
    /// State of the correlation: waiting events, an instance, or a tombstone.
    pub entry: CorrelationEntry,
    /// The dead letter that parked it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked_by: Option<u64>,
    /// True if the correlation was paused by request.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_paused: bool,
    /// Inputs that wait behind a dead letter or a pause.
    #[serde(default)]
    pub held: RowNumberRange,
    /// Bytes of their rows.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held_bytes: u64,
    /// Number of dead letters that were ever written, including those removed since.
    #[serde(default)]
    pub letters: u64,
    /// Events that have waited for a start.
    #[serde(default)]
    pub awaited: u64,
}

/// State of a correlation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorrelationEntry {
    /// Nothing but events that wait for its start.
    Awaited(StartBacklog),
    /// An instance.
    Live(Box<SagaInstance>),
    /// The tombstone of an instance that has ended.
    Ended(Tombstone),
}

/// Events that wait for the start of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartBacklog {
    /// After it they are dead letters.
    pub timer: Timer,
    /// The events.
    pub kept: VecDeque<DeferredEvent>,
}

/// An event that waits for its step; its row has the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeferredEvent {
    /// Number of the event's row.
    pub number: u64,
    /// Type of the event.
    pub kind: String,
}

/// Rows with consecutive numbers, from the first to the one after the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RowNumberRange {
    /// The first that exists.
    pub first: u64,
    /// The number after the last.
    pub next: u64,
}

impl RowNumberRange {
    /// Counts the rows.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.next - self.first
    }

    /// Returns whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.next == self.first
    }
}

/// An instance of a saga.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SagaInstance {
    /// Hash of the definition that it is pinned to.
    pub definition: BlobHash,
    /// Version of that.
    pub version: u32,
    /// Instances of this correlation before it.
    pub run: u64,
    /// Inputs that were applied or ignored: each has a row of the journal.
    pub revision: u64,
    /// Where it stands.
    pub status: SagaStatus,
    /// When it started.
    pub started: Timestamp,
    /// The latest time of its inputs.
    pub now: Timestamp,
    /// The step that it is at.
    pub step: StepName,
    /// When it came there.
    pub entered: Timestamp,
    /// State of the instance: an object with every field that it has.
    pub state: Json,
    /// Work that may have to be undone, in the order in which it was ordered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<CompensationEntry>,
    /// True if the pivot has succeeded.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_past_pivot: bool,
    /// Commands whose end is waited for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub open: BTreeMap<CommandId, OpenCommand>,
    /// How far the work of its step is.
    #[serde(default, skip_serializing_if = "StepProgress::is_empty")]
    pub progress: StepProgress,
    /// Why it is being undone, or was ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Reason of a cancellation that was requested while its pivot was in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<String>,
    /// Reason why the instance is stuck.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<StuckReason>,
    /// Timers of the instance.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub timers: BTreeMap<TimerName, Timer>,
    /// Timers that were set.
    #[serde(default)]
    pub generations: u64,
    /// The highest version that was seen of each aggregate, as `Type/id`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, u64>,
    /// Events that wait for their step.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub kept: VecDeque<DeferredEvent>,
    /// Hash over everything that happened to it.
    pub chain: BlobHash,
}

/// Something that may have to be undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompensationEntry {
    /// The step that ordered it.
    pub step: StepName,
    /// The branch.
    pub branch: StepName,
    /// The command.
    pub command: CommandId,
    /// Input of the work, as far as its compensation needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
    /// Result of the work, as far as its compensation needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
}

/// A command whose end is waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCommand {
    /// The step that ordered it.
    pub step: StepName,
    /// The branch.
    pub branch: StepName,
    /// Purpose of the command.
    pub purpose: CommandPurpose,
    /// The effect; none for a command of an aggregate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<model::EffectName>,
}

/// Purpose of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandPurpose {
    /// The work of a step.
    Forward,
    /// Undoing a branch whose step succeeded without it.
    Tidy,
    /// Undoing a completed step.
    Undo,
    /// The work that is ordered after the last compensation.
    Last,
}

/// How far the work of a step is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StepProgress {
    /// Branches that have ended, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ended: BTreeMap<StepName, BranchResult>,
    /// True if the step has succeeded, false if it has failed; none until that is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_succeeded: Option<bool>,
    /// Branches that ended well after that and have to be undone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untidy: Vec<StepName>,
}

impl StepProgress {
    /// Returns whether nothing of the work has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How a branch ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchResult {
    /// True if the branch succeeded.
    pub is_success: bool,
    /// True if the work may have taken effect although it did not succeed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_uncertain: bool,
    /// Result of the branch.
    pub result: Json,
}

/// Reason why an instance is stuck.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckReason {
    /// Purpose of the command that could not be carried out.
    pub purpose: CommandPurpose,
    /// Why.
    pub why: String,
}

/// A timer that is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// How many timers of the instance had been set when it was.
    pub generation: u64,
    /// When it fires.
    pub due: Timestamp,
    /// Type of the event that the timer raises.
    pub raise: String,
    /// True if the timer ends with its step.
    pub is_of_step: bool,
}

/// Summary that is stored of an instance that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// Hash of the definition that it was pinned to.
    pub definition: BlobHash,
    /// Version of that.
    pub version: u32,
    /// Instances of this correlation before it.
    pub run: u64,
    /// Last revision of the instance.
    pub revision: u64,
    /// How it ended.
    pub status: SagaStatus,
    /// The step that it ended at.
    pub step: StepName,
    /// When it started.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// The reason, shortened for storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True if the pivot had succeeded.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_past_pivot: bool,
    /// Hash over everything that happened to it.
    pub chain: BlobHash,
}

/// A row that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// A newer program wrote it.
    #[error("the row has the form {found}, this program reads those up to {FORM}")]
    Newer {
        /// Form of the row.
        found: u8,
    },
    /// The row is damaged.
    #[error("the row is damaged: {why}")]
    Damaged {
        /// Description of the damage.
        why: String,
    },
}

/// Writes a row: its form, and JSON.
pub fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    let mut bytes = vec![FORM];
    // Keys are texts, and no part of it fails to serialize.
    let written = serde_json::to_writer(&mut bytes, row);
    debug_assert!(written.is_ok(), "{written:?}");
    bytes
}

/// Reads a row that [`encode`] wrote.
///
/// # Errors
/// It is of a newer form, or damaged.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, RowError> {
    match bytes.split_first() {
        Some((&FORM, json)) => {
            serde_json::from_slice(json).map_err(|error| RowError::Damaged { why: error.to_string() })
        }
        Some((&found, _)) if found > FORM => Err(RowError::Newer { found }),
        _ => Err(RowError::Damaged { why: "it has no form".to_owned() }),
    }
}

impl CorrelationRecord {
    /// A record of a correlation of which there was nothing.
    #[must_use]
    pub fn new(entry: CorrelationEntry) -> Self {
        let (held, held_bytes) = (RowNumberRange::default(), 0);
        Self { entry, parked_by: None, is_paused: false, held, held_bytes, letters: 0, awaited: 0 }
    }

    /// The instance, while there is one.
    #[must_use]
    pub fn instance(&self) -> Option<&SagaInstance> {
        match &self.entry {
            CorrelationEntry::Live(instance) => Some(instance),
            CorrelationEntry::Awaited(_) | CorrelationEntry::Ended(_) => None,
        }
    }

    /// Returns whether inputs wait rather than being applied.
    #[must_use]
    pub const fn holds_back(&self) -> bool {
        self.is_paused || self.parked_by.is_some()
    }

    /// The definition that its instance is pinned to, or was.
    #[must_use]
    pub fn definition(&self) -> Option<BlobHash> {
        match &self.entry {
            CorrelationEntry::Live(instance) => Some(instance.definition),
            CorrelationEntry::Ended(tombstone) => Some(tombstone.definition),
            CorrelationEntry::Awaited(_) => None,
        }
    }
}

impl SagaInstance {
    /// The variable `saga` of formulas.
    #[must_use]
    pub fn facts(&self, saga: &Saga, correlation: &str) -> Json {
        Json::object([
            ("name", Json::text(&saga.name)),
            ("version", Json::number(saga.version.into())),
            ("correlation", Json::text(correlation)),
            ("run", Json::number(self.run)),
            ("reason", self.reason.as_ref().map_or(Json::Null, Json::text)),
            ("step", Json::text(&self.step)),
            ("started_at", Json::number(self.started.as_millis())),
        ])
    }

    /// Makes the tombstone that is kept when the instance ends.
    #[must_use]
    pub fn tombstone(&self) -> Tombstone {
        Tombstone {
            definition: self.definition,
            version: self.version,
            run: self.run,
            revision: self.revision,
            status: self.status,
            step: self.step.clone(),
            started: self.started,
            ended: self.now,
            reason: self.reason.clone(),
            is_past_pivot: self.is_past_pivot,
            chain: self.chain,
        }
    }
}

/// Shortens a reason for storage.
#[must_use]
pub fn cut(reason: &str) -> String {
    reason.chars().take(REASON_CHARS_MAX).collect()
}

/// Returns whether a flag is left out of a row.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub(crate) const fn is_false(truth: &bool) -> bool {
    !*truth
}

/// Returns whether a number is left out of a row.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub(crate) const fn is_zero(number: &u64) -> bool {
    *number == 0
}
