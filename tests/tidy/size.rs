//! Files and functions that one can still take in.

use crate::source::{self, Source, block, identifier, line_of, occurrences};
use crate::{Finding, check, root};

/// Lines that fit one purpose. A longer file is two.
const FILE_LINES_MAX: usize = 600;
/// Style asks for about 70; a table or a match that is easier to read in one piece has some room.
const FUNCTION_LINES_MAX: usize = 80;

#[test]
fn files_are_short() {
    let files = source::rust(&root());
    check("file length", &files.iter().filter_map(long_file).collect::<Vec<_>>());
}

#[test]
fn functions_are_short() {
    let files = source::rust(&root());
    check("function length", &files.iter().flat_map(long_functions).collect::<Vec<_>>());
}

fn long_file(file: &Source) -> Option<Finding> {
    let lines = file.text.lines().count();
    let what = format!("{lines} lines, {FILE_LINES_MAX} are the limit");
    (lines > FILE_LINES_MAX).then(|| Finding { path: file.path.clone(), line: 0, what })
}

fn long_functions(file: &Source) -> Vec<Finding> {
    if file.is_test() {
        return Vec::new();
    }
    let code = file.shipped();
    let mut found = Vec::new();
    for at in occurrences(&code, "fn ") {
        let Some((_, end)) = block(&code, at) else { continue };
        let (first, last) = (line_of(&code, at), line_of(&code, end));
        let lines = last - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let name = identifier(&code, at + 3);
            let what = format!("`{name}` has {lines} lines, {FUNCTION_LINES_MAX} are the limit");
            found.push(Finding { path: file.path.clone(), line: first, what });
        }
    }
    found
}

#[test]
fn a_long_function_is_found() {
    let body = "    let x = [0; 3];\n".repeat(FUNCTION_LINES_MAX);
    let text = format!("trait T {{ fn none(); }}\nfn short(a: [u8; 2]) {{}}\nfn long() {{\n{body}}}\n");
    let found = long_functions(&Source::new("libs/x/src/lib.rs", text.clone()));
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].line, found[0].what.contains("`long` has 82")), (3, true));
    assert!(long_functions(&Source::new("libs/x/tests/it/main.rs", text)).is_empty());
}
