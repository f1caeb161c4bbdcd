//! Names say what a thing is to its reader.

use std::collections::BTreeMap;
use std::path::Path;

use crate::source::{self, Source, identifier, line_of, occurrences};
use crate::{Finding, check, root};

/// Names that say nothing, alone or as a part.
const EMPTY: [&str; 10] =
    ["util", "utils", "helper", "helpers", "manager", "managers", "common", "misc", "mod", "stuff"];

/// Type names that each service or library has once, with the same meaning in all of them.
const CONVENTIONAL: [(&str, &str); 7] = [
    ("App", "a service, as `build` makes it and `run` serves it"),
    ("Config", "what a service is started with"),
    ("Deps", "what a service depends on, built by its process"),
    ("Error", "what the calls of one crate fail with, as is usual in Rust"),
    ("Flags", "the command line of a service's program"),
    ("Metrics", "the metrics of one crate"),
    ("Result", "the result of a crate's calls with its `Error`, as is usual in Rust"),
];

#[test]
fn modules_have_specific_names() {
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

#[test]
fn a_type_has_a_name_of_its_own() {
    let files = source::rust(&root());
    check("type names", &shared_names(&files));
    let all = types(&files);
    for (name, meaning) in CONVENTIONAL {
        assert!(all.get(name).is_some_and(|at| at.len() > 1), "`{name}` ({meaning}) needs no exception");
    }
}

/// Definitions of types, by their names, as (file, line).
fn types(files: &[Source]) -> BTreeMap<String, Vec<(String, usize)>> {
    let mut found: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for file in files.iter().filter(|file| !file.is_test()) {
        let code = file.shipped();
        for keyword in ["struct ", "enum ", "trait ", "union ", "type "] {
            for at in occurrences(&code, keyword) {
                // An associated type belongs to its trait, and is indented.
                if keyword == "type " && code[..at].ends_with("    ") {
                    continue;
                }
                let name = identifier(&code, at + keyword.len());
                if name.starts_with(char::is_uppercase) {
                    found.entry(name).or_default().push((file.path.clone(), line_of(&code, at)));
                }
            }
        }
    }
    found
}

fn shared_names(files: &[Source]) -> Vec<Finding> {
    let is_conventional = |name: &str| CONVENTIONAL.iter().any(|(known, _)| *known == name);
    let shared = types(files).into_iter().filter(|(name, at)| at.len() > 1 && !is_conventional(name));
    let finding = |(name, at): (String, Vec<(String, usize)>)| {
        let others: Vec<_> = at[1..].iter().map(|(path, line)| format!("{path}:{line}")).collect();
        let what = format!("`{name}` is also the name of {}", others.join(" and "));
        Finding { path: at[0].0.clone(), line: at[0].1, what }
    };
    shared.map(finding).collect()
}

#[test]
fn a_name_of_two_types_is_found() {
    let source = |path: &str, text: &str| Source::new(path, text.to_owned());
    let files = [
        source("libs/x/src/lib.rs", "pub struct Place;\npub enum Error {}\n// struct Slot\n"),
        source("libs/y/src/lib.rs", "enum Error {}\ntype Slot = ();\npub(crate) trait Place {}\n"),
        source("libs/y/tests/it/main.rs", "struct Slot;\n"),
        source(
            "libs/z/src/lib.rs",
            "#[cfg(test)]\nmod tests {\n    struct Slot;\n}\nimpl A for B {\n    type Slot = ();\n}\n",
        ),
    ];
    let found = shared_names(&files);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].what.contains("`Place`") && found[0].what.contains("libs/y/src/lib.rs:3"), "{found:?}");
}
