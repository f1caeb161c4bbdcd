//! The stand-in behaves as the real daemon was measured to: each trap catches a client that does not expect it,
//! and only while it is armed. With the real daemon's binary in `MYCELIUM_BIN`, what needs no trap
//! taken away is shown on that one as well.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod client;
mod exchanges;
mod processes;
mod traps;
