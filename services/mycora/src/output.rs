//! Answers and progress, for people and for programs.
//!
//! The answer goes to standard output. Everything else, progress above all,
//! goes to standard error, so that a program reads one document.

pub mod attempt;
pub mod json;
pub mod labels;
pub mod live;
pub mod message;
pub mod objects;
pub mod progress;
pub mod runners;
pub mod saga;
pub mod summary;
pub mod table;
pub mod terminal;
pub mod time;
pub mod tree;
pub mod usage;

use std::io;

use model::printable::is_hidden;
use serde::Serialize;

use self::terminal::StandardStream;
use crate::failure::CliError;

/// How answers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Table,
    /// The proto JSON of the answer: one document.
    Json,
    /// The proto JSON of the answer, as YAML.
    Yaml,
}

/// Writes an answer to standard output: its text for people, its document for programs. Only the one
/// that is wanted is made.
///
/// # Errors
/// As [`print()`].
pub fn answer<D: Serialize>(
    format: OutputFormat,
    document: impl FnOnce() -> D,
    text: impl FnOnce() -> String,
) -> Result<(), CliError> {
    match format {
        OutputFormat::Table => print(&text()),
        OutputFormat::Json | OutputFormat::Yaml => print(&document_text(format, &document())?),
    }
}

/// A list, as far as it was read.
#[derive(Debug, Clone, Copy)]
pub struct PageSummary<'a> {
    /// How many entries were read.
    pub count: usize,
    /// How many were wanted at most.
    pub limit: u32,
    /// For what comes after them; empty: there is no more.
    pub next_page_token: &'a str,
    /// Text for people when the list is empty.
    pub none: &'a str,
}

/// Writes a list as [`answer`] does. Prints a note for people when the list is empty, or there are more entries than requested.
///
/// # Errors
/// As [`print()`].
pub fn list<D: Serialize>(
    format: OutputFormat,
    listed: PageSummary<'_>,
    document: impl FnOnce() -> D,
    text: impl FnOnce() -> String,
) -> Result<(), CliError> {
    let PageSummary { count, limit, next_page_token, none } = listed;
    if format == OutputFormat::Table && count == 0 && next_page_token.is_empty() {
        note(none);
        return Ok(());
    }
    answer(format, document, text)?;
    if format == OutputFormat::Table && !next_page_token.is_empty() {
        note(&format!("there are more than {limit}; ask for them with --limit"));
    }
    Ok(())
}

/// Writes one document of many, so that a reader need not wait for the last: JSON on a line of its own,
/// YAML after `---`.
///
/// # Errors
/// As [`print()`].
pub fn print_stream_item(format: OutputFormat, document: &impl Serialize) -> Result<(), CliError> {
    print(&stream_item(format, document)?)
}

/// One document of many, as [`print_stream_item`] writes it.
///
/// # Errors
/// When it has no such form.
pub fn stream_item(format: OutputFormat, document: &impl Serialize) -> Result<String, CliError> {
    Ok(match format {
        OutputFormat::Table | OutputFormat::Json => {
            format!("{}\n", plain_json(serde_json::to_string(document).map_err(unwritable)?))
        }
        OutputFormat::Yaml => format!("---\n{}", document_text(format, document)?),
    })
}

/// Writes one item of a document that is a list; `first` for the first of them.
///
/// # Errors
/// As [`print()`].
pub fn print_item(format: OutputFormat, first: bool, item: &impl Serialize) -> Result<(), CliError> {
    print(&list_item(format, first, item)?)
}

/// One item of a document that is a list, as [`print_item`] writes it.
///
/// # Errors
/// When it has no such form.
pub fn list_item(format: OutputFormat, first: bool, item: &impl Serialize) -> Result<String, CliError> {
    Ok(match format {
        OutputFormat::Table | OutputFormat::Json => {
            let separator = if first { "[\n" } else { ",\n" };
            format!("{separator}{}", plain_json(serde_json::to_string(item).map_err(unwritable)?))
        }
        OutputFormat::Yaml => document_text(format, &[item])?,
    })
}

/// Ends a document that is a list; `empty` when it has no items.
///
/// # Errors
/// As [`print()`].
pub fn end_items(format: OutputFormat, empty: bool) -> Result<(), CliError> {
    match (format, empty) {
        (_, true) => print("[]\n"),
        (OutputFormat::Table | OutputFormat::Json, false) => print("\n]\n"),
        (OutputFormat::Yaml, false) => Ok(()),
    }
}

fn document_text(format: OutputFormat, document: &impl Serialize) -> Result<String, CliError> {
    let mut text = match format {
        OutputFormat::Table | OutputFormat::Json => {
            plain_json(serde_json::to_string_pretty(document).map_err(unwritable)?)
        }
        OutputFormat::Yaml => serde_saphyr::to_string(document).map_err(unwritable)?,
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Escapes every hidden character in JSON: writers of JSON have to escape C0 only, and the others stand in
/// strings alone.
fn plain_json(json: String) -> String {
    let stays = |character: char| character == '\n' || !is_hidden(character);
    if json.chars().all(stays) {
        return json;
    }
    let mut plain = String::with_capacity(json.len());
    for character in json.chars() {
        if stays(character) {
            plain.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                plain.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    plain
}

/// A text that is JSON, over several lines and with nothing hidden in it; one that is none as a line of text.
#[must_use]
pub fn pretty(json: &str) -> String {
    let value = serde_json::from_str::<serde_json::Value>(json);
    let written = value.and_then(|value| serde_json::to_string_pretty(&value));
    written.map_or_else(|_| table::shown_whole(json), plain_json)
}

fn unwritable(error: impl std::fmt::Display) -> CliError {
    CliError::Failed(format!("the answer cannot be written: {error}"))
}

/// Writes a text to standard output. A closed pipe is no failure.
///
/// # Errors
/// When it cannot be written for another reason.
pub fn print(text: &str) -> Result<(), CliError> {
    print_bytes(text.as_bytes())
}

/// Writes a text that must be read to standard output: a closed pipe is a failure.
///
/// # Errors
/// When it cannot be written.
pub fn print_or_fail(text: &str) -> Result<(), CliError> {
    StandardStream::Out
        .write(text.as_bytes())
        .map_err(|error| CliError::Failed(format!("cannot write to standard output: {error}")))
}

/// Writes bytes to standard output, as they are unless it is a terminal.
///
/// # Errors
/// As [`print()`].
pub fn print_bytes(bytes: &[u8]) -> Result<(), CliError> {
    written(StandardStream::Out.write(bytes))
}

/// A line of foreign output, and the prefix that we print before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixedLine {
    /// Our prefix, perhaps in color.
    pub prefix: String,
    /// Foreign line, with its line break.
    pub text: Vec<u8>,
}

/// Writes lines to standard output: what stands before them as it is, the lines as [`print_bytes`].
///
/// # Errors
/// As [`print()`].
pub fn print_lines(lines: &[PrefixedLine]) -> Result<(), CliError> {
    written(StandardStream::Out.write_lines(lines))
}

/// Writes a line to standard error. A closed pipe is ignored.
pub fn note(line: &str) {
    let _ = StandardStream::Err.write(format!("{line}\n").as_bytes());
}

/// Writes bytes to standard error, as they are unless it is a terminal.
pub fn note_bytes(bytes: &[u8]) {
    let _ = StandardStream::Err.write(bytes);
}

/// Writes what was held back of either stream, before the process ends.
pub fn finish() {
    // A closed pipe is ignored.
    let _ = StandardStream::Out.finish().and_then(|()| StandardStream::Err.finish());
}

fn written(result: io::Result<()>) -> Result<(), CliError> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::Failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn json_hides_nothing() {
        let text = "a\u{1b}\u{9b}\u{202e}\u{7f}\u{e0041}\n\"ö";
        for json in [
            document_text(OutputFormat::Json, &[text]).expect("written"),
            stream_item(OutputFormat::Json, &[text]).expect("written"),
        ] {
            assert!(json.contains("\\u009b\\u202e\\u007f\\udb40\\udc41"), "{json}");
            let read: [String; 1] = serde_json::from_str(&json).expect("JSON");
            assert_eq!(read[0], text);
        }
    }

    #[test]
    fn texts_in_yaml_output_are_read_back_unchanged() {
        let texts = [
            "",
            " ",
            "yes",
            "no",
            "null",
            "~",
            "1.0",
            "0x1F",
            "007",
            "1e3",
            "2026-01-01",
            "a: b",
            "#x",
            "- x",
            "[x",
            "two\nlines\n",
            "\n lead",
            "end \n\n",
            "tab\there",
            "\u{1b}[31m",
            "größer",
            "\u{feff}",
            "'",
            "\"",
            "*x",
            "&x",
            "!x",
            "%x",
            "@x",
            "`x",
            "a #b",
            "18446744073709551616",
            "\r\n",
            "<<",
            "---",
            "...",
            "true: x",
        ];
        let long = "word ".repeat(60);
        let texts = texts.iter().copied().chain([long.as_str()]);
        let map: BTreeMap<String, &str> =
            texts.enumerate().map(|(i, text)| (format!("k{i}"), text)).collect();
        let yaml = document_text(OutputFormat::Yaml, &map).expect("written");
        let read: BTreeMap<String, String> = serde_saphyr::from_str(&yaml).expect(&yaml);
        for (key, text) in &map {
            assert_eq!(read[key], *text, "{yaml}");
        }
    }
}
