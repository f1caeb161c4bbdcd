//! The bus over daemons: stand-ins with every bad habit, or, with its binary in `MYCELIUM_BIN`, the real
//! one wherever nothing has to be cut.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod absence;
mod conversations;
mod raw;
mod receiving;
mod replies;
mod restarts;
mod setup;
mod sizes;
