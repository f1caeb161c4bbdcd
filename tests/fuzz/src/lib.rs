//! Feeds every reader of outside bytes with unexpected input.
//!
//! A [`Target`] takes any bytes, makes of them what its reader reads, and holds what comes out against what always holds:
//! what was accepted means the same when it is written again, what was changed on its way is not accepted, and what is
//! refused is refused in words without secrets. If only signed input is accepted, the target signs what the bytes
//! contain, so that mutations reach the code behind the signature check.
//!
//! The same targets run in three ways: `tests/replay.rs` with every test run, over the corpus and some ten thousand
//! mutations of it; `mycora-fuzz` on a stable compiler for as long as one likes; and libFuzzer (`make fuzz`), which sees
//! what the code does with an input and keeps what leads somewhere new.

pub mod corpus;
mod input;
mod keys;
#[cfg(feature = "libfuzzer")]
pub mod libfuzzer;
pub mod mutation;
pub mod targets;

pub use targets::TARGETS;

/// Outcome of an input. Anything else is a panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The input means something.
    Accepted,
    /// The input is invalid, and its sender would get an error.
    Refused,
}

impl Verdict {
    /// Returns the verdict for the result of reading an input.
    pub(crate) const fn of<T, E>(result: &Result<T, E>) -> Self {
        if result.is_ok() { Self::Accepted } else { Self::Refused }
    }
}

/// A reader, and what it is fed with.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Also the name of its corpus and of its front for libFuzzer.
    pub name: &'static str,
    /// Reads an input. Panics when something does not hold.
    pub run: fn(&[u8]) -> Verdict,
    /// Inputs to begin with, most of which are accepted.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that inputs of the target are made of.
    pub dictionary: &'static [&'static str],
}

impl Target {
    /// The one of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }
}

/// Fails when a text sent to outsiders is too long, or discloses what it must not.
pub(crate) fn check_refusal(text: &str, chars_max: usize, secrets: &[&str]) {
    assert!(text.chars().count() <= chars_max, "a refusal of {} bytes: {text}", text.len());
    for secret in secrets {
        assert!(!text.contains(secret), "a refusal tells a secret: {text}");
    }
}
