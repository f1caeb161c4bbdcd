//! Names say what a thing is to its reader.

use std::path::Path;

use crate::source::{self, Source};
use crate::{Finding, check, root};

/// Names that say nothing, alone or as a part.
const EMPTY: [&str; 10] =
    ["util", "utils", "helper", "helpers", "manager", "managers", "common", "misc", "mod", "stuff"];

#[test]
fn modules_have_names_that_say_something() {
    let files = source::rust(&root());
    check("module names", &files.iter().filter_map(empty_name).collect::<Vec<_>>());
}

fn empty_name(file: &Source) -> Option<Finding> {
    let path = Path::new(&file.path);
    let mut parts = path.with_extension("").to_string_lossy().replace(['/', '-'], "_");
    parts.make_ascii_lowercase();
    let empty = parts.split('_').find(|part| EMPTY.contains(part))?;
    Some(Finding { path: file.path.clone(), line: 0, what: format!("`{empty}` does not say what it is") })
}

#[test]
fn an_empty_name_is_found() {
    for path in ["libs/x/src/utils.rs", "libs/x/src/job_helper.rs", "libs/x/src/job/mod.rs"] {
        assert!(empty_name(&Source::new(path, String::new())).is_some(), "{path}");
    }
    assert!(empty_name(&Source::new("libs/x/src/model.rs", String::new())).is_none());
}
