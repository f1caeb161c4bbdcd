//! Variations of a scenario: everything that can go wrong in it, one thing at a time.

use std::fmt;

use workflow::Json;
use workflow::input::CommandOutcome;

use crate::player::{RunInputKey, ScenarioRun};
use crate::scenario::ScriptedReply;

/// One difference of a run from its scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variation {
    /// Nothing.
    None,
    /// A piece of work ends otherwise.
    End {
        /// Number of the piece of work.
        work: usize,
        /// End in place of its answer.
        end: InjectedFailure,
    },
    /// Every piece of work ends so.
    EndAll(InjectedFailure),
    /// An input comes twice.
    Duplicated {
        /// Name of the input.
        key: RunInputKey,
        /// Manner of the repeat.
        how: DuplicateMode,
    },
    /// An input comes only behind the one that came after it.
    Swapped {
        /// Input that came first.
        first: RunInputKey,
        /// Input that comes first now.
        second: RunInputKey,
    },
    /// A timer fires before anything else happens.
    TimerFirst {
        /// Name of the timer.
        name: String,
        /// Number of the setting of it.
        generation: u64,
    },
    /// A cancel comes.
    Cancelled {
        /// Behind which input.
        behind: RunInputKey,
    },
    /// A cancelled effect ends as if it were not cancelled.
    CancelTooLate {
        /// Number of the work that calls it off.
        work: usize,
    },
}

/// End of work in a variation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFailure {
    /// Failed for certain.
    Failed,
    /// Took too long, and has not happened.
    TimedOut,
    /// The reply is lost: whether it happened is unknown.
    Lost,
}

/// Manner in which an input comes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DuplicateMode {
    /// Right behind itself.
    AtOnce,
    /// After everything else has happened.
    AtTheEnd,
    /// Right behind itself, as an event with another id.
    UnderAnotherId,
}

impl InjectedFailure {
    const ALL: [Self; 3] = [Self::Failed, Self::TimedOut, Self::Lost];

    fn reply(self) -> ScriptedReply {
        let (outcome, may_have_happened) = match self {
            Self::Failed => (CommandOutcome::Failed, false),
            Self::TimedOut => (CommandOutcome::TimedOut, false),
            Self::Lost => (CommandOutcome::Unknown, true),
        };
        let payload = Json::object([("code", Json::text(outcome.code()))]);
        ScriptedReply::End { outcome, payload, may_have_happened }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "fails",
            Self::TimedOut => "times out",
            Self::Lost => "is lost",
        }
    }
}

impl Variation {
    /// Returns whether nothing is otherwise.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// The end that a piece of work has in place of its answer.
    pub(crate) fn end_of(&self, number: usize) -> Option<ScriptedReply> {
        match self {
            Self::End { work, end } if *work == number => Some(end.reply()),
            Self::EndAll(end) => Some(end.reply()),
            _ => None,
        }
    }

    /// Returns whether it must end as the scenario itself does: a repeated input counts once.
    #[must_use]
    pub const fn has_same_end(&self) -> bool {
        matches!(self, Self::Duplicated { how: DuplicateMode::AtOnce | DuplicateMode::AtTheEnd, .. })
    }

    /// Lists everything that can go wrong in a run.
    #[must_use]
    pub fn all(run: &ScenarioRun) -> Vec<Self> {
        let mut all: Vec<Self> = [InjectedFailure::Failed, InjectedFailure::Lost].map(Self::EndAll).into();
        for (number, work) in run.work.iter().enumerate() {
            match work.is_cancel {
                true => all.push(Self::CancelTooLate { work: number }),
                false => all.extend(InjectedFailure::ALL.map(|end| Self::End { work: number, end })),
            }
        }
        for fed in &run.inputs {
            let mut ways = vec![DuplicateMode::AtOnce, DuplicateMode::AtTheEnd];
            if fed.is_event {
                ways.push(DuplicateMode::UnderAnotherId);
            }
            all.extend(ways.into_iter().map(|how| Self::Duplicated { key: fed.key.clone(), how }));
            all.push(Self::Cancelled { behind: fed.key.clone() });
        }
        let pairs = run.inputs.iter().zip(run.inputs.iter().skip(1));
        let pairs = pairs.filter(|(first, second)| !run.causes(&first.key, &second.key));
        all.extend(pairs.map(|(first, second)| {
            let (first, second) = (first.key.clone(), second.key.clone());
            Self::Swapped { first, second }
        }));
        let timers = run.timers.iter();
        all.extend(
            timers.map(|(name, generation, _)| Self::TimerFirst {
                name: name.clone(),
                generation: *generation,
            }),
        );
        all
    }

    /// Describes the variation for people. `run` is the run that it was made of.
    #[must_use]
    pub fn describe(&self, run: &ScenarioRun) -> String {
        let fed = |key: &RunInputKey| {
            let at = run.inputs.iter().position(|fed| fed.key == *key);
            let shown = at.and_then(|at| run.inputs.get(at)).map_or("an input", |fed| fed.shown.as_str());
            NumberedLabel { what: shown.to_owned(), number: at }.to_string()
        };
        let work = |number: &usize| {
            let name = run.work.get(*number).map_or("work", |work| work.name.as_str());
            NumberedLabel { what: name.to_owned(), number: Some(*number) }.to_string()
        };
        match self {
            Self::None => "as it is written".to_owned(),
            Self::End { work: number, end: InjectedFailure::Lost } => {
                format!("the reply to {} is lost", work(number))
            }
            Self::End { work: number, end } => format!("{} {}", work(number), end.as_str()),
            Self::EndAll(InjectedFailure::Lost) => "every reply is lost".to_owned(),
            Self::EndAll(end) => format!("all work {}", end.as_str()),
            Self::Duplicated { key, how: DuplicateMode::AtOnce } => {
                format!("{} comes twice at once", fed(key))
            }
            Self::Duplicated { key, how: DuplicateMode::AtTheEnd } => {
                format!("{} comes again at the end", fed(key))
            }
            Self::Duplicated { key, how: DuplicateMode::UnderAnotherId } => {
                format!("{} comes twice, with another id", fed(key))
            }
            Self::Swapped { first, second } => format!("{} comes behind {}", fed(first), fed(second)),
            Self::TimerFirst { name, .. } => format!("the timer {name} fires first"),
            Self::Cancelled { behind } => format!("cancelled behind {}", fed(behind)),
            Self::CancelTooLate { work: number } => format!("{} is called off too late", work(number)),
        }
    }
}

/// Something and its number, from 1 on.
struct NumberedLabel {
    what: String,
    number: Option<usize>,
}

impl fmt::Display for NumberedLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{} (no. {})", self.what, number + 1),
            None => write!(f, "{}", self.what),
        }
    }
}

impl ScenarioRun {
    /// Returns whether an input could not have come without another one.
    fn causes(&self, first: &RunInputKey, second: &RunInputKey) -> bool {
        match second {
            RunInputKey::Result(number) => self.work.get(*number).is_some_and(|work| work.cause == *first),
            RunInputKey::Timer { name, generation } => {
                let mut timers = self.timers.iter();
                timers.any(|(known, number, cause)| known == name && number == generation && cause == first)
            }
            RunInputKey::Given(_) | RunInputKey::Added => false,
        }
    }
}
