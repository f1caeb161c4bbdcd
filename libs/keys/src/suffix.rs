//! Taking names apart, strictly: every key has exactly one spelling.

use std::fmt::Display;
use std::str::FromStr;

/// A number without sign, blanks or leading zeros.
pub(crate) fn number<N: FromStr + Display>(text: &str) -> Option<N> {
    exact(text)
}

/// Parses a value whose canonical text is exactly `text`.
pub(crate) fn exact<T: FromStr + Display>(text: &str) -> Option<T> {
    let value: T = text.parse().ok()?;
    (value.to_string() == text).then_some(value)
}

/// Two values with a colon between them, of which the first has none.
pub(crate) fn pair<A: FromStr + Display, B: FromStr + Display>(text: &str) -> Option<(A, B)> {
    let (a, b) = text.split_once(':')?;
    Some((exact(a)?, exact(b)?))
}
