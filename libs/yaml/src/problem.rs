//! Problems of a file, with their positions.

use std::fmt;

/// At most so many problems are printed.
const PROBLEMS_MAX: usize = 100;

/// A line and a column, both from 1 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourcePosition {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl SourcePosition {
    /// Where a file begins.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where; absent when it is not in the file but on the command line, say.
    pub place: Option<SourcePosition>,
    /// Description of the problem, and of what would be right.
    pub message: String,
}

impl Problem {
    /// One at a place of the file.
    pub fn at(place: SourcePosition, message: impl Into<String>) -> Self {
        Self { place: Some(place), message: message.into() }
    }
}

/// Everything that is wrong with one file, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    file: String,
    list: Vec<Problem>,
}

impl Problems {
    /// Problems of this file, sorted by place, without duplicates.
    #[must_use]
    pub fn new(file: &str, mut list: Vec<Problem>) -> Self {
        list.sort_by_key(|problem| problem.place);
        list.dedup();
        Self { file: file.to_owned(), list }
    }

    /// Returns the name of the file in messages.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[Problem] {
        &self.list
    }
}

/// Problems that are no reason to refuse a file.
pub struct Warnings<'a>(pub &'a Problems);

impl fmt::Display for Problems {
    /// One line for each, as `file:line:column: message`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "")
    }
}

impl fmt::Display for Warnings<'_> {
    /// One line for each, as `warning: file:line:column: message`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, "warning: ")
    }
}

impl Problems {
    fn write(&self, f: &mut fmt::Formatter<'_>, kind: &str) -> fmt::Result {
        for (i, problem) in self.list.iter().take(PROBLEMS_MAX).enumerate() {
            let line_break = if i == 0 { "" } else { "\n" };
            write!(f, "{line_break}{kind}{}:", self.file)?;
            if let Some(SourcePosition { line, column }) = problem.place {
                write!(f, "{line}:{column}:")?;
            }
            write!(f, " {}", problem.message)?;
        }
        match self.list.len().checked_sub(PROBLEMS_MAX) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "\n{kind}{}: and {more} more", self.file),
        }
    }
}

impl std::error::Error for Problems {}
