//! Dependencies that crates may have on each other.

use std::process::Command;

use serde_json::Value;

use crate::{Finding, check, root};

/// Which of our libraries a library may use. `testkit` may use anything, but needs nothing of ours.
const LIBS: [(&str, &[&str]); 26] = [
    ("backoff", &[]),
    ("model", &[]),
    ("expression", &[]),
    ("flow", &["model", "expression"]),
    ("yaml", &[]),
    ("flow-file", &["model", "flow", "proto", "yaml"]),
    ("store", &["kv"]),
    ("broker", &["backoff"]),
    ("workflow", &["model", "expression", "yaml"]),
    ("rehearsal", &["model", "workflow", "yaml"]),
    ("keys", &["model"]),
    ("kv", &["backoff"]),
    ("queue", &["model", "keys", "kv"]),
    ("proto", &["model", "envelope"]),
    ("archive", &["model", "proto"]),
    ("identity", &["model"]),
    ("envelope", &["model", "identity", "mycelium"]),
    ("rpc", &["model", "identity", "backoff"]),
    ("mycelium", &["backoff"]),
    ("addresses", &["model"]),
    ("egress", &["addresses"]),
    ("sandbox", &["model", "addresses"]),
    ("delivery", &["model", "proto"]),
    ("directory", &["model", "identity", "proto", "rpc"]),
    ("service", &["model", "identity", "rpc"]),
    ("testkit", &[]),
];
/// Crates from outside that only these of ours may name.
const FENCED: [(&str, &[&str]); 12] = [
    ("redis", &["libs/kv"]),
    ("async-nats", &["libs/broker"]),
    ("lettre", &["services/saga"]),
    ("miniz_oxide", &["libs/archive"]),
    ("petgraph", &["libs/flow"]),
    ("rcgen", &["libs/identity"]),
    ("tonic-reflection", &["libs/rpc"]),
    ("tonic-prost", &["libs/proto"]),
    ("rhai", &["libs/expression", "services/runner"]),
    ("landlock", &["libs/sandbox"]),
    ("seccompiler", &["libs/sandbox"]),
    ("signet-libmdbx", &["libs/store"]),
];
/// Crates that pure crates have no use for.
const IMPURE: [&str; 5] = ["tokio", "tonic", "prost", "redis", "tracing"];
/// The pure ones.
const PURE: [&str; 7] = [
    "libs/model",
    "libs/expression",
    "libs/flow",
    "libs/keys",
    "libs/rehearsal",
    "libs/workflow",
    "libs/yaml",
];

/// Dependencies of a crate.
struct Package {
    /// Folder of the crate from the root of the repository: `libs/flow`.
    folder: String,
    /// Names of the crates that it needs to be built, ours by their folder.
    needs: Vec<Need>,
}

struct Need {
    name: String,
    optional: bool,
}

#[test]
fn arrows_point_down_only() {
    let found: Vec<_> = packages().iter().flat_map(judge).collect();
    check("arrows", &found);
}

#[test]
fn every_crate_is_in_the_table() {
    for package in packages() {
        let known = match package.folder.split_once('/') {
            Some(("libs", name)) => LIBS.iter().any(|(lib, _)| *lib == name),
            Some(("services" | "tests", _)) => true,
            _ => package.folder == "tests",
        };
        assert!(known, "{} has no row in `LIBS`", package.folder);
    }
}

fn judge(package: &Package) -> Vec<Finding> {
    let mut found = Vec::new();
    for need in &package.needs {
        if let Some(why) = forbidden(&package.folder, need) {
            let what = format!("may not depend on {}: {why}", need.name);
            found.push(Finding { path: format!("{}/Cargo.toml", package.folder), line: 0, what });
        }
    }
    found
}

fn forbidden(folder: &str, need: &Need) -> Option<&'static str> {
    if folder.starts_with("tests") {
        return None;
    }
    if PURE.contains(&folder) && IMPURE.contains(&need.name.as_str()) {
        return Some("it is pure");
    }
    if let Some((_, owners)) = FENCED.iter().find(|(name, _)| *name == need.name) {
        return (!owners.contains(&folder)).then_some("another crate stands between the two");
    }
    let (room, name) = need.name.split_once('/')?;
    if need.name == "libs/testkit" {
        return (!need.optional).then_some("outside tests it is for crash points, behind a feature");
    }
    match (folder.split_once('/')?, room) {
        (("services", "mycora"), "services") | (("services", _), "libs") => None,
        (("services", _), _) => Some("services call each other, they do not link each other"),
        (("libs", lib), "libs") => {
            let (_, may) = LIBS.iter().find(|(known, _)| *known == lib)?;
            (!may.contains(&name)).then_some("libraries use what is below them")
        }
        _ => Some("libraries do not know services"),
    }
}

/// The members of the workspace, as cargo sees them.
fn packages() -> Vec<Package> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = root();
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let folder = |path: &str| {
        let inside = path.strip_prefix(root.to_str().unwrap())?.trim_start_matches('/');
        Some(inside.trim_end_matches("/Cargo.toml").to_owned())
    };
    let list = metadata["packages"].as_array().unwrap();
    list.iter()
        .map(|package| Package {
            folder: folder(package["manifest_path"].as_str().unwrap()).unwrap(),
            needs: needs(package, folder),
        })
        .collect()
}

fn needs(package: &Value, folder: impl Fn(&str) -> Option<String>) -> Vec<Need> {
    let list = package["dependencies"].as_array().unwrap();
    let normal = list.iter().filter(|dependency| dependency["kind"].is_null());
    normal
        .map(|dependency| Need {
            name: dependency["path"]
                .as_str()
                .and_then(&folder)
                .unwrap_or_else(|| dependency["name"].as_str().unwrap().to_owned()),
            optional: dependency["optional"].as_bool().unwrap(),
        })
        .collect()
}

#[test]
fn forbidden_arrows_are_found() {
    let verdict =
        |from: &str, to: &str, optional| forbidden(from, &Need { name: to.to_owned(), optional }).is_some();
    for (from, to) in [
        ("libs/model", "libs/flow"),
        ("libs/flow", "tokio"),
        ("libs/queue", "redis"),
        ("libs/rpc", "services/router"),
        ("services/router", "services/storage"),
        ("services/router", "libs/testkit"),
    ] {
        assert!(verdict(from, to, false), "{from} to {to}");
    }
    for (from, to) in [
        ("libs/flow", "libs/model"),
        ("libs/kv", "redis"),
        ("services/mycora", "services/router"),
        ("services/router", "libs/rpc"),
        ("tests", "services/router"),
    ] {
        assert!(!verdict(from, to, false), "{from} to {to}");
    }
    assert!(!verdict("services/storage", "libs/testkit", true));
}
