//! The engine from outside: single cases, and random histories.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod again;
mod case;
mod cases;
mod endings;
mod expiry;
mod fate;
mod histories;
mod large;
mod losses;
mod reference;
mod times;
mod waits;
mod world;
