//! `mycora demo` on real input.

use std::process::Command;

use crate::suite::{processes_in, program, stdout};

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
