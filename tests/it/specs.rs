//! The pages in `specs/` say what the code says.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use flow::transition::{flow_table, node_table};
use model::NodeState;

/// The rows of the tables of a page, cell by cell, without their heads; code marks taken off.
fn rows(page: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../specs").join(page);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines: Vec<&str> = text.lines().collect();
    let is_row = |line: &str| line.starts_with('|') && !line.starts_with("|--");
    let is_head = |i: usize| lines.get(i + 1).is_some_and(|next| next.starts_with("|--"));
    let cells = |line: &str| {
        let inside = line.trim().trim_matches('|');
        inside.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
    };
    (0..lines.len()).filter(|i| is_row(lines[*i]) && !is_head(*i)).map(|i| cells(lines[i])).collect()
}

/// The first cells of the rows that have `width` of them.
fn first(page: &str, width: usize, cells: usize) -> BTreeSet<Vec<String>> {
    let all = rows(page);
    let chosen: Vec<_> =
        all.iter().filter(|row| row.len() == width).map(|row| row[..cells].to_vec()).collect();
    let set: BTreeSet<_> = chosen.iter().cloned().collect();
    assert_eq!(set.len(), chosen.len(), "{page} has a row twice");
    set
}

#[test]
fn the_states_of_a_node_are_as_written() {
    let code =
        node_table().map(|(from, event, to)| vec![from.to_string(), event.to_string(), to.to_string()]);
    assert_eq!(first("states/node.md", 4, 3), code.collect());
}

#[test]
fn the_mirror_in_the_job_is_as_written() {
    let code = NodeState::ALL.map(|state| vec![state.to_string(), state.job_status().to_owned()]);
    assert_eq!(first("states/node.md", 2, 2), code.into());
}

#[test]
fn the_states_of_a_flow_are_as_written() {
    let code =
        flow_table().map(|(from, event, to)| vec![from.to_string(), event.to_string(), to.to_string()]);
    assert_eq!(first("states/flow.md", 4, 3), code.collect());
}
