//! Violations in a request, all of them at once.

use std::fmt;

/// One field that cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The path of the field, as in `nodes[3].depends[0]`; empty where it is the request as a whole.
    pub field: String,
    /// The error, and what would be right. A sentence without a period.
    pub description: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.field.is_empty() { "" } else { ": " };
        write!(f, "{}{colon}{}", self.field, self.description)
    }
}

/// Everything that is wrong with one request, in the order it was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// Nothing wrong so far.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a violation.
    pub fn add(&mut self, field: impl Into<String>, description: impl fmt::Display) {
        self.0.push(Violation { field: field.into(), description: description.to_string() });
    }

    /// Takes the value, or notes why there is none.
    pub fn take<T, E: fmt::Display>(&mut self, field: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(field, error)).ok()
    }

    /// The value, or nothing and all that was found to be wrong with it.
    pub fn absorb<T>(&mut self, result: Result<T, Self>) -> Option<T> {
        result.map_err(|found| self.0.extend(found.0)).ok()
    }

    /// Those found so far.
    #[must_use]
    pub fn as_slice(&self) -> &[Violation] {
        &self.0
    }

    /// Returns true if nothing was wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value when nothing was wrong.
    ///
    /// # Errors
    /// Returns the noted violations.
    pub fn into_result<T>(self, value: Option<T>) -> Result<T, Self> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(self),
        }
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, violation) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{violation}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Violations {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_no_field_stands_alone() {
        let mut violations = Violations::new();
        violations.add("", "the message cannot be read");
        violations.add("nodes[3].name", "must not be empty");
        assert_eq!(violations.to_string(), "the message cannot be read; nodes[3].name: must not be empty");
    }
}
