//! Crates that are compiled twice, and crates that must not be compiled at all.

use std::collections::BTreeMap;
use std::fs;

use crate::source::text_field;
use crate::{Finding, check, root};

/// Two versions of these would be two types of the same name, or minutes of building.
const ONCE: [&str; 14] = [
    "axum",
    "h2",
    "http",
    "http-body",
    "hyper",
    "hyper-util",
    "prost",
    "prost-types",
    "redis",
    "rustls",
    "tokio",
    "tokio-rustls",
    "tonic",
    "tower",
];
/// `ring` is the one provider of cryptography: a second would have to be built with a C compiler and
/// `cmake`, and `rustls` refuses to choose between two.
const NEVER: [&str; 4] = ["aws-lc-rs", "aws-lc-sys", "openssl", "openssl-sys"];

#[test]
fn important_crates_are_there_once() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    check("Cargo.lock", &judge(&lock));
}

fn judge(lock: &str) -> Vec<Finding> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let field = |name: &str| text_field(package, name);
        if let (Some(name), Some(version)) = (field("name"), field("version")) {
            versions.entry(name).or_default().push(version);
        }
    }
    let twice = ONCE.iter().filter_map(|name| {
        let found = versions.get(name).filter(|found| found.len() > 1)?;
        Some(format!("{name} is there as {}", found.join(" and ")))
    });
    let unwanted =
        NEVER.iter().filter(|name| versions.contains_key(**name)).map(|name| format!("{name} is there"));
    twice.chain(unwanted).map(|what| Finding { path: "Cargo.lock".to_owned(), line: 0, what }).collect()
}

#[test]
fn a_second_version_is_found() {
    let lock = "[[package]]\nname = \"tonic\"\nversion = \"0.13.0\"\n\n[[package]]\nname = \"tonic\"\nversion = \"0.14.9\"\n\
                \n[[package]]\nname = \"aws-lc-rs\"\nversion = \"1.0.0\"\n";
    let found: Vec<_> = judge(lock).into_iter().map(|finding| finding.what).collect();
    assert_eq!(found, ["tonic is there as 0.13.0 and 0.14.9", "aws-lc-rs is there"]);
}
