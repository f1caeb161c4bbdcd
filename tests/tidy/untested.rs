//! Check that what cargo is told not to test has nothing to test.
//!
//! A target that is tested is compiled and linked once more, and documentation of a crate is read whole to find examples in it. Manifests
//! spare that where there is nothing, and a test that is added there later would never run.

use std::fs;
use std::path::Path;

use crate::source::{self, Source, line_of, occurrences};
use crate::{Finding, check, root};

/// Beginnings of the attributes of tests.
const ATTRIBUTES: [&str; 3] = ["#[test", "#[tokio::test", "proptest!"];

#[test]
fn what_is_not_tested_has_no_tests() {
    let (root, files) = (root(), source::rust(&root()));
    let mut findings = Vec::new();
    for folder in ["libs", "services", "tests"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let manifest = entry.unwrap().path().join("Cargo.toml");
            if let Ok(text) = fs::read_to_string(&manifest) {
                let folder = manifest.parent().unwrap().strip_prefix(&root).unwrap().to_owned();
                findings.extend(unseen(&text, &folder, &files));
            }
        }
    }
    check("untested", &findings);
}

/// Tests and examples of a crate that its manifest keeps from running.
fn unseen(manifest: &str, folder: &Path, files: &[Source]) -> Vec<Finding> {
    let src = folder.join("src");
    let mut findings = Vec::new();
    for table in manifest.split("\n[").map(|table| table.trim_start_matches('[')) {
        let (is_lib, has) = (table.starts_with("lib]"), |line| table.lines().any(|found| found == line));
        let sources = files.iter().filter(|file| Path::new(&file.path).starts_with(&src));
        if is_lib && has("doctest = false") {
            findings.extend(sources.clone().flat_map(examples));
        }
        if is_lib && has("test = false") {
            let of_main = src.join("main.rs");
            findings.extend(sources.filter(|file| Path::new(&file.path) != of_main).flat_map(tests));
        } else if has("test = false")
            && let Some(path) = source::text_field(table, "path")
        {
            let main = folder.join(path);
            findings.extend(files.iter().filter(|file| Path::new(&file.path) == main).flat_map(tests));
        }
    }
    findings
}

/// Tests in a file; modules of a program as well, whose tests would be its own.
fn tests(file: &Source) -> Vec<Finding> {
    let is_main = file.path.ends_with("/main.rs");
    let needles = ATTRIBUTES.into_iter().chain(is_main.then_some("mod "));
    let finding = |at| Finding {
        path: file.path.clone(),
        line: line_of(&file.code, at),
        what: "the manifest keeps tests of this target from running".to_owned(),
    };
    needles.flat_map(|needle| occurrences(&file.code, needle).map(finding).collect::<Vec<_>>()).collect()
}

/// Examples in comments that rustdoc would take for Rust.
fn examples(file: &Source) -> Vec<Finding> {
    let (mut findings, mut is_inside) = (Vec::new(), false);
    for (number, line) in file.text.lines().enumerate() {
        let line = line.trim_start();
        let Some(comment) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else { continue };
        let Some(language) = comment.trim_start().strip_prefix("```") else { continue };
        is_inside = !is_inside;
        if is_inside && ["", "rust", "no_run", "should_panic"].contains(&language.trim_end()) {
            let what = "the manifest keeps examples of this crate from being compiled".to_owned();
            findings.push(Finding { path: file.path.clone(), line: number + 1, what });
        }
    }
    findings
}

#[test]
fn tests_that_would_not_run_are_found() {
    let file = |path: &str, text: &str| Source::new(path, text.to_owned());
    let files = [
        file("libs/a/src/lib.rs", "//! ```text\n//! a\n//! ```\n/// ```\n/// a();\n/// ```\nfn a() {}\n"),
        file("libs/a/src/b.rs", "#[test]\nfn b() {}\n"),
        file("libs/a/src/main.rs", "mod c;\n"),
        file("libs/ab/src/lib.rs", "#[tokio::test(start_paused = true)]\nasync fn d() {}\n"),
    ];
    let found = |manifest| {
        let findings = unseen(manifest, Path::new("libs/a"), &files);
        findings.into_iter().map(|finding| (finding.path, finding.line)).collect::<Vec<_>>()
    };
    let at = |path: &str, line| (format!("libs/a/src/{path}"), line);
    assert_eq!(found("[lib]\nname = \"a\"\n"), []);
    assert_eq!(found("[lib]\nname = \"a\"\ndoctest = false\n"), [at("lib.rs", 4)]);
    assert_eq!(found("[package]\n\n[lib]\ntest = false\n"), [at("b.rs", 1)]);
    let bin = "[lib]\nname = \"a\"\n\n[[bin]]\nname = \"a\"\npath = \"src/main.rs\"\ntest = false\n";
    assert_eq!(found(bin), [at("main.rs", 1)]);
}
