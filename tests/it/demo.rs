//! `mycora demo` on real input, and `mycora demo --saga`.

use std::path::Path;
use std::process::{Command, Output};

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

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).expect("a directory").next().is_none()
}

#[test]
fn the_demo_of_sagas_shows_four_orders_that_go_four_ways_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = demo_of_sagas(dir.path(), &["--output", "json"]);
    let text = stdout(&out, 0);
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
    let said = stderr(&out, 0);
    for line in
        ["stand-ins on this machine: payments https://localhost:", "order 1003 is compensated: not paid"]
    {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_eq!(processes_in(dir.path()), Vec::<String>::new(), "left running");
    assert!(is_empty(dir.path()), "left on the disk");
}

#[test]
fn the_demo_of_sagas_says_that_it_has_no_server_before_it_starts_anything() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = demo_of_sagas(dir.path(), &["--nats-server", "none"]);
    let said = stderr(&out, 3);
    assert!(
        said.contains("none is no `nats-server` that can be used") && !said.contains("starting"),
        "{said}"
    );
    assert!(is_empty(dir.path()), "something was made");
}
