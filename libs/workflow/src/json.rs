//! JSON with the same bytes on every machine at any time.
//!
//! Programs see external data as these values, and their state is stored as these bytes. Therefore numbers are integers of
//! 64 bits, keys are sorted, and everything that two readers might interpret differently is refused. Any other
//! number is a text with its digits as they were written: nothing is rounded.

mod read;
mod rows;
mod write;

use std::collections::BTreeMap;

pub use read::{JsonError, read};

/// Lists and objects within each other.
pub const DEPTH_MAX: usize = 64;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number of 64 bits.
    Int(i64),
    /// A text. Other numbers are read as texts, with the digits as written.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// An object. Its keys are in the order of their bytes.
    Map(BTreeMap<String, Self>),
}

impl Json {
    /// Returns the value of a key; nothing if the value is not an object, or has no such key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => entries.get(key),
            _ => None,
        }
    }

    /// Makes an object of fields.
    #[must_use]
    pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        Self::Map(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// Makes a text of something that has one.
    #[must_use]
    pub fn text(of: impl std::fmt::Display) -> Self {
        Self::Text(of.to_string())
    }

    /// Makes a number; the largest possible one for a value beyond it.
    #[must_use]
    pub fn number(of: u64) -> Self {
        Self::Int(i64::try_from(of).unwrap_or(i64::MAX))
    }

    /// A text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Names the kind of the value, for people.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "a truth",
            Self::Int(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }
}

#[cfg(test)]
mod tests;
