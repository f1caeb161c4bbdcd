//! First sentences of documentation stand alone.
//!
//! A reader sees one line of it without its neighbours: in an editor, in a list of items, in a search. A sentence whose subject is elsewhere
//! tells nothing there.

use std::path::Path;

use crate::source::{self, Source};
use crate::{Finding, check, root};

/// First words whose noun is elsewhere, or that name nobody.
const DEICTIC: [&str; 16] = [
    "It", "Its", "This", "What", "Who", "Whoever", "Whose", "Whom", "That", "They", "Whether", "As", "Of",
    "Nobody", "Somebody", "The same",
];

#[test]
fn first_sentences_stand_alone() {
    let mut files = source::all(&root());
    files.retain(|file| !file.is_generated());
    check("first sentences", &files.iter().flat_map(deictic).collect::<Vec<_>>());
}

/// How documentation begins in files of this kind; nothing for those that have none.
fn marks(path: &str) -> &'static [&'static str] {
    match Path::new(path).extension().and_then(|extension| extension.to_str()) {
        Some("rs") => &["///", "//!"],
        Some("proto") => &["//"],
        Some("lua") => &["--"],
        _ => &[],
    }
}

fn deictic(file: &Source) -> Vec<Finding> {
    let (marks, mut found, mut before) = (marks(&file.path), Vec::new(), None);
    for (number, line) in file.text.lines().enumerate() {
        let line = line.trim_start();
        let mark = marks.iter().find(|mark| line.starts_with(**mark));
        if let Some(mark) = mark
            && before.is_none()
            && let Some(word) = deictic_word(line[mark.len()..].trim_start())
        {
            let what = format!("`{word}` is no subject of a sentence that stands alone");
            found.push(Finding { path: file.path.clone(), line: number + 1, what });
        }
        before = mark;
    }
    found
}

fn deictic_word(sentence: &str) -> Option<&'static str> {
    DEICTIC
        .into_iter()
        .find(|word| sentence.strip_prefix(word).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)))
}

#[test]
fn a_sentence_that_does_not_stand_alone_is_found() {
    let text = "//! Items.\n\n/// What is asked of the router.\nfn a() {}\n/// Sends it.\n/// It waits.\nfn b() {}\n\
                /// Itself.\nfn c() {}\n/// The same for a node.\nfn d() {}\n";
    let lines = |path: &str, text: &str| {
        let found = deictic(&Source::new(path, text.to_owned()));
        found.into_iter().map(|finding| finding.line).collect::<Vec<_>>()
    };
    assert_eq!(lines("libs/x/src/lib.rs", text), [3, 10]);
    assert_eq!(lines("libs/x/src/a.lua", "-- Ends a job.\nlocal a\n-- Whoever waits.\n"), [3]);
    assert_eq!(lines("proto/a.proto", "// A job.\n// It waits.\nmessage A {\n  // Its name.\n}\n"), [4]);
    assert_eq!(lines("a.md", "// It.\n"), [0_usize; 0]);
}
