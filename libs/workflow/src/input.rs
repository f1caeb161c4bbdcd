//! Inputs of instances: events, results of commands, timers, verbs.

use model::{CommandId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{InputId, Json};

/// An input, in bytes of the message that brings it.
pub const INPUT_BYTES_MAX: usize = 1024 * 1024 - 16 * 1024;
/// Payload of one piece of work, in bytes of its JSON. It fits into a message even as a text within JSON, and leaves room
/// for a result in the row of its call.
pub const WORK_BYTES_MAX: usize = 448 * 1024;
/// Payloads of all the work that one change orders, in bytes: they are committed together.
pub const WORK_OF_CHANGE_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Input and result of one call together, in bytes of their JSON: one row has both.
pub const CALL_BYTES_MAX: usize = 1024 * 1024 - 64 * 1024;

/// Something that an instance is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceInput {
    /// When it happened: the stored time of its message, or when a timer was due.
    pub time: Timestamp,
    /// Kind and content of the input.
    pub what: InstanceInputKind,
}

/// Kind and content of an input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceInputKind {
    /// An event of an aggregate, or one that a caller sent in its place.
    Event(DomainEvent),
    /// The end of a command.
    Result(CommandResult),
    /// A timer is due.
    Timer {
        /// Name of the timer.
        name: String,
        /// How many timers of the instance had been set when it was.
        generation: u64,
    },
    /// A request of an operator or a client.
    Verb {
        /// The id of the request.
        request: String,
        /// Verb that was requested.
        verb: Verb,
    },
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainEvent {
    /// The id under which it counts once.
    pub id: InputId,
    /// Type of the event.
    pub kind: String,
    /// The event as formulas see it.
    pub body: Json,
    /// The aggregate that the event is about, as `Type/id`, and the version that the event gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<(String, u64)>,
}

/// The end of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandResult {
    /// The command.
    pub command: CommandId,
    /// How it ended.
    pub outcome: CommandOutcome,
    /// True if the command may have taken effect although it did not succeed.
    pub may_have_happened: bool,
    /// Payload that the provider returned.
    pub payload: Json,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CommandOutcome {
    /// The command succeeded.
    Succeeded,
    /// The command failed permanently.
    Failed,
    /// The command took too long.
    TimedOut,
    /// The outcome is unknown: the command may or may not have taken effect.
    Unknown,
    /// The command was cancelled because it was no longer wanted.
    Cancelled,
}

impl CommandOutcome {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Succeeded, Self::Failed, Self::TimedOut, Self::Unknown, Self::Cancelled];

    /// The name in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::TimedOut => "TimedOut",
            Self::Unknown => "Unknown",
            Self::Cancelled => "Cancelled",
        }
    }

    /// The code of a failure whose provider names none.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Succeeded => "",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Unknown => "unknown",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Request to an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Starts it; `data` takes the place of an event's data.
    Start {
        /// The data.
        data: Json,
    },
    /// Gives it an event.
    Send {
        /// Type of the event.
        kind: String,
        /// Data of the event.
        data: Json,
    },
    /// Holds its inputs back from now on.
    Pause,
    /// Applies the inputs that were held back.
    Resume,
    /// Compensates its completed steps.
    Cancel {
        /// Why.
        reason: String,
    },
    /// Ends it where it stands.
    Kill {
        /// Why.
        reason: String,
    },
    /// Retries the step that is stuck.
    RetryStep,
    /// Skips the step that is stuck.
    SkipStep {
        /// Result that replaces that of the step.
        result: Json,
    },
    /// Marks it as completed.
    Complete {
        /// Why.
        reason: String,
    },
    /// Migrates it to the version in force.
    Migrate,
}

impl Verb {
    /// The name in journals and answers.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Send { .. } => "send",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel { .. } => "cancel",
            Self::Kill { .. } => "kill",
            Self::RetryStep => "retry-step",
            Self::SkipStep { .. } => "skip-step",
            Self::Complete { .. } => "complete",
            Self::Migrate => "migrate",
        }
    }
}

impl InstanceInput {
    /// The id under which it counts once.
    #[must_use]
    pub fn id(&self) -> InputId {
        match &self.what {
            InstanceInputKind::Event(event) => event.id.clone(),
            InstanceInputKind::Result(result) => InputId::Result(result.command),
            InstanceInputKind::Timer { name, generation } => {
                InputId::Timer { name: name.clone(), generation: *generation }
            }
            InstanceInputKind::Verb { request, .. } => InputId::Verb(request.clone()),
        }
    }
}

/// The name under which an occurrence of a schedule is known. No timer of a saga has it.
pub const OCCURRENCE: &str = "%schedule";

impl DomainEvent {
    /// Makes the event for an occurrence of a saga's schedule.
    #[must_use]
    pub fn occurrence(time: Timestamp) -> Self {
        let body = Json::object([
            ("id", Json::Null),
            ("type", Json::text("schedule")),
            ("aggregate_type", Json::Null),
            ("aggregate_id", Json::Null),
            ("version", Json::Null),
            ("data", Json::object([("scheduled", Json::number(time.as_millis()))])),
            ("metadata", Json::object([])),
        ]);
        let id = InputId::Timer { name: OCCURRENCE.to_owned(), generation: time.as_millis() };
        Self { id, kind: "schedule".to_owned(), body, version: None }
    }

    /// Returns whether it is an occurrence of a schedule: no event from outside is one.
    #[must_use]
    pub fn is_occurrence(&self) -> bool {
        matches!(&self.id, InputId::Timer { name, .. } if name == OCCURRENCE)
    }

    /// Makes the event for data that a caller sent.
    #[must_use]
    pub fn sent(request: &str, kind: &str, data: Json) -> Self {
        let body = Json::object([
            ("id", Json::text(request)),
            ("type", Json::text(kind)),
            ("aggregate_type", Json::Null),
            ("aggregate_id", Json::Null),
            ("version", Json::Null),
            ("data", data),
            ("metadata", Json::object([])),
        ]);
        Self { id: InputId::Verb(request.to_owned()), kind: kind.to_owned(), body, version: None }
    }
}
