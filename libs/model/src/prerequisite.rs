//! Conditions outside a flow that a node waits for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::FlowId;
use crate::limits::SIGNAL_CHARS_MAX;
use crate::time::Timestamp;

/// The name of a signal: 1 to 128 characters, none of them a control character.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SignalName(String);

impl SignalName {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for SignalName {
    type Err = PrerequisiteError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = !text.is_empty() && text.chars().count() <= SIGNAL_CHARS_MAX;
        if !fits || text.chars().any(char::is_control) {
            return Err(PrerequisiteError::Signal);
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for SignalName {
    type Error = PrerequisiteError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SignalName> for String {
    fn from(name: SignalName) -> Self {
        name.0
    }
}

/// Why a text is no [`Prerequisite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PrerequisiteError {
    /// The name of a signal is empty, too long or cannot be printed.
    #[error("a signal's name has 1 to {SIGNAL_CHARS_MAX} characters, none of them a control character")]
    Signal,
    /// The text after `after:` is not a time.
    #[error("after `after:` comes a time as RFC 3339 has it, such as 2026-12-24T18:00:00Z")]
    Time,
    /// The text after `flow:` is not a flow id.
    #[error("after `flow:` comes the number of a flow of the same context")]
    Flow,
}

/// A condition outside the flow, written `signal:<name>`, `after:<RFC 3339 time>` or `flow:<id>`.
/// Any other text is a signal of that name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Prerequisite {
    /// The flow was given this signal.
    Signal(SignalName),
    /// The time has come.
    After(Timestamp),
    /// The flow of this number, in the same context, is FINISHED.
    Flow(FlowId),
}

impl fmt::Display for Prerequisite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(name) => write!(f, "signal:{name}"),
            Self::After(time) => write!(f, "after:{}", time.rfc3339()),
            Self::Flow(id) => write!(f, "flow:{id}"),
        }
    }
}

impl FromStr for Prerequisite {
    type Err = PrerequisiteError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("signal", name)) => name.parse().map(Self::Signal),
            Some(("after", time)) => {
                Timestamp::from_rfc3339(time).map(Self::After).ok_or(PrerequisiteError::Time)
            }
            Some(("flow", id)) => id.parse().map(Self::Flow).map_err(|_| PrerequisiteError::Flow),
            _ => text.parse().map(Self::Signal),
        }
    }
}

impl TryFrom<String> for Prerequisite {
    type Error = PrerequisiteError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Prerequisite> for String {
    fn from(prerequisite: Prerequisite) -> Self {
        prerequisite.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_read_and_written() {
        let after = "after:2026-12-24T18:00:00Z".parse::<Prerequisite>();
        assert_eq!(after, Ok(Prerequisite::After(Timestamp::from_millis(1_798_135_200_000))));
        for (text, written) in [
            ("signal:go", "signal:go"),
            ("approved by: anna", "signal:approved by: anna"),
            ("after:2026-12-24T19:00:00.25+01:00", "after:2026-12-24T18:00:00.25Z"),
            ("flow:7", "flow:7"),
        ] {
            let read: Prerequisite = text.parse().expect("well-formed");
            assert_eq!(read.to_string(), written);
            assert_eq!(written.parse(), Ok(read));
        }
        assert_eq!("flow:x".parse::<Prerequisite>(), Err(PrerequisiteError::Flow));
        assert_eq!("after:noon".parse::<Prerequisite>(), Err(PrerequisiteError::Time));
        assert_eq!("signal:".parse::<Prerequisite>(), Err(PrerequisiteError::Signal));
        assert_eq!("a\nb".parse::<Prerequisite>(), Err(PrerequisiteError::Signal));
    }
}
