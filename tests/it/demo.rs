//! `mycora demo` on real input, and `mycora demo --saga`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::suite::{processes_in, program, stderr, stdout};

#[test]
fn the_demo_gives_the_known_totals_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let out = Command::new(program("mycora"))
        .current_dir(dir.path())
        .env("HOME", dir.path())
        .arg("demo")
        .arg("--data")
        .arg(&data)
        .output()
        .expect("`mycora` starts");
    let text = stdout(&out, 0);
    for (year, days, millimetres) in [
        ("2012", "366", "1226.0"),
        ("2013", "365", "828.0"),
        ("2014", "365", "1232.8"),
        ("2015", "365", "1139.2"),
    ] {
        let line = text
            .lines()
            .find(|line| line.contains(year) && line.contains(days) && line.contains(millimetres));
        assert!(line.is_some(), "{year}: {days} days, {millimetres} mm do not stand in\n{text}");
    }
    assert_eq!(processes_in(dir.path()), Vec::<String>::new(), "left running");
}

/// The demonstration of sagas, with its temporary directory in this one.
fn demo_of_sagas(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("mycora"));
    command.current_dir(dir).env("HOME", dir).env("TMPDIR", dir).args(["demo", "--saga"]).args(arguments);
    command.output().expect("`mycora` starts")
}

fn left_in(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()).collect()
}

/// The demonstration of sagas takes less.
const DEMO_MAX: Duration = Duration::from_secs(60);

#[test]
fn the_demo_of_sagas_shows_four_orders_that_go_four_ways_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let began = Instant::now();
    let out = demo_of_sagas(dir.path(), &["--output", "json"]);
    let (text, took) = (stdout(&out, 0), began.elapsed());
    println!("the demonstration of sagas took {took:?}");
    assert!(took < DEMO_MAX, "it took {took:?}");
    let orders: serde_json::Value = serde_json::from_str(&text).expect("one document");
    let row = |n: usize| {
        let order = &orders[n];
        assert!(order["problems"].is_null(), "{order}");
        ["order", "status", "what"].map(|field| order[field].as_str().expect(field).to_owned())
    };
    let [first, status, what] = row(0);
    assert_eq!((&*first, &*status), ("1001", "shipped"));
    assert!(
        what.starts_with("charged once; label LBL-1001-") && what.ends_with("; receipt mailed"),
        "{what}"
    );
    assert_eq!(row(1), ["1002", "cancelled", "payment declined; there was nothing to undo"]);
    assert_eq!(
        row(2),
        ["1003", "cancelled", "not paid within 3 seconds; its reservation was released, once"]
    );
    let [fourth, status, what] = row(3);
    assert_eq!((&*fourth, &*status), ("1004", "shipped"));
    assert!(what.starts_with("its payment's answer was lost, asked for and found: charged once; "), "{what}");
    assert!(what.contains("label LBL-1004-"), "{what}");
    assert!(orders.get(4).is_none(), "{orders}");
    let printed = stderr(&out, 0);
    for line in
        ["stand-ins on this machine: payments https://localhost:", "order 1003 is compensated: not paid"]
    {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    assert_eq!(processes_in(dir.path()), Vec::<String>::new(), "left running");
    assert_eq!(left_in(dir.path()), Vec::<PathBuf>::new(), "left on the disk");
}

#[test]
fn the_saga_demo_reports_a_missing_server_before_it_starts_anything() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = demo_of_sagas(dir.path(), &["--nats-server", "none"]);
    let printed = stderr(&out, 3);
    assert!(
        printed.contains("none is no `nats-server` that can be used") && !printed.contains("starting"),
        "{printed}"
    );
    assert_eq!(left_in(dir.path()), Vec::<PathBuf>::new(), "something was made");
}

/// Path of the server on Debian, which is searched regardless of the `PATH`.
const OF_DEBIAN: &str = "/usr/sbin/nats-server";

/// Runs `mycora` where no `nats-server` is: Debian's is hidden in a mount namespace of its own, and the `PATH` is an empty directory.
/// Nothing where this machine allows no such namespace.
fn without_nats(dir: &Path, arguments: &[&str]) -> Option<Output> {
    let hide = format!("mount --bind /dev/null {OF_DEBIAN} || exit 77\n");
    let run = "PATH=\"$1\"\nexport PATH\nshift\nexec \"$@\"";
    let mut command = Command::new(if Path::new(OF_DEBIAN).exists() { "unshare" } else { "sh" });
    if Path::new(OF_DEBIAN).exists() {
        command.args(["--map-root-user", "--mount", "sh", "-c", &(hide + run)]);
    } else {
        command.args(["-c", run]);
    }
    let empty = dir.join("empty");
    std::fs::create_dir_all(&empty).expect("made");
    command.arg("sh").arg(&empty).arg(program("mycora")).args(arguments);
    command.current_dir(dir).env("HOME", dir).env("TMPDIR", dir).env_remove("MYCORA_NATS_SERVER");
    let output = command.output().ok()?;
    let is_refused = output.status.code() == Some(77) || output.stderr.starts_with(b"unshare: ");
    (!is_refused).then_some(output)
}

#[test]
fn a_missing_server_is_reported_with_the_package_to_install() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let data = data.to_str().expect("a plain path");
    for arguments in [&["demo", "--saga"][..], &["up", "--saga", "--port", "1", "--data", data]] {
        let Some(out) = without_nats(dir.path(), arguments) else {
            println!("left out: this machine does not let a test hide {OF_DEBIAN}");
            return;
        };
        let printed = stderr(&out, 3);
        assert!(printed.contains("there is no `nats-server` on this machine"), "{printed}");
        assert!(
            printed.contains("`apt-get install nats-server`") && printed.contains("--nats-url"),
            "{printed}"
        );
        assert!(!printed.contains("starting"), "{printed}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 1, "only the empty directory");
    assert_eq!(processes_in(dir.path()), Vec::<String>::new(), "left running");
}
