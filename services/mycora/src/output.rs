//! Answers and progress, for people and for programs.
//!
//! What was asked for goes to standard output. Everything else, progress
//! above all, goes to standard error, so that a program reads one document.

pub mod json;
pub mod live;
pub mod progress;
pub mod summary;
pub mod table;
pub mod time;
pub mod tree;
pub mod words;

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::Failure;

/// How answers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// The proto JSON of the answer: one document.
    Json,
}

/// Writes a text to standard output. That nobody reads on is no failure.
///
/// # Errors
/// When it cannot be written for another reason.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Writes bytes to standard output as they are.
///
/// # Errors
/// As [`print()`].
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    written(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Writes one JSON document to standard output.
///
/// # Errors
/// As [`print()`].
pub fn print_json(document: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(document)
        .map_err(|error| Failure::Failed(format!("the answer cannot be written as JSON: {error}")))?;
    text.push('\n');
    print(&text)
}

/// Writes a line to standard error. Without a reader there is nobody to tell.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
