//! Frames that the runner reads from an engine, which a script may have taken over.

use crate::input::Input;
use crate::{Target, Verdict, check_refusal};

/// The reader of frames.
pub const TARGET: Target =
    Target { name: "engine_frame", run, seeds: runner::fuzzing::frames, dictionary: DICTIONARY };

const DICTIONARY: &[&str] = &[
    "C\u{0}",
    "C\u{1}",
    "C\u{10}",
    "O",
    "E",
    "Z",
    "\u{6}\u{1}\u{0}\u{0}\u{0}x",
    "\u{7}\u{2}\u{0}\u{0}\u{0}",
    "\u{8}\u{1}\u{0}\u{0}\u{0}",
    "\u{9}\u{0}\u{0}\u{0}\u{0}",
    "\"Terminated\"",
    "\"OutOfMemory\"",
    "{\"Exited\":{\"code\":0,\"result\":{}}}",
    "{\"Failed\":\"x\"}",
    "{\"ResultTooLarge\":{\"bytes\":1}}",
];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let kind = input.byte();
    let read = runner::fuzzing::read_frame(kind, input.rest());
    if let Err(why) = &read {
        check_refusal(why, 100, &[]);
    }
    Verdict::of(&read)
}
