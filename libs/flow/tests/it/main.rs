//! The engine from outside: single cases, and random histories.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cases;
mod endings;
mod histories;
mod large;
mod reference;
mod world;
