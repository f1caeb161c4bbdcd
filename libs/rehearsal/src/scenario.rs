//! Scenario files: the inputs of an instance, the answers to its work, and the expectations.

mod answers;
mod expectations;
mod reader;
mod stimuli;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::{BlobHash, CorrelationId, EffectName, SagaStatus, StepName, TenantId, Timestamp};
use workflow::Json;
use workflow::definition::Saga;
use workflow::formula::Formula;
use workflow::input::{CommandOutcome, Verb};

pub use reader::{
    ANSWER_KEYS, EXPECT_KEYS, FILE_KEYS, GIVEN_KEYS, SCENARIO_KEYS, ScenarioFile, VERBS, WORK_KEYS,
};

/// A scenario file, in bytes.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Scenarios of a file.
pub const SCENARIOS_MAX: usize = 256;
/// Inputs that a scenario gives, and its answers.
pub const ITEMS_MAX: usize = 1000;

/// One scenario: the story of one instance.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// Versions of the saga, the newest first, which is in force.
    pub versions: Vec<Arc<Saga>>,
    /// The version that the instance starts on.
    pub saga: Arc<Saga>,
    /// The tenant.
    pub tenant: TenantId,
    /// The correlation of the instance.
    pub correlation: CorrelationId,
    /// The moment at which the scenario begins.
    pub begin: Timestamp,
    /// Inputs from outside, in the order of the file.
    pub stimuli: Vec<TimedStimulus>,
    /// Answers to work: its own, then those of the file. The first match is used.
    pub answers: Vec<ScriptedAnswer>,
    /// Answers of the other scenarios of the file, for work that only a variation causes.
    pub fallback_answers: Vec<ScriptedAnswer>,
    /// Duration; when absent, the run ends when nothing is left to happen.
    pub until: Option<Duration>,
    /// Expectations at its end.
    pub expectations: ScenarioExpectations,
    /// True when everything that can go wrong is tried on it.
    pub is_exhaustive: bool,
}

impl Scenario {
    /// Finds a version of the saga by the hash of its definition.
    #[must_use]
    pub fn version(&self, hash: BlobHash) -> Option<&Arc<Saga>> {
        self.versions.iter().find(|saga| saga.hash == hash)
    }
}

/// An input from outside.
#[derive(Debug, Clone)]
pub struct TimedStimulus {
    /// Time since the beginning.
    pub at: Duration,
    /// Event or verb.
    pub what: Stimulus,
}

/// Event or verb from outside.
#[derive(Debug, Clone)]
pub enum Stimulus {
    /// An event of an aggregate, as it stands in its stream.
    Event {
        /// The type, for people.
        kind: String,
        /// Type and id of the aggregate, as in its subject.
        aggregate: (String, String),
        /// The body of the message.
        body: Json,
    },
    /// A request.
    Verb {
        /// Verb that is requested.
        verb: Verb,
        /// The reason for which it must be refused; `None` when it must be accepted.
        refused: Option<String>,
    },
}

/// An answer to work.
#[derive(Debug, Clone)]
pub struct ScriptedAnswer {
    /// Work that it answers.
    pub to: AnswerTarget,
    /// Condition on the input of the work; without one it fits always.
    pub when: Option<Formula>,
    /// Number of the order of this kind that it answers, from 1 on; `None` for each.
    pub occurrence: Option<usize>,
    /// The reply.
    pub reply: ScriptedReply,
    /// Time that the answer takes.
    pub after: Duration,
    /// True when it comes although the saga has cancelled the work.
    pub despite_cancel: bool,
}

/// Work that an answer is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerTarget {
    /// An effect.
    Effect(EffectName),
    /// A command for an aggregate, by its type.
    Command(String),
}

/// The reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptedReply {
    /// The work ends.
    End {
        /// Outcome of the work.
        outcome: CommandOutcome,
        /// Payload, as its provider gives it.
        payload: Json,
        /// True when it may have happened although it did not succeed.
        may_have_happened: bool,
    },
    /// No reply ever comes.
    Never,
}

/// Expectations at the end of a scenario. Absent ones are not checked, except dead letters: without a list there must be
/// none.
#[derive(Debug, Clone, Default)]
pub struct ScenarioExpectations {
    /// Where the instance stands.
    pub status: Option<ExpectedStatus>,
    /// The step that it is at, or ended at.
    pub step: Option<StepName>,
    /// Why it is undone, stuck or ended.
    pub reason: Option<String>,
    /// Fields of the state. Objects in them may have more fields.
    pub state: BTreeMap<String, Json>,
    /// All work, in order.
    pub work: Option<Vec<ExpectedWork>>,
    /// The work that undoes something, in order.
    pub compensations: Option<Vec<ExpectedWork>>,
    /// Timers that are set, and how long after the beginning they would fire.
    pub timers: Option<BTreeMap<String, Duration>>,
    /// Codes of dead letters, in order.
    pub letters: Vec<String>,
    /// Types of events that are ignored, in order.
    pub ignored: Option<Vec<String>>,
    /// True when it has to be paused, false when it must not be.
    pub is_paused: Option<bool>,
}

/// Where an instance is expected to stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedStatus {
    /// There is none.
    None,
    /// There.
    Status(SagaStatus),
}

impl ExpectedStatus {
    /// The name in scenario files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Status(status) => status.as_str(),
        }
    }
}

/// A piece of work that is expected.
#[derive(Debug, Clone)]
pub struct ExpectedWork {
    /// Name of the work: an effect, the type of a command, or an effect that is cancelled.
    pub name: String,
    /// True when the effect is cancelled.
    pub is_cancel: bool,
    /// Input or payload. Objects may have more fields.
    pub input: Option<Json>,
    /// The aggregate, as type and id, as far as specified.
    pub aggregate: (Option<String>, Option<String>),
}
