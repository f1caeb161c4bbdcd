//! How far scripts are kept apart from the machine and from each other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Level of isolation between a script and everything else. Each level has everything of the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// A session of its own, limits, closed descriptors, a clean environment, no new privileges.
    #[default]
    Basic,
    /// Files and system calls are restricted: the script reaches its own directory and what every script may read, and has
    /// no network unless it requested it.
    Confined,
    /// Processes and memory are bounded, whatever the script starts.
    Contained,
}

/// No level has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no isolation level; there are basic, confined and contained")]
pub struct UnknownIsolation(pub String);

impl Isolation {
    /// All of them, the least first.
    pub const ALL: [Self; 3] = [Self::Basic, Self::Confined, Self::Contained];

    /// The name, as it stands in flow files, records and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::Confined => "confined",
            Self::Contained => "contained",
        }
    }

    /// Returns true for the lowest level, which every instance gives.
    #[must_use]
    pub fn is_basic(&self) -> bool {
        *self == Self::Basic
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Isolation {
    type Err = UnknownIsolation;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|known| known.as_str() == text)
            .ok_or_else(|| UnknownIsolation(text.chars().take(80).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_and_named() {
        assert!(Isolation::ALL.is_sorted());
        for level in Isolation::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert_eq!(serde_json::to_string(&level).ok(), Some(format!("\"{level}\"")));
        }
        assert!("jail".parse::<Isolation>().is_err());
    }
}
