//! The functions of scripts that the runner serves: whatever has an effect outside of their engine.

use std::time::Duration;

use rhai::{Array, Dynamic, FLOAT, INT, ImmutableString, Map};

use super::{Files, Limits};
use crate::wire::{Answer, Function};

/// Why a function gives no value.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A text that the script may catch.
    Thrown(String),
    /// The script has to end.
    Ends,
    /// The script has taken more steps than it may.
    TooManySteps,
    /// No engine would have called it so.
    Malformed,
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Self::Thrown(text)
    }
}

/// What a function gives.
pub(crate) type Outcome<T> = Result<T, Refusal>;

/// Functions of one job. They block.
pub(crate) trait Functions: Send + Sync {
    /// Does what a script asks for. The arguments are of a process that may have been taken over.
    fn call(&self, function: Function, args: Args) -> Outcome<Dynamic>;
}

/// The arguments of a call, in order.
pub(crate) struct Args(std::vec::IntoIter<Dynamic>);

impl Args {
    pub(super) fn new(values: Vec<Dynamic>) -> Self {
        Self(values.into_iter())
    }

    /// The next one, whatever it is.
    pub(crate) fn value(&mut self) -> Outcome<Dynamic> {
        self.0.next().ok_or(Refusal::Malformed)
    }

    /// The next one, a text.
    pub(crate) fn text(&mut self) -> Outcome<ImmutableString> {
        self.value()?.into_immutable_string().map_err(|_| Refusal::Malformed)
    }

    /// The next one, an integer.
    pub(crate) fn integer(&mut self) -> Outcome<INT> {
        self.value()?.as_int().map_err(|_| Refusal::Malformed)
    }

    /// The next one, a list; an empty one when there is none.
    pub(crate) fn list_or_none(&mut self) -> Outcome<Array> {
        self.0.next().map_or(Ok(Array::new()), |value| value.into_array().map_err(|_| Refusal::Malformed))
    }

    /// The next one, a map.
    pub(crate) fn map(&mut self) -> Outcome<Map> {
        self.value()?.try_cast().ok_or(Refusal::Malformed)
    }

    /// The next one, a map; an empty one when there is none.
    pub(crate) fn map_or_none(&mut self) -> Outcome<Map> {
        if self.is_empty() { Ok(Map::new()) } else { self.map() }
    }

    /// The time to sleep, which is the only one.
    pub(super) fn time(&mut self) -> Outcome<Duration> {
        let secs: FLOAT = self.value()?.as_float().map_err(|_| Refusal::Malformed)?;
        /// Longer than any job may run.
        const AT_MOST: Duration = Duration::from_secs(model::limits::TIMEOUT_SECS_MAX as u64);
        let forever = if secs > 0.0 { AT_MOST } else { Duration::ZERO };
        Ok(Duration::try_from_secs_f64(secs).unwrap_or(forever).min(AT_MOST))
    }

    /// Whether there are no more.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

/// All functions of one job: those that every script has, and those of its language.
pub(super) struct Serving {
    pub(super) files: Files,
    pub(super) more: Option<Box<dyn Functions>>,
    pub(super) limits: Limits,
}

impl Serving {
    /// Serves a call; nothing when no engine would have made it.
    pub(super) fn answer(&self, function: Function, values: Vec<Dynamic>) -> Option<Answer> {
        let called = self.limits.look().and_then(|()| self.call(function, Args::new(values)));
        Some(match called {
            Ok(value) => Answer::Value(value),
            Err(Refusal::Thrown(text)) => Answer::Thrown(text),
            Err(Refusal::Ends) => Answer::Ends,
            Err(Refusal::TooManySteps) => Answer::TooManySteps,
            Err(Refusal::Malformed) => return None,
        })
    }

    fn call(&self, function: Function, mut args: Args) -> Outcome<Dynamic> {
        match function {
            Function::ReadFile => {
                let path = args.text()?;
                let read = self.files.read(&path).map_err(|why| format!("read_file({path:?}): {why}"));
                Ok(read?.into())
            }
            Function::WriteFile => {
                let (path, text) = (args.text()?, args.text()?);
                let written = self.files.write(&path, text.as_bytes());
                written.map_err(|why| format!("write_file({path:?}): {why}"))?;
                Ok(Dynamic::UNIT)
            }
            other => self.more.as_ref().ok_or(Refusal::Malformed)?.call(other, args),
        }
    }
}
