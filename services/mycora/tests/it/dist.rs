//! The archive of `make dist`, with the program that the tests run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stdout;

/// Makes it in a directory, and gives its path.
fn archive(out: &Path) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/dist.sh");
    let made = Command::new(script)
        .arg(out)
        .env("MYCORA_DIST_PROGRAM", env!("CARGO_BIN_EXE_mycora"))
        .env("MYCORA_DIST_GZIP", "1")
        .env("SOURCE_DATE_EPOCH", "1800000000")
        .output()
        .expect("it starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    PathBuf::from(stdout(&made).lines().next().expect("a path"))
}

fn run(dir: &Path, program: &str, arguments: &[&str]) -> String {
    let ended = Command::new(program).args(arguments).current_dir(dir).output().expect("it starts");
    assert!(ended.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
    stdout(&ended)
}

#[test]
fn the_archive_has_a_program_that_runs_and_nothing_of_who_made_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let archive = archive(&dir.path().join("dist"));
    let place = archive.parent().expect("a directory");
    let name = archive.file_name().expect("a name").to_string_lossy();
    let version = env!("CARGO_PKG_VERSION");
    assert!(name.starts_with(&format!("mycora-{version}-")) && name.ends_with(".tar.gz"), "{name}");
    run(place, "sha256sum", &["--check", &format!("{name}.sha256")]);
    let listed = run(place, "tar", &["--utc", "--full-time", "-tvzf", &name]);
    let plain = |line: &str| line.contains(" 0/0 ") && line.contains(" 2027-01-15 08:00:00 ");
    assert!(listed.lines().all(plain), "the owners and times of this machine:\n{listed}");
    run(place, "tar", &["-xzf", &name]);
    let unpacked = place.join(name.trim_end_matches(".tar.gz"));
    assert_eq!(run(&unpacked, "./mycora", &["--version"]), format!("mycora {version}\n"));
    for file in [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "specs/README.md",
        "completions/mycora.bash",
        "completions/_mycora",
    ] {
        assert!(unpacked.join(file).metadata().is_ok_and(|found| found.len() > 0), "{file}");
    }
}
