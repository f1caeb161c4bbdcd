//! Names that people give to flows, nodes and groups.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits::NAME_CHARS_MAX;

/// 1 to 128 characters of `[A-Za-z0-9_-]`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(Arc<str>);

/// Why a text is no [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name has no characters.
    #[error("a name must not be empty")]
    Empty,
    /// The name is longer than the limit.
    #[error("a name has at most {NAME_CHARS_MAX} characters, this one has {0}")]
    TooLong(usize),
    /// The name contains a character that is not allowed.
    #[error("a name is made of A-Z a-z 0-9 _ and -, not {0:?}")]
    Character(char),
}

impl Name {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if let Some(other) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || *c == '_' || *c == '-')) {
            return Err(NameError::Character(other));
        }
        if text.len() > NAME_CHARS_MAX {
            return Err(NameError::TooLong(text.len()));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!("count-a_2".parse::<Name>().is_ok());
        assert_eq!("".parse::<Name>(), Err(NameError::Empty));
        assert_eq!("a b".parse::<Name>(), Err(NameError::Character(' ')));
        assert_eq!("x".repeat(129).parse::<Name>(), Err(NameError::TooLong(129)));
        assert!("x".repeat(128).parse::<Name>().is_ok());
    }
}
