//! The functions of scripts that the runner serves: whatever has an effect outside of their engine.

use std::time::Duration;

use rhai::{Array, Dynamic, FLOAT, INT, ImmutableString, Map};

use super::{ScriptFiles, ScriptLimits};
use crate::wire::{FunctionReply, ServedFunction};

/// Why a function gives no value.
#[derive(Debug)]
pub(crate) enum ScriptFunctionError {
    /// A text that the script may catch.
    Thrown(String),
    /// The script has to end.
    Ends,
    /// The script has taken more steps than it may.
    TooManySteps,
    /// No engine would have called it so.
    Malformed,
}

impl From<String> for ScriptFunctionError {
    fn from(text: String) -> Self {
        Self::Thrown(text)
    }
}

/// Result of a function.
pub(crate) type ScriptFunctionResult<T> = Result<T, ScriptFunctionError>;

/// Functions of one job. They block.
pub(crate) trait ScriptFunctions: Send + Sync {
    /// Does what a script asks for. The arguments are of a process that may have been taken over.
    fn call(&self, function: ServedFunction, args: FunctionArgs) -> ScriptFunctionResult<Dynamic>;
}

/// The arguments of a call, in order.
pub(crate) struct FunctionArgs(std::vec::IntoIter<Dynamic>);

impl FunctionArgs {
    pub(super) fn new(values: Vec<Dynamic>) -> Self {
        Self(values.into_iter())
    }

    /// The next one, whatever it is.
    pub(crate) fn value(&mut self) -> ScriptFunctionResult<Dynamic> {
        self.0.next().ok_or(ScriptFunctionError::Malformed)
    }

    /// The next one, a text.
    pub(crate) fn text(&mut self) -> ScriptFunctionResult<ImmutableString> {
        self.value()?.into_immutable_string().map_err(|_| ScriptFunctionError::Malformed)
    }

    /// The next one, an integer.
    pub(crate) fn integer(&mut self) -> ScriptFunctionResult<INT> {
        self.value()?.as_int().map_err(|_| ScriptFunctionError::Malformed)
    }

    /// The next one, a list; an empty one when there is none.
    pub(crate) fn list_or_none(&mut self) -> ScriptFunctionResult<Array> {
        self.0
            .next()
            .map_or(Ok(Array::new()), |value| value.into_array().map_err(|_| ScriptFunctionError::Malformed))
    }

    /// The next one, a map.
    pub(crate) fn map(&mut self) -> ScriptFunctionResult<Map> {
        self.value()?.try_cast().ok_or(ScriptFunctionError::Malformed)
    }

    /// The next one, a map; an empty one when there is none.
    pub(crate) fn map_or_none(&mut self) -> ScriptFunctionResult<Map> {
        if self.is_empty() { Ok(Map::new()) } else { self.map() }
    }

    /// The time to sleep, which is the only one.
    pub(super) fn time(&mut self) -> ScriptFunctionResult<Duration> {
        let secs: FLOAT = self.value()?.as_float().map_err(|_| ScriptFunctionError::Malformed)?;
        /// Longer than any job may run.
        const AT_MOST: Duration = Duration::from_secs(model::limits::TIMEOUT_SECS_MAX as u64);
        let forever = if secs > 0.0 { AT_MOST } else { Duration::ZERO };
        Ok(Duration::try_from_secs_f64(secs).unwrap_or(forever).min(AT_MOST))
    }

    /// Returns true if there are no more arguments.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

/// All functions of one job: those that every script has, and those of its language.
pub(super) struct JobFunctions {
    pub(super) files: ScriptFiles,
    pub(super) more: Option<Box<dyn ScriptFunctions>>,
    pub(super) limits: ScriptLimits,
}

impl JobFunctions {
    /// Serves a call; nothing when no engine would have made it.
    pub(super) fn answer(&self, function: ServedFunction, values: Vec<Dynamic>) -> Option<FunctionReply> {
        let called = self.limits.look().and_then(|()| self.call(function, FunctionArgs::new(values)));
        Some(match called {
            Ok(value) => FunctionReply::Value(value),
            Err(ScriptFunctionError::Thrown(text)) => FunctionReply::Thrown(text),
            Err(ScriptFunctionError::Ends) => FunctionReply::Ends,
            Err(ScriptFunctionError::TooManySteps) => FunctionReply::TooManySteps,
            Err(ScriptFunctionError::Malformed) => return None,
        })
    }

    fn call(&self, function: ServedFunction, mut args: FunctionArgs) -> ScriptFunctionResult<Dynamic> {
        match function {
            ServedFunction::ReadFile => {
                let path = args.text()?;
                let read = self.files.read(&path).map_err(|why| format!("read_file({path:?}): {why}"));
                Ok(read?.into())
            }
            ServedFunction::WriteFile => {
                let (path, text) = (args.text()?, args.text()?);
                let written = self.files.write(&path, text.as_bytes());
                written.map_err(|why| format!("write_file({path:?}): {why}"))?;
                Ok(Dynamic::UNIT)
            }
            other => self.more.as_ref().ok_or(ScriptFunctionError::Malformed)?.call(other, args),
        }
    }
}
