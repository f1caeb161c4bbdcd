//! Bytes that must never become others: those of rows, of instances and of what is ordered, in every build and on every machine.
//!
//! `golden.txt` was written once. A journal of last year is run again by the program of today, and a replica of another build goes on
//! with the instances of this one: so a difference here is a defect, and never a reason to rewrite the file.

use std::fmt::Write as _;

use super::*;
use crate::receive::EventDisposition;

const MANIFEST: &str = include_str!("golden.yaml");
const EXPECTED: &str = include_str!("golden.txt");

/// An event whose texts and numbers have several forms in JSON, of a schema that is not the latest.
const PLACED: &str = r#"{"type":"Placed","event_id":"e-1","schema_version":1,"metadata":{"correlation_id":"c-1.*>%{\u00fc}:\u0000"},
    "data":{"tags":["b","\u00e4","\"\\\/\n\u2028"],"id":"o-🍋","sum":"1250",
            "price":{"b":12.50,"a":1e3,"c":-0,"":null,"d":9007199254740993}}}"#;

fn golden() -> InstanceHarness {
    let mut world = InstanceHarness::of(MANIFEST);
    let at = crate::message::MessagePosition { incarnation: 7, sequence: 3 };
    let event = crate::message::read_event(PLACED.as_bytes(), &world.tenant, ("Order", "o-1"), at);
    let event = event.expect("it is good");
    let received = world.saga.receive(event, Timestamp::from_millis(world.now));
    let EventDisposition::Input(correlation, input) = received else { panic!("{received:?}") };
    world.correlation = correlation;
    assert_eq!(world.give(&input, InputOrigin::Fresh), InputDisposition::Applied);
    world
}

/// Adds the bytes of a row, as a line of text: their form, and JSON.
fn line<T: serde::Serialize>(text: &mut String, what: &str, row: &T) {
    let bytes = encode(row);
    let (form, json) = bytes.split_first().expect("a form");
    let json = std::str::from_utf8(json).expect("JSON");
    writeln!(text, "{what} {form} {json}").expect("a text grows");
}

/// Adds all bytes of a world.
fn story(text: &mut String, name: &str, world: &InstanceHarness) {
    writeln!(text, "# {name}").expect("a text grows");
    world.journal.iter().for_each(|row| line(text, "row", row));
    world.ordered.iter().for_each(|item| line(text, "work", item));
    line(text, "record", &world.record);
    world.assert_replays();
}

/// Comes by both branches, a timer, a letter that is redriven, a pause, the pivot and the end.
fn shipped() -> InstanceHarness {
    let mut world = golden();
    world.succeed("money", r#"{"rate":1.10,"code":7}"#);
    world.succeed("stock", r#"{"note":"  on the shelf ","left":[{"y":1,"x":2}]}"#);
    assert_eq!(world.sleep_until(world.now + 121_000), 1, "it is reminded");
    assert!(matches!(world.event("e-2", "Go", r#"{"amount":7,"why":"ä"}"#), InputDisposition::DeadLetter(_)));
    let good = world.event_input("e-2", "Go", r#"{"amount":1250,"why":"ä"}"#);
    world.give(&good, InputOrigin::Letter(0));
    world.verb("r-1", Verb::Pause);
    world.succeed("ship", "{}");
    world.verb("r-2", Verb::Resume);
    world.succeed("close", "{}");
    assert_eq!(world.status(), SagaStatus::Completed);
    world
}

/// Is undone because nobody came, with a branch of which nobody knows.
fn undone() -> InstanceHarness {
    let mut world = golden();
    world.succeed("stock", r#"{"note":"x","left":[]}"#);
    world.result(world.open("money"), CommandOutcome::Unknown, r#"{"code":"unknown"}"#);
    for _ in 0..3 {
        let open = world.instance().open.keys().next().copied();
        let Some(open) = open else { break };
        world.result(open, CommandOutcome::Succeeded, "{}");
    }
    assert_eq!(world.status(), SagaStatus::Compensated);
    world
}

/// Is stuck in a compensation, and helped by a person.
fn helped() -> InstanceHarness {
    let mut world = golden();
    world.succeed("money", r#"{"rate":"none"}"#);
    world.succeed("stock", r#"{"note":"y","left":{"b":true,"a":false}}"#);
    world.verb("r-1", Verb::Cancel { reason: "wrong ☃ order".to_owned() });
    let open = *world.instance().open.keys().next().expect("the first compensation");
    world.result(open, CommandOutcome::Failed, r#"{"code":"gone"}"#);
    assert_eq!(world.status(), SagaStatus::Stuck);
    world.verb("r-2", Verb::SkipStep { result: json(r#"{"by":"hand"}"#) });
    world.verb("r-3", Verb::Kill { reason: "enough".to_owned() });
    world
}

#[test]
fn bytes_are_for_ever() {
    let mut text = String::new();
    for (name, world) in [("shipped", shipped()), ("undone", undone()), ("helped", helped())] {
        story(&mut text, name, &world);
    }
    for (number, (found, expected)) in text.lines().zip(EXPECTED.lines()).enumerate() {
        assert_eq!(found, expected, "line {}", number + 1);
    }
    assert_eq!(text, EXPECTED);
}
