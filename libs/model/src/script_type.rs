//! The kinds of script that Mycora knows.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Type of a script, which selects its executor. The types that an instance offers depend on its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptType {
    /// CPython 3.
    Python,
    /// `/bin/sh`.
    Shell,
    /// The `v` compiler.
    V,
    /// `rustc`.
    Rust,
    /// The embedded Rhai engine.
    Rhai,
    /// Rhai with the context's object store.
    Osis,
    /// Rhai with system functions.
    Sal,
}

/// No script type has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a script type; there are python, shell, v, rust, rhai, osis and sal")]
pub struct UnknownScriptType(pub String);

impl ScriptType {
    /// All of them, in the order of the specification.
    pub const ALL: [Self; 7] =
        [Self::Python, Self::Shell, Self::V, Self::Rust, Self::Rhai, Self::Osis, Self::Sal];

    /// The name, as it stands in flow files, queues and records.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Shell => "shell",
            Self::V => "v",
            Self::Rust => "rust",
            Self::Rhai => "rhai",
            Self::Osis => "osis",
            Self::Sal => "sal",
        }
    }

    /// Place of the type in [`ScriptType::ALL`], for tables with a row for each type.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for ScriptType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for ScriptType {
    type Err = UnknownScriptType;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|known| known.as_str() == text)
            .ok_or_else(|| UnknownScriptType(text.chars().take(80).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_has_its_place_among_all() {
        for (place, kind) in ScriptType::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), place, "{kind}");
        }
    }
}
