//! Check that examples in other languages on the page for clients stand in the programs that are run.

use std::fs;
use std::path::Path;

use crate::{Finding, check, root};

/// Fence of each language of examples, and the folder of the program that they are taken from.
const LANGUAGES: [(&str, &str); 3] =
    [("python", "tests/clients/python"), ("go", "tests/clients/go"), ("js", "tests/clients/node")];

/// Where the examples stand.
const PAGE: &str = "specs/clients.md";

/// Lines that belong together.
#[derive(Debug, PartialEq, Eq)]
struct Passage<'a> {
    /// The first one's number, from 1.
    line: usize,
    /// The lines, without the space around them.
    lines: Vec<&'a str>,
}

#[test]
fn examples_are_taken_from_programs_that_run() {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let mut findings = Vec::new();
    for (language, folder) in LANGUAGES {
        let passages = passages(&page, language);
        if passages.is_empty() {
            findings.push(finding(0, format!("no example in {language}")));
        }
        let programs = programs(&root().join(folder));
        let strange = passages.iter().filter(|passage| !programs.iter().any(|text| holds(text, passage)));
        findings.extend(strange.map(|p| finding(p.line, format!("`{}` … is not in {folder}", p.lines[0]))));
    }
    check("examples", &findings);
}

fn finding(line: usize, what: String) -> Finding {
    Finding { path: PAGE.to_owned(), line, what }
}

/// The files of a folder.
fn programs(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_file()).map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Returns the passages between blank lines, in the blocks of that language.
fn passages<'a>(page: &'a str, language: &str) -> Vec<Passage<'a>> {
    let (mut found, mut inside, mut open) = (Vec::new(), false, false);
    for (number, line) in page.lines().enumerate() {
        if let Some(fence) = line.strip_prefix("```") {
            (inside, open) = (!inside && fence == language, false);
        } else if inside && line.trim().is_empty() {
            open = false;
        } else if inside {
            if !open {
                found.push(Passage { line: number + 1, lines: Vec::new() });
            }
            open = true;
            found.last_mut().unwrap().lines.push(line.trim());
        }
    }
    found
}

/// Returns true if a program has these lines one after the other, however far they are indented there.
fn holds(program: &str, passage: &Passage<'_>) -> bool {
    let lines: Vec<&str> = program.lines().map(str::trim).collect();
    lines.windows(passage.lines.len()).any(|window| window == passage.lines)
}

#[test]
fn passages_are_found_where_they_are() {
    let page = "a\n```js\none\n  two\n\nthree\n```\n```go\nfour\n```\n";
    let found = passages(page, "js");
    let passage = |line, lines: &[&'static str]| Passage { line, lines: lines.to_vec() };
    assert_eq!(found, [passage(3, &["one", "two"]), passage(6, &["three"])]);
    assert!(holds("zero\n  one\n    two\nthree", &found[0]));
    assert!(!holds("one\n\ntwo", &found[0]));
}
