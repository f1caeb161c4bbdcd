//! Processes that a run of tests leaves behind: none, or the run fails.

use std::path::Path;
use std::process::{Command, Output};

use testkit::{TestProcess, wait_until_blocking};

use crate::suite::{PATIENCE, Up, processes_in, stdout};

/// The Redis of a `mycora up` outlives it when that is killed. A test that ends there, well or not, leaves none.
#[test]
fn a_killed_up_takes_its_redis_along() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut up = Up::start(&data, &[]);
    up.process.kill9();
    let left = processes_in(&data);
    assert!(
        left.iter().any(|process| process.contains("redis-server")),
        "it was to outlive the kill: {left:?}"
    );
    drop(up);
    let gone = || processes_in(&data).is_empty().then_some(());
    wait_until_blocking(gone, PATIENCE, "nothing of it runs");
}

/// Runs the check that `tests/run` and `.ci/run` close with.
fn left_running(dir: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("left-running");
    Command::new(script).arg(dir).arg("0").output().expect("it starts")
}

#[test]
fn what_is_left_running_is_named_and_fails_the_run() {
    let (ours, others) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let sleeper = |secs: &str| {
        let mut command = Command::new("sleep");
        command.arg(secs).env_remove("TMPDIR");
        command
    };
    // A process of another suite, whose directory only begins like ours.
    let beside =
        others.path().with_file_name(format!("{}x", ours.path().file_name().expect("a name").display()));
    let mut other =
        TestProcess::spawn("another's", sleeper("1001").env("TMPDIR", &beside).current_dir(others.path()));
    assert_eq!(stdout(&left_running(ours.path()), 0), "");

    let mut by_environment = TestProcess::spawn("one of ours", sleeper("1002").env("TMPDIR", ours.path()));
    let mut by_directory = TestProcess::spawn("another of ours", sleeper("1003").current_dir(ours.path()));
    let printed = stdout(&left_running(ours.path()), 1);
    for (process, secs) in [(&by_environment, "1002"), (&by_directory, "1003")] {
        assert!(printed.contains(&format!("{}: sleep {secs}", process.pid())), "{printed}");
    }
    assert_eq!(printed.lines().count(), 3, "{printed}");
    for process in [&mut by_environment, &mut by_directory] {
        assert!(!process.wait(PATIENCE).success(), "it was ended");
    }
    assert_eq!(stdout(&left_running(ours.path()), 0), "");
    assert!(other.is_running(), "what belongs to others goes on");
}

#[test]
fn what_is_left_mounted_is_named_and_fails_the_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().join("a disk");
    std::fs::create_dir(&at).expect("a directory");
    let mut mount = Command::new("mount");
    let mounted = mount.args(["-t", "tmpfs", "mycora-test"]).arg(&at).output().expect("it starts");
    if !mounted.status.success() {
        // Who may not mount leaves none.
        return assert_eq!(stdout(&left_running(dir.path()), 0), "");
    }
    let printed = stdout(&left_running(dir.path()), 1);
    assert_eq!(printed, format!("left mounted:\n  {}\n", at.display()));
    assert_eq!(stdout(&left_running(dir.path()), 0), "", "it was taken away");
}
