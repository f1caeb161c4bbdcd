//! Tables of the pages in `specs/`, for tests that hold the code against them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text of a file, by its path from the root of the repository.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rows of the table under a heading of a page in `specs/`, cell by cell, code marks taken off.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let text = read(&format!("specs/{page}"));
    let lines = text.lines().skip_while(|line| line.trim_start_matches('#').trim() != heading).skip(1);
    let body = lines.take_while(|line| !line.starts_with('#')).skip_while(|line| !line.starts_with("|--"));
    let table = body.skip(1).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let inside = line.trim().trim_matches('|');
        inside.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
    };
    let rows: Vec<_> = table.map(cells).collect();
    assert!(!rows.is_empty(), "{page} has no table under `{heading}`");
    rows
}

/// The first cells of each row of such a table, which no two rows share.
///
/// # Panics
/// When there is no such table, or two rows begin alike.
#[must_use]
pub fn first_cells(page: &str, heading: &str, cells: usize) -> BTreeSet<Vec<String>> {
    let all = rows(page, heading);
    let set: BTreeSet<_> = all.iter().map(|row| row[..cells].to_vec()).collect();
    assert_eq!(set.len(), all.len(), "{page} has a row twice under `{heading}`");
    set
}
