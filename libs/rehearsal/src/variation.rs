//! Everything that can go wrong in a scenario, one thing at a time.

use std::fmt;

use workflow::Json;
use workflow::input::Outcome;

use crate::scenario::Reply;
use crate::stage::{Key, Run};

/// One thing that is otherwise in a run than its scenario says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variation {
    /// Nothing.
    None,
    /// A piece of work ends otherwise.
    End {
        /// Its number.
        work: usize,
        /// End in place of its answer.
        end: End,
    },
    /// Every piece of work ends so.
    EndAll(End),
    /// An input comes twice.
    Again {
        /// Name of the input.
        key: Key,
        /// Manner of the repeat.
        how: Again,
    },
    /// An input comes only behind the one that came after it.
    Swapped {
        /// Input that came first.
        first: Key,
        /// Input that comes first now.
        second: Key,
    },
    /// A timer fires before anything else happens.
    TimerFirst {
        /// Its name.
        name: String,
        /// Number of the setting of it.
        generation: u64,
    },
    /// A cancel comes.
    Cancelled {
        /// Behind which input.
        behind: Key,
    },
    /// An effect that is called off ends as if it were not.
    CancelTooLate {
        /// Number of the work that calls it off.
        work: usize,
    },
}

/// End of work in a variation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Failed for certain.
    Failed,
    /// Took too long, and has not happened.
    TimedOut,
    /// Lost its reply: nobody knows whether it happened.
    Lost,
}

/// Manner in which an input comes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Right behind itself.
    AtOnce,
    /// When everything else has happened.
    AtTheEnd,
    /// Right behind itself, as an event with another id.
    UnderAnotherId,
}

impl End {
    const ALL: [Self; 3] = [Self::Failed, Self::TimedOut, Self::Lost];

    fn reply(self) -> Reply {
        let (outcome, may_have_happened) = match self {
            Self::Failed => (Outcome::Failed, false),
            Self::TimedOut => (Outcome::TimedOut, false),
            Self::Lost => (Outcome::Unknown, true),
        };
        let payload = Json::object([("code", Json::text(outcome.code()))]);
        Reply::End { outcome, payload, may_have_happened }
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
    pub(crate) fn end_of(&self, number: usize) -> Option<Reply> {
        match self {
            Self::End { work, end } if *work == number => Some(end.reply()),
            Self::EndAll(end) => Some(end.reply()),
            _ => None,
        }
    }

    /// Returns whether it has to end as the scenario itself does: what comes twice counts once.
    #[must_use]
    pub const fn has_same_end(&self) -> bool {
        matches!(self, Self::Again { how: Again::AtOnce | Again::AtTheEnd, .. })
    }

    /// Lists everything that can go wrong in a run.
    #[must_use]
    pub fn all(run: &Run) -> Vec<Self> {
        let mut all: Vec<Self> = [End::Failed, End::Lost].map(Self::EndAll).into();
        for (number, work) in run.work.iter().enumerate() {
            match work.is_cancel {
                true => all.push(Self::CancelTooLate { work: number }),
                false => all.extend(End::ALL.map(|end| Self::End { work: number, end })),
            }
        }
        for fed in &run.fed {
            let mut ways = vec![Again::AtOnce, Again::AtTheEnd];
            if fed.is_event {
                ways.push(Again::UnderAnotherId);
            }
            all.extend(ways.into_iter().map(|how| Self::Again { key: fed.key.clone(), how }));
            all.push(Self::Cancelled { behind: fed.key.clone() });
        }
        let pairs = run.fed.iter().zip(run.fed.iter().skip(1));
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
    pub fn describe(&self, run: &Run) -> String {
        let fed = |key: &Key| {
            let at = run.fed.iter().position(|fed| fed.key == *key);
            let shown = at.and_then(|at| run.fed.get(at)).map_or("an input", |fed| fed.shown.as_str());
            Numbered { what: shown.to_owned(), number: at }.to_string()
        };
        let work = |number: &usize| {
            let name = run.work.get(*number).map_or("work", |work| work.name.as_str());
            Numbered { what: name.to_owned(), number: Some(*number) }.to_string()
        };
        match self {
            Self::None => "as it is written".to_owned(),
            Self::End { work: number, end: End::Lost } => format!("the reply to {} is lost", work(number)),
            Self::End { work: number, end } => format!("{} {}", work(number), end.as_str()),
            Self::EndAll(End::Lost) => "every reply is lost".to_owned(),
            Self::EndAll(end) => format!("all work {}", end.as_str()),
            Self::Again { key, how: Again::AtOnce } => format!("{} comes twice at once", fed(key)),
            Self::Again { key, how: Again::AtTheEnd } => format!("{} comes again at the end", fed(key)),
            Self::Again { key, how: Again::UnderAnotherId } => {
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
struct Numbered {
    what: String,
    number: Option<usize>,
}

impl fmt::Display for Numbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{} (no. {})", self.what, number + 1),
            None => write!(f, "{}", self.what),
        }
    }
}

impl Run {
    /// Returns whether an input could not have come without another one.
    fn causes(&self, first: &Key, second: &Key) -> bool {
        match second {
            Key::Result(number) => self.work.get(*number).is_some_and(|work| work.cause == *first),
            Key::Timer { name, generation } => {
                let mut timers = self.timers.iter();
                timers.any(|(known, number, cause)| known == name && number == generation && cause == first)
            }
            Key::Given(_) | Key::Added => false,
        }
    }
}
