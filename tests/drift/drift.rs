//! The committed generated code and the reference of the API match the `.proto` files.
//!
//! `MYCORA_UPDATE=1 cargo test -p mycora-drift` regenerates both. This package links none of
//! ours: the generator has to run while conversions wait for what it writes.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its files has failed")]

mod reference;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use prost::Message as _;
use prost_types::FileDescriptorSet;

const PACKAGES: [&str; 2] = ["mycora/v1", "mycora/internal/v1"];

#[test]
fn generated_code_matches_the_protos() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = tempfile::tempdir().unwrap();
    generate(&root.join("proto"), out.path());
    let committed = root.join("libs/proto/src/generated");
    if std::env::var_os("MYCORA_UPDATE").is_some() {
        for (name, bytes) in read_all(out.path()) {
            fs::write(committed.join(name), bytes).unwrap();
        }
    }
    let fresh = read_all(out.path());
    let kept = read_all(&committed);
    let names: Vec<_> = fresh.keys().collect();
    assert_eq!(names, kept.keys().collect::<Vec<_>>(), "files in libs/proto/src/generated");
    for (name, bytes) in &fresh {
        assert!(
            kept[name] == *bytes,
            "{name} has drifted from the protos; run MYCORA_UPDATE=1 cargo test -p mycora-drift"
        );
    }
}

#[test]
fn the_reference_of_the_api_matches_the_protos() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (committed, fresh) =
        (root.join("specs/reference"), reference::pages(&descriptors(&root.join("proto"))));
    if std::env::var_os("MYCORA_UPDATE").is_some() {
        fs::create_dir_all(&committed).unwrap();
        for (name, text) in &fresh {
            fs::write(committed.join(name), text).unwrap();
        }
    }
    let kept = read_all(&committed);
    assert_eq!(fresh.keys().collect::<Vec<_>>(), kept.keys().collect::<Vec<_>>(), "pages in specs/reference");
    for (name, text) in &fresh {
        assert!(
            kept[name] == text.as_bytes(),
            "specs/reference/{name} has drifted from the protos; run MYCORA_UPDATE=1 cargo test -p mycora-drift"
        );
    }
}

/// Descriptors of the `.proto` files, with their comments.
fn descriptors(proto_root: &Path) -> FileDescriptorSet {
    let mut files: Vec<PathBuf> = Vec::new();
    for package in PACKAGES {
        files.extend(fs::read_dir(proto_root.join(package)).unwrap().map(|entry| entry.unwrap().path()));
    }
    files.retain(|path| path.extension().is_some_and(|ext| ext == "proto"));
    files.sort();
    protox::Compiler::new([proto_root])
        .unwrap()
        .include_source_info(true)
        .include_imports(true)
        .open_files(&files)
        .unwrap()
        .file_descriptor_set()
}

fn generate(proto_root: &Path, out: &Path) {
    let set = descriptors(proto_root);
    tonic_prost_build::configure().bytes(".").btree_map(".").out_dir(out).compile_fds(set.clone()).unwrap();
    fs::write(out.join("descriptors.binpb"), commented(set).encode_to_vec()).unwrap();
}

/// The set that reflection answers from: with the comments of our files, which explain fields to clients that only have a
/// port, and without the other source positions, which are most of what a compiler notes.
fn commented(mut set: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut set.file {
        if !file.package().starts_with("mycora.") {
            file.source_code_info = None;
        }
        if let Some(info) = &mut file.source_code_info {
            info.location.retain(|location| {
                location.leading_comments.is_some()
                    || location.trailing_comments.is_some()
                    || !location.leading_detached_comments.is_empty()
            });
        }
    }
    set
}

fn read_all(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect()
}
