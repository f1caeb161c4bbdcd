//! Faults that are planted to see whether they are found.

use std::process::Command;

use crate::{Finding, check, root};

const FOLDER: &str = "tests/faults/planted";

/// A patch that does not fit any more plants nothing, and nobody runs them often.
#[test]
fn planted_faults_fit_the_sources() {
    let root = root();
    let entries = std::fs::read_dir(root.join(FOLDER)).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    let patches: Vec<String> = names.filter(|name| name.ends_with(".patch")).collect();
    assert!(patches.len() > 2, "{patches:?}");
    let misfits = patches.iter().filter_map(|name| {
        let path = format!("{FOLDER}/{name}");
        let output = Command::new("git").args(["apply", "--check", &path]).current_dir(&root).output();
        let output = output.expect("git is there");
        let what = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        (!output.status.success()).then_some(Finding { path, line: 0, what })
    });
    check("planted faults", &misfits.collect::<Vec<_>>());
}
