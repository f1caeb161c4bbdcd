//! Rules about the source that no compiler checks.
//!
//! Each test is one rule and lists everything that breaks it. What may break a rule stands in
//! [`exceptions`], with its reason; an exception that nothing needs any more fails too.
#![expect(clippy::unwrap_used, reason = "a test that cannot read its files has failed")]

mod arrows;
mod examples;
mod exceptions;
mod lock;
mod names;
mod planted;
mod prose;
mod size;
mod source;
mod untested;
mod words;

use std::path::{Path, PathBuf};

use exceptions::EXCEPTIONS;

/// Something that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// The file, from the root of the repository.
    path: String,
    /// Where in it, from 1; 0 when it is about the whole file.
    line: usize,
    /// Description of the fault.
    what: String,
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Fails with all findings that no exception covers, and with exceptions that cover nothing.
fn check(rule: &str, findings: &[Finding]) {
    let mut report = Vec::new();
    for finding in findings {
        if !EXCEPTIONS.iter().any(|exception| exception.covers(rule, &finding.path)) {
            report.push(format!("{}:{}: {}", finding.path, finding.line, finding.what));
        }
    }
    for exception in EXCEPTIONS.iter().filter(|exception| exception.rule == rule) {
        if !findings.iter().any(|finding| exception.covers(rule, &finding.path)) {
            report.push(format!("{}: the exception from `{rule}` is not needed", exception.path));
        }
    }
    assert!(report.is_empty(), "{} against `{rule}`:\n{}", report.len(), report.join("\n"));
}
