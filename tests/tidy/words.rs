//! Words that must not stand in the source.

use crate::source::{self, Source, block, line_of, occurrences};
use crate::{Finding, check, root};

/// Unfinished, or left over from looking for a fault.
const UNFINISHED: [&str; 4] = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
/// Waiting for a time instead of a condition.
const SLEEPS: [&str; 1] = ["sleep("];
/// Code generated from the protos, and the crates that it is made of.
const WIRE: [&str; 6] =
    ["tonic::", "tonic_prost::", "prost::", "prost_types::", "proto::v1", "proto::internal"];
/// Calls that ask the world instead of the caller.
const IMPURE: [&str; 8] = [
    "SystemTime::now",
    "Instant::now",
    "rand::rng(",
    "thread_rng(",
    "rand::random",
    "OsRng",
    "Timestamp::now",
    "Uid::random",
];
/// Ways to the terminal beside the writer that shows what would steer it.
const PRINTERS: [&str; 6] =
    ["println!", "print!(", "io::stdout(", "io::stderr(", "io::stdout;", "io::stderr;"];
/// Crates that draw on standard error by themselves: their texts have to be made drawable.
const DRAWERS: [&str; 2] = ["indicatif::", "console::"];
/// The half of the saga service that runs sagas, and what both halves stand on.
const SAGA_HALF: [&str; 3] = ["services/saga/src/sagas", "services/saga/src/lane", "libs/workflow/src"];
/// Crates and modules that the other half makes its calls with.
const CALLERS: [&str; 4] = ["providers::", "effects::", "egress::", "lettre::"];
/// Folders that the machines of some people have; written so that this file is not found.
const MACHINES: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

#[test]
fn nothing_is_unfinished() {
    let files = source::rust(&root());
    check(
        "unfinished",
        &files.iter().flat_map(|file| hits(file, &file.code, &UNFINISHED)).collect::<Vec<_>>(),
    );
}

#[test]
fn tests_wait_for_conditions() {
    let files = source::rust(&root());
    check("sleeps", &files.iter().flat_map(|file| hits(file, &file.tested(), &SLEEPS)).collect::<Vec<_>>());
}

#[test]
fn wire_types_stay_at_the_edge() {
    let files = source::rust(&root());
    let inside = files.iter().filter(|file| !is_edge(file));
    check("wire types", &inside.flat_map(|file| hits(file, &file.shipped(), &WIRE)).collect::<Vec<_>>());
}

/// Everything that the command line prints passes one writer: scripts, strangers and files say what they like.
#[test]
fn the_command_line_prints_through_one_writer() {
    let files = source::rust(&root());
    let own = files.iter().filter(|file| file.path.starts_with("services/mycora/src/"));
    let words = [&PRINTERS[..], &DRAWERS[..]].concat();
    check("terminal", &own.flat_map(|file| hits(file, &file.shipped(), &words)).collect::<Vec<_>>());
}

#[test]
fn clock_and_randomness_are_arguments() {
    let files = source::rust(&root());
    let is_pure = |file: &&Source| {
        ["flow", "model", "expression", "rehearsal", "workflow", "yaml"]
            .iter()
            .any(|lib| file.path.starts_with(&format!("libs/{lib}/src")))
    };
    let pure = files.iter().filter(is_pure);
    check("purity", &pure.flat_map(|file| hits(file, &file.shipped(), &IMPURE)).collect::<Vec<_>>());
}

/// Steps of sagas are the same whoever makes their calls, and a process may have the one role without the other.
#[test]
fn the_saga_half_names_no_provider() {
    let files = source::rust(&root());
    let half: Vec<_> =
        files.iter().filter(|file| SAGA_HALF.iter().any(|place| file.path.starts_with(place))).collect();
    assert!(
        SAGA_HALF.iter().all(|place| half.iter().any(|file| file.path.starts_with(place))),
        "{SAGA_HALF:?}"
    );
    check("halves", &half.iter().flat_map(|file| hits(file, &file.code, &CALLERS)).collect::<Vec<_>>());
}

#[test]
fn lints_are_silenced_with_a_reason() {
    let files = source::rust(&root());
    check("reasons", &files.iter().flat_map(unreasoned).collect::<Vec<_>>());
}

#[test]
fn no_machine_is_named() {
    let mut found = Vec::new();
    for file in source::all(&root()) {
        found.extend(hits(&file, &file.text, &MACHINES));
    }
    check("machine paths", &found);
}

/// Returns true if a file may name wire types: where bytes come in and go out, where the generated servers are
/// mounted, and in tests.
fn is_edge(file: &Source) -> bool {
    let path = file.path.as_str();
    let inside = path.strip_prefix("services/").and_then(|rest| rest.split_once("/src/"));
    file.is_test()
        || path.starts_with("libs/proto/")
        || path.starts_with("libs/rpc/")
        || inside.is_some_and(|(_, file)| {
            ["rpc.rs", "clients.rs", "app.rs"].contains(&file) || file.starts_with("rpc/")
        })
}

fn hits(file: &Source, text: &str, needles: &[&str]) -> Vec<Finding> {
    let mut found = Vec::new();
    for needle in needles {
        for at in occurrences(text, needle) {
            let what = format!("`{}`", needle.trim_end_matches(['(', '[']));
            found.push(Finding { path: file.path.clone(), line: line_of(text, at), what });
        }
    }
    found.sort_by_key(|finding| finding.line);
    found
}

fn unreasoned(file: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for silencer in ["allow(", "expect("] {
        for at in occurrences(&file.code, silencer) {
            let before = file.code[..at].trim_end();
            if !(before.ends_with("#[") || before.ends_with("#![")) {
                continue;
            }
            let end = file.code[at..].find(")]").map_or(file.code.len(), |end| at + end);
            if !file.code[at..end].contains("reason =") {
                let what = format!("`{silencer}…)` without a reason");
                found.push(Finding { path: file.path.clone(), line: line_of(&file.code, at), what });
            }
        }
    }
    found
}

#[test]
fn forbidden_text_is_found_in_code_only() {
    let text = "// todo!()\nfn a() { let s = \"dbg!\"; }\n#[ignore]\nfn b() { todo!() }\n";
    let file = Source::new("libs/x/src/lib.rs", text.to_owned());
    let found: Vec<_> = hits(&file, &file.code, &UNFINISHED).into_iter().map(|f| (f.line, f.what)).collect();
    assert_eq!(found, [(3, "`#[ignore`".to_owned()), (4, "`todo!`".to_owned())]);
    assert_eq!(block(&file.code, 0).map(|(at, _)| line_of(&file.code, at)), Some(2));
}

#[test]
fn the_edge_is_known() {
    let edge = |path: &str| is_edge(&Source::new(path, String::new()));
    assert!(edge("services/router/src/rpc/intake.rs") && edge("services/router/src/clients.rs"));
    assert!(!edge("services/router/src/driver.rs") && !edge("libs/flow/src/engine.rs"));
}

#[test]
fn a_silenced_lint_without_a_reason_is_found() {
    let text = "#![allow(dead_code)]\n#[expect(x, reason = \"y\")]\nfn a() { b.expect(\"c\"); }\n";
    let lines: Vec<_> =
        unreasoned(&Source::new("libs/x/src/lib.rs", text.to_owned())).iter().map(|f| f.line).collect();
    assert_eq!(lines, [1]);
}
